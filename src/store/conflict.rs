//! Which of two writes of one row stays. The same rule on every node, so that all of them end alike.

use std::cmp::Ordering;

use crate::protocol::{OriginId, Version};

/// What identifies an entry everywhere, with the origin in one store's own short ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Identity {
    /// Who wrote it.
    pub origin: OriginId,
    /// When.
    pub version: Version,
    /// Place in its transaction at the origin.
    pub ordinal: u32,
}

/// What an incoming entry does to a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It is newer: it replaces what is there.
    Wins,
    /// It is the very entry that is there.
    Duplicate,
    /// What is there is newer.
    Loses,
}

impl Identity {
    /// Judges an incoming entry against the row that is there: the higher version wins; at the same version the
    /// greater origin name; within one transaction the later entry. `compare_names` orders two origins by name.
    pub fn against(
        self,
        existing: Self,
        compare_names: impl FnOnce(OriginId, OriginId) -> Ordering,
    ) -> Outcome {
        let order = self.version.cmp(&existing.version).then_with(|| {
            if self.origin == existing.origin {
                self.ordinal.cmp(&existing.ordinal)
            } else {
                compare_names(self.origin, existing.origin)
            }
        });
        match order {
            Ordering::Greater => Outcome::Wins,
            Ordering::Equal => Outcome::Duplicate,
            Ordering::Less => Outcome::Loses,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(origin: u16, version: u64, ordinal: u32) -> Identity {
        Identity { origin: OriginId(origin), version: Version::from_bits(version), ordinal }
    }

    #[test]
    fn higher_version_wins_then_greater_name_then_later_entry() {
        let by_reversed_id = |a: OriginId, b: OriginId| b.cmp(&a);
        let judge = |new: Identity, old: Identity| new.against(old, by_reversed_id);
        assert_eq!(judge(identity(1, 2, 0), identity(0, 1, 9)), Outcome::Wins);
        assert_eq!(judge(identity(1, 1, 0), identity(0, 2, 0)), Outcome::Loses);
        assert_eq!(
            judge(identity(0, 1, 0), identity(1, 1, 0)),
            Outcome::Wins,
            "origin 0 has the greater name here"
        );
        assert_eq!(judge(identity(1, 1, 5), identity(0, 1, 0)), Outcome::Loses);
        assert_eq!(judge(identity(1, 1, 3), identity(1, 1, 3)), Outcome::Duplicate);
        assert_eq!(judge(identity(1, 1, 4), identity(1, 1, 3)), Outcome::Wins);
    }
}
