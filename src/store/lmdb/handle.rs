//! Own writes: enqueued here, committed by the writer thread.

use std::future::{Future, poll_fn};
use std::sync::Arc;
use std::task::Poll;

use super::Core;
use super::queue::{Job, PushError, Task, WriteJob};
use super::ticket::{Ticket, TicketState};
use crate::protocol::{ENTRY_HEADER_BYTES, Entry, TableId};
use crate::store::LimitError;

/// A transaction that was not enqueued. Nothing of it was written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EnqueueError {
    /// It is over a limit.
    #[error(transparent)]
    Limit(#[from] LimitError),
    /// An entry is for a table that was never defined.
    #[error("entry {entry} is for the table id {}, which is not defined; call define_table first", table.0)]
    UnknownTable {
        /// Place of the entry in the transaction, from 0.
        entry: usize,
        /// The id.
        table: TableId,
    },
    /// The queue has no room. Audit entries are never shed: wait with `enqueue_or_wait`, or try again.
    #[error(
        "the writer's queue is full: {records} entries and {bytes} bytes wait; wait for room, write less at once or \
         raise queue_records and queue_bytes"
    )]
    Full {
        /// The transaction, handed back.
        entries: Vec<Entry>,
        /// Entries that wait.
        records: usize,
        /// Bytes that wait.
        bytes: usize,
    },
    /// The store was closed.
    #[error("the store is closed")]
    Closed,
}

impl EnqueueError {
    /// Whether the same call can succeed later.
    #[must_use]
    pub const fn is_transient(&self) -> bool {
        matches!(self, Self::Full { .. })
    }
}

/// Writes transactions of this node: rows and log in one commit. Clones share one queue.
#[derive(Debug, Clone)]
pub struct AuditWriter {
    pub(super) core: Arc<Core>,
}

impl AuditWriter {
    /// Enqueues a transaction and returns at once.
    ///
    /// # Errors
    /// [`EnqueueError::Full`] hands the entries back. Limits, unknown tables, and a closed store.
    pub fn enqueue(&self, entries: Vec<Entry>) -> Result<Ticket, EnqueueError> {
        self.core.options.limits().check(entries.iter().map(|entry| (entry.key.len(), entry.value.len())))?;
        self.core.check_tables(&entries)?;
        self.push(entries)
    }

    fn push(&self, entries: Vec<Entry>) -> Result<Ticket, EnqueueError> {
        let records = entries.len();
        let bytes = entries.iter().map(|e| ENTRY_HEADER_BYTES + e.key.len() + e.value.len()).sum();
        let state = Arc::new(TicketState::default());
        let ticket = Ticket { state: Arc::clone(&state) };
        let task = Task::Write(WriteJob { entries, ticket: state });
        match self.core.queue.push(Job { task, records, bytes }).map_err(|refused| *refused) {
            Ok(()) => Ok(ticket),
            Err((PushError::Full { records, bytes }, Job { task: Task::Write(mut write), .. })) => {
                Err(EnqueueError::Full { entries: std::mem::take(&mut write.entries), records, bytes })
            }
            Err(_) => Err(EnqueueError::Closed),
        }
    }

    /// Enqueues a transaction, waiting until the queue has room for it.
    ///
    /// # Errors
    /// As [`Self::enqueue`], but never [`EnqueueError::Full`].
    ///
    /// # Cancel safety
    /// A future that is dropped before it answers has enqueued nothing; its entries are dropped with it.
    pub fn enqueue_or_wait(
        &self,
        entries: Vec<Entry>,
    ) -> impl Future<Output = Result<Ticket, EnqueueError>> + Send + 'static + use<> {
        let writer = self.clone();
        let mut waiting = Some(entries);
        poll_fn(move |context| {
            let Some(entries) = waiting.take() else { return Poll::Pending };
            let entries = match writer.enqueue(entries) {
                Err(EnqueueError::Full { entries, .. }) => entries,
                answer => return Poll::Ready(answer),
            };
            // Registered before the second try: room made in between is then not missed.
            writer.core.queue.room.register(context.waker());
            match writer.push(entries) {
                Err(EnqueueError::Full { entries, .. }) => {
                    waiting = Some(entries);
                    Poll::Pending
                }
                answer => Poll::Ready(answer),
            }
        })
    }
}
