//! Names go out before they are used, in the same ordered stream.

use crate::protocol::{Dictionary, Message, OriginId, SegmentRef, TableId};
use crate::store::StoreError;

use super::pump::{Flow, Pump};

impl Pump<'_, '_> {
    /// Names go out before the first segment that uses them, in the same ordered stream.
    pub(super) fn introduce(&mut self, segment: &SegmentRef<'_>) -> Flow {
        self.forget_changed_definitions();
        match self.introduce_all(segment) {
            Ok(()) => Flow::Continue(()),
            Err(error) => Flow::Break(self.store_failed(&error)),
        }
    }

    fn introduce_all(&mut self, segment: &SegmentRef<'_>) -> Result<(), StoreError> {
        let corrupt = |source| StoreError::Corrupt { what: "segment", key: segment.header().last, source };
        match (segment.origins(), segment.tables()) {
            (Some(origins), Some(tables)) => {
                for id in origins {
                    self.introduce_origin(id)?;
                }
                for id in tables {
                    self.introduce_table(id)?;
                }
            }
            // Too many to be listed: the entries name them.
            _ => {
                for transaction in segment.transactions() {
                    let transaction = transaction.map_err(corrupt)?;
                    self.introduce_origin(transaction.header.origin)?;
                    for entry in transaction.entries() {
                        self.introduce_table(entry.map_err(corrupt)?.header.table)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn introduce_origin(&mut self, id: OriginId) -> Result<(), StoreError> {
        // What the peer does not get, it need not know the name of.
        let skipped = self.session.filter.origin(self.log, id)?.is_some();
        if skipped || !first_time(&mut self.session.introduced.origins, id.0) {
            return Ok(());
        }
        if let Some(name) = self.log.origin(id)? {
            self.put_message(&Message::Dictionary(Dictionary::Origin(id, name)));
        }
        Ok(())
    }

    fn introduce_table(&mut self, id: TableId) -> Result<(), StoreError> {
        let skipped = self.session.filter.table(self.log, id)?.is_some();
        if skipped || !first_time(&mut self.session.introduced.tables, id.0) {
            return Ok(());
        }
        if let Some(table) = self.log.table(id)? {
            self.put_message(&Message::Dictionary(Dictionary::Table(id, table)));
        }
        Ok(())
    }

    /// A definition that changed is sent again, before any entry that was written under it. Looked at for every segment:
    /// one that can be read now may have been written after this run began.
    fn forget_changed_definitions(&mut self) {
        let version = self.log.definitions_version();
        if version != self.session.introduced.definitions_version {
            self.session.introduced.definitions_version = version;
            self.session.introduced.tables.clear();
        }
    }

    fn put_message(&mut self, message: &Message) {
        debug_assert_eq!(self.complete, self.turn.scratch.len(), "no frame may be open");
        message.encode(self.turn.scratch);
        self.complete = self.turn.scratch.len();
    }
}

/// Marks `id` and says whether that was the first time.
fn first_time(known: &mut Vec<bool>, id: u16) -> bool {
    let index = usize::from(id);
    if index >= known.len() {
        known.resize(index + 1, false);
    }
    !std::mem::replace(&mut known[index], true)
}
