//! What to send next, who is next and when to stop: pure state machines without a clock, a socket or a store of
//! their own.
//!
//! [`SendSession::pump`] is the send loop of one subscription; [`Ring::turn`] decides which session runs and when the
//! worker gives the event loop back. The tokio driver in `net` and the virtual cluster run exactly these.

mod budget;
mod examine;
mod filter;
mod introduce;
mod output;
#[cfg(any(test, feature = "testing"))]
mod plant;
mod progress;
mod pump;
mod ring;
mod session;
mod stats;
mod subscribe;
mod write;

pub use budget::{
    BUDGET_DEDICATED, BUDGET_SHARED, Budget, Spent, Turn, UNIT_BYTES, UNIT_ENTRIES, YieldPolicy,
};
pub use filter::SkipReason;
pub use output::{Output, Written};
#[cfg(any(test, feature = "testing"))]
pub use plant::Plant;
pub use progress::SEQUENCE_UPDATE_PERIOD;
pub use ring::{MemberId, Members, Ring, TurnEnd};
pub use session::{Blocked, SendConfig, SendSession, Stopped};
pub use stats::{RingStats, SendStats};
pub use subscribe::{Refusal, SubscribeError};
