//! The program's own clock: the library's code is handed one, this reads the machine's.

use std::time::Instant;

/// A moment of this process, for durations.
#[expect(clippy::disallowed_methods, reason = "the program measures the library from outside")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// A number that differs from run to run, for a seed.
#[expect(clippy::disallowed_methods, reason = "a seed of its own for every run")]
pub(crate) fn entropy() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let nanos = u64::try_from(since.as_nanos()).unwrap_or(u64::MAX);
    (nanos ^ u64::from(std::process::id()).rotate_left(40)) % 1_000_000_007
}
