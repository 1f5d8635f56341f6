//! A transaction, or the part of one that lies in one segment.

use super::entry::EntryRef;
use super::error::ProtocolError;
use super::ids::{OriginId, Sequence, Version};
use super::position::{Boundary, Stamp};
use super::segment::SegmentFlags;
use super::wire::Reader;

/// Bytes in front of a transaction's entries.
pub const TRANSACTION_HEADER_BYTES: usize = 40;
/// Bytes of a transaction header that its checksum covers.
pub(super) const TRANSACTION_CHECKED_BYTES: usize = 32;

/// The fixed part of a transaction, or of the part of it that lies in one segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TransactionHeader {
    /// Sequence of the first entry of the whole transaction in this log.
    pub first: Sequence,
    /// When the origin wrote it.
    pub version: Version,
    /// The node that first wrote it, in the log's short ids.
    pub origin: OriginId,
    /// [`SegmentFlags::CONTINUES`] and [`SegmentFlags::CONTINUED`], for this part.
    pub flags: SegmentFlags,
    /// Entries in this part.
    pub entries: u32,
    /// Bytes of the entries in this part.
    pub bytes: u32,
    /// Entries of the whole transaction in this log, whatever a filter left out.
    pub total_entries: u32,
}

impl TransactionHeader {
    /// Sequence of the last entry of the whole transaction in this log.
    #[must_use]
    pub const fn last(&self) -> Sequence {
        self.first.plus(self.total_entries.saturating_sub(1) as u64)
    }

    pub(super) fn encode_checked(&self) -> [u8; TRANSACTION_CHECKED_BYTES] {
        let mut bytes = [0; TRANSACTION_CHECKED_BYTES];
        bytes[0..8].copy_from_slice(&self.first.get().to_le_bytes());
        bytes[8..16].copy_from_slice(&self.version.to_bits().to_le_bytes());
        bytes[16..18].copy_from_slice(&self.origin.0.to_le_bytes());
        bytes[18..20].copy_from_slice(&self.flags.bits().to_le_bytes());
        bytes[20..24].copy_from_slice(&self.entries.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.bytes.to_le_bytes());
        bytes[28..32].copy_from_slice(&self.total_entries.to_le_bytes());
        bytes
    }
}

/// A transaction, or the part of one, in its bytes.
#[derive(Debug, Clone, Copy)]
pub struct TransactionRef<'a> {
    /// The fixed part.
    pub header: TransactionHeader,
    /// The encoded transaction: header and entries.
    pub encoded: &'a [u8],
    /// The checksum that is stored in it.
    pub checksum: u32,
}

impl<'a> TransactionRef<'a> {
    pub(super) fn decode(bytes: &'a [u8]) -> Result<Self, ProtocolError> {
        let mut reader = Reader::new(bytes);
        let header = TransactionHeader {
            first: Sequence::new(reader.u64("transaction first sequence")?),
            version: Version::from_bits(reader.u64("transaction version")?),
            origin: OriginId(reader.u16("transaction origin")?),
            flags: SegmentFlags(reader.u16("transaction flags")?),
            entries: reader.u32("transaction entry count")?,
            bytes: reader.u32("transaction length")?,
            total_entries: reader.u32("transaction total entries")?,
        };
        let checksum = reader.u32("transaction checksum")?;
        reader.u32("transaction reserve")?;
        reader.bytes(header.bytes as usize, "transaction entries")?;
        if header.entries == 0 || header.entries > header.total_entries {
            return Err(ProtocolError::Malformed {
                what: "transaction entry count",
                value: u64::from(header.entries),
                problem: "is zero or above the transaction's total",
            });
        }
        Ok(Self { header, encoded: &bytes[..TRANSACTION_HEADER_BYTES + header.bytes as usize], checksum })
    }

    /// Checks the checksum and the entry count.
    ///
    /// # Errors
    /// When one of them is not what the bytes give.
    pub fn verify(&self) -> Result<(), ProtocolError> {
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(&self.encoded[..TRANSACTION_CHECKED_BYTES]);
        hasher.update(&self.encoded[TRANSACTION_HEADER_BYTES..]);
        let computed = hasher.finalize();
        if computed != self.checksum {
            return Err(ProtocolError::Checksum { what: "transaction", found: self.checksum, computed });
        }
        let mut counted = 0_u32;
        for entry in self.entries() {
            entry?;
            counted += 1;
        }
        check_count("transaction entry count", self.header.entries, counted)
    }

    /// The entry at `offset` bytes into the entries, or `None` at their end.
    ///
    /// # Errors
    /// Cut-off bytes, lengths over their limits, an unknown kind.
    pub fn entry_at(&self, offset: usize) -> Result<Option<EntryRef<'a>>, ProtocolError> {
        let entries = self.encoded.get(TRANSACTION_HEADER_BYTES..).unwrap_or_default();
        let rest = entries.get(offset..).unwrap_or_default();
        if rest.is_empty() { Ok(None) } else { EntryRef::decode(rest).map(Some) }
    }

    /// The entries in order. The iterator ends after its first error.
    pub fn entries(&self) -> impl Iterator<Item = Result<EntryRef<'a>, ProtocolError>> + use<'a> {
        let transaction = *self;
        let mut offset = Some(0);
        std::iter::from_fn(move || {
            let item = transaction.entry_at(offset?).transpose()?;
            offset = match &item {
                Ok(entry) => offset.map(|offset| offset + entry.encoded.len()),
                Err(_) => None,
            };
            Some(item)
        })
    }

    /// The sequence of one of its entries.
    #[must_use]
    pub const fn sequence_of(&self, entry: &EntryRef<'_>) -> Sequence {
        self.header.first.plus(entry.header.offset as u64)
    }

    /// Whether the transaction goes on in a later segment.
    #[must_use]
    pub const fn is_continued(&self) -> bool {
        self.header.flags.contains(SegmentFlags::CONTINUED)
    }

    /// Whether the transaction began in an earlier segment.
    #[must_use]
    pub const fn continues(&self) -> bool {
        self.header.flags.contains(SegmentFlags::CONTINUES)
    }

    /// The boundary at the transaction's end. Only its last part has one.
    #[must_use]
    pub const fn boundary(&self) -> Option<Boundary> {
        if self.is_continued() {
            return None;
        }
        let stamp = Stamp { version: self.header.version, checksum: self.checksum };
        Some(Boundary { sequence: self.header.last(), stamp })
    }
}

/// Compares a count that was stated with what was counted.
pub(super) fn check_count(what: &'static str, stated: u32, counted: u32) -> Result<(), ProtocolError> {
    if stated != counted {
        return Err(ProtocolError::Malformed {
            what,
            value: u64::from(stated),
            problem: "is not what was counted",
        });
    }
    Ok(())
}
