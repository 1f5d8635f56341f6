//! The subscriptions of one connection: what was asked for, what is streaming, and what it covers.

use std::sync::Arc;

use crate::protocol::{
    Boundary, Fingerprint, LogId, Message, Position, Selection, Sequence, SourceState, Start, Subscription,
};

/// A subscription that was not answered yet.
#[derive(Debug)]
struct Asked {
    id: u32,
    selection: Arc<Selection>,
    start: Start,
}

/// What the source streams now.
#[derive(Debug)]
pub(super) struct Stream {
    pub(super) log: LogId,
    pub(super) selection: Arc<Selection>,
    filter: Fingerprint,
}

impl Stream {
    pub(super) fn position(&self, boundary: Boundary) -> Position {
        Position { log: self.log, boundary, filter: self.filter }
    }
}

/// An answer of the source.
#[derive(Debug)]
pub(super) struct Acceptance {
    pub(super) id: u32,
    pub(super) log: LogId,
    pub(super) start: Boundary,
    pub(super) filter: Fingerprint,
}

/// At most one subscription is open at a time: another filter that is asked for meanwhile waits until it was answered.
#[derive(Debug, Default)]
pub(super) struct Streams {
    last_id: u32,
    asked: Option<Asked>,
    wanted: Option<Selection>,
    current: Option<Stream>,
    /// What is covered once everything that came in is applied.
    received: Option<SourceState>,
    /// What is covered by what was committed.
    durable: Option<SourceState>,
}

impl Streams {
    /// The first subscription of the connection.
    pub(super) fn ask(&mut self, subscription: Subscription) -> Message {
        let state = match subscription.start() {
            Start::Beginning => None,
            Start::Covered(state) => Some(state.clone()),
            Start::After(at) => Some(SourceState::new(at.log, subscription.selection().clone(), at.boundary)),
        };
        (self.received, self.durable) = (state.clone(), state);
        self.send(subscription)
    }

    /// Another filter. It is asked for at once, or as soon as the source has answered what was asked for before.
    pub(super) fn ask_for(&mut self, selection: Selection) -> Option<Message> {
        if self.asked.is_some() {
            self.wanted = Some(selection);
            return None;
        }
        self.wanted = None;
        if self.current.as_ref().is_some_and(|stream| *stream.selection == selection) {
            return None;
        }
        // Never "after" a position: what is under way of the stream that ends counts too.
        let start = self.received.clone().map_or(Start::Beginning, Start::Covered);
        Some(self.send(Subscription::to(selection).starting(start)))
    }

    /// What is to be asked for now that the source has answered.
    pub(super) fn ask_for_wanted(&mut self) -> Option<Message> {
        self.wanted.take().and_then(|selection| self.ask_for(selection))
    }

    fn send(&mut self, subscription: Subscription) -> Message {
        self.last_id += 1;
        self.asked = Some(Asked {
            id: self.last_id,
            selection: Arc::new(subscription.selection().clone()),
            start: subscription.start().clone(),
        });
        Message::Subscribe { id: self.last_id, subscription }
    }

    /// Whether a subscription waits for its answer.
    pub(super) const fn is_waiting(&self) -> bool {
        self.asked.is_some()
    }

    /// The stream that was asked for begins.
    ///
    /// # Errors
    /// What was accepted is not what was asked for.
    pub(super) fn accept(&mut self, acceptance: &Acceptance) -> Result<(), String> {
        let Acceptance { id, log, start, filter } = *acceptance;
        let Some(asked) = self.asked.take_if(|asked| asked.id == id) else {
            return Err(format!("an acceptance of the subscription {id}, which was not asked for"));
        };
        let fits = match &asked.start {
            Start::Beginning => start == Boundary::START,
            Start::After(position) => start == position.boundary && log == position.log,
            Start::Covered(state) => {
                let known = self.received.as_ref().and_then(|state| state.boundary_of(&asked.selection));
                log == state.log() && start.sequence <= known.unwrap_or_default().sequence
            }
        };
        let fingerprint = asked.selection.fingerprint();
        if filter != fingerprint || !fits {
            return Err(format!(
                "the stream was accepted from sequence {} of the log {log} with filter {:016x}, asked for were {} and {:016x}",
                start.sequence, filter.0, asked.start, fingerprint.0
            ));
        }
        let begun = || SourceState::new(log, Selection::clone(&asked.selection), start);
        self.received.get_or_insert_with(begun);
        self.durable.get_or_insert_with(begun);
        self.current = Some(Stream { log, selection: asked.selection, filter });
        Ok(())
    }

    /// What streams now.
    pub(super) const fn current(&self) -> Option<&Stream> {
        self.current.as_ref()
    }

    /// The current stream was received up to `boundary`.
    pub(super) fn on_received(&mut self, boundary: Boundary) {
        if let (Some(stream), Some(state)) = (&self.current, &mut self.received) {
            state.advance(stream.log, &stream.selection, boundary);
        }
    }

    /// A stream, this one or an earlier one, was committed up to `boundary`.
    pub(super) fn on_committed(&mut self, selection: &Selection, boundary: Boundary) {
        if let (Some(stream), Some(state)) = (&self.current, &mut self.durable) {
            state.advance(stream.log, selection, boundary);
        }
    }

    /// Up to where everything that the current stream selects is committed.
    pub(super) fn durable(&self) -> Sequence {
        let (Some(stream), Some(state)) = (&self.current, &self.durable) else { return Sequence::ZERO };
        if stream.selection.is_empty() {
            return Sequence::ZERO;
        }
        state.boundary_of(&stream.selection).unwrap_or_default().sequence
    }
}
