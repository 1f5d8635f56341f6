//! The oracles on stores, acknowledgements, progress, and the end of a run.

use std::time::Duration;

use crate::protocol::{EntryKind, Frame, Message, SegmentRef, SourceState, decode_frame};
use crate::sender::SEQUENCE_UPDATE_PERIOD;
use crate::store::{ApplyBatch, AuditLog, Row};

use super::cluster::Cluster;
use super::model::{ModelEntry, Wants};
use super::node::Waiting;
use super::oracles::Oracle;

impl Cluster {
    /// After a commit: the position is not ahead of the data, and the batch is visible as a whole or not at all.
    pub(super) fn check_commit(
        &mut self,
        node: usize,
        before: Option<&SourceState>,
        batch: &ApplyBatch,
        ok: bool,
    ) {
        let store = &self.nodes[node].log.store;
        let after = store.peek_source(&batch.source);
        let own = self.models.get(&store.log_id());
        let visible = |entry: &ModelEntry| match store.row(&entry.table, &entry.key) {
            _ if entry.kind == EntryKind::Message => own.is_some_and(|own| own.has(entry)),
            Some(row) => (row.version, &row.origin) >= (entry.version, &entry.origin),
            None => false,
        };
        let mut failure = None;
        if let Some(after) = &after
            && let Some(model) = self.models.get(&after.log())
        {
            let before = before.filter(|before| before.log() == after.log());
            for coverage in after.covered() {
                let wants = Wants::new(self.nodes[node].name.clone(), &coverage.selection);
                let from = before.and_then(|before| before.boundary_of(&coverage.selection));
                let from = from.map_or(0, |from| from.sequence.get());
                let upto = coverage.boundary.sequence.get();
                let missing = (from + 1..=upto).find(|sequence| {
                    model.entry(*sequence).is_some_and(|entry| wants.eligible(entry) && !visible(entry))
                });
                if let Some(missing) = missing {
                    let text =
                        format!("{upto} of {} is stored, sequence {missing} is not there", batch.source);
                    failure = Some((Oracle::Committed, text));
                }
            }
        }
        if ok && failure.is_none() {
            failure = self.first_hidden(batch, &visible).map(|text| (Oracle::Atomicity, text));
        }
        if let Some((oracle, text)) = failure {
            self.fail(node, oracle, text);
        }
    }

    fn first_hidden(&self, batch: &ApplyBatch, visible: &dyn Fn(&ModelEntry) -> bool) -> Option<String> {
        let model = self.models.get(&batch.position.log)?;
        for frame in &batch.frames {
            let Ok(segment) = SegmentRef::parse(frame) else { continue };
            for transaction in segment.transactions().flatten() {
                for entry in transaction.entries().flatten() {
                    let sequence = transaction.sequence_of(&entry).get();
                    if model.entry(sequence).is_some_and(|entry| !visible(entry)) {
                        return Some(format!(
                            "sequence {sequence} of a committed transaction is not visible"
                        ));
                    }
                }
            }
        }
        None
    }

    /// What a receiver says on the wire is not ahead of what its store holds.
    pub(super) fn check_acknowledgements(&mut self, link: usize) {
        let (source, peer) = (self.links[link].source, self.links[link].peer);
        let stored = self.nodes[peer].stored(&self.nodes[source]);
        let Some(connection) = &mut self.links[link].connection else { return };
        let mut ahead = None;
        while let Ok(Some(frame)) = decode_frame(&mut connection.back_tap) {
            let acknowledged = match frame {
                Frame::Message(Message::Acknowledgement(acknowledged)) => acknowledged,
                Frame::Message(Message::Subscribe { id, subscription }) => {
                    connection.acknowledges = subscription.selection().clone();
                    connection.oracle.asked(id, subscription);
                    continue;
                }
                _ => continue,
            };
            let stored = stored.as_ref().and_then(|stored| stored.boundary_of(&connection.acknowledges));
            let stored = stored.map_or(0, |stored| stored.sequence.get());
            if acknowledged.durable.get() > stored {
                ahead = Some(format!(
                    "link {link}: sequence {} is acknowledged, the stored position is {stored}",
                    acknowledged.durable
                ));
            }
        }
        if let Some(text) = ahead {
            self.fail(peer, Oracle::Acknowledged, text);
        }
    }

    /// Positions keep coming: see O5.
    pub(super) fn check_progress(&mut self, node: usize) {
        let now = self.nodes[node].clock.peek();
        let bound = SEQUENCE_UPDATE_PERIOD * 2 + self.plan.budget * 2 + Duration::from_millis(5);
        let head = self.nodes[node].log.head().get();
        let Some(model) = self.models.get(&self.nodes[node].log.log_id()) else { return };
        let mut late = None;
        for (index, link) in self.links.iter_mut().enumerate().filter(|(_, link)| link.source == node) {
            let Some(connection) = &mut link.connection else { continue };
            let Some(send) = &connection.send else { continue };
            let stuck = matches!(connection.waiting, Waiting::Socket | Waiting::Paused | Waiting::Closed);
            let scanned = send.scanned().get();
            let inside = scanned > 0 && !model.boundaries.contains_key(&scanned);
            if stuck
                || inside
                || connection.source_gone
                || send.selection().is_empty()
                || head <= connection.oracle.position
            {
                connection.owed_since = None;
                continue;
            }
            let since = *connection.owed_since.get_or_insert(now);
            if now.since(since) > bound {
                late = Some(format!(
                    "link {index}: the log is at {head}, the last position sent is {} and {:?} old",
                    connection.oracle.position,
                    now.since(since)
                ));
            }
        }
        if let Some(text) = late {
            self.fail(node, Oracle::Progress, text);
        }
    }

    /// Everything is delivered and acknowledged.
    pub(super) fn is_quiet(&self) -> bool {
        self.nodes.iter().all(|node| node.up && node.answers.is_empty())
            && self.links.iter().all(|link| {
                let Some(connection) = &link.connection else { return false };
                let Some(send) = &connection.send else { return false };
                let head = self.nodes[link.source].log.head();
                let at = send.position().boundary.sequence;
                *send.selection() == link.selection
                    && at == head
                    && send.acknowledged().durable == at
                    && connection.oracle.position == at.get()
            })
    }

    pub(super) fn describe_links(&self) -> String {
        let mut text = String::from("not quiet:");
        for (index, link) in self.links.iter().enumerate() {
            let head = self.nodes[link.source].log.head();
            let state = link.connection.as_ref().map(|c| {
                let send =
                    c.send.as_ref().map(|s| (s.scanned(), s.position().boundary.sequence, s.acknowledged()));
                (c.waiting, c.source_gone, c.peer_gone, send)
            });
            text += &format!("\nlink {index} head {head} open {} {state:?}", link.open);
        }
        text
    }

    /// At the end: a peer holds every row that it follows, and nodes that follow each other hold the same rows.
    pub(super) fn check_end(&mut self) {
        if !self.is_quiet() {
            let text = self.describe_links();
            return self.fail(0, Oracle::Quiet, text);
        }
        let rows: Vec<_> = self.nodes.iter().map(|node| node.log.store.all_rows()).collect();
        let mut differs = None;
        for (index, link) in self.links.iter().enumerate() {
            for (place, row) in &rows[link.source] {
                let skipped = !link.wants.follows(&row.origin, &place.0)
                    || place.1.starts_with(b"local")
                    || self.lost.contains(place);
                let there = rows[link.peer].get(place);
                if !skipped && there.is_none_or(|there| rank(there) < rank(row)) {
                    differs = Some((index, place.clone(), row.clone(), there.cloned()));
                }
            }
            let delivered = link.connection.as_ref().and_then(|c| c.send.as_ref());
            self.report.delivered += delivered.map_or(0, |send| send.stats().entries_sent);
        }
        if let Some((link, place, row, there)) = differs {
            let text = format!("link {link}: {place:?} is {row:?} at the source and {there:?} at the peer");
            return self.fail(self.links[link].peer, Oracle::Converged, text);
        }
        self.check_equal(&rows);
    }

    fn check_equal(
        &mut self,
        rows: &[std::collections::BTreeMap<(crate::protocol::TableName, Vec<u8>), Row>],
    ) {
        let full = |source: usize, peer: usize| {
            self.links
                .iter()
                .any(|link| (link.source, link.peer) == (source, peer) && link.wants.everything())
        };
        let shared = |node: usize| {
            let keep = |place: &&(crate::protocol::TableName, Vec<u8>)| {
                !place.1.starts_with(b"local") && !self.lost.contains(*place)
            };
            rows[node].iter().filter(|(place, _)| keep(place)).collect::<Vec<_>>()
        };
        let mut differ = None;
        for a in 0..rows.len() {
            for b in 0..a {
                if full(a, b) && full(b, a) && shared(a) != shared(b) {
                    differ = Some((a, b));
                }
            }
        }
        if let Some((a, b)) = differ {
            self.fail(
                a,
                Oracle::Converged,
                format!("nodes {a} and {b} follow each other and hold other rows"),
            );
        }
    }
}

fn rank(row: &Row) -> (crate::protocol::Version, &crate::protocol::NodeName) {
    (row.version, &row.origin)
}
