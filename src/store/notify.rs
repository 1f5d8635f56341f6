//! Waking whoever waits for the next commit, without a runtime.

use std::sync::{Mutex, PoisonError};
use std::task::Waker;

/// A list of wakers. Level-triggered: the waiter registers first and looks at the log's head after.
#[derive(Debug, Default)]
pub struct CommitNotifier {
    waiters: Mutex<Vec<Waker>>,
}

impl CommitNotifier {
    /// Remembers `waker` until the next [`Self::notify`]. The same waker is kept once.
    pub fn register(&self, waker: &Waker) {
        let mut waiters = self.waiters.lock().unwrap_or_else(PoisonError::into_inner);
        if !waiters.iter().any(|known| known.will_wake(waker)) {
            waiters.push(waker.clone());
        }
    }

    /// Wakes everyone who registered since the last call. Call it after the head has moved.
    pub fn notify(&self) {
        let woken = std::mem::take(&mut *self.waiters.lock().unwrap_or_else(PoisonError::into_inner));
        woken.into_iter().for_each(Waker::wake);
    }
}
