//! Judging a subscription: where the stream starts, or why it does not.

use crate::protocol::{
    Boundary, Coverage, LogId, Message, NodeName, RefuseReason, Selection, Sequence, SourceState, Start,
    Subscription, furthest_start,
};
use crate::store::{AuditLog, BoundaryAt, StoreError};

#[cfg(any(test, feature = "testing"))]
use super::plant::Plant;
use super::pump::{Flow, Pump};
use super::session::{SendConfig, SendSession};

/// A subscription that was refused, with what to tell the peer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("subscription refused: {text}")]
pub struct Refusal {
    /// Why.
    pub reason: RefuseReason,
    /// For people.
    pub text: String,
}

impl Refusal {
    /// The frame that tells the peer.
    #[must_use]
    pub fn message(&self, id: u32) -> Message {
        Message::Refused { id, reason: self.reason, base_copy_offered: false, text: self.text.clone() }
    }
}

/// Why a subscription does not become a stream.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum SubscribeError {
    /// The peer asked for what cannot be; it is told.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The log cannot be read.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl SendSession {
    /// Judges `subscription` of `peer` and makes its session. The first thing it sends is the acceptance.
    ///
    /// `node` is this node's own name.
    ///
    /// # Errors
    /// [`Refusal`] when the peer is this node itself or its position is not one of this log: every kind of misfit has
    /// its own reason and none is guessed away.
    pub fn subscribe(
        log: &dyn AuditLog,
        node: &NodeName,
        peer: NodeName,
        id: u32,
        subscription: Subscription,
        config: SendConfig,
    ) -> Result<Self, SubscribeError> {
        if *node == peer {
            let text = format!("both sides are named {node}; give every node a name of its own");
            return Err(Refusal { reason: RefuseReason::SelfConnection, text }.into());
        }
        let start = judge(log, &subscription, subscription.covered())?;
        Ok(Self::start(log, peer, id, subscription, start, config))
    }
}

/// Where a stream of `subscription` starts, when this is `covered` already.
pub(super) fn judge(
    log: &dyn AuditLog,
    subscription: &Subscription,
    covered: Vec<Coverage>,
) -> Result<Boundary, SubscribeError> {
    let selection = subscription.selection();
    match subscription.start() {
        Start::Beginning => beginning(log, selection),
        Start::After(position) => {
            check_log(log, position.log)?;
            if position.filter != subscription.fingerprint() {
                let text = format!(
                    "the position was given under the filter {:016x}, the subscription has {:016x}",
                    position.filter.0,
                    subscription.fingerprint().0
                );
                return Err(Refusal { reason: RefuseReason::OtherFilter, text }.into());
            }
            find(log, position.boundary)
        }
        Start::Covered(state) => {
            check_log(log, state.log())?;
            if selection.is_empty() {
                return beginning(log, selection);
            }
            let mut kept = Vec::with_capacity(covered.len());
            for coverage in covered {
                match find(log, coverage.boundary) {
                    Ok(_) => kept.push(coverage),
                    // No stream can start there, and none that starts later has to know of it.
                    Err(SubscribeError::Refused(Refusal { reason: RefuseReason::Pruned, .. })) => {}
                    Err(error) => return Err(error),
                }
            }
            furthest_start(&kept, selection).map_or_else(|| beginning(log, selection), Ok)
        }
    }
}

fn beginning(log: &dyn AuditLog, selection: &Selection) -> Result<Boundary, SubscribeError> {
    let oldest = log.oldest()?;
    // Who asks for nothing misses nothing.
    if oldest == Sequence::ZERO || selection.is_empty() {
        return Ok(Boundary::START);
    }
    let text = format!("the log starts after sequence {oldest}, what came before needs a base copy");
    Err(Refusal { reason: RefuseReason::Pruned, text }.into())
}

fn check_log(log: &dyn AuditLog, asked: LogId) -> Result<(), SubscribeError> {
    if asked == log.log_id() {
        return Ok(());
    }
    let text = format!("the position belongs to the log {asked}, this log is {}", log.log_id());
    Err(Refusal { reason: RefuseReason::OtherLog, text }.into())
}

fn find(log: &dyn AuditLog, asked: Boundary) -> Result<Boundary, SubscribeError> {
    let refuse = |reason, text| Err(SubscribeError::from(Refusal { reason, text }));
    match log.boundary_at(asked.sequence)? {
        BoundaryAt::Boundary(found) if found.stamp == asked.stamp => Ok(found),
        BoundaryAt::Boundary(found) => refuse(
            RefuseReason::Forked,
            format!(
                "at sequence {} the log has version {}, the position says {}",
                asked.sequence, found.stamp.version, asked.stamp.version
            ),
        ),
        BoundaryAt::InsideTransaction => {
            refuse(RefuseReason::NotABoundary, format!("sequence {} is inside a transaction", asked.sequence))
        }
        BoundaryAt::AheadOfLog => refuse(
            RefuseReason::AheadOfLog,
            format!("sequence {} is ahead of the log, which ends at {}", asked.sequence, log.head()),
        ),
        BoundaryAt::Pruned => refuse(
            RefuseReason::Pruned,
            format!("the entries after sequence {} are no longer kept", asked.sequence),
        ),
    }
}

/// A subscription that is to replace the one that a session serves.
#[derive(Debug)]
pub(super) struct Superseding {
    pub(super) id: u32,
    pub(super) subscription: Subscription,
}

impl Pump<'_, '_> {
    /// Ends the stream of the old subscription and begins that of a newer one. Everything that was announced of the old one
    /// is in the output already, so what it covered counts for the new one.
    pub(super) fn supersede(&mut self, next: Superseding) -> Flow {
        let Superseding { id, subscription } = next;
        let session = &mut *self.session;
        if !session.selection().is_empty() {
            session.delivered.advance(session.log_id, session.filter.selection(), session.announced);
        }
        let mut covered = subscription.covered();
        if matches!(subscription.start(), Start::Covered(_)) {
            covered.extend_from_slice(session.delivered.covered());
        }
        match judge(self.log, &subscription, covered.clone()) {
            Ok(start) => {
                #[cfg(any(test, feature = "testing"))]
                let start = match (session.is_planted(Plant::StartAtAnnounced), subscription.selection()) {
                    (true, selection) if !selection.is_empty() => session.announced,
                    _ => start,
                };
                session.begin_stream(self.log, id, subscription, start, &covered);
                // What was being filled belongs to the old stream, and is read again for the new one.
                self.turn.scratch.truncate(self.complete);
                Flow::Continue(())
            }
            Err(SubscribeError::Refused(refusal)) => {
                session.refuse(id, refusal);
                Flow::Continue(())
            }
            Err(SubscribeError::Store(error)) => Flow::Break(self.store_failed(&error)),
        }
    }
}

/// What a session knows to be covered when its stream begins.
pub(super) fn delivered(subscription: &Subscription, log: LogId, start: Boundary) -> SourceState {
    match subscription.start() {
        Start::Covered(state) => state.clone(),
        Start::Beginning | Start::After(_) => SourceState::new(log, subscription.selection().clone(), start),
    }
}
