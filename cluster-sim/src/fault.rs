//! Why a run ended early, and with which exit code.

use std::fmt;

/// All invariants and thresholds held.
pub(crate) const EXIT_HELD: u8 = 0;
/// An invariant broke.
pub(crate) const EXIT_BROKEN: u8 = 1;
/// What was asked for cannot be done.
pub(crate) const EXIT_USAGE: u8 = 2;
/// A threshold was missed.
pub(crate) const EXIT_MISSED: u8 = 3;
/// The machine was too noisy for a verdict.
pub(crate) const EXIT_INCONCLUSIVE: u8 = 4;
/// A node or the machine failed while the run was going on: a full disk, for one.
pub(crate) const EXIT_FAILED: u8 = 70;
/// Broken off from outside.
pub(crate) const EXIT_INTERRUPTED: u8 = 130;

/// Why a run ended early. The text names the value and the way out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The caller can change it: a flag, a file, a folder, a port.
    Usage(String),
    /// A node or the machine failed while the run was going on.
    Run(String),
}

impl Fault {
    pub(crate) fn usage(text: impl fmt::Display) -> Self {
        Self::Usage(text.to_string())
    }

    pub(crate) fn run(text: impl fmt::Display) -> Self {
        Self::Run(text.to_string())
    }

    /// The exit code that it ends the program with.
    pub(crate) const fn exit_code(&self) -> u8 {
        match self {
            Self::Usage(_) => EXIT_USAGE,
            Self::Run(_) => EXIT_FAILED,
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Usage(text) | Self::Run(text) => f.write_str(text),
        }
    }
}

impl std::error::Error for Fault {}
