//! What was counted.

use super::filter::SkipReason;

/// Counters of one subscription since it started. They only rise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct SendStats {
    /// Entries handed to the output.
    pub entries_sent: u64,
    /// Entries skipped, by [`SkipReason::index`].
    pub entries_skipped: [u64; SkipReason::COUNT],
    /// Segments written as they lie in the log.
    pub segments_whole: u64,
    /// Segments skipped by their header.
    pub segments_skipped: u64,
    /// Segment frames in which a part of a segment was sent.
    pub segments_filtered: u64,
    /// Bytes that the output took.
    pub bytes_sent: u64,
    /// Write calls that took at least a byte.
    pub writes: u64,
    /// Write calls that found no room.
    pub writes_blocked: u64,
    /// Positions sent without data.
    pub sequence_updates: u64,
    /// Signs of life sent inside a large transaction.
    pub progress_frames: u64,
    /// Acknowledgements that did not move forward and were ignored.
    pub acknowledgements_ignored: u64,
}

impl SendStats {
    /// Entries skipped for any reason.
    #[must_use]
    pub fn entries_skipped_total(&self) -> u64 {
        self.entries_skipped.iter().sum()
    }
}

/// Counters of one worker's ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct RingStats {
    /// Turns that ended because the budget was spent: each is one yield of the worker.
    pub turns_spent: u64,
    /// Turns that ended because every sender had to wait.
    pub turns_waited: u64,
    /// Times that a sender was served.
    pub quanta: u64,
}
