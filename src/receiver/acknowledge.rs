//! When the source learns how far this side is.

use crate::clock::Moment;
use crate::protocol::{Acknowledgement, Message, Sequence};

use super::config::ACKNOWLEDGEMENT_PERIOD;

/// The first at once, then at most one per period; nothing when nothing changed.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Acknowledger {
    current: Acknowledgement,
    /// What the source knows; nothing before the first stream.
    sent: Option<Acknowledgement>,
    not_before: Option<Moment>,
}

impl Acknowledger {
    /// A stream begins after `start`, and everything that it selects is committed up to `durable`. The source does not
    /// have to be told what it knows: it takes the start for received, and for durable as far as it had heard.
    pub(super) fn begin_stream(&mut self, start: Sequence, durable: Sequence) {
        let reached = durable.min(start);
        self.current = Acknowledgement { received: start, applied: reached, durable: reached };
        let heard = |before: Option<Sequence>| before.unwrap_or(start).min(start);
        let sent = self.sent.map(|sent| (sent.applied, sent.durable));
        self.sent = Some(Acknowledgement {
            received: start,
            applied: heard(sent.map(|sent| sent.0)),
            durable: heard(sent.map(|sent| sent.1)),
        });
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

    fn is_said(&self) -> bool {
        self.sent.is_none_or(|sent| sent == self.current)
    }

    /// The acknowledgement that is due now.
    pub(super) fn poll(&mut self, now: Moment) -> Option<Message> {
        if self.is_said() || self.not_before.is_some_and(|not_before| now < not_before) {
            return None;
        }
        self.sent = Some(self.current);
        self.not_before = Some(now.plus(ACKNOWLEDGEMENT_PERIOD));
        Some(Message::Acknowledgement(self.current))
    }

    /// When the next one is due, if something changed since the last.
    pub(super) fn deadline(&self) -> Option<Moment> {
        if self.is_said() { None } else { self.not_before.or(Some(Moment::START)) }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_first_goes_out_at_once_and_then_at_most_one_per_period() {
        let mut acknowledger = Acknowledger::default();
        acknowledger.begin_stream(Sequence::ZERO, Sequence::ZERO);
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
