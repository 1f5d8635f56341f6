//! Plain data and bytes: what lies on disk and what goes over the wire.
//!
//! Nothing here reads a clock, a socket or a file. Every decoder takes any bytes and answers with a typed error;
//! lengths are judged against [`limits`] before anything is allocated. The byte tables are in `docs/protocol.md`.

mod build;
mod close;
mod entry;
mod error;
mod frame;
mod ids;
pub mod limits;
mod message;
mod position;
mod segment;
mod selection;
mod source_state;
mod subscription;
mod transaction;
mod verify;
pub(crate) mod wire;

pub(crate) use build::EntryRun;
pub use build::{EntryDraft, Lists, LogTail, SegmentBuilder, SegmentEnd, SegmentPacker, TransactionDraft};
pub use close::{Close, CloseReason};
pub use entry::{ENTRY_HEADER_BYTES, Entry, EntryFlags, EntryHeader, EntryKind, EntryRef};
pub use error::ProtocolError;
pub use frame::{Frame, FrameHeader, FrameKind, decode_frame};
pub use ids::{LogId, NodeName, OriginId, Sequence, TableId, TableName, Version};
pub use message::{
    Acknowledgement, CloseCode, Dictionary, HELLO_MAGIC, Hello, Message, PROTOCOL_VERSION, RefuseReason,
    TableDefinition,
};
pub use position::{BOUNDARY_BYTES, Boundary, Fingerprint, POSITION_BYTES, Position, Stamp};
pub use segment::{
    SEGMENT_FORMAT, SEGMENT_HEADER_BYTES, SEGMENT_HEADER_BYTES_MAX, SegmentFlags, SegmentHeader, SegmentRef,
};
pub use selection::{NameFilter, Selection};
pub use source_state::{COVERAGES_MAX, Coverage, SourceState, furthest_start};
pub use subscription::{Start, Subscription};
pub use transaction::{TRANSACTION_HEADER_BYTES, TransactionHeader, TransactionRef};
