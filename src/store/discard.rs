//! An applier that throws everything away, for measuring senders.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::protocol::{NodeName, SegmentRef, SourceState};

use super::{Applied, Applier, ApplyBatch, ApplyDone, StoreError};

/// Counts entries and keeps positions in memory; acknowledges at once. For measuring only: nothing is stored.
#[derive(Debug, Default)]
pub struct DiscardApplier {
    states: Mutex<BTreeMap<NodeName, SourceState>>,
    entries: AtomicU64,
}

impl DiscardApplier {
    /// Entries thrown away so far.
    #[must_use]
    pub fn entries(&self) -> u64 {
        self.entries.load(Ordering::Relaxed)
    }
}

impl Applier for DiscardApplier {
    fn source_state(&self, source: &NodeName) -> Result<Option<SourceState>, StoreError> {
        Ok(self.states.lock().unwrap_or_else(PoisonError::into_inner).get(source).cloned())
    }

    fn submit(&self, batch: ApplyBatch, done: ApplyDone) {
        let count = |frame| SegmentRef::parse(frame).map_or(0, |segment| u64::from(segment.header().entries));
        let changed = batch.frames.iter().map(|frame| count(frame)).sum();
        self.entries.fetch_add(changed, Ordering::Relaxed);
        let mut states = self.states.lock().unwrap_or_else(PoisonError::into_inner);
        let state = batch.state_after(states.remove(&batch.source));
        states.insert(batch.source, state);
        drop(states);
        done(Ok(Applied { changed, unchanged: 0 }));
    }
}
