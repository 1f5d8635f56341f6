//! The numbers and names that entries and positions are made of.

use std::fmt;

use super::error::ProtocolError;
use super::limits::NAME_BYTES_MAX;

/// A place in one node's audit log.
///
/// Assigned inside the write transaction, one per entry, dense in commit order, never reused. It is not a
/// clock, and it means nothing in another log. `Sequence::ZERO` stands before the first entry, which has 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Sequence(u64);

impl Sequence {
    /// The place before the first entry.
    pub const ZERO: Self = Self(0);

    /// The sequence with this number.
    #[must_use]
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// The number.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The sequence `entries` further on; stays at the largest number instead of wrapping.
    #[must_use]
    pub const fn plus(self, entries: u64) -> Self {
        Self(self.0.saturating_add(entries))
    }

    /// How many entries lie after `earlier` up to here; 0 when `earlier` is not earlier.
    #[must_use]
    pub const fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl fmt::Display for Sequence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Random 128-bit identity of one audit log. A restored or unclean log gets a new one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LogId([u8; 16]);

impl LogId {
    /// The identity with these bytes.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// The bytes.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

impl fmt::Display for LogId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for LogId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LogId({self})")
    }
}

/// When the origin wrote a transaction: 48 bits of milliseconds since 1970 and a 16-bit counter.
///
/// Strictly rising per origin. It decides conflicts, never positions.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Version(u64);

impl Version {
    /// Before every version that an origin makes.
    pub const ZERO: Self = Self(0);

    /// The version of `counter` within the millisecond `ms`; `ms` is cut to 48 bits.
    #[must_use]
    pub const fn new(ms: u64, counter: u16) -> Self {
        Self((ms << 16) | counter as u64)
    }

    /// The version with these 64 bits.
    #[must_use]
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// The 64 bits, which order like the version.
    #[must_use]
    pub const fn to_bits(self) -> u64 {
        self.0
    }

    /// Milliseconds since 1970.
    #[must_use]
    pub const fn ms(self) -> u64 {
        self.0 >> 16
    }

    /// The counter within the millisecond.
    #[must_use]
    pub const fn counter(self) -> u16 {
        (self.0 & 0xffff) as u16
    }

    /// The next version; runs over into the next millisecond when the counter is full.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.ms(), self.counter())
    }
}

impl fmt::Debug for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Version({self})")
    }
}

/// Short id of an origin in one log. Another log gives the same origin another id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct OriginId(pub u16);

/// Short id of a table in one log. Another log gives the same table another id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct TableId(pub u16);

macro_rules! name_type {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(String);

        impl $name {
            /// Checks `name`: 1 to 255 bytes of UTF-8 without control characters.
            ///
            /// # Errors
            /// [`ProtocolError::BadName`] says which rule it breaks.
            pub fn new(name: impl Into<String>) -> Result<Self, ProtocolError> {
                let name = name.into();
                match name_problem(&name) {
                    None => Ok(Self(name)),
                    Some(problem) => {
                        Err(ProtocolError::BadName { name: name.chars().take(64).collect(), problem })
                    }
                }
            }

            /// The name.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

name_type! {
    /// Name of a node, and so of an origin. It travels unchanged over any number of hops.
    NodeName
}

name_type! {
    /// Name of a table.
    TableName
}

fn name_problem(name: &str) -> Option<&'static str> {
    if name.is_empty() {
        Some("is empty; give it 1 to 255 bytes")
    } else if name.len() > NAME_BYTES_MAX {
        Some("is longer than 255 bytes")
    } else if name.chars().any(char::is_control) {
        Some("has control characters")
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_order_by_time_and_then_by_counter() {
        assert!(Version::new(5, u16::MAX) < Version::new(6, 0));
        assert!(Version::new(5, 1) < Version::new(5, 2));
        assert_eq!(Version::new(5, u16::MAX).next(), Version::new(6, 0));
        assert_eq!((Version::new(7, 9).ms(), Version::new(7, 9).counter()), (7, 9));
    }

    #[test]
    fn bad_names_are_refused_with_the_rule_they_break() {
        for (name, rule) in [("", "empty"), ("a\nb", "control"), (&"x".repeat(256), "longer")] {
            let error = NodeName::new(name).expect_err("refused").to_string();
            assert!(error.contains(rule), "{error}");
        }
        assert_eq!(TableName::new("x".repeat(255)).map(|name| name.as_str().len()), Ok(255));
    }
}
