//! What a peer asks for.

use std::collections::BTreeSet;

use super::error::ProtocolError;
use super::ids::{NodeName, TableName};
use super::limits::SUBSCRIPTION_NAMES_MAX;
use super::position::{Fingerprint, Position};
use super::wire::{Reader, fnv1a_64, put_text};

/// Which names pass.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum NameFilter<T: Ord> {
    /// Every name.
    #[default]
    All,
    /// Only these.
    Include(BTreeSet<T>),
    /// All but these.
    Exclude(BTreeSet<T>),
}

impl<T: Ord> NameFilter<T> {
    /// Whether `name` passes.
    pub fn passes(&self, name: &T) -> bool {
        match self {
            Self::All => true,
            Self::Include(names) => names.contains(name),
            Self::Exclude(names) => !names.contains(name),
        }
    }

    fn names(&self) -> Option<&BTreeSet<T>> {
        match self {
            Self::All => None,
            Self::Include(names) | Self::Exclude(names) => Some(names),
        }
    }

    fn encode(&self, out: &mut Vec<u8>, text: impl Fn(&T) -> &str) {
        out.push(match self {
            Self::All => 0,
            Self::Include(_) => 1,
            Self::Exclude(_) => 2,
        });
        let names = self.names();
        let count = names.map_or(0, BTreeSet::len);
        out.extend_from_slice(&u16::try_from(count).unwrap_or(u16::MAX).to_le_bytes());
        for name in names.into_iter().flatten() {
            put_text(out, text(name), usize::from(u16::MAX));
        }
    }

    fn read(
        reader: &mut Reader<'_>,
        what: &'static str,
        parse: impl Fn(&str) -> Result<T, ProtocolError>,
    ) -> Result<Self, ProtocolError> {
        let mode = reader.u8(what)?;
        let count = usize::from(reader.u16(what)?);
        if count > SUBSCRIPTION_NAMES_MAX {
            return Err(ProtocolError::OverLimit {
                what,
                value: count as u64,
                limit: SUBSCRIPTION_NAMES_MAX as u64,
            });
        }
        let mut names = BTreeSet::new();
        for index in 0..count {
            let name = parse(reader.name(what)?)?;
            // Any other order would have another fingerprint there than here, and no position would ever fit.
            if names.last().is_some_and(|last| *last >= name) {
                return Err(ProtocolError::Malformed {
                    what,
                    value: index as u64,
                    problem: "is the place of a name that is not behind the one before it (by bytes, each once)",
                });
            }
            names.insert(name);
        }
        match mode {
            0 if count == 0 => Ok(Self::All),
            1 => Ok(Self::Include(names)),
            2 => Ok(Self::Exclude(names)),
            other => Err(ProtocolError::Malformed {
                what,
                value: u64::from(other),
                problem: "is not a filter mode (0 all without names, 1 include, 2 exclude)",
            }),
        }
    }
}

/// Tables, origins and a start position. Checked once, when it is built.
///
/// Entries that are local-only, and entries whose origin is the peer itself, are never sent, whatever is asked for.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Subscription {
    tables: NameFilter<TableName>,
    origins: NameFilter<NodeName>,
    start: Option<Position>,
}

impl Subscription {
    /// Everything, from the log's first entry.
    #[must_use]
    pub fn all() -> Self {
        Self::default()
    }

    /// A subscription to these tables and origins, from `start`; `None` starts at the log's first entry.
    ///
    /// # Errors
    /// More than 200 names in a list. An include list without names asks for nothing, which is allowed: such a
    /// stream carries positions only.
    pub fn new(
        tables: NameFilter<TableName>,
        origins: NameFilter<NodeName>,
        start: Option<Position>,
    ) -> Result<Self, ProtocolError> {
        let counts = [
            ("tables of a subscription", tables.names().map_or(0, BTreeSet::len)),
            ("origins of a subscription", origins.names().map_or(0, BTreeSet::len)),
        ];
        for (what, count) in counts {
            if count > SUBSCRIPTION_NAMES_MAX {
                let limit = SUBSCRIPTION_NAMES_MAX as u64;
                return Err(ProtocolError::OverLimit { what, value: count as u64, limit });
            }
        }
        Ok(Self { tables, origins, start })
    }

    /// The same subscription from another start.
    #[must_use]
    pub fn starting_at(self, start: Option<Position>) -> Self {
        Self { start, ..self }
    }

    /// Which tables pass.
    #[must_use]
    pub const fn tables(&self) -> &NameFilter<TableName> {
        &self.tables
    }

    /// Which origins pass.
    #[must_use]
    pub const fn origins(&self) -> &NameFilter<NodeName> {
        &self.origins
    }

    /// Where to start.
    #[must_use]
    pub const fn start(&self) -> Option<Position> {
        self.start
    }

    /// FNV-1a over the canonical bytes of tables and origins: mode, count, names in byte order.
    #[must_use]
    pub fn fingerprint(&self) -> Fingerprint {
        let mut canonical = Vec::new();
        self.encode_filters(&mut canonical);
        Fingerprint(fnv1a_64(&canonical))
    }

    fn encode_filters(&self, out: &mut Vec<u8>) {
        self.tables.encode(out, TableName::as_str);
        self.origins.encode(out, NodeName::as_str);
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        match self.start {
            None => out.push(0),
            Some(position) => {
                out.push(1);
                out.extend_from_slice(&position.to_bytes());
            }
        }
        self.encode_filters(out);
    }

    pub(super) fn read(reader: &mut Reader<'_>) -> Result<Self, ProtocolError> {
        let start = match reader.u8("start of a subscription")? {
            0 => None,
            1 => Some(Position::read(reader)?),
            other => {
                return Err(ProtocolError::Malformed {
                    what: "start of a subscription",
                    value: u64::from(other),
                    problem: "is neither 0 (absent) nor 1 (a position)",
                });
            }
        };
        let tables = NameFilter::read(reader, "tables of a subscription", |name| TableName::new(name))?;
        let origins = NameFilter::read(reader, "origins of a subscription", |name| NodeName::new(name))?;
        Self::new(tables, origins, start)
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

    #[test]
    fn a_list_over_its_limit_is_refused_when_it_is_built() {
        let names = (0..=SUBSCRIPTION_NAMES_MAX).map(|n| TableName::new(format!("t{n}")).expect("a name"));
        let error = Subscription::new(NameFilter::Exclude(names.collect()), NameFilter::All, None);
        assert!(matches!(error, Err(ProtocolError::OverLimit { value: 201, limit: 200, .. })), "{error:?}");
    }
}
