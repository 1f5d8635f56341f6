//! A database node that embeds auditstream: its own LMDB environment, its own table in it, its own tokio runtime.
//!
//! Two nodes run in this one process; in yours there is one. `cargo run --example embed`

use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use auditstream::clock::Clock;
use auditstream::net::{
    Dialer, DialerConfig, Listener, Placement, Source, SystemClock, Worker, WorkerConfig,
};
use auditstream::protocol::{Entry, NodeName, Subscription, TableName};
use auditstream::sender::{BUDGET_SHARED, SendConfig};
use auditstream::store::AuditLog;
use auditstream::store::lmdb::{LmdbOptions, LmdbStore};
use lmdb::{DatabaseFlags, Environment, EnvironmentFlags, WriteFlags};
use tokio_util::sync::CancellationToken;

type Anything<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// Opens the host's environment, with room for the host's database and those of the store.
fn environment(folder: &Path) -> Anything<Arc<Environment>> {
    let mut builder = Environment::new();
    builder.set_flags(EnvironmentFlags::NO_TLS).set_max_dbs(16).set_max_readers(256).set_map_size(1 << 30);
    Ok(Arc::new(builder.open(folder)?))
}

fn main() -> Anything<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let folders = (tempfile::tempdir()?, tempfile::tempdir()?);
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());

    // The source: the host's own table lies in the same environment as the log.
    let environment = environment(folders.0.path())?;
    let accounts = environment.create_db(Some("accounts"), DatabaseFlags::empty())?;
    let options = LmdbOptions::builder(NodeName::new("paris")?, folders.0.path()).build()?;
    let store = LmdbStore::with_environment(Arc::clone(&environment), options, Arc::clone(&clock))?;
    let table = store.define_table(&TableName::new("accounts")?, "".into())?;

    // The peer: the key-value applier that comes with the library.
    let options = LmdbOptions::builder(NodeName::new("rome")?, folders.1.path()).build()?;
    let peer = LmdbStore::open(options, Arc::clone(&clock))?;

    runtime.block_on(async {
        let stop = CancellationToken::new();
        // The thread also serves the host's requests, so replication takes the smaller budget.
        let (handle, worker) =
            Worker::new(WorkerConfig::default().with_budget(BUDGET_SHARED)?, Arc::clone(&clock));
        let serving = tokio::spawn(worker.run());
        let source = Source {
            node: NodeName::new("paris")?,
            log: store.log(),
            clock: Arc::clone(&clock),
            send: SendConfig::default(),
        };
        let listener = Listener::bind("127.0.0.1:0".parse()?, source, Placement::Worker(handle.clone()))?;
        let address = listener.local_addr()?;
        let listening = tokio::spawn(listener.run(stop.clone()));
        let dialer = Dialer::new(
            address,
            NodeName::new("rome")?,
            peer.applier(),
            Subscription::all(),
            Arc::clone(&clock),
            DialerConfig::default(),
        );
        let status = dialer.handle();
        let following = tokio::spawn(dialer.run(stop.clone()));

        // A request of the host: its row and the audit entries are one commit. The write lock is not for the event loop.
        for account in 0..100_u32 {
            let store = store.clone();
            tokio::task::spawn_blocking(move || -> Anything<()> {
                let (key, value) = (format!("account-{account:04}"), format!("balance {}", account * 10));
                let mut transaction = store.begin()?;
                transaction.put(accounts, &key, &value, WriteFlags::empty())?;
                transaction.append(Entry::put(table, key, value))?;
                transaction.commit()?;
                Ok(())
            })
            .await??;
        }
        let head = store.log().head();
        while status.status().acknowledged.durable < head {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let row = peer.rows().get(&TableName::new("accounts")?, b"account-0042")?;
        let row = row.ok_or("the row did not arrive")?;
        println!("rome has {} from {}", String::from_utf8(row.value)?, row.origin);
        println!("{} entries sent", handle.stats().connections[0].sent.entries_sent);

        stop.cancel();
        following.await?;
        listening.await?;
        handle.stop();
        serving.await?;
        Anything::Ok(())
    })?;
    peer.close()?;
    store.close()?;
    Ok(())
}
