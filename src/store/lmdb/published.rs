//! What readers may see.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use super::names::Names;
use super::options::Durability;
use crate::protocol::{LogTail, Sequence};
use crate::store::CommitNotifier;

/// What readers may see: set after a commit has returned.
pub(super) struct Published {
    names: RwLock<Arc<Names>>,
    definitions: AtomicU64,
    head: AtomicU64,
    pub(super) committed_bytes: AtomicU64,
    pub(super) synced_bytes: AtomicU64,
    pub(super) commits: AtomicU64,
    syncs_on_commit: bool,
    pub(super) notifier: CommitNotifier,
}

impl Published {
    pub(super) fn new(names: Names, tail: LogTail, durability: Durability) -> Self {
        Self {
            definitions: AtomicU64::new(names.version),
            names: RwLock::new(Arc::new(names)),
            head: AtomicU64::new(tail.end.sequence.get()),
            committed_bytes: AtomicU64::new(tail.cumulative_bytes),
            synced_bytes: AtomicU64::new(tail.cumulative_bytes),
            commits: AtomicU64::new(0),
            syncs_on_commit: durability == Durability::Sync,
            notifier: CommitNotifier::default(),
        }
    }

    pub(super) fn names(&self) -> Arc<Names> {
        Arc::clone(&self.names.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn head(&self) -> Sequence {
        Sequence::new(self.head.load(Ordering::Acquire))
    }

    pub(super) fn definitions_version(&self) -> u64 {
        self.definitions.load(Ordering::Acquire)
    }

    /// Names first, so that no reader meets an entry before its names. The head only rises: the writer thread and a
    /// host's transaction may get here in another order than they committed in.
    pub(super) fn publish(&self, names: Option<Arc<Names>>, tail: LogTail) {
        if let Some(names) = names {
            self.definitions.store(names.version, Ordering::Release);
            *self.names.write().unwrap_or_else(PoisonError::into_inner) = names;
        }
        self.commits.fetch_add(1, Ordering::Relaxed);
        self.committed_bytes.fetch_max(tail.cumulative_bytes, Ordering::Relaxed);
        if self.syncs_on_commit {
            self.synced_bytes.fetch_max(tail.cumulative_bytes, Ordering::Relaxed);
        }
        let head = tail.end.sequence.get();
        if self.head.fetch_max(head, Ordering::AcqRel) < head {
            self.notifier.notify();
        }
    }
}
