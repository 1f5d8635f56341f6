//! Tools that test the library, and with which hosts test their own parts: [`check_store`] for a store, and a virtual
//! cluster.
//!
//! # The virtual cluster
//! No sockets, no threads, no real time.
//!
//! It runs exactly what the product runs: one [`Ring`](crate::sender::Ring) of
//! [`SendSession`](crate::sender::SendSession)s per node, a [`ReceiveSession`](crate::receiver::ReceiveSession) per
//! link and a [`MemoryStore`](crate::store::MemoryStore) per node. Everything around them comes from a seed: the
//! clock that advances by the cost of the work, links that delay, stall and break, nodes that crash, writers,
//! filters. After every step the oracles compare what went over each link with a model of the log of their own.
//! The same seed gives the same run, byte for byte:
//!
//! ```
//! use auditstream::testing::{Plan, run};
//!
//! let report = run(&Plan::from_seed(17));
//! assert!(report.violation.is_none(), "{}", report.explain());
//! ```
//!
//! A check that has never failed proves nothing: [`Planted`] builds in known faults, and each has its oracle.

mod check_store;
mod checks;
mod clock;
mod cluster;
mod coverage;
mod driver;
mod faults;
mod link;
mod log;
mod model;
mod node;
mod oracles;
mod plan;
mod rng;
mod serve;
mod trace;
mod wire;

pub use check_store::{StoreUnderTest, check_store};
pub use cluster::{Report, run};
pub use coverage::{Coverage, Fault, LinkState};
pub use oracles::{Oracle, Violation};
pub use plan::{Plan, Planted};
pub use rng::Rng;
