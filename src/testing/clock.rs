//! Time that advances by the cost of the work.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use crate::clock::{Clock, Moment};
use crate::sender::UNIT_BYTES;

use super::rng::Rng;

/// What the work of a seed costs, in nanoseconds.
#[derive(Debug, Clone, Copy)]
pub(super) struct Costs {
    /// A clock read. It comes after every 16 entries and stands for them.
    pub(super) read: u64,
    /// A segment that the log lends.
    pub(super) segment: u64,
    /// A segment that is not in memory.
    pub(super) cold_page: u64,
    /// A write call.
    pub(super) write: u64,
    /// 1,024 written bytes.
    pub(super) kibibyte: u64,
    /// A frame that came in.
    pub(super) frame: u64,
}

/// Segments between two cold ones.
pub(super) const COLD_EVERY: u64 = 17;

impl Costs {
    pub(super) const fn from_seed(rng: &mut Rng) -> Self {
        // Slow machines spend their budgets, fast ones hardly ever.
        let factor = [1, 1, 4][rng.index(3)];
        Self {
            read: factor * rng.between(2_000, 12_000),
            segment: factor * rng.between(200, 1_000),
            cold_page: factor * rng.between(5_000, 20_000),
            write: factor * rng.between(5_000, 20_000),
            kibibyte: factor * rng.between(250, 1_000),
            frame: factor * rng.between(100, 400),
        }
    }

    /// What one unit can cost: 16 segments skipped by their headers, the write that empties the buffers, what the
    /// peer sent, and the clock reads around them.
    pub(super) const fn unit(&self) -> Duration {
        let writes = 2 * self.write + self.kibibyte * (3 * UNIT_BYTES as u64 / 1024);
        Duration::from_nanos(
            17 * self.segment + 2 * self.cold_page + writes + 4 * self.read + 64 * self.frame,
        )
    }
}

/// The clock of one node.
#[derive(Debug)]
pub(super) struct NodeClock {
    nanos: AtomicU64,
    read: u64,
    /// What the wall clock is off by, in milliseconds.
    skew_ms: AtomicI64,
}

const WALL_START_MS: i64 = 1_700_000_000_000;

impl NodeClock {
    pub(super) const fn new(read: u64, skew_ms: i64) -> Self {
        Self { nanos: AtomicU64::new(0), read, skew_ms: AtomicI64::new(skew_ms) }
    }

    /// The time without the cost of asking for it.
    pub(super) fn peek(&self) -> Moment {
        Moment::from_nanos(self.nanos.load(Ordering::Relaxed))
    }

    pub(super) fn charge(&self, nanos: u64) {
        self.nanos.fetch_add(nanos, Ordering::Relaxed);
    }

    /// The node was idle until `moment`.
    pub(super) fn advance_to(&self, moment: Moment) {
        self.nanos.fetch_max(moment.as_nanos(), Ordering::Relaxed);
    }

    pub(super) fn step_wall(&self, by_ms: i64) {
        self.skew_ms.fetch_add(by_ms, Ordering::Relaxed);
    }
}

impl Clock for NodeClock {
    fn now(&self) -> Moment {
        self.charge(self.read);
        self.peek()
    }

    fn wall_ms(&self) -> u64 {
        let elapsed = i64::try_from(self.peek().as_nanos() / 1_000_000).unwrap_or(i64::MAX / 4);
        (WALL_START_MS + elapsed + self.skew_ms.load(Ordering::Relaxed)).unsigned_abs()
    }
}
