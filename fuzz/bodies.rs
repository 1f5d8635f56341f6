//! What the fuzz targets do with their input. `tests/protocol_fuzz_corpus.rs` runs the same over a seeded corpus, so that
//! a machine without cargo-fuzz runs it too.
//!
//! A body panics when a promise of the decoders does not hold; any input is fine.

#![allow(dead_code, reason = "each target uses a part of it")]
#![allow(clippy::unwrap_used, reason = "a broken promise is found by panicking")]

use auditstream::protocol::limits::{ENTRY_KEY_BYTES_MAX, ENTRY_VALUE_BYTES_MAX, FRAME_HEADER_BYTES};
use auditstream::protocol::{
    EntryRef, Frame, FrameHeader, FrameKind, Message, POSITION_BYTES, Position, ProtocolError,
    SEGMENT_HEADER_BYTES, SegmentFlags, SegmentRef, TRANSACTION_HEADER_BYTES, decode_frame,
};
use bytes::{Bytes, BytesMut};

/// The input is what comes over a connection, in pieces whose size the first byte gives in its low seven bits; with its high bit
/// set, the checksums are made right first, or little behind them would ever be reached. What comes out may not
/// depend on the pieces, and has to hold what the types promise.
pub(crate) fn decode_frames(data: &[u8]) {
    let Some((&how, stream)) = data.split_first() else { return };
    let mut stream = stream.to_vec();
    if how & 0x80 != 0 {
        make_frames_right(&mut stream);
    }
    let piece = usize::from(how & 0x7f) + 1;
    let whole = frames_in_pieces(&stream, stream.len().max(1));
    assert_eq!(whole, frames_in_pieces(&stream, piece), "pieces of {piece} bytes decide what is decoded");
    whole.0.iter().for_each(judge_frame);
}

/// Makes every checksum right, as far as the stated lengths go.
fn make_frames_right(mut stream: &mut [u8]) {
    while let Some((header, rest)) = stream.split_first_chunk_mut::<FRAME_HEADER_BYTES>() {
        let length = u32::from_le_bytes(header[..4].try_into().unwrap()) as usize;
        let Some((payload, behind)) = rest.split_at_mut_checked(length) else {
            let crc = crc32fast::hash(&header[..12]);
            header[12..].copy_from_slice(&crc.to_le_bytes());
            return;
        };
        let covered =
            if header[4] == FrameKind::SEGMENT.0 { make_segment_right(payload) } else { payload.len() };
        header[8..12].copy_from_slice(&crc32fast::hash(&payload[..covered]).to_le_bytes());
        let crc = crc32fast::hash(&header[..12]);
        header[12..].copy_from_slice(&crc.to_le_bytes());
        stream = behind;
    }
}

/// Everything that can be decoded, and the error that ended it.
pub(crate) fn frames_in_pieces(stream: &[u8], piece: usize) -> (Vec<Frame>, Option<ProtocolError>) {
    let (mut frames, mut input) = (Vec::new(), BytesMut::new());
    for bytes in stream.chunks(piece) {
        input.extend_from_slice(bytes);
        loop {
            let capacity = input.capacity();
            let decoded = decode_frame(&mut input);
            assert!(input.capacity() <= capacity, "decoding made the buffer grow");
            match decoded {
                Ok(Some(frame)) => frames.push(frame),
                Ok(None) => break,
                Err(error) => return (frames, Some(error)),
            }
        }
    }
    (frames, None)
}

/// The input is a value: a position, an entry, the payload of every type of frame, a segment. For the last, the checksums are
/// made right first.
pub(crate) fn decode_values(data: &[u8]) {
    if let Ok(position) = Position::from_bytes(data) {
        assert_eq!(data.len(), POSITION_BYTES);
        assert_eq!(Position::from_bytes(&position.to_bytes()), Ok(position));
    }
    if let Ok(entry) = EntryRef::decode(data) {
        judge_entry(&entry);
    }
    if let Ok(header) = FrameHeader::decode(data) {
        assert_eq!(FrameHeader::decode(&header.encode()), Ok(header));
    }
    if let Ok(segment) = SegmentRef::parse(data) {
        judge_segment(&segment);
    }
    let payload = Bytes::copy_from_slice(data);
    for kind in 0..=u8::MAX {
        if let Ok(Some(message)) = Message::decode(FrameKind(kind), &payload) {
            judge_message(&message);
        }
    }
    if let Ok(segment) = SegmentRef::parse(&segment_frame(data)) {
        judge_segment(&segment);
    }
}

/// A segment frame with this payload, its checksums made right.
pub(crate) fn segment_frame(payload: &[u8]) -> Vec<u8> {
    let header = FrameHeader {
        payload_bytes: u32::try_from(payload.len()).unwrap(),
        kind: FrameKind::SEGMENT,
        optional: false,
        payload_crc: 0,
    };
    let mut frame = [&header.encode()[..], payload].concat();
    make_frames_right(&mut frame);
    frame
}

/// Makes the checksums of the transactions right, and gives the length of the segment's header as it is stated.
fn make_segment_right(payload: &mut [u8]) -> usize {
    let header_bytes = match payload.get(4..6) {
        Some(length) => usize::from(u16::from_le_bytes(length.try_into().unwrap())).min(payload.len()),
        None => 0,
    };
    let mut start = header_bytes.max(SEGMENT_HEADER_BYTES);
    while let Some(header) = payload.get(start..start + TRANSACTION_HEADER_BYTES) {
        let length = u32::from_le_bytes(header[24..28].try_into().unwrap()) as usize;
        let entries = start + TRANSACTION_HEADER_BYTES;
        let end = entries.saturating_add(length);
        let Some(entries) = payload.get(entries..end) else { break };
        let mut hasher = crc32fast::Hasher::new();
        hasher.update(&header[..32]);
        hasher.update(entries);
        payload[start + 32..start + 36].copy_from_slice(&hasher.finalize().to_le_bytes());
        start = end;
    }
    header_bytes
}

pub(crate) fn judge_frame(frame: &Frame) {
    match frame {
        Frame::Message(message) => judge_message(message),
        Frame::Segment(bytes) => judge_segment(&SegmentRef::parse(bytes).unwrap()),
        _ => {}
    }
}

/// What was decoded can be encoded, and is the same then.
fn judge_message(message: &Message) {
    let mut bytes = Vec::new();
    message.encode(&mut bytes);
    let mut input = BytesMut::from(&bytes[..]);
    let again = decode_frame(&mut input).unwrap();
    assert_eq!(again, Some(Frame::Message(message.clone())));
    assert!(input.is_empty());
}

fn judge_entry(entry: &EntryRef<'_>) {
    assert!(entry.key.len() <= ENTRY_KEY_BYTES_MAX && entry.value.len() <= ENTRY_VALUE_BYTES_MAX);
    assert!(entry.encoded.ends_with(entry.value));
    assert_eq!(entry.encoded.len(), entry.header.encoded_bytes());
}

/// A parsed segment can be walked from any place; one that is verified as well keeps its promises.
fn judge_segment(segment: &SegmentRef<'_>) {
    let header = *segment.header();
    assert_eq!(segment.frame().len(), FRAME_HEADER_BYTES + header.payload_bytes());
    for offset in [0, 1, TRANSACTION_HEADER_BYTES, header.body_bytes as usize, usize::MAX] {
        if let Ok(Some(transaction)) = segment.transaction_at(offset) {
            let _ = transaction.verify();
            let _ = transaction.entry_at(offset);
            transaction.entries().filter_map(Result::ok).for_each(|entry| judge_entry(&entry));
        }
    }
    let boundary = segment.boundary_at(header.last);
    if segment.verify().is_err() {
        return;
    }
    let tables: Option<Vec<_>> = segment.tables().map(Iterator::collect);
    let origins: Option<Vec<_>> = segment.origins().map(Iterator::collect);
    let filtered = header.flags.contains(SegmentFlags::FILTERED);
    let (mut entries, mut last, mut last_boundary) = (0, None, None);
    for transaction in segment.transactions().map(Result::unwrap) {
        assert!(origins.as_ref().is_none_or(|origins| origins.contains(&transaction.header.origin)));
        for entry in transaction.entries().map(Result::unwrap) {
            let sequence = transaction.sequence_of(&entry);
            assert!(last.is_none_or(|last| last < sequence), "sequences rise");
            assert!(tables.as_ref().is_none_or(|tables| tables.contains(&entry.header.table)));
            assert!(sequence >= header.first && sequence <= header.last);
            (entries, last) = (entries + 1, Some(sequence));
        }
        if let Some(boundary) = transaction.boundary() {
            assert_eq!(segment.boundary_at(boundary.sequence), Ok(Some(boundary)));
            last_boundary = Some(boundary);
        }
    }
    assert_eq!((entries, last), (header.entries, Some(header.last)));
    if !filtered {
        assert_eq!(u64::from(entries), header.last.since(header.first) + 1, "numbered without a gap");
        assert_eq!(boundary, Ok(last_boundary));
        assert_eq!(header.end, last_boundary.unwrap_or(header.end));
    }
}
