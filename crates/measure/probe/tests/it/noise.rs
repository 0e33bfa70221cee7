//! Noise that a test makes on the measured CPU is named, and only then.
//!
//! The measuring thread runs before other programs, and the noise before both (SCHED_FIFO), so that
//! they run on a busy machine, too. The noise rests often, so the others do not starve. A name
//! counts from a lost time on that noise which nobody planted does not come near.

use std::fs::File;
use std::io::Read;
use std::net::UdpSocket;
use std::os::fd::FromRawFd;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use nm_model::jitter::{Culprit, CulpritKind, JitterRound, JitterSpec, Naming};
use nm_sys::cpu;
use nm_sys::tracepoints::Tracepoints;
use nm_test_support::skip;

use crate::jitter::{report, round};
use crate::pair::alone;

/// Runs with all noises, and those in which each of them must be named.
const RUNS: usize = 10;
const NAMED_MIN: usize = 9;

/// One run.
const SECONDS: f64 = 0.3;

/// How long a thread that makes noise rests between two steps.
const REST: Duration = Duration::from_millis(2);

/// Loss from which on a name counts: one three-hundredth of the run.
const LOST_NS_MIN: u64 = 1_000_000;

/// A thread's name, whether it runs on the measured CPU, and what it does.
type Noise = (&'static str, bool, fn(&AtomicBool));

const FIFO: Noise = ("noise-fifo", true, each_ms);
const ALL: [Noise; 5] = [
    FIFO,
    ("noise-net", true, datagrams),
    ("noise-timer", true, timers),
    ("noise-faults", true, faults),
    ("noise-unmap", false, shootdowns),
];

/// The CPU that is measured, and another one; the same if there is only one.
fn cpus() -> (u32, u32) {
    let cpus = cpu::allowed();
    (cpus[cpus.len() - 1], cpus[0])
}

/// Priorities of the thread that measures and of the noise.
const MEASURING: i32 = 1;
const NOISY: i32 = 50;

/// Puts the current thread, and those that it starts, before those of other programs.
fn go_first(priority: i32) -> bool {
    let parameters = libc::sched_param { sched_priority: priority };
    // SAFETY: the structure lives through the call; a refusal changes nothing.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &parameters) == 0 }
}

fn can_plant() -> bool {
    let is_possible =
        thread::spawn(|| go_first(NOISY)).join().unwrap() && Tracepoints::open().is_ok();
    skip::can_run(is_possible, "root, and a kernel with tracefs")
}

/// Jitter of the measured CPU while threads make this noise.
fn measured(noise: &[Noise], naming: Naming) -> JitterRound {
    let (cpu, other) = cpus();
    let ended = &AtomicBool::new(false);
    let round = thread::scope(|scope| {
        for (name, is_here, make) in noise {
            let run = move || {
                assert!(go_first(NOISY));
                cpu::pin_current_thread(if *is_here { cpu } else { other }).unwrap();
                make(ended);
            };
            thread::Builder::new().name(name.to_string()).spawn_scoped(scope, run).unwrap();
        }
        let measure = || {
            assert!(go_first(MEASURING));
            let trace = naming == Naming::Traced;
            report(&JitterSpec { seconds: SECONDS, cpus: vec![cpu], threshold_ns: None, trace })
        };
        let report = scope.spawn(measure).join();
        ended.store(true, Ordering::Relaxed);
        round(&report.unwrap()).clone()
    });
    assert_eq!(round.naming, Some(naming));
    let one = &round.cpus[0];
    let named_ns: u64 = one.culprits.iter().map(|culprit| culprit.lost_ns).sum();
    assert!(named_ns <= one.lost_ns, "{}", brief(&round));
    round
}

/// The runs with all noises and a trace, which several tests look at; none if they cannot be.
fn planted() -> Option<&'static Vec<JitterRound>> {
    static ROUNDS: OnceLock<Option<Vec<JitterRound>>> = OnceLock::new();
    let _alone = alone();
    let measure = || (0..RUNS).map(|_| measured(&ALL, Naming::Traced)).collect();
    ROUNDS.get_or_init(|| can_plant().then(measure)).as_ref()
}

/// Checks that enough of the rounds have a culprit that `is_named`.
fn check(rounds: &[JitterRound], is_named: impl Fn(&Culprit) -> bool) {
    let is_found = |round: &&JitterRound| {
        round.cpus[0].culprits.iter().any(|one| one.lost_ns >= LOST_NS_MIN && is_named(one))
    };
    let named = rounds.iter().filter(is_found).count();
    let text = || rounds.iter().map(brief).collect::<Vec<_>>().join("\n");
    assert!(named >= NAMED_MIN, "named in {named} of {} runs:\n{}", rounds.len(), text());
}

/// The culprits of a round in one line, for a failure.
fn brief(round: &JitterRound) -> String {
    let one = &round.cpus[0];
    let of = |one: &Culprit| {
        format!("{:?} {} {} gaps {} µs", one.kind, one.name, one.gaps, one.lost_ns / 1_000)
    };
    let names = one.culprits.iter().map(of).collect::<Vec<_>>().join(", ");
    format!("{} gaps, {} µs: {names}", one.gaps, one.lost_ns / 1_000)
}

fn is(culprit: &Culprit, kind: CulpritKind, name: &str) -> bool {
    culprit.kind == kind && culprit.name == name
}

fn spin(duration: Duration) {
    let begin = nm_sys::clock::Moment::now();
    while begin.elapsed() < duration {
        std::hint::spin_loop();
    }
}

/// Each ms 0.2 ms.
fn each_ms(ended: &AtomicBool) {
    while !ended.load(Ordering::Relaxed) {
        spin(Duration::from_micros(200));
        thread::sleep(Duration::from_millis(1));
    }
}

/// Loopback receives in a softirq of the CPU that sends.
fn datagrams(ended: &AtomicBool) {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_nonblocking(true).unwrap();
    let to = socket.local_addr().unwrap();
    let mut buffer = [0; 64];
    while !ended.load(Ordering::Relaxed) {
        for _ in 0..50 {
            let _ = socket.send_to(&[0; 64], to);
            let _ = socket.recv(&mut buffer);
        }
        thread::sleep(REST);
    }
}

/// A timer that expires each 50 µs. It is set anew when it is read.
fn timers(ended: &AtomicBool) {
    let each = libc::timespec { tv_sec: 0, tv_nsec: 50_000 };
    let times = libc::itimerspec { it_interval: each, it_value: each };
    // SAFETY: plain calls with a live structure; the descriptor is new and has one owner.
    let mut timer = unsafe {
        let fd = libc::timerfd_create(libc::CLOCK_MONOTONIC, libc::TFD_CLOEXEC);
        assert!(fd >= 0 && libc::timerfd_settime(fd, 0, &times, std::ptr::null_mut()) == 0);
        File::from_raw_fd(fd)
    };
    while !ended.load(Ordering::Relaxed) {
        let mut expired = [0; 8];
        timer.read_exact(&mut expired).unwrap();
    }
}

/// Maps memory, touches each page and unmaps it: a page fault each. Then it interrupts the CPUs on
/// which other threads of the process run, as they may have the pages in their TLB.
fn map(pages: usize) {
    let page = 4096;
    // SAFETY: a private mapping of its own, written inside its length and unmapped at once.
    unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let at = libc::mmap(std::ptr::null_mut(), page * pages, access, flags, -1, 0);
        assert_ne!(at, libc::MAP_FAILED);
        for number in 0..pages {
            at.cast::<u8>().add(number * page).write_volatile(1);
        }
        assert_eq!(libc::munmap(at, page * pages), 0);
    }
}

/// Most of it is the unmapping.
fn shootdowns(ended: &AtomicBool) {
    while !ended.load(Ordering::Relaxed) {
        for _ in 0..100 {
            map(1);
        }
        thread::sleep(REST);
    }
}

/// Most of it is the touching.
fn faults(ended: &AtomicBool) {
    while !ended.load(Ordering::Relaxed) {
        map(50);
        thread::sleep(REST);
    }
}

/// Checks that noise is found by `is_named` where all noises were planted.
fn check_planted(is_named: impl Fn(&Culprit) -> bool) {
    if let Some(rounds) = planted() {
        check(rounds, is_named);
    }
}

#[test]
fn a_thread_that_runs_each_ms_is_named() {
    check_planted(|one| is(one, CulpritKind::Thread, "noise-fifo"));
}

#[test]
fn a_storm_of_datagrams_is_a_softirq() {
    check_planted(|one| is(one, CulpritKind::Softirq, "NET_RX"));
}

#[test]
fn a_storm_of_timers_is_named_by_their_kind() {
    check_planted(|one| is(one, CulpritKind::Timer, "timerfd"));
}

#[test]
fn a_storm_of_page_faults_is_a_thread_with_its_faults() {
    check_planted(|one| {
        is(one, CulpritKind::Thread, "noise-faults") && one.page_faults > Some(1_000)
    });
}

#[test]
fn memory_that_another_thread_unmaps_is_a_tlb_shootdown() {
    let (cpu, other) = cpus();
    if skip::can_run(cpu != other, "two CPUs") {
        check_planted(|one| is(one, CulpritKind::Call, "TLB shootdown"));
    }
}

/// What other programs cannot cause, or not in this amount.
fn is_planted(one: &Culprit) -> bool {
    one.name.starts_with("noise-")
        || one.lost_ns >= LOST_NS_MIN
            && (is(one, CulpritKind::Timer, "timerfd")
                || is(one, CulpritKind::Call, "TLB shootdown"))
}

#[test]
fn nothing_is_named_that_was_not_planted() {
    let _alone = alone();
    if !can_plant() {
        return;
    }
    for naming in [Naming::Traced, Naming::Counted] {
        for _ in 0..RUNS {
            let round = measured(&[], naming);
            let is_free = !round.cpus[0].culprits.iter().any(is_planted);
            assert!(is_free, "{}", brief(&round));
        }
    }
}

/// Without the trace a thread is found by what the kernel counted of it.
#[test]
fn counters_name_a_thread_and_say_that_they_estimate() {
    let _alone = alone();
    if !can_plant() {
        return;
    }
    let rounds: Vec<_> = (0..RUNS).map(|_| measured(&[FIFO], Naming::Counted)).collect();
    check(&rounds, |one| is(one, CulpritKind::Thread, "noise-fifo"));
    let mut culprits = rounds.iter().flat_map(|round| &round.cpus[0].culprits);
    assert!(culprits.all(|one| one.longest_ns.is_none()), "an estimate knows no gap");
}
