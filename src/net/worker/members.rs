//! The connections of one worker, by their place in the ring.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::task::Waker;

use crate::clock::{Clock, Moment};
use crate::net::connection::{CLOSE_GRACE, Connection, MemberWaker, Served};
use crate::net::keepalive::{Due, KeepaliveConfig};
use crate::protocol::{Close, CloseCode, CloseReason, Sequence};
use crate::sender::{MemberId, Members, Ring, Stopped, Turn};
use crate::store::AuditLog;

use super::shared::{Command, Shared};

/// Bytes of the buffer that peers' frames are read into: acknowledgements are small.
const READ_BUFFER_BYTES: usize = 16 * 1024;

/// The members that wait for a commit of one log.
struct Commits {
    log: Arc<dyn AuditLog>,
    /// No commit up to here is news to any of them.
    seen: Sequence,
    waiting: Vec<MemberId>,
}

pub(super) struct Connections {
    pub(super) shared: Arc<Shared>,
    clock: Arc<dyn Clock>,
    keepalive: KeepaliveConfig,
    served: Vec<Option<Served>>,
    logs: Vec<Commits>,
    checks: BTreeSet<(Moment, MemberId)>,
    closed: Vec<(MemberId, CloseReason)>,
    stopping: bool,
    buffer: Vec<u8>,
}

impl std::fmt::Debug for Connections {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connections").field("served", &self.served.len()).finish_non_exhaustive()
    }
}

impl Connections {
    pub(super) fn new(shared: Arc<Shared>, keepalive: KeepaliveConfig, clock: Arc<dyn Clock>) -> Self {
        Self {
            shared,
            clock,
            keepalive,
            served: Vec::new(),
            logs: Vec::new(),
            checks: BTreeSet::new(),
            closed: Vec::new(),
            stopping: false,
            buffer: vec![0; READ_BUFFER_BYTES],
        }
    }

    pub(super) fn take_commands(&mut self, ring: &mut Ring) {
        for command in self.shared.take_commands() {
            match command {
                Command::Add(connection) => self.add(*connection, ring),
                Command::Close(peer, log, close) => {
                    let matches =
                        |served: &Served| *served.session.peer() == peer && served.log.log_id() == log;
                    self.close_matching(ring, matches, &close);
                }
                Command::Stop => {
                    self.stopping = true;
                    let close = Close::new(CloseCode::Shutdown, "the node shuts down");
                    self.close_matching(ring, |_| true, &close);
                }
            }
        }
    }

    fn add(&mut self, connection: Connection, ring: &mut Ring) {
        let now = self.clock.now();
        let id = ring.join();
        let waker = Waker::from(Arc::new(MemberWaker { shared: Arc::clone(&self.shared), id }));
        let peer = connection.session.peer().clone();
        match Served::new(connection, waker, self.keepalive, now) {
            Err(error) => {
                tracing::warn!(%peer, %error, "the socket cannot join the worker's runtime");
                ring.leave(id);
                self.shared.placed.fetch_sub(1, Ordering::AcqRel);
            }
            Ok(mut served) => {
                if self.stopping {
                    served.session.close(Close::new(CloseCode::Shutdown, "the node shuts down"));
                    served.closing = Some(now.plus(CLOSE_GRACE));
                }
                tracing::info!(%peer, from = %served.session.scanned(), "stream starts");
                self.shared
                    .connections
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .insert(id, Arc::clone(&served.stats));
                if self.served.len() <= id.0 {
                    self.served.resize_with(id.0 + 1, || None);
                }
                self.served[id.0] = Some(served);
                self.checks.insert((now, id));
            }
        }
    }

    fn close_matching(&mut self, ring: &mut Ring, matches: impl Fn(&Served) -> bool, close: &Close) {
        let latest = self.clock.now().plus(CLOSE_GRACE);
        for (index, served) in self.served.iter_mut().enumerate() {
            let Some(served) = served.as_mut().filter(|served| matches(served)) else { continue };
            served.session.close(close.clone());
            served.closing.get_or_insert(latest);
            self.checks.insert((latest, MemberId(index)));
            ring.wake(MemberId(index));
        }
    }

    pub(super) fn is_done(&self) -> bool {
        (self.stopping || !self.shared.has_handles()) && self.served.iter().all(Option::is_none)
    }

    /// Lets go of the connections whose stream is over.
    pub(super) fn remove_closed(&mut self, ring: &mut Ring) {
        for (id, reason) in std::mem::take(&mut self.closed) {
            self.remove(id, &reason, ring);
        }
    }

    fn remove(&mut self, id: MemberId, reason: &CloseReason, ring: &mut Ring) {
        let Some(served) = self.served.get_mut(id.0).and_then(Option::take) else { return };
        tracing::info!(peer = %served.session.peer(), %reason, "stream ends");
        ring.leave(id);
        self.checks.retain(|(_, checked)| *checked != id);
        for commits in &mut self.logs {
            commits.waiting.retain(|waiting| *waiting != id);
        }
        self.logs.retain(|commits| !commits.waiting.is_empty());
        self.shared.connections.lock().unwrap_or_else(PoisonError::into_inner).remove(&id);
        self.shared.placed.fetch_sub(1, Ordering::AcqRel);
    }

    /// Asks silent peers, gives up dead ones, and gives the time of the next look.
    pub(super) fn check_alive(&mut self, ring: &mut Ring) -> Option<Moment> {
        let now = self.clock.now();
        while let Some((at, id)) = self.checks.first().copied().filter(|(at, _)| *at <= now) {
            self.checks.remove(&(at, id));
            let Some(served) = self.served.get_mut(id.0).and_then(Option::as_mut) else { continue };
            if served.draining.or(served.closing).is_some_and(|latest| latest <= now) {
                self.remove(
                    id,
                    &CloseReason::Output("the peer did not take the last frame in time".into()),
                    ring,
                );
                continue;
            }
            match served.keepalive.check(now) {
                (Due::Dead, _) => {
                    let reason =
                        CloseReason::Output("the peer neither sent nor took a byte in time".to_owned());
                    self.remove(id, &reason, ring);
                }
                (due, next) => {
                    if due == Due::Ping {
                        served.session.send_ping(now.as_nanos());
                        ring.wake(id);
                    }
                    let latest = served.draining.or(served.closing).unwrap_or(next);
                    self.checks.insert((next.min(latest), id));
                }
            }
        }
        self.checks.first().map(|(at, _)| *at)
    }

    /// Registers with every log that somebody waits for. True when one has moved meanwhile.
    pub(super) fn register_for_commits(&self, waker: &Waker) -> bool {
        let mut moved = false;
        for commits in self.logs.iter().filter(|commits| !commits.waiting.is_empty()) {
            commits.log.register(waker);
            moved |= commits.log.head() > commits.seen;
        }
        moved
    }

    fn await_commit(&mut self, id: MemberId) {
        let Some(served) = self.served.get_mut(id.0).and_then(Option::as_mut) else { return };
        let scanned = served.session.scanned();
        let log = &served.log;
        let index = match self.logs.iter().position(|commits| Arc::ptr_eq(&commits.log, log)) {
            Some(index) => index,
            None => {
                self.logs.push(Commits { log: Arc::clone(log), seen: scanned, waiting: Vec::new() });
                self.logs.len() - 1
            }
        };
        let commits = &mut self.logs[index];
        commits.seen = commits.seen.min(scanned);
        if !std::mem::replace(&mut served.awaits_commit, true) {
            commits.waiting.push(id);
        }
    }
}

impl Drop for Connections {
    fn drop(&mut self) {
        self.shared.end();
    }
}

impl Members for Connections {
    fn serve(&mut self, id: MemberId, turn: &mut Turn<'_>) -> Stopped {
        let Some(served) = self.served.get_mut(id.0).and_then(Option::as_mut) else {
            return Stopped::Closed(CloseReason::Output("the connection is gone".to_owned()));
        };
        let stopped = served.serve(turn, &mut self.buffer);
        match &stopped {
            Stopped::CaughtUp { .. } => self.await_commit(id),
            Stopped::Closed(CloseReason::Here(_)) => {
                // The last frame is out. Its other end is awaited for a moment.
                if let Some(latest) = served.draining {
                    self.checks.insert((latest, id));
                }
            }
            Stopped::Closed(reason) => self.closed.push((id, reason.clone())),
            _ => {}
        }
        stopped
    }

    fn collect_woken(&mut self, woken: &mut Vec<MemberId>) {
        self.shared.drain_woken(woken);
        for commits in &mut self.logs {
            let head = commits.log.head();
            if head <= commits.seen {
                continue;
            }
            commits.seen = head;
            for id in commits.waiting.drain(..) {
                if let Some(served) = self.served.get_mut(id.0).and_then(Option::as_mut) {
                    served.awaits_commit = false;
                }
                woken.push(id);
            }
        }
    }
}
