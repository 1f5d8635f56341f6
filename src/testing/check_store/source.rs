//! Another node, as far as a store can see it: its log's frames and its short ids.

use std::sync::{Arc, mpsc};

use bytes::Bytes;

use super::{answered, node_name, table_name};
use crate::protocol::{
    Boundary, Entry, EntryDraft, LogId, LogTail, NodeName, OriginId, Position, SegmentPacker, Selection,
    TableDefinition, TableId, TransactionDraft, Version,
};
use crate::store::{Applied, Applier, ApplyBatch, ApplyError, PeerDictionary};

/// The one table of a [`Source`], in its own short ids.
pub(super) const TABLE: TableId = TableId(7);
/// The name of that table.
pub(super) const TABLE_NAME: &str = "things";
/// The short id of a source's own name.
pub(super) const SELF: OriginId = OriginId(40);
/// The short id of the store's node, in the ids of a source.
pub(super) const STORE: OriginId = OriginId(41);
/// The short id of a third node, "m".
pub(super) const THIRD: OriginId = OriginId(42);
/// A short id that no dictionary explains.
pub(super) const UNKNOWN: OriginId = OriginId(43);

/// A node that writes a log of its own.
pub(super) struct Source {
    pub(super) name: NodeName,
    pub(super) dictionary: Arc<PeerDictionary>,
    /// What its stream to the store selects.
    pub(super) selection: Arc<Selection>,
    tail: LogTail,
}

impl Source {
    pub(super) fn new(name: &str, store: &NodeName) -> Self {
        let name = node_name(name);
        let mut dictionary = PeerDictionary::default();
        dictionary.origins.extend([(SELF, name.clone()), (STORE, store.clone()), (THIRD, node_name("m"))]);
        let table = TableDefinition {
            name: table_name(TABLE_NAME),
            version: 1,
            definition: Bytes::from_static(b"k, v"),
        };
        dictionary.tables.insert(TABLE, table);
        Self { name, dictionary: Arc::new(dictionary), selection: Arc::default(), tail: LogTail::default() }
    }

    /// Where its log ends.
    pub(super) const fn end(&self) -> Boundary {
        self.tail.end
    }

    pub(super) fn position(&self) -> Position {
        Position {
            log: LogId::from_bytes([9; 16]),
            boundary: self.tail.end,
            filter: self.selection.fingerprint(),
        }
    }

    /// Writes transactions and makes the batch that brings them.
    pub(super) fn batch(&mut self, transactions: &[(OriginId, Version, &[Entry])]) -> ApplyBatch {
        let mut frames = Vec::new();
        let mut packer = SegmentPacker::new(self.tail, 0);
        let mut emit = |_, frame: &[u8]| {
            frames.push(Bytes::copy_from_slice(frame));
            Ok::<_, std::convert::Infallible>(())
        };
        for (origin, version, entries) in transactions {
            let drafts: Vec<EntryDraft<'_>> =
                (0..).zip(*entries).map(|(ordinal, entry)| entry.draft(ordinal)).collect();
            let draft = TransactionDraft { origin: *origin, version: *version, entries: &drafts };
            answered(packer.push(&draft, &mut emit), "pack");
        }
        answered(packer.finish(&mut emit), "pack");
        self.tail = packer.tail();
        ApplyBatch {
            source: self.name.clone(),
            selection: Arc::clone(&self.selection),
            dictionary: Arc::clone(&self.dictionary),
            frames,
            position: self.position(),
        }
    }
}

/// Submits a batch and waits for its answer.
pub(super) fn apply(applier: &dyn Applier, batch: ApplyBatch) -> Result<Applied, ApplyError> {
    let (sender, answer) = mpsc::channel();
    applier.submit(batch, Box::new(move |result| drop(sender.send(result))));
    answered(answer.recv(), "answer a batch")
}

/// An entry of the source's table.
pub(super) fn put(key: &'static str, value: &'static str) -> Entry {
    Entry::put(TABLE, key, value)
}
