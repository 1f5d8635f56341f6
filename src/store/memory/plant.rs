//! Known faults of a store, planted on purpose, and failures on demand.

use crate::protocol::{NodeName, SourceState};
use crate::store::{Applied, ApplyBatch, ApplyError, StoreError};

use super::state::State;
use super::{MemoryStore, apply as real};

/// A fault to plant into a [`MemoryStore`]. Only tests can.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StorePlant {
    /// The position is committed at once, the data with the next batch.
    PositionBeforeData,
    /// Every second entry of a batch becomes visible at once, the others with the next batch.
    SplitTransaction,
    /// An entry that is there already is logged again.
    LogDuplicate,
    /// After a batch has failed, later ones of the same source are applied.
    NoLatch,
    /// A stream moves on what other selections cover too.
    CoverEverything,
}

/// What is planted, and what waits because of it.
#[derive(Debug, Clone, Default)]
pub(super) struct Planted {
    pub(super) plant: Option<StorePlant>,
    /// Only every second entry takes effect.
    pub(super) halved: bool,
    pub(super) fail_next: bool,
    parked: Option<ApplyBatch>,
}

impl MemoryStore {
    /// The same store with a fault planted.
    #[must_use]
    pub fn planted(self, plant: StorePlant) -> Self {
        self.state().planted.plant = Some(plant);
        self
    }

    /// What is stored of `source`, looked at from outside: no stream begins with it.
    #[must_use]
    pub fn peek_source(&self, source: &NodeName) -> Option<SourceState> {
        self.state().sources.get(source).cloned()
    }

    /// Lets the next batch fail, as a full disk does. Nothing of it is written.
    pub fn fail_next_apply(&self) {
        self.state().planted.fail_next = true;
    }
}

pub(super) fn apply(
    state: &mut State,
    batch: &ApplyBatch,
    wall_ms: u64,
) -> (Result<Applied, ApplyError>, bool) {
    if std::mem::take(&mut state.planted.fail_next) && !state.failed_sources.contains(&batch.source) {
        if state.planted.plant != Some(StorePlant::NoLatch) {
            state.failed_sources.insert(batch.source.clone());
        }
        let good = batch.boundary_in(state.sources.get(&batch.source));
        let reason = StoreError::Full { what: "the disk", hint: "the test asked for it".to_owned() };
        return (Err(ApplyError { good, at: batch.position.boundary.sequence, reason }), false);
    }
    if let Some(parked) = state.planted.parked.take() {
        // What comes of it does not matter: the plant is what is looked at.
        let _ = real::apply(state, &parked, wall_ms);
    }
    match state.planted.plant {
        Some(StorePlant::PositionBeforeData) if !batch.frames.is_empty() => {
            state.move_on(batch, batch.position.boundary);
            state.planted.parked = Some(batch.clone());
            (Ok(Applied::default()), false)
        }
        Some(StorePlant::SplitTransaction) if !batch.frames.is_empty() => {
            let before = state.sources.get(&batch.source).cloned();
            state.planted.halved = true;
            let result = real::apply(state, batch, wall_ms);
            state.planted.halved = false;
            match before {
                Some(stored) => state.sources.insert(batch.source.clone(), stored),
                None => state.sources.remove(&batch.source),
            };
            state.planted.parked = Some(batch.clone());
            result
        }
        Some(StorePlant::CoverEverything) => {
            let before = state.sources.get(&batch.source).cloned();
            let result = real::apply(state, batch, wall_ms);
            if let (Some(before), Some(after)) = (before, state.sources.get_mut(&batch.source)) {
                for coverage in before.covered().iter().rev() {
                    after.advance(after.log(), &coverage.selection, batch.position.boundary);
                }
            }
            result
        }
        _ => real::apply(state, batch, wall_ms),
    }
}
