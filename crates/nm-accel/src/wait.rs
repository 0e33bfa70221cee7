//! Waiting: a spin as long as it pays, then a sleep that ends with the peer's bell, with anything
//! that the kernel socket says, with a signal, or with the time limit.

use std::ffi::{c_int, c_ulong};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use libc::pollfd;
use nm_ring::ledger::DirectionCounters;

use crate::settings::Settings;
use crate::socket::{PIPE, Socket, WRITABLE_BYTES};
use crate::{kernel, signals};

/// Longest spin unless the settings say otherwise, µs.
const SPIN_US: u32 = 200;

/// Shortest spin that the budget shrinks to, ns: about a wake-up's worth of looking costs nothing.
const SHORTEST_NS: u64 = 2_000;

/// Between two looks at the kernel socket while spinning, ns.
const LOOK_NS: u64 = 50_000;

/// Of so many spins in vain the last is as long as the settings allow.
const PROBE: u32 = 16;

/// Looks at the pipe before the clock is read again.
const LOOKS: u32 = 64;

static SPIN_NS: AtomicU64 = AtomicU64::new(0);
/// Whether this machine has one CPU only.
static ALONE: AtomicBool = AtomicBool::new(false);
/// Where the kernel keeps a thread's CPU number, from the thread pointer on; 0 if it does not.
static RSEQ_OFFSET: AtomicUsize = AtomicUsize::new(0);

/// Reads what waiting goes by: settings, clock, CPUs. Once, in the constructor.
pub fn prepare() {
    let spin_us = Settings::get().spin_us.unwrap_or(SPIN_US);
    SPIN_NS.store(u64::from(spin_us) * 1000, Ordering::Relaxed);
    // SAFETY: asks for a number. What this process is pinned to does not count: its peer may well
    // run elsewhere, and says where.
    let online = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) };
    ALONE.store(online == 1, Ordering::Relaxed);
    // SAFETY: a look-up by name; glibc from 2.35 on exports the offset as a constant.
    let place = unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"__rseq_offset".as_ptr()) };
    // SAFETY: as above: it is the address of a `ptrdiff_t` that does not change.
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
    // SAFETY: the first word of the thread's control block is its own address.
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

/// What to do after a fruitless look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Look again.
    Again,
    /// Look again, and at the kernel socket as well.
    AgainAndKernel,
    /// The spin has lasted long enough: sleep.
    GiveUp,
    /// A handler without `SA_RESTART` ran: end the call.
    Interrupted,
}

/// A spin. The caller looks, and asks after each fruitless look.
pub struct Spin {
    begun: u64,
    budget: u64,
    kernel_at: u64,
    looks: u32,
    signals: u32,
}

impl Spin {
    /// Begins a spin of at most `budget_ns`; `signals` is [`signals::count`] as of the beginning
    /// of the call.
    #[inline(always)]
    pub fn begin(budget_ns: u64, signals: u32) -> Spin {
        Spin { begun: 0, budget: budget_ns, kernel_at: 0, looks: 0, signals }
    }

    /// After a fruitless look.
    #[inline(always)]
    pub fn turn(&mut self) -> Turn {
        std::hint::spin_loop();
        self.looks += 1;
        if !self.looks.is_multiple_of(LOOKS) && self.begun != 0 {
            return Turn::Again;
        }
        let now = now_ns();
        if self.begun == 0 {
            self.begun = now;
            self.kernel_at = now;
        }
        if signals::count() != self.signals {
            return Turn::Interrupted;
        }
        if now.wrapping_sub(self.begun) >= self.budget {
            return Turn::GiveUp;
        }
        if now.wrapping_sub(self.kernel_at) >= LOOK_NS {
            self.kernel_at = now;
            return Turn::AgainAndKernel;
        }
        Turn::Again
    }
}

/// Longest spin that the settings allow, in ns.
pub fn longest_spin() -> u64 {
    SPIN_NS.load(Ordering::Relaxed)
}

/// How long to spin for this socket now, in ns: nothing where both ends share a CPU.
#[inline(always)]
pub fn budget(socket: &Socket, writer: bool) -> u64 {
    let here = cpu();
    socket.own().set_cpu(here);
    if ALONE.load(Ordering::Relaxed) || socket.peer().cpu() == Some(here) {
        return 0;
    }
    socket.budgets[usize::from(writer)].load(Ordering::Relaxed).min(longest_spin())
}

/// Learns from a spin: one that was in vain halves the next, one that succeeded doubles it. Where
/// both ends have come to sleep at once, no short spin would ever succeed again, so that now and
/// then one is as long as the settings allow.
pub fn learn(socket: &Socket, writer: bool, success: bool) {
    let word = &socket.budgets[usize::from(writer)];
    let failed = &socket.failed_spins[usize::from(writer)];
    let longest = longest_spin();
    let old = word.load(Ordering::Relaxed).min(longest);
    let shortest = SHORTEST_NS.min(longest);
    let new = if success {
        if failed.load(Ordering::Relaxed) != 0 {
            failed.store(0, Ordering::Relaxed);
        }
        old.saturating_mul(2).min(longest)
    } else {
        match failed.fetch_add(1, Ordering::Relaxed) + 1 {
            count if count % PROBE == 0 => longest,
            count if count > PROBE => shortest,
            _ => (old / 2).max(shortest),
        }
    };
    if new != old {
        word.store(new, Ordering::Relaxed);
    }
}

/// How a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Woken {
    /// Look again.
    Look,
    /// The time limit passed.
    TimedOut,
    /// A handler ran, and the call must end.
    Interrupted,
}

/// A call's time limit and what it has seen of signals.
pub struct Patience {
    deadline: Option<u64>,
    limited: bool,
    signals: u32,
    all_signals: u32,
}

/// Monotonic time in ns.
pub fn now_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the time is live; libc asks the vDSO.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

impl Patience {
    /// For a call that begins now and may last `limit_ns`.
    #[inline(always)]
    pub fn new(limit_ns: Option<u64>) -> Patience {
        Patience {
            deadline: limit_ns.map(|ns| now_ns().saturating_add(ns)),
            limited: limit_ns.is_some(),
            signals: signals::count(),
            all_signals: signals::count_all(),
        }
    }

    /// Whether a handler has run that ends this call: each without `SA_RESTART`, and with a time
    /// limit any.
    #[inline(always)]
    pub fn interrupted(&self) -> bool {
        signals::count() != self.signals || self.limited && signals::count_all() != self.all_signals
    }

    /// Time left in ns, if there is a limit.
    pub fn left_ns(&self) -> Option<u64> {
        self.deadline.map(|deadline| deadline.saturating_sub(now_ns()))
    }
}

/// Waits until the socket may have something to read.
#[inline(always)]
pub fn readable(socket: &'static Socket, fd: c_int, patience: &Patience) -> Woken {
    let back = socket.incoming();
    if socket.stage_in.load(Ordering::Relaxed) == PIPE {
        let ready = || back.readable() > 0 || back.ends_at().is_some();
        match spin(socket, fd, patience, false, ready) {
            Woken::TimedOut => {}
            woken => return woken,
        }
    }
    sleep(socket, fd, patience, false, || {
        back.readable() > 0 && socket.pipe_is_next()
            || back.ends_at().is_some() && socket.stage_in.load(Ordering::Relaxed) == PIPE
    })
}

/// Waits until the socket may take something.
pub fn writable(socket: &'static Socket, fd: c_int, patience: &Patience) -> Woken {
    let out = socket.outgoing();
    if socket.stage_out.load(Ordering::Relaxed) == PIPE {
        let ready = || out.writable() >= WRITABLE_BYTES || out.ends_at().is_some();
        match spin(socket, fd, patience, true, ready) {
            Woken::TimedOut => {}
            woken => return woken,
        }
    }
    sleep(socket, fd, patience, true, || {
        socket.stage_out.load(Ordering::Relaxed) == PIPE
            && (out.writable() >= WRITABLE_BYTES || out.ends_at().is_some())
    })
}

/// The counts of the direction that is waited for.
fn flow(socket: &Socket, writer: bool) -> &'static DirectionCounters {
    let record = socket.record();
    if writer { &record.outgoing } else { &record.incoming }
}

/// Spins; `TimedOut` says that a sleep is due.
#[inline(always)]
fn spin(
    socket: &'static Socket,
    fd: c_int,
    patience: &Patience,
    writer: bool,
    ready: impl Fn() -> bool,
) -> Woken {
    let budget = budget(socket, writer);
    if budget == 0 {
        return Woken::TimedOut;
    }
    let mut spin = Spin::begin(budget, signals::count());
    loop {
        if ready() {
            learn(socket, writer, true);
            return Woken::Look;
        }
        match spin.turn() {
            Turn::Again => {}
            Turn::AgainAndKernel => {
                if patience.left_ns() == Some(0) {
                    return Woken::TimedOut;
                }
                let news = socket.look(fd) & !(libc::EPOLLOUT | libc::EPOLLWRNORM) as u32;
                if news != 0 && !writer {
                    return Woken::Look;
                }
                if news & (libc::EPOLLHUP | libc::EPOLLERR | libc::EPOLLRDHUP) as u32 != 0 {
                    return Woken::Look;
                }
            }
            Turn::GiveUp => {
                learn(socket, writer, false);
                flow(socket, writer).failed_spins.add(1);
                return Woken::TimedOut;
            }
            Turn::Interrupted => {
                if patience.interrupted() {
                    return Woken::Interrupted;
                }
            }
        }
        if socket.name_inside(fd) != fd {
            return Woken::Look;
        }
    }
}

/// Sleeps on the kernel socket and the own bell.
fn sleep(
    socket: &'static Socket,
    fd: c_int,
    patience: &Patience,
    writer: bool,
    ready: impl Fn() -> bool,
) -> Woken {
    let mut events = libc::POLLRDHUP;
    let in_kernel = if writer { &socket.stage_out } else { &socket.stage_in };
    if !writer {
        events |= libc::POLLIN;
    } else {
        if in_kernel.load(Ordering::Relaxed) != PIPE {
            events |= libc::POLLOUT;
        }
        // What is known already would end each sleep at once.
        if socket.known() & libc::EPOLLRDHUP as u32 != 0 {
            events &= !libc::POLLRDHUP;
        }
    }
    socket.lie_down();
    socket.arm(!writer, writer);
    let result = loop {
        if ready() || socket.name_inside(fd) != fd {
            break Woken::Look;
        }
        let left = patience.left_ns();
        if left == Some(0) {
            break Woken::TimedOut;
        }
        let time = signals::sleep_timeout(left);
        if patience.interrupted() {
            break Woken::Interrupted;
        }
        let bell = pollfd { fd: socket.bell(), events: libc::POLLIN, revents: 0 };
        let mut both = [pollfd { fd, events, revents: 0 }, bell];
        flow(socket, writer).sleeps.add(1);
        // SAFETY: both arrays are live; the time is this thread's own place for it.
        let count = unsafe { kernel::ppoll(both.as_mut_ptr(), 2, time, std::ptr::null(), 0) };
        if both[1].revents != 0 {
            socket.hush_asleep();
        }
        if count > 0 {
            if both[0].revents != 0 {
                socket.look(fd);
            }
            break Woken::Look;
        }
        if patience.interrupted() {
            break Woken::Interrupted;
        }
        if count < 0 && kernel::errno() != libc::EINTR {
            break Woken::Look;
        }
    };
    socket.disarm(!writer, writer);
    socket.get_up();
    result
}

/// The time in the form that the kernel takes.
pub fn timespec(ns: u64) -> libc::timespec {
    let nanoseconds = (ns % 1_000_000_000) as c_ulong;
    libc::timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: nanoseconds as i64 }
}
