//! The source process: writes its records once, then serves them to one set of peers after another.

use std::net::SocketAddr;

use auditstream::protocol::{NodeName, TableId};
use auditstream::store::AuditLog as _;
use auditstream::store::lmdb::{EnqueueError, LmdbStore};

use super::{floor, mixed};
use crate::cli::{Load, SourceArgs};
use crate::clock;
use crate::fault::Fault;
use crate::hash::ContentHash;
use crate::input::Lines;
use crate::link::{Serving, THREAD_PREFIX};
use crate::proc::{Command, Event, cpu, talk};
use crate::records::{ORIGINS, Records};
use crate::store;

/// Name of the source node.
pub(crate) const SOURCE: &str = "source";

/// Transactions handed to the writer: offered = accepted + refused, whatever happens.
#[derive(Debug, Clone, Copy, Default)]
struct Offers {
    offered: u64,
    accepted: u64,
    refused: u64,
}

/// Runs the process until the parent ends it.
///
/// # Errors
/// A store that cannot be opened or written, a line that cannot be a record.
pub(crate) fn run(args: &SourceArgs) -> Result<(), Fault> {
    talk::run(|| Source::start(args)?.serve())
}

struct Source<'a> {
    args: &'a SourceArgs,
    name: NodeName,
    store: LmdbStore,
    table: TableId,
    records: Records,
    runtime: tokio::runtime::Runtime,
    serving: Option<(Serving, u64)>,
}

impl<'a> Source<'a> {
    fn start(args: &'a SourceArgs) -> Result<Self, Fault> {
        let name = store::node_name(SOURCE)?;
        let records = match &args.input {
            Some(path) => Records::lines(Lines::open(path, args.key_field.as_deref())?),
            None => Records::made_up(args.load, args.records, args.record_size, args.seed),
        };
        let store = store::open(&args.data, &name, args.durability)?;
        let table = store.define_table(&store::table_name()?, bytes::Bytes::new()).map_err(Fault::run)?;
        let runtime = tokio::runtime::Builder::new_current_thread().build().map_err(Fault::run)?;
        let mut source = Self { args, name, store, table, records, runtime, serving: None };
        let offers = match args.load {
            Load::AuditTxn => source.write_in_host_transactions()?,
            Load::Mixed => source.write_mixed()?,
            Load::Rising | Load::Random | Load::Input => source.write_enqueued()?,
        };
        let status = source.store.status().map_err(Fault::run)?;
        talk::say(&Event::Ready {
            head: status.head.get(),
            log_bytes: status.committed_bytes,
            offered: offers.offered,
            accepted: offers.accepted,
            refused: offers.refused,
            address: String::new(),
        });
        Ok(source)
    }

    /// Writes all that is left of the records through the writer thread.
    fn write_enqueued(&mut self) -> Result<Offers, Fault> {
        let mut offers = Offers::default();
        let writer = self.store.writer();
        let mut last = None;
        loop {
            let entries = self.records.next_transaction(self.table, self.args.txn)?;
            if entries.is_empty() {
                break;
            }
            offers.offered += 1;
            let ticket = match writer.enqueue(entries) {
                Ok(ticket) => ticket,
                Err(EnqueueError::Full { entries, .. }) => {
                    offers.refused += 1;
                    offers.offered += 1;
                    self.runtime.block_on(writer.enqueue_or_wait(entries)).map_err(Fault::run)?
                }
                Err(error) => return Err(Fault::usage(error)),
            };
            offers.accepted += 1;
            last = Some(ticket);
        }
        if let Some(ticket) = last {
            self.runtime.block_on(ticket.durable()).map_err(Fault::run)?;
        }
        Ok(offers)
    }

    fn write_in_host_transactions(&mut self) -> Result<Offers, Fault> {
        let mut offers = Offers::default();
        loop {
            let entries = self.records.next_transaction(self.table, self.args.txn)?;
            if entries.is_empty() {
                return Ok(offers);
            }
            offers.offered += 1;
            let mut txn = self.store.begin().map_err(Fault::run)?;
            for entry in entries {
                txn.append(entry).map_err(Fault::run)?;
            }
            txn.commit().map_err(Fault::run)?;
            offers.accepted += 1;
        }
    }

    fn write_mixed(&mut self) -> Result<Offers, Fault> {
        let transactions = mixed::write(&self.store, &mut self.records, self.args.txn)?;
        Ok(Offers { offered: transactions, accepted: transactions, refused: 0 })
    }

    fn serve(&mut self) -> Result<(), Fault> {
        while let Some(command) = talk::hear()? {
            match command {
                Command::Serve { policy, budget_us } => {
                    let address = SocketAddr::from(([127, 0, 0, 1], 0));
                    let budget = std::time::Duration::from_micros(budget_us);
                    let log = self.store.log();
                    let serving = Serving::start(&self.name, log, address, policy.into(), budget)?;
                    talk::say(&Event::Serving { address: serving.address().to_string() });
                    self.serving = Some((serving, cpu::threads_ns("")));
                }
                Command::Counts => talk::say(&Event::Counted(self.counts())),
                Command::StopServing => {
                    if let Some((serving, _)) = self.serving.take() {
                        serving.stop()?;
                    }
                    talk::say(&Event::Stopped);
                }
                Command::Write { records } => self.write_more(records)?,
                Command::Floor { sinks, bytes } => {
                    let (cpu_ns, writes) = floor::write(&sinks, bytes)?;
                    talk::say(&Event::FloorDone { cpu_ns, writes });
                }
                Command::Hash => {
                    let hash = self.expected_hash()?;
                    talk::say(&Event::Hash { hash: hash.to_string(), rows: hash.rows() });
                }
                Command::End => {
                    self.store.clone().close().map_err(Fault::run)?;
                    talk::say(&Event::Ended);
                    return Ok(());
                }
                Command::Go { .. } | Command::Target { .. } | Command::Progress => {
                    return Err(Fault::run("a source was told what only a peer can do"));
                }
            }
        }
        Ok(())
    }

    fn counts(&self) -> crate::proc::SenderCounts {
        let Some((serving, process_before)) = &self.serving else { return Default::default() };
        crate::proc::SenderCounts {
            worker_cpu_ns: cpu::threads_ns(THREAD_PREFIX),
            process_cpu_ns: cpu::threads_ns("").saturating_sub(*process_before),
            ..serving.counts()
        }
    }

    fn write_more(&mut self, records: u64) -> Result<(), Fault> {
        self.records.extend(records);
        let started = clock::now();
        let offers = self.write_enqueued()?;
        let micros = u64::try_from(started.elapsed().as_micros()).unwrap_or(u64::MAX);
        talk::say(&Event::Written {
            head: self.store.log().head().get(),
            offered: offers.offered,
            accepted: offers.accepted,
            refused: offers.refused,
            micros,
        });
        Ok(())
    }

    /// What every peer has to hold. Host transactions write the log only, and peers of the mixed load leave an origin
    /// out: there the records themselves say it.
    fn expected_hash(&self) -> Result<ContentHash, Fault> {
        let left_out = match self.args.load {
            Load::AuditTxn => None,
            Load::Mixed => Some(ORIGINS - 1),
            Load::Rising | Load::Random | Load::Input => return store::content_hash(&self.store),
        };
        let args = self.args;
        let mut records = Records::made_up(args.load, args.records, args.record_size, args.seed);
        let mut hash = ContentHash::default();
        for transaction in 0.. {
            let entries = records.next_transaction(self.table, args.txn)?;
            if entries.is_empty() {
                break;
            }
            if left_out != Some(transaction % ORIGINS) {
                entries.iter().for_each(|entry| hash.row(&entry.key, &entry.value));
            }
        }
        Ok(hash)
    }
}
