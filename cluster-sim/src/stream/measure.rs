//! Sections, one after the other: a source, and its trials.

use std::path::{Path, PathBuf};

use auditstream::sender::YieldPolicy;

use super::plan::{Plan, Section, interleaved};
use super::progress::Progress;
use super::trial::{self, Outcome, Setup, Trial};
use super::verdict::Invariants;
use crate::cli::{Load, Receiver, StreamArgs, policy_name};
use crate::fault::Fault;
use crate::proc::{Child, Command, Event};
use crate::records::ORIGINS;
use crate::report::json::NodeContent;
use crate::report::{Cell, Cells, Figure};

/// A run in progress.
pub(crate) struct Measure<'a> {
    pub(crate) args: &'a StreamArgs,
    pub(crate) seed: u64,
    pub(crate) work: &'a Path,
    pub(crate) cells: Cells,
    pub(crate) invariants: Invariants,
    /// What the nodes of the last run hold.
    pub(crate) contents: Vec<NodeContent>,
    pub(crate) progress: Progress,
}

/// A source that has written its records.
struct Source {
    child: Child,
    head: u64,
    /// Entries that each peer is to get.
    entries: u64,
    log_bytes: u64,
    /// Content that each peer is to have; none when peers discard.
    content: Option<NodeContent>,
}

impl<'a> Measure<'a> {
    /// Runs all sections and the last run.
    ///
    /// # Errors
    /// A process that failed.
    pub(crate) async fn all(&mut self, plan: &Plan) -> Result<(), Fault> {
        for (number, section) in (1..).zip(&plan.sections) {
            let is_main = number == plan.sections.len();
            let folder = match &self.args.out {
                Some(out) if is_main => out.join("source"),
                _ => self.work.join(format!("source-{number}")),
            };
            self.progress.stage(&format!("{}: writing {} records", section.workload, section.records));
            let mut source = self.start_source(section, &folder).await?;
            self.section(section, &mut source).await?;
            if is_main && plan.last_run {
                self.last_run(section, &mut source).await?;
            }
            if is_main && self.args.out.is_some() {
                source.child.end().await?;
            } else {
                source.child.kill();
                let _left_to_the_work_folder = std::fs::remove_dir_all(folder);
            }
        }
        Ok(())
    }

    async fn start_source(&mut self, section: &Section, folder: &Path) -> Result<Source, Fault> {
        let mut child = Child::start("the source", &self.source_arguments(section, folder))?;
        let Event::Ready { head, log_bytes, offered, accepted, refused, .. } = child.hear_long().await?
        else {
            return Err(Fault::run("the source began with something else than its records"));
        };
        self.invariants.offers(section.workload, offered, accepted, refused);
        self.invariants.require(head == section.records, || {
            format!("{}: {} records were written, the log ends at {head}", section.workload, section.records)
        });
        let content = match self.args.receiver {
            Receiver::Lmdb => Some(content_of(&mut child).await?),
            Receiver::Discard => None,
        };
        let entries = match section.load {
            Load::Mixed => entries_without_last_origin(section.records, self.args.txn),
            _ => head,
        };
        Ok(Source { child, head, entries, log_bytes, content })
    }

    fn source_arguments(&self, section: &Section, folder: &Path) -> Vec<String> {
        let args = self.args;
        let load = clap::ValueEnum::to_possible_value(&section.load);
        let load = load.map_or_else(String::new, |value| value.get_name().to_owned());
        let mut arguments: Vec<String> = vec!["__source".to_owned()];
        for (flag, value) in [
            ("--data", folder.display().to_string()),
            ("--load", load),
            ("--records", section.records.to_string()),
            ("--record-size", args.record_size.to_string()),
            ("--txn", args.txn.to_string()),
            ("--seed", self.seed.to_string()),
            ("--durability", args.durability.to_string()),
        ] {
            arguments.extend([flag.to_owned(), value]);
        }
        if let (Load::Input, Some(path)) = (section.load, &args.input) {
            arguments.extend(["--input".to_owned(), path.display().to_string()]);
        }
        if let (Load::Input, Some(field)) = (section.load, &args.key_field) {
            arguments.push(format!("--key-field={field}"));
        }
        arguments
    }

    async fn section(&mut self, section: &Section, source: &mut Source) -> Result<(), Fault> {
        if section.against_itself {
            self.against_itself(section, source).await?;
        }
        for peers in section.peers.iter().copied() {
            for (number, policy) in (1..).zip(interleaved(&section.variants, section.trials)) {
                let name = policy_name(policy);
                let of = section.variants.len() * section.trials;
                self.progress.stage(&format!("{}, run {number} of {of}", section.workload));
                let outcome = self.trial(section, source, (policy, peers), None).await?;
                self.note(section, source, &outcome, (section.workload, name, policy, peers));
                // Once per round: a drift of the machine meets the floor as it meets the variants.
                if section.floor && number % section.variants.len() == 0 {
                    self.floor(section, source, peers).await?;
                }
            }
        }
        match section.writes {
            Some(records) => self.writes(section, source, records).await,
            None => Ok(()),
        }
    }

    async fn against_itself(&mut self, section: &Section, source: &mut Source) -> Result<(), Fault> {
        let Some(peers) = section.peers.first().copied() else { return Ok(()) };
        let policy = YieldPolicy::Budget;
        for number in 0..2 * section.trials {
            // A B B A: neither of the two is always first.
            let name = if matches!(number % 4, 0 | 3) { "budget" } else { "budget again" };
            self.progress.stage("a-against-a");
            let outcome = self.trial(section, source, (policy, peers), None).await?;
            self.note(section, source, &outcome, ("a-against-a", name, policy, peers));
        }
        Ok(())
    }

    async fn trial(
        &mut self,
        section: &Section,
        source: &mut Source,
        (policy, peers): (YieldPolicy, usize),
        writes: Option<u64>,
    ) -> Result<Outcome, Fault> {
        let trial = Trial {
            policy,
            peers,
            target: source.head,
            records: source.entries,
            keep: None,
            kill: None,
            writes,
        };
        trial::run(&self.setup(section.load), &mut source.child, &trial, &mut self.progress).await
    }

    fn setup(&self, load: Load) -> Setup<'a> {
        Setup {
            load,
            receiver: self.args.receiver,
            durability: self.args.durability.to_string(),
            budget: self.args.budget,
            work: self.work,
        }
    }

    fn cell(&mut self, section: &Section, workload: &str, variant: &str, peers: usize) -> &mut Cell {
        let (receiver, durability) = (self.args.receiver.name(), self.args.durability.to_string());
        self.cells.entry(Cell::new(workload, variant, peers, receiver, &durability, section.records))
    }

    /// Checks a trial and notes its figures.
    fn note(
        &mut self,
        section: &Section,
        source: &Source,
        outcome: &Outcome,
        (workload, variant, policy, peers): (&str, &str, YieldPolicy, usize),
    ) {
        let place = format!("{workload}, {variant}, {peers} peers");
        let hash = source.content.as_ref().map(|content| content.hash.as_str());
        self.invariants.trial(&place, outcome, source.head, hash);
        let sender = &outcome.sender;
        let sent = sender.sent.iter().sum::<u64>() as f64;
        let yields = sender.yields as f64 / sent * 1000.0;
        self.invariants.yields(&place, policy, peers, yields);
        let entries = source.entries as f64;
        let cell = self.cell(section, workload, variant, peers);
        cell.add(Figure::RecordsPerSecond, entries / outcome.seconds);
        cell.add(Figure::SenderCpu, sender.worker_cpu_ns as f64 / 1000.0 / sent);
        cell.add(Figure::ProcessCpu, sender.process_cpu_ns as f64 / 1000.0 / sent);
        cell.add(Figure::Yields, yields);
        // Each end of a turn lets the driver ask the kernel once which sockets are ready.
        // `strace -f` beside a run of 50,000 entries, all calls of the worker's thread: 57,512 for one peer per record
        // (57,481 counted here) and 524 with the budget (498); the rest are those of the thread's start and end.
        let calls = sender.writes + sender.writes_blocked + sender.reads + sender.yields + sender.waits;
        cell.add(Figure::Syscalls, calls as f64 / sent * 1000.0);
        cell.not_measured(Figure::Writes, "the writes had stopped; see the workload while-writing");
        cell.not_measured(Figure::KernelFloor, "measured beside the main load only");
    }

    /// Writes as many bytes as the log has to sinks that do nothing but read, and notes the CPU in all cells of this
    /// number of peers.
    async fn floor(&mut self, section: &Section, source: &mut Source, peers: usize) -> Result<(), Fault> {
        self.progress.stage(&format!("kernel floor, {peers} peers"));
        let (mut sinks, mut children) = (Vec::new(), Vec::new());
        for number in 1..=peers {
            let mut child = Child::start(&format!("sink {number}"), &["__sink".to_owned()])?;
            let Event::Ready { address, .. } = child.hear().await? else {
                return Err(Fault::run("a sink began with something else than its address"));
            };
            sinks.push(address);
            children.push(child);
        }
        let command = Command::Floor { sinks, bytes: source.log_bytes };
        let answer = |event| match event {
            Event::FloorDone { cpu_ns, .. } => Some(cpu_ns),
            _ => None,
        };
        let cpu_ns = source.child.ask(&command, answer).await?;
        children.into_iter().for_each(Child::kill);
        let micros = cpu_ns as f64 / 1000.0 / (source.head as f64 * peers as f64);
        for policy in &section.variants {
            self.cell(section, section.workload, policy_name(*policy), peers)
                .add(Figure::KernelFloor, micros);
        }
        Ok(())
    }

    /// How fast the source writes without peers, and while each number of peers follows.
    async fn writes(&mut self, section: &Section, source: &mut Source, records: u64) -> Result<(), Fault> {
        let workload = "while-writing";
        for _ in 0..section.trials {
            self.progress.stage(&format!("{workload}, no peers"));
            let written = trial::write(&mut source.child, records).await?;
            self.note_writes(section, source, &written, ("no-peers", 0));
            for peers in section.peers.iter().copied() {
                self.progress.stage(workload);
                // Only the records that are written now go to the peers: they start with an empty folder, catch up
                // and then follow.
                let outcome =
                    self.trial(section, source, (YieldPolicy::Budget, peers), Some(records)).await?;
                let Some(written) = outcome.written else { continue };
                self.note_writes(section, source, &written, ("budget", peers));
                if self.args.receiver == Receiver::Lmdb {
                    let expected = content_of(&mut source.child).await?;
                    for content in &outcome.contents {
                        self.invariants.require(content.hash == expected.hash, || {
                            format!(
                                "{workload}, {peers} peers: {} holds other rows than the source",
                                content.node
                            )
                        });
                    }
                    source.content = Some(expected);
                }
            }
        }
        Ok(())
    }

    fn note_writes(
        &mut self,
        section: &Section,
        source: &mut Source,
        written: &trial::Written,
        (variant, peers): (&str, usize),
    ) {
        let workload = "while-writing";
        self.invariants.offers(workload, written.offered, written.accepted, written.refused);
        source.entries += written.head - source.head;
        source.head = written.head;
        let cell = self.cell(section, workload, variant, peers);
        cell.records = written.records;
        cell.add(Figure::Writes, written.records as f64 / written.seconds);
        for figure in Figure::ALL.into_iter().filter(|figure| *figure != Figure::Writes) {
            cell.not_measured(figure, "this cell is about the writes; see the catch-up cells");
        }
    }

    /// The run that a person looks at: kept, killed in the middle, hashed.
    async fn last_run(&mut self, section: &Section, source: &mut Source) -> Result<(), Fault> {
        let peers = section.peers.iter().copied().max().unwrap_or(1);
        self.progress.stage("last run");
        let keep: PathBuf = self.args.out.clone().unwrap_or_else(|| self.work.join("last"));
        let trial = Trial {
            policy: YieldPolicy::Budget,
            peers,
            target: source.head,
            records: source.entries,
            keep: Some(&keep),
            kill: self.args.kill_peer,
            writes: None,
        };
        let setup = self.setup(section.load);
        let outcome = trial::run(&setup, &mut source.child, &trial, &mut self.progress).await?;
        let content = source.content.take();
        let hash = content.as_ref().map(|content| content.hash.clone());
        self.invariants.trial("last run", &outcome, source.head, hash.as_deref());
        if self.args.kill_peer.is_some() {
            let note = if outcome.killed {
                "last run: peer-1 was killed with SIGKILL and started again on its folder"
            } else {
                "last run: peer-1 had everything before it was to be killed; give a shorter time, or a share such as 0.5"
            };
            self.invariants.notes.push(note.to_owned());
        }
        self.contents.extend(content);
        self.contents.extend(outcome.contents);
        Ok(())
    }
}

async fn content_of(source: &mut Child) -> Result<NodeContent, Fault> {
    let answer = |event| match event {
        Event::Hash { hash, rows } => Some(NodeContent { node: "source".to_owned(), hash, rows }),
        _ => None,
    };
    source.ask(&Command::Hash, answer).await
}

/// Entries of a mixed log that peers get: all but the transactions of the last origin.
fn entries_without_last_origin(records: u64, txn: u64) -> u64 {
    let round = ORIGINS * txn;
    let rest = (records % round).min((ORIGINS - 1) * txn);
    records / round * (ORIGINS - 1) * txn + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_of_a_mixed_log_get_four_of_five_transactions() {
        assert_eq!(entries_without_last_origin(100, 10), 80);
        assert_eq!(entries_without_last_origin(95, 10), 80);
        assert_eq!(entries_without_last_origin(35, 10), 35);
    }
}
