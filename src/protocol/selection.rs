//! Which entries a subscription selects.

use std::collections::BTreeSet;

use super::error::ProtocolError;
use super::ids::{NodeName, TableName};
use super::limits::SUBSCRIPTION_NAMES_MAX;
use super::position::Fingerprint;
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

    /// Whether every name that passes `other` passes this one, whatever names there will ever be.
    pub fn covers(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::All, _) => true,
            (Self::Include(mine), Self::Include(theirs)) => theirs.is_subset(mine),
            (Self::Exclude(mine), Self::Include(theirs)) => theirs.is_disjoint(mine),
            (Self::Exclude(mine), Self::Exclude(theirs)) => mine.is_subset(theirs),
            (Self::Exclude(mine), Self::All) => mine.is_empty(),
            // A list cannot name every name that may come.
            (Self::Include(_), Self::All | Self::Exclude(_)) => false,
        }
    }

    /// Whether no name can pass.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        matches!(self, Self::Include(names) if names.is_empty())
    }

    fn names(&self) -> Option<&BTreeSet<T>> {
        match self {
            Self::All => None,
            Self::Include(names) | Self::Exclude(names) => Some(names),
        }
    }

    fn check(&self, what: &'static str) -> Result<(), ProtocolError> {
        let count = self.names().map_or(0, BTreeSet::len);
        if count > SUBSCRIPTION_NAMES_MAX {
            let limit = SUBSCRIPTION_NAMES_MAX as u64;
            return Err(ProtocolError::OverLimit { what, value: count as u64, limit });
        }
        Ok(())
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

/// The tables and origins of a subscription. Checked once, when it is built.
///
/// An entry is selected when its table passes and its origin passes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Selection {
    tables: NameFilter<TableName>,
    origins: NameFilter<NodeName>,
}

impl Selection {
    /// The entries of these tables from these origins.
    ///
    /// # Errors
    /// More than 200 names in a list.
    pub fn new(tables: NameFilter<TableName>, origins: NameFilter<NodeName>) -> Result<Self, ProtocolError> {
        tables.check("tables of a subscription")?;
        origins.check("origins of a subscription")?;
        Ok(Self { tables, origins })
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

    /// Whether entries of this table and this origin are selected.
    #[must_use]
    pub fn passes(&self, table: &TableName, origin: &NodeName) -> bool {
        self.tables.passes(table) && self.origins.passes(origin)
    }

    /// Whether it selects everything that `other` does.
    #[must_use]
    pub fn covers(&self, other: &Self) -> bool {
        other.is_empty() || (self.tables.covers(&other.tables) && self.origins.covers(&other.origins))
    }

    /// Whether it can select nothing, now or later: an include list without names.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.tables.is_empty() || self.origins.is_empty()
    }

    /// FNV-1a over the canonical bytes of tables and origins: mode, count, names in byte order.
    #[must_use]
    pub fn fingerprint(&self) -> Fingerprint {
        let mut canonical = Vec::new();
        self.encode(&mut canonical);
        Fingerprint(fnv1a_64(&canonical))
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        self.tables.encode(out, TableName::as_str);
        self.origins.encode(out, NodeName::as_str);
    }

    pub(super) fn read(reader: &mut Reader<'_>) -> Result<Self, ProtocolError> {
        let tables = NameFilter::read(reader, "tables of a subscription", |name| TableName::new(name))?;
        let origins = NameFilter::read(reader, "origins of a subscription", |name| NodeName::new(name))?;
        Self::new(tables, origins)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(names: &[&str]) -> BTreeSet<TableName> {
        names.iter().filter_map(|name| TableName::new(*name).ok()).collect()
    }

    /// Every filter over three names; a fourth one stands for all that are never listed.
    fn filters() -> Vec<NameFilter<TableName>> {
        let mut filters = vec![NameFilter::All];
        for bits in 0..8 {
            let listed: Vec<_> =
                (0..3).filter(|bit| bits & (1 << bit) != 0).map(|bit| ["a", "b", "c"][bit]).collect();
            filters.push(NameFilter::Include(names(&listed)));
            filters.push(NameFilter::Exclude(names(&listed)));
        }
        filters
    }

    #[test]
    fn a_filter_covers_another_exactly_when_no_name_passes_only_the_other() {
        let universe = names(&["a", "b", "c", "never listed"]);
        for one in filters() {
            for other in filters() {
                let expected = universe.iter().all(|name| one.passes(name) || !other.passes(name));
                assert_eq!(one.covers(&other), expected, "{one:?} over {other:?}");
            }
        }
    }

    #[test]
    fn a_selection_that_selects_nothing_is_covered_by_every_other_one() {
        let nothing = Selection::new(NameFilter::Include(names(&[])), NameFilter::All).expect("valid");
        let something = Selection::new(NameFilter::Include(names(&["a"])), NameFilter::All).expect("valid");
        assert!(nothing.is_empty() && !something.is_empty());
        assert!(something.covers(&nothing) && !nothing.covers(&something));
        assert!(nothing.covers(&nothing));
    }

    #[test]
    fn a_list_over_its_limit_is_refused_when_it_is_built() {
        let many = (0..=SUBSCRIPTION_NAMES_MAX).map(|n| TableName::new(format!("t{n}")).expect("a name"));
        let error = Selection::new(NameFilter::Exclude(many.collect()), NameFilter::All);
        assert!(matches!(error, Err(ProtocolError::OverLimit { value: 201, limit: 200, .. })), "{error:?}");
    }
}
