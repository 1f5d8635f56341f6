//! Peers that do not keep to the protocol: each is told why, and nobody else notices.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;
mod peer_support;

use std::time::Duration;

use auditstream::net::{AcceptError, Transport, WorkerConfig, accept};
use auditstream::protocol::{
    Acknowledgement, Boundary, CloseCode, Dictionary, Fingerprint, Frame, FrameHeader, FrameKind, Hello,
    LogId, Message, NameFilter, OriginId, Position, RefuseReason, Sequence, Stamp, Subscription, TableName,
    Version,
};
use auditstream::store::AuditLog;
use common::{Node, RawPeer, node_name, source_of, until};
use peer_support::{Rig, closed, only};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Largest payload of a frame that is not a segment.
const CONTROL_MAX: usize = 128 * 1024;

fn header(payload_bytes: u32, kind: u8, optional: bool) -> FrameHeader {
    FrameHeader { payload_bytes, kind: FrameKind(kind), optional, payload_crc: 0 }
}

/// A frame of zeroes.
fn frame(kind: u8, optional: bool, payload: usize) -> Vec<u8> {
    let payload = vec![0; payload];
    let header = FrameHeader {
        payload_crc: crc32fast::hash(&payload),
        ..header(payload.len() as u32, kind, optional)
    };
    [&header.encode()[..], &payload].concat()
}

fn bytes(message: &Message) -> Vec<u8> {
    let mut bytes = Vec::new();
    message.encode(&mut bytes);
    bytes
}

fn hello(name: &str) -> Vec<u8> {
    bytes(&Message::Hello(Hello::new(node_name(name))))
}

fn subscribe() -> Message {
    Message::Subscribe { id: 1, subscription: Subscription::all() }
}

/// The first segment of the log, as a frame.
fn segment(node: &Node) -> Vec<u8> {
    let mut frame = Vec::new();
    let visit = &mut |segment: auditstream::protocol::SegmentRef<'_>| {
        frame = segment.frame().to_vec();
        std::ops::ControlFlow::Break(())
    };
    node.store.scan(Sequence::ZERO, visit).unwrap();
    frame
}

/// Sends `said` on a fresh connection and expects a close for `code` whose text contains `why`.
async fn refused_greeting(rig: &Rig, said: &[u8], code: CloseCode, why: &str) {
    let mut peer = RawPeer::connect(rig.address).await;
    peer.send_bytes(said).await;
    let answer = closed(&mut peer).await;
    assert_eq!(answer.0, code, "{answer:?}");
    assert!(answer.1.contains(why), "{:?} does not say {why:?}", answer.1);
    rig.goes_on().await;
    assert_eq!(rig.worker.connections(), 1);
}

/// The same on a connection that streams already.
async fn refused_later(rig: &Rig, said: &[u8], why: &str) {
    let mut peer = RawPeer::subscribe(rig.address, "odd", Subscription::all()).await;
    peer.send_bytes(said).await;
    let answer = closed(&mut peer).await;
    assert_eq!(answer.0, CloseCode::Protocol, "{answer:?}");
    assert!(answer.1.contains(why), "{:?} does not say {why:?}", answer.1);
    drop(peer);
    rig.alone().await;
}

#[tokio::test]
async fn garbage_is_answered_with_a_reason() {
    let rig = Rig::start().await;
    for garbage in [b"GET / HTTP/1.1\r\nHost: node\r\n\r\n".to_vec(), vec![0; 16], vec![0xff; 100_000]] {
        refused_greeting(&rig, &garbage, CloseCode::Protocol, "frame header has the checksum").await;
        refused_later(&rig, &garbage, "frame header has the checksum").await;
    }
    let mut damaged = hello("odd");
    *damaged.last_mut().unwrap() ^= 1;
    refused_greeting(&rig, &damaged, CloseCode::Protocol, "frame payload has the checksum").await;
    let mut damaged = bytes(&Message::Ping(7));
    *damaged.last_mut().unwrap() ^= 1;
    refused_later(&rig, &damaged, "frame payload has the checksum").await;
}

#[tokio::test]
async fn silence_is_answered_after_the_deadline_wherever_the_greeting_stands() {
    let rig = Rig::with(Duration::from_millis(100), WorkerConfig::default()).await;
    let subscription = bytes(&subscribe());
    let half = subscription.len() / 2;
    for said in
        [vec![], hello("odd")[..5].to_vec(), hello("odd"), [&hello("odd"), &subscription[..half]].concat()]
    {
        let why = "did not say hello and subscribe within 100ms";
        refused_greeting(&rig, &said, CloseCode::Timeout, why).await;
    }
}

#[tokio::test]
async fn half_a_frame_and_the_end_frees_everything() {
    let rig = Rig::start().await;
    for cut in [1, 15, 16, 20] {
        let mut peer = RawPeer::connect(rig.address).await;
        peer.send_bytes(&hello("odd")[..cut]).await;
        peer.stream.shutdown().await.unwrap();
        assert!(peer.next().await.is_none(), "nobody is there to be told");
        let mut peer = RawPeer::subscribe(rig.address, "odd", Subscription::all()).await;
        peer.send_bytes(&bytes(&Message::Ping(7))[..cut]).await;
        peer.stream.shutdown().await.unwrap();
        while peer.next().await.is_some() {}
        rig.alone().await;
    }
}

#[tokio::test]
async fn a_length_of_four_gibibytes_is_refused_before_anything_is_kept_for_it() {
    let rig = Rig::start().await;
    for (kind, limit) in
        [(FrameKind::SEGMENT.0, 262_144), (FrameKind::HELLO.0, CONTROL_MAX), (200, CONTROL_MAX)]
    {
        let claimed = header(u32::MAX, kind, true).encode();
        let why = format!("frame payload length is 4294967295, the limit is {limit}");
        refused_greeting(&rig, &claimed, CloseCode::Protocol, &why).await;
        refused_later(&rig, &claimed, &why).await;
    }
}

#[tokio::test]
async fn the_limit_of_a_frame_holds_to_the_byte() {
    let rig = Rig::start().await;
    for payload in [0, CONTROL_MAX - 1, CONTROL_MAX] {
        // Unknown and optional: skipped in the greeting and after it.
        let mut peer = RawPeer::connect(rig.address).await;
        peer.send_bytes(&frame(200, true, payload)).await;
        peer.ask("odd", Subscription::all()).await;
        peer.send_bytes(&frame(200, true, payload)).await;
        peer.send(&Message::Ping(7)).await;
        while peer.next().await.unwrap() != Frame::Message(Message::Pong(7)) {}
        drop(peer);
        rig.alone().await;
    }
    let over = frame(200, true, CONTROL_MAX + 1);
    refused_greeting(&rig, &over, CloseCode::Protocol, "is 131073, the limit is 131072").await;
    refused_later(&rig, &over, "is 131073, the limit is 131072").await;
}

#[tokio::test]
async fn an_unknown_mandatory_frame_is_refused() {
    let rig = Rig::start().await;
    let said = frame(200, false, 10);
    let why = "frame type 200 is unknown and not marked as optional";
    refused_greeting(&rig, &said, CloseCode::Protocol, why).await;
    refused_greeting(&rig, &[hello("odd"), said.clone()].concat(), CloseCode::Protocol, why).await;
    refused_later(&rig, &said, why).await;
}

#[tokio::test]
async fn a_version_that_does_not_fit_is_named() {
    let rig = Rig::start().await;
    let ours = Hello::new(node_name("odd"));
    for (theirs, why) in [
        (
            Hello { protocol: (2, 7), ..ours.clone() },
            "protocol version 7 is not supported, this side speaks 1 to 1",
        ),
        (Hello { protocol: (0, 0), ..ours.clone() }, "protocol version 0 is not supported"),
        (Hello { segments: (2, 3), ..ours.clone() }, "segment format version 3 is not supported"),
        (Hello { segments: (0, 0), ..ours.clone() }, "segment format version 0 is not supported"),
        (
            Hello { frame_payload_max: 262_143, ..ours.clone() },
            "holds 262143, which is below the 262144 bytes",
        ),
    ] {
        refused_greeting(&rig, &bytes(&Message::Hello(theirs)), CloseCode::Protocol, why).await;
    }
    // Newer ones that still speak ours are welcome.
    let newer = Hello { protocol: (1, 9), segments: (0, 9), capabilities: u64::MAX, ..ours };
    let mut peer = RawPeer::connect(rig.address).await;
    peer.send(&Message::Hello(newer)).await;
    peer.send(&subscribe()).await;
    assert!(matches!(peer.next_message().await, Some(Message::Hello(_))));
    assert!(matches!(peer.next_message().await, Some(Message::Accepted { .. })));
}

#[tokio::test]
async fn frames_out_of_order_are_refused() {
    let rig = Rig::start().await;
    let greet = |said: Vec<u8>| [hello("odd"), said].concat();
    let (protocol, subscription) = (CloseCode::Protocol, "where a subscription was expected");
    refused_greeting(&rig, &bytes(&subscribe()), protocol, "a frame of type 2 where a hello was expected")
        .await;
    refused_greeting(&rig, &bytes(&Message::Ping(7)), protocol, "where a hello was expected").await;
    refused_greeting(&rig, &greet(hello("odd")), protocol, subscription).await;
    refused_greeting(&rig, &greet(bytes(&Message::Pause)), protocol, subscription).await;
    refused_greeting(&rig, &segment(&rig.source), protocol, "type 6 where a greeting was expected").await;
    refused_greeting(&rig, &greet(segment(&rig.source)), protocol, "type 6 where a greeting was expected")
        .await;
    refused_later(&rig, &segment(&rig.source), "a subscriber must not send segments").await;
    for message in [
        Message::Hello(Hello::new(node_name("odd"))),
        Message::SequenceUpdate(Boundary::START),
        Message::Progress(Sequence::ZERO),
        Message::Dictionary(Dictionary::Origin(OriginId(0), node_name("odd"))),
    ] {
        let why = format!("a subscriber must not send a frame of type {} here", message.kind().0);
        refused_later(&rig, &bytes(&message), &why).await;
    }
}

fn acknowledgement(received: u64, applied: u64, durable: u64) -> Message {
    Message::Acknowledgement(Acknowledgement {
        received: Sequence::new(received),
        applied: Sequence::new(applied),
        durable: Sequence::new(durable),
    })
}

#[tokio::test]
async fn an_impossible_acknowledgement_ends_the_stream_and_is_not_believed() {
    let rig = Rig::start().await;
    for (received, applied, durable) in [(1000, 0, 0), (u64::MAX, u64::MAX, u64::MAX), (0, 1, 0), (1, 0, 1)] {
        let said = bytes(&acknowledgement(received, applied, durable));
        let why =
            format!("impossible acknowledgement: received {received}, applied {applied}, durable {durable}");
        refused_later(&rig, &said, &why).await;
    }
}

#[tokio::test]
async fn an_acknowledgement_that_goes_back_is_ignored_and_counted() {
    let rig = Rig::start().await;
    rig.source.fill(1..20, 10);
    let mut peer = RawPeer::subscribe(rig.address, "odd", Subscription::all()).await;
    while !matches!(peer.next().await.unwrap(), Frame::Segment(segment) if last(&segment) >= 20) {}
    let seen = || {
        let connections = rig.worker.stats().connections;
        let stats = connections.into_iter().find(|stats| stats.peer == node_name("odd")).unwrap();
        (stats.acknowledged.durable.get(), stats.sent.acknowledgements_ignored)
    };
    // Written to the socket is not received: nothing was acknowledged yet.
    assert_eq!(seen(), (0, 0));
    peer.send(&acknowledgement(15, 12, 10)).await;
    until(|| seen() == (10, 0)).await;
    for back in [acknowledgement(14, 12, 10), acknowledgement(15, 11, 10), acknowledgement(20, 15, 9)] {
        peer.send(&back).await;
    }
    until(|| seen() == (10, 3)).await;
    peer.send(&acknowledgement(15, 12, 10)).await;
    peer.send(&acknowledgement(20, 20, 20)).await;
    until(|| seen() == (20, 3)).await;
}

fn last(segment: &[u8]) -> u64 {
    auditstream::protocol::SegmentRef::parse(segment).unwrap().header().end.sequence.get()
}

#[tokio::test]
async fn a_node_that_calls_itself_is_told() {
    let rig = Rig::start().await;
    let refusal = refusal(&rig, "source", Subscription::all()).await;
    assert_eq!(refusal.0, RefuseReason::SelfConnection);
    assert!(refusal.1.contains("both sides are named source"), "{}", refusal.1);
}

/// Subscribes and expects a refusal, then a close with the same text.
async fn refusal(rig: &Rig, name: &str, subscription: Subscription) -> (RefuseReason, String) {
    let mut peer = RawPeer::connect(rig.address).await;
    peer.send_bytes(&hello(name)).await;
    peer.send(&Message::Subscribe { id: 77, subscription }).await;
    assert!(matches!(peer.next_message().await, Some(Message::Hello(_))));
    let answer = peer.next_message().await;
    let Some(Message::Refused { id: 77, reason, text, .. }) = answer else { panic!("{answer:?}") };
    let (code, why) = closed(&mut peer).await;
    assert_eq!(code, CloseCode::Normal);
    assert!(why.contains(&text), "{why}");
    rig.goes_on().await;
    assert_eq!(rig.worker.connections(), 1);
    (reason, text)
}

#[tokio::test]
async fn every_misfit_of_a_position_has_a_reason_of_its_own() {
    let rig = Rig::start().await;
    let entry = |n| auditstream::protocol::Entry::put(rig.source.table, format!("p{n}"), "v");
    let boundary = rig.source.store.append(&[entry(0), entry(1)]).unwrap();
    let inside = Sequence::new(boundary.sequence.get() - 1);
    let log = rig.source.store.log_id();
    let filter = Subscription::all().fingerprint();
    let fits = Position { log, boundary, filter };
    let stamp = |version, checksum| Stamp { version, checksum };
    let at = |sequence, stamp| Position { boundary: Boundary { sequence, stamp }, ..fits };
    let version = boundary.stamp.version;
    let far = Sequence::new(u64::MAX);
    for (position, reason) in [
        (Position { log: LogId::from_bytes([7; 16]), ..fits }, RefuseReason::OtherLog),
        (Position { filter: Fingerprint(7), ..fits }, RefuseReason::OtherFilter),
        (at(boundary.sequence, stamp(version, !boundary.stamp.checksum)), RefuseReason::Forked),
        (at(boundary.sequence, stamp(Version::new(1, 1), boundary.stamp.checksum)), RefuseReason::Forked),
        (at(Sequence::ZERO, boundary.stamp), RefuseReason::Forked),
        (at(inside, boundary.stamp), RefuseReason::NotABoundary),
        (at(far, boundary.stamp), RefuseReason::AheadOfLog),
    ] {
        let answer = refusal(&rig, "odd", Subscription::all().starting_at(Some(position))).await;
        assert_eq!(answer.0, reason, "{position:?}: {}", answer.1);
    }
    // The filter of the subscription itself counts, not only the one in the position.
    let narrower = only("t").starting_at(Some(fits));
    assert_eq!(refusal(&rig, "odd", narrower).await.0, RefuseReason::OtherFilter);
    let mut peer = RawPeer::connect(rig.address).await;
    peer.ask("odd", Subscription::all().starting_at(Some(fits))).await;
}

#[tokio::test]
async fn the_largest_subscription_fits_and_a_larger_one_is_refused() {
    let rig = Rig::start().await;
    let named = |count: usize| {
        let tables = (0..count).map(|n| TableName::new(format!("{n:0>255}")).unwrap()).collect();
        let origins = (0..200).map(|n| node_name(&format!("{n:0>255}"))).collect();
        Subscription::new(NameFilter::Exclude(tables), NameFilter::Exclude(origins), None)
    };
    RawPeer::subscribe(rig.address, "odd", named(200).unwrap()).await;
    rig.alone().await;
    assert!(named(201).is_err());
    // One that claims another count: behind the missing start the mode of the tables, then how many.
    let mut payload = bytes(&Message::Subscribe { id: 1, subscription: named(200).unwrap() })[16..].to_vec();
    assert_eq!(payload[4..8], [0, 2, 200, 0]);
    payload[6] = 201;
    let claimed = FrameHeader {
        payload_crc: crc32fast::hash(&payload),
        ..header(payload.len() as u32, FrameKind::SUBSCRIBE.0, false)
    };
    let said = [hello("odd"), claimed.encode().to_vec(), payload].concat();
    refused_greeting(&rig, &said, CloseCode::Protocol, "is 201, the limit is 200").await;
}

#[tokio::test(start_paused = true)]
async fn a_greeting_that_was_cut_off_in_a_frame_is_not_followed_by_another() {
    let source = Node::new("source");
    // The answer to the hello does not fit.
    let (mut ours, theirs) = tokio::io::duplex(60);
    let described = source_of(&source);
    let accepting = tokio::spawn(async move {
        accept(Transport::io(theirs), &described, Duration::from_secs(10)).await.map(drop)
    });
    ours.write_all(&hello("odd")).await.unwrap();
    ours.write_all(&bytes(&Message::Ping(7))).await.unwrap();
    ours.write_all(&bytes(&Message::Ping(8))[..10]).await.unwrap();
    // Its deadline comes, and only then room.
    tokio::time::sleep(Duration::from_secs(10) + Duration::from_millis(500)).await;
    let mut heard = Vec::new();
    ours.read_to_end(&mut heard).await.unwrap();
    assert!(matches!(accepting.await.unwrap(), Err(AcceptError::Timeout(_))));
    let expected =
        [bytes(&Message::Hello(Hello::new(node_name("source")))), bytes(&Message::Pong(7))].concat();
    assert_eq!(heard[..], expected[..heard.len()], "the start of what was to be said, and nothing behind it");
}
