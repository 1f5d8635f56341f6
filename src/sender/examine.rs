//! The slow path of the send loop: a segment that is eligible in part, or entered in its middle.

use std::ops::Range;

use crate::protocol::{
    Boundary, EntryFlags, EntryRef, EntryRun, Lists, ProtocolError, SegmentBuilder, SegmentEnd, SegmentFlags,
    SegmentRef, Sequence, TransactionRef,
};
use crate::store::StoreError;

use super::budget::YieldPolicy;
use super::filter::SkipReason;
use super::pump::{Flow, Pump};
use super::session::{Inside, Staged, Stopped};

/// Neighbouring eligible entries that were examined and not copied yet.
#[derive(Debug, Default)]
struct Run {
    bytes: Range<usize>,
    entries: Option<EntryRun>,
}

impl Run {
    const fn starting_at(offset: usize) -> Self {
        Self { bytes: offset..offset, entries: None }
    }

    fn extend(&mut self, entry: &EntryRef<'_>, sequence: Sequence) {
        let has_blobs = entry.header.flags.contains(EntryFlags::HAS_BLOBS);
        let run =
            self.entries.get_or_insert(EntryRun { entries: 0, first: sequence, last: sequence, has_blobs });
        run.entries += 1;
        run.last = sequence;
        run.has_blobs |= has_blobs;
        self.bytes.end += entry.encoded.len();
    }
}

impl Pump<'_, '_> {
    /// Goes through a segment transaction by transaction, from where it was left. Eligible transactions and runs of
    /// eligible entries are copied into one frame, which ends with the segment and carries its end position.
    pub(super) fn examine(&mut self, segment: &SegmentRef<'_>, by_origin_only: bool) -> Flow {
        let last = segment.header().last;
        let mut place = match self.session.inside {
            Some(inside) if inside.segment == last => inside,
            _ => {
                self.introduce(segment)?;
                Inside { segment: last, transaction_offset: 0, entry_offset: 0 }
            }
        };
        loop {
            let transaction = match segment.transaction_at(place.transaction_offset) {
                Ok(Some(transaction)) => transaction,
                Ok(None) => break,
                Err(error) => return Flow::Break(self.corrupt(segment, error)),
            };
            self.session.inside = Some(place);
            let next = Inside {
                transaction_offset: place.transaction_offset + transaction.encoded.len(),
                entry_offset: 0,
                ..place
            };
            if transaction.boundary().is_some() && transaction.header.last() <= self.session.scanned {
                // Before the start of this stream.
                place = next;
                self.session.inside = Some(place);
                self.after_unit(1, 0)?;
                continue;
            }
            self.examine_transaction(segment, &transaction, place, next, by_origin_only)?;
            place = next;
        }
        Flow::Continue(())
    }

    fn examine_transaction(
        &mut self,
        segment: &SegmentRef<'_>,
        transaction: &TransactionRef<'_>,
        place: Inside,
        next: Inside,
        by_origin_only: bool,
    ) -> Flow {
        if place.entry_offset == 0 {
            match self.session.filter.origin(self.log, transaction.header.origin) {
                Err(error) => return Flow::Break(self.store_failed(&error)),
                Ok(Some(reason)) => {
                    return self.skip_transaction(segment, transaction, next, reason);
                }
                Ok(None) if by_origin_only => return self.send_transaction(segment, transaction, next),
                Ok(None) => {}
            }
            // It is about to be taken apart: what is parsed has to be what was written.
            if let Err(error) = transaction.verify() {
                return Flow::Break(self.corrupt(segment, error));
            }
        }
        self.examine_entries(segment, transaction, place, next)
    }

    fn skip_transaction(
        &mut self,
        segment: &SegmentRef<'_>,
        transaction: &TransactionRef<'_>,
        next: Inside,
        reason: SkipReason,
    ) -> Flow {
        let entries = transaction.header.entries;
        self.note_skipped(u64::from(entries), reason);
        self.pass_transaction(segment, transaction, next);
        self.after_unit(entries, 0)
    }

    fn send_transaction(
        &mut self,
        segment: &SegmentRef<'_>,
        transaction: &TransactionRef<'_>,
        next: Inside,
    ) -> Flow {
        let entries = transaction.header.entries;
        let last = part_end(segment, transaction);
        let first = Sequence::new(last.get().saturating_sub(u64::from(entries) - 1));
        let has_blobs = segment.header().flags.contains(SegmentFlags::HAS_BLOBS);
        let staged = self.session.staged.get_or_insert_with(|| start_frame(self.turn.scratch));
        staged.builder.push_untouched(
            self.turn.scratch,
            transaction,
            &EntryRun { entries, first, last, has_blobs },
        );
        self.session.stats.entries_sent += u64::from(entries);
        self.pass_transaction(segment, transaction, next);
        self.after_unit(entries, transaction.encoded.len())
    }

    fn examine_entries(
        &mut self,
        segment: &SegmentRef<'_>,
        transaction: &TransactionRef<'_>,
        mut place: Inside,
        next: Inside,
    ) -> Flow {
        let mut run = Run::starting_at(place.entry_offset);
        let mut last_bytes = 0;
        loop {
            let entry = match transaction.entry_at(place.entry_offset) {
                Ok(Some(entry)) => entry,
                Ok(None) => break,
                Err(error) => return Flow::Break(self.corrupt(segment, error)),
            };
            let sequence = transaction.sequence_of(&entry);
            place.entry_offset += entry.encoded.len();
            match self.session.filter.entry(self.log, transaction, &entry) {
                Err(error) => return Flow::Break(self.store_failed(&error)),
                Ok(None) if self.drops(sequence) => run = self.copy_run(transaction, &run, place),
                Ok(None) => run.extend(&entry, sequence),
                Ok(Some(reason)) => {
                    self.note_skipped(1, reason);
                    run = self.copy_run(transaction, &run, place);
                }
            }
            self.session.scanned = sequence;
            self.session.inside = Some(place);
            if place.entry_offset < transaction.header.bytes as usize {
                let flow = self.after_unit(1, entry.encoded.len());
                if flow.is_break() {
                    self.copy_run(transaction, &run, place);
                    return flow;
                }
            } else {
                // Counted at the end of the transaction, once: it may be the only one, and as large as three units.
                last_bytes = entry.encoded.len();
            }
        }
        self.end_examined(segment, transaction, &run, next);
        self.after_unit(1, last_bytes)
    }

    fn end_examined(
        &mut self,
        segment: &SegmentRef<'_>,
        transaction: &TransactionRef<'_>,
        run: &Run,
        next: Inside,
    ) {
        let untouched = run.bytes == (0..transaction.header.bytes as usize);
        if let (true, Some(entries)) = (untouched, &run.entries) {
            let staged = self.session.staged.get_or_insert_with(|| start_frame(self.turn.scratch));
            staged.builder.push_untouched(self.turn.scratch, transaction, entries);
            self.session.stats.entries_sent += u64::from(entries.entries);
        } else {
            self.copy_run(transaction, run, next);
            if let Some(staged) =
                self.session.staged.as_mut().filter(|staged| staged.builder.in_transaction())
            {
                staged.builder.mark(SegmentFlags::FILTERED);
                staged.builder.end_transaction(self.turn.scratch);
            }
        }
        self.pass_transaction(segment, transaction, next);
        if self.turn.policy() == YieldPolicy::PerRecord {
            // The baseline coalesces its writes per transaction and no further.
            self.close_frame(self.session.boundary, segment);
        }
    }

    /// Copies a run into the frame being filled, and gives the empty run after it.
    fn copy_run(&mut self, transaction: &TransactionRef<'_>, run: &Run, place: Inside) -> Run {
        if let Some(entries) = &run.entries {
            let scratch = &mut *self.turn.scratch;
            let staged = self.session.staged.get_or_insert_with(|| start_frame(scratch));
            if !staged.builder.in_transaction() {
                staged.builder.begin_transaction(scratch, transaction.header);
            }
            let encoded =
                &transaction.encoded[crate::protocol::TRANSACTION_HEADER_BYTES..][run.bytes.clone()];
            staged.builder.push_run(scratch, entries, encoded);
            self.session.stats.entries_sent += u64::from(entries.entries);
        }
        Run::starting_at(place.entry_offset)
    }

    fn pass_transaction(&mut self, segment: &SegmentRef<'_>, transaction: &TransactionRef<'_>, next: Inside) {
        let header = segment.header();
        self.session.scanned = part_end(segment, transaction);
        self.session.inside = Some(next);
        if let Some(boundary) = transaction.boundary() {
            self.session.boundary = boundary;
        }
        if self.session.scanned == header.last {
            // The scan will not lend this segment again, so its frame ends here.
            self.close_frame(header.end, segment);
            self.pass(header.last, header.end);
        }
    }

    /// Closes the frame being filled, if it has entries, with `end` as its end position.
    fn close_frame(&mut self, end: Boundary, segment: &SegmentRef<'_>) {
        let header = segment.header();
        self.finish_staged(&SegmentEnd {
            boundary: end,
            commit_ms: header.commit_ms,
            cumulative_bytes: header.cumulative_bytes,
        });
    }

    /// Closes the frame being filled because a position is due. Inside a transaction there is none to give: the
    /// frame then stays open, and the next boundary is reported.
    pub(super) fn close_frame_at_boundary(&mut self) -> Flow {
        let in_transaction =
            self.session.staged.as_ref().is_some_and(|staged| staged.builder.in_transaction());
        if !in_transaction {
            self.session.timer.disarm();
            self.finish_staged(&SegmentEnd {
                boundary: self.session.boundary,
                commit_ms: 0,
                cumulative_bytes: 0,
            });
        }
        Flow::Continue(())
    }

    fn finish_staged(&mut self, end: &SegmentEnd) {
        let Some(mut staged) = self.session.staged.take() else { return };
        staged.builder.mark(SegmentFlags::FILTERED);
        staged.builder.finish(self.turn.scratch, end);
        self.complete = self.turn.scratch.len();
        self.session.announced = end.boundary;
        self.session.stats.segments_filtered += 1;
    }

    fn corrupt(&mut self, segment: &SegmentRef<'_>, source: ProtocolError) -> Stopped {
        self.store_failed(&StoreError::Corrupt { what: "segment", key: segment.header().last, source })
    }

    #[cfg(any(test, feature = "testing"))]
    fn drops(&self, sequence: Sequence) -> bool {
        self.session.is_planted(super::plant::Plant::DropEntry) && sequence.get().is_multiple_of(7)
    }

    #[cfg(not(any(test, feature = "testing")))]
    #[expect(clippy::unused_self, reason = "the planted fault needs it")]
    const fn drops(&self, _sequence: Sequence) -> bool {
        false
    }
}

fn start_frame(scratch: &mut Vec<u8>) -> Staged {
    Staged { builder: SegmentBuilder::start(scratch, Lists::Unlisted), bytes: Vec::new() }
}

/// The sequence of the last entry of a transaction that lies in this segment.
const fn part_end(segment: &SegmentRef<'_>, transaction: &TransactionRef<'_>) -> Sequence {
    if transaction.is_continued() { segment.header().last } else { transaction.header.last() }
}
