//! Batches of other nodes.

use std::ops::ControlFlow;

use super::log::sequences_after;
use super::source::{SELF, STORE, Source, TABLE, TABLE_NAME, THIRD, UNKNOWN, apply, put};
use super::{StoreUnderTest, answered, node_name, table_name};
use crate::protocol::{Entry, EntryFlags, EntryKind, NodeName, Position, Sequence, Version};
use crate::store::{Applied, CLOCK_SKEW_MS_MAX};

const fn applied(changed: u64, unchanged: u64) -> Applied {
    Applied { changed, unchanged }
}

fn version(store: &dyn StoreUnderTest, counter: u16) -> Version {
    Version::new(store.wall_ms() - 1000, counter)
}

fn value(store: &dyn StoreUnderTest, key: &str) -> Option<String> {
    let value = store.value(&table_name(TABLE_NAME), key.as_bytes());
    value.map(|value| String::from_utf8_lossy(&value).into_owned())
}

fn position(store: &dyn StoreUnderTest, source: &NodeName) -> Option<Position> {
    let state = answered(store.applier().source_state(source), "read what is stored of a source");
    state.map(|state| state.position())
}

/// An entry of the log: origin, version, ordinal, key.
type Logged = (NodeName, Version, u32, Vec<u8>);

/// Everything in the log, and in which transaction it lies.
fn logged(store: &dyn StoreUnderTest) -> Vec<Vec<Logged>> {
    let log = store.log();
    let mut transactions: Vec<Vec<Logged>> = Vec::new();
    let scanned = log.scan(Sequence::ZERO, &mut |segment| {
        for transaction in segment.transactions() {
            let transaction = answered(transaction, "keep its transactions readable");
            let origin = answered(log.origin(transaction.header.origin), "look up an origin");
            let Some(origin) = origin else { panic!("the log does not know an origin that it uses") };
            if !transaction.continues() {
                transactions.push(Vec::new());
            }
            for entry in transaction.entries() {
                let entry = answered(entry, "keep its entries readable");
                let table = answered(log.table(entry.header.table), "look up a table");
                assert!(table.is_some(), "the log does not know a table that it uses");
                let logged =
                    (origin.clone(), transaction.header.version, entry.header.ordinal, entry.key.to_vec());
                transactions.last_mut().into_iter().for_each(|last| last.push(logged.clone()));
            }
        }
        ControlFlow::Continue(())
    });
    answered(scanned, "scan");
    let count: usize = transactions.iter().map(Vec::len).sum();
    let dense: Vec<u64> = (1..=count as u64).collect();
    assert_eq!(sequences_after(&*log, Sequence::ZERO), dense, "the own log is not dense");
    transactions
}

pub(super) fn one_step(store: &mut dyn StoreUnderTest) {
    let mut source = Source::new("b", &store.node());
    assert_eq!(position(store, &source.name), None, "a source that never sent has a position");
    let (v1, v2) = (version(store, 1), version(store, 2));
    let third = node_name("m");
    let batch = source.batch(&[
        (SELF, v1, &[put("k1", "one"), put("k2", "two")]),
        (THIRD, v2, &[put("k3", "three"), Entry { kind: EntryKind::Message, ..put("note", "text") }]),
    ]);
    let stored = batch.position;
    assert_eq!(
        answered(apply(&*store.applier(), batch), "apply"),
        applied(4, 0),
        "four new entries change things"
    );
    assert_eq!(position(store, &source.name), Some(stored), "the position is not stored with the batch");
    assert_eq!(value(store, "k2").as_deref(), Some("two"), "an applied row is not there");
    assert_eq!(store.log().head(), Sequence::new(4), "the own log does not hold what was applied");
    let expected = [
        vec![(source.name.clone(), v1, 0, b"k1".to_vec()), (source.name.clone(), v1, 1, b"k2".to_vec())],
        vec![(third.clone(), v2, 0, b"k3".to_vec()), (third, v2, 1, b"note".to_vec())],
    ];
    assert_eq!(logged(store), expected, "origin, version, ordinal or transaction were not kept");
    let table = store.define_table(&table_name(TABLE_NAME), b"k, v");
    let own = store.append(vec![Entry::put(table, "k1", "own")]);
    assert!(own.stamp.version > v2, "an own version is not above those that were received");
    assert_eq!(value(store, "k1").as_deref(), Some("own"), "an own write does not show");
}

pub(super) fn a_position_alone(store: &mut dyn StoreUnderTest) {
    let mut source = Source::new("b", &store.node());
    let v = version(store, 1);
    source.batch(&[(SELF, v, &[put("skipped", "by a filter")])]);
    let mut batch = source.batch(&[]);
    batch.frames.clear();
    assert_eq!(
        answered(apply(&*store.applier(), batch), "move a position"),
        applied(0, 0),
        "no entry, no change"
    );
    assert_eq!(
        position(store, &source.name),
        Some(source.position()),
        "a position without data is not stored"
    );
    assert_eq!(store.log().head(), Sequence::ZERO, "a position became an entry of the log");
    assert_eq!(position(store, &node_name("c")), None, "another source has that position too");
}

pub(super) fn duplicates(store: &mut dyn StoreUnderTest) {
    let v = version(store, 1);
    let entries =
        [put("k", "first"), put("k", "second"), Entry { kind: EntryKind::Message, ..put("n", "t") }];
    let mut direct = Source::new("b", &store.node());
    let batch = direct.batch(&[(THIRD, v, &entries)]);
    let applier = store.applier();
    assert_eq!(answered(apply(&*applier, batch.clone()), "apply"), applied(3, 0), "three new entries");
    assert_eq!(
        answered(apply(&*applier, batch), "apply again"),
        applied(0, 3),
        "the same batch again changes things"
    );
    let mut other = Source::new("c", &store.node());
    other.batch(&[(SELF, version(store, 9), &[put("unseen", "x")])]);
    let batch = other.batch(&[(THIRD, v, &entries)]);
    assert_eq!(
        answered(apply(&*applier, batch), "apply"),
        applied(0, 3),
        "entries over a second path change things"
    );
    assert_eq!(logged(store).len(), 1, "a duplicate was logged again, so rings would never end");
    assert_eq!(position(store, &other.name), Some(other.position()), "duplicates do not move the position");
    assert_eq!(value(store, "k").as_deref(), Some("second"), "the later entry of a key does not win");
}

pub(super) fn own_entries(store: &mut dyn StoreUnderTest) {
    let table = store.define_table(&table_name(TABLE_NAME), b"k, v");
    let own = store.append(vec![Entry::put(table, "k", "own")]);
    let mut source = Source::new("b", &store.node());
    let batch = source.batch(&[(STORE, own.stamp.version, &[put("k", "own")])]);
    assert_eq!(
        answered(apply(&*store.applier(), batch), "apply"),
        applied(0, 1),
        "own entries come back as new"
    );
    assert_eq!(logged(store).len(), 1, "an own entry that came back was logged again");
}

pub(super) fn conflicts(store: &mut dyn StoreUnderTest) {
    let mut source = Source::new("b", &store.node());
    let applier = store.applier();
    let mut step = |origin, counter, text, changes: bool, stays: &str, why: &str| {
        let batch = source.batch(&[(origin, version(store, counter), &[put("k", text)])]);
        let expected = if changes { applied(1, 0) } else { applied(0, 1) };
        assert_eq!(answered(apply(&*applier, batch), "apply"), expected, "{why}");
        assert_eq!(value(store, "k").as_deref(), Some(stays), "{why}");
    };
    step(SELF, 5, "b5", true, "b5", "the first write of a row");
    step(SELF, 4, "b4", false, "b5", "a lower version must lose");
    step(THIRD, 5, "m5", true, "m5", "at the same version the greater name must win: m over b");
    step(SELF, 5, "b5", false, "m5", "at the same version the smaller name must lose: b against m");
    step(SELF, 6, "b6", true, "b6", "a higher version must win, whoever wrote it");
    let mut fresh = Source::new("c", &store.node());
    let two = [put("x", "kept"), put("k", "late")];
    let batch = fresh.batch(&[(SELF, version(store, 3), &two)]);
    assert_eq!(answered(apply(&*applier, batch), "apply"), applied(1, 1), "one of two entries wins");
    let last = logged(store).pop();
    let expected = vec![(fresh.name.clone(), version(store, 3), 0, b"x".to_vec())];
    assert_eq!(last, Some(expected), "only the winning entry of a transaction is logged");
}

pub(super) fn tombstones(store: &mut dyn StoreUnderTest) {
    let mut source = Source::new("b", &store.node());
    let applier = store.applier();
    let mut step = |counter, entry: Entry, changes: bool, stays: Option<&str>, why: &str| {
        let batch = source.batch(&[(SELF, version(store, counter), &[entry])]);
        let expected = if changes { applied(1, 0) } else { applied(0, 1) };
        assert_eq!(answered(apply(&*applier, batch), "apply"), expected, "{why}");
        assert_eq!(value(store, "k").as_deref(), stays, "{why}");
    };
    step(
        5,
        Entry::delete(TABLE, "k"),
        true,
        None,
        "a delete of a row that was never here leaves a tombstone",
    );
    step(4, put("k", "old"), false, None, "an older put must not bring a deleted row back");
    step(5, Entry::delete(TABLE, "k"), false, None, "the same delete again is a duplicate");
    step(6, put("k", "new"), true, Some("new"), "a newer put brings a deleted row back");
    step(7, Entry::delete(TABLE, "k"), true, None, "a newer delete removes the row");
}

pub(super) fn entries_that_must_not_be_here(store: &mut dyn StoreUnderTest) {
    let mut source = Source::new("b", &store.node());
    let entries = [put("secret", "x").marked(EntryFlags::LOCAL_ONLY), put("k", "v")];
    let batch =
        source.batch(&[(SELF, version(store, 1), &entries), (SELF, version(store, 2), &entries[..1])]);
    let outcome = answered(apply(&*store.applier(), batch), "apply");
    assert_eq!(outcome, applied(1, 2), "local-only entries of a peer are dropped and counted");
    assert_eq!(value(store, "secret"), None, "a local-only entry of a peer was applied");
    assert_eq!(logged(store).len(), 1, "a transaction of local-only entries was logged");
}

pub(super) fn a_failure_in_the_middle(store: &mut dyn StoreUnderTest) {
    let applier = store.applier();
    let skewed = Version::new(store.wall_ms() + CLOCK_SKEW_MS_MAX + 60_000, 0);
    let broken = [(UNKNOWN, version(store, 2), "an origin without a name"), (SELF, skewed, "a far clock")];
    for ((origin, bad, what), name) in broken.into_iter().zip(["b", "c"]) {
        let mut source = Source::new(name, &store.node());
        let first = source.batch(&[(SELF, version(store, 1), &[put("k0", name)])]);
        answered(apply(&*applier, first), "apply");
        let (v3, v4, v5) = (version(store, 3), version(store, 4), version(store, 5));
        let mut ahead = source.batch(&[(SELF, v3, &[put("k1", name), put("k2", name)])]);
        let good = source.end();
        let rest = source.batch(&[(origin, bad, &[put("bad", name)]), (SELF, v4, &[put("after", name)])]);
        ahead.frames.extend(rest.frames);
        ahead.position = rest.position;
        let later = source.batch(&[(SELF, v5, &[put("later", name)])]);
        let Err(error) = apply(&*applier, ahead) else { panic!("a transaction with {what} was applied") };
        assert_eq!(error.good, good, "the transactions before the one with {what} were not kept");
        assert_eq!(error.at, good.sequence.plus(1), "the failure with {what} is reported at another place");
        assert_eq!(
            value(store, "k2").as_deref(),
            Some(name),
            "the good transaction before {what} is not there"
        );
        assert_eq!(
            (value(store, "bad"), value(store, "after")),
            (None, None),
            "something after {what} is there"
        );
        let failed = apply(&*applier, later.clone()).is_err();
        assert!(failed, "after {what} a later batch of the same stream was applied");
        let stored = position(store, &source.name).map(|position| position.boundary);
        assert_eq!(stored, Some(good), "the position with the good transactions is not theirs");
        answered(apply(&*applier, later), "apply in a new session");
        assert_eq!(
            value(store, "later").as_deref(),
            Some(name),
            "a new session is still held back after {what}"
        );
    }
    assert_eq!(logged(store).iter().flatten().count(), 8, "the log holds other entries than the good ones");
}

pub(super) fn a_large_transaction(store: &mut dyn StoreUnderTest) {
    let mut source = Source::new("b", &store.node());
    let text = vec![b'x'; 50_000];
    let entries: Vec<Entry> = (0..6).map(|key| Entry::put(TABLE, format!("{key}"), text.clone())).collect();
    let v = version(store, 1);
    let batch = source.batch(&[(SELF, v, &entries), (SELF, version(store, 2), &[put("k", "v")])]);
    assert!(batch.frames.len() > 2, "the transaction does not span segments: a mistake of this check");
    assert_eq!(
        answered(apply(&*store.applier(), batch), "apply"),
        applied(7, 0),
        "a transaction over segments"
    );
    let sizes: Vec<usize> = logged(store).iter().map(Vec::len).collect();
    assert_eq!(sizes, [6, 1], "a transaction over segments is not one transaction in the own log");
    assert_eq!(
        position(store, &source.name),
        Some(source.position()),
        "the position after a large transaction"
    );
}
