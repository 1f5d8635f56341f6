//! Lines of a file as records.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use bytes::Bytes;

use crate::cli::RECORD_BYTES_MAX;
use crate::fault::Fault;

const KEY_BYTES_MAX: usize = auditstream::protocol::limits::ENTRY_KEY_BYTES_MAX;

/// The key of line `number`, counted from 1; twelve digits keep byte order and number order the same.
pub(crate) fn line_key(number: u64) -> String {
    format!("{number:012}")
}

/// Reads a file line by line; each line is one record of `docs/hash.md`.
#[derive(Debug)]
pub(crate) struct Lines {
    path: String,
    reader: BufReader<File>,
    key_field: Option<String>,
    number: u64,
}

impl Lines {
    /// Opens a file.
    ///
    /// # Errors
    /// A file that is not there, cannot be read, is a folder, or is empty.
    pub(crate) fn open(path: &Path, key_field: Option<&str>) -> Result<Self, Fault> {
        let shown = path.display();
        let unreadable = |error| {
            Fault::Usage(format!(
                "cannot read the input file {shown}: {error}; give a file that this process may read"
            ))
        };
        let file = File::open(path).map_err(unreadable)?;
        if file.metadata().map_err(unreadable)?.is_dir() {
            return Err(Fault::Usage(format!("the input {shown} is a folder; give a text file")));
        }
        let mut reader = BufReader::with_capacity(1 << 20, file);
        if reader.fill_buf().map_err(unreadable)?.is_empty() {
            return Err(Fault::Usage(format!(
                "the input file {shown} is empty; give a file with at least one line"
            )));
        }
        let key_field = key_field.map(str::to_owned);
        Ok(Self { path: shown.to_string(), reader, key_field, number: 0 })
    }

    /// The next record, or `None` after the last line.
    ///
    /// # Errors
    /// A line over the record limit; with a key field, a line that has none.
    pub(crate) fn next_record(&mut self) -> Result<Option<(Bytes, Bytes)>, Fault> {
        let mut line = Vec::new();
        let limit = RECORD_BYTES_MAX as u64 + 2;
        let read = std::io::Read::take(&mut self.reader, limit).read_until(b'\n', &mut line);
        read.map_err(|error| Fault::usage(format!("cannot read the input file {}: {error}", self.path)))?;
        if line.is_empty() {
            return Ok(None);
        }
        self.number += 1;
        if line.last() == Some(&b'\n') {
            line.pop();
        }
        if line.len() > RECORD_BYTES_MAX {
            return Err(self.wrong(&format!(
                "is longer than the record limit of {RECORD_BYTES_MAX} bytes; split it, or leave it out"
            )));
        }
        let key = match &self.key_field {
            None => line_key(self.number).into_bytes(),
            Some(field) => self.key_of(field, &line)?,
        };
        Ok(Some((key.into(), line.into())))
    }

    fn key_of(&self, field: &str, line: &[u8]) -> Result<Vec<u8>, Fault> {
        let object: BTreeMap<String, serde_json::Value> = serde_json::from_slice(line).map_err(|error| {
            self.wrong(&format!("is not a JSON object ({error}); --key-field needs one on every line"))
        })?;
        let key = match object.get(field) {
            Some(serde_json::Value::String(text)) => text.clone().into_bytes(),
            Some(serde_json::Value::Number(number)) if !number.is_f64() => number.to_string().into_bytes(),
            Some(other) => {
                let shown: String = other.to_string().chars().take(60).collect();
                return Err(self.wrong(&format!("has {shown} as {field:?}; a key is a string or an integer")));
            }
            None => return Err(self.wrong(&format!("has no field {field:?}; name one that every line has"))),
        };
        if key.is_empty() || key.len() > KEY_BYTES_MAX {
            let bytes = key.len();
            return Err(self.wrong(&format!("has a key of {bytes} bytes; it must have 1 to {KEY_BYTES_MAX}")));
        }
        Ok(key)
    }

    fn wrong(&self, problem: &str) -> Fault {
        Fault::Usage(format!("line {} of {} {problem}", self.number, self.path))
    }
}

/// Reads the whole file once, so that a bad line is refused before anything is started. Answers how many lines it has.
///
/// # Errors
/// As [`Lines`].
pub(crate) fn check(path: &Path, key_field: Option<&str>) -> Result<u64, Fault> {
    let mut lines = Lines::open(path, key_field)?;
    while lines.next_record()?.is_some() {}
    Ok(lines.number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    fn file(bytes: &[u8]) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().expect("a file");
        file.write_all(bytes).expect("written");
        file
    }

    #[test]
    fn every_line_is_a_record_also_the_empty_and_the_unfinished_one() {
        let file = file(b"a\r\n\nb");
        let mut lines = Lines::open(file.path(), None).expect("opens");
        let mut seen = Vec::new();
        while let Some((key, value)) = lines.next_record().expect("reads") {
            seen.push((key, value));
        }
        let expected = [("000000000001", "a\r"), ("000000000002", ""), ("000000000003", "b")];
        assert_eq!(seen, expected.map(|(key, value)| (Bytes::from(key), Bytes::from(value))));
    }

    #[test]
    fn a_line_at_the_limit_passes_and_one_byte_more_is_refused_by_its_number() {
        let mut bytes = vec![b'x'; RECORD_BYTES_MAX];
        bytes.push(b'\n');
        assert_eq!(check(file(&bytes).path(), None), Ok(1));
        bytes.extend(vec![b'y'; RECORD_BYTES_MAX + 1]);
        bytes.push(b'\n');
        let error = check(file(&bytes).path(), None).expect_err("refused").to_string();
        assert!(error.contains("line 2") && error.contains("163840"), "{error}");
    }

    #[test]
    fn keys_come_from_a_field_and_what_is_no_key_is_refused() {
        assert_eq!(check(file(b"{\"id\":7}\n{\"id\":\"x\"}\n").path(), Some("id")), Ok(2));
        for (line, problem) in
            [("{}", "no field"), ("{\"id\":1.5}", "integer"), ("[1]", "object"), ("{\"id\":\"\"}", "0 bytes")]
        {
            let error = check(file(line.as_bytes()).path(), Some("id")).expect_err("refused").to_string();
            assert!(error.contains("line 1") && error.contains(problem), "{error}");
        }
    }
}
