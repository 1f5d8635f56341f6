//! What the store holds, under its lock.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

use crate::protocol::{
    Boundary, EntryDraft, EntryKind, LogTail, NodeName, OriginId, SegmentPacker, SegmentRef, Sequence,
    SourceState, TableDefinition, TableId, TableName, TransactionDraft, Version,
};
use crate::store::conflict::Identity;
use crate::store::{ApplyBatch, BoundaryAt, Hlc, StoreError};

/// A row, or the tombstone of one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// Its value; `None` is a tombstone.
    pub value: Option<Bytes>,
    /// Who wrote it.
    pub origin: NodeName,
    /// When.
    pub version: Version,
}

#[derive(Debug, Clone)]
pub(super) struct StoredRow {
    pub(super) identity: Identity,
    pub(super) value: Option<Bytes>,
}

#[derive(Clone)]
pub(super) struct State {
    pub(super) origins: Vec<NodeName>,
    pub(super) tables: Vec<TableDefinition>,
    pub(super) hlc: Hlc,
    pub(super) tail: LogTail,
    segments: BTreeMap<Sequence, Bytes>,
    pub(super) rows: BTreeMap<(TableId, Vec<u8>), StoredRow>,
    pub(super) messages: BTreeSet<Identity>,
    pub(super) sources: BTreeMap<NodeName, SourceState>,
    pub(super) failed_sources: BTreeSet<NodeName>,
    #[cfg(any(test, feature = "testing"))]
    pub(super) planted: super::plant::Planted,
}

impl State {
    pub(super) fn new(node: NodeName) -> Self {
        Self {
            origins: vec![node],
            tables: Vec::new(),
            hlc: Hlc::default(),
            tail: LogTail::default(),
            segments: BTreeMap::new(),
            rows: BTreeMap::new(),
            messages: BTreeSet::new(),
            sources: BTreeMap::new(),
            failed_sources: BTreeSet::new(),
            #[cfg(any(test, feature = "testing"))]
            planted: super::plant::Planted::default(),
        }
    }

    pub(super) fn define_table(
        &mut self,
        name: &TableName,
        definition: Bytes,
    ) -> Result<(TableId, bool), StoreError> {
        if let Some((id, known)) =
            (0..).map(TableId).zip(&mut self.tables).find(|(_, table)| table.name == *name)
        {
            let changed = known.definition != definition;
            if changed {
                *known = TableDefinition { name: name.clone(), version: known.version + 1, definition };
            }
            return Ok((id, changed));
        }
        let id = next_id("tables", self.tables.len())?;
        self.tables.push(TableDefinition { name: name.clone(), version: 1, definition });
        Ok((TableId(id), false))
    }

    pub(super) fn origin_id(&mut self, name: &NodeName) -> Result<OriginId, StoreError> {
        if let Some((id, _)) = (0..).map(OriginId).zip(&self.origins).find(|(_, known)| *known == name) {
            return Ok(id);
        }
        let id = next_id("origins", self.origins.len())?;
        self.origins.push(name.clone());
        Ok(OriginId(id))
    }

    pub(super) fn origin_name(&self, id: OriginId) -> Option<&NodeName> {
        self.origins.get(usize::from(id.0))
    }

    pub(super) fn table(&self, id: TableId) -> Option<&TableDefinition> {
        self.tables.get(usize::from(id.0))
    }

    pub(super) fn append_own(&mut self, group: &[Vec<EntryDraft<'_>>], wall_ms: u64) -> Boundary {
        let origin = OriginId(0);
        let mut transactions = Vec::with_capacity(group.len());
        for entries in group {
            let version = self.hlc.tick(wall_ms);
            for entry in entries {
                self.write_row(entry, Identity { origin, version, ordinal: entry.ordinal });
            }
            transactions.push(TransactionDraft { origin, version, entries });
        }
        self.append_log(&transactions, wall_ms);
        self.tail.end
    }

    /// The stream of `batch` is at `boundary`.
    pub(super) fn move_on(&mut self, batch: &ApplyBatch, boundary: Boundary) {
        let state = batch.state_at(self.sources.remove(&batch.source), boundary);
        self.sources.insert(batch.source.clone(), state);
    }

    pub(super) fn write_row(&mut self, entry: &EntryDraft<'_>, identity: Identity) {
        let value = match entry.kind {
            EntryKind::Put | EntryKind::Patch => Some(Bytes::copy_from_slice(entry.value)),
            EntryKind::Delete | EntryKind::Invalidate => None,
            EntryKind::Message => {
                self.messages.insert(identity);
                return;
            }
        };
        self.rows.insert((entry.table, entry.key.to_vec()), StoredRow { identity, value });
    }

    pub(super) fn append_log(&mut self, transactions: &[TransactionDraft<'_>], wall_ms: u64) {
        let mut packer = SegmentPacker::new(self.tail, wall_ms);
        let segments = &mut self.segments;
        let mut emit = |last, frame: &[u8]| {
            segments.insert(last, Bytes::copy_from_slice(frame));
            Ok::<_, std::convert::Infallible>(())
        };
        for transaction in transactions {
            let Ok(_) = packer.push(transaction, &mut emit);
        }
        let Ok(()) = packer.finish(&mut emit);
        self.tail = packer.tail();
    }

    pub(super) fn segments_after(&self, after: Sequence, most: usize) -> Vec<(Sequence, Bytes)> {
        self.segments.range(after.plus(1)..).take(most).map(|(last, frame)| (*last, frame.clone())).collect()
    }

    pub(super) fn boundary_at(&self, sequence: Sequence) -> Result<BoundaryAt, StoreError> {
        if sequence == Sequence::ZERO {
            return Ok(BoundaryAt::Boundary(Boundary::START));
        }
        let Some((key, frame)) = self.segments.range(sequence..).next() else {
            return Ok(BoundaryAt::AheadOfLog);
        };
        let corrupt = |source| StoreError::Corrupt { what: "segment", key: *key, source };
        let boundary =
            SegmentRef::parse(frame).and_then(|segment| segment.boundary_at(sequence)).map_err(corrupt)?;
        Ok(boundary.map_or(BoundaryAt::InsideTransaction, BoundaryAt::Boundary))
    }

    pub(super) fn row(&self, table: &TableName, key: &[u8]) -> Option<Row> {
        let (id, _) = (0..).map(TableId).zip(&self.tables).find(|(_, known)| known.name == *table)?;
        let row = self.rows.get(&(id, key.to_vec()))?;
        let origin = self.origin_name(row.identity.origin)?.clone();
        Some(Row { value: row.value.clone(), origin, version: row.identity.version })
    }

    pub(super) fn rows(&self) -> Vec<(TableName, Vec<u8>, Bytes)> {
        let mut rows: Vec<_> = self
            .rows
            .iter()
            .filter_map(|((table, key), row)| {
                Some((self.table(*table)?.name.clone(), key.clone(), row.value.clone()?))
            })
            .collect();
        rows.sort_unstable();
        rows
    }

    pub(super) fn all_rows(&self) -> BTreeMap<(TableName, Vec<u8>), Row> {
        let row = |((table, key), row): (&(TableId, Vec<u8>), &StoredRow)| {
            let name = self.table(*table)?.name.clone();
            let origin = self.origin_name(row.identity.origin)?.clone();
            let row = Row { value: row.value.clone(), origin, version: row.identity.version };
            Some(((name, key.clone()), row))
        };
        self.rows.iter().filter_map(row).collect()
    }

    pub(super) fn logged(&self) -> Vec<(NodeName, Version, u32)> {
        let mut logged = Vec::new();
        for frame in self.segments.values() {
            let Ok(segment) = SegmentRef::parse(frame) else { continue };
            for transaction in segment.transactions().flatten() {
                let Some(origin) = self.origin_name(transaction.header.origin) else { continue };
                for entry in transaction.entries().flatten() {
                    logged.push((origin.clone(), transaction.header.version, entry.header.ordinal));
                }
            }
        }
        logged
    }
}

fn next_id(what: &'static str, count: usize) -> Result<u16, StoreError> {
    u16::try_from(count).map_err(|_| StoreError::Full {
        what,
        hint: "65,536 names have a short id already; use fewer names in one log".to_owned(),
    })
}
