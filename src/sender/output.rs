//! Where a session writes.

/// What a write did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Written {
    /// The first so many bytes were taken; 0 only for an empty write.
    Accepted(usize),
    /// Nothing was taken; whoever drives the session wakes it when there is room.
    WouldBlock,
    /// The other side is gone. The text is for people.
    Closed(String),
}

/// An ordered byte stream that never blocks.
pub trait Output {
    /// Takes as many bytes as there is room for.
    fn write(&mut self, bytes: &[u8]) -> Written;
}
