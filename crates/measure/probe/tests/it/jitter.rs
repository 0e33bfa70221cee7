//! The jitter probe against what the kernel counts, and against the method of sysjitter.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use nm_model::agent::{TaskReport, Work};
use nm_model::jitter::{CpuJitter, JitterRound, JitterSpec};
use nm_model::probe::Side;
use nm_model::result::Statistic;
use nm_probe::gap_loop::{self, GapRecord, Window};
use nm_probe::{Control, Endpoint};
use nm_sys::clock::Clock;
use nm_sys::cpu;
use nm_sys::rseq::PreemptionFlag;
use nm_test_support::{allocations, system_calls};

use crate::pair::{alone, latency, task};

/// Runs of which one must show what the machine allows: other tests, and neighbours of a virtual
/// machine, disturb any of them.
const TRIES: u32 = 5;

pub fn report(spec: &JitterSpec) -> TaskReport {
    let task = task("cpu-spin", Side::Client, &Work::Jitter(spec.clone()));
    let mut client = Endpoint::listen(Side::Client, &task, "127.0.0.1").unwrap();
    assert!(client.addresses().is_empty());
    client.connect(&[]).unwrap();
    client.run(&Control::new()).unwrap()
}

pub fn round(report: &TaskReport) -> &JitterRound {
    latency(report, Statistic::Interruption).jitter.as_ref().unwrap()
}

/// Jitter of the last CPU for `seconds`, while another thread spins on it if `is_shared`.
fn of_last_cpu(seconds: f64, is_shared: bool) -> CpuJitter {
    let cpu = *cpu::allowed().last().unwrap();
    let spec = JitterSpec { seconds, cpus: vec![cpu], threshold_ns: None, trace: false };
    let ended = AtomicBool::new(false);
    thread::scope(|scope| {
        if is_shared {
            scope.spawn(|| {
                cpu::pin_current_thread(cpu).unwrap();
                while !ended.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        let report = report(&spec);
        ended.store(true, Ordering::Relaxed);
        round(&report).cpus[0].clone()
    })
}

/// Gaps whose flag was set beyond the involuntary switches; negative if fewer. And the slack: 1 %,
/// and 15 a second for the other work after which the kernel clears the flag.
fn flags_beyond_switches(seen: &CpuJitter) -> (f64, f64) {
    let (flagged, switches) =
        (seen.preempted_gaps.unwrap() as f64, seen.counted.involuntary_switches as f64);
    let elapsed_s = seen.elapsed_ns as f64 / 1e9;
    (flagged - switches, 0.01 * switches + 15.0 * elapsed_s)
}

fn flags_agree(seen: &CpuJitter) -> bool {
    let (beyond, slack) = flags_beyond_switches(seen);
    beyond.abs() <= slack
}

/// As [`flags_agree`], but one gap may hold several switches: under a CPU quota a thread that was
/// given its CPU back is often switched again before its next instruction.
fn flags_are_switches(seen: &CpuJitter) -> bool {
    let (beyond, slack) = flags_beyond_switches(seen);
    beyond <= slack
}

/// Their sum and the scheduler's run delay: within 2 %, and 25 µs for each.
fn times_agree(seen: &CpuJitter) -> bool {
    let Some(delay_ns) = seen.balance.run_delay_ns else { return true };
    let (preempted, delay) = (seen.preempted_ns.unwrap() as f64, delay_ns as f64);
    let slack = 0.02 * delay + 25_000.0 * seen.preempted_gaps.unwrap() as f64;
    (preempted - delay).abs() <= slack
}

#[test]
fn preempted_gaps_are_the_involuntary_switches_and_last_as_long_as_the_run_delay() {
    let _alone = alone();
    let mut seen = vec![];
    for _ in 0..TRIES {
        let one = of_last_cpu(2.0, true);
        // The other thread takes about half of the time, in slices of a few ms.
        let is_shared = one.share_lost().unwrap() > 0.2 && one.preempted_gaps.unwrap() > 50;
        // A switch without a flag would show in the times.
        let has_times = one.balance.run_delay_ns.is_some();
        let flags = if has_times { flags_are_switches(&one) } else { flags_agree(&one) };
        if is_shared && flags && times_agree(&one) {
            return;
        }
        seen.push((one.preempted_gaps, one.preempted_ns, one.counted, one.balance, one.lost_ns));
    }
    panic!("{seen:#?}");
}

/// In a short round what the scheduler counted before and after the loop would be much of it.
#[test]
fn parts_are_no_more_than_what_was_lost_in_short_rounds_on_a_shared_cpu() {
    let _alone = alone();
    for _ in 0..20 {
        let one = of_last_cpu(0.05, true);
        assert!(one.elapsed_ns >= 49_000_000, "watched for less than the round: {one:?}");
        assert!(one.balance.explained_ns() <= one.lost_ns, "{one:?}");
        assert!(one.balance.unexplained_ns >= 0, "{one:?}");
    }
}

#[test]
fn without_another_thread_few_gaps_are_preempted() {
    let _alone = alone();
    let mut seen = vec![];
    for _ in 0..TRIES {
        let one = of_last_cpu(1.0, false);
        // Whatever else runs on this machine is counted by the kernel as well. Their lengths are
        // not compared: the kernel's deferred work also clears the flag, some ten times a second,
        // in gaps that the hypervisor may lengthen, and these are no run delay.
        if flags_agree(&one) {
            return;
        }
        seen.push((one.preempted_gaps, one.preempted_ns, one.counted, one.balance, one.lost_ns));
    }
    panic!("{seen:#?}");
}

#[test]
fn all_ways_of_counting_agree() {
    let _alone = alone();
    let report = report(&JitterSpec { seconds: 0.5, ..JitterSpec::default() });
    let data = latency(&report, Statistic::Interruption);
    let jitter = round(&report);
    assert_eq!(jitter.cpus.iter().map(|one| one.cpu).collect::<Vec<_>>(), cpu::allowed());
    assert_eq!(report.placements.len(), jitter.cpus.len());
    assert!(jitter.threshold_ns > 0 && jitter.slice_ms == 100.0);
    assert_eq!(data.count, Some(jitter.cpus.iter().map(|one| one.gaps).sum()));
    assert!(jitter.lost_histogram.is_some());
    for one in &jitter.cpus {
        // Half a second without an interrupt of any kind does not exist here.
        assert!(one.gaps > 0 && one.longest_ns >= jitter.threshold_ns, "{one:?}");
        assert!(one.lost_ns <= one.elapsed_ns && one.longest_ns <= one.lost_ns);
        assert!(one.elapsed_ns >= 490_000_000, "{one:?}");
        let sum = i128::from(one.balance.explained_ns()) + i128::from(one.balance.unexplained_ns);
        assert_eq!(sum, i128::from(one.lost_ns));
        assert_eq!(one.slices.iter().map(|slice| slice.gaps).sum::<u64>(), one.gaps);
        let lost: u64 = one.slices.iter().map(|slice| slice.lost_ns).sum();
        assert!(lost.abs_diff(one.lost_ns) <= one.slices.len() as u64, "rounded for each slice");
        assert!(one.preempted_gaps.unwrap() <= one.gaps);
        assert!(one.counted.interrupt_count().unwrap() > 0);
        assert!(one.histogram.is_some() && one.gaps_not_kept < one.gaps);
    }
}

#[test]
fn the_threshold_can_be_given() {
    let _alone = alone();
    // No round is short enough for a threshold that nothing reaches, so what counts is as long.
    let spec =
        JitterSpec { seconds: 0.2, threshold_ns: Some(2_000_000), cpus: vec![], trace: false };
    let report = report(&spec);
    let jitter = round(&report);
    assert_eq!(jitter.threshold_ns, 2_000_000);
    for one in &jitter.cpus {
        // Ticks of the clock and ns are rounded.
        assert!(one.lost_ns + one.gaps >= one.gaps * 2_000_000, "{one:?}");
    }
}

/// The method of sysjitter 1.4, written anew: what it would count on this CPU.
fn sysjitter(clock: Clock, threshold: u64, ticks: u64) -> (usize, u64) {
    let mut interruptions = Vec::with_capacity(1 << 20);
    let begin = clock.now();
    let mut previous = begin;
    while previous - begin < ticks && interruptions.len() < interruptions.capacity() {
        let stamp = clock.now();
        if stamp - previous >= threshold {
            interruptions.push(stamp - previous);
        }
        previous = stamp;
    }
    (interruptions.len(), interruptions.iter().sum())
}

/// Both methods in turn on one CPU. What they count differs from time to time as the machine does,
/// so the medians of several are compared, loosely; that both find the same in the same time stamps
/// is tested beside the loop.
#[test]
fn sysjitter_counts_about_as_many_gaps() {
    let _alone = alone();
    let cpu = *cpu::allowed().last().unwrap();
    let clock = Clock::system();
    let ticks = clock.ticks(100_000_000);
    let ours = move || {
        let begin = clock.now();
        let window =
            Window { begin, end: begin + ticks, threshold: clock.ticks(2_000), slice: ticks };
        let mut record = GapRecord::new(clock, 1, 100_000);
        let mut flag = PreemptionFlag::new().ok();
        gap_loop::watch(&window, &mut record, || clock.now(), &mut flag, || false);
        record.gaps().len()
    };
    let median = |mut counts: Vec<usize>| {
        counts.sort_unstable();
        counts[counts.len() / 2] as f64
    };
    thread::spawn(move || {
        cpu::pin_current_thread(cpu).unwrap();
        let mut seen = vec![];
        for _ in 0..TRIES {
            let pairs = (0..7).map(|_| (ours(), sysjitter(clock, clock.ticks(2_000), ticks).0));
            let (own, theirs): (Vec<usize>, Vec<usize>) = pairs.unzip();
            let (own, theirs) = (median(own), median(theirs));
            if own > 0.0 && (own / theirs).max(theirs / own) < 1.5 {
                return;
            }
            seen.push((own, theirs));
        }
        panic!("gaps in 100 ms, ours and by sysjitter's method: {seen:?}");
    })
    .join()
    .unwrap();
}

#[test]
fn the_loop_allocates_nothing_and_makes_no_system_call() {
    let _alone = alone();
    let watched = || {
        let clock = Clock::system();
        let mut record = GapRecord::new(clock, 10, 100);
        let mut flag = PreemptionFlag::new().ok();
        let begin = clock.now();
        // Every step is a gap, so that a full record is covered, too.
        let end = begin + clock.ticks(20_000_000);
        let window = Window { begin, end, threshold: 0, slice: clock.ticks(2_000_000) };
        let before = allocations();
        let _ = std::process::id(); // a system call that marks the begin, as one marks the end
        gap_loop::watch(&window, &mut record, || clock.now(), &mut flag, || false);
        let _ = std::process::id();
        (allocations() - before, record.gaps().len(), record.overflow().len())
    };
    let ((counted, kept, more), calls) = system_calls(watched);
    assert_eq!((counted, kept), (0, 100));
    assert!(more > 100, "{more}");
    let marks = |calls: &Vec<i64>| {
        calls.windows(2).any(|pair| pair == [libc::SYS_getpid, libc::SYS_getpid])
    };
    assert!(calls.values().any(marks), "{calls:?}");
}
