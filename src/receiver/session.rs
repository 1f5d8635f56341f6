//! One source's stream, as its receiver sees it.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};

use crate::clock::Moment;
use crate::protocol::{
    Acknowledgement, Boundary, Close, CloseCode, CloseReason, Dictionary, Frame, Hello, Message, NodeName,
    ProtocolError, RefuseReason, SegmentRef, Selection, Subscription, decode_frame,
};
use crate::store::{Applied, ApplyBatch, ApplyError, PeerDictionary};

use super::acknowledge::Acknowledger;
use super::action::{ReceiveAction, ReceiveStats, Ticket};
use super::config::ReceiveConfig;
use super::pacing::{Load, Pacing, PauseReason};
use super::staging::Staging;
use super::streams::{Acceptance, Streams};

#[derive(Debug)]
enum Phase {
    AwaitHello,
    Greeted(NodeName),
    Subscribed(NodeName),
    Streaming(NodeName),
    /// Latched off: no later frame of this stream is applied.
    Off,
}

/// Most bytes of table definitions that a source may send on one connection: a thousand full ones.
const DICTIONARY_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Above this much of unsent output no input is taken: a source that does not read what it is told gets no more answers.
const OUTPUT_BYTES_MAX: usize = 64 * 1024;

/// The receiving half of one connection.
///
/// Bytes go in through [`receive`](Self::receive), work comes out of [`poll_action`](Self::poll_action), bytes to send stand
/// in [`output`](Self::output). It never waits.
#[derive(Debug)]
pub struct ReceiveSession {
    config: ReceiveConfig,
    phase: Phase,
    streams: Streams,
    actions: VecDeque<ReceiveAction>,
    dictionary: Arc<PeerDictionary>,
    dictionary_bytes: usize,
    /// Segment frames, names and positions that came in and were not looked into yet.
    queued: VecDeque<Queued>,
    queued_bytes: usize,
    staging: Staging,
    decoded: VecDeque<ApplyBatch>,
    uncommitted: VecDeque<Uncommitted>,
    next_ticket: u64,
    acknowledger: Acknowledger,
    pacing: Pacing,
    pause_sent: bool,
    output: Vec<u8>,
    closed: Option<CloseReason>,
    stats: ReceiveStats,
}

/// A batch that was handed out and not answered.
#[derive(Debug)]
struct Uncommitted {
    ticket: Ticket,
    selection: Arc<Selection>,
    boundary: Boundary,
    frames: usize,
}

#[derive(Debug)]
enum Queued {
    Segment(Bytes),
    Dictionary(Dictionary),
    Position(Boundary),
    /// What follows belongs to another stream.
    Accepted(Acceptance),
}

impl Queued {
    /// What it holds in memory besides itself.
    fn bytes(&self) -> usize {
        match self {
            Self::Segment(frame) => frame.len(),
            Self::Dictionary(Dictionary::Table(_, table)) => table.definition.len(),
            Self::Dictionary(Dictionary::Origin(..)) | Self::Position(_) | Self::Accepted(_) => 0,
        }
    }
}

impl ReceiveSession {
    /// A session that has not heard of its source yet. It greets at once: send what stands in the output.
    #[must_use]
    pub fn new(node: NodeName, config: ReceiveConfig) -> Self {
        let mut output = Vec::new();
        Message::Hello(Hello::new(node)).encode(&mut output);
        Self {
            config,
            phase: Phase::AwaitHello,
            streams: Streams::default(),
            actions: VecDeque::new(),
            dictionary: Arc::default(),
            dictionary_bytes: 0,
            queued: VecDeque::new(),
            queued_bytes: 0,
            staging: Staging::default(),
            decoded: VecDeque::new(),
            uncommitted: VecDeque::new(),
            next_ticket: 0,
            acknowledger: Acknowledger::default(),
            pacing: Pacing::default(),
            pause_sent: false,
            output,
            closed: None,
            stats: ReceiveStats::default(),
        }
    }

    /// Asks for a stream, after [`ReceiveAction::Greeted`]. Ignored at any other time.
    pub fn subscribe(&mut self, subscription: Subscription) {
        if let Phase::Greeted(source) = &self.phase {
            self.phase = Phase::Subscribed(source.clone());
            self.streams.ask(subscription).encode(&mut self.output);
        }
    }

    /// Asks for another selection on the running stream: it takes the place of the one before, from where what it adds
    /// was last covered. One that selects nothing ends the stream and leaves the connection open for the next. Ignored before
    /// [`subscribe`](Self::subscribe) and when the stream is over.
    pub fn resubscribe(&mut self, selection: Selection) {
        if matches!(self.phase, Phase::Subscribed(_) | Phase::Streaming(_))
            && let Some(message) = self.streams.ask_for(selection)
        {
            message.encode(&mut self.output);
        }
    }

    /// Takes in bytes of the source. What is left in `input` is the start of a frame.
    pub fn receive(&mut self, input: &mut BytesMut, now: Moment) {
        while self.closed.is_none() {
            match decode_frame(input) {
                Ok(Some(Frame::Message(message))) => self.on_message(message),
                Ok(Some(Frame::Segment(frame))) => self.enqueue(Queued::Segment(frame)),
                Ok(None) => break,
                Err(error) => self.fail_protocol(&error),
            }
        }
        self.advance(now, false);
    }

    fn on_message(&mut self, message: Message) {
        match message {
            Message::Hello(hello) => self.on_hello(hello),
            Message::Accepted { id, log, start, filter, .. } => {
                self.on_accepted(Acceptance { id, log, start, filter });
            }
            Message::Refused { reason, text, .. } => self.on_refused(reason, text),
            // In its place: what was sent before it keeps the names that it was sent with.
            Message::Dictionary(dictionary) => self.enqueue(Queued::Dictionary(dictionary)),
            Message::SequenceUpdate(boundary) => {
                self.stats.sequence_updates += 1;
                self.enqueue(Queued::Position(boundary));
            }
            Message::Progress(_) => self.stats.progress_frames += 1,
            Message::Ping(number) => Message::Pong(number).encode(&mut self.output),
            Message::Pong(_) => {}
            Message::Close { code, text } => self.end(CloseReason::Peer(Close { code, text })),
            other => self.close(Close::new(
                CloseCode::Protocol,
                format!("a source must not send a frame of type {} here", other.kind().0),
            )),
        }
    }

    fn learn(&mut self, dictionary: Dictionary) {
        if let Dictionary::Table(_, table) = &dictionary {
            self.dictionary_bytes += table.definition.len();
        }
        if self.dictionary_bytes > DICTIONARY_BYTES_MAX {
            let text = format!(
                "table definitions of {} bytes on one connection, the limit is {DICTIONARY_BYTES_MAX}",
                self.dictionary_bytes
            );
            return self.close(Close::new(CloseCode::Overloaded, text));
        }
        Arc::make_mut(&mut self.dictionary).insert(dictionary);
    }

    fn on_hello(&mut self, hello: Hello) {
        if !matches!(self.phase, Phase::AwaitHello) {
            return self.close(Close::new(CloseCode::Protocol, "a second hello on one connection"));
        }
        match hello.check() {
            Ok(()) => {
                self.phase = Phase::Greeted(hello.node.clone());
                self.actions.push_back(ReceiveAction::Greeted(hello.node));
            }
            Err(error) => self.fail_protocol(&error),
        }
    }

    fn on_accepted(&mut self, acceptance: Acceptance) {
        match &self.phase {
            Phase::Subscribed(source) => {
                self.phase = Phase::Streaming(source.clone());
                self.begin_stream(&acceptance);
            }
            // In its place: what was sent before it belongs to the stream before.
            Phase::Streaming(_) if self.streams.is_waiting() => self.enqueue(Queued::Accepted(acceptance)),
            _ => self.close(Close::new(CloseCode::Protocol, "an acceptance without a subscription")),
        }
    }

    fn begin_stream(&mut self, acceptance: &Acceptance) {
        if let Err(text) = self.streams.accept(acceptance) {
            return self.close(Close::new(CloseCode::Protocol, text));
        }
        let start = acceptance.start;
        // A part of a transaction that the stream before did not end comes again, as far as it is selected.
        self.staging = Staging::starting_at(start);
        self.acknowledger.begin_stream(start.sequence, self.streams.durable());
        if let Some(message) = self.streams.ask_for_wanted() {
            message.encode(&mut self.output);
        }
    }

    fn on_refused(&mut self, reason: RefuseReason, text: String) {
        self.end(CloseReason::Refused(reason, text));
    }

    fn enqueue(&mut self, queued: Queued) {
        if !matches!(self.phase, Phase::Streaming(_)) {
            return self.close(Close::new(
                CloseCode::Protocol,
                "entries, names or positions before the stream was accepted",
            ));
        }
        self.queued_bytes += queued.bytes();
        self.queued.push_back(queued);
    }

    /// Moves everything on as far as the bounds allow: input to batches, batches to the applier, acknowledgements and
    /// pauses to the output.
    fn advance(&mut self, now: Moment, committed: bool) {
        if self.closed.is_none() {
            while self.decoded.len() <= self.config.decoded_segments && self.decode_next() {}
        }
        // What was found in the queue may have ended the stream: nothing follows the close frame.
        if self.closed.is_none() {
            self.submit();
            self.pace(committed);
        }
        if self.acknowledges()
            && let Some(message) = self.acknowledger.poll(now)
        {
            self.stats.acknowledgements += 1;
            message.encode(&mut self.output);
        }
    }

    /// Between a subscription and its answer, the source could not tell which of the two streams is meant.
    const fn acknowledges(&self) -> bool {
        matches!(self.phase, Phase::Streaming(_)) && !self.streams.is_waiting()
    }

    /// Looks into the next frame of the queue; false when there is none.
    fn decode_next(&mut self) -> bool {
        let Some(queued) = self.queued.pop_front() else { return false };
        self.queued_bytes -= queued.bytes();
        let result = match queued {
            Queued::Position(boundary) => self.staging.position(boundary),
            Queued::Segment(frame) => self.decode_segment(frame),
            Queued::Dictionary(dictionary) => {
                self.learn(dictionary);
                Ok(None)
            }
            Queued::Accepted(acceptance) => {
                self.begin_stream(&acceptance);
                Ok(None)
            }
        };
        match result {
            Ok(Some((frames, boundary))) => self.push_batch(frames, boundary),
            Ok(None) => {}
            Err(error) => self.fail_protocol(&error),
        }
        true
    }

    fn decode_segment(&mut self, frame: Bytes) -> Result<Option<(Vec<Bytes>, Boundary)>, ProtocolError> {
        let segment = SegmentRef::parse(&frame)?;
        segment.verify()?;
        self.stats.segments_received += 1;
        self.stats.entries_received += u64::from(segment.header().entries);
        self.staging.segment(frame)
    }

    fn push_batch(&mut self, frames: Vec<Bytes>, boundary: Boundary) {
        self.streams.on_received(boundary);
        let (Phase::Streaming(source), Some(stream)) = (&self.phase, self.streams.current()) else { return };
        self.acknowledger.update(|current| current.received = boundary.sequence);
        #[cfg(any(test, feature = "testing"))]
        if self.config.acknowledges_early {
            let at = boundary.sequence;
            self.acknowledger.update(|current| (current.applied, current.durable) = (at, at));
        }
        let position = stream.position(boundary);
        if frames.is_empty()
            && let Some(last) = self.decoded.back_mut()
            && Arc::ptr_eq(&last.selection, &stream.selection)
        {
            // A position without data rides on the batch before it.
            last.position = position;
            return;
        }
        self.decoded.push_back(ApplyBatch {
            source: source.clone(),
            selection: Arc::clone(&stream.selection),
            dictionary: Arc::clone(&self.dictionary),
            frames,
            position,
        });
    }

    fn submit(&mut self) {
        while self.uncommitted_frames() < self.config.record_concurrency {
            let Some(batch) = self.decoded.pop_front() else { break };
            let ticket = Ticket(self.next_ticket);
            self.next_ticket += 1;
            self.uncommitted.push_back(Uncommitted {
                ticket,
                selection: Arc::clone(&batch.selection),
                boundary: batch.position.boundary,
                frames: batch.frames.len().max(1),
            });
            self.actions.push_back(ReceiveAction::Apply(ticket, batch));
        }
    }

    fn uncommitted_frames(&self) -> usize {
        // A large transaction may have more frames than the bound: it is handed out whole once there is any room.
        self.uncommitted.iter().map(|batch| batch.frames).sum()
    }

    fn pace(&mut self, committed: bool) {
        let load = Load {
            queued_bytes: self.queued_bytes,
            queued_frames: self.queued.len(),
            decoded: self.decoded.len(),
            uncommitted_frames: self.uncommitted_frames(),
        };
        self.pacing.update(&self.config, &load, committed);
        let paused = self.pacing.is_paused();
        if paused != self.pause_sent {
            self.pause_sent = paused;
            self.stats.pauses += u64::from(paused);
            let message = if paused { Message::Pause } else { Message::Resume };
            message.encode(&mut self.output);
        }
    }

    /// Takes in the applier's answer. Tickets are answered in order; only a failure may come before the
    /// answers to earlier ones, as from a store that is closed while they wait. Any other ticket is ignored.
    pub fn on_applied(&mut self, ticket: Ticket, result: Result<Applied, ApplyError>, now: Moment) {
        let Some(at) = self.uncommitted.iter().position(|open| open.ticket == ticket) else { return };
        if at > 0 && result.is_ok() {
            return;
        }
        let Some(batch) = self.uncommitted.remove(at) else { return };
        match result {
            Ok(applied) => {
                self.stats.entries_changed += applied.changed;
                self.stats.entries_unchanged += applied.unchanged;
                self.streams.on_committed(&batch.selection, batch.boundary);
                if matches!(self.phase, Phase::Streaming(_)) {
                    let durable = self.streams.durable();
                    self.acknowledger.update(|current| {
                        let reached = durable.min(current.received).max(current.durable);
                        (current.applied, current.durable) = (reached, reached);
                    });
                }
            }
            Err(error) => self.close(Close::new(CloseCode::Apply, error.to_string())),
        }
        self.advance(now, true);
    }

    /// Sends what is due by `now`.
    pub fn on_deadline(&mut self, now: Moment) {
        self.advance(now, false);
    }

    /// When to call [`on_deadline`](Self::on_deadline) at the latest.
    #[must_use]
    pub fn deadline(&self) -> Option<Moment> {
        if self.acknowledges() { self.acknowledger.deadline() } else { None }
    }

    /// The next thing to do.
    pub fn poll_action(&mut self) -> Option<ReceiveAction> {
        self.actions.pop_front()
    }

    /// Bytes to send, in order. The driver takes from its front what the socket took.
    pub const fn output(&mut self) -> &mut Vec<u8> {
        &mut self.output
    }

    /// Whether more input can be taken. A source that goes on in spite of a pause is left unread at twice the bound, one
    /// that does not read its answers at 64 KiB of them.
    #[must_use]
    pub fn wants_input(&self) -> bool {
        self.queued_bytes <= 2 * self.config.queued_bytes
            && self.queued.len() <= 2 * self.config.queued_frames
            && self.output.len() <= OUTPUT_BYTES_MAX
    }

    /// Batches that the applier has not answered.
    #[must_use]
    pub fn open_tickets(&self) -> usize {
        self.uncommitted.len()
    }

    /// Why the source is paused now.
    pub fn pause_reasons(&self) -> impl Iterator<Item = PauseReason> + use<> {
        self.pacing.reasons()
    }

    /// The source's name, once it has said it.
    #[must_use]
    pub const fn source(&self) -> Option<&NodeName> {
        match &self.phase {
            Phase::Greeted(source) | Phase::Subscribed(source) | Phase::Streaming(source) => Some(source),
            Phase::AwaitHello | Phase::Off => None,
        }
    }

    /// Whether the stream was accepted and is not over.
    #[must_use]
    pub const fn is_streaming(&self) -> bool {
        matches!(self.phase, Phase::Streaming(_))
    }

    /// How far this side is.
    #[must_use]
    pub const fn acknowledged(&self) -> Acknowledgement {
        self.acknowledger.current()
    }

    /// The counters.
    #[must_use]
    pub const fn stats(&self) -> &ReceiveStats {
        &self.stats
    }

    /// Sends a ping.
    pub fn send_ping(&mut self, number: u64) {
        Message::Ping(number).encode(&mut self.output);
    }

    /// Ends the stream from this side: latched off first, then the source is told.
    pub fn close(&mut self, close: Close) {
        if self.closed.is_none() {
            Message::Close { code: close.code, text: close.text.clone() }.encode(&mut self.output);
        }
        self.end(CloseReason::Here(close));
    }

    /// The connection is gone.
    pub fn on_disconnected(&mut self, text: impl Into<String>) {
        self.end(CloseReason::Output(text.into()));
    }

    fn fail_protocol(&mut self, error: &ProtocolError) {
        self.close(Close::new(CloseCode::Protocol, error.to_string()));
    }

    fn end(&mut self, reason: CloseReason) {
        if self.closed.is_some() {
            // The first reason counts, and whoever drives the session may not have been told of it yet.
            return;
        }
        self.phase = Phase::Off;
        self.queued.clear();
        self.queued_bytes = 0;
        self.decoded.clear();
        // What was not handed out yet is not applied any more.
        let not_handed_out =
            self.actions.iter().filter(|action| matches!(action, ReceiveAction::Apply(..))).count();
        self.uncommitted.truncate(self.uncommitted.len() - not_handed_out);
        self.actions.clear();
        self.closed = Some(reason.clone());
        self.actions.push_back(ReceiveAction::Closed(reason));
    }
}
