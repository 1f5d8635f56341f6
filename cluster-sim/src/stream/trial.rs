//! One trial: a fresh set of peers catches up with a source that holds its records already.

use std::path::{Path, PathBuf};
use std::time::Duration;

use auditstream::sender::YieldPolicy;

use super::mixed::origin_name;
use super::progress::Progress;
use crate::cli::{Kill, Load, Receiver, policy_name};
use crate::clock;
use crate::fault::Fault;
use crate::proc::{Child, Command, Event, PeerCounts, SenderCounts};
use crate::records::ORIGINS;
use crate::report::json::NodeContent;

/// How often the worker is asked whether it has heard of every peer's end.
const SETTLE_TICKS: u32 = 2500;

/// What stays the same over the trials of a section.
#[derive(Debug, Clone)]
pub(crate) struct Setup<'a> {
    pub(crate) load: Load,
    pub(crate) receiver: Receiver,
    pub(crate) durability: String,
    pub(crate) budget: Duration,
    /// Folder for the data of peers that are not kept.
    pub(crate) work: &'a Path,
}

/// One trial.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Trial<'a> {
    pub(crate) policy: YieldPolicy,
    pub(crate) peers: usize,
    /// The source's last sequence.
    pub(crate) target: u64,
    /// Entries that each peer is to get.
    pub(crate) records: u64,
    /// Where the peers' folders are kept.
    pub(crate) keep: Option<&'a Path>,
    pub(crate) kill: Option<Kill>,
    /// Records that are written once the peers have caught up.
    pub(crate) writes: Option<u64>,
}

/// Records written while the peers follow.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Written {
    pub(crate) head: u64,
    pub(crate) records: u64,
    pub(crate) seconds: f64,
    pub(crate) offered: u64,
    pub(crate) accepted: u64,
    pub(crate) refused: u64,
}

/// What a trial showed.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) seconds: f64,
    pub(crate) sender: SenderCounts,
    pub(crate) peers: Vec<PeerCounts>,
    pub(crate) contents: Vec<NodeContent>,
    pub(crate) killed: bool,
    pub(crate) written: Option<Written>,
}

struct Peer {
    child: Child,
    arguments: Vec<String>,
    folder: PathBuf,
    counts: Option<PeerCounts>,
    /// The last report, for the progress line.
    position: u64,
}

/// Runs a trial.
///
/// # Errors
/// A process that failed.
pub(crate) async fn run(
    setup: &Setup<'_>,
    source: &mut Child,
    trial: &Trial<'_>,
    progress: &mut Progress,
) -> Result<Outcome, Fault> {
    let mut peers = start_peers(setup, trial).await?;
    let serve = Command::Serve {
        policy: trial.policy.into(),
        budget_us: u64::try_from(setup.budget.as_micros()).unwrap_or(u64::MAX),
    };
    let address = source
        .ask(&serve, |event| match event {
            Event::Serving { address } => Some(address),
            _ => None,
        })
        .await?;
    let started = clock::now();
    for (number, peer) in peers.iter_mut().enumerate() {
        let hold_at = match trial.kill {
            Some(Kill::At(share)) if number == 0 => Some((trial.records as f64 * share) as u64),
            _ => None,
        };
        peer.child.say(&Command::Go { source: address.clone(), target: trial.target, hold_at })?;
    }
    let killed = catch_up(trial, &address, &mut peers, progress).await?;
    let seconds = started.elapsed().as_secs_f64();
    let sender = settled_counts(source, trial).await?;
    let counts = peers.iter().map(|peer| peer.counts.unwrap_or_default()).collect();
    let written = match trial.writes {
        Some(records) => Some(write_while_following(source, &mut peers, records).await?),
        None => None,
    };
    let contents = hashes(setup.receiver, &mut peers).await?;
    source.ask(&Command::StopServing, |event| matches!(event, Event::Stopped).then_some(())).await?;
    for peer in peers {
        if trial.keep.is_some() {
            peer.child.end().await?;
        } else {
            peer.child.kill();
            let _left_to_the_work_folder = std::fs::remove_dir_all(peer.folder);
        }
    }
    Ok(Outcome { seconds, sender, peers: counts, contents, killed, written })
}

async fn start_peers(setup: &Setup<'_>, trial: &Trial<'_>) -> Result<Vec<Peer>, Fault> {
    let mut peers = Vec::new();
    for number in 1..=trial.peers {
        let name = format!("peer-{number}");
        let folder = trial.keep.unwrap_or(setup.work).join(&name);
        let mut arguments: Vec<String> = ["__peer", "--name", &name, "--receiver", setup.receiver.name()]
            .map(str::to_owned)
            .into_iter()
            .chain(["--durability".to_owned(), setup.durability.clone()])
            .chain(["--data".to_owned(), folder.display().to_string()])
            .collect();
        if setup.load == Load::Mixed {
            arguments.extend(["--without-origin".to_owned(), origin_name(ORIGINS - 1)]);
        }
        let child = Child::start(&name, &arguments)?;
        peers.push(Peer { child, arguments, folder, counts: None, position: 0 });
    }
    for peer in &mut peers {
        wait_ready(&mut peer.child).await?;
    }
    Ok(peers)
}

async fn wait_ready(child: &mut Child) -> Result<(), Fault> {
    match child.hear().await? {
        Event::Ready { .. } => Ok(()),
        other => Err(Fault::run(format!("{} began with {other:?}", child.name()))),
    }
}

/// Waits until every peer has everything. Answers whether one was killed on the way.
async fn catch_up(
    trial: &Trial<'_>,
    address: &str,
    peers: &mut [Peer],
    progress: &mut Progress,
) -> Result<bool, Fault> {
    let mut ticks = tokio::time::interval(Duration::from_secs(1));
    ticks.tick().await;
    let kill_after = match trial.kill {
        Some(Kill::After(time)) => time,
        _ => Duration::MAX,
    };
    let kill_timer = tokio::time::sleep(kill_after.min(Duration::from_secs(86_400)));
    tokio::pin!(kill_timer);
    let mut killed = false;
    while peers.iter().any(|peer| peer.counts.is_none()) {
        let kill_now = tokio::select! {
            heard = hear_any(peers) => {
                let (number, event) = heard?;
                take_in(&mut peers[number], event)
            }
            _ = ticks.tick() => {
                tick(trial, peers, progress)?;
                false
            }
            () = &mut kill_timer, if !killed && matches!(trial.kill, Some(Kill::After(_))) => true,
        };
        if kill_now && !killed {
            killed = true;
            restart(trial, address, &mut peers[0]).await?;
        }
    }
    Ok(killed)
}

/// Takes in what a peer said; answers whether it waits to be killed.
fn take_in(peer: &mut Peer, event: Event) -> bool {
    match event {
        Event::Reached(counts) => peer.counts = Some(counts),
        Event::At(counts) => peer.position = counts.position,
        Event::Holding(_) => return true,
        _ => {}
    }
    false
}

async fn hear_any(peers: &mut [Peer]) -> Result<(usize, Event), Fault> {
    std::future::poll_fn(|context| {
        for (number, peer) in peers.iter_mut().enumerate() {
            if let std::task::Poll::Ready(heard) = peer.child.poll_hear(context) {
                return std::task::Poll::Ready(heard.map(|event| (number, event)));
            }
        }
        std::task::Poll::Pending
    })
    .await
}

/// Each second: prints how far the slowest peer is, and asks all.
fn tick(trial: &Trial<'_>, peers: &mut [Peer], progress: &mut Progress) -> Result<(), Fault> {
    let slowest = peers.iter().filter(|peer| peer.counts.is_none()).min_by_key(|peer| peer.position);
    if let Some(peer) = slowest {
        let percent = peer.position as f64 / trial.target.max(1) as f64 * 100.0;
        let name = policy_name(trial.policy);
        progress.show(&format!("{name}, {} peers: {} at {percent:.0} %", trial.peers, peer.child.name()));
    }
    for peer in peers.iter_mut().filter(|peer| peer.counts.is_none()) {
        peer.child.say(&Command::Progress)?;
    }
    Ok(())
}

/// SIGKILL, and the same peer on the same folder again.
async fn restart(trial: &Trial<'_>, address: &str, peer: &mut Peer) -> Result<(), Fault> {
    let name = peer.child.name().to_owned();
    let again = |arguments: &[String]| Child::start(&name, arguments);
    peer.child.kill_and_reap();
    peer.child = again(&peer.arguments)?;
    wait_ready(&mut peer.child).await?;
    peer.counts = None;
    peer.child.say(&Command::Go { source: address.to_owned(), target: trial.target, hold_at: None })
}

async fn write_while_following(
    source: &mut Child,
    peers: &mut [Peer],
    records: u64,
) -> Result<Written, Fault> {
    let written = write(source, records).await?;
    for peer in peers.iter_mut() {
        peer.child.say(&Command::Target { target: written.head })?;
    }
    for peer in peers {
        while !matches!(peer.child.hear().await?, Event::Reached(_)) {}
    }
    Ok(written)
}

/// Has the source write further records.
///
/// # Errors
/// When it failed.
pub(crate) async fn write(source: &mut Child, records: u64) -> Result<Written, Fault> {
    let answer = |event| match event {
        Event::Written { head, offered, accepted, refused, micros } => {
            let seconds = micros as f64 / 1e6;
            Some(Written { head, records, seconds, offered, accepted, refused })
        }
        _ => None,
    };
    source.ask(&Command::Write { records }, answer).await
}

/// The worker's counters once it has heard of every peer's end: it publishes them after it has served a peer, and the
/// last acknowledgement is what it serves last. Answers the last ones it has when that does not come.
async fn settled_counts(source: &mut Child, trial: &Trial<'_>) -> Result<SenderCounts, Fault> {
    let mut ticks = tokio::time::interval(Duration::from_millis(2));
    let mut counts = SenderCounts::default();
    for _ in 0..SETTLE_TICKS {
        ticks.tick().await;
        counts = source.ask(&Command::Counts, counted).await?;
        let ended = counts.acknowledged.iter().filter(|acknowledged| **acknowledged >= trial.target).count();
        if ended >= trial.peers {
            break;
        }
    }
    Ok(counts)
}

fn counted(event: Event) -> Option<SenderCounts> {
    match event {
        Event::Counted(counts) => Some(counts),
        _ => None,
    }
}

/// The content of every peer, all at the same time. Peers that discard have none.
async fn hashes(receiver: Receiver, peers: &mut [Peer]) -> Result<Vec<NodeContent>, Fault> {
    let mut contents = Vec::new();
    if receiver == Receiver::Discard {
        return Ok(contents);
    }
    for peer in peers.iter_mut() {
        peer.child.say(&Command::Hash)?;
    }
    for peer in peers {
        contents.push(loop {
            if let Event::Hash { hash, rows } = peer.child.hear().await? {
                break NodeContent { node: peer.child.name().to_owned(), hash, rows };
            }
        });
    }
    Ok(contents)
}
