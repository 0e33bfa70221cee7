//! The threads of one layout: each pinned to its CPU, all starting each job together.

use std::sync::{Mutex, PoisonError};
use std::thread;

use nm_model::Doubt;
use nm_model::doubt::DoubtKind;
use nm_model::probe::Side;
use nm_model::result::{Placement, Statistic};
use nm_sys::clock::monotonic_ns;

use super::gate::Gate;
use super::kernel::{JobUsage, Kernel};
use crate::control::Control;
use crate::error::ProbeError;
use crate::pinned_thread::PinnedThread;

/// One job: when it began and ended, ns on the kernel's clock, and what it used.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Job {
    /// Begin.
    pub started_ns: u64,
    /// End.
    pub ended_ns: u64,
    /// CPU time and delays.
    pub usage: JobUsage,
}

/// The jobs of one thread.
#[derive(Debug)]
pub struct ThreadJobs {
    /// CPU of the thread.
    pub cpu: u32,
    /// One job for each repeat.
    pub jobs: Vec<Job>,
    /// Where the thread ran, and its interruptions.
    pub placement: Placement,
    /// Doubts that follow.
    pub doubts: Vec<Doubt>,
}

/// Does `repeats` jobs on each of `cpus`, a thread for each entry. The threads wait for each other
/// before each job.
///
/// # Errors
/// The first failure of a thread; [`ProbeError::Cancelled`].
pub fn run(
    kernel: &Kernel,
    cpus: &[u32],
    repeats: u32,
    control: &Control,
) -> Result<Vec<ThreadJobs>, ProbeError> {
    let gate = Gate::new(cpus.len());
    let error: Mutex<Option<ProbeError>> = Mutex::new(None);
    let fail = |failure: ProbeError| {
        let mut first = error.lock().unwrap_or_else(PoisonError::into_inner);
        first.get_or_insert(failure);
        gate.break_up();
    };
    let threads = thread::scope(|scope| {
        let mut handles = vec![];
        for (index, &cpu) in cpus.iter().enumerate() {
            let worker = Worker { kernel, gate: &gate, control, index, cpus, repeats };
            let fail = &fail;
            let builder = thread::Builder::new().name(format!("worker {index}"));
            let spawned = builder.spawn_scoped(scope, move || match worker.run(cpu) {
                Ok(jobs) => jobs,
                Err(failure) => {
                    fail(failure);
                    None
                }
            });
            match spawned {
                Ok(handle) => handles.push(handle),
                Err(source) => {
                    fail(ProbeError::SpawnThread(source));
                    break;
                }
            }
        }
        let mut threads = vec![];
        for (index, handle) in handles.into_iter().enumerate() {
            match handle.join() {
                Ok(jobs) => threads.extend(jobs),
                Err(_) => fail(ProbeError::Panicked(format!("worker {index}"))),
            }
        }
        threads
    });
    match error.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some(error) => Err(error),
        None if threads.len() < cpus.len() => Err(ProbeError::Cancelled),
        None => Ok(threads),
    }
}

/// One thread.
struct Worker<'a> {
    kernel: &'a Kernel,
    gate: &'a Gate,
    control: &'a Control,
    index: usize,
    cpus: &'a [u32],
    repeats: u32,
}

impl Worker<'_> {
    /// The jobs of this thread; none if they were cancelled or another thread failed.
    fn run(&self, cpu: u32) -> Result<Option<ThreadJobs>, ProbeError> {
        let name = format!("worker {}", self.index);
        let thread = PinnedThread { side: Side::Client, name, cpu: Some(cpu) };
        thread.pin_current()?;
        let cancelled = || self.control.cancelled();
        let stopped = || self.control.cancelled() || self.gate.is_broken();
        let watch = thread.watch();
        let mut jobs = vec![];
        for _ in 0..self.repeats {
            if !self.gate.pass(&cancelled) {
                return Ok(None);
            }
            let started_ns = monotonic_ns();
            let job = self.kernel.job((self.index, self.cpus.len()), cpu, &stopped)?;
            let Some(usage) = job else { return Ok(None) };
            jobs.push(Job { started_ns, ended_ns: monotonic_ns(), usage });
            self.control.set_progress(Statistic::JobTime, usage.user_ns as f64);
        }
        let (mut placement, mut doubts) = watch.finish();
        if let Kernel::Bc { .. } = self.kernel {
            count_children(&mut placement, &mut doubts, &jobs);
        }
        if self.cpus.iter().filter(|one| **one == cpu).count() > 1 {
            // The layout itself makes the threads of one CPU take turns.
            doubts.retain(|one| !matches!(one.kind, DoubtKind::Preempted | DoubtKind::BusyHost));
        }
        Ok(Some(ThreadJobs { cpu, jobs, placement, doubts }))
    }
}

/// The work was done by child processes, so what the kernel counted of the thread is replaced by
/// what it counted of them.
fn count_children(placement: &mut Placement, doubts: &mut Vec<Doubt>, jobs: &[Job]) {
    let sum = |of: fn(&JobUsage) -> u64| jobs.iter().map(|job| of(&job.usage)).sum::<u64>();
    placement.user_ns = sum(|usage| usage.user_ns);
    placement.system_ns = sum(|usage| usage.system_ns);
    placement.involuntary_switches = sum(|usage| usage.involuntary_switches);
    placement.run_delay_ns = jobs.iter().map(|job| job.usage.run_delay_ns).sum();
    placement.foreign_busy = None;
    doubts.retain(|doubt| doubt.kind != DoubtKind::BusyHost);
}

#[cfg(test)]
mod tests {
    use super::*;
    use nm_sys::cpu;

    const SMALL: Kernel = Kernel::Alu { steps: 20_000 };

    #[test]
    fn every_thread_does_its_jobs_on_its_cpu() {
        let cpu = *cpu::allowed().last().unwrap();
        let threads = run(&SMALL, &[cpu, cpu, cpu], 4, &Control::new()).unwrap();
        assert_eq!(threads.len(), 3);
        for thread in &threads {
            assert_eq!((thread.cpu, thread.jobs.len()), (cpu, 4));
            assert_eq!(thread.placement.first_cpu, Some(cpu));
            assert!(thread.jobs.iter().all(|job| job.ended_ns > job.started_ns));
            let kinds: Vec<DoubtKind> = thread.doubts.iter().map(|doubt| doubt.kind).collect();
            assert!(!kinds.contains(&DoubtKind::Preempted), "{kinds:?}");
        }
        // Nobody begins a job before all have ended the one before.
        for repeat in 1..4 {
            let ended = threads.iter().map(|thread| thread.jobs[repeat - 1].ended_ns).max();
            let started = threads.iter().map(|thread| thread.jobs[repeat].started_ns).min();
            assert!(started >= ended, "{threads:?}");
        }
    }

    #[test]
    fn a_failure_of_one_thread_ends_all_and_so_does_a_cancel() {
        let cpu = cpu::allowed()[0];
        let error = run(&SMALL, &[cpu, 4_000], 1_000_000, &Control::new()).unwrap_err();
        assert!(matches!(error, ProbeError::PinThread { cpu: 4_000, .. }), "{error:?}");
        let control = Control::new();
        control.cancel();
        let error = run(&SMALL, &[cpu, cpu], 1_000_000, &control).unwrap_err();
        assert!(matches!(error, ProbeError::Cancelled), "{error:?}");
    }
}
