//! The protocol from the outside: what is packed can be read again.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::convert::Infallible;

use auditstream::protocol::{
    Boundary, EntryDraft, EntryFlags, EntryHeader, EntryKind, FrameHeader, Lists, LogTail, OriginId,
    ProtocolError, SegmentBuilder, SegmentEnd, SegmentFlags, SegmentPacker, SegmentRef, Sequence, TableId,
    TransactionDraft, TransactionHeader, Version,
};

const fn draft<'a>(table: u16, key: &'a [u8], value: &'a [u8]) -> EntryDraft<'a> {
    let (kind, flags) = (EntryKind::Put, EntryFlags::NONE);
    EntryDraft { ordinal: 0, table: TableId(table), kind, flags, key, value }
}

/// The segments of a new log with these transactions.
fn packed(transactions: &[&[EntryDraft<'_>]]) -> Vec<Vec<u8>> {
    let mut packer = SegmentPacker::new(LogTail::default(), 5);
    let mut frames = Vec::new();
    let mut emit = |_, frame: &[u8]| {
        frames.push(frame.to_vec());
        Ok::<_, Infallible>(())
    };
    for entries in transactions {
        let draft = TransactionDraft { origin: OriginId(0), version: Version::new(1, 0), entries };
        packer.push(&draft, &mut emit).unwrap();
    }
    packer.finish(&mut emit).unwrap();
    frames
}

#[test]
fn packed_segments_verify_and_number_the_entries_without_a_gap() {
    let value = vec![7_u8; 30_000];
    let entries: Vec<_> = (0..9)
        .map(|ordinal| EntryDraft {
            ordinal,
            table: TableId(1),
            kind: EntryKind::Put,
            flags: EntryFlags::NONE,
            key: b"key",
            value: &value,
        })
        .collect();
    let mut packer = SegmentPacker::new(LogTail::default(), 5);
    let mut frames: Vec<(Sequence, Vec<u8>)> = Vec::new();
    let mut emit = |last, frame: &[u8]| {
        frames.push((last, frame.to_vec()));
        Ok::<_, Infallible>(())
    };
    for (version, count) in [(1, 1), (2, 1), (3, 9), (4, 2)] {
        let draft = TransactionDraft {
            origin: OriginId(0),
            version: Version::new(version, 0),
            entries: &entries[..count],
        };
        packer.push(&draft, &mut emit).unwrap();
    }
    packer.finish(&mut emit).unwrap();
    let mut next = 1;
    for (last, frame) in &frames {
        let segment = SegmentRef::parse(frame).expect("a segment");
        segment.verify().expect("all promises");
        assert_eq!(segment.header().first.get(), next);
        assert_eq!(segment.header().last, *last);
        next = last.get() + 1;
    }
    assert_eq!(next, 14);
    assert_eq!(packer.tail().end.sequence.get(), 13);
    let bytes: usize = frames.iter().map(|(_, frame)| frame.len()).sum();
    assert_eq!(packer.tail().cumulative_bytes, bytes as u64);
}

/// A segment of one local-only entry with the sequence 1, its header changed by `change` and its checksums made right again.
fn segment_with(change: impl Fn(&mut [u8])) -> Result<(), ProtocolError> {
    let mut frame =
        packed(&[&[EntryDraft { flags: EntryFlags::LOCAL_ONLY, ..draft(1, b"key", b"value") }]]).remove(0);
    let mut header = FrameHeader::decode(&frame).unwrap();
    let start = frame.len() - header.payload_bytes as usize;
    change(&mut frame[start..]);
    let length = usize::from(u16::from_le_bytes([frame[start + 4], frame[start + 5]]));
    header.payload_crc = crc32fast::hash(&frame[start..start + length]);
    frame[..start].copy_from_slice(&header.encode());
    SegmentRef::parse(&frame)?.verify()
}

#[test]
fn an_unfiltered_segment_with_a_gap_and_part_marks_that_disagree_are_refused() {
    segment_with(|_| ()).expect("unchanged");
    segment_with(|payload| payload[8] = 0).expect_err("the first sequence is missing");
    segment_with(|payload| payload[2] |= 1).expect_err("a part mark on the segment alone");
    segment_with(|payload| payload[2] |= 64).expect("filtered");
    segment_with(|payload| payload[2] &= !4).expect_err("the mark of local-only entries is missing");
}

#[test]
fn an_offset_behind_every_entry_is_the_end_and_not_an_overflow() {
    let frames = packed(&[&[draft(1, b"k", b"v")]]);
    let segment = SegmentRef::parse(&frames[0]).unwrap();
    let transaction = segment.transaction_at(0).unwrap().expect("there is one");
    for offset in [22, usize::MAX - 39, usize::MAX] {
        assert!(transaction.entry_at(offset).unwrap().is_none(), "{offset}");
    }
    assert!(segment.transaction_at(usize::MAX).unwrap().is_none());
}

#[test]
fn a_transaction_without_entries_takes_no_sequence() {
    let mut packer = SegmentPacker::new(LogTail::default(), 5);
    let mut emit = |_, _: &[u8]| Err("nothing is to be emitted");
    let draft = TransactionDraft { origin: OriginId(0), version: Version::new(1, 0), entries: &[] };
    assert_eq!(packer.push(&draft, &mut emit), Ok(LogTail::default().end));
    assert_eq!(packer.finish(&mut emit), Ok(()));
    assert_eq!(packer.tail(), LogTail::default());
}

#[test]
fn bytes_behind_a_segment_are_named_as_such() {
    let mut frame = packed(&[&[draft(1, b"k", b"v")]]).remove(0);
    frame.push(0);
    let error = SegmentRef::parse(&frame).expect_err("a byte too many").to_string();
    assert_eq!(error, "payload of a segment holds 147, which is longer than its header and its transactions");
}

#[test]
fn a_segment_that_leaves_an_id_out_of_its_lists_is_refused() {
    let error = segment_with(|payload| payload[80] = 9).expect_err("the table is 1").to_string();
    assert_eq!(error, "table of an entry holds 1, which is not listed in its segment's header");
    let error = segment_with(|payload| payload[82] = 9).expect_err("the origin is 0").to_string();
    assert_eq!(error, "origin of a transaction holds 0, which is not listed in its segment's header");
}

/// A transaction that says it has `total` entries from `first` on; those with these offsets are there.
struct Stated<'a> {
    first: u64,
    total: u32,
    flags: SegmentFlags,
    offsets: &'a [u32],
}

/// What `verify` says about a segment of these transactions that states its end position at `end`. A position at a
/// boundary inside gets the stamp of that boundary.
fn verified(filtered: bool, end: u64, transactions: &[Stated<'_>]) -> Result<(), ProtocolError> {
    let mut out = Vec::new();
    let mut builder = SegmentBuilder::start(&mut out, Lists::Listed);
    if filtered {
        builder.mark(SegmentFlags::FILTERED);
    }
    let mut boundary = Boundary { sequence: Sequence::new(end), ..Boundary::START };
    for stated in transactions {
        let header = TransactionHeader {
            first: Sequence::new(stated.first),
            version: Version::new(1, 0),
            origin: OriginId(0),
            flags: stated.flags,
            entries: 0,
            bytes: 0,
            total_entries: stated.total,
        };
        builder.begin_transaction(&mut out, header);
        for &offset in stated.offsets {
            let (kind, flags, table) = (EntryKind::Put, EntryFlags::NONE, TableId(1));
            let entry =
                EntryHeader { value_bytes: 0, key_bytes: 1, table, ordinal: offset, offset, kind, flags };
            builder.push(&mut out, &entry, b"k", b"");
        }
        let checksum = builder.end_transaction(&mut out);
        if header.last() == boundary.sequence {
            boundary.stamp.version = header.version;
            boundary.stamp.checksum = checksum;
        }
    }
    let end = SegmentEnd { boundary, commit_ms: 0, cumulative_bytes: 0 };
    let frame = builder.finish(&mut out, &end);
    SegmentRef::parse(&out[frame]).unwrap().verify()
}

const fn whole(first: u64, total: u32, offsets: &[u32]) -> Stated<'_> {
    Stated { first, total, flags: SegmentFlags::NONE, offsets }
}

#[test]
fn a_transaction_that_is_not_as_long_as_it_states_is_refused_unless_entries_were_left_out() {
    assert_eq!(verified(false, 12, &[whole(10, 3, &[0, 1, 2])]), Ok(()));
    verified(false, 12, &[whole(10, 3, &[0, 1])]).expect_err("the last entry is missing");
    verified(false, 12, &[whole(10, 3, &[1, 2])]).expect_err("the first entry is missing");
    assert_eq!(verified(true, 12, &[whole(10, 3, &[1])]), Ok(()));
}

#[test]
fn transactions_that_overlap_are_refused_in_a_filtered_segment_too() {
    assert_eq!(verified(true, 15, &[whole(10, 3, &[0]), whole(13, 3, &[1])]), Ok(()));
    verified(true, 15, &[whole(10, 4, &[0]), whole(13, 3, &[1])]).expect_err("13 is in both");
    verified(true, 12, &[whole(10, 3, &[0]), whole(11, 2, &[0])]).expect_err("12 ends both");
}

#[test]
fn the_end_position_is_never_inside_a_part() {
    let part = |offsets| {
        let flags = SegmentFlags::CONTINUES.with(SegmentFlags::CONTINUED);
        [Stated { first: 10, total: 9, flags, offsets }]
    };
    for filtered in [false, true] {
        assert_eq!(verified(filtered, 9, &part(&[4, 5])), Ok(()));
        verified(filtered, 10, &part(&[4, 5])).expect_err("after the first of its entries");
        verified(filtered, 13, &part(&[4, 5])).expect_err("before the first entry here");
        verified(filtered, 17, &part(&[4, 5])).expect_err("before its last entry");
    }
    assert_eq!(verified(true, 18, &part(&[4, 5])), Ok(()), "the rest was left out");
    verified(false, 18, &part(&[4, 5])).expect_err("the rest was not sent");
}
