//! Does a store keep its promises? Run against the stores of the library, and by hosts against their own.

mod apply;
mod log;
mod source;

use std::sync::Arc;

use crate::protocol::{Boundary, Entry, NodeName, TableId, TableName};
use crate::store::{Applier, AuditLog};

/// A store as [`check_store`] uses it: empty when it is made, and alone in its place.
pub trait StoreUnderTest {
    /// The node whose log it is.
    fn node(&self) -> NodeName;

    /// The wall clock of the store in milliseconds since 1970, as it judges versions by.
    fn wall_ms(&self) -> u64;

    /// What senders read.
    fn log(&self) -> Arc<dyn AuditLog>;

    /// What receivers write.
    fn applier(&self) -> Arc<dyn Applier>;

    /// Defines a table and gives its id in the log; returns after the commit.
    fn define_table(&mut self, name: &TableName, definition: &[u8]) -> TableId;

    /// Writes a transaction of the node itself; returns after the commit, with the boundary at its end.
    fn append(&mut self, entries: Vec<Entry>) -> Boundary;

    /// The value of a row, or `None` when it is absent or deleted.
    fn value(&self, table: &TableName, key: &[u8]) -> Option<Vec<u8>>;
}

/// Makes stores and checks everything that senders and receivers rely on: an empty log, off-by-one errors at every
/// edge, scans from the middle of segments and transactions, boundaries, names, wake-ups, and that rows, log and
/// position move together through duplicates, conflicts, deletes and failures. Every check gets a store of its own.
///
/// # Panics
/// With a sentence that says which promise was broken.
pub fn check_store(make: &mut dyn FnMut() -> Box<dyn StoreUnderTest>) {
    let checks: [fn(&mut dyn StoreUnderTest); 15] = [
        log::an_empty_log,
        log::every_edge,
        log::every_boundary,
        log::a_large_transaction,
        log::names,
        log::wake_ups,
        apply::one_step,
        apply::a_position_alone,
        apply::duplicates,
        apply::own_entries,
        apply::conflicts,
        apply::tombstones,
        apply::entries_that_must_not_be_here,
        apply::a_failure_in_the_middle,
        apply::a_large_transaction,
    ];
    for check in checks {
        check(&mut *make());
    }
}

/// The answer of a store, which must not be an error here.
fn answered<T, E: std::fmt::Display>(answer: Result<T, E>, doing: &str) -> T {
    answer.unwrap_or_else(|error| panic!("the store fails to {doing}: {error}"))
}

fn table_name(name: &str) -> TableName {
    answered(TableName::new(name), "take a table name")
}

fn node_name(name: &str) -> NodeName {
    answered(NodeName::new(name), "take a node name")
}
