//! A host's own write transaction that also appends to the log.

use std::fmt;
use std::ops::{Deref, DerefMut};

use lmdb::RwTransaction;

use super::Core;
use super::handle::EnqueueError;
use super::stage::Stage;
use crate::protocol::{Boundary, ENTRY_HEADER_BYTES, Entry, EntryDraft};
use crate::store::{LimitError, StoreError};

/// LMDB's write transaction, for hosts with tables of their own: the host writes its data through it, and what it
/// appends goes to the log in the same commit. Several appends are one transaction.
///
/// It only appends to the log; rows of the built-in tables are not written. It holds LMDB's write lock, so everything
/// else that writes waits until it is committed or dropped; never hold it on a worker or across a wait. Dropping it
/// aborts and leaves no hole: the sequence counter lies inside the transaction.
pub struct AuditTxn<'a> {
    stage: Stage<'a>,
    entries: Vec<Entry>,
    bytes: u64,
}

impl fmt::Debug for AuditTxn<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AuditTxn").field("entries", &self.entries.len()).finish_non_exhaustive()
    }
}

impl<'a> Deref for AuditTxn<'a> {
    type Target = RwTransaction<'a>;

    fn deref(&self) -> &Self::Target {
        &self.stage.txn
    }
}

impl DerefMut for AuditTxn<'_> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.stage.txn
    }
}

impl<'a> AuditTxn<'a> {
    pub(super) fn begin(core: &'a Core) -> Result<Self, StoreError> {
        let stage = Stage::begin(core)?;
        // Looked at under the write lock: a store that is closed from now on is marked clean only after this one.
        if core.queue.is_closed() {
            return Err(StoreError::Closed);
        }
        Ok(Self { stage, entries: Vec::new(), bytes: 0 })
    }

    /// Adds an entry to the transaction.
    ///
    /// # Errors
    /// Limits and unknown tables. The entry is then not part of the transaction, the earlier ones still are.
    pub fn append(&mut self, entry: Entry) -> Result<(), EnqueueError> {
        let core = self.stage.core;
        let limits = core.options.limits();
        let at = self.entries.len();
        if at >= limits.transaction_entries {
            return Err(LimitError::Entries { entries: at + 1, limit: limits.transaction_entries }.into());
        }
        core.check_tables(std::slice::from_ref(&entry)).map_err(|error| match error {
            EnqueueError::UnknownTable { table, .. } => EnqueueError::UnknownTable { entry: at, table },
            other => other,
        })?;
        limits.check([(entry.key.len(), entry.value.len())].into_iter()).map_err(|error| match error {
            LimitError::Key { bytes, limit, .. } => LimitError::Key { entry: at, bytes, limit },
            LimitError::Value { bytes, limit, .. } => LimitError::Value { entry: at, bytes, limit },
            other => other,
        })?;
        let bytes = self.bytes + (ENTRY_HEADER_BYTES + entry.key.len() + entry.value.len()) as u64;
        if bytes > limits.transaction_bytes {
            return Err(LimitError::Bytes { bytes, limit: limits.transaction_bytes }.into());
        }
        self.bytes = bytes;
        self.entries.push(entry);
        Ok(())
    }

    /// Commits the host's data and the log, moves the head and wakes the senders. Answers the boundary of the new
    /// transaction, or `None` when nothing was appended.
    ///
    /// # Errors
    /// What LMDB answers; nothing is written then.
    pub fn commit(self) -> Result<Option<Boundary>, StoreError> {
        let Self { mut stage, entries, .. } = self;
        let mut boundary = None;
        if !entries.is_empty() {
            let drafts: Vec<EntryDraft<'_>> =
                (0..).zip(&entries).map(|(at, entry)| entry.draft(at)).collect();
            let version = stage.clock.tick(stage.wall_ms);
            boundary = Some(stage.append(stage.core.origin, version, &drafts)?);
        }
        stage.commit()?;
        Ok(boundary)
    }
}
