//! Applying a batch inside a write transaction: rows, own log and position.

use std::collections::HashMap;

use lmdb::{Transaction, WriteFlags};
use std::sync::Arc;

use super::Core;
use super::error::write_error;
use super::plan::{IdMap, Plan, Planned};
use super::rowwriter::{RowWriter, note_identity};
use super::stage::Stage;
use super::walk::found;
use crate::protocol::{Boundary, EntryDraft, EntryKind, NodeName, Position, Sequence};
use crate::store::{Applied, ApplyBatch, StoreError};

/// A transaction that cannot be applied: how many before it can, where it ends, and why it cannot.
#[derive(Debug)]
pub(super) struct Failed {
    pub(super) good: usize,
    pub(super) at: Sequence,
    pub(super) reason: StoreError,
}

/// What the writer thread knows about rows and sources between commits.
#[derive(Debug, Default)]
pub(super) struct ApplyState {
    pub(super) rows: RowWriter,
    maps: HashMap<NodeName, IdMap>,
}

impl ApplyState {
    /// After an abort: nothing learned from the aborted transaction may be kept.
    pub(super) fn forget(&mut self) {
        self.rows.forget();
        self.maps.clear();
    }

    /// Applies a batch with its position.
    pub(super) fn apply(&mut self, stage: &mut Stage<'_>, batch: &ApplyBatch) -> Result<Applied, Failed> {
        let plan = self.plan(stage, batch);
        let (applied, _) = self.apply_first(stage, &plan, plan.transactions.len())?;
        if let Some((at, reason)) = plan.failed {
            return Err(Failed { good: plan.transactions.len(), at, reason });
        }
        let all = plan.transactions.len();
        let failed = |reason| Failed { good: all, at: batch.position.boundary.sequence, reason };
        put_position(stage, &batch.source, batch.position).map_err(failed)?;
        Ok(applied)
    }

    /// Applies the first `good` transactions of a batch, and moves the position to the last boundary among them that
    /// is known; what lies between comes again and is then a duplicate.
    pub(super) fn apply_prefix(
        &mut self,
        stage: &mut Stage<'_>,
        batch: &ApplyBatch,
        good: usize,
    ) -> Result<Option<Boundary>, StoreError> {
        let plan = self.plan(stage, batch);
        let (_, boundary) = self
            .apply_first(stage, &plan, good.min(plan.transactions.len()))
            .map_err(|failed| failed.reason)?;
        if let Some(boundary) = boundary {
            put_position(stage, &batch.source, Position { boundary, ..batch.position })?;
        }
        Ok(boundary)
    }

    fn plan<'b>(&mut self, stage: &mut Stage<'_>, batch: &'b ApplyBatch) -> Plan<'b> {
        // Looked up before inserted: the name is cloned once per source, not once per batch.
        if !self.maps.contains_key(&batch.source) {
            self.maps.insert(batch.source.clone(), IdMap::default());
        }
        match self.maps.get_mut(&batch.source) {
            Some(map) => {
                map.follow(&batch.dictionary);
                Plan::read(batch, map, stage)
            }
            None => Plan::default(),
        }
    }

    fn apply_first(
        &mut self,
        stage: &mut Stage<'_>,
        plan: &Plan<'_>,
        count: usize,
    ) -> Result<(Applied, Option<Boundary>), Failed> {
        let mut applied = Applied::default();
        let mut boundary = None;
        let mut winners = Vec::new();
        for (good, planned) in plan.transactions.iter().take(count).enumerate() {
            winners.clear();
            let entries = &plan.entries[planned.entries.clone()];
            let failed = |reason| Failed { good, at: planned.end, reason };
            self.apply_transaction(stage, planned, entries, &mut winners).map_err(failed)?;
            applied.changed += winners.len() as u64;
            applied.unchanged += (entries.len() - winners.len()) as u64 + planned.dropped;
            boundary = planned.boundary.or(boundary);
        }
        Ok((applied, boundary))
    }

    /// Applies one transaction; what changed something goes to the own log as one transaction.
    fn apply_transaction<'b>(
        &mut self,
        stage: &mut Stage<'_>,
        planned: &Planned,
        entries: &[EntryDraft<'b>],
        winners: &mut Vec<EntryDraft<'b>>,
    ) -> Result<(), StoreError> {
        if planned.origin == stage.core.origin {
            // Own entries that come back: they are here already, whatever became of their rows.
            return Ok(());
        }
        stage.clock.observe(planned.version, stage.wall_ms).map_err(|skew| StoreError::Backend {
            action: "take in a transaction's version".to_owned(),
            source: Arc::new(skew),
        })?;
        for entry in entries {
            let changed = if entry.kind == EntryKind::Message {
                let sequence = stage.last().plus(1 + winners.len() as u64).get();
                note_identity(stage, entry, planned.origin, planned.version, sequence)?
            } else {
                self.rows.write_received(stage, entry, planned.origin, planned.version)?
            };
            if changed {
                winners.push(*entry);
            }
        }
        if !winners.is_empty() {
            stage.append(planned.origin, planned.version, winners)?;
        }
        Ok(())
    }
}

fn put_position(stage: &mut Stage<'_>, source: &NodeName, position: Position) -> Result<(), StoreError> {
    let core = stage.core;
    stage
        .txn
        .put(core.databases.positions, &source.as_str(), &position.to_bytes(), WriteFlags::empty())
        .map_err(|error| write_error("write a position", error, &core.options))
}

/// The stored position of a source. One that cannot be read is an error, never "none".
pub(super) fn read_position(core: &Core, source: &NodeName) -> Result<Option<Position>, StoreError> {
    let action = "read a position";
    let txn = core.environment.begin_ro_txn().map_err(|error| super::error::backend(action, error))?;
    let bytes = found(txn.get(core.databases.positions, &source.as_str()), action)?;
    bytes
        .map(|bytes| {
            Position::from_bytes(bytes).map_err(|error| {
                super::error::unreadable(format!("the stored position of {source} is corrupt"), error)
            })
        })
        .transpose()
}
