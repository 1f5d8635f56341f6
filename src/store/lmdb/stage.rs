//! One write transaction: the end of the log is read in it, moved in it, and published after its commit.

use std::sync::Arc;

use lmdb::{RwTransaction, Transaction, WriteFlags};

use super::Core;
use super::error::{backend, unreadable, write_error};
use super::format::{META_TAIL, StoredTail, log_key};
use super::names::{Names, NamesEdit};
use super::walk::found;
use crate::protocol::{Boundary, EntryDraft, OriginId, SegmentPacker, Sequence, TransactionDraft, Version};
use crate::store::{Hlc, StoreError};

/// A write transaction on the log. Dropping it aborts, and leaves no hole: the sequence counter lies in it.
pub(super) struct Stage<'a> {
    pub(super) core: &'a Core,
    pub(super) txn: RwTransaction<'a>,
    pub(super) names: NamesEdit,
    pub(super) clock: Hlc,
    pub(super) wall_ms: u64,
    packer: SegmentPacker,
    begun: StoredTail,
}

impl<'a> Stage<'a> {
    /// Takes LMDB's write lock; blocks while a host's `AuditTxn` holds it.
    pub(super) fn begin(core: &'a Core) -> Result<Self, StoreError> {
        let begin = |error| write_error("begin a write transaction", error, &core.options);
        let txn = core.environment.begin_rw_txn().map_err(begin)?;
        core.hold_length()?;
        let stored = read_tail(&txn, core)?;
        let wall_ms = core.clock.wall_ms();
        Ok(Self {
            core,
            txn,
            names: NamesEdit::new(core.published.names()),
            clock: Hlc::after(stored.latest),
            wall_ms,
            packer: SegmentPacker::new(stored.tail, wall_ms),
            begun: stored,
        })
    }

    /// The last sequence with everything appended so far.
    pub(super) const fn last(&self) -> Sequence {
        self.packer.tail().end.sequence
    }

    /// Appends a transaction to the log.
    pub(super) fn append(
        &mut self,
        origin: OriginId,
        version: Version,
        entries: &[EntryDraft<'_>],
    ) -> Result<Boundary, StoreError> {
        let Self { core, txn, packer, .. } = self;
        let draft = TransactionDraft { origin, version, entries };
        packer.push(&draft, &mut |last, frame| put_segment(core, txn, last, frame))
    }

    /// Commits, then publishes the names and the head, in this order: an entry is never visible before its names.
    ///
    /// # Errors
    /// What LMDB answers; nothing of the transaction is left then.
    pub(super) fn commit(mut self) -> Result<(), StoreError> {
        let Self { core, txn, packer, .. } = &mut self;
        packer.finish(&mut |last, frame| put_segment(core, txn, last, frame))?;
        let stored = StoredTail { tail: packer.tail(), latest: self.clock.latest() };
        let core = self.core;
        if stored != self.begun {
            self.txn
                .put(core.databases.meta, &META_TAIL, &stored.to_bytes(), WriteFlags::empty())
                .map_err(|error| write_error("write the end of the log", error, &core.options))?;
        }
        let in_order = core.published.in_order();
        self.txn.commit().map_err(|error| write_error("commit", error, &core.options))?;
        let names: Option<Arc<Names>> = self.names.into_changed();
        let moved = core.published.publish(&in_order, names, stored.tail);
        drop(in_order);
        if moved {
            core.published.notifier.notify();
        }
        Ok(())
    }
}

fn put_segment(
    core: &Core,
    txn: &mut RwTransaction<'_>,
    last: Sequence,
    frame: &[u8],
) -> Result<(), StoreError> {
    // APPEND also proves the order: a key that is not above all others is refused.
    txn.put(core.databases.log, &log_key(last), &frame, WriteFlags::APPEND)
        .map_err(|error| write_error("append to the log", error, &core.options))
}

/// Where the log ends; a log without entries has no stored end.
pub(super) fn read_tail(txn: &impl Transaction, core: &Core) -> Result<StoredTail, StoreError> {
    let action = "read the end of the log";
    match found(txn.get(core.databases.meta, &META_TAIL), action)? {
        Some(bytes) => StoredTail::read(bytes)
            .map_err(|error| unreadable("the end of the log is corrupt".to_owned(), error)),
        None => Ok(StoredTail::default()),
    }
}

/// Syncs everything that was committed, whatever the durability level.
pub(super) fn sync(core: &Core) -> Result<(), StoreError> {
    core.environment.sync(true).map_err(|error| match error {
        lmdb::Error::Other(_) | lmdb::Error::MapFull => write_error("sync", error, &core.options),
        other => backend("sync", other),
    })
}
