//! The log as a sender sees it, with the cost of reading it.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Waker;

use crate::protocol::{LogId, NodeName, OriginId, SegmentRef, Sequence, TableDefinition, TableId};
use crate::store::{AuditLog, BoundaryAt, MemoryStore, ScanEnd, StoreError};

use super::clock::{COLD_EVERY, Costs, NodeClock};

/// A memory store whose segments cost time.
#[derive(Debug)]
pub(super) struct ChargedLog {
    pub(super) store: Arc<MemoryStore>,
    pub(super) clock: Arc<NodeClock>,
    pub(super) costs: Costs,
    pub(super) visited: AtomicU64,
}

impl AuditLog for ChargedLog {
    fn log_id(&self) -> LogId {
        self.store.log_id()
    }

    fn head(&self) -> Sequence {
        self.store.head()
    }

    fn oldest(&self) -> Result<Sequence, StoreError> {
        self.store.oldest()
    }

    fn scan(
        &self,
        after: Sequence,
        visit: &mut dyn FnMut(SegmentRef<'_>) -> ControlFlow<()>,
    ) -> Result<ScanEnd, StoreError> {
        self.store.scan(after, &mut |segment| {
            let cold = self.visited.fetch_add(1, Ordering::Relaxed).is_multiple_of(COLD_EVERY);
            self.clock.charge(self.costs.segment + if cold { self.costs.cold_page } else { 0 });
            visit(segment)
        })
    }

    fn boundary_at(&self, sequence: Sequence) -> Result<BoundaryAt, StoreError> {
        self.store.boundary_at(sequence)
    }

    fn origin(&self, id: OriginId) -> Result<Option<NodeName>, StoreError> {
        self.store.origin(id)
    }

    fn table(&self, id: TableId) -> Result<Option<TableDefinition>, StoreError> {
        self.store.table(id)
    }

    fn definitions_version(&self) -> u64 {
        self.store.definitions_version()
    }

    fn register(&self, waker: &Waker) {
        self.store.register(waker);
    }
}
