//! A log and rows in memory: for tests, for the virtual cluster, and as the shortest example of a store.

mod apply;
#[cfg(any(test, feature = "testing"))]
mod plant;
mod state;

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use bytes::Bytes;

use crate::clock::Clock;
use crate::protocol::{
    Boundary, Entry, EntryDraft, LogId, NodeName, OriginId, SegmentRef, Sequence, SourceState,
    TableDefinition, TableId, TableName, Version,
};

use super::{
    Applier, ApplyBatch, ApplyDone, AuditLog, BoundaryAt, CommitNotifier, Hlc, LimitError, Limits, ScanEnd,
    StoreError,
};

#[cfg(not(any(test, feature = "testing")))]
use apply::apply as submit_to;
#[cfg(any(test, feature = "testing"))]
pub use plant::StorePlant;
#[cfg(any(test, feature = "testing"))]
use plant::apply as submit_to;
pub use state::Row;
use state::State;

/// Most frames that are taken out of the lock at once during a scan. The first batch is one frame, so that a scan that
/// ends early costs little.
const SCAN_BATCH_MAX: usize = 64;

/// A store in memory. Every commit is visible and "durable" at once; nothing survives the process.
///
/// It is shared as an `Arc`: one side appends and applies, senders scan.
pub struct MemoryStore {
    clock: Arc<dyn Clock>,
    log_id: LogId,
    limits: Limits,
    state: Mutex<State>,
    head: AtomicU64,
    definitions_version: AtomicU64,
    notifier: CommitNotifier,
}

/// The content of a [`MemoryStore`] at one moment: see [`MemoryStore::snapshot`].
#[derive(Clone)]
pub struct MemorySnapshot(State);

impl std::fmt::Debug for MemorySnapshot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("MemorySnapshot").field(&self.0.tail.end).finish()
    }
}

impl std::fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MemoryStore")
            .field("log_id", &self.log_id)
            .field("head", &self.head())
            .finish_non_exhaustive()
    }
}

impl MemoryStore {
    /// An empty store of `node`. `log_id` has to be one that no other log has.
    #[must_use]
    pub fn new(node: NodeName, log_id: LogId, clock: Arc<dyn Clock>) -> Self {
        Self {
            clock,
            log_id,
            limits: Limits::default(),
            state: Mutex::new(State::new(node)),
            head: AtomicU64::new(0),
            definitions_version: AtomicU64::new(0),
            notifier: CommitNotifier::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives the table's short id, and makes one when the name is new. A changed definition gets a higher version.
    ///
    /// # Errors
    /// [`StoreError::Full`] when 65,536 tables are defined already.
    pub fn define_table(&self, name: &TableName, definition: Bytes) -> Result<TableId, StoreError> {
        let (id, changed) = self.state().define_table(name, definition)?;
        if changed {
            self.definitions_version.fetch_add(1, Ordering::AcqRel);
        }
        Ok(id)
    }

    /// Writes one transaction of this node: rows and log entries.
    ///
    /// # Errors
    /// [`LimitError`] when it is over a limit; nothing was written then.
    pub fn append(&self, entries: &[Entry]) -> Result<Boundary, LimitError> {
        self.append_group(&[entries])
    }

    /// Writes transactions of this node in one commit, as a group commit does: they share segments. Gives the boundary
    /// after the last.
    ///
    /// # Errors
    /// [`LimitError`] when one of them is over a limit; nothing was written then.
    pub fn append_group<T: AsRef<[Entry]>>(&self, transactions: &[T]) -> Result<Boundary, LimitError> {
        let mut group: Vec<Vec<EntryDraft<'_>>> = Vec::with_capacity(transactions.len());
        for entries in transactions {
            let entries = entries.as_ref().iter();
            let drafts: Vec<_> =
                (0_u32..).zip(entries).map(|(ordinal, entry)| entry.draft(ordinal)).collect();
            self.limits.check_drafts(&drafts)?;
            group.push(drafts);
        }
        let boundary = {
            let mut state = self.state();
            let boundary = state.append_own(&group, self.clock.wall_ms());
            self.head.store(boundary.sequence.get(), Ordering::Release);
            boundary
        };
        self.notifier.notify();
        Ok(boundary)
    }

    /// The row, if it was ever written; a deleted one is a tombstone.
    #[must_use]
    pub fn row(&self, table: &TableName, key: &[u8]) -> Option<Row> {
        self.state().row(table, key)
    }

    /// Every row that is not deleted: table, key, value, in order.
    #[must_use]
    pub fn rows(&self) -> Vec<(TableName, Vec<u8>, Bytes)> {
        self.state().rows()
    }

    /// Every row with its version and origin, deleted ones as tombstones: what has to be equal on two nodes that
    /// follow each other.
    #[must_use]
    pub fn all_rows(&self) -> BTreeMap<(TableName, Vec<u8>), Row> {
        self.state().all_rows()
    }

    /// A copy of everything that the store holds now.
    #[must_use]
    pub fn snapshot(&self) -> MemorySnapshot {
        MemorySnapshot(self.state().clone())
    }

    /// A store with the content of `snapshot`, as after an unclean stop that lost the log's tail: `log_id` has to be
    /// a new one, since the sequences after the snapshot are given out a second time. Versions go on 10 s later than
    /// they would, so that none is given out twice.
    #[must_use]
    pub fn restore(snapshot: MemorySnapshot, log_id: LogId, clock: Arc<dyn Clock>) -> Self {
        let mut state = snapshot.0;
        state.failed_sources.clear();
        state.hlc = Hlc::after_loss(state.hlc.latest(), clock.wall_ms());
        Self {
            clock,
            log_id,
            limits: Limits::default(),
            head: AtomicU64::new(state.tail.end.sequence.get()),
            state: Mutex::new(state),
            definitions_version: AtomicU64::new(0),
            notifier: CommitNotifier::default(),
        }
    }

    /// How many entries of one transaction were logged, by origin and version, for checks of exactly-once.
    #[must_use]
    pub fn logged(&self) -> Vec<(NodeName, Version, u32)> {
        self.state().logged()
    }
}

impl AuditLog for MemoryStore {
    fn log_id(&self) -> LogId {
        self.log_id
    }

    fn head(&self) -> Sequence {
        Sequence::new(self.head.load(Ordering::Acquire))
    }

    fn oldest(&self) -> Result<Sequence, StoreError> {
        Ok(Sequence::ZERO)
    }

    fn scan(
        &self,
        after: Sequence,
        visit: &mut dyn FnMut(SegmentRef<'_>) -> ControlFlow<()>,
    ) -> Result<ScanEnd, StoreError> {
        let (mut after, mut most) = (after, 1);
        loop {
            let batch = self.state().segments_after(after, most);
            most = SCAN_BATCH_MAX.min(most * 2);
            let Some((last, _)) = batch.last() else { return Ok(ScanEnd::Drained) };
            after = *last;
            for (key, frame) in &batch {
                let segment = SegmentRef::parse(frame).map_err(|source| StoreError::Corrupt {
                    what: "segment",
                    key: *key,
                    source,
                })?;
                if visit(segment).is_break() {
                    return Ok(ScanEnd::Stopped);
                }
            }
        }
    }

    fn boundary_at(&self, sequence: Sequence) -> Result<BoundaryAt, StoreError> {
        self.state().boundary_at(sequence)
    }

    fn origin(&self, id: OriginId) -> Result<Option<NodeName>, StoreError> {
        Ok(self.state().origin_name(id).cloned())
    }

    fn table(&self, id: TableId) -> Result<Option<TableDefinition>, StoreError> {
        Ok(self.state().table(id).cloned())
    }

    fn definitions_version(&self) -> u64 {
        self.definitions_version.load(Ordering::Acquire)
    }

    fn register(&self, waker: &Waker) {
        self.notifier.register(waker);
    }
}

impl Applier for MemoryStore {
    fn source_state(&self, source: &NodeName) -> Result<Option<SourceState>, StoreError> {
        let mut state = self.state();
        state.failed_sources.remove(source);
        Ok(state.sources.get(source).cloned())
    }

    fn submit(&self, batch: ApplyBatch, done: ApplyDone) {
        let result = {
            let mut state = self.state();
            let (result, definitions_changed) = submit_to(&mut state, &batch, self.clock.wall_ms());
            self.head.store(state.tail.end.sequence.get(), Ordering::Release);
            if definitions_changed {
                self.definitions_version.fetch_add(1, Ordering::AcqRel);
            }
            result
        };
        self.notifier.notify();
        done(result);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Moment;

    struct Stopped;

    impl Clock for Stopped {
        fn now(&self) -> Moment {
            Moment::START
        }

        fn wall_ms(&self) -> u64 {
            1_000
        }
    }

    fn store() -> (MemoryStore, Entry) {
        let node = NodeName::new("node").expect("a name");
        let store = MemoryStore::new(node, LogId::from_bytes([1; 16]), Arc::new(Stopped));
        let table = store.define_table(&TableName::new("t").expect("a name"), Bytes::new()).expect("room");
        (store, Entry::put(table, "key", "value"))
    }

    #[test]
    fn a_group_shares_a_segment_and_keeps_its_transactions_apart() {
        let (store, entry) = store();
        let one = [entry.clone(), entry];
        store.append_group(&[&one, &one, &one]).expect("within the limits");
        let mut found = Vec::new();
        let end = store.scan(Sequence::ZERO, &mut |segment| {
            found.push((segment.header().transactions, segment.header().entries));
            ControlFlow::Continue(())
        });
        assert_eq!(end.ok(), Some(ScanEnd::Drained));
        assert_eq!(found, [(3, 6)]);
        let versions: std::collections::BTreeSet<_> =
            store.logged().into_iter().map(|(_, version, _)| version).collect();
        assert_eq!(versions.len(), 3);
    }

    #[test]
    fn a_restored_store_gives_out_no_version_twice() {
        let (store, entry) = store();
        store.append(std::slice::from_ref(&entry)).expect("within the limits");
        let snapshot = store.snapshot();
        let lost = store.append(std::slice::from_ref(&entry)).expect("within the limits");
        let restored = MemoryStore::restore(snapshot, LogId::from_bytes([2; 16]), Arc::new(Stopped));
        assert_eq!(restored.head(), Sequence::new(1), "the tail is lost");
        let again = restored.append(std::slice::from_ref(&entry)).expect("within the limits");
        assert_eq!(again.sequence, lost.sequence);
        assert!(again.stamp.version > lost.stamp.version);
        assert_ne!(restored.log_id(), store.log_id());
    }
}
