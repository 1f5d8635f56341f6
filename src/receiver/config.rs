//! The bounds of a receiver. The defaults are those of the system that this library replaces.

use std::time::Duration;

use crate::config::ConfigError;

/// Acknowledgements go out at most this often, the first at once.
pub const ACKNOWLEDGEMENT_PERIOD: Duration = Duration::from_millis(2);

/// Bounds on what a receiver holds. Reaching one pauses the source; nothing is dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReceiveConfig {
    pub(super) record_concurrency: usize,
    pub(super) decoded_segments: usize,
    pub(super) queued_bytes: usize,
    pub(super) queued_frames: usize,
    #[cfg(any(test, feature = "testing"))]
    pub(super) acknowledges_early: bool,
}

impl Default for ReceiveConfig {
    fn default() -> Self {
        Self {
            record_concurrency: 150,
            decoded_segments: 100,
            queued_bytes: 32 * 1024 * 1024,
            queued_frames: 512,
            #[cfg(any(test, feature = "testing"))]
            acknowledges_early: false,
        }
    }
}

impl ReceiveConfig {
    /// Sets how many frames may be handed to the applier and not committed; 150. At the bound the source is paused,
    /// the first commit lets it go on.
    ///
    /// # Errors
    /// 0, or above 100,000.
    pub fn with_record_concurrency(self, frames: usize) -> Result<Self, ConfigError> {
        let holds = (1..=100_000).contains(&frames);
        let record_concurrency =
            ConfigError::require(holds, "record_concurrency", frames, "1 to 100,000 frames (default 150)")?;
        Ok(Self { record_concurrency, ..self })
    }

    /// Sets how many segments may be decoded and not handed to the applier; 100. Above it the source is paused until
    /// none is left.
    ///
    /// # Errors
    /// 0, or above 100,000.
    pub fn with_decoded_segments(self, segments: usize) -> Result<Self, ConfigError> {
        let holds = (1..=100_000).contains(&segments);
        let decoded_segments =
            ConfigError::require(holds, "decoded_segments", segments, "1 to 100,000 segments (default 100)")?;
        Ok(Self { decoded_segments, ..self })
    }

    /// Sets how many bytes and frames may wait to be decoded; 32 MiB and 512. Above either the source is paused until
    /// both are at half.
    ///
    /// # Errors
    /// Below 64 KiB or above 4 GiB; 0 frames or above 1,000,000.
    pub fn with_queue(self, bytes: usize, frames: usize) -> Result<Self, ConfigError> {
        let holds = (64 * 1024..=4 << 30).contains(&bytes);
        let queued_bytes =
            ConfigError::require(holds, "queued_bytes", bytes, "64 KiB to 4 GiB (default 32 MiB)")?;
        let holds = (1..=1_000_000).contains(&frames);
        let queued_frames =
            ConfigError::require(holds, "queued_frames", frames, "1 to 1,000,000 frames (default 512)")?;
        Ok(Self { queued_bytes, queued_frames, ..self })
    }

    /// Frames that may be handed to the applier and not committed.
    #[must_use]
    pub const fn record_concurrency(&self) -> usize {
        self.record_concurrency
    }

    /// Segments that may be decoded and not handed to the applier.
    #[must_use]
    pub const fn decoded_segments(&self) -> usize {
        self.decoded_segments
    }

    /// Bytes and frames that may wait to be decoded.
    #[must_use]
    pub const fn queue(&self) -> (usize, usize) {
        (self.queued_bytes, self.queued_frames)
    }
}

#[cfg(any(test, feature = "testing"))]
impl ReceiveConfig {
    /// The same settings with a fault planted: what was received is acknowledged as durable.
    #[must_use]
    pub const fn acknowledging_early(self) -> Self {
        Self { acknowledges_early: true, ..self }
    }
}
