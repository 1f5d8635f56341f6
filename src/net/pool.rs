//! Workers on threads of their own.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use crate::clock::Clock;
use crate::config::ConfigError;

use super::connection::Connection;
use super::worker::{Worker, WorkerConfig, WorkerHandle, WorkerStats};

/// Load is compared in steps of this many seconds of recent work, so that noise does not decide where the tenth peer goes.
const LOAD_STEP: f64 = 0.25;

/// Dedicated threads, each with a runtime and one worker.
#[derive(Debug)]
pub struct WorkerPool {
    workers: Vec<WorkerHandle>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl WorkerPool {
    /// Starts `workers` threads, named `audit-worker-0` and so on.
    ///
    /// # Errors
    /// 0 or more than 1,024 workers, or whatever the operating system answers when a thread or its runtime cannot start.
    pub fn start(workers: usize, config: WorkerConfig, clock: &Arc<dyn Clock>) -> std::io::Result<Self> {
        let holds = (1..=1024).contains(&workers);
        ConfigError::require(holds, "workers", workers, "1 to 1,024").map_err(std::io::Error::other)?;
        let pool = Self { workers: Vec::new(), threads: Mutex::default() };
        (0..workers).try_fold(pool, |mut pool, index| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            let (handle, worker) = Worker::new(config, Arc::clone(clock));
            let thread = std::thread::Builder::new()
                .name(format!("audit-worker-{index}"))
                .spawn(move || runtime.block_on(worker.run()))?;
            pool.workers.push(handle);
            pool.threads.lock().unwrap_or_else(PoisonError::into_inner).push(thread);
            Ok(pool)
        })
    }

    /// The workers.
    #[must_use]
    pub fn workers(&self) -> &[WorkerHandle] {
        &self.workers
    }

    /// Gives a connection to the worker with the least turn load; at the same load to the one with the fewest connections.
    pub fn place(&self, connection: Connection) {
        let least = self.workers.iter().min_by_key(|worker| {
            // The load of a worker that is never idle is the same whatever it does, so connections decide then.
            ((worker.load() / LOAD_STEP) as u64, worker.connections())
        });
        if let Some(worker) = least {
            worker.add(connection);
        }
    }

    /// The counters of each worker.
    #[must_use]
    pub fn stats(&self) -> Vec<WorkerStats> {
        self.workers.iter().map(WorkerHandle::stats).collect()
    }

    /// Tells every worker to stop and waits for the threads: about a second at most, see [`WorkerHandle::stop`]. It blocks; call it outside the
    /// event loop.
    pub fn shutdown(&self) {
        self.workers.iter().for_each(WorkerHandle::stop);
        let threads = std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        for thread in threads {
            if thread.join().is_err() {
                tracing::error!("a worker's thread panicked");
            }
        }
    }
}

impl Drop for WorkerPool {
    fn drop(&mut self) {
        self.workers.iter().for_each(WorkerHandle::stop);
    }
}
