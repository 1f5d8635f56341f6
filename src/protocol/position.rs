//! Where a stream stands, and how a log recognises it again.

use super::error::ProtocolError;
use super::ids::{LogId, Sequence, Version};
use super::wire::Reader;

/// Bytes of an encoded [`Boundary`].
pub const BOUNDARY_BYTES: usize = 24;
/// Bytes of an encoded [`Position`].
pub const POSITION_BYTES: usize = 48;

/// What identifies the transaction that ends at a sequence: a log that was restored and written on has
/// another transaction there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Stamp {
    /// The transaction's version.
    pub version: Version,
    /// The checksum of the transaction, of its last part when it spans segments.
    pub checksum: u32,
}

/// The end of a transaction in one log, with its stamp. `Boundary::START` stands before the first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Boundary {
    /// The sequence of the transaction's last entry.
    pub sequence: Sequence,
    /// The transaction's stamp.
    pub stamp: Stamp,
}

impl Boundary {
    /// Before the first transaction of any log.
    pub const START: Self =
        Self { sequence: Sequence::ZERO, stamp: Stamp { version: Version::ZERO, checksum: 0 } };

    /// The bytes: sequence, version, checksum, four reserved bytes.
    #[must_use]
    pub fn to_bytes(self) -> [u8; BOUNDARY_BYTES] {
        let mut bytes = [0; BOUNDARY_BYTES];
        bytes[0..8].copy_from_slice(&self.sequence.get().to_le_bytes());
        bytes[8..16].copy_from_slice(&self.stamp.version.to_bits().to_le_bytes());
        bytes[16..20].copy_from_slice(&self.stamp.checksum.to_le_bytes());
        bytes
    }

    pub(crate) fn read(reader: &mut Reader<'_>) -> Result<Self, ProtocolError> {
        let sequence = Sequence::new(reader.u64("boundary sequence")?);
        let version = Version::from_bits(reader.u64("boundary version")?);
        let checksum = reader.u32("boundary checksum")?;
        reader.u32("boundary reserve")?;
        Ok(Self { sequence, stamp: Stamp { version, checksum } })
    }
}

/// Hash of the canonical bytes of a subscription's tables and origins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Fingerprint(pub u64);

/// "Everything eligible up to here has been handed to this stream."
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Position {
    /// The log that the sequence belongs to.
    pub log: LogId,
    /// The transaction boundary.
    pub boundary: Boundary,
    /// The filter that decided what was eligible.
    pub filter: Fingerprint,
}

impl Position {
    /// The bytes: log, boundary, filter.
    #[must_use]
    pub fn to_bytes(self) -> [u8; POSITION_BYTES] {
        let mut bytes = [0; POSITION_BYTES];
        bytes[0..16].copy_from_slice(self.log.as_bytes());
        bytes[16..40].copy_from_slice(&self.boundary.to_bytes());
        bytes[40..48].copy_from_slice(&self.filter.0.to_le_bytes());
        bytes
    }

    /// Reads a position that fills `bytes`.
    ///
    /// # Errors
    /// When there are too few or too many bytes.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, ProtocolError> {
        let mut reader = Reader::new(bytes);
        let position = Self::read(&mut reader)?;
        reader.finish("position")?;
        Ok(position)
    }

    pub(crate) fn read(reader: &mut Reader<'_>) -> Result<Self, ProtocolError> {
        Ok(Self {
            log: LogId::from_bytes(reader.array("position log")?),
            boundary: Boundary::read(reader)?,
            filter: Fingerprint(reader.u64("position filter")?),
        })
    }
}
