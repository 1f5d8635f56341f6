//! What parent and children say to each other, one JSON object per line.

use auditstream::sender::YieldPolicy;
use serde::{Deserialize, Serialize};

/// A [`YieldPolicy`] as it travels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Policy {
    PerRecord,
    PerSender,
    Budget,
}

impl From<Policy> for YieldPolicy {
    fn from(policy: Policy) -> Self {
        match policy {
            Policy::PerRecord => Self::PerRecord,
            Policy::PerSender => Self::PerSender,
            Policy::Budget => Self::Budget,
        }
    }
}

impl From<YieldPolicy> for Policy {
    fn from(policy: YieldPolicy) -> Self {
        match policy {
            YieldPolicy::PerRecord => Self::PerRecord,
            YieldPolicy::PerSender => Self::PerSender,
            YieldPolicy::Budget => Self::Budget,
        }
    }
}

/// From the parent to a child. A child ends when its standard input does.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "kebab-case")]
pub(crate) enum Command {
    /// Source: start a worker and listen.
    Serve { policy: Policy, budget_us: u64 },
    /// Source: what the worker did since `Serve`.
    Counts,
    /// Source: end the worker.
    StopServing,
    /// Source: write further records and say how long it took.
    Write { records: u64 },
    /// Source: write so many bytes of a constant buffer to each of these sinks.
    Floor { sinks: Vec<String>, bytes: u64 },
    /// Peer: connect, and say when everything up to `target` is durable. At `hold_at` entries, stop answering.
    Go { source: String, target: u64, hold_at: Option<u64> },
    /// Peer: the source's log has grown.
    Target { target: u64 },
    /// Peer: how far it is.
    Progress,
    /// Both: the content hash.
    Hash,
    /// Both: close the store and end.
    End,
}

/// What a peer has counted, in entries of the source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct PeerCounts {
    pub(crate) received: u64,
    pub(crate) applied: u64,
    pub(crate) durable: u64,
    /// Position of the source up to which everything is durable.
    pub(crate) position: u64,
}

/// What the source's worker has counted since it was started.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct SenderCounts {
    /// Entries sent, of each subscription.
    pub(crate) sent: Vec<u64>,
    /// Sequence up to which each peer has acknowledged as durable.
    pub(crate) acknowledged: Vec<u64>,
    pub(crate) bytes: u64,
    pub(crate) writes: u64,
    pub(crate) writes_blocked: u64,
    pub(crate) reads: u64,
    /// Turns that ended with a spent budget (a round, for the controls).
    pub(crate) yields: u64,
    /// Turns that ended because every sender waited.
    pub(crate) waits: u64,
    /// CPU of the worker's threads, and of the whole process, in nanoseconds.
    pub(crate) worker_cpu_ns: u64,
    pub(crate) process_cpu_ns: u64,
}

/// From a child to its parent.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub(crate) enum Event {
    /// It has opened what it needs; the source has written its records, the sink listens at `address`.
    Ready {
        head: u64,
        log_bytes: u64,
        offered: u64,
        accepted: u64,
        refused: u64,
        address: String,
    },
    Serving {
        address: String,
    },
    Counted(SenderCounts),
    Stopped,
    Written {
        head: u64,
        offered: u64,
        accepted: u64,
        refused: u64,
        micros: u64,
    },
    FloorDone {
        cpu_ns: u64,
        writes: u64,
    },
    /// Everything up to the target is durable.
    Reached(PeerCounts),
    /// It has stopped where it was told to, and waits to be killed.
    Holding(PeerCounts),
    At(PeerCounts),
    Hash {
        hash: String,
        rows: u64,
    },
    Ended,
    Failed {
        usage: bool,
        message: String,
    },
}
