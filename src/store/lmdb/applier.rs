//! What receivers hand in.

use std::collections::HashMap;
use std::collections::hash_map::Entry as Slot;
use std::sync::{Arc, Mutex, PoisonError};

use super::Core;
use super::apply::read_source_state;
use super::queue::{ApplyJob, ApplyReply, Job, Task};
use super::writer::refuse;
use crate::protocol::{NodeName, SegmentRef, SourceState};
use crate::store::{Applier, ApplyBatch, ApplyDone, ApplyError, StoreError};

/// The key-value applier: rows, own log and position of a batch in one commit.
///
/// A call of [`Applier::source_state`] begins a session of that source: batches that are submitted after it are not held
/// back by failures of batches that were submitted before it. To look at it without beginning a session, use
/// `LmdbStore::source_state_of`.
///
/// Callbacks run on the writer thread, one after the other: they hand the answer on and return. One that waits, for
/// example for `LmdbStore::define_table`, waits for ever.
#[derive(Debug)]
pub struct LmdbApplier {
    pub(super) core: Arc<Core>,
}

impl Applier for LmdbApplier {
    fn source_state(&self, source: &NodeName) -> Result<Option<SourceState>, StoreError> {
        self.core.sources.begin_session(source);
        read_source_state(&self.core, source)
    }

    fn submit(&self, batch: ApplyBatch, done: ApplyDone) {
        let session = self.core.sources.session(&batch.source);
        let records = batch.frames.iter().map(|frame| entries_in(frame)).sum();
        let bytes = batch.frames.iter().map(bytes::Bytes::len).sum();
        let done = ApplyReply::new(done, batch.position.boundary.sequence);
        let task = Task::Apply(ApplyJob { batch, session, done });
        if let Err(refused) = self.core.queue.push(Job { task, records, bytes }) {
            refuse(refused.1.task);
        }
    }
}

/// Entries of a frame, for the size of a commit only; one that cannot be read is reported when it is applied.
fn entries_in(frame: &[u8]) -> usize {
    SegmentRef::parse(frame).map_or(1, |segment| segment.header().entries as usize)
}

/// Sessions of the sources, and the failure that holds one back.
#[derive(Debug, Default)]
pub(super) struct Sources {
    known: Mutex<HashMap<NodeName, Source>>,
}

#[derive(Debug, Default)]
struct Source {
    session: u64,
    /// Batches of this session and of earlier ones fail.
    failed: Option<(u64, ApplyError)>,
}

impl Sources {
    fn with<T>(&self, source: &NodeName, act: impl FnOnce(&mut Source) -> T) -> T {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        match known.get_mut(source) {
            Some(source) => act(source),
            None => match known.entry(source.clone()) {
                Slot::Occupied(mut slot) => act(slot.get_mut()),
                Slot::Vacant(slot) => act(slot.insert(Source::default())),
            },
        }
    }

    fn begin_session(&self, source: &NodeName) {
        self.with(source, |source| source.session += 1);
    }

    fn session(&self, source: &NodeName) -> u64 {
        self.with(source, |source| source.session)
    }

    pub(super) fn latch(&self, source: &NodeName, session: u64, error: ApplyError) {
        self.with(source, |source| source.failed = Some((session, error)));
    }

    /// The failure that holds a batch of this session back.
    pub(super) fn latched(&self, source: &NodeName, session: u64) -> Option<ApplyError> {
        self.with(source, |source| {
            source.failed.as_ref().filter(|(failed, _)| session <= *failed).map(|(_, error)| error.clone())
        })
    }
}
