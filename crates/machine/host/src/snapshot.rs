//! Takes a snapshot: reads the files of `patterns`, makes the calls, waits, and reads what
//! counts once more. Nothing is opened for writing.

use std::path::Path;
use std::time::Duration;

use nm_model::Snapshot;
use nm_model::limits;
use nm_model::snapshot::{SNAPSHOT_VERSION, SecondSample, Workload};
use nm_sys::clock::Moment;
use nm_sys::hostfiles::{HostFiles, RecordedFiles};

use crate::calls;
use crate::cgroup;
use crate::patterns::{self, Pattern, What};
use crate::record;
use crate::walk::Walk;

/// What a snapshot is taken of.
#[derive(Debug, Clone)]
pub struct SnapshotOptions {
    /// What the machine is to carry.
    pub workload: Workload,
    /// Time between the two samples; none for one sample.
    pub interval: Option<Duration>,
}

impl Default for SnapshotOptions {
    fn default() -> SnapshotOptions {
        SnapshotOptions { workload: Workload::default(), interval: Some(Duration::from_secs(1)) }
    }
}

/// A snapshot of this machine, as seen from this process and its namespaces.
pub fn take(options: &SnapshotOptions) -> Snapshot {
    let files = HostFiles::default();
    let mut snapshot = read_files(&files, &options.workload);
    snapshot.calls.links = calls::links();
    snapshot.calls.cpuid = calls::cpuid();
    snapshot.calls.kernel_clock = calls::kernel_clock();
    if let Some(interval) = options.interval {
        second_sample(&files, &mut snapshot, interval);
    }
    snapshot
}

/// A snapshot of files below `root` in place of `/`. What only calls can tell is absent, and there
/// is no second sample, unless `root` is a recording.
pub fn of_root(root: &Path, workload: &Workload) -> Snapshot {
    let mut snapshot = read_files(&HostFiles::new(root), workload);
    record::add_answers(root, &mut snapshot);
    snapshot
}

/// The files of a snapshot, for everything that reads [`HostFiles`].
pub fn files(snapshot: &Snapshot) -> HostFiles {
    HostFiles::recorded(RecordedFiles {
        files: snapshot.files.clone(),
        folders: snapshot.folders.clone(),
        symlinks: snapshot.symlinks.clone(),
        present: snapshot.present.iter().cloned().collect(),
    })
}

fn read_files(files: &HostFiles, workload: &Workload) -> Snapshot {
    let mut walk = Walk::new(files);
    patterns::all().iter().for_each(|pattern| walk.read(pattern));
    let groups = walk.snapshot().files.get("/proc/self/cgroup").cloned().unwrap_or_default();
    group_patterns(&groups).iter().for_each(|pattern| walk.read(pattern));
    let threads = kernel_threads(walk.snapshot());
    threads.iter().for_each(|pid| walk.read(&patterns::kernel_thread(*pid)));
    let process = workload.pid.map(|pid| (pid, patterns::process()));
    let machines = virtual_machines(walk.snapshot());
    let machines = machines.into_iter().map(|pid| (pid, patterns::virtual_machine()));
    for (pid, patterns) in process.into_iter().chain(machines) {
        patterns.iter().for_each(|pattern| walk.read(&pattern.of_process(pid)));
    }
    let mut snapshot = walk.finish();
    snapshot.version = SNAPSHOT_VERSION;
    snapshot.nearmetal_version = env!("CARGO_PKG_VERSION").to_string();
    snapshot.workload = workload.clone();
    snapshot
}

/// Files of this process's control groups.
fn group_patterns(groups: &str) -> Vec<Pattern> {
    let of_name = |name: &&str| {
        let what = if *name == "cpu.stat" { What::Counter } else { What::Text };
        let paths = cgroup::paths(groups, name).into_iter();
        paths.map(move |path| Pattern::of_path(path, what)).collect::<Vec<_>>()
    };
    cgroup::FILES.iter().flat_map(of_name).collect()
}

/// Processes that run virtual machines.
fn virtual_machines(snapshot: &Snapshot) -> Vec<u32> {
    /// More do not run on one host.
    const MACHINES_MAX: usize = 256;
    let pid_of = |path: &str| path.strip_prefix("/proc/")?.strip_suffix("/comm")?.parse().ok();
    let is_machine = |name: &str| name.starts_with("qemu") || name == "firecracker";
    let found = snapshot.files.iter().filter(|(_, text)| is_machine(text));
    found.filter_map(|(path, _)| pid_of(path)).take(MACHINES_MAX).collect()
}

/// Threads of the kernel that do the work of a CPU's soft interrupts and callbacks.
fn kernel_threads(snapshot: &Snapshot) -> Vec<u32> {
    /// Two for each CPU of the largest machines.
    const THREADS_MAX: usize = 8_192;
    let pid_of = |path: &str| path.strip_prefix("/proc/")?.strip_suffix("/comm")?.parse().ok();
    let is_one = |name: &str| name.starts_with("ksoftirqd/") || name.starts_with("rcuc/");
    let found = snapshot.files.iter().filter(|(_, text)| is_one(text));
    found.filter_map(|(path, _)| pid_of(path)).take(THREADS_MAX).collect()
}

/// Waits, and reads the files that count and the statistics of links again.
fn second_sample(files: &HostFiles, snapshot: &mut Snapshot, interval: Duration) {
    let interval = interval.min(Duration::from_secs_f64(limits::SNAPSHOT_INTERVAL_S_MAX));
    let started = Moment::now();
    std::thread::sleep(interval);
    let groups = snapshot.files.get("/proc/self/cgroup").cloned().unwrap_or_default();
    let mut all = patterns::all();
    all.extend(group_patterns(&groups));
    if let Some(pid) = snapshot.workload.pid {
        all.extend(patterns::process().iter().map(|pattern| pattern.of_process(pid)));
    }
    let mut walk = Walk::new(files);
    let counters = all.iter().filter(|pattern| pattern.what == What::Counter);
    counters.for_each(|pattern| walk.read(pattern));
    let again = walk.finish();
    let links = calls::links().unwrap_or_default();
    snapshot.left_out.extend(again.left_out);
    snapshot.second = Some(SecondSample {
        interval_s: (started.elapsed().as_secs_f64() * 1e3).round() / 1e3,
        files: again.files,
        statistics: links.into_iter().map(|(name, link)| (name, link.statistics)).collect(),
    });
}
