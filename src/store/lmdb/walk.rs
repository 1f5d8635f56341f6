//! Steps of a cursor.
//!
//! LMDB's own iterators outlive their cursor and hide errors as the end, so every walk is a loop over
//! `RoCursor::get`. The wrapper does not export the numbers of the steps; they are part of LMDB's stable interface.

use super::error::backend;
use crate::store::StoreError;

/// `MDB_FIRST`.
pub(super) const FIRST: u32 = 0;
/// `MDB_LAST`.
pub(super) const LAST: u32 = 6;
/// `MDB_NEXT`; from a fresh cursor the first one.
pub(super) const NEXT: u32 = 8;
/// `MDB_PREV`.
pub(super) const PREV: u32 = 12;
/// `MDB_SET_RANGE`: the first key that is not below the given one.
pub(super) const SET_RANGE: u32 = 17;

/// A key and its value.
pub(super) type Item<'txn> = (&'txn [u8], &'txn [u8]);

/// The answer of one step: `NotFound` is the end, everything else an error.
pub(super) fn step<'txn>(
    answer: lmdb::Result<(Option<&'txn [u8]>, &'txn [u8])>,
    action: &str,
) -> Result<Option<Item<'txn>>, StoreError> {
    match answer {
        Ok((Some(key), value)) => Ok(Some((key, value))),
        Ok((None, _)) => Err(backend(action, lmdb::Error::Corrupted)),
        Err(lmdb::Error::NotFound) => Ok(None),
        Err(error) => Err(backend(action, error)),
    }
}

/// The answer of a look-up: `NotFound` is none, everything else an error.
pub(super) fn found<'txn>(
    answer: lmdb::Result<&'txn [u8]>,
    action: &str,
) -> Result<Option<&'txn [u8]>, StoreError> {
    match answer {
        Ok(value) => Ok(Some(value)),
        Err(lmdb::Error::NotFound) => Ok(None),
        Err(error) => Err(backend(action, error)),
    }
}
