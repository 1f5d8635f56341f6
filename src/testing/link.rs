//! One direction of a connection: delay, bandwidth, a window, stalls, and delivery in pieces.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::BytesMut;

use crate::clock::Moment;
use crate::sender::{Output, Written};

use super::clock::{Costs, NodeClock};
use super::rng::Rng;

/// Bytes under way in one direction.
#[derive(Debug)]
pub(super) struct Pipe {
    /// Bytes that may be under way or unread.
    pub(super) window: usize,
    pub(super) delay: Duration,
    /// Time on the line per 1,024 bytes, in nanoseconds.
    pub(super) kibibyte: u64,
    in_flight: usize,
    sent_until: Moment,
    queue: VecDeque<(Moment, BytesMut)>,
    pub(super) stalled_until: Moment,
    /// The writer found no room and is told when there is some.
    pub(super) starved: bool,
    pub(super) cut: bool,
}

impl Pipe {
    pub(super) const fn new(window: usize, delay: Duration, kibibyte: u64) -> Self {
        Self {
            window,
            delay,
            kibibyte,
            in_flight: 0,
            sent_until: Moment::START,
            queue: VecDeque::new(),
            stalled_until: Moment::START,
            starved: false,
            cut: false,
        }
    }

    /// Takes as many bytes as there is room for, and says how many.
    pub(super) fn push(&mut self, bytes: &[u8], now: Moment) -> usize {
        let count = bytes.len().min(self.window.saturating_sub(self.in_flight));
        self.starved |= count < bytes.len();
        if count == 0 {
            return 0;
        }
        self.in_flight += count;
        let on_line = Duration::from_nanos(self.kibibyte * count as u64 / 1024);
        self.sent_until = self.sent_until.max(now).plus(on_line);
        self.queue.push_back((self.sent_until.plus(self.delay), BytesMut::from(&bytes[..count])));
        count
    }

    /// Moves what has arrived by `now` into `input`, at most `most` bytes, in pieces of random size.
    pub(super) fn take(&mut self, now: Moment, most: usize, rng: &mut Rng, input: &mut BytesMut) -> usize {
        let mut taken = 0;
        while let Some(arrival) = self.arrival().filter(|arrival| *arrival <= now && taken < most) {
            let Some((_, bytes)) = self.queue.front_mut() else { break };
            let piece =
                if rng.one_in(4) { 1 + rng.index(bytes.len()) } else { bytes.len() }.min(most - taken);
            input.extend_from_slice(&bytes.split_to(piece));
            taken += piece;
            if bytes.is_empty() {
                self.queue.pop_front();
            }
            let _ = arrival;
        }
        self.in_flight -= taken;
        taken
    }

    /// When the next bytes arrive.
    pub(super) fn arrival(&self) -> Option<Moment> {
        self.queue.front().map(|(arrival, _)| (*arrival).max(self.stalled_until))
    }

    /// The connection breaks: a part of what is under way still arrives.
    pub(super) fn cut(&mut self, rng: &mut Rng) {
        self.cut = true;
        let pieces = self.queue.len();
        if pieces > 0 {
            self.queue.truncate(1 + rng.index(pieces));
            if let Some((_, last)) = self.queue.back_mut() {
                let keep = 1 + rng.index(last.len());
                last.truncate(keep);
            }
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }
}

/// A pipe as the sender's output: it charges the clock, and keeps a copy of what it took for the oracles.
pub(super) struct Wire<'a> {
    pub(super) pipe: &'a mut Pipe,
    pub(super) clock: &'a NodeClock,
    pub(super) costs: &'a Costs,
    pub(super) tap: &'a mut BytesMut,
}

impl Output for Wire<'_> {
    fn write(&mut self, bytes: &[u8]) -> Written {
        self.clock.charge(self.costs.write);
        if self.pipe.cut {
            return Written::Closed("the link was cut".to_owned());
        }
        let count = self.pipe.push(bytes, self.clock.peek());
        if count == 0 {
            return if bytes.is_empty() { Written::Accepted(0) } else { Written::WouldBlock };
        }
        self.clock.charge(self.costs.kibibyte * count as u64 / 1024);
        self.tap.extend_from_slice(&bytes[..count]);
        Written::Accepted(count)
    }
}
