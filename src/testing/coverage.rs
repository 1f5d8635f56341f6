//! Which faults met which states.

use std::collections::BTreeMap;
use std::fmt;

/// What goes wrong on purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Fault {
    /// A connection breaks; a part of what is under way still arrives.
    Cut,
    /// Nothing arrives for a while.
    Stall,
    /// A node stops; what is committed survives.
    Crash,
    /// A node stops and loses the tail of its log.
    UncleanCrash,
    /// A node commits nothing for a while, so that it pauses its sources.
    Pause,
    /// The wall clock of a node jumps.
    ClockStep,
    /// A line becomes slow and its window small.
    Bandwidth,
    /// A batch cannot be applied.
    FailedApply,
    /// The peer asks for another selection on the running stream.
    Refilter,
}

impl Fault {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::Cut,
        Self::Stall,
        Self::Crash,
        Self::UncleanCrash,
        Self::Pause,
        Self::ClockStep,
        Self::Bandwidth,
        Self::FailedApply,
        Self::Refilter,
    ];
}

/// Where a stream is when a fault meets it. Several can hold at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LinkState {
    /// Connected, no stream accepted yet.
    Handshake,
    /// Behind, between two segments.
    Whole,
    /// In the middle of a segment.
    Examining,
    /// In the middle of a transaction.
    LargeTransaction,
    /// The output takes nothing.
    Blocked,
    /// The peer has paused it.
    Paused,
    /// Everything is sent.
    CaughtUp,
    /// A filtered frame is half filled.
    StagedOpen,
    /// The peer has batches that are not committed.
    Applying,
    /// Another selection was asked for and is not accepted yet.
    Refiltering,
}

impl LinkState {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::Handshake,
        Self::Whole,
        Self::Examining,
        Self::LargeTransaction,
        Self::Blocked,
        Self::Paused,
        Self::CaughtUp,
        Self::StagedOpen,
        Self::Applying,
        Self::Refiltering,
    ];
}

/// How often each fault met each state.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Coverage(BTreeMap<(Fault, LinkState), u64>);

impl Coverage {
    pub(super) fn note(&mut self, fault: Fault, states: &[LinkState]) {
        for state in states {
            *self.0.entry((fault, *state)).or_default() += 1;
        }
    }

    /// Adds the counts of another run.
    pub fn add(&mut self, other: &Self) {
        for (cell, count) in &other.0 {
            *self.0.entry(*cell).or_default() += count;
        }
    }

    /// How often `fault` met `state`.
    #[must_use]
    pub fn count(&self, fault: Fault, state: LinkState) -> u64 {
        self.0.get(&(fault, state)).copied().unwrap_or(0)
    }
}

impl fmt::Display for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:>14}", "")?;
        for state in LinkState::ALL {
            write!(f, "{:>18}", format!("{state:?}"))?;
        }
        for fault in Fault::ALL {
            write!(f, "\n{:>14}", format!("{fault:?}"))?;
            for state in LinkState::ALL {
                write!(f, "{:>18}", self.count(fault, state))?;
            }
        }
        Ok(())
    }
}
