//! One round of a node's event loop: the driver and the timers, the receivers, then the ring's turn.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;

use crate::clock::{Clock, Moment};
use crate::protocol::{
    Close, CloseCode, CloseReason, Frame, Hello, Message, RefuseReason, Selection, Subscription, decode_frame,
};
use crate::receiver::{ReceiveAction, ReceiveSession};
use crate::sender::{SendConfig, SendSession, SubscribeError, TurnEnd};
use crate::store::Applier;

use super::cluster::Cluster;
use super::link::Pipe;
use super::node::{Connection, Flag, Submitted, Waiting};
use super::oracles::Oracle;
use super::plan::{Planted, millis};
use super::serve::Serving;
use super::wire::WireOracle;

/// Most bytes that are read from one connection in one round.
const INPUT_BYTES: usize = 64 * 1024;

/// The window of acknowledgements and pauses. They are small and always taken.
const BACK_WINDOW: usize = 1 << 20;

impl Cluster {
    /// One round of the loop of `node`, which was idle until `at`.
    pub(super) fn step(&mut self, node: usize, at: Moment) {
        if !self.nodes[node].up {
            return;
        }
        self.nodes[node].clock.advance_to(at);
        let started = self.nodes[node].clock.peek();
        self.check_timers(node);
        self.run_jobs(node, started);
        for link in 0..self.links.len() {
            if self.links[link].source == node {
                self.drive_source(link);
            }
            if self.links[link].peer == node {
                self.drive_peer(link);
            }
        }
        let spent = self.nodes[node].clock.peek().since(started);
        self.nodes[node].driver += spent;
        self.nodes[node].longest_driver = self.nodes[node].longest_driver.max(spent);
        let end = self.turn(node);
        self.reap(node);
        self.check_progress(node);
        self.schedule_next(node, end);
    }

    /// The driver has run: the ring gets a full budget, and its turn is measured.
    fn turn(&mut self, node: usize) -> TurnEnd {
        let Some(mut ring) = self.nodes[node].ring.take() else { return TurnEnd::Wait { deadline: None } };
        ring.refill();
        let clock = Arc::clone(&self.nodes[node].clock);
        let started = clock.peek();
        let end = ring.turn(&mut Serving { cluster: self, node }, &*clock);
        let took = clock.peek().since(started);
        self.nodes[node].ring = Some(ring);
        let (budget, costs) = (self.plan.budget, self.plan.costs);
        // Between two shares the ring looks at the clock once more.
        let reads = Duration::from_nanos(costs.read * 4);
        let bound = budget + costs.unit() + reads;
        if took > bound {
            let text = format!("a turn took {took:?}, the bound is {bound:?}");
            self.fail(node, Oracle::TurnLength, text);
        }
        if end == TurnEnd::Yield {
            self.report.yields += 1;
            if took < budget {
                self.fail(node, Oracle::Yield, format!("a yield after {took:?} of {budget:?}"));
            }
        }
        if took > Duration::from_nanos(costs.read * 2) {
            self.note(node, &format!("turn {took:?} {end:?}"));
        }
        end
    }

    /// An independent timer and an I/O echo on the same loop: how late they run is what a host would feel.
    fn check_timers(&mut self, node: usize) {
        let now = self.nodes[node].clock.peek();
        let bound = self.plan.budget
            + self.plan.costs.unit()
            + self.nodes[node].longest_driver * 2
            + Duration::from_nanos(self.plan.costs.read * 4);
        for due in [self.nodes[node].timer_due, self.nodes[node].echo_due] {
            if now.since(due) > bound {
                let text = format!("a timer ran {:?} late, the bound is {bound:?}", now.since(due));
                self.fail(node, Oracle::TurnLength, text);
            }
        }
        if self.nodes[node].timer_due <= now {
            self.nodes[node].timer_due = now.plus(millis(&mut self.rng, 2, 40));
        }
        if self.nodes[node].echo_due <= now {
            self.nodes[node].echo_due = now.plus(millis(&mut self.rng, 2, 40));
        }
    }

    fn schedule_next(&mut self, node: usize, end: TurnEnd) {
        let now = self.nodes[node].clock.peek();
        let mut next = self.nodes[node].next_due();
        match end {
            TurnEnd::Yield => next = now,
            TurnEnd::Wait { deadline: Some(deadline) } => next = next.min(deadline),
            TurnEnd::Wait { deadline: None } => {}
        }
        if !self.nodes[node].answers.is_empty() {
            next = now;
        }
        for link in &self.links {
            let Some(connection) = &link.connection else {
                if link.peer == node {
                    next = next.min(link.connect_at.max(now.plus(Duration::from_millis(1))));
                }
                continue;
            };
            let mut due = |moment: Option<Moment>| next = moment.map_or(next, |moment| next.min(moment));
            if link.source == node && !connection.source_gone {
                due(connection.back.arrival());
                due(connection.writable_at);
            }
            if link.peer == node && !connection.peer_gone {
                if connection.receive.wants_input() {
                    due(connection.forward.arrival());
                }
                due(connection.receive.deadline());
            }
        }
        self.schedule(node, next.max(now));
    }

    /// What came in for the source's half of a connection.
    fn drive_source(&mut self, link: usize) {
        let node = self.links[link].source;
        let now = self.nodes[node].clock.peek();
        let Some(connection) = &mut self.links[link].connection else { return };
        if connection.source_gone {
            return;
        }
        connection.back.take(now, INPUT_BYTES, &mut self.rng, &mut connection.back_input);
        loop {
            let Some(connection) = &mut self.links[link].connection else { return };
            match decode_frame(&mut connection.back_input) {
                Ok(Some(Frame::Message(message))) => {
                    if connection.send.is_some() {
                        connection.inbox.push_back(message);
                    } else {
                        self.greet(link, message);
                    }
                }
                Ok(None) => break,
                other => {
                    return self.fail(node, Oracle::Refusal, format!("link {link}: a peer sent {other:?}"));
                }
            }
        }
        let Some(connection) = &mut self.links[link].connection else { return };
        if connection.back.cut && connection.back.is_empty() {
            self.source_leaves(link);
        }
    }

    /// The handshake of the source: a task of its own, not a part of the ring.
    fn greet(&mut self, link: usize, message: Message) {
        let Message::Subscribe { id, subscription } = message else { return };
        let source = self.links[link].source;
        let config = match self.plan.planted {
            Planted::Sender(plant) => SendConfig::default().planted(plant),
            _ => SendConfig::default(),
        };
        let node = &mut self.nodes[source];
        let peer = self.links[link].wants.peer.clone();
        let result = SendSession::subscribe(&node.log, &node.name, peer, id, subscription, config);
        let now = node.clock.now();
        let Some(connection) = &mut self.links[link].connection else { return };
        match result {
            Ok(session) => {
                connection.send = Some(Box::new(session));
                let Some(ring) = &mut node.ring else { return };
                let id = ring.join();
                connection.member = Some(id);
                connection.waiting = Waiting::Ready;
                (connection.ready_since, connection.driver_at_ready) = (now, node.driver);
                node.members.insert(id, link);
            }
            Err(SubscribeError::Refused(refusal)) => {
                let mut bytes = Vec::new();
                refusal.message(id).encode(&mut bytes);
                connection.forward.push(&bytes, now);
                self.note(source, &format!("refuses link {link}: {refusal}"));
                self.source_leaves(link);
            }
            Err(error) => self.fail(source, Oracle::Refusal, error.to_string()),
        }
    }

    /// The source lets go of a connection; what is under way still arrives.
    pub(super) fn source_leaves(&mut self, link: usize) {
        let (source, peer) = (self.links[link].source, self.links[link].peer);
        let Some(connection) = &mut self.links[link].connection else { return };
        connection.source_gone = true;
        connection.forward.cut = true;
        connection.back.cut = true;
        if let Some(id) = connection.member.take() {
            self.nodes[source].members.remove(&id);
            if let Some(ring) = &mut self.nodes[source].ring {
                ring.leave(id);
            }
        }
        let now = self.nodes[source].clock.peek();
        self.schedule(peer, now);
        self.drop_if_gone(link, now);
    }

    fn drop_if_gone(&mut self, link: usize, now: Moment) {
        let gone = self.links[link].connection.as_ref().is_some_and(|c| c.source_gone && c.peer_gone);
        if gone {
            self.links[link].connection = None;
            self.links[link].epoch += 1;
            let backoff = millis(&mut self.rng, 1, 60);
            self.links[link].connect_at = now.plus(backoff);
        }
    }

    pub(super) fn peer_leaves(&mut self, link: usize) {
        let (source, peer) = (self.links[link].source, self.links[link].peer);
        let Some(connection) = &mut self.links[link].connection else { return };
        connection.peer_gone = true;
        connection.forward.cut = true;
        connection.back.cut = true;
        let now = self.nodes[peer].clock.peek();
        self.schedule(source, now);
        self.drop_if_gone(link, now);
    }

    /// Senders whose stream is over leave the ring.
    fn reap(&mut self, node: usize) {
        for link in 0..self.links.len() {
            let ours = self.links[link].source == node;
            let over = self.links[link].connection.as_ref().is_some_and(|c| c.waiting == Waiting::Closed);
            if ours && over {
                self.source_leaves(link);
            }
        }
    }

    /// The receiver's half: answers of the writer thread, input, actions, output.
    fn drive_peer(&mut self, link: usize) {
        let node = self.links[link].peer;
        if self.links[link].connection.is_none() {
            self.connect(link);
        }
        self.deliver_answers(node);
        let now = self.nodes[node].clock.peek();
        let costs = self.plan.costs;
        let Some(connection) = &mut self.links[link].connection else { return };
        if connection.peer_gone {
            return;
        }
        let mut freed = 0;
        if connection.receive.wants_input() {
            freed = connection.forward.take(now, INPUT_BYTES, &mut self.rng, &mut connection.input);
        }
        if freed > 0 {
            self.nodes[node].clock.charge(costs.frame * 4);
            connection.receive.receive(&mut connection.input, now);
            if std::mem::take(&mut connection.forward.starved) {
                let at = now.plus(connection.forward.delay);
                connection.writable_at = Some(at);
                let source = self.links[link].source;
                self.schedule(source, at);
            }
        } else if connection.forward.cut && connection.forward.is_empty() {
            connection.receive.on_disconnected("the link was cut");
        } else {
            connection.receive.on_deadline(now);
        }
        self.act(link);
    }

    fn connect(&mut self, link: usize) {
        let (source, peer) = (self.links[link].source, self.links[link].peer);
        let now = self.nodes[peer].clock.peek();
        let state = &mut self.links[link];
        if state.connect_at > now || state.open > 0 {
            return;
        }
        if !self.nodes[source].up {
            state.connect_at = now.plus(millis(&mut self.rng, 20, 100));
            return;
        }
        let config = self.plan.receive_config();
        let mut connection = Connection {
            forward: Pipe::new(state.window, state.delay, state.kibibyte),
            back: Pipe::new(BACK_WINDOW, state.delay, 100),
            input: BytesMut::new(),
            back_input: BytesMut::new(),
            back_tap: BytesMut::new(),
            receive: ReceiveSession::new(self.nodes[peer].name.clone(), config),
            inbox: VecDeque::new(),
            send: None,
            member: None,
            flag: Arc::<Flag>::default(),
            oracle: WireOracle::default(),
            acknowledges: Selection::default(),
            waiting: Waiting::CaughtUp(None),
            writable_at: None,
            source_gone: false,
            peer_gone: false,
            ready_since: now,
            driver_at_ready: Duration::ZERO,
            interrupted: false,
            owed_since: None,
        };
        let mut hello = Vec::new();
        Message::Hello(Hello::new(self.nodes[source].name.clone())).encode(&mut hello);
        connection.forward.push(&hello, now.plus(state.delay));
        state.connection = Some(connection);
        self.note(peer, &format!("connects link {link} to {source}"));
    }

    fn deliver_answers(&mut self, node: usize) {
        while let Some(answer) = self.nodes[node].answers.pop_front() {
            let now = self.nodes[node].clock.peek();
            let state = &mut self.links[answer.link];
            state.open = state.open.saturating_sub(1);
            if state.epoch == answer.epoch
                && let Some(connection) = &mut state.connection
            {
                connection.receive.on_applied(answer.ticket, answer.result, now);
                self.act(answer.link);
            }
        }
    }

    /// Does what the receiver asks for, and sends what it has to say.
    pub(super) fn act(&mut self, link: usize) {
        let node = self.links[link].peer;
        let source = self.links[link].source;
        let now = self.nodes[node].clock.peek();
        let mut closed = None;
        while let Some(connection) = &mut self.links[link].connection
            && let Some(action) = connection.receive.poll_action()
        {
            match action {
                ReceiveAction::Greeted(name) => self.subscribe(link, &name),
                ReceiveAction::Apply(ticket, batch) => {
                    let epoch = self.links[link].epoch;
                    self.links[link].open += 1;
                    self.nodes[node].submitted.push_back(Submitted { link, epoch, ticket, batch });
                    self.schedule_apply(node, now);
                }
                ReceiveAction::Closed(reason) => closed = Some(reason),
            }
        }
        let Some(connection) = &mut self.links[link].connection else { return };
        let output = std::mem::take(connection.receive.output());
        if !connection.back.cut && !output.is_empty() {
            connection.back.push(&output, now);
            connection.back_tap.extend_from_slice(&output);
            let arrival = connection.back.arrival();
            self.check_acknowledgements(link);
            if let Some(arrival) = arrival {
                self.schedule(source, arrival);
            }
        }
        if let Some(reason) = closed {
            self.closed(link, &reason);
        }
    }

    fn subscribe(&mut self, link: usize, source: &crate::protocol::NodeName) {
        let node = self.links[link].peer;
        let state = match self.nodes[node].log.store.source_state(source) {
            Ok(state) => state.filter(|_| !self.links[link].forget),
            Err(error) => return self.fail(node, Oracle::Refusal, error.to_string()),
        };
        let subscription = Subscription::to(self.links[link].selection.clone()).resuming(state);
        if let Some(connection) = &mut self.links[link].connection {
            connection.receive.subscribe(subscription);
        }
    }

    fn closed(&mut self, link: usize, reason: &CloseReason) {
        let node = self.links[link].peer;
        self.note(node, &format!("link {link} is over: {reason}"));
        self.links[link].forget = false;
        match reason {
            CloseReason::Refused(RefuseReason::OtherLog, _) => {
                self.report.refused_other_log += 1;
                self.links[link].forget = true;
            }
            CloseReason::Output(_) | CloseReason::Here(Close { code: CloseCode::Apply, .. }) => {}
            other => self.fail(node, Oracle::Refusal, format!("link {link} ended: {other}")),
        }
        self.peer_leaves(link);
    }
}
