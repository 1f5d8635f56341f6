//! One subscription's connection on a worker.

use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use bytes::BytesMut;

use crate::clock::Moment;
use crate::protocol::{
    Acknowledgement, Close, CloseCode, CloseReason, Frame, NodeName, Sequence, decode_frame,
};
use crate::sender::{Blocked, MemberId, SendSession, SendStats, Spent, Stopped, Turn, UNIT_BYTES};
use crate::store::AuditLog;

use super::keepalive::{Keepalive, KeepaliveConfig};
use super::transport::{Parked, Transport, TransportOutput};
use super::worker::Shared;

/// How long a closing connection may take to hand over its last frame and to hear the other side's end.
pub(super) const CLOSE_GRACE: Duration = Duration::from_secs(1);

/// An accepted subscription, on its way to a worker.
pub struct Connection {
    pub(super) session: SendSession,
    pub(super) log: Arc<dyn AuditLog>,
    pub(super) transport: Parked,
    /// What the peer sent behind its subscription.
    pub(super) input: BytesMut,
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection").field("peer", self.session.peer()).finish_non_exhaustive()
    }
}

/// What a worker knows of one connection.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ConnectionStats {
    /// The peer.
    pub peer: NodeName,
    /// The counters of its sender.
    pub sent: SendStats,
    /// The last position that was put into the stream.
    pub position: Sequence,
    /// What the peer acknowledged last.
    pub acknowledged: Acknowledgement,
    /// Read calls that took at least a byte of the peer's.
    pub reads: u64,
    /// What it waits for, if it does.
    pub blocked: Option<Blocked>,
    /// Bytes that wait for room in the socket.
    pub pending_bytes: usize,
}

/// Wakes the worker for one member.
pub(super) struct MemberWaker {
    pub(super) shared: Arc<Shared>,
    pub(super) id: MemberId,
}

impl Wake for MemberWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.shared.wake_member(self.id);
    }
}

/// A connection that a worker serves.
pub(super) struct Served {
    pub(super) session: SendSession,
    pub(super) log: Arc<dyn AuditLog>,
    transport: Transport,
    input: BytesMut,
    pub(super) keepalive: Keepalive,
    waker: Waker,
    /// Whether the transport had no room when it was written to last.
    stalled: bool,
    pub(super) stats: Arc<Mutex<ConnectionStats>>,
    /// Set once the last frame is out: until then the other side's end is awaited, so that its unread bytes do not turn the
    /// close into a reset that would take the last frame along.
    pub(super) draining: Option<Moment>,
    /// Whether the end of this side's bytes is out.
    shut: bool,
    /// Set when a close was asked for: the latest moment for its frame to get out.
    pub(super) closing: Option<Moment>,
    /// Whether it is in its log's list of those that wait for a commit.
    pub(super) awaits_commit: bool,
    reads: u64,
}

impl Served {
    pub(super) fn new(
        connection: Connection,
        waker: Waker,
        keepalive: KeepaliveConfig,
        now: Moment,
    ) -> std::io::Result<Self> {
        let Connection { session, log, transport, input } = connection;
        let stats = ConnectionStats {
            peer: session.peer().clone(),
            sent: *session.stats(),
            position: session.position().boundary.sequence,
            acknowledged: session.acknowledged(),
            reads: 0,
            blocked: None,
            pending_bytes: 0,
        };
        Ok(Self {
            session,
            log,
            transport: transport.unpark()?,
            input,
            keepalive: Keepalive::new(keepalive, now),
            waker,
            stalled: false,
            stats: Arc::new(Mutex::new(stats)),
            draining: None,
            shut: false,
            closing: None,
            awaits_commit: false,
            reads: 0,
        })
    }

    /// What the peer sent, then the send loop.
    pub(super) fn serve(&mut self, turn: &mut Turn<'_>, buffer: &mut [u8]) -> Stopped {
        let waker = self.waker.clone();
        let mut cx = Context::from_waker(&waker);
        let stopped = match self.read(&mut cx, turn, buffer) {
            Some(stopped) => stopped,
            None => self.write(&mut cx, turn),
        };
        self.publish(&stopped);
        stopped
    }

    fn write(&mut self, cx: &mut Context<'_>, turn: &mut Turn<'_>) -> Stopped {
        let mut output = TransportOutput { transport: &mut self.transport, cx, progressed: false };
        let stopped = self.session.pump(&*self.log, &mut output, turn);
        let progressed = output.progressed;
        let was_stalled = std::mem::replace(&mut self.stalled, stopped == Stopped::Blocked(Blocked::Socket));
        // Room that was there before says nothing of the peer: buffers on the way take pings for long after it is gone.
        if was_stalled && progressed {
            self.keepalive.on_accepted(turn.now());
        }
        match self.transport.poll_flush(cx) {
            Poll::Ready(Err(error)) => return Stopped::Closed(CloseReason::Output(error.to_string())),
            Poll::Ready(Ok(())) | Poll::Pending => {}
        }
        if matches!(stopped, Stopped::Closed(CloseReason::Here(_))) {
            self.draining.get_or_insert_with(|| turn.now().plus(CLOSE_GRACE));
            // Under TLS it takes room in the socket to say the end: it is asked for again until it is out.
            if !self.shut {
                match self.transport.poll_shutdown(cx) {
                    Poll::Pending => {}
                    Poll::Ready(Ok(())) => self.shut = true,
                    Poll::Ready(Err(error)) => {
                        return Stopped::Closed(CloseReason::Output(error.to_string()));
                    }
                }
            }
        }
        stopped
    }

    /// Takes in at most one unit of the peer's bytes, and stops when that used up the share.
    fn read(&mut self, cx: &mut Context<'_>, turn: &mut Turn<'_>, buffer: &mut [u8]) -> Option<Stopped> {
        let mut total = 0;
        let mut ended = None;
        while total < UNIT_BYTES {
            match self.transport.poll_read(cx, buffer) {
                Poll::Pending => break,
                Poll::Ready(Ok(0)) => ended = Some("the peer closed the connection".to_owned()),
                Poll::Ready(Err(error)) => ended = Some(error.to_string()),
                Poll::Ready(Ok(count)) => {
                    total += count;
                    self.reads += 1;
                    if self.draining.is_none() {
                        self.input.extend_from_slice(&buffer[..count]);
                    }
                    // The next look registers the waker.
                    continue;
                }
            }
            break;
        }
        if total > 0 {
            self.keepalive.on_received(turn.now());
        }
        if !self.input.is_empty() {
            self.decode();
        }
        if let Some(mut text) = ended {
            if !self.input.is_empty() {
                text.push_str(&format!(", {} bytes into a frame", self.input.len()));
            }
            return Some(Stopped::Closed(CloseReason::Output(text)));
        }
        if total == 0 {
            return None;
        }
        // More may be waiting: come back for it.
        if total >= UNIT_BYTES {
            cx.waker().wake_by_ref();
        }
        match turn.end_unit()? {
            Spent::Budget => Some(Stopped::BudgetSpent),
            Spent::Quantum => Some(Stopped::QuantumSpent),
        }
    }

    fn decode(&mut self) {
        loop {
            match decode_frame(&mut self.input) {
                Ok(None) => return,
                Ok(Some(Frame::Message(message))) => self.session.on_message(message),
                Ok(Some(Frame::Segment(_))) => {
                    self.session
                        .close(Close::new(CloseCode::Protocol, "a subscriber must not send segments"));
                }
                Err(error) => {
                    self.session.close(Close::new(CloseCode::Protocol, error.to_string()));
                    self.input.clear();
                    return;
                }
            }
        }
    }

    fn publish(&self, stopped: &Stopped) {
        let mut stats = self.stats.lock().unwrap_or_else(PoisonError::into_inner);
        stats.sent = *self.session.stats();
        stats.position = self.session.position().boundary.sequence;
        stats.acknowledged = self.session.acknowledged();
        stats.reads = self.reads;
        stats.pending_bytes = self.session.pending_bytes();
        stats.blocked = match stopped {
            Stopped::Blocked(blocked) => Some(*blocked),
            _ => None,
        };
    }
}
