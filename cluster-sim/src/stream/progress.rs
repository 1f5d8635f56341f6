//! What is going on, on the standard error, about once a second.

use std::io::{IsTerminal as _, Write as _};
use std::time::Instant;

use crate::clock;

/// A line that is rewritten on a terminal, plain lines elsewhere.
#[derive(Debug)]
pub(crate) struct Progress {
    started: Instant,
    terminal: bool,
    stage: String,
    /// A rewritten line stands there and has to be ended.
    open: bool,
}

impl Progress {
    pub(crate) fn new() -> Self {
        let terminal = std::io::stderr().is_terminal();
        Self { started: clock::now(), terminal, stage: String::new(), open: false }
    }

    /// A new part of the run begins.
    pub(crate) fn stage(&mut self, stage: &str) {
        stage.clone_into(&mut self.stage);
        self.show("");
    }

    /// Shows how far the part is.
    pub(crate) fn show(&mut self, detail: &str) {
        let seconds = self.started.elapsed().as_secs();
        let separator = if detail.is_empty() { "" } else { ": " };
        let line = format!("[{seconds:>3} s] {}{separator}{detail}", self.stage);
        let mut err = std::io::stderr().lock();
        let _nobody_reads = if self.terminal {
            self.open = true;
            write!(err, "\r\x1b[2K{line}").and_then(|()| err.flush())
        } else {
            writeln!(err, "{line}")
        };
    }

    /// Ends a rewritten line, so that what follows stands on its own.
    pub(crate) fn finish(&mut self) {
        if std::mem::take(&mut self.open) {
            let _nobody_reads = writeln!(std::io::stderr());
        }
    }
}
