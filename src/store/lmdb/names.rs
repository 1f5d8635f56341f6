//! The log's short ids and what they stand for.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use lmdb::{Cursor as _, Transaction, WriteFlags};

use super::Databases;
use super::error::{backend, unreadable, write_error};
use super::format::{origin_key, read_node, read_table, table_key, write_table};
use super::options::LmdbOptions;
use super::walk::{self, NEXT};
use crate::protocol::limits::TABLE_DEFINITION_BYTES_MAX;
use crate::protocol::{NodeName, OriginId, ProtocolError, TableDefinition, TableId, TableName};
use crate::store::StoreError;

/// The most ids of a kind; the id is 16 bits on disk.
const IDS_MAX: usize = u16::MAX as usize;

/// Everything in the names database, in memory. Ids count from 1 in the order of definition.
#[derive(Debug, Clone, Default)]
pub(super) struct Names {
    origins: Vec<NodeName>,
    tables: Vec<TableDefinition>,
    origin_ids: HashMap<NodeName, OriginId>,
    table_ids: HashMap<TableName, TableId>,
    /// Rises when the definition of a known table changes.
    pub(super) version: u64,
}

impl Names {
    /// Reads the names database.
    pub(super) fn load(txn: &impl Transaction, databases: &Databases) -> Result<Self, StoreError> {
        let mut names = Self::default();
        let cursor = txn.open_ro_cursor(databases.names).map_err(|error| backend("read names", error))?;
        while let Some((key, value)) = walk::step(cursor.get(None, None, NEXT), "read names")? {
            let wrong = |source| unreadable(format!("the name with the key {key:02x?} is corrupt"), source);
            let (kind, id) = match *key {
                [kind, high, low] => (kind, u16::from_be_bytes([high, low])),
                _ => (0, 0),
            };
            match kind {
                b'o' if usize::from(id) == names.origins.len() + 1 => {
                    names.add_origin(read_node(value).map_err(wrong)?);
                }
                b't' if usize::from(id) == names.tables.len() + 1 => {
                    names.add_table(read_table(value).map_err(wrong)?);
                }
                _ => {
                    let value = u64::from(id);
                    return Err(wrong(ProtocolError::Malformed {
                        what: "short id",
                        value,
                        problem: "does not follow the one before it",
                    }));
                }
            }
        }
        Ok(names)
    }

    fn add_origin(&mut self, name: NodeName) -> OriginId {
        self.origins.push(name.clone());
        let id = OriginId(u16::try_from(self.origins.len()).unwrap_or(u16::MAX));
        self.origin_ids.insert(name, id);
        id
    }

    fn add_table(&mut self, table: TableDefinition) -> TableId {
        let name = table.name.clone();
        self.tables.push(table);
        let id = TableId(u16::try_from(self.tables.len()).unwrap_or(u16::MAX));
        self.table_ids.insert(name, id);
        id
    }

    pub(super) fn origin(&self, id: OriginId) -> Option<&NodeName> {
        self.origins.get(usize::from(id.0).checked_sub(1)?)
    }

    pub(super) fn table(&self, id: TableId) -> Option<&TableDefinition> {
        self.tables.get(usize::from(id.0).checked_sub(1)?)
    }

    pub(super) fn table_id(&self, name: &TableName) -> Option<TableId> {
        self.table_ids.get(name).copied()
    }

    pub(super) fn tables(&self) -> impl Iterator<Item = (TableId, &TableDefinition)> {
        (1..).map(TableId).zip(&self.tables)
    }
}

/// Changes to the names within one write transaction, on a copy that is published after the commit.
#[derive(Debug)]
pub(super) struct NamesEdit {
    names: Arc<Names>,
    changed: bool,
}

impl NamesEdit {
    pub(super) const fn new(names: Arc<Names>) -> Self {
        Self { names, changed: false }
    }

    pub(super) fn names(&self) -> &Names {
        &self.names
    }

    /// The names to publish, when something changed.
    pub(super) fn into_changed(self) -> Option<Arc<Names>> {
        self.changed.then_some(self.names)
    }

    fn edit(&mut self) -> &mut Names {
        self.changed = true;
        Arc::make_mut(&mut self.names)
    }

    /// The id of an origin; a new one is written to `txn`.
    pub(super) fn origin_id(
        &mut self,
        txn: &mut lmdb::RwTransaction<'_>,
        context: (&Databases, &LmdbOptions),
        name: &NodeName,
    ) -> Result<OriginId, StoreError> {
        if let Some(id) = self.names.origin_ids.get(name) {
            return Ok(*id);
        }
        if self.names.origins.len() >= IDS_MAX {
            return Err(too_many("origins"));
        }
        let id = self.edit().add_origin(name.clone());
        put(txn, context, &origin_key(id), name.as_str().as_bytes())?;
        Ok(id)
    }

    /// The id of a table that is defined like this on this node: the version rises when the definition changes.
    pub(super) fn define(
        &mut self,
        txn: &mut lmdb::RwTransaction<'_>,
        context: (&Databases, &LmdbOptions),
        name: &TableName,
        definition: &Bytes,
    ) -> Result<TableId, StoreError> {
        let version = match self.names.table_id(name).and_then(|id| self.names.table(id).map(|t| (id, t))) {
            Some((id, table)) if table.definition == *definition => return Ok(id),
            Some((_, table)) => table.version.saturating_add(1),
            None => 1,
        };
        let table = TableDefinition { name: name.clone(), version, definition: definition.clone() };
        self.put_table(txn, context, table)
    }

    /// The id of a table that another node knows like this. The newer definition is kept; at the same version the
    /// one that is here stays, since a definition is opaque and neither side can judge it.
    pub(super) fn adopt(
        &mut self,
        txn: &mut lmdb::RwTransaction<'_>,
        context: (&Databases, &LmdbOptions),
        table: &TableDefinition,
    ) -> Result<TableId, StoreError> {
        let known = self.names.table_id(&table.name);
        match known.and_then(|id| self.names.table(id).map(|known| (id, known.version))) {
            Some((id, version)) if version >= table.version => Ok(id),
            _ => self.put_table(txn, context, table.clone()),
        }
    }

    fn put_table(
        &mut self,
        txn: &mut lmdb::RwTransaction<'_>,
        context: (&Databases, &LmdbOptions),
        table: TableDefinition,
    ) -> Result<TableId, StoreError> {
        if table.definition.len() > TABLE_DEFINITION_BYTES_MAX {
            return Err(unreadable(
                format!("cannot define the table {}", table.name),
                ProtocolError::OverLimit {
                    what: "table definition",
                    value: table.definition.len() as u64,
                    limit: TABLE_DEFINITION_BYTES_MAX as u64,
                },
            ));
        }
        let bytes = write_table(&table);
        let id = match self.names.table_id(&table.name) {
            Some(id) => {
                let names = self.edit();
                names.version += 1;
                if let Some(slot) = usize::from(id.0).checked_sub(1).and_then(|at| names.tables.get_mut(at)) {
                    *slot = table;
                }
                id
            }
            None if self.names.tables.len() >= IDS_MAX => return Err(too_many("tables")),
            None => self.edit().add_table(table),
        };
        put(txn, context, &table_key(id), &bytes)?;
        Ok(id)
    }
}

fn put(
    txn: &mut lmdb::RwTransaction<'_>,
    (databases, options): (&Databases, &LmdbOptions),
    key: &[u8; 3],
    value: &[u8],
) -> Result<(), StoreError> {
    txn.put(databases.names, key, &value, WriteFlags::empty())
        .map_err(|error| write_error("write a name", error, options))
}

fn too_many(what: &'static str) -> StoreError {
    StoreError::Full {
        what: "the table of short ids",
        hint: format!("the log knows {IDS_MAX} {what} already; start a new log"),
    }
}
