//! What the tests of misbehaving peers share: a listener with a healthy peer, a log without an end, tokio's clock.

#![allow(dead_code, reason = "each test file uses a part of it")]

use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use auditstream::clock::{Clock, Moment};
use auditstream::net::{Listener, Placement, Source, Transport, Worker, WorkerConfig, WorkerHandle, accept};
use auditstream::protocol::{
    Boundary, CloseCode, EntryFlags, EntryHeader, EntryKind, Frame, Lists, LogId, Message, NameFilter,
    NodeName, OriginId, SegmentBuilder, SegmentEnd, SegmentFlags, SegmentRef, Sequence, Stamp, Subscription,
    TableDefinition, TableId, TableName, TransactionHeader, Version,
};
use auditstream::store::{AuditLog, BoundaryAt, ScanEnd, StoreError};
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream};
use tokio::net::TcpSocket;
use tokio_util::sync::CancellationToken;

use crate::common::{Node, RawPeer, follow, node_name, source_of, until};

/// A source with a listener, and a peer that follows it whatever others do.
pub(crate) struct Rig {
    pub(crate) source: Node,
    pub(crate) healthy: Node,
    pub(crate) address: SocketAddr,
    pub(crate) worker: WorkerHandle,
    pub(crate) stop: CancellationToken,
}

impl Rig {
    pub(crate) async fn start() -> Self {
        Self::with(Duration::from_secs(30), WorkerConfig::default()).await
    }

    pub(crate) async fn with(handshake_timeout: Duration, config: WorkerConfig) -> Self {
        let (source, healthy) = (Node::new("source"), Node::new("healthy"));
        let (worker, running) = Worker::new(config, source.clock.clone());
        tokio::spawn(running.run());
        let placement = Placement::Worker(worker.clone());
        let listener = Listener::bind("127.0.0.1:0".parse().unwrap(), source_of(&source), placement).unwrap();
        let listener = listener.with_handshake_timeout(handshake_timeout).unwrap();
        let address = listener.local_addr().unwrap();
        let stop = CancellationToken::new();
        tokio::spawn(listener.run(stop.clone()));
        tokio::spawn(follow(address, &healthy, Subscription::all()).run(stop.clone()));
        let rig = Self { source, healthy, address, worker, stop };
        rig.goes_on().await;
        rig
    }

    /// A new commit reaches the healthy peer.
    pub(crate) async fn goes_on(&self) {
        let rows = self.source.store.rows().len();
        self.source.fill(rows..rows + 1, 10);
        until(|| self.healthy.store.rows().len() == rows + 1).await;
    }

    /// Only the healthy peer is left.
    pub(crate) async fn alone(&self) {
        until(|| self.worker.connections() == 1).await;
        self.goes_on().await;
    }
}

/// Reads on to the close frame and the end of the stream behind it.
pub(crate) async fn closed<S: AsyncRead + AsyncWrite + Unpin>(peer: &mut RawPeer<S>) -> (CloseCode, String) {
    let reading = async {
        let mut close = None;
        while let Some(frame) = peer.next().await {
            assert!(close.is_none(), "a frame after the close: {frame:?}");
            if let Frame::Message(Message::Close { code, text }) = frame {
                close = Some((code, text));
            }
        }
        close.expect("the end came without a close frame")
    };
    tokio::time::timeout(Duration::from_secs(30), reading).await.expect("no end within 30 s")
}

/// A raw peer whose kernel buffers little, so that it blocks its sender early.
pub(crate) async fn narrow(address: SocketAddr) -> RawPeer {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(2048).unwrap();
    RawPeer::over(socket.connect(address).await.unwrap())
}

/// A connection of the worker over a pipe of `room` bytes each way.
pub(crate) async fn piped(
    source: &Source,
    worker: &WorkerHandle,
    room: usize,
    name: &str,
    subscription: Subscription,
) -> RawPeer<DuplexStream> {
    let (ours, theirs) = tokio::io::duplex(room);
    let (source, worker) = (source.clone(), worker.clone());
    tokio::spawn(async move {
        let accepted = accept(Transport::io(theirs), &source, Duration::from_secs(10)).await;
        worker.add(accepted.unwrap());
    });
    let mut peer = RawPeer::over(ours);
    peer.ask(name, subscription).await;
    peer
}

/// The clock that tokio's tests can pause.
pub(crate) struct TokioClock(tokio::time::Instant);

impl TokioClock {
    pub(crate) fn shared() -> Arc<dyn Clock> {
        Arc::new(Self(tokio::time::Instant::now()))
    }
}

impl Clock for TokioClock {
    fn now(&self) -> Moment {
        Moment::START.plus(self.0.elapsed())
    }

    fn wall_ms(&self) -> u64 {
        1_700_000_000_000 + self.now().as_nanos() / 1_000_000
    }
}

/// A log that never ends: one transaction of 16 entries in each segment, made when it is read.
pub(crate) struct EndlessLog;

const ENDLESS_ENTRIES: u64 = 16;

impl EndlessLog {
    pub(crate) fn source(clock: Arc<dyn Clock>) -> Source {
        Source { node: node_name("endless"), log: Arc::new(Self), clock, send: Default::default() }
    }

    fn segment(first: Sequence) -> Vec<u8> {
        let mut bytes = Vec::new();
        let mut builder = SegmentBuilder::start(&mut bytes, Lists::Listed);
        let version = Version::new(first.get(), 0);
        let header = TransactionHeader {
            first,
            version,
            origin: OriginId(0),
            flags: SegmentFlags::NONE,
            entries: 0,
            bytes: 0,
            total_entries: ENDLESS_ENTRIES as u32,
        };
        builder.begin_transaction(&mut bytes, header);
        for n in 0..ENDLESS_ENTRIES {
            let entry = EntryHeader {
                value_bytes: 2000,
                key_bytes: 8,
                table: TableId(0),
                ordinal: n as u32,
                offset: n as u32,
                kind: EntryKind::Put,
                flags: EntryFlags::NONE,
            };
            builder.push(&mut bytes, &entry, &first.plus(n).get().to_be_bytes(), &[7; 2000]);
        }
        let checksum = builder.end_transaction(&mut bytes);
        let boundary =
            Boundary { sequence: first.plus(ENDLESS_ENTRIES - 1), stamp: Stamp { version, checksum } };
        let end = SegmentEnd { boundary, commit_ms: 0, cumulative_bytes: 0 };
        let range = builder.finish(&mut bytes, &end);
        bytes[range].to_vec()
    }
}

impl AuditLog for EndlessLog {
    fn log_id(&self) -> LogId {
        LogId::from_bytes([9; 16])
    }

    fn head(&self) -> Sequence {
        Sequence::new(u64::MAX / 2)
    }

    fn oldest(&self) -> Result<Sequence, StoreError> {
        Ok(Sequence::ZERO)
    }

    fn scan(
        &self,
        after: Sequence,
        visit: &mut dyn FnMut(SegmentRef<'_>) -> ControlFlow<()>,
    ) -> Result<ScanEnd, StoreError> {
        let mut first = Sequence::new(after.get() / ENDLESS_ENTRIES * ENDLESS_ENTRIES + 1);
        loop {
            let frame = Self::segment(first);
            if visit(SegmentRef::parse(&frame).unwrap()).is_break() {
                return Ok(ScanEnd::Stopped);
            }
            first = first.plus(ENDLESS_ENTRIES);
        }
    }

    fn boundary_at(&self, sequence: Sequence) -> Result<BoundaryAt, StoreError> {
        assert_eq!(sequence, Sequence::ZERO, "nobody resumes this log");
        Ok(BoundaryAt::Boundary(Boundary::START))
    }

    fn origin(&self, _: OriginId) -> Result<Option<NodeName>, StoreError> {
        Ok(Some(node_name("endless")))
    }

    fn table(&self, _: TableId) -> Result<Option<TableDefinition>, StoreError> {
        let name = TableName::new("t").unwrap();
        Ok(Some(TableDefinition { name, version: 1, definition: Default::default() }))
    }

    fn definitions_version(&self) -> u64 {
        0
    }

    fn register(&self, _: &Waker) {}
}

/// A subscription to one table.
pub(crate) fn only(table: &str) -> Subscription {
    let tables = NameFilter::Include([TableName::new(table).unwrap()].into());
    Subscription::new(tables, NameFilter::All, None).unwrap()
}
