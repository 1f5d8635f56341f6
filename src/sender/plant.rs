//! Known faults, planted on purpose: each check of the product is shown to find the fault that it is for.

/// A fault to plant. Only tests can.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Plant {
    /// Every eligible entry whose sequence is a multiple of 7 is left out.
    DropEntry,
    /// After a write that blocks, the cursor goes back to the last position: entries are sent twice.
    RepeatEntry,
    /// A due sequence update is sent although an entry before it still waits in the frame being filled.
    EarlyPosition,
    /// One sender burns the shared budget, the others see it spent; the order turns round every turn, as the
    /// runtime's deferred wakers do.
    NaiveSharedBudget,
    /// The deficit is charged in bytes: who skips is never charged.
    ByteDeficit,
    /// The budget is refilled whenever one sender waits.
    RefillOnAnyWait,
    /// A due sequence update is never sent.
    NoSequenceUpdate,
    /// A wider subscription goes on where the narrower one was.
    StartAtAnnounced,
    /// What an earlier stream brought is sent again.
    SendCovered,
}
