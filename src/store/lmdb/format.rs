//! The bytes of everything in the environment but the segments. Byte tables are in `docs/storage.md`.

use crate::protocol::wire::Reader;
use crate::protocol::{
    BOUNDARY_BYTES, Boundary, LogId, LogTail, NodeName, OriginId, ProtocolError, Sequence, TableDefinition,
    TableId, TableName, Version,
};

/// The layout that is written, and the only one that is read.
pub(super) const STORE_FORMAT: u32 = 2;

/// Names of the databases. They are fixed, so nothing that a host passes in reaches LMDB as a name.
pub(super) const LOG: &str = "auditstream.log";
pub(super) const META: &str = "auditstream.meta";
pub(super) const NAMES: &str = "auditstream.names";
pub(super) const POSITIONS: &str = "auditstream.positions";
pub(super) const ROWS: &str = "auditstream.rows";
pub(super) const IDENTITIES: &str = "auditstream.identities";

/// Keys of the meta database.
pub(super) const META_FORMAT: &str = "format";
pub(super) const META_NODE: &str = "node";
pub(super) const META_LOG: &str = "log";
pub(super) const META_TAIL: &str = "tail";
pub(super) const META_SESSION: &str = "session";
pub(super) const META_FORK: &str = "fork";

/// Bytes in front of a row's value.
pub(super) const ROW_HEADER_BYTES: usize = 16;

const ROW_DELETED: u8 = 1;
const ROW_INVALIDATED: u8 = 2;

/// The key of a segment: the sequence of its last entry.
pub(super) const fn log_key(last: Sequence) -> [u8; 8] {
    last.get().to_be_bytes()
}

/// The sequence in a key of the log.
pub(super) fn read_log_key(key: &[u8]) -> Result<Sequence, ProtocolError> {
    let bytes: [u8; 8] = key.try_into().map_err(|_| ProtocolError::Malformed {
        what: "length of a log key",
        value: key.len() as u64,
        problem: "is not 8",
    })?;
    Ok(Sequence::new(u64::from_be_bytes(bytes)))
}

/// Where the log ends and the greatest version that it holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct StoredTail {
    pub(super) tail: LogTail,
    pub(super) latest: Version,
}

impl StoredTail {
    pub(super) fn to_bytes(self) -> [u8; BOUNDARY_BYTES + 16] {
        let mut bytes = [0; BOUNDARY_BYTES + 16];
        bytes[..BOUNDARY_BYTES].copy_from_slice(&self.tail.end.to_bytes());
        bytes[BOUNDARY_BYTES..][..8].copy_from_slice(&self.tail.cumulative_bytes.to_le_bytes());
        bytes[BOUNDARY_BYTES + 8..].copy_from_slice(&self.latest.to_bits().to_le_bytes());
        bytes
    }

    pub(super) fn read(bytes: &[u8]) -> Result<Self, ProtocolError> {
        let mut reader = Reader::new(bytes);
        let end = Boundary::read(&mut reader)?;
        let cumulative_bytes = reader.u64("log bytes")?;
        let latest = Version::from_bits(reader.u64("latest version")?);
        reader.finish("log tail")?;
        Ok(Self { tail: LogTail { end, cumulative_bytes }, latest })
    }
}

/// Where a log got a new identity because it was not closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ForkPoint {
    /// The identity that the log had.
    pub log: LogId,
    /// The last sequence that was there when it was opened again. Peers may have later ones of the old identity.
    pub sequence: Sequence,
}

impl ForkPoint {
    pub(super) fn to_bytes(self) -> [u8; 24] {
        let mut bytes = [0; 24];
        bytes[..16].copy_from_slice(self.log.as_bytes());
        bytes[16..].copy_from_slice(&self.sequence.get().to_le_bytes());
        bytes
    }

    pub(super) fn read(bytes: &[u8]) -> Result<Self, ProtocolError> {
        let mut reader = Reader::new(bytes);
        let log = LogId::from_bytes(reader.array("fork point log")?);
        let sequence = Sequence::new(reader.u64("fork point sequence")?);
        reader.finish("fork point")?;
        Ok(Self { log, sequence })
    }
}

/// The key of an origin's name.
pub(super) const fn origin_key(id: OriginId) -> [u8; 3] {
    let [high, low] = id.0.to_be_bytes();
    [b'o', high, low]
}

/// The key of a table's definition.
pub(super) const fn table_key(id: TableId) -> [u8; 3] {
    let [high, low] = id.0.to_be_bytes();
    [b't', high, low]
}

/// Reads a name that fills `bytes`.
pub(super) fn read_node(bytes: &[u8]) -> Result<NodeName, ProtocolError> {
    NodeName::new(text(bytes)?)
}

fn text(bytes: &[u8]) -> Result<&str, ProtocolError> {
    std::str::from_utf8(bytes).map_err(|error| ProtocolError::Malformed {
        what: "stored name",
        value: error.valid_up_to() as u64,
        problem: "is the offset of a byte that is not UTF-8",
    })
}

pub(super) fn write_table(table: &TableDefinition) -> Vec<u8> {
    let name = table.name.as_str().as_bytes();
    let mut bytes = Vec::with_capacity(6 + name.len() + table.definition.len());
    bytes.extend_from_slice(&table.version.to_le_bytes());
    bytes.extend_from_slice(&u16::try_from(name.len()).unwrap_or(u16::MAX).to_le_bytes());
    bytes.extend_from_slice(name);
    bytes.extend_from_slice(&table.definition);
    bytes
}

pub(super) fn read_table(bytes: &[u8]) -> Result<TableDefinition, ProtocolError> {
    let mut reader = Reader::new(bytes);
    let version = reader.u32("table version")?;
    let length = usize::from(reader.u16("table name length")?);
    let name = TableName::new(text(reader.bytes(length, "table name")?)?)?;
    let definition = bytes::Bytes::copy_from_slice(reader.rest());
    Ok(TableDefinition { name, version, definition })
}

/// Who wrote a row last, and when.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RowHeader {
    pub(super) origin: OriginId,
    pub(super) version: Version,
    pub(super) ordinal: u32,
    pub(super) deleted: bool,
    pub(super) invalidated: bool,
}

impl RowHeader {
    pub(super) fn to_bytes(self) -> [u8; ROW_HEADER_BYTES] {
        let mut bytes = [0; ROW_HEADER_BYTES];
        let flags =
            if self.deleted { ROW_DELETED } else { 0 } | if self.invalidated { ROW_INVALIDATED } else { 0 };
        bytes[0] = flags;
        bytes[2..4].copy_from_slice(&self.origin.0.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.ordinal.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.version.to_bits().to_le_bytes());
        bytes
    }

    /// The header in front of a stored row, and the row's value.
    pub(super) fn split(row: &[u8]) -> Result<(Self, &[u8]), ProtocolError> {
        let mut reader = Reader::new(row);
        let flags = reader.u8("row flags")?;
        reader.u8("row reserve")?;
        let header = Self {
            origin: OriginId(reader.u16("row origin")?),
            ordinal: reader.u32("row ordinal")?,
            version: Version::from_bits(reader.u64("row version")?),
            deleted: flags & ROW_DELETED != 0,
            invalidated: flags & ROW_INVALIDATED != 0,
        };
        Ok((header, reader.rest()))
    }
}

/// Writes the key of a row into `out`.
pub(super) fn row_key(out: &mut Vec<u8>, table: TableId, key: &[u8]) {
    out.clear();
    out.extend_from_slice(&table.0.to_be_bytes());
    out.extend_from_slice(key);
}

/// The key of an entry without a row.
pub(super) fn identity_key(origin: OriginId, version: Version, ordinal: u32) -> [u8; 14] {
    let mut key = [0; 14];
    key[0..2].copy_from_slice(&origin.0.to_be_bytes());
    key[2..10].copy_from_slice(&version.to_bits().to_be_bytes());
    key[10..14].copy_from_slice(&ordinal.to_be_bytes());
    key
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::Stamp;

    #[test]
    fn everything_stored_reads_back_and_cut_off_bytes_are_an_error() {
        let tail = StoredTail {
            tail: LogTail {
                end: Boundary {
                    sequence: Sequence::new(7),
                    stamp: Stamp { version: Version::new(3, 1), checksum: 9 },
                },
                cumulative_bytes: 1234,
            },
            latest: Version::new(4, 2),
        };
        assert_eq!(StoredTail::read(&tail.to_bytes()), Ok(tail));
        assert!(StoredTail::read(&tail.to_bytes()[1..]).is_err());
        let fork = ForkPoint { log: LogId::from_bytes([7; 16]), sequence: Sequence::new(8) };
        assert_eq!(ForkPoint::read(&fork.to_bytes()), Ok(fork));
        let table = TableDefinition {
            name: TableName::new("städte").expect("a name"),
            version: 3,
            definition: bytes::Bytes::from_static(b"id,name"),
        };
        assert_eq!(read_table(&write_table(&table)), Ok(table.clone()));
        assert!(read_table(&write_table(&table)[..9]).is_err());
        let header = RowHeader {
            origin: OriginId(300),
            version: Version::new(5, 6),
            ordinal: 70_000,
            deleted: true,
            invalidated: false,
        };
        let mut row = header.to_bytes().to_vec();
        row.extend_from_slice(b"value");
        assert_eq!(RowHeader::split(&row), Ok((header, &b"value"[..])));
        assert!(RowHeader::split(&row[..15]).is_err());
        assert!(read_log_key(&[1, 2, 3]).is_err());
        assert_eq!(read_log_key(&log_key(Sequence::new(5))), Ok(Sequence::new(5)));
    }
}
