//! What a run found: cells, and their way into a table and a file.

pub(crate) mod fingerprint;
pub(crate) mod json;
pub(crate) mod table;

use std::collections::BTreeMap;

/// A figure that every cell has, by its name in the JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Figure {
    RecordsPerSecond,
    SenderCpu,
    KernelFloor,
    ProcessCpu,
    Yields,
    Syscalls,
    Writes,
}

impl Figure {
    pub(crate) const ALL: [Self; 7] = [
        Self::RecordsPerSecond,
        Self::SenderCpu,
        Self::KernelFloor,
        Self::ProcessCpu,
        Self::Yields,
        Self::Syscalls,
        Self::Writes,
    ];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::RecordsPerSecond => "records_per_s_per_peer",
            Self::SenderCpu => "sender_cpu_us_per_entry_per_peer",
            Self::KernelFloor => "kernel_floor_us_per_entry",
            Self::ProcessCpu => "source_process_cpu_us_per_entry_per_peer",
            Self::Yields => "yields_per_1000_entries",
            Self::Syscalls => "syscalls_per_1000_entries",
            Self::Writes => "writes_per_s",
        }
    }
}

/// Median and extremes of a figure over the trials of a cell.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub(crate) struct Spread {
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
    pub(crate) trials: usize,
}

impl Spread {
    /// The spread of `samples`, or `None` when there are none.
    pub(crate) fn of(samples: &[f64]) -> Option<Self> {
        let mut sorted = samples.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        let middle = sorted.len() / 2;
        let median = if sorted.len() % 2 == 1 {
            sorted[middle]
        } else {
            f64::midpoint(sorted[middle - 1], sorted[middle])
        };
        Some(Self { median, min, max, trials: sorted.len() })
    }
}

/// One combination of what was measured.
#[derive(Debug, Clone)]
pub(crate) struct Cell {
    pub(crate) workload: String,
    pub(crate) variant: String,
    pub(crate) peers: usize,
    pub(crate) receiver: &'static str,
    pub(crate) durability: String,
    pub(crate) records: u64,
    samples: BTreeMap<Figure, Vec<f64>>,
    reasons: BTreeMap<Figure, String>,
}

impl Cell {
    pub(crate) fn new(
        workload: &str,
        variant: &str,
        peers: usize,
        receiver: &'static str,
        durability: &str,
        records: u64,
    ) -> Self {
        Self {
            workload: workload.to_owned(),
            variant: variant.to_owned(),
            peers,
            receiver,
            durability: durability.to_owned(),
            records,
            samples: BTreeMap::new(),
            reasons: BTreeMap::new(),
        }
    }

    /// Adds the sample of one trial. A figure that is no number was not measured.
    pub(crate) fn add(&mut self, figure: Figure, sample: f64) {
        if sample.is_finite() {
            self.samples.entry(figure).or_default().push(sample);
        } else {
            self.not_measured(figure, "there was nothing to divide by");
        }
    }

    /// Says why a figure is missing.
    pub(crate) fn not_measured(&mut self, figure: Figure, reason: &str) {
        self.reasons.entry(figure).or_insert_with(|| reason.to_owned());
    }

    pub(crate) fn spread(&self, figure: Figure) -> Option<Spread> {
        Spread::of(self.samples.get(&figure)?)
    }

    /// Why a figure is missing.
    pub(crate) fn reason(&self, figure: Figure) -> &str {
        self.reasons.get(&figure).map_or("not measured in this cell", String::as_str)
    }
}

/// Cells in the order in which they were first met.
#[derive(Debug, Default)]
pub(crate) struct Cells(Vec<Cell>);

impl Cells {
    /// The cell of the same workload, variant and number of peers, or a new one.
    pub(crate) fn entry(&mut self, new: Cell) -> &mut Cell {
        let same = |cell: &Cell| {
            (&cell.workload, &cell.variant, cell.peers) == (&new.workload, &new.variant, new.peers)
        };
        let at = self.0.iter().position(same).unwrap_or_else(|| {
            self.0.push(new);
            self.0.len() - 1
        });
        &mut self.0[at]
    }

    pub(crate) fn find(&self, workload: &str, variant: &str, peers: usize) -> Option<&Cell> {
        self.0.iter().find(|cell| cell.workload == workload && cell.variant == variant && cell.peers == peers)
    }

    /// The median of a figure, when it was measured.
    pub(crate) fn median(&self, workload: &str, variant: &str, peers: usize, figure: Figure) -> Option<f64> {
        Some(self.find(workload, variant, peers)?.spread(figure)?.median)
    }

    pub(crate) fn all(&self) -> &[Cell] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_an_even_number_of_trials_lies_between_the_middle_two() {
        let spread =
            |samples: &[f64]| Spread::of(samples).map(|spread| (spread.median, spread.min, spread.max));
        assert_eq!(spread(&[3.0, 1.0, 2.0]), Some((2.0, 1.0, 3.0)));
        assert_eq!(spread(&[4.0, 1.0, 2.0, 3.0]), Some((2.5, 1.0, 4.0)));
        assert_eq!(spread(&[]), None);
    }

    #[test]
    fn a_figure_that_is_no_number_is_missing_with_a_reason_and_never_zero() {
        let mut cell = Cell::new("catch-up", "budget", 1, "lmdb", "nosync", 10);
        cell.add(Figure::Yields, f64::NAN);
        assert_eq!(cell.spread(Figure::Yields), None);
        assert!(cell.reason(Figure::Yields).contains("divide"));
    }
}
