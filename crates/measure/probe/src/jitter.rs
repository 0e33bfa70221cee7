//! The jitter probe: what its threads saw (`jitter_threads`) becomes the report of its end. For
//! each CPU it has the balance of lost time, and doubts where evidence is missing or contradicts
//! itself.

use nm_model::agent::TaskReport;
use nm_model::doubt::{Doubt, DoubtKind};
use nm_model::jitter::{Balance, Counted, CpuJitter, JitterRound, JitterSlice, JitterSpec};
use nm_model::result::{LatencyRound, PercentileValue, Statistic};
use nm_stats::{Sample, summarise};
use nm_sys::clock::Clock;
use nm_sys::cpu_counters::{CpuCounters, Rows};

use crate::control::Control;
use crate::culprit::contexts::Contexts;
use crate::culprit::found;
use crate::culprit::trace::Untraced;
use crate::error::ProbeError;
use crate::gap_lengths::GapLengths;
use crate::gap_loop::{Gap, LostSlice};
use crate::jitter_threads::{self, AllWatched, Watched};
use crate::latency::{clock_doubts, memory_doubt, store_samples};

/// CPUs up to which each has a histogram of its own; a report has a limit.
const HISTOGRAMS_MAX: usize = 16;

/// Rows of interrupts that are listed for a CPU, and for one of many; the rest is one more row.
const ROWS_MAX: usize = 40;
const ROWS_MAX_OF_MANY: usize = 10;

/// CPUs from which on they are many.
const MANY_CPUS: usize = 64;

/// What an interrupt takes at least. A kernel that seems to have spent less does not account for
/// interrupts, whatever its configuration says.
const INTERRUPT_MIN_NS: u64 = 100;

/// Share of its time that a CPU may lose below the system before it is doubted.
const BELOW_SYSTEM_MAX: f64 = 0.01;

/// What is known about the machine.
#[derive(Debug, Clone, Copy)]
struct Machine {
    accounts_interrupts: Option<bool>,
    is_guest: Option<bool>,
}

/// Measures.
///
/// # Errors
/// If a thread cannot be started or pinned, and [`ProbeError::Cancelled`].
pub fn run(
    spec: &JitterSpec,
    raw_samples: bool,
    control: &Control,
) -> Result<TaskReport, ProbeError> {
    let watched = jitter_threads::watch(spec, Clock::system(), control)?;
    Ok(report(watched, spec, raw_samples, control))
}

/// The report of all threads.
fn report(all: AllWatched, spec: &JitterSpec, raw_samples: bool, control: &Control) -> TaskReport {
    let clock = Clock::system();
    let machine = Machine {
        accounts_interrupts: nm_host::accounts_interrupt_time(),
        is_guest: nm_host::is_guest(),
    };
    let jitter = jitter_round(&all, spec, clock, machine);
    let mut doubts = doubts(&all, &jitter);
    doubts.extend(clock_doubts(Clock::info(), None));
    doubts.extend(memory_doubt(all.threads.iter().all(|one| one.record.is_locked())));
    let mut round = latencies(&all, clock, raw_samples, control);
    round.jitter = Some(Box::new(jitter));
    let placements = all.threads.into_iter().map(|one| one.placement).collect();
    let latencies = vec![(Statistic::Interruption, round)];
    TaskReport { latencies, placements, doubts, ..TaskReport::default() }
}

/// The gaps of all CPUs together.
fn latencies(all: &AllWatched, clock: Clock, raw_samples: bool, control: &Control) -> LatencyRound {
    let mut gaps: Vec<Gap> =
        all.threads.iter().flat_map(|one| one.record.gaps()).copied().collect();
    gaps.sort_unstable_by_key(|gap| gap.start);
    let first = gaps.first().map_or(0, |gap| gap.start);
    let samples: Vec<Sample> = gaps
        .iter()
        .map(|gap| Sample {
            start_ns: clock.ns(gap.start - first),
            latency_ns: clock.ns(gap.length),
        })
        .collect();
    let lengths_ns = samples.iter().map(|sample| sample.latency_ns);
    store_samples(control, raw_samples, Statistic::Interruption, lengths_ns.clone().collect());
    let mut round = summarise(&samples, 0, &[]);
    if all.threads.iter().any(|one| !one.record.overflow().is_empty()) {
        let more: Vec<_> = all.threads.iter().map(|one| one.record.overflow()).collect();
        let slices = std::mem::take(&mut round.slices);
        round = LatencyRound { slices, ..GapLengths::new(lengths_ns, &more).round() };
    }
    round
}

fn jitter_round(
    all: &AllWatched,
    spec: &JitterSpec,
    clock: Clock,
    machine: Machine,
) -> JitterRound {
    let n_cpus = all.threads.len();
    let mut cpus: Vec<CpuJitter> = all
        .threads
        .iter()
        .zip(&all.counters)
        .map(|(one, counters)| cpu_jitter(one, counters, clock, machine, n_cpus))
        .collect();
    let culprits = found::culprits(all, clock, |one, counters| {
        let others_ns = clock.ns(one.record.lost() - one.record.preempted());
        others_ns.saturating_sub(below_system_min_ns(one, counters, clock))
    });
    for (cpu, culprits) in cpus.iter_mut().zip(culprits) {
        cpu.culprits = culprits;
    }
    let lengths_ns = all.threads.iter().flat_map(|one| one.record.gaps());
    let more: Vec<_> = all.threads.iter().map(|one| one.record.overflow()).collect();
    let lengths = GapLengths::new(lengths_ns.map(|gap| clock.ns(gap.length)), &more);
    let [_, lost_histogram] = lengths.histograms();
    JitterRound {
        threshold_ns: spec.threshold_ns.unwrap_or_else(|| clock.ns(all.window.threshold)),
        window_s: spec.seconds,
        slice_ms: all.slice_ns as f64 / 1e6,
        is_guest: machine.is_guest,
        naming: Some(found::naming(all)),
        lost_histogram,
        cpus,
    }
}

fn cpu_jitter(
    one: &Watched,
    counters: &CpuCounters,
    clock: Clock,
    machine: Machine,
    n_cpus: usize,
) -> CpuJitter {
    let record = &one.record;
    let elapsed_ns = clock.ns(one.elapsed);
    let all_ns = record.gaps().iter().map(|gap| clock.ns(gap.length));
    let lengths = GapLengths::new(all_ns, &[record.overflow()]);
    let of_slices = |of: fn(&LostSlice) -> u64| record.slices().iter().map(of);
    let sees = one.blind.is_none();
    let rows_max = if n_cpus < MANY_CPUS { ROWS_MAX } else { ROWS_MAX_OF_MANY };
    CpuJitter {
        cpu: one.cpu,
        elapsed_ns,
        gaps: lengths.count(),
        lost_ns: clock.ns(record.lost()),
        longest_ns: clock.ns(of_slices(|slice| slice.longest).max().unwrap_or(0)),
        preempted_gaps: sees.then(|| of_slices(|slice| slice.preempted_gaps).sum()),
        preempted_ns: sees.then(|| clock.ns(record.preempted())),
        balance: balance(one, counters, clock, machine),
        counted: Counted {
            run_delay_ns: one.scheduled.run_delay_ns,
            steal_ns: steal_ns(counters),
            involuntary_switches: one.involuntary_switches,
            minor_faults: one.minor_faults,
            interrupts: counters.interrupts.clone().map(|rows| largest(rows, rows_max)),
            softirqs: counters.softirqs.clone().map(|rows| largest(rows, rows_max)),
            firmware_interrupts: counters.firmware_interrupts,
        },
        culprits: vec![],
        percentiles: known(lengths.percentiles()),
        delays: known(lengths.delays(elapsed_ns)),
        histogram: (n_cpus <= HISTOGRAMS_MAX).then(|| lengths.histograms()[0].clone()).flatten(),
        gaps_not_kept: record.overflow().len(),
        recording_ns: clock.ns(record.recording()),
        slices: record.slices().iter().map(|slice| slice_ns(slice, clock)).collect(),
    }
}

fn known(mut values: Vec<PercentileValue>) -> Vec<PercentileValue> {
    values.retain(|value| value.value_ns.is_some());
    values
}

fn slice_ns(slice: &LostSlice, clock: Clock) -> JitterSlice {
    JitterSlice {
        gaps: slice.gaps,
        lost_ns: clock.ns(slice.lost),
        longest_ns: clock.ns(slice.longest),
        preempted_gaps: slice.preempted_gaps,
        preempted_ns: clock.ns(slice.preempted),
    }
}

/// The rows with the largest counts; the others are one row.
fn largest(rows: Rows, rows_max: usize) -> Rows {
    if rows.len() <= rows_max {
        return rows;
    }
    let mut sorted: Vec<(String, u64)> = rows.into_iter().collect();
    sorted.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let others = sorted.split_off(rows_max);
    let sum = others.iter().fold(0u64, |sum, (_, count)| sum.saturating_add(*count));
    sorted.push((format!("{} other rows", others.len()), sum));
    sorted.into_iter().collect()
}

/// What explains the lost time of one CPU.
fn balance(one: &Watched, counters: &CpuCounters, clock: Clock, machine: Machine) -> Balance {
    Balance {
        run_delay_ns: one.scheduled.run_delay_ns,
        interrupts_ns: interrupts_ns(one, counters, clock, machine),
        steal_ns: steal_ns(counters),
        steal_step_ns: CpuCounters::tick_ns(),
        unexplained_ns: 0,
        below_system_min_ns: below_system_min_ns(one, counters, clock),
    }
    .of(clock.ns(one.record.lost()))
}

fn steal_ns(counters: &CpuCounters) -> Option<u64> {
    counters.steal_ticks.map(|ticks| ticks.saturating_mul(CpuCounters::tick_ns()))
}

/// Time in interrupts: what is left of the time if neither this thread ran nor it waited, less
/// stolen time. Absent unless the kernel accounts for interrupts.
fn interrupts_ns(
    one: &Watched,
    counters: &CpuCounters,
    clock: Clock,
    machine: Machine,
) -> Option<u64> {
    let number = counters.interrupt_count()?;
    let over_ns = clock.ns(one.scheduled_over);
    let scheduled_ns = one.scheduled.ran_ns.saturating_add(one.scheduled.run_delay_ns?);
    let steal_ns = steal_ns(counters).unwrap_or(0);
    let rest_ns = over_ns.saturating_sub(scheduled_ns).saturating_sub(steal_ns);
    let is_plausible = rest_ns >= number.saturating_mul(INTERRUPT_MIN_NS);
    (machine.accounts_interrupts == Some(true) && is_plausible).then_some(rest_ns)
}

/// The gaps without preemption that were more than interrupts and page faults: each of those makes
/// one gap at most. The shortest are taken, so the sum is a lower limit.
fn below_system_min_ns(one: &Watched, counters: &CpuCounters, clock: Clock) -> u64 {
    let Some(interrupts) = counters.interrupt_count() else { return 0 };
    let switches = if one.blind.is_some() { one.involuntary_switches } else { 0 };
    let explained = interrupts + one.minor_faults + switches;
    let others = one.record.gaps().iter().filter(|gap| !gap.preempted);
    let lengths = GapLengths::new(others.map(|gap| clock.ns(gap.length)), &[]);
    lengths.sum_of_shortest(lengths.count().saturating_sub(explained))
}

/// Doubts of all CPUs.
fn doubts(all: &AllWatched, jitter: &JitterRound) -> Vec<Doubt> {
    let mut doubts: Vec<Doubt> = missing(all, jitter)
        .into_iter()
        .map(|what| Doubt::new(DoubtKind::UnknownCause, what))
        .collect();
    for (one, cpu) in all.threads.iter().zip(&jitter.cpus) {
        // Preemption is what is measured here, and has its column.
        let of_thread = one.doubts.iter().filter(|doubt| doubt.kind != DoubtKind::Preempted);
        doubts.extend(of_thread.cloned());
        doubts.extend(below_system(cpu, jitter));
        if cpu.gaps_not_kept > 0 {
            let detail = format!(
                "{} of {} gaps of CPU {} were counted only",
                cpu.gaps_not_kept, cpu.gaps, cpu.cpu
            );
            doubts.push(Doubt::new(DoubtKind::NotAllKept, detail));
        }
    }
    doubts
}

/// The evidence that this machine does not give, each kind once.
fn missing(all: &AllWatched, jitter: &JitterRound) -> Vec<String> {
    let mut missing = vec![];
    if let Some(blind) = all.threads.iter().find_map(|one| one.blind.as_ref()) {
        missing.push(format!("which gaps are preemption: {blind}"));
    }
    let lacks =
        |of: fn(&Balance) -> Option<u64>| jitter.cpus.iter().any(|cpu| of(&cpu.balance).is_none());
    if lacks(|balance| balance.run_delay_ns) {
        missing.push("run delay: the kernel has no schedstat".to_string());
    }
    if lacks(|balance| balance.interrupts_ns) {
        let what = "time in interrupts: the kernel does not account for it \
                    (CONFIG_IRQ_TIME_ACCOUNTING), so only their number is known";
        missing.push(what.to_string());
    }
    if lacks(|balance| balance.steal_ns) {
        missing.push("stolen time: /proc/stat does not have it".to_string());
    }
    missing.extend(unnamed(all));
    missing
}

/// What names of culprits lack.
fn unnamed(all: &AllWatched) -> Vec<String> {
    let mut missing = vec![];
    match &all.traced {
        Ok(traced) if traced.contexts.iter().any(Contexts::is_incomplete) => missing.push(
            "what took the time: some events of the trace were lost, so parts have no name".into(),
        ),
        Ok(_) => {}
        // The captions say that names are estimates: whoever did not ask for more lacks nothing.
        Err(Untraced::NotAsked) => return missing,
        Err(Untraced::Because(why)) => missing.push(format!(
            "what ran in each gap: the kernel is not traced ({why}), so names and shares are \
             estimated from counters"
        )),
    }
    if all.table.is_none() {
        missing.push("which threads ran and their page faults: /proc does not show all".into());
    }
    if all.counters.iter().any(|counters| counters.firmware_interrupts.is_none()) {
        missing.push("interrupts by the firmware (SMI): /dev/cpu/N/msr cannot be read".into());
    }
    missing
}

/// Time lost below the system that is more than noise, or that the hypervisor should have reported.
fn below_system(cpu: &CpuJitter, jitter: &JitterRound) -> Option<Doubt> {
    let (below_ns, balance) = (cpu.balance.below_system_ns(), &cpu.balance);
    let lost = format!("at least {:.1} ms of CPU {}", below_ns as f64 / 1e6, cpu.cpu);
    let is_silent = cpu.counted.steal_ns == Some(0) && below_ns > balance.steal_step_ns;
    if jitter.is_guest == Some(true) && is_silent {
        let detail = format!("{lost} were lost below the OS, but the hypervisor reported no steal");
        return Some(Doubt::new(DoubtKind::StealNotAccounted, detail));
    }
    let is_large = cpu.share(below_ns) > BELOW_SYSTEM_MAX;
    is_large.then(|| {
        let detail = format!("{lost} were lost {}", jitter.below_system_name(cpu));
        Doubt::new(DoubtKind::BelowSystem, detail)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use nm_model::agent::{Answer, LINE_BYTES_MAX};
    use nm_model::jitter::{Culprit, CulpritKind};
    use nm_model::limits;
    use nm_model::probe::Side;
    use nm_sys::counters::ScheduledTime;

    use crate::gap_loop::{GapRecord, Window, watch};
    use crate::placement::PlacementWatch;

    const MS: u64 = 1_000_000;

    /// A thread that saw gaps of these lengths, 10 ms between two of them, and was never preempted.
    fn watched(lengths_ns: &[u64], cpu: u32, slices: usize) -> (Watched, Window) {
        let clock = Clock::system();
        let mut record = GapRecord::new(clock, slices, 10_000);
        let mut stamps = vec![0];
        for length_ns in lengths_ns {
            let at = stamps[stamps.len() - 1] + clock.ticks(10 * MS);
            let end = at + clock.ticks(*length_ns);
            stamps.extend([at, end, end + 1]);
        }
        let end = stamps[stamps.len() - 1];
        let threshold = clock.ticks(20 * MS);
        let window = Window { begin: 0, end, threshold, slice: end / slices as u64 + 1 };
        let mut stamp = stamps.into_iter();
        let span = watch(
            &window,
            &mut record,
            || stamp.next().unwrap_or(end),
            &mut None::<nm_sys::rseq::PreemptionFlag>,
            || false,
        );
        let placement = PlacementWatch::start(Side::Client, "watcher", Some(cpu)).finish().0;
        let one = Watched {
            cpu,
            tid: 0,
            begin: 0,
            record,
            elapsed: span.last - span.first,
            scheduled_over: span.last - span.first,
            scheduled: ScheduledTime { ran_ns: clock.ns(end), run_delay_ns: Some(0) },
            involuntary_switches: 0,
            minor_faults: 0,
            blind: None,
            placement,
            doubts: vec![],
        };
        (one, window)
    }

    fn counters(interrupts: u64, steal_ticks: u64) -> CpuCounters {
        CpuCounters {
            interrupts: Some([("LOC".to_string(), interrupts)].into()),
            steal_ticks: Some(steal_ticks),
            ..CpuCounters::default()
        }
    }

    /// The report of one CPU with ten gaps of 30 ms.
    fn cpu_of(counters: &CpuCounters, accounts_interrupts: Option<bool>) -> CpuJitter {
        let (one, _) = watched(&[30 * MS; 10], 3, 4);
        let machine = Machine { accounts_interrupts, is_guest: Some(true) };
        cpu_jitter(&one, counters, Clock::system(), machine, 1)
    }

    #[test]
    fn gaps_without_an_interrupt_are_below_the_system() {
        let cpu = cpu_of(&counters(4, 0), Some(false));
        assert_eq!(cpu.gaps, 10);
        assert_eq!(cpu.balance.interrupts_ns, None);
        // Six of the ten gaps have no interrupt.
        assert!(cpu.balance.below_system_ns().abs_diff(180 * MS) < 1_000, "{:?}", cpu.balance);
        assert_eq!(cpu_of(&counters(10, 0), None).balance.below_system_ns(), 0);
        let unread = CpuCounters { interrupts: None, ..counters(0, 0) };
        assert_eq!(cpu_of(&unread, None).balance.below_system_ns(), 0);
    }

    #[test]
    fn silent_steal_is_a_contradiction_and_reported_steal_is_not() {
        let round = JitterRound { is_guest: Some(true), ..JitterRound::default() };
        let kind = |interrupts, steal_ticks| {
            let cpu = cpu_of(&counters(interrupts, steal_ticks), Some(false));
            below_system(&cpu, &round).map(|doubt| doubt.kind)
        };
        assert_eq!(kind(0, 0), Some(DoubtKind::StealNotAccounted));
        assert_eq!(kind(10, 0), None, "interrupts may explain all of it");
        assert_eq!(kind(0, 30), None, "300 ms are reported");
        assert_eq!(kind(0, 2), Some(DoubtKind::BelowSystem), "most is not");
    }

    #[test]
    fn names_are_missed_only_by_those_who_asked_for_a_trace() {
        let (_, window) = watched(&[30 * MS; 10], 3, 4);
        let all = |traced| AllWatched {
            window,
            slice_ns: MS,
            threads: vec![],
            counters: vec![counters(0, 0)],
            traced,
            table: None,
        };
        assert_eq!(unnamed(&all(Err(Untraced::NotAsked))), Vec::<String>::new());
        let missed = unnamed(&all(Err(Untraced::Because("no right".to_string()))));
        assert_eq!(missed.len(), 3, "{missed:?}");
        assert!(missed[0].contains("not traced (no right)"), "{missed:?}");
    }

    #[test]
    fn time_in_interrupts_is_given_only_if_it_can_be() {
        let clock = Clock::system();
        let (mut one, _) = watched(&[30 * MS; 10], 3, 4);
        one.scheduled.ran_ns -= 5 * MS;
        let given = |number, accounts_interrupts| {
            let machine = Machine { accounts_interrupts, is_guest: None };
            interrupts_ns(&one, &counters(number, 0), clock, machine)
        };
        let ns = given(10, Some(true)).unwrap();
        assert!(ns.abs_diff(5 * MS) < 1_000, "{ns}");
        assert_eq!((given(10, Some(false)), given(10, None)), (None, None));
        assert_eq!(given(1_000_000, Some(true)), None, "too short for so many interrupts");
    }

    #[test]
    fn many_rows_are_cut_to_the_largest() {
        let rows: Rows = (0..50u64).map(|n| (format!("row {n}"), n + 1)).collect();
        let sum: u64 = rows.values().sum();
        let cut = largest(rows, 40);
        assert_eq!((cut.len(), cut.get("10 other rows")), (41, Some(&55)));
        assert_eq!(cut.values().sum::<u64>(), sum);
    }

    /// A report of as many CPUs as a task may name, all of its figures as long as they can be.
    #[test]
    fn a_report_fits_into_a_line() {
        let (one, _) = watched(&[30 * MS; 10], 3, 1);
        for cpus in [1, HISTOGRAMS_MAX, MANY_CPUS - 1, MANY_CPUS, limits::CPUS_MAX] {
            let (_, slices) = jitter_threads::slices(limits::JITTER_SECONDS_MAX, cpus);
            let rows_max = if cpus < MANY_CPUS { ROWS_MAX } else { ROWS_MAX_OF_MANY };
            let rows: Rows = (0..=rows_max).map(|n| (format!("{n:0>48}"), 1_000_000_000)).collect();
            let culprits_max = match cpus < MANY_CPUS {
                true => found::CULPRITS_MAX,
                false => found::CULPRITS_MAX_OF_MANY,
            };
            let culprit = Culprit {
                kind: CulpritKind::Interrupt,
                name: "x".repeat(found::NAME_BYTES_MAX),
                gaps: 72_000_000,
                lost_ns: 3_600_000_000_000,
                longest_ns: Some(3_600_000_000_000),
                page_faults: Some(1_000_000_000),
            };
            let value = |percentile| PercentileValue {
                percentile,
                value_ns: Some(123_456_789.012),
                low_ns: None,
                high_ns: None,
            };
            let slice = JitterSlice {
                gaps: 100_000,
                lost_ns: 5_999_999_999,
                longest_ns: 5_999_999_999,
                preempted_gaps: 100_000,
                preempted_ns: 5_999_999_999,
            };
            let cpu = CpuJitter {
                cpu: 1_000,
                elapsed_ns: 3_600_000_000_000,
                gaps: 72_000_000,
                lost_ns: 3_600_000_000_000,
                longest_ns: 3_600_000_000_000,
                counted: Counted {
                    interrupts: Some(rows.clone()),
                    softirqs: Some((0..10).map(|n| (format!("SOFTIRQ {n}"), 1 << 40)).collect()),
                    ..Counted::default()
                },
                culprits: vec![culprit.clone(); culprits_max],
                percentiles: [50.0; 6].map(value).to_vec(),
                delays: [50.0; 4].map(value).to_vec(),
                histogram: (cpus <= HISTOGRAMS_MAX).then(|| "x".repeat(60_000)),
                slices: vec![slice; slices],
                ..CpuJitter::default()
            };
            let jitter = JitterRound {
                cpus: vec![cpu; cpus],
                lost_histogram: Some("x".repeat(120_000)),
                ..JitterRound::default()
            };
            let round = LatencyRound {
                histogram: Some("x".repeat(60_000)),
                jitter: Some(Box::new(jitter)),
                ..LatencyRound::default()
            };
            let report = TaskReport {
                latencies: vec![(Statistic::Interruption, round)],
                placements: vec![one.placement.clone(); cpus],
                ..TaskReport::default()
            };
            let line = serde_json::to_string(&Answer::Done(Box::new(report))).unwrap();
            assert!(line.len() < LINE_BYTES_MAX, "{cpus} CPUs: {} bytes", line.len());
        }
    }
}
