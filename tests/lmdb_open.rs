//! Opening the LMDB store: who else has it, whose files they are, whether they are whole, and how it was left.

#![cfg(feature = "lmdb")]

mod lmdb_support;

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use auditstream::protocol::{Entry, LogId, Sequence};
use auditstream::store::lmdb::{Durability, LmdbStore, OpenError};
use auditstream::store::{AuditLog as _, StoreError};
use bytes::Bytes;
use lmdb_support::{Folder, block_on, clock, options, table, write};

fn open(path: &Path) -> Result<LmdbStore, OpenError> {
    LmdbStore::open(options("a", path.to_owned()).build().expect("options"), clock())
}

fn refused(path: &Path) -> String {
    match open(path) {
        Ok(_) => panic!("{} was opened", path.display()),
        Err(error) => error.to_string(),
    }
}

#[test]
fn a_second_open_is_refused_however_the_path_is_spelled() {
    let folder = Folder::new();
    let store = folder.open("a");
    let link = folder.dir.path().join("link");
    std::os::unix::fs::symlink(folder.path(), &link).expect("a link");
    for path in [folder.path(), folder.path().join("../store"), folder.path().join("."), link.clone()] {
        assert!(matches!(open(&path), Err(OpenError::InUse { .. })), "{}", path.display());
        assert!(refused(&path).contains("is in use"), "{}", path.display());
    }
    let log = store.log();
    store.close().expect("closed");
    assert!(
        matches!(open(&link), Err(OpenError::InUse { .. })),
        "a log handle still reads from the environment"
    );
    drop(log);
    open(&link).expect("free again");
}

#[test]
fn a_foreign_file_is_refused_and_left_as_it_is() {
    let folder = Folder::new();
    fs::create_dir(folder.path()).expect("a folder");
    let data = folder.path().join("data.mdb");
    for content in [vec![0_u8; 20_000], b"just a text\n".repeat(1000), vec![0xff; 8192]] {
        fs::write(&data, &content).expect("written");
        let error = refused(&folder.path());
        assert!(error.contains("data.mdb") && error.contains("is not a store"), "{error}");
        assert!(fs::read(&data).expect("read") == content, "the file was changed");
    }
    fs::write(&data, b"short").expect("written");
    let error = refused(&folder.path());
    assert!(error.contains("is cut off: it has 5 bytes"), "{error}");
}

#[test]
fn a_data_file_that_was_cut_off_anywhere_is_refused_before_it_is_mapped() {
    let folder = Folder::new();
    let store = folder.open("a");
    write(&store, 20, 10_000);
    store.close().expect("closed");
    let data = folder.path().join("data.mdb");
    let whole = fs::read(&data).expect("read");
    assert!(whole.len() > 200_000, "{}", whole.len());
    let cuts = (0..whole.len()).step_by(4096).chain([1, 100, 151, 4100, whole.len() - 1]);
    for cut in cuts {
        fs::write(&data, &whole[..cut]).expect("written");
        match open(&folder.path()) {
            Err(OpenError::Truncated { bytes, needed, .. }) => assert!(bytes == cut as u64 && needed > bytes),
            other => panic!("cut at {cut}: {other:?}"),
        }
    }
    fs::remove_file(&data).expect("removed");
    let error = refused(&folder.path());
    assert!(error.contains("the file is missing"), "{error}");
    fs::write(&data, &whole).expect("written");
    let store = open(&folder.path()).expect("whole again");
    assert_eq!(store.log().head(), Sequence::new(20));
}

#[test]
fn a_folder_that_cannot_be_used_is_named() {
    let folder = Folder::new();
    let file = folder.dir.path().join("file");
    fs::write(&file, b"x").expect("written");
    for path in [file.clone(), file.join("store")] {
        let error = refused(&path);
        assert!(error.contains(&path.display().to_string()) && error.contains("give a folder"), "{error}");
    }
    fs::create_dir_all(folder.path().join("auditstream.lock")).expect("a folder in the way");
    let error = refused(&folder.path());
    assert!(error.contains("open the lock file") && error.contains("auditstream.lock"), "{error}");
    let folder = Folder::new();
    fs::create_dir(folder.path()).expect("a folder");
    fs::write(folder.path().join("auditstream.lock"), b"somebody else's").expect("written");
    assert!(refused(&folder.path()).contains("is not a store"));
}

#[test]
fn the_log_of_another_node_is_refused() {
    let folder = Folder::new();
    folder.open("b").close().expect("closed");
    let error = refused(&folder.path());
    assert!(error.contains("holds the log of node b, not of a"), "{error}");
}

/// Leaves a store open and copies its file: what a killed process leaves behind.
fn killed(durability: Durability) -> (Folder, LogId) {
    let (folder, copy) = (Folder::new(), Folder::new());
    let built = folder.options("a").durability(durability).build().expect("options");
    let store = LmdbStore::open(built, clock()).expect("opened");
    write(&store, 3, 10);
    fs::create_dir(copy.path()).expect("a folder");
    fs::copy(folder.path().join("data.mdb"), copy.path().join("data.mdb")).expect("copied");
    (copy, store.log().log_id())
}

#[test]
fn an_unclean_log_below_sync_gets_a_new_identity_and_says_where_it_forked() {
    for durability in [Durability::NoSync, Durability::NoMetaSync] {
        let (folder, old) = killed(durability);
        // The level of the session that was not closed counts, not that of the next one.
        let store = folder.open("a");
        let status = store.status().expect("status");
        assert_ne!(status.log_id, old);
        let fork = status.fork.expect("a fork point");
        assert_eq!((fork.log, fork.sequence), (old, Sequence::new(3)));
        write(&store, 1, 10);
        assert_eq!(store.log().head(), Sequence::new(4));
        let new = status.log_id;
        store.close().expect("closed");
        let again = folder.open("a").status().expect("status");
        assert_eq!((again.log_id, again.fork), (new, Some(fork)));
    }
}

#[test]
fn an_unclean_log_under_sync_and_a_closed_one_keep_their_identity() {
    let (folder, old) = killed(Durability::Sync);
    let store = folder.open("a");
    assert_eq!((store.log().log_id(), store.status().expect("status").fork), (old, None));
    store.close().expect("closed");
    let folder = Folder::new();
    let built = || folder.options("a").durability(Durability::NoSync).build().expect("options");
    let store = LmdbStore::open(built(), clock()).expect("opened");
    let old = store.log().log_id();
    // Dropping the last handle closes it too.
    drop(store);
    let store = LmdbStore::open(built(), clock()).expect("opened");
    assert_eq!(store.log().log_id(), old);
}

#[test]
fn two_new_logs_have_different_identities() {
    let (one, two) = (Folder::new(), Folder::new());
    assert_ne!(one.open("a").log().log_id(), two.open("a").log().log_id());
}

#[test]
fn everything_is_there_again_and_versions_rise_though_the_clock_stepped_back() {
    let folder = Folder::new();
    let store = folder.open("a");
    let users = store.define_table(&table("users"), Bytes::from_static(b"v1")).expect("defined");
    store.define_table(&table("users"), Bytes::from_static(b"v2")).expect("changed");
    let ticket = store.writer().enqueue(vec![Entry::put(users, "k", "before")]).expect("enqueued");
    let before = block_on(ticket.durable()).expect("durable");
    store.close().expect("closed");
    let late = clock();
    late.wall_ms.fetch_sub(3_600_000, Ordering::Relaxed);
    let store = LmdbStore::open(folder.options("a").build().expect("options"), late).expect("opened");
    assert_eq!(store.table_id(&table("users")), Some(users));
    assert_eq!(store.tables().first().map(|(_, users)| users.version), Some(2));
    assert_eq!(store.rows().get(&users, b"k").expect("read").map(|row| row.value), Some(b"before".to_vec()));
    let ticket = store.writer().enqueue(vec![Entry::put(users, "k", "after")]).expect("enqueued");
    let after = block_on(ticket.durable()).expect("durable");
    assert!(after.stamp.version > before.stamp.version && after.sequence > before.sequence);
}

#[test]
fn a_full_map_is_named_and_a_larger_one_goes_on() {
    let folder = Folder::new();
    let built = |bytes| folder.options("a").map_bytes(bytes).build().expect("options");
    let store = LmdbStore::open(built(4 * 1024 * 1024), clock()).expect("opened");
    let users = store.define_table(&table("users"), Bytes::new()).expect("defined");
    let big = |key: u64| vec![Entry::put(users, key.to_be_bytes().to_vec(), vec![1_u8; 100_000])];
    let mut written = 0;
    let error = loop {
        let ticket = store.writer().enqueue(big(written)).expect("enqueued");
        match block_on(ticket.durable()) {
            Ok(_) => written += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(error, StoreError::Full { .. }) && error.is_transient(), "{error}");
    assert!(error.to_string().contains("map_bytes = 4194304"), "{error}");
    assert!(written > 5, "{written}");
    assert_eq!(store.log().head(), Sequence::new(written), "a refused transaction moved the head");
    store.close().expect("closed");
    let store = LmdbStore::open(built(16 * 1024 * 1024), clock()).expect("opened");
    let ticket = store.writer().enqueue(big(written)).expect("enqueued");
    assert_eq!(block_on(ticket.durable()).expect("room").sequence, Sequence::new(written + 1));
}

#[test]
fn a_host_environment_is_checked_and_shared() {
    use lmdb::{Environment, EnvironmentFlags, Transaction, WriteFlags};
    let folder = Folder::new();
    fs::create_dir(folder.path()).expect("a folder");
    let environment = |flags, databases| {
        let mut builder = Environment::new();
        builder.set_flags(flags).set_max_dbs(databases).set_map_size(64 * 1024 * 1024);
        Arc::new(builder.open(&folder.path()).expect("an environment"))
    };
    let options = || folder.options("a").build().expect("options");
    let bound = environment(EnvironmentFlags::empty(), 10);
    let error = LmdbStore::with_environment(Arc::clone(&bound), options(), clock()).expect_err("refused");
    assert!(error.to_string().contains("NO_TLS"), "{error}");
    drop(bound);
    let small = environment(EnvironmentFlags::NO_TLS, 3);
    let error = LmdbStore::with_environment(Arc::clone(&small), options(), clock()).expect_err("refused");
    assert!(error.to_string().contains("max_dbs"), "{error}");
    drop(small);
    let shared = environment(EnvironmentFlags::NO_TLS, 10);
    let own = shared.create_db(Some("accounts"), lmdb::DatabaseFlags::empty()).expect("a table of the host");
    let store = LmdbStore::with_environment(Arc::clone(&shared), options(), clock()).expect("opened");
    let accounts = store.define_table(&table("accounts"), Bytes::new()).expect("defined");
    let mut txn = store.begin().expect("begun");
    txn.put(own, b"anna", b"10", WriteFlags::empty()).expect("put");
    txn.append(Entry::put(accounts, "anna", "10")).expect("appended");
    let boundary = txn.commit().expect("committed").expect("a transaction");
    assert_eq!((boundary.sequence, store.log().head()), (Sequence::new(1), Sequence::new(1)));
    let read = shared.begin_ro_txn().expect("a read transaction");
    assert_eq!(read.get(own, b"anna").expect("there"), b"10");
}

#[test]
fn an_environment_with_the_data_of_another_program_is_refused_and_left_as_it_is() {
    for name in [None, Some("things"), Some("log")] {
        let folder = Folder::new();
        fs::create_dir(folder.path()).expect("a folder");
        let foreign = lmdb::Environment::new().set_max_dbs(4).open(&folder.path()).expect("an environment");
        let database = foreign.create_db(name, lmdb::DatabaseFlags::empty()).expect("a database");
        let mut txn = foreign.begin_rw_txn().expect("a transaction");
        txn.put(database, b"key", b"value", lmdb::WriteFlags::empty()).expect("written");
        lmdb::Transaction::commit(txn).expect("committed");
        drop(foreign);
        let data = folder.path().join("data.mdb");
        let content = fs::read(&data).expect("read");
        let error = refused(&folder.path());
        assert!(error.contains("data.mdb") && error.contains("of another program"), "{error}");
        assert!(fs::read(&data).expect("read") == content, "the file was changed");
    }
}
