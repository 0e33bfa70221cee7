//! The threads of the jitter probe: one on each CPU watches the clock ([`gap_loop`]), and the
//! kernel's counters are read around it.
//!
//! Everything is prepared before the threads start together: they are pinned, their memory is
//! allocated, touched and locked, and their code has run once. Counters of CPUs are read before
//! and after by the thread that owns them all, those of a thread by itself, right beside its loop.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use nm_model::doubt::Doubt;
use nm_model::jitter::JitterSpec;
use nm_model::probe::Side;
use nm_model::result::Placement;
use nm_sys::clock::Clock;
use nm_sys::counters::{ScheduledTime, ThreadCounters};
use nm_sys::cpu;
use nm_sys::cpu_counters::CpuCounters;
use nm_sys::rseq::PreemptionFlag;
use nm_sys::thread_table::{self, ThreadRow};

use crate::control::Control;
use crate::culprit::trace::{Traced, Tracing, Untraced};
use crate::error::ProbeError;
use crate::gap_loop::{self, GapRecord, THRESHOLD_STEPS, Window};
use crate::pinned_thread::PinnedThread;
use crate::start_gate::{Arrival, StartGate};

/// From the opening of the gate to the start of the loops, so that all threads have woken up.
const LEAD_NS: u64 = 2_000_000;

/// From the reading of a thread's counters to the start of its loop.
const COUNTERS_NS: u64 = 300_000;

/// Longest time from before the reading of a thread's counters to the start of its loop: what the
/// scheduler counts meanwhile is in no gap.
const START_MAX_NS: u64 = 3 * COUNTERS_NS;

/// How often a thread tries to start without being interrupted.
const STARTS_MAX: usize = 100;

/// How long the loop runs before, so that its code is in memory.
const WARMUP_NS: u64 = 1_000_000;

/// Longest measuring time that is divided into slices of [`SHORT_SLICE_NS`], s.
const SHORT_SECONDS: f64 = 12.0;
const SHORT_SLICE_NS: u64 = 100_000_000;
const SLICE_NS: u64 = 1_000_000_000;

/// Slices of all CPUs together, and of each CPU at least: a report has a limit.
const SLICES_TOTAL_MAX: usize = 6_000;
const SLICES_MIN: usize = 8;

/// What one thread saw.
#[derive(Debug)]
pub struct Watched {
    /// The CPU.
    pub cpu: u32,
    /// The thread's number.
    pub tid: u32,
    /// Begin of its window, ticks.
    pub begin: u64,
    /// Its gaps.
    pub record: GapRecord,
    /// From the first time stamp to the last, ticks.
    pub elapsed: u64,
    /// Time between the readings of `scheduled`, ticks.
    pub scheduled_over: u64,
    /// What the scheduler counted of the thread.
    pub scheduled: ScheduledTime,
    /// Involuntary switches.
    pub involuntary_switches: u64,
    /// Page faults.
    pub minor_faults: u64,
    /// Why preemption could not be seen, if it could not.
    pub blind: Option<String>,
    /// Where the thread ran.
    pub placement: Placement,
    /// Doubts that follow.
    pub doubts: Vec<Doubt>,
}

/// What all threads saw.
#[derive(Debug)]
pub struct AllWatched {
    /// When they watched.
    pub window: Window,
    /// Length of a slice, ns.
    pub slice_ns: u64,
    /// Each thread, in the order of CPUs.
    pub threads: Vec<Watched>,
    /// What the kernel counted of each of these CPUs.
    pub counters: Vec<CpuCounters>,
    /// What ran on each of these CPUs, or why that is not known.
    pub traced: Result<Traced, Untraced>,
    /// All threads of the machine before and after, if `/proc` shows them.
    pub table: Option<(ThreadTable, ThreadTable)>,
}

/// Threads by their numbers.
type ThreadTable = BTreeMap<u32, ThreadRow>;

/// What all threads have in common.
struct Common<'a> {
    clock: Clock,
    control: &'a Control,
    gate: StartGate<Window>,
    /// The largest of the CPUs' smallest steps, ticks.
    step: AtomicU64,
    slices: usize,
    gaps_kept: usize,
}

/// The CPUs that a spec means, in order, each once.
fn cpus(spec: &JitterSpec) -> Vec<u32> {
    let mut cpus = if spec.cpus.is_empty() { cpu::allowed() } else { spec.cpus.clone() };
    cpus.sort_unstable();
    cpus.dedup();
    cpus
}

/// Length of a slice, ns, and how many slices `seconds` have.
pub(crate) fn slices(seconds: f64, cpus: usize) -> (u64, usize) {
    let ns = (seconds * 1e9) as u64;
    let slices_max = (SLICES_TOTAL_MAX / cpus.max(1)).clamp(SLICES_MIN, gap_loop::SLICES_MAX);
    let usual = if seconds <= SHORT_SECONDS { SHORT_SLICE_NS } else { SLICE_NS };
    let slice_ns = ns.div_ceil(slices_max as u64).next_multiple_of(usual).max(usual);
    (slice_ns, (ns.div_ceil(slice_ns) as usize).max(1))
}

/// Watches all CPUs at once.
///
/// # Errors
/// If a thread cannot be started or pinned, and [`ProbeError::Cancelled`].
pub fn watch(spec: &JitterSpec, clock: Clock, control: &Control) -> Result<AllWatched, ProbeError> {
    let cpus = cpus(spec);
    let (slice_ns, slices) = slices(spec.seconds, cpus.len());
    let common = Common {
        clock,
        control,
        gate: StartGate::new(cpus.len()),
        step: AtomicU64::new(0),
        slices,
        gaps_kept: GapRecord::gaps_kept(spec.seconds, cpus.len()),
    };
    thread::scope(|scope| {
        let mut threads = vec![];
        for &cpu in &cpus {
            let common = &common;
            let name = format!("watcher {cpu}");
            let started = thread::Builder::new()
                .name(name.clone())
                .spawn_scoped(scope, move || watch_cpu(cpu, name, common))
                .inspect_err(|_| common.gate.fail());
            threads.push(started);
        }
        let begun = common.gate.wait_for_all().then(|| {
            let table = thread_table::now();
            let tracing = start_trace(spec, &cpus, clock);
            let before = CpuCounters::now(&cpus);
            let step = common.step.load(Ordering::Relaxed);
            let begin = clock.now() + clock.ticks(LEAD_NS);
            let window = Window {
                begin,
                end: begin + clock.ticks((spec.seconds * 1e9) as u64),
                threshold: spec.threshold_ns.map_or(step * THRESHOLD_STEPS, |ns| clock.ticks(ns)),
                slice: clock.ticks(slice_ns).max(1),
            };
            common.gate.open(window);
            Begun { before, window, tracing, table }
        });
        let join = |started: Result<thread::ScopedJoinHandle<'_, _>, _>| {
            let panicked = |_| Err(ProbeError::Panicked("watcher".to_string()));
            started.map_err(ProbeError::SpawnThread)?.join().unwrap_or_else(panicked)
        };
        let ended: Vec<Result<Watched, ProbeError>> = threads.into_iter().map(join).collect();
        let after = CpuCounters::now(&cpus);
        let begun = begun.map(|begun| begun.finish(clock));
        let threads = first_cause(ended)?;
        let Some((before, window, traced, table)) = begun else {
            return Err(ProbeError::Cancelled);
        };
        let counters =
            after.iter().zip(&before).map(|(after, before)| after.since(before)).collect();
        Ok(AllWatched { window, slice_ns, threads, counters, traced, table })
    })
}

/// What was read and started before the loops.
struct Begun {
    before: Vec<CpuCounters>,
    window: Window,
    tracing: Result<Tracing, Untraced>,
    table: Option<ThreadTable>,
}

type Ended =
    (Vec<CpuCounters>, Window, Result<Traced, Untraced>, Option<(ThreadTable, ThreadTable)>);

impl Begun {
    /// Ends the trace, and reads the threads again.
    fn finish(self, clock: Clock) -> Ended {
        let failed = || Untraced::Because("the reader of the trace failed".to_string());
        let traced = self.tracing.and_then(|tracing| tracing.finish(clock).ok_or_else(failed));
        (self.before, self.window, traced, self.table.zip(thread_table::now()))
    }
}

/// Begins to trace, or says why not.
fn start_trace(spec: &JitterSpec, cpus: &[u32], clock: Clock) -> Result<Tracing, Untraced> {
    match spec.trace {
        true => Tracing::start(cpus, clock).map_err(|error| Untraced::Because(error.to_string())),
        false => Err(Untraced::NotAsked),
    }
}

/// All threads, or the first failure that is not only the consequence of another one.
fn first_cause(ended: Vec<Result<Watched, ProbeError>>) -> Result<Vec<Watched>, ProbeError> {
    let mut threads = vec![];
    let mut cancelled = None;
    for one in ended {
        match one {
            Ok(watched) => threads.push(watched),
            Err(ProbeError::Cancelled) => cancelled = Some(ProbeError::Cancelled),
            Err(cause) => return Err(cause),
        }
    }
    cancelled.map_or(Ok(threads), Err)
}

/// The thread of one CPU.
fn watch_cpu(cpu: u32, name: String, common: &Common<'_>) -> Result<Watched, ProbeError> {
    let Common { clock, control, .. } = *common;
    let arrival = Arrival::at(&common.gate);
    let thread = PinnedThread { side: Side::Client, name, cpu: Some(cpu) };
    thread.pin_current()?;
    let tid = thread_table::own_number();
    let (mut flag, blind) = match PreemptionFlag::new() {
        Ok(flag) => (Some(flag), None),
        Err(error) => (None, Some(error.to_string())),
    };
    let mut record = GapRecord::new(clock, common.slices, common.gaps_kept);
    warm_up(clock, &mut flag);
    common.step.fetch_max(gap_loop::smallest_step(clock), Ordering::Relaxed);
    let watch = thread.watch();
    let window = arrival.arrive().ok_or(ProbeError::Cancelled)?;
    let Start { window, scheduled, scheduled_at, counters } = start(window, clock);
    let cancelled = || control.cancelled();
    let mut span = gap_loop::watch(&window, &mut record, || clock.now(), &mut flag, cancelled);
    let now = ThreadCounters::now();
    let (scheduled_end, scheduled_end_at) = (ScheduledTime::now(), clock.now());
    // The scheduler has counted a delay in here, so it is a gap as well.
    if scheduled_end_at.saturating_sub(span.last) > clock.ticks(COUNTERS_NS) {
        gap_loop::add_last(&window, &mut record, &mut span, scheduled_end_at, &flag);
    }
    drop(flag);
    if control.cancelled() {
        return Err(ProbeError::Cancelled);
    }
    let (placement, doubts) = watch.finish();
    Ok(Watched {
        cpu,
        tid,
        begin: window.begin,
        record,
        elapsed: span.last.saturating_sub(span.first),
        scheduled_over: scheduled_end_at.saturating_sub(scheduled_at),
        scheduled: scheduled_end.since(scheduled),
        involuntary_switches: now.involuntary_switches - counters.involuntary_switches,
        minor_faults: now.minor_faults - counters.minor_faults,
        blind,
        placement,
        doubts,
    })
}

/// The start of a thread's loop.
struct Start {
    window: Window,
    scheduled: ScheduledTime,
    scheduled_at: u64,
    counters: ThreadCounters,
}

/// Reads a thread's counters right before `window` begins. A thread that does not run then watches
/// later, and as long as the others.
fn start(window: Window, clock: Clock) -> Start {
    let counters_at = window.begin.saturating_sub(clock.ticks(COUNTERS_NS));
    while clock.now() < counters_at {
        std::hint::spin_loop();
    }
    let mut tries = 0..STARTS_MAX;
    loop {
        let before = clock.now();
        let (scheduled, scheduled_at) = (ScheduledTime::now(), clock.now());
        let counters = ThreadCounters::now();
        let mut now = clock.now();
        while now < window.begin {
            now = clock.now();
        }
        if now - before <= clock.ticks(START_MAX_NS) || tries.next().is_none() {
            return Start { window: window.moved_to(now), scheduled, scheduled_at, counters };
        }
    }
}

/// Runs the loop once with every step a gap.
fn warm_up(clock: Clock, flag: &mut Option<PreemptionFlag>) {
    let mut scratch = GapRecord::new(clock, 1, 1_000);
    let begin = clock.now();
    let end = begin + clock.ticks(WARMUP_NS);
    let window = Window { begin, end, threshold: 0, slice: clock.ticks(WARMUP_NS).max(1) };
    gap_loop::watch(&window, &mut scratch, || clock.now(), flag, || false);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_follow_the_time_and_have_a_limit() {
        assert_eq!(slices(5.0, 2), (100_000_000, 50));
        assert_eq!(slices(0.01, 2), (100_000_000, 1));
        assert_eq!(slices(60.0, 2), (1_000_000_000, 60));
        assert_eq!(slices(3_600.0, 2), (6_000_000_000, 600));
        assert_eq!(slices(10.0, 256), (500_000_000, 20));
        for cpus in [1, 3, 64, 1_024] {
            for seconds in [0.05, 1.0, 7.7, 100.0, 3_600.0] {
                let (slice_ns, count) = slices(seconds, cpus);
                assert!(slice_ns as f64 * count as f64 >= seconds * 1e9);
                assert!(count <= SLICES_MIN || count * cpus <= SLICES_TOTAL_MAX);
            }
        }
    }

    #[test]
    fn each_cpu_is_watched_once() {
        let spec = JitterSpec { cpus: vec![3, 1, 3], ..JitterSpec::default() };
        assert_eq!(cpus(&spec), [1, 3]);
        assert_eq!(cpus(&JitterSpec::default()), cpu::allowed());
    }

    /// A thread that did not run when the window began has no gap for that time, so it must not
    /// count as a shorter window either: the whole of it could be over.
    #[test]
    fn a_late_thread_watches_as_long_as_the_others() {
        let clock = Clock::system();
        let length = clock.ticks(50_000_000);
        let begin = clock.now();
        let window = Window { begin, end: begin + length, threshold: 1, slice: length };
        while clock.now() < window.end {
            std::hint::spin_loop();
        }
        let late = start(window, clock).window;
        assert!(late.begin >= window.end, "{late:?}");
        assert_eq!(late.end - late.begin, length);
        let ahead = clock.now() + clock.ticks(10_000_000);
        let early = start(Window { begin: ahead, end: ahead + length, ..window }, clock).window;
        assert!(early.begin >= ahead && early.end - early.begin == length, "{early:?}");
    }

    #[test]
    fn a_cpu_that_cannot_be_used_ends_all_threads() {
        let mut cpus = cpu::allowed();
        cpus.push(1_023);
        let spec = JitterSpec { cpus, seconds: 3_000.0, threshold_ns: None, trace: false };
        let failed = watch(&spec, Clock::system(), &Control::new()).unwrap_err();
        assert!(matches!(failed, ProbeError::PinThread { cpu: 1_023, .. }), "{failed}");
    }

    #[test]
    fn a_cancelled_probe_ends() {
        let control = Control::new();
        control.cancel();
        let spec = JitterSpec { seconds: 3_000.0, ..JitterSpec::default() };
        let failed = watch(&spec, Clock::system(), &control).unwrap_err();
        assert!(matches!(failed, ProbeError::Cancelled), "{failed}");
    }
}
