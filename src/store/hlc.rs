//! The hybrid logical clock that gives transactions their versions.

use crate::protocol::Version;

/// A version of another node may lie at most this far ahead of the wall clock, in milliseconds.
///
/// Advancing to a version from far ahead would drag every later local version along, so it is refused instead.
pub const CLOCK_SKEW_MS_MAX: u64 = 60_000;

/// How far versions jump when a log may have lost its end, in milliseconds.
///
/// The lost transactions may have used the versions that would come next, and peers may hold them: the same version
/// twice would make two different writes look like one. It stays well below [`CLOCK_SKEW_MS_MAX`].
const LOSS_GAP_MS: u64 = 10_000;

/// A version from too far ahead.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "version {version} lies {ahead_ms} ms ahead of this node's clock, the limit is {CLOCK_SKEW_MS_MAX} ms; \
     set the clocks of both nodes"
)]
pub struct ClockSkew {
    /// The version.
    pub version: Version,
    /// How far ahead of the wall clock it is.
    pub ahead_ms: u64,
}

/// Strictly rising versions, whatever the wall clock does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Hlc {
    latest: Version,
}

impl Hlc {
    /// A clock that continues after `latest`, the greatest version that the log holds.
    #[must_use]
    pub const fn after(latest: Version) -> Self {
        Self { latest }
    }

    /// A clock for a log that may have lost its end, which reached `latest` before: it jumps ahead of what was lost.
    #[must_use]
    pub const fn after_loss(latest: Version, wall_ms: u64) -> Self {
        let ms = if latest.ms() > wall_ms { latest.ms() } else { wall_ms };
        Self { latest: Version::new(ms + LOSS_GAP_MS, 0) }
    }

    /// The next version at this wall time: the wall clock when it is ahead, else one more than the latest.
    pub fn tick(&mut self, wall_ms: u64) -> Version {
        self.latest = self.latest.next().max(Version::new(wall_ms, 0));
        self.latest
    }

    /// Takes in a version of another node, so that later local ones are above it.
    ///
    /// # Errors
    /// [`ClockSkew`] when it lies too far ahead; the clock is then unchanged.
    pub fn observe(&mut self, version: Version, wall_ms: u64) -> Result<(), ClockSkew> {
        let ahead_ms = version.ms().saturating_sub(wall_ms);
        if ahead_ms > CLOCK_SKEW_MS_MAX {
            return Err(ClockSkew { version, ahead_ms });
        }
        self.latest = self.latest.max(version);
        Ok(())
    }

    /// The greatest version so far.
    #[must_use]
    pub const fn latest(&self) -> Version {
        self.latest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_rise_when_the_wall_clock_stands_still_or_steps_back() {
        let mut clock = Hlc::default();
        let versions: Vec<_> = [100, 100, 40, 101].map(|wall_ms| clock.tick(wall_ms)).to_vec();
        assert!(versions.is_sorted_by(|a, b| a < b), "{versions:?}");
        assert_eq!(versions[3], Version::new(101, 0));
    }

    #[test]
    fn a_version_from_far_ahead_is_refused_and_changes_nothing() {
        let mut clock = Hlc::after(Version::new(5, 0));
        assert!(clock.observe(Version::new(CLOCK_SKEW_MS_MAX + 1000, 3), 1000).is_ok());
        let before = clock;
        let error = clock.observe(Version::new(CLOCK_SKEW_MS_MAX + 1001, 0), 1000);
        assert_eq!(error.map_err(|skew| skew.ahead_ms), Err(CLOCK_SKEW_MS_MAX + 1));
        assert_eq!(clock, before);
    }
}
