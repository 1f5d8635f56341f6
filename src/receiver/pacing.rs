//! When the source is paused, and when it goes on.

use super::config::ReceiveConfig;

/// Why the source is paused. Several can hold at once; it goes on when none does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PauseReason {
    /// Too much input waits to be decoded.
    Queued,
    /// Too many segments are decoded and not handed to the applier.
    Decoded,
    /// Too many frames are handed to the applier and not committed.
    Uncommitted,
}

/// What the bounds are compared with.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Load {
    pub(super) queued_bytes: usize,
    pub(super) queued_frames: usize,
    pub(super) decoded: usize,
    pub(super) uncommitted_frames: usize,
}

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Pacing {
    queued: bool,
    decoded: bool,
    uncommitted: bool,
}

impl Pacing {
    /// Looks at the bounds again. `committed` says that a commit came since the last look.
    pub(super) fn update(&mut self, config: &ReceiveConfig, load: &Load, committed: bool) {
        let over = load.queued_bytes > config.queued_bytes || load.queued_frames > config.queued_frames;
        let at_half =
            load.queued_bytes <= config.queued_bytes / 2 && load.queued_frames <= config.queued_frames / 2;
        self.queued = over || (self.queued && !at_half);
        self.decoded = load.decoded > config.decoded_segments || (self.decoded && load.decoded > 0);
        let full = load.uncommitted_frames >= config.record_concurrency;
        self.uncommitted = full || (self.uncommitted && !committed);
    }

    pub(super) const fn is_paused(&self) -> bool {
        self.queued || self.decoded || self.uncommitted
    }

    pub(super) fn reasons(&self) -> impl Iterator<Item = PauseReason> + use<> {
        [
            (self.queued, PauseReason::Queued),
            (self.decoded, PauseReason::Decoded),
            (self.uncommitted, PauseReason::Uncommitted),
        ]
        .into_iter()
        .filter_map(|(holds, reason)| holds.then_some(reason))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_those_of_the_origin_system() {
        let config = ReceiveConfig::default();
        assert_eq!(config.record_concurrency(), 150);
        assert_eq!(config.decoded_segments(), 100);
        assert_eq!(config.queue(), (33_554_432, 512));
    }

    #[test]
    fn uncommitted_frames_pause_at_the_bound_and_the_first_commit_resumes() {
        let (config, mut pacing) = (ReceiveConfig::default(), Pacing::default());
        let mut load = Load { uncommitted_frames: 149, ..Load::default() };
        pacing.update(&config, &load, false);
        assert!(!pacing.is_paused());
        load.uncommitted_frames = 150;
        pacing.update(&config, &load, false);
        assert_eq!(pacing.reasons().collect::<Vec<_>>(), [PauseReason::Uncommitted]);
        load.uncommitted_frames = 149;
        pacing.update(&config, &load, false);
        assert!(pacing.is_paused(), "only a commit resumes");
        pacing.update(&config, &load, true);
        assert!(!pacing.is_paused());
    }

    #[test]
    fn queued_input_pauses_above_the_bound_and_resumes_at_half() {
        let (config, mut pacing) = (ReceiveConfig::default(), Pacing::default());
        for (bytes, frames, paused) in [
            (33_554_432, 512, false),
            (33_554_433, 1, true),
            (16_777_217, 1, true),
            (16_777_216, 256, false),
            (1, 513, true),
            (1, 257, true),
            (1, 256, false),
        ] {
            pacing.update(
                &config,
                &Load { queued_bytes: bytes, queued_frames: frames, ..Load::default() },
                false,
            );
            assert_eq!(pacing.is_paused(), paused, "{bytes} bytes, {frames} frames");
        }
    }

    #[test]
    fn decoded_segments_pause_above_the_bound_and_resume_when_none_is_left() {
        let (config, mut pacing) = (ReceiveConfig::default(), Pacing::default());
        for (decoded, paused) in [(100, false), (101, true), (1, true), (0, false)] {
            pacing.update(&config, &Load { decoded, ..Load::default() }, false);
            assert_eq!(pacing.is_paused(), paused, "{decoded} segments");
        }
    }
}
