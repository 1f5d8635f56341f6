//! The command line: names, defaults and ranges.

use std::path::PathBuf;
use std::time::Duration;

use auditstream::sender::YieldPolicy;
use auditstream::store::lmdb::Durability;
use clap::{Args, Parser, Subcommand, ValueEnum};
use serde::{Deserialize, Serialize};

/// Most peers of one source: each is a process with its own data folder.
const PEERS_MAX: usize = 64;
/// Most records of a run.
const RECORDS_MAX: u64 = 50_000_000;
/// Longest record, in bytes: the longest value that a log takes.
pub(crate) const RECORD_BYTES_MAX: usize = auditstream::protocol::limits::ENTRY_VALUE_BYTES_MAX;
/// Most records of a transaction.
const TXN_MAX: u64 = auditstream::protocol::limits::TRANSACTION_ENTRIES_MAX as u64;

const EXAMPLES: &str = "Examples:
  cluster-sim                                        the stream suite, about a minute
  cluster-sim stream --receiver discard --peers 1,4  what the sender costs, without the receivers
  cluster-sim stream --input access.log --peers 4    your own data, and the content hash of every node
  cluster-sim node --listen 127.0.0.1:7001 --peer 127.0.0.1:7002 --data /tmp/a --name a
  cluster-sim dump /tmp/a                            the rows of a node that was stopped

Exit codes: 0 held, 1 an invariant broke, 2 usage, 3 a threshold was missed, 4 inconclusive (--full only),
70 a node or the machine failed, 130 interrupted.";

/// Starts auditstream nodes on loopback and measures them.
#[derive(Debug, Parser)]
#[command(name = "cluster-sim", version, about, after_help = EXAMPLES, args_conflicts_with_subcommands = true)]
pub(crate) struct Cli {
    /// What to do; `stream` when left out.
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
    #[command(flatten)]
    pub(crate) stream: StreamArgs,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// One source and N peers, each a process: what a sender costs, and how fast a peer catches up
    Stream(StreamArgs),
    /// One node, until Ctrl-C or SIGTERM: two terminals make a cluster
    Node(NodeArgs),
    /// Prints the rows of a stopped node: key, TAB, value in hex, in key order (docs/hash.md)
    Dump(DumpArgs),
    /// The source of a stream run
    #[command(name = "__source", hide = true)]
    Source(SourceArgs),
    /// A peer of a stream run
    #[command(name = "__peer", hide = true)]
    Peer(PeerArgs),
    /// Reads and discards: the other end of the kernel-only floor
    #[command(name = "__sink", hide = true)]
    Sink,
}

/// What peers do with what they receive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Receiver {
    /// Read, verify and drop
    Discard,
    /// Rows, own log and position in an LMDB environment
    Lmdb,
}

impl Receiver {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Discard => "discard",
            Self::Lmdb => "lmdb",
        }
    }
}

/// Records of a run that are not asked for otherwise, and of one with `--quick`.
const RECORDS: u64 = 500_000;
const QUICK_RECORDS: u64 = 50_000;

/// Flags of `stream`.
#[derive(Debug, Clone, Args)]
pub(crate) struct StreamArgs {
    /// Numbers of peers to measure with
    #[arg(long, value_name = "N,N", value_delimiter = ',', default_value = "1,4", value_parser = peers, allow_hyphen_values = true)]
    pub(crate) peers: Vec<usize>,
    /// Records that the source holds before the peers start: 500,000, with --quick 50,000
    #[arg(long, value_name = "COUNT", value_parser = records, allow_hyphen_values = true, conflicts_with = "input")]
    pub(crate) records: Option<u64>,
    /// Bytes of a record's value
    #[arg(long, value_name = "BYTES", default_value = "500", value_parser = record_size, allow_hyphen_values = true, conflicts_with = "input")]
    pub(crate) record_size: usize,
    /// Records of a transaction
    #[arg(long, value_name = "COUNT", default_value = "10", value_parser = txn, allow_hyphen_values = true)]
    pub(crate) txn: u64,
    /// How long a worker works before it gives the event loop back
    #[arg(long, value_name = "TIME", default_value = "2ms", value_parser = budget, allow_hyphen_values = true)]
    pub(crate) budget: Duration,
    /// What peers do with what they receive
    #[arg(long, default_value = "lmdb")]
    pub(crate) receiver: Receiver,
    /// What survives a crash, at the source and at the peers: sync, nometasync or nosync
    #[arg(long, value_name = "LEVEL", default_value = "nosync", value_parser = durability)]
    pub(crate) durability: Durability,
    /// Seed of the records; random when left out
    #[arg(long, value_name = "NUMBER", value_parser = seed, allow_hyphen_values = true)]
    pub(crate) seed: Option<u64>,
    /// Obey every rule of measuring: 5 trials, A against A first; the only mode with exit code 4
    #[arg(long, conflicts_with = "quick")]
    pub(crate) full: bool,
    /// One trial of 50,000 records, and a verdict on invariants only
    #[arg(long)]
    pub(crate) quick: bool,
    /// Write the result as JSON
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Keep the nodes' folders of the last run under this one: source, peer-1, ...
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    /// Replicate the lines of this text or NDJSON file instead of made-up records
    #[arg(long, value_name = "FILE")]
    pub(crate) input: Option<PathBuf>,
    /// Field of each NDJSON line (string or integer) that is the record's key; the line's number when left out
    #[arg(long, value_name = "NAME", requires = "input")]
    pub(crate) key_field: Option<String>,
    /// Kill peer 1 with SIGKILL in the middle of the last run and start it again on its folder: after so many
    /// seconds (`2s`), or at this share of the records (`0.5`)
    #[arg(long, value_name = "SECONDS|FRACTION", value_parser = kill, allow_hyphen_values = true)]
    pub(crate) kill_peer: Option<Kill>,
}

impl StreamArgs {
    /// The records of the main load.
    pub(crate) fn records(&self) -> u64 {
        self.records.unwrap_or(if self.quick { QUICK_RECORDS } else { RECORDS })
    }
}

/// When to kill peer 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Kill {
    /// So long after the peers started.
    After(Duration),
    /// When it has stored this share of the records; it holds there until it is killed.
    At(f64),
}

/// Flags of `node`.
#[derive(Debug, Clone, Args)]
pub(crate) struct NodeArgs {
    /// Address to listen on; port 0 takes a free one, which is printed
    #[arg(long, value_name = "ADDR")]
    pub(crate) listen: std::net::SocketAddr,
    /// Address of a node to follow; may be given again
    #[arg(long, value_name = "ADDR")]
    pub(crate) peer: Vec<std::net::SocketAddr>,
    /// Folder of the node's data; made when it is not there
    #[arg(long, value_name = "DIR")]
    pub(crate) data: PathBuf,
    /// The node's name, different for every node of a cluster
    #[arg(long)]
    pub(crate) name: String,
    /// What survives a crash: sync, nometasync or nosync
    #[arg(long, value_name = "LEVEL", default_value = "sync", value_parser = durability)]
    pub(crate) durability: Durability,
    /// Tables to follow; all when left out
    #[arg(long, value_name = "NAME,NAME", value_delimiter = ',')]
    pub(crate) tables: Vec<String>,
    /// After the start, write each line of this file as a record (keys `NAME/line number`)
    #[arg(long, value_name = "FILE")]
    pub(crate) write_lines: Option<PathBuf>,
}

/// Flags of `dump`.
#[derive(Debug, Clone, Args)]
pub(crate) struct DumpArgs {
    /// Folder of the node's data
    #[arg(value_name = "DIR")]
    pub(crate) data: PathBuf,
}

/// What the source of a run holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Load {
    /// Records with rising keys, through the writer thread.
    Rising,
    /// The same, each transaction in an `AuditTxn` of its own.
    AuditTxn,
    /// Transactions of five origins in turn; peers leave out the fifth.
    Mixed,
    /// Updates of random keys.
    Random,
    /// The lines of a file.
    Input,
}

/// Flags of the hidden source process.
#[derive(Debug, Clone, Args)]
pub(crate) struct SourceArgs {
    #[arg(long)]
    pub(crate) data: PathBuf,
    #[arg(long)]
    pub(crate) load: Load,
    #[arg(long, default_value = "0")]
    pub(crate) records: u64,
    #[arg(long, default_value = "500")]
    pub(crate) record_size: usize,
    #[arg(long)]
    pub(crate) txn: u64,
    #[arg(long)]
    pub(crate) seed: u64,
    #[arg(long, value_parser = durability)]
    pub(crate) durability: Durability,
    #[arg(long)]
    pub(crate) input: Option<PathBuf>,
    #[arg(long)]
    pub(crate) key_field: Option<String>,
}

/// Flags of a hidden peer process.
#[derive(Debug, Clone, Args)]
pub(crate) struct PeerArgs {
    #[arg(long)]
    pub(crate) data: PathBuf,
    #[arg(long)]
    pub(crate) name: String,
    #[arg(long)]
    pub(crate) receiver: Receiver,
    #[arg(long, value_parser = durability)]
    pub(crate) durability: Durability,
    #[arg(long)]
    pub(crate) without_origin: Option<String>,
}

/// The variants, by the names that tables and files use.
pub(crate) const fn policy_name(policy: YieldPolicy) -> &'static str {
    match policy {
        YieldPolicy::PerRecord => "per-record",
        YieldPolicy::PerSender => "per-sender",
        YieldPolicy::Budget => "budget",
    }
}

fn whole(text: &str, what: &str, least: u64, most: u64) -> Result<u64, String> {
    text.parse().ok().filter(|number| (least..=most).contains(number)).ok_or_else(|| {
        format!("{what} is {text}, it must be a whole number from {least} to {most}, written in digits")
    })
}

fn peers(text: &str) -> Result<usize, String> {
    whole(text, "the number of peers", 1, PEERS_MAX as u64).map(|number| number as usize)
}

fn records(text: &str) -> Result<u64, String> {
    whole(text, "the number of records", 1, RECORDS_MAX)
}

fn record_size(text: &str) -> Result<usize, String> {
    whole(text, "the record size", 1, RECORD_BYTES_MAX as u64).map(|number| number as usize)
}

fn txn(text: &str) -> Result<u64, String> {
    whole(text, "the number of records of a transaction", 1, TXN_MAX)
}

fn seed(text: &str) -> Result<u64, String> {
    whole(text, "the seed", 0, u64::MAX)
}

fn durability(text: &str) -> Result<Durability, String> {
    text.parse().map_err(|error: auditstream::store::lmdb::OptionsError| error.to_string())
}

fn budget(text: &str) -> Result<Duration, String> {
    let range = Duration::from_micros(50)..=Duration::from_millis(100);
    humantime::parse_duration(text).ok().filter(|time| range.contains(time)).ok_or_else(|| {
        format!("the budget is {text}, it must be a time from 50us to 100ms with its unit, as in 2ms")
    })
}

fn kill(text: &str) -> Result<Kill, String> {
    if let Ok(share) = text.parse::<f64>() {
        return if share > 0.0 && share < 1.0 {
            Ok(Kill::At(share))
        } else {
            Err(format!(
                "{text} is not a share of the records; give one between 0 and 1, or a time such as 2s"
            ))
        };
    }
    humantime::parse_duration(text)
        .map(Kill::After)
        .map_err(|_| format!("{text} is neither a time such as 2s nor a share between 0 and 1"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_those_of_the_contract() {
        let cli = Cli::try_parse_from(["cluster-sim"]).expect("parses");
        let args = cli.stream;
        assert_eq!(
            (args.peers.clone(), args.records(), args.record_size, args.txn),
            (vec![1, 4], 500_000, 500, 10)
        );
        assert_eq!((args.budget, args.receiver), (Duration::from_millis(2), Receiver::Lmdb));
        assert_eq!(args.durability, Durability::NoSync);
    }

    #[test]
    fn sizes_that_cannot_work_are_refused_with_their_range() {
        for (flag, value) in [
            ("--records", "-1"),
            ("--peers", "-1"),
            ("--record-size", "-1"),
            ("--txn", "-1"),
            ("--budget", "-2ms"),
            ("--seed", "-1"),
            ("--kill-peer", "-1"),
            ("--records", "0"),
            ("--records", "1e9"),
            ("--records", "NaN"),
            ("--record-size", "163841"),
            ("--txn", "0"),
            ("--peers", "0"),
            ("--peers", "1000"),
            ("--budget", "NaN"),
            ("--budget", "2"),
            ("--kill-peer", "1.5"),
            ("--durability", "fast"),
        ] {
            let argument = format!("{flag} {value}");
            let error = Cli::try_parse_from(["cluster-sim", "stream", flag, value]).expect_err(&argument);
            assert_eq!(error.exit_code(), 2);
            let text = error.to_string();
            assert!(text.contains(value) && text.contains(flag), "{text}");
        }
    }

    #[test]
    fn a_kill_is_a_time_or_a_share() {
        assert_eq!(kill("0.5"), Ok(Kill::At(0.5)));
        assert_eq!(kill("2s"), Ok(Kill::After(Duration::from_secs(2))));
    }
}
