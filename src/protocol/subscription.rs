//! What a peer asks for.

use super::error::ProtocolError;
use super::ids::{NodeName, TableName};
use super::position::{Fingerprint, Position};
use super::selection::{NameFilter, Selection};
use super::source_state::{Coverage, SourceState};
use super::wire::Reader;

/// Where a stream is to start.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Start {
    /// Before the log's first entry.
    #[default]
    Beginning,
    /// After this position, which was given under the same filter.
    After(Position),
    /// At the furthest boundary that covers all that is selected; before the log's first entry when none does. What
    /// the others cover is not sent again.
    Covered(SourceState),
}

impl std::fmt::Display for Start {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Beginning => f.write_str("the beginning"),
            Self::After(at) => write!(f, "sequence {} of the log {}", at.boundary.sequence, at.log),
            Self::Covered(state) => {
                write!(f, "at most sequence {} of the log {}", state.furthest(), state.log())
            }
        }
    }
}

/// Tables, origins and a start. Checked once, when it is built.
///
/// Entries that are local-only, and entries whose origin is the peer itself, are never sent, whatever is asked for.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Subscription {
    selection: Selection,
    start: Start,
}

impl Subscription {
    /// Everything, from the log's first entry.
    #[must_use]
    pub fn all() -> Self {
        Self::default()
    }

    /// A subscription to these tables and origins, after `start`; `None` starts before the log's first entry.
    ///
    /// # Errors
    /// More than 200 names in a list. An include list without names selects nothing: such a subscription ends the
    /// stream of the one before it on the same connection, which stays open for another one.
    pub fn new(
        tables: NameFilter<TableName>,
        origins: NameFilter<NodeName>,
        start: Option<Position>,
    ) -> Result<Self, ProtocolError> {
        let selection = Selection::new(tables, origins)?;
        Ok(Self { selection, start: start.map_or(Start::Beginning, Start::After) })
    }

    /// A subscription to what is selected, from the log's first entry.
    #[must_use]
    pub const fn to(selection: Selection) -> Self {
        Self { selection, start: Start::Beginning }
    }

    /// The same subscription after `start`.
    #[must_use]
    pub fn starting_at(self, start: Option<Position>) -> Self {
        self.starting(start.map_or(Start::Beginning, Start::After))
    }

    /// The same subscription with this start. Coverages with lists that are too long for one frame are cut: what is left out
    /// is sent again.
    #[must_use]
    pub fn starting(self, start: Start) -> Self {
        let start = match start {
            Start::Covered(state) => state.cut_to_fit().map_or(Start::Beginning, Start::Covered),
            other => other,
        };
        Self { start, ..self }
    }

    /// The same subscription for a node that has this of the source already.
    #[must_use]
    pub fn resuming(self, state: Option<SourceState>) -> Self {
        let start = match state {
            None => Start::Beginning,
            Some(state) if state.covered().len() == 1 && state.covered()[0].selection == self.selection => {
                Start::After(state.position())
            }
            Some(state) => Start::Covered(state),
        };
        self.starting(start)
    }

    /// What is selected.
    #[must_use]
    pub const fn selection(&self) -> &Selection {
        &self.selection
    }

    /// Which tables pass.
    #[must_use]
    pub const fn tables(&self) -> &NameFilter<TableName> {
        self.selection.tables()
    }

    /// Which origins pass.
    #[must_use]
    pub const fn origins(&self) -> &NameFilter<NodeName> {
        self.selection.origins()
    }

    /// Where to start.
    #[must_use]
    pub const fn start(&self) -> &Start {
        &self.start
    }

    /// What the start says is covered already.
    #[must_use]
    pub fn covered(&self) -> Vec<Coverage> {
        match &self.start {
            Start::Beginning => Vec::new(),
            Start::After(position) => {
                vec![Coverage { selection: self.selection.clone(), boundary: position.boundary }]
            }
            Start::Covered(state) => state.covered().to_vec(),
        }
    }

    /// The fingerprint of what is selected.
    #[must_use]
    pub fn fingerprint(&self) -> Fingerprint {
        self.selection.fingerprint()
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        match &self.start {
            Start::Beginning => out.push(0),
            Start::After(position) => {
                out.push(1);
                out.extend_from_slice(&position.to_bytes());
            }
            Start::Covered(state) => {
                out.push(2);
                state.encode_without_format(out);
            }
        }
        self.selection.encode(out);
    }

    pub(super) fn read(reader: &mut Reader<'_>) -> Result<Self, ProtocolError> {
        let start = match reader.u8("start of a subscription")? {
            0 => Start::Beginning,
            1 => Start::After(Position::read(reader)?),
            2 => Start::Covered(SourceState::read_without_format(reader)?),
            other => {
                return Err(ProtocolError::Malformed {
                    what: "start of a subscription",
                    value: u64::from(other),
                    problem: "is neither 0 (absent) nor 1 (a position) nor 2 (coverages)",
                });
            }
        };
        Ok(Self { selection: Selection::read(reader)?, start })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn include(names: &[&str]) -> NameFilter<TableName> {
        NameFilter::Include(names.iter().filter_map(|name| TableName::new(*name).ok()).collect())
    }

    #[test]
    fn the_fingerprint_depends_on_the_filter_and_not_on_the_start_or_the_order() {
        let one = Subscription::new(include(&["a", "b"]), NameFilter::All, None).expect("valid");
        let same = Subscription::new(include(&["b", "a"]), NameFilter::All, None).expect("valid");
        let other = Subscription::new(include(&["a"]), NameFilter::All, None).expect("valid");
        assert_eq!(one.fingerprint(), same.fingerprint());
        assert_ne!(one.fingerprint(), other.fingerprint());
        assert_ne!(one.fingerprint(), Subscription::all().fingerprint());
    }
}
