//! The 16 bytes in front of everything that goes over a connection, and the decoder that finds frames in a stream.

use bytes::{Bytes, BytesMut};

use super::error::ProtocolError;
use super::limits::{CONTROL_PAYLOAD_BYTES_MAX, FRAME_HEADER_BYTES, FRAME_PAYLOAD_BYTES_MAX};
use super::message::Message;
use super::segment::SegmentRef;
use super::wire::Reader;

/// Type of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FrameKind(pub u8);

impl FrameKind {
    /// First frame in each direction.
    pub const HELLO: Self = Self(1);
    /// A peer asks for a stream.
    pub const SUBSCRIBE: Self = Self(2);
    /// The stream starts.
    pub const ACCEPTED: Self = Self(3);
    /// The stream does not start.
    pub const REFUSED: Self = Self(4);
    /// A short id and its name.
    pub const DICTIONARY: Self = Self(5);
    /// Transactions, with an end position.
    pub const SEGMENT: Self = Self(6);
    /// A position without data.
    pub const SEQUENCE_UPDATE: Self = Self(7);
    /// What a peer has received, applied and made durable.
    pub const ACKNOWLEDGEMENT: Self = Self(8);
    /// Send no more entries for now.
    pub const PAUSE: Self = Self(9);
    /// Send entries again.
    pub const RESUME: Self = Self(10);
    /// Are you there?
    pub const PING: Self = Self(11);
    /// The answer to a ping.
    pub const PONG: Self = Self(12);
    /// The last frame in a direction.
    pub const CLOSE: Self = Self(13);
    /// A sign of life inside one large transaction; no position.
    pub const PROGRESS: Self = Self(14);
    // 16 to 31 are reserved for base copy and blobs.
}

/// The fixed part of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameHeader {
    /// Bytes after this header.
    pub payload_bytes: u32,
    /// What the payload is.
    pub kind: FrameKind,
    /// Whether a peer that does not know the type may skip the frame.
    pub optional: bool,
    /// Checksum of the payload; of a segment's header only, since its transactions have their own.
    pub payload_crc: u32,
}

const FLAG_OPTIONAL: u8 = 1;

impl FrameHeader {
    /// The bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; FRAME_HEADER_BYTES] {
        let mut bytes = [0; FRAME_HEADER_BYTES];
        bytes[0..4].copy_from_slice(&self.payload_bytes.to_le_bytes());
        bytes[4] = self.kind.0;
        bytes[5] = if self.optional { FLAG_OPTIONAL } else { 0 };
        bytes[8..12].copy_from_slice(&self.payload_crc.to_le_bytes());
        let crc = crc32fast::hash(&bytes[..12]);
        bytes[12..16].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Reads the header at the start of `bytes`.
    ///
    /// # Errors
    /// Too few bytes, a wrong checksum, or a payload over the limit of its type.
    pub fn decode(bytes: &[u8]) -> Result<Self, ProtocolError> {
        let mut reader = Reader::new(bytes);
        let payload_bytes = reader.u32("frame length")?;
        let kind = FrameKind(reader.u8("frame type")?);
        let flags = reader.u8("frame flags")?;
        reader.u16("frame reserve")?;
        let payload_crc = reader.u32("frame payload checksum")?;
        let found = reader.u32("frame header checksum")?;
        let computed = crc32fast::hash(&bytes[..12]);
        if computed != found {
            return Err(ProtocolError::Checksum { what: "frame header", found, computed });
        }
        let limit = match kind {
            FrameKind::SEGMENT => FRAME_PAYLOAD_BYTES_MAX,
            _ => CONTROL_PAYLOAD_BYTES_MAX,
        };
        if payload_bytes as usize > limit {
            return Err(ProtocolError::OverLimit {
                what: "frame payload length",
                value: u64::from(payload_bytes),
                limit: limit as u64,
            });
        }
        Ok(Self { payload_bytes, kind, optional: flags & FLAG_OPTIONAL != 0, payload_crc })
    }
}

/// A frame that came in.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Frame {
    /// Anything but a segment.
    Message(Message),
    /// A segment, frame header included. Its header was checked; its transactions were not yet.
    Segment(Bytes),
}

/// Takes the next frame out of `input`, or `None` when it is not complete yet.
///
/// Unknown optional frames are dropped here. Nothing is allocated for a length that a peer claims: the header is
/// judged as soon as its 16 bytes are there.
///
/// # Errors
/// Any bytes that are not a frame. The connection cannot go on: the next frame's start is not known.
pub fn decode_frame(input: &mut BytesMut) -> Result<Option<Frame>, ProtocolError> {
    loop {
        if input.len() < FRAME_HEADER_BYTES {
            return Ok(None);
        }
        let header = FrameHeader::decode(input)?;
        let frame_bytes = FRAME_HEADER_BYTES + header.payload_bytes as usize;
        if input.len() < frame_bytes {
            return Ok(None);
        }
        let frame = input.split_to(frame_bytes).freeze();
        if header.kind == FrameKind::SEGMENT {
            SegmentRef::parse(&frame)?;
            return Ok(Some(Frame::Segment(frame)));
        }
        let payload = frame.slice(FRAME_HEADER_BYTES..);
        let computed = crc32fast::hash(&payload);
        if computed != header.payload_crc {
            return Err(ProtocolError::Checksum {
                what: "frame payload",
                found: header.payload_crc,
                computed,
            });
        }
        match Message::decode(header.kind, &payload)? {
            Some(message) => return Ok(Some(Frame::Message(message))),
            None if header.optional => {}
            None => return Err(ProtocolError::UnknownFrame(header.kind.0)),
        }
    }
}
