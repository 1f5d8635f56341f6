//! What is refused at append, so that nothing can block a stream later.

use crate::protocol::limits::{
    ENTRY_KEY_BYTES_MAX, ENTRY_VALUE_BYTES_MAX, TRANSACTION_BYTES_MAX, TRANSACTION_ENTRIES_MAX,
};
use crate::protocol::{ENTRY_HEADER_BYTES, EntryDraft};

/// A transaction that is over a limit. Nothing of it was written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LimitError {
    /// A transaction without entries.
    #[error("the transaction has no entries; leave it out or give it at least one")]
    Empty,
    /// A value is too long.
    #[error(
        "the value of entry {entry} has {bytes} bytes, the limit is {limit}; split it or keep it outside the log"
    )]
    Value {
        /// Place of the entry in the transaction, from 0.
        entry: usize,
        /// Its length.
        bytes: usize,
        /// The longest value.
        limit: usize,
    },
    /// A key is empty or too long.
    #[error("the key of entry {entry} has {bytes} bytes, it must have 1 to {limit}")]
    Key {
        /// Place of the entry in the transaction, from 0.
        entry: usize,
        /// Its length.
        bytes: usize,
        /// The longest key.
        limit: usize,
    },
    /// Too many entries.
    #[error("the transaction has {entries} entries, the limit is {limit}; write it as several transactions")]
    Entries {
        /// Their count.
        entries: usize,
        /// The largest count.
        limit: usize,
    },
    /// Too many bytes.
    #[error("the transaction has {bytes} bytes, the limit is {limit}; write it as several transactions")]
    Bytes {
        /// Bytes of its encoded entries.
        bytes: u64,
        /// The largest transaction.
        limit: u64,
    },
}

/// The largest entries and transactions that a log takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// Longest value, in bytes.
    pub value_bytes: usize,
    /// Longest key, in bytes. LMDB allows 511 with the table's id in front.
    pub key_bytes: usize,
    /// Most entries of a transaction. LMDB holds its write lock for about 0.5 s over 100,000 random keys.
    pub transaction_entries: usize,
    /// Most bytes of a transaction's encoded entries. A receiver holds them in memory until the last one came.
    pub transaction_bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            value_bytes: ENTRY_VALUE_BYTES_MAX,
            key_bytes: ENTRY_KEY_BYTES_MAX,
            transaction_entries: TRANSACTION_ENTRIES_MAX,
            transaction_bytes: TRANSACTION_BYTES_MAX,
        }
    }
}

impl Limits {
    /// Checks a transaction, given as key and value lengths.
    ///
    /// # Errors
    /// The first limit that it breaks, with the value and the limit.
    pub fn check(&self, entries: impl ExactSizeIterator<Item = (usize, usize)>) -> Result<(), LimitError> {
        let count = entries.len();
        if count == 0 {
            return Err(LimitError::Empty);
        }
        if count > self.transaction_entries {
            return Err(LimitError::Entries { entries: count, limit: self.transaction_entries });
        }
        let mut total = 0_u64;
        for (entry, (key, value)) in entries.enumerate() {
            if key == 0 || key > self.key_bytes {
                return Err(LimitError::Key { entry, bytes: key, limit: self.key_bytes });
            }
            if value > self.value_bytes {
                return Err(LimitError::Value { entry, bytes: value, limit: self.value_bytes });
            }
            total += (ENTRY_HEADER_BYTES + key + value) as u64;
        }
        if total > self.transaction_bytes {
            return Err(LimitError::Bytes { bytes: total, limit: self.transaction_bytes });
        }
        Ok(())
    }

    /// Checks a transaction's drafts.
    ///
    /// # Errors
    /// As [`Self::check`].
    pub fn check_drafts(&self, entries: &[EntryDraft<'_>]) -> Result<(), LimitError> {
        self.check(entries.iter().map(|entry| (entry.key.len(), entry.value.len())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_limit_is_kept_to_the_unit_and_named() {
        let limits = Limits {
            transaction_entries: 3,
            transaction_bytes: 100,
            key_bytes: 4,
            value_bytes: 50,
            ..Limits::default()
        };
        assert_eq!(limits.check([(1, 50), (4, 5)].into_iter()), Ok(()));
        assert_eq!(
            limits.check([(1, 50), (4, 6)].into_iter()),
            Err(LimitError::Bytes { bytes: 101, limit: 100 })
        );
        assert_eq!(limits.check([].into_iter()), Err(LimitError::Empty));
        assert_eq!(limits.check([(1, 0); 4].into_iter()), Err(LimitError::Entries { entries: 4, limit: 3 }));
        assert_eq!(
            limits.check([(1, 0), (5, 0)].into_iter()),
            Err(LimitError::Key { entry: 1, bytes: 5, limit: 4 })
        );
        assert_eq!(limits.check([(0, 0)].into_iter()), Err(LimitError::Key { entry: 0, bytes: 0, limit: 4 }));
        assert_eq!(
            limits.check([(1, 51)].into_iter()),
            Err(LimitError::Value { entry: 0, bytes: 51, limit: 50 })
        );
    }
}
