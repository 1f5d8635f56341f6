//! The state of one subscription: where it stands, what it owes the peer, what the peer has acknowledged.

use std::time::Duration;

use crate::clock::Moment;
use crate::config::ConfigError;
use crate::protocol::{
    Acknowledgement, Boundary, Close, CloseCode, CloseReason, Fingerprint, LogId, Message, NodeName,
    Position, SegmentBuilder, Sequence, Subscription,
};
use crate::store::AuditLog;

use super::filter::Filter;
#[cfg(any(test, feature = "testing"))]
use super::plant::Plant;
use super::progress::{ProgressTimer, SEQUENCE_UPDATE_PERIOD};
use super::stats::SendStats;

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
    pub(super) fingerprint: Fingerprint,
    pub(super) filter: Filter,
    /// Every entry up to here has been examined.
    pub(super) scanned: Sequence,
    /// The last transaction boundary at or before `scanned`.
    pub(super) boundary: Boundary,
    /// The last position that was put into the stream.
    pub(super) announced: Boundary,
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
        let fingerprint = subscription.fingerprint();
        let mut pending = Pending::default();
        pending.push(&Message::Accepted {
            id,
            log: log.log_id(),
            start,
            filter: fingerprint,
            head: log.head(),
        });
        let at_start = start.sequence;
        Self {
            config,
            log_id: log.log_id(),
            fingerprint,
            filter: Filter::new(subscription, peer.clone()),
            peer,
            scanned: at_start,
            boundary: start,
            announced: start,
            inside: None,
            staged: None,
            pending,
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
        }
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
