//! Whatever is encoded decodes to the same, whatever is changed is seen, and no bytes at all make a decoder panic.
//!
//! `PROPTEST_RNG_SEED=17 cargo test --test protocol_roundtrip` runs another seed than 1; a failure prints its input.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::convert::Infallible;

use auditstream::protocol::limits::{ENTRY_KEY_BYTES_MAX, ENTRY_VALUE_BYTES_MAX, SEGMENT_LIST_MAX};
use auditstream::protocol::{
    Acknowledgement, Boundary, CloseCode, Dictionary, EntryDraft, EntryFlags, EntryKind, Fingerprint, Frame,
    FrameHeader, FrameKind, Hello, Lists, LogId, LogTail, Message, NameFilter, NodeName, OriginId, Position,
    RefuseReason, SEGMENT_HEADER_BYTES, SegmentBuilder, SegmentEnd, SegmentFlags, SegmentPacker, SegmentRef,
    Sequence, Stamp, Subscription, TRANSACTION_HEADER_BYTES, TableDefinition, TableId, TableName,
    TransactionDraft, Version, decode_frame,
};
use bytes::{Bytes, BytesMut};
use proptest::collection::{btree_set, vec};
use proptest::prelude::*;
use proptest::sample::{Index, select};
use proptest::test_runner::RngSeed;

fn cases(cases: u32) -> ProptestConfig {
    let seed = std::env::var("PROPTEST_RNG_SEED").map_or(1, |seed| seed.parse().unwrap());
    println!("seed: PROPTEST_RNG_SEED={seed}");
    ProptestConfig { cases, failure_persistence: None, rng_seed: RngSeed::Fixed(seed), ..Default::default() }
}

fn node() -> impl Strategy<Value = NodeName> {
    "[a-zé€ \u{10348}]{1,20}".prop_map(|name| NodeName::new(name).unwrap())
}

fn table() -> impl Strategy<Value = TableName> {
    prop_oneof!["[a-z/.]{1,9}", "[a-z]{255}"].prop_map(|name| TableName::new(name).unwrap())
}

fn boundary() -> impl Strategy<Value = Boundary> {
    any::<(u64, u64, u32)>().prop_map(|(sequence, version, checksum)| Boundary {
        sequence: Sequence::new(sequence),
        stamp: Stamp { version: Version::from_bits(version), checksum },
    })
}

fn position() -> impl Strategy<Value = Position> {
    (any::<[u8; 16]>(), boundary(), any::<u64>()).prop_map(|(log, boundary, filter)| Position {
        log: LogId::from_bytes(log),
        boundary,
        filter: Fingerprint(filter),
    })
}

fn filter<T: Ord + Clone + std::fmt::Debug>(
    name: impl Strategy<Value = T>,
) -> impl Strategy<Value = NameFilter<T>> {
    (0..3_u8, btree_set(name, 0..6)).prop_map(|(mode, names): (_, BTreeSet<T>)| match mode {
        0 => NameFilter::All,
        1 => NameFilter::Include(names),
        _ => NameFilter::Exclude(names),
    })
}

fn subscription() -> impl Strategy<Value = Subscription> {
    (filter(table()), filter(node()), proptest::option::of(position()))
        .prop_map(|(tables, origins, start)| Subscription::new(tables, origins, start).unwrap())
}

fn dictionary() -> impl Strategy<Value = Dictionary> {
    prop_oneof![
        (any::<u16>(), node()).prop_map(|(id, name)| Dictionary::Origin(OriginId(id), name)),
        (any::<u16>(), table(), any::<u32>(), vec(any::<u8>(), 0..99)).prop_map(
            |(id, name, version, definition)| {
                Dictionary::Table(
                    TableId(id),
                    TableDefinition { name, version, definition: definition.into() },
                )
            }
        ),
    ]
}

fn hello() -> impl Strategy<Value = Hello> {
    (any::<[u16; 4]>(), any::<u64>(), any::<u32>(), node()).prop_map(|(versions, abilities, max, node)| {
        Hello {
            protocol: (versions[0], versions[1]),
            segments: (versions[2], versions[3]),
            capabilities: abilities,
            frame_payload_max: max,
            node,
        }
    })
}

/// Every type of frame but the segment. Texts are short enough not to be cut.
fn message() -> impl Strategy<Value = Message> {
    let accepted = (any::<u32>(), any::<[u8; 16]>(), boundary(), any::<[u64; 2]>());
    let refused = (any::<u32>(), any::<u16>(), any::<bool>(), "\\PC{0,60}");
    let sequence = || any::<u64>().prop_map(Sequence::new);
    prop_oneof![
        hello().prop_map(Message::Hello),
        (any::<u32>(), subscription()).prop_map(|(id, subscription)| Message::Subscribe { id, subscription }),
        accepted.prop_map(|(id, log, start, [filter, head])| Message::Accepted {
            id,
            log: LogId::from_bytes(log),
            start,
            filter: Fingerprint(filter),
            head: Sequence::new(head),
        }),
        refused.prop_map(|(id, code, base_copy_offered, text)| Message::Refused {
            id,
            reason: RefuseReason::from_code(code % 12),
            base_copy_offered,
            text,
        }),
        dictionary().prop_map(Message::Dictionary),
        boundary().prop_map(Message::SequenceUpdate),
        [sequence(), sequence(), sequence()].prop_map(|[received, applied, durable]| {
            Message::Acknowledgement(Acknowledgement { received, applied, durable })
        }),
        select(vec![Message::Pause, Message::Resume]),
        any::<u64>().prop_map(Message::Ping),
        any::<u64>().prop_map(Message::Pong),
        (any::<u16>(), "\\PC{0,60}")
            .prop_map(|(code, text)| Message::Close { code: CloseCode::from_code(code % 12), text }),
        sequence().prop_map(Message::Progress),
    ]
}

fn encoded(message: &Message) -> Vec<u8> {
    let mut bytes = Vec::new();
    message.encode(&mut bytes);
    bytes
}

#[derive(Debug, Clone)]
struct Row {
    table: u16,
    kind: EntryKind,
    flags: u8,
    key: Vec<u8>,
    value: Vec<u8>,
}

impl Row {
    fn draft(&self, place: u32) -> EntryDraft<'_> {
        EntryDraft {
            // Not its place: a hop that left entries out keeps the ordinals of the origin.
            ordinal: 3 * place,
            table: TableId(self.table),
            kind: self.kind,
            flags: EntryFlags::from_bits(self.flags),
            key: &self.key,
            value: &self.value,
        }
    }
}

#[derive(Debug, Clone)]
struct Transaction {
    origin: u16,
    version: u64,
    rows: Vec<Row>,
}

impl Transaction {
    fn drafts(&self) -> Vec<EntryDraft<'_>> {
        let draft = |(place, row)| Row::draft(row, place);
        (0..).zip(&self.rows).map(draft).collect()
    }
}

fn row() -> impl Strategy<Value = Row> {
    let kinds =
        vec![EntryKind::Put, EntryKind::Patch, EntryKind::Delete, EntryKind::Invalidate, EntryKind::Message];
    let key = prop_oneof![9 => 1..40_usize, 1 => Just(ENTRY_KEY_BYTES_MAX)];
    let value = prop_oneof![
        40 => 0..200_usize,
        10 => Just(0),
        6 => 8_000..30_000_usize,
        1 => Just(ENTRY_VALUE_BYTES_MAX),
    ];
    (0..40_u16, select(kinds), select(vec![0_u8, 0, 0, 1, 2, 0x83]), key, value, any::<u8>()).prop_map(
        |(table, kind, flags, key, value, fill)| Row {
            table,
            kind,
            flags,
            key: vec![fill; key],
            value: vec![!fill; value],
        },
    )
}

fn transactions() -> impl Strategy<Value = Vec<Transaction>> {
    let count = prop_oneof![4 => 1..6_usize, 1 => 30..60_usize];
    let transaction = (0..40_u16, any::<u64>(), count.prop_flat_map(|count| vec(row(), count)))
        .prop_map(|(origin, version, rows)| Transaction { origin, version, rows });
    vec(transaction, 1..8)
}

/// The segments of a log that goes on at `start`, and the boundary of every transaction.
fn packed(transactions: &[Transaction], start: u64) -> (Vec<Vec<u8>>, Vec<Boundary>, LogTail) {
    let end = Boundary { sequence: Sequence::new(start), ..Boundary::START };
    let mut packer = SegmentPacker::new(LogTail { end, cumulative_bytes: 7 }, 5);
    let (mut frames, mut boundaries) = (Vec::new(), Vec::new());
    let mut emit = |last, frame: &[u8]| {
        assert_eq!(SegmentRef::parse(frame).unwrap().header().last, last);
        frames.push(frame.to_vec());
        Ok::<_, Infallible>(())
    };
    for transaction in transactions {
        let draft = TransactionDraft {
            origin: OriginId(transaction.origin),
            version: Version::from_bits(transaction.version),
            entries: &transaction.drafts(),
        };
        boundaries.push(packer.push(&draft, &mut emit).unwrap());
    }
    packer.finish(&mut emit).unwrap();
    let tail = packer.tail();
    (frames, boundaries, tail)
}

/// All frames that come out of `stream` when it arrives in pieces of these lengths, over and over.
fn decoded(stream: &[u8], pieces: &[usize]) -> Result<Vec<Frame>, auditstream::protocol::ProtocolError> {
    let (mut frames, mut input, mut rest) = (Vec::new(), BytesMut::new(), stream);
    for &piece in pieces.iter().cycle() {
        let (now, later) = rest.split_at(piece.min(rest.len()));
        input.extend_from_slice(now);
        while let Some(frame) = decode_frame(&mut input)? {
            frames.push(frame);
        }
        rest = later;
        if rest.is_empty() {
            break;
        }
    }
    Ok(frames)
}

/// Sets the bytes that no checksum covers to zero, and gives the rest as it is.
fn without_reserve(frame: &[u8]) -> Vec<u8> {
    let mut bytes = frame.to_vec();
    let mut start = frame.len() - SegmentRef::parse(frame).unwrap().header().body_bytes as usize;
    for transaction in SegmentRef::parse(frame).unwrap().transactions().map(Result::unwrap) {
        bytes[start + TRANSACTION_HEADER_BYTES - 4..start + TRANSACTION_HEADER_BYTES].fill(0);
        start += transaction.encoded.len();
    }
    bytes
}

/// The frames are the same, but for reserved bytes and the frame that a change took away from the end.
fn is_start_of(found: &[Frame], expected: &[Frame]) -> bool {
    let same = |(found, expected): (&Frame, &Frame)| match (found, expected) {
        (Frame::Segment(found), Frame::Segment(expected)) => {
            without_reserve(found) == without_reserve(expected)
        }
        (found, expected) => found == expected,
    };
    found.len() <= expected.len() && found.iter().zip(expected).all(same)
}

proptest! {
    #![proptest_config(cases(256))]

    #[test]
    fn a_message_of_any_type_is_the_same_after_encoding_and_decoding(message in message()) {
        let bytes = encoded(&message);
        prop_assert_eq!(decoded(&bytes, &[bytes.len()]), Ok(vec![Frame::Message(message.clone())]));
        // A later version adds fields at the end.
        let mut payload = bytes[16..].to_vec();
        payload.extend_from_slice(b"later");
        prop_assert_eq!(Message::decode(message.kind(), &payload.into()), Ok(Some(message)));
    }

    #[test]
    fn a_position_is_the_same_after_encoding_and_decoding(position in position(), cut in 0..48_usize) {
        let bytes = position.to_bytes();
        prop_assert_eq!(Position::from_bytes(&bytes), Ok(position));
        prop_assert!(Position::from_bytes(&bytes[..cut]).is_err());
        prop_assert!(Position::from_bytes(&[&bytes[..], &[0]].concat()).is_err());
    }

    #[test]
    fn garbage_never_makes_a_decoder_panic(bytes in vec(any::<u8>(), 0..400)) {
        let _ = decode_frame(&mut BytesMut::from(&bytes[..]));
        if let Ok(segment) = SegmentRef::parse(&bytes) {
            let _ = segment.verify();
        }
        let _ = Position::from_bytes(&bytes);
        let payload = Bytes::from(bytes);
        for kind in 0..=u8::MAX {
            let _ = Message::decode(FrameKind(kind), &payload);
        }
    }

    #[test]
    fn garbage_behind_a_right_header_never_makes_a_decoder_panic(
        kind in 0..20_u8,
        payload in vec(any::<u8>(), 0..400),
    ) {
        let header = FrameHeader {
            payload_bytes: u32::try_from(payload.len()).unwrap(),
            kind: FrameKind(kind),
            optional: false,
            payload_crc: crc32fast::hash(&payload),
        };
        let frame = [&header.encode()[..], &payload].concat();
        let _ = decode_frame(&mut BytesMut::from(&frame[..]));
        if let Ok(segment) = SegmentRef::parse(&frame) {
            let _ = segment.verify();
        }
    }

    #[test]
    fn a_claimed_length_never_makes_the_buffer_grow(
        claimed in any::<u32>(),
        kind in 0..20_u8,
        behind in vec(any::<u8>(), 0..64),
    ) {
        let header =
            FrameHeader { payload_bytes: claimed, kind: FrameKind(kind), optional: true, payload_crc: 0 };
        let mut input = BytesMut::from(&[&header.encode()[..], &behind].concat()[..]);
        let (capacity, length) = (input.capacity(), input.len());
        let answer = decode_frame(&mut input);
        prop_assert!(input.capacity() <= capacity, "{} > {capacity}", input.capacity());
        let limit = if kind == FrameKind::SEGMENT.0 { 256 * 1024 } else { 128 * 1024 };
        if claimed > limit {
            prop_assert!(answer.is_err());
        } else if claimed as usize > behind.len() {
            prop_assert_eq!(answer, Ok(None));
            prop_assert_eq!(input.len(), length, "the bytes stay until the rest came");
        }
    }
}

proptest! {
    #![proptest_config(cases(48))]

    #[test]
    fn packed_transactions_verify_are_dense_and_have_their_boundaries(
        transactions in transactions(),
        start in prop_oneof![Just(0), 0..1_000_000_u64],
    ) {
        let (frames, boundaries, tail) = packed(&transactions, start);
        let mut next = start + 1;
        let mut rows = transactions.iter().flat_map(|one| one.drafts().into_iter().map(move |draft| (one, draft)));
        let (mut found, mut bytes) = (Vec::new(), 7);
        for frame in &frames {
            let segment = SegmentRef::parse(frame).unwrap();
            prop_assert_eq!(segment.verify(), Ok(()));
            prop_assert_eq!(segment.header().first.get(), next);
            bytes += frame.len() as u64;
            prop_assert_eq!(segment.header().cumulative_bytes, bytes);
            let (mut tables, mut origins) = (BTreeSet::new(), BTreeSet::new());
            for transaction in segment.transactions().map(Result::unwrap) {
                origins.insert(transaction.header.origin);
                for entry in transaction.entries().map(Result::unwrap) {
                    let (expected, draft) = rows.next().unwrap();
                    prop_assert_eq!(transaction.header.origin.0, expected.origin);
                    prop_assert_eq!(transaction.header.version.to_bits(), expected.version);
                    prop_assert_eq!(transaction.header.total_entries as usize, expected.rows.len());
                    prop_assert_eq!(transaction.sequence_of(&entry).get(), next);
                    let header = entry.header;
                    prop_assert_eq!((header.ordinal, header.table), (draft.ordinal, draft.table));
                    prop_assert_eq!((header.kind, header.flags), (draft.kind, draft.flags));
                    prop_assert!(entry.key == draft.key && entry.value == draft.value);
                    tables.insert(header.table);
                    next += 1;
                }
                found.extend(transaction.boundary());
            }
            prop_assert_eq!(segment.tables().map(Iterator::collect), (tables.len() <= SEGMENT_LIST_MAX).then_some(tables));
            prop_assert_eq!(segment.origins().map(Iterator::collect), (origins.len() <= SEGMENT_LIST_MAX).then_some(origins));
        }
        prop_assert!(rows.next().is_none());
        prop_assert_eq!(&found, &boundaries);
        prop_assert_eq!((tail.cumulative_bytes, Some(&tail.end)), (bytes, boundaries.last()));
        for sequence in start..next + 1 {
            let sequence = Sequence::new(sequence);
            let expected = boundaries.iter().find(|boundary| boundary.sequence == sequence).copied();
            let answers = frames.iter().filter_map(|frame| SegmentRef::parse(frame).unwrap().boundary_at(sequence).unwrap());
            prop_assert_eq!(answers.collect::<Vec<_>>(), Vec::from_iter(expected));
        }
    }

    #[test]
    fn a_filtered_frame_keeps_the_sequences_and_the_totals_of_the_log(
        transactions in transactions(),
        keep in vec(any::<bool>(), 1..50),
        in_front in 0..100_usize,
    ) {
        let (frames, ..) = packed(&transactions, 0);
        let mut keep = keep.iter().cycle();
        for frame in &frames {
            let segment = SegmentRef::parse(frame).unwrap();
            let mut out = vec![0xee; in_front];
            let mut builder = SegmentBuilder::start(&mut out, Lists::Unlisted);
            builder.mark(SegmentFlags::FILTERED);
            let mut kept = Vec::new();
            for transaction in segment.transactions().map(Result::unwrap) {
                for entry in transaction.entries().map(Result::unwrap).filter(|_| *keep.next().unwrap()) {
                    if !builder.in_transaction() {
                        builder.begin_transaction(&mut out, transaction.header);
                    }
                    builder.push_encoded(&mut out, &entry);
                    kept.push((transaction.sequence_of(&entry), entry.key, entry.value));
                }
                if builder.in_transaction() {
                    builder.end_transaction(&mut out);
                }
            }
            let Some(((first, ..), (last, ..))) = kept.first().zip(kept.last()) else { continue };
            let end = SegmentEnd { boundary: segment.header().end, commit_ms: 5, cumulative_bytes: 9 };
            let expected_bytes = builder.frame_bytes(&out);
            let range = builder.finish(&mut out, &end);
            prop_assert_eq!(&range, &(in_front..in_front + expected_bytes));
            prop_assert!(out[..in_front].iter().all(|byte| *byte == 0xee));
            let filtered = SegmentRef::parse(&out[range]).unwrap();
            prop_assert_eq!(filtered.verify(), Ok(()));
            prop_assert!(filtered.tables().is_none() && filtered.origins().is_none());
            let header = filtered.header();
            prop_assert_eq!((header.first, header.last, header.end), (*first, *last, segment.header().end));
            prop_assert_eq!(usize::from(header.header_bytes), SEGMENT_HEADER_BYTES);
            let mut found = Vec::new();
            for transaction in filtered.transactions().map(Result::unwrap) {
                let entries = transaction.entries().map(Result::unwrap);
                found.extend(entries.map(|entry| (transaction.sequence_of(&entry), entry.key, entry.value)));
            }
            prop_assert!(found == kept);
        }
    }

    #[test]
    fn the_pieces_in_which_a_stream_arrives_do_not_matter(
        messages in vec(message(), 0..6),
        transactions in transactions(),
        pieces in vec(prop_oneof![1..30_usize, 1..100_000_usize], 1..20),
    ) {
        let (segments, ..) = packed(&transactions, 0);
        let segments = segments.iter().map(|frame| Frame::Segment(Bytes::copy_from_slice(frame)));
        let frames: Vec<_> = segments.chain(messages.into_iter().map(Frame::Message)).collect();
        let stream = stream_of(&frames);
        prop_assert!(decoded(&stream, &pieces) == Ok(frames));
    }

    #[test]
    fn a_changed_stream_is_seen_or_decodes_to_the_same(
        messages in vec(message(), 1..6),
        transactions in transactions(),
        changes in vec((any::<Index>(), 1..=255_u8), 1..4),
        at_front in any::<bool>(),
    ) {
        let (segments, ..) = packed(&transactions, 0);
        let segments = segments.iter().map(|frame| Frame::Segment(Bytes::copy_from_slice(frame)));
        let frames: Vec<_> = messages.into_iter().map(Frame::Message).chain(segments).collect();
        let mut stream = stream_of(&frames);
        // Headers are few bytes among the many of values; half of the time only they are changed.
        let length = if at_front { stream.len().min(600) } else { stream.len() };
        for (place, change) in &changes {
            stream[place.index(length)] ^= change;
        }
        if let Ok(found) = decoded(&stream, &[stream.len()]) {
            let verify = |frame: &Frame| match frame {
                Frame::Segment(frame) => SegmentRef::parse(frame).and_then(|segment| segment.verify()),
                _ => Ok(()),
            };
            let whole = found.iter().all(|frame| verify(frame).is_ok());
            prop_assert!(!whole || is_start_of(&found, &frames), "the change {changes:?} was not seen");
        }
    }
}

fn stream_of(frames: &[Frame]) -> Vec<u8> {
    let bytes = frames.iter().map(|frame| match frame {
        Frame::Message(message) => encoded(message),
        Frame::Segment(frame) => frame.to_vec(),
        _ => Vec::new(),
    });
    bytes.flatten().collect()
}
