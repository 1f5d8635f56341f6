//! The send loop.

use std::ops::ControlFlow;

use crate::protocol::{Boundary, Close, CloseCode, CloseReason, Message, SegmentRef, Sequence};
use crate::store::{AuditLog, ScanEnd, StoreError};

use super::budget::{Spent, Turn, UNIT_BYTES, YieldPolicy};
use super::filter::{SkipReason, Verdict};
use super::output::Output;
use super::session::{Blocked, SendSession, Stopped};

/// A whole segment of at least this many bytes is written from where it lies; smaller ones are gathered by copy,
/// since small writes are the one thing that always loses.
const WRITE_IN_PLACE_BYTES: usize = 32 * 1024;

impl SendSession {
    /// Does a bounded piece of work and says why it stopped.
    ///
    /// It writes what is owed, scans the log, sends eligible entries and skips the others, until the quantum or the
    /// budget in `turn` is spent or it cannot go on. Whoever calls it obeys the answer and decides nothing. Call it again after
    /// [`Stopped::Closed`] and it answers the same.
    pub fn pump(&mut self, log: &dyn AuditLog, output: &mut dyn Output, turn: &mut Turn<'_>) -> Stopped {
        let mut pump = Pump { session: self, log, output, turn, complete: 0, stop: None };
        pump.take_staged();
        let stopped = pump.run();
        pump.leave(stopped)
    }
}

/// One run of the loop: the session, and everything that it borrows for it.
///
/// The scratch buffer holds complete frames up to `complete`; behind them stands the frame that is being filled, if
/// there is one.
pub(super) struct Pump<'p, 't> {
    pub(super) session: &'p mut SendSession,
    pub(super) log: &'p dyn AuditLog,
    pub(super) output: &'p mut dyn Output,
    pub(super) turn: &'p mut Turn<'t>,
    pub(super) complete: usize,
    pub(super) stop: Option<Stopped>,
}

/// Goes on, or stops for this reason.
pub(super) type Flow = ControlFlow<Stopped>;

impl Pump<'_, '_> {
    fn run(&mut self) -> Stopped {
        let flow = match self.settle_debts() {
            Flow::Continue(()) => self.scan(),
            stopped => stopped,
        };
        match flow {
            Flow::Break(stopped) => stopped,
            Flow::Continue(()) => self.caught_up(),
        }
    }

    /// What is owed from before comes first: bytes that found no room, then control frames.
    fn settle_debts(&mut self) -> Flow {
        if let Some(reason @ (CloseReason::Peer(_) | CloseReason::Output(_))) = &self.session.closing {
            // Whoever would read what is pending is gone: waiting for room would be waiting for ever.
            return Flow::Break(Stopped::Closed(reason.clone()));
        }
        self.write_pending()?;
        match &self.session.closing {
            None => {}
            Some(CloseReason::Here(close)) if !self.session.close_queued => {
                let close = Message::Close { code: close.code, text: close.text.clone() };
                self.session.close_queued = true;
                self.session.staged = None;
                self.session.pending.push(&close);
                self.write_pending()?;
                return self.settle_debts();
            }
            Some(reason) => return Flow::Break(Stopped::Closed(reason.clone())),
        }
        if let Some(next) = self.session.superseding.take() {
            self.supersede(next)?;
            return self.settle_debts();
        }
        if let Some(number) = self.session.pong.take() {
            self.session.pending.push(&Message::Pong(number));
        }
        if let Some(number) = self.session.ping.take() {
            self.session.pending.push(&Message::Ping(number));
        }
        self.write_pending()?;
        if self.session.paused {
            return Flow::Break(Stopped::Blocked(Blocked::Paused));
        }
        if self.session.selection().is_empty() {
            return Flow::Break(Stopped::CaughtUp { deadline: None });
        }
        Flow::Continue(())
    }

    fn scan(&mut self) -> Flow {
        let log = self.log;
        let after = self.session.scanned;
        let end = log.scan(after, &mut |segment| match self.on_segment(&segment) {
            ControlFlow::Continue(()) => ControlFlow::Continue(()),
            ControlFlow::Break(stopped) => {
                self.stop = Some(stopped);
                ControlFlow::Break(())
            }
        });
        match (end, self.stop.take()) {
            (Err(error), _) => Flow::Break(self.store_failed(&error)),
            (Ok(ScanEnd::Stopped), Some(stopped)) => Flow::Break(stopped),
            (Ok(_), _) => Flow::Continue(()),
        }
    }

    fn on_segment(&mut self, segment: &SegmentRef<'_>) -> Flow {
        let fresh = segment.header().first == self.session.scanned.plus(1);
        if !fresh || self.turn.policy() == YieldPolicy::PerRecord {
            return self.examine(segment, false);
        }
        match self.session.filter.segment(self.log, segment) {
            Err(error) => Flow::Break(self.store_failed(&error)),
            Ok(Verdict::Examine { by_origin_only }) => self.examine(segment, by_origin_only),
            Ok(Verdict::SkipWhole(reason)) => self.skip_whole(segment, reason),
            Ok(Verdict::SendWhole) => self.send_whole(segment),
        }
    }

    fn skip_whole(&mut self, segment: &SegmentRef<'_>, reason: SkipReason) -> Flow {
        let header = segment.header();
        self.note_skipped(u64::from(header.entries), reason);
        self.session.stats.segments_skipped += 1;
        self.pass(header.last, header.end);
        self.after_unit(1, 0)
    }

    fn send_whole(&mut self, segment: &SegmentRef<'_>) -> Flow {
        self.introduce(segment)?;
        let frame = segment.frame();
        if frame.len() < WRITE_IN_PLACE_BYTES {
            self.turn.scratch.extend_from_slice(frame);
            self.complete = self.turn.scratch.len();
            self.pass_sent(segment);
            return self.after_unit(segment.header().entries, frame.len());
        }
        self.write_complete()?;
        let accepted = self.write(frame)?;
        if accepted == 0 {
            // Nothing of it is kept: the log still has it.
            return Flow::Break(Stopped::Blocked(Blocked::Socket));
        }
        self.pass_sent(segment);
        self.keep_unsent(&frame[accepted..])?;
        self.end_unit()
    }

    fn pass_sent(&mut self, segment: &SegmentRef<'_>) {
        let header = segment.header();
        self.session.stats.segments_whole += 1;
        self.session.stats.entries_sent += u64::from(header.entries);
        self.session.announced = header.end;
        self.pass(header.last, header.end);
    }

    /// Every entry up to `last` has been examined; `boundary` is the last transaction end in them.
    pub(super) fn pass(&mut self, last: Sequence, boundary: Boundary) {
        debug_assert!(last >= self.session.scanned, "the scan goes forward only");
        self.session.scanned = last;
        self.session.inside = None;
        self.session.boundary = boundary;
    }

    pub(super) fn note_skipped(&mut self, entries: u64, reason: SkipReason) {
        self.session.stats.entries_skipped[reason.index()] += entries;
        self.session.timer.on_skip(self.turn.now(), self.session.config.sequence_update_period);
    }

    /// The one place that every path through the loop ends a piece of work in: full buffers are written, a due
    /// sequence update is sent, and the budget is looked at.
    pub(super) fn after_unit(&mut self, entries: u32, bytes: usize) -> Flow {
        if self.complete >= UNIT_BYTES {
            self.write_complete()?;
            return self.end_unit();
        }
        let spent = self.turn.examined(entries, bytes);
        self.report_progress()?;
        Self::stop_when(spent)
    }

    fn end_unit(&mut self) -> Flow {
        let spent = self.turn.end_unit();
        self.report_progress()?;
        if self.turn.policy() == YieldPolicy::PerRecord {
            return Flow::Break(Stopped::QuantumSpent);
        }
        Self::stop_when(spent)
    }

    fn stop_when(spent: Option<Spent>) -> Flow {
        match spent {
            None => Flow::Continue(()),
            Some(Spent::Quantum) => Flow::Break(Stopped::QuantumSpent),
            Some(Spent::Budget) => Flow::Break(Stopped::BudgetSpent),
        }
    }

    /// Sends a sequence update when one is due and the position has moved.
    pub(super) fn report_progress(&mut self) -> Flow {
        if !self.session.timer.is_due(self.turn.now()) {
            return Flow::Continue(());
        }
        #[cfg(any(test, feature = "testing"))]
        if self.session.is_planted(super::plant::Plant::NoSequenceUpdate) {
            self.session.timer.disarm();
            return Flow::Continue(());
        }
        #[cfg(any(test, feature = "testing"))]
        if self.session.is_planted(super::plant::Plant::EarlyPosition) && self.session.staged.is_some() {
            return self.send_early_position();
        }
        // A position must not overtake entries: the frame being filled is closed first, and carries it.
        if self.session.staged.is_some() {
            return self.close_frame_at_boundary();
        }
        self.session.timer.disarm();
        if self.session.boundary.sequence > self.session.announced.sequence {
            self.session.announced = self.session.boundary;
            self.session.stats.sequence_updates += 1;
            Message::SequenceUpdate(self.session.boundary).encode(self.turn.scratch);
        } else if self.session.scanned > self.session.boundary.sequence {
            self.session.stats.progress_frames += 1;
            Message::Progress(self.session.scanned).encode(self.turn.scratch);
        }
        self.complete = self.turn.scratch.len();
        Flow::Continue(())
    }

    #[cfg(any(test, feature = "testing"))]
    fn send_early_position(&mut self) -> Flow {
        self.session.timer.disarm();
        self.session.announced = self.session.boundary;
        let mut update = Vec::new();
        Message::SequenceUpdate(self.session.boundary).encode(&mut update);
        let rest = self.turn.scratch.split_off(self.complete);
        self.turn.scratch.extend_from_slice(&update);
        self.turn.scratch.extend_from_slice(&rest);
        self.complete += update.len();
        if let Some(staged) = &mut self.session.staged {
            staged.builder.shift_right(update.len());
        }
        Flow::Continue(())
    }

    fn caught_up(&mut self) -> Stopped {
        self.turn.end_unit();
        match self.report_progress() {
            Flow::Break(stopped) => stopped,
            Flow::Continue(()) => Stopped::CaughtUp { deadline: self.session.timer.deadline() },
        }
    }

    pub(super) fn store_failed(&mut self, error: &StoreError) -> Stopped {
        let text = format!("the audit log cannot be read after sequence {}: {error}", self.session.scanned);
        self.session.close(Close::new(CloseCode::Store, text));
        // The close frame goes out with the next pump, which comes at once.
        Stopped::QuantumSpent
    }
}
