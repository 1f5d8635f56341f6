//! What LMDB answers, in the words of the store.

use std::path::PathBuf;
use std::sync::Arc;

use super::options::LmdbOptions;
use crate::protocol::{NodeName, ProtocolError};
use crate::store::StoreError;

/// `EIO`: what LMDB makes of a write that was taken in part.
const IO_ERROR: i32 = 5;
/// `ENOSPC`: no room on the disk.
const NO_SPACE: i32 = 28;
/// `EDQUOT`: the user's share of the disk is used up.
const OVER_QUOTA: i32 = 122;

/// Why a store cannot be opened. Nothing was changed, except that a missing folder and empty lock files may have been made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The folder cannot be made, read or written.
    #[error("cannot {action} {}: {source}; give a folder that this process may write to", path.display())]
    Folder {
        /// What was being done.
        action: &'static str,
        /// The folder or file.
        path: PathBuf,
        /// The answer of the operating system.
        source: std::io::Error,
    },
    /// Another store has it open.
    #[error(
        "{} is in use by another store, in this process or another one; stop that one (and drop its log, applier \
         and writer handles) or give another folder",
        path.display()
    )]
    InUse {
        /// The lock file.
        path: PathBuf,
    },
    /// The data file is not one of ours.
    #[error("{} is not a store of this library: {problem}; give another folder or move the file away", path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
        /// What gives it away.
        problem: String,
    },
    /// The data file was cut off.
    #[error(
        "{} is cut off: it has {bytes} bytes and needs {needed}; put back a whole copy of the folder, or move it \
         away and start from a base copy",
        path.display()
    )]
    Truncated {
        /// The file.
        path: PathBuf,
        /// Its length.
        bytes: u64,
        /// The length that its header asks for.
        needed: u64,
    },
    /// The log in it belongs to another node.
    #[error("{} holds the log of node {stored}, not of {given}; give that name or another folder", path.display())]
    OtherNode {
        /// The folder.
        path: PathBuf,
        /// The node whose log it is.
        stored: NodeName,
        /// The node that was asked for.
        given: NodeName,
    },
    /// Another LMDB was linked into the program.
    #[error(
        "the program links another LMDB than the 0.9.24 that this store was made for (LMDB answers {found:?}); remove \
         the other LMDB crate, or switch the feature `lmdb` off and bring a store of your own"
    )]
    OtherLmdb {
        /// What gives it away.
        found: String,
    },
    /// A host's environment was opened in a way that the store cannot work with.
    #[error("the environment cannot hold a log: {problem}")]
    Environment {
        /// What has to change.
        problem: String,
    },
    /// LMDB cannot open or read the environment.
    #[error("cannot open the environment {}: {source}", path.display())]
    Store {
        /// The folder.
        path: PathBuf,
        /// Why.
        source: StoreError,
    },
    /// The writer thread cannot be started.
    #[error("cannot start the writer thread: {0}")]
    Thread(std::io::Error),
}

/// The answer of LMDB to `action`.
pub(super) fn backend(action: impl Into<String>, error: lmdb::Error) -> StoreError {
    StoreError::Backend { action: action.into(), source: Arc::new(error) }
}

/// The answer of LMDB to a write: no room is told apart by who has to make it.
pub(super) fn write_error(action: &str, error: lmdb::Error, options: &LmdbOptions) -> StoreError {
    match error {
        lmdb::Error::MapFull => StoreError::Full {
            what: "the LMDB map",
            hint: format!(
                "it has map_bytes = {} for {}; close the store and open it with a larger map_bytes",
                options.map_bytes(),
                options.path().display()
            ),
        },
        lmdb::Error::Other(NO_SPACE | OVER_QUOTA) => StoreError::Full {
            what: "the disk",
            hint: format!(
                "{} could not grow while it had to {action}; make room there and write again",
                options.path().display()
            ),
        },
        // LMDB's answer to a write that was taken in part only.
        lmdb::Error::Other(IO_ERROR) => StoreError::Full {
            what: "the disk",
            hint: format!(
                "{} could not be written in full while it had to {action}: the disk is full or failing; make room there \
                 and write again",
                options.path().display()
            ),
        },
        lmdb::Error::TxnFull => StoreError::Full {
            what: "LMDB's list of changed pages",
            hint: "one commit changed more pages than LMDB can hold; write smaller transactions".to_owned(),
        },
        other => backend(action, other),
    }
}

/// A stored value that cannot be read.
pub(super) fn unreadable(what: String, source: ProtocolError) -> StoreError {
    StoreError::Backend { action: what, source: Arc::new(source) }
}
