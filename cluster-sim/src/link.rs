//! A node's two ends on the network: what serves its log to peers, and what follows another node.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::thread::JoinHandle;
use std::time::Duration;

use auditstream::clock::Clock;
use auditstream::net::{
    Dialer, DialerConfig, DialerHandle, DialerState, Listener, Placement, Source, WorkerConfig, WorkerPool,
};
use auditstream::protocol::{NodeName, Subscription};
use auditstream::sender::{SendConfig, YieldPolicy};
use auditstream::store::{Applier, AuditLog};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::fault::Fault;
use crate::proc::SenderCounts;
use crate::store;

/// What the names of worker threads begin with: their CPU time is the sender's.
pub(crate) const THREAD_PREFIX: &str = "audit-worker";

/// Serves a log: a listener on a thread of its own, and one worker on another, so that all peers share one budget.
#[derive(Debug)]
pub(crate) struct Serving {
    address: SocketAddr,
    pool: Arc<WorkerPool>,
    cancel: DropGuard,
    listener: JoinHandle<()>,
}

impl Serving {
    /// Listens on `listen` and serves whoever subscribes.
    ///
    /// # Errors
    /// An address that is in use, a budget out of range, a thread that cannot be started.
    pub(crate) fn start(
        name: &NodeName,
        log: Arc<dyn AuditLog>,
        listen: SocketAddr,
        policy: YieldPolicy,
        budget: Duration,
    ) -> Result<Self, Fault> {
        let config = WorkerConfig::default().with_policy(policy).with_budget(budget).map_err(Fault::usage)?;
        let clock = store::clock();
        let pool = Arc::new(WorkerPool::start(1, config, &clock).map_err(Fault::run)?);
        let cancel = CancellationToken::new();
        let (bound, address) = sync_channel(1);
        let source = Source { node: name.clone(), log, clock, send: SendConfig::default() };
        let (placement, token) = (Placement::Pool(Arc::clone(&pool)), cancel.clone());
        let listener = on_thread("listener", move |runtime| {
            runtime.block_on(async {
                let listener = Listener::bind(listen, source, placement).map_err(Fault::usage);
                let address = listener
                    .as_ref()
                    .map_err(Fault::clone)
                    .and_then(|listener| listener.local_addr().map_err(Fault::run));
                let _starter_waits = bound.send(address);
                if let Ok(listener) = listener {
                    listener.run(token).await;
                }
            });
        })?;
        let address = address.recv().map_err(|_| Fault::run("the listener's thread ended at once"))??;
        Ok(Self { address, pool, cancel: cancel.drop_guard(), listener })
    }

    /// Where it listens.
    pub(crate) const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Connected peers.
    pub(crate) fn peers(&self) -> usize {
        self.pool.stats().iter().map(|worker| worker.connections.len()).sum()
    }

    /// What the worker has counted; CPU times are left to the caller.
    pub(crate) fn counts(&self) -> SenderCounts {
        let mut counts = SenderCounts::default();
        for worker in self.pool.stats() {
            counts.yields += worker.ring.turns_spent;
            counts.waits += worker.ring.turns_waited;
            for connection in worker.connections {
                counts.acknowledged.push(connection.acknowledged.durable.get());
                counts.sent.push(connection.sent.entries_sent);
                counts.bytes += connection.sent.bytes_sent;
                counts.writes += connection.sent.writes;
                counts.writes_blocked += connection.sent.writes_blocked;
                counts.reads += connection.reads;
            }
        }
        counts
    }

    /// Closes all streams and ends the threads.
    ///
    /// # Errors
    /// A thread that panicked.
    pub(crate) fn stop(self) -> Result<(), Fault> {
        drop(self.cancel);
        self.listener.join().map_err(|_| Fault::run("the listener's thread panicked"))?;
        self.pool.shutdown();
        Ok(())
    }
}

/// Follows one node: a dialer on a thread of its own.
#[derive(Debug)]
pub(crate) struct Following {
    address: SocketAddr,
    handle: DialerHandle,
    cancel: DropGuard,
    dialer: JoinHandle<()>,
}

impl Following {
    /// Subscribes to the node at `address`, again and again until it is stopped.
    ///
    /// # Errors
    /// A thread that cannot be started.
    pub(crate) fn start(
        name: &NodeName,
        address: SocketAddr,
        applier: Arc<dyn Applier>,
        subscription: Subscription,
    ) -> Result<Self, Fault> {
        let clock: Arc<dyn Clock> = store::clock();
        let dialer =
            Dialer::new(address, name.clone(), applier, subscription, clock, DialerConfig::default());
        let (handle, cancel) = (dialer.handle(), CancellationToken::new());
        let token = cancel.clone();
        let dialer = on_thread("dialer", move |runtime| {
            runtime.block_on(dialer.run(token));
        })?;
        Ok(Self { address, handle, cancel: cancel.drop_guard(), dialer })
    }

    /// One line for people.
    pub(crate) fn status(&self) -> String {
        let status = self.handle.status();
        let state = match &status.state {
            DialerState::Connecting => "connecting".to_owned(),
            DialerState::Greeting => "connected, not accepted yet".to_owned(),
            DialerState::Streaming => "streaming".to_owned(),
            DialerState::Waiting(pause) => format!("connecting again in {pause:.1?}"),
            DialerState::Refused(reason) => format!("refused ({reason:?})"),
            _ => "stopped".to_owned(),
        };
        let source = status.source.map_or_else(String::new, |source| format!(" ({source})"));
        let durable = status.acknowledged.durable.get();
        // What ended an earlier connection is of no interest while this one streams.
        let error = status.last_error.filter(|_| status.state != DialerState::Streaming);
        let error = error.map_or_else(String::new, |error| format!(", last error: {error}"));
        format!("following {}{source}: {state}, durable up to {durable}{error}", self.address)
    }

    /// What would be news to a reader of the status: whether it streams, and if not, why.
    pub(crate) fn condition(&self) -> (bool, Option<String>) {
        let status = self.handle.status();
        let streaming = status.state == DialerState::Streaming;
        (streaming, status.last_error.filter(|_| !streaming))
    }

    /// Ends it; every batch that it had handed over was answered then.
    ///
    /// # Errors
    /// A thread that panicked.
    pub(crate) fn stop(self) -> Result<(), Fault> {
        drop(self.cancel);
        self.dialer.join().map_err(|_| Fault::run("the dialer's thread panicked"))
    }
}

fn on_thread(
    name: &str,
    work: impl FnOnce(tokio::runtime::Runtime) + Send + 'static,
) -> Result<JoinHandle<()>, Fault> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(Fault::run)?;
    std::thread::Builder::new().name(name.to_owned()).spawn(move || work(runtime)).map_err(Fault::run)
}
