//! What happened, as text and as a hash.

/// The events of a run, in order.
#[derive(Debug, Clone)]
pub(super) struct Trace {
    hash: u64,
    lines: Vec<String>,
    dropped: usize,
}

/// Lines kept; the hash covers all.
const LINES: usize = 4_000;

impl Trace {
    pub(super) const fn new() -> Self {
        Self { hash: 0xcbf2_9ce4_8422_2325, lines: Vec::new(), dropped: 0 }
    }

    pub(super) fn push(&mut self, line: String) {
        for byte in line.bytes() {
            self.hash = (self.hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        if self.lines.len() >= LINES {
            self.dropped += LINES / 2;
            self.lines.drain(..LINES / 2);
        }
        self.lines.push(line);
    }

    pub(super) fn into_parts(self) -> (u64, Vec<String>) {
        let mut lines = self.lines;
        if self.dropped > 0 {
            lines.insert(0, format!("({} earlier lines left out)", self.dropped));
        }
        (self.hash, lines)
    }
}
