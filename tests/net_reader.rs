//! Streams as a peer reads them byte by byte: cut anywhere, slow, paused, resumed at every edge.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;
mod peer_support;

use std::net::SocketAddr;
use std::time::Duration;

use auditstream::net::{Listener, Placement, Source, Worker, WorkerConfig, WorkerHandle};
use auditstream::protocol::{
    Acknowledgement, Boundary, Entry, Frame, Hello, Message, Position, SegmentRef, Sequence, Subscription,
    TableName, decode_frame,
};
use auditstream::sender::SendConfig;
use auditstream::store::AuditLog;
use auditstream::testing::Rng;
use common::{Node, RawPeer, node_name, source_of};
use peer_support::{EndlessLog, only, piped};
use tokio::io::AsyncReadExt;
use tokio_util::sync::CancellationToken;

/// A listener for `source`, with one worker in this runtime.
fn serve(source: Source) -> (SocketAddr, WorkerHandle) {
    let (handle, worker) = Worker::new(WorkerConfig::default(), source.clock.clone());
    tokio::spawn(worker.run());
    let placement = Placement::Worker(handle.clone());
    let listener = Listener::bind("127.0.0.1:0".parse().unwrap(), source, placement).unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(listener.run(CancellationToken::new()));
    (address, handle)
}

/// The same with sequence updates as often as can be.
fn restless(node: &Node) -> Source {
    let send = SendConfig::default().with_sequence_update_period(Duration::from_millis(1)).unwrap();
    Source { send, ..source_of(node) }
}

/// What a peer has read: the entries in order, and the last position.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Read {
    entries: Vec<(u64, Vec<u8>)>,
    position: Boundary,
    pongs: u64,
}

impl Read {
    /// Checks a frame to the last byte and takes it in.
    fn take(&mut self, frame: Frame) {
        let position = match frame {
            Frame::Segment(bytes) => {
                let segment = SegmentRef::parse(&bytes).unwrap();
                segment.verify().unwrap();
                for transaction in segment.transactions() {
                    let transaction = transaction.unwrap();
                    for entry in transaction.entries() {
                        let entry = entry.unwrap();
                        let sequence = transaction.sequence_of(&entry).get();
                        assert!(self.entries.last().is_none_or(|(last, _)| *last < sequence), "entries rise");
                        self.entries.push((sequence, entry.key.to_vec()));
                    }
                }
                segment.header().end
            }
            Frame::Message(Message::SequenceUpdate(position)) => position,
            Frame::Message(Message::Pong(_)) => {
                self.pongs += 1;
                return;
            }
            Frame::Message(Message::Close { text, .. }) => panic!("closed: {text}"),
            _ => return,
        };
        assert!(position.sequence >= self.position.sequence, "positions never go down");
        self.position = position;
    }

    /// Takes in every frame that is complete in the peer's input.
    fn decode<S>(&mut self, peer: &mut RawPeer<S>) {
        while let Some(frame) = decode_frame(&mut peer.input).unwrap() {
            self.take(frame);
        }
    }

    /// Reads on until the position is `head`.
    async fn read_to(&mut self, head: Sequence, peer: &mut RawPeer) {
        while self.position.sequence < head {
            self.take(peer.next().await.unwrap());
        }
    }
}

fn position(node: &Node, boundary: Boundary, subscription: &Subscription) -> Option<Position> {
    Some(Position { log: node.store.log_id(), boundary, filter: subscription.fingerprint() })
}

#[tokio::test]
async fn a_stream_cut_at_any_byte_is_resumed_without_a_gap_or_a_repeat() {
    let source = Node::new("source");
    let other = source.store.define_table(&TableName::new("other").unwrap(), "".into()).unwrap();
    let wanted = |key| Entry::put(source.table, key, "v");
    for entries in [
        vec![wanted("a"), wanted("b")],
        vec![Entry::put(other, "skipped", "v")],
        vec![Entry::put(other, "skipped", "v"), wanted("c"), Entry::put(other, "skipped", "v")],
        vec![wanted("d")],
        vec![Entry::put(other, "skipped", "v")],
    ] {
        source.put(&entries);
    }
    let head = source.store.head();
    let (address, worker) = serve(restless(&source));
    let mut whole = Read::default();
    let mut peer = RawPeer::subscribe(address, "whole", only("t")).await;
    whole.read_to(head, &mut peer).await;
    let keys: Vec<_> = whole.entries.iter().map(|(_, key)| &key[..]).collect();
    assert_eq!(keys, [b"a", b"b", b"c", b"d"]);
    let mut cut = 0;
    let mut complete = false;
    // One byte more each time, until the stream was read to its end.
    while !complete {
        let mut peer = RawPeer::connect(address).await;
        peer.send(&Message::Hello(Hello::new(node_name(&format!("cut-{cut}"))))).await;
        peer.send(&Message::Subscribe { id: 1, subscription: only("t") }).await;
        let mut read = Read::default();
        for _ in 0..cut {
            peer.input.extend_from_slice(&[peer.stream.read_u8().await.unwrap()]);
            read.decode(&mut peer);
        }
        complete = read.position.sequence == head;
        for connection in worker.stats().connections {
            if connection.peer.as_str().starts_with("cut") {
                assert_eq!(connection.acknowledged.received, Sequence::ZERO, "written is not acknowledged");
            }
        }
        // What stands in the buffers is lost with the connection.
        drop(peer);
        let from = position(&source, read.position, &only("t"));
        let resumed = only("t").starting_at(from.filter(|_| read.position != Boundary::START));
        let mut peer = RawPeer::subscribe(address, &format!("again-{cut}"), resumed).await;
        read.read_to(head, &mut peer).await;
        assert_eq!(read, whole, "cut after {cut} bytes");
        cut += 1;
    }
    assert!(cut > 300, "{cut} cuts");
}

/// Nothing comes before the answer to a ping.
async fn is_quiet(peer: &mut RawPeer) {
    peer.send(&Message::Ping(1)).await;
    assert_eq!(peer.next().await.unwrap(), Frame::Message(Message::Pong(1)));
}

#[tokio::test]
async fn a_start_at_every_edge_of_the_log_gives_exactly_what_follows() {
    for length in [0_u8, 1, 2, 26] {
        let source = Node::new("source");
        let (address, _worker) = serve(source_of(&source));
        let all = Subscription::all();
        let mut boundaries = vec![Boundary::START];
        for key in 0..length {
            boundaries.push(source.store.append(&[Entry::put(source.table, vec![b'a' + key], "v")]).unwrap());
        }
        let mut starts: Vec<_> =
            boundaries.iter().map(|at| (position(&source, *at, &all), at.sequence)).collect();
        starts.push((None, Sequence::ZERO));
        for (n, (start, after)) in starts.into_iter().enumerate() {
            let (name, head) = (format!("peer-{n}"), source.store.head());
            let mut peer = RawPeer::subscribe(address, &name, all.clone().starting_at(start)).await;
            let mut read =
                Read { position: start.map(|start| start.boundary).unwrap_or_default(), ..Read::default() };
            read.read_to(head, &mut peer).await;
            let sequences: Vec<_> = read.entries.iter().map(|(sequence, _)| *sequence).collect();
            assert_eq!(
                sequences,
                (after.get() + 1..=head.get()).collect::<Vec<_>>(),
                "after {after} of {head}"
            );
            is_quiet(&mut peer).await;
            // The next commit comes once, and nothing else.
            let next = source.store.append(&[Entry::put(source.table, "next", "v")]).unwrap().sequence;
            let before = read.entries.len();
            read.read_to(next, &mut peer).await;
            assert_eq!(read.entries[before..], [(next.get(), b"next".to_vec())]);
            is_quiet(&mut peer).await;
        }
    }
}

#[tokio::test]
async fn a_peer_that_reads_a_few_bytes_at_a_time_gets_whole_frames_only() {
    let seed = 31;
    println!("seed {seed}");
    let mut rng = Rng::new(seed);
    let source = Node::new("source");
    let other = source.store.define_table(&TableName::new("other").unwrap(), "".into()).unwrap();
    let (_, worker) = serve(source_of(&source));
    // Hardly a write fits: the sender is in the middle of a frame nearly all the time.
    let mut peer = piped(&restless(&source), &worker, 2048, "slow", only("t")).await;
    let (mut read, mut expected) = (Read::default(), Vec::new());
    let (mut bytes, mut next_commit, mut next_ping) = (0_usize, 0, 0);
    // Sizes around the limits of a unit, of an in-place write and of a value, with skipped ones between them.
    let mut sizes = [1, 100_000, 7, 160 * 1024, 0, 40_000, 65_536, 3, 20_000, 32_768].into_iter();
    loop {
        let at = read.position.sequence;
        if bytes >= next_commit || at == source.store.head() {
            next_commit = bytes + 25_000;
            if let Some(size) = sizes.next() {
                let key = format!("k{size}");
                let wanted = Entry::put(source.table, key.clone(), vec![2; size]);
                source.put(&[Entry::put(other, "skipped", vec![1; 500]), wanted]);
                expected.push((source.store.head().get(), key.into_bytes()));
                source.put(&[Entry::put(other, "skipped", "v")]);
            } else if at == source.store.head() {
                break;
            }
        }
        if bytes >= next_ping {
            next_ping = bytes + 1000;
            peer.send(&Message::Ping(bytes as u64)).await;
            let acknowledgement = Acknowledgement { received: at, applied: at, durable: at };
            peer.send(&Message::Acknowledgement(acknowledgement)).await;
        }
        let mut buffer = [0; 7];
        let most = 1 + rng.index(7);
        let count = peer.stream.read(&mut buffer[..most]).await.unwrap();
        assert!(count > 0, "the stream goes on");
        peer.input.extend_from_slice(&buffer[..count]);
        bytes += count;
        read.decode(&mut peer);
    }
    assert_eq!(read.entries, expected);
    assert!(read.pongs > 0, "pings are answered between the frames");
    let stats = worker.stats().connections.remove(0);
    assert!(stats.sent.writes_blocked > 10, "{stats:?}");
    assert!(stats.sent.entries_skipped_total() >= 20, "{stats:?}");
}

/// The most that can be under way between two sockets of one machine.
const IN_FLIGHT_BYTES_MAX: u64 = 16 * 1024 * 1024;

#[tokio::test]
async fn acknowledgements_and_pauses_are_heard_while_sending_flat_out() {
    let node = Node::new("source");
    let (address, worker) = serve(EndlessLog::source(node.clock.clone()));
    let mut peer = RawPeer::subscribe(address, "peer", Subscription::all()).await;
    let (mut read, mut bytes) = (Flat::default(), 0);
    for round in 1..=30_u64 {
        for _ in 0..30 {
            read.segment(&mut peer).await;
        }
        let at = read.last;
        peer.send(&Message::Acknowledgement(Acknowledgement { received: at, applied: at, durable: at }))
            .await;
        let sent_at = read.bytes;
        while worker.stats().connections[0].acknowledged.durable != at {
            read.segment(&mut peer).await;
            bytes = read.bytes - sent_at;
            assert!(bytes <= IN_FLIGHT_BYTES_MAX, "round {round}: not heard within {bytes} bytes");
        }
    }
    println!("heard within {bytes} bytes at last");
    for round in 0..5 {
        let paused_at = read.bytes;
        peer.send(&Message::Pause).await;
        peer.send(&Message::Ping(round)).await;
        while !read.frame(&mut peer).await.is_some_and(|message| message == Message::Pong(round)) {}
        assert!(
            read.bytes - paused_at <= IN_FLIGHT_BYTES_MAX,
            "{} bytes after the pause",
            read.bytes - paused_at
        );
        // Now it is quiet: nothing but answers.
        for number in 100..110 {
            peer.send(&Message::Ping(number)).await;
            assert_eq!(peer.next_message().await, Some(Message::Pong(number)));
        }
        assert_eq!(worker.connections(), 1);
        peer.send(&Message::Resume).await;
        read.segment(&mut peer).await;
    }
}

/// A reader at full speed that checks that nothing is left out.
#[derive(Default)]
struct Flat {
    last: Sequence,
    bytes: u64,
}

impl Flat {
    async fn frame(&mut self, peer: &mut RawPeer) -> Option<Message> {
        match peer.next().await.unwrap() {
            Frame::Segment(bytes) => {
                let header = *SegmentRef::parse(&bytes).unwrap().header();
                assert_eq!(header.first, self.last.plus(1), "no gap and no repeat");
                self.last = header.end.sequence;
                self.bytes += bytes.len() as u64;
                None
            }
            Frame::Message(message) => Some(message),
            other => panic!("{other:?}"),
        }
    }

    async fn segment(&mut self, peer: &mut RawPeer) {
        while self.frame(peer).await.is_some() {}
    }
}
