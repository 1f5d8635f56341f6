//! Which entries a subscription wants.

use crate::protocol::{
    Coverage, EntryFlags, EntryRef, NodeName, OriginId, SegmentFlags, SegmentRef, Selection, Sequence,
    TableId, TransactionRef,
};
use crate::store::{AuditLog, StoreError};

/// Why an entry is not sent, in the order in which the reasons are looked at.
///
/// The numbers are stable. Reserved for later: excluded by a route, outside a time window, not resident.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SkipReason {
    /// It must not leave the node.
    LocalOnly,
    /// The peer wrote it itself.
    OwnOrigin,
    /// Its origin is not subscribed to.
    Origin,
    /// Its table is not subscribed to.
    Table,
    /// The peer has it: an earlier stream with another filter brought it.
    Covered,
}

impl SkipReason {
    /// How many reasons there are.
    pub const COUNT: usize = 5;

    /// Its place in a table of counters.
    #[must_use]
    pub const fn index(self) -> usize {
        self as usize
    }
}

/// What a segment's header says about its entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Every entry is eligible.
    SendWhole,
    /// No entry is eligible.
    SkipWhole(SkipReason),
    /// Some may be.
    Examine {
        /// Whether every table in it is wanted and nothing is local-only, so that only origins decide.
        by_origin_only: bool,
    },
}

/// A selection, with its answers per short id kept.
#[derive(Debug)]
pub(super) struct Filter {
    selection: Selection,
    peer: NodeName,
    tables: Vec<Option<Option<SkipReason>>>,
    origins: Vec<Option<Option<SkipReason>>>,
    /// What other streams brought to the peer, past the start of this one.
    covered: Vec<Covered>,
}

impl Filter {
    pub(super) fn nothing(peer: NodeName) -> Self {
        let selection = Selection::default();
        Self { selection, peer, tables: Vec::new(), origins: Vec::new(), covered: Vec::new() }
    }

    /// Selects anew, for a stream that starts after `start`.
    pub(super) fn select(&mut self, selection: Selection, start: Sequence, covered: &[Coverage]) {
        let further = covered.iter().filter(|coverage| coverage.boundary.sequence > start);
        self.covered = further.map(Covered::new).collect();
        self.selection = selection;
        self.tables.clear();
        self.origins.clear();
    }

    pub(super) const fn selection(&self) -> &Selection {
        &self.selection
    }

    pub(super) fn table(
        &mut self,
        log: &dyn AuditLog,
        id: TableId,
    ) -> Result<Option<SkipReason>, StoreError> {
        let slot = slot(&mut self.tables, id.0);
        if let Some(known) = slot {
            return Ok(*known);
        }
        let Some(table) = log.table(id)? else { return Err(unknown_id("table", id.0)) };
        let answer = (!self.selection.tables().passes(&table.name)).then_some(SkipReason::Table);
        *slot = Some(answer);
        Ok(answer)
    }

    pub(super) fn origin(
        &mut self,
        log: &dyn AuditLog,
        id: OriginId,
    ) -> Result<Option<SkipReason>, StoreError> {
        let slot = slot(&mut self.origins, id.0);
        if let Some(known) = slot {
            return Ok(*known);
        }
        let Some(origin) = log.origin(id)? else { return Err(unknown_id("origin", id.0)) };
        let answer = if origin == self.peer {
            Some(SkipReason::OwnOrigin)
        } else {
            (!self.selection.origins().passes(&origin)).then_some(SkipReason::Origin)
        };
        *slot = Some(answer);
        Ok(answer)
    }

    /// Why `entry` is skipped, or `None` when it is eligible.
    pub(super) fn entry(
        &mut self,
        log: &dyn AuditLog,
        transaction: &TransactionRef<'_>,
        entry: &EntryRef<'_>,
    ) -> Result<Option<SkipReason>, StoreError> {
        if entry.header.flags.contains(EntryFlags::LOCAL_ONLY) {
            return Ok(Some(SkipReason::LocalOnly));
        }
        if let Some(reason) = self.origin(log, transaction.header.origin)? {
            return Ok(Some(reason));
        }
        if let Some(reason) = self.table(log, entry.header.table)? {
            return Ok(Some(reason));
        }
        if self.covered.is_empty() {
            return Ok(None);
        }
        self.covered(log, transaction, entry)
    }

    /// Whether an earlier stream brought an entry that is selected.
    fn covered(
        &mut self,
        log: &dyn AuditLog,
        transaction: &TransactionRef<'_>,
        entry: &EntryRef<'_>,
    ) -> Result<Option<SkipReason>, StoreError> {
        let sequence = transaction.sequence_of(entry);
        for covered in self.covered.iter_mut().filter(|covered| covered.until >= sequence) {
            if covered.passes(log, entry.header.table, transaction.header.origin)? {
                return Ok(Some(SkipReason::Covered));
            }
        }
        Ok(None)
    }

    /// Judges a segment by its header alone.
    pub(super) fn segment(
        &mut self,
        log: &dyn AuditLog,
        segment: &SegmentRef<'_>,
    ) -> Result<Verdict, StoreError> {
        let mut origins = Tally::default();
        for id in segment.origins().into_iter().flatten() {
            origins.count(self.origin(log, id)?);
        }
        let mut tables = Tally::default();
        for id in segment.tables().into_iter().flatten() {
            tables.count(self.table(log, id)?);
        }
        if let Some(reason) = origins.all_skipped().or_else(|| tables.all_skipped()) {
            return Ok(Verdict::SkipWhole(reason));
        }
        let first = segment.header().first;
        self.covered.retain(|covered| covered.until >= first);
        if !self.covered.is_empty() {
            return Ok(Verdict::Examine { by_origin_only: false });
        }
        let by_origin_only =
            tables.all_eligible() && !segment.header().flags.contains(SegmentFlags::HAS_LOCAL_ONLY);
        if by_origin_only && origins.all_eligible() {
            return Ok(Verdict::SendWhole);
        }
        Ok(Verdict::Examine { by_origin_only })
    }
}

/// A coverage, with its answers per short id kept.
#[derive(Debug)]
struct Covered {
    selection: Selection,
    until: Sequence,
    tables: Vec<Option<bool>>,
    origins: Vec<Option<bool>>,
}

impl Covered {
    fn new(coverage: &Coverage) -> Self {
        Self {
            selection: coverage.selection.clone(),
            until: coverage.boundary.sequence,
            tables: Vec::new(),
            origins: Vec::new(),
        }
    }

    fn passes(&mut self, log: &dyn AuditLog, table: TableId, origin: OriginId) -> Result<bool, StoreError> {
        let slot_of_origin = slot(&mut self.origins, origin.0);
        let origin_passes = match *slot_of_origin {
            Some(known) => known,
            None => {
                let Some(name) = log.origin(origin)? else { return Err(unknown_id("origin", origin.0)) };
                *slot_of_origin.insert(self.selection.origins().passes(&name))
            }
        };
        if !origin_passes {
            return Ok(false);
        }
        let slot_of_table = slot(&mut self.tables, table.0);
        match *slot_of_table {
            Some(known) => Ok(known),
            None => {
                let Some(table) = log.table(table)? else { return Err(unknown_id("table", table.0)) };
                Ok(*slot_of_table.insert(self.selection.tables().passes(&table.name)))
            }
        }
    }
}

fn slot<T>(answers: &mut Vec<Option<T>>, id: u16) -> &mut Option<T> {
    let index = usize::from(id);
    if index >= answers.len() {
        answers.resize_with(index + 1, || None);
    }
    &mut answers[index]
}

fn unknown_id(what: &'static str, id: u16) -> StoreError {
    StoreError::Backend {
        action: format!("cannot judge an entry: the log gave out no {what} with the short id {id}"),
        source: std::sync::Arc::new(std::io::Error::from(std::io::ErrorKind::InvalidData)),
    }
}

#[derive(Default)]
struct Tally {
    eligible: usize,
    skipped: usize,
    reason: Option<SkipReason>,
}

impl Tally {
    fn count(&mut self, reason: Option<SkipReason>) {
        match reason {
            None => self.eligible += 1,
            Some(reason) => {
                self.skipped += 1;
                self.reason.get_or_insert(reason);
            }
        }
    }

    // An empty tally comes from an unlisted header: it decides nothing.
    const fn all_skipped(&self) -> Option<SkipReason> {
        if self.eligible == 0 && self.skipped > 0 { self.reason } else { None }
    }

    const fn all_eligible(&self) -> bool {
        self.eligible > 0 && self.skipped == 0
    }
}
