//! The content hash of a table; `docs/hash.md` defines it.

use std::fmt;

const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
const PRIME: u64 = 0x0000_0100_0000_01b3;

/// A content hash in the making: rows go in, in key order.
///
/// Two 64-bit halves over the same bytes: FNV-1a and FNV-1, which mix in the other order. They do not depend on each
/// other, so a processor computes both in the time of one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ContentHash {
    a: u64,
    b: u64,
    rows: u64,
}

impl Default for ContentHash {
    fn default() -> Self {
        Self { a: OFFSET, b: OFFSET, rows: 0 }
    }
}

impl ContentHash {
    /// Takes in the next row.
    pub(crate) fn row(&mut self, key: &[u8], value: &[u8]) {
        self.part(key);
        self.part(value);
        self.rows += 1;
    }

    fn part(&mut self, bytes: &[u8]) {
        let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        self.mix(&length.to_le_bytes());
        self.mix(bytes);
    }

    fn mix(&mut self, bytes: &[u8]) {
        let (mut a, mut b) = (self.a, self.b);
        for byte in bytes {
            a = (a ^ u64::from(*byte)).wrapping_mul(PRIME);
            b = b.wrapping_mul(PRIME) ^ u64::from(*byte);
        }
        (self.a, self.b) = (a, b);
    }

    /// Rows taken in.
    pub(crate) const fn rows(&self) -> u64 {
        self.rows
    }
}

/// 32 hex digits: FNV-1a, then FNV-1.
impl fmt::Display for ContentHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}{:016x}", self.a, self.b)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(rows: &[(&str, &str)]) -> String {
        let mut hash = ContentHash::default();
        rows.iter().for_each(|(key, value)| hash.row(key.as_bytes(), value.as_bytes()));
        hash.to_string()
    }

    #[test]
    fn an_empty_table_hashes_to_the_two_offsets() {
        assert_eq!(of(&[]), "cbf29ce484222325cbf29ce484222325");
    }

    #[test]
    fn the_border_between_key_and_value_counts() {
        assert_ne!(of(&[("ab", "c")]), of(&[("a", "bc")]));
        assert_ne!(of(&[("a", "b"), ("c", "d")]), of(&[("a", "bcd")]));
    }

    #[test]
    fn the_halves_are_the_published_fnv_functions() {
        let mut hash = ContentHash::default();
        hash.mix(b"foobar");
        assert_eq!(hash.to_string(), "85944171f73967e8340d8765a4dda9c2");
    }
}
