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
use crate::protocol::{Boundary, EntryDraft, EntryKind, NodeName, Sequence, SourceState};
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
    /// As stored, with what this transaction changes.
    sources: HashMap<NodeName, SourceState>,
}

impl ApplyState {
    /// After an abort: nothing learned from the aborted transaction may be kept.
    pub(super) fn forget(&mut self) {
        self.rows.forget();
        self.maps.clear();
        self.sources.clear();
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
        self.move_on(stage, batch, batch.position.boundary).map_err(failed)?;
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
            self.move_on(stage, batch, boundary)?;
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

    /// Writes how far the batch's stream is at `boundary`.
    fn move_on(
        &mut self,
        stage: &mut Stage<'_>,
        batch: &ApplyBatch,
        boundary: Boundary,
    ) -> Result<(), StoreError> {
        let core = stage.core;
        let stored = match self.sources.remove(&batch.source) {
            Some(state) => Some(state),
            None => stored_source(&stage.txn, core, &batch.source)?,
        };
        let state = batch.state_at(stored, boundary);
        let (databases, bytes) = (&core.databases, state.to_bytes());
        stage
            .txn
            .put(databases.positions, &batch.source.as_str(), &bytes, WriteFlags::empty())
            .map_err(|error| write_error("write a position", error, &core.options))?;
        self.sources.insert(batch.source.clone(), state);
        Ok(())
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

/// What is stored of a source. Bytes that cannot be read are an error, never "none".
pub(super) fn read_source_state(core: &Core, source: &NodeName) -> Result<Option<SourceState>, StoreError> {
    let begun = core.environment.begin_ro_txn();
    let txn = begun.map_err(|error| super::error::backend("read what is stored of a source", error))?;
    stored_source(&txn, core, source)
}

fn stored_source(
    txn: &impl Transaction,
    core: &Core,
    source: &NodeName,
) -> Result<Option<SourceState>, StoreError> {
    let bytes = txn.get(core.databases.positions, &source.as_str());
    let bytes = found(bytes, "read what is stored of a source")?;
    bytes
        .map(|bytes| {
            SourceState::from_bytes(bytes).map_err(|error| {
                super::error::unreadable(format!("the stored position of {source} is corrupt"), error)
            })
        })
        .transpose()
}
