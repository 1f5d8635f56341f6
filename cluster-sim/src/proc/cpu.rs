//! CPU time as the kernel counts it: from outside of what is measured, in nanoseconds.

use std::path::Path;

/// CPU time of the threads of this process whose name begins with `prefix`; all threads for an empty one.
///
/// A thread that has ended is not in it: take it before threads are joined.
pub(crate) fn threads_ns(prefix: &str) -> u64 {
    let Ok(tasks) = std::fs::read_dir("/proc/self/task") else { return 0 };
    tasks.filter_map(|task| thread_ns(&task.ok()?.path(), prefix)).sum()
}

/// CPU time of the calling thread.
pub(crate) fn this_thread_ns() -> u64 {
    // The kernel brings the figure of a running thread up to date when it looks for another one to run.
    std::thread::yield_now();
    scheduled(Path::new("/proc/thread-self")).unwrap_or_default()
}

fn thread_ns(task: &Path, prefix: &str) -> Option<u64> {
    let name = std::fs::read_to_string(task.join("comm")).ok()?;
    name.starts_with(prefix).then(|| scheduled(task))?
}

/// First field of `schedstat`: time spent on a CPU.
fn scheduled(task: &Path) -> Option<u64> {
    std::fs::read_to_string(task.join("schedstat")).ok()?.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_shows_in_the_thread_that_did_it_and_not_in_one_of_another_name() {
        let worked = std::thread::Builder::new()
            .name("worked".to_owned())
            .spawn(|| {
                let before = this_thread_ns();
                let mut number = 1_u64;
                while this_thread_ns() < before + 2_000_000 {
                    number = std::hint::black_box(number.wrapping_mul(3));
                }
                (threads_ns("worked"), threads_ns("another"))
            })
            .expect("started");
        let (worked, another) = worked.join().expect("ended");
        assert!(worked >= 2_000_000 && another == 0, "{worked} {another}");
    }
}
