//! Opening and reading a node's store.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use auditstream::clock::Clock;
use auditstream::net::SystemClock;
use auditstream::protocol::{NodeName, TableName};
use auditstream::store::lmdb::{Durability, LmdbOptions, LmdbStore, OpenError};

use crate::fault::Fault;
use crate::hash::ContentHash;
use crate::records::TABLE;

/// The clock that stores and workers are handed.
pub(crate) fn clock() -> Arc<dyn Clock> {
    Arc::new(SystemClock::new())
}

/// A node's name, checked.
///
/// # Errors
/// A name that breaks a rule.
pub(crate) fn node_name(name: &str) -> Result<NodeName, Fault> {
    NodeName::new(name).map_err(Fault::usage)
}

/// The table of all records.
///
/// # Errors
/// Never: the name is a constant.
pub(crate) fn table_name() -> Result<TableName, Fault> {
    TableName::new(TABLE).map_err(Fault::run)
}

/// Opens the store of `name` in `folder`.
///
/// # Errors
/// What is wrong with the folder; the text names the way out.
pub(crate) fn open(folder: &Path, name: &NodeName, durability: Durability) -> Result<LmdbStore, Fault> {
    let options =
        LmdbOptions::builder(name.clone(), folder).durability(durability).build().map_err(Fault::usage)?;
    LmdbStore::open(options, clock()).map_err(Fault::usage)
}

/// Opens a store that is already there, whoever's it is.
///
/// # Errors
/// As [`open`], and a folder without a store.
pub(crate) fn open_existing(folder: &Path) -> Result<LmdbStore, Fault> {
    if !folder.join("data.mdb").is_file() {
        return Err(Fault::Usage(format!(
            "{} holds no store (there is no data.mdb in it); give the data folder of a node",
            folder.display()
        )));
    }
    let guess = node_name("dump")?;
    let options = |name| LmdbOptions::builder(name, folder).build().map_err(Fault::usage);
    match LmdbStore::open(options(guess)?, clock()) {
        // The store says whose it is.
        Err(OpenError::OtherNode { stored, .. }) => {
            LmdbStore::open(options(stored)?, clock()).map_err(Fault::usage)
        }
        answer => answer.map_err(Fault::usage),
    }
}

/// The content hash of the records of a store.
///
/// # Errors
/// When it cannot be read.
pub(crate) fn content_hash(store: &LmdbStore) -> Result<ContentHash, Fault> {
    let mut hash = ContentHash::default();
    store
        .rows()
        .visit(&table_name()?, &mut |key, value| {
            hash.row(key, value);
            ControlFlow::Continue(())
        })
        .map_err(Fault::run)?;
    Ok(hash)
}
