//! One node: its clock, its store, its worker, and its writer thread.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Wake, Waker};
use std::time::Duration;

use bytes::BytesMut;

use crate::clock::Moment;
use crate::protocol::{Message, NodeName, Selection};
use crate::receiver::{ReceiveSession, Ticket};
use crate::sender::{MemberId, Ring, SendSession};
use crate::store::{Applied, ApplyBatch, ApplyError, MemorySnapshot};

use super::clock::NodeClock;
use super::link::Pipe;
use super::log::ChargedLog;
use super::model::{Model, Wants};
use super::wire::WireOracle;

/// What the writer thread does next.
#[derive(Debug)]
pub(super) enum Job {
    /// A commit of the node's own.
    Append(usize),
    /// Received batches, as many as one commit takes.
    Apply,
}

/// A batch on its way to the writer thread.
#[derive(Debug)]
pub(super) struct Submitted {
    pub(super) link: usize,
    pub(super) epoch: u64,
    pub(super) ticket: Ticket,
    pub(super) batch: ApplyBatch,
}

/// What the writer thread answered.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) link: usize,
    pub(super) epoch: u64,
    pub(super) ticket: Ticket,
    pub(super) result: Result<Applied, ApplyError>,
}

#[derive(Debug)]
pub(super) struct Node {
    pub(super) name: NodeName,
    pub(super) up: bool,
    pub(super) clock: Arc<NodeClock>,
    pub(super) log: ChargedLog,
    pub(super) ring: Option<Ring>,
    /// The link of each member of the ring.
    pub(super) members: BTreeMap<MemberId, usize>,
    pub(super) jobs: BTreeMap<(Moment, u64), Job>,
    pub(super) submitted: VecDeque<Submitted>,
    pub(super) apply_scheduled: bool,
    pub(super) commits_stopped_until: Moment,
    pub(super) answers: VecDeque<Answer>,
    pub(super) timer_due: Moment,
    pub(super) echo_due: Moment,
    /// Who was served last, and how many whole shares in a row it got while others were ready.
    pub(super) in_a_row: (usize, u32),
    pub(super) driver: Duration,
    pub(super) longest_driver: Duration,
    pub(super) scheduled: Option<Moment>,
    /// What a node that stops uncleanly falls back to.
    pub(super) synced: Option<(MemorySnapshot, Model)>,
    pub(super) keeps_snapshots: bool,
    pub(super) commits: u64,
}

/// A waker that only remembers.
#[derive(Debug, Default)]
pub(super) struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Flag {
    pub(super) fn waker(self: &Arc<Self>) -> Waker {
        Waker::from(Arc::clone(self))
    }

    pub(super) fn take(&self) -> bool {
        self.0.swap(false, Ordering::Relaxed)
    }
}

/// What a sender does between two services.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Waiting {
    /// In the ring.
    Ready,
    /// No room.
    Socket,
    /// Paused by the peer.
    Paused,
    /// Nothing to send.
    CaughtUp(Option<Moment>),
    /// Over.
    Closed,
}

/// One connection, both ends.
#[derive(Debug)]
pub(super) struct Connection {
    pub(super) forward: Pipe,
    pub(super) back: Pipe,
    pub(super) input: BytesMut,
    pub(super) back_input: BytesMut,
    pub(super) back_tap: BytesMut,
    pub(super) receive: ReceiveSession,
    pub(super) inbox: VecDeque<Message>,
    pub(super) send: Option<Box<SendSession>>,
    pub(super) member: Option<MemberId>,
    pub(super) flag: Arc<Flag>,
    pub(super) oracle: WireOracle,
    /// What the acknowledgements speak of: the subscription that was sent last.
    pub(super) acknowledges: Selection,
    pub(super) waiting: Waiting,
    pub(super) writable_at: Option<Moment>,
    pub(super) source_gone: bool,
    pub(super) peer_gone: bool,
    pub(super) ready_since: Moment,
    pub(super) driver_at_ready: Duration,
    /// It was interrupted by the end of a turn, in the middle of its share.
    pub(super) interrupted: bool,
    pub(super) owed_since: Option<Moment>,
}

/// One subscription, connected or not.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) source: usize,
    pub(super) peer: usize,
    pub(super) selection: Selection,
    pub(super) wants: Wants,
    pub(super) window: usize,
    pub(super) delay: Duration,
    pub(super) kibibyte: u64,
    pub(super) connection: Option<Connection>,
    pub(super) epoch: u64,
    pub(super) connect_at: Moment,
    /// The operator gave up the stored position, which belongs to a log that is gone.
    pub(super) forget: bool,
    /// Batches that the peer's writer thread has not answered.
    pub(super) open: usize,
}
