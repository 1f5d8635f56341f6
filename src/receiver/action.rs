//! What a session asks for, and what it counts.

use crate::protocol::{CloseReason, NodeName};
use crate::store::ApplyBatch;

/// Names one batch between [`ReceiveAction::Apply`] and [`ReceiveSession::on_applied`](super::ReceiveSession::on_applied).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub(super) u64);

/// What whoever drives the session has to do next.
#[derive(Debug)]
#[non_exhaustive]
pub enum ReceiveAction {
    /// The source said who it is. Look up the position stored for it and call [`ReceiveSession::subscribe`](super::ReceiveSession::subscribe).
    Greeted(NodeName),
    /// Hand the batch to the applier, and its answer to [`ReceiveSession::on_applied`](super::ReceiveSession::on_applied).
    Apply(Ticket, ApplyBatch),
    /// The stream is over. Write what is left in the output, wait for the open tickets, and close.
    Closed(CloseReason),
}

/// Counters of one session. They only rise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct ReceiveStats {
    /// Entries received.
    pub entries_received: u64,
    /// Segment frames received.
    pub segments_received: u64,
    /// Positions received without data.
    pub sequence_updates: u64,
    /// Signs of life inside a large transaction.
    pub progress_frames: u64,
    /// Entries that changed something.
    pub entries_changed: u64,
    /// Entries that were there already, or lost against a newer version.
    pub entries_unchanged: u64,
    /// Pause frames sent.
    pub pauses: u64,
    /// Acknowledgements sent.
    pub acknowledgements: u64,
}
