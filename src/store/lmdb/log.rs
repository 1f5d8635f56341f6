//! What senders read.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::task::Waker;

use lmdb::{Cursor as _, RoCursor, Transaction};

use super::Core;
use super::error::backend;
use super::format::{log_key, read_log_key};
use super::walk::{FIRST, NEXT, SET_RANGE, step};
use crate::protocol::{Boundary, LogId, NodeName, OriginId, SegmentRef, Sequence, TableDefinition, TableId};
use crate::store::{AuditLog, BoundaryAt, ScanEnd, StoreError};

const ACTION: &str = "read the log";

/// The audit log of an LMDB store.
///
/// Every read transaction lives inside one call; a caller that waits holds no page. A page that is not in memory
/// blocks the calling thread while it is read.
#[derive(Debug)]
pub struct LmdbAuditLog {
    pub(super) core: Arc<Core>,
}

impl AuditLog for LmdbAuditLog {
    fn log_id(&self) -> LogId {
        self.core.log_id
    }

    fn head(&self) -> Sequence {
        self.core.published.head()
    }

    fn oldest(&self) -> Result<Sequence, StoreError> {
        let txn = self.core.environment.begin_ro_txn().map_err(|error| backend(ACTION, error))?;
        let cursor = txn.open_ro_cursor(self.core.databases.log).map_err(|error| backend(ACTION, error))?;
        oldest(&cursor, self.head())
    }

    fn scan(
        &self,
        after: Sequence,
        visit: &mut dyn FnMut(SegmentRef<'_>) -> ControlFlow<()>,
    ) -> Result<ScanEnd, StoreError> {
        let head = self.head();
        if after >= head {
            return Ok(ScanEnd::Drained);
        }
        let txn = self.core.environment.begin_ro_txn().map_err(|error| backend(ACTION, error))?;
        let cursor = txn.open_ro_cursor(self.core.databases.log).map_err(|error| backend(ACTION, error))?;
        let mut next = seek(&cursor, after)?;
        let mut previous = None;
        while let Some((key, segment)) = next {
            let first = segment.header().first;
            match previous {
                None if first > after.plus(1) => return Err(gap(&cursor, after, first, head)),
                Some(previous) if first != Sequence::plus(previous, 1) => {
                    return Err(StoreError::Hole { previous, found: first });
                }
                _ => {}
            }
            // A commit is published as a whole, so no segment reaches over the head.
            if key > head {
                return Ok(ScanEnd::Drained);
            }
            if visit(segment).is_break() {
                return Ok(ScanEnd::Stopped);
            }
            previous = Some(key);
            if key == head {
                return Ok(ScanEnd::Drained);
            }
            next = parse(step(cursor.get(None, None, NEXT), ACTION)?)?;
        }
        // The head is past the last segment: its end was lost.
        Err(StoreError::Hole { previous: previous.unwrap_or(after), found: head })
    }

    fn boundary_at(&self, sequence: Sequence) -> Result<BoundaryAt, StoreError> {
        let head = self.head();
        if sequence > head {
            return Ok(BoundaryAt::AheadOfLog);
        }
        let txn = self.core.environment.begin_ro_txn().map_err(|error| backend(ACTION, error))?;
        let cursor = txn.open_ro_cursor(self.core.databases.log).map_err(|error| backend(ACTION, error))?;
        let oldest = oldest(&cursor, head)?;
        if sequence == Sequence::ZERO && oldest == Sequence::ZERO {
            return Ok(BoundaryAt::Boundary(Boundary::START));
        }
        if sequence <= oldest {
            return Ok(BoundaryAt::Pruned);
        }
        let before = Sequence::new(sequence.get() - 1);
        let Some((key, segment)) = seek(&cursor, before)? else {
            return Err(StoreError::Hole { previous: before, found: head });
        };
        if segment.header().first > sequence {
            return Err(StoreError::Hole { previous: before, found: segment.header().first });
        }
        if segment.header().end.sequence == sequence {
            return Ok(BoundaryAt::Boundary(segment.header().end));
        }
        for transaction in segment.transactions() {
            let transaction = transaction.map_err(|error| corrupt(key, error))?;
            match transaction.boundary() {
                Some(boundary) if boundary.sequence == sequence => return Ok(BoundaryAt::Boundary(boundary)),
                _ if transaction.header.last() >= sequence => break,
                _ => {}
            }
        }
        Ok(BoundaryAt::InsideTransaction)
    }

    fn origin(&self, id: OriginId) -> Result<Option<NodeName>, StoreError> {
        Ok(self.core.published.names().origin(id).cloned())
    }

    fn table(&self, id: TableId) -> Result<Option<TableDefinition>, StoreError> {
        Ok(self.core.published.names().table(id).cloned())
    }

    fn definitions_version(&self) -> u64 {
        self.core.published.definitions_version()
    }

    fn register(&self, waker: &Waker) {
        self.core.published.notifier.register(waker);
    }
}

type Found<'txn> = Option<(Sequence, SegmentRef<'txn>)>;

/// The segment that holds the entry after `after`.
fn seek<'txn>(cursor: &RoCursor<'txn>, after: Sequence) -> Result<Found<'txn>, StoreError> {
    parse(step(cursor.get(Some(&log_key(after.plus(1))), None, SET_RANGE), ACTION)?)
}

fn parse<'txn>(item: Option<(&'txn [u8], &'txn [u8])>) -> Result<Found<'txn>, StoreError> {
    let Some((key, frame)) = item else { return Ok(None) };
    let key = read_log_key(key).map_err(|error| corrupt(Sequence::ZERO, error))?;
    let segment = SegmentRef::parse(frame).map_err(|error| corrupt(key, error))?;
    if segment.header().last != key {
        let found = segment.header().last;
        let error = crate::protocol::ProtocolError::OutOfOrder {
            what: "segment under its key",
            previous: key,
            found,
        };
        return Err(corrupt(key, error));
    }
    Ok(Some((key, segment)))
}

fn corrupt(key: Sequence, source: crate::protocol::ProtocolError) -> StoreError {
    StoreError::Corrupt { what: "segment", key, source }
}

/// The boundary before the oldest kept entry, read from the first segment itself.
pub(super) fn oldest(cursor: &RoCursor<'_>, head: Sequence) -> Result<Sequence, StoreError> {
    let first = parse(step(cursor.get(None, None, FIRST), ACTION)?)?;
    Ok(first.map_or(head, |(_, segment)| Sequence::new(segment.header().first.get() - 1)))
}

/// Entries right after `after` are missing: pruned when nothing older is kept, else lost.
fn gap(cursor: &RoCursor<'_>, after: Sequence, found: Sequence, head: Sequence) -> StoreError {
    match oldest(cursor, head) {
        Ok(oldest) if oldest > after => StoreError::Pruned { after, oldest },
        Ok(_) => StoreError::Hole { previous: after, found },
        Err(error) => error,
    }
}
