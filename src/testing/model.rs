//! A log as the oracles know it: a plain list, read from the segments at each commit.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

use crate::protocol::{EntryFlags, EntryKind, NodeName, Selection, Sequence, TableName, Version};
use crate::store::{AuditLog, MemoryStore};

use super::plan::{NODES_MAX, TABLES, node_name, table_name};

/// One entry of a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ModelEntry {
    pub(super) origin: NodeName,
    pub(super) version: Version,
    pub(super) ordinal: u32,
    pub(super) table: TableName,
    pub(super) kind: EntryKind,
    pub(super) local: bool,
    pub(super) key: Vec<u8>,
    /// Length and checksum of the value.
    pub(super) value: (usize, u32),
}

/// One log, from its first entry: the entry with sequence `n` stands at place `n - 1`.
#[derive(Debug, Clone, Default)]
pub(super) struct Model {
    pub(super) entries: Vec<ModelEntry>,
    /// The transaction ends.
    pub(super) boundaries: BTreeMap<u64, Version>,
    identities: BTreeSet<(NodeName, Version, u32)>,
}

/// What a subscription wants, by the oracles' own rule.
#[derive(Debug, Clone)]
pub(super) struct Wants {
    pub(super) peer: NodeName,
    tables: BTreeSet<TableName>,
    origins: BTreeSet<NodeName>,
}

/// What a stream need not bring: all that was wanted, up to there.
pub(super) type Had = (Wants, u64);

impl Wants {
    pub(super) fn new(peer: NodeName, selection: &Selection) -> Self {
        let tables = (0..TABLES).map(table_name).filter(|table| selection.tables().passes(table)).collect();
        let origins = (0..NODES_MAX).map(node_name).filter(|node| selection.origins().passes(node)).collect();
        Self { peer, tables, origins }
    }

    pub(super) fn everything(&self) -> bool {
        self.tables.len() == TABLES && self.origins.len() == NODES_MAX
    }

    pub(super) fn nothing(&self) -> bool {
        self.tables.is_empty() || self.origins.is_empty()
    }

    pub(super) fn eligible(&self, entry: &ModelEntry) -> bool {
        !entry.local && self.follows(&entry.origin, &entry.table)
    }

    pub(super) fn follows(&self, origin: &NodeName, table: &TableName) -> bool {
        *origin != self.peer && self.origins.contains(origin) && self.tables.contains(table)
    }
}

impl Model {
    pub(super) const fn head(&self) -> u64 {
        self.entries.len() as u64
    }

    pub(super) fn entry(&self, sequence: u64) -> Option<&ModelEntry> {
        self.entries.get(usize::try_from(sequence.checked_sub(1)?).ok()?)
    }

    /// The first entry after `after` and up to `last` that is eligible and that the peer has not had.
    pub(super) fn next_eligible(&self, wants: &Wants, had: &[Had], after: u64, last: u64) -> Option<u64> {
        (after + 1..=last.min(self.head())).find(|sequence| {
            let had = |entry| had.iter().any(|(had, upto)| sequence <= upto && had.eligible(entry));
            self.entry(*sequence).is_some_and(|entry| wants.eligible(entry) && !had(entry))
        })
    }

    pub(super) fn has(&self, entry: &ModelEntry) -> bool {
        self.identities.contains(&(entry.origin.clone(), entry.version, entry.ordinal))
    }

    /// Reads what was committed since the last call.
    ///
    /// # Errors
    /// What is wrong with the log: a hole, a second entry with one identity.
    pub(super) fn read(&mut self, store: &MemoryStore) -> Result<(), String> {
        let mut problem = Ok(());
        let end = store.scan(Sequence::new(self.head()), &mut |segment| {
            problem = self.read_segment(store, &segment);
            if problem.is_err() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        end.map_err(|error| error.to_string())?;
        problem
    }

    fn read_segment(
        &mut self,
        store: &MemoryStore,
        segment: &crate::protocol::SegmentRef<'_>,
    ) -> Result<(), String> {
        let text = |error: crate::protocol::ProtocolError| error.to_string();
        for transaction in segment.transactions() {
            let transaction = transaction.map_err(text)?;
            let origin = store.origin(transaction.header.origin).ok().flatten().ok_or("an unnamed origin")?;
            for entry in transaction.entries() {
                let entry = entry.map_err(text)?;
                let sequence = transaction.sequence_of(&entry).get();
                if sequence != self.head() + 1 {
                    return Err(format!("sequence {sequence} follows {}", self.head()));
                }
                let table = store.table(entry.header.table).ok().flatten().ok_or("an unnamed table")?.name;
                let identity = (origin.clone(), transaction.header.version, entry.header.ordinal);
                self.entries.push(ModelEntry {
                    origin: identity.0.clone(),
                    version: identity.1,
                    ordinal: identity.2,
                    table,
                    kind: entry.header.kind,
                    local: entry.header.flags.contains(EntryFlags::LOCAL_ONLY),
                    key: entry.key.to_vec(),
                    value: (entry.value.len(), crc32fast::hash(entry.value)),
                });
                if !self.identities.insert(identity) {
                    return Err(format!(
                        "entry {} {} {} is logged twice, the second time at {sequence}",
                        origin, transaction.header.version, entry.header.ordinal
                    ));
                }
            }
            if transaction.boundary().is_some() {
                self.boundaries.insert(self.head(), transaction.header.version);
            }
        }
        Ok(())
    }
}
