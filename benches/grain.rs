//! The grain of the log: what one LMDB value holds decides what a scan costs. The same entries are written as one entry per
//! commit, ten per commit (a host's own small transactions), and a thousand per commit (what a group commit makes).

#![allow(missing_docs, reason = "criterion's macros make undocumented items")]
#![allow(clippy::unwrap_used, reason = "a benchmark fails by panicking")]

use std::hint::black_box;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Instant;

use auditstream::clock::{Clock, Moment};
use auditstream::protocol::{Entry, NodeName, Sequence, TableName};
use auditstream::store::AuditLog;
use auditstream::store::lmdb::{Durability, LmdbOptions, LmdbStore};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};

const ENTRIES: usize = 20_000;

struct RealClock(Instant);

impl RealClock {
    #[expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]
    fn new() -> Self {
        Self(Instant::now())
    }
}

impl Clock for RealClock {
    fn now(&self) -> Moment {
        Moment::START.plus(self.0.elapsed())
    }

    fn wall_ms(&self) -> u64 {
        1_700_000_000_000 + u64::try_from(self.0.elapsed().as_millis()).unwrap()
    }
}

fn open(folder: &tempfile::TempDir) -> LmdbStore {
    let options = LmdbOptions::builder(NodeName::new("node").unwrap(), folder.path());
    let options = options.durability(Durability::NoSync).build().unwrap();
    LmdbStore::open(options, Arc::new(RealClock::new())).unwrap()
}

/// Writes entries of 500 bytes, `per_commit` in each commit.
fn write(store: &LmdbStore, per_commit: usize) {
    let table = store.define_table(&TableName::new("t").unwrap(), "".into()).unwrap();
    for first in (0..ENTRIES).step_by(per_commit) {
        let mut transaction = store.begin().unwrap();
        for n in first..first + per_commit {
            transaction.append(Entry::put(table, format!("{n:016}"), vec![7; 484])).unwrap();
        }
        transaction.commit().unwrap();
    }
}

fn grain(criterion: &mut Criterion) {
    for per_commit in [1, 10, 1000] {
        let mut group = criterion.benchmark_group(format!("{per_commit} entries a commit"));
        group.throughput(Throughput::Elements(ENTRIES as u64)).sample_size(10);
        group.bench_function("append", |bencher| {
            bencher.iter_with_large_drop(|| {
                let folder = tempfile::tempdir().unwrap();
                write(&open(&folder), per_commit);
                folder
            });
        });
        let folder = tempfile::tempdir().unwrap();
        let store = open(&folder);
        write(&store, per_commit);
        let log = store.log();
        group.bench_function("scan by header", |bencher| {
            bencher.iter(|| {
                let mut entries = 0;
                let mut count = |segment: auditstream::protocol::SegmentRef<'_>| {
                    entries += u64::from(segment.header().entries);
                    ControlFlow::Continue(())
                };
                log.scan(Sequence::ZERO, &mut count).unwrap();
                assert_eq!(entries, ENTRIES as u64);
            });
        });
        let mut scratch = Vec::with_capacity(512 * 1024);
        group.bench_function("scan and copy", |bencher| {
            bencher.iter(|| {
                let mut copy = |segment: auditstream::protocol::SegmentRef<'_>| {
                    if scratch.len() > 128 * 1024 {
                        black_box(&scratch);
                        scratch.clear();
                    }
                    scratch.extend_from_slice(segment.frame());
                    ControlFlow::Continue(())
                };
                log.scan(Sequence::ZERO, &mut copy).unwrap();
            });
        });
        let bytes = std::fs::metadata(folder.path().join("data.mdb")).unwrap().len();
        println!("{per_commit} entries a commit: {} bytes an entry in the file", bytes / ENTRIES as u64);
        group.finish();
    }
}

criterion_group!(benches, grain);
criterion_main!(benches);
