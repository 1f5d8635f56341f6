//! Reading, or making, what a log needs to know when it is opened.

use std::hash::{BuildHasher, RandomState};

use lmdb::{Database, Environment, RwTransaction, Transaction, WriteFlags};

use super::environment::{Databases, store_error};
use super::error::{OpenError, backend, unreadable, write_error};
use super::format::{
    ForkPoint, META_FORK, META_FORMAT, META_LOG, META_NODE, META_SESSION, META_TAIL, STORE_FORMAT,
    StoredTail, read_node,
};
use super::names::{Names, NamesEdit};
use super::options::{Durability, LmdbOptions};
use super::walk::found;
use crate::clock::Clock;
use crate::protocol::{LogId, LogTail, OriginId, ProtocolError};
use crate::store::{Hlc, StoreError};

const ACTION: &str = "open the log";

/// What the store starts with.
pub(super) struct Opened {
    pub(super) log_id: LogId,
    pub(super) fork: Option<ForkPoint>,
    pub(super) origin: OriginId,
    pub(super) names: Names,
    pub(super) tail: LogTail,
}

/// Reads the log's identity, names and end; a new log is made. From here on the store counts as open: a crash before
/// it is closed is seen by the next open.
pub(super) fn open_log(
    environment: &Environment,
    databases: &Databases,
    options: &LmdbOptions,
    clock: &dyn Clock,
) -> Result<Opened, OpenError> {
    let failed = |source| store_error(options, source);
    let begun = environment.begin_rw_txn();
    let mut txn = begun.map_err(|error| failed(write_error(ACTION, error, options)))?;
    check_owner(&txn, databases, options)?;
    let meta = Meta { database: databases.meta, options };
    let tail = match meta.read(&txn, META_TAIL).map_err(failed)? {
        Some(bytes) => StoredTail::read(bytes)
            .map_err(|error| failed(unreadable("the end of the log is corrupt".to_owned(), error)))?,
        None => StoredTail::default(),
    };
    let (log_id, fork) = identity(&mut txn, &meta, &tail, clock).map_err(failed)?;
    let names = Names::load(&txn, databases).map_err(failed)?;
    let mut edit = NamesEdit::new(std::sync::Arc::new(names));
    let origin = edit.origin_id(&mut txn, (databases, options), options.node()).map_err(failed)?;
    meta.write(&mut txn, META_SESSION, &[options.durability().code()]).map_err(failed)?;
    txn.commit().map_err(|error| failed(write_error(ACTION, error, options)))?;
    // The mark of an open session has to be on disk before anything is written under it.
    environment.sync(true).map_err(|error| failed(write_error("sync", error, options)))?;
    Ok(Opened { log_id, fork, origin, names: edit.names().clone(), tail: tail.tail })
}

/// The meta database within a transaction.
struct Meta<'a> {
    database: Database,
    options: &'a LmdbOptions,
}

impl Meta<'_> {
    fn read<'t>(&self, txn: &'t impl Transaction, key: &str) -> Result<Option<&'t [u8]>, StoreError> {
        found(txn.get(self.database, &key), ACTION)
    }

    fn write(&self, txn: &mut RwTransaction<'_>, key: &str, value: &[u8]) -> Result<(), StoreError> {
        txn.put(self.database, &key, &value, WriteFlags::empty())
            .map_err(|error| write_error(ACTION, error, self.options))
    }
}

/// Checks that the log has our layout and is this node's.
fn check_owner(
    txn: &RwTransaction<'_>,
    databases: &Databases,
    options: &LmdbOptions,
) -> Result<(), OpenError> {
    let failed = |source| store_error(options, source);
    let foreign = |problem: String| OpenError::Foreign { path: options.path().to_owned(), problem };
    let meta = Meta { database: databases.meta, options };
    match meta.read(txn, META_FORMAT).map_err(failed)? {
        Some(bytes) if bytes == STORE_FORMAT.to_le_bytes() => {}
        Some(bytes) => {
            return Err(foreign(format!(
                "its layout is {bytes:02x?}, this version reads layout {STORE_FORMAT}"
            )));
        }
        None => {
            let entries = txn.stat(databases.log).map_err(|error| failed(backend(ACTION, error)))?.entries();
            if entries > 0 {
                return Err(foreign("it has a log but no description of its layout".to_owned()));
            }
            return Ok(());
        }
    }
    let Some(bytes) = meta.read(txn, META_NODE).map_err(failed)? else {
        return Err(foreign("it does not say whose log it is".to_owned()));
    };
    let stored = read_node(bytes)
        .map_err(|error| failed(unreadable("the node's name is corrupt".to_owned(), error)))?;
    if stored != *options.node() {
        return Err(OpenError::OtherNode {
            path: options.path().to_owned(),
            stored,
            given: options.node().clone(),
        });
    }
    Ok(())
}

/// The log's identity: a new one for a new log, and for one that was not closed while its level was below `Sync`.
fn identity(
    txn: &mut RwTransaction<'_>,
    meta: &Meta<'_>,
    stored_tail: &StoredTail,
    clock: &dyn Clock,
) -> Result<(LogId, Option<ForkPoint>), StoreError> {
    let stored = meta.read(txn, META_LOG)?.map(read_log_id).transpose()?;
    let session = meta.read(txn, META_SESSION)?.map(<[u8]>::to_vec);
    let fork = match meta.read(txn, META_FORK)? {
        Some(bytes) => Some(
            ForkPoint::read(bytes)
                .map_err(|error| unreadable("the stored fork point is corrupt".to_owned(), error))?,
        ),
        None => None,
    };
    let unclean = session.is_some_and(|level| level != [Durability::Sync.code()]);
    match stored {
        Some(log) if !unclean => Ok((log, fork)),
        Some(log) => {
            let tail = stored_tail.tail;
            let fork = ForkPoint { log, sequence: tail.end.sequence };
            let latest = Hlc::after_loss(stored_tail.latest, clock.wall_ms()).latest();
            meta.write(txn, META_TAIL, &StoredTail { tail, latest }.to_bytes())?;
            let new = new_log_id(meta.options, clock);
            meta.write(txn, META_LOG, new.as_bytes())?;
            meta.write(txn, META_FORK, &fork.to_bytes())?;
            tracing::warn!(
                path = %meta.options.path().display(), old_log = %log, new_log = %new, sequence = tail.end.sequence.get(),
                "the store was not closed and its last durability level was below sync: the log has a new identity"
            );
            Ok((new, Some(fork)))
        }
        None => {
            let new = new_log_id(meta.options, clock);
            meta.write(txn, META_FORMAT, &STORE_FORMAT.to_le_bytes())?;
            meta.write(txn, META_NODE, meta.options.node().as_str().as_bytes())?;
            meta.write(txn, META_LOG, new.as_bytes())?;
            Ok((new, None))
        }
    }
}

fn read_log_id(bytes: &[u8]) -> Result<LogId, StoreError> {
    let wrong = |_| {
        let value = bytes.len() as u64;
        let source =
            ProtocolError::Malformed { what: "length of the log's identity", value, problem: "is not 16" };
        unreadable("the log's identity is corrupt".to_owned(), source)
    };
    Ok(LogId::from_bytes(bytes.try_into().map_err(wrong)?))
}

/// A random identity without a crate for it: the standard library seeds its hash maps with 128 bits from the operating
/// system, once per thread, and steps the seed for every state. Two keyed hashes under such a seed are 128 bits that
/// nobody can guess; path, process and time go in as well, so that even a system without good randomness at boot
/// gives different identities to different logs.
fn new_log_id(options: &LmdbOptions, clock: &dyn Clock) -> LogId {
    let state = RandomState::new();
    let input = (options.path(), options.node().as_str(), std::process::id(), clock.wall_ms());
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&state.hash_one((0_u8, &input)).to_le_bytes());
    bytes[8..].copy_from_slice(&state.hash_one((1_u8, &input)).to_le_bytes());
    LogId::from_bytes(bytes)
}
