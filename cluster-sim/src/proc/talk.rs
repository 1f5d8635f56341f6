//! A child's side of the conversation.

use std::io::{BufRead as _, Write as _};

use super::{Command, Event};
use crate::fault::Fault;

/// Tells the parent something. A parent that is gone needs no answer: the end of the standard input says so too.
pub(crate) fn say(event: &Event) {
    let Ok(mut line) = serde_json::to_string(event) else { return };
    line.push('\n');
    let mut out = std::io::stdout().lock();
    let _gone = out.write_all(line.as_bytes()).and_then(|()| out.flush());
}

/// The next command, or `None` when the parent is gone.
///
/// # Errors
/// A line that is no command: parent and child are then of different versions.
pub(crate) fn hear() -> Result<Option<Command>, Fault> {
    let mut line = String::new();
    match std::io::stdin().lock().read_line(&mut line) {
        Ok(0) | Err(_) => Ok(None),
        Ok(_) => serde_json::from_str(&line)
            .map(Some)
            .map_err(|error| Fault::run(format!("{line:?} is no command: {error}"))),
    }
}

/// Runs a child and tells the parent why it ended early.
pub(crate) fn run(child: impl FnOnce() -> Result<(), Fault>) -> Result<(), Fault> {
    let result = child();
    if let Err(fault) = &result {
        say(&Event::Failed { usage: matches!(fault, Fault::Usage(_)), message: fault.to_string() });
    }
    result
}
