//! Sources that lie: the peer says why, keeps its store as it was, and asks again.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;
mod peer_support;

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use auditstream::clock::{Clock, Moment};
use auditstream::net::{Dialer, DialerConfig, DialerHandle, DialerState, KeepaliveConfig, Transport};
use auditstream::protocol::{
    Boundary, CloseCode, Dictionary, Fingerprint, Hello, LogId, Message, NodeName, OriginId, Position,
    RefuseReason, Sequence, SourceState, Stamp, Start, Subscription, TableDefinition, TableId, TableName,
    Version,
};
use auditstream::receiver::ReceiveConfig;
use auditstream::store::{Applied, Applier, ApplyBatch, ApplyDone, AuditLog, StoreError};
use common::{Node, RawPeer, follow, node_name, until};
use peer_support::{TokioClock, closed};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

fn bytes(message: &Message) -> Vec<u8> {
    let mut bytes = Vec::new();
    message.encode(&mut bytes);
    bytes
}

/// The segments of a log, as frames.
fn segments(node: &Node) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    let visit = &mut |segment: auditstream::protocol::SegmentRef<'_>| {
        frames.push(segment.frame().to_vec());
        ControlFlow::Continue(())
    };
    node.store.scan(Sequence::ZERO, visit).unwrap();
    frames
}

fn names() -> Vec<u8> {
    let table = TableDefinition { name: TableName::new("t").unwrap(), version: 1, definition: "".into() };
    let origin = Dictionary::Origin(OriginId(0), node_name("source"));
    let table = Dictionary::Table(TableId(0), table);
    [bytes(&Message::Dictionary(origin)), bytes(&Message::Dictionary(table))].concat()
}

fn accepted(start: Boundary) -> Message {
    Message::Accepted {
        id: 1,
        log: LogId::from_bytes([5; 16]),
        start,
        filter: Subscription::all().fingerprint(),
        head: Sequence::new(1000),
    }
}

fn boundary(sequence: u64) -> Boundary {
    Boundary { sequence: Sequence::new(sequence), stamp: Stamp { version: Version::new(1, 1), checksum: 1 } }
}

/// A source that is written by hand, and a dialer that follows it.
struct Liar {
    listener: TcpListener,
    peer: Node,
    dialer: DialerHandle,
    stop: CancellationToken,
}

impl Liar {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let peer = Node::new("peer");
        let dialer = follow(listener.local_addr().unwrap(), &peer, Subscription::all());
        Self::with(listener, peer, dialer)
    }

    fn with(listener: TcpListener, peer: Node, dialer: Dialer) -> Self {
        let (handle, stop) = (dialer.handle(), CancellationToken::new());
        tokio::spawn(dialer.run(stop.clone()));
        Self { listener, peer, dialer: handle, stop }
    }

    /// A connection of the dialer, greeted up to its subscription.
    async fn greeted(&self) -> (RawPeer, Subscription) {
        let mut source = RawPeer::over(self.listener.accept().await.unwrap().0);
        assert!(matches!(source.next_message().await, Some(Message::Hello(_))));
        source.send(&Message::Hello(Hello::new(node_name("source")))).await;
        let asked = source.next_message().await;
        let Some(Message::Subscribe { id: 1, subscription }) = asked else { panic!("{asked:?}") };
        (source, subscription)
    }

    /// Says `lie` after the subscription; the dialer closes for `code`, says `why` and comes again.
    async fn lies(&self, lie: &[u8], code: CloseCode, why: &str) {
        let (mut source, _) = self.greeted().await;
        source.send_bytes(lie).await;
        let (found, text) = closed(&mut source).await;
        assert_eq!(found, code, "{text}");
        assert!(text.contains(why), "{text:?} does not say {why:?}");
        let expected = format!("closed here ({code:?}): {text}");
        until(|| self.dialer.status().last_error.as_ref() == Some(&expected)).await;
        // It comes again: the next connection is the proof, and ends without a lie.
        let (source, subscription) = self.greeted().await;
        assert_eq!(*subscription.start(), self.position().map_or(Start::Beginning, Start::After));
        drop(source);
    }

    fn position(&self) -> Option<Position> {
        let state = self.peer.store.source_state(&node_name("source")).unwrap();
        state.map(|state| state.position())
    }

    fn is_untouched(&self) -> bool {
        self.peer.store.rows().is_empty()
            && self.peer.store.head() == Sequence::ZERO
            && self.position().is_none()
    }
}

/// Each case on a store of its own, which has to stay empty.
async fn changes_nothing(lie: &[u8], code: CloseCode, why: &str) {
    let liar = Liar::start().await;
    liar.lies(lie, code, why).await;
    assert!(liar.is_untouched());
    liar.stop.cancel();
}

#[tokio::test]
async fn a_lie_is_answered_and_changes_nothing() {
    let source = Node::new("source");
    source.fill(0..5, 100);
    let segment = segments(&source).remove(0);
    let start = bytes(&accepted(Boundary::START));
    let mut corrupt = segment.clone();
    *corrupt.last_mut().unwrap() ^= 1;
    let said = |rest: &[u8]| [&start[..], rest].concat();
    let update = |sequence| bytes(&Message::SequenceUpdate(boundary(sequence)));
    let protocol = CloseCode::Protocol;
    for (lie, code, why) in [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec(), protocol, "frame header has the checksum"),
        (said(&[0; 100]), protocol, "frame header has the checksum"),
        (said(&[names(), corrupt].concat()), protocol, "has the checksum"),
        (said(&segment), CloseCode::Apply, "cannot apply the transaction that ends at sequence 1"),
        (segment.clone(), protocol, "before the stream was accepted"),
        (update(5), protocol, "before the stream was accepted"),
        (said(&start), protocol, "an acceptance without a subscription"),
        (bytes(&accepted(boundary(3))), protocol, "accepted from sequence 3 of the log"),
        (said(&bytes(&Message::Hello(Hello::new(node_name("other"))))), protocol, "a second hello"),
        (said(&bytes(&Message::Pause)), protocol, "a source must not send a frame of type 9 here"),
        (said(&bytes(&Message::Acknowledgement(Default::default()))), protocol, "frame of type 8 here"),
    ] {
        changes_nothing(&lie, code, why).await;
    }
    let Message::Accepted { id, log, start, head, .. } = accepted(Boundary::START) else { unreachable!() };
    let other_filter = Message::Accepted { id, log, start, head, filter: Fingerprint(7) };
    changes_nothing(&bytes(&other_filter), protocol, "with filter 0000000000000007").await;
    let filter = Subscription::all().fingerprint();
    let other_id = Message::Accepted { id: 2, log, start, head, filter };
    changes_nothing(
        &bytes(&other_id),
        protocol,
        "an acceptance of the subscription 2, which was not asked for",
    )
    .await;
}

#[tokio::test]
async fn a_repeated_segment_ends_the_stream_after_the_first_was_applied() {
    let source = Node::new("source");
    source.fill(0..5, 100);
    let segment = segments(&source).remove(0);
    let liar = Liar::start().await;
    let start = bytes(&accepted(Boundary::START));
    let (mut peer, _) = liar.greeted().await;
    peer.send_bytes(&[start, names(), segment.clone()].concat()).await;
    until(|| liar.peer.store.rows() == source.store.rows()).await;
    let (logged, position) = (liar.peer.store.logged(), liar.position());
    peer.send_bytes(&segment).await;
    let (code, text) = closed(&mut peer).await;
    assert_eq!((code, text.as_str()), (CloseCode::Protocol, "segment: sequence 1 follows 5"));
    assert_eq!(liar.peer.store.logged(), logged);
    assert_eq!(liar.position(), position);
    // The next connection starts there. An acceptance of another start, or another log, is not believed.
    let stored = position.unwrap();
    let (mut peer, subscription) = liar.greeted().await;
    assert_eq!(*subscription.start(), Start::After(stored));
    peer.send(&accepted(Boundary::START)).await;
    assert_eq!(closed(&mut peer).await.0, CloseCode::Protocol);
    let (mut peer, _) = liar.greeted().await;
    let Message::Accepted { id, filter, head, .. } = accepted(Boundary::START) else { unreachable!() };
    let other_log = LogId::from_bytes([6; 16]);
    peer.send(&Message::Accepted { id, log: other_log, start: stored.boundary, filter, head }).await;
    assert_eq!(closed(&mut peer).await.0, CloseCode::Protocol);
    assert_eq!(liar.peer.store.logged(), logged);
    assert_eq!(liar.position(), position);
    liar.stop.cancel();
}

#[tokio::test]
async fn a_position_that_goes_down_ends_the_stream() {
    let liar = Liar::start().await;
    let (mut peer, _) = liar.greeted().await;
    peer.send(&accepted(Boundary::START)).await;
    peer.send(&Message::SequenceUpdate(boundary(5))).await;
    until(|| liar.position().is_some_and(|position| position.boundary == boundary(5))).await;
    peer.send(&Message::SequenceUpdate(boundary(3))).await;
    let (code, text) = closed(&mut peer).await;
    assert_eq!((code, text.as_str()), (CloseCode::Protocol, "position: sequence 3 follows 5"));
    assert_eq!(liar.position().unwrap().boundary, boundary(5));
    assert!(liar.peer.store.rows().is_empty());
    liar.stop.cancel();
}

#[tokio::test]
async fn a_reason_of_the_source_is_shown() {
    let liar = Liar::start().await;
    let (mut peer, _) = liar.greeted().await;
    peer.send(&Message::Close { code: CloseCode::Overloaded, text: "no more peers".to_owned() }).await;
    let expected = "closed by the peer (Overloaded): no more peers";
    until(|| liar.dialer.status().last_error.as_deref() == Some(expected)).await;
    let (mut peer, _) = liar.greeted().await;
    let (reason, text) = (RefuseReason::Forked, "the histories differ".to_owned());
    peer.send(&Message::Refused { id: 1, reason, base_copy_offered: false, text }).await;
    until(|| liar.dialer.status().last_error.as_deref() == Some("the histories differ")).await;
    assert!(liar.is_untouched());
    // Asked again after a while, in case it changes.
    let (_peer, _) = liar.greeted().await;
    liar.stop.cancel();
}

#[tokio::test]
async fn half_a_frame_at_the_end_is_told_from_a_clean_end() {
    let liar = Liar::start().await;
    let (mut peer, _) = liar.greeted().await;
    peer.send_bytes(&bytes(&accepted(Boundary::START))[..20]).await;
    drop(peer);
    let expected = "the connection is gone: the source closed the connection 20 bytes into a frame";
    until(|| liar.dialer.status().last_error.as_deref() == Some(expected)).await;
    assert!(liar.is_untouched());
    liar.stop.cancel();
}

/// Silence from before the hello, from behind it, and from a stream that had started.
#[tokio::test]
async fn a_source_that_falls_silent_is_pinged_and_given_up() {
    for said in 0..3 {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let peer = Node::new("peer");
        let keepalive = KeepaliveConfig::new(Duration::from_millis(20), Duration::from_millis(100)).unwrap();
        let config = DialerConfig::default().with_keepalive(keepalive);
        let config = config.with_backoff(Duration::from_millis(1), Duration::from_millis(20)).unwrap();
        let address = listener.local_addr().unwrap();
        let (name, store, clock) = (peer.name.clone(), peer.store.clone(), peer.clock.clone());
        let dialer = Dialer::new(address, name, store, Subscription::all(), clock, config);
        let liar = Liar::with(listener, peer, dialer);
        let mut source = RawPeer::over(liar.listener.accept().await.unwrap().0);
        let greeting =
            [bytes(&Message::Hello(Hello::new(node_name("source")))), bytes(&accepted(Boundary::START))];
        let mut heard = vec![source.next_message().await.unwrap()];
        if said > 0 {
            source.send_bytes(&greeting[0]).await;
            heard.push(source.next_message().await.unwrap());
        }
        if said > 1 {
            source.send_bytes(&greeting[1]).await;
        }
        while let Some(message) = source.next_message().await {
            heard.push(message);
        }
        assert!(heard.iter().any(|message| matches!(message, Message::Ping(_))), "{heard:?}");
        until(|| liar.dialer.status().last_error.is_some_and(|error| error.contains("in time"))).await;
        liar.listener.accept().await.unwrap();
        liar.stop.cancel();
    }
}

/// Holds every batch until it is let go.
#[derive(Default)]
struct Stuck {
    open: Mutex<Option<VecDeque<(ApplyBatch, ApplyDone)>>>,
    applied: AtomicUsize,
}

impl Stuck {
    fn let_go(&self) {
        let held = self.open.lock().unwrap().take();
        for (batch, done) in held.into_iter().flatten() {
            self.apply(&batch, done);
        }
    }

    fn apply(&self, batch: &ApplyBatch, done: ApplyDone) {
        self.applied.fetch_add(batch.frames.len(), Ordering::Relaxed);
        done(Ok(Applied::default()));
    }
}

impl Applier for Stuck {
    fn source_state(&self, _: &NodeName) -> Result<Option<SourceState>, StoreError> {
        Ok(None)
    }

    fn submit(&self, batch: ApplyBatch, done: ApplyDone) {
        let mut held = self.open.lock().unwrap();
        match &mut *held {
            Some(held) => held.push_back((batch, done)),
            None => {
                drop(held);
                self.apply(&batch, done);
            }
        }
    }
}

/// What came of a source that wrote whatever it was told.
struct Poured {
    /// Bytes that went out until nothing moved any more.
    most: usize,
    /// Frames applied in the end.
    applied: usize,
    /// What the source was told.
    heard: Vec<Message>,
    state: DialerState,
}

/// A source that writes `stream` while nothing is applied; then everything is let go.
async fn pours(stream: Vec<u8>) -> Poured {
    let (ours, theirs) = tokio::io::duplex(1000);
    let theirs = Mutex::new(Some(theirs));
    let connect = move || -> common::Connecting {
        let stream = theirs.lock().unwrap().take().map(Transport::io);
        Box::pin(async move { stream.ok_or_else(|| std::io::ErrorKind::ConnectionRefused.into()) })
    };
    let stuck = Arc::new(Stuck { open: Mutex::new(Some(VecDeque::new())), ..Stuck::default() });
    let receive = ReceiveConfig::default().with_record_concurrency(2).unwrap();
    let receive = receive.with_decoded_segments(2).unwrap().with_queue(64 * 1024, 16).unwrap();
    let config = DialerConfig::default().with_receive(receive);
    let (name, applier, clock) = (node_name("peer"), stuck.clone(), TokioClock::shared());
    let dialer = Dialer::with_connector(connect, name, applier, Subscription::all(), clock, config);
    let (handle, stop) = (dialer.handle(), CancellationToken::new());
    let dialing = tokio::spawn(dialer.run(stop.clone()));
    let mut source = RawPeer::over(ours);
    source.send(&Message::Hello(Hello::new(node_name("source")))).await;
    assert!(matches!(source.next_message().await, Some(Message::Hello(_))));
    assert!(matches!(source.next_message().await, Some(Message::Subscribe { .. })));
    let (reading, mut writing) = tokio::io::split(source.stream);
    let mut reading = RawPeer::over(tokio::io::join(reading, tokio::io::sink()));
    let listening = tokio::spawn(async move {
        let mut heard = Vec::new();
        while let Some(message) = reading.next_message().await {
            heard.push(message);
        }
        heard
    });
    let written = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&written);
    let pouring = tokio::spawn(async move {
        let mut rest = &stream[..];
        while let Ok(count) = writing.write(rest).await
            && count > 0
        {
            counted.fetch_add(count, Ordering::Relaxed);
            rest = &rest[count..];
        }
        writing
    });
    // Time goes on only when nobody can do anything.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let most = written.load(Ordering::Relaxed);
    stuck.let_go();
    let writing = pouring.await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let state = handle.status().state;
    stop.cancel();
    dialing.await.unwrap();
    drop(writing);
    let heard = listening.await.unwrap();
    Poured { most, applied: stuck.applied.load(Ordering::Relaxed), heard, state }
}

impl Poured {
    fn is_bounded_and_complete(&self, frames: usize) {
        let Self { most, applied, heard, state } = self;
        println!("{most} bytes taken in");
        assert!(*most <= HELD_BYTES_MAX, "{most} bytes taken in while nothing was applied");
        assert_eq!(*applied, frames);
        assert_eq!(*state, DialerState::Streaming);
        let mut flow = heard.iter().filter(|message| matches!(message, Message::Pause | Message::Resume));
        assert_eq!(flow.next(), Some(&Message::Pause), "it was told to pause");
        assert_eq!(flow.next_back(), Some(&Message::Resume), "and to go on at last");
    }
}

/// What a receiver may hold then: twice the queue, what is decoded and open, and what it reads at once.
const HELD_BYTES_MAX: usize = 2 * 64 * 1024 + 8 * 70_000 + 2 * 256 * 1024;

#[tokio::test(start_paused = true)]
async fn a_source_that_ignores_a_pause_is_left_unread_and_all_arrives_in_the_end() {
    let source = Node::new("source");
    source.fill(0..1000, 4000);
    let frames = segments(&source);
    let stream = [bytes(&accepted(Boundary::START)), names(), frames.concat()].concat();
    assert!(stream.len() > 2 * HELD_BYTES_MAX);
    pours(stream).await.is_bounded_and_complete(frames.len());
}

#[tokio::test(start_paused = true)]
async fn names_between_the_entries_open_no_way_around_the_bounds() {
    let source = Node::new("source");
    source.fill(0..1000, 4000);
    let frames = segments(&source);
    let with_names: Vec<_> = frames.iter().map(|frame| [names(), frame.clone()].concat()).collect();
    let stream = [bytes(&accepted(Boundary::START)), with_names.concat()].concat();
    pours(stream).await.is_bounded_and_complete(frames.len());
}

#[tokio::test(start_paused = true)]
async fn a_lie_that_is_found_during_a_pause_is_answered_with_the_last_frame() {
    let source = Node::new("source");
    source.fill(0..100, 4000);
    let mut frames = segments(&source);
    *frames.last_mut().unwrap().last_mut().unwrap() ^= 1;
    let stream = [bytes(&accepted(Boundary::START)), names(), frames.concat()].concat();
    let poured = pours(stream).await;
    assert!(poured.heard.contains(&Message::Pause), "{:?}", poured.heard);
    let last = poured.heard.last();
    assert!(matches!(last, Some(Message::Close { code: CloseCode::Protocol, .. })), "{:?}", poured.heard);
}

#[tokio::test(start_paused = true)]
async fn a_source_that_asks_and_does_not_listen_is_left_unread_and_given_up() {
    let (ours, theirs) = tokio::io::duplex(1000);
    let theirs = Mutex::new(Some(theirs));
    let connect = move || -> common::Connecting {
        let stream = theirs.lock().unwrap().take().map(Transport::io);
        Box::pin(async move { stream.ok_or_else(|| std::io::ErrorKind::ConnectionRefused.into()) })
    };
    let (peer, config) = (Node::new("peer"), DialerConfig::default());
    let (name, applier, clock) = (peer.name.clone(), peer.store.clone(), TokioClock::shared());
    let dialer = Dialer::with_connector(connect, name, applier, Subscription::all(), clock.clone(), config);
    let (handle, stop) = (dialer.handle(), CancellationToken::new());
    tokio::spawn(dialer.run(stop.clone()));
    let mut source = RawPeer::over(ours);
    source.send(&Message::Hello(Hello::new(node_name("source")))).await;
    let pings = bytes(&Message::Ping(7)).repeat(1000);
    let mut written = 0;
    while written <= 1024 * 1024
        && let Ok(count) = source.stream.write(&pings[written % 24..]).await
    {
        written += count;
    }
    println!("{written} bytes taken in");
    assert!(written <= 1024 * 1024, "{written} bytes of pings taken in without an answer read");
    assert_eq!(clock.now().as_nanos() / 1_000_000_000, 60, "the default timeout");
    until(|| handle.status().last_error.is_some_and(|error| error.contains("in time"))).await;
    stop.cancel();
}

/// Counts how often it is looked at.
struct Counting(Arc<dyn Clock>, AtomicUsize);

impl Clock for Counting {
    fn now(&self) -> Moment {
        self.1.fetch_add(1, Ordering::Relaxed);
        self.0.now()
    }

    fn wall_ms(&self) -> u64 {
        self.0.wall_ms()
    }
}

#[tokio::test(start_paused = true)]
async fn a_batch_that_outlives_its_connection_is_awaited_without_a_timer() {
    let (ours, theirs) = tokio::io::duplex(1024 * 1024);
    let theirs = Mutex::new(Some(theirs));
    let connect = move || -> common::Connecting {
        let stream = theirs.lock().unwrap().take().map(Transport::io);
        Box::pin(async move { stream.ok_or_else(|| std::io::ErrorKind::ConnectionRefused.into()) })
    };
    let node = Node::new("source");
    node.fill(0..1, 20);
    let stuck = Arc::new(Stuck { open: Mutex::new(Some(VecDeque::new())), ..Stuck::default() });
    let clock = Arc::new(Counting(TokioClock::shared(), AtomicUsize::new(0)));
    let (name, config) = (node_name("peer"), DialerConfig::default());
    let dialer =
        Dialer::with_connector(connect, name, stuck.clone(), Subscription::all(), clock.clone(), config);
    let (handle, stop) = (dialer.handle(), CancellationToken::new());
    let dialing = tokio::spawn(dialer.run(stop.clone()));
    let mut source = RawPeer::over(ours);
    source.send(&Message::Hello(Hello::new(node_name("source")))).await;
    assert!(matches!(source.next_message().await, Some(Message::Hello(_))));
    assert!(matches!(source.next_message().await, Some(Message::Subscribe { .. })));
    source.send_bytes(&[bytes(&accepted(Boundary::START)), names(), segments(&node).concat()].concat()).await;
    let waiting = || stuck.open.lock().unwrap().as_ref().is_some_and(|held| held.len() == 1);
    until(waiting).await;
    drop(source);
    tokio::time::sleep(Duration::from_secs(10)).await;
    let before = clock.1.load(Ordering::Relaxed);
    tokio::time::sleep(Duration::from_secs(10)).await;
    let looks = clock.1.load(Ordering::Relaxed) - before;
    assert!(looks < 10, "{looks} looks at the clock while only the applier is waited for");
    assert_eq!(handle.status().reconnects, 0, "the next connection waits for the open batch");
    stuck.let_go();
    until(|| handle.status().reconnects > 0).await;
    stop.cancel();
    dialing.await.unwrap();
}
