//! Own writes to the LMDB store: tickets, merged commits, limits, a host's transactions.

#![cfg(feature = "lmdb")]

mod lmdb_support;

use std::future::Future;
use std::ops::ControlFlow;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::thread;

use auditstream::protocol::limits::{ENTRY_KEY_BYTES_MAX, ENTRY_VALUE_BYTES_MAX, TRANSACTION_ENTRIES_MAX};
use auditstream::protocol::{Entry, EntryKind, Sequence, TableId};
use auditstream::store::lmdb::{EnqueueError, LmdbStore, Ticket};
use auditstream::store::{AuditLog as _, StoreError};
use bytes::Bytes;
use lmdb_support::{Folder, block_on, clock, name, table, write};

fn users(store: &LmdbStore) -> TableId {
    store.define_table(&table("users"), Bytes::from_static(b"v1")).expect("defined")
}

fn commits(store: &LmdbStore) -> u64 {
    store.status().expect("status").commits
}

fn one(table: TableId, key: u32) -> Vec<Entry> {
    vec![Entry::put(table, key.to_be_bytes().to_vec(), "value")]
}

/// Sequences and entry counts of the transactions in the log.
fn transactions(store: &LmdbStore) -> Vec<(u64, u32)> {
    let mut found = Vec::new();
    let scanned = store.log().scan(Sequence::ZERO, &mut |segment| {
        segment.verify().expect("whole");
        let transactions = segment.transactions().map(|transaction| transaction.expect("readable").header);
        found.extend(transactions.map(|header| (header.first.get(), header.total_entries)));
        ControlFlow::Continue(())
    });
    scanned.expect("scanned");
    found
}

#[test]
fn a_ticket_answers_with_the_position_and_the_rows_are_there() {
    let folder = Folder::new();
    let store = folder.open("a");
    let users = users(&store);
    let entries =
        vec![Entry::put(users, "k1", "one"), Entry::put(users, "k2", "two"), Entry::delete(users, "k1")];
    let ticket = store.writer().enqueue(entries).expect("enqueued");
    let boundary = block_on(ticket.durable()).expect("durable");
    assert_eq!((boundary.sequence, ticket.position()), (Sequence::new(3), Some(Sequence::new(3))));
    assert_eq!(block_on(ticket.durable()).expect("the answer stays"), boundary);
    let row = store.rows().get(&table("users"), b"k2").expect("read").expect("there");
    assert_eq!((row.value.as_slice(), row.deleted, row.origin), (&b"two"[..], false, name("a")));
    assert_eq!(row.version, boundary.stamp.version);
    let gone = store.rows().get(&users, b"k1").expect("read").expect("a tombstone");
    assert!(gone.deleted && gone.value.is_empty());
    assert_eq!(store.rows().get(&users, &[0; 600]).expect("read"), None);
    store.close().expect("closed");
}

#[test]
fn a_lone_writer_gets_a_commit_for_each_transaction_and_waiting_ones_share_one() {
    let folder = Folder::new();
    let store = folder.open("a");
    write(&store, 1, 10);
    let (users, before) = (users(&store), commits(&store));
    for key in 0..10 {
        let ticket = store.writer().enqueue(one(users, key)).expect("enqueued");
        block_on(ticket.durable()).expect("durable");
    }
    assert_eq!(commits(&store) - before, 10);
    // While the host holds the write lock, everything that is enqueued has to wait.
    let held = store.begin().expect("begun");
    let before = commits(&store);
    let tickets: Vec<Ticket> =
        (0..1000).map(|key| store.writer().enqueue(one(users, key)).expect("enqueued")).collect();
    assert!(tickets.iter().all(|ticket| ticket.position().is_none()));
    drop(held);
    let ends: Vec<u64> =
        tickets.iter().map(|ticket| block_on(ticket.durable()).expect("durable").sequence.get()).collect();
    assert_eq!(ends, (12..1012).collect::<Vec<u64>>(), "in the order of the calls");
    let commits = commits(&store) - before;
    // The writer thread may have taken the first ones before the rest came.
    assert!((1..=2).contains(&commits), "{commits} commits");
}

#[test]
fn whatever_is_over_a_limit_is_refused_by_name_and_size() {
    let folder = Folder::new();
    let store = folder.open("a");
    let users = users(&store);
    let put = |key: usize, value: usize| Entry::put(users, vec![b'k'; key], vec![b'v'; value]);
    let many = vec![put(1, 0); TRANSACTION_ENTRIES_MAX + 1];
    let heavy = vec![put(1, ENTRY_VALUE_BYTES_MAX); 210];
    for (entries, words) in [
        (Vec::new(), vec!["no entries"]),
        (vec![put(1, 1), put(0, 1)], vec!["key of entry 1", "0 bytes"]),
        (vec![put(ENTRY_KEY_BYTES_MAX + 1, 1)], vec!["key of entry 0", "481", "480"]),
        (vec![put(1, ENTRY_VALUE_BYTES_MAX + 1)], vec!["value of entry 0", "163841", "163840"]),
        (many, vec!["10001 entries", "10000"]),
        (heavy, vec!["34410810 bytes", "33554432"]),
        (vec![put(1, 1), Entry::put(TableId(77), "k", "v")], vec!["entry 1", "table id 77", "define_table"]),
    ] {
        let error = store.writer().enqueue(entries).expect_err("refused");
        let text = error.to_string();
        assert!(words.iter().all(|word| text.contains(word)) && !error.is_transient(), "{text}");
    }
    let mut txn = store.begin().expect("begun");
    txn.append(put(1, 1)).expect("appended");
    let error = txn.append(put(481, 1)).expect_err("refused").to_string();
    assert!(error.contains("key of entry 1"), "{error}");
    assert!(txn.append(Entry::put(TableId(77), "k", "v")).is_err());
    assert_eq!(txn.commit().expect("committed").map(|end| end.sequence), Some(Sequence::new(1)));
    let largest = vec![put(ENTRY_KEY_BYTES_MAX, ENTRY_VALUE_BYTES_MAX)];
    block_on(store.writer().enqueue(largest).expect("fits").durable()).expect("durable");
}

#[test]
fn a_full_queue_hands_the_entries_back_or_waits_for_room() {
    let folder = Folder::new();
    let options = folder.options("a").queue_records(3).build().expect("options");
    let store = LmdbStore::open(options, clock()).expect("opened");
    let users = users(&store);
    let writer = store.writer();
    let held = store.begin().expect("begun");
    let mut tickets = vec![writer.enqueue(one(users, 1)).expect("enqueued")];
    // The writer thread takes the first one and then waits for the lock: from here on nothing leaves the queue.
    while store.status().expect("status").queue_records > 0 {
        thread::yield_now();
    }
    tickets.extend((0..3).map(|_| writer.enqueue(one(users, 1)).expect("enqueued")));
    let refused = writer.enqueue(one(users, 1)).expect_err("full");
    assert!(refused.is_transient() && refused.to_string().contains("queue_records"), "{refused}");
    let EnqueueError::Full { entries, .. } = refused else { panic!("{refused}") };
    assert_eq!(entries, one(users, 1));
    let mut nobody = Context::from_waker(Waker::noop());
    let mut dropped = Box::pin(writer.enqueue_or_wait(one(users, 2)));
    assert!(dropped.as_mut().poll(&mut nobody).is_pending());
    drop(dropped);
    let mut waiting = pin!(writer.enqueue_or_wait(one(users, 3)));
    assert!(matches!(waiting.as_mut().poll(&mut nobody), Poll::Pending));
    drop(held);
    let ticket = block_on(waiting).expect("room");
    block_on(ticket.durable()).expect("durable");
    assert_eq!(transactions(&store).len(), tickets.len() + 1, "a dropped wait was enqueued all the same");
    assert_eq!(store.rows().get(&users, &2_u32.to_be_bytes()).expect("read"), None);
}

#[test]
fn an_aborted_transaction_leaves_no_hole_and_several_appends_are_one_transaction() {
    let folder = Folder::new();
    let store = folder.open("a");
    let users = users(&store);
    write(&store, 1, 10);
    let mut aborted = store.begin().expect("begun");
    aborted.append(Entry::put(users, "gone", "x")).expect("appended");
    drop(aborted);
    let mut txn = store.begin().expect("begun");
    for key in ["a", "b", "c"] {
        txn.append(Entry::put(users, key, "x")).expect("appended");
    }
    let end = txn.commit().expect("committed").expect("a transaction");
    assert_eq!(end.sequence, Sequence::new(4));
    assert_eq!(store.begin().expect("begun").commit().expect("committed"), None);
    write(&store, 1, 10);
    assert_eq!(transactions(&store), [(1, 1), (2, 3), (5, 1)]);
}

#[test]
fn threads_that_write_at_once_leave_a_dense_log() {
    let folder = Folder::new();
    let store = folder.open("a");
    let users = users(&store);
    thread::scope(|scope| {
        for start in [0, 1000, 2000] {
            let writer = store.writer();
            scope.spawn(move || {
                let tickets: Vec<Ticket> = (start..start + 200)
                    .map(|key| writer.enqueue(one(users, key)).expect("enqueued"))
                    .collect();
                for ticket in tickets {
                    block_on(ticket.durable()).expect("durable");
                }
            });
        }
        for key in 3000..3050_u32 {
            let mut txn = store.begin().expect("begun");
            txn.append(Entry::put(users, key.to_be_bytes().to_vec(), "x")).expect("appended");
            txn.commit().expect("committed");
        }
    });
    let starts: Vec<u64> = transactions(&store).iter().map(|(first, _)| *first).collect();
    assert_eq!(starts, (1..=650).collect::<Vec<u64>>());
    assert_eq!(store.log().head(), Sequence::new(650));
}

#[test]
fn closing_serves_what_waits_and_refuses_the_rest() {
    let folder = Folder::new();
    let store = folder.open("a");
    let users = users(&store);
    let (writer, log, clone) = (store.writer(), store.log(), store.clone());
    let tickets: Vec<Ticket> =
        (0..50).map(|key| writer.enqueue(one(users, key)).expect("enqueued")).collect();
    store.close().expect("closed");
    assert!(tickets.iter().all(|ticket| ticket.position().is_some()));
    assert_eq!(log.head(), Sequence::new(50));
    assert_eq!(writer.enqueue(one(users, 1)).expect_err("refused"), EnqueueError::Closed);
    assert_eq!(block_on(writer.enqueue_or_wait(one(users, 1))).expect_err("refused"), EnqueueError::Closed);
    assert!(matches!(clone.begin(), Err(StoreError::Closed)));
    assert!(matches!(clone.define_table(&table("late"), Bytes::new()), Err(StoreError::Closed)));
    clone.close().expect("closing twice is no error");
}

#[test]
fn rows_are_walked_in_key_order_without_tombstones_and_other_tables() {
    let folder = Folder::new();
    let store = folder.open("a");
    let (users, other) = (users(&store), store.define_table(&table("other"), Bytes::new()).expect("defined"));
    let key = |key: u32| key.to_be_bytes().to_vec();
    let puts: Vec<Entry> = (0..2500).rev().map(|row| Entry::put(users, key(row), "v")).collect();
    let gone: Vec<Entry> = (0..2500).step_by(5).map(|row| Entry::delete(users, key(row))).collect();
    let invalid = Entry { kind: EntryKind::Invalidate, ..Entry::put(users, key(1), "dropped") };
    for entries in [puts, gone, vec![invalid, Entry::put(other, "o", "x")]] {
        block_on(store.writer().enqueue(entries).expect("enqueued").durable()).expect("durable");
    }
    let mut seen = Vec::new();
    let end = store.rows().visit(&table("users"), &mut |key, value| {
        assert_eq!(value, b"v");
        seen.push(u32::from_be_bytes(key.try_into().expect("four bytes")));
        ControlFlow::Continue(())
    });
    end.expect("walked");
    assert_eq!(seen, (2..2500).filter(|row| row % 5 != 0).collect::<Vec<u32>>());
    assert!(store.rows().get(&users, &key(1)).expect("read").is_some_and(|row| row.invalidated));
    let mut count = 0;
    let stopped = store.rows().visit(&other, &mut |_, _| {
        count += 1;
        ControlFlow::Break(())
    });
    assert_eq!((stopped.expect("walked"), count), (auditstream::store::ScanEnd::Stopped, 1));
}
