//! One change, as bytes.

use bytes::Bytes;

use super::build::EntryDraft;
use super::error::ProtocolError;
use super::ids::TableId;
use super::limits::{ENTRY_KEY_BYTES_MAX, ENTRY_VALUE_BYTES_MAX};

/// Bytes in front of an entry's key and value.
pub const ENTRY_HEADER_BYTES: usize = 20;

/// What an entry does to its row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum EntryKind {
    /// The row has this value now.
    Put,
    /// A change of part of a row. It goes over the wire as the host's bytes; a key-value receiver takes it as a full row.
    Patch,
    /// The row is gone; a tombstone keeps its version.
    Delete,
    /// The row's content is dropped and its key kept; the host fetches it again.
    Invalidate,
    /// An opaque entry without a row.
    Message,
}

impl EntryKind {
    const fn code(self) -> u8 {
        match self {
            Self::Put => 1,
            Self::Patch => 2,
            Self::Delete => 3,
            Self::Invalidate => 4,
            Self::Message => 5,
        }
    }

    fn from_code(code: u8) -> Result<Self, ProtocolError> {
        Ok(match code {
            1 => Self::Put,
            2 => Self::Patch,
            3 => Self::Delete,
            4 => Self::Invalidate,
            5 => Self::Message,
            other => {
                return Err(ProtocolError::Malformed {
                    what: "entry kind",
                    value: u64::from(other),
                    problem: "is not a kind of entry (1 to 5)",
                });
            }
        })
    }
}

/// Marks on an entry. Bits that are not named here are reserved, kept as they are and passed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct EntryFlags(u8);

impl EntryFlags {
    /// No mark.
    pub const NONE: Self = Self(0);
    /// Never leaves this node.
    pub const LOCAL_ONLY: Self = Self(1);
    /// The value names blobs that have to be there before the entry is visible.
    pub const HAS_BLOBS: Self = Self(2);

    /// The marks with these bits.
    #[must_use]
    pub const fn from_bits(bits: u8) -> Self {
        Self(bits)
    }

    /// The bits.
    #[must_use]
    pub const fn bits(self) -> u8 {
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

/// The fixed part of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EntryHeader {
    /// Length of the value in bytes.
    pub value_bytes: u32,
    /// Length of the key in bytes.
    pub key_bytes: u16,
    /// The table, in the log's own short ids.
    pub table: TableId,
    /// Place of the entry in its transaction at the origin. With origin and version it is the entry's identity.
    pub ordinal: u32,
    /// Place of the entry in its transaction in this log: its sequence is the transaction's first plus this.
    pub offset: u32,
    /// What the entry does.
    pub kind: EntryKind,
    /// Its marks.
    pub flags: EntryFlags,
}

impl EntryHeader {
    /// Bytes of the whole entry: header, key and value.
    #[must_use]
    pub const fn encoded_bytes(&self) -> usize {
        ENTRY_HEADER_BYTES + self.key_bytes as usize + self.value_bytes as usize
    }

    /// Appends the header.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut bytes = [0; ENTRY_HEADER_BYTES];
        bytes[0..4].copy_from_slice(&self.value_bytes.to_le_bytes());
        bytes[4..6].copy_from_slice(&self.key_bytes.to_le_bytes());
        bytes[6..8].copy_from_slice(&self.table.0.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.ordinal.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.offset.to_le_bytes());
        bytes[16] = self.kind.code();
        bytes[17] = self.flags.bits();
        out.extend_from_slice(&bytes);
    }

    fn decode(bytes: &[u8; ENTRY_HEADER_BYTES]) -> Result<Self, ProtocolError> {
        let [v0, v1, v2, v3, k0, k1, t0, t1, o0, o1, o2, o3, s0, s1, s2, s3, kind, flags, ..] = *bytes;
        let header = Self {
            value_bytes: u32::from_le_bytes([v0, v1, v2, v3]),
            key_bytes: u16::from_le_bytes([k0, k1]),
            table: TableId(u16::from_le_bytes([t0, t1])),
            ordinal: u32::from_le_bytes([o0, o1, o2, o3]),
            offset: u32::from_le_bytes([s0, s1, s2, s3]),
            kind: EntryKind::from_code(kind)?,
            flags: EntryFlags::from_bits(flags),
        };
        check_length("entry value", header.value_bytes as usize, ENTRY_VALUE_BYTES_MAX)?;
        check_length("entry key", usize::from(header.key_bytes), ENTRY_KEY_BYTES_MAX)?;
        Ok(header)
    }
}

fn check_length(what: &'static str, value: usize, limit: usize) -> Result<(), ProtocolError> {
    if value > limit {
        return Err(ProtocolError::OverLimit { what, value: value as u64, limit: limit as u64 });
    }
    Ok(())
}

/// An entry that lies in a segment's bytes.
#[derive(Debug, Clone, Copy)]
pub struct EntryRef<'a> {
    /// The fixed part.
    pub header: EntryHeader,
    /// The row's key.
    pub key: &'a [u8],
    /// The row's value, or the host's bytes.
    pub value: &'a [u8],
    /// The encoded entry: header, key and value.
    pub encoded: &'a [u8],
}

impl<'a> EntryRef<'a> {
    /// Reads the entry at the start of `bytes`; the rest is left alone.
    ///
    /// # Errors
    /// Cut-off bytes, lengths over their limits, an unknown kind.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, ProtocolError> {
        let Some((head, rest)) = bytes.split_first_chunk::<ENTRY_HEADER_BYTES>() else {
            return Err(ProtocolError::Truncated {
                what: "entry header",
                needed: ENTRY_HEADER_BYTES,
                available: bytes.len(),
            });
        };
        let header = EntryHeader::decode(head)?;
        let truncated = || ProtocolError::Truncated {
            what: "entry",
            needed: header.encoded_bytes(),
            available: bytes.len(),
        };
        let (key, rest) = rest.split_at_checked(usize::from(header.key_bytes)).ok_or_else(truncated)?;
        let value = rest.get(..header.value_bytes as usize).ok_or_else(truncated)?;
        Ok(Self { header, key, value, encoded: &bytes[..header.encoded_bytes()] })
    }
}

/// One change as a host hands it in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The table, in the log's short ids.
    pub table: TableId,
    /// What it does.
    pub kind: EntryKind,
    /// Its marks.
    pub flags: EntryFlags,
    /// The row's key.
    pub key: Bytes,
    /// The row's value; empty for a delete.
    pub value: Bytes,
}

impl Entry {
    /// The row `key` of `table` has `value` now.
    pub fn put(table: TableId, key: impl Into<Bytes>, value: impl Into<Bytes>) -> Self {
        Self { table, kind: EntryKind::Put, flags: EntryFlags::NONE, key: key.into(), value: value.into() }
    }

    /// The row `key` of `table` is gone.
    pub fn delete(table: TableId, key: impl Into<Bytes>) -> Self {
        Self { table, kind: EntryKind::Delete, flags: EntryFlags::NONE, key: key.into(), value: Bytes::new() }
    }

    /// The same entry with more marks.
    #[must_use]
    pub fn marked(self, flags: EntryFlags) -> Self {
        Self { flags: self.flags.with(flags), ..self }
    }

    /// The entry at place `ordinal` of its transaction, ready to be packed.
    #[must_use]
    pub fn draft(&self, ordinal: u32) -> EntryDraft<'_> {
        EntryDraft {
            ordinal,
            table: self.table,
            kind: self.kind,
            flags: self.flags,
            key: &self.key,
            value: &self.value,
        }
    }
}
