//! One source's stream, from its bytes to the applier and back.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::BytesMut;
use tokio::sync::mpsc;
use tokio::time::Sleep;
use tokio_util::sync::CancellationToken;

use crate::clock::{Clock, Moment};
use crate::protocol::{Close, CloseCode, CloseReason, NodeName, Subscription};
use crate::receiver::{ReceiveAction, ReceiveSession, Ticket};
use crate::store::{Applied, Applier, ApplyError};

use super::keepalive::{Due, Keepalive, KeepaliveConfig};
use super::transport::Transport;

/// Bytes read at once: a few segments.
const READ_BYTES: usize = 256 * 1024;

/// Bytes taken in before other tasks of the runtime run.
const TURN_BYTES: usize = 1024 * 1024;

/// How long the last frame may take to get out, and open batches to be answered.
const END_GRACE: Duration = Duration::from_secs(5);

type Answer = (Ticket, Result<Applied, ApplyError>);

/// Drives a session until it is over and every batch was answered.
pub(super) struct Receiving<'a> {
    session: ReceiveSession,
    transport: Transport,
    applier: Arc<dyn Applier>,
    clock: Arc<dyn Clock>,
    keepalive: Keepalive,
    subscription: Subscription,
    input: BytesMut,
    /// What is read goes through here: frames are cut out of `input` and hold on to its memory while they wait, so that
    /// must not be larger than what came in.
    buffer: Vec<u8>,
    answers: (mpsc::UnboundedSender<Answer>, mpsc::UnboundedReceiver<Answer>),
    sleep: Option<Pin<Box<Sleep>>>,
    /// Whether the transport had no room when it was written to last.
    stalled: bool,
    ended: Option<(CloseReason, Moment)>,
    /// Called after every step, for whoever shows the status.
    observe: &'a mut (dyn FnMut(&ReceiveSession) + Send),
}

impl<'a> Receiving<'a> {
    pub(super) fn new(
        session: ReceiveSession,
        transport: Transport,
        applier: Arc<dyn Applier>,
        clock: Arc<dyn Clock>,
        keepalive: KeepaliveConfig,
        subscription: Subscription,
        observe: &'a mut (dyn FnMut(&ReceiveSession) + Send),
    ) -> Self {
        let keepalive = Keepalive::new(keepalive, clock.now());
        Self {
            session,
            transport,
            applier,
            clock,
            keepalive,
            subscription,
            input: BytesMut::new(),
            buffer: vec![0; READ_BYTES],
            answers: mpsc::unbounded_channel(),
            sleep: None,
            stalled: false,
            ended: None,
            observe,
        }
    }

    /// Runs until the stream is over, or `stop` ends it. Open batches are waited for: an old session must not act on
    /// the next one.
    pub(super) async fn run(mut self, stop: &CancellationToken) -> CloseReason {
        let mut stopped = std::pin::pin!(stop.cancelled());
        loop {
            let over = poll_fn(|cx| {
                if self.ended.is_none() && stopped.as_mut().poll(cx).is_ready() {
                    self.session.close(Close::new(CloseCode::Shutdown, "the node shuts down"));
                }
                self.poll_step(cx)
            })
            .await;
            (self.observe)(&self.session);
            match over {
                Some(reason) => return reason,
                // Taking in flat out: the other tasks run in between.
                None => tokio::task::yield_now().await,
            }
        }
    }

    /// Goes on until nothing can be done, or a turn's worth was.
    fn poll_step(&mut self, cx: &mut Context<'_>) -> Poll<Option<CloseReason>> {
        let mut taken = 0;
        loop {
            let mut progressed = self.take_answers(cx);
            self.act();
            progressed |= self.write(cx);
            if let Some(reason) = self.finished() {
                return Poll::Ready(Some(reason));
            }
            let count = self.read(cx);
            taken += count;
            progressed |= count > 0;
            progressed |= self.keep_time(cx);
            if !progressed {
                (self.observe)(&self.session);
                return Poll::Pending;
            }
            if taken >= TURN_BYTES {
                return Poll::Ready(None);
            }
        }
    }

    fn take_answers(&mut self, cx: &mut Context<'_>) -> bool {
        let mut any = false;
        while let Poll::Ready(Some((ticket, result))) = self.answers.1.poll_recv(cx) {
            self.session.on_applied(ticket, result, self.clock.now());
            any = true;
        }
        any
    }

    fn act(&mut self) {
        while let Some(action) = self.session.poll_action() {
            match action {
                ReceiveAction::Greeted(source) => self.subscribe(&source),
                ReceiveAction::Apply(ticket, batch) => {
                    let answers = self.answers.0.clone();
                    let done = move |result| {
                        // Nobody listens any more when the future was dropped.
                        let _unheard = answers.send((ticket, result));
                    };
                    self.applier.submit(batch, Box::new(done));
                }
                ReceiveAction::Closed(reason) => {
                    let latest = self.clock.now().plus(END_GRACE);
                    self.ended.get_or_insert((reason, latest));
                }
            }
        }
    }

    fn subscribe(&mut self, source: &NodeName) {
        match self.applier.source_state(source) {
            Ok(state) => {
                let subscription = self.subscription.clone().resuming(state);
                self.session.subscribe(subscription);
            }
            Err(error) => {
                let text = format!("what is stored of {source} cannot be read: {error}");
                self.session.close(Close::new(CloseCode::Store, text));
            }
        }
    }

    fn write(&mut self, cx: &mut Context<'_>) -> bool {
        let mut any = false;
        while !self.session.output().is_empty() {
            match self.transport.poll_write(cx, self.session.output()) {
                Poll::Pending => {
                    self.stalled = true;
                    break;
                }
                Poll::Ready(Ok(count)) if count > 0 => {
                    self.session.output().drain(..count);
                    // Room that was there before says nothing of the source.
                    if std::mem::take(&mut self.stalled) {
                        self.keepalive.on_accepted(self.clock.now());
                    }
                    any = true;
                }
                Poll::Ready(Ok(_)) => self.disconnected("the stream takes no more bytes"),
                Poll::Ready(Err(error)) => self.disconnected(&error.to_string()),
            }
        }
        match self.transport.poll_flush(cx) {
            Poll::Ready(Err(error)) => self.disconnected(&error.to_string()),
            Poll::Ready(Ok(())) | Poll::Pending => {}
        }
        any
    }

    fn disconnected(&mut self, text: &str) {
        self.session.output().clear();
        self.session.on_disconnected(text);
        self.act();
    }

    /// Reads once and gives the count of bytes.
    fn read(&mut self, cx: &mut Context<'_>) -> usize {
        if self.ended.is_some() || !self.session.wants_input() {
            return 0;
        }
        let mut count = 0;
        match self.transport.poll_read(cx, &mut self.buffer) {
            Poll::Pending => return 0,
            Poll::Ready(Err(error)) => self.disconnected(&error.to_string()),
            Poll::Ready(Ok(0)) => {
                let text = match self.input.len() {
                    0 => "the source closed the connection".to_owned(),
                    left => format!("the source closed the connection {left} bytes into a frame"),
                };
                self.disconnected(&text);
            }
            Poll::Ready(Ok(read)) => {
                count = read;
                let now = self.clock.now();
                self.keepalive.on_received(now);
                self.input.extend_from_slice(&self.buffer[..count]);
                self.session.receive(&mut self.input, now);
            }
        }
        // An end counts as progress too: it has to be acted on.
        count.max(1)
    }

    /// Sends what is due and arms the timer for the next. True when something was done.
    fn keep_time(&mut self, cx: &mut Context<'_>) -> bool {
        let now = self.clock.now();
        if self.session.deadline().is_some_and(|due| due <= now) {
            self.session.on_deadline(now);
            return true;
        }
        let mut next = self.session.deadline();
        if let Some((_, latest)) = &self.ended {
            if *latest <= now {
                // Only the open batches are waited for now, and their answers wake this task: a timer that is due already
                // would do so all the time.
                return false;
            }
            next = Some(next.map_or(*latest, |next| next.min(*latest)));
        } else if self.session.wants_input() || self.stalled {
            let (due, check) = self.keepalive.check(now);
            match due {
                Due::Dead => {
                    self.disconnected("the source neither sent nor took a byte in time");
                    return true;
                }
                Due::Ping => {
                    self.session.send_ping(now.as_nanos());
                    return true;
                }
                Due::Nothing => next = Some(next.map_or(check, |next| next.min(check))),
            }
        }
        match next {
            None => false,
            Some(next) => self.arm(next, now, cx),
        }
    }

    fn arm(&mut self, at: Moment, now: Moment, cx: &mut Context<'_>) -> bool {
        let mut sleep = Box::pin(tokio::time::sleep(at.since(now)));
        let fired = sleep.as_mut().poll(cx).is_ready();
        self.sleep = Some(sleep);
        fired
    }

    /// Whether the end was said, heard or given up, and no batch is open.
    fn finished(&mut self) -> Option<CloseReason> {
        let (reason, latest) = self.ended.as_ref()?;
        let said = self.session.output().is_empty();
        let overdue = *latest <= self.clock.now();
        if self.session.open_tickets() == 0 && (said || overdue) {
            return Some(reason.clone());
        }
        None
    }
}
