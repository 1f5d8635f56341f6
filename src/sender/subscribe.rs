//! Judging a subscription: where the stream starts, or why it does not.

use crate::protocol::{Boundary, Message, NodeName, Position, RefuseReason, Sequence, Subscription};
use crate::store::{AuditLog, BoundaryAt, StoreError};

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
        let start = match subscription.start() {
            None => absent_start(log)?,
            Some(position) => judge(log, &subscription, position)?,
        };
        Ok(Self::start(log, peer, id, subscription, start, config))
    }
}

fn absent_start(log: &dyn AuditLog) -> Result<Boundary, SubscribeError> {
    let oldest = log.oldest()?;
    if oldest == Sequence::ZERO {
        return Ok(Boundary::START);
    }
    let text = format!("the log starts after sequence {oldest}, what came before needs a base copy");
    Err(Refusal { reason: RefuseReason::Pruned, text }.into())
}

fn judge(
    log: &dyn AuditLog,
    subscription: &Subscription,
    position: Position,
) -> Result<Boundary, SubscribeError> {
    let asked = position.boundary;
    let refuse = |reason, text| Err(SubscribeError::from(Refusal { reason, text }));
    if position.log != log.log_id() {
        let text = format!("the position belongs to the log {}, this log is {}", position.log, log.log_id());
        return refuse(RefuseReason::OtherLog, text);
    }
    if position.filter != subscription.fingerprint() {
        let text = format!(
            "the position was given under the filter {:016x}, the subscription has {:016x}",
            position.filter.0,
            subscription.fingerprint().0
        );
        return refuse(RefuseReason::OtherFilter, text);
    }
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
