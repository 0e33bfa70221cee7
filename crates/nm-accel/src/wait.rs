//! Waiting: a spin for as long as it pays, then a sleep that ends with the peer's doorbell, with an
//! event of the kernel socket, with a signal, or at the time limit.

use std::ffi::{c_int, c_ulong};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use libc::pollfd;
use nm_ring::ledger::DirectionCounters;

use crate::settings::Settings;
use crate::socket::{IN_PIPE, Socket, WRITABLE_BYTES};
use crate::{kernel, signals};

/// Longest spin unless the settings say otherwise, µs.
const SPIN_US: u32 = 200;

/// Shortest spin budget, ns: a spin this short costs less than a wake-up.
const SPIN_NS_MIN: u64 = 2_000;

/// Interval between two polls of the kernel socket while spinning, ns.
const KERNEL_CHECK_NS: u64 = 50_000;

/// One of so many unsuccessful spins is as long as the settings allow, to find out whether spinning
/// pays again.
const PROBE_EVERY: u32 = 16;

/// Checks of the pipe between two reads of the clock.
const SPINS_PER_CLOCK_READ: u32 = 64;

static SPIN_NS: AtomicU64 = AtomicU64::new(0);
/// Whether this machine has only one CPU.
static SINGLE_CPU: AtomicBool = AtomicBool::new(false);
/// Offset from the thread pointer at which the kernel stores a thread's CPU number; 0 if it does
/// not.
static RSEQ_OFFSET: AtomicUsize = AtomicUsize::new(0);

/// Initialises what waiting depends on: settings, clock, CPUs. Called once, by the constructor.
pub fn prepare() {
    let spin_us = Settings::get().spin_us.unwrap_or(SPIN_US);
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
    /// Check again, and poll the kernel socket as well.
    CheckKernel,
    /// The budget is used up: sleep.
    Sleep,
    /// A handler without `SA_RESTART` ran: the call ends.
    Interrupted,
}

/// A spin. The caller calls [`Spin::step`] after each unsuccessful check.
pub struct Spin {
    begun_ns: u64,
    budget_ns: u64,
    kernel_checked_at_ns: u64,
    spins: u32,
    signals: u32,
}

impl Spin {
    /// Begins a spin of at most `budget_ns`; `signals` is [`signals::interrupt_count`] at the
    /// beginning of the call.
    #[inline(always)]
    pub fn begin(budget_ns: u64, signals: u32) -> Spin {
        Spin { begun_ns: 0, budget_ns, kernel_checked_at_ns: 0, spins: 0, signals }
    }

    /// Decides how to go on after an unsuccessful check.
    #[inline(always)]
    pub fn step(&mut self) -> SpinStep {
        std::hint::spin_loop();
        self.spins += 1;
        if !self.spins.is_multiple_of(SPINS_PER_CLOCK_READ) && self.begun_ns != 0 {
            return SpinStep::Retry;
        }
        let now = now_ns();
        if self.begun_ns == 0 {
            self.begun_ns = now;
            self.kernel_checked_at_ns = now;
        }
        if signals::interrupt_count() != self.signals {
            return SpinStep::Interrupted;
        }
        if now.wrapping_sub(self.begun_ns) >= self.budget_ns {
            return SpinStep::Sleep;
        }
        if now.wrapping_sub(self.kernel_checked_at_ns) >= KERNEL_CHECK_NS {
            self.kernel_checked_at_ns = now;
            return SpinStep::CheckKernel;
        }
        SpinStep::Retry
    }
}

/// Longest spin that the settings allow, ns.
pub fn spin_ns_max() -> u64 {
    SPIN_NS.load(Ordering::Relaxed)
}

/// Spin budget of this socket now, ns: zero if both ends share a CPU.
#[inline(always)]
pub fn budget(socket: &Socket, writer: bool) -> u64 {
    let here = cpu();
    socket.own().set_cpu(here);
    if SINGLE_CPU.load(Ordering::Relaxed) || socket.peer().cpu() == Some(here) {
        return 0;
    }
    socket.spin_budgets_ns[usize::from(writer)].load(Ordering::Relaxed).min(spin_ns_max())
}

/// Adjusts the spin budget: an unsuccessful spin halves it, a successful one doubles it. If both
/// ends have begun to sleep at once, no short spin would ever succeed again, so one of
/// [`PROBE_EVERY`] is as long as the settings allow.
pub fn adjust_budget(socket: &Socket, writer: bool, success: bool) {
    let word = &socket.spin_budgets_ns[usize::from(writer)];
    let failed = &socket.failed_spins[usize::from(writer)];
    let longest = spin_ns_max();
    let old = word.load(Ordering::Relaxed).min(longest);
    let shortest = SPIN_NS_MIN.min(longest);
    let new = if success {
        if failed.load(Ordering::Relaxed) != 0 {
            failed.store(0, Ordering::Relaxed);
        }
        old.saturating_mul(2).min(longest)
    } else {
        match failed.fetch_add(1, Ordering::Relaxed) + 1 {
            count if count % PROBE_EVERY == 0 => longest,
            count if count > PROBE_EVERY => shortest,
            _ => (old / 2).max(shortest),
        }
    };
    if new != old {
        word.store(new, Ordering::Relaxed);
    }
}

/// Result of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitOutcome {
    /// Try the transfer again.
    Retry,
    /// The time limit has passed.
    TimedOut,
    /// A handler ran, and the call must return `EINTR`.
    Interrupted,
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
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the time is live; libc asks the vDSO.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
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

    /// Remaining time, ns, if there is a limit.
    pub fn left_ns(&self) -> Option<u64> {
        self.deadline.map(|deadline| deadline.saturating_sub(now_ns()))
    }
}

/// Waits until the socket may be readable.
#[inline(always)]
pub fn readable(socket: &'static Socket, fd: c_int, limit: &WaitLimit) -> WaitOutcome {
    let incoming = socket.incoming();
    if socket.incoming_stage.load(Ordering::Relaxed) == IN_PIPE {
        let ready = || incoming.readable() > 0 || incoming.ends_at().is_some();
        match spin(socket, fd, limit, false, ready) {
            WaitOutcome::TimedOut => {}
            outcome => return outcome,
        }
    }
    sleep(socket, fd, limit, false, || {
        incoming.readable() > 0 && socket.pipe_is_next()
            || incoming.ends_at().is_some()
                && socket.incoming_stage.load(Ordering::Relaxed) == IN_PIPE
    })
}

/// Waits until the socket may be writable.
pub fn writable(socket: &'static Socket, fd: c_int, limit: &WaitLimit) -> WaitOutcome {
    let outgoing = socket.outgoing();
    if socket.outgoing_stage.load(Ordering::Relaxed) == IN_PIPE {
        let ready = || outgoing.writable() >= WRITABLE_BYTES || outgoing.ends_at().is_some();
        match spin(socket, fd, limit, true, ready) {
            WaitOutcome::TimedOut => {}
            outcome => return outcome,
        }
    }
    sleep(socket, fd, limit, true, || {
        socket.outgoing_stage.load(Ordering::Relaxed) == IN_PIPE
            && (outgoing.writable() >= WRITABLE_BYTES || outgoing.ends_at().is_some())
    })
}

/// The counters of the direction that is waited for.
fn counters(socket: &Socket, writer: bool) -> &'static DirectionCounters {
    let record = socket.record();
    if writer { &record.outgoing } else { &record.incoming }
}

/// Spins; `TimedOut` means that the caller should sleep.
#[inline(always)]
fn spin(
    socket: &'static Socket,
    fd: c_int,
    limit: &WaitLimit,
    writer: bool,
    ready: impl Fn() -> bool,
) -> WaitOutcome {
    let budget = budget(socket, writer);
    if budget == 0 {
        return WaitOutcome::TimedOut;
    }
    let mut spin = Spin::begin(budget, signals::interrupt_count());
    loop {
        if ready() {
            adjust_budget(socket, writer, true);
            return WaitOutcome::Retry;
        }
        match spin.step() {
            SpinStep::Retry => {}
            SpinStep::CheckKernel => {
                if limit.left_ns() == Some(0) {
                    return WaitOutcome::TimedOut;
                }
                let kernel_events =
                    socket.poll_kernel_events(fd) & !(libc::EPOLLOUT | libc::EPOLLWRNORM) as u32;
                if kernel_events != 0 && !writer {
                    return WaitOutcome::Retry;
                }
                if kernel_events & (libc::EPOLLHUP | libc::EPOLLERR | libc::EPOLLRDHUP) as u32 != 0
                {
                    return WaitOutcome::Retry;
                }
            }
            SpinStep::Sleep => {
                adjust_budget(socket, writer, false);
                counters(socket, writer).failed_spins.add(1);
                return WaitOutcome::TimedOut;
            }
            SpinStep::Interrupted => {
                if limit.interrupted() {
                    return WaitOutcome::Interrupted;
                }
            }
        }
        if socket.current_descriptor(fd) != fd {
            return WaitOutcome::Retry;
        }
    }
}

/// Sleeps on the kernel socket and this end's doorbell.
fn sleep(
    socket: &'static Socket,
    fd: c_int,
    limit: &WaitLimit,
    writer: bool,
    ready: impl Fn() -> bool,
) -> WaitOutcome {
    let mut events = libc::POLLRDHUP;
    let stage = if writer { &socket.outgoing_stage } else { &socket.incoming_stage };
    if !writer {
        events |= libc::POLLIN;
    } else {
        if stage.load(Ordering::Relaxed) != IN_PIPE {
            events |= libc::POLLOUT;
        }
        // Events that are known already would end each sleep at once.
        if socket.kernel_events() & libc::EPOLLRDHUP as u32 != 0 {
            events &= !libc::POLLRDHUP;
        }
    }
    socket.begin_sleep();
    socket.arm(!writer, writer);
    let result = loop {
        if ready() || socket.current_descriptor(fd) != fd {
            break WaitOutcome::Retry;
        }
        let left = limit.left_ns();
        if left == Some(0) {
            break WaitOutcome::TimedOut;
        }
        let time = signals::sleep_timeout(left);
        if limit.interrupted() {
            break WaitOutcome::Interrupted;
        }
        let doorbell = pollfd { fd: socket.doorbell(), events: libc::POLLIN, revents: 0 };
        let mut entries = [pollfd { fd, events, revents: 0 }, doorbell];
        counters(socket, writer).sleeps.add(1);
        // SAFETY: the array is live; the time is in this thread's own memory.
        let count = unsafe { kernel::ppoll(entries.as_mut_ptr(), 2, time, std::ptr::null(), 0) };
        if entries[1].revents != 0 {
            socket.drain_as_sleeper();
        }
        if count > 0 {
            if entries[0].revents != 0 {
                socket.poll_kernel_events(fd);
            }
            break WaitOutcome::Retry;
        }
        if limit.interrupted() {
            break WaitOutcome::Interrupted;
        }
        if count < 0 && kernel::errno() != libc::EINTR {
            break WaitOutcome::Retry;
        }
    };
    socket.disarm(!writer, writer);
    socket.end_sleep();
    result
}

/// The time as the kernel's structure.
pub fn timespec(ns: u64) -> libc::timespec {
    let nanoseconds = (ns % 1_000_000_000) as c_ulong;
    libc::timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: nanoseconds as i64 }
}
