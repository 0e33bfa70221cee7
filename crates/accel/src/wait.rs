//! How long a wait spins before it sleeps, and the sleep of a receiver until memory has bytes.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};

use nm_ring::variables::SPIN_US_DEFAULT;

use crate::attempts::{FailedAttempts, first_budget};
use crate::contention;
use crate::peer_yields;
use crate::settings::Settings;
use crate::signals;
use crate::socket::Socket;

/// Shortest spin budget, ns: a spin this short costs less than a wake-up.
pub const SPIN_NS_MIN: u64 = 2_000;

/// Interval between two polls of the kernel socket while spinning, ns.
const KERNEL_CHECK_NS: u64 = 50_000;

/// Checks of the pipe between two reads of the clock, unless the peer is on the same CPU.
const SPINS_PER_CLOCK_READ: u32 = 64;

/// Checks that follow each other at once: the CPU's pause between later ones, which leaves the core
/// to its other thread, would add to the shortest answers.
const EAGER_SPINS: u32 = 64;

/// Interval between two yields of the CPU while spinning, ns. A peer that runs has mostly answered
/// by then: with 2 µs, two pools of eight threads (MariaDB) switched threads for every answer and
/// were slower by a third; with 50 µs, programs of three processes on two CPUs gained nothing.
const YIELD_INTERVAL_NS: u64 = 10_000;

/// A yield shorter than this passed the CPU on to nobody, ns: two switches of threads take longer.
const UNUSED_YIELD_NS: u64 = 1_000;

/// After so many of these in a row the peer, which is on the same CPU, does not want to run.
const UNUSED_YIELDS_MAX: u32 = 8;

static SPIN_NS: AtomicU64 = AtomicU64::new(0);
/// Whether this machine has only one CPU.
static SINGLE_CPU: AtomicBool = AtomicBool::new(false);
/// Offset from the thread pointer at which the kernel stores a thread's CPU number; 0 if it does
/// not.
static RSEQ_OFFSET: AtomicUsize = AtomicUsize::new(0);
/// Initialises what waiting depends on: settings, clock, CPUs. Called once, by the constructor.
pub fn prepare() {
    let spin_us = Settings::get().spin_us.unwrap_or(SPIN_US_DEFAULT);
    SPIN_NS.store(u64::from(spin_us) * 1000, Ordering::Relaxed);
    // SAFETY: queries a number. The CPUs that this process is pinned to do not matter: its peer may
    // run elsewhere, and publishes where.
    let online = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) };
    SINGLE_CPU.store(online == 1, Ordering::Relaxed);
    // SAFETY: looks up a symbol by name; glibc exports the offset as a constant from 2.35 on.
    let place = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__rseq_offset".as_ptr()) };
    // SAFETY: looks up a symbol by name; glibc exports the size beside the offset.
    let size = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__rseq_size".as_ptr()) };
    if !place.is_null() && !size.is_null() {
        // SAFETY: glibc documents both symbols: `const ptrdiff_t` and `const unsigned int`.
        let (offset, size) = unsafe { (*place.cast::<isize>(), *size.cast::<u32>()) };
        if size > 0 {
            RSEQ_OFFSET.store(offset as usize, Ordering::Relaxed);
        }
    }
}

/// The CPU that this thread runs on.
#[inline(always)]
pub fn cpu() -> u32 {
    let offset = RSEQ_OFFSET.load(Ordering::Relaxed);
    if offset == 0 {
        return nm_sys::cpu::current();
    }
    let place = thread_pointer().wrapping_add(offset).wrapping_add(size_of::<u32>());
    let place = std::ptr::with_exposed_provenance::<u32>(place);
    // SAFETY: glibc registered its area of the restartable sequences there; `cpu_id` is its second
    // word, kept by the kernel.
    unsafe { place.read_volatile() }
}

#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn thread_pointer() -> usize {
    let pointer: usize;
    // SAFETY: on x86-64 the first word of the thread's control block is its own address.
    unsafe {
        std::arch::asm!("mov {}, fs:0", out(reg) pointer, options(nostack, readonly,
            preserves_flags));
    }
    pointer
}

#[cfg(target_arch = "aarch64")]
#[inline(always)]
fn thread_pointer() -> usize {
    let pointer: usize;
    // SAFETY: reads a register that user space may read.
    unsafe {
        std::arch::asm!("mrs {}, tpidr_el0", out(reg) pointer, options(nostack, nomem,
            preserves_flags));
    }
    pointer
}

/// What to do after an unsuccessful check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpinStep {
    /// Check again.
    Retry,
    /// Check again, and ask the kernel as well.
    CheckKernel,
    /// The budget is used up: sleep.
    Sleep,
}

/// What a thread does that waits for the peer of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitMode {
    /// It sleeps at once: others share this CPU, and sleeping is better.
    Sleep,
    /// It checks, and yields the CPU after each check: the peer runs on this CPU too, so it answers
    /// as soon as it gets that, for less than a sleep and a wake-up cost.
    Yield,
    /// It checks, and yields from time to time.
    Spin,
}

impl WaitMode {
    /// How a thread waits for the peer of `socket` now. Tells the peer which CPU it is on.
    #[inline(always)]
    pub fn of(socket: &Socket) -> WaitMode {
        let here = cpu();
        socket.own().set_cpu(here);
        let is_shared = || SINGLE_CPU.load(Ordering::Relaxed) || socket.peer().cpu() == Some(here);
        if contention::sleeps_at_once(now_ns) {
            WaitMode::Sleep
        } else if !is_shared() {
            WaitMode::Spin
        } else if peer_yields::may_yield(now_ns) {
            WaitMode::Yield
        } else {
            WaitMode::Sleep
        }
    }
}

/// Yields the CPU from time to time during a spin. Where more threads want to run than there are
/// CPUs, a spinning one would keep the others from theirs until the kernel's scheduler takes it
/// away, milliseconds later.
#[derive(Debug)]
pub struct YieldTimer {
    mode: WaitMode,
    yielded_at_ns: u64,
    /// The last yields in a row that nobody used.
    unused: u32,
    /// Time in yields that somebody used, ns.
    yielded_ns: u64,
}

impl YieldTimer {
    /// For a spin that begins at `now_ns`.
    #[inline(always)]
    pub fn new(mode: WaitMode, now_ns: u64) -> YieldTimer {
        YieldTimer { mode, yielded_at_ns: now_ns, unused: 0, yielded_ns: 0 }
    }

    /// The spin begins only now.
    fn begin(&mut self, now_ns: u64) {
        self.yielded_at_ns = now_ns;
    }

    /// Yields the CPU if the last time is long enough ago.
    #[inline(always)]
    pub fn yield_if_due(&mut self, now_ns: u64) {
        if self.is_due(now_ns) {
            // SAFETY: has no arguments, and touches no memory.
            unsafe { libc::sched_yield() };
            self.note_yield(now_ns, self::now_ns());
        }
    }

    fn note_yield(&mut self, before_ns: u64, after_ns: u64) {
        contention::note_yield(before_ns, after_ns);
        let length_ns = after_ns.saturating_sub(before_ns);
        if length_ns < UNUSED_YIELD_NS {
            self.unused += 1;
        } else {
            self.unused = 0;
            self.yielded_ns += length_ns;
        }
    }

    /// The wait has ended with an answer.
    #[inline(always)]
    pub fn note_answer(&self) {
        if self.is_for_peer() && self.yielded_ns > 0 {
            peer_yields::note_answer();
        }
    }

    /// The wait has ended at `now_ns` without an answer.
    pub fn note_no_answer(&self, now_ns: u64) {
        if self.is_for_peer() && self.yielded_ns >= peer_yields::LOST_NS {
            peer_yields::note_lost(self.yielded_ns, now_ns);
        }
    }

    /// Whether it yields to the peer, after each check.
    #[inline(always)]
    pub fn is_for_peer(&self) -> bool {
        self.mode == WaitMode::Yield
    }

    /// Whether it is pointless to go on: the peer is on this CPU, and does not want to run.
    pub fn is_pointless(&self) -> bool {
        self.is_for_peer() && self.unused >= UNUSED_YIELDS_MAX
    }

    /// Whether a yield is due at `now_ns`; then the next one is due an interval later.
    fn is_due(&mut self, now_ns: u64) -> bool {
        let passed_ns = now_ns.saturating_sub(self.yielded_at_ns);
        let is_due = self.is_for_peer() || passed_ns >= YIELD_INTERVAL_NS;
        if is_due {
            self.yielded_at_ns = now_ns;
        }
        is_due
    }
}

/// A spin. The caller calls [`Spin::step`] after each unsuccessful check.
pub struct Spin {
    begun_ns: u64,
    budget_ns: u64,
    kernel_checked_at_ns: u64,
    yield_timer: YieldTimer,
    spins: u32,
}

impl Spin {
    /// Begins a spin of at most `budget_ns`.
    #[inline(always)]
    pub fn begin(mode: WaitMode, budget_ns: u64) -> Spin {
        let yield_timer = YieldTimer::new(mode, 0);
        Spin { begun_ns: 0, budget_ns, kernel_checked_at_ns: 0, yield_timer, spins: 0 }
    }

    /// Whether the next step reads the clock: the time for what need not be looked at each time.
    #[inline(always)]
    pub fn is_clock_due(&self) -> bool {
        self.begun_ns == 0
            || self.yield_timer.is_for_peer()
            || (self.spins + 1).is_multiple_of(SPINS_PER_CLOCK_READ)
    }

    /// A check was successful.
    #[inline(always)]
    pub fn note_success(&self) {
        self.yield_timer.note_answer();
    }

    /// Decides how to go on after an unsuccessful check.
    #[inline(always)]
    pub fn step(&mut self) -> SpinStep {
        if self.budget_ns == 0 {
            return SpinStep::Sleep;
        }
        let is_clock_due = self.is_clock_due();
        self.spins += 1;
        if self.spins > EAGER_SPINS {
            std::hint::spin_loop();
        }
        if !is_clock_due {
            return SpinStep::Retry;
        }
        let now = now_ns();
        if self.begun_ns == 0 {
            self.begun_ns = now;
            self.kernel_checked_at_ns = now;
            self.yield_timer.begin(now);
        }
        let is_over = now.wrapping_sub(self.begun_ns) >= self.budget_ns;
        if is_over || self.yield_timer.is_pointless() {
            self.yield_timer.note_no_answer(now);
            return SpinStep::Sleep;
        }
        if now.wrapping_sub(self.kernel_checked_at_ns) >= KERNEL_CHECK_NS {
            self.kernel_checked_at_ns = now;
            return SpinStep::CheckKernel;
        }
        self.yield_timer.yield_if_due(now);
        SpinStep::Retry
    }
}

/// Longest spin that the settings allow, ns.
pub fn spin_ns_max() -> u64 {
    SPIN_NS.load(Ordering::Relaxed)
}

/// Spin budget in that mode, ns, of what `word` stores.
#[inline(always)]
pub fn budget(word: &AtomicU64, mode: WaitMode) -> u64 {
    let budget_ns = word.load(Ordering::Relaxed).min(spin_ns_max());
    match mode {
        WaitMode::Sleep => 0,
        // One yield: a peer that could run has run then.
        WaitMode::Yield if budget_ns <= SPIN_NS_MIN => budget_ns.min(1),
        WaitMode::Yield | WaitMode::Spin => budget_ns,
    }
}

/// Adjusts the spin budget: an unsuccessful spin halves it, a successful one doubles it. If both
/// ends have begun to sleep at once, no short spin would ever succeed again, so one of many is as
/// long as the settings allow.
pub fn adjust_budget(socket: &Socket, success: bool) {
    let word = &socket.spin_budget_ns;
    let failed = &socket.failed_spins;
    let longest = spin_ns_max();
    let old = word.load(Ordering::Relaxed).min(longest);
    let shortest = SPIN_NS_MIN.min(longest);
    let new = if success {
        failed.reset();
        first_budget::note_success();
        old.saturating_mul(2).min(longest)
    } else {
        let count = failed.add();
        first_budget::note_failures(count, shortest);
        match count {
            count if FailedAttempts::is_trial(count) => longest,
            count if FailedAttempts::are_many(count) => shortest,
            _ => (old / 2).max(shortest),
        }
    };
    if new != old {
        word.store(new, Ordering::Relaxed);
    }
}

/// A call's time limit, and the counts of signals when it began.
pub struct WaitLimit {
    deadline: Option<u64>,
    limited: bool,
    signals: u32,
    all_signals: u32,
}

/// Monotonic time, ns.
pub fn now_ns() -> u64 {
    clock_ns(libc::CLOCK_MONOTONIC)
}

/// Monotonic time at the kernel's last tick, ns: up to 10 ms ago. Reading it costs a fraction of
/// [`now_ns`].
pub fn tick_ns() -> u64 {
    clock_ns(libc::CLOCK_MONOTONIC_COARSE)
}

fn clock_ns(clock: libc::clockid_t) -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the time is live; libc asks the vDSO.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

impl WaitLimit {
    /// For a call that begins now and may last `limit_ns`.
    #[inline(always)]
    pub fn new(limit_ns: Option<u64>) -> WaitLimit {
        WaitLimit {
            deadline: limit_ns.map(|ns| now_ns().saturating_add(ns)),
            limited: limit_ns.is_some(),
            signals: signals::interrupt_count(),
            all_signals: signals::delivery_count(),
        }
    }

    /// Whether a handler has run that ends this call: each one without `SA_RESTART`, and any if
    /// there is a time limit.
    #[inline(always)]
    pub fn interrupted(&self) -> bool {
        signals::interrupt_count() != self.signals
            || self.limited && signals::delivery_count() != self.all_signals
    }

    /// Whether any handler has run: it ends a call that has done a part.
    pub fn has_seen_handler(&self) -> bool {
        signals::delivery_count() != self.all_signals
    }

    /// Remaining time, ns, if there is a limit.
    pub fn left_ns(&self) -> Option<u64> {
        self.deadline.map(|deadline| deadline.saturating_sub(now_ns()))
    }
}

/// Waits for `pause_ns` without touching memory.
pub fn pause(pause_ns: u64) {
    let begun_ns = now_ns();
    while now_ns().wrapping_sub(begun_ns) < pause_ns {
        std::hint::spin_loop();
    }
}

/// Sleeps until memory has bytes, the peer says that the kernel has some, or `limit_ns` has passed:
/// a wake-up from here costs less than one by the kernel's TCP. Nobody reports the peer's end here,
/// so the caller keeps it short. It may return early.
pub fn sleep_for_memory(socket: &Socket, limit_ns: u64) {
    let sleeper = &socket.incoming().kernel_use.sleeper;
    sleeper.store(1, Ordering::SeqCst);
    // This end announces its sleep, then looks for bytes; the peer publishes its bytes, then looks
    // for sleepers.
    fence(Ordering::SeqCst);
    if !socket.has_memory_bytes() && !socket.kernel_has_bytes_for_us() {
        socket.record().incoming.sleeps.add(1);
        nm_sys::futex::wait(sleeper, 1, std::time::Duration::from_nanos(limit_ns));
        if socket.has_memory_bytes() {
            socket.record().incoming.wakeups.add(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spin_yields_once_in_each_interval() {
        let mut timer = YieldTimer::new(WaitMode::Spin, 1_000);
        let times_ns = (1_000..50_000).step_by(2_500);
        let yields: Vec<u64> = times_ns.filter(|now_ns| timer.is_due(*now_ns)).collect();
        assert_eq!(yields, [11_000, 21_000, 31_000, 41_000]);
    }

    #[test]
    fn waits_for_a_peer_on_the_same_cpu_end_when_nobody_uses_yields() {
        let long_ns = UNUSED_YIELD_NS;
        let yields = [WaitMode::Yield, WaitMode::Spin].map(|mode| {
            let mut timer = YieldTimer::new(mode, 0);
            (1..100).find(|&count| {
                // The peer runs once, after the third yield.
                timer.note_yield(0, if count == 4 { long_ns } else { long_ns - 1 });
                assert!(timer.is_due(1) == (mode == WaitMode::Yield));
                timer.is_pointless()
            })
        });
        assert_eq!(yields, [Some(4 + UNUSED_YIELDS_MAX), None]);
    }

    #[test]
    fn a_short_budget_is_one_yield_and_none_is_none() {
        SPIN_NS.store(200_000, Ordering::Relaxed);
        let budgets = |word_ns| {
            let word = AtomicU64::new(word_ns);
            [WaitMode::Sleep, WaitMode::Yield, WaitMode::Spin].map(|mode| budget(&word, mode))
        };
        assert_eq!(budgets(u64::MAX), [0, 200_000, 200_000]);
        assert_eq!(budgets(SPIN_NS_MIN + 1), [0, SPIN_NS_MIN + 1, SPIN_NS_MIN + 1]);
        assert_eq!(budgets(SPIN_NS_MIN), [0, 1, SPIN_NS_MIN]);
        assert_eq!(budgets(0), [0, 0, 0]);
    }
}
