//! What has to hold, and whether it did.

use auditstream::sender::YieldPolicy;

use super::plan::{Mode, Plan, Section};
use super::trial::Outcome;
use crate::cli::Receiver;
use crate::fault::{EXIT_BROKEN, EXIT_HELD, EXIT_INCONCLUSIVE, EXIT_MISSED};
use crate::report::table::thousands;
use crate::report::{Cells, Figure};

/// The budget against the baseline: at most this share of its CPU.
const AGAINST_PER_RECORD: f64 = 0.5;
/// The budget against the kernel-only floor: at most so many times it.
const AGAINST_FLOOR: f64 = 2.0;
/// Half of the tolerance of the tighter gate: more than this between two equal measurements is noise.
const NOISE: f64 = 0.25;
/// Numbers of peers that the gates are defined for.
const GATED_PEERS: [usize; 2] = [1, 4];
/// PostgreSQL's logical replication on this kind of machine, records/s per peer, for N = 1 and N = 4; its apply
/// does not sync.
const POSTGRES: [(usize, f64); 2] = [(1, 109_000.0), (4, 36_000.0)];

/// The end of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Verdict {
    pub(crate) word: &'static str,
    pub(crate) exit_code: u8,
    pub(crate) reasons: Vec<String>,
}

/// Collects what broke. Each check names the trial.
#[derive(Debug, Default)]
pub(crate) struct Invariants {
    pub(crate) broken: Vec<String>,
    pub(crate) checked: u64,
    /// What happened on the way that a reader wants to know.
    pub(crate) notes: Vec<String>,
}

impl Invariants {
    pub(crate) fn require(&mut self, holds: bool, text: impl FnOnce() -> String) {
        self.checked += 1;
        if !holds {
            self.broken.push(text());
        }
    }

    /// Every transaction that was offered was accepted or refused.
    pub(crate) fn offers(&mut self, place: &str, offered: u64, accepted: u64, refused: u64) {
        self.require(offered == accepted + refused, || {
            format!("{place}: {offered} transactions were offered, {accepted} accepted and {refused} refused")
        });
    }

    /// What every trial has to show, whatever it measured.
    pub(crate) fn trial(&mut self, place: &str, outcome: &Outcome, target: u64, hash: Option<&str>) {
        for (number, peer) in (1..).zip(&outcome.peers) {
            let chain = peer.received >= peer.applied && peer.applied >= peer.durable;
            self.require(chain, || {
                format!("{place}: peer-{number} has acknowledged more than it got: {peer:?}")
            });
            self.require(peer.position == target, || {
                format!("{place}: peer-{number} is at {}, the source at {target}", peer.position)
            });
        }
        // A peer that was killed got part of the entries twice, on two connections.
        if !outcome.killed {
            let sent: u64 = outcome.sender.sent.iter().sum();
            let received: u64 = outcome.peers.iter().map(|peer| peer.received).sum();
            self.require(sent >= received, || {
                format!("{place}: {received} entries were received, and only {sent} sent")
            });
        }
        for acknowledged in &outcome.sender.acknowledged {
            self.require(outcome.killed || *acknowledged == target, || {
                format!("{place}: a peer acknowledged {acknowledged} as durable, the source is at {target}")
            });
        }
        for content in &outcome.contents {
            self.require(hash.is_none_or(|hash| hash == content.hash), || {
                format!("{place}: the content of {} is {}, not {hash:?}", content.node, content.hash)
            });
        }
    }

    /// The baseline yields for every record, and the budget does not.
    pub(crate) fn yields(&mut self, place: &str, policy: YieldPolicy, peers: usize, yields: f64) {
        let least = 900.0 / peers as f64;
        match policy {
            YieldPolicy::PerRecord => self.require(yields >= least, || {
                format!(
                    "{place}: per-record yields {yields:.1} times per 1,000 entries, fewer than {least:.0}"
                )
            }),
            YieldPolicy::Budget => self.require(yields < 50.0, || {
                format!("{place}: budget yields {yields:.1} times per 1,000 entries, not below 50")
            }),
            YieldPolicy::PerSender => {}
        }
    }
}

/// Judges a run.
pub(crate) fn judge(plan: &Plan, receiver: Receiver, cells: &Cells, invariants: &Invariants) -> Verdict {
    if !invariants.broken.is_empty() {
        return verdict("broken", EXIT_BROKEN, invariants.broken.clone());
    }
    let mut reasons = vec![format!("{} checks of invariants held", invariants.checked)];
    reasons.extend(invariants.notes.iter().cloned());
    let main = plan.main().filter(|_| plan.mode != Mode::Quick);
    let Some(main) = main else {
        reasons.push("a quick run judges invariants only".to_owned());
        return verdict("held", EXIT_HELD, reasons);
    };
    let mut missed = Vec::new();
    for peers in main.peers.iter().copied() {
        let gate = gates(main, receiver, cells, peers);
        reasons.extend(gate.held);
        missed.extend(gate.missed);
        reasons.extend(shown(main, receiver, cells, peers));
    }
    if let Some(noise) = noise(main, cells) {
        missed.insert(0, noise);
        missed.extend(reasons);
        return verdict("inconclusive", EXIT_INCONCLUSIVE, missed);
    }
    if missed.is_empty() {
        return verdict("held", EXIT_HELD, reasons);
    }
    missed.extend(reasons);
    verdict("missed", EXIT_MISSED, missed)
}

const fn verdict(word: &'static str, exit_code: u8, reasons: Vec<String>) -> Verdict {
    Verdict { word, exit_code, reasons }
}

#[derive(Default)]
struct Gate {
    held: Vec<String>,
    missed: Vec<String>,
}

impl Gate {
    fn at_most(&mut self, name: &str, value: Option<f64>, limit: f64) {
        match value {
            Some(value) if value <= limit => {
                self.held.push(format!("{name} is {value:.2}x, at most {limit}x"))
            }
            Some(value) => self.missed.push(format!("{name} is {value:.2}x, it must be at most {limit}x")),
            None => self.missed.push(format!("{name} was not measured")),
        }
    }
}

/// With receivers that store, they are the limit: only the ratio to the baseline is judged.
fn gates(main: &Section, receiver: Receiver, cells: &Cells, peers: usize) -> Gate {
    let mut gate = Gate::default();
    if !GATED_PEERS.contains(&peers) || !main.variants.contains(&YieldPolicy::Budget) {
        return gate;
    }
    let median = |variant, figure| cells.median(main.workload, variant, peers, figure);
    let ratio = |value: Option<f64>, of: Option<f64>| value.zip(of).map(|(value, of)| value / of);
    let budget = median("budget", Figure::SenderCpu);
    let per_record = ratio(budget, median("per-record", Figure::SenderCpu));
    let name = format!("{}, N = {peers}: sender CPU, budget against", main.workload);
    gate.at_most(&format!("{name} per-record"), per_record, AGAINST_PER_RECORD);
    if receiver == Receiver::Discard {
        let floor = ratio(budget, median("budget", Figure::KernelFloor));
        gate.at_most(&format!("{name} the kernel floor"), floor, AGAINST_FLOOR);
    }
    gate
}

/// Rates are shown beside what others reach and never gated: the machine decides them.
fn shown(main: &Section, receiver: Receiver, cells: &Cells, peers: usize) -> Option<String> {
    let rate = cells.median(main.workload, "budget", peers, Figure::RecordsPerSecond)?;
    let (goal, whose) = match receiver {
        Receiver::Discard if peers == 1 => (1_000_000.0, "the goal for a discarding peer"),
        Receiver::Discard => return None,
        Receiver::Lmdb => {
            let (_, rate) = POSTGRES.into_iter().find(|(number, _)| *number == peers)?;
            (rate, "PostgreSQL's logical replication")
        }
    };
    let (rate, goal) = (thousands(rate), thousands(goal));
    Some(format!(
        "{}, N = {peers}: {rate} records/s per peer ({whose}: {goal}; shown, not judged)",
        main.workload
    ))
}

/// Why the machine is too noisy, when budget against budget says so.
fn noise(main: &Section, cells: &Cells) -> Option<String> {
    if !main.against_itself {
        return None;
    }
    let peers = *main.peers.first()?;
    let median = |variant| cells.median("a-against-a", variant, peers, Figure::SenderCpu);
    let (a, b) = (median("budget")?, median("budget again")?);
    let apart = (a / b - 1.0).abs();
    (apart > NOISE).then(|| {
        format!(
            "A against A differs by {:.0} %, more than {:.0} %: the machine is too noisy",
            apart * 100.0,
            NOISE * 100.0
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proc::{PeerCounts, SenderCounts};
    use crate::report::Cell;
    use crate::report::json::NodeContent;
    use clap::Parser as _;

    fn plan(flags: &[&str]) -> Plan {
        let arguments = ["cluster-sim"].into_iter().chain(flags.iter().copied());
        Plan::new(&crate::cli::Cli::try_parse_from(arguments).expect("parses").stream, None)
    }

    fn cells(budget: f64, per_record: f64, floor: f64) -> Cells {
        let mut cells = Cells::default();
        for peers in GATED_PEERS {
            for (variant, cpu) in [("budget", budget), ("per-record", per_record)] {
                let cell = cells.entry(Cell::new("catch-up", variant, peers, "discard", "nosync", 10));
                cell.add(Figure::SenderCpu, cpu);
                cell.add(Figure::KernelFloor, floor);
            }
        }
        cells
    }

    fn word(flags: &[&str], cells: &Cells, receiver: Receiver) -> (&'static str, u8) {
        let verdict = judge(&plan(flags), receiver, cells, &Invariants::default());
        (verdict.word, verdict.exit_code)
    }

    fn outcome() -> Outcome {
        let counts = PeerCounts { received: 10, applied: 10, durable: 10, position: 10 };
        let content = NodeContent { node: "peer-1".to_owned(), hash: "aa".to_owned(), rows: 10 };
        Outcome {
            seconds: 1.0,
            sender: SenderCounts { sent: vec![10], acknowledged: vec![10], ..SenderCounts::default() },
            peers: vec![counts],
            contents: vec![content],
            killed: false,
            written: None,
        }
    }

    fn broken(change: impl FnOnce(&mut Outcome)) -> usize {
        let mut invariants = Invariants::default();
        let mut outcome = outcome();
        change(&mut outcome);
        invariants.trial("here", &outcome, 10, Some("aa"));
        invariants.broken.len()
    }

    #[test]
    fn a_run_within_its_gates_holds_and_each_gate_alone_misses() {
        assert_eq!(word(&[], &cells(0.2, 1.0, 0.15), Receiver::Discard), ("held", 0));
        assert_eq!(word(&[], &cells(0.6, 1.0, 0.5), Receiver::Discard), ("missed", 3));
        assert_eq!(word(&[], &cells(0.4, 1.0, 0.1), Receiver::Discard), ("missed", 3));
        assert_eq!(word(&[], &cells(0.4, 1.0, 0.1), Receiver::Lmdb), ("held", 0));
        assert_eq!(word(&[], &Cells::default(), Receiver::Discard), ("missed", 3));
        assert_eq!(word(&["--quick"], &cells(9.0, 1.0, 0.1), Receiver::Discard), ("held", 0));
    }

    #[test]
    fn a_noisy_machine_makes_a_full_run_inconclusive_and_no_other() {
        let mut cells = cells(0.2, 1.0, 0.15);
        for (variant, cpu) in [("budget", 0.2), ("budget again", 0.3)] {
            cells
                .entry(Cell::new("a-against-a", variant, 1, "discard", "nosync", 10))
                .add(Figure::SenderCpu, cpu);
        }
        assert_eq!(word(&["--full"], &cells, Receiver::Discard), ("inconclusive", 4));
        assert_eq!(word(&[], &cells, Receiver::Discard), ("held", 0));
    }

    #[test]
    fn every_invariant_breaks_alone() {
        assert_eq!(broken(|_| {}), 0);
        assert_eq!(broken(|outcome| outcome.peers[0].position = 9), 1);
        assert_eq!(broken(|outcome| outcome.peers[0].durable = 11), 1);
        assert_eq!(broken(|outcome| outcome.peers[0].applied = 11), 1);
        assert_eq!(broken(|outcome| outcome.sender.sent = vec![9]), 1);
        assert_eq!(broken(|outcome| outcome.sender.acknowledged = vec![9]), 1);
        assert_eq!(broken(|outcome| outcome.sender.acknowledged = vec![11]), 1);
        assert_eq!(broken(|outcome| outcome.contents[0].hash = "ab".to_owned()), 1);
        let mut invariants = Invariants::default();
        invariants.offers("here", 3, 2, 0);
        invariants.yields("here", YieldPolicy::PerRecord, 4, 224.0);
        invariants.yields("here", YieldPolicy::Budget, 4, 50.0);
        assert_eq!(invariants.broken.len(), 3);
    }
}
