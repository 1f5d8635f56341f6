//! Reading the LMDB log: short snapshots, many readers, damage that is named.

#![cfg(feature = "lmdb")]

mod lmdb_support;

use std::fs;
use std::ops::ControlFlow;
use std::sync::Arc;

use auditstream::protocol::{Entry, Sequence};
use auditstream::store::lmdb::LmdbStore;
use auditstream::store::{Applier as _, AuditLog, BoundaryAt, ScanEnd, StoreError};
use bytes::Bytes;
use lmdb::{Environment, EnvironmentFlags, Transaction as _, WriteFlags};
use lmdb_support::{Folder, block_on, clock, name, table, write};

/// A store inside an environment that the test can look into.
fn shared(folder: &Folder) -> (Arc<Environment>, LmdbStore) {
    fs::create_dir(folder.path()).expect("a folder");
    let mut builder = Environment::new();
    builder
        .set_flags(EnvironmentFlags::NO_TLS | EnvironmentFlags::NO_SYNC)
        .set_max_dbs(16)
        .set_max_readers(200);
    let environment = Arc::new(builder.set_map_size(256 << 20).open(&folder.path()).expect("an environment"));
    let options = folder.options("a").build().expect("options");
    let store = LmdbStore::with_environment(Arc::clone(&environment), options, clock()).expect("opened");
    (environment, store)
}

/// Overwrites the same ten rows again and again.
fn overwrite(store: &LmdbStore, mut between: impl FnMut()) {
    let things = store.define_table(&table("things"), Bytes::new()).expect("defined");
    for number in 0..300_u32 {
        let key = (number % 10).to_be_bytes().to_vec();
        let ticket = store.writer().enqueue(vec![Entry::put(things, key, vec![7; 100])]).expect("enqueued");
        block_on(ticket.durable()).expect("durable");
        between();
    }
}

#[test]
fn a_blocked_peer_pins_no_pages() {
    let (free, held) = (Folder::new(), Folder::new());
    let (environment, store) = shared(&free);
    let log = store.log();
    let mut position = Sequence::ZERO;
    overwrite(&store, || {
        // A peer that takes one segment and then cannot write.
        let end = log.scan(position, &mut |segment| {
            position = segment.header().last;
            ControlFlow::Break(())
        });
        assert_eq!(end.expect("scanned"), ScanEnd::Stopped);
    });
    let pages = environment.info().expect("info").last_pgno();
    let (environment, store) = shared(&held);
    let _reader = environment.begin_ro_txn().expect("a reader that stays open");
    overwrite(&store, || {});
    let pinned = environment.info().expect("info").last_pgno();
    // The log itself grows in both; a reader that stays open keeps every version of every page.
    assert!(pages * 10 < pinned, "{pages} pages, {pinned} with a reader that stays open");
}

#[test]
fn sixty_four_subscribers_on_two_threads_share_a_few_reader_slots() {
    let folder = Folder::new();
    let (environment, store) = shared(&folder);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().expect("a runtime");
    write(&store, 50, 100);
    let readers: Vec<_> = (0..64)
        .map(|_| {
            let log = store.log();
            runtime.spawn(async move {
                let mut position = Sequence::ZERO;
                while position < Sequence::new(100) {
                    log.scan(position, &mut |segment| {
                        position = segment.header().last;
                        // A second read transaction on the same thread, while the first one is open.
                        let at = log.boundary_at(position).expect("a slot");
                        assert!(matches!(at, BoundaryAt::Boundary(_)));
                        ControlFlow::Break(())
                    })
                    .expect("a slot");
                    tokio::task::yield_now().await;
                }
            })
        })
        .collect();
    write(&store, 50, 100);
    for reader in readers {
        runtime.block_on(reader).expect("no error");
    }
    let slots = environment.info().expect("info").num_readers();
    assert!(slots <= 8, "{slots} reader slots");
}

#[test]
fn holes_pruned_entries_and_damaged_segments_are_told_apart() {
    let folder = Folder::new();
    let (environment, store) = shared(&folder);
    write(&store, 10, 100);
    let log = store.log();
    let segments = environment.open_db(Some("auditstream.log")).expect("the log");
    let change = |key: u64, value: Option<&[u8]>| {
        let mut txn = environment.begin_rw_txn().expect("a transaction");
        match value {
            Some(value) => txn.put(segments, &key.to_be_bytes(), &value, WriteFlags::empty()).expect("put"),
            None => txn.del(segments, &key.to_be_bytes(), None).expect("deleted"),
        }
        txn.commit().expect("committed");
    };
    let scan = |after: u64| log.scan(Sequence::new(after), &mut |_| ControlFlow::Continue(()));
    assert_eq!(scan(0).expect("whole"), ScanEnd::Drained);

    change(1, None);
    change(2, None);
    assert_eq!(log.oldest().expect("oldest"), Sequence::new(2));
    let error = scan(1).expect_err("pruned");
    let pruned =
        matches!(error, StoreError::Pruned { after, oldest } if after.get() == 1 && oldest.get() == 2);
    assert!(pruned, "{error}");
    assert_eq!(scan(2).expect("what is left"), ScanEnd::Drained);
    assert_eq!(log.boundary_at(Sequence::ZERO).expect("read"), BoundaryAt::Pruned);
    assert_eq!(log.boundary_at(Sequence::new(2)).expect("read"), BoundaryAt::Pruned);
    assert!(matches!(log.boundary_at(Sequence::new(3)).expect("read"), BoundaryAt::Boundary(_)));

    change(8, None);
    for after in [2, 7] {
        let error = scan(after).expect_err("a hole");
        assert!(matches!(error, StoreError::Hole { found, .. } if found.get() == 9), "{error}");
    }
    assert!(matches!(log.boundary_at(Sequence::new(8)), Err(StoreError::Hole { .. })));
    assert_eq!(scan(8).expect("after the hole"), ScanEnd::Drained);

    change(5, Some(b"damaged"));
    let error = scan(3).expect_err("corrupt");
    assert!(matches!(error, StoreError::Corrupt { key, .. } if key.get() == 5), "{error}");
    assert!(error.to_string().contains("segment at 5"), "{error}");

    change(10, None);
    assert!(matches!(scan(8), Err(StoreError::Hole { found, .. }) if found.get() == 10), "a lost end");
}

#[test]
fn a_position_that_cannot_be_read_is_an_error_and_never_none() {
    let folder = Folder::new();
    let (environment, store) = shared(&folder);
    assert_eq!(store.applier().source_state(&name("b")).expect("read"), None);
    let positions = environment.open_db(Some("auditstream.positions")).expect("positions");
    let mut txn = environment.begin_rw_txn().expect("a transaction");
    txn.put(positions, b"b", b"not a position", WriteFlags::empty()).expect("put");
    txn.commit().expect("committed");
    let error = store.applier().source_state(&name("b")).expect_err("unreadable").to_string();
    assert!(error.contains("stored position of b is corrupt"), "{error}");
}
