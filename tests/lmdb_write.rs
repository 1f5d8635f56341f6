//! Own writes to the LMDB store: tickets, group commit, limits, host transactions.

#![cfg(feature = "lmdb")]

mod lmdb_support;

use std::ops::ControlFlow;

use auditstream::protocol::{Entry, Sequence};
use auditstream::store::AuditLog as _;
use auditstream::store::lmdb::{EnqueueError, LmdbStore};
use bytes::Bytes;
use lmdb_support::{Folder, block_on, clock, name, options, table};

#[test]
fn a_ticket_answers_with_the_position_and_the_rows_are_there() {
    let folder = Folder::new();
    let store = folder.open("a");
    let users = store.define_table(&table("users"), Bytes::from_static(b"v1")).expect("defined");
    let ticket = store
        .writer()
        .enqueue(vec![Entry::put(users, "k1", "one"), Entry::put(users, "k2", "two")])
        .expect("enqueued");
    let boundary = block_on(ticket.durable()).expect("durable");
    assert_eq!(boundary.sequence, Sequence::new(2));
    assert_eq!(ticket.position(), Some(Sequence::new(2)));
    let log = store.log();
    assert_eq!(log.head(), Sequence::new(2));
    let mut entries = 0;
    log.scan(Sequence::ZERO, &mut |segment| {
        segment.verify().expect("whole");
        entries += segment.header().entries;
        ControlFlow::Continue(())
    })
    .expect("scanned");
    assert_eq!(entries, 2);
    let row = store.rows().get(&table("users"), b"k2").expect("read").expect("there");
    assert_eq!((row.value.as_slice(), row.deleted, row.origin), (&b"two"[..], false, name("a")));
    drop(log);
    store.close().expect("closed");
}
