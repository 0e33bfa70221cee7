//! The pair matrix: which CPUs share a core, by what they take from each other.
//!
//! The arithmetic workload keeps the units of a core busy, so two of them on one core take longer
//! than each alone. In each round every CPU works alone once, then every pair together. The CPU
//! time of a thread says how fast it was while it ran, whatever else the machine did.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use nm_model::verdict::Interval;
use nm_stats::bootstrap;
use nm_stats::describe::median_of_sorted;
use nm_sys::counters::ThreadWatch;

use super::alu;
use super::gate::Gate;
use crate::error::ProbeError;

/// Most pairs of one matrix.
pub const PAIRS_MAX: usize = 500;

/// Ratio of CPU times, together to alone, above which two CPUs share a core. One core gave 1.44 in
/// the published study; different cores give about 1.
pub const SHARED_RATIO: f64 = 1.2;

/// Rounds without which nothing is claimed.
const ROUNDS_MIN: usize = 5;

/// Steps of one job: some milliseconds, so that other programs seldom interrupt it.
const STEPS: u64 = 300_000;

/// Attempts to run without a disturbance in each round.
const ATTEMPTS: u32 = 8;

/// Steps between two looks at whether the partner has ended.
const BUSY_STEPS: u64 = 20_000;

/// Share of its CPU time that a thread may wait for its CPU before the round does not count: its
/// partner was alone meanwhile.
const WAIT_SHARE_MAX: f64 = 0.25;

/// What the rounds say of two CPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finding {
    /// They share a core.
    Shared,
    /// They do not.
    Separate,
    /// The rounds do not decide it.
    Unclear,
}

/// Two CPUs.
#[derive(Debug, Clone, PartialEq)]
pub struct Pair {
    /// Both, the lower one first.
    pub cpus: (u32, u32),
    /// CPU time together divided by CPU time alone, of each undisturbed round.
    pub ratios: Vec<f64>,
    /// Median of the ratios.
    pub ratio: Option<f64>,
    /// 95 % interval of the median, over rounds.
    pub interval: Option<Interval>,
    /// What follows.
    pub finding: Finding,
    /// Whether the kernel says that they share a core.
    pub shown_as_siblings: bool,
}

impl Pair {
    fn new(cpus: (u32, u32), ratios: Vec<f64>, siblings: &[Vec<u32>]) -> Pair {
        let is_both = |group: &Vec<u32>| group.contains(&cpus.0) && group.contains(&cpus.1);
        let mut sorted = ratios.clone();
        sorted.sort_by(f64::total_cmp);
        let enough = sorted.len() >= ROUNDS_MIN;
        let interval = enough.then(|| bootstrap::interval(&ratios, 1, median_of_sorted)).flatten();
        let finding = match interval {
            Some(ends) if ends.low > SHARED_RATIO => Finding::Shared,
            Some(ends) if ends.high < SHARED_RATIO => Finding::Separate,
            _ => Finding::Unclear,
        };
        let shown_as_siblings = siblings.iter().any(is_both);
        Pair {
            cpus,
            ratio: median_of_sorted(&sorted),
            ratios,
            interval,
            finding,
            shown_as_siblings,
        }
    }

    /// Whether the kernel's topology agrees; absent if the rounds do not decide it.
    pub fn agrees(&self) -> Option<bool> {
        match self.finding {
            Finding::Shared => Some(self.shown_as_siblings),
            Finding::Separate => Some(!self.shown_as_siblings),
            Finding::Unclear => None,
        }
    }
}

/// Measures all pairs of `cpus` in `rounds` rounds. `siblings` are the groups that the kernel
/// shows. `show` is called after each round.
///
/// # Errors
/// If a thread cannot be started or pinned; [`ProbeError::Cancelled`].
pub fn measure(
    cpus: &[u32],
    siblings: &[Vec<u32>],
    rounds: u32,
    cancelled: &(dyn Fn() -> bool + Sync),
    show: &mut dyn FnMut(u32),
) -> Result<Vec<Pair>, ProbeError> {
    let mut all = pairs(cpus);
    let mut ratios: Vec<Vec<f64>> = vec![vec![]; all.len()];
    for round in 0..rounds {
        let mut alone = vec![];
        for &cpu in cpus {
            alone.push((cpu, run(&[cpu], cancelled)?[0]));
        }
        let of = |cpu: u32| alone.iter().find(|(one, _)| *one == cpu).and_then(|(_, ns)| *ns);
        let order: Vec<usize> = match round % 2 {
            0 => (0..all.len()).collect(),
            _ => (0..all.len()).rev().collect(),
        };
        for at in order {
            let (a, b) = all[at];
            let together = run(&[a, b], cancelled)?;
            if let (Some(a_ns), Some(b_ns), Some(a_alone), Some(b_alone)) =
                (together[0], together[1], of(a), of(b))
            {
                ratios[at].push((a_ns / a_alone + b_ns / b_alone) / 2.0);
            }
        }
        show(round);
    }
    let of = |(cpus, ratios)| Pair::new(cpus, ratios, siblings);
    Ok(all.drain(..).zip(ratios).map(of).collect())
}

/// All pairs of different CPUs, the lower one first.
pub fn pairs(cpus: &[u32]) -> Vec<(u32, u32)> {
    let mut sorted = cpus.to_vec();
    sorted.sort_unstable();
    sorted.dedup();
    let mut pairs = vec![];
    for (at, &a) in sorted.iter().enumerate() {
        pairs.extend(sorted[at + 1..].iter().map(|&b| (a, b)));
    }
    pairs
}

/// CPU time of one job on each of `cpus` at the same time, ns; absent where all attempts were
/// disturbed.
fn run(
    cpus: &[u32],
    cancelled: &(dyn Fn() -> bool + Sync),
) -> Result<Vec<Option<f64>>, ProbeError> {
    let mut times = attempt(cpus, cancelled)?;
    for _ in 1..ATTEMPTS {
        if times.iter().all(Option::is_some) {
            break;
        }
        times = attempt(cpus, cancelled)?;
    }
    Ok(times)
}

fn attempt(
    cpus: &[u32],
    cancelled: &(dyn Fn() -> bool + Sync),
) -> Result<Vec<Option<f64>>, ProbeError> {
    let (gate, ended) = (Gate::new(cpus.len()), AtomicUsize::new(0));
    let worker = |cpu: u32| {
        let pinned = nm_sys::cpu::pin_current_thread(cpu);
        if let Err(source) = pinned {
            gate.break_up();
            return Err(ProbeError::PinThread {
                side: nm_model::Side::Client,
                thread: "worker".to_string(),
                cpu,
                allowed: nm_sys::cpu::allowed(),
                source,
            });
        }
        if !gate.pass(&|| cancelled()) {
            return Err(ProbeError::Cancelled);
        }
        let watch = ThreadWatch::start(Some(cpu));
        let done = alu::work(STEPS, &|| cancelled());
        let usage = watch.finish();
        ended.fetch_add(1, Ordering::Relaxed);
        // The partner is never alone.
        while ended.load(Ordering::Relaxed) < cpus.len() && done.is_some() && !cancelled() {
            alu::work(BUSY_STEPS, &|| false);
        }
        done.ok_or(ProbeError::Cancelled)?;
        let cpu_ns = (usage.user_ns + usage.system_ns) as f64;
        let waited_ns = usage.run_delay_ns.unwrap_or(0) as f64;
        Ok((cpu_ns > 0.0 && waited_ns <= WAIT_SHARE_MAX * cpu_ns).then_some(cpu_ns))
    };
    thread::scope(|scope| {
        let worker = &worker;
        let handles: Vec<_> = cpus.iter().map(|&cpu| scope.spawn(move || worker(cpu))).collect();
        let panicked = || Err(ProbeError::Panicked("worker".to_string()));
        let mut results: Vec<Result<Option<f64>, ProbeError>> =
            handles.into_iter().map(|one| one.join().unwrap_or_else(|_| panicked())).collect();
        // A thread that only ended because the other one failed does not count.
        let failed = |one: &Result<_, _>| matches!(one, Err(e) if !is_cancelled(e));
        match results.iter().position(failed) {
            Some(at) => results.swap_remove(at).map(|_| vec![]),
            None => results.into_iter().collect(),
        }
    })
}

fn is_cancelled(error: &ProbeError) -> bool {
    matches!(error, ProbeError::Cancelled)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_all_and_each_once() {
        assert_eq!(pairs(&[2, 0, 2, 1]), [(0, 1), (0, 2), (1, 2)]);
        assert_eq!((pairs(&[3]), pairs(&[])), (vec![], vec![]));
    }

    #[test]
    fn only_an_interval_on_one_side_decides() {
        let siblings = [vec![0, 1]];
        let pair = |cpus, ratios: &[f64]| Pair::new(cpus, ratios.to_vec(), &siblings);
        let shared = pair((0, 1), &[1.42, 1.44, 1.45, 1.43, 1.5]);
        assert_eq!((shared.finding, shared.agrees()), (Finding::Shared, Some(true)));
        let hidden = pair((2, 3), &[1.42, 1.44, 1.45, 1.43, 1.5]);
        assert_eq!((hidden.finding, hidden.agrees()), (Finding::Shared, Some(false)));
        let separate = pair((0, 2), &[1.0, 1.01, 0.99, 1.0, 1.02]);
        assert_eq!((separate.finding, separate.agrees()), (Finding::Separate, Some(true)));
        let wrong = pair((0, 1), &[1.0, 1.01, 0.99, 1.0, 1.02]);
        assert_eq!(wrong.agrees(), Some(false));
        let unclear = pair((0, 1), &[1.0, 1.0, 1.1, 1.4, 1.5, 1.5]);
        assert_eq!((unclear.finding, unclear.agrees()), (Finding::Unclear, None));
        let few = pair((0, 1), &[1.5, 1.5, 1.5, 1.5]);
        assert_eq!((few.finding, few.ratio), (Finding::Unclear, Some(1.5)));
    }

    #[test]
    fn pairs_of_this_machine_are_measured_and_a_cancel_ends_it() {
        let cpus = nm_sys::cpu::allowed();
        let cpus = &cpus[..cpus.len().min(2)];
        let mut shown = vec![];
        let found = measure(cpus, &[], 1, &|| false, &mut |round| shown.push(round)).unwrap();
        assert_eq!((found.len(), shown), (pairs(cpus).len(), vec![0]));
        let ratios = found.iter().flat_map(|pair| &pair.ratios);
        assert!(ratios.into_iter().all(|ratio| ratio.is_finite() && *ratio > 0.0));
        let error = measure(cpus, &[], 1, &|| true, &mut |_| {}).unwrap_err();
        assert!(matches!(error, ProbeError::Cancelled), "{error:?}");
        let error = measure(&[4_000], &[], 1, &|| false, &mut |_| {}).unwrap_err();
        assert!(matches!(error, ProbeError::PinThread { .. }), "{error:?}");
    }
}
