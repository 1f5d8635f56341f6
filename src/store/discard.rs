//! An applier that throws everything away, for measuring senders.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::protocol::{NodeName, Position, SegmentRef};

use super::{Applied, Applier, ApplyBatch, ApplyDone, StoreError};

/// Counts entries and keeps positions in memory; acknowledges at once. For measuring only: nothing is stored.
#[derive(Debug, Default)]
pub struct DiscardApplier {
    positions: Mutex<BTreeMap<NodeName, Position>>,
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
    fn position(&self, source: &NodeName) -> Result<Option<Position>, StoreError> {
        Ok(self.positions.lock().unwrap_or_else(PoisonError::into_inner).get(source).copied())
    }

    fn submit(&self, batch: ApplyBatch, done: ApplyDone) {
        let count = |frame| SegmentRef::parse(frame).map_or(0, |segment| u64::from(segment.header().entries));
        let changed = batch.frames.iter().map(|frame| count(frame)).sum();
        self.entries.fetch_add(changed, Ordering::Relaxed);
        self.positions.lock().unwrap_or_else(PoisonError::into_inner).insert(batch.source, batch.position);
        done(Ok(Applied { changed, unchanged: 0 }));
    }
}
