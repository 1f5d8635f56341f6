//! What the source writes: made-up records from a seed, or lines of a file.

use auditstream::protocol::{Entry, TableId};
use bytes::Bytes;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use crate::cli::Load;
use crate::fault::Fault;
use crate::input::{Lines, line_key};

/// Name of the table that all records go to.
pub(crate) const TABLE: &str = "records";
/// Origins of the mixed load; peers leave out the last one.
pub(crate) const ORIGINS: u64 = 5;
/// Bytes that values are cut from. Large against a value, so that neighbours differ, small against the CPU's cache.
const POOL_BYTES: usize = 64 * 1024;

/// Records in the order in which they are written.
#[derive(Debug)]
pub(crate) struct Records {
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    MadeUp { pool: Vec<u8>, size: usize, next: u64, end: u64, random: Option<(Box<ChaCha8Rng>, u64)> },
    Lines(Box<Lines>),
}

impl Records {
    /// `count` records with values of `size` bytes. With the random load, keys are drawn from as many as there are records.
    pub(crate) fn made_up(load: Load, count: u64, size: usize, seed: u64) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut pool = vec![0; POOL_BYTES + size];
        rng.fill_bytes(&mut pool);
        let random = (load == Load::Random).then(|| (Box::new(rng), count));
        Self { kind: Kind::MadeUp { pool, size, next: 1, end: count, random } }
    }

    /// The lines of a file.
    pub(crate) fn lines(lines: Lines) -> Self {
        Self { kind: Kind::Lines(Box::new(lines)) }
    }

    /// Makes `count` more records after the last one; a file has no more than its lines.
    pub(crate) fn extend(&mut self, count: u64) {
        if let Kind::MadeUp { end, .. } = &mut self.kind {
            *end += count;
        }
    }

    /// The next record.
    ///
    /// # Errors
    /// A line that cannot be a record.
    pub(crate) fn next_record(&mut self) -> Result<Option<(Bytes, Bytes)>, Fault> {
        match &mut self.kind {
            Kind::Lines(lines) => lines.next_record(),
            Kind::MadeUp { next, end, .. } if *next > *end => Ok(None),
            Kind::MadeUp { pool, size, next, random, .. } => {
                let number = *next;
                *next += 1;
                let key = random.as_mut().map_or(number, |(rng, keys)| 1 + rng.next_u64() % *keys);
                let start = (number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48) as usize % POOL_BYTES;
                let value = Bytes::copy_from_slice(&pool[start..start + *size]);
                Ok(Some((line_key(key).into(), value)))
            }
        }
    }

    /// The next transaction of up to `size` records; empty at the end.
    ///
    /// # Errors
    /// A line that cannot be a record.
    pub(crate) fn next_transaction(&mut self, table: TableId, size: u64) -> Result<Vec<Entry>, Fault> {
        let mut entries = Vec::with_capacity(size as usize);
        let mut bytes = 0;
        while (entries.len() as u64) < size {
            let Some((key, value)) = self.next_record()? else { break };
            bytes += key.len() + value.len() + auditstream::protocol::ENTRY_HEADER_BYTES;
            entries.push(Entry::put(table, key, value));
            // Long lines end a transaction early: the next one may be as long as the limit.
            if bytes as u64 + 2 * crate::cli::RECORD_BYTES_MAX as u64
                > auditstream::protocol::limits::TRANSACTION_BYTES_MAX
            {
                break;
            }
        }
        Ok(entries)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(load: Load, seed: u64) -> Vec<(Bytes, Bytes)> {
        let mut records = Records::made_up(load, 100, 40, seed);
        std::iter::from_fn(|| records.next_record().expect("made up")).collect()
    }

    #[test]
    fn the_same_seed_gives_the_same_records_and_another_one_others() {
        for load in [Load::Rising, Load::Random] {
            assert_eq!(all(load, 7), all(load, 7));
            assert_ne!(all(load, 7), all(load, 8));
            assert_eq!(all(load, 7).len(), 100);
        }
    }

    #[test]
    fn transactions_hold_what_was_asked_for_and_the_last_one_the_rest() {
        let mut records = Records::made_up(Load::Rising, 25, 40, 1);
        let sizes: Vec<usize> = std::iter::from_fn(|| {
            let entries = records.next_transaction(TableId(1), 10).expect("made up");
            (!entries.is_empty()).then_some(entries.len())
        })
        .collect();
        assert_eq!(sizes, [10, 10, 5]);
    }
}
