//! The audit log and the data of a peer: traits, and the stores that come with the library.
//!
//! A host with a store of its own implements [`AuditLog`] (what a sender reads) and [`Applier`] (what a receiver
//! writes), and runs `testing::check_store` against it.

mod conflict;
mod discard;
mod hlc;
mod limits;
#[cfg(feature = "lmdb")]
pub mod lmdb;
mod memory;
mod notify;

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::task::Waker;

use bytes::Bytes;

use crate::protocol::{
    Boundary, Dictionary, LogId, NodeName, OriginId, Position, ProtocolError, SegmentRef, Selection,
    Sequence, SourceState, TableDefinition, TableId,
};

pub use conflict::{Identity, Outcome};
pub use discard::DiscardApplier;
pub use hlc::{CLOCK_SKEW_MS_MAX, ClockSkew, Hlc};
pub use limits::{LimitError, Limits};
#[cfg(any(test, feature = "testing"))]
pub use memory::StorePlant;
pub use memory::{MemorySnapshot, MemoryStore, Row};
pub use notify::CommitNotifier;

/// Why a log or a store cannot do what was asked.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The entries after `after` are no longer kept.
    #[error(
        "the entries after sequence {after} are no longer kept, the log starts after {oldest}: a base copy is needed"
    )]
    Pruned {
        /// Where the scan was to start.
        after: Sequence,
        /// The boundary before the oldest kept entry.
        oldest: Sequence,
    },
    /// A stored value is not what was written.
    #[error("the {what} at {key} is corrupt: {source}")]
    Corrupt {
        /// What kind of value.
        what: &'static str,
        /// Its key: the sequence of a segment's last entry.
        key: Sequence,
        /// What is wrong with its bytes.
        source: ProtocolError,
    },
    /// The log misses segments between two that it has.
    #[error("the log has a hole: sequence {found} follows {previous}")]
    Hole {
        /// The last sequence before the hole.
        previous: Sequence,
        /// The first one after it.
        found: Sequence,
    },
    /// The store has no room; `what` names the setting or the disk.
    #[error("{what} is full: {hint}")]
    Full {
        /// The map or the disk.
        what: &'static str,
        /// The way out.
        hint: String,
    },
    /// The store was closed.
    #[error("the store is closed")]
    Closed,
    /// Anything else that the store below answers.
    #[error("{action}: {source}")]
    Backend {
        /// What was being done, and to what.
        action: String,
        /// The answer.
        source: Arc<dyn std::error::Error + Send + Sync>,
    },
}

impl StoreError {
    /// Whether the same call can succeed later without anybody changing the data.
    #[must_use]
    pub const fn is_transient(&self) -> bool {
        matches!(self, Self::Full { .. })
    }
}

/// Why a scan ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScanEnd {
    /// There was no further segment up to the head.
    Drained,
    /// The visitor broke off.
    Stopped,
}

/// What a log has at a sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BoundaryAt {
    /// A transaction ends there.
    Boundary(Boundary),
    /// The sequence is in the middle of a transaction.
    InsideTransaction,
    /// The log does not reach that far.
    AheadOfLog,
    /// The log no longer keeps it.
    Pruned,
}

/// What a sender reads: one node's audit log.
///
/// Every method is synchronous and short; a snapshot lives inside one call and never across a wait.
pub trait AuditLog: Send + Sync + 'static {
    /// The log's identity. It stays the same while the log is open.
    fn log_id(&self) -> LogId;

    /// The last sequence that senders may read: synced under `Sync`, committed below it. Always the end of a
    /// transaction. Cheap: read between quanta.
    fn head(&self) -> Sequence;

    /// The boundary before the oldest kept entry; `Sequence::ZERO` while nothing was pruned, which is the default.
    ///
    /// # Errors
    /// When the store cannot be read.
    fn oldest(&self) -> Result<Sequence, StoreError> {
        Ok(Sequence::ZERO)
    }

    /// Lends the segments that hold entries after `after`, in order, none past [`AuditLog::head`]. The first one may begin
    /// before `after`.
    ///
    /// # Errors
    /// [`StoreError::Pruned`] when entries right after `after` are gone: a gap is never the end of the log. Corrupt
    /// segments and whatever the store answers.
    fn scan(
        &self,
        after: Sequence,
        visit: &mut dyn FnMut(SegmentRef<'_>) -> ControlFlow<()>,
    ) -> Result<ScanEnd, StoreError>;

    /// What the log has at `sequence`. `Sequence::ZERO` is [`Boundary::START`] while nothing was pruned.
    ///
    /// # Errors
    /// When the store cannot be read.
    fn boundary_at(&self, sequence: Sequence) -> Result<BoundaryAt, StoreError>;

    /// The name of an origin, or `None` for an id that the log never gave out.
    ///
    /// # Errors
    /// When the store cannot be read.
    fn origin(&self, id: OriginId) -> Result<Option<NodeName>, StoreError>;

    /// The definition of a table, or `None` for an id that the log never gave out.
    ///
    /// # Errors
    /// When the store cannot be read.
    fn table(&self, id: TableId) -> Result<Option<TableDefinition>, StoreError>;

    /// Rises when the definition of a known table changes; the default is for logs whose definitions never do. Cheap:
    /// read in every pump.
    fn definitions_version(&self) -> u64 {
        0
    }

    /// Wakes `waker` once, when the head moves past what it is now, or sooner. Register first, look at the head
    /// after: nothing is missed then.
    fn register(&self, waker: &Waker);
}

/// The names behind a sender's short ids, as its dictionary frames gave them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PeerDictionary {
    /// Origins.
    pub origins: BTreeMap<OriginId, NodeName>,
    /// Tables.
    pub tables: BTreeMap<TableId, TableDefinition>,
}

impl PeerDictionary {
    /// Takes in a dictionary frame.
    pub fn insert(&mut self, dictionary: Dictionary) {
        match dictionary {
            Dictionary::Origin(id, name) => {
                self.origins.insert(id, name);
            }
            Dictionary::Table(id, table) => {
                self.tables.insert(id, table);
            }
        }
    }
}

/// Whole transactions of one stream, and the position after them.
#[derive(Debug, Clone)]
pub struct ApplyBatch {
    /// The node they came from; what is stored of it is stored under its name.
    pub source: NodeName,
    /// What the stream selects: the frames hold everything of it, and nothing else, since the position before.
    pub selection: Arc<Selection>,
    /// The names behind the short ids in the frames.
    pub dictionary: Arc<PeerDictionary>,
    /// Segment frames, verified, in order. Empty when only the position moves.
    ///
    /// All parts of a large transaction are in one batch, each as a transaction with the same first sequence. A
    /// filter may have left out any of them, the last one too: the transaction is complete when one with another
    /// first sequence begins, or when the batch ends.
    pub frames: Vec<Bytes>,
    /// Where the stream is then. In the same commit, the store moves the stored [`SourceState`] of the source on with
    /// [`SourceState::advance`].
    pub position: Position,
}

impl ApplyBatch {
    /// What a store keeps of the source after this batch, when it kept `stored` before.
    #[must_use]
    pub fn state_after(&self, stored: Option<SourceState>) -> SourceState {
        self.state_at(stored, self.position.boundary)
    }

    /// The same for a batch that was applied up to `boundary` only.
    #[must_use]
    pub fn state_at(&self, stored: Option<SourceState>, boundary: Boundary) -> SourceState {
        match stored {
            None => SourceState::new(self.position.log, Selection::clone(&self.selection), boundary),
            Some(mut state) => {
                state.advance(self.position.log, &self.selection, boundary);
                state
            }
        }
    }

    /// How far `stored` says that this batch's stream was; before the first entry when it says nothing.
    #[must_use]
    pub fn boundary_in(&self, stored: Option<&SourceState>) -> Boundary {
        let state = stored.filter(|state| state.log() == self.position.log);
        state.and_then(|state| state.boundary_of(&self.selection)).unwrap_or_default()
    }
}

/// A batch was committed: data, own log and position, and as durable as the store's level says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Applied {
    /// Entries that changed something.
    pub changed: u64,
    /// Entries that were there already, or lost against a newer version.
    pub unchanged: u64,
}

/// A batch could not be applied.
#[derive(Debug, Clone, thiserror::Error)]
#[error("cannot apply the transaction that ends at sequence {at}: {reason}")]
pub struct ApplyError {
    /// The last boundary that is committed; nothing after it was applied.
    pub good: Boundary,
    /// The end of the transaction that failed.
    pub at: Sequence,
    /// Why.
    pub reason: StoreError,
}

/// Called once per batch, from any thread, after the commit or the failure.
pub type ApplyDone = Box<dyn FnOnce(Result<Applied, ApplyError>) + Send>;

/// What a receiver writes: the data, the node's own log and the state of each source, in one commit.
pub trait Applier: Send + Sync + 'static {
    /// What is stored of `source`: up to where, and of what selection; `None` when nothing is. One that cannot be read is
    /// an error, never "none". Asked once at the start of each connection.
    ///
    /// # Errors
    /// When the store cannot be read, or the stored bytes are no [`SourceState`].
    fn source_state(&self, source: &NodeName) -> Result<Option<SourceState>, StoreError>;

    /// Takes a batch and returns at once. Batches of one source are committed in the order of the calls; after
    /// one has failed, the later ones of that source that were already submitted fail too.
    fn submit(&self, batch: ApplyBatch, done: ApplyDone);
}
