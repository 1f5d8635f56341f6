//! What the tests over sockets share.

#![allow(dead_code, reason = "each test file uses a part of it")]

use std::net::SocketAddr;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use auditstream::clock::Clock;
use auditstream::net::{Dialer, DialerConfig, Source, SystemClock, Transport};
use auditstream::protocol::{
    Entry, Frame, Hello, LogId, Message, NodeName, Subscription, TableId, TableName, decode_frame,
};
use auditstream::sender::SendConfig;
use auditstream::store::MemoryStore;
use bytes::BytesMut;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;

pub(crate) type Connecting = Pin<Box<dyn Future<Output = std::io::Result<Transport>> + Send>>;

pub(crate) fn node_name(name: &str) -> NodeName {
    NodeName::new(name).unwrap()
}

/// A node with a store in memory.
pub(crate) struct Node {
    pub(crate) name: NodeName,
    pub(crate) store: Arc<MemoryStore>,
    pub(crate) table: TableId,
    pub(crate) clock: Arc<dyn Clock>,
}

impl Node {
    pub(crate) fn new(name: &str) -> Self {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let mut id = [0; 16];
        id[..name.len().min(16)].copy_from_slice(&name.as_bytes()[..name.len().min(16)]);
        let store = Arc::new(MemoryStore::new(node_name(name), LogId::from_bytes(id), clock.clone()));
        let table = store.define_table(&TableName::new("t").unwrap(), "".into()).unwrap();
        Self { name: node_name(name), store, table, clock }
    }

    pub(crate) fn put(&self, entries: &[Entry]) {
        self.store.append(entries).unwrap();
    }

    /// Writes a row for each number, each in a transaction of its own, in one commit.
    pub(crate) fn fill(&self, rows: Range<usize>, value_bytes: usize) {
        let transactions: Vec<_> =
            rows.map(|n| [Entry::put(self.table, format!("k{n:06}"), vec![n as u8; value_bytes])]).collect();
        self.store.append_group(&transactions).unwrap();
    }
}

pub(crate) fn source_of(node: &Node) -> Source {
    Source {
        node: node.name.clone(),
        log: node.store.clone(),
        clock: node.clock.clone(),
        send: SendConfig::default(),
    }
}

/// A dialer with short pauses, so that tests do not wait.
pub(crate) fn follow(address: SocketAddr, peer: &Node, subscription: Subscription) -> Dialer {
    let config = DialerConfig::default();
    let config = config.with_backoff(Duration::from_millis(1), Duration::from_millis(20)).unwrap();
    Dialer::new(address, peer.name.clone(), peer.store.clone(), subscription, peer.clock.clone(), config)
}

/// Lets the runtime work until `holds`; gives up after half a minute.
pub(crate) async fn until(mut holds: impl FnMut() -> bool) {
    let deadline = tokio::time::Instant::now() + Duration::from_secs(30);
    let mut tick = tokio::time::interval(Duration::from_millis(1));
    while !holds() {
        assert!(tokio::time::Instant::now() < deadline, "it did not come true within 30 s");
        tick.tick().await;
    }
}

/// A peer that speaks the protocol by hand.
pub(crate) struct RawPeer<S = TcpStream> {
    pub(crate) stream: S,
    pub(crate) input: BytesMut,
}

impl RawPeer {
    pub(crate) async fn connect(address: SocketAddr) -> Self {
        Self::over(TcpStream::connect(address).await.unwrap())
    }

    /// Says hello as `name` and subscribes; the answers up to the acceptance are read.
    pub(crate) async fn subscribe(address: SocketAddr, name: &str, subscription: Subscription) -> Self {
        let mut peer = Self::connect(address).await;
        peer.ask(name, subscription).await;
        peer
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> RawPeer<S> {
    pub(crate) fn over(stream: S) -> Self {
        Self { stream, input: BytesMut::new() }
    }

    /// Says hello as `name` and subscribes; the answers up to the acceptance are read.
    pub(crate) async fn ask(&mut self, name: &str, subscription: Subscription) {
        self.send(&Message::Hello(Hello::new(node_name(name)))).await;
        self.send(&Message::Subscribe { id: 1, subscription }).await;
        assert!(matches!(self.next_message().await, Some(Message::Hello(_))));
        assert!(matches!(self.next_message().await, Some(Message::Accepted { id: 1, .. })));
    }

    pub(crate) async fn send_bytes(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).await.unwrap();
    }

    pub(crate) async fn send(&mut self, message: &Message) {
        let mut bytes = Vec::new();
        message.encode(&mut bytes);
        self.send_bytes(&bytes).await;
    }

    /// The next frame; `None` at the end of the stream.
    pub(crate) async fn next(&mut self) -> Option<Frame> {
        loop {
            if let Some(frame) = decode_frame(&mut self.input).unwrap() {
                return Some(frame);
            }
            let mut buffer = [0; 65536];
            match self.stream.read(&mut buffer).await {
                Ok(0) | Err(_) => return None,
                Ok(count) => self.input.extend_from_slice(&buffer[..count]),
            }
        }
    }

    pub(crate) async fn next_message(&mut self) -> Option<Message> {
        match self.next().await? {
            Frame::Message(message) => Some(message),
            other => panic!("a message was expected: {other:?}"),
        }
    }
}
