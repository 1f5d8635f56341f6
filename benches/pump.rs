//! What the send loop costs without a socket: whole segments, one entry in sixteen filtered out, and runs of skips; and the
//! controls beside the product.

#![allow(missing_docs, reason = "criterion's macros make undocumented items")]
#![allow(clippy::unwrap_used, reason = "a benchmark fails by panicking")]

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use auditstream::clock::{Clock, Moment};
use auditstream::protocol::{Entry, LogId, NameFilter, NodeName, Subscription, TableName};
use auditstream::sender::{
    MemberId, Members, Output, Ring, SendConfig, SendSession, Stopped, Turn, TurnEnd, Written, YieldPolicy,
};
use auditstream::store::MemoryStore;
use criterion::{Criterion, Throughput, criterion_group, criterion_main};

const ENTRIES: usize = 50_000;

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
        0
    }
}

/// Takes everything, looks at nothing.
struct Nowhere;

impl Output for Nowhere {
    fn write(&mut self, bytes: &[u8]) -> Written {
        Written::Accepted(black_box(bytes).len())
    }
}

struct Senders {
    log: Arc<MemoryStore>,
    sessions: Vec<SendSession>,
}

impl Members for Senders {
    fn serve(&mut self, id: MemberId, turn: &mut Turn<'_>) -> Stopped {
        self.sessions[id.0].pump(&*self.log, &mut Nowhere, turn)
    }

    fn collect_woken(&mut self, _woken: &mut Vec<MemberId>) {}
}

/// Entries of about 500 bytes in transactions of ten; one table in `tables` turn by turn.
fn log(tables: usize, value_bytes: usize) -> Arc<MemoryStore> {
    let clock: Arc<dyn Clock> = Arc::new(RealClock::new());
    let store = MemoryStore::new(NodeName::new("source").unwrap(), LogId::from_bytes([1; 16]), clock);
    let ids: Vec<_> = (0..tables)
        .map(|n| store.define_table(&TableName::new(format!("t{n}")).unwrap(), "".into()).unwrap())
        .collect();
    let entries: Vec<_> =
        (0..ENTRIES).map(|n| Entry::put(ids[n % tables], format!("{n:016}"), vec![7; value_bytes])).collect();
    let transactions: Vec<_> = entries.chunks(10).collect();
    // Commits of a thousand entries, as a busy writer makes them.
    for commit in transactions.chunks(100) {
        store.append_group(commit).unwrap();
    }
    Arc::new(store)
}

fn drain(log: &Arc<MemoryStore>, subscription: &Subscription, policy: YieldPolicy, senders: usize) -> u64 {
    let clock = RealClock::new();
    let mut ring = Ring::new(policy, Duration::from_millis(2));
    let mut members = Senders { log: Arc::clone(log), sessions: Vec::new() };
    for n in 0..senders {
        let (node, peer) = (NodeName::new("source").unwrap(), NodeName::new(format!("peer-{n}")).unwrap());
        let config = SendConfig::default();
        let session = SendSession::subscribe(&**log, &node, peer, 1, subscription.clone(), config).unwrap();
        members.sessions.push(session);
        ring.join();
    }
    while ring.turn(&mut members, &clock) == TurnEnd::Yield {
        ring.refill();
    }
    members.sessions.iter().map(|session| session.stats().entries_sent).sum()
}

fn only(table: &str) -> Subscription {
    let tables = NameFilter::Include([TableName::new(table).unwrap()].into());
    Subscription::new(tables, NameFilter::All, None).unwrap()
}

fn all_but(table: &str) -> Subscription {
    let tables = NameFilter::Exclude([TableName::new(table).unwrap()].into());
    Subscription::new(tables, NameFilter::All, None).unwrap()
}

fn pump(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("pump");
    group.throughput(Throughput::Elements(ENTRIES as u64)).sample_size(10);
    let whole = log(1, 480);
    for policy in [YieldPolicy::Budget, YieldPolicy::PerSender, YieldPolicy::PerRecord] {
        group.bench_function(format!("whole segments, {policy:?}"), |bencher| {
            bencher.iter(|| drain(&whole, &Subscription::all(), policy, 1));
        });
    }
    let mixed = log(16, 480);
    group.bench_function("one entry in sixteen filtered out", |bencher| {
        bencher.iter(|| drain(&mixed, &all_but("t3"), YieldPolicy::Budget, 1));
    });
    group.bench_function("fifteen entries in sixteen filtered out", |bencher| {
        bencher.iter(|| drain(&mixed, &only("t3"), YieldPolicy::Budget, 1));
    });
    let small = log(1, 40);
    group.bench_function("skipped by segment header", |bencher| {
        bencher.iter(|| drain(&small, &only("absent"), YieldPolicy::Budget, 1));
    });
    group.finish();
}

fn clock(criterion: &mut Criterion) {
    let clock = RealClock::new();
    criterion.bench_function("clock read", |bencher| bencher.iter(|| black_box(clock.now()) > Moment::START));
}

criterion_group!(benches, pump, clock);
criterion_main!(benches);
