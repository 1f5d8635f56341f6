//! What the ring calls: one sender's share, and the oracles around it.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::clock::Moment;
use crate::sender::{Blocked, MemberId, Members, Stopped, Turn};
use crate::store::AuditLog;

use super::cluster::Cluster;
use super::link::Wire;
use super::node::{Connection, Waiting};
use super::oracles::Oracle;

/// Frames of one peer per service.
const FRAMES: usize = 64;

/// The smallest share that a ring gives: see the ring.
const SHARE_MIN: Duration = Duration::from_micros(50);

/// The senders of one node while its ring runs.
pub(super) struct Serving<'a> {
    pub(super) cluster: &'a mut Cluster,
    pub(super) node: usize,
}

impl Serving<'_> {
    fn ready(&self, now: Moment) -> usize {
        let links = &self.cluster.links;
        let waits = |link: &usize| links[*link].connection.as_ref().map(|connection| connection.waiting);
        let is_ready = |waiting| match waiting {
            Some(Waiting::Ready) => true,
            Some(Waiting::CaughtUp(Some(deadline))) => deadline <= now,
            _ => false,
        };
        self.cluster.nodes[self.node].members.values().filter(|link| is_ready(waits(link))).count()
    }

    /// The checks at the start of a share.
    fn begin(&mut self, link: usize, now: Moment) -> (Option<Duration>, usize) {
        let ready = self.ready(now).max(1);
        let node = &self.cluster.nodes[self.node];
        let (unit, budget) = (self.cluster.plan.costs.unit(), self.cluster.plan.budget);
        let members = u32::try_from(node.members.len()).unwrap_or(1);
        let driver = node.driver;
        let Some(connection) = &self.cluster.links[link].connection else { return (None, ready) };
        let limit = (!connection.interrupted)
            .then(|| (budget / u32::try_from(ready).unwrap_or(1)).max(SHARE_MIN).min(budget));
        if connection.waiting == Waiting::Ready {
            let waited = now
                .since(connection.ready_since)
                .saturating_sub(driver.saturating_sub(connection.driver_at_ready));
            let bound = budget * 2 + (SHARE_MIN + unit * 2) * (members + 1);
            if waited > bound {
                let text = format!(
                    "link {link} was ready for {waited:?} before it was served, the bound is {bound:?}"
                );
                self.cluster.fail(self.node, Oracle::Fairness, text);
            }
        }
        (limit, ready)
    }

    /// Whoever used its share goes behind the others. They can pass their turn only to pay back an overshoot.
    fn count_in_a_row(&mut self, link: usize, ready: usize, stopped: &Stopped) {
        let members = u32::try_from(self.cluster.nodes[self.node].members.len()).unwrap_or(1).max(1);
        let share = (self.cluster.plan.budget / members).max(SHARE_MIN);
        let most = self.cluster.plan.costs.unit().as_nanos() / share.as_nanos() + 2;
        let (last, count) = &mut self.cluster.nodes[self.node].in_a_row;
        if *last != link || ready < 2 || *stopped != Stopped::QuantumSpent {
            *count = 0;
        }
        (*last, *count) = (link, *count + 1);
        if u128::from(*count) > most {
            let text = format!("link {link} got {count} shares in a row while {ready} were ready");
            self.cluster.fail(self.node, Oracle::Fairness, text);
        }
    }

    fn end(
        &mut self,
        link: usize,
        limit: Option<Duration>,
        ready: usize,
        started: Moment,
        stopped: &Stopped,
    ) {
        let now = self.cluster.nodes[self.node].clock.peek();
        let unit = self.cluster.plan.costs.unit();
        let worked = now.since(started);
        if ready > 1
            && let Some(limit) = limit.filter(|limit| worked > *limit + unit)
        {
            let text =
                format!("link {link} worked for {worked:?} of a share of {limit:?} while {ready} were ready");
            self.cluster.fail(self.node, Oracle::Fairness, text);
        }
        self.count_in_a_row(link, ready, stopped);
        let driver = self.cluster.nodes[self.node].driver;
        let cluster = &mut *self.cluster;
        let node = &mut cluster.nodes[self.node];
        let source = &mut cluster.links[link];
        let Some(connection) = &mut source.connection else { return };
        connection.waiting = waiting(stopped);
        connection.interrupted = *stopped == Stopped::BudgetSpent;
        (connection.ready_since, connection.driver_at_ready) = (now, driver);
        let Some(model) = cluster.models.get(&node.log.log_id()) else { return };
        let before = (connection.oracle.streams, connection.oracle.position);
        let checked = connection.oracle.check(model, &source.wants.peer);
        if (connection.oracle.streams, connection.oracle.position) > before || source.connection.is_none() {
            Connection::reported(&mut source.connection);
        }
        if let Err((oracle, text)) = checked {
            self.cluster.fail(self.node, oracle, format!("link {link}: {text}"));
        }
    }
}

impl Connection {
    fn reported(connection: &mut Option<Self>) {
        if let Some(connection) = connection {
            connection.owed_since = None;
        }
    }
}

const fn waiting(stopped: &Stopped) -> Waiting {
    match stopped {
        Stopped::QuantumSpent | Stopped::BudgetSpent => Waiting::Ready,
        Stopped::Blocked(Blocked::Paused) => Waiting::Paused,
        Stopped::Blocked(_) => Waiting::Socket,
        Stopped::CaughtUp { deadline } => Waiting::CaughtUp(*deadline),
        Stopped::Closed(_) => Waiting::Closed,
    }
}

impl Members for Serving<'_> {
    fn serve(&mut self, id: MemberId, turn: &mut Turn<'_>) -> Stopped {
        let gone = || Stopped::Blocked(Blocked::Socket);
        let Some(link) = self.cluster.nodes[self.node].members.get(&id).copied() else { return gone() };
        let started = turn.now();
        let (limit, ready) = self.begin(link, started);
        let node = &self.cluster.nodes[self.node];
        let costs = self.cluster.plan.costs;
        let Some(connection) = &mut self.cluster.links[link].connection else { return gone() };
        let Some(send) = &mut connection.send else { return gone() };
        let inbox: VecDeque<_> = connection.inbox.drain(..connection.inbox.len().min(FRAMES)).collect();
        node.clock.charge(costs.frame * inbox.len() as u64);
        inbox.into_iter().for_each(|message| send.on_message(message));
        // Registered before the scan that may find nothing.
        connection.flag.take();
        node.log.register(&connection.flag.waker());
        let arrival = connection.forward.arrival();
        let mut wire = Wire {
            pipe: &mut connection.forward,
            clock: &node.clock,
            costs: &costs,
            tap: &mut connection.oracle.tap,
        };
        let stopped = send.pump(&node.log, &mut wire, turn);
        let visited = node.log.visited.load(Ordering::Relaxed);
        let text = format!("serve {link} {stopped:?} at {} visited {visited}", send.scanned());
        if arrival.is_none()
            && let Some(arrival) = connection.forward.arrival()
        {
            let peer = self.cluster.links[link].peer;
            self.cluster.schedule(peer, arrival);
        }
        self.cluster.note(self.node, &text);
        self.end(link, limit, ready, started, &stopped);
        stopped
    }

    fn collect_woken(&mut self, woken: &mut Vec<MemberId>) {
        let now = self.cluster.nodes[self.node].clock.peek();
        // The writer thread works while the worker does.
        self.cluster.run_jobs(self.node, now);
        self.cluster.wake_ready(self.node, now, woken);
    }
}

impl Cluster {
    /// Which waiting senders can go on.
    pub(super) fn wake_ready(&mut self, node: usize, now: Moment, woken: &mut Vec<MemberId>) {
        let driver = self.nodes[node].driver;
        for (id, link) in &self.nodes[node].members {
            let Some(connection) = &mut self.links[*link].connection else { continue };
            let writable = connection.writable_at.is_some_and(|at| at <= now);
            if writable {
                connection.writable_at = None;
            }
            let committed = connection.flag.take();
            let spoke = !connection.inbox.is_empty();
            let goes_on = match connection.waiting {
                Waiting::Ready | Waiting::Closed => false,
                Waiting::Socket => writable || spoke,
                Waiting::Paused => spoke,
                Waiting::CaughtUp(_) => committed || spoke,
            };
            if goes_on {
                connection.waiting = Waiting::Ready;
                connection.interrupted = false;
                (connection.ready_since, connection.driver_at_ready) = (now, driver);
                woken.push(*id);
            }
        }
    }
}
