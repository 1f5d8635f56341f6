//! Checking a segment against everything that its format promises.

use super::entry::{EntryFlags, EntryRef};
use super::error::ProtocolError;
use super::ids::{OriginId, Sequence, TableId};
use super::segment::{SegmentFlags, SegmentRef};
use super::transaction::{TransactionHeader, TransactionRef, check_count};

impl SegmentRef<'_> {
    /// Checks everything that the format promises: checksums, counts, lengths, lists, marks, that transactions do not
    /// overlap, and that sequences rise from the header's first to its last.
    ///
    /// # Errors
    /// The first promise that does not hold.
    pub fn verify(&self) -> Result<(), ProtocolError> {
        let (mut entries, mut transactions, mut before) = (0_u32, 0_u32, None);
        let mut previous = Sequence::new(self.header().first.get().saturating_sub(1));
        for transaction in self.transactions() {
            let transaction = transaction?;
            transaction.verify()?;
            self.check_part(&transaction.header)?;
            self.check_start(&transaction, before.as_ref())?;
            transactions += 1;
            let mut table = None;
            for entry in transaction.entries() {
                let entry = entry?;
                let sequence = transaction.sequence_of(&entry);
                self.check_sequence(&transaction, previous, sequence)?;
                if table != Some(entry.header.table) {
                    self.check_table(entry.header.table)?;
                    table = Some(entry.header.table);
                }
                self.check_marks(&entry)?;
                previous = sequence;
                entries += 1;
            }
            self.check_last(&transaction, previous)?;
            before = Some(transaction);
        }
        check_count("segment transaction count", self.header().transactions, transactions)?;
        check_count("segment entry count", self.header().entries, entries)?;
        if previous != self.header().last {
            return Err(ProtocolError::OutOfOrder {
                what: "segment's last entry",
                previous: self.header().last,
                found: previous,
            });
        }
        self.check_end(before.as_ref())
    }

    const fn is_filtered(&self) -> bool {
        self.header().flags.contains(SegmentFlags::FILTERED)
    }

    /// A part is alone in its segment, and both headers carry the same part marks.
    fn check_part(&self, transaction: &TransactionHeader) -> Result<(), ProtocolError> {
        let marks = SegmentFlags::CONTINUES.with(SegmentFlags::CONTINUED).bits();
        let (outer, inner) = (self.header().flags.bits() & marks, transaction.flags.bits() & marks);
        if outer != inner || (inner != 0 && self.header().transactions != 1) {
            return Err(ProtocolError::Malformed {
                what: "part marks of a segment",
                value: u64::from(outer),
                problem: "do not fit its transactions",
            });
        }
        Ok(())
    }

    /// A transaction begins behind the whole one before it, or began in an earlier segment. Its origin is listed.
    fn check_start(
        &self,
        transaction: &TransactionRef<'_>,
        before: Option<&TransactionRef<'_>>,
    ) -> Result<(), ProtocolError> {
        self.check_origin(transaction.header.origin)?;
        let (first, lowest) = (transaction.header.first, self.header().first);
        let begins = match before {
            _ if first == Sequence::ZERO => false,
            Some(before) => first > before.header.last(),
            None if transaction.continues() => first < lowest,
            // The first entries may have been left out.
            None => first == lowest || self.is_filtered(),
        };
        if begins {
            return Ok(());
        }
        Err(ProtocolError::OutOfOrder {
            what: "start of a transaction",
            previous: before.map_or(lowest, |before| before.header.last()),
            found: first,
        })
    }

    fn check_sequence(
        &self,
        transaction: &TransactionRef<'_>,
        previous: Sequence,
        found: Sequence,
    ) -> Result<(), ProtocolError> {
        if found <= previous || found > self.header().last || found > transaction.header.last() {
            return Err(ProtocolError::OutOfOrder { what: "entry", previous, found });
        }
        // Only a sender that left entries out may leave a gap.
        if !self.is_filtered() && found != previous.plus(1) {
            return Err(ProtocolError::OutOfOrder { what: "entry after a gap", previous, found });
        }
        Ok(())
    }

    /// With nothing left out, the last entry is the transaction's last, unless it goes on.
    fn check_last(&self, transaction: &TransactionRef<'_>, last: Sequence) -> Result<(), ProtocolError> {
        let stated = transaction.header.last();
        if self.is_filtered() || (last == stated) != transaction.is_continued() {
            return Ok(());
        }
        Err(ProtocolError::OutOfOrder { what: "end of a transaction", previous: last, found: stated })
    }

    /// A table that the list leaves out would be skipped by every sender that reads the header only.
    fn check_table(&self, table: TableId) -> Result<(), ProtocolError> {
        match self.tables().map(|mut tables| tables.any(|listed| listed == table)) {
            Some(false) => Err(not_listed("table of an entry", table.0)),
            _ => Ok(()),
        }
    }

    fn check_origin(&self, origin: OriginId) -> Result<(), ProtocolError> {
        match self.origins().map(|mut origins| origins.any(|listed| listed == origin)) {
            Some(false) => Err(not_listed("origin of a transaction", origin.0)),
            _ => Ok(()),
        }
    }

    /// Without these marks on its segment, a sender that reads the header only would let a local-only entry out.
    fn check_marks(&self, entry: &EntryRef<'_>) -> Result<(), ProtocolError> {
        let (flags, marks) = (entry.header.flags, self.header().flags);
        let lacks = |mark, on_segment| flags.contains(mark) && !marks.contains(on_segment);
        if lacks(EntryFlags::LOCAL_ONLY, SegmentFlags::HAS_LOCAL_ONLY)
            || lacks(EntryFlags::HAS_BLOBS, SegmentFlags::HAS_BLOBS)
        {
            return Err(ProtocolError::Malformed {
                what: "marks of a segment",
                value: u64::from(marks.bits()),
                problem: "lack a mark that one of its entries has",
            });
        }
        Ok(())
    }

    /// The end position is the last boundary in the body, or one behind it when a sender left entries out.
    fn check_end(&self, last: Option<&TransactionRef<'_>>) -> Result<(), ProtocolError> {
        let end = self.header().end;
        let holds = last.is_some_and(|last| match last.boundary() {
            // A filtered transaction has a checksum of its own, the position that of the source's log.
            Some(reached) if self.is_filtered() => end.sequence >= reached.sequence,
            Some(reached) => end == reached,
            // A part that does not end its transaction: the position is before the whole of it, or behind when a
            // filter left out the rest. It is never inside.
            None if self.is_filtered() && end.sequence >= last.header.last() => true,
            None => end.sequence < last.header.first,
        });
        if holds {
            return Ok(());
        }
        Err(ProtocolError::OutOfOrder {
            what: "end position of a segment",
            previous: last.map_or(Sequence::ZERO, |last| last.header.last()),
            found: end.sequence,
        })
    }
}

const fn not_listed(what: &'static str, id: u16) -> ProtocolError {
    ProtocolError::Malformed { what, value: id as u64, problem: "is not listed in its segment's header" }
}
