//! Writing rows: who wins, and where a look-up can be spared.

use lmdb::{Cursor as _, Transaction, WriteFlags};

use super::error::{backend, unreadable, write_error};
use super::format::{ROW_HEADER_BYTES, RowHeader, identity_key, row_key};
use super::names::Names;
use super::stage::Stage;
use super::walk::{LAST, PREV, SET_RANGE, found, step};
use crate::protocol::{EntryDraft, EntryKind, OriginId, TableId, Version};
use crate::store::{Identity, Outcome, StoreError};

const ACTION: &str = "read a row";

/// The writer thread's knowledge of the rows, kept from commit to commit.
///
/// Rows are never removed (deletes leave tombstones), so a key above a table's greatest one is new: no look-up is
/// needed, and a key above all others can be appended. After an abort everything here is forgotten.
#[derive(Debug, Default)]
pub(super) struct RowWriter {
    key: Vec<u8>,
    /// The greatest key of all.
    last: Option<Vec<u8>>,
    /// The greatest key of each table, by its id.
    edges: Vec<Option<Vec<u8>>>,
}

impl RowWriter {
    pub(super) fn forget(&mut self) {
        self.last = None;
        self.edges.clear();
    }

    /// Writes the row of an own entry. Its version is above every other, so it wins without a look.
    pub(super) fn write_own(
        &mut self,
        stage: &mut Stage<'_>,
        entry: &EntryDraft<'_>,
        version: Version,
    ) -> Result<(), StoreError> {
        if entry.kind == EntryKind::Message {
            return Ok(());
        }
        row_key(&mut self.key, entry.table, entry.key);
        self.is_new(stage, entry.table)?;
        self.put(stage, entry, stage.core.origin, version)
    }

    /// Writes the row of another node's entry unless a stored one wins. Answers whether it changed something.
    ///
    /// The greater version wins, then the greater origin name, then the greater ordinal: within a transaction a
    /// later entry of the same key wins. Equal in all three is a duplicate.
    pub(super) fn write_received(
        &mut self,
        stage: &mut Stage<'_>,
        entry: &EntryDraft<'_>,
        origin: OriginId,
        version: Version,
    ) -> Result<bool, StoreError> {
        row_key(&mut self.key, entry.table, entry.key);
        if !self.is_new(stage, entry.table)? {
            let stored = found(stage.txn.get(stage.core.databases.rows, &self.key), ACTION)?;
            if let Some(row) = stored {
                let (header, _) = RowHeader::split(row)
                    .map_err(|error| unreadable(format!("the row {:02x?} is corrupt", self.key), error))?;
                let new = Identity { origin, version, ordinal: entry.ordinal };
                if !wins(stage.names.names(), new, &header) {
                    return Ok(false);
                }
            }
        }
        self.put(stage, entry, origin, version)?;
        Ok(true)
    }

    /// Whether the key is above every key of its table.
    fn is_new(&mut self, stage: &Stage<'_>, table: TableId) -> Result<bool, StoreError> {
        let at = usize::from(table.0);
        if self.edges.len() <= at {
            self.edges.resize(at + 1, None);
        }
        let slot = &mut self.edges[at];
        let edge = match slot {
            Some(edge) => edge,
            None => slot.insert(edge_of(stage, table)?),
        };
        if self.last.is_none() {
            self.last = Some(last_key(stage)?);
        }
        let new = self.key > *edge;
        if new {
            edge.clear();
            edge.extend_from_slice(&self.key);
        }
        Ok(new)
    }

    fn put(
        &mut self,
        stage: &mut Stage<'_>,
        entry: &EntryDraft<'_>,
        origin: OriginId,
        version: Version,
    ) -> Result<(), StoreError> {
        let deleted = entry.kind == EntryKind::Delete;
        let invalidated = entry.kind == EntryKind::Invalidate;
        let value = if deleted || invalidated { &[][..] } else { entry.value };
        let mut flags = WriteFlags::empty();
        if let Some(last) = self.last.as_mut().filter(|last| self.key > **last) {
            flags = WriteFlags::APPEND;
            last.clear();
            last.extend_from_slice(&self.key);
        }
        let header = RowHeader { origin, version, ordinal: entry.ordinal, deleted, invalidated };
        let bytes = ROW_HEADER_BYTES + value.len();
        let room = stage
            .txn
            .reserve(stage.core.databases.rows, &self.key, bytes, flags)
            .map_err(|error| write_error("write a row", error, &stage.core.options))?;
        let (head, body) = room.split_at_mut(ROW_HEADER_BYTES);
        head.copy_from_slice(&header.to_bytes());
        body.copy_from_slice(value);
        Ok(())
    }
}

/// Notes an entry without a row. Answers whether it was new.
pub(super) fn note_identity(
    stage: &mut Stage<'_>,
    entry: &EntryDraft<'_>,
    origin: OriginId,
    version: Version,
    sequence: u64,
) -> Result<bool, StoreError> {
    let key = identity_key(origin, version, entry.ordinal);
    let written = stage.txn.put(
        stage.core.databases.identities,
        &key,
        &sequence.to_le_bytes(),
        WriteFlags::NO_OVERWRITE,
    );
    match written {
        Ok(()) => Ok(true),
        Err(lmdb::Error::KeyExist) => Ok(false),
        Err(error) => Err(write_error("write an identity", error, &stage.core.options)),
    }
}

fn wins(names: &Names, new: Identity, stored: &RowHeader) -> bool {
    let stored = Identity { origin: stored.origin, version: stored.version, ordinal: stored.ordinal };
    // Ids differ from log to log; names do not.
    new.against(stored, |a, b| names.origin(a).cmp(&names.origin(b))) == Outcome::Wins
}

fn last_key(stage: &Stage<'_>) -> Result<Vec<u8>, StoreError> {
    let cursor =
        stage.txn.open_ro_cursor(stage.core.databases.rows).map_err(|error| backend(ACTION, error))?;
    let last = step(cursor.get(None, None, LAST), ACTION)?;
    Ok(last.map(|(key, _)| key.to_vec()).unwrap_or_default())
}

/// The greatest key of a table; when it has none, what every key of it is at or above.
fn edge_of(stage: &Stage<'_>, table: TableId) -> Result<Vec<u8>, StoreError> {
    let prefix = table.0.to_be_bytes();
    let cursor =
        stage.txn.open_ro_cursor(stage.core.databases.rows).map_err(|error| backend(ACTION, error))?;
    let beyond = match table.0.checked_add(1) {
        Some(next) => step(cursor.get(Some(&next.to_be_bytes()), None, SET_RANGE), ACTION)?,
        None => None,
    };
    let last = step(cursor.get(None, None, if beyond.is_some() { PREV } else { LAST }), ACTION)?;
    Ok(match last {
        Some((key, _)) if key.starts_with(&prefix) => key.to_vec(),
        _ => prefix.to_vec(),
    })
}
