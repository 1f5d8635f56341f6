//! Faults, and how they heal.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::clock::Moment;
use crate::store::{AuditLog, MemoryStore};

use super::cluster::{Cluster, log_id};
use super::coverage::{Fault, LinkState};
use super::model::{ModelEntry, Wants};
use super::node::{Link, Waiting};
use super::plan::{FaultPlan, Planted, nothing, selection, signed};

impl Cluster {
    /// Fires the faults that have waited for the state in which a link of `node` is now.
    pub(super) fn fire_faults(&mut self, node: usize, at: Moment) {
        let mut index = 0;
        while index < self.faults.len() {
            match self.target(&self.faults[index], node, at) {
                Some(link) => {
                    let fault = FaultPlan { link, ..self.faults.remove(index) };
                    self.fire(&fault, at);
                }
                None => index += 1,
            }
        }
    }

    /// The link that a fault meets now, if its time has come.
    fn target(&self, fault: &FaultPlan, node: usize, at: Moment) -> Option<usize> {
        let touches = |link: &Link| link.source == node || link.peer == node;
        if fault.not_before > at {
            return None;
        }
        if touches(&self.links[fault.link])
            && (fault.give_up <= at || self.states(&self.links[fault.link]).contains(&fault.wanted))
        {
            return Some(fault.link);
        }
        let fits = |link: &Link| touches(link) && self.states(link).contains(&fault.wanted);
        if fault.anywhere { self.links.iter().position(fits) } else { None }
    }

    /// Where the stream of a link is.
    pub(super) fn states(&self, link: &Link) -> Vec<LinkState> {
        let mut states = Vec::new();
        let Some(connection) = &link.connection else { return states };
        if link.open > 0 {
            states.push(LinkState::Applying);
        }
        let Some(send) = &connection.send else {
            states.push(LinkState::Handshake);
            return states;
        };
        let (inside, staged) = send.place();
        let behind = send.scanned() < self.nodes[link.source].log.head();
        let model = self.models.get(&self.nodes[link.source].log.log_id());
        let scanned = send.scanned().get();
        let at_end = scanned == 0 || model.is_some_and(|model| model.boundaries.contains_key(&scanned));
        let holds = [
            (LinkState::Handshake, connection.oracle.streams == 0),
            (LinkState::Whole, behind && !inside && send.stats().segments_whole > 0),
            (LinkState::Examining, inside),
            (LinkState::LargeTransaction, !at_end),
            (LinkState::Blocked, connection.waiting == Waiting::Socket),
            (LinkState::Paused, send.is_paused()),
            (LinkState::CaughtUp, matches!(connection.waiting, Waiting::CaughtUp(_)) && !behind),
            (LinkState::StagedOpen, staged),
            (LinkState::Refiltering, connection.oracle.streams > 0 && connection.oracle.is_asked()),
        ];
        states.extend(holds.into_iter().filter_map(|(state, holds)| holds.then_some(state)));
        states
    }

    fn fire(&mut self, fault: &FaultPlan, at: Moment) {
        let (source, peer) = (self.links[fault.link].source, self.links[fault.link].peer);
        let node = if fault.at_source { source } else { peer };
        let states = self.states(&self.links[fault.link]);
        if !self.nodes[node].up {
            // It is down already; the fault comes when it is back.
            let later = Duration::from_millis(50);
            let (not_before, give_up) = (at.plus(later), fault.give_up.plus(later));
            self.faults.push(FaultPlan { not_before, give_up, ..fault.clone() });
            return;
        }
        self.report.coverage.note(fault.fault, &states);
        self.note(node, &format!("{:?} of link {} in {states:?}", fault.fault, fault.link));
        match fault.fault {
            Fault::Cut => self.cut(fault.link),
            Fault::Stall => {
                if let Some(connection) = &mut self.links[fault.link].connection {
                    connection.forward.stalled_until = at.plus(fault.lasts);
                    connection.back.stalled_until = at.plus(fault.lasts);
                }
            }
            Fault::Crash | Fault::UncleanCrash => {
                self.crash(node, fault.fault == Fault::UncleanCrash);
                self.schedule_restart(node, at.plus(fault.lasts));
            }
            Fault::Pause => self.nodes[peer].commits_stopped_until = at.plus(fault.lasts),
            Fault::ClockStep => {
                let keeps = self.nodes[node].keeps_snapshots;
                let step = signed(&mut self.rng, 3_000);
                self.nodes[node].clock.step_wall(if keeps { step.abs() } else { step });
            }
            Fault::Bandwidth => {
                let link = &mut self.links[fault.link];
                link.window = link.window.min(3_000);
                link.kibibyte = link.kibibyte.max(400_000);
                if let Some(connection) = &mut link.connection {
                    connection.forward.window = link.window;
                    connection.forward.kibibyte = link.kibibyte;
                }
            }
            Fault::FailedApply => self.nodes[peer].log.store.fail_next_apply(),
            Fault::Refilter => self.refilter(fault, at),
        }
        self.schedule(source, at);
        self.schedule(peer, at);
    }

    /// The peer wants something else, now and then nothing; then it soon wants something again.
    fn refilter(&mut self, fault: &FaultPlan, at: Moment) {
        let link = fault.link;
        let unsubscribes = !self.links[link].wants.nothing() && self.rng.one_in(6);
        let selection =
            if unsubscribes { nothing() } else { selection(&mut self.rng, self.links[link].source) };
        let state = &mut self.links[link];
        state.wants = Wants::new(state.wants.peer.clone(), &selection);
        state.selection = selection.clone();
        let peer = state.peer;
        self.note(peer, &format!("link {link} asks for {selection:?}"));
        if let Some(connection) = &mut self.links[link].connection {
            connection.receive.resubscribe(selection);
            self.act(link);
        }
        if unsubscribes {
            let not_before = at.plus(fault.lasts);
            self.faults.push(FaultPlan { not_before, give_up: not_before, anywhere: false, ..fault.clone() });
        }
    }

    fn cut(&mut self, link: usize) {
        if let Some(connection) = &mut self.links[link].connection {
            connection.forward.cut(&mut self.rng);
            connection.back.cut(&mut self.rng);
            self.report.cuts += 1;
        }
    }

    fn crash(&mut self, node: usize, unclean: bool) {
        self.report.crashes += 1;
        for link in 0..self.links.len() {
            if self.links[link].source == node {
                self.cut(link);
                self.source_leaves(link);
            }
            if self.links[link].peer == node {
                self.cut(link);
                self.peer_leaves(link);
                self.links[link].open = 0;
                self.links[link].epoch += 1;
            }
        }
        let ring = self.plan.ring();
        let state = &mut self.nodes[node];
        state.up = false;
        state.scheduled = None;
        state.ring = Some(ring);
        state.members = BTreeMap::new();
        // Submitted and not committed: lost. The writers of the host come back with the node.
        state.submitted.clear();
        state.answers.clear();
        state.apply_scheduled = false;
        state.jobs.retain(|_, job| matches!(job, super::node::Job::Append(_)));
        if unclean {
            self.lose_tail(node);
        }
    }

    /// The log falls back to the last synced commit and gets a new identity.
    fn lose_tail(&mut self, node: usize) {
        let Some((snapshot, model)) = self.nodes[node].synced.take() else { return };
        let state = &self.nodes[node];
        let old = self.models.get(&state.log.log_id()).map(|model| &*model.entries).unwrap_or_default();
        let tail = old.get(model.entries.len()..).unwrap_or_default();
        let own = tail.iter().filter(|entry| entry.origin == state.name);
        self.lost.extend(own.map(|entry: &ModelEntry| (entry.table.clone(), entry.key.clone())));
        let text = format!("loses {} entries", tail.len());
        let id = log_id(&mut self.rng);
        let store = MemoryStore::restore(snapshot, id, state.clock.clone());
        let store = match self.plan.planted {
            Planted::Store(plant) => store.planted(plant),
            _ => store,
        };
        self.models.insert(id, model);
        self.nodes[node].log.store = std::sync::Arc::new(store);
        self.note(node, &text);
    }

    /// Brings back the nodes whose time has come.
    pub(super) fn restart_due(&mut self, at: Moment) {
        while let Some(first) = self.restarts.first_entry().filter(|first| first.key().0 <= at) {
            let node = first.remove();
            let state = &mut self.nodes[node];
            state.up = true;
            state.clock.advance_to(at);
            (state.timer_due, state.echo_due) = (at, at);
            state.longest_driver = Duration::ZERO;
            self.note(node, "is back");
            self.schedule(node, at);
        }
    }
}
