//! What a result was measured on.

use std::fs;
use std::io::Write as _;
use std::path::Path;

use serde::Serialize;

use super::Spread;
use crate::clock;

/// Syncs of one probe of the disk: enough for a p99 that is not the maximum by chance of one.
const SYNCS: usize = 100;
/// What is written before each of them.
const SYNC_BYTES: usize = 4096;

/// Times of the bare `fdatasync` of 4 KiB, in microseconds.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct SyncTimes {
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
}

/// Commit, machine, disk and build.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Fingerprint {
    pub(crate) commit: &'static str,
    pub(crate) cpu: String,
    pub(crate) cpus: usize,
    pub(crate) kernel: String,
    pub(crate) file_system: String,
    pub(crate) toolchain: &'static str,
    pub(crate) profile: &'static str,
    pub(crate) fdatasync_before: Option<SyncTimes>,
    pub(crate) fdatasync_after: Option<SyncTimes>,
}

impl Fingerprint {
    /// Reads the machine; `folder` is where the nodes' data lies.
    pub(crate) fn read(folder: &Path) -> Self {
        let line =
            |path: &str| fs::read_to_string(path).map(|text| text.trim().to_owned()).unwrap_or_default();
        let model = line("/proc/cpuinfo");
        let model = model.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
        Self {
            commit: env!("CLUSTER_SIM_COMMIT"),
            cpu: model.map_or_else(|| "unknown".to_owned(), |(_, name)| name.to_owned()),
            cpus: std::thread::available_parallelism().map_or(0, usize::from),
            kernel: line("/proc/sys/kernel/osrelease"),
            file_system: file_system(folder),
            toolchain: env!("CLUSTER_SIM_TOOLCHAIN"),
            profile: env!("CLUSTER_SIM_PROFILE"),
            fdatasync_before: sync_times(folder),
            fdatasync_after: None,
        }
    }

    /// Probes the disk once more: a run may have used up its burst.
    pub(crate) fn after(&mut self, folder: &Path) {
        self.fdatasync_after = sync_times(folder);
    }
}

/// Type of the file system that a folder lies on.
fn file_system(folder: &Path) -> String {
    let folder = folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let mount = |line: &str| {
        let mut words = line.split(' ');
        let (_, at, kind) = (words.next()?, words.next()?.to_owned(), words.next()?.to_owned());
        folder.starts_with(&at).then_some((at.len(), kind))
    };
    mounts
        .lines()
        .filter_map(mount)
        .max_by_key(|(length, _)| *length)
        .map_or_else(String::new, |(_, kind)| kind)
}

fn sync_times(folder: &Path) -> Option<SyncTimes> {
    let mut file = tempfile::tempfile_in(folder).ok()?;
    let mut times = Vec::with_capacity(SYNCS);
    for _ in 0..SYNCS {
        file.write_all(&[0x5a; SYNC_BYTES]).ok()?;
        let started = clock::now();
        file.sync_data().ok()?;
        times.push(started.elapsed().as_secs_f64() * 1e6);
    }
    let p50_us = Spread::of(&times)?.median;
    times.sort_by(f64::total_cmp);
    Some(SyncTimes { p50_us, p99_us: times[SYNCS * 99 / 100 - 1] })
}
