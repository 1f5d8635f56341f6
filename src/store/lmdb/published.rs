//! What readers may see.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use super::names::Names;
use super::options::Durability;
use crate::protocol::{LogTail, Sequence};
use crate::store::CommitNotifier;

/// What readers may see: set after a commit has returned.
pub(super) struct Published {
    names: RwLock<Arc<Names>>,
    order: Mutex<()>,
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
            order: Mutex::default(),
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

    /// Held from before a commit until it is published. It is taken under LMDB's write lock, which the commit gives
    /// back: without it a later commit of another thread could publish its head, and with it the entries of this one, before
    /// the names of this one.
    pub(super) fn in_order(&self) -> MutexGuard<'_, ()> {
        self.order.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Names first, then the version that says that they changed, then the head: no reader meets an entry before its
    /// names, or takes old names for the new version's. Says whether the head has moved: whoever waits for that is to be
    /// notified, after the order was given back.
    pub(super) fn publish(
        &self,
        _in_order: &MutexGuard<'_, ()>,
        names: Option<Arc<Names>>,
        tail: LogTail,
    ) -> bool {
        if let Some(names) = names {
            let version = names.version;
            *self.names.write().unwrap_or_else(PoisonError::into_inner) = names;
            self.definitions.store(version, Ordering::Release);
        }
        self.commits.fetch_add(1, Ordering::Relaxed);
        self.committed_bytes.fetch_max(tail.cumulative_bytes, Ordering::Relaxed);
        if self.syncs_on_commit {
            self.synced_bytes.fetch_max(tail.cumulative_bytes, Ordering::Relaxed);
        }
        let head = tail.end.sequence.get();
        self.head.fetch_max(head, Ordering::AcqRel) < head
    }
}
