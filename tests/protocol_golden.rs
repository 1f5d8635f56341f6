//! The bytes of disk and wire, frozen. A change here is a change of the format: it needs a new version number.
//!
//! `AUDITSTREAM_BLESS=1 cargo test --test protocol_golden` writes the files in `tests/golden` anew.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::process::Command;

use auditstream::protocol::{
    Acknowledgement, Boundary, CloseCode, Dictionary, EntryDraft, EntryFlags, EntryKind, Fingerprint, Frame,
    Hello, LogId, LogTail, Message, NameFilter, NodeName, OriginId, Position, RefuseReason, SegmentPacker,
    SegmentRef, Sequence, Stamp, Subscription, TableDefinition, TableId, TableName, TransactionDraft,
    Version, decode_frame,
};
use bytes::BytesMut;

fn name(name: &str) -> NodeName {
    NodeName::new(name).unwrap()
}

fn table(name: &str) -> TableName {
    TableName::new(name).unwrap()
}

fn boundary() -> Boundary {
    let stamp = Stamp { version: Version::new(0x0001_0203_0405, 6), checksum: 0xdead_beef };
    Boundary { sequence: Sequence::new(0x0102_0304), stamp }
}

fn position() -> Position {
    let log = LogId::from_bytes(*b"sixteen byte id!");
    Position { log, boundary: boundary(), filter: filtered().fingerprint() }
}

fn filtered() -> Subscription {
    let tables = NameFilter::Include(BTreeSet::from([table("users"), table("orders")]));
    let origins = NameFilter::Exclude(BTreeSet::from([name("berlin")]));
    Subscription::new(tables, origins, None).unwrap()
}

fn messages() -> Vec<(&'static str, Message)> {
    let acknowledgement = Acknowledgement {
        received: Sequence::new(30),
        applied: Sequence::new(20),
        durable: Sequence::new(10),
    };
    let definition = TableDefinition { name: table("users"), version: 3, definition: "id:u64".into() };
    let accepted = Message::Accepted {
        id: 7,
        log: position().log,
        start: boundary(),
        filter: Fingerprint(0x1122_3344_5566_7788),
        head: Sequence::new(99),
    };
    let refused = Message::Refused {
        id: 7,
        reason: RefuseReason::Forked,
        base_copy_offered: true,
        text: "forked".to_owned(),
    };
    let resumed = Message::Subscribe { id: 7, subscription: filtered().starting_at(Some(position())) };
    vec![
        ("hello", Message::Hello(Hello::new(name("paris")))),
        ("subscribe_all", Message::Subscribe { id: 1, subscription: Subscription::all() }),
        ("subscribe_filtered", resumed),
        ("accepted", accepted),
        ("refused", refused),
        ("dictionary_origin", Message::Dictionary(Dictionary::Origin(OriginId(2), name("rome")))),
        ("dictionary_table", Message::Dictionary(Dictionary::Table(TableId(5), definition))),
        ("sequence_update", Message::SequenceUpdate(boundary())),
        ("acknowledgement", Message::Acknowledgement(acknowledgement)),
        ("pause", Message::Pause),
        ("resume", Message::Resume),
        ("ping", Message::Ping(0x0102_0304_0506_0708)),
        ("pong", Message::Pong(0x0102_0304_0506_0708)),
        ("close", Message::Close { code: CloseCode::Shutdown, text: "bye".to_owned() }),
        ("progress", Message::Progress(Sequence::new(77))),
    ]
}

/// Two transactions in one segment: a put and a delete, then a local-only put of another origin.
fn segment() -> Vec<u8> {
    let draft =
        |ordinal, table, kind, flags, key, value| EntryDraft { ordinal, table, kind, flags, key, value };
    let first = [
        draft(0, TableId(5), EntryKind::Put, EntryFlags::NONE, b"k1", b"value"),
        draft(1, TableId(6), EntryKind::Delete, EntryFlags::NONE, b"k2", b""),
    ];
    let second = [draft(3, TableId(5), EntryKind::Put, EntryFlags::LOCAL_ONLY, b"k3", b"v")];
    let tail =
        LogTail { end: Boundary { sequence: Sequence::new(10), ..boundary() }, cumulative_bytes: 1000 };
    let mut packer = SegmentPacker::new(tail, 1_700_000_000_000);
    let mut frame = Vec::new();
    let mut emit = |_, bytes: &[u8]| {
        frame = bytes.to_vec();
        Ok::<_, Infallible>(())
    };
    for (origin, version, entries) in [(0, 100, &first[..]), (2, 90, &second[..])] {
        let draft = TransactionDraft {
            origin: OriginId(origin),
            version: Version::new(1_700_000_000_000, version),
            entries,
        };
        packer.push(&draft, &mut emit).unwrap();
    }
    packer.finish(&mut emit).unwrap();
    frame
}

fn golden() -> Vec<(String, Vec<u8>)> {
    let mut golden: Vec<(String, Vec<u8>)> = messages()
        .into_iter()
        .map(|(name, message)| {
            let mut bytes = Vec::new();
            message.encode(&mut bytes);
            (name.to_owned(), bytes)
        })
        .collect();
    golden.push(("segment".to_owned(), segment()));
    golden
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

fn hex(bytes: &[u8]) -> String {
    let lines = bytes
        .chunks(16)
        .map(|line| line.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(" "));
    lines.collect::<Vec<_>>().join("\n") + "\n"
}

#[test]
fn every_frame_has_the_bytes_that_it_always_had() {
    for (name, bytes) in golden() {
        let file = folder().join(format!("{name}.hex"));
        if std::env::var_os("AUDITSTREAM_BLESS").is_some() {
            std::fs::write(&file, hex(&bytes)).unwrap();
        }
        let frozen =
            std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        assert_eq!(hex(&bytes), frozen, "the bytes of {name} changed");
    }
}

#[test]
fn every_golden_frame_decodes_to_what_it_was_made_from() {
    for (name, message) in messages() {
        let mut input = BytesMut::new();
        let mut bytes = Vec::new();
        message.encode(&mut bytes);
        // A byte at a time: nothing is answered before the last one.
        for (at, byte) in bytes.iter().enumerate() {
            assert_eq!(decode_frame(&mut input), Ok(None), "{name} after {at} bytes");
            input.extend_from_slice(&[*byte]);
        }
        assert_eq!(decode_frame(&mut input), Ok(Some(Frame::Message(message))), "{name}");
        assert!(input.is_empty());
    }
    SegmentRef::parse(&segment()).unwrap().verify().unwrap();
}

#[test]
fn every_changed_byte_of_a_golden_frame_is_seen() {
    for (name, bytes) in golden() {
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 0x40;
            let mut input = BytesMut::from(&changed[..]);
            let seen = match decode_frame(&mut input) {
                // A longer length than there are bytes: the rest is awaited, and a deadline ends that.
                Err(_) | Ok(None) => true,
                Ok(Some(Frame::Segment(frame))) => SegmentRef::parse(&frame).unwrap().verify().is_err(),
                Ok(Some(_)) => false,
            };
            // The last four bytes of a transaction's header are reserved and not covered.
            let reserved = name == "segment" && is_reserved(at);
            assert!(seen || reserved, "byte {at} of {name}");
        }
    }
}

/// Frame header 16, segment header 88 with four ids; a transaction's header has 40, its reserve at 36.
fn is_reserved(at: usize) -> bool {
    let first = 16 + 88;
    let second = first + 40 + (20 + 2 + 5) + (20 + 2);
    [first, second].iter().any(|start| (start + 36..start + 40).contains(&at))
}

#[test]
fn the_fingerprint_and_the_position_have_the_bytes_that_they_always_had() {
    assert_eq!(filtered().fingerprint(), Fingerprint(0x105c_6ec6_4e26_fc21));
    assert_eq!(Subscription::all().fingerprint(), Fingerprint(0xd7e4_fcfa_299d_713d));
    let bytes = position().to_bytes();
    assert_eq!(Position::from_bytes(&bytes), Ok(position()));
}

#[test]
fn a_program_in_another_language_reads_the_golden_bytes_by_the_document() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/protocol_check.py");
    match Command::new("python3").arg(script).arg(folder()).output() {
        Err(error) => println!("skipped: python3 does not start: {error}"),
        Ok(output) => {
            let text = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
            for expected in [
                "hello: node paris, protocol 1 to 1, segments 1 to 1",
                "subscribe_filtered: id 7, start 16909060, include orders users, exclude berlin, filter 105c6ec64e26fc21",
                "segment: 11 to 13, end 13, tables 5 6, origins 0 2",
                "  entry 11: put table 5 k1 = value",
                "  entry 12: delete table 6 k2 =",
            ] {
                assert!(text.contains(expected), "{expected:?} is missing in:\n{text}");
            }
        }
    }
}
