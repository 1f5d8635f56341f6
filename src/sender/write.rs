//! How bytes leave a session, and what it keeps of them between two runs.

use std::ops::ControlFlow;

use crate::protocol::CloseReason;
#[cfg(any(test, feature = "testing"))]
use crate::protocol::Sequence;

use super::output::Written;
use super::pump::{Flow, Pump};
use super::session::{Blocked, Stopped};

impl Pump<'_, '_> {
    pub(super) fn take_staged(&mut self) {
        debug_assert!(self.turn.scratch.is_empty(), "the scratch buffer is empty between two senders");
        if let Some(staged) = &mut self.session.staged {
            std::mem::swap(self.turn.scratch, &mut staged.bytes);
        }
    }

    /// The one exit: complete frames are written, an unfinished one is put away, the scratch buffer is left empty.
    pub(super) fn leave(&mut self, stopped: Stopped) -> Stopped {
        let stopped = match self.write_complete() {
            Flow::Continue(()) => stopped,
            Flow::Break(_) if matches!(stopped, Stopped::Closed(_)) => stopped,
            Flow::Break(blocked) => blocked,
        };
        if let Some(staged) = &mut self.session.staged {
            std::mem::swap(self.turn.scratch, &mut staged.bytes);
        }
        self.turn.scratch.clear();
        stopped
    }

    /// Writes the complete frames in the scratch buffer; an unfinished one moves to its front.
    pub(super) fn write_complete(&mut self) -> Flow {
        if self.complete == 0 {
            return Flow::Continue(());
        }
        let scratch = std::mem::take(self.turn.scratch);
        let complete = std::mem::take(&mut self.complete);
        let result = match self.write(&scratch[..complete]) {
            ControlFlow::Continue(accepted) => self.keep_unsent(&scratch[accepted..complete]),
            ControlFlow::Break(stopped) => Flow::Break(stopped),
        };
        *self.turn.scratch = scratch;
        self.turn.scratch.drain(..complete);
        if let Some(staged) = &mut self.session.staged {
            staged.builder.shift_left(complete);
        }
        result
    }

    pub(super) fn write_pending(&mut self) -> Flow {
        while !self.session.pending.is_empty() {
            let pending = std::mem::take(&mut self.session.pending);
            let result = self.write(&pending.bytes[pending.taken..]);
            self.session.pending = pending;
            let accepted = match result {
                ControlFlow::Continue(accepted) => accepted,
                ControlFlow::Break(stopped) => return Flow::Break(stopped),
            };
            if accepted == 0 {
                return Flow::Break(Stopped::Blocked(Blocked::Socket));
            }
            self.session.pending.taken += accepted;
        }
        self.session.pending.release();
        Flow::Continue(())
    }

    /// Offers bytes to the output and gives how many it took: 0 when it would block.
    pub(super) fn write(&mut self, bytes: &[u8]) -> ControlFlow<Stopped, usize> {
        match self.output.write(bytes) {
            Written::Accepted(count) => {
                self.session.stats.writes += 1;
                self.session.stats.bytes_sent += count as u64;
                self.turn.note_written(count);
                ControlFlow::Continue(count)
            }
            Written::WouldBlock => {
                self.session.stats.writes_blocked += 1;
                ControlFlow::Continue(0)
            }
            Written::Closed(text) => {
                let reason = CloseReason::Output(text);
                self.session.closing = Some(reason.clone());
                ControlFlow::Break(Stopped::Closed(reason))
            }
        }
    }

    /// Keeps the tail that the output did not take: the only bytes that a blocked sender holds. It is offered until the
    /// output says that it would block: only then does whoever drives the session know when there is room again.
    pub(super) fn keep_unsent(&mut self, rest: &[u8]) -> Flow {
        if rest.is_empty() {
            return Flow::Continue(());
        }
        debug_assert!(self.session.pending.is_empty(), "order: nothing may be pending behind a write");
        self.session.pending.release();
        self.session.pending.bytes.extend_from_slice(rest);
        #[cfg(any(test, feature = "testing"))]
        if self.session.is_planted(super::plant::Plant::RepeatEntry) && self.session.staged.is_none() {
            self.session.scanned = Sequence::new(self.session.scanned.get() / 2);
            self.session.inside = None;
        }
        self.write_pending()
    }
}
