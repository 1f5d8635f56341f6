//! A byte stream under a connection.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use crate::sender::{Output, Written};

/// Any byte stream: TLS, a pipe, a socket of the host's.
pub trait AsyncStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> AsyncStream for T {}

/// A connected byte stream.
pub enum Transport {
    /// A TCP socket. It may come from another runtime: it is moved to the worker's.
    Tcp(TcpStream),
    /// Any other stream. It is flushed after every run; what it buffers counts as written only then.
    Io(Box<dyn AsyncStream>),
}

impl std::fmt::Debug for Transport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Tcp(stream) => stream.fmt(f),
            Self::Io(_) => f.write_str("Io"),
        }
    }
}

impl From<TcpStream> for Transport {
    fn from(stream: TcpStream) -> Self {
        Self::Tcp(stream)
    }
}

impl Transport {
    /// Any other stream.
    pub fn io(stream: impl AsyncStream + 'static) -> Self {
        Self::Io(Box::new(stream))
    }

    /// Leaves the runtime that the socket is registered with.
    pub(super) fn park(self) -> io::Result<Parked> {
        match self {
            Self::Tcp(stream) => stream.into_std().map(Parked::Tcp),
            Self::Io(stream) => Ok(Parked::Io(stream)),
        }
    }

    fn stream(&mut self) -> Pin<&mut dyn AsyncStream> {
        match self {
            Self::Tcp(stream) => Pin::new(stream),
            Self::Io(stream) => Pin::new(&mut **stream),
        }
    }

    pub(super) fn poll_read(&mut self, cx: &mut Context<'_>, buffer: &mut [u8]) -> Poll<io::Result<usize>> {
        let mut buffer = ReadBuf::new(buffer);
        ready!(self.stream().poll_read(cx, &mut buffer))?;
        Poll::Ready(Ok(buffer.filled().len()))
    }

    pub(super) fn poll_write(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.stream().poll_write(cx, bytes)
    }

    pub(super) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Tcp(_) => Poll::Ready(Ok(())),
            Self::Io(stream) => Pin::new(&mut **stream).poll_flush(cx),
        }
    }

    pub(super) fn poll_shutdown(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream().poll_shutdown(cx)
    }
}

/// A stream between two runtimes.
pub(super) enum Parked {
    Tcp(std::net::TcpStream),
    Io(Box<dyn AsyncStream>),
}

impl Parked {
    /// Joins the runtime that this is called in.
    pub(super) fn unpark(self) -> io::Result<Transport> {
        match self {
            Self::Tcp(stream) => TcpStream::from_std(stream).map(Transport::Tcp),
            Self::Io(stream) => Ok(Transport::Io(stream)),
        }
    }
}

/// A transport for the time of one run, with the waker that fires when there is room again.
pub(super) struct TransportOutput<'a, 'c> {
    pub(super) transport: &'a mut Transport,
    pub(super) cx: &'a mut Context<'c>,
    /// Whether any byte was taken.
    pub(super) progressed: bool,
}

impl Output for TransportOutput<'_, '_> {
    fn write(&mut self, bytes: &[u8]) -> Written {
        match self.transport.poll_write(self.cx, bytes) {
            Poll::Pending => Written::WouldBlock,
            Poll::Ready(Ok(0)) if !bytes.is_empty() => {
                Written::Closed("the stream takes no more bytes".to_owned())
            }
            Poll::Ready(Ok(count)) => {
                self.progressed = true;
                Written::Accepted(count)
            }
            Poll::Ready(Err(error)) => Written::Closed(error.to_string()),
        }
    }
}
