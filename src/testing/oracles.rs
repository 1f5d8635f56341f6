//! What must always hold.

use crate::clock::Moment;

/// One thing that must hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Oracle {
    /// O1: delivered sequences rise, every eligible entry is there, once and unchanged.
    Delivery,
    /// O2: what a position covers was written before it.
    Position,
    /// O3: positions never go down, and are transaction boundaries.
    Monotony,
    /// O4: a stream that resumes delivers the eligible entries after its start and no other.
    Resume,
    /// O5: positions keep coming while there is something to report.
    Progress,
    /// O7: the winning entries of a transaction become visible in one commit.
    Atomicity,
    /// O8: no turn is longer than the budget and one unit.
    TurnLength,
    /// O8: every ready sender is served in its time, and gets no more than its share.
    Fairness,
    /// The worker does not yield before its budget is spent.
    Yield,
    /// A stored position is never ahead of the data.
    Committed,
    /// An acknowledgement is never ahead of the stored position.
    Acknowledged,
    /// No entry is logged twice in one log.
    LoggedOnce,
    /// After the faults have healed everything is delivered and acknowledged.
    Quiet,
    /// In the end nodes that follow each other hold the same rows.
    Converged,
    /// No stream ends for a reason that no fault gave it.
    Refusal,
}

/// The first thing that did not hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// Which oracle saw it.
    pub oracle: Oracle,
    /// When, on the clock of the node.
    pub at: Moment,
    /// What it saw.
    pub text: String,
}
