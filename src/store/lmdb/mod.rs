//! The embedded default store, on LMDB.
//!
//! One environment holds one audit log, the rows of its tables and the position of every source. Six named databases
//! (`docs/storage.md` has their bytes): the log, keyed by the last sequence of each segment; rows, whose header says
//! who wrote them and when; identities of entries without a row; positions; names behind short ids; and meta.
//!
//! **One thread commits.** Own writes ([`AuditWriter`]), batches of receivers ([`LmdbApplier`]) and definitions of
//! tables wait in one queue; the writer thread merges what is there into one commit and answers each after it. A lone
//! writer is served at once. Under load a commit holds what arrived during the one before, and may wait for the rest of
//! it, for at most half of an average sync. The exception is a host's [`AuditTxn`], which holds LMDB's write lock on the
//! host's thread.
//!
//! **What LMDB's safe wrapper leaves open is closed here.** No iterators, only steps of a cursor; no transaction
//! outlives the call that opened it; `NO_TLS`; a map whose size never changes while it is open; one opener per
//! environment, held by a lock file; a data file whose length is checked against its header before it is mapped, since
//! reading past its end ends the process; and database names that are constants. What is not covered: a data file that
//! somebody else changes or cuts while it is open, and damage inside its tree pages.

mod applier;
mod apply;
mod environment;
mod error;
mod format;
mod handle;
mod log;
mod names;
mod open;
mod options;
mod plan;
mod published;
mod queue;
mod rows;
mod rowwriter;
mod stage;
mod ticket;
mod txn;
mod walk;
mod writer;

use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use bytes::Bytes;
use lmdb::{Environment, Transaction};

pub use applier::LmdbApplier;
pub use error::OpenError;
pub use format::ForkPoint;
pub use handle::{AuditWriter, EnqueueError};
pub use log::LmdbAuditLog;
pub use options::{Durability, LmdbOptions, LmdbOptionsBuilder, OptionsError};
pub use rows::{Row, RowVisitor, Rows, TableKey};
pub use ticket::Ticket;
pub use txn::AuditTxn;

use self::applier::Sources;
use self::environment::{DataFile, Databases, FolderLock};
use self::error::write_error;
use self::published::Published;
use self::queue::{DefineJob, Job, Queue, Task};
use crate::clock::Clock;
use crate::protocol::{
    Entry, LogId, NodeName, OriginId, Sequence, SourceState, TableDefinition, TableId, TableName,
};
use crate::store::{ApplyError, AuditLog as _, StoreError};

/// Everything that the handles and the writer thread share. Fields are dropped in order: the environment is closed
/// before its lock is released.
struct Core {
    environment: Arc<Environment>,
    databases: Databases,
    options: LmdbOptions,
    clock: Arc<dyn Clock>,
    log_id: LogId,
    fork: Option<ForkPoint>,
    /// This node's own id as an origin.
    origin: OriginId,
    queue: Queue,
    published: Published,
    sources: Sources,
    /// Absent with a host's environment: its file is the host's.
    data_file: Option<DataFile>,
    _lock: FolderLock,
}

impl fmt::Debug for Core {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Core")
            .field("options", &self.options)
            .field("log_id", &self.log_id)
            .finish_non_exhaustive()
    }
}

impl Core {
    fn hold_length(&self) -> Result<(), StoreError> {
        let Some(file) = &self.data_file else { return Ok(()) };
        file.hold_length(&self.environment).map_err(|error| StoreError::Backend {
            action: format!("hold up the length of the data file in {}", self.options.path().display()),
            source: Arc::new(error),
        })
    }

    fn check_tables(&self, entries: &[Entry]) -> Result<(), EnqueueError> {
        let names = self.published.names();
        match entries.iter().position(|entry| names.table(entry.table).is_none()) {
            Some(entry) => Err(EnqueueError::UnknownTable { entry, table: entries[entry].table }),
            None => Ok(()),
        }
    }

    fn origin_name(&self, id: OriginId) -> Option<NodeName> {
        self.published.names().origin(id).cloned()
    }

    fn latched(&self, source: &NodeName, session: u64) -> Option<ApplyError> {
        self.sources.latched(source, session)
    }
}

/// What a store is doing, for status pages and tests.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LmdbStatus {
    /// The log's identity.
    pub log_id: LogId,
    /// The last sequence that senders may read.
    pub head: Sequence,
    /// The boundary before the oldest kept entry.
    pub oldest: Sequence,
    /// What survives a crash.
    pub durability: Durability,
    /// Where the log last got a new identity, if it ever did.
    pub fork: Option<ForkPoint>,
    /// Bytes of all segments since the log began, committed.
    pub committed_bytes: u64,
    /// The same, but known to be on disk.
    pub synced_bytes: u64,
    /// Commits since the store was opened.
    pub commits: u64,
    /// Jobs that wait for the writer thread.
    pub queue_jobs: usize,
    /// Own entries among them.
    pub queue_records: usize,
    /// Bytes of those entries.
    pub queue_bytes: usize,
}

/// An open store. Clones are the same store; the last one to be dropped closes it as well as it can.
///
/// The folder stays locked until the log, applier, writer and row handles are dropped too: they read from the same
/// environment.
#[derive(Debug, Clone)]
pub struct LmdbStore {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    core: Arc<Core>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl LmdbStore {
    /// Opens the store in the folder of `options`, and makes it when there is none.
    ///
    /// When the store was not closed and its last level was below `Sync`, the log gets a new identity: entries that
    /// peers have may be lost here, and other ones may take their sequences.
    ///
    /// # Errors
    /// The folder cannot be written or is in use; its files are foreign or cut off; the log is another node's.
    pub fn open(options: LmdbOptions, clock: Arc<dyn Clock>) -> Result<Self, OpenError> {
        environment::check_lmdb()?;
        environment::prepare_folder(options.path())?;
        let mut lock = FolderLock::take(options.path())?;
        environment::check_room(&options)?;
        let (environment, data_file) = environment::open_environment(&options, &lock)?;
        if lock.is_fresh() {
            environment::check_not_foreign(&environment, &options)?;
        }
        lock.mark_initialised()?;
        Self::start(Arc::new(environment), Some(data_file), lock, options, clock)
    }

    /// Opens the store inside a host's environment, beside the host's own databases.
    ///
    /// The host opened it with `NO_TLS`, at least 6 more `max_dbs` than it needs itself, and the durability level that
    /// `options` states; the path of `options` is the environment's. Map size and readers are the host's; so is
    /// checking the data file before it is opened.
    ///
    /// # Errors
    /// As [`Self::open`], and [`OpenError::Environment`] with what the host has to change.
    pub fn with_environment(
        environment: Arc<Environment>,
        options: LmdbOptions,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, OpenError> {
        environment::check_lmdb()?;
        let lock = FolderLock::take(options.path())?;
        environment::check_host_environment(&environment)?;
        Self::start(environment, None, lock, options, clock)
    }

    fn start(
        environment: Arc<Environment>,
        data_file: Option<DataFile>,
        lock: FolderLock,
        options: LmdbOptions,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, OpenError> {
        let databases = Databases::open(&environment, &options)?;
        let opened = open::open_log(&environment, &databases, &options, &*clock)?;
        let core = Arc::new(Core {
            environment,
            databases,
            log_id: opened.log_id,
            fork: opened.fork,
            origin: opened.origin,
            queue: Queue::new(options.queue_records(), options.queue_bytes()),
            published: Published::new(opened.names, opened.tail, options.durability()),
            sources: Sources::default(),
            options,
            clock,
            data_file,
            _lock: lock,
        });
        let writer = writer::WriterThread::new(Arc::clone(&core));
        let thread = std::thread::Builder::new()
            .name("auditstream-lmdb".to_owned())
            .spawn(move || writer.run())
            .map_err(OpenError::Thread)?;
        Ok(Self { inner: Arc::new(Inner { core, thread: Mutex::new(Some(thread)) }) })
    }

    fn core(&self) -> &Arc<Core> {
        &self.inner.core
    }

    /// The audit log, for senders.
    #[must_use]
    pub fn log(&self) -> Arc<LmdbAuditLog> {
        Arc::new(LmdbAuditLog { core: Arc::clone(self.core()) })
    }

    /// The key-value applier, for receivers.
    #[must_use]
    pub fn applier(&self) -> Arc<LmdbApplier> {
        Arc::new(LmdbApplier { core: Arc::clone(self.core()) })
    }

    /// The queue of own writes.
    #[must_use]
    pub fn writer(&self) -> AuditWriter {
        AuditWriter { core: Arc::clone(self.core()) }
    }

    /// The rows of the built-in tables.
    #[must_use]
    pub fn rows(&self) -> Rows {
        Rows { core: Arc::clone(self.core()) }
    }

    /// Defines a table and waits for the commit. The same definition again gives the same id; another one raises the
    /// table's version and [`crate::store::AuditLog::definitions_version`].
    ///
    /// # Errors
    /// A definition over its limit, a closed store, and whatever the commit answers.
    pub fn define_table(&self, name: &TableName, definition: Bytes) -> Result<TableId, StoreError> {
        let (reply, answer) = sync_channel(1);
        let bytes = definition.len();
        let task = Task::Define(DefineJob { name: name.clone(), definition, reply });
        if self.core().queue.push(Job { task, records: 1, bytes }).is_err() {
            return Err(StoreError::Closed);
        }
        answer.recv().unwrap_or(Err(StoreError::Closed))
    }

    /// The id of a table, or `None` when it was never defined.
    #[must_use]
    pub fn table_id(&self, name: &TableName) -> Option<TableId> {
        self.core().published.names().table_id(name)
    }

    /// All tables, in the order of their ids.
    #[must_use]
    pub fn tables(&self) -> Vec<(TableId, TableDefinition)> {
        self.core().published.names().tables().map(|(id, table)| (id, table.clone())).collect()
    }

    /// What is stored of a source; unlike [`crate::store::Applier::source_state`] it begins no session.
    ///
    /// # Errors
    /// When the store cannot be read, or the stored bytes are no [`SourceState`].
    pub fn source_state_of(&self, source: &NodeName) -> Result<Option<SourceState>, StoreError> {
        apply::read_source_state(self.core(), source)
    }

    /// Begins a write transaction for a host with tables of its own. Blocks while another one is open; a second one on
    /// the same thread would wait for the first one for ever.
    ///
    /// # Errors
    /// When the store is closed, and whatever LMDB answers.
    pub fn begin(&self) -> Result<AuditTxn<'_>, StoreError> {
        AuditTxn::begin(self.core())
    }

    /// What the store is doing.
    ///
    /// # Errors
    /// When the log cannot be read.
    pub fn status(&self) -> Result<LmdbStatus, StoreError> {
        let core = self.core();
        let depth = core.queue.depth();
        Ok(LmdbStatus {
            log_id: core.log_id,
            head: core.published.head(),
            oldest: self.log().oldest()?,
            durability: core.options.durability(),
            fork: core.fork,
            committed_bytes: core.published.committed_bytes.load(Ordering::Relaxed),
            synced_bytes: core.published.synced_bytes.load(Ordering::Relaxed),
            commits: core.published.commits.load(Ordering::Relaxed),
            queue_jobs: depth.jobs,
            queue_records: depth.records,
            queue_bytes: depth.bytes,
        })
    }

    /// Takes no further jobs, serves those that wait, ends the writer thread, syncs and marks the store as closed. Every
    /// clone is closed with it; reading goes on for handles that are still there.
    ///
    /// # Errors
    /// When the last sync or the mark fails: the next open then finds a store that was not closed.
    pub fn close(self) -> Result<(), StoreError> {
        self.inner.shut_down()
    }
}

impl Inner {
    fn shut_down(&self) -> Result<(), StoreError> {
        let core = &*self.core;
        core.queue.close();
        let Some(thread) = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take() else {
            return Ok(());
        };
        if thread.thread().id() == std::thread::current().id() {
            // A callback dropped the last handle. The thread cannot wait for its own end: the queue is closed, what
            // waits is served, and the next open finds a store that was not closed.
            return Err(ended("on that thread itself", std::io::ErrorKind::Deadlock.into()));
        }
        if thread.join().is_err() {
            return Err(ended("which stopped early", std::io::Error::other("it panicked")));
        }
        // Everything is on disk before the mark says so.
        stage::sync(core)?;
        core.published
            .synced_bytes
            .fetch_max(core.published.committed_bytes.load(Ordering::Relaxed), Ordering::Relaxed);
        let failed = |error| write_error("mark the store as closed", error, &core.options);
        let mut txn = core.environment.begin_rw_txn().map_err(failed)?;
        match txn.del(core.databases.meta, &format::META_SESSION, None) {
            Ok(()) | Err(lmdb::Error::NotFound) => {}
            Err(error) => return Err(failed(error)),
        }
        txn.commit().map_err(failed)?;
        stage::sync(core)?;
        let _held = core.environment.begin_rw_txn().map_err(failed)?;
        core.hold_length()
    }
}

fn ended(how: &str, source: std::io::Error) -> StoreError {
    StoreError::Backend { action: format!("end the writer thread, {how}"), source: Arc::new(source) }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Err(error) = self.shut_down() {
            tracing::warn!(path = %self.core.options.path().display(), %error, "the store could not be closed");
        }
    }
}
