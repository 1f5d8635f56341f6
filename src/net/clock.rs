//! The real clock.

use std::time::{Instant, SystemTime};

use crate::clock::{Clock, Moment};

/// Monotonic time since it was made, and the system's wall clock.
#[derive(Debug, Clone, Copy)]
pub struct SystemClock {
    start: Instant,
}

impl SystemClock {
    /// A clock that starts now.
    #[must_use]
    #[expect(clippy::disallowed_methods, reason = "this is the clock that everything else is handed")]
    pub fn new() -> Self {
        Self { start: Instant::now() }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Moment {
        Moment::START.plus(self.start.elapsed())
    }

    #[expect(clippy::disallowed_methods, reason = "this is the clock that everything else is handed")]
    fn wall_ms(&self) -> u64 {
        let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since_1970.as_millis()).unwrap_or(u64::MAX)
    }
}
