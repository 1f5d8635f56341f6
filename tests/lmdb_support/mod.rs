//! What the tests of the LMDB store share.

#![allow(dead_code, reason = "every test file uses another part of it")]

use std::future::Future;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

use auditstream::clock::{Clock, Moment};
use auditstream::protocol::{Entry, NodeName, TableName};
use auditstream::store::lmdb::{LmdbOptions, LmdbOptionsBuilder, LmdbStore};
use bytes::Bytes;

/// A clock that a test moves.
#[derive(Debug)]
pub(crate) struct TestClock {
    pub(crate) now: AtomicU64,
    pub(crate) wall_ms: AtomicU64,
}

impl Clock for TestClock {
    fn now(&self) -> Moment {
        Moment::from_nanos(self.now.load(Ordering::Relaxed))
    }

    fn wall_ms(&self) -> u64 {
        self.wall_ms.load(Ordering::Relaxed)
    }
}

/// A clock that stands still.
pub(crate) fn clock() -> Arc<TestClock> {
    Arc::new(TestClock { now: AtomicU64::new(0), wall_ms: AtomicU64::new(1_700_000_000_000) })
}

pub(crate) fn name(name: &str) -> NodeName {
    NodeName::new(name).expect("a name")
}

pub(crate) fn table(name: &str) -> TableName {
    TableName::new(name).expect("a name")
}

/// A folder that is removed at the end.
pub(crate) struct Folder {
    pub(crate) dir: tempfile::TempDir,
}

impl Folder {
    pub(crate) fn new() -> Self {
        Self { dir: tempfile::tempdir().expect("a temp folder") }
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.dir.path().join("store")
    }

    /// Options with a map of 256 MiB.
    pub(crate) fn options(&self, node: &str) -> LmdbOptionsBuilder {
        options(node, self.path())
    }

    pub(crate) fn open(&self, node: &str) -> LmdbStore {
        LmdbStore::open(self.options(node).build().expect("options"), clock()).expect("opened")
    }
}

pub(crate) fn options(node: &str, path: PathBuf) -> LmdbOptionsBuilder {
    LmdbOptions::builder(name(node), path).map_bytes(256 * 1024 * 1024)
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Waits for a future on this thread, without a runtime.
pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}

/// Writes `count` transactions of one entry with a value of `bytes` bytes each, one after the other.
pub(crate) fn write(store: &LmdbStore, count: u64, bytes: usize) {
    let things = store.define_table(&table("things"), Bytes::new()).expect("defined");
    for number in 0..count {
        let entry = Entry::put(things, number.to_be_bytes().to_vec(), vec![b'x'; bytes]);
        let ticket = store.writer().enqueue(vec![entry]).expect("enqueued");
        block_on(ticket.durable()).expect("durable");
    }
}
