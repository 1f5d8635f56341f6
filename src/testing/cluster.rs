//! The run of one seed: the event queue and the writer threads.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use crate::clock::Moment;
use crate::protocol::{Entry, EntryFlags, EntryKind, LogId, TableId, TableName};
use crate::store::{Applier, AuditLog, MemoryStore};

use super::clock::NodeClock;
use super::coverage::Coverage;
use super::log::ChargedLog;
use super::model::{Model, Wants};
use super::node::{Answer, Job, Link, Node, Submitted};
use super::oracles::{Oracle, Violation};
use super::plan::{BUSY_TABLES, FaultPlan, Plan, Planted, TABLES, node_name, table_name};
use super::rng::Rng;
use super::trace::Trace;

/// Most batches in one commit.
const GROUP: usize = 8;

/// After the last fault has healed, everything has to be quiet within this time.
const QUIET_WITHIN: Duration = Duration::from_secs(120);

/// What came of a seed.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Report {
    /// The seed.
    pub seed: u64,
    /// Hash of every event in order.
    pub trace_hash: u64,
    /// The last events, as text.
    pub trace: Vec<String>,
    /// The first thing that did not hold.
    pub violation: Option<Violation>,
    /// Which faults met which states.
    pub coverage: Coverage,
    /// Nodes.
    pub nodes: usize,
    /// Transactions that the nodes wrote.
    pub transactions: usize,
    /// Entries that went over the links.
    pub delivered: u64,
    /// Crashes, clean or not.
    pub crashes: usize,
    /// Cut connections.
    pub cuts: usize,
    /// Subscriptions that were refused because the log had got a new identity.
    pub refused_other_log: usize,
    /// Turns that ended because the budget was spent.
    pub yields: u64,
}

impl Report {
    /// What to print when the seed fails: the violation, the last events, and how to see it again.
    #[must_use]
    pub fn explain(&self) -> String {
        let seed = self.seed;
        let shown = self.trace.len().saturating_sub(60);
        format!(
            "seed {seed}: {:?}\nlast events:\n{}\nreplay: AUDITSTREAM_SEEDS={seed}..{} cargo test --test \
             virtual_cluster -- --nocapture",
            self.violation,
            self.trace[shown..].join("\n"),
            seed + 1
        )
    }
}

/// Runs a plan to its end or to the first violation.
#[must_use]
pub fn run(plan: &Plan) -> Report {
    Cluster::new(plan.clone()).run()
}

pub(super) struct Cluster {
    pub(super) plan: Plan,
    pub(super) rng: Rng,
    pub(super) nodes: Vec<Node>,
    pub(super) links: Vec<Link>,
    pub(super) models: BTreeMap<LogId, Model>,
    pub(super) faults: Vec<FaultPlan>,
    pub(super) trace: Trace,
    pub(super) report: Report,
    /// Rows whose last write was lost by the node that wrote it.
    pub(super) lost: BTreeSet<(TableName, Vec<u8>)>,
    pub(super) restarts: BTreeMap<(Moment, u64), usize>,
    pub(super) healed: bool,
    events: BTreeMap<(Moment, u64), usize>,
    next_event: u64,
}

impl Cluster {
    fn new(plan: Plan) -> Self {
        let mut rng = Rng::new(plan.seed ^ 0x5eed);
        let nodes = (0..plan.nodes).map(|index| Self::node(&plan, &mut rng, index)).collect::<Vec<_>>();
        let links = plan.links.iter().map(|link| Link {
            source: link.source,
            peer: link.peer,
            selection: link.selection.clone(),
            wants: Wants::new(node_name(link.peer), &link.selection),
            window: link.window,
            delay: link.delay,
            kibibyte: link.kibibyte,
            connection: None,
            epoch: 0,
            connect_at: Moment::START,
            forget: false,
            open: 0,
        });
        let report = Report {
            seed: plan.seed,
            trace_hash: 0,
            trace: Vec::new(),
            violation: None,
            coverage: Coverage::default(),
            nodes: plan.nodes,
            transactions: plan.writes.iter().map(|write| write.group).sum(),
            delivered: 0,
            crashes: 0,
            cuts: 0,
            refused_other_log: 0,
            yields: 0,
        };
        Self {
            links: links.collect(),
            models: nodes.iter().map(|node| (node.log.log_id(), Model::default())).collect(),
            faults: plan.faults.clone(),
            nodes,
            rng,
            plan,
            trace: Trace::new(),
            report,
            lost: BTreeSet::new(),
            restarts: BTreeMap::new(),
            healed: false,
            events: BTreeMap::new(),
            next_event: 0,
        }
    }

    fn node(plan: &Plan, rng: &mut Rng, index: usize) -> Node {
        let clock = Arc::new(NodeClock::new(plan.costs.read, plan.skews_ms[index]));
        let store = MemoryStore::new(node_name(index), log_id(rng), clock.clone());
        // The nodes give the tables different short ids.
        for place in 0..TABLES {
            let _ = store.define_table(&table_name((place + index) % TABLES), "kv".into());
        }
        let store = Arc::new(match plan.planted {
            Planted::Store(plant) => store.planted(plant),
            _ => store,
        });
        let crashes = plan.faults.iter().any(|fault| fault.fault == super::coverage::Fault::UncleanCrash);
        Node {
            name: node_name(index),
            up: true,
            log: ChargedLog { store, clock: clock.clone(), costs: plan.costs, visited: AtomicU64::new(1) },
            clock,
            ring: Some(plan.ring()),
            members: BTreeMap::new(),
            jobs: BTreeMap::new(),
            submitted: std::collections::VecDeque::new(),
            apply_scheduled: false,
            commits_stopped_until: Moment::START,
            answers: std::collections::VecDeque::new(),
            timer_due: Moment::from_nanos(rng.between(1, 20_000_000)),
            echo_due: Moment::from_nanos(rng.between(1, 20_000_000)),
            in_a_row: (usize::MAX, 0),
            driver: Duration::ZERO,
            longest_driver: Duration::ZERO,
            scheduled: None,
            synced: None,
            keeps_snapshots: crashes,
            commits: 0,
        }
    }

    fn run(mut self) -> Report {
        for index in 0..self.plan.writes.len() {
            let (at, node) = (self.plan.writes[index].at, self.plan.writes[index].node);
            let number = self.number();
            self.nodes[node].jobs.insert((at, number), Job::Append(index));
        }
        (0..self.nodes.len()).for_each(|node| self.schedule(node, Moment::START));
        let mut healed_at = None;
        let mut steps = 0_u64;
        while self.report.violation.is_none() {
            let Some(((at, _), node)) = self.events.pop_first() else { break };
            self.restart_due(at);
            if self.nodes[node].scheduled != Some(at) {
                continue;
            }
            self.nodes[node].scheduled = None;
            self.step(node, at);
            self.fire_faults(node, at);
            steps += 1;
            self.healed = self.faults.is_empty() && self.restarts.is_empty() && self.writers_done();
            if self.healed {
                let since = *healed_at.get_or_insert(at);
                if steps.is_multiple_of(32) && self.is_quiet() {
                    break;
                }
                if at.since(since) > QUIET_WITHIN {
                    let text = self.describe_links();
                    self.fail(node, Oracle::Quiet, text);
                    break;
                }
            }
        }
        if self.report.violation.is_none() {
            self.check_end();
        }
        (self.report.trace_hash, self.report.trace) = self.trace.into_parts();
        self.report
    }

    fn writers_done(&self) -> bool {
        self.nodes.iter().all(|node| node.jobs.is_empty() && node.submitted.is_empty())
    }

    pub(super) const fn number(&mut self) -> u64 {
        self.next_event += 1;
        self.next_event
    }

    pub(super) fn schedule(&mut self, node: usize, at: Moment) {
        let node_state = &mut self.nodes[node];
        if !node_state.up || node_state.scheduled.is_some_and(|scheduled| scheduled <= at) {
            return;
        }
        node_state.scheduled = Some(at);
        let number = self.number();
        self.events.insert((at, number), node);
    }

    /// A node that comes back needs an event even when nothing else happens.
    pub(super) fn schedule_restart(&mut self, node: usize, at: Moment) {
        let number = self.number();
        self.restarts.insert((at, number), node);
        let number = self.number();
        self.events.insert((at, number), node);
    }

    pub(super) fn note(&mut self, node: usize, text: &str) {
        let at = self.nodes[node].clock.peek().as_nanos();
        self.trace.push(format!("{at} {node} {text}"));
    }

    pub(super) fn fail(&mut self, node: usize, oracle: Oracle, text: String) {
        let at = self.nodes[node].clock.peek();
        if self.plan.sought.is_none_or(|sought| sought == oracle) {
            self.report.violation.get_or_insert(Violation { oracle, at, text });
        }
    }

    /// Runs what the writer thread has due by now, and says whether anything was committed.
    pub(super) fn run_jobs(&mut self, node: usize, now: Moment) -> bool {
        let mut committed = false;
        while self.nodes[node].commits_stopped_until <= now
            && let Some(first) = self.nodes[node].jobs.first_entry().filter(|first| first.key().0 <= now)
        {
            match first.remove() {
                Job::Append(index) => self.append(node, index),
                Job::Apply => self.apply(node, now),
            }
            committed = true;
            let model = self.models.entry(self.nodes[node].log.log_id()).or_default();
            if let Err(text) = model.read(&self.nodes[node].log.store) {
                self.fail(node, Oracle::LoggedOnce, text);
                break;
            }
            self.remember_synced(node);
        }
        committed
    }

    fn remember_synced(&mut self, node: usize) {
        let node = &mut self.nodes[node];
        node.commits += 1;
        if node.keeps_snapshots && node.commits % 48 == 1 {
            let model = self.models.get(&node.log.log_id()).cloned().unwrap_or_default();
            node.synced = Some((node.log.store.snapshot(), model));
        }
    }

    fn append(&mut self, node: usize, index: usize) {
        if self.rng.one_in(40) {
            let table = table_name(self.rng.index(BUSY_TABLES));
            if let Err(error) = self.nodes[node].log.store.define_table(&table, format!("kv-{index}").into())
            {
                self.fail(node, Oracle::Refusal, error.to_string());
            }
        }
        let group: Vec<_> =
            (0..self.plan.writes[index].group).map(|_| transaction(&mut self.rng, node)).collect();
        let group: Vec<_> = group.iter().map(Vec::as_slice).collect();
        match self.nodes[node].log.store.append_group(&group) {
            Ok(end) => self.note(node, &format!("wrote {} up to {}", group.len(), end.sequence)),
            Err(error) => self.fail(node, Oracle::Refusal, error.to_string()),
        }
    }

    fn apply(&mut self, node: usize, now: Moment) {
        self.nodes[node].apply_scheduled = false;
        for _ in 0..GROUP {
            let Some(submitted) = self.nodes[node].submitted.pop_front() else { break };
            self.apply_one(node, submitted);
        }
        self.schedule_apply(node, now);
    }

    fn apply_one(&mut self, node: usize, submitted: Submitted) {
        let Submitted { link, epoch, ticket, batch } = submitted;
        let before = self.nodes[node].log.store.peek_source(&batch.source);
        let answer = Arc::new(std::sync::Mutex::new(None));
        let slot = Arc::clone(&answer);
        self.nodes[node].log.store.submit(
            batch.clone(),
            Box::new(move |result| {
                *slot.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(result);
            }),
        );
        let result = answer.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take();
        let Some(result) = result else {
            return self.fail(node, Oracle::Committed, "a batch was never answered".to_owned());
        };
        let text = match &result {
            Ok(applied) => format!("+{} ={}", applied.changed, applied.unchanged),
            Err(error) => error.to_string(),
        };
        self.note(node, &format!("commit link {link} at {} {text}", batch.position.boundary.sequence));
        let model = self.models.entry(self.nodes[node].log.log_id()).or_default();
        if let Err(text) = model.read(&self.nodes[node].log.store) {
            return self.fail(node, Oracle::LoggedOnce, text);
        }
        self.check_commit(node, before.as_ref(), &batch, result.is_ok());
        self.nodes[node].answers.push_back(Answer { link, epoch, ticket, result });
    }

    pub(super) fn schedule_apply(&mut self, node: usize, now: Moment) {
        if self.nodes[node].apply_scheduled || self.nodes[node].submitted.is_empty() {
            return;
        }
        let latency = self.rng.between(10_000, self.plan.apply_latency);
        let number = self.number();
        self.nodes[node].apply_scheduled = true;
        self.nodes[node].jobs.insert((now.plus(Duration::from_nanos(latency)), number), Job::Apply);
    }
}

pub(super) fn log_id(rng: &mut Rng) -> LogId {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&rng.next_u64().to_le_bytes());
    bytes[8..].copy_from_slice(&rng.next_u64().to_le_bytes());
    LogId::from_bytes(bytes)
}

/// One transaction of a writer: mostly small, sometimes one that spans segments.
fn transaction(rng: &mut Rng, node: usize) -> Vec<Entry> {
    let (entries, value) = match rng.index(100) {
        0 | 1 => (rng.index(1_500) + 500, 40),
        2 => (rng.index(20) + 10, 12_000),
        3..=9 => (rng.index(100) + 20, 300),
        _ => (rng.index(12) + 1, 200),
    };
    // Long runs of one table are skipped as a whole by some subscriptions.
    let only = (entries < 500 && rng.one_in(2)).then(|| rng.index(BUSY_TABLES));
    // And some transactions touch more tables than a header lists.
    let spread = if rng.one_in(12) || (entries >= 500 && rng.one_in(2)) { TABLES } else { BUSY_TABLES };
    let mut list = Vec::with_capacity(entries);
    for _ in 0..entries {
        let table = TableId(u16::try_from(only.unwrap_or_else(|| rng.index(spread))).unwrap_or(0));
        let key = format!("k{}", rng.index(300));
        let bytes = vec![b'a' + u8::try_from(rng.index(26)).unwrap_or(0); rng.index(value + 1)];
        list.push(match rng.index(20) {
            0 | 1 => Entry::delete(table, key),
            2 => Entry { kind: EntryKind::Message, ..Entry::put(table, "message", bytes) },
            3 => Entry::put(table, format!("local-{node}"), bytes).marked(EntryFlags::LOCAL_ONLY),
            _ => Entry::put(table, key, bytes),
        });
    }
    list
}

impl Node {
    /// When this node has something to do next without being told.
    pub(super) fn next_due(&self) -> Moment {
        let due = self.timer_due.min(self.echo_due);
        match self.jobs.first_key_value() {
            Some(((at, _), _)) => due.min((*at).max(self.commits_stopped_until)),
            None => due,
        }
    }

    pub(super) fn stored(&self, source: &Self) -> Option<crate::protocol::SourceState> {
        self.log.store.peek_source(&source.name)
    }
}
