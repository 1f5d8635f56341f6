//! Taking in peers.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::config::ConfigError;

use super::connection::Connection;
use super::handshake::{AcceptError, Source, accept};
use super::pool::WorkerPool;
use super::worker::WorkerHandle;

/// Bytes that the kernel buffers for a peer: it bounds the memory of many peers, and costs no rate on loopback.
const SEND_BUFFER_BYTES: u32 = 512 * 1024;

/// Connections that wait to be accepted by this program.
const BACKLOG: u32 = 1024;

/// Handshakes at once. More wait in the kernel's queue.
const HANDSHAKES_MAX: usize = 256;

/// Where new connections are served.
#[derive(Debug, Clone)]
pub enum Placement {
    /// By one worker.
    Worker(WorkerHandle),
    /// By the least loaded worker of a pool.
    Pool(Arc<WorkerPool>),
}

impl Placement {
    fn place(&self, connection: Connection) {
        let (peer, log) = (connection.session.peer().clone(), connection.log.log_id());
        match self {
            Self::Worker(worker) => {
                worker.supersede(&peer, log);
                worker.add(connection);
            }
            Self::Pool(pool) => {
                pool.workers().iter().for_each(|worker| worker.supersede(&peer, log));
                pool.place(connection);
            }
        }
    }
}

/// Why a listener does not listen.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}: {source}; {hint}")]
pub struct ListenError {
    /// The address.
    pub address: SocketAddr,
    /// The answer of the operating system.
    pub source: std::io::Error,
    /// The way out.
    pub hint: &'static str,
}

/// Listens for peers and hands each accepted subscription to a worker.
#[derive(Debug)]
pub struct Listener {
    listener: TcpListener,
    source: Source,
    placement: Placement,
    handshake_timeout: Duration,
}

impl Listener {
    /// Binds `address`; port 0 takes a free one.
    ///
    /// # Errors
    /// When the address is in use or not this machine's; the error says the way out.
    pub fn bind(address: SocketAddr, source: Source, placement: Placement) -> Result<Self, ListenError> {
        let listener = listen(address).map_err(|source| {
            let hint = match source.kind() {
                std::io::ErrorKind::AddrInUse => {
                    "another program uses the port; stop it or choose another port, 0 takes a free one"
                }
                std::io::ErrorKind::AddrNotAvailable => "the address is not one of this machine",
                std::io::ErrorKind::PermissionDenied => {
                    "ports below 1024 need privileges; choose a higher one"
                }
                _ => "choose another address",
            };
            ListenError { address, source, hint }
        })?;
        Ok(Self { listener, source, placement, handshake_timeout: Duration::from_secs(10) })
    }

    /// Sets how long a peer may take to say hello and subscribe; 10 s.
    ///
    /// # Errors
    /// Below 10 ms or above 10 min.
    pub fn with_handshake_timeout(self, timeout: Duration) -> Result<Self, ConfigError> {
        let holds = (Duration::from_millis(10)..=Duration::from_secs(600)).contains(&timeout);
        let handshake_timeout =
            ConfigError::require(holds, "handshake_timeout", timeout, "10 ms to 10 min (default 10 s)")?;
        Ok(Self { handshake_timeout, ..self })
    }

    /// The address that it listens on.
    ///
    /// # Errors
    /// When the operating system does not say.
    pub fn local_addr(&self) -> std::io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Takes in peers until `stop` is cancelled. Connections that a worker has already are not touched.
    ///
    /// # Cancel safety
    /// Dropping it stops listening and drops unfinished handshakes.
    pub async fn run(self, stop: CancellationToken) {
        let mut handshakes = JoinSet::new();
        let places = Arc::new(Semaphore::new(HANDSHAKES_MAX));
        loop {
            let place = tokio::select! {
                biased;
                () = stop.cancelled() => break,
                place = Arc::clone(&places).acquire_owned() => place,
            };
            let accepted = tokio::select! {
                biased;
                () = stop.cancelled() => break,
                accepted = self.listener.accept() => accepted,
            };
            while handshakes.try_join_next().is_some() {}
            match accepted {
                Ok((stream, address)) => {
                    let (source, placement) = (self.source.clone(), self.placement.clone());
                    let timeout = self.handshake_timeout;
                    handshakes.spawn(async move {
                        greet(stream, address, source, placement, timeout).await;
                        drop(place);
                    });
                }
                Err(error) => {
                    // Out of file descriptors, for one: the next try comes after a pause instead of in a hot loop.
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    }
}

fn listen(address: SocketAddr) -> std::io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    socket.set_reuseaddr(true)?;
    // Accepted sockets inherit it.
    socket.set_send_buffer_size(SEND_BUFFER_BYTES)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

async fn greet(
    stream: TcpStream,
    address: SocketAddr,
    source: Source,
    placement: Placement,
    timeout: Duration,
) {
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%address, %error, "cannot switch off Nagle's algorithm");
    }
    match accept(stream.into(), &source, timeout).await {
        Ok(connection) => placement.place(connection),
        Err(error @ AcceptError::Refused(_)) => tracing::info!(%address, %error, "subscription refused"),
        Err(error) => tracing::info!(%address, %error, "no stream"),
    }
}
