//! From a fresh stream to an accepted subscription.

use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::clock::Clock;
use crate::protocol::{
    CloseCode, Frame, Hello, Message, NodeName, ProtocolError, Subscription, decode_frame,
};
use crate::sender::{Refusal, SendConfig, SendSession, SubscribeError};
use crate::store::{AuditLog, StoreError};

use super::connection::Connection;
use super::transport::{AsyncStream, Transport};

/// How long the other side's end is awaited after a refusal, so that the refusal is not lost in a reset.
const LINGER: Duration = Duration::from_secs(1);

/// Bytes that a handshake may take: a hello and the largest subscription.
const HANDSHAKE_BYTES_MAX: usize = 256 * 1024;

/// A log that peers may subscribe to.
#[derive(Clone)]
pub struct Source {
    /// This node's name.
    pub node: NodeName,
    /// The log.
    pub log: Arc<dyn AuditLog>,
    /// The clock of the workers.
    pub clock: Arc<dyn Clock>,
    /// Settings of each subscription's sender.
    pub send: SendConfig,
}

impl std::fmt::Debug for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Source").field("node", &self.node).finish_non_exhaustive()
    }
}

/// Why a stream did not become a connection. The peer was told where that was possible.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AcceptError {
    /// The peer did not finish its greeting in time.
    #[error("the peer did not say hello and subscribe within {0:?}")]
    Timeout(Duration),
    /// The peer closed the connection first.
    #[error("the peer closed the connection before it subscribed, {0} bytes into a frame")]
    Closed(usize),
    /// The peer sent something else.
    #[error("the peer does not speak the protocol: {0}")]
    Protocol(#[from] ProtocolError),
    /// The peer sent a frame out of order.
    #[error("the peer sent a frame of type {0} where {1} was expected")]
    Unexpected(u8, &'static str),
    /// The subscription was refused.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The log cannot be read.
    #[error("the log cannot be read: {0}")]
    Store(#[from] StoreError),
    /// The stream failed.
    #[error("the connection failed: {0}")]
    Io(#[from] std::io::Error),
}

/// Greets a peer, judges its subscription, and makes the connection that a worker serves.
///
/// # Errors
/// Everything that a peer can do wrong, and `deadline`. The peer is told, with a close or a refused frame.
///
/// # Cancel safety
/// Dropping it closes the stream.
pub async fn accept(
    transport: Transport,
    source: &Source,
    deadline: Duration,
) -> Result<Connection, AcceptError> {
    let mut greeting = Greeting { transport, input: BytesMut::new(), in_frame: false };
    let greeted = match tokio::time::timeout(deadline, greeting.run(source)).await {
        Ok(greeted) => greeted,
        Err(_) => Err(AcceptError::Timeout(deadline)),
    };
    match greeted {
        Ok(session) => Ok(Connection {
            session,
            log: Arc::clone(&source.log),
            transport: greeting.transport.park()?,
            input: greeting.input,
        }),
        Err(error) => {
            greeting.say_goodbye(&error).await;
            Err(error)
        }
    }
}

struct Greeting {
    transport: Transport,
    input: BytesMut,
    /// Whether a frame was begun and not finished: the deadline may cut it off, and nothing may follow it then.
    in_frame: bool,
}

impl Greeting {
    fn stream(&mut self) -> &mut dyn AsyncStream {
        match &mut self.transport {
            Transport::Tcp(stream) => stream,
            Transport::Io(stream) => &mut **stream,
        }
    }

    async fn run(&mut self, source: &Source) -> Result<SendSession, AcceptError> {
        let peer = match self.next().await? {
            Message::Hello(hello) => {
                hello.check()?;
                hello.node
            }
            other => return Err(AcceptError::Unexpected(other.kind().0, "a hello")),
        };
        self.say(&Message::Hello(Hello::new(source.node.clone()))).await?;
        let (id, subscription) = self.subscription().await?;
        let (log, node) = (&*source.log, &source.node);
        match SendSession::subscribe(log, node, peer, id, subscription, source.send) {
            Ok(session) => Ok(session),
            Err(SubscribeError::Store(error)) => Err(error.into()),
            Err(SubscribeError::Refused(refusal)) => {
                self.say(&refusal.message(id)).await?;
                Err(refusal.into())
            }
        }
    }

    async fn subscription(&mut self) -> Result<(u32, Subscription), AcceptError> {
        loop {
            match self.next().await? {
                Message::Subscribe { id, subscription } => return Ok((id, subscription)),
                Message::Ping(number) => self.say(&Message::Pong(number)).await?,
                other => return Err(AcceptError::Unexpected(other.kind().0, "a subscription")),
            }
        }
    }

    async fn next(&mut self) -> Result<Message, AcceptError> {
        loop {
            match decode_frame(&mut self.input)? {
                Some(Frame::Message(message)) => return Ok(message),
                Some(Frame::Segment(_)) => {
                    return Err(AcceptError::Unexpected(crate::protocol::FrameKind::SEGMENT.0, "a greeting"));
                }
                None => {}
            }
            if self.input.len() > HANDSHAKE_BYTES_MAX {
                let (value, limit) = (self.input.len() as u64, HANDSHAKE_BYTES_MAX as u64);
                return Err(ProtocolError::OverLimit { what: "bytes of a handshake", value, limit }.into());
            }
            let mut buffer = [0; 4096];
            let count = self.stream().read(&mut buffer).await?;
            if count == 0 {
                return Err(AcceptError::Closed(self.input.len()));
            }
            self.input.extend_from_slice(&buffer[..count]);
        }
    }

    async fn say(&mut self, message: &Message) -> Result<(), AcceptError> {
        let mut bytes = Vec::new();
        message.encode(&mut bytes);
        self.in_frame = true;
        self.stream().write_all(&bytes).await?;
        self.in_frame = false;
        self.stream().flush().await?;
        Ok(())
    }

    /// Tells the peer why, and awaits its end for a moment.
    async fn say_goodbye(&mut self, error: &AcceptError) {
        let code = match error {
            AcceptError::Closed(_) | AcceptError::Io(_) => return,
            _ if self.in_frame => return,
            AcceptError::Timeout(_) => CloseCode::Timeout,
            AcceptError::Refused(_) => CloseCode::Normal,
            AcceptError::Store(_) => CloseCode::Store,
            AcceptError::Protocol(_) | AcceptError::Unexpected(..) => CloseCode::Protocol,
        };
        let farewell = async {
            self.say(&Message::Close { code, text: error.to_string() }).await?;
            self.stream().shutdown().await?;
            let mut rest = [0; 4096];
            while self.stream().read(&mut rest).await? > 0 {}
            Ok::<_, AcceptError>(())
        };
        // Whatever goes wrong now, the connection is over.
        let _ended = tokio::time::timeout(LINGER, farewell).await;
    }
}
