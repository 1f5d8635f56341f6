//! A worker's loop on a fake clock: the product's ring and sessions, and an event loop that counts.

mod checks;
mod runtime;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use auditstream::clock::{Clock, Moment};
use auditstream::protocol::{CloseReason, Entry, LogId, NodeName, Subscription, TableId, TableName};
use auditstream::sender::{
    MemberId, Members, Output, Plant, Ring, SendConfig, SendSession, Stopped, Turn, TurnEnd, Written,
    YieldPolicy,
};
use auditstream::store::MemoryStore;

pub(crate) use checks::*;
pub(crate) use runtime::{runtime_no_yield_below_the_budget, runtime_one_yield_per_budget};

/// The budget that the guard runs with: the product's.
pub(crate) const BUDGET: Duration = auditstream::sender::BUDGET_DEDICATED;

/// A worker as it is built, or as it must not be.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Design {
    pub(crate) policy: YieldPolicy,
    pub(crate) ring: Option<Plant>,
    pub(crate) session: Option<Plant>,
}

/// One assertion about a design.
pub(crate) type Check = fn(Design) -> Result<(), String>;

/// Fails with a sentence.
pub(crate) fn ensure(holds: bool, why: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(why()) }
}

/// Every look at the clock costs: it stands for the entries examined since the last one.
#[derive(Debug)]
pub(crate) struct FakeClock {
    nanos: AtomicU64,
    per_look: AtomicU64,
}

impl FakeClock {
    pub(crate) fn new(per_look: Duration) -> Arc<Self> {
        let per_look = AtomicU64::new(per_look.as_nanos() as u64);
        Arc::new(Self { nanos: AtomicU64::new(0), per_look })
    }

    pub(crate) fn advance(&self, by: Duration) {
        self.nanos.fetch_add(by.as_nanos() as u64, Ordering::Relaxed);
    }

    pub(crate) fn peek(&self) -> Moment {
        Moment::from_nanos(self.nanos.load(Ordering::Relaxed))
    }
}

impl Clock for FakeClock {
    fn now(&self) -> Moment {
        let per_look = self.per_look.load(Ordering::Relaxed);
        Moment::from_nanos(self.nanos.fetch_add(per_look, Ordering::Relaxed) + per_look)
    }

    fn wall_ms(&self) -> u64 {
        1_700_000_000_000
    }
}

/// A socket: every write costs, and it may be short of room.
pub(crate) struct Sink {
    clock: Arc<FakeClock>,
    per_byte: Duration,
    pub(crate) room: usize,
    pub(crate) captured: Option<Vec<u8>>,
    pub(crate) writes: u64,
}

impl Output for Sink {
    fn write(&mut self, bytes: &[u8]) -> Written {
        let count = bytes.len().min(self.room);
        if count == 0 {
            return Written::WouldBlock;
        }
        self.room = self.room.saturating_sub(count);
        self.writes += 1;
        self.clock.advance(Duration::from_micros(1) + self.per_byte * count as u32);
        if let Some(captured) = &mut self.captured {
            captured.extend_from_slice(&bytes[..count]);
        }
        Written::Accepted(count)
    }
}

pub(crate) struct Member {
    pub(crate) session: SendSession,
    pub(crate) log: Arc<MemoryStore>,
    pub(crate) sink: Sink,
    /// Time that it was served for.
    pub(crate) served: Duration,
    /// Its socket has room again as soon as it blocked: after so many bytes it blocks again.
    pub(crate) flaps_after: Option<usize>,
    pub(crate) stopped: Option<Stopped>,
}

impl Member {
    pub(crate) fn sent(&self) -> u64 {
        self.session.stats().entries_sent
    }
}

/// The senders of the worker, and what has been woken.
pub(crate) struct Senders {
    clock: Arc<FakeClock>,
    pub(crate) members: Vec<Member>,
    pub(crate) woken: Vec<MemberId>,
}

impl Members for Senders {
    fn serve(&mut self, id: MemberId, turn: &mut Turn<'_>) -> Stopped {
        let started = self.clock.peek();
        let member = &mut self.members[id.0];
        let stopped = member.session.pump(&*member.log, &mut member.sink, turn);
        member.served += self.clock.peek().since(started);
        if let (Some(room), Stopped::Blocked(_)) = (member.flaps_after, &stopped) {
            member.sink.room = room;
            self.woken.push(id);
        }
        member.stopped = Some(stopped.clone());
        stopped
    }

    fn collect_woken(&mut self, woken: &mut Vec<MemberId>) {
        woken.append(&mut self.woken);
    }
}

/// What the event loop saw.
#[derive(Debug, Default, Clone)]
pub(crate) struct Seen {
    /// Times that the worker gave the loop back with work left.
    pub(crate) yields: u64,
    /// Times that it waited.
    pub(crate) waits: u64,
    /// The longest time between two runs of the I/O driver and the timers.
    pub(crate) longest_turn: Duration,
    /// Time spent in the worker.
    pub(crate) worked: Duration,
}

/// The worker and its loop.
pub(crate) struct Worker {
    pub(crate) clock: Arc<FakeClock>,
    pub(crate) ring: Ring,
    pub(crate) senders: Senders,
    pub(crate) seen: Seen,
    design: Design,
}

/// The cost of a byte written, in every check: 64 KiB take 65 us, as on a busy loopback.
const PER_BYTE: Duration = Duration::from_nanos(1);

impl Worker {
    pub(crate) fn new(design: Design, per_look: Duration) -> Self {
        let clock = FakeClock::new(per_look);
        let ring = Ring::new(design.policy, BUDGET);
        let ring = match design.ring {
            Some(plant) => ring.planted(plant),
            None => ring,
        };
        let senders = Senders { clock: clock.clone(), members: Vec::new(), woken: Vec::new() };
        Self { clock, ring, senders, seen: Seen::default(), design }
    }

    pub(crate) fn join(&mut self, log: &Arc<MemoryStore>, subscription: Subscription) -> MemberId {
        let config = match self.design.session {
            Some(plant) => SendConfig::default().planted(plant),
            None => SendConfig::default(),
        };
        let peer = node(&format!("peer-{}", self.senders.members.len()));
        let session = SendSession::subscribe(&**log, &node("source"), peer, 1, subscription, config).unwrap();
        let sink = Sink {
            clock: self.clock.clone(),
            per_byte: PER_BYTE,
            room: usize::MAX,
            captured: None,
            writes: 0,
        };
        let log = Arc::clone(log);
        let member = Member { session, log, sink, served: Duration::ZERO, flaps_after: None, stopped: None };
        self.senders.members.push(member);
        let id = self.ring.join();
        assert_eq!(id.0 + 1, self.senders.members.len());
        id
    }

    pub(crate) fn member(&mut self, id: MemberId) -> &mut Member {
        &mut self.senders.members[id.0]
    }

    /// One turn, and then the driver: it refills the budget as the product's driver does.
    pub(crate) fn turn(&mut self) -> TurnEnd {
        let started = self.clock.peek();
        let end = self.ring.turn(&mut self.senders, &*self.clock);
        let turn = self.clock.peek().since(started);
        self.seen.longest_turn = self.seen.longest_turn.max(turn);
        self.seen.worked += turn;
        match end {
            TurnEnd::Yield => self.seen.yields += 1,
            TurnEnd::Wait { .. } => self.seen.waits += 1,
        }
        self.ring.refill();
        end
    }

    /// Turns until every sender waits. Deadlines are waited for when `deadlines` says so.
    pub(crate) fn run_until_idle(&mut self, deadlines: bool) {
        for _ in 0..2_000_000 {
            match self.turn() {
                TurnEnd::Yield => {}
                TurnEnd::Wait { deadline: Some(deadline) } if deadlines => {
                    self.clock.advance(deadline.since(self.clock.peek()));
                }
                TurnEnd::Wait { .. } => return,
            }
        }
        panic!("the worker never waits");
    }
}

pub(crate) fn node(name: &str) -> NodeName {
    NodeName::new(name).unwrap()
}

/// The longest piece of work that cannot be split: one write of a full segment, and a look at the clock or two.
pub(crate) fn unit(per_look: Duration) -> Duration {
    PER_BYTE * 256 * 1024 + per_look * 4
}

/// A log of transactions of `per_transaction` entries made by `entry`.
pub(crate) fn log(
    entries: usize,
    per_transaction: usize,
    entry: impl Fn(TableId, TableId, usize) -> Entry,
) -> Arc<MemoryStore> {
    let clock = FakeClock::new(Duration::ZERO);
    let store = MemoryStore::new(node("source"), LogId::from_bytes([7; 16]), clock);
    let wanted = store.define_table(&TableName::new("wanted").unwrap(), "w".into()).unwrap();
    let other = store.define_table(&TableName::new("other").unwrap(), "o".into()).unwrap();
    let entries: Vec<Entry> = (0..entries).map(|n| entry(wanted, other, n)).collect();
    let transactions: Vec<&[Entry]> = entries.chunks(per_transaction).collect();
    store.append_group(&transactions).unwrap();
    Arc::new(store)
}

/// A log whose every transaction fills a segment of 64 KiB.
pub(crate) fn segments(count: usize) -> Arc<MemoryStore> {
    log(count * 64, 64, |wanted, _, n| Entry::put(wanted, format!("k{n}"), vec![1; 1000]))
}

/// Jain's index of fairness: 1 when all are equal, 1/n when one has everything.
pub(crate) fn jain(shares: &[f64]) -> f64 {
    let sum: f64 = shares.iter().sum();
    let squares: f64 = shares.iter().map(|share| share * share).sum();
    sum * sum / (shares.len() as f64 * squares)
}

/// Whether a member's stream is over because of the peer.
pub(crate) fn closed_by_peer(member: &Member) -> bool {
    matches!(member.stopped, Some(Stopped::Closed(CloseReason::Peer(_))))
}
