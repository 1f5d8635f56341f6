//! Every limit of the formats, one unit below, at and above it.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::convert::Infallible;

use auditstream::protocol::limits::{
    CONTROL_PAYLOAD_BYTES_MAX, ENTRY_KEY_BYTES_MAX, ENTRY_VALUE_BYTES_MAX, FRAME_PAYLOAD_BYTES_MAX,
    SEGMENT_TARGET_BYTES,
};
use auditstream::protocol::{
    CloseCode, Dictionary, ENTRY_HEADER_BYTES, EntryDraft, EntryFlags, EntryHeader, EntryKind, EntryRef,
    Frame, FrameHeader, FrameKind, Hello, LogTail, Message, NameFilter, NodeName, OriginId, Position,
    SegmentPacker, SegmentRef, Subscription, TRANSACTION_HEADER_BYTES, TableDefinition, TableId, TableName,
    TransactionDraft, Version, decode_frame,
};
use bytes::{Bytes, BytesMut};

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

/// A frame with this payload, its checksums right.
fn frame_of(kind: FrameKind, payload: &[u8]) -> BytesMut {
    let header = FrameHeader {
        payload_bytes: u32::try_from(payload.len()).unwrap(),
        kind,
        optional: false,
        payload_crc: crc32fast::hash(payload),
    };
    BytesMut::from(&[&header.encode()[..], payload].concat()[..])
}

#[test]
fn a_control_payload_is_taken_up_to_its_limit_and_refused_one_byte_above_it() {
    let limit = CONTROL_PAYLOAD_BYTES_MAX;
    for bytes in [limit - 1, limit] {
        // A ping with fields of a later version.
        let mut input = frame_of(FrameKind::PING, &vec![0; bytes]);
        assert_eq!(decode_frame(&mut input), Ok(Some(Frame::Message(Message::Ping(0)))), "{bytes}");
    }
    let mut input = frame_of(FrameKind::PING, &vec![0; limit + 1]);
    // The header alone is enough.
    input.truncate(16);
    let error = decode_frame(&mut input).expect_err("over the limit");
    assert_eq!(error.to_string(), "frame payload length is 131073, the limit is 131072");
}

#[test]
fn a_segment_payload_is_judged_by_its_own_limit() {
    for (bytes, fits) in [(FRAME_PAYLOAD_BYTES_MAX, true), (FRAME_PAYLOAD_BYTES_MAX + 1, false)] {
        let mut input = frame_of(FrameKind::SEGMENT, &vec![0; bytes]);
        input.truncate(16);
        assert_eq!(decode_frame(&mut input).is_ok(), fits, "{bytes}");
    }
}

#[test]
fn the_largest_segment_that_is_packed_stays_below_the_payload_limit() {
    let (key, value) = (vec![1; ENTRY_KEY_BYTES_MAX], vec![2; ENTRY_VALUE_BYTES_MAX]);
    // One byte below the target, then the largest entry.
    let filler = vec![3; SEGMENT_TARGET_BYTES - 1 - TRANSACTION_HEADER_BYTES - ENTRY_HEADER_BYTES - 1];
    let entries = [draft(1, b"k", &filler), draft(2, &key, &value), draft(3, b"k", b"")];
    let frames = packed(&[&entries]);
    assert_eq!(frames.len(), 2);
    let first = SegmentRef::parse(&frames[0]).unwrap();
    let largest = ENTRY_HEADER_BYTES + key.len() + value.len();
    assert_eq!(first.header().body_bytes as usize, SEGMENT_TARGET_BYTES - 1 + largest);
    assert!(first.header().payload_bytes() <= FRAME_PAYLOAD_BYTES_MAX);
    first.verify().expect("all promises");
}

#[test]
fn an_entry_is_taken_up_to_the_limits_of_key_and_value_and_refused_above_them() {
    let encoded = |key: usize, value: usize| {
        let header = EntryHeader {
            value_bytes: u32::try_from(value).unwrap(),
            key_bytes: u16::try_from(key).unwrap(),
            table: TableId(1),
            ordinal: 0,
            offset: 0,
            kind: EntryKind::Put,
            flags: EntryFlags::NONE,
        };
        let mut bytes = Vec::new();
        header.encode(&mut bytes);
        bytes.resize(header.encoded_bytes(), 7);
        bytes
    };
    let bytes = encoded(ENTRY_KEY_BYTES_MAX, ENTRY_VALUE_BYTES_MAX);
    let entry = EntryRef::decode(&bytes).expect("at the limits");
    assert_eq!((entry.key.len(), entry.value.len()), (480, 163_840));
    let error = EntryRef::decode(&encoded(481, 0)).expect_err("key").to_string();
    assert_eq!(error, "entry key is 481, the limit is 480");
    let error = EntryRef::decode(&encoded(1, 163_841)).expect_err("value").to_string();
    assert_eq!(error, "entry value is 163841, the limit is 163840");
}

#[test]
fn a_segment_lists_thirty_two_tables_and_says_so_when_there_are_more() {
    for (tables, listed) in [(32, Some(32)), (33, None)] {
        let entries: Vec<_> = (0..tables).map(|table| draft(table, b"k", b"v")).collect();
        let frames = packed(&[&entries]);
        let segment = SegmentRef::parse(&frames[0]).unwrap();
        segment.verify().expect("all promises");
        assert_eq!(segment.tables().map(Iterator::count), listed);
        assert_eq!(segment.origins().map(Iterator::count), Some(1));
    }
    let mut payload = packed(&[&[draft(1, b"k", b"v")]]).remove(0).split_off(16);
    payload[6] = 33;
    let error = SegmentRef::parse(&frame_of(FrameKind::SEGMENT, &payload)).expect_err("over its limit");
    assert_eq!(error.to_string(), "segment list is 33, the limit is 32");
}

/// A hello with a name of this many bytes.
fn hello_of(name_bytes: u16) -> Vec<u8> {
    let mut payload = Vec::new();
    Message::Hello(Hello::new(NodeName::new("n").unwrap())).encode(&mut payload);
    payload.drain(..16);
    payload.truncate(24);
    payload.extend_from_slice(&name_bytes.to_le_bytes());
    payload.resize(payload.len() + usize::from(name_bytes), b'n');
    payload
}

#[test]
fn a_name_is_taken_with_one_to_255_bytes() {
    for (bytes, fits) in [(0, false), (1, true), (255, true), (256, false)] {
        let decoded = Message::decode(FrameKind::HELLO, &hello_of(bytes).into());
        assert_eq!(decoded.is_ok(), fits, "{bytes}: {decoded:?}");
    }
}

/// The payload of a subscription to these tables, from the start.
fn subscribe_to<'a>(tables: impl ExactSizeIterator<Item = &'a str>) -> Bytes {
    let mut payload = vec![1, 0, 0, 0, 0, 1];
    payload.extend_from_slice(&u16::try_from(tables.len()).unwrap().to_le_bytes());
    for name in tables {
        payload.extend_from_slice(&u16::try_from(name.len()).unwrap().to_le_bytes());
        payload.extend_from_slice(name.as_bytes());
    }
    payload.extend_from_slice(&[0, 0, 0]);
    payload.into()
}

#[test]
fn a_filter_is_taken_with_200_names_and_refused_with_201() {
    let names: Vec<_> = (0..201).map(|number| format!("{number:03}")).collect();
    for (count, fits) in [(200, true), (201, false)] {
        let payload = subscribe_to(names[..count].iter().map(String::as_str));
        assert_eq!(Message::decode(FrameKind::SUBSCRIBE, &payload).is_ok(), fits, "{count}");
    }
}

#[test]
fn a_filter_whose_names_are_not_sorted_or_come_twice_is_refused() {
    let decode = |names: [&str; 2]| Message::decode(FrameKind::SUBSCRIBE, &subscribe_to(names.into_iter()));
    let Ok(Some(Message::Subscribe { subscription, .. })) = decode(["Z", "a"]) else {
        panic!("sorted by bytes")
    };
    // The fingerprint is that of the bytes as they stand.
    let mut again = Vec::new();
    Message::Subscribe { id: 1, subscription }.encode(&mut again);
    assert_eq!(again[16..], subscribe_to(["Z", "a"].into_iter()));
    for names in [["a", "Z"], ["a", "a"]] {
        let error = decode(names).expect_err("not the bytes of the fingerprint").to_string();
        assert!(error.contains("place of a name"), "{error}");
    }
}

#[test]
fn the_largest_subscription_fits_in_a_control_frame() {
    let name = |number| format!("{number:0255}");
    let tables = (0..200).map(|number| TableName::new(name(number)).unwrap()).collect();
    let origins = (0..200).map(|number| NodeName::new(name(number)).unwrap()).collect();
    let start = Position::from_bytes(&[9; 48]).unwrap();
    let subscription =
        Subscription::new(NameFilter::Include(tables), NameFilter::Exclude(origins), Some(start)).unwrap();
    let message = Message::Subscribe { id: 1, subscription };
    let mut bytes = Vec::new();
    message.encode(&mut bytes);
    assert_eq!(decode_frame(&mut BytesMut::from(&bytes[..])), Ok(Some(Frame::Message(message))));
}

#[test]
fn a_reason_text_is_cut_at_the_edge_of_a_character() {
    // 1,023 bytes and a character of two: it does not fit in 1,024.
    for (text, kept) in
        [("x".repeat(1023) + "é", 1023), ("x".repeat(1022) + "é", 1024), ("é".repeat(600), 1024)]
    {
        let mut bytes = Vec::new();
        Message::Close { code: CloseCode::Normal, text: text.clone() }.encode(&mut bytes);
        let decoded = decode_frame(&mut BytesMut::from(&bytes[..]));
        let Ok(Some(Frame::Message(Message::Close { text: found, .. }))) = decoded else {
            panic!("{decoded:?}")
        };
        assert_eq!(found, text[..kept]);
    }
    let mut long = vec![0, 0, 1, 4];
    long.resize(4 + 1025, b'x');
    let error = Message::decode(FrameKind::CLOSE, &long.into()).expect_err("1,025 bytes").to_string();
    assert_eq!(error, "close text is 1025, the limit is 1024");
}

#[test]
fn a_table_definition_does_not_keep_the_frame_that_it_came_in() {
    let definition = TableDefinition {
        name: TableName::new("t").unwrap(),
        version: 1,
        definition: Bytes::from(vec![5; 9]),
    };
    let mut bytes = Vec::new();
    let message = Message::Dictionary(Dictionary::Table(TableId(1), definition));
    message.encode(&mut bytes);
    let payload = Bytes::from(bytes.split_off(16));
    assert_eq!(Message::decode(FrameKind::DICTIONARY, &payload), Ok(Some(message)));
    let decoded = Message::decode(FrameKind::DICTIONARY, &payload);
    assert!(payload.is_unique(), "{decoded:?} shares the payload");
}

#[test]
fn a_table_definition_is_taken_up_to_60_kib() {
    for (bytes, fits) in [(61_440_u32, true), (61_441, false)] {
        let mut payload = vec![2, 1, 0, 1, 0, 0, 0, 1, 0, b't'];
        payload.extend_from_slice(&bytes.to_le_bytes());
        payload.resize(payload.len() + bytes as usize, 0);
        assert_eq!(Message::decode(FrameKind::DICTIONARY, &payload.into()).is_ok(), fits, "{bytes}");
    }
}
