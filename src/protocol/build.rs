//! Making segments: entry by entry, or by packing whole transactions as a store does at append.

use std::ops::Range;

use super::entry::{EntryFlags, EntryHeader, EntryKind, EntryRef};
use super::frame::{FrameHeader, FrameKind};
use super::ids::{OriginId, Sequence, TableId, Version};
use super::limits::{FRAME_HEADER_BYTES, SEGMENT_LIST_MAX, SEGMENT_TARGET_BYTES};
use super::position::{Boundary, Stamp};
use super::segment::{SEGMENT_HEADER_BYTES, SEGMENT_HEADER_BYTES_MAX, SegmentFlags, SegmentHeader};
use super::transaction::{
    TRANSACTION_CHECKED_BYTES, TRANSACTION_HEADER_BYTES, TransactionHeader, TransactionRef,
};

/// Whether a segment's header names the tables and origins inside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lists {
    /// It does, for a log: the header then answers "skip whole" and "send whole".
    Listed,
    /// It does not, for a filtered frame: the peer does not filter again.
    Unlisted,
}

/// What the end of a segment is known by.
#[derive(Debug, Clone, Copy)]
pub struct SegmentEnd {
    /// The last boundary reached, or scanned up to.
    pub boundary: Boundary,
    /// Wall clock at the commit, milliseconds since 1970.
    pub commit_ms: u64,
    /// Bytes of the log up to and with this segment's frame.
    pub cumulative_bytes: u64,
}

/// Neighbouring entries of one transaction that go into a frame together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EntryRun {
    pub(crate) entries: u32,
    pub(crate) first: Sequence,
    pub(crate) last: Sequence,
    pub(crate) has_blobs: bool,
}

/// Appends one segment frame to a buffer that the caller owns; nothing is copied twice.
///
/// The buffer may hold other frames in front, when `Lists::Unlisted`: such a header has a fixed length.
#[derive(Debug)]
pub struct SegmentBuilder {
    body_start: usize,
    lists: Lists,
    flags: SegmentFlags,
    open: Option<OpenTransaction>,
    range: Option<(Sequence, Sequence)>,
    entries: u32,
    transactions: u32,
    tables: ShortList,
    origins: ShortList,
}

#[derive(Debug)]
struct OpenTransaction {
    start: usize,
    header: TransactionHeader,
}

impl SegmentBuilder {
    /// Starts a segment at the end of `out`.
    #[must_use]
    pub fn start(out: &mut Vec<u8>, lists: Lists) -> Self {
        let reserve = match lists {
            Lists::Listed => SEGMENT_HEADER_BYTES_MAX,
            Lists::Unlisted => SEGMENT_HEADER_BYTES,
        };
        out.resize(out.len() + FRAME_HEADER_BYTES + reserve, 0);
        Self {
            body_start: out.len(),
            lists,
            flags: SegmentFlags::NONE,
            open: None,
            range: None,
            entries: 0,
            transactions: 0,
            tables: ShortList::default(),
            origins: ShortList::default(),
        }
    }

    /// Adds marks to the segment's header.
    pub fn mark(&mut self, flags: SegmentFlags) {
        self.flags = self.flags.with(flags);
    }

    /// Bytes of transactions so far.
    #[must_use]
    pub const fn body_bytes(&self, out: &[u8]) -> usize {
        out.len() - self.body_start
    }

    /// Entries so far.
    #[must_use]
    pub const fn entries(&self) -> u32 {
        self.entries
    }

    /// Whether a transaction was begun and not ended.
    #[must_use]
    pub const fn in_transaction(&self) -> bool {
        self.open.is_some()
    }

    /// Begins a transaction. Its entry count, length and checksum are filled in when it ends.
    ///
    /// # Panics
    /// When another transaction is open: a bug of the caller.
    pub fn begin_transaction(&mut self, out: &mut Vec<u8>, header: TransactionHeader) {
        assert!(self.open.is_none(), "a transaction is open");
        let start = out.len();
        out.resize(start + TRANSACTION_HEADER_BYTES, 0);
        self.origins.insert(header.origin.0);
        self.mark(header.flags);
        self.open =
            Some(OpenTransaction { start, header: TransactionHeader { entries: 0, bytes: 0, ..header } });
    }

    /// The bytes in front of the frame were taken away: it stands `count` bytes further left now.
    pub(crate) const fn shift_left(&mut self, count: usize) {
        self.body_start -= count;
        if let Some(open) = &mut self.open {
            open.start -= count;
        }
    }

    /// Bytes were put in front of the frame: it stands `count` bytes further right now.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) const fn shift_right(&mut self, count: usize) {
        self.body_start += count;
        if let Some(open) = &mut self.open {
            open.start += count;
        }
    }

    /// Appends an entry that lies in another segment, byte for byte.
    ///
    /// # Panics
    /// When no transaction is open: a bug of the caller.
    pub fn push_encoded(&mut self, out: &mut Vec<u8>, entry: &EntryRef<'_>) {
        self.note_entry(&entry.header);
        out.extend_from_slice(entry.encoded);
    }

    /// Appends neighbouring entries of the open transaction, byte for byte. For [`Lists::Unlisted`] only: their tables
    /// are not looked at.
    pub(crate) fn push_run(&mut self, out: &mut Vec<u8>, run: &EntryRun, encoded: &[u8]) {
        debug_assert_eq!(self.lists, Lists::Unlisted, "a listed segment needs the tables of its entries");
        if let Some(open) = &mut self.open {
            open.header.entries += run.entries;
        }
        self.note_run(run);
        out.extend_from_slice(encoded);
    }

    /// Appends a whole transaction of another segment, byte for byte, with its own checksum. For [`Lists::Unlisted`]
    /// only.
    pub(crate) fn push_untouched(
        &mut self,
        out: &mut Vec<u8>,
        transaction: &TransactionRef<'_>,
        run: &EntryRun,
    ) {
        debug_assert!(self.open.is_none() && self.lists == Lists::Unlisted, "between transactions, unlisted");
        self.mark(transaction.header.flags);
        self.transactions += 1;
        self.note_run(run);
        out.extend_from_slice(transaction.encoded);
    }

    fn note_run(&mut self, run: &EntryRun) {
        self.entries += run.entries;
        self.range = Some(self.range.map_or((run.first, run.last), |(first, _)| (first, run.last)));
        if run.has_blobs {
            self.mark(SegmentFlags::HAS_BLOBS);
        }
    }

    /// Appends an entry.
    ///
    /// # Panics
    /// When no transaction is open: a bug of the caller.
    pub fn push(&mut self, out: &mut Vec<u8>, header: &EntryHeader, key: &[u8], value: &[u8]) {
        self.note_entry(header);
        header.encode(out);
        out.extend_from_slice(key);
        out.extend_from_slice(value);
    }

    fn note_entry(&mut self, entry: &EntryHeader) {
        let Some(open) = &mut self.open else { panic!("no transaction is open") };
        open.header.entries += 1;
        let sequence = open.header.first.plus(u64::from(entry.offset));
        self.entries += 1;
        self.range = Some(self.range.map_or((sequence, sequence), |(first, _)| (first, sequence)));
        self.tables.insert(entry.table.0);
        if entry.flags != EntryFlags::NONE {
            if entry.flags.contains(EntryFlags::LOCAL_ONLY) {
                self.mark(SegmentFlags::HAS_LOCAL_ONLY);
            }
            if entry.flags.contains(EntryFlags::HAS_BLOBS) {
                self.mark(SegmentFlags::HAS_BLOBS);
            }
        }
    }

    /// Ends the open transaction here for this segment; it goes on in the next one.
    ///
    /// # Panics
    /// When no transaction is open: a bug of the caller.
    pub fn end_part(&mut self, out: &mut [u8]) -> u32 {
        self.mark(SegmentFlags::CONTINUED);
        if let Some(open) = &mut self.open {
            open.header.flags = open.header.flags.with(SegmentFlags::CONTINUED);
        }
        self.end_transaction(out)
    }

    /// Ends the open transaction and gives its checksum.
    ///
    /// # Panics
    /// When no transaction is open: a bug of the caller.
    pub fn end_transaction(&mut self, out: &mut [u8]) -> u32 {
        let Some(OpenTransaction { start, mut header }) = self.open.take() else {
            panic!("no transaction is open")
        };
        let entries_start = start + TRANSACTION_HEADER_BYTES;
        header.bytes = u32_length(out.len() - entries_start);
        self.transactions += 1;
        let checked = header.encode_checked();
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(&checked);
        hasher.update(&out[entries_start..]);
        let checksum = hasher.finalize();
        out[start..start + TRANSACTION_CHECKED_BYTES].copy_from_slice(&checked);
        out[start + TRANSACTION_CHECKED_BYTES..][..4].copy_from_slice(&checksum.to_le_bytes());
        checksum
    }

    fn listed(&self) -> (Option<&[u16]>, Option<&[u16]>) {
        match self.lists {
            Lists::Listed => (self.tables.listed(), self.origins.listed()),
            Lists::Unlisted => (None, None),
        }
    }

    /// Bytes of the frame if it were finished now.
    #[must_use]
    pub fn frame_bytes(&self, out: &[u8]) -> usize {
        let (tables, origins) = self.listed();
        let ids = tables.unwrap_or_default().len() + origins.unwrap_or_default().len();
        FRAME_HEADER_BYTES + SEGMENT_HEADER_BYTES + 2 * ids + self.body_bytes(out)
    }

    /// Fills in the headers. The frame is the returned range of `out`.
    ///
    /// # Panics
    /// When a transaction is open or there is no entry: a bug of the caller.
    pub fn finish(self, out: &mut [u8], end: &SegmentEnd) -> Range<usize> {
        assert!(self.open.is_none(), "a transaction is open");
        let Some((first, last)) = self.range else { panic!("a segment has at least one entry") };
        let mut flags = self.flags;
        let (tables, origins) = self.listed();
        if tables.is_none() {
            flags = flags.with(SegmentFlags::TABLES_UNLISTED);
        }
        if origins.is_none() {
            flags = flags.with(SegmentFlags::ORIGINS_UNLISTED);
        }
        let (tables, origins) = (tables.unwrap_or_default(), origins.unwrap_or_default());
        let header_bytes = SEGMENT_HEADER_BYTES + 2 * (tables.len() + origins.len());
        let body_bytes = out.len() - self.body_start;
        let header_start = self.body_start - header_bytes;
        let frame_start = header_start - FRAME_HEADER_BYTES;
        let header = SegmentHeader {
            flags,
            header_bytes: u16::try_from(header_bytes).unwrap_or(u16::MAX),
            tables: u8::try_from(tables.len()).unwrap_or(u8::MAX),
            origins: u8::try_from(origins.len()).unwrap_or(u8::MAX),
            first,
            last,
            entries: self.entries,
            transactions: self.transactions,
            commit_ms: end.commit_ms,
            cumulative_bytes: end.cumulative_bytes,
            end: end.boundary,
            body_bytes: u32_length(body_bytes),
        };
        out[header_start..][..SEGMENT_HEADER_BYTES].copy_from_slice(&header.encode());
        let lists = &mut out[header_start + SEGMENT_HEADER_BYTES..self.body_start];
        for (slot, id) in lists.chunks_exact_mut(2).zip(tables.iter().chain(origins)) {
            slot.copy_from_slice(&id.to_le_bytes());
        }
        let frame = FrameHeader {
            payload_bytes: u32_length(header_bytes + body_bytes),
            kind: FrameKind::SEGMENT,
            optional: false,
            payload_crc: crc32fast::hash(&out[header_start..self.body_start]),
        };
        out[frame_start..header_start].copy_from_slice(&frame.encode());
        frame_start..out.len()
    }
}

fn u32_length(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}

/// Up to [`SEGMENT_LIST_MAX`] different ids; one more and it only knows that there were too many.
#[derive(Debug, Default)]
struct ShortList {
    ids: Vec<u16>,
    overflow: bool,
}

impl ShortList {
    fn insert(&mut self, id: u16) {
        if self.ids.last() == Some(&id) || self.overflow || self.ids.contains(&id) {
            return;
        }
        if self.ids.len() == SEGMENT_LIST_MAX {
            self.overflow = true;
        } else {
            self.ids.push(id);
        }
    }

    fn listed(&self) -> Option<&[u16]> {
        (!self.overflow).then_some(&self.ids)
    }
}

/// An entry on its way into a log.
#[derive(Debug, Clone, Copy)]
pub struct EntryDraft<'a> {
    /// Place in the transaction at the origin.
    pub ordinal: u32,
    /// The table, in the log's short ids.
    pub table: TableId,
    /// What it does.
    pub kind: EntryKind,
    /// Its marks.
    pub flags: EntryFlags,
    /// The row's key.
    pub key: &'a [u8],
    /// The row's value.
    pub value: &'a [u8],
}

/// A transaction on its way into a log.
#[derive(Debug, Clone, Copy)]
pub struct TransactionDraft<'a> {
    /// The node that first wrote it, in the log's short ids.
    pub origin: OriginId,
    /// When that node wrote it.
    pub version: Version,
    /// Its entries; at least one.
    pub entries: &'a [EntryDraft<'a>],
}

/// Where a log ends: what the next append continues from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LogTail {
    /// The last transaction boundary.
    pub end: Boundary,
    /// Bytes of all segment frames since the log began.
    pub cumulative_bytes: u64,
}

/// Packs transactions into segments of about 64 KiB, numbering the entries.
///
/// Whole transactions share a segment; one that does not fit spans segments of its own. The caller has checked
/// the limits (`store::Limits`).
#[derive(Debug)]
pub struct SegmentPacker {
    tail: LogTail,
    commit_ms: u64,
    out: Vec<u8>,
    builder: Option<SegmentBuilder>,
}

impl SegmentPacker {
    /// Continues the log that ends at `tail`; `commit_ms` is stamped on every segment.
    #[must_use]
    pub const fn new(tail: LogTail, commit_ms: u64) -> Self {
        Self { tail, commit_ms, out: Vec::new(), builder: None }
    }

    /// Where the log ends with everything pushed so far. Valid for the next packer only after [`Self::finish`].
    #[must_use]
    pub const fn tail(&self) -> LogTail {
        self.tail
    }

    /// Appends a transaction and gives the boundary at its end. `emit` gets every finished segment: the sequence
    /// of its last entry, which is its key in the log, and its frame. A transaction without entries leaves no trace:
    /// it would take a sequence that no entry has.
    ///
    /// # Errors
    /// Whatever `emit` answers; the packer is then in the middle of a segment and to be dropped.
    pub fn push<E>(
        &mut self,
        transaction: &TransactionDraft<'_>,
        emit: &mut impl FnMut(Sequence, &[u8]) -> Result<(), E>,
    ) -> Result<Boundary, E> {
        if transaction.entries.is_empty() {
            return Ok(self.tail.end);
        }
        let size: usize = TRANSACTION_HEADER_BYTES
            + transaction.entries.iter().map(|entry| entry_header(entry, 0).encoded_bytes()).sum::<usize>();
        if self.builder.as_ref().is_some_and(|open| open.body_bytes(&self.out) + size > SEGMENT_TARGET_BYTES)
        {
            self.finish(emit)?;
        }
        let mut header = TransactionHeader {
            first: self.tail.end.sequence.plus(1),
            version: transaction.version,
            origin: transaction.origin,
            flags: SegmentFlags::NONE,
            entries: 0,
            bytes: 0,
            total_entries: u32_length(transaction.entries.len()),
        };
        let count = transaction.entries.len();
        let mut checksum = 0;
        for (index, entry) in transaction.entries.iter().enumerate() {
            let out = &mut self.out;
            let builder = self.builder.get_or_insert_with(|| SegmentBuilder::start(out, Lists::Listed));
            if !builder.in_transaction() {
                builder.begin_transaction(out, header);
            }
            builder.push(out, &entry_header(entry, u32_length(index)), entry.key, entry.value);
            if index + 1 == count {
                checksum = builder.end_transaction(out);
            } else if builder.body_bytes(out) >= SEGMENT_TARGET_BYTES {
                builder.end_part(out);
                self.finish(emit)?;
                header.flags = SegmentFlags::CONTINUES;
            }
        }
        let stamp = Stamp { version: transaction.version, checksum };
        self.tail.end = Boundary { sequence: header.last(), stamp };
        if header.flags.contains(SegmentFlags::CONTINUES) {
            self.finish(emit)?;
        }
        Ok(self.tail.end)
    }

    /// Emits the segment that is being filled, if there is one.
    ///
    /// # Errors
    /// Whatever `emit` answers.
    pub fn finish<E>(&mut self, emit: &mut impl FnMut(Sequence, &[u8]) -> Result<(), E>) -> Result<(), E> {
        let Some(builder) = self.builder.take() else { return Ok(()) };
        let Some((_, last)) = builder.range else { return Ok(()) };
        self.tail.cumulative_bytes += builder.frame_bytes(&self.out) as u64;
        let end = SegmentEnd {
            boundary: self.tail.end,
            commit_ms: self.commit_ms,
            cumulative_bytes: self.tail.cumulative_bytes,
        };
        let frame = builder.finish(&mut self.out, &end);
        emit(last, &self.out[frame])?;
        self.out.clear();
        Ok(())
    }
}

fn entry_header(entry: &EntryDraft<'_>, offset: u32) -> EntryHeader {
    EntryHeader {
        value_bytes: u32_length(entry.value.len()),
        key_bytes: u16::try_from(entry.key.len()).unwrap_or(u16::MAX),
        table: entry.table,
        ordinal: entry.ordinal,
        offset,
        kind: entry.kind,
        flags: entry.flags,
    }
}
