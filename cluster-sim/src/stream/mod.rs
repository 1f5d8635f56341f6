//! The suite `stream`: what does a sender cost, and how fast does a peer catch up?

mod floor;
mod measure;
mod mixed;
mod peer;
mod plan;
mod progress;
mod source;
mod trial;
mod verdict;

use std::path::{Path, PathBuf};

use serde_json::json;

pub(crate) use floor::sink;
pub(crate) use peer::run as run_peer;
pub(crate) use source::run as run_source;

use self::measure::Measure;
use self::plan::Plan;
use self::progress::Progress;
use self::verdict::{Invariants, Verdict, judge};
use crate::cli::StreamArgs;
use crate::clock;
use crate::fault::Fault;
use crate::input;
use crate::report::fingerprint::Fingerprint;
use crate::report::{Cells, json, table};

/// Runs the suite and answers the exit code.
///
/// # Errors
/// What cannot be done, and a node that failed on the way. Nothing is left behind then but folders under `--out`.
pub(crate) async fn run(args: &StreamArgs) -> Result<u8, Fault> {
    let lines = match &args.input {
        Some(path) => Some(input::check(path, args.key_field.as_deref())?),
        None => None,
    };
    if let Some(path) = &args.json {
        json::check_path(path)?;
    }
    if let Some(folder) = &args.out {
        prepare_out(folder)?;
    }
    let seed = args.seed.unwrap_or_else(clock::entropy);
    let plan = Plan::new(args, lines);
    let work = work_folder()?;
    let mut fingerprint = Fingerprint::read(work.path());
    print_settings(args, &plan, seed, &fingerprint);
    let mut measure = Measure {
        args,
        seed,
        work: work.path(),
        cells: Cells::default(),
        invariants: Invariants::default(),
        contents: Vec::new(),
        progress: Progress::new(),
    };
    let measured = measure.all(&plan).await;
    measure.progress.finish();
    measured?;
    fingerprint.after(work.path());
    let verdict = judge(&plan, args.receiver, &measure.cells, &measure.invariants);
    print_end(args, &measure, &verdict);
    if let Some(path) = &args.json {
        let result = json::Result {
            seed,
            settings: settings(args, &plan),
            fingerprint: &fingerprint,
            verdict: verdict.word,
            reasons: &verdict.reasons,
            cells: &measure.cells,
            nodes: &measure.contents,
        };
        result.write(path)?;
        say!("result: {}", path.display());
    }
    say!("seed: {seed}");
    Ok(verdict.exit_code)
}

/// Where the data of nodes that are not kept lies while they run.
fn work_folder() -> Result<tempfile::TempDir, Fault> {
    tempfile::Builder::new().prefix("cluster-sim-").tempdir().map_err(|error| {
        let folder = std::env::temp_dir();
        Fault::Usage(format!(
            "cannot make a work folder in {}: {error}; set TMPDIR to a folder that can be written",
            folder.display()
        ))
    })
}

/// Makes the folder of `--out`, which must not hold an earlier run.
fn prepare_out(folder: &Path) -> Result<(), Fault> {
    let shown = folder.display();
    let failed =
        |error| Fault::Usage(format!("cannot use --out {shown}: {error}; give a folder that can be written"));
    std::fs::create_dir_all(folder).map_err(failed)?;
    tempfile::tempfile_in(folder).map_err(failed)?;
    for name in ["source", "peer-1"] {
        if folder.join(name).exists() {
            return Err(Fault::Usage(format!(
                "--out {shown} holds {name} of an earlier run; give an empty folder, or remove it"
            )));
        }
    }
    Ok(())
}

fn settings(args: &StreamArgs, plan: &Plan) -> serde_json::Value {
    let input: Option<String> = args.input.as_ref().map(|path| path.display().to_string());
    json!({
        "mode": plan.mode.name(),
        "peers": args.peers,
        "records": plan.main().map(|main| main.records),
        "record_size": args.record_size,
        "txn": args.txn,
        "budget_us": u64::try_from(args.budget.as_micros()).unwrap_or(u64::MAX),
        "receiver": args.receiver.name(),
        "durability": args.durability.to_string(),
        "input": input,
        "key_field": args.key_field,
    })
}

fn print_settings(args: &StreamArgs, plan: &Plan, seed: u64, fingerprint: &Fingerprint) {
    say!("seed: {seed}");
    say!("settings: {}", settings(args, plan));
    say!(
        "machine: {} x {}, kernel {}, data on {}; {} build of {} with {}",
        fingerprint.cpus,
        fingerprint.cpu,
        fingerprint.kernel,
        fingerprint.file_system,
        fingerprint.profile,
        fingerprint.commit,
        fingerprint.toolchain
    );
    if fingerprint.profile != "release" {
        say!("note: this is not a release build; its figures say nothing about the product");
    }
}

fn print_end(args: &StreamArgs, measure: &Measure<'_>, verdict: &Verdict) {
    say!("\n{}", table::render(&measure.cells));
    for content in &measure.contents {
        say!("content of {}: {} ({} rows)", content.node, content.hash, content.rows);
    }
    say!("verdict: {}", verdict.word);
    for reason in &verdict.reasons {
        say!("  {reason}");
    }
    if let Some(folder) = &args.out {
        let kept: Vec<PathBuf> = measure.contents.iter().map(|content| folder.join(&content.node)).collect();
        say!("data folders: {}", folder.display());
        for folder in kept {
            say!("  {}", folder.display());
        }
    }
}
