//! Starts auditstream nodes on loopback and measures them. `cluster-sim --help` says how.

/// Prints a line; whoever has stopped reading has seen enough, and that is no reason to fail.
macro_rules! say {
    ($($part:tt)*) => {{
        let _nobody_reads = std::io::Write::write_fmt(
            &mut std::io::stdout().lock(),
            format_args!("{}\n", format_args!($($part)*)),
        );
    }};
}

mod cli;
mod clock;
mod dump;
mod fault;
mod hash;
mod input;
mod link;
mod node;
mod proc;
mod records;
mod report;
mod store;
mod stream;
mod watched;

use std::future::Future;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Parser as _;
use tokio::signal::unix::{SignalKind, signal};

use crate::cli::{Cli, Command, StreamArgs};
use crate::fault::{EXIT_HELD, EXIT_INTERRUPTED, Fault};

fn main() -> ExitCode {
    let cli = Cli::parse();
    let result = match cli.command.unwrap_or(Command::Stream(cli.stream)) {
        Command::Stream(args) => stream(&args),
        Command::Node(args) => runtime().and_then(|runtime| {
            runtime.block_on(node::run(&args))?;
            Ok(EXIT_HELD)
        }),
        Command::Dump(args) => dump::run(&args.data).map(|()| EXIT_HELD).map_err(Into::into),
        // Children tell their parent what is wrong; the parent tells the person.
        Command::Source(args) => return quiet(stream::run_source(&args)),
        Command::Peer(args) => return quiet(stream::run_peer(&args)),
        Command::Sink => return quiet(stream::sink()),
    };
    match result {
        Ok(code) => code.into(),
        Err(error) => {
            eprintln!("error: {error:#}");
            error.downcast_ref::<Fault>().map_or(1, Fault::exit_code).into()
        }
    }
}

fn quiet(result: Result<(), Fault>) -> ExitCode {
    result.map_or_else(|fault| fault.exit_code().into(), |()| ExitCode::SUCCESS)
}

fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_all().build().context("cannot start the runtime")
}

fn stream(args: &StreamArgs) -> anyhow::Result<u8> {
    let code = runtime()?.block_on(unless_interrupted(stream::run(args)))?;
    code.map_or_else(
        || {
            eprintln!("\ninterrupted: the nodes were stopped; what lies under --out is not complete");
            Ok(EXIT_INTERRUPTED)
        },
        |code| Ok(code?),
    )
}

/// Runs `work`, or drops it at Ctrl-C or SIGTERM: what it holds, processes and folders, goes with it.
async fn unless_interrupted<T>(work: impl Future<Output = T>) -> anyhow::Result<Option<T>> {
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen for Ctrl-C")?;
    let mut terminate = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
    Ok(tokio::select! {
        biased;
        _ = interrupt.recv() => None,
        _ = terminate.recv() => None,
        done = work => Some(done),
    })
}
