//! A sender and a receiver joined by hand: no sockets, a fake clock.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use auditstream::clock::{Clock, Moment};
use auditstream::protocol::{
    Boundary, Dictionary, Entry, EntryFlags, Frame, Hello, LogId, Message, NameFilter, NodeName, SegmentRef,
    Sequence, Subscription, TableName, decode_frame,
};
use auditstream::receiver::{ReceiveAction, ReceiveConfig, ReceiveSession, Ticket};
use auditstream::sender::{Output, SendConfig, SendSession, Stopped, Turn, Written, YieldPolicy};
use auditstream::store::{Applied, Applier, ApplyError, AuditLog, MemoryStore, StoreError};
use bytes::BytesMut;

#[derive(Debug, Default)]
struct FakeClock(AtomicU64);

impl Clock for FakeClock {
    fn now(&self) -> Moment {
        Moment::from_nanos(self.0.fetch_add(100, Ordering::Relaxed))
    }

    fn wall_ms(&self) -> u64 {
        1_000_000 + self.0.load(Ordering::Relaxed) / 1_000_000
    }
}

/// Takes `room` bytes, then blocks.
struct Pipe {
    bytes: BytesMut,
    room: usize,
}

impl Output for Pipe {
    fn write(&mut self, bytes: &[u8]) -> Written {
        let count = bytes.len().min(self.room);
        if count == 0 {
            return Written::WouldBlock;
        }
        self.room -= count;
        self.bytes.extend_from_slice(&bytes[..count]);
        Written::Accepted(count)
    }
}

fn name(text: &str) -> NodeName {
    NodeName::new(text).unwrap()
}

fn source(clock: &Arc<FakeClock>) -> MemoryStore {
    let store = MemoryStore::new(name("source"), LogId::from_bytes([1; 16]), clock.clone());
    let wanted = store.define_table(&TableName::new("wanted").unwrap(), "w".into()).unwrap();
    let other = store.define_table(&TableName::new("other").unwrap(), "o".into()).unwrap();
    for n in 0..500_u32 {
        let entries: Vec<_> = (0..n % 7 + 1)
            .map(|k| {
                let table = if (n + k) % 3 == 0 { other } else { wanted };
                let entry = Entry::put(table, format!("{n}-{k}"), vec![n as u8; (n * 13 % 3000) as usize]);
                if (n + k) % 11 == 0 { entry.marked(EntryFlags::LOCAL_ONLY) } else { entry }
            })
            .collect();
        store.append(&entries).unwrap();
    }
    // One transaction that spans segments.
    let large: Vec<_> = (0..300)
        .map(|k| Entry::put(if k < 200 { wanted } else { other }, format!("l{k}"), vec![1; 2000]))
        .collect();
    store.append(&large).unwrap();
    store
}

/// Runs a stream to its end with `room` bytes of buffer between the two, and gives the peer's store.
fn replicate(
    store: &MemoryStore,
    clock: &Arc<FakeClock>,
    tables: NameFilter<TableName>,
    policy: YieldPolicy,
    room: usize,
) -> MemoryStore {
    let peer = Arc::new(MemoryStore::new(name("peer"), LogId::from_bytes([2; 16]), clock.clone()));
    let mut receive = ReceiveSession::new(name("peer"), ReceiveConfig::default());
    let mut input = BytesMut::new();
    let mut hello = Vec::new();
    Message::Hello(Hello::new(name("source"))).encode(&mut hello);
    input.extend_from_slice(&hello);
    let mut send = None;
    let mut pipe = Pipe { bytes: BytesMut::new(), room };
    let mut scratch = Vec::new();
    let answers = Arc::new(Mutex::new(Vec::new()));
    for _ in 0..200_000 {
        receive.receive(&mut input, clock.now());
        while let Some(action) = receive.poll_action() {
            match action {
                ReceiveAction::Greeted(source) => {
                    let state = peer.source_state(&source).unwrap();
                    let subscription = Subscription::new(tables.clone(), NameFilter::All, None).unwrap();
                    receive.subscribe(subscription.resuming(state));
                }
                ReceiveAction::Apply(ticket, batch) => {
                    let answers = Arc::clone(&answers);
                    peer.submit(
                        batch,
                        Box::new(move |result| answers.lock().unwrap().push((ticket, result))),
                    );
                }
                ReceiveAction::Closed(reason) => panic!("{reason}"),
                _ => {}
            }
        }
        let done = std::mem::take(&mut *answers.lock().unwrap());
        for (ticket, result) in done {
            receive.on_applied(ticket, result, clock.now());
        }
        let mut back = BytesMut::from(&receive.output()[..]);
        receive.output().clear();
        while let Some(Frame::Message(message)) = decode_frame(&mut back).unwrap() {
            match (message, &mut send) {
                (Message::Hello(_), _) => {}
                (Message::Subscribe { id, subscription }, None) => {
                    let session = SendSession::subscribe(
                        store,
                        &name("source"),
                        name("peer"),
                        id,
                        subscription,
                        SendConfig::default(),
                    );
                    send = Some(session.unwrap());
                }
                (message, Some(send)) => send.on_message(message),
                (message, None) => panic!("{message:?}"),
            }
        }
        let Some(send) = &mut send else { continue };
        let budget = Duration::from_micros(3);
        let mut turn = Turn::new(&**clock, policy, budget, budget * 4, &mut scratch);
        let stopped = send.pump(store, &mut pipe, &mut turn);
        input.extend_from_slice(&pipe.bytes.split());
        pipe.room = room;
        if let Stopped::CaughtUp { deadline: None } = stopped
            && input.is_empty()
            && send.acknowledged().durable == store.head()
        {
            assert_eq!(send.acknowledged().durable, send.scanned());
            return Arc::into_inner(peer).unwrap();
        }
        // Time passes between turns, so that deadlines come.
        clock.0.fetch_add(50_000, Ordering::Relaxed);
    }
    panic!("the stream does not end: {:?}", send.map(|send| *send.stats()));
}

#[test]
fn a_peer_ends_with_exactly_the_rows_that_it_asked_for() {
    let clock = Arc::new(FakeClock::default());
    let store = source(&clock);
    let wanted = TableName::new("wanted").unwrap();
    let all: Vec<_> = store.rows();
    for policy in [YieldPolicy::Budget, YieldPolicy::PerSender, YieldPolicy::PerRecord] {
        for room in [97, 1000, 70_000, 10_000_000] {
            let peer = replicate(&store, &clock, NameFilter::All, policy, room);
            let expected: Vec<_> = all.iter().filter(|(_, key, _)| !is_local(key)).cloned().collect();
            assert_eq!(peer.rows().len(), expected.len(), "{policy:?} with {room} bytes of room");
            assert!(peer.rows() == expected);
            let only = NameFilter::Include([wanted.clone()].into());
            let peer = replicate(&store, &clock, only, policy, room);
            let expected: Vec<_> = expected.into_iter().filter(|(table, ..)| *table == wanted).collect();
            assert!(peer.rows() == expected, "{policy:?} with {room} bytes of room, filtered");
        }
    }
}

fn is_local(key: &[u8]) -> bool {
    let key = std::str::from_utf8(key).unwrap();
    key.split_once('-')
        .is_some_and(|(n, k)| (n.parse::<u32>().unwrap() + k.parse::<u32>().unwrap()) % 11 == 0)
}

/// The table definitions and the ends of the segments in `bytes`, in their order.
fn definitions_and_ends(bytes: &mut BytesMut) -> (Vec<u32>, Vec<u64>) {
    let (mut versions, mut ends) = (Vec::new(), Vec::new());
    while let Some(frame) = decode_frame(bytes).unwrap() {
        match frame {
            Frame::Message(Message::Dictionary(Dictionary::Table(_, table))) => {
                versions.push(u32::try_from(ends.len()).unwrap());
                assert_eq!(table.definition, if table.version == 1 { "v1" } else { "v2" });
                versions.push(table.version);
            }
            Frame::Segment(frame) => ends.push(SegmentRef::parse(&frame).unwrap().header().last.get()),
            _ => {}
        }
    }
    (versions, ends)
}

#[test]
fn a_definition_that_changes_while_a_frame_is_being_filled_goes_out_before_the_entries_written_under_it() {
    let clock = Arc::new(FakeClock::default());
    let store = MemoryStore::new(name("source"), LogId::from_bytes([1; 16]), clock.clone());
    let table = TableName::new("wanted").unwrap();
    let wanted = store.define_table(&table, "v1".into()).unwrap();
    let entries: Vec<_> = (0..100)
        .map(|k| {
            let entry = Entry::put(wanted, format!("{k}"), "value");
            if k % 2 == 0 { entry.marked(EntryFlags::LOCAL_ONLY) } else { entry }
        })
        .collect();
    store.append(&entries).unwrap();
    let (subscription, config) = (Subscription::all(), SendConfig::default());
    let mut session =
        SendSession::subscribe(&store, &name("source"), name("peer"), 1, subscription, config).unwrap();
    let mut pipe = Pipe { bytes: BytesMut::new(), room: usize::MAX };
    let mut scratch = Vec::new();
    let mut pump = |quantum| {
        let mut turn = Turn::new(&*clock, YieldPolicy::Budget, quantum, Duration::from_secs(1), &mut scratch);
        let stopped = session.pump(&store, &mut pipe, &mut turn);
        (stopped, session.place())
    };
    assert_eq!(
        pump(Duration::from_nanos(1)),
        (Stopped::QuantumSpent, (true, true)),
        "in the middle of a frame"
    );
    store.define_table(&table, "v2".into()).unwrap();
    store.append(&[Entry::put(wanted, "new", "under the new definition")]).unwrap();
    assert!(matches!(pump(Duration::from_secs(1)).0, Stopped::CaughtUp { .. }));
    let (definitions, ends) = definitions_and_ends(&mut pipe.bytes);
    assert_eq!(ends, [100, 101]);
    assert_eq!(definitions, [0, 1, 1, 2], "pairs: segments before it, version");
}

/// Counts how often it is looked at and stands still.
#[derive(Default)]
struct Counting(AtomicU64);

impl Clock for Counting {
    fn now(&self) -> Moment {
        self.0.fetch_add(1, Ordering::Relaxed);
        Moment::START
    }

    fn wall_ms(&self) -> u64 {
        1_000_000
    }
}

#[test]
fn the_clock_is_read_at_every_64_kib_of_examined_entries_also_when_each_is_a_transaction() {
    let clock = Arc::new(Counting::default());
    let store = MemoryStore::new(name("source"), LogId::from_bytes([1; 16]), clock.clone());
    let table = store.define_table(&TableName::new("t").unwrap(), "".into()).unwrap();
    for n in 0..64 {
        let entry = Entry::put(table, format!("{n}"), vec![0; 100_000]).marked(EntryFlags::LOCAL_ONLY);
        store.append(&[entry]).unwrap();
    }
    let (subscription, config) = (Subscription::all(), SendConfig::default());
    let mut session =
        SendSession::subscribe(&store, &name("source"), name("peer"), 1, subscription, config).unwrap();
    let mut pipe = Pipe { bytes: BytesMut::new(), room: usize::MAX };
    let (before, mut scratch) = (clock.0.load(Ordering::Relaxed), Vec::new());
    let second = Duration::from_secs(1);
    let mut turn = Turn::new(&*clock, YieldPolicy::Budget, second, second, &mut scratch);
    assert!(matches!(session.pump(&store, &mut pipe, &mut turn), Stopped::CaughtUp { .. }));
    let reads = clock.0.load(Ordering::Relaxed) - before;
    assert!(reads >= 64, "{reads} looks at the clock for 64 entries of 100 kB, each over one unit");
}

/// A session with two batches handed out and not answered.
fn two_open_batches(clock: &Arc<FakeClock>) -> (ReceiveSession, [Ticket; 2]) {
    let store = MemoryStore::new(name("source"), LogId::from_bytes([1; 16]), clock.clone());
    let table = store.define_table(&TableName::new("t").unwrap(), "".into()).unwrap();
    store.append(&[Entry::put(table, "a", "1")]).unwrap();
    store.append(&[Entry::put(table, "b", "2")]).unwrap();
    let mut receive = ReceiveSession::new(name("peer"), ReceiveConfig::default());
    let mut bytes = Vec::new();
    Message::Hello(Hello::new(name("source"))).encode(&mut bytes);
    receive.receive(&mut BytesMut::from(&bytes[..]), clock.now());
    assert!(matches!(receive.poll_action(), Some(ReceiveAction::Greeted(_))));
    receive.subscribe(Subscription::all());
    bytes.clear();
    let (log, filter) = (store.log_id(), Subscription::all().fingerprint());
    Message::Accepted { id: 1, log, start: Boundary::START, filter, head: store.head() }.encode(&mut bytes);
    let mut visit = |segment: SegmentRef<'_>| {
        bytes.extend_from_slice(segment.frame());
        ControlFlow::Continue(())
    };
    store.scan(Sequence::ZERO, &mut visit).unwrap();
    receive.receive(&mut BytesMut::from(&bytes[..]), clock.now());
    let mut ticket = || match receive.poll_action() {
        Some(ReceiveAction::Apply(ticket, _)) => ticket,
        other => panic!("{other:?}"),
    };
    let tickets = [ticket(), ticket()];
    (receive, tickets)
}

fn refused() -> ApplyError {
    ApplyError { good: Boundary::START, at: Sequence::new(2), reason: StoreError::Closed }
}

#[test]
fn two_failed_batches_end_the_stream_once_and_the_end_is_told() {
    let clock = Arc::new(FakeClock::default());
    let (mut receive, [first, second]) = two_open_batches(&clock);
    // Both answers come before anyone asks what to do next.
    receive.on_applied(first, Err(refused()), clock.now());
    receive.on_applied(second, Err(refused()), clock.now());
    assert!(matches!(receive.poll_action(), Some(ReceiveAction::Closed(_))));
    assert!(receive.poll_action().is_none());
    assert_eq!(receive.open_tickets(), 0);
}

#[test]
fn a_batch_that_is_refused_before_an_earlier_one_is_answered_ends_the_stream_and_leaves_no_ticket_open() {
    let clock = Arc::new(FakeClock::default());
    let (mut receive, [first, second]) = two_open_batches(&clock);
    let refused = refused();
    receive.on_applied(second, Err(refused), clock.now());
    assert!(matches!(receive.poll_action(), Some(ReceiveAction::Closed(_))));
    assert_eq!(receive.open_tickets(), 1);
    receive.on_applied(first, Ok(Applied::default()), clock.now());
    assert_eq!(receive.open_tickets(), 0);
}

#[test]
fn a_peer_learns_only_the_names_of_what_it_gets() {
    let clock = Arc::new(FakeClock::default());
    let store = source(&clock);
    let only = NameFilter::Include([TableName::new("wanted").unwrap()].into());
    let subscription = Subscription::new(only, NameFilter::All, None).unwrap();
    let config = SendConfig::default();
    let mut send =
        SendSession::subscribe(&store, &name("source"), name("peer"), 1, subscription, config).unwrap();
    let mut pipe = Pipe { bytes: BytesMut::new(), room: usize::MAX };
    let (mut scratch, hour) = (Vec::new(), Duration::from_secs(3600));
    let mut turn = Turn::new(&*clock, YieldPolicy::Budget, hour, hour, &mut scratch);
    assert!(matches!(send.pump(&store, &mut pipe, &mut turn), Stopped::CaughtUp { .. }));
    let mut names = Vec::new();
    while let Some(frame) = decode_frame(&mut pipe.bytes).unwrap() {
        if let Frame::Message(Message::Dictionary(Dictionary::Table(_, table))) = frame {
            names.push(table.name.as_str().to_owned());
        }
    }
    assert_eq!(names, ["wanted"]);
}
