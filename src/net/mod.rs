//! The tokio drivers: only here are real clocks, sleeps, sockets and yields.
//!
//! They decide nothing. A [`Worker`] obeys [`Ring::turn`](crate::sender::Ring::turn), a [`Dialer`] obeys
//! [`ReceiveAction`](crate::receiver::ReceiveAction).
//!
//! # Runtimes
//! A [`Worker`] and a [`Dialer`] are futures that the host spawns where it likes: on a `current_thread` runtime of its
//! own, on a `multi_thread` one, or on a `LocalRuntime`; not inside a `LocalSet`, which would delay the I/O driver by its own 61
//! polls for each of the runtime's. [`WorkerPool`] starts threads with a runtime each. Nothing else here starts a thread; a
//! [`Listener`] runs each handshake as a task of its own.
//!
//! # Cancel safety
//! Every future here may be dropped at any await: no position is ahead of what was written, and peers resume from theirs.

mod clock;
mod connection;
mod dialer;
mod handshake;
mod keepalive;
mod listener;
mod pool;
mod receive;
mod transport;
mod worker;

pub use clock::SystemClock;
pub use connection::{Connection, ConnectionStats};
pub use dialer::{Dialer, DialerConfig, DialerHandle, DialerState, DialerStatus};
pub use handshake::{AcceptError, Source, accept};
pub use keepalive::KeepaliveConfig;
pub use listener::{ListenError, Listener, Placement};
pub use pool::WorkerPool;
pub use transport::{AsyncStream, Transport};
pub use worker::{Worker, WorkerConfig, WorkerHandle, WorkerStats};
