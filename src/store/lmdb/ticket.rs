//! What became of an enqueued transaction.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use crate::protocol::{Boundary, Sequence};
use crate::store::{CommitNotifier, StoreError};

/// Shared by the ticket and the writer thread.
#[derive(Debug, Default)]
pub(super) struct TicketState {
    answer: Mutex<Option<Result<Boundary, StoreError>>>,
    waiters: CommitNotifier,
}

impl TicketState {
    fn get(&self) -> Option<Result<Boundary, StoreError>> {
        self.answer.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Gives the answer once; a later one is dropped.
    pub(super) fn answer(&self, answer: Result<Boundary, StoreError>) {
        self.answer.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(answer);
        self.waiters.notify();
    }
}

/// What became of a transaction that was enqueued. Dropping it changes nothing about the transaction.
#[derive(Debug, Clone)]
pub struct Ticket {
    pub(super) state: Arc<TicketState>,
}

impl Ticket {
    /// The sequence of the transaction's last entry, or `None` while it is not committed, or when it failed.
    #[must_use]
    pub fn position(&self) -> Option<Sequence> {
        self.state.get()?.ok().map(|boundary| boundary.sequence)
    }

    /// Waits until the transaction is committed, and as durable as the store's level says: under `Sync` it is on disk,
    /// below it "durable" means committed.
    ///
    /// # Errors
    /// Why nothing of it was written.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing; it may be called again, also after it has answered.
    pub fn durable(
        &self,
    ) -> impl Future<Output = Result<Boundary, StoreError>> + Send + Sync + 'static + use<> {
        Durable { state: Arc::clone(&self.state) }
    }
}

struct Durable {
    state: Arc<TicketState>,
}

impl fmt::Debug for Durable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Durable").finish_non_exhaustive()
    }
}

impl Future for Durable {
    type Output = Result<Boundary, StoreError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        // Registered before the look: an answer in between is then not missed.
        self.state.waiters.register(context.waker());
        self.state.get().map_or(Poll::Pending, Poll::Ready)
    }
}
