//! Every frame but the segment. Fields are fixed; later versions add new ones at the end, which are ignored here.

use bytes::Bytes;

use super::error::ProtocolError;
use super::frame::{FrameHeader, FrameKind};
use super::ids::{LogId, NodeName, OriginId, Sequence, TableId, TableName};
use super::limits::{FRAME_HEADER_BYTES, REASON_BYTES_MAX, TABLE_DEFINITION_BYTES_MAX};
use super::position::{Boundary, Fingerprint};
use super::segment::SEGMENT_FORMAT;
use super::subscription::Subscription;
use super::wire::{Reader, put_text};

/// The protocol version that is spoken, and the oldest one.
pub const PROTOCOL_VERSION: u16 = 1;

/// First four bytes of a hello's payload: "AUDS".
pub const HELLO_MAGIC: u32 = u32::from_le_bytes(*b"AUDS");

/// Who a side is and what it can take. The first frame in each direction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hello {
    /// Oldest and newest protocol version.
    pub protocol: (u16, u16),
    /// Oldest and newest segment format.
    pub segments: (u16, u16),
    /// Bits for abilities that both sides must have to be used. None is defined yet; unknown ones are ignored.
    pub capabilities: u64,
    /// Largest frame payload it takes, in bytes.
    pub frame_payload_max: u32,
    /// Its name.
    pub node: NodeName,
}

impl Hello {
    /// What this version of the library says for `node`.
    #[must_use]
    pub const fn new(node: NodeName) -> Self {
        Self {
            protocol: (PROTOCOL_VERSION, PROTOCOL_VERSION),
            segments: (SEGMENT_FORMAT, SEGMENT_FORMAT),
            capabilities: 0,
            frame_payload_max: super::limits::FRAME_PAYLOAD_BYTES_MAX as u32,
            node,
        }
    }

    /// Whether a peer that says this can be spoken with.
    ///
    /// # Errors
    /// The version or the limit that does not fit.
    pub fn check(&self) -> Result<(), ProtocolError> {
        check_range("protocol", self.protocol, PROTOCOL_VERSION)?;
        check_range("segment format", self.segments, SEGMENT_FORMAT)?;
        let needed = super::limits::FRAME_PAYLOAD_BYTES_MAX as u32;
        if self.frame_payload_max < needed {
            return Err(ProtocolError::Malformed {
                what: "largest frame payload of the peer",
                value: u64::from(self.frame_payload_max),
                problem: "is below the 262144 bytes that a segment can need",
            });
        }
        Ok(())
    }
}

fn check_range(what: &'static str, range: (u16, u16), ours: u16) -> Result<(), ProtocolError> {
    if range.0 > ours || range.1 < ours {
        return Err(ProtocolError::UnsupportedVersion { what, found: range.1, oldest: ours, newest: ours });
    }
    Ok(())
}

macro_rules! coded_enum {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $code:literal,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum $name {
            $($(#[$vdoc])* $variant,)*
            /// A code of a later version.
            Other(u16),
        }

        impl $name {
            /// The code on the wire.
            #[must_use]
            pub const fn code(self) -> u16 {
                match self {
                    $(Self::$variant => $code,)*
                    Self::Other(code) => code,
                }
            }

            /// The meaning of a code.
            #[must_use]
            pub const fn from_code(code: u16) -> Self {
                match code {
                    $($code => Self::$variant,)*
                    other => Self::Other(other),
                }
            }
        }
    };
}

coded_enum! {
    /// Why a subscription is refused.
    RefuseReason {
        /// The position's log is not this log: it was restored, recreated or opened after an unclean stop.
        OtherLog = 1,
        /// The log has another transaction at the position: the two histories forked.
        Forked = 2,
        /// The position lies behind the log's end.
        AheadOfLog = 3,
        /// The entries after the position are no longer kept.
        Pruned = 4,
        /// The position is not at the end of a transaction.
        NotABoundary = 5,
        /// The position belongs to another filter.
        OtherFilter = 6,
        /// The peer has this node's own name.
        SelfConnection = 7,
        /// The position cannot be read.
        Unreadable = 8,
    }
}

coded_enum! {
    /// Why a connection is closed.
    CloseCode {
        /// The work is done, or the host asked for it.
        Normal = 0,
        /// The other side sent what the protocol does not allow.
        Protocol = 1,
        /// A deadline passed.
        Timeout = 2,
        /// The log or the data cannot be read or written.
        Store = 3,
        /// A newer connection of the same peer took over.
        Superseded = 4,
        /// The node shuts down.
        Shutdown = 5,
        /// An entry cannot be applied.
        Apply = 6,
        /// A bound on memory or connections is reached.
        Overloaded = 7,
    }
}

/// A table as its log knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableDefinition {
    /// Its name, the same on every node.
    pub name: TableName,
    /// Rises when the definition changes.
    pub version: u32,
    /// The host's own description, opaque to this library; at most 60 KiB.
    pub definition: Bytes,
}

/// A short id of the sender's log and what it stands for. Sent before its first use on a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Dictionary {
    /// An origin.
    Origin(OriginId, NodeName),
    /// A table.
    Table(TableId, TableDefinition),
}

/// What a peer has done with what it got, as sequences of the sender's log. Each is at most the one before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Acknowledgement {
    /// Received and decoded.
    pub received: Sequence,
    /// Applied and visible to readers.
    pub applied: Sequence,
    /// Survives a crash. Below `Sync` it means committed.
    pub durable: Sequence,
}

/// Any frame but a segment.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Message {
    /// First in each direction.
    Hello(Hello),
    /// Asks for a stream; `id` comes back in the answer.
    Subscribe {
        /// Chosen by the peer, rising on one connection.
        id: u32,
        /// What it wants.
        subscription: Subscription,
    },
    /// The stream starts after `start`.
    Accepted {
        /// The subscription's id.
        id: u32,
        /// The log of every sequence on this stream.
        log: LogId,
        /// Where it starts.
        start: Boundary,
        /// The filter of every position on this stream.
        filter: Fingerprint,
        /// The log's last readable sequence now.
        head: Sequence,
    },
    /// The stream does not start.
    Refused {
        /// The subscription's id.
        id: u32,
        /// Why.
        reason: RefuseReason,
        /// Whether the peer may ask for a base copy.
        base_copy_offered: bool,
        /// For people.
        text: String,
    },
    /// A short id.
    Dictionary(Dictionary),
    /// A position without data.
    SequenceUpdate(Boundary),
    /// The peer's progress.
    Acknowledgement(Acknowledgement),
    /// Send no entries until a resume.
    Pause,
    /// Send entries again.
    Resume,
    /// To be answered with the same number.
    Ping(u64),
    /// The answer.
    Pong(u64),
    /// The last frame.
    Close {
        /// Why.
        code: CloseCode,
        /// For people.
        text: String,
    },
    /// The scan is inside one large transaction and got to this sequence. It is not a position.
    Progress(Sequence),
}

impl Message {
    /// The frame type.
    #[must_use]
    pub const fn kind(&self) -> FrameKind {
        match self {
            Self::Hello(_) => FrameKind::HELLO,
            Self::Subscribe { .. } => FrameKind::SUBSCRIBE,
            Self::Accepted { .. } => FrameKind::ACCEPTED,
            Self::Refused { .. } => FrameKind::REFUSED,
            Self::Dictionary(_) => FrameKind::DICTIONARY,
            Self::SequenceUpdate(_) => FrameKind::SEQUENCE_UPDATE,
            Self::Acknowledgement(_) => FrameKind::ACKNOWLEDGEMENT,
            Self::Pause => FrameKind::PAUSE,
            Self::Resume => FrameKind::RESUME,
            Self::Ping(_) => FrameKind::PING,
            Self::Pong(_) => FrameKind::PONG,
            Self::Close { .. } => FrameKind::CLOSE,
            Self::Progress(_) => FrameKind::PROGRESS,
        }
    }

    /// Appends the whole frame.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let start = out.len();
        out.resize(start + FRAME_HEADER_BYTES, 0);
        self.encode_payload(out);
        let payload = &out[start + FRAME_HEADER_BYTES..];
        let header = FrameHeader {
            payload_bytes: payload.len() as u32,
            kind: self.kind(),
            optional: matches!(self, Self::Progress(_)),
            payload_crc: crc32fast::hash(payload),
        };
        out[start..start + FRAME_HEADER_BYTES].copy_from_slice(&header.encode());
    }

    fn encode_payload(&self, out: &mut Vec<u8>) {
        match self {
            Self::Hello(hello) => {
                out.extend_from_slice(&HELLO_MAGIC.to_le_bytes());
                for version in [hello.protocol.0, hello.protocol.1, hello.segments.0, hello.segments.1] {
                    out.extend_from_slice(&version.to_le_bytes());
                }
                out.extend_from_slice(&hello.capabilities.to_le_bytes());
                out.extend_from_slice(&hello.frame_payload_max.to_le_bytes());
                put_text(out, hello.node.as_str(), usize::from(u16::MAX));
            }
            Self::Subscribe { id, subscription } => {
                out.extend_from_slice(&id.to_le_bytes());
                subscription.encode(out);
            }
            Self::Accepted { id, log, start, filter, head } => {
                out.extend_from_slice(&id.to_le_bytes());
                out.extend_from_slice(log.as_bytes());
                out.extend_from_slice(&start.to_bytes());
                out.extend_from_slice(&filter.0.to_le_bytes());
                out.extend_from_slice(&head.get().to_le_bytes());
            }
            Self::Refused { id, reason, base_copy_offered, text } => {
                out.extend_from_slice(&id.to_le_bytes());
                out.extend_from_slice(&reason.code().to_le_bytes());
                out.push(u8::from(*base_copy_offered));
                put_text(out, text, REASON_BYTES_MAX);
            }
            Self::Dictionary(dictionary) => dictionary.encode(out),
            Self::SequenceUpdate(boundary) => out.extend_from_slice(&boundary.to_bytes()),
            Self::Acknowledgement(acknowledgement) => {
                for sequence in [acknowledgement.received, acknowledgement.applied, acknowledgement.durable] {
                    out.extend_from_slice(&sequence.get().to_le_bytes());
                }
            }
            // Lane 0 is the entry lane; others are reserved.
            Self::Pause | Self::Resume => out.push(0),
            Self::Ping(number) | Self::Pong(number) => out.extend_from_slice(&number.to_le_bytes()),
            Self::Close { code, text } => {
                out.extend_from_slice(&code.code().to_le_bytes());
                put_text(out, text, REASON_BYTES_MAX);
            }
            Self::Progress(sequence) => out.extend_from_slice(&sequence.get().to_le_bytes()),
        }
    }

    /// Reads the payload of a frame of this type, or `None` when the type is not known.
    ///
    /// # Errors
    /// A payload that is cut off, or a field without meaning.
    pub fn decode(kind: FrameKind, payload: &Bytes) -> Result<Option<Self>, ProtocolError> {
        let mut reader = Reader::new(payload);
        let reader = &mut reader;
        Ok(Some(match kind {
            FrameKind::HELLO => Self::Hello(read_hello(reader)?),
            FrameKind::SUBSCRIBE => Self::Subscribe {
                id: reader.u32("subscription id")?,
                subscription: Subscription::read(reader)?,
            },
            FrameKind::ACCEPTED => Self::Accepted {
                id: reader.u32("subscription id")?,
                log: LogId::from_bytes(reader.array("log id")?),
                start: Boundary::read(reader)?,
                filter: Fingerprint(reader.u64("filter fingerprint")?),
                head: Sequence::new(reader.u64("head of the log")?),
            },
            FrameKind::REFUSED => Self::Refused {
                id: reader.u32("subscription id")?,
                reason: RefuseReason::from_code(reader.u16("refusal reason")?),
                base_copy_offered: reader.u8("base copy offer")? != 0,
                text: reader.text(REASON_BYTES_MAX, "refusal text")?.to_owned(),
            },
            FrameKind::DICTIONARY => Self::Dictionary(Dictionary::read(reader)?),
            FrameKind::SEQUENCE_UPDATE => Self::SequenceUpdate(Boundary::read(reader)?),
            FrameKind::ACKNOWLEDGEMENT => Self::Acknowledgement(Acknowledgement {
                received: Sequence::new(reader.u64("received sequence")?),
                applied: Sequence::new(reader.u64("applied sequence")?),
                durable: Sequence::new(reader.u64("durable sequence")?),
            }),
            FrameKind::PAUSE => lane(reader, Self::Pause)?,
            FrameKind::RESUME => lane(reader, Self::Resume)?,
            FrameKind::PING => Self::Ping(reader.u64("ping number")?),
            FrameKind::PONG => Self::Pong(reader.u64("pong number")?),
            FrameKind::CLOSE => Self::Close {
                code: CloseCode::from_code(reader.u16("close code")?),
                text: reader.text(REASON_BYTES_MAX, "close text")?.to_owned(),
            },
            FrameKind::PROGRESS => Self::Progress(Sequence::new(reader.u64("progress sequence")?)),
            _ => return Ok(None),
        }))
    }
}

fn lane(reader: &mut Reader<'_>, message: Message) -> Result<Message, ProtocolError> {
    match reader.u8("lane")? {
        0 => Ok(message),
        other => Err(ProtocolError::Malformed {
            what: "lane",
            value: u64::from(other),
            problem: "is not a lane of this version (0, the entries)",
        }),
    }
}

fn read_hello(reader: &mut Reader<'_>) -> Result<Hello, ProtocolError> {
    let magic = reader.u32("hello magic")?;
    if magic != HELLO_MAGIC {
        return Err(ProtocolError::Malformed {
            what: "hello magic",
            value: u64::from(magic),
            problem: "is not \"AUDS\": the other side does not speak this protocol",
        });
    }
    Ok(Hello {
        protocol: (reader.u16("protocol version")?, reader.u16("protocol version")?),
        segments: (reader.u16("segment format")?, reader.u16("segment format")?),
        capabilities: reader.u64("capabilities")?,
        frame_payload_max: reader.u32("largest frame payload")?,
        node: NodeName::new(reader.name("node name")?)?,
    })
}

impl Dictionary {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Origin(id, name) => {
                out.push(1);
                out.extend_from_slice(&id.0.to_le_bytes());
                put_text(out, name.as_str(), usize::from(u16::MAX));
            }
            Self::Table(id, table) => {
                out.push(2);
                out.extend_from_slice(&id.0.to_le_bytes());
                out.extend_from_slice(&table.version.to_le_bytes());
                put_text(out, table.name.as_str(), usize::from(u16::MAX));
                out.extend_from_slice(&(table.definition.len() as u32).to_le_bytes());
                out.extend_from_slice(&table.definition);
            }
        }
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, ProtocolError> {
        let what = reader.u8("dictionary kind")?;
        let id = reader.u16("dictionary id")?;
        match what {
            1 => Ok(Self::Origin(OriginId(id), NodeName::new(reader.name("origin name")?)?)),
            2 => {
                let version = reader.u32("table definition version")?;
                let name = TableName::new(reader.name("table name")?)?;
                let length = reader.u32("table definition length")? as usize;
                if length > TABLE_DEFINITION_BYTES_MAX {
                    return Err(ProtocolError::OverLimit {
                        what: "table definition length",
                        value: length as u64,
                        limit: TABLE_DEFINITION_BYTES_MAX as u64,
                    });
                }
                // Copied: it outlives the frame, and a slice would keep the whole input buffer alive with it.
                let definition = Bytes::copy_from_slice(reader.bytes(length, "table definition")?);
                Ok(Self::Table(TableId(id), TableDefinition { name, version, definition }))
            }
            other => Err(ProtocolError::Malformed {
                what: "dictionary kind",
                value: u64::from(other),
                problem: "is neither 1 (origin) nor 2 (table)",
            }),
        }
    }
}
