//! What is measured for `audit --active`: the cost of an exit to the hypervisor, the cost of
//! reading clocks, and which CPUs slow each other down.

use std::sync::Barrier;

use nm_model::snapshot::{Active, CpuPair};
use nm_sys::clock::{Clock, Moment, monotonic_ns};
use nm_sys::counters::thread_cpu_ns;
use nm_sys::cpu;

/// Most CPUs of which every pair is measured: 28 pairs.
const CPUS_MAX: usize = 8;

/// Work of one measurement of a pair, steps; about 10 ms.
const WORK_STEPS: u64 = 8_000_000;

/// Repetitions of each pair; the lowest counts, because what else runs only adds.
const REPEATS: usize = 3;

/// The CPUs whose pairs are measured: those of the workload, or those that may be used.
pub fn pair_cpus(hot: &[u32]) -> Vec<u32> {
    let allowed = cpu::allowed();
    let of_workload: Vec<u32> = hot.iter().filter(|cpu| allowed.contains(cpu)).copied().collect();
    let mut cpus = if of_workload.len() < 2 { allowed } else { of_workload };
    cpus.truncate(CPUS_MAX);
    cpus
}

/// What will be measured, for people.
pub fn announcement(cpus: &[u32]) -> String {
    let n_pairs = cpus.len() * cpus.len().saturating_sub(1) / 2;
    format!(
        "active: 20000 exits by CPUID, 200000 readings of clocks, and the same work on {n_pairs} \
         pairs of CPUs, {REPEATS} times each, about {:.1} s",
        0.5 + n_pairs as f64 * REPEATS as f64 * 0.04
    )
}

/// Measures; `cpus` are those whose pairs are compared.
pub fn measure(cpus: &[u32]) -> Active {
    let info = Clock::info();
    Active {
        exit_cost_ns: exit_cost_ns(),
        kernel_clock_ns: cost_ns(monotonic_ns),
        clock_ns: cost_ns(|| Clock::system().now()),
        clock_hz: info.counter_hz,
        pairs: pairs(cpus),
    }
}

/// The mean cost of a call, the lowest of several runs.
fn cost_ns(call: impl Fn() -> u64) -> f64 {
    const CALLS: u32 = 10_000;
    let run = || {
        let started = Moment::now();
        let mut sum = 0u64;
        for _ in 0..CALLS {
            sum = sum.wrapping_add(call());
        }
        std::hint::black_box(sum);
        started.elapsed().as_nanos() as f64 / f64::from(CALLS)
    };
    (0..10).map(|_| run()).fold(f64::INFINITY, f64::min)
}

/// The median cost of `CPUID`, ns.
#[cfg(target_arch = "x86_64")]
fn exit_cost_ns() -> Option<f64> {
    const CALLS: usize = 20_000;
    let clock = Clock::system();
    let mut costs: Vec<u64> = (0..CALLS)
        .map(|_| {
            let before = clock.now();
            std::hint::black_box(std::arch::x86_64::__cpuid(0));
            clock.ns(clock.now().saturating_sub(before))
        })
        .collect();
    costs.sort_unstable();
    Some(costs[CALLS / 2] as f64)
}

/// Other processors have no instruction of that kind.
#[cfg(not(target_arch = "x86_64"))]
fn exit_cost_ns() -> Option<f64> {
    None
}

/// CPU time of the work on `cpu`; beside the same work on `other`, if given. Absent if the CPU
/// cannot be used.
fn work_ns(cpu: u32, other: Option<u32>) -> Option<u64> {
    let barrier = Barrier::new(1 + usize::from(other.is_some()));
    let run = |cpu: u32, steps: u64| {
        let is_pinned = cpu::pin_current_thread(cpu).is_ok();
        barrier.wait();
        let before = thread_cpu_ns();
        let mut value = 1u64;
        for step in 0..steps {
            value = std::hint::black_box(value.wrapping_mul(6_364_136_223_846_793_005) ^ step);
        }
        std::hint::black_box(value);
        is_pinned.then(|| thread_cpu_ns().saturating_sub(before))
    };
    std::thread::scope(|scope| {
        let run = &run;
        // Half more, so that it is there until the first one has ended.
        let neighbour = other.map(|cpu| scope.spawn(move || run(cpu, WORK_STEPS + WORK_STEPS / 2)));
        let own = scope.spawn(move || run(cpu, WORK_STEPS)).join().ok()?;
        let is_beside = neighbour.is_none_or(|thread| matches!(thread.join(), Ok(Some(_))));
        own.filter(|_| is_beside)
    })
}

fn pairs(cpus: &[u32]) -> Vec<CpuPair> {
    let lowest = |a: u32, b: Option<u32>| (0..REPEATS).filter_map(|_| work_ns(a, b)).min();
    let mut found = vec![];
    for (at, &a) in cpus.iter().enumerate() {
        let Some(alone) = lowest(a, None).filter(|ns| *ns > 0) else { continue };
        for &b in &cpus[at + 1..] {
            if let Some(beside) = lowest(a, Some(b)) {
                let ratio = (beside as f64 / alone as f64 * 1e3).round() / 1e3;
                found.push(CpuPair { a, b, ratio });
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_pair_of_allowed_cpus_is_measured_once() {
        let cpus = pair_cpus(&[]);
        let active = measure(&cpus);
        assert_eq!(active.pairs.len(), cpus.len() * (cpus.len() - 1) / 2);
        assert!(active.pairs.iter().all(|pair| pair.ratio > 0.0 && pair.a != pair.b));
        assert!(active.clock_ns > 0.0 && active.kernel_clock_ns > 0.0);
        assert_eq!(pair_cpus(&[9_999]), cpus, "CPUs that may not be used are not");
        assert!(announcement(&[0, 1, 2]).contains("3 pairs"));
    }
}
