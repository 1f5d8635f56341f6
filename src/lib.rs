//! Streams a database node's audit log to its peers.

pub mod clock;
pub mod config;
pub mod protocol;
pub mod receiver;
pub mod sender;
pub mod store;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
