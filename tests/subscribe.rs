//! Every misfit of a start position has its own answer, and none is guessed away.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;

use auditstream::clock::{Clock, Moment};
use auditstream::protocol::{
    Boundary, Entry, Fingerprint, LogId, NameFilter, NodeName, Position, RefuseReason, Sequence, Stamp,
    Subscription, TableName, Version,
};
use auditstream::sender::{SendConfig, SendSession, SubscribeError};
use auditstream::store::{AuditLog, BoundaryAt, MemoryStore};

struct Still;

impl Clock for Still {
    fn now(&self) -> Moment {
        Moment::START
    }

    fn wall_ms(&self) -> u64 {
        5_000
    }
}

fn name(name: &str) -> NodeName {
    NodeName::new(name).unwrap()
}

/// Two transactions of three entries: boundaries at 3 and 6.
fn store(value: &'static str) -> MemoryStore {
    let store = MemoryStore::new(name("source"), LogId::from_bytes([1; 16]), Arc::new(Still));
    let table = store.define_table(&TableName::new("t").unwrap(), "".into()).unwrap();
    for _ in 0..2 {
        store
            .append(&[
                Entry::put(table, "a", value),
                Entry::put(table, "b", value),
                Entry::delete(table, "c"),
            ])
            .unwrap();
    }
    store
}

fn at(store: &MemoryStore, sequence: u64) -> Position {
    let boundary = match store.boundary_at(Sequence::new(sequence)).unwrap() {
        BoundaryAt::Boundary(boundary) => boundary,
        _ => Boundary { sequence: Sequence::new(sequence), stamp: Stamp::default() },
    };
    Position { log: store.log_id(), boundary, filter: Subscription::all().fingerprint() }
}

fn answer(store: &MemoryStore, peer: &str, start: Option<Position>) -> Result<u64, RefuseReason> {
    let subscription = Subscription::new(NameFilter::All, NameFilter::All, start).unwrap();
    match SendSession::subscribe(store, &name("source"), name(peer), 1, subscription, SendConfig::default()) {
        Ok(session) => Ok(session.scanned().get()),
        Err(SubscribeError::Refused(refusal)) => {
            assert!(!refusal.text.is_empty());
            Err(refusal.reason)
        }
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn a_position_of_this_log_starts_right_behind_it_at_every_edge() {
    let store = store("v");
    assert_eq!(answer(&store, "peer", None), Ok(0));
    assert_eq!(answer(&store, "peer", Some(at(&store, 0))), Ok(0));
    assert_eq!(answer(&store, "peer", Some(at(&store, 3))), Ok(3));
    assert_eq!(answer(&store, "peer", Some(at(&store, 6))), Ok(6));
}

#[test]
fn every_misfit_has_its_own_reason() {
    let (store, restored) = (store("v"), store("written after the restore"));
    let other_log = Position { log: LogId::from_bytes([2; 16]), ..at(&store, 3) };
    let other_filter = Position { filter: Fingerprint(7), ..at(&store, 3) };
    let other_version = {
        let mut position = at(&store, 3);
        position.boundary.stamp.version = Version::new(1, 1);
        position
    };
    let cases = [
        (other_log, RefuseReason::OtherLog),
        (other_filter, RefuseReason::OtherFilter),
        (at(&restored, 3), RefuseReason::Forked),
        (other_version, RefuseReason::Forked),
        (at(&store, 2), RefuseReason::NotABoundary),
        (at(&store, 7), RefuseReason::AheadOfLog),
    ];
    for (position, reason) in cases {
        assert_eq!(answer(&store, "peer", Some(position)), Err(reason));
    }
    assert_eq!(answer(&store, "source", None), Err(RefuseReason::SelfConnection));
}
