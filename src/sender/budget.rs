//! The time that a worker may work before it gives the event loop back, and the units that it is checked after.

use std::time::Duration;

use crate::clock::{Clock, Moment};

/// The budget of a worker that only replicates. Measured: with 2 ms the yields cost 0.1 % of the time, and a
/// request on the same thread waits 2 ms at the most.
pub const BUDGET_DEDICATED: Duration = Duration::from_millis(2);

/// The budget of a worker whose thread also serves other work. The delay that others see falls with it; its cost
/// stays below what can be measured.
pub const BUDGET_SHARED: Duration = Duration::from_micros(500);

/// A unit of work ends after this many examined entries. Sixteen make the clock read cost 2 ns an entry.
pub const UNIT_ENTRIES: u32 = 16;

/// A unit of work ends after this many bytes, in case the entries are large.
pub const UNIT_BYTES: usize = 64 * 1024;

/// When a worker gives the event loop back.
///
/// `Budget` is the product. The other two are the designs that it replaces; they stay as the controls of the
/// regression guard and of the benchmarks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum YieldPolicy {
    /// Control: after one entry of each ready sender. Writes coalesce per transaction.
    PerRecord,
    /// Control: every sender has a budget of its own, so a turn grows with the number of senders.
    PerSender,
    /// All senders of a worker share one budget.
    #[default]
    Budget,
}

/// One worker's budget. Spent time carries across senders and polls; only [`Budget::refill`] gives it back.
#[derive(Debug, Clone, Copy)]
pub struct Budget {
    limit: Duration,
    spent: Duration,
}

impl Budget {
    /// A full budget.
    #[must_use]
    pub const fn new(limit: Duration) -> Self {
        Self { limit, spent: Duration::ZERO }
    }

    /// What a turn may take.
    #[must_use]
    pub const fn limit(&self) -> Duration {
        self.limit
    }

    /// What is left of this turn.
    #[must_use]
    pub const fn remaining(&self) -> Duration {
        self.limit.saturating_sub(self.spent)
    }

    /// Whether nothing is left.
    #[must_use]
    pub const fn is_spent(&self) -> bool {
        self.remaining().is_zero()
    }

    /// Work was done.
    pub const fn charge(&mut self, worked: Duration) {
        self.spent = self.spent.saturating_add(worked);
    }

    /// The I/O driver and the timers have run: after a completed yield, or after a wake-up when every sender had
    /// been waiting. Nothing else may call this.
    pub const fn refill(&mut self) {
        self.spent = Duration::ZERO;
    }
}

/// What ran out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spent {
    /// This sender's share; the next one is served.
    Quantum,
    /// The worker's budget; the event loop is given back.
    Budget,
}

/// One sender's share of a turn: the quantum, the rest of the budget, the clock, and the worker's scratch buffer.
pub struct Turn<'a> {
    clock: &'a dyn Clock,
    policy: YieldPolicy,
    now: Moment,
    quantum_end: Moment,
    budget_end: Moment,
    entries: u32,
    bytes: usize,
    written: usize,
    /// Where frames are gathered and filtered frames are built. Empty between two senders.
    pub scratch: &'a mut Vec<u8>,
}

impl std::fmt::Debug for Turn<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Turn")
            .field("now", &self.now)
            .field("quantum_end", &self.quantum_end)
            .finish_non_exhaustive()
    }
}

impl<'a> Turn<'a> {
    /// A share that starts now.
    #[must_use]
    pub fn new(
        clock: &'a dyn Clock,
        policy: YieldPolicy,
        quantum: Duration,
        budget: Duration,
        scratch: &'a mut Vec<u8>,
    ) -> Self {
        Self::starting_at(clock.now(), clock, policy, quantum, budget, scratch)
    }

    /// A share that started at `now`, which was read from the clock just before.
    pub(super) fn starting_at(
        now: Moment,
        clock: &'a dyn Clock,
        policy: YieldPolicy,
        quantum: Duration,
        budget: Duration,
        scratch: &'a mut Vec<u8>,
    ) -> Self {
        Self {
            clock,
            policy,
            now,
            quantum_end: now.plus(quantum),
            budget_end: now.plus(budget),
            entries: 0,
            bytes: 0,
            written: 0,
            scratch,
        }
    }

    /// The clock as it was last read, at most one unit ago.
    #[must_use]
    pub const fn now(&self) -> Moment {
        self.now
    }

    /// The policy of the worker.
    #[must_use]
    pub const fn policy(&self) -> YieldPolicy {
        self.policy
    }

    /// Entries were examined. Ends the unit when it is full and says what ran out.
    pub fn examined(&mut self, entries: u32, bytes: usize) -> Option<Spent> {
        if self.policy == YieldPolicy::PerRecord {
            return (entries > 0).then_some(Spent::Quantum);
        }
        self.entries += entries;
        self.bytes += bytes;
        if self.entries < UNIT_ENTRIES && self.bytes < UNIT_BYTES {
            return None;
        }
        self.end_unit()
    }

    /// A unit is done whatever its size, as after a write call. Reads the clock and says what ran out.
    pub fn end_unit(&mut self) -> Option<Spent> {
        (self.entries, self.bytes) = (0, 0);
        self.now = self.clock.now();
        self.spent()
    }

    /// The output took bytes.
    pub const fn note_written(&mut self, bytes: usize) {
        self.written += bytes;
    }

    /// Bytes that the output took in this share.
    #[must_use]
    pub const fn written(&self) -> usize {
        self.written
    }

    /// What has run out by the clock as it was last read.
    #[must_use]
    pub fn spent(&self) -> Option<Spent> {
        if self.now >= self.budget_end {
            Some(Spent::Budget)
        } else if self.now >= self.quantum_end {
            Some(Spent::Quantum)
        } else {
            None
        }
    }
}
