//! What a worker shares with its handles and its wakers.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::task::AtomicWaker;

use crate::clock::Moment;
use crate::net::connection::{Connection, ConnectionStats};
use crate::protocol::{Close, CloseCode, LogId, NodeName};
use crate::sender::{MemberId, RingStats};

/// Time constant of the load: what a worker did a second ago counts half.
const LOAD_HALF_LIFE: Duration = Duration::from_secs(1);

pub(super) enum Command {
    Add(Box<Connection>),
    /// Closes the connections of a peer to a log.
    Close(NodeName, LogId, Close),
    Stop,
}

/// Wakers and handles on one side, the pump task on the other.
pub(in crate::net) struct Shared {
    pub(super) task: AtomicWaker,
    /// `None` once the worker has ended: what it is given then is dropped.
    commands: Mutex<Option<Vec<Command>>>,
    woken: Mutex<Vec<MemberId>>,
    pub(super) connections: Mutex<BTreeMap<MemberId, Arc<Mutex<ConnectionStats>>>>,
    turns: Mutex<Turns>,
    /// Connections that were given to the worker and have not ended.
    pub(super) placed: AtomicUsize,
    handles: AtomicUsize,
}

impl Default for Shared {
    fn default() -> Self {
        Self {
            task: AtomicWaker::new(),
            commands: Mutex::new(Some(Vec::new())),
            woken: Mutex::default(),
            connections: Mutex::default(),
            turns: Mutex::default(),
            placed: AtomicUsize::new(0),
            handles: AtomicUsize::new(0),
        }
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("placed", &self.placed).finish_non_exhaustive()
    }
}

#[derive(Debug, Default, Clone, Copy)]
struct Turns {
    ring: RingStats,
    polls: u64,
    longest: Duration,
    busy: Duration,
    load: f64,
    load_at: Moment,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    pub(in crate::net) fn wake_member(&self, id: MemberId) {
        lock(&self.woken).push(id);
        self.task.wake();
    }

    /// Moves the woken members behind those in `woken`.
    pub(super) fn drain_woken(&self, woken: &mut Vec<MemberId>) {
        woken.append(&mut lock(&self.woken));
    }

    fn send(&self, command: Command) {
        let refused = match &mut *lock(&self.commands) {
            Some(commands) => {
                commands.push(command);
                None
            }
            None => Some(command),
        };
        if let Some(command) = refused {
            self.forget(&command);
        }
        self.task.wake();
    }

    pub(super) fn take_commands(&self) -> Vec<Command> {
        lock(&self.commands).as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// The worker has ended: its connections are gone, and so is whatever it was given and did not take in.
    pub(super) fn end(&self) {
        let left = lock(&self.commands).take();
        left.iter().flatten().for_each(|command| self.forget(command));
        let served = std::mem::take(&mut *lock(&self.connections)).len();
        self.placed.fetch_sub(served, Ordering::AcqRel);
    }

    /// A connection that no worker takes in is not counted any more.
    fn forget(&self, command: &Command) {
        if let Command::Add(_) = command {
            self.placed.fetch_sub(1, Ordering::AcqRel);
        }
    }

    pub(super) fn has_handles(&self) -> bool {
        self.handles.load(Ordering::Acquire) > 0
    }

    pub(super) fn note_turn(&self, at: Moment, worked: Duration, ring: RingStats) {
        let mut turns = lock(&self.turns);
        turns.ring = ring;
        turns.polls += 1;
        turns.longest = turns.longest.max(worked);
        turns.busy += worked;
        let halvings = at.since(turns.load_at).as_secs_f64() / LOAD_HALF_LIFE.as_secs_f64();
        turns.load = turns.load * 0.5_f64.powf(halvings) + worked.as_secs_f64();
        turns.load_at = at;
    }
}

/// What a worker has counted.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct WorkerStats {
    /// The ring's counters. `turns_spent` is the number of yields.
    pub ring: RingStats,
    /// Times that the pump was polled.
    pub polls: u64,
    /// The longest poll.
    pub longest_poll: Duration,
    /// Time spent in the pump.
    pub busy: Duration,
    /// Seconds of work, each halved for every second that it is old. A worker without a pause has about 1.4.
    pub load: f64,
    /// One entry for each connection.
    pub connections: Vec<ConnectionStats>,
}

/// Gives connections to a worker. Cheap to clone; the worker ends when the last one is gone and its connections have ended.
#[derive(Debug)]
pub struct WorkerHandle {
    shared: Arc<Shared>,
}

impl Clone for WorkerHandle {
    fn clone(&self) -> Self {
        Self::new(Arc::clone(&self.shared))
    }
}

impl Drop for WorkerHandle {
    fn drop(&mut self) {
        if self.shared.handles.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.shared.task.wake();
        }
    }
}

impl WorkerHandle {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        shared.handles.fetch_add(1, Ordering::AcqRel);
        Self { shared }
    }

    /// Gives a connection to the worker, which serves it from its next turn on. A worker that has ended drops it.
    pub fn add(&self, connection: Connection) {
        self.shared.placed.fetch_add(1, Ordering::AcqRel);
        self.shared.send(Command::Add(Box::new(connection)));
    }

    /// Closes the connections of `peer` to the log `log`, because a newer one takes over.
    pub fn supersede(&self, peer: &NodeName, log: LogId) {
        let close = Close::new(CloseCode::Superseded, format!("a newer connection of {peer} takes over"));
        self.shared.send(Command::Close(peer.clone(), log, close));
    }

    /// Closes every connection and ends the worker: half-written frames are finished, each peer is told, and whoever does
    /// not take the last frame within a second is dropped.
    pub fn stop(&self) {
        self.shared.send(Command::Stop);
    }

    /// Connections that were given to the worker and have not ended.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.shared.placed.load(Ordering::Acquire)
    }

    /// See [`WorkerStats::load`].
    #[must_use]
    pub fn load(&self) -> f64 {
        lock(&self.shared.turns).load
    }

    /// The counters now. Each connection's are those after its last run.
    #[must_use]
    pub fn stats(&self) -> WorkerStats {
        let connections: Vec<_> = lock(&self.shared.connections).values().cloned().collect();
        let connections = connections.iter().map(|stats| lock(stats).clone()).collect();
        let turns = *lock(&self.shared.turns);
        WorkerStats {
            ring: turns.ring,
            polls: turns.polls,
            longest_poll: turns.longest,
            busy: turns.busy,
            load: turns.load,
            connections,
        }
    }
}
