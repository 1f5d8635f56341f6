//! What lies in one value of the log and in one frame: whole transactions, or a part of a large one.
//!
//! A [`SegmentRef`] borrows the bytes, frame header included, so that a segment goes from the mapped page to
//! the socket as it lies. Byte tables are in `docs/protocol.md`.

use super::error::ProtocolError;
use super::frame::{FrameHeader, FrameKind};
use super::ids::{OriginId, Sequence, TableId};
use super::limits::{FRAME_HEADER_BYTES, SEGMENT_LIST_MAX};
use super::position::Boundary;
use super::transaction::TransactionRef;
use super::wire::Reader;

/// The segment format that is written, and the only one that is read.
pub const SEGMENT_FORMAT: u16 = 1;
/// Bytes of a segment header without its lists.
pub const SEGMENT_HEADER_BYTES: usize = 80;
/// Bytes of a segment header with full lists.
pub const SEGMENT_HEADER_BYTES_MAX: usize = SEGMENT_HEADER_BYTES + 2 * 2 * SEGMENT_LIST_MAX;

/// Marks on a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct SegmentFlags(pub(super) u16);

impl SegmentFlags {
    /// Whole transactions, everything listed.
    pub const NONE: Self = Self(0);
    /// The segment's one transaction began in an earlier segment.
    pub const CONTINUES: Self = Self(1);
    /// The segment's one transaction goes on in a later segment.
    pub const CONTINUED: Self = Self(2);
    /// At least one entry must not leave the node.
    pub const HAS_LOCAL_ONLY: Self = Self(4);
    /// At least one entry names blobs.
    pub const HAS_BLOBS: Self = Self(8);
    /// The header does not list the tables.
    pub const TABLES_UNLISTED: Self = Self(16);
    /// The header does not list the origins.
    pub const ORIGINS_UNLISTED: Self = Self(32);
    /// A sender left entries out.
    pub const FILTERED: Self = Self(64);

    /// The bits.
    #[must_use]
    pub const fn bits(self) -> u16 {
        self.0
    }

    /// Both sets of marks.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether every mark of `other` is set.
    #[must_use]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }
}

/// The fixed part of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SegmentHeader {
    /// Marks.
    pub flags: SegmentFlags,
    /// Bytes of the header with its lists.
    pub header_bytes: u16,
    /// Tables listed.
    pub tables: u8,
    /// Origins listed.
    pub origins: u8,
    /// Sequence of the first entry.
    pub first: Sequence,
    /// Sequence of the last entry; the segment's key in the log.
    pub last: Sequence,
    /// Entries in the segment.
    pub entries: u32,
    /// Transactions in the segment, a part counted as one.
    pub transactions: u32,
    /// Wall clock of the log's node at the commit, in milliseconds since 1970. For lag and retention only.
    pub commit_ms: u64,
    /// Bytes of the log up to the end of this segment, since the log began.
    pub cumulative_bytes: u64,
    /// The end position: the last transaction boundary that the segment reaches. In a filtered segment it is the
    /// boundary up to which was scanned.
    pub end: Boundary,
    /// Bytes of the transactions.
    pub body_bytes: u32,
}

impl SegmentHeader {
    /// Bytes of the payload: header, lists and transactions.
    #[must_use]
    pub const fn payload_bytes(&self) -> usize {
        (self.header_bytes as usize).saturating_add(self.body_bytes as usize)
    }

    pub(super) fn encode(&self) -> [u8; SEGMENT_HEADER_BYTES] {
        let mut bytes = [0; SEGMENT_HEADER_BYTES];
        bytes[0..2].copy_from_slice(&SEGMENT_FORMAT.to_le_bytes());
        bytes[2..4].copy_from_slice(&self.flags.bits().to_le_bytes());
        bytes[4..6].copy_from_slice(&self.header_bytes.to_le_bytes());
        bytes[6] = self.tables;
        bytes[7] = self.origins;
        bytes[8..16].copy_from_slice(&self.first.get().to_le_bytes());
        bytes[16..24].copy_from_slice(&self.last.get().to_le_bytes());
        bytes[24..28].copy_from_slice(&self.entries.to_le_bytes());
        bytes[28..32].copy_from_slice(&self.transactions.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.commit_ms.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.cumulative_bytes.to_le_bytes());
        bytes[48..72].copy_from_slice(&self.end.to_bytes());
        bytes[72..76].copy_from_slice(&self.body_bytes.to_le_bytes());
        bytes
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, ProtocolError> {
        let format = reader.u16("segment format")?;
        if format != SEGMENT_FORMAT {
            return Err(ProtocolError::UnsupportedVersion {
                what: "segment format",
                found: format,
                oldest: SEGMENT_FORMAT,
                newest: SEGMENT_FORMAT,
            });
        }
        let header = Self {
            flags: SegmentFlags(reader.u16("segment flags")?),
            header_bytes: reader.u16("segment header length")?,
            tables: reader.u8("segment table count")?,
            origins: reader.u8("segment origin count")?,
            first: Sequence::new(reader.u64("segment first sequence")?),
            last: Sequence::new(reader.u64("segment last sequence")?),
            entries: reader.u32("segment entry count")?,
            transactions: reader.u32("segment transaction count")?,
            commit_ms: reader.u64("segment commit time")?,
            cumulative_bytes: reader.u64("segment cumulative bytes")?,
            end: Boundary::read(reader)?,
            body_bytes: reader.u32("segment body length")?,
        };
        reader.u32("segment reserve")?;
        Ok(header)
    }

    fn check(&self) -> Result<(), ProtocolError> {
        let lists = 2 * (usize::from(self.tables) + usize::from(self.origins));
        if usize::from(self.tables.max(self.origins)) > SEGMENT_LIST_MAX {
            return Err(ProtocolError::OverLimit {
                what: "segment list",
                value: u64::from(self.tables.max(self.origins)),
                limit: SEGMENT_LIST_MAX as u64,
            });
        }
        if usize::from(self.header_bytes) != SEGMENT_HEADER_BYTES + lists {
            return Err(ProtocolError::Malformed {
                what: "segment header length",
                value: u64::from(self.header_bytes),
                problem: "does not fit its lists",
            });
        }
        if self.first > self.last || self.first == Sequence::ZERO {
            return Err(ProtocolError::OutOfOrder {
                what: "segment range",
                previous: self.first,
                found: self.last,
            });
        }
        Ok(())
    }
}

/// A segment in its bytes.
#[derive(Debug, Clone, Copy)]
pub struct SegmentRef<'a> {
    frame: &'a [u8],
    header: SegmentHeader,
}

impl<'a> SegmentRef<'a> {
    /// Reads the segment frame that fills `frame`: frame header, segment header and lists are checked here, the
    /// transactions when they are visited.
    ///
    /// # Errors
    /// Wrong lengths, checksums, versions or ranges.
    pub fn parse(frame: &'a [u8]) -> Result<Self, ProtocolError> {
        let frame_header = FrameHeader::decode(frame)?;
        if frame_header.kind != FrameKind::SEGMENT {
            return Err(ProtocolError::Malformed {
                what: "frame type of a segment",
                value: u64::from(frame_header.kind.0),
                problem: "is not the segment type",
            });
        }
        let mut reader = Reader::new(&frame[FRAME_HEADER_BYTES..]);
        let payload = reader.rest();
        let header = SegmentHeader::read(&mut reader)?;
        header.check()?;
        let available = payload.len();
        let needed = header.payload_bytes().max(frame_header.payload_bytes as usize);
        if needed > available {
            return Err(ProtocolError::Truncated { what: "segment", needed, available });
        }
        if header.payload_bytes().min(frame_header.payload_bytes as usize) != available {
            return Err(ProtocolError::Malformed {
                what: "payload of a segment",
                value: available as u64,
                problem: "is longer than its header and its transactions",
            });
        }
        let computed = crc32fast::hash(&payload[..usize::from(header.header_bytes)]);
        if computed != frame_header.payload_crc {
            return Err(ProtocolError::Checksum {
                what: "segment header",
                found: frame_header.payload_crc,
                computed,
            });
        }
        Ok(Self { frame, header })
    }

    /// The whole frame, as it goes over the wire.
    #[must_use]
    pub const fn frame(&self) -> &'a [u8] {
        self.frame
    }

    /// The fixed part.
    #[must_use]
    pub const fn header(&self) -> &SegmentHeader {
        &self.header
    }

    /// The tables inside, or `None` when the header does not list them.
    #[must_use]
    pub fn tables(&self) -> Option<impl Iterator<Item = TableId> + use<'a>> {
        let listed = !self.header.flags.contains(SegmentFlags::TABLES_UNLISTED);
        listed.then(|| self.list(0, self.header.tables).map(TableId))
    }

    /// The origins inside, or `None` when the header does not list them.
    #[must_use]
    pub fn origins(&self) -> Option<impl Iterator<Item = OriginId> + use<'a>> {
        let listed = !self.header.flags.contains(SegmentFlags::ORIGINS_UNLISTED);
        listed.then(|| self.list(self.header.tables, self.header.origins).map(OriginId))
    }

    fn list(&self, skip: u8, count: u8) -> impl Iterator<Item = u16> + use<'a> {
        let start = FRAME_HEADER_BYTES + SEGMENT_HEADER_BYTES + 2 * usize::from(skip);
        let bytes = &self.frame[start..start + 2 * usize::from(count)];
        bytes.chunks_exact(2).map(|pair| u16::from_le_bytes([pair[0], pair[1]]))
    }

    fn body(&self) -> &'a [u8] {
        &self.frame[FRAME_HEADER_BYTES + usize::from(self.header.header_bytes)..]
    }

    /// The transaction at `offset` bytes into the body, or `None` at its end.
    ///
    /// # Errors
    /// Cut-off bytes, or a range that leaves the segment's.
    pub fn transaction_at(&self, offset: usize) -> Result<Option<TransactionRef<'a>>, ProtocolError> {
        let rest = self.body().get(offset..).unwrap_or_default();
        if rest.is_empty() {
            return Ok(None);
        }
        let transaction = TransactionRef::decode(rest)?;
        let (first, last) = (transaction.header.first, transaction.header.last());
        if first > self.header.last || last < self.header.first {
            return Err(ProtocolError::OutOfOrder {
                what: "transaction outside its segment",
                previous: self.header.last,
                found: first,
            });
        }
        Ok(Some(transaction))
    }

    /// The transactions in order. The iterator ends after its first error.
    pub fn transactions(&self) -> impl Iterator<Item = Result<TransactionRef<'a>, ProtocolError>> + use<'a> {
        let segment = *self;
        let mut offset = Some(0);
        std::iter::from_fn(move || {
            let item = segment.transaction_at(offset?).transpose()?;
            offset = match &item {
                Ok(transaction) => offset.map(|offset| offset + transaction.encoded.len()),
                Err(_) => None,
            };
            Some(item)
        })
    }

    /// The boundary of the transaction that ends at `sequence`, or `None` when none in this segment does.
    ///
    /// # Errors
    /// A transaction that cannot be read.
    pub fn boundary_at(&self, sequence: Sequence) -> Result<Option<Boundary>, ProtocolError> {
        for transaction in self.transactions() {
            if let Some(boundary) = transaction?.boundary().filter(|boundary| boundary.sequence == sequence) {
                return Ok(Some(boundary));
            }
        }
        Ok(None)
    }
}
