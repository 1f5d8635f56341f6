//! Reading rows.

use std::ops::ControlFlow;
use std::sync::Arc;

use lmdb::{Cursor as _, Transaction};

use super::Core;
use super::error::{backend, unreadable};
use super::format::{RowHeader, row_key};
use super::walk::{NEXT, SET_RANGE, found, step};
use crate::protocol::{NodeName, TableId, TableName, Version};
use crate::store::{ScanEnd, StoreError};

const ACTION: &str = "read rows";
/// Rows of one read transaction during a walk: a transaction that stays open pins pages.
const WALK_ROWS: usize = 1000;

/// A stored row.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Row {
    /// Its value; empty when it is deleted or invalidated.
    pub value: Vec<u8>,
    /// When the origin wrote it.
    pub version: Version,
    /// The node that wrote it last.
    pub origin: NodeName,
    /// It is gone; what is left is the tombstone that keeps the version.
    pub deleted: bool,
    /// Its content was dropped and is to be fetched by the host.
    pub invalidated: bool,
}

/// A table, by its name or its short id.
pub trait TableKey {
    /// Its short id, found by `look_up` when it is not known yet.
    fn resolve(&self, look_up: &dyn Fn(&TableName) -> Option<TableId>) -> Option<TableId>;
}

impl TableKey for TableId {
    fn resolve(&self, _look_up: &dyn Fn(&TableName) -> Option<TableId>) -> Option<TableId> {
        Some(*self)
    }
}

impl TableKey for TableName {
    fn resolve(&self, look_up: &dyn Fn(&TableName) -> Option<TableId>) -> Option<TableId> {
        look_up(self)
    }
}

/// Is lent a row's key and value, and says whether to go on.
pub type RowVisitor<'a> = dyn FnMut(&[u8], &[u8]) -> ControlFlow<()> + 'a;

/// Reads the rows of the built-in tables.
#[derive(Debug, Clone)]
pub struct Rows {
    pub(super) core: Arc<Core>,
}

impl Rows {
    fn resolve(&self, table: &impl TableKey) -> Option<TableId> {
        table.resolve(&|name| self.core.published.names().table_id(name))
    }

    /// The row `key` of `table`, a tombstone included, or `None` when there never was one.
    ///
    /// # Errors
    /// When the store cannot be read, or the row's bytes are not what was written.
    pub fn get(&self, table: &impl TableKey, key: &[u8]) -> Result<Option<Row>, StoreError> {
        let Some(table) = self.resolve(table) else { return Ok(None) };
        let mut full = Vec::with_capacity(2 + key.len());
        row_key(&mut full, table, key);
        let txn = self.core.environment.begin_ro_txn().map_err(|error| backend(ACTION, error))?;
        let row = match found(txn.get(self.core.databases.rows, &full), ACTION) {
            Ok(Some(row)) => row,
            Ok(None) => return Ok(None),
            // Longer than any key that can be stored.
            Err(_) if full.len() > 511 => return Ok(None),
            Err(error) => return Err(error),
        };
        let (header, value) = split(&full, row)?;
        let Some(origin) = self.core.origin_name(header.origin) else {
            let action = format!("the row {full:02x?} names the unknown origin id {}", header.origin.0);
            return Err(backend(action, lmdb::Error::Corrupted));
        };
        let RowHeader { version, deleted, invalidated, .. } = header;
        Ok(Some(Row { value: value.to_vec(), version, origin, deleted, invalidated }))
    }

    /// Lends the rows of `table` that have a value, in key order. Tombstones and invalidated rows are left out.
    ///
    /// The walk is made of short read transactions and is no snapshot: a row that is written during the walk is seen
    /// as it was or as it is. The visitor must not wait.
    ///
    /// # Errors
    /// When the store cannot be read, or a row's bytes are not what was written.
    pub fn visit(&self, table: &impl TableKey, visit: &mut RowVisitor<'_>) -> Result<ScanEnd, StoreError> {
        let Some(table) = self.resolve(table) else { return Ok(ScanEnd::Drained) };
        let mut from = table.0.to_be_bytes().to_vec();
        let mut inclusive = true;
        loop {
            match self.visit_some(table, &mut from, inclusive, visit)? {
                ControlFlow::Continue(()) => inclusive = false,
                ControlFlow::Break(end) => return Ok(end),
            }
        }
    }

    fn visit_some(
        &self,
        table: TableId,
        from: &mut Vec<u8>,
        inclusive: bool,
        visit: &mut RowVisitor<'_>,
    ) -> Result<ControlFlow<ScanEnd>, StoreError> {
        let txn = self.core.environment.begin_ro_txn().map_err(|error| backend(ACTION, error))?;
        let cursor = txn.open_ro_cursor(self.core.databases.rows).map_err(|error| backend(ACTION, error))?;
        let mut next = step(cursor.get(Some(from), None, SET_RANGE), ACTION)?;
        if !inclusive && next.is_some_and(|(key, _)| key == from.as_slice()) {
            next = step(cursor.get(None, None, NEXT), ACTION)?;
        }
        for seen in 1.. {
            let Some((key, row)) = next else { return Ok(ControlFlow::Break(ScanEnd::Drained)) };
            let Some(short) = key.strip_prefix(&table.0.to_be_bytes()) else {
                return Ok(ControlFlow::Break(ScanEnd::Drained));
            };
            let (header, value) = split(key, row)?;
            if !header.deleted && !header.invalidated && visit(short, value).is_break() {
                return Ok(ControlFlow::Break(ScanEnd::Stopped));
            }
            if seen == WALK_ROWS {
                key.clone_into(from);
                break;
            }
            next = step(cursor.get(None, None, NEXT), ACTION)?;
        }
        Ok(ControlFlow::Continue(()))
    }
}

fn split<'a>(key: &[u8], row: &'a [u8]) -> Result<(RowHeader, &'a [u8]), StoreError> {
    RowHeader::split(row).map_err(|error| unreadable(format!("the row {key:02x?} is corrupt"), error))
}
