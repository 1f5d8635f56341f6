//! `cluster-sim dump`: the rows of a node that is not running.

use std::io::{BufWriter, Write};
use std::ops::ControlFlow;
use std::path::Path;

use crate::fault::Fault;
use crate::store;

/// Prints every row: key, TAB, value in hex, in key order.
///
/// # Errors
/// A folder without a store, one that is in use, and whatever reading or printing answers.
pub(crate) fn run(folder: &Path) -> Result<(), Fault> {
    let store = store::open_existing(folder)?;
    let mut out = BufWriter::with_capacity(1 << 20, std::io::stdout().lock());
    let mut line = Vec::new();
    let mut failed = None;
    for (table, _) in store.tables() {
        let walked = store.rows().visit(&table, &mut |key, value| {
            line.clear();
            row_line(key, value, &mut line);
            match out.write_all(&line) {
                Ok(()) => ControlFlow::Continue(()),
                Err(error) => {
                    failed = Some(error);
                    ControlFlow::Break(())
                }
            }
        });
        walked.map_err(Fault::run)?;
    }
    let flushed = failed.map_or_else(|| out.flush(), Err);
    match flushed {
        // Whoever read the dump has seen enough.
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => {}
        answer => answer.map_err(|error| Fault::run(format!("cannot print the dump: {error}")))?,
    }
    store.close().map_err(Fault::run)
}

fn row_line(key: &[u8], value: &[u8], out: &mut Vec<u8>) {
    match std::str::from_utf8(key) {
        Ok(text) if !text.chars().any(char::is_control) && !text.starts_with("hex:") => {
            out.extend_from_slice(key);
        }
        _ => {
            out.extend_from_slice(b"hex:");
            hex(key, out);
        }
    }
    out.push(b'\t');
    hex(value, out);
    out.push(b'\n');
}

fn hex(bytes: &[u8], out: &mut Vec<u8>) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    for byte in bytes {
        out.push(DIGITS[usize::from(byte >> 4)]);
        out.push(DIGITS[usize::from(byte & 15)]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_text_when_they_can_be_read_back_and_hex_otherwise() {
        for (key, shown) in [
            (&b"000000000001"[..], "000000000001"),
            ("é b".as_bytes(), "é b"),
            (b"a\tb", "hex:610962"),
            (b"\xff", "hex:ff"),
            (b"hex:00", "hex:6865783a3030"),
        ] {
            let mut line = Vec::new();
            row_line(key, b"\x00z", &mut line);
            assert_eq!(String::from_utf8(line).expect("text"), format!("{shown}\t007a\n"));
        }
    }
}
