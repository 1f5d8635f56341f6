//! `cluster-sim node`: one node by hand, so that two terminals make a cluster.

use std::collections::VecDeque;
use std::time::Duration;

use auditstream::protocol::{NameFilter, Subscription, TableId, TableName};
use auditstream::sender::YieldPolicy;
use auditstream::store::AuditLog as _;
use auditstream::store::lmdb::{LmdbStore, Ticket};
use tokio::signal::unix::{SignalKind, signal};

use crate::cli::NodeArgs;
use crate::fault::Fault;
use crate::input::Lines;
use crate::link::{Following, Serving};
use crate::records::Records;
use crate::store;

/// Records of a transaction of `--write-lines`.
const TXN: u64 = 10;

/// Transactions of `--write-lines` that are handed in and not known to be durable.
const TRANSACTIONS_OPEN: usize = 2000;

/// Runs a node until Ctrl-C or SIGTERM, then closes it.
///
/// # Errors
/// A port or folder that is in use, a file that cannot be read, a name that is none.
pub(crate) async fn run(args: &NodeArgs) -> Result<(), Fault> {
    let lines = args.write_lines.as_deref().map(|path| Lines::open(path, None)).transpose()?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(Fault::run)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(Fault::run)?;
    let name = store::node_name(&args.name)?;
    let subscription = subscription(&args.tables)?;
    let store = store::open(&args.data, &name, args.durability)?;
    let table = store.define_table(&store::table_name()?, bytes::Bytes::new()).map_err(Fault::run)?;
    let budget = auditstream::sender::BUDGET_DEDICATED;
    let serving = Serving::start(&name, store.log(), args.listen, YieldPolicy::Budget, budget)?;
    say!("listening on {}", serving.address());
    let mut following = Vec::new();
    for peer in &args.peer {
        following.push(Following::start(&name, *peer, store.applier(), subscription.clone())?);
    }
    if let Some(lines) = lines {
        let written = write_lines(&store, table, &args.name, lines).await?;
        say!("wrote {written} lines");
    }
    let mut ticks = tokio::time::interval(Duration::from_secs(1));
    let (mut shown, mut settled) = (store.log().head(), false);
    let mut conditions = Vec::new();
    loop {
        tokio::select! {
            biased;
            _ = interrupt.recv() => break,
            _ = terminate.recv() => break,
            _ = ticks.tick() => {
                let head = store.log().head();
                // A hash reads all rows: once, when nothing has come for a second.
                let now: Vec<_> = following.iter().map(Following::condition).collect();
                if head != shown || !settled || now != conditions {
                    conditions = now;
                    settled = head == shown;
                    shown = head;
                    print_position(&store, &serving, &following, settled)?;
                }
            }
        }
    }
    for following in following {
        following.stop()?;
    }
    serving.stop()?;
    let hash = store::content_hash(&store)?;
    say!("position {}", store.log().head());
    say!("content {hash} ({} rows)", hash.rows());
    store.close().map_err(Fault::run)?;
    say!("closed {}", args.data.display());
    Ok(())
}

fn subscription(tables: &[String]) -> Result<Subscription, Fault> {
    if tables.is_empty() {
        return Ok(Subscription::all());
    }
    let names: Result<_, _> = tables.iter().map(TableName::new).collect();
    let filter = NameFilter::Include(names.map_err(Fault::usage)?);
    Subscription::new(filter, NameFilter::All, None).map_err(Fault::usage)
}

fn print_position(
    store: &LmdbStore,
    serving: &Serving,
    following: &[Following],
    settled: bool,
) -> Result<(), Fault> {
    let (position, peers) = (store.log().head(), serving.peers());
    if settled {
        let hash = store::content_hash(store)?;
        say!("position {position}, peers {peers}, content {hash} ({} rows)", hash.rows());
    } else {
        say!("position {position}, peers {peers}");
    }
    for following in following {
        say!("  {}", following.status());
    }
    Ok(())
}

/// Writes the lines as records of this node; its name in front of the line's number keeps the keys of two nodes apart.
async fn write_lines(store: &LmdbStore, table: TableId, name: &str, lines: Lines) -> Result<u64, Fault> {
    let writer = store.writer();
    let mut records = Records::lines(lines);
    let mut open = VecDeque::new();
    let mut count = 0;
    loop {
        let mut entries = records.next_transaction(table, TXN)?;
        if entries.is_empty() {
            break;
        }
        for entry in &mut entries {
            let number = String::from_utf8_lossy(&entry.key);
            entry.key = format!("{name}/{number}").into();
        }
        let lines = entries.len() as u64;
        open.push_back((lines, writer.enqueue_or_wait(entries).await.map_err(Fault::usage)?));
        if open.len() > TRANSACTIONS_OPEN {
            count += settled(&mut open, count).await?;
        }
    }
    while !open.is_empty() {
        count += settled(&mut open, count).await?;
    }
    Ok(count)
}

/// Awaits the oldest transaction and gives its lines. Each is asked: a later one may succeed where an earlier one failed.
async fn settled(open: &mut VecDeque<(u64, Ticket)>, before: u64) -> Result<u64, Fault> {
    let Some((lines, ticket)) = open.pop_front() else { return Ok(0) };
    match ticket.durable().await {
        Ok(_) => Ok(lines),
        Err(error) => Err(Fault::run(format!("only {before} lines were written in order, then: {error}"))),
    }
}
