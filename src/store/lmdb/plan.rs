//! Reading a received batch: its transactions with the log's own short ids, before anything is written.

use std::ops::Range;
use std::sync::Arc;

use super::stage::Stage;
use crate::protocol::{
    Boundary, EntryDraft, EntryFlags, OriginId, ProtocolError, SegmentFlags, SegmentRef, Sequence, TableId,
    TransactionRef, Version,
};
use crate::store::{ApplyBatch, PeerDictionary, StoreError};

/// A frame uses a short id that no dictionary frame explained.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what} id {id} of node {source_node} was used before a dictionary frame gave its name")]
struct UnknownId {
    what: &'static str,
    id: u16,
    source_node: String,
}

/// The short ids of one source, in the ids of this log.
#[derive(Debug, Default)]
pub(super) struct IdMap {
    dictionary: Arc<PeerDictionary>,
    origins: Vec<Option<OriginId>>,
    tables: Vec<Option<TableId>>,
}

impl IdMap {
    /// Starts again when the source's dictionary is another one.
    pub(super) fn follow(&mut self, dictionary: &Arc<PeerDictionary>) {
        if !Arc::ptr_eq(&self.dictionary, dictionary) {
            self.dictionary = Arc::clone(dictionary);
            self.origins.clear();
            self.tables.clear();
        }
    }

    fn origin(
        &mut self,
        id: OriginId,
        stage: &mut Stage<'_>,
        batch: &ApplyBatch,
    ) -> Result<OriginId, StoreError> {
        if let Some(Some(known)) = self.origins.get(usize::from(id.0)) {
            return Ok(*known);
        }
        let name = self.dictionary.origins.get(&id).ok_or_else(|| unknown("origin", id.0, batch))?;
        let Stage { names, txn, core, .. } = stage;
        let own = names.origin_id(txn, (&core.databases, &core.options), name)?;
        remember(&mut self.origins, id.0, own);
        Ok(own)
    }

    fn table(
        &mut self,
        id: TableId,
        stage: &mut Stage<'_>,
        batch: &ApplyBatch,
    ) -> Result<TableId, StoreError> {
        if let Some(Some(known)) = self.tables.get(usize::from(id.0)) {
            return Ok(*known);
        }
        let table = self.dictionary.tables.get(&id).ok_or_else(|| unknown("table", id.0, batch))?;
        let Stage { names, txn, core, .. } = stage;
        let own = names.adopt(txn, (&core.databases, &core.options), table)?;
        remember(&mut self.tables, id.0, own);
        Ok(own)
    }
}

fn remember<T: Clone>(ids: &mut Vec<Option<T>>, id: u16, own: T) {
    let at = usize::from(id);
    if ids.len() <= at {
        ids.resize(at + 1, None);
    }
    ids[at] = Some(own);
}

fn unknown(what: &'static str, id: u16, batch: &ApplyBatch) -> StoreError {
    let error = UnknownId { what, id, source_node: batch.source.to_string() };
    StoreError::Backend { action: "map a short id".to_owned(), source: Arc::new(error) }
}

/// A whole transaction of a batch.
#[derive(Debug)]
pub(super) struct Planned {
    pub(super) origin: OriginId,
    pub(super) version: Version,
    /// Where it ends in the source's log.
    pub(super) end: Sequence,
    /// The boundary after it, when the frames say what it is: a filtered transaction has another checksum than in
    /// the source's log.
    pub(super) boundary: Option<Boundary>,
    /// Its entries in [`Plan::entries`].
    pub(super) entries: Range<usize>,
    /// Entries that must not be here.
    pub(super) dropped: u64,
}

/// The transactions of a batch, up to the first that cannot be read.
#[derive(Debug, Default)]
pub(super) struct Plan<'b> {
    pub(super) entries: Vec<EntryDraft<'b>>,
    pub(super) transactions: Vec<Planned>,
    /// The end of the transaction that cannot be read, and why.
    pub(super) failed: Option<(Sequence, StoreError)>,
    open: Option<Open>,
}

#[derive(Debug)]
struct Open {
    first: Sequence,
    planned: Planned,
}

impl<'b> Plan<'b> {
    /// Reads a batch. The frames were verified by the receiver; whatever is wrong with them still is an error.
    pub(super) fn read(batch: &'b ApplyBatch, map: &mut IdMap, stage: &mut Stage<'_>) -> Self {
        let mut plan = Self::default();
        for frame in &batch.frames {
            let segment = match SegmentRef::parse(frame) {
                Ok(segment) => segment,
                Err(error) => {
                    let at = batch.position.boundary.sequence;
                    plan.failed = Some((at, corrupt(at, error)));
                    break;
                }
            };
            if let Err(failed) = plan.read_segment(&segment, batch, map, stage) {
                plan.failed = Some(failed);
                break;
            }
        }
        if plan.failed.is_none() {
            plan.close();
        }
        plan
    }

    fn read_segment(
        &mut self,
        segment: &SegmentRef<'b>,
        batch: &ApplyBatch,
        map: &mut IdMap,
        stage: &mut Stage<'_>,
    ) -> Result<(), (Sequence, StoreError)> {
        let mut continued = false;
        for transaction in segment.transactions() {
            let last = segment.header().last;
            let transaction = transaction.map_err(|error| (last, corrupt(last, error)))?;
            let end = transaction.header.last();
            self.read_part(&transaction, batch, map, stage).map_err(|reason| (end, reason))?;
            continued = transaction.is_continued();
        }
        if !continued && let Some(open) = &mut self.open {
            open.planned.boundary = Some(segment.header().end);
        }
        Ok(())
    }

    /// Reads a transaction, or a part of one. The parts of one transaction begin at the same sequence.
    fn read_part(
        &mut self,
        transaction: &TransactionRef<'b>,
        batch: &ApplyBatch,
        map: &mut IdMap,
        stage: &mut Stage<'_>,
    ) -> Result<(), StoreError> {
        let header = &transaction.header;
        if self.open.as_ref().is_some_and(|open| open.first != header.first) {
            self.close();
        }
        let origin = map.origin(header.origin, stage, batch)?;
        let start = self.entries.len();
        let open = self.open.get_or_insert_with(|| Open {
            first: header.first,
            planned: Planned {
                origin,
                version: header.version,
                end: header.last(),
                boundary: None,
                entries: start..start,
                dropped: 0,
            },
        });
        for entry in transaction.entries() {
            let entry = entry.map_err(|error| corrupt(header.last(), error))?;
            if entry.header.flags.contains(EntryFlags::LOCAL_ONLY) {
                open.planned.dropped += 1;
                continue;
            }
            self.entries.push(EntryDraft {
                ordinal: entry.header.ordinal,
                table: map.table(entry.header.table, stage, batch)?,
                kind: entry.header.kind,
                flags: entry.header.flags,
                key: entry.key,
                value: entry.value,
            });
        }
        open.planned.entries.end = self.entries.len();
        let whole = header.flags == SegmentFlags::NONE && header.entries == header.total_entries;
        open.planned.boundary = if whole { transaction.boundary() } else { None };
        Ok(())
    }

    fn close(&mut self) {
        if let Some(open) = self.open.take() {
            self.transactions.push(open.planned);
        }
    }
}

fn corrupt(key: Sequence, source: ProtocolError) -> StoreError {
    StoreError::Corrupt { what: "received segment", key, source }
}
