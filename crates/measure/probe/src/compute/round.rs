//! One case of the probe: a workload in a layout becomes the report of an end.

use nm_model::agent::TaskReport;
use nm_model::compute::{ComputeRound, ThreadWork};
use nm_model::probe::ComputeWork;
use nm_model::result::Statistic;
use nm_model::setting::{SettingKind, SettingValue};
use nm_stats::summary::{Sample, summarise};
use nm_sys::cpu;

use super::error::ComputeError;
use super::kernel::Kernel;
use super::layout_cpus::{cores, place};
use super::threads::{self, Job, ThreadJobs};
use crate::control::Control;
use crate::error::ProbeError;

/// Does the jobs of one case. `seed` chooses the order of the memory walk.
///
/// # Errors
/// If this machine cannot do the workload or has not the layout; [`ProbeError::Cancelled`].
pub fn run(work: &ComputeWork, seed: u64, control: &Control) -> Result<TaskReport, ProbeError> {
    let cores = cores(&cpu::allowed(), &cpu::siblings(), &work.cpus).map_err(ComputeError::from)?;
    let cpus = place(work.layout, &cores).map_err(ComputeError::from)?;
    let kernel = Kernel::prepare(work.workload, seed)?;
    let threads = threads::run(&kernel, &cpus, work.repeats, control)?;
    Ok(report(&kernel.implementation(), threads))
}

/// The report of the jobs of all threads.
fn report(implementation: &str, threads: Vec<ThreadJobs>) -> TaskReport {
    let first_ns = threads.iter().flat_map(|t| &t.jobs).map(|job| job.started_ns).min();
    let first_ns = first_ns.unwrap_or(0);
    let mut samples: Vec<Sample> = threads
        .iter()
        .flat_map(|thread| &thread.jobs)
        .map(|job| Sample { start_ns: job.started_ns - first_ns, latency_ns: job.usage.user_ns })
        .collect();
    samples.sort_by_key(|sample| sample.start_ns);
    let mut round = summarise(&samples, 0, &[]);
    let starts = common_starts(&threads);
    let window_ns: u64 = starts
        .iter()
        .enumerate()
        .map(|(repeat, start)| {
            let ends = threads.iter().filter_map(|thread| thread.jobs.get(repeat));
            ends.map(|job| job.ended_ns).max().unwrap_or(*start) - start
        })
        .sum();
    let window_s = window_ns as f64 / 1e9;
    round.rate_per_s = (window_s > 0.0).then(|| samples.len() as f64 / window_s);
    let work = threads.iter().map(|thread| thread_work(thread, &starts)).collect();
    round.compute = Some(Box::new(ComputeRound {
        implementation: implementation.to_string(),
        window_s,
        threads: work,
    }));
    let mut report =
        TaskReport { latencies: vec![(Statistic::JobTime, round)], ..Default::default() };
    report.settings.set(SettingKind::Implementation, SettingValue::text(implementation));
    for thread in threads {
        report.placements.push(thread.placement);
        report.doubts.extend(thread.doubts);
    }
    report
}

/// When each repeat began: the start of its first job.
fn common_starts(threads: &[ThreadJobs]) -> Vec<u64> {
    let repeats = threads.iter().map(|thread| thread.jobs.len()).max().unwrap_or(0);
    let start = |repeat: usize| {
        let jobs = threads.iter().filter_map(|thread| thread.jobs.get(repeat));
        jobs.map(|job| job.started_ns).min().unwrap_or(0)
    };
    (0..repeats).map(start).collect()
}

fn thread_work(thread: &ThreadJobs, starts: &[u64]) -> ThreadWork {
    let jobs = &thread.jobs;
    let real = |(job, start): (&Job, &u64)| job.ended_ns - start;
    ThreadWork {
        cpu: thread.cpu,
        jobs: u32::try_from(jobs.len()).unwrap_or(u32::MAX),
        user_ns: jobs.iter().map(|job| job.usage.user_ns).sum(),
        real_ns: jobs.iter().zip(starts).map(real).sum(),
        run_delay_ns: jobs.iter().map(|job| job.usage.run_delay_ns).sum(),
        steal_ms: thread.placement.steal_ms,
    }
}
