//! The one thread that commits: it merges jobs into one commit and answers each after it.

use std::slice;
use std::sync::Arc;
use std::time::Duration;

use super::Core;
use super::apply::{ApplyState, Failed, read_source_state};
use super::options::Durability;
use super::queue::{ApplyJob, Job, Task, WriteJob};
use super::stage::Stage;
use crate::protocol::{Boundary, EntryDraft, EntryKind, Sequence, TableId};
use crate::store::{Applied, ApplyBatch, ApplyError, StoreError};

/// A commit takes no further job once it has worked for this long.
const WORK_MAX: Duration = Duration::from_millis(2);
/// How much a new measurement counts in the average of a sync: one part in so many.
const AVERAGE_OVER: u32 = 8;

pub(super) struct WriterThread {
    core: Arc<Core>,
    state: ApplyState,
    last_group: usize,
    average_sync: Duration,
}

/// What a job's answer will be once the commit has returned.
enum Outcome {
    Written(Boundary),
    Applied(Applied),
    Defined(TableId),
    /// The source is latched off.
    Latched(ApplyError),
}

impl WriterThread {
    pub(super) fn new(core: Arc<Core>) -> Self {
        Self { core, state: ApplyState::default(), last_group: 1, average_sync: Duration::ZERO }
    }

    /// Serves jobs until the queue is closed and empty.
    pub(super) fn run(mut self) {
        let core = Arc::clone(&self.core);
        // Whatever ends this thread, nobody waits for an answer that cannot come.
        let _guard = CloseOnExit(&core);
        loop {
            // Without a sync there is nothing that others' arrivals could be merged under.
            let patience = match core.options.durability() {
                Durability::NoSync => Duration::ZERO,
                Durability::Sync | Durability::NoMetaSync => self.average_sync / 2,
            };
            let Some(jobs) = core.queue.take(self.last_group, patience, &*core.clock) else { return };
            self.serve(jobs);
        }
    }

    fn serve(&mut self, mut jobs: Vec<Job>) {
        match self.attempt(&jobs) {
            Ok(outcomes) => {
                let late = jobs.split_off(outcomes.len());
                self.last_group = outcomes.len();
                self.core.queue.put_back(late);
                for (job, outcome) in jobs.into_iter().zip(outcomes) {
                    answer(job.task, outcome);
                }
            }
            Err(failed) if jobs.len() == 1 => {
                if let Some(job) = jobs.pop() {
                    self.fail(job, failed);
                }
            }
            // One of them spoils the commit: each for itself, so that only that one fails.
            Err(_) => jobs.into_iter().for_each(|job| self.serve_alone(job)),
        }
    }

    fn serve_alone(&mut self, job: Job) {
        match self.attempt(slice::from_ref(&job)) {
            Ok(mut outcomes) => match outcomes.pop() {
                Some(outcome) => answer(job.task, outcome),
                None => refuse(job.task),
            },
            Err(failed) => self.fail(job, failed),
        }
    }

    /// Commits the first jobs, as many as the time allows, at least one. After an error nothing is written.
    fn attempt(&mut self, jobs: &[Job]) -> Result<Vec<Outcome>, Failed> {
        let core = Arc::clone(&self.core);
        let result = self.attempt_in(&core, jobs);
        if result.is_err() {
            self.state.forget();
        }
        result
    }

    fn attempt_in(&mut self, core: &Core, jobs: &[Job]) -> Result<Vec<Outcome>, Failed> {
        let outside = |reason| Failed { good: 0, at: end_of(jobs.first()), reason };
        let start = core.clock.now();
        let mut stage = Stage::begin(core).map_err(outside)?;
        let mut outcomes = Vec::with_capacity(jobs.len());
        for job in jobs {
            outcomes.push(self.run_job(&mut stage, job)?);
            if core.clock.now().since(start) >= WORK_MAX {
                break;
            }
        }
        let before = core.clock.now();
        stage.commit().map_err(outside)?;
        let took = core.clock.now().since(before);
        self.average_sync = (self.average_sync * (AVERAGE_OVER - 1) + took) / AVERAGE_OVER;
        Ok(outcomes)
    }

    fn run_job(&mut self, stage: &mut Stage<'_>, job: &Job) -> Result<Outcome, Failed> {
        let outside = |reason| Failed { good: 0, at: end_of(Some(job)), reason };
        match &job.task {
            Task::Write(write) => self.write(stage, write).map(Outcome::Written).map_err(outside),
            Task::Apply(apply) => match self.core.latched(&apply.batch.source, apply.session) {
                Some(error) => Ok(Outcome::Latched(error)),
                None => self.state.apply(stage, &apply.batch).map(Outcome::Applied),
            },
            Task::Define(define) => {
                let Stage { names, txn, core, .. } = stage;
                let context = (&core.databases, &core.options);
                names
                    .define(txn, context, &define.name, &define.definition)
                    .map(Outcome::Defined)
                    .map_err(outside)
            }
        }
    }

    fn write(&mut self, stage: &mut Stage<'_>, write: &WriteJob) -> Result<Boundary, StoreError> {
        let drafts: Vec<EntryDraft<'_>> =
            (0..).zip(&write.entries).map(|(at, entry)| entry.draft(at)).collect();
        let version = stage.clock.tick(stage.wall_ms);
        for draft in drafts.iter().filter(|draft| draft.kind != EntryKind::Message) {
            self.state.rows.write_own(stage, draft, version)?;
        }
        stage.append(stage.core.origin, version, &drafts)
    }

    fn fail(&mut self, job: Job, failed: Failed) {
        match job.task {
            Task::Write(write) => write.ticket.answer(Err(failed.reason)),
            Task::Define(define) => drop(define.reply.send(Err(failed.reason))),
            Task::Apply(apply) => self.fail_apply(apply, failed),
        }
    }

    /// Commits the transactions before the one that failed, latches the source off and reports.
    fn fail_apply(&mut self, apply: ApplyJob, failed: Failed) {
        let ApplyJob { batch, session, done } = apply;
        let core = Arc::clone(&self.core);
        let prefix = if failed.good == 0 { Ok(None) } else { self.commit_prefix(&core, &batch, failed.good) };
        let good = match prefix {
            Ok(Some(boundary)) => boundary,
            // Nothing to commit, or no room for it either: what counts is what is stored.
            Ok(None) | Err(_) => match read_source_state(&core, &batch.source) {
                Ok(stored) => batch.boundary_in(stored.as_ref()),
                Err(_) => Boundary::START,
            },
        };
        let error = ApplyError { good, at: failed.at, reason: failed.reason };
        tracing::warn!(source = %batch.source, at = failed.at.get(), good = good.sequence.get(), %error,
            "a received transaction cannot be applied; the stream is latched off");
        core.sources.latch(&batch.source, session, error.clone());
        done.send(Err(error));
    }

    fn commit_prefix(
        &mut self,
        core: &Core,
        batch: &ApplyBatch,
        good: usize,
    ) -> Result<Option<Boundary>, StoreError> {
        let committed = Stage::begin(core).and_then(|mut stage| {
            let boundary = self.state.apply_prefix(&mut stage, batch, good)?;
            stage.commit()?;
            Ok(boundary)
        });
        if committed.is_err() {
            self.state.forget();
        }
        committed
    }
}

/// Where a batch ends in its source's log; other jobs have no place there.
fn end_of(job: Option<&Job>) -> Sequence {
    match job.map(|job| &job.task) {
        Some(Task::Apply(apply)) => apply.batch.position.boundary.sequence,
        _ => Sequence::ZERO,
    }
}

fn answer(task: Task, outcome: Outcome) {
    match (task, outcome) {
        (Task::Write(write), Outcome::Written(boundary)) => write.ticket.answer(Ok(boundary)),
        (Task::Apply(apply), Outcome::Applied(applied)) => apply.done.send(Ok(applied)),
        (Task::Apply(apply), Outcome::Latched(error)) => apply.done.send(Err(error)),
        (Task::Define(define), Outcome::Defined(id)) => drop(define.reply.send(Ok(id))),
        // Outcomes are made job by job, so the pairs above are all there are.
        (task, _) => refuse(task),
    }
}

/// Answers a job that nobody will serve.
pub(super) fn refuse(task: Task) {
    match task {
        Task::Define(define) => drop(define.reply.send(Err(StoreError::Closed))),
        // They say so by themselves when they are dropped.
        task @ (Task::Write(_) | Task::Apply(_)) => drop(task),
    }
}

struct CloseOnExit<'a>(&'a Core);

impl Drop for CloseOnExit<'_> {
    fn drop(&mut self) {
        self.0.queue.close();
        while let Some(jobs) = self.0.queue.take(1, Duration::ZERO, &*self.0.clock) {
            jobs.into_iter().for_each(|job| refuse(job.task));
        }
    }
}
