//! What a node has of one source.

use super::error::ProtocolError;
use super::ids::{LogId, Sequence};
use super::position::{Boundary, Position};
use super::selection::Selection;
use super::wire::Reader;

/// Most coverages that are kept of one source.
pub const COVERAGES_MAX: usize = 8;

/// Most bytes of coverages in a subscription. What does not fit is left out: it is then sent again.
const COVERAGE_BYTES_MAX: usize = 16 * 1024;

/// Every entry of a log up to a boundary that a selection selects is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Coverage {
    /// What was selected.
    pub selection: Selection,
    /// Up to where.
    pub boundary: Boundary,
}

impl Coverage {
    fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.boundary.to_bytes());
        self.selection.encode(out);
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, ProtocolError> {
        Ok(Self { boundary: Boundary::read(reader)?, selection: Selection::read(reader)? })
    }
}

/// What a node has of one source: the log, and what of it is covered. Stored with the data that it speaks of.
///
/// A filter that changes on the way leaves more than one coverage: a stream with a narrower filter moves its own one on
/// and leaves the wider one where it was. When the filter widens again, only what lies after that is read again, and what
/// the narrower one covers is not sent a second time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceState {
    log: LogId,
    /// Never empty; the one that moved last stands in front.
    covered: Vec<Coverage>,
}

impl SourceState {
    /// A state with one coverage.
    #[must_use]
    pub fn new(log: LogId, selection: Selection, boundary: Boundary) -> Self {
        Self { log, covered: vec![Coverage { selection, boundary }] }
    }

    /// The log that the boundaries belong to.
    #[must_use]
    pub const fn log(&self) -> LogId {
        self.log
    }

    /// What is covered, the coverage that moved last in front.
    #[must_use]
    pub fn covered(&self) -> &[Coverage] {
        &self.covered
    }

    /// The position of the stream that moved last.
    #[must_use]
    pub fn position(&self) -> Position {
        let front = &self.covered[0];
        Position { log: self.log, boundary: front.boundary, filter: front.selection.fingerprint() }
    }

    /// The boundary that is furthest in the log, whatever it covers.
    #[must_use]
    pub fn furthest(&self) -> Sequence {
        self.covered.iter().map(|coverage| coverage.boundary.sequence).max().unwrap_or(Sequence::ZERO)
    }

    /// How far a stream of exactly `selection` got, or what covers it.
    #[must_use]
    pub fn boundary_of(&self, selection: &Selection) -> Option<Boundary> {
        furthest_start(&self.covered, selection)
    }

    /// The stream of `selection` got to `boundary` in `log`. Another log than before forgets what was.
    pub fn advance(&mut self, log: LogId, selection: &Selection, boundary: Boundary) {
        if self.log != log {
            *self = Self::new(log, selection.clone(), boundary);
            return;
        }
        match self.covered.iter().position(|coverage| coverage.selection == *selection) {
            Some(at) => {
                self.covered[..=at].rotate_right(1);
                self.covered[0].boundary = boundary;
            }
            None => self.covered.insert(0, Coverage { selection: selection.clone(), boundary }),
        }
        if self.covered.len() > 1 {
            self.forget_dominated();
        }
    }

    /// A coverage says nothing more once a wider one is as far. Beyond the most that are kept, the one that is furthest
    /// behind goes: forgetting one only means that its entries are sent again.
    fn forget_dominated(&mut self) {
        let front = self.covered[0].clone();
        let mut index = 0;
        self.covered.retain(|coverage| {
            index += 1;
            index == 1
                || coverage.boundary.sequence > front.boundary.sequence
                || !front.selection.covers(&coverage.selection)
        });
        while self.covered.len() > COVERAGES_MAX {
            let behind = (1..self.covered.len()).min_by_key(|at| self.covered[*at].boundary.sequence);
            self.covered.remove(behind.unwrap_or(1));
        }
    }

    /// The bytes: format, log, count, then each coverage. See `docs/protocol.md`.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(64);
        out.push(1);
        out.extend_from_slice(self.log.as_bytes());
        encode_coverages(&self.covered, &mut out);
        out
    }

    /// Reads a state that fills `bytes`.
    ///
    /// # Errors
    /// Bytes of another format, cut off, or without a coverage.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, ProtocolError> {
        let mut reader = Reader::new(bytes);
        let format = reader.u8("source state format")?;
        if format != 1 {
            return Err(ProtocolError::Malformed {
                what: "source state format",
                value: u64::from(format),
                problem: "is not 1",
            });
        }
        let log = LogId::from_bytes(reader.array("source state log")?);
        let covered = read_coverages(&mut reader)?;
        reader.finish("source state")?;
        if covered.is_empty() {
            return Err(ProtocolError::Malformed {
                what: "coverages of a source state",
                value: 0,
                problem: "is their count, at least one is needed",
            });
        }
        Ok(Self { log, covered })
    }

    /// The same state with as many coverages as a subscription can carry.
    pub(super) fn cut_to_fit(mut self) -> Option<Self> {
        let mut bytes = 0;
        self.covered.retain(|coverage| {
            let mut encoded = Vec::new();
            coverage.encode(&mut encoded);
            bytes += encoded.len();
            bytes <= COVERAGE_BYTES_MAX
        });
        (!self.covered.is_empty()).then_some(self)
    }

    pub(super) fn encode_without_format(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self.log.as_bytes());
        encode_coverages(&self.covered, out);
    }

    pub(super) fn read_without_format(reader: &mut Reader<'_>) -> Result<Self, ProtocolError> {
        let log = LogId::from_bytes(reader.array("log of the coverages")?);
        let covered = read_coverages(reader)?;
        if covered.is_empty() {
            return Err(ProtocolError::Malformed {
                what: "coverages of a subscription",
                value: 0,
                problem: "is their count, at least one is needed",
            });
        }
        Ok(Self { log, covered })
    }
}

/// Where a stream of `selection` starts when this is covered: at the furthest boundary that covers all of it.
#[must_use]
pub fn furthest_start<'a>(
    covered: impl IntoIterator<Item = &'a Coverage>,
    selection: &Selection,
) -> Option<Boundary> {
    let covers = |coverage: &&Coverage| coverage.selection.covers(selection);
    covered
        .into_iter()
        .filter(covers)
        .map(|coverage| coverage.boundary)
        .max_by_key(|boundary| boundary.sequence)
}

fn encode_coverages(covered: &[Coverage], out: &mut Vec<u8>) {
    out.push(u8::try_from(covered.len()).unwrap_or(u8::MAX));
    covered.iter().for_each(|coverage| coverage.encode(out));
}

fn read_coverages(reader: &mut Reader<'_>) -> Result<Vec<Coverage>, ProtocolError> {
    let count = usize::from(reader.u8("count of coverages")?);
    if count > COVERAGES_MAX {
        let (value, limit) = (count as u64, COVERAGES_MAX as u64);
        return Err(ProtocolError::OverLimit { what: "count of coverages", value, limit });
    }
    (0..count).map(|_| Coverage::read(reader)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{NameFilter, Stamp, TableName, Version};

    fn only(names: &[&str]) -> Selection {
        let names = names.iter().filter_map(|name| TableName::new(*name).ok()).collect();
        Selection::new(NameFilter::Include(names), NameFilter::All).expect("valid")
    }

    fn at(sequence: u64) -> Boundary {
        let stamp = Stamp { version: Version::new(sequence, 0), checksum: 7 };
        Boundary { sequence: Sequence::new(sequence), stamp }
    }

    const LOG: LogId = LogId::from_bytes([1; 16]);

    #[test]
    fn a_filter_that_narrows_and_widens_again_starts_where_the_added_part_was_left() {
        let mut state = SourceState::new(LOG, only(&["a", "b"]), at(100));
        state.advance(LOG, &only(&["a"]), at(500));
        let start = |selection| furthest_start(state.covered(), &selection);
        assert_eq!(start(only(&["a"])), Some(at(500)), "narrowing keeps the position");
        assert_eq!(start(only(&["a", "b"])), Some(at(100)));
        assert_eq!(start(only(&["b"])), Some(at(100)));
        assert_eq!(start(only(&["c"])), None, "never covered");
        state.advance(LOG, &only(&["a", "b"]), at(300));
        assert_eq!(state.covered().len(), 2, "the narrower one is further");
        state.advance(LOG, &only(&["a", "b"]), at(500));
        assert_eq!(state.covered().len(), 1, "the wider one is as far");
        assert_eq!(state.position().boundary, at(500));
    }

    #[test]
    fn another_log_forgets_and_the_coverage_that_is_furthest_behind_is_dropped_first() {
        let mut state = SourceState::new(LOG, only(&["t0"]), at(1));
        for number in 1..20 {
            state.advance(LOG, &only(&[&format!("t{number}")]), at(100 - number));
        }
        assert_eq!(state.covered().len(), COVERAGES_MAX);
        assert_eq!(state.position().filter, only(&["t19"]).fingerprint());
        assert!(state.covered()[1..].iter().all(|coverage| coverage.boundary.sequence >= at(93).sequence));
        let other = LogId::from_bytes([2; 16]);
        state.advance(other, &only(&["a"]), at(3));
        assert_eq!((state.log(), state.covered().len()), (other, 1));
    }

    #[test]
    fn a_state_reads_back_and_cut_off_or_empty_bytes_are_an_error() {
        let mut state = SourceState::new(LOG, only(&["a", "b"]), at(100));
        state.advance(LOG, &only(&["a"]), at(500));
        let bytes = state.to_bytes();
        assert_eq!(SourceState::from_bytes(&bytes), Ok(state));
        for end in 0..bytes.len() {
            assert!(SourceState::from_bytes(&bytes[..end]).is_err(), "{end} bytes");
        }
        assert!(SourceState::from_bytes(&[&bytes[..], &[0]].concat()).is_err());
        assert!(SourceState::from_bytes(&[&[9], &bytes[1..]].concat()).is_err());
    }
}
