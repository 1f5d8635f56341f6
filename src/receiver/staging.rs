//! Frames on their way to a batch: the parts of a large transaction wait for each other here.

use bytes::Bytes;

use crate::protocol::limits::{FRAME_PAYLOAD_BYTES_MAX, TRANSACTION_BYTES_MAX};
use crate::protocol::{Boundary, ProtocolError, SegmentFlags, SegmentRef, Sequence};

/// Most bytes of one unfinished transaction: the largest transaction and the headers of its parts.
const STAGED_BYTES_MAX: u64 =
    TRANSACTION_BYTES_MAX + TRANSACTION_BYTES_MAX / 8 + FRAME_PAYLOAD_BYTES_MAX as u64;

/// Frames of one unfinished transaction. They are not counted as queued: nothing can be done with them until the rest
/// came, so pausing for them would wait for ever.
#[derive(Debug, Default)]
pub(super) struct Staging {
    frames: Vec<Bytes>,
    bytes: u64,
    /// The last sequence of the unfinished transaction.
    ends_at: Option<Sequence>,
    last: Sequence,
    boundary: Boundary,
}

impl Staging {
    pub(super) fn starting_at(boundary: Boundary) -> Self {
        Self { last: boundary.sequence, boundary, ..Self::default() }
    }

    /// Takes in a verified segment and gives the frames that are complete with it, and the boundary after them.
    pub(super) fn segment(&mut self, frame: Bytes) -> Result<Option<(Vec<Bytes>, Boundary)>, ProtocolError> {
        let segment = SegmentRef::parse(&frame)?;
        let header = *segment.header();
        if header.first <= self.last {
            return Err(ProtocolError::OutOfOrder {
                what: "segment",
                previous: self.last,
                found: header.first,
            });
        }
        self.check_boundary(header.end)?;
        let unfinished = match segment.transaction_at(0)? {
            Some(part) if header.flags.contains(SegmentFlags::CONTINUED) => Some(part.header.last()),
            _ => None,
        };
        self.last = header.last.max(header.end.sequence);
        // The position that comes with the first part of a transaction completes what was staged before it.
        let before = if unfinished.is_some() { self.complete_at(header.end) } else { None };
        self.bytes += frame.len() as u64;
        if self.bytes > STAGED_BYTES_MAX {
            return Err(ProtocolError::OverLimit {
                what: "bytes of an unfinished transaction",
                value: self.bytes,
                limit: STAGED_BYTES_MAX,
            });
        }
        self.frames.push(frame);
        if unfinished.is_none() {
            return Ok(self.complete_at(header.end));
        }
        self.ends_at = unfinished;
        Ok(before)
    }

    /// Takes in a position without data. It may complete a transaction whose last part was left out by the filter.
    pub(super) fn position(
        &mut self,
        boundary: Boundary,
    ) -> Result<Option<(Vec<Bytes>, Boundary)>, ProtocolError> {
        self.check_boundary(boundary)?;
        self.last = self.last.max(boundary.sequence);
        Ok(self.complete_at(boundary))
    }

    fn check_boundary(&self, boundary: Boundary) -> Result<(), ProtocolError> {
        if boundary.sequence < self.boundary.sequence {
            return Err(ProtocolError::OutOfOrder {
                what: "position",
                previous: self.boundary.sequence,
                found: boundary.sequence,
            });
        }
        Ok(())
    }

    fn complete_at(&mut self, boundary: Boundary) -> Option<(Vec<Bytes>, Boundary)> {
        if self.ends_at.is_some_and(|end| boundary.sequence < end) {
            return None;
        }
        let moved = boundary.sequence > self.boundary.sequence;
        self.ends_at = None;
        self.bytes = 0;
        self.boundary = boundary;
        let frames = std::mem::take(&mut self.frames);
        (moved || !frames.is_empty()).then_some((frames, boundary))
    }
}
