//! Streams over real sockets and pipes, from store to store.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use auditstream::net::{Dialer, DialerConfig, Listener, Placement, Worker, WorkerConfig, WorkerPool};
use auditstream::protocol::{Entry, NodeName, SourceState, Subscription};
use auditstream::store::{Applied, Applier, ApplyBatch, ApplyDone, AuditLog, MemoryStore, StoreError};
use common::{Node, follow, node_name, source_of};
use tokio_util::sync::CancellationToken;

/// A listener on a free port with one worker in this runtime.
async fn serve(
    node: &Node,
    stop: &CancellationToken,
) -> (std::net::SocketAddr, auditstream::net::WorkerHandle) {
    let (handle, worker) = Worker::new(WorkerConfig::default(), node.clock.clone());
    tokio::spawn(worker.run());
    let placement = Placement::Worker(handle.clone());
    let listener = Listener::bind("127.0.0.1:0".parse().unwrap(), source_of(node), placement).unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(listener.run(stop.clone()));
    (address, handle)
}

#[tokio::test]
async fn a_peer_catches_up_and_then_gets_every_commit_without_a_later_one() {
    let stop = CancellationToken::new();
    let (source, peer) = (Node::new("source"), Node::new("peer"));
    source.fill(0..2000, 300);
    let (address, worker) = serve(&source, &stop).await;
    let dialer = follow(address, &peer, Subscription::all());
    let handle = dialer.handle();
    let running = tokio::spawn(dialer.run(stop.clone()));
    common::until(|| peer.store.rows().len() == 2000).await;
    // One commit at a time, and nothing after it until it is seen.
    for round in 2000..2200 {
        source.fill(round..round + 1, 20);
        common::until(|| peer.store.rows().len() == round + 1).await;
    }
    common::until(|| handle.status().acknowledged.durable == source.store.head()).await;
    assert!(peer.store.rows() == source.store.rows());
    let stats = worker.stats();
    assert_eq!(stats.connections.len(), 1);
    assert_eq!(stats.connections[0].sent.entries_sent, 2200);
    common::until(|| worker.stats().connections[0].acknowledged.durable == source.store.head()).await;
    stop.cancel();
    running.await.unwrap();
}

#[tokio::test]
async fn four_peers_on_a_pool_end_with_equal_rows_and_two_connections_a_worker() {
    let stop = CancellationToken::new();
    let source = Node::new("source");
    source.fill(0..500, 2000);
    let pool = Arc::new(WorkerPool::start(4, WorkerConfig::default(), &source.clock).unwrap());
    let placement = Placement::Pool(Arc::clone(&pool));
    let listener = Listener::bind("127.0.0.1:0".parse().unwrap(), source_of(&source), placement).unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(listener.run(stop.clone()));
    let peers: Vec<_> = (0..8).map(|n| Node::new(&format!("peer-{n}"))).collect();
    for peer in &peers {
        tokio::spawn(follow(address, peer, Subscription::all()).run(stop.clone()));
    }
    for peer in &peers {
        common::until(|| peer.store.rows().len() == 500).await;
        assert!(peer.store.rows() == source.store.rows());
    }
    let placed: Vec<_> = pool.workers().iter().map(|worker| worker.connections()).collect();
    assert_eq!(placed, [2, 2, 2, 2]);
    stop.cancel();
    tokio::task::spawn_blocking(move || pool.shutdown()).await.unwrap();
}

#[tokio::test]
async fn a_restarted_source_is_resumed_from_the_stored_position_without_a_repeat() {
    let (source, peer) = (Node::new("source"), Node::new("peer"));
    for round in 0..5_usize {
        let stop = CancellationToken::new();
        source.fill(round * 100..(round + 1) * 100, 500);
        let (address, worker) = serve(&source, &stop).await;
        let dialer = follow(address, &peer, Subscription::all());
        let running = tokio::spawn(dialer.run(stop.clone()));
        common::until(|| peer.store.rows().len() == (round + 1) * 100).await;
        assert_eq!(worker.stats().connections[0].sent.entries_sent, 100, "only what is new");
        stop.cancel();
        running.await.unwrap();
        worker.stop();
    }
    let logged = peer.store.logged();
    let mut unique = logged.clone();
    unique.sort();
    unique.dedup();
    assert_eq!(unique.len(), 500, "nothing is logged twice");
    assert_eq!(logged.len(), 500);
}

#[tokio::test]
async fn any_byte_stream_can_carry_a_connection() {
    let (source, peer) = (Node::new("source"), Node::new("peer"));
    source.fill(0..300, 1000);
    let (handle, worker) = Worker::new(WorkerConfig::default(), source.clock.clone());
    let running = tokio::spawn(worker.run());
    let described = source_of(&source);
    let handles = handle.clone();
    // A pipe of 1,000 bytes: every write is a partial one.
    let connect = move || -> common::Connecting {
        let (ours, theirs) = tokio::io::duplex(1000);
        let (described, handles) = (described.clone(), handles.clone());
        tokio::spawn(async move {
            let transport = auditstream::net::Transport::io(theirs);
            let accepted = auditstream::net::accept(transport, &described, Duration::from_secs(10)).await;
            handles.add(accepted.unwrap());
        });
        Box::pin(async move { Ok(auditstream::net::Transport::io(ours)) })
    };
    let stop = CancellationToken::new();
    let applier: Arc<MemoryStore> = peer.store.clone();
    let dialer = Dialer::with_connector(
        connect,
        node_name("peer"),
        applier,
        Subscription::all(),
        peer.clock.clone(),
        DialerConfig::default(),
    );
    let dialing = tokio::spawn(dialer.run(stop.clone()));
    common::until(|| peer.store.rows().len() == 300).await;
    stop.cancel();
    dialing.await.unwrap();
    handle.stop();
    running.await.unwrap();
}

#[tokio::test]
async fn two_nodes_that_follow_each_other_end_alike_and_log_nothing_twice() {
    let stop = CancellationToken::new();
    let (left, right) = (Node::new("left"), Node::new("right"));
    let (left_address, _left_worker) = serve(&left, &stop).await;
    let (right_address, _right_worker) = serve(&right, &stop).await;
    tokio::spawn(follow(left_address, &right, Subscription::all()).run(stop.clone()));
    tokio::spawn(follow(right_address, &left, Subscription::all()).run(stop.clone()));
    for n in 0..50_usize {
        left.fill(n..n + 1, 10);
        right.put(&[Entry::put(right.table, format!("r{n}"), vec![2; 10])]);
    }
    common::until(|| left.store.rows().len() == 100 && left.store.rows() == right.store.rows()).await;
    assert_eq!(left.store.logged().len(), 100);
    assert_eq!(right.store.logged().len(), 100);
    stop.cancel();
}

#[test]
fn a_worker_can_be_spawned_on_any_runtime() {
    fn is_send<T: Send>(_: &T) {}
    let node = Node::new("node");
    let (_handle, worker) = Worker::new(WorkerConfig::default(), node.clock.clone());
    is_send(&worker.run());
    let dialer = follow("127.0.0.1:1".parse().unwrap(), &node, Subscription::all());
    is_send(&dialer.run(CancellationToken::new()));
    static_assertions::assert_impl_all!(auditstream::net::WorkerHandle: Clone, Send, Sync);
}

/// Answers every batch at once and keeps it.
#[derive(Default)]
struct Keeper(Mutex<Vec<ApplyBatch>>);

impl Applier for Keeper {
    fn source_state(&self, _source: &NodeName) -> Result<Option<SourceState>, StoreError> {
        Ok(None)
    }

    fn submit(&self, batch: ApplyBatch, done: ApplyDone) {
        self.0.lock().unwrap().push(batch);
        done(Ok(Applied::default()));
    }
}

#[tokio::test]
async fn a_small_frame_that_waits_holds_no_more_memory_than_it_is_counted_with() {
    let stop = CancellationToken::new();
    let (source, peer, keeper) = (Node::new("source"), Node::new("peer"), Arc::new(Keeper::default()));
    let (address, _worker) = serve(&source, &stop).await;
    let (subscription, config) = (Subscription::all(), DialerConfig::default());
    let dialer =
        Dialer::new(address, peer.name.clone(), keeper.clone(), subscription, peer.clock.clone(), config);
    let running = tokio::spawn(dialer.run(stop.clone()));
    // Each is read by itself.
    for row in 0..20 {
        source.fill(row..row + 1, 20);
        common::until(|| keeper.0.lock().unwrap().len() == row + 1).await;
    }
    stop.cancel();
    running.await.unwrap();
    let batches = std::mem::take(&mut *keeper.0.lock().unwrap());
    for frame in batches.into_iter().flat_map(|batch| batch.frames) {
        let held = frame.try_into_mut().expect("nobody else holds it").capacity();
        assert!(held < 2048, "a frame of some 200 bytes holds {held}");
    }
}
