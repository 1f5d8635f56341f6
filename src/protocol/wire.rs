//! Reading and writing fixed-width little-endian fields.

use super::error::ProtocolError;
use super::limits::NAME_BYTES_MAX;

/// A cursor over bytes of a peer or a disk. Every read is checked.
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(crate) const fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    pub(crate) const fn rest(&self) -> &'a [u8] {
        self.rest
    }

    pub(crate) fn bytes(&mut self, count: usize, what: &'static str) -> Result<&'a [u8], ProtocolError> {
        match self.rest.split_at_checked(count) {
            Some((taken, rest)) => {
                self.rest = rest;
                Ok(taken)
            }
            None => Err(ProtocolError::Truncated { what, needed: count, available: self.rest.len() }),
        }
    }

    pub(crate) fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N], ProtocolError> {
        match self.rest.split_first_chunk::<N>() {
            Some((taken, rest)) => {
                self.rest = rest;
                Ok(*taken)
            }
            None => Err(ProtocolError::Truncated { what, needed: N, available: self.rest.len() }),
        }
    }

    pub(crate) fn u8(&mut self, what: &'static str) -> Result<u8, ProtocolError> {
        self.array::<1>(what).map(|[byte]| byte)
    }

    pub(crate) fn u16(&mut self, what: &'static str) -> Result<u16, ProtocolError> {
        self.array(what).map(u16::from_le_bytes)
    }

    pub(crate) fn u32(&mut self, what: &'static str) -> Result<u32, ProtocolError> {
        self.array(what).map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self, what: &'static str) -> Result<u64, ProtocolError> {
        self.array(what).map(u64::from_le_bytes)
    }

    /// A text with a 16-bit length in front; at most `max` bytes.
    pub(crate) fn text(&mut self, max: usize, what: &'static str) -> Result<&'a str, ProtocolError> {
        let length = usize::from(self.u16(what)?);
        if length > max {
            return Err(ProtocolError::OverLimit { what, value: length as u64, limit: max as u64 });
        }
        let bytes = self.bytes(length, what)?;
        std::str::from_utf8(bytes).map_err(|error| ProtocolError::Malformed {
            what,
            value: error.valid_up_to() as u64,
            problem: "is the offset of a byte that is not UTF-8",
        })
    }

    /// A text of at most [`NAME_BYTES_MAX`] bytes.
    pub(crate) fn name(&mut self, what: &'static str) -> Result<&'a str, ProtocolError> {
        self.text(NAME_BYTES_MAX, what)
    }

    /// Refuses bytes after the last known field, unless the format says that later versions may add some.
    pub(crate) fn finish(self, what: &'static str) -> Result<(), ProtocolError> {
        if self.rest.is_empty() {
            return Ok(());
        }
        Err(ProtocolError::Malformed {
            what,
            value: self.rest.len() as u64,
            problem: "is the count of bytes after its last field",
        })
    }
}

/// Appends a text with a 16-bit length in front, cut to `max` bytes at a character's edge.
pub(crate) fn put_text(out: &mut Vec<u8>, text: &str, max: usize) {
    let mut end = text.len().min(max).min(usize::from(u16::MAX));
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let text = &text[..end];
    out.extend_from_slice(&u16::try_from(text.len()).unwrap_or(u16::MAX).to_le_bytes());
    out.extend_from_slice(text.as_bytes());
}

/// FNV-1a, 64 bits: the hash of fingerprints. Any language has it in five lines.
pub(crate) fn fnv1a_64(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}
