//! The jobs that wait for the writer thread.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;

use super::ticket::TicketState;
use crate::clock::Clock;
use crate::protocol::{Boundary, Entry, Sequence, TableId, TableName};
use crate::store::{Applied, ApplyBatch, ApplyDone, ApplyError, CommitNotifier, StoreError};

/// Most entries of one commit: where the cost of a commit per entry stops falling.
const COMMIT_RECORDS: usize = 1500;
/// Most bytes of one commit.
const COMMIT_BYTES: usize = 1024 * 1024;

/// The entries of one transaction of this node.
pub(super) struct WriteJob {
    pub(super) entries: Vec<Entry>,
    pub(super) ticket: Arc<TicketState>,
}

impl Drop for WriteJob {
    /// Whoever waits for an answer gets one, even when the writer thread broke off. An earlier answer stands.
    fn drop(&mut self) {
        self.ticket.answer(Err(StoreError::Closed));
    }
}

/// Transactions of another node.
pub(super) struct ApplyJob {
    pub(super) batch: ApplyBatch,
    /// The source's session at the submit; see `LmdbApplier`.
    pub(super) session: u64,
    pub(super) done: ApplyReply,
}

/// The host's callback for one batch: called exactly once, even when the writer thread broke off.
pub(super) struct ApplyReply {
    done: Option<ApplyDone>,
    at: Sequence,
}

impl ApplyReply {
    pub(super) fn new(done: ApplyDone, at: Sequence) -> Self {
        Self { done: Some(done), at }
    }

    pub(super) fn send(mut self, answer: Result<Applied, ApplyError>) {
        self.call(answer);
    }

    fn call(&mut self, answer: Result<Applied, ApplyError>) {
        let Some(done) = self.done.take() else { return };
        // A callback that panics is the host's fault. It must not take the one thread along that everybody waits for.
        if catch_unwind(AssertUnwindSafe(|| done(answer))).is_err() {
            tracing::error!(at = self.at.get(), "the callback of a received batch panicked");
        }
    }
}

impl Drop for ApplyReply {
    fn drop(&mut self) {
        let (good, reason) = (Boundary::START, StoreError::Closed);
        self.call(Err(ApplyError { good, at: self.at, reason }));
    }
}

/// A table's definition.
pub(super) struct DefineJob {
    pub(super) name: TableName,
    pub(super) definition: Bytes,
    pub(super) reply: SyncSender<Result<TableId, StoreError>>,
}

pub(super) enum Task {
    Write(WriteJob),
    Apply(ApplyJob),
    Define(DefineJob),
}

/// A task and what it weighs.
pub(super) struct Job {
    pub(super) task: Task,
    pub(super) records: usize,
    pub(super) bytes: usize,
}

#[derive(Default)]
struct State {
    writes: VecDeque<Job>,
    others: VecDeque<Job>,
    write_records: usize,
    write_bytes: usize,
    closed: bool,
    /// How many jobs the writer thread waits for; 0 while it works.
    wanted: usize,
    /// The last commit had no room for a batch that waited: this one serves it first.
    passed_over: bool,
}

impl State {
    fn jobs(&self) -> usize {
        self.writes.len() + self.others.len()
    }
}

/// Why a job was not taken.
pub(super) enum PushError {
    Full { records: usize, bytes: usize },
    Closed,
}

/// What waits in the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct QueueDepth {
    pub(super) jobs: usize,
    pub(super) records: usize,
    pub(super) bytes: usize,
}

/// The queue: own writes are bounded, and go first; batches of receivers are bounded by the receivers.
pub(super) struct Queue {
    state: Mutex<State>,
    work: Condvar,
    /// Wakes those that wait for room.
    pub(super) room: CommitNotifier,
    records_max: usize,
    bytes_max: usize,
}

impl Queue {
    pub(super) fn new(records_max: usize, bytes_max: usize) -> Self {
        Self {
            state: Mutex::default(),
            work: Condvar::new(),
            room: CommitNotifier::default(),
            records_max,
            bytes_max,
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing panics while the lock is held; were it poisoned, its counters would still be whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a job, or hands it back. One write that is larger than the whole queue is taken when nothing else waits.
    pub(super) fn push(&self, job: Job) -> Result<(), Box<(PushError, Job)>> {
        let mut state = self.lock();
        if state.closed {
            return Err(Box::new((PushError::Closed, job)));
        }
        if let Task::Write(_) = job.task {
            let (records, bytes) = (state.write_records + job.records, state.write_bytes + job.bytes);
            if (records > self.records_max || bytes > self.bytes_max) && !state.writes.is_empty() {
                let (records, bytes) = (state.write_records, state.write_bytes);
                return Err(Box::new((PushError::Full { records, bytes }, job)));
            }
            (state.write_records, state.write_bytes) = (records, bytes);
            state.writes.push_back(job);
        } else {
            state.others.push_back(job);
        }
        let wake = state.wanted > 0 && state.jobs() >= state.wanted;
        drop(state);
        if wake {
            self.work.notify_one();
        }
        Ok(())
    }

    pub(super) fn depth(&self) -> QueueDepth {
        let state = self.lock();
        QueueDepth { jobs: state.jobs(), records: state.write_records, bytes: state.write_bytes }
    }

    pub(super) fn is_closed(&self) -> bool {
        self.lock().closed
    }

    /// Takes no further jobs; those that wait are still served.
    pub(super) fn close(&self) {
        self.lock().closed = true;
        self.work.notify_all();
        self.room.notify();
    }

    /// Waits for work and takes the jobs of one commit. `None` when the queue is closed and empty.
    ///
    /// A lone writer is served at once. After a group, the next one may still be on its way: it is waited for, at most
    /// `patience`, and only until as many jobs as the last group had are there.
    pub(super) fn take(&self, last_group: usize, patience: Duration, clock: &dyn Clock) -> Option<Vec<Job>> {
        let mut state = self.lock();
        while state.jobs() == 0 {
            if state.closed {
                return None;
            }
            state.wanted = 1;
            state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let end = clock.now().plus(patience);
        while last_group > 1 && state.jobs() < last_group && !state.closed {
            let left = end.since(clock.now());
            if left.is_zero() {
                break;
            }
            state.wanted = last_group;
            let (next, timeout) = self.work.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner);
            state = next;
            if timeout.timed_out() {
                break;
            }
        }
        state.wanted = 0;
        let jobs = state.gather();
        drop(state);
        self.room.notify();
        Some(jobs)
    }

    /// Puts jobs back that did not fit into the commit, in front of those that came later.
    pub(super) fn put_back(&self, jobs: Vec<Job>) {
        let mut state = self.lock();
        for job in jobs.into_iter().rev() {
            if let Task::Write(_) = job.task {
                state.write_records += job.records;
                state.write_bytes += job.bytes;
                state.writes.push_front(job);
            } else {
                // The time was up before its turn: it goes first, or own writes that fill the time would keep it out for ever.
                state.passed_over = true;
                state.others.push_front(job);
            }
        }
    }
}

impl State {
    /// Own writes first. While a batch of a receiver waits they get half of the commit; a batch that still found no
    /// room goes first the next time, so that neither starves the other.
    fn gather(&mut self) -> Vec<Job> {
        let mut group = Vec::new();
        let mut filled = (0, 0);
        let waiting = self.others.len();
        if self.passed_over {
            take_from(&mut self.others, &mut group, &mut filled, 2);
        }
        let share = if waiting == 0 || self.passed_over { 1 } else { 2 };
        take_from(&mut self.writes, &mut group, &mut filled, share);
        take_from(&mut self.others, &mut group, &mut filled, 1);
        self.passed_over = waiting > 0 && self.others.len() == waiting;
        for job in group.iter().filter(|job| matches!(job.task, Task::Write(_))) {
            self.write_records -= job.records;
            self.write_bytes -= job.bytes;
        }
        group
    }
}

fn take_from(jobs: &mut VecDeque<Job>, group: &mut Vec<Job>, filled: &mut (usize, usize), share: usize) {
    while let Some(next) = jobs.front() {
        let (records, bytes) = (filled.0 + next.records, filled.1 + next.bytes);
        if (records > COMMIT_RECORDS / share || bytes > COMMIT_BYTES / share) && !group.is_empty() {
            break;
        }
        *filled = (records, bytes);
        group.extend(jobs.pop_front());
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;

    use super::*;
    use crate::clock::Moment;

    struct Still;

    impl Clock for Still {
        fn now(&self) -> Moment {
            Moment::START
        }

        fn wall_ms(&self) -> u64 {
            0
        }
    }

    fn write(records: usize) -> Job {
        let entries = vec![Entry::put(TableId(1), "k", "v"); records];
        Job { task: Task::Write(WriteJob { entries, ticket: Arc::default() }), records, bytes: records }
    }

    #[test]
    fn a_group_takes_what_fits_and_a_larger_job_goes_alone() {
        let queue = Queue::new(10_000, 10_000);
        for records in [1000, 500, 1, 5000, 7] {
            assert!(queue.push(write(records)).is_ok());
        }
        let mut sizes = Vec::new();
        while queue.depth().jobs > 0 {
            let group = queue.take(1, Duration::ZERO, &Still).expect("jobs");
            sizes.push(group.iter().map(|job| job.records).collect::<Vec<_>>());
        }
        assert_eq!(sizes, [vec![1000, 500], vec![1], vec![5000], vec![7]]);
        assert_eq!(queue.depth(), QueueDepth::default());
    }

    #[test]
    fn a_full_queue_hands_the_job_back_and_a_huge_one_passes_when_it_is_empty() {
        let queue = Queue::new(10, 1000);
        assert!(queue.push(write(50)).is_ok());
        let (error, job) = *queue.push(write(1)).expect_err("no room");
        assert!(matches!(error, PushError::Full { records: 50, .. }) && job.records == 1);
        assert_eq!(queue.take(1, Duration::ZERO, &Still).map(|group| group.len()), Some(1));
        assert!(queue.push(write(1)).is_ok());
        queue.close();
        assert!(queue.push(write(1)).is_err_and(|refused| matches!(refused.0, PushError::Closed)));
        assert_eq!(queue.take(1, Duration::ZERO, &Still).map(|group| group.len()), Some(1));
        assert!(queue.take(1, Duration::ZERO, &Still).is_none());
    }
    #[test]
    fn after_a_group_the_rest_of_the_next_one_is_waited_for_and_no_longer() {
        let queue = Queue::new(100, 1000);
        let patience = Duration::from_secs(20);
        assert!(queue.push(write(1)).is_ok());
        let group = std::thread::scope(|scope| {
            let taken = scope.spawn(|| queue.take(3, patience, &Still).map(|group| group.len()));
            assert!(queue.push(write(1)).is_ok());
            assert!(queue.push(write(1)).is_ok());
            taken.join().expect("no panic")
        });
        assert_eq!(group, Some(3));
        // Nobody else comes, and the patience is nothing: a lone job is not held back.
        assert!(queue.push(write(1)).is_ok());
        assert_eq!(queue.take(3, Duration::ZERO, &Still).map(|group| group.len()), Some(1));
    }

    #[test]
    fn a_batch_that_the_time_did_not_reach_goes_first_the_next_time() {
        let queue = Queue::new(100_000, 1_000_000);
        let (reply, _) = std::sync::mpsc::sync_channel(1);
        let name = TableName::new("t").expect("a name");
        let task = Task::Define(DefineJob { name, definition: Bytes::new(), reply });
        assert!(queue.push(Job { task, records: 1, bytes: 1 }).is_ok());
        for _ in 0..3 {
            assert!(queue.push(write(700)).is_ok());
        }
        let mut group = queue.take(1, Duration::ZERO, &Still).expect("jobs");
        assert_eq!(group.iter().map(|job| job.records).collect::<Vec<_>>(), [700, 1]);
        queue.put_back(group.split_off(1));
        let group = queue.take(1, Duration::ZERO, &Still).expect("jobs");
        assert_eq!(group.iter().map(|job| job.records).collect::<Vec<_>>(), [1, 700, 700]);
    }

    #[test]
    fn a_job_that_is_dropped_answers_whoever_waits_for_it() {
        let job = write(1);
        let Task::Write(WriteJob { ticket, .. }) = &job.task else { panic!("a write") };
        let ticket = super::super::Ticket { state: Arc::clone(ticket) };
        drop(job);
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        let answer = std::pin::pin!(ticket.durable()).poll(&mut context);
        assert!(matches!(answer, std::task::Poll::Ready(Err(StoreError::Closed))));
        let answers = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&answers);
        let done =
            move |answer: Result<Applied, ApplyError>| kept.lock().expect("a lock").push(answer.is_ok());
        drop(ApplyReply::new(Box::new(done), Sequence::new(7)));
        assert_eq!(*answers.lock().expect("a lock"), [false]);
    }

    #[test]
    fn a_waiting_batch_and_own_writes_share_the_commits() {
        let queue = Queue::new(100_000, 1_000_000);
        let define = || {
            let (reply, _) = std::sync::mpsc::sync_channel(1);
            let name = TableName::new("t").expect("a name");
            let task = Task::Define(DefineJob { name, definition: Bytes::new(), reply });
            Job { task, records: 1400, bytes: 1 }
        };
        for _ in 0..4 {
            assert!(queue.push(write(700)).is_ok());
        }
        assert!(queue.push(define()).is_ok());
        let mut groups = Vec::new();
        while queue.depth().jobs > 0 {
            let group = queue.take(1, Duration::ZERO, &Still).expect("jobs");
            groups.push(group.iter().map(|job| job.records).collect::<Vec<_>>());
        }
        // The first commit gives own writes half and has no room for the batch: it is first in the second.
        assert_eq!(groups, [vec![700], vec![1400], vec![700, 700], vec![700]]);
    }
}
