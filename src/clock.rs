//! Time as an argument.

use std::fmt;
use std::time::Duration;

/// A moment on a [`Clock`], counted from a start that only the clock knows.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Moment(u64);

impl Moment {
    /// The clock's start.
    pub const START: Self = Self(0);

    /// The moment `nanos` nanoseconds after the clock's start.
    #[must_use]
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Nanoseconds since the clock's start.
    #[must_use]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// The moment `duration` later; stays at the last moment instead of wrapping.
    #[must_use]
    pub fn plus(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)))
    }

    /// The time from `earlier` to here; zero when `earlier` is not earlier.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl fmt::Debug for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", Duration::from_nanos(self.0))
    }
}

/// Where time comes from. The real one is `net::SystemClock`; tests and the virtual cluster have their own.
pub trait Clock: Send + Sync {
    /// Now, never earlier than an earlier answer.
    fn now(&self) -> Moment;

    /// The wall clock in milliseconds since 1970. It may step back.
    fn wall_ms(&self) -> u64;
}
