//! A log that is not LMDB: what a host writes to have its own store streamed.
//!
//! The store here is a sorted map of packed segments; with heed or redb the map is a table with the same keys and values. The
//! adapter is the `impl AuditLog` below. `cargo run --example custom_store` streams it to a peer over loopback.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use auditstream::clock::Clock;
use auditstream::net::{
    Dialer, DialerConfig, Listener, Placement, Source, SystemClock, Worker, WorkerConfig,
};
use auditstream::protocol::{
    Boundary, Entry, LogId, LogTail, NodeName, OriginId, SegmentPacker, SegmentRef, Sequence, Subscription,
    TableDefinition, TableId, TableName, TransactionDraft,
};
use auditstream::sender::SendConfig;
use auditstream::store::{AuditLog, BoundaryAt, CommitNotifier, Hlc, MemoryStore, ScanEnd, StoreError};
use tokio_util::sync::CancellationToken;

/// The host's own store: segments by the sequence of their last entry.
#[derive(Default)]
struct MapLog {
    inner: Mutex<Inner>,
    notifier: CommitNotifier,
}

#[derive(Default)]
struct Inner {
    segments: BTreeMap<Sequence, Vec<u8>>,
    tail: LogTail,
    versions: Hlc,
}

impl MapLog {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The first segment that ends at or after `sequence`. The lock is not held while it is used: whoever scans asks for
    /// names.
    fn segment_from(&self, sequence: Sequence) -> Option<(Sequence, Vec<u8>)> {
        self.inner().segments.range(sequence..).next().map(|(key, frame)| (*key, frame.clone()))
    }

    /// Writes one transaction: packs it into segments, stores them, and wakes the senders after the commit.
    fn write(&self, entries: &[Entry], wall_ms: u64) -> Result<(), StoreError> {
        let mut guard = self.inner();
        let inner = &mut *guard;
        let drafts: Vec<_> = (0..).zip(entries).map(|(ordinal, entry)| entry.draft(ordinal)).collect();
        let version = inner.versions.tick(wall_ms);
        let mut packer = SegmentPacker::new(inner.tail, wall_ms);
        let segments = &mut inner.segments;
        let mut emit = |last, frame: &[u8]| {
            segments.insert(last, frame.to_vec());
            Ok::<_, StoreError>(())
        };
        packer.push(&TransactionDraft { origin: OriginId(0), version, entries: &drafts }, &mut emit)?;
        packer.finish(&mut emit)?;
        inner.tail = packer.tail();
        drop(guard);
        self.notifier.notify();
        Ok(())
    }
}

// The adapter.
impl AuditLog for MapLog {
    fn log_id(&self) -> LogId {
        LogId::from_bytes(*b"custom store log")
    }

    fn head(&self) -> Sequence {
        self.inner().tail.end.sequence
    }

    fn scan(
        &self,
        mut after: Sequence,
        visit: &mut dyn FnMut(SegmentRef<'_>) -> ControlFlow<()>,
    ) -> Result<ScanEnd, StoreError> {
        loop {
            let Some((key, frame)) = self.segment_from(after.plus(1)) else { return Ok(ScanEnd::Drained) };
            let corrupt = |source| StoreError::Corrupt { what: "segment", key, source };
            if visit(SegmentRef::parse(&frame).map_err(corrupt)?).is_break() {
                return Ok(ScanEnd::Stopped);
            }
            after = key;
        }
    }

    fn boundary_at(&self, sequence: Sequence) -> Result<BoundaryAt, StoreError> {
        if sequence == Sequence::ZERO {
            return Ok(BoundaryAt::Boundary(Boundary::START));
        }
        let Some((key, frame)) = self.segment_from(sequence) else { return Ok(BoundaryAt::AheadOfLog) };
        let corrupt = |source| StoreError::Corrupt { what: "segment", key, source };
        let boundary =
            SegmentRef::parse(&frame).and_then(|segment| segment.boundary_at(sequence)).map_err(corrupt)?;
        Ok(boundary.map_or(BoundaryAt::InsideTransaction, BoundaryAt::Boundary))
    }

    fn origin(&self, _id: OriginId) -> Result<Option<NodeName>, StoreError> {
        Ok(NodeName::new("custom").ok())
    }

    fn table(&self, _id: TableId) -> Result<Option<TableDefinition>, StoreError> {
        Ok(TableName::new("things").ok().map(|name| TableDefinition {
            name,
            version: 1,
            definition: "".into(),
        }))
    }

    fn register(&self, waker: &Waker) {
        self.notifier.register(waker);
    }
}

fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let log = Arc::new(MapLog::default());
        let stop = CancellationToken::new();
        let (handle, worker) = Worker::new(WorkerConfig::default(), Arc::clone(&clock));
        tokio::spawn(worker.run());
        let node = NodeName::new("custom")?;
        let send = SendConfig::default();
        let source = Source { node, log: log.clone(), clock: Arc::clone(&clock), send };
        let listener = Listener::bind("127.0.0.1:0".parse()?, source, Placement::Worker(handle))?;
        let address = listener.local_addr()?;
        tokio::spawn(listener.run(stop.clone()));

        let node = NodeName::new("peer")?;
        let peer = Arc::new(MemoryStore::new(node.clone(), LogId::from_bytes([2; 16]), Arc::clone(&clock)));
        let config = DialerConfig::default();
        let dialer =
            Dialer::new(address, node, peer.clone(), Subscription::all(), Arc::clone(&clock), config);
        let status = dialer.handle();
        let following = tokio::spawn(dialer.run(stop.clone()));

        for thing in 0..1000 {
            let entry = Entry::put(TableId(0), format!("thing-{thing:04}"), vec![7; 100]);
            log.write(&[entry], clock.wall_ms())?;
        }
        while status.status().acknowledged.durable < log.head() {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
        println!("{} rows arrived", peer.rows().len());
        stop.cancel();
        following.await?;
        Ok(())
    })
}
