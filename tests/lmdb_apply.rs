//! Applying batches of several sources to the LMDB store.

#![cfg(feature = "lmdb")]

mod lmdb_support;

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, mpsc};

use auditstream::protocol::{
    Boundary, Entry, EntryDraft, Fingerprint, LogId, LogTail, OriginId, Position, SegmentPacker, Sequence,
    TableDefinition, TableId, TransactionDraft, Version,
};
use auditstream::store::lmdb::LmdbStore;
use auditstream::store::{Applied, Applier as _, ApplyBatch, ApplyError, AuditLog as _, PeerDictionary};
use bytes::Bytes;
use lmdb_support::{Folder, block_on, name, table};

const TABLES: [TableId; 2] = [TableId(3), TableId(4)];
/// Its short ids are 1, 2, 3.
const ORIGINS: [&str; 3] = ["p", "q", "r"];

type Transaction = (OriginId, Version, Vec<Entry>);

struct Source {
    dictionary: Arc<PeerDictionary>,
    tail: LogTail,
}

impl Source {
    fn new() -> Self {
        let mut dictionary = PeerDictionary::default();
        dictionary.origins.extend((1..).map(OriginId).zip(ORIGINS.map(name)));
        for (id, text) in TABLES.into_iter().zip(["first", "second"]) {
            let definition = TableDefinition { name: table(text), version: 1, definition: Bytes::new() };
            dictionary.tables.insert(id, definition);
        }
        Self { dictionary: Arc::new(dictionary), tail: LogTail::default() }
    }

    fn batch(&mut self, source: &str, transactions: &[Transaction]) -> ApplyBatch {
        let mut frames = Vec::new();
        let mut packer = SegmentPacker::new(self.tail, 0);
        let mut emit = |_, frame: &[u8]| {
            frames.push(Bytes::copy_from_slice(frame));
            Ok::<_, Infallible>(())
        };
        for (origin, version, entries) in transactions {
            let drafts: Vec<EntryDraft<'_>> = (0..).zip(entries).map(|(at, entry)| entry.draft(at)).collect();
            let draft = TransactionDraft { origin: *origin, version: *version, entries: &drafts };
            packer.push(&draft, &mut emit).expect("packed");
        }
        packer.finish(&mut emit).expect("packed");
        self.tail = packer.tail();
        let position =
            Position { log: LogId::from_bytes([1; 16]), boundary: self.tail.end, filter: Fingerprint(1) };
        ApplyBatch {
            source: name(source),
            selection: Arc::default(),
            dictionary: Arc::clone(&self.dictionary),
            frames,
            position,
        }
    }
}

fn version(counter: u16) -> Version {
    Version::new(1_700_000_000_000, counter)
}

type Answer = mpsc::Receiver<Result<Applied, ApplyError>>;

fn submit(store: &LmdbStore, batch: ApplyBatch) -> Answer {
    let (sender, answer) = mpsc::channel();
    store.applier().submit(batch, Box::new(move |result| drop(sender.send(result))));
    answer
}

fn apply(store: &LmdbStore, batch: ApplyBatch) -> Applied {
    submit(store, batch).recv().expect("an answer").expect("applied")
}

fn put(key: &'static str, value: &'static str) -> Entry {
    Entry::put(TABLES[0], key, value)
}

#[test]
fn a_batch_that_fails_in_a_shared_commit_takes_nobody_with_it() {
    let folder = Folder::new();
    let store = folder.open("a");
    let own = store.define_table(&table("first"), Bytes::new()).expect("defined");
    let held = store.begin().expect("begun");
    let good = Source::new().batch("b", &[(OriginId(1), version(1), vec![put("good", "1")])]);
    let bad = Source::new().batch(
        "c",
        &[
            (OriginId(2), version(1), vec![put("before", "1")]),
            (OriginId(9), version(2), vec![put("bad", "1")]),
            (OriginId(2), version(3), vec![put("after", "1")]),
        ],
    );
    let last = Source::new().batch("d", &[(OriginId(3), version(1), vec![put("last", "1")])]);
    let answers = [good, bad, last].map(|batch| submit(&store, batch));
    let ticket = store.writer().enqueue(vec![Entry::put(own, "own", "1")]).expect("enqueued");
    drop(held);
    let [good, bad, last] = answers.map(|answer| answer.recv().expect("an answer"));
    assert_eq!(good.expect("applied").changed, 1);
    assert_eq!(last.expect("applied").changed, 1);
    block_on(ticket.durable()).expect("durable");
    let error = bad.expect_err("an unknown origin");
    assert_eq!((error.good.sequence, error.at), (Sequence::new(1), Sequence::new(2)));
    assert!(error.to_string().contains("origin id 9 of node c"), "{error}");
    for (key, there) in [("good", true), ("before", true), ("bad", false), ("after", false), ("last", true)] {
        let row = store.rows().get(&table("first"), key.as_bytes()).expect("read");
        assert_eq!(row.is_some(), there, "{key}");
    }
    assert_eq!(store.log().head(), Sequence::new(4), "an aborted commit left a hole");
    let boundary =
        |source| store.source_state_of(&name(source)).expect("read").map(|state| state.position().boundary);
    assert_eq!(boundary("c"), Some(error.good));
    assert_eq!(boundary("b").map(|end| end.sequence), Some(Sequence::new(1)));
}

#[test]
fn a_stream_stays_latched_off_until_its_next_session_and_a_look_at_the_position_is_none() {
    let folder = Folder::new();
    let store = folder.open("a");
    let mut source = Source::new();
    let bad = source.batch("b", &[(OriginId(9), version(1), vec![put("bad", "1")])]);
    let later = source.batch("b", &[(OriginId(1), version(2), vec![put("later", "1")])]);
    let error = submit(&store, bad).recv().expect("an answer").expect_err("an unknown origin");
    assert_eq!(error.good, Boundary::START);
    assert_eq!(store.source_state_of(&name("b")).expect("read"), None);
    assert!(submit(&store, later.clone()).recv().expect("an answer").is_err());
    let other = Source::new().batch("c", &[(OriginId(1), version(1), vec![put("other", "1")])]);
    assert_eq!(apply(&store, other).changed, 1, "another source is held back too");
    assert_eq!(store.applier().source_state(&name("b")).expect("read"), None);
    assert_eq!(apply(&store, later).changed, 1);
}

#[test]
fn a_grown_dictionary_is_followed_and_a_newer_definition_is_kept() {
    let folder = Folder::new();
    let store = folder.open("a");
    let mut source = Source::new();
    let first = source.batch("b", &[(OriginId(1), version(1), vec![put("k", "1")])]);
    apply(&store, first);
    let before = store.log().definitions_version();
    let mut grown = PeerDictionary::clone(&source.dictionary);
    grown.origins.insert(OriginId(9), name("new"));
    let newer =
        TableDefinition { name: table("first"), version: 4, definition: Bytes::from_static(b"newer") };
    grown.tables.insert(TABLES[0], newer);
    source.dictionary = Arc::new(grown);
    let second = source.batch("b", &[(OriginId(9), version(2), vec![put("k", "2")])]);
    assert_eq!(apply(&store, second).changed, 1);
    let row = store.rows().get(&table("first"), b"k").expect("read").expect("there");
    assert_eq!(row.origin, name("new"));
    let kept = store.tables().into_iter().find(|(_, kept)| kept.name == table("first")).expect("defined").1;
    assert_eq!((kept.version, &kept.definition[..]), (4, &b"newer"[..]));
    assert!(store.log().definitions_version() > before);
}

/// Numbers that look random and are the same for the same seed.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

/// Origin name, version and ordinal decide; what is left is the value, or nothing after a delete.
type Winner = ((Version, &'static str, usize), Option<Bytes>);

fn random_transactions(numbers: &mut Numbers) -> Vec<Transaction> {
    let mut transactions = Vec::new();
    for counter in 0..60 {
        // Every version is used by all origins, so that ties by name happen.
        for origin in 1..=3 {
            let entries = (0..=numbers.below(4)).map(|_| {
                let table = TABLES[usize::from(numbers.below(2) == 1)];
                let key = numbers.below(40).to_be_bytes().to_vec();
                if numbers.below(4) == 0 {
                    Entry::delete(table, key)
                } else {
                    Entry::put(table, key, numbers.below(1 << 30).to_be_bytes().to_vec())
                }
            });
            transactions.push((OriginId(origin), version(counter), entries.collect()));
        }
    }
    transactions
}

#[test]
fn any_order_and_any_number_of_paths_end_in_the_same_rows() {
    for seed in 1..=5 {
        println!("seed {seed}");
        let mut numbers = Numbers(seed);
        let mut transactions = random_transactions(&mut numbers);
        let mut model: BTreeMap<(TableId, Bytes), Winner> = BTreeMap::new();
        for (origin, version, entries) in &transactions {
            for (ordinal, entry) in entries.iter().enumerate() {
                let rank = (*version, ORIGINS[usize::from(origin.0) - 1], ordinal);
                let value =
                    (entry.kind == auditstream::protocol::EntryKind::Put).then(|| entry.value.clone());
                let slot =
                    model.entry((entry.table, entry.key.clone())).or_insert_with(|| (rank, value.clone()));
                if rank > slot.0 {
                    *slot = (rank, value);
                }
            }
        }
        let folder = Folder::new();
        let store = folder.open("a");
        for path in ["b", "c"] {
            let mut source = Source::new();
            for chunk in transactions.chunks(7) {
                apply(&store, source.batch(path, chunk));
            }
            for at in (1..transactions.len()).rev() {
                let other = usize::try_from(numbers.below(at as u64 + 1)).expect("small");
                transactions.swap(at, other);
            }
        }
        let names = [table("first"), table("second")];
        for ((id, key), ((version, origin, _), value)) in &model {
            let at = &names[usize::from(*id == TABLES[1])];
            let row = store.rows().get(at, key).expect("read").expect("there");
            assert_eq!((row.version, row.origin), (*version, name(origin)), "seed {seed}");
            assert_eq!(
                (!row.deleted).then_some(row.value),
                value.as_ref().map(|v| v.to_vec()),
                "seed {seed}"
            );
        }
    }
}

#[test]
fn a_callback_that_panics_does_not_end_the_writer_thread() {
    let folder = Folder::new();
    let store = folder.open("node");
    let mut source = Source::new();
    let batch = source.batch("source", &[]);
    store.applier().submit(batch, Box::new(|_| panic!("a fault of the host, on purpose")));
    let things = store.define_table(&table("things"), Bytes::new()).expect("the thread still serves");
    let ticket = store.writer().enqueue(vec![Entry::put(things, "key", "value")]).expect("enqueued");
    assert_eq!(block_on(ticket.durable()).expect("durable").sequence, Sequence::new(1));
    store.close().expect("closed");
}
