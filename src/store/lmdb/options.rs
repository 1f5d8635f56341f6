//! What a store is opened with.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::protocol::NodeName;
use crate::store::Limits;

/// Smallest map, in bytes: room for the format's own databases and one full commit.
const MAP_BYTES_MIN: u64 = 4 * 1024 * 1024;
/// The map is cut to whole pages of this many bytes; every usual page size divides it.
const MAP_GRAIN_BYTES: u64 = 64 * 1024;
/// LMDB's reader table costs 64 bytes per slot; more slots than this are a typing error.
const MAX_READERS_MAX: u32 = 65_536;

/// What survives a crash after a commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Durability {
    /// Every commit is on disk before it is answered. Senders read up to the last synced sequence.
    #[default]
    Sync,
    /// The data of a commit is on disk, its page of metadata one commit later: a crash of the machine may undo
    /// the last commit.
    NoMetaSync,
    /// The operating system writes when it likes: a crash of the process loses nothing, one of the machine the
    /// last commits, and may damage the file.
    NoSync,
}

impl Durability {
    pub(super) const fn code(self) -> u8 {
        match self {
            Self::Sync => 1,
            Self::NoMetaSync => 2,
            Self::NoSync => 3,
        }
    }
}

impl fmt::Display for Durability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sync => "sync",
            Self::NoMetaSync => "nometasync",
            Self::NoSync => "nosync",
        })
    }
}

impl FromStr for Durability {
    type Err = OptionsError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "sync" => Ok(Self::Sync),
            "nometasync" => Ok(Self::NoMetaSync),
            "nosync" => Ok(Self::NoSync),
            other => Err(OptionsError::Durability(other.to_owned())),
        }
    }
}

/// A setting that no store can be opened with.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OptionsError {
    /// Not the name of a durability level.
    #[error("durability {0:?} is unknown; use sync, nometasync or nosync")]
    Durability(String),
    /// A number is outside its range.
    #[error("{setting} is {value}, it must be {least} to {most}")]
    Range {
        /// The setting.
        setting: &'static str,
        /// Its value.
        value: u64,
        /// The smallest value.
        least: u64,
        /// The largest value.
        most: u64,
    },
}

/// What a store is opened with; made by [`LmdbOptions::builder`] and checked there.
#[derive(Debug, Clone)]
pub struct LmdbOptions {
    node: NodeName,
    path: PathBuf,
    durability: Durability,
    map_bytes: u64,
    max_readers: u32,
    limits: Limits,
    queue_records: usize,
    queue_bytes: usize,
}

impl LmdbOptions {
    /// Options for the log of `node` in the folder `path`, everything else at its default.
    #[must_use]
    pub fn builder(node: NodeName, path: impl Into<PathBuf>) -> LmdbOptionsBuilder {
        LmdbOptionsBuilder {
            options: Self {
                node,
                path: path.into(),
                durability: Durability::Sync,
                map_bytes: 64 * 1024 * 1024 * 1024,
                max_readers: 1024,
                limits: Limits::default(),
                queue_records: 20_000,
                queue_bytes: 64 * 1024 * 1024,
            },
        }
    }

    /// The node whose log it is.
    #[must_use]
    pub const fn node(&self) -> &NodeName {
        &self.node
    }

    /// The folder of the environment.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What survives a crash.
    #[must_use]
    pub const fn durability(&self) -> Durability {
        self.durability
    }

    /// Size of the map in bytes.
    #[must_use]
    pub const fn map_bytes(&self) -> u64 {
        self.map_bytes
    }

    /// Most read transactions at the same time.
    #[must_use]
    pub const fn max_readers(&self) -> u32 {
        self.max_readers
    }

    /// The largest entries and transactions.
    #[must_use]
    pub const fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Most entries that wait in the writer's queue.
    #[must_use]
    pub const fn queue_records(&self) -> usize {
        self.queue_records
    }

    /// Most bytes that wait in the writer's queue.
    #[must_use]
    pub const fn queue_bytes(&self) -> usize {
        self.queue_bytes
    }
}

/// Sets options one by one; [`Self::build`] checks them.
#[derive(Debug, Clone)]
pub struct LmdbOptionsBuilder {
    options: LmdbOptions,
}

impl LmdbOptionsBuilder {
    /// What survives a crash. Default [`Durability::Sync`]. With a host's own environment: what the host opened it
    /// with.
    #[must_use]
    pub const fn durability(mut self, durability: Durability) -> Self {
        self.options.durability = durability;
        self
    }

    /// Size of the map in bytes, cut to a multiple of 64 KiB. Default 64 GiB: the file is sparse and grows as needed,
    /// so the size costs address space only, and it cannot change while the environment is open.
    #[must_use]
    pub const fn map_bytes(mut self, bytes: u64) -> Self {
        self.options.map_bytes = bytes;
        self
    }

    /// Most read transactions at the same time. Default 1,024: every one is short, so threads count, not peers, and
    /// a slot costs 64 bytes.
    #[must_use]
    pub const fn max_readers(mut self, readers: u32) -> Self {
        self.options.max_readers = readers;
        self
    }

    /// The largest entries and transactions that the log takes.
    #[must_use]
    pub const fn limits(mut self, limits: Limits) -> Self {
        self.options.limits = limits;
        self
    }

    /// Most own entries that wait for the writer thread. Default 20,000: more than ten full commits, and two of the
    /// largest transactions.
    #[must_use]
    pub const fn queue_records(mut self, records: usize) -> Self {
        self.options.queue_records = records;
        self
    }

    /// Most bytes of own entries that wait for the writer thread. Default 64 MiB: two of the largest transactions.
    #[must_use]
    pub const fn queue_bytes(mut self, bytes: usize) -> Self {
        self.options.queue_bytes = bytes;
        self
    }

    /// Checks the settings.
    ///
    /// # Errors
    /// The first one that is outside its range, with the range.
    pub fn build(mut self) -> Result<LmdbOptions, OptionsError> {
        let options = &mut self.options;
        let map_most = u64::try_from(isize::MAX).unwrap_or(u64::MAX);
        check("map_bytes", options.map_bytes, MAP_BYTES_MIN, map_most)?;
        options.map_bytes -= options.map_bytes % MAP_GRAIN_BYTES;
        check("max_readers", u64::from(options.max_readers), 1, u64::from(MAX_READERS_MAX))?;
        check("queue_records", options.queue_records as u64, 1, u64::from(u32::MAX))?;
        check("queue_bytes", options.queue_bytes as u64, 1, u64::MAX)?;
        Ok(self.options)
    }
}

const fn check(setting: &'static str, value: u64, least: u64, most: u64) -> Result<(), OptionsError> {
    if value < least || value > most {
        return Err(OptionsError::Range { setting, value, least, most });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durability_is_written_as_it_is_read() {
        for level in [Durability::Sync, Durability::NoMetaSync, Durability::NoSync] {
            assert_eq!(level.to_string().parse(), Ok(level));
        }
        let error = "fast".parse::<Durability>().expect_err("refused").to_string();
        assert!(error.contains("fast") && error.contains("nosync"), "{error}");
    }

    #[test]
    fn settings_outside_their_range_are_refused_by_name() {
        let options = |path: &str| LmdbOptions::builder(NodeName::new("a").expect("a name"), path);
        let error = options("x").map_bytes(1).build().expect_err("too small").to_string();
        assert!(error.contains("map_bytes is 1"), "{error}");
        let error = options("x").queue_records(0).build().expect_err("too small").to_string();
        assert!(error.contains("queue_records is 0"), "{error}");
        let cut = options("x").map_bytes(MAP_BYTES_MIN + 5).build().expect("fits");
        assert_eq!(cut.map_bytes(), MAP_BYTES_MIN);
    }
}
