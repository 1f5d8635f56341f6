//! The log alone.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Wake, Waker};

use super::{StoreUnderTest, answered, table_name};
use crate::protocol::{Boundary, Entry, OriginId, Sequence, TableId};
use crate::store::{AuditLog, BoundaryAt, ScanEnd};

/// The sequences after `after`, checked to be whole, dense and in order up to the head.
pub(super) fn sequences_after(log: &dyn AuditLog, after: Sequence) -> Vec<u64> {
    let mut found = Vec::new();
    let mut end_of_last = None;
    let end = log.scan(after, &mut |segment| {
        answered(segment.verify(), "keep its segments whole");
        let header = segment.header();
        match end_of_last {
            None => assert!(header.last > after, "the first segment of a scan holds nothing after {after}"),
            Some(last) => assert_eq!(header.first.get(), last + 1, "a scan leaves sequences out"),
        }
        end_of_last = Some(header.last.get());
        for transaction in segment.transactions() {
            let transaction = answered(transaction, "keep its transactions readable");
            for entry in transaction.entries() {
                let entry = answered(entry, "keep its entries readable");
                found.push(transaction.sequence_of(&entry).get());
            }
        }
        ControlFlow::Continue(())
    });
    assert_eq!(answered(end, "scan"), ScanEnd::Drained, "a scan to the end must say that it is drained");
    found.retain(|sequence| *sequence > after.get());
    found
}

fn boundary_at(log: &dyn AuditLog, sequence: u64) -> BoundaryAt {
    answered(log.boundary_at(Sequence::new(sequence)), "tell what is at a sequence")
}

pub(super) fn an_empty_log(store: &mut dyn StoreUnderTest) {
    let log = store.log();
    assert_eq!(log.head(), Sequence::ZERO, "the head of an empty log is not zero");
    assert_eq!(
        answered(log.oldest(), "tell its oldest"),
        Sequence::ZERO,
        "an empty log has pruned something"
    );
    assert!(sequences_after(&*log, Sequence::ZERO).is_empty(), "an empty log has entries");
    assert_eq!(
        boundary_at(&*log, 0),
        BoundaryAt::Boundary(Boundary::START),
        "zero is the start of an empty log"
    );
    assert_eq!(boundary_at(&*log, 1), BoundaryAt::AheadOfLog, "an empty log does not reach to 1");
    assert_eq!(answered(log.table(TableId(999)), "look up a table"), None, "a table that was never defined");
    assert_eq!(answered(log.origin(OriginId(999)), "look up an origin"), None, "an origin that never wrote");
    assert_eq!(log.log_id(), store.log().log_id(), "the log's identity changes while it is open");
}

/// `transactions` transactions of `entries` entries each; the boundaries after them.
fn fill(store: &mut dyn StoreUnderTest, transactions: u32, entries: u32) -> Vec<Boundary> {
    let table = store.define_table(&table_name("edges"), b"");
    let mut boundaries = Vec::new();
    for number in 0..transactions {
        let entries = (0..entries).map(|entry| Entry::put(table, format!("{number}-{entry}"), "value"));
        boundaries.push(store.append(entries.collect()));
    }
    boundaries
}

pub(super) fn every_edge(store: &mut dyn StoreUnderTest) {
    let boundaries = fill(store, 5, 3);
    let log = store.log();
    assert_eq!(log.head(), Sequence::new(15), "five transactions of three entries end at 15");
    assert_eq!(
        boundaries.last().map(|last| last.sequence),
        Some(log.head()),
        "the last boundary is the head"
    );
    for after in 0..=16 {
        let expected: Vec<u64> = (after + 1..=15).collect();
        assert_eq!(
            sequences_after(&*log, Sequence::new(after)),
            expected,
            "a scan after {after} of 15 is wrong"
        );
    }
    fill(store, 1, 1);
    assert_eq!(
        sequences_after(&*log, Sequence::new(15)),
        [16],
        "after the old head there is the new entry alone"
    );
    let stopped = log.scan(Sequence::ZERO, &mut |_| ControlFlow::Break(()));
    assert_eq!(answered(stopped, "scan"), ScanEnd::Stopped, "a scan that was broken off must say so");
}

pub(super) fn every_boundary(store: &mut dyn StoreUnderTest) {
    let boundaries = fill(store, 4, 3);
    let log = store.log();
    assert_eq!(boundary_at(&*log, 0), BoundaryAt::Boundary(Boundary::START), "zero is the start");
    for sequence in 1..=12 {
        let expected = boundaries
            .iter()
            .find(|boundary| boundary.sequence.get() == sequence)
            .map_or(BoundaryAt::InsideTransaction, |boundary| BoundaryAt::Boundary(*boundary));
        assert_eq!(boundary_at(&*log, sequence), expected, "what is at {sequence} is wrong");
    }
    assert_eq!(boundary_at(&*log, 13), BoundaryAt::AheadOfLog, "the log does not reach to 13");
    let versions: Vec<_> = boundaries.iter().map(|boundary| boundary.stamp.version).collect();
    assert!(versions.is_sorted_by(|a, b| a < b), "own versions do not rise: {versions:?}");
}

pub(super) fn a_large_transaction(store: &mut dyn StoreUnderTest) {
    let table = store.define_table(&table_name("large"), b"");
    let value = vec![7_u8; 50_000];
    let entries = (0..6).map(|entry| Entry::put(table, format!("{entry}"), value.clone()));
    let large = store.append(entries.collect());
    let small = store.append(vec![Entry::put(table, "small", "value")]);
    let log = store.log();
    for after in 0..=7 {
        let expected: Vec<u64> = (after + 1..=7).collect();
        let found = sequences_after(&*log, Sequence::new(after));
        assert_eq!(
            found, expected,
            "a scan after {after}, inside a transaction over several segments, is wrong"
        );
    }
    for sequence in 1..=5 {
        let inside = boundary_at(&*log, sequence);
        assert_eq!(inside, BoundaryAt::InsideTransaction, "{sequence} is inside a transaction over segments");
    }
    assert_eq!(boundary_at(&*log, 6), BoundaryAt::Boundary(large), "the end of a transaction over segments");
    assert_eq!(boundary_at(&*log, 7), BoundaryAt::Boundary(small), "the transaction after a large one");
}

pub(super) fn names(store: &mut dyn StoreUnderTest) {
    let name = table_name("named");
    let table = store.define_table(&name, b"first");
    let other = store.define_table(&table_name("other"), b"");
    assert_ne!(table, other, "two tables have one id");
    store.append(vec![Entry::put(table, "k", "v")]);
    let log = store.log();
    let mut origins = Vec::new();
    let scanned = log.scan(Sequence::ZERO, &mut |segment| {
        origins.extend(segment.transactions().flatten().map(|transaction| transaction.header.origin));
        ControlFlow::Continue(())
    });
    answered(scanned, "scan");
    for origin in origins {
        let found = answered(log.origin(origin), "look up an origin");
        assert_eq!(found, Some(store.node()), "an own transaction has another origin");
    }
    let version = log.definitions_version();
    assert_eq!(store.define_table(&name, b"first"), table, "the same definition gave another id");
    assert_eq!(log.definitions_version(), version, "the same definition counts as a change");
    let Some(first) = answered(log.table(table), "look up a table") else {
        panic!("a defined table is unknown")
    };
    assert_eq!(
        (&first.name, &first.definition[..]),
        (&name, &b"first"[..]),
        "a table has another definition"
    );
    assert_eq!(store.define_table(&name, b"second"), table, "a changed definition gave another id");
    assert!(
        log.definitions_version() > version,
        "a changed definition does not raise the definitions' version"
    );
    let second = answered(log.table(table), "look up a table");
    let rose =
        second.is_some_and(|second| second.version > first.version && second.definition[..] == *b"second");
    assert!(rose, "a changed definition is not there with a higher version");
}

struct Counter(AtomicUsize);

impl Wake for Counter {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

pub(super) fn wake_ups(store: &mut dyn StoreUnderTest) {
    let table = store.define_table(&table_name("wake"), b"");
    let log = store.log();
    let counter = Arc::new(Counter(AtomicUsize::new(0)));
    let waker = Waker::from(Arc::clone(&counter));
    let woken = || counter.0.load(Ordering::SeqCst);
    log.register(&waker);
    log.register(&waker);
    store.append(vec![Entry::put(table, "k", "1")]);
    let once = woken();
    assert!(once >= 1, "a commit does not wake who registered before it");
    store.append(vec![Entry::put(table, "k", "2")]);
    assert_eq!(woken(), once, "a commit wakes who has not registered again");
    log.register(&waker);
    assert_eq!(log.head(), Sequence::new(2), "the head does not show a commit that has returned");
    store.append(vec![Entry::put(table, "k", "3")]);
    assert!(woken() > once, "a second registration is not served");
}
