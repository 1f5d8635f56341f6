//! When the source learns how far this side is.

use crate::clock::Moment;
use crate::protocol::{Acknowledgement, Message};

use super::config::ACKNOWLEDGEMENT_PERIOD;

/// The first at once, then at most one per period; nothing when nothing changed.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Acknowledger {
    current: Acknowledgement,
    sent: Acknowledgement,
    not_before: Option<Moment>,
}

impl Acknowledger {
    pub(super) const fn starting_at(start: Acknowledgement) -> Self {
        Self { current: start, sent: start, not_before: None }
    }

    pub(super) const fn current(&self) -> Acknowledgement {
        self.current
    }

    pub(super) fn update(&mut self, change: impl FnOnce(&mut Acknowledgement)) {
        change(&mut self.current);
        debug_assert!(
            self.current.durable <= self.current.applied && self.current.applied <= self.current.received
        );
    }

    /// The acknowledgement that is due now.
    pub(super) fn poll(&mut self, now: Moment) -> Option<Message> {
        if self.current == self.sent || self.not_before.is_some_and(|not_before| now < not_before) {
            return None;
        }
        self.sent = self.current;
        self.not_before = Some(now.plus(ACKNOWLEDGEMENT_PERIOD));
        Some(Message::Acknowledgement(self.current))
    }

    /// When the next one is due, if something changed since the last.
    pub(super) fn deadline(&self) -> Option<Moment> {
        if self.current == self.sent { None } else { self.not_before.or(Some(Moment::START)) }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::protocol::Sequence;

    #[test]
    fn the_first_goes_out_at_once_and_then_at_most_one_per_period() {
        let mut acknowledger = Acknowledger::default();
        let at = |micros| Moment::START.plus(Duration::from_micros(micros));
        assert_eq!(acknowledger.poll(at(0)), None, "nothing to say");
        let mut sent = 0;
        for micro in 0..10_000 {
            acknowledger.update(|current| current.received = Sequence::new(micro + 1));
            sent += u32::from(acknowledger.poll(at(micro)).is_some());
        }
        assert_eq!(sent, 5, "10 ms hold five periods of 2 ms");
        assert_eq!(acknowledger.deadline(), Some(at(10_000)), "the last change is still owed");
        assert!(acknowledger.poll(at(10_000)).is_some());
        assert_eq!(acknowledger.deadline(), None);
    }
}
