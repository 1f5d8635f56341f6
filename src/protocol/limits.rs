//! Hard limits of the formats. Each is checked before anything is allocated for the value.

/// Bytes in front of every frame's payload.
pub const FRAME_HEADER_BYTES: usize = 16;

/// Largest payload of any frame, in bytes: a full segment, one entry over its target size, and its header.
pub const FRAME_PAYLOAD_BYTES_MAX: usize = 256 * 1024;

/// Largest payload of a frame that is not a segment, in bytes. A subscription with two full lists of long names is
/// the largest of them.
pub const CONTROL_PAYLOAD_BYTES_MAX: usize = 128 * 1024;

/// A segment is closed once its body reaches this many bytes. 64 KiB is where the cost of a write per byte
/// stops falling on loopback; 4 KiB writes cost three to four times as much per byte.
pub const SEGMENT_TARGET_BYTES: usize = 64 * 1024;

/// Most table ids, and most origin ids, that a segment header lists. A segment with more says so by a flag
/// and has to be examined entry by entry.
pub const SEGMENT_LIST_MAX: usize = 32;

/// Largest value of an entry, in bytes.
pub const ENTRY_VALUE_BYTES_MAX: usize = 160 * 1024;

/// Largest key of an entry, in bytes. LMDB keys end at 511 bytes; 2 hold the table, the rest is reserve.
pub const ENTRY_KEY_BYTES_MAX: usize = 480;

/// Largest transaction, in bytes of its encoded entries.
pub const TRANSACTION_BYTES_MAX: u64 = 32 * 1024 * 1024;

/// Most entries in one transaction.
pub const TRANSACTION_ENTRIES_MAX: usize = 10_000;

/// Longest node or table name, in bytes of UTF-8.
pub const NAME_BYTES_MAX: usize = 255;

/// Most names in one list of a subscription.
pub const SUBSCRIPTION_NAMES_MAX: usize = 200;

/// Largest definition of a table, in bytes. It is opaque to this library.
pub const TABLE_DEFINITION_BYTES_MAX: usize = 60 * 1024;

/// Longest reason text in a refusal or a close, in bytes of UTF-8. Longer texts are cut when they are encoded.
pub const REASON_BYTES_MAX: usize = 1024;
