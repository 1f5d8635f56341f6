//! The applier of a measured peer: watches another one.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use auditstream::protocol::{NodeName, Position, SegmentRef, SourceState};
use auditstream::store::{Applier, ApplyBatch, ApplyDone, StoreError};

use crate::proc::{Event, PeerCounts, talk};

fn entries_in(batch: &ApplyBatch) -> u64 {
    let entries = |frame: &bytes::Bytes| {
        SegmentRef::parse(frame).map_or(0, |segment| u64::from(segment.header().entries))
    };
    batch.frames.iter().map(entries).sum()
}

/// Counts what another applier is given and answers, and tells the parent when a target is durable.
pub(crate) struct Watched {
    inner: Arc<dyn Applier>,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    counts: PeerCounts,
    target: Option<u64>,
    hold_at: Option<u64>,
    holding: bool,
}

impl State {
    /// What the parent is to be told, once per target.
    fn news(&mut self) -> Option<Event> {
        self.target.take_if(|target| self.counts.position >= *target).map(|_| Event::Reached(self.counts))
    }
}

fn locked(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Watched {
    /// Watches `inner`, which has `position` of the source.
    pub(crate) fn new(inner: Arc<dyn Applier>, position: Option<Position>) -> Self {
        let mut state = State::default();
        state.counts.position = position.map_or(0, |position| position.boundary.sequence.get());
        Self { inner, state: Arc::new(Mutex::new(state)) }
    }

    /// From now on: tell when `target` is durable. A batch that would pass `hold_at` entries is never applied nor
    /// answered, so that a kill meets the peer in the middle, however fast it is.
    pub(crate) fn aim(&self, target: u64, hold_at: Option<u64>) {
        let mut state = locked(&self.state);
        state.target = Some(target);
        state.hold_at = hold_at;
        let news = state.news();
        drop(state);
        news.iter().for_each(talk::say);
    }

    pub(crate) fn counts(&self) -> PeerCounts {
        locked(&self.state).counts
    }
}

impl Applier for Watched {
    fn source_state(&self, source: &NodeName) -> Result<Option<SourceState>, StoreError> {
        self.inner.source_state(source)
    }

    fn submit(&self, batch: ApplyBatch, done: ApplyDone) {
        let entries = entries_in(&batch);
        let position = batch.position.boundary.sequence.get();
        let mut state = locked(&self.state);
        state.counts.received += entries;
        if state.hold_at.is_some_and(|hold| state.counts.received >= hold) {
            if !std::mem::replace(&mut state.holding, true) {
                talk::say(&Event::Holding(state.counts));
            }
            return;
        }
        drop(state);
        let state = Arc::clone(&self.state);
        let watched: ApplyDone = Box::new(move |answer| {
            if answer.is_ok() {
                let mut state = locked(&state);
                state.counts.applied += entries;
                // Below `sync`, durable means committed, and the levels of the store say so.
                state.counts.durable += entries;
                state.counts.position = state.counts.position.max(position);
                let news = state.news();
                drop(state);
                news.iter().for_each(talk::say);
            }
            done(answer);
        });
        self.inner.submit(batch, watched);
    }
}
