//! Who is next: one ring per worker, deficit round robin in elapsed time.
//!
//! Who runs is our state and never the runtime's wake order. With one task per sender and a shared budget the runtime
//! hands the whole budget to whoever it happens to poll first: of 1,000 such senders 978 made no progress at all.

use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;

use crate::clock::{Clock, Moment};

use super::budget::{Budget, Turn, YieldPolicy};
#[cfg(any(test, feature = "testing"))]
use super::plant::Plant;
use super::session::Stopped;
use super::stats::RingStats;

/// The smallest share of a turn: about one write of 64 KiB, below which switching costs more than it serves.
const QUANTUM_MIN: Duration = Duration::from_micros(50);

/// Place of a sender in its ring. Used again after the sender has left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemberId(pub usize);

/// The senders that a ring schedules, as whoever drives it holds them.
pub trait Members {
    /// Serves one sender: what its peer sent, then its pump.
    fn serve(&mut self, id: MemberId, turn: &mut Turn<'_>) -> Stopped;

    /// Called between two quanta: moves the senders that can go on again into `woken`, in the order in which they
    /// became ready. An id that is not waiting is ignored.
    fn collect_woken(&mut self, woken: &mut Vec<MemberId>);
}

/// Why a turn ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TurnEnd {
    /// The budget is spent: yield once, [`Ring::refill`], and go on.
    Yield,
    /// Every sender waits. Come back when one is woken, or at the deadline.
    Wait {
        /// The earliest sequence update that is due.
        deadline: Option<Moment>,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// The place is free.
    Vacant,
    /// In one of the two lists.
    Queued,
    /// Waits, and was not caught up: joins the back when it returns.
    Blocked,
    /// Waits for a commit or its deadline: goes ahead for one quantum when it returns.
    CaughtUp(Option<Moment>),
}

#[derive(Debug)]
struct Slot {
    state: State,
    /// What is left of its share, in nanoseconds; below zero after an overshoot.
    deficit: i64,
    /// The round in which it last went ahead of the others.
    went_ahead: u64,
}

/// The senders of one worker, in the order in which they will be served.
#[derive(Debug)]
pub struct Ring {
    policy: YieldPolicy,
    budget: Budget,
    slots: Vec<Slot>,
    vacant: Vec<usize>,
    /// Came back from caught-up: served first, for at most one quantum.
    fresh: VecDeque<MemberId>,
    ready: VecDeque<MemberId>,
    /// Counts how often everyone in `ready` had a share. Going ahead more than once in a round would starve them: many
    /// senders at the end of a busy log are woken by its next commit as fast as they can be served.
    round: u64,
    /// How many of `ready` have not had their share in this round.
    round_left: usize,
    deadlines: BTreeSet<(Moment, MemberId)>,
    woken: Vec<MemberId>,
    scratch: Vec<u8>,
    stats: RingStats,
    #[cfg(any(test, feature = "testing"))]
    plant: Option<Plant>,
}

impl Ring {
    /// An empty ring with this policy and budget.
    #[must_use]
    pub const fn new(policy: YieldPolicy, budget: Duration) -> Self {
        Self {
            policy,
            budget: Budget::new(budget),
            slots: Vec::new(),
            vacant: Vec::new(),
            fresh: VecDeque::new(),
            ready: VecDeque::new(),
            round: 1,
            round_left: 0,
            deadlines: BTreeSet::new(),
            woken: Vec::new(),
            scratch: Vec::new(),
            stats: RingStats { turns_spent: 0, turns_waited: 0, quanta: 0 },
            #[cfg(any(test, feature = "testing"))]
            plant: None,
        }
    }

    /// The same ring with a fault planted.
    #[cfg(any(test, feature = "testing"))]
    #[must_use]
    pub fn planted(self, plant: Plant) -> Self {
        Self { plant: Some(plant), ..self }
    }

    /// Takes in a sender. It is ready at once, behind nobody who used a full quantum.
    pub fn join(&mut self) -> MemberId {
        let slot = Slot { state: State::Queued, deficit: 0, went_ahead: self.round };
        let id = match self.vacant.pop() {
            Some(index) => {
                self.slots[index] = slot;
                MemberId(index)
            }
            None => {
                self.slots.push(slot);
                MemberId(self.slots.len() - 1)
            }
        };
        self.fresh.push_back(id);
        id
    }

    /// Lets a sender go, in whatever state it is.
    pub fn leave(&mut self, id: MemberId) {
        let Some(slot) = self.slots.get_mut(id.0).filter(|slot| slot.state != State::Vacant) else { return };
        match std::mem::replace(&mut slot.state, State::Vacant) {
            State::CaughtUp(Some(deadline)) => {
                self.deadlines.remove(&(deadline, id));
            }
            State::Queued => {
                self.fresh.retain(|queued| *queued != id);
                self.ready.retain(|queued| *queued != id);
            }
            _ => {}
        }
        self.vacant.push(id.0);
    }

    /// A waiting sender can go on. Ignored when it is not waiting.
    pub fn wake(&mut self, id: MemberId) {
        let Some(slot) = self.slots.get_mut(id.0) else { return };
        match slot.state {
            State::Vacant | State::Queued => return,
            State::Blocked => self.ready.push_back(id),
            State::CaughtUp(deadline) => {
                if let Some(deadline) = deadline {
                    self.deadlines.remove(&(deadline, id));
                }
                // Once a round, and whenever nobody is kept waiting by it.
                if slot.went_ahead == self.round && !self.ready.is_empty() {
                    self.ready.push_back(id);
                } else {
                    slot.went_ahead = self.round;
                    self.fresh.push_back(id);
                }
            }
        }
        slot.state = State::Queued;
    }

    /// The driver and the timers have run: see [`Budget::refill`].
    pub const fn refill(&mut self) {
        self.budget.refill();
    }

    /// How many senders could work now.
    #[must_use]
    pub fn ready(&self) -> usize {
        self.fresh.len() + self.ready.len()
    }

    /// The counters.
    #[must_use]
    pub const fn stats(&self) -> &RingStats {
        &self.stats
    }

    /// Serves senders until the budget is spent or all of them wait.
    pub fn turn(&mut self, members: &mut dyn Members, clock: &dyn Clock) -> TurnEnd {
        let end = match self.policy {
            YieldPolicy::Budget => self.budgeted_turn(members, clock),
            YieldPolicy::PerRecord | YieldPolicy::PerSender => self.round(members, clock),
        };
        match end {
            TurnEnd::Yield => self.stats.turns_spent += 1,
            TurnEnd::Wait { .. } => self.stats.turns_waited += 1,
        }
        end
    }

    fn budgeted_turn(&mut self, members: &mut dyn Members, clock: &dyn Clock) -> TurnEnd {
        let mut now = clock.now();
        loop {
            self.collect(members, now);
            if self.ready() == 0 {
                return TurnEnd::Wait { deadline: self.deadlines.first().map(|(deadline, _)| *deadline) };
            }
            // Work is left: only a spent budget gives the event loop back.
            if self.budget.is_spent() {
                #[cfg(any(test, feature = "testing"))]
                self.turn_order_round();
                return TurnEnd::Yield;
            }
            // Everything spends the budget, looking for the next sender too: many small shares would make the turn
            // longer than it may be.
            let after = self.serve_next(members, clock, now);
            self.budget.charge(after.since(now));
            now = after;
        }
    }

    /// The controls: every ready sender once, then the event loop.
    fn round(&mut self, members: &mut dyn Members, clock: &dyn Clock) -> TurnEnd {
        let mut now = clock.now();
        self.collect(members, now);
        if self.ready() == 0 {
            return TurnEnd::Wait { deadline: self.deadlines.first().map(|(deadline, _)| *deadline) };
        }
        for _ in 0..self.ready() {
            self.budget.refill();
            now = self.serve_next(members, clock, now);
        }
        TurnEnd::Yield
    }

    fn collect(&mut self, members: &mut dyn Members, now: Moment) {
        let mut woken = std::mem::take(&mut self.woken);
        members.collect_woken(&mut woken);
        woken.drain(..).for_each(|id| self.wake(id));
        self.woken = woken;
        while let Some((_, id)) = self.deadlines.first().copied().filter(|(deadline, _)| *deadline <= now) {
            self.wake(id);
        }
    }

    /// Shares shrink as senders grow in number, so that each is served often.
    fn quantum(&self) -> Duration {
        if self.policy == YieldPolicy::PerSender {
            return self.budget.limit();
        }
        let senders = u32::try_from(self.ready()).unwrap_or(u32::MAX).max(1);
        (self.budget.limit() / senders).max(QUANTUM_MIN).min(self.budget.limit())
    }

    /// Serves the sender in front and gives the time after it.
    fn serve_next(&mut self, members: &mut dyn Members, clock: &dyn Clock, now: Moment) -> Moment {
        let quantum = self.quantum();
        let from_fresh = !self.fresh.is_empty();
        let Some(id) = self.fresh.front().or_else(|| self.ready.front()).copied() else { return now };
        let slot = &mut self.slots[id.0];
        if slot.deficit <= 0 {
            slot.deficit += nanos(quantum);
        }
        if slot.deficit <= 0 {
            // It overshot by more than a share: it pays that back before it is served again.
            self.requeue_behind(id, from_fresh);
            return now;
        }
        let share = self.share(id, quantum);
        let mut turn = Turn::new(clock, self.policy, share, self.budget.remaining(), &mut self.scratch);
        let started = turn.now();
        let stopped = members.serve(id, &mut turn);
        let written = turn.written();
        let after = clock.now();
        self.stats.quanta += 1;
        self.slots[id.0].deficit -= self.charged_nanos(after.since(started), written);
        self.place(id, from_fresh, &stopped);
        after
    }

    #[cfg(not(any(test, feature = "testing")))]
    fn share(&self, id: MemberId, _quantum: Duration) -> Duration {
        Duration::from_nanos(self.slots[id.0].deficit.unsigned_abs())
    }

    #[cfg(not(any(test, feature = "testing")))]
    #[expect(clippy::unused_self, reason = "the planted fault needs it")]
    fn charged_nanos(&self, worked: Duration, _written: usize) -> i64 {
        nanos(worked)
    }

    /// Where a sender goes after it was served.
    fn place(&mut self, id: MemberId, from_fresh: bool, stopped: &Stopped) {
        match stopped {
            // It stays in front for the rest of its quantum.
            Stopped::BudgetSpent if self.policy == YieldPolicy::Budget && self.slots[id.0].deficit > 0 => {}
            Stopped::BudgetSpent | Stopped::QuantumSpent => {
                if !self.keeps_front(id) {
                    self.requeue_behind(id, from_fresh);
                }
            }
            Stopped::Blocked(_) => self.wait(id, from_fresh, State::Blocked),
            Stopped::CaughtUp { deadline } => self.wait(id, from_fresh, State::CaughtUp(*deadline)),
            // Whoever drives the ring removes it.
            Stopped::Closed(_) => self.wait(id, from_fresh, State::Blocked),
        }
    }

    fn requeue_behind(&mut self, id: MemberId, from_fresh: bool) {
        self.pop_front(from_fresh);
        self.ready.push_back(id);
    }

    fn wait(&mut self, id: MemberId, from_fresh: bool, state: State) {
        self.pop_front(from_fresh);
        let slot = &mut self.slots[id.0];
        // A sender that waits loses what is left of its share, and keeps what it owes.
        slot.deficit = slot.deficit.min(0);
        slot.state = state;
        if let State::CaughtUp(Some(deadline)) = state {
            self.deadlines.insert((deadline, id));
        }
        #[cfg(any(test, feature = "testing"))]
        if self.plant == Some(Plant::RefillOnAnyWait) {
            self.budget.refill();
        }
    }

    fn pop_front(&mut self, from_fresh: bool) {
        if from_fresh {
            self.fresh.pop_front();
            return;
        }
        self.ready.pop_front();
        self.round_left = self.round_left.saturating_sub(1).min(self.ready.len());
        if self.round_left == 0 {
            self.round += 1;
            self.round_left = self.ready.len();
        }
    }

    #[cfg(not(any(test, feature = "testing")))]
    #[expect(clippy::unused_self, reason = "the planted fault needs it")]
    const fn keeps_front(&self, _id: MemberId) -> bool {
        false
    }
}

/// The planted faults: what the ring would do if it had been built the obvious way.
#[cfg(any(test, feature = "testing"))]
impl Ring {
    fn share(&self, id: MemberId, _quantum: Duration) -> Duration {
        match self.plant {
            Some(Plant::NaiveSharedBudget) => self.budget.remaining(),
            _ => Duration::from_nanos(self.slots[id.0].deficit.unsigned_abs()),
        }
    }

    /// A deficit in bytes: only what was written is charged, at a rate of a nanosecond a byte.
    fn charged_nanos(&self, worked: Duration, written: usize) -> i64 {
        match self.plant {
            Some(Plant::ByteDeficit) => i64::try_from(written).unwrap_or(i64::MAX),
            _ => nanos(worked),
        }
    }

    fn keeps_front(&self, id: MemberId) -> bool {
        self.plant == Some(Plant::ByteDeficit) && self.slots[id.0].deficit > 0
    }

    fn turn_order_round(&mut self) {
        if self.plant == Some(Plant::NaiveSharedBudget) {
            self.ready.make_contiguous().reverse();
        }
    }
}

fn nanos(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX)
}

impl Default for Ring {
    fn default() -> Self {
        Self::new(YieldPolicy::default(), super::budget::BUDGET_DEDICATED)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::super::session::Blocked;
    use super::*;

    /// Every look at it takes 10 us.
    #[derive(Debug, Default)]
    struct SlowClock(AtomicU64);

    impl Clock for SlowClock {
        fn now(&self) -> Moment {
            Moment::from_nanos(self.0.fetch_add(10_000, Ordering::Relaxed))
        }

        fn wall_ms(&self) -> u64 {
            0
        }
    }

    /// A sender that has nothing to do and is woken again at once.
    struct Restless(Option<MemberId>);

    impl Members for Restless {
        fn serve(&mut self, id: MemberId, _turn: &mut Turn<'_>) -> Stopped {
            self.0 = Some(id);
            Stopped::Blocked(Blocked::Socket)
        }

        fn collect_woken(&mut self, woken: &mut Vec<MemberId>) {
            woken.extend(self.0.take());
        }
    }

    /// Member 0 always has work; the others are caught up at once, and each finds a commit again as soon as it was served.
    #[derive(Default)]
    struct BusyLog {
        woken: Vec<MemberId>,
        served: Vec<usize>,
    }

    impl Members for BusyLog {
        fn serve(&mut self, id: MemberId, _turn: &mut Turn<'_>) -> Stopped {
            self.served.push(id.0);
            if id.0 == 0 {
                return Stopped::QuantumSpent;
            }
            self.woken.push(id);
            Stopped::CaughtUp { deadline: None }
        }

        fn collect_woken(&mut self, woken: &mut Vec<MemberId>) {
            woken.append(&mut self.woken);
        }
    }

    #[test]
    fn senders_at_the_end_of_a_busy_log_do_not_starve_one_that_catches_up() {
        let clock = SlowClock::default();
        let mut ring = Ring::new(YieldPolicy::Budget, Duration::from_millis(2));
        for _ in 0..4 {
            ring.join();
        }
        let mut members = BusyLog::default();
        for _ in 0..10 {
            ring.refill();
            assert_eq!(ring.turn(&mut members, &clock), TurnEnd::Yield);
        }
        let longest = members.served.split(|id| *id == 0).map(<[usize]>::len).max();
        assert!(longest <= Some(6), "{longest:?} shares of others in a row: {:?}", members.served);
        let followed = members.served.iter().filter(|id| **id == 1).count();
        assert!(
            followed * 5 > members.served.len(),
            "a follower had {followed} of {:?}",
            members.served.len()
        );
    }

    #[test]
    fn the_time_between_two_shares_is_charged_to_the_budget() {
        let clock = SlowClock::default();
        let mut ring = Ring::new(YieldPolicy::Budget, Duration::from_millis(2));
        ring.join();
        let started = clock.now();
        assert_eq!(ring.turn(&mut Restless(None), &clock), TurnEnd::Yield);
        let took = clock.now().since(started);
        assert!(took <= Duration::from_micros(2_050), "the turn took {took:?} of a budget of 2 ms");
    }
}
