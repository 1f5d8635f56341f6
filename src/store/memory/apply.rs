//! Applying a peer's transactions: conflict rule, duplicates, own log and position in one step.

use bytes::Bytes;

use crate::protocol::{
    Boundary, EntryDraft, EntryFlags, EntryKind, EntryRef, OriginId, ProtocolError, SegmentFlags, SegmentRef,
    Sequence, TableId, TransactionDraft, TransactionRef, Version,
};
use crate::store::conflict::{Identity, Outcome};
use crate::store::{Applied, ApplyBatch, ApplyError, StoreError};

use super::state::State;

/// One received transaction in this store's own short ids, without the entries that change nothing.
struct Winner<'a> {
    origin: OriginId,
    version: Version,
    entries: Vec<EntryDraft<'a>>,
}

pub(super) fn apply(
    state: &mut State,
    batch: &ApplyBatch,
    wall_ms: u64,
) -> (Result<Applied, ApplyError>, bool) {
    let (mut applied, mut definitions_changed) = (Applied::default(), false);
    let start = batch.boundary_in(state.sources.get(&batch.source));
    let mut good = start;
    if state.failed_sources.contains(&batch.source) {
        let error = ApplyError { good, at: batch.position.boundary.sequence, reason: StoreError::Closed };
        return (Err(error), false);
    }
    for parts in transactions(batch) {
        let at = match &parts {
            Ok(parts) => parts.last().map_or(Sequence::ZERO, |part| part.header.last()),
            Err(_) => batch.position.boundary.sequence,
        };
        let boundary = parts.as_ref().ok().and_then(|parts| known_boundary(batch, parts));
        match parts.and_then(|parts| apply_transaction(state, batch, &parts, wall_ms)) {
            Ok((one, changed)) => {
                applied.changed += one.changed;
                applied.unchanged += one.unchanged;
                definitions_changed |= changed;
                good = boundary.unwrap_or(good);
            }
            Err(reason) => {
                state.failed_sources.insert(batch.source.clone());
                if good.sequence > start.sequence {
                    // The good prefix stays, with its position.
                    state.move_on(batch, good);
                }
                return (Err(ApplyError { good, at, reason }), definitions_changed);
            }
        }
    }
    state.move_on(batch, batch.position.boundary);
    (Ok(applied), definitions_changed)
}

/// The boundary after a transaction, when it is known: one that a filter cut has another checksum than in the source's log.
fn known_boundary(batch: &ApplyBatch, parts: &[TransactionRef<'_>]) -> Option<Boundary> {
    let is_filtered = |frame: &Bytes| {
        SegmentRef::parse(frame).is_ok_and(|segment| segment.header().flags.contains(SegmentFlags::FILTERED))
    };
    if batch.frames.iter().any(is_filtered) { None } else { parts.last()?.boundary() }
}

/// The transactions of a batch, each as the list of its parts.
fn transactions<'a>(
    batch: &'a ApplyBatch,
) -> impl Iterator<Item = Result<Vec<TransactionRef<'a>>, StoreError>> + use<'a> {
    let mut parts = batch
        .frames
        .iter()
        .flat_map(|frame| match SegmentRef::parse(frame) {
            Ok(segment) => segment.transactions().collect(),
            Err(error) => vec![Err(error)],
        })
        .map(|part| part.map_err(|error| corrupt(batch, error)))
        .peekable();
    std::iter::from_fn(move || {
        let mut transaction = match parts.next()? {
            Ok(first) => vec![first],
            Err(error) => return Some(Err(error)),
        };
        let first = transaction[0].header.first;
        while let Some(Ok(part)) =
            parts.next_if(|part| part.as_ref().is_ok_and(|part| part.header.first == first))
        {
            transaction.push(part);
        }
        Some(Ok(transaction))
    })
}

fn corrupt(batch: &ApplyBatch, source: ProtocolError) -> StoreError {
    StoreError::Corrupt { what: "received segment", key: batch.position.boundary.sequence, source }
}

fn apply_transaction(
    state: &mut State,
    batch: &ApplyBatch,
    parts: &[TransactionRef<'_>],
    wall_ms: u64,
) -> Result<(Applied, bool), StoreError> {
    let Some(header) = parts.first().map(|part| part.header) else { return Ok((Applied::default(), false)) };
    let Some(name) = batch.dictionary.origins.get(&header.origin) else {
        return Err(unknown("origin", header.origin.0));
    };
    state.hlc.observe(header.version, wall_ms).map_err(|skew| StoreError::Backend {
        action: format!("cannot take a transaction of {name}"),
        source: std::sync::Arc::new(skew),
    })?;
    let origin = state.origin_id(name)?;
    let mut winner = Winner { origin, version: header.version, entries: Vec::new() };
    let (mut applied, mut definitions_changed) = (Applied::default(), false);
    for part in parts {
        for entry in part.entries() {
            let entry = entry.map_err(|error| corrupt(batch, error))?;
            let (table, changed) = map_table(state, batch, entry.header.table)?;
            definitions_changed |= changed;
            if !waits(state, &entry) && takes_effect(state, &winner, table, &entry) {
                applied.changed += 1;
                winner.entries.push(EntryDraft {
                    ordinal: entry.header.ordinal,
                    table,
                    kind: entry.header.kind,
                    flags: entry.header.flags,
                    key: entry.key,
                    value: entry.value,
                });
            } else {
                applied.unchanged += 1;
            }
        }
    }
    for entry in &winner.entries {
        state.write_row(entry, Identity { origin, version: winner.version, ordinal: entry.ordinal });
    }
    if !winner.entries.is_empty() {
        let draft = TransactionDraft { origin, version: winner.version, entries: &winner.entries };
        state.append_log(&[draft], wall_ms);
    }
    Ok((applied, definitions_changed))
}

fn takes_effect(state: &State, winner: &Winner<'_>, table: TableId, entry: &EntryRef<'_>) -> bool {
    let identity = Identity { origin: winner.origin, version: winner.version, ordinal: entry.header.ordinal };
    if entry.header.flags.contains(EntryFlags::LOCAL_ONLY) {
        return false;
    }
    if entry.header.kind == EntryKind::Message {
        return !state.messages.contains(&identity) || logs_duplicates(state);
    }
    let Some(row) = state.rows.get(&(table, entry.key.to_vec())) else { return true };
    let names = |a: OriginId, b: OriginId| state.origin_name(a).cmp(&state.origin_name(b));
    match identity.against(row.identity, names) {
        Outcome::Wins => true,
        Outcome::Duplicate => logs_duplicates(state),
        Outcome::Loses => false,
    }
}

#[cfg(any(test, feature = "testing"))]
fn logs_duplicates(state: &State) -> bool {
    state.planted.plant == Some(super::plant::StorePlant::LogDuplicate)
}

#[cfg(not(any(test, feature = "testing")))]
const fn logs_duplicates(_state: &State) -> bool {
    false
}

/// The planted fault that lets a part of a transaction wait.
#[cfg(any(test, feature = "testing"))]
const fn waits(state: &State, entry: &EntryRef<'_>) -> bool {
    state.planted.halved && entry.header.ordinal % 2 == 1
}

#[cfg(not(any(test, feature = "testing")))]
const fn waits(_state: &State, _entry: &EntryRef<'_>) -> bool {
    false
}

fn map_table(state: &mut State, batch: &ApplyBatch, id: TableId) -> Result<(TableId, bool), StoreError> {
    let Some(table) = batch.dictionary.tables.get(&id) else { return Err(unknown("table", id.0)) };
    let known = state.tables.iter().find(|known| known.name == table.name);
    let definition = match known {
        // An older definition from a peer does not undo a newer one.
        Some(known) if known.version >= table.version => known.definition.clone(),
        _ => table.definition.clone(),
    };
    state.define_table(&table.name, definition)
}

fn unknown(what: &'static str, id: u16) -> StoreError {
    StoreError::Backend {
        action: format!("the peer used the {what} id {id} without saying what it stands for"),
        source: std::sync::Arc::new(std::io::Error::from(std::io::ErrorKind::InvalidData)),
    }
}
