//! The stores of the library keep the promises of every store.

#![cfg(feature = "lmdb")]

mod lmdb_support;

use std::sync::Arc;

use auditstream::clock::Clock as _;
use auditstream::protocol::{Boundary, Entry, LogId, NodeName, TableId, TableName};
use auditstream::store::lmdb::{Durability, LmdbStore};
use auditstream::store::{Applier, AuditLog, MemoryStore};
use auditstream::testing::{StoreUnderTest, check_store};
use bytes::Bytes;
use lmdb_support::{Folder, TestClock, block_on, clock, name};

struct OnDisk {
    store: LmdbStore,
    clock: Arc<TestClock>,
    _folder: Folder,
}

impl StoreUnderTest for OnDisk {
    fn node(&self) -> NodeName {
        name("here")
    }

    fn wall_ms(&self) -> u64 {
        self.clock.wall_ms()
    }

    fn log(&self) -> Arc<dyn AuditLog> {
        self.store.log()
    }

    fn applier(&self) -> Arc<dyn Applier> {
        self.store.applier()
    }

    fn define_table(&mut self, name: &TableName, definition: &[u8]) -> TableId {
        self.store.define_table(name, Bytes::copy_from_slice(definition)).expect("defined")
    }

    fn append(&mut self, entries: Vec<Entry>) -> Boundary {
        let ticket = self.store.writer().enqueue(entries).expect("enqueued");
        block_on(ticket.durable()).expect("durable")
    }

    fn value(&self, table: &TableName, key: &[u8]) -> Option<Vec<u8>> {
        let row = self.store.rows().get(table, key).expect("read")?;
        (!row.deleted).then_some(row.value)
    }
}

fn check(durability: Durability) {
    check_store(&mut || {
        let folder = Folder::new();
        let clock = clock();
        let options = folder.options("here").durability(durability).build().expect("options");
        let store = LmdbStore::open(options, Arc::clone(&clock) as Arc<_>).expect("opened");
        Box::new(OnDisk { store, clock, _folder: folder })
    });
}

#[test]
fn the_store_keeps_every_promise_under_sync() {
    check(Durability::Sync);
}

#[test]
fn the_store_keeps_every_promise_without_sync() {
    check(Durability::NoSync);
}

struct InMemory {
    store: Arc<MemoryStore>,
    clock: Arc<TestClock>,
}

impl StoreUnderTest for InMemory {
    fn node(&self) -> NodeName {
        name("here")
    }

    fn wall_ms(&self) -> u64 {
        self.clock.wall_ms()
    }

    fn log(&self) -> Arc<dyn AuditLog> {
        self.store.clone()
    }

    fn applier(&self) -> Arc<dyn Applier> {
        self.store.clone()
    }

    fn define_table(&mut self, name: &TableName, definition: &[u8]) -> TableId {
        self.store.define_table(name, Bytes::copy_from_slice(definition)).expect("defined")
    }

    fn append(&mut self, entries: Vec<Entry>) -> Boundary {
        self.store.append(&entries).expect("appended")
    }

    fn value(&self, table: &TableName, key: &[u8]) -> Option<Vec<u8>> {
        self.store.row(table, key)?.value.map(|value| value.to_vec())
    }
}

#[test]
fn the_store_in_memory_keeps_every_promise() {
    check_store(&mut || {
        let clock = clock();
        let id = LogId::from_bytes([1; 16]);
        let store = Arc::new(MemoryStore::new(name("here"), id, Arc::clone(&clock) as Arc<_>));
        Box::new(InMemory { store, clock })
    });
}
