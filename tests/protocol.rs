//! The protocol from the outside: what is packed can be read again.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use auditstream::protocol::{
    EntryDraft, EntryFlags, EntryKind, LogTail, OriginId, SegmentPacker, SegmentRef, Sequence, TableId,
    TransactionDraft, Version,
};

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
        Ok::<_, std::convert::Infallible>(())
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

/// A segment of one transaction at sequence 2, its header changed by `change` and its checksums made right again.
fn segment_with(change: impl Fn(&mut [u8])) -> Result<(), auditstream::protocol::ProtocolError> {
    use auditstream::protocol::FrameHeader;
    let entry = EntryDraft {
        ordinal: 0,
        table: TableId(1),
        kind: EntryKind::Put,
        flags: EntryFlags::NONE,
        key: b"key",
        value: b"value",
    };
    let mut tail = LogTail::default();
    tail.end.sequence = Sequence::new(1);
    let mut packer = SegmentPacker::new(tail, 5);
    let mut frame = Vec::new();
    let mut emit = |_, bytes: &[u8]| {
        frame = bytes.to_vec();
        Ok::<_, std::convert::Infallible>(())
    };
    let draft = TransactionDraft { origin: OriginId(0), version: Version::new(1, 0), entries: &[entry] };
    packer.push(&draft, &mut emit).unwrap();
    packer.finish(&mut emit).unwrap();
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
    segment_with(|payload| payload[8] = 1).expect_err("the first sequence is missing");
    segment_with(|payload| payload[2] |= 1).expect_err("a part mark on the segment alone");
    segment_with(|payload| payload[2] |= 64).expect("filtered");
}
