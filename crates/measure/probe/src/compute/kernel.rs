//! The work of one job, whichever the workload, and the check of its result.

use nm_model::compute::Workload;
use nm_sys::counters::{ThreadUsage, ThreadWatch};
use nm_sys::hostfiles::HostFiles;

use super::bc::{self, Bc};
use super::error::ComputeError;
use super::memory::{self, Cycle};
use super::{alu, machine, pi};

/// A workload that is ready to be done by several threads.
#[derive(Debug)]
pub enum Kernel {
    /// Digits of π by this program.
    Pi,
    /// Digits of π by the installed `bc`.
    Bc {
        /// The program.
        bc: Bc,
        /// What it has to print.
        expected: String,
    },
    /// A walk through memory.
    Memory {
        /// The lines, shared by all threads.
        cycle: Cycle,
        /// Steps of a job.
        steps: u64,
    },
    /// Arithmetic in registers.
    Alu {
        /// Steps of a job.
        steps: u64,
    },
}

/// CPU time and delays of one job.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct JobUsage {
    /// CPU time in user mode, ns.
    pub user_ns: u64,
    /// CPU time in the kernel, ns.
    pub system_ns: u64,
    /// Time that it was ready but did not run, ns.
    pub run_delay_ns: Option<u64>,
    /// Context switches because the kernel ran another thread.
    pub involuntary_switches: u64,
}

impl JobUsage {
    fn of_thread(usage: &ThreadUsage) -> JobUsage {
        JobUsage {
            user_ns: usage.user_ns,
            system_ns: usage.system_ns,
            run_delay_ns: usage.run_delay_ns,
            involuntary_switches: usage.involuntary_switches,
        }
    }
}

impl Kernel {
    /// Makes a workload ready. `seed` chooses the order of the memory walk.
    ///
    /// # Errors
    /// If this machine cannot do it.
    pub fn prepare(workload: Workload, seed: u64) -> Result<Kernel, ComputeError> {
        Ok(match workload {
            Workload::Pi => Kernel::Pi,
            Workload::Bc => Kernel::Bc { bc: Bc::find()?, expected: bc::expected() },
            Workload::Alu => Kernel::Alu { steps: alu::STEPS },
            Workload::Memory => {
                let files = HostFiles::default();
                let cache_bytes = machine::cache_bytes(&files);
                let bytes = memory::cycle_bytes(cache_bytes, machine::available_bytes(&files))?;
                Kernel::Memory { cycle: Cycle::new(bytes, seed), steps: memory::STEPS }
            }
        })
    }

    /// What does the work and how much of it: figures of different ones are not like for like.
    pub fn implementation(&self) -> String {
        match self {
            Kernel::Pi => format!("built-in pi, {} digits", pi::DIGITS),
            Kernel::Bc { bc, .. } => format!("{}, scale=2000; 4*a(1)", bc.implementation()),
            Kernel::Memory { cycle, steps } => {
                format!("built-in memory walk, {steps} steps in {} MiB", cycle.bytes() >> 20)
            }
            Kernel::Alu { steps } => format!("built-in alu, {steps} steps"),
        }
    }

    /// Does one job on the current thread, number `index` of `threads`, which runs on `cpu`. None
    /// if it was cancelled.
    ///
    /// # Errors
    /// If it cannot be done, or its result is wrong.
    pub fn job(
        &self,
        (index, threads): (usize, usize),
        cpu: u32,
        cancelled: &dyn Fn() -> bool,
    ) -> Result<Option<JobUsage>, ComputeError> {
        let watch = ThreadWatch::start(Some(cpu));
        // The check comes after the watch has ended, as it is not part of the work.
        let (workload, usage, is_correct) = match self {
            Kernel::Pi => {
                let Some(text) = pi::digits(pi::DIGITS, cancelled) else { return Ok(None) };
                (Workload::Pi, watch.finish(), pi::is_correct(&text))
            }
            Kernel::Alu { steps } => {
                let Some(chains) = alu::work(*steps, cancelled) else { return Ok(None) };
                (Workload::Alu, watch.finish(), alu::is_correct(&chains, *steps))
            }
            Kernel::Memory { cycle, steps } => {
                let place = cycle.place(index, threads);
                let Some(line) = cycle.walk(place, *steps, cancelled) else { return Ok(None) };
                (Workload::Memory, watch.finish(), cycle.is_correct(place, *steps, line))
            }
            Kernel::Bc { bc, expected } => return bc_job(bc, expected, cpu, cancelled),
        };
        match is_correct {
            true => Ok(Some(JobUsage::of_thread(&usage))),
            false => Err(ComputeError::WrongResult { workload, cpu }),
        }
    }
}

fn bc_job(
    bc: &Bc,
    expected: &str,
    cpu: u32,
    cancelled: &dyn Fn() -> bool,
) -> Result<Option<JobUsage>, ComputeError> {
    let Some(job) = bc.job(cancelled)? else { return Ok(None) };
    if !bc::is_correct(&job.output, expected) {
        return Err(ComputeError::WrongResult { workload: Workload::Bc, cpu });
    }
    Ok(Some(JobUsage {
        user_ns: job.ended.user_ns,
        system_ns: job.ended.system_ns,
        run_delay_ns: job.ended.run_delay_ns,
        involuntary_switches: job.ended.involuntary_switches,
    }))
}
