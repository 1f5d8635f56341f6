//! What bytes from a peer or a disk can do wrong.

use super::ids::Sequence;

/// Bytes that are not what the protocol allows.
///
/// Every variant names the value that was found and the limit or form that was expected. None of them is
/// transient: the same bytes fail the same way again.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProtocolError {
    /// The bytes end before the field does.
    #[error("{what} is cut off: it needs {needed} bytes and {available} are left")]
    Truncated {
        /// The field that was being read.
        what: &'static str,
        /// Bytes that the field needs.
        needed: usize,
        /// Bytes that were left.
        available: usize,
    },
    /// A length or a count is over its limit. Nothing was allocated for it.
    #[error("{what} is {value}, the limit is {limit}")]
    OverLimit {
        /// The length or count that was read.
        what: &'static str,
        /// Its value.
        value: u64,
        /// The largest value allowed.
        limit: u64,
    },
    /// A checksum does not match.
    #[error("{what} has the checksum {found:#010x}, its bytes give {computed:#010x}")]
    Checksum {
        /// What the checksum covers.
        what: &'static str,
        /// The stored checksum.
        found: u32,
        /// The checksum of the bytes.
        computed: u32,
    },
    /// A mandatory frame type that this version does not know.
    #[error("frame type {0} is unknown and not marked as optional")]
    UnknownFrame(u8),
    /// A version of the protocol or of the segment format that is not spoken here.
    #[error("{what} version {found} is not supported, this side speaks {oldest} to {newest}")]
    UnsupportedVersion {
        /// Which version number.
        what: &'static str,
        /// The number found.
        found: u16,
        /// The oldest number spoken here.
        oldest: u16,
        /// The newest number spoken here.
        newest: u16,
    },
    /// A field holds a value that has no meaning.
    #[error("{what} holds {value}, which {problem}")]
    Malformed {
        /// The field.
        what: &'static str,
        /// The value found, as a number.
        value: u64,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// A name is empty, too long, not UTF-8 or has control characters.
    #[error("the name {name:?} {problem}")]
    BadName {
        /// The name, cut to 64 characters.
        name: String,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// Sequences inside a segment do not rise, or leave the range that its header states.
    #[error("{what}: sequence {found} follows {previous}")]
    OutOfOrder {
        /// Where it was found.
        what: &'static str,
        /// The sequence before.
        previous: Sequence,
        /// The sequence found.
        found: Sequence,
    },
}
