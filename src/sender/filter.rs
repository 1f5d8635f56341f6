//! Which entries a subscription wants.

use crate::protocol::{
    EntryFlags, EntryRef, NodeName, OriginId, SegmentFlags, SegmentRef, Subscription, TableId, TransactionRef,
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
}

impl SkipReason {
    /// How many reasons there are.
    pub const COUNT: usize = 4;

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

/// A subscription, with its answers per short id kept.
#[derive(Debug)]
pub(super) struct Filter {
    subscription: Subscription,
    peer: NodeName,
    tables: Vec<Option<Option<SkipReason>>>,
    origins: Vec<Option<Option<SkipReason>>>,
}

impl Filter {
    pub(super) const fn new(subscription: Subscription, peer: NodeName) -> Self {
        Self { subscription, peer, tables: Vec::new(), origins: Vec::new() }
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
        let answer = (!self.subscription.tables().passes(&table.name)).then_some(SkipReason::Table);
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
            (!self.subscription.origins().passes(&origin)).then_some(SkipReason::Origin)
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
        self.table(log, entry.header.table)
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
        let by_origin_only =
            tables.all_eligible() && !segment.header().flags.contains(SegmentFlags::HAS_LOCAL_ONLY);
        if by_origin_only && origins.all_eligible() {
            return Ok(Verdict::SendWhole);
        }
        Ok(Verdict::Examine { by_origin_only })
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
