//! The state of one subscription: where it stands, what it owes the peer, what the peer has acknowledged.

use std::time::Duration;

use crate::clock::Moment;
use crate::config::ConfigError;
use crate::protocol::{
    Acknowledgement, Boundary, Close, CloseCode, CloseReason, Coverage, Fingerprint, LogId, Message,
    NodeName, Position, SegmentBuilder, Selection, Sequence, SourceState, Subscription,
};
use crate::store::AuditLog;

use super::filter::Filter;
#[cfg(any(test, feature = "testing"))]
use super::plant::Plant;
use super::progress::{ProgressTimer, SEQUENCE_UPDATE_PERIOD};
use super::stats::SendStats;
use super::subscribe::{Refusal, Superseding, delivered};

/// Settings of one subscription's sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SendConfig {
    pub(super) sequence_update_period: Duration,
    #[cfg(any(test, feature = "testing"))]
    plant: Option<Plant>,
}

impl Default for SendConfig {
    fn default() -> Self {
        Self {
            sequence_update_period: SEQUENCE_UPDATE_PERIOD,
            #[cfg(any(test, feature = "testing"))]
            plant: None,
        }
    }
}

impl SendConfig {
    /// Sets the time between a skip and the sequence update that reports it; 300 ms. Shorter means more frames to idle
    /// peers, longer means more to read again after a reconnect.
    ///
    /// # Errors
    /// Below 1 ms or above 60 s.
    pub fn with_sequence_update_period(mut self, period: Duration) -> Result<Self, ConfigError> {
        let holds = period >= Duration::from_millis(1) && period <= Duration::from_secs(60);
        self.sequence_update_period =
            ConfigError::require(holds, "sequence_update_period", period, "1 ms to 60 s (default 300 ms)")?;
        Ok(self)
    }
}

#[cfg(any(test, feature = "testing"))]
impl SendConfig {
    /// The same settings with a fault planted.
    #[must_use]
    pub const fn planted(self, plant: Plant) -> Self {
        Self { plant: Some(plant), ..self }
    }
}

/// What a blocked sender waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Blocked {
    /// Room in the socket.
    Socket,
    /// A free slot for a blob.
    Blobs,
    /// A resume frame of the peer.
    Paused,
}

/// Why `pump` stopped.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Stopped {
    /// Its share is used up; it goes on after the others.
    QuantumSpent,
    /// The worker's budget is used up; it goes on first, after the event loop has run.
    BudgetSpent,
    /// It cannot go on by itself.
    Blocked(Blocked),
    /// Everything readable was sent or skipped. At the deadline, if there is one, a sequence update is due.
    CaughtUp {
        /// When to call again at the latest.
        deadline: Option<Moment>,
    },
    /// The stream is over.
    Closed(CloseReason),
}

/// Bytes that were handed out in order and not taken yet.
#[derive(Default)]
pub(super) struct Pending {
    pub(super) bytes: Vec<u8>,
    pub(super) taken: usize,
}

impl std::fmt::Debug for Pending {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} bytes, {} taken", self.bytes.len(), self.taken)
    }
}

impl Pending {
    pub(super) fn is_empty(&self) -> bool {
        self.taken == self.bytes.len()
    }

    pub(super) fn push(&mut self, message: &Message) {
        message.encode(&mut self.bytes);
    }

    /// Gives the memory back once everything was taken: an idle sender holds none.
    pub(super) fn release(&mut self) {
        *self = Self::default();
    }
}

/// A place in the middle of a segment, valid for the segment that ends at `segment`: segments never change.
#[derive(Debug, Clone, Copy)]
pub(super) struct Inside {
    pub(super) segment: Sequence,
    pub(super) transaction_offset: usize,
    pub(super) entry_offset: usize,
}

/// A filtered frame that is being filled. Its bytes stand at the end of the scratch buffer while the session runs,
/// and in `bytes` between two runs.
#[derive(Debug)]
pub(super) struct Staged {
    pub(super) builder: SegmentBuilder,
    pub(super) bytes: Vec<u8>,
}

/// Which names the peer knows.
#[derive(Debug, Default)]
pub(super) struct Introduced {
    pub(super) origins: Vec<bool>,
    pub(super) tables: Vec<bool>,
    pub(super) definitions_version: u64,
}

/// One subscription's sender.
///
/// [`pump`](Self::pump) does a bounded piece of work; `on_*` methods take in what the peer said. It never waits.
#[derive(Debug)]
pub struct SendSession {
    pub(super) config: SendConfig,
    pub(super) peer: NodeName,
    pub(super) log_id: LogId,
    pub(super) subscription_id: u32,
    pub(super) fingerprint: Fingerprint,
    pub(super) filter: Filter,
    /// Every entry up to here has been examined.
    pub(super) scanned: Sequence,
    /// The last transaction boundary at or before `scanned`.
    pub(super) boundary: Boundary,
    /// The last position that was put into the stream.
    pub(super) announced: Boundary,
    /// What the peer has, streams that ended on this connection included.
    pub(super) delivered: SourceState,
    pub(super) superseding: Option<Superseding>,
    pub(super) inside: Option<Inside>,
    pub(super) staged: Option<Staged>,
    pub(super) pending: Pending,
    pub(super) introduced: Introduced,
    pub(super) timer: ProgressTimer,
    pub(super) paused: bool,
    pub(super) pong: Option<u64>,
    pub(super) ping: Option<u64>,
    pub(super) closing: Option<CloseReason>,
    pub(super) close_queued: bool,
    pub(super) acknowledged: Acknowledgement,
    pub(super) stats: SendStats,
}

impl SendSession {
    pub(super) fn start(
        log: &dyn AuditLog,
        peer: NodeName,
        id: u32,
        subscription: Subscription,
        start: Boundary,
        config: SendConfig,
    ) -> Self {
        let at_start = start.sequence;
        let mut session = Self {
            config,
            log_id: log.log_id(),
            subscription_id: id,
            fingerprint: Fingerprint::default(),
            filter: Filter::nothing(peer.clone()),
            peer,
            scanned: at_start,
            boundary: start,
            announced: start,
            delivered: delivered(&subscription, log.log_id(), start),
            superseding: None,
            inside: None,
            staged: None,
            pending: Pending::default(),
            introduced: Introduced {
                definitions_version: log.definitions_version(),
                ..Introduced::default()
            },
            timer: ProgressTimer::default(),
            paused: false,
            pong: None,
            ping: None,
            closing: None,
            close_queued: false,
            acknowledged: Acknowledgement { received: at_start, applied: at_start, durable: at_start },
            stats: SendStats::default(),
        };
        let covered = subscription.covered();
        session.begin_stream(log, id, subscription, start, &covered);
        session
    }

    /// The stream of `subscription` begins after `start`; the peer is told. What is `covered` further on is left out.
    pub(super) fn begin_stream(
        &mut self,
        log: &dyn AuditLog,
        id: u32,
        subscription: Subscription,
        start: Boundary,
        covered: &[Coverage],
    ) {
        self.subscription_id = id;
        self.fingerprint = subscription.fingerprint();
        #[cfg(any(test, feature = "testing"))]
        let covered = if self.is_planted(Plant::SendCovered) { &[] } else { covered };
        self.filter.select(subscription.selection().clone(), start.sequence, covered);
        self.scanned = start.sequence;
        (self.boundary, self.announced) = (start, start);
        (self.inside, self.staged) = (None, None);
        self.timer = ProgressTimer::default();
        let Acknowledgement { applied, durable, .. } = self.acknowledged;
        self.acknowledged = Acknowledgement {
            received: start.sequence,
            applied: applied.min(start.sequence),
            durable: durable.min(start.sequence),
        };
        // Which names the peer knows stays: it is the same connection.
        let (log, head, filter) = (log.log_id(), log.head(), self.fingerprint);
        self.pending.push(&Message::Accepted { id, log, start, filter, head });
    }

    /// The peer is told that a subscription cannot replace the one that it has; the stream is over.
    pub(super) fn refuse(&mut self, id: u32, refusal: Refusal) {
        self.pending.push(&refusal.message(id));
        self.closing.get_or_insert(CloseReason::Refused(refusal.reason, refusal.text));
    }

    fn on_subscribe(&mut self, id: u32, subscription: Subscription) {
        let latest = self.superseding.as_ref().map_or(self.subscription_id, |next| next.id);
        if id <= latest {
            let text = format!("a subscription with the id {id} after one with {latest}; count up");
            return self.close(Close::new(CloseCode::Protocol, text));
        }
        // One that was superseded before it began is never answered.
        self.superseding = Some(Superseding { id, subscription });
    }

    /// What the stream selects.
    #[must_use]
    pub const fn selection(&self) -> &Selection {
        self.filter.selection()
    }

    /// The peer's name.
    #[must_use]
    pub const fn peer(&self) -> &NodeName {
        &self.peer
    }

    /// Every entry up to here has been examined.
    #[must_use]
    pub const fn scanned(&self) -> Sequence {
        self.scanned
    }

    /// The last position that was put into the stream. Some of it may still wait for room in the output.
    #[must_use]
    pub const fn position(&self) -> Position {
        Position { log: self.log_id, boundary: self.announced, filter: self.fingerprint }
    }

    /// What the peer has acknowledged last; at the start, the start itself.
    #[must_use]
    pub const fn acknowledged(&self) -> Acknowledgement {
        self.acknowledged
    }

    /// Bytes that wait for room in the output: at most one write's worth.
    #[must_use]
    pub fn pending_bytes(&self) -> usize {
        self.pending.bytes.len() - self.pending.taken
    }

    /// Whether the peer has paused the entries.
    #[must_use]
    pub const fn is_paused(&self) -> bool {
        self.paused
    }

    /// The counters.
    #[must_use]
    pub const fn stats(&self) -> &SendStats {
        &self.stats
    }

    /// Sends a ping with the next pump. Only the latest is kept.
    pub const fn send_ping(&mut self, number: u64) {
        self.ping = Some(number);
    }

    /// Ends the stream: a frame that is half written is finished, then the close frame goes out. Entries that are not
    /// handed out yet stay for the next session, which resumes from the peer's position.
    pub fn close(&mut self, close: Close) {
        self.closing.get_or_insert(CloseReason::Here(close));
    }

    /// Takes in a frame of the peer.
    ///
    /// What a peer must not send closes the stream with [`CloseCode::Protocol`]; the next pump tells the peer.
    pub fn on_message(&mut self, message: Message) {
        match message {
            Message::Acknowledgement(acknowledgement) => self.on_acknowledgement(acknowledgement),
            Message::Pause => self.paused = true,
            Message::Resume => self.paused = false,
            Message::Ping(number) => self.pong = Some(number),
            Message::Pong(_) => {}
            Message::Subscribe { id, subscription } => self.on_subscribe(id, subscription),
            Message::Close { code, text } => {
                self.closing.get_or_insert(CloseReason::Peer(Close { code, text }));
            }
            other => self.close(Close::new(
                CloseCode::Protocol,
                format!("a subscriber must not send a frame of type {} here", other.kind().0),
            )),
        }
    }

    fn on_acknowledgement(&mut self, new: Acknowledgement) {
        let old = self.acknowledged;
        if new.received > self.announced.sequence || new.applied > new.received || new.durable > new.applied {
            let text = format!(
                "impossible acknowledgement: received {}, applied {}, durable {}, but the last position sent is {}",
                new.received, new.applied, new.durable, self.announced.sequence
            );
            return self.close(Close::new(CloseCode::Protocol, text));
        }
        if new.received < old.received || new.applied < old.applied || new.durable < old.durable {
            self.stats.acknowledgements_ignored += 1;
            return;
        }
        self.acknowledged = new;
    }

    /// Whether it stands in the middle of a segment, and whether a frame is being filled.
    #[cfg(any(test, feature = "testing"))]
    #[must_use]
    pub const fn place(&self) -> (bool, bool) {
        (self.inside.is_some(), self.staged.is_some())
    }

    #[cfg(any(test, feature = "testing"))]
    pub(super) fn is_planted(&self, plant: Plant) -> bool {
        self.config.plant == Some(plant)
    }
}
