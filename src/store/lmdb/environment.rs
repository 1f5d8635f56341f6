//! Opening an environment so that nothing later can surprise: one opener, our file, all of it there, our LMDB.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use lmdb::{Database, DatabaseFlags, Environment, EnvironmentFlags, Transaction};

use super::error::{OpenError, backend};
use super::format;
use super::options::{Durability, LmdbOptions};

const DATA_FILE: &str = "data.mdb";
/// Written and removed at once, to see whether there is room.
const ROOM_FILE: &str = "auditstream.room";
const LOCK_FILE: &str = "auditstream.lock";
/// What the lock file holds once the first open has finished: an empty or missing data file is then a loss.
const INITIALISED: &[u8] = b"auditstream store, format 1\n";
/// More than the six databases here, for those of a host that shares the environment through `AuditTxn`.
const DATABASES_MAX: u32 = 64;

/// LMDB writes this number at the start of both meta pages.
const META_MAGIC: u32 = 0xBEEF_C0DE;
/// The data format of LMDB 0.9.
const META_VERSION: u32 = 1;
/// Bytes of a page header and the part of a meta page that is read here.
const META_BYTES: usize = 152;

/// The handles of the log's databases. They are only used with the environment they were opened in.
#[derive(Debug, Clone, Copy)]
pub(super) struct Databases {
    pub(super) log: Database,
    pub(super) meta: Database,
    pub(super) names: Database,
    pub(super) positions: Database,
    pub(super) rows: Database,
    pub(super) identities: Database,
}

impl Databases {
    /// Opens them, and makes those that are missing.
    pub(super) fn open(environment: &Environment, options: &LmdbOptions) -> Result<Self, OpenError> {
        let open = |name| open_database(environment, options, name);
        Ok(Self {
            log: open(format::LOG)?,
            meta: open(format::META)?,
            names: open(format::NAMES)?,
            positions: open(format::POSITIONS)?,
            rows: open(format::ROWS)?,
            identities: open(format::IDENTITIES)?,
        })
    }
}

fn open_database(
    environment: &Environment,
    options: &LmdbOptions,
    name: &'static str,
) -> Result<Database, OpenError> {
    let failed = |error| match error {
        lmdb::Error::DbsFull => OpenError::Environment {
            problem: format!(
                "there is no slot for the database {name}; open it with max_dbs at least 6 higher"
            ),
        },
        lmdb::Error::Incompatible => OpenError::Foreign {
            path: options.path().to_owned(),
            problem: format!("{name} cannot be opened as a named database"),
        },
        other => store_error(options, backend(format!("open the database {name}"), other)),
    };
    let database = environment.create_db(Some(name), DatabaseFlags::empty()).map_err(failed)?;
    let txn = environment.begin_ro_txn().map_err(failed)?;
    let flags = txn.db_flags(database).map_err(failed)?;
    if !flags.is_empty() {
        return Err(OpenError::Foreign {
            path: options.path().to_owned(),
            problem: format!("the database {name} has the flags {flags:?} and none were expected"),
        });
    }
    Ok(database)
}

pub(super) fn store_error(options: &LmdbOptions, source: crate::store::StoreError) -> OpenError {
    OpenError::Store { path: options.path().to_owned(), source }
}

/// Holds the folder for this store. Released when dropped, or by the operating system when the process ends.
#[derive(Debug)]
pub(super) struct FolderLock {
    file: File,
    path: PathBuf,
    fresh: bool,
}

impl FolderLock {
    /// Locks the environment at `path`: a file inside a folder, beside a single file. The lock belongs to the file
    /// and not to its name, so another spelling or a symbolic link meets the same lock.
    pub(super) fn take(path: &Path) -> Result<Self, OpenError> {
        let path = if path.is_dir() {
            path.join(LOCK_FILE)
        } else {
            let mut name = path.as_os_str().to_owned();
            name.push("-");
            name.push(LOCK_FILE);
            PathBuf::from(name)
        };
        let folder = |action, source| OpenError::Folder { action, path: path.clone(), source };
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(|error| folder("open the lock file", error))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(OpenError::InUse { path }),
            Err(TryLockError::Error(error)) => return Err(folder("lock", error)),
        }
        let mut content = Vec::new();
        Read::by_ref(&mut file)
            .take(64)
            .read_to_end(&mut content)
            .map_err(|error| folder("read the lock file", error))?;
        if !content.is_empty() && content != INITIALISED {
            return Err(OpenError::Foreign {
                path,
                problem: "its content is not that of a lock file".to_owned(),
            });
        }
        Ok(Self { file, path, fresh: content.is_empty() })
    }

    /// Whether no store was made here yet, as far as the lock file knows.
    pub(super) const fn is_fresh(&self) -> bool {
        self.fresh
    }

    /// Writes down that the store was made: from now on a missing data file is a loss.
    pub(super) fn mark_initialised(&mut self) -> Result<(), OpenError> {
        if !self.fresh {
            return Ok(());
        }
        let written = self
            .file
            .seek(SeekFrom::Start(0))
            .and_then(|_| self.file.write_all(INITIALISED))
            .and_then(|()| self.file.sync_all());
        written.map_err(|source| OpenError::Folder {
            action: "write the lock file",
            path: self.path.clone(),
            source,
        })?;
        self.fresh = false;
        Ok(())
    }
}

/// Makes the folder when it is missing.
pub(super) fn prepare_folder(path: &Path) -> Result<(), OpenError> {
    let folder = |action, source| OpenError::Folder { action, path: path.to_owned(), source };
    fs::create_dir_all(path).map_err(|error| folder("make the folder", error))?;
    let metadata = fs::metadata(path).map_err(|error| folder("read the folder", error))?;
    if !metadata.is_dir() {
        return Err(folder("use as a folder", io::Error::from(io::ErrorKind::NotADirectory)));
    }
    Ok(())
}

/// Refuses a folder whose disk has no room for LMDB's lock file. LMDB makes that file without its blocks and maps it: on a
/// full disk the first touch would end the process.
pub(super) fn check_room(options: &LmdbOptions) -> Result<(), OpenError> {
    const READER_BYTES: usize = 64;
    const SPARE_BYTES: usize = 64 * 1024;
    let path = options.path().join(ROOM_FILE);
    let zeros = vec![0; SPARE_BYTES + READER_BYTES * options.max_readers() as usize];
    let written = fs::write(&path, &zeros);
    // Whether it was made or not, it has done its work.
    let _gone = fs::remove_file(&path);
    written.map_err(|error| match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            let hint = format!(
                "{} has no room for {} bytes; make room there and open it again",
                options.path().display(),
                zeros.len()
            );
            store_error(options, crate::store::StoreError::Full { what: "the disk", hint })
        }
        _ => OpenError::Folder { action: "write in", path: options.path().to_owned(), source: error },
    })
}

/// Refuses an environment that holds somebody else's data, before anything is written into it.
pub(super) fn check_not_foreign(environment: &Environment, options: &LmdbOptions) -> Result<(), OpenError> {
    let failed = |error| store_error(options, backend("look into the environment", error));
    if environment.stat().map_err(failed)?.entries() == 0 {
        return Ok(());
    }
    match environment.open_db(Some(format::META)) {
        Ok(_) => Ok(()),
        Err(lmdb::Error::NotFound | lmdb::Error::Incompatible) => Err(OpenError::Foreign {
            path: options.path().join(DATA_FILE),
            problem: "it is an LMDB file with the data of another program".to_owned(),
        }),
        Err(error) => Err(failed(error)),
    }
}

/// Opens the environment in the folder, after its file was checked.
pub(super) fn open_environment(
    options: &LmdbOptions,
    lock: &FolderLock,
) -> Result<(Environment, DataFile), OpenError> {
    let path = options.path().join(DATA_FILE);
    check_data_file(&path, lock)?;
    let map_bytes = usize::try_from(options.map_bytes()).unwrap_or(usize::MAX);
    let durability = match options.durability() {
        Durability::Sync => EnvironmentFlags::empty(),
        Durability::NoMetaSync => EnvironmentFlags::NO_META_SYNC,
        Durability::NoSync => EnvironmentFlags::NO_SYNC,
    };
    let environment = Environment::new()
        .set_flags(EnvironmentFlags::NO_TLS | durability)
        .set_max_dbs(DATABASES_MAX)
        .set_max_readers(options.max_readers())
        .set_map_size(map_bytes)
        .open(options.path())
        .map_err(|error| opened(options, &path, error))?;
    let file = OpenOptions::new().read(true).write(true).open(&path).map_err(|source| OpenError::Folder {
        action: "open",
        path: path.clone(),
        source,
    })?;
    Ok((environment, DataFile { file, checked_page: Mutex::new(0) }))
}

fn opened(options: &LmdbOptions, path: &Path, error: lmdb::Error) -> OpenError {
    const OUT_OF_MEMORY: i32 = 12;
    match error {
        lmdb::Error::Invalid | lmdb::Error::VersionMismatch | lmdb::Error::Corrupted => {
            OpenError::Foreign { path: path.to_owned(), problem: format!("LMDB answers: {error}") }
        }
        lmdb::Error::Other(OUT_OF_MEMORY) => OpenError::Environment {
            problem: format!(
                "the address space has no room for map_bytes = {}; open it with less",
                options.map_bytes()
            ),
        },
        lmdb::Error::Other(code) => OpenError::Folder {
            action: "open the environment in",
            path: options.path().to_owned(),
            source: io::Error::from_raw_os_error(code),
        },
        other => store_error(options, backend("open the environment", other)),
    }
}

/// Judges the data file before it is mapped: a read past the end of a mapped file ends the process.
fn check_data_file(path: &Path, lock: &FolderLock) -> Result<(), OpenError> {
    let failed = |source| OpenError::Folder { action: "read", path: path.to_owned(), source };
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound && lock.fresh => return Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(OpenError::Foreign {
                path: path.to_owned(),
                problem: format!(
                    "the file is missing but {} says that there was a store; to start a new one, remove that file",
                    lock.path.display()
                ),
            });
        }
        Err(error) => return Err(failed(error)),
    };
    let bytes = file.metadata().map_err(failed)?.len();
    if bytes == 0 && lock.fresh {
        return Ok(());
    }
    let foreign = |problem: &str| OpenError::Foreign { path: path.to_owned(), problem: problem.to_owned() };
    let first = read_meta(&mut file, 0, bytes).map_err(failed)?;
    let Some(first) = first else {
        let needed = META_BYTES as u64;
        return Err(OpenError::Truncated { path: path.to_owned(), bytes, needed });
    };
    if first.magic != META_MAGIC {
        return Err(foreign("it does not begin like an LMDB file"));
    }
    if first.version != META_VERSION {
        return Err(foreign("its LMDB format is not that of LMDB 0.9"));
    }
    if !first.page_bytes.is_power_of_two() || !(512..=65_536).contains(&first.page_bytes) {
        return Err(foreign("its page size is impossible"));
    }
    let page_bytes = u64::from(first.page_bytes);
    let second = read_meta(&mut file, page_bytes, bytes).map_err(failed)?;
    let Some(second) = second else {
        return Err(OpenError::Truncated { path: path.to_owned(), bytes, needed: 2 * page_bytes });
    };
    if second.magic != META_MAGIC || second.version != META_VERSION {
        return Err(foreign("its second meta page is damaged"));
    }
    let newest = if second.transaction > first.transaction { second } else { first };
    let needed = newest.last_page.saturating_add(1).saturating_mul(page_bytes);
    if bytes < needed {
        return Err(OpenError::Truncated { path: path.to_owned(), bytes, needed });
    }
    Ok(())
}

/// What is read of a meta page. LMDB writes it in the machine's own byte order.
struct Meta {
    magic: u32,
    version: u32,
    page_bytes: u32,
    last_page: u64,
    transaction: u64,
}

fn read_meta(file: &mut File, offset: u64, file_bytes: u64) -> io::Result<Option<Meta>> {
    if file_bytes < offset + META_BYTES as u64 {
        return Ok(None);
    }
    let mut page = [0; META_BYTES];
    file.seek(SeekFrom::Start(offset))?;
    file.read_exact(&mut page)?;
    let word = |at: usize| u32::from_ne_bytes([page[at], page[at + 1], page[at + 2], page[at + 3]]);
    let long = |at: usize| {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&page[at..at + 8]);
        u64::from_ne_bytes(bytes)
    };
    Ok(Some(Meta {
        magic: word(16),
        version: word(20),
        page_bytes: word(40),
        last_page: long(136),
        transaction: long(144),
    }))
}

/// The data file, kept open to hold its length up.
///
/// LMDB may leave the last pages of a commit unwritten when they are free, and the file is then shorter than its
/// header says. A cut-off file could not be told from that one, so the missing pages are added.
#[derive(Debug)]
pub(super) struct DataFile {
    file: File,
    checked_page: Mutex<usize>,
}

impl DataFile {
    /// Makes the file as long as its header says. The caller holds LMDB's write lock, so nobody else changes it.
    pub(super) fn hold_length(&self, environment: &Environment) -> io::Result<()> {
        let last_page = environment.info().map_err(io::Error::other)?.last_pgno();
        let mut checked = self.checked_page.lock().unwrap_or_else(PoisonError::into_inner);
        if *checked >= last_page {
            return Ok(());
        }
        let page_bytes = environment.stat().map_err(io::Error::other)?.page_size();
        let needed = (last_page as u64 + 1) * u64::from(page_bytes);
        if self.file.metadata()?.len() < needed {
            self.file.set_len(needed)?;
        }
        *checked = last_page;
        Ok(())
    }
}

/// Refuses another LMDB than the one the wrapper was made for.
///
/// The wrapper has no safe call for `mdb_version()`. Two LMDBs in one program link without a word, and the other
/// one in use (0.9.70, in `heed`) knows an error number that 0.9.24 does not: its text gives it away.
pub(super) fn check_lmdb() -> Result<(), OpenError> {
    const PROBLEM_OF_LATER_LMDB: i32 = -30779;
    let found = lmdb::Error::Other(PROBLEM_OF_LATER_LMDB).to_string();
    if found.starts_with("MDB_") { Err(OpenError::OtherLmdb { found }) } else { Ok(()) }
}

/// Refuses a host's environment that ties read transactions to threads.
pub(super) fn check_host_environment(environment: &Environment) -> Result<(), OpenError> {
    let both =
        environment.begin_ro_txn().and_then(|first| environment.begin_ro_txn().map(|second| (first, second)));
    match both {
        Ok(_) => Ok(()),
        Err(lmdb::Error::BadRslot) => Err(OpenError::Environment {
            problem: "it ties read transactions to threads; open it with NO_TLS".to_owned(),
        }),
        Err(error) => Err(OpenError::Environment { problem: format!("a read transaction fails: {error}") }),
    }
}
