//! The timer that turns skipped entries into sequence updates.

use std::time::Duration;

use crate::clock::Moment;

/// How long after a skip the peer learns of it. During an endless run of skips it gets one position per period.
pub const SEQUENCE_UPDATE_PERIOD: Duration = Duration::from_millis(300);

/// Armed by the first skip; later skips do not push it back.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ProgressTimer {
    due: Option<Moment>,
}

impl ProgressTimer {
    pub(super) fn on_skip(&mut self, now: Moment, period: Duration) {
        self.due.get_or_insert_with(|| now.plus(period));
    }

    /// Due-ness is decided by comparing with `now`, never by which timer woke whom.
    pub(super) fn is_due(&self, now: Moment) -> bool {
        self.due.is_some_and(|due| due <= now)
    }

    pub(super) const fn disarm(&mut self) {
        self.due = None;
    }

    pub(super) const fn deadline(&self) -> Option<Moment> {
        self.due
    }
}
