//! What to apply, acknowledge and pause: a pure state machine without a clock, a socket or a store of its own.
//!
//! [`ReceiveSession`] takes in bytes of one source and hands out batches for an [`Applier`](crate::store::Applier). The
//! tokio driver in `net` and the virtual cluster run exactly this.

mod acknowledge;
mod action;
mod config;
mod pacing;
mod session;
mod staging;
mod streams;

pub use action::{ReceiveAction, ReceiveStats, Ticket};
pub use config::{ACKNOWLEDGEMENT_PERIOD, ReceiveConfig};
pub use pacing::PauseReason;
pub use session::ReceiveSession;
