//! A log in which the transactions of five origins take turns, as on a node that five others write to.

use std::sync::Arc;
use std::sync::mpsc::channel;

use auditstream::protocol::{
    Boundary, EntryDraft, LogId, LogTail, NodeName, OriginId, Position, SegmentPacker, Selection, Sequence,
    TableDefinition, TableId, TransactionDraft, Version,
};
use auditstream::store::lmdb::LmdbStore;
use auditstream::store::{Applier as _, ApplyBatch, PeerDictionary};
use bytes::Bytes;

use crate::fault::Fault;
use crate::records::{ORIGINS, Records};
use crate::store;

/// Most batches that wait for the store.
const IN_FLIGHT: usize = 32;
/// Transactions of one batch: about two segments of usual records.
const BATCH_TRANSACTIONS: u64 = 24;
const FIRST_MS: u64 = 1_700_000_000_000;

/// Name of origin `number`, from 0.
pub(crate) fn origin_name(number: u64) -> String {
    format!("origin-{}", number + 1)
}

/// Writes all records as transactions of five origins in turn, through the store's applier: the way in which the entries of
/// other nodes come into a log. Answers how many transactions that were.
///
/// # Errors
/// When the store refuses one.
pub(crate) fn write(store: &LmdbStore, records: &mut Records, size: u64) -> Result<u64, Fault> {
    let table = TableId(1);
    let applier = store.applier();
    let loader = store::node_name("loader")?;
    let dictionary = Arc::new(dictionary(table)?);
    let selection = Arc::new(Selection::default());
    let log = LogId::from_bytes(*b"the loader's log");
    let (answers, answered) = channel();
    let (mut tail, mut transactions, mut waiting) = (LogTail::default(), 0, 0);
    loop {
        let (batch, end, count) = pack(records, table, size, tail, transactions)?;
        if count == 0 {
            break;
        }
        tail = end;
        transactions += count;
        let position = Position { log, boundary: tail.end, filter: selection.fingerprint() };
        let source: NodeName = loader.clone();
        let answers = answers.clone();
        let batch = ApplyBatch {
            source,
            selection: Arc::clone(&selection),
            dictionary: Arc::clone(&dictionary),
            frames: batch,
            position,
        };
        applier.submit(
            batch,
            Box::new(move |answer| {
                let _nobody_waits = answers.send(answer.map(|_| ()));
            }),
        );
        waiting += 1;
        while waiting > IN_FLIGHT {
            answered.recv().map_err(Fault::run)?.map_err(Fault::run)?;
            waiting -= 1;
        }
    }
    for _ in 0..waiting {
        answered.recv().map_err(Fault::run)?.map_err(Fault::run)?;
    }
    Ok(transactions)
}

fn dictionary(table: TableId) -> Result<PeerDictionary, Fault> {
    let mut dictionary = PeerDictionary::default();
    for number in 0..ORIGINS {
        dictionary.origins.insert(OriginId(1 + number as u16), store::node_name(&origin_name(number))?);
    }
    let definition = TableDefinition { name: store::table_name()?, version: 1, definition: Bytes::new() };
    dictionary.tables.insert(table, definition);
    Ok(dictionary)
}

type Packed = (Vec<Bytes>, LogTail, u64);

fn pack(
    records: &mut Records,
    table: TableId,
    size: u64,
    tail: LogTail,
    before: u64,
) -> Result<Packed, Fault> {
    let mut frames = Vec::new();
    let mut packer = SegmentPacker::new(tail, FIRST_MS);
    let mut emit = |_: Sequence, frame: &[u8]| -> Result<(), Fault> {
        frames.push(Bytes::copy_from_slice(frame));
        Ok(())
    };
    let mut count = 0;
    while count < BATCH_TRANSACTIONS {
        let entries = records.next_transaction(table, size)?;
        if entries.is_empty() {
            break;
        }
        let drafts: Vec<EntryDraft<'_>> = (0..).zip(&entries).map(|(at, entry)| entry.draft(at)).collect();
        let number = before + count;
        let draft = TransactionDraft {
            origin: OriginId(1 + (number % ORIGINS) as u16),
            version: Version::new(FIRST_MS + number, 0),
            entries: &drafts,
        };
        let _end: Boundary = packer.push(&draft, &mut emit)?;
        count += 1;
    }
    packer.finish(&mut emit)?;
    Ok((frames, packer.tail(), count))
}
