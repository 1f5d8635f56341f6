//! What a run measures, decided before anything is started.

use auditstream::sender::YieldPolicy;

use crate::cli::{Load, StreamArgs};

/// Records of the loads beside the main one in a run without a mode flag: they are shown, and the run is to end in
/// about a minute.
const SIDE_RECORDS: u64 = 100_000;
const TRIALS: usize = 3;
const TRIALS_FULL: usize = 5;

/// How strict a run is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    Quick,
    Usual,
    Full,
}

impl Mode {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Quick => "quick",
            Self::Usual => "usual",
            Self::Full => "full",
        }
    }
}

/// One source process, and what is measured with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Section {
    pub(crate) load: Load,
    pub(crate) workload: &'static str,
    pub(crate) records: u64,
    pub(crate) peers: Vec<usize>,
    pub(crate) variants: Vec<YieldPolicy>,
    pub(crate) trials: usize,
    /// Measure budget against budget first.
    pub(crate) against_itself: bool,
    /// Measure so many writes going on, without and with peers.
    pub(crate) writes: Option<u64>,
    /// Measure the kernel-only floor beside each number of peers.
    pub(crate) floor: bool,
}

/// A run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) mode: Mode,
    pub(crate) sections: Vec<Section>,
    /// Whether the last section's source and one set of peers are run once more, to be kept, killed or hashed.
    pub(crate) last_run: bool,
}

impl Plan {
    /// The plan for these flags; `lines` is the number of records in the input file.
    pub(crate) fn new(args: &StreamArgs, lines: Option<u64>) -> Self {
        let mode = match (args.quick, args.full) {
            (true, _) => Mode::Quick,
            (_, true) => Mode::Full,
            _ => Mode::Usual,
        };
        let trials = match mode {
            Mode::Quick => 1,
            Mode::Usual => TRIALS,
            Mode::Full => TRIALS_FULL,
        };
        let records = args.records();
        let variants = vec![YieldPolicy::PerRecord, YieldPolicy::PerSender, YieldPolicy::Budget];
        let main = Section {
            load: if lines.is_some() { Load::Input } else { Load::Rising },
            workload: if lines.is_some() { "input" } else { "catch-up" },
            records: lines.unwrap_or(records),
            peers: args.peers.clone(),
            variants: variants.clone(),
            trials: if lines.is_some() && mode == Mode::Usual { 1 } else { trials },
            against_itself: mode == Mode::Full,
            writes: None,
            floor: true,
        };
        let mut sections = Vec::new();
        if lines.is_none() {
            sections.extend(side_loads(&main, mode, &variants));
        }
        // The main load comes last: its source is the one that a last run goes on with.
        sections.push(main);
        let last_run = args.out.is_some() || args.kill_peer.is_some() || lines.is_some();
        Self { mode, sections, last_run }
    }

    /// The section that the gates are about.
    pub(crate) fn main(&self) -> Option<&Section> {
        self.sections.last()
    }
}

fn side_loads(main: &Section, mode: Mode, variants: &[YieldPolicy]) -> Vec<Section> {
    let side = |load, workload| Section {
        load,
        workload,
        records: if mode == Mode::Full { main.records } else { main.records.min(SIDE_RECORDS) },
        peers: if mode == Mode::Full {
            main.peers.clone()
        } else {
            main.peers.iter().copied().take(1).collect()
        },
        variants: match mode {
            Mode::Full => variants.to_vec(),
            Mode::Usual => vec![YieldPolicy::PerRecord, YieldPolicy::Budget],
            Mode::Quick => vec![YieldPolicy::Budget],
        },
        trials: if mode == Mode::Full { main.trials } else { 1 },
        against_itself: false,
        writes: None,
        floor: false,
    };
    // The peers have to catch up first, which is not what this one measures: the source begins with little.
    let writing = Section {
        load: Load::Rising,
        workload: "while-writing",
        records: (main.records / 50).max(1),
        peers: main.peers.clone(),
        variants: Vec::new(),
        trials: main.trials,
        against_itself: false,
        writes: Some((main.records / 10).max(1)),
        floor: false,
    };
    vec![
        side(Load::AuditTxn, "audit-txn"),
        side(Load::Mixed, "mixed-origins"),
        side(Load::Random, "random-updates"),
        writing,
    ]
}

/// The order of the variants in each round: A B C, C B A, A B C, ... so that a drift of the machine meets all alike.
pub(crate) fn interleaved(variants: &[YieldPolicy], trials: usize) -> Vec<YieldPolicy> {
    let mut order = Vec::new();
    for trial in 0..trials {
        if trial % 2 == 0 {
            order.extend(variants.iter().copied());
        } else {
            order.extend(variants.iter().rev().copied());
        }
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser as _;

    fn plan(flags: &[&str]) -> Plan {
        let arguments = ["cluster-sim"].into_iter().chain(flags.iter().copied());
        Plan::new(&crate::cli::Cli::try_parse_from(arguments).expect("parses").stream, None)
    }

    #[test]
    fn each_variant_is_first_and_last_equally_often() {
        let [a, b] = [YieldPolicy::PerRecord, YieldPolicy::Budget];
        assert_eq!(interleaved(&[a, b], 4), [a, b, b, a, a, b, b, a]);
    }

    #[test]
    fn the_modes_differ_in_trials_and_records() {
        let main = |flags: &[&str]| plan(flags).main().cloned().expect("a section");
        assert_eq!((main(&[]).trials, main(&[]).records), (3, 500_000));
        assert_eq!((main(&["--quick"]).trials, main(&["--quick"]).records), (1, 50_000));
        assert_eq!(main(&["--quick", "--records", "2000"]).records, 2000);
        assert_eq!(main(&["--quick", "--records", "200000"]).records, 200_000);
        assert_eq!((main(&["--full"]).trials, main(&["--full"]).against_itself), (5, true));
    }
}
