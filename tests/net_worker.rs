//! A worker and its connections: who holds up whom, and how everything ends.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;
mod peer_support;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use auditstream::net::{KeepaliveConfig, Listener, Placement, Worker, WorkerConfig, WorkerStats};
use auditstream::protocol::{CloseCode, Frame, Message, Subscription};
use auditstream::sender::{Blocked, Plant};
use auditstream::store::AuditLog;
use common::{Node, RawPeer, node_name, source_of, until};
use peer_support::{EndlessLog, Rig, TokioClock, closed, narrow, only, piped};
use tokio::io::AsyncReadExt;

/// The most that a blocked sender keeps: the largest frame.
const PENDING_BYTES_MAX: usize = 256 * 1024 + 16;

fn keepalive(interval_ms: u64, timeout_ms: u64) -> WorkerConfig {
    let (interval, timeout) = (Duration::from_millis(interval_ms), Duration::from_millis(timeout_ms));
    WorkerConfig::default().with_keepalive(KeepaliveConfig::new(interval, timeout).unwrap())
}

fn blocked(stats: &WorkerStats, name: &str) -> Option<Blocked> {
    stats.connections.iter().find(|stats| stats.peer == node_name(name)).and_then(|stats| stats.blocked)
}

fn serves(stats: &WorkerStats, name: &str) -> bool {
    stats.connections.iter().any(|stats| stats.peer == node_name(name))
}

/// A peer that never reads, and a log that fills every buffer on the way to it.
async fn stuck(rig: &Rig, name: &str) -> RawPeer {
    if rig.source.store.rows().len() < 200 {
        rig.source.fill(1..400, 16_000);
        until(|| rig.healthy.store.rows().len() == rig.source.store.rows().len()).await;
    }
    let mut peer = narrow(rig.address).await;
    peer.ask(name, Subscription::all()).await;
    until(|| blocked(&rig.worker.stats(), name) == Some(Blocked::Socket)).await;
    peer
}

#[tokio::test]
async fn a_peer_that_does_not_read_holds_up_nobody_and_keeps_one_write_in_memory() {
    let rig = Rig::start().await;
    let _stuck = stuck(&rig, "stuck").await;
    for _ in 0..100 {
        rig.goes_on().await;
        let stats = rig.worker.stats();
        for connection in &stats.connections {
            assert!(connection.pending_bytes <= PENDING_BYTES_MAX, "{connection:?}");
        }
        assert_eq!(blocked(&stats, "stuck"), Some(Blocked::Socket));
    }
}

#[tokio::test]
async fn a_peer_that_does_not_read_is_given_up_after_the_timeout() {
    let rig = Rig::with(Duration::from_secs(30), keepalive(50, 300)).await;
    let _stuck = stuck(&rig, "stuck").await;
    until(|| !serves(&rig.worker.stats(), "stuck")).await;
    until(|| rig.worker.connections() == 1).await;
    rig.goes_on().await;
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_reads_slowly_is_kept_where_one_that_does_not_read_is_given_up() {
    let clock = TokioClock::shared();
    let source = Node::new("source");
    source.fill(0..100, 2000);
    let (worker, running) = Worker::new(WorkerConfig::default(), clock);
    tokio::spawn(running.run());
    let described = source_of(&source);
    let _stuck = piped(&described, &worker, 1000, "stuck", Subscription::all()).await;
    let mut slow = piped(&described, &worker, 1000, "slow", Subscription::all()).await;
    for _ in 0..60 {
        tokio::time::advance(Duration::from_secs(20)).await;
        let mut bytes = [0; 500];
        slow.stream.read_exact(&mut bytes).await.unwrap();
    }
    until(|| worker.connections() == 1).await;
    assert!(serves(&worker.stats(), "slow"));
}

#[tokio::test(start_paused = true)]
async fn a_silent_peer_is_pinged_and_kept_while_it_answers() {
    let (source, clock) = (Node::new("source"), TokioClock::shared());
    let (worker, running) = Worker::new(WorkerConfig::default(), clock.clone());
    tokio::spawn(running.run());
    let mut peer = piped(&source_of(&source), &worker, 1000, "peer", Subscription::all()).await;
    for round in 1..=100_u64 {
        let Some(Message::Ping(number)) = peer.next_message().await else { panic!("a ping is due") };
        assert_eq!(clock.now().as_nanos() / 1_000_000_000, round * 30, "one ping every 30 s");
        peer.send(&Message::Pong(number)).await;
    }
    // It falls silent: one more ping, and the end 60 s after its last byte.
    assert!(matches!(peer.next_message().await, Some(Message::Ping(_))));
    assert!(peer.next_message().await.is_none());
    assert_eq!(clock.now().as_nanos() / 1_000_000_000, 100 * 30 + 60);
    assert_eq!(worker.connections(), 0);
}

#[tokio::test]
async fn a_worker_that_never_waits_gives_up_a_dead_peer_all_the_same() {
    let node = Node::new("source");
    let endless = EndlessLog::source(node.clock.clone());
    let (worker, running) = Worker::new(keepalive(20, 600), node.clock.clone());
    tokio::spawn(running.run());
    let _dead = piped(&endless, &worker, 1000, "dead", Subscription::all()).await;
    until(|| blocked(&worker.stats(), "dead") == Some(Blocked::Socket)).await;
    // Skipping for ever, it is always ready.
    let mut busy = piped(&endless, &worker, 100_000, "busy", only("other")).await;
    tokio::spawn(async move {
        while let Some(frame) = busy.next().await {
            if let Frame::Message(Message::Ping(number)) = frame {
                busy.send(&Message::Pong(number)).await;
            }
        }
    });
    until(|| worker.stats().connections.iter().any(|stats| stats.sent.segments_skipped > 0)).await;
    let waited = worker.stats().ring.turns_waited;
    until(|| !serves(&worker.stats(), "dead")).await;
    assert!(serves(&worker.stats(), "busy"));
    assert_eq!(worker.stats().ring.turns_waited, waited, "it never had a moment's rest");
    worker.stop();
}

#[tokio::test]
async fn a_peer_that_goes_frees_its_connection_in_whatever_wait() {
    let rig = Rig::start().await;
    let peer = RawPeer::subscribe(rig.address, "caught-up", Subscription::all()).await;
    until(|| rig.worker.connections() == 2).await;
    drop(peer);
    rig.alone().await;
    let mut peer = RawPeer::subscribe(rig.address, "paused", Subscription::all()).await;
    peer.send(&Message::Pause).await;
    until(|| blocked(&rig.worker.stats(), "paused") == Some(Blocked::Paused)).await;
    drop(peer);
    rig.alone().await;
    drop(stuck(&rig, "stuck").await);
    rig.alone().await;
}

#[tokio::test]
async fn a_peer_that_says_goodbye_frees_its_connection_in_whatever_wait() {
    let rig = Rig::start().await;
    let goodbye = Message::Close { code: CloseCode::Normal, text: "done".to_owned() };
    let mut caught_up = RawPeer::subscribe(rig.address, "caught-up", Subscription::all()).await;
    caught_up.send(&goodbye).await;
    rig.alone().await;
    let mut paused = RawPeer::subscribe(rig.address, "paused", Subscription::all()).await;
    paused.send(&Message::Pause).await;
    until(|| blocked(&rig.worker.stats(), "paused") == Some(Blocked::Paused)).await;
    paused.send(&goodbye).await;
    rig.alone().await;
    let mut stuck = stuck(&rig, "stuck").await;
    stuck.send(&goodbye).await;
    rig.alone().await;
}

#[tokio::test]
async fn a_newer_connection_of_the_same_peer_takes_over() {
    let rig = Rig::start().await;
    let mut old = RawPeer::subscribe(rig.address, "twice", Subscription::all()).await;
    let mut new = RawPeer::subscribe(rig.address, "twice", Subscription::all()).await;
    let (code, text) = closed(&mut old).await;
    assert_eq!(code, CloseCode::Superseded);
    assert!(text.contains("twice"), "{text}");
    drop(old);
    until(|| rig.worker.connections() == 2).await;
    rig.goes_on().await;
    while !matches!(new.next().await.unwrap(), Frame::Segment(_)) {}
    drop(new);
    rig.alone().await;
}

#[tokio::test]
async fn a_newer_connection_takes_over_from_one_that_does_not_read() {
    let rig = Rig::start().await;
    let _old = stuck(&rig, "twice").await;
    let _new = RawPeer::subscribe(rig.address, "twice", Subscription::all()).await;
    until(|| rig.worker.connections() == 3).await;
    until(|| rig.worker.connections() == 2).await;
    assert!(serves(&rig.worker.stats(), "twice"));
    rig.goes_on().await;
}

#[tokio::test]
async fn a_port_in_use_is_named_with_the_way_out() {
    let node = Node::new("source");
    let (worker, _running) = Worker::new(WorkerConfig::default(), node.clock.clone());
    let bind = |address| Listener::bind(address, source_of(&node), Placement::Worker(worker.clone()));
    let first = bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = first.local_addr().unwrap();
    let error = bind(address).unwrap_err();
    assert_eq!(error.address, address);
    let text = error.to_string();
    assert!(text.starts_with(&format!("cannot listen on {address}: ")), "{text}");
    assert!(text.ends_with("choose another port, 0 takes a free one"), "{text}");
}

#[tokio::test]
async fn stopping_ends_the_worker_although_a_peer_does_not_read() {
    let source = Node::new("source");
    source.fill(0..100, 2000);
    let (worker, running) = Worker::new(WorkerConfig::default(), source.clock.clone());
    let running = tokio::spawn(running.run());
    let mut stuck = piped(&source_of(&source), &worker, 1000, "stuck", Subscription::all()).await;
    until(|| blocked(&worker.stats(), "stuck") == Some(Blocked::Socket)).await;
    worker.stop();
    tokio::time::timeout(Duration::from_secs(30), running).await.expect("the worker ends").unwrap();
    assert_eq!(worker.connections(), 0);
    // What it got before is the start of a stream and nothing else.
    let mut rest = Vec::new();
    stuck.stream.read_to_end(&mut rest).await.unwrap();
    assert!(rest.len() <= 1000);
}

#[tokio::test]
async fn stopping_tells_every_peer_in_whatever_wait() {
    let rig = Rig::start().await;
    let mut caught_up = RawPeer::subscribe(rig.address, "caught-up", Subscription::all()).await;
    let mut paused = RawPeer::subscribe(rig.address, "paused", Subscription::all()).await;
    paused.send(&Message::Pause).await;
    until(|| blocked(&rig.worker.stats(), "paused") == Some(Blocked::Paused)).await;
    rig.worker.stop();
    for peer in [&mut caught_up, &mut paused] {
        assert_eq!(closed(peer).await, (CloseCode::Shutdown, "the node shuts down".to_owned()));
    }
    drop((caught_up, paused));
    until(|| rig.worker.connections() == 0).await;
}

#[tokio::test]
async fn a_worker_without_connections_ends_when_told_or_when_nobody_can_tell_it() {
    let node = Node::new("source");
    let (worker, running) = Worker::new(WorkerConfig::default(), node.clock.clone());
    let running = tokio::spawn(running.run());
    worker.stop();
    tokio::time::timeout(Duration::from_secs(30), running).await.unwrap().unwrap();
    let (worker, running) = Worker::new(WorkerConfig::default(), node.clock.clone());
    let running = tokio::spawn(running.run());
    drop(worker);
    tokio::time::timeout(Duration::from_secs(30), running).await.unwrap().unwrap();
}

#[tokio::test]
async fn dropping_a_worker_closes_its_connections_in_whatever_wait() {
    let source = Node::new("source");
    source.fill(0..100, 2000);
    let (worker, running) = Worker::new(WorkerConfig::default(), source.clock.clone());
    let running = tokio::spawn(running.run());
    let described = source_of(&source);
    let mut stuck = piped(&described, &worker, 1000, "stuck", Subscription::all()).await;
    let mut paused = piped(&described, &worker, 1000, "paused", Subscription::all()).await;
    paused.send(&Message::Pause).await;
    let mut caught_up = piped(&described, &worker, 1000, "caught-up", only("other")).await;
    until(|| blocked(&worker.stats(), "stuck") == Some(Blocked::Socket)).await;
    let head = source.store.head();
    let end = |stats: WorkerStats| stats.connections.iter().any(|stats| stats.position == head);
    until(|| end(worker.stats())).await;
    running.abort();
    for peer in [&mut stuck, &mut paused, &mut caught_up] {
        let mut rest = Vec::new();
        let reading = peer.stream.read_to_end(&mut rest);
        tokio::time::timeout(Duration::from_secs(30), reading).await.expect("the end").unwrap();
    }
    assert_eq!(worker.connections(), 0);
    assert!(worker.stats().connections.is_empty());
}

#[tokio::test]
async fn a_worker_that_has_ended_drops_what_it_is_given() {
    let source = Node::new("source");
    let (worker, running) = Worker::new(WorkerConfig::default(), source.clock.clone());
    worker.stop();
    running.run().await;
    let (ours, theirs) = tokio::io::duplex(1000);
    let mut peer = RawPeer::over(ours);
    let (described, given) = (source_of(&source), worker.clone());
    let accepting = tokio::spawn(async move {
        let transport = auditstream::net::Transport::io(theirs);
        given.add(auditstream::net::accept(transport, &described, Duration::from_secs(30)).await.unwrap());
    });
    peer.send(&Message::Hello(auditstream::protocol::Hello::new(node_name("late")))).await;
    peer.send(&Message::Subscribe { id: 1, subscription: Subscription::all() }).await;
    accepting.await.unwrap();
    assert!(matches!(peer.next_message().await, Some(Message::Hello(_))));
    let end = tokio::time::timeout(Duration::from_secs(30), peer.next_message()).await;
    assert_eq!(end.expect("the connection is dropped"), None);
    assert_eq!(worker.connections(), 0);
}

/// Two peers in the worker's own runtime that answer every pong with a ping: the worker waits and is woken all the
/// time, and the driver runs only now and then. Gives the yields over `pings` pings, and how often another task ran.
async fn yields_while_woken(plant: Option<Plant>, pings: u64) -> (u64, u64) {
    let source = Node::new("source");
    let config = WorkerConfig::default().with_budget(Duration::from_micros(50)).unwrap();
    let config = match plant {
        Some(plant) => config.planted(plant),
        None => config,
    };
    let (worker, running) = Worker::new(config, source.clock.clone());
    let running = tokio::spawn(running.run());
    let mut flapping = Vec::new();
    for name in ["left", "right"] {
        let mut peer = piped(&source_of(&source), &worker, 1000, name, Subscription::all()).await;
        flapping.push(tokio::spawn(async move {
            for number in 0..pings {
                peer.send(&Message::Ping(number)).await;
                while peer.next_message().await.unwrap() != Message::Pong(number) {}
            }
        }));
    }
    // It needs the timers, which run with the driver only.
    let ticks = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&ticks);
    let ticking = tokio::spawn(async move {
        let mut tick = tokio::time::interval(Duration::from_millis(1));
        loop {
            tick.tick().await;
            counted.fetch_add(1, Ordering::Relaxed);
        }
    });
    for peer in flapping {
        peer.await.unwrap();
    }
    let yields = worker.stats().ring.turns_spent;
    ticking.abort();
    worker.stop();
    running.await.unwrap();
    (yields, ticks.load(Ordering::Relaxed))
}

#[test]
fn a_wake_up_without_a_run_of_the_driver_gives_no_new_budget() {
    // Left to itself, this runtime looks at its driver after 2,000 polls only: far more work than a budget.
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().event_interval(2000).build().unwrap();
    let (yields, ticks) = runtime.block_on(yields_while_woken(None, 5000));
    let (planted, _) = runtime.block_on(yields_while_woken(Some(Plant::RefillOnAnyWait), 5000));
    println!("{yields} yields, {planted} with a refill on any wait, {ticks} ticks");
    assert!(yields > 50, "{yields} yields over 10,000 pings");
    assert!(yields > 2 * planted, "{yields} yields, {planted} with a refill on any wait");
    assert!(ticks > 1, "another task runs");
}
