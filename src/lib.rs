//! Streams a database node's audit log to its peers, many senders to a worker, under one shared time budget.
//!
//! A host writes entries to its audit log ([`store`]); a [`net::Worker`] streams them to the peers that subscribed;
//! a [`net::Dialer`] follows another node and hands what it gets to the host's [`store::Applier`]. The rooms, from the top:
//!
//! | module | what it is | knows |
//! |---|---|---|
//! | [`net`] | the tokio drivers: worker, pool, listener, dialer | sockets, real clocks |
//! | [`sender`] | what to send next, who is next, when to stop | a log, an output, a clock |
//! | [`receiver`] | what to apply, acknowledge, pause | bytes in, batches out |
//! | [`store`] | the log and the data of a peer: traits, memory, LMDB | |
//! | [`protocol`] | entries, segments, positions, frames: data and bytes | |
//!
//! [`sender::SendSession::pump`] is the send loop and [`sender::Ring`] decides who runs. Both are pure, so a host without
//! tokio can drive them itself; `testing` has a virtual cluster that does.
//!
//! # Features
//! `lmdb` (on): the embedded default store. `net` (on): the tokio drivers. `testing` (off): virtual cluster, oracles, and
//! `check_store` for a host's own store.
//!
//! # Supported
//! Rust 1.89 and newer by declaration; 1.95 on Linux is what is built and tested.

#![cfg_attr(
    not(all(feature = "net", feature = "lmdb")),
    allow(rustdoc::broken_intra_doc_links, reason = "the links lead to modules that are switched off")
)]

pub mod clock;
pub mod config;
#[cfg(feature = "net")]
pub mod net;
pub mod protocol;
pub mod receiver;
pub mod sender;
pub mod store;
#[cfg(any(test, feature = "testing"))]
pub mod testing;

/// The examples of the README, compiled.
#[cfg(all(doctest, feature = "net", feature = "lmdb"))]
#[doc = include_str!("../README.md")]
struct Readme;
