//! One pump task per worker, which owns all of its senders.

mod members;
mod shared;

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use tokio::time::Sleep;

use crate::clock::{Clock, Moment};
use crate::config::ConfigError;
#[cfg(any(test, feature = "testing"))]
use crate::sender::Plant;
use crate::sender::{BUDGET_DEDICATED, Ring, TurnEnd, YieldPolicy};

use super::keepalive::KeepaliveConfig;
use members::Connections;
pub(super) use shared::Shared;
pub use shared::{WorkerHandle, WorkerStats};

/// Settings of a worker. Each is checked when it is set.
#[derive(Debug, Clone, Copy)]
pub struct WorkerConfig {
    policy: YieldPolicy,
    budget: Duration,
    keepalive: KeepaliveConfig,
    #[cfg(any(test, feature = "testing"))]
    plant: Option<Plant>,
}

impl Default for WorkerConfig {
    fn default() -> Self {
        Self {
            policy: YieldPolicy::Budget,
            budget: BUDGET_DEDICATED,
            keepalive: KeepaliveConfig::default(),
            #[cfg(any(test, feature = "testing"))]
            plant: None,
        }
    }
}

impl WorkerConfig {
    /// Sets the time that all senders together may work before the event loop runs: 2 ms; take 0.5 ms
    /// ([`BUDGET_SHARED`](crate::sender::BUDGET_SHARED)) when the thread also serves other work.
    ///
    /// # Errors
    /// Below 50 us, where the yields begin to cost, or above 1 s.
    pub fn with_budget(self, budget: Duration) -> Result<Self, ConfigError> {
        let holds = (Duration::from_micros(50)..=Duration::from_secs(1)).contains(&budget);
        let budget = ConfigError::require(holds, "budget", budget, "50 us to 1 s (default 2 ms)")?;
        Ok(Self { budget, ..self })
    }

    /// Sets when the event loop is given back. The controls are for benchmarks and the guard only.
    #[must_use]
    pub const fn with_policy(self, policy: YieldPolicy) -> Self {
        Self { policy, ..self }
    }

    /// Sets when silent peers are asked and given up.
    #[must_use]
    pub const fn with_keepalive(self, keepalive: KeepaliveConfig) -> Self {
        Self { keepalive, ..self }
    }

    /// Plants a fault in the ring.
    #[cfg(any(test, feature = "testing"))]
    #[must_use]
    pub const fn planted(self, plant: Plant) -> Self {
        Self { plant: Some(plant), ..self }
    }

    fn ring(&self) -> Ring {
        let ring = Ring::new(self.policy, self.budget);
        #[cfg(any(test, feature = "testing"))]
        if let Some(plant) = self.plant {
            return ring.planted(plant);
        }
        ring
    }
}

/// A worker: a future that the host spawns.
///
/// It ends when it was told to stop and its connections have ended, or when the last [`WorkerHandle`] is gone and it has none left.
#[must_use = "a worker does nothing until it is run"]
pub struct Worker {
    ring: Ring,
    connections: Connections,
    clock: Arc<dyn Clock>,
    driver_ran: Arc<DriverRan>,
    sleep: Option<Pin<Box<Sleep>>>,
}

impl std::fmt::Debug for Worker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Worker").field("connections", &self.connections).finish_non_exhaustive()
    }
}

/// Set by the runtime's deferred wakers, which it wakes after the I/O driver and the timers have run.
#[derive(Debug, Default)]
struct DriverRan(AtomicBool);

impl Wake for DriverRan {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Release);
    }
}

enum Turned {
    /// The budget is spent.
    Yield,
    /// Told to stop, and nothing is left.
    Done,
}

impl Worker {
    /// A worker without connections, and the handle that gives it some.
    pub fn new(config: WorkerConfig, clock: Arc<dyn Clock>) -> (WorkerHandle, Self) {
        let shared = Arc::new(Shared::default());
        let connections = Connections::new(Arc::clone(&shared), config.keepalive, Arc::clone(&clock));
        let worker =
            Self { ring: config.ring(), connections, clock, driver_ran: Arc::default(), sleep: None };
        (WorkerHandle::new(shared), worker)
    }

    /// Serves connections until the worker is stopped. Run it inside a tokio runtime with I/O and time enabled.
    ///
    /// # Cancel safety
    /// Dropping it drops the connections; each peer resumes from its own position.
    pub async fn run(self) {
        // The pump polls many sockets in one go; tokio's own budget counts polls and would stop it early.
        tokio::task::coop::unconstrained(self.turns()).await;
    }

    async fn turns(mut self) {
        while let Turned::Yield = poll_fn(|cx| self.poll_turn(cx)).await {
            // One yield for all senders: the I/O driver and the timers run before this goes on.
            tokio::task::yield_now().await;
            self.ring.refill();
        }
    }

    fn poll_turn(&mut self, cx: &mut Context<'_>) -> Poll<Turned> {
        self.connections.shared.task.register(cx.waker());
        if self.driver_ran.0.swap(false, Ordering::AcqRel) {
            // Everyone waited, and the driver ran since.
            self.ring.refill();
        }
        let started = self.clock.now();
        let turned = self.turn_until_idle(cx);
        let worked = self.clock.now().since(started);
        self.connections.shared.note_turn(started, worked, *self.ring.stats());
        if turned.is_pending() {
            self.watch_driver();
        }
        turned
    }

    fn turn_until_idle(&mut self, cx: &mut Context<'_>) -> Poll<Turned> {
        loop {
            self.connections.take_commands(&mut self.ring);
            let end = self.ring.turn(&mut self.connections, &*self.clock);
            self.connections.remove_closed(&mut self.ring);
            // Whether there was a rest or not: a busy sender must not keep a dead one alive.
            let next_check = self.connections.check_alive(&mut self.ring);
            let TurnEnd::Wait { deadline } = end else { return Poll::Ready(Turned::Yield) };
            if self.connections.is_done() {
                return Poll::Ready(Turned::Done);
            }
            // The waiter is registered before the last look at the logs: no commit is missed.
            if self.connections.register_for_commits(cx.waker()) || self.ring.ready() > 0 {
                continue;
            }
            let deadline = [deadline, next_check].into_iter().flatten().min();
            if self.poll_deadline(deadline, cx).is_pending() {
                return Poll::Pending;
            }
        }
    }

    /// Whether `deadline` has come, by the clock and not by which timer fired.
    fn poll_deadline(&mut self, deadline: Option<Moment>, cx: &mut Context<'_>) -> Poll<()> {
        let Some(deadline) = deadline else {
            self.sleep = None;
            return Poll::Pending;
        };
        loop {
            let now = self.clock.now();
            if deadline <= now {
                return Poll::Ready(());
            }
            let mut sleep = Box::pin(tokio::time::sleep(deadline.since(now)));
            if sleep.as_mut().poll(cx).is_pending() {
                self.sleep = Some(sleep);
                return Poll::Pending;
            }
        }
    }

    /// Leaves a waker with the runtime that it wakes once its driver has run, without waking this task.
    fn watch_driver(&self) {
        let waker = Waker::from(Arc::clone(&self.driver_ran));
        let mut yielded = std::pin::pin!(tokio::task::yield_now());
        // A deferred waker is woken after the I/O driver and the timers have run.
        let pending = yielded.as_mut().poll(&mut Context::from_waker(&waker)).is_pending();
        debug_assert!(pending, "a yield is pending at first");
    }
}
