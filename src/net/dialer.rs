//! Following a source: connect, receive, and connect again.

use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;

use crate::clock::Clock;
use crate::config::ConfigError;
use crate::protocol::{Acknowledgement, CloseReason, NodeName, RefuseReason, Subscription};
use crate::receiver::{ReceiveConfig, ReceiveSession, ReceiveStats};
use crate::store::Applier;

use super::keepalive::KeepaliveConfig;
use super::receive::Receiving;
use super::transport::Transport;

/// Settings of a dialer. Each is checked when it is set.
#[derive(Debug, Clone, Copy)]
pub struct DialerConfig {
    receive: ReceiveConfig,
    keepalive: KeepaliveConfig,
    backoff: (Duration, Duration),
    connect_timeout: Duration,
}

impl Default for DialerConfig {
    fn default() -> Self {
        Self {
            receive: ReceiveConfig::default(),
            keepalive: KeepaliveConfig::default(),
            backoff: (Duration::from_millis(500), Duration::from_secs(30)),
            connect_timeout: Duration::from_secs(10),
        }
    }
}

impl DialerConfig {
    /// Sets the receiver's bounds.
    #[must_use]
    pub const fn with_receive(self, receive: ReceiveConfig) -> Self {
        Self { receive, ..self }
    }

    /// Sets when a silent source is asked and given up.
    #[must_use]
    pub const fn with_keepalive(self, keepalive: KeepaliveConfig) -> Self {
        Self { keepalive, ..self }
    }

    /// Sets the pause before the first reconnect (500 ms) and the longest one (30 s). It doubles from one to the
    /// other; each pause is a random part of it, so that peers of a returning source do not all come at once. A batch that was
    /// applied sets it back.
    ///
    /// # Errors
    /// Below 1 ms, above an hour, or a longest below the first.
    pub fn with_backoff(self, first: Duration, longest: Duration) -> Result<Self, ConfigError> {
        let range = Duration::from_millis(1)..=Duration::from_secs(3600);
        let first =
            ConfigError::require(range.contains(&first), "backoff", first, "1 ms to 1 h (default 500 ms)")?;
        let holds = range.contains(&longest) && longest >= first;
        let allowed = "the first pause to 1 h (default 30 s)";
        let longest = ConfigError::require(holds, "longest backoff", longest, allowed)?;
        Ok(Self { backoff: (first, longest), ..self })
    }

    /// Sets how long a connect may take; 10 s.
    ///
    /// # Errors
    /// Below 10 ms or above 10 min.
    pub fn with_connect_timeout(self, timeout: Duration) -> Result<Self, ConfigError> {
        let holds = (Duration::from_millis(10)..=Duration::from_secs(600)).contains(&timeout);
        let connect_timeout =
            ConfigError::require(holds, "connect_timeout", timeout, "10 ms to 10 min (default 10 s)")?;
        Ok(Self { connect_timeout, ..self })
    }
}

/// What a dialer does now.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum DialerState {
    /// Opening the connection.
    Connecting,
    /// Connected, not accepted yet.
    Greeting,
    /// Receiving.
    Streaming,
    /// The last try failed; the next comes after this pause.
    Waiting(Duration),
    /// The source refused the subscription. It is asked again after the longest pause, in case it changes; nothing is guessed.
    Refused(RefuseReason),
    /// Stopped.
    Stopped,
}

/// What a dialer shows.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct DialerStatus {
    /// What it does now.
    pub state: DialerState,
    /// The source's name, once it was heard.
    pub source: Option<NodeName>,
    /// How far it is, in sequences of the source's log.
    pub acknowledged: Acknowledgement,
    /// Counters of the current connection.
    pub received: ReceiveStats,
    /// Connections that ended.
    pub reconnects: u64,
    /// Why the last one ended.
    pub last_error: Option<String>,
}

/// Reads a dialer's status.
#[derive(Debug, Clone)]
pub struct DialerHandle {
    status: Arc<Mutex<DialerStatus>>,
}

impl DialerHandle {
    /// The status now.
    #[must_use]
    pub fn status(&self) -> DialerStatus {
        self.status.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn update(&self, change: impl FnOnce(&mut DialerStatus)) {
        change(&mut self.status.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

type Connecting = Pin<Box<dyn Future<Output = std::io::Result<Transport>> + Send>>;

/// Follows one source: a future that the host spawns.
pub struct Dialer {
    node: NodeName,
    connect: Box<dyn FnMut() -> Connecting + Send>,
    applier: Arc<dyn Applier>,
    subscription: Subscription,
    clock: Arc<dyn Clock>,
    config: DialerConfig,
    handle: DialerHandle,
}

impl std::fmt::Debug for Dialer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Dialer").field("node", &self.node).finish_non_exhaustive()
    }
}

impl Dialer {
    /// Follows the source at `address` as `node`, applying with `applier`. Let one dialer follow each source: two that
    /// follow the same one into the same store share its stored position, and a batch that failed on one stream could be passed over by the
    /// other. The start of `subscription` is ignored: the
    /// position that the applier has stored for the source is used.
    pub fn new(
        address: SocketAddr,
        node: NodeName,
        applier: Arc<dyn Applier>,
        subscription: Subscription,
        clock: Arc<dyn Clock>,
        config: DialerConfig,
    ) -> Self {
        let connect = move || -> Connecting {
            Box::pin(async move {
                let stream = TcpStream::connect(address).await?;
                stream.set_nodelay(true)?;
                Ok(Transport::Tcp(stream))
            })
        };
        Self::with_connector(connect, node, applier, subscription, clock, config)
    }

    /// The same over connections that `connect` makes: TLS, a proxy, a pipe.
    pub fn with_connector(
        connect: impl FnMut() -> Pin<Box<dyn Future<Output = std::io::Result<Transport>> + Send>> + Send + 'static,
        node: NodeName,
        applier: Arc<dyn Applier>,
        subscription: Subscription,
        clock: Arc<dyn Clock>,
        config: DialerConfig,
    ) -> Self {
        let status = DialerStatus {
            state: DialerState::Connecting,
            source: None,
            acknowledged: Acknowledgement::default(),
            received: ReceiveStats::default(),
            reconnects: 0,
            last_error: None,
        };
        let handle = DialerHandle { status: Arc::new(Mutex::new(status)) };
        Self { node, connect: Box::new(connect), applier, subscription, clock, config, handle }
    }

    /// Reads the status while it runs.
    #[must_use]
    pub fn handle(&self) -> DialerHandle {
        self.handle.clone()
    }

    /// Follows the source until `stop` is cancelled.
    ///
    /// # Cancel safety
    /// Dropping it drops the connection. Batches that were handed to the applier are still committed; cancel `stop` and await the
    /// end to know that all of them were.
    pub async fn run(mut self, stop: CancellationToken) {
        let mut backoff = Backoff::new(self.config.backoff);
        while !stop.is_cancelled() {
            self.handle.update(|status| status.state = DialerState::Connecting);
            let connect = tokio::time::timeout(self.config.connect_timeout, (self.connect)());
            let connected = tokio::select! {
                biased;
                () = stop.cancelled() => break,
                connected = connect => connected,
            };
            let (error, refused) = match connected {
                Err(_) => (format!("no connection within {:?}", self.config.connect_timeout), None),
                Ok(Err(error)) => (error.to_string(), None),
                Ok(Ok(transport)) => {
                    let (reason, progressed) = self.receive(transport, &stop).await;
                    if progressed {
                        backoff.reset();
                    }
                    match reason {
                        CloseReason::Refused(reason, text) => (text, Some(reason)),
                        other => (other.to_string(), None),
                    }
                }
            };
            if stop.is_cancelled() {
                break;
            }
            let pause = if refused.is_some() { backoff.longest() } else { backoff.next() };
            self.note_end(error, refused, pause);
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                () = tokio::time::sleep(pause) => {}
            }
        }
        self.handle.update(|status| status.state = DialerState::Stopped);
    }

    fn note_end(&self, error: String, refused: Option<RefuseReason>, pause: Duration) {
        tracing::info!(%error, ?pause, "stream ended");
        self.handle.update(|status| {
            status.state = refused.map_or(DialerState::Waiting(pause), DialerState::Refused);
            status.reconnects += 1;
            status.last_error = Some(error);
        });
    }

    async fn receive(&mut self, transport: Transport, stop: &CancellationToken) -> (CloseReason, bool) {
        self.handle.update(|status| status.state = DialerState::Greeting);
        let session = ReceiveSession::new(self.node.clone(), self.config.receive);
        let mut progressed = false;
        let handle = self.handle.clone();
        let mut observe = |session: &ReceiveSession| {
            let stats = *session.stats();
            progressed |= stats.entries_changed + stats.entries_unchanged > 0;
            handle.update(|status| {
                if session.is_streaming() {
                    status.state = DialerState::Streaming;
                    status.acknowledged = session.acknowledged();
                }
                if let Some(source) = session.source() {
                    status.source = Some(source.clone());
                }
                status.received = stats;
            });
        };
        let receiving = Receiving::new(
            session,
            transport,
            Arc::clone(&self.applier),
            Arc::clone(&self.clock),
            self.config.keepalive,
            self.subscription.clone(),
            &mut observe,
        );
        let reason = receiving.run(stop).await;
        (reason, progressed)
    }
}

/// Exponential pauses with full jitter.
struct Backoff {
    first: Duration,
    longest: Duration,
    current: Duration,
    random: std::collections::hash_map::RandomState,
    draws: u64,
}

impl Backoff {
    fn new((first, longest): (Duration, Duration)) -> Self {
        Self {
            first,
            longest,
            current: first,
            random: std::collections::hash_map::RandomState::new(),
            draws: 0,
        }
    }

    const fn reset(&mut self) {
        self.current = self.first;
    }

    fn longest(&mut self) -> Duration {
        self.current = self.longest;
        self.next()
    }

    /// A random part of the current pause, which doubles. The randomness only has to differ between nodes.
    fn next(&mut self) -> Duration {
        use std::hash::BuildHasher;
        self.draws += 1;
        let part = self.random.hash_one(self.draws) % 1_000_000;
        let pause = self.current.mul_f64(part as f64 / 1e6);
        self.current = (self.current * 2).min(self.longest);
        pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_stay_below_a_bound_that_doubles_and_real_progress_resets_it() {
        let mut backoff = Backoff::new((Duration::from_millis(500), Duration::from_secs(30)));
        for bound in [500, 1000, 2000, 4000, 8000, 16_000, 30_000, 30_000] {
            assert!(backoff.next() < Duration::from_millis(bound));
        }
        backoff.reset();
        assert!(backoff.next() < Duration::from_millis(500));
    }

    #[test]
    fn settings_outside_their_range_are_refused_by_name() {
        let config = DialerConfig::default();
        let error = config.with_backoff(Duration::from_secs(2), Duration::from_secs(1));
        assert_eq!(error.map_err(|error| error.setting).err(), Some("longest backoff"));
        let error = config.with_connect_timeout(Duration::ZERO);
        assert_eq!(error.map_err(|error| error.setting).err(), Some("connect_timeout"));
    }
}
