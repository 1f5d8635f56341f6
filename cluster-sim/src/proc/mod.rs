//! Child processes: started, spoken to in JSON lines, killed and reaped on every way out.

mod child;
pub(crate) mod cpu;
mod message;
pub(crate) mod talk;

pub(crate) use child::Child;
pub(crate) use message::{Command, Event, PeerCounts, SenderCounts};
