//! The parent's side of the conversation.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{ChildStdin, Stdio};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::{Command, Event};
use crate::fault::Fault;

/// A child that says nothing for so long is taken for stuck; peers answer a question every second.
const SILENCE: Duration = Duration::from_secs(120);

/// Something that a child said, or its end.
#[derive(Debug, Clone)]
enum Heard {
    Said(Event),
    Gone,
}

/// A running child. Dropping it kills and reaps it.
#[derive(Debug)]
pub(crate) struct Child {
    name: String,
    process: std::process::Child,
    stdin: Option<ChildStdin>,
    heard: UnboundedReceiver<Heard>,
}

impl Child {
    /// Starts this program again with these arguments.
    ///
    /// # Errors
    /// When the process cannot be started.
    pub(crate) fn start(name: &str, arguments: &[String]) -> Result<Self, Fault> {
        let program = std::env::current_exe()
            .map_err(|error| Fault::run(format!("cannot find the program's own file: {error}")))?;
        let mut process = std::process::Command::new(program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // Ctrl-C reaches the parent alone, which ends its children in order.
            .process_group(0)
            .spawn()
            .map_err(|error| Fault::run(format!("cannot start the process of {name}: {error}")))?;
        let stdin = process.stdin.take();
        let (sender, heard) = unbounded_channel();
        if let Some(stdout) = process.stdout.take() {
            std::thread::spawn(move || listen(stdout, &sender));
        }
        Ok(Self { name: name.to_owned(), process, stdin, heard })
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Says something.
    ///
    /// # Errors
    /// When the child is gone.
    pub(crate) fn say(&mut self, command: &Command) -> Result<(), Fault> {
        let mut line = serde_json::to_string(command).map_err(Fault::run)?;
        line.push('\n');
        let Some(stdin) = &mut self.stdin else { return Err(self.gone()) };
        if stdin.write_all(line.as_bytes()).and_then(|()| stdin.flush()).is_err() {
            return Err(self.last_words());
        }
        Ok(())
    }

    /// The next thing that it says.
    ///
    /// # Errors
    /// When it failed, is gone, or says nothing for two minutes.
    pub(crate) async fn hear(&mut self) -> Result<Event, Fault> {
        match tokio::time::timeout(SILENCE, self.heard.recv()).await {
            Ok(Some(Heard::Said(Event::Failed { usage, message }))) => Err(self.failed(usage, &message)),
            Ok(Some(Heard::Said(event))) => Ok(event),
            Ok(Some(Heard::Gone) | None) => Err(self.gone()),
            Err(_) => Err(Fault::Run(format!("{} has said nothing for {SILENCE:?}", self.name))),
        }
    }

    /// Like [`Self::hear`] without its deadline, for work that takes as long as it takes.
    pub(crate) async fn hear_long(&mut self) -> Result<Event, Fault> {
        std::future::poll_fn(|context| self.poll_hear(context)).await
    }

    /// Like [`Self::hear`] for a caller that listens to many: no deadline.
    pub(crate) fn poll_hear(&mut self, context: &mut Context<'_>) -> Poll<Result<Event, Fault>> {
        let heard = std::task::ready!(self.heard.poll_recv(context));
        Poll::Ready(match heard {
            Some(Heard::Said(Event::Failed { usage, message })) => Err(self.failed(usage, &message)),
            Some(Heard::Said(event)) => Ok(event),
            Some(Heard::Gone) | None => Err(self.gone()),
        })
    }

    /// Says something and waits for the first answer that `wanted` takes; progress reports in between are dropped.
    ///
    /// # Errors
    /// As [`Self::hear`].
    pub(crate) async fn ask<T>(
        &mut self,
        command: &Command,
        mut wanted: impl FnMut(Event) -> Option<T>,
    ) -> Result<T, Fault> {
        self.say(command)?;
        loop {
            if let Some(answer) = wanted(self.hear().await?) {
                return Ok(answer);
            }
        }
    }

    /// Ends it in order and waits for it.
    ///
    /// # Errors
    /// When it could not close its store.
    pub(crate) async fn end(mut self) -> Result<(), Fault> {
        self.ask(&Command::End, |event| matches!(event, Event::Ended).then_some(())).await?;
        self.stdin = None;
        self.process.wait().map_err(|error| Fault::run(format!("cannot wait for {}: {error}", self.name)))?;
        Ok(())
    }

    /// SIGKILL, as when the machine's memory killer takes it.
    pub(crate) fn kill(mut self) {
        self.kill_and_reap();
    }

    /// As [`Self::kill`], for a child whose place is filled again.
    pub(crate) fn kill_and_reap(&mut self) {
        let _already_gone = self.process.kill();
        let _reaped = self.process.wait();
    }

    fn failed(&self, usage: bool, message: &str) -> Fault {
        if usage { Fault::Usage(message.to_owned()) } else { Fault::Run(format!("{}: {message}", self.name)) }
    }

    fn gone(&self) -> Fault {
        Fault::Run(format!("the process of {} ended in the middle of the run", self.name))
    }

    /// Why it is gone, when it had said so.
    fn last_words(&mut self) -> Fault {
        while let Ok(heard) = self.heard.try_recv() {
            if let Heard::Said(Event::Failed { usage, message }) = heard {
                return self.failed(usage, &message);
            }
        }
        self.gone()
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.kill_and_reap();
    }
}

fn listen(stdout: std::process::ChildStdout, heard: &UnboundedSender<Heard>) {
    for line in BufReader::new(stdout).lines() {
        let Ok(line) = line else { break };
        let event = serde_json::from_str(&line)
            .unwrap_or_else(|_| Event::Failed { usage: false, message: format!("said {line:?}") });
        if heard.send(Heard::Said(event)).is_err() {
            return;
        }
    }
    let _nobody_listens = heard.send(Heard::Gone);
}
