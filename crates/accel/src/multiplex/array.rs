//! Waiting for an array of descriptors: the common part of poll and select.

use std::cell::Cell;
use std::ffi::c_void;

use libc::{c_int, pollfd, timespec};

use super::epoll_set::EpollSet;
use super::registry;
use super::spin::{SetSpin, SetSpinStep};
use crate::attempts::Next;
use crate::socket::{Phase, Socket};
use crate::table::CallGuard;
use crate::wait::WaitLimit;
use crate::{blocking, kernel, signals, table};

/// Largest count of descriptors for which a call allocates no memory.
pub const SMALL: usize = 64;

/// Bytes of the kernel's signal set.
const MASK_BYTES: usize = 8;

/// Calls of a thread that are answered without the kernel, before the kernel is polled too.
const MEMORY_ONLY_CALLS: u32 = 64;

/// Events of bytes that have arrived.
const INPUT: i16 = libc::POLLIN | libc::POLLRDNORM;

/// Events that the kernel alone reports, but that no program waits for together with input: they
/// come a little later if memory has input all the time.
const END: i16 = libc::POLLRDHUP | libc::POLLPRI | libc::POLLRDBAND;

std::thread_local! {
    /// Count of the latest calls that were answered without the kernel.
    static CALLS_WITHOUT_KERNEL: Cell<u32> = const { Cell::new(0) };
}

/// What a descriptor refers to.
#[derive(Default)]
enum Source {
    /// The kernel alone reports it.
    #[default]
    Kernel,
    /// A socket that shares memory, or may do so soon.
    Socket { socket: &'static Socket, _guard: CallGuard, is_counted: bool },
    /// An epoll set, whose members are all counted.
    EpollSet(&'static EpollSet),
}

impl Source {
    fn of(entry: &pollfd) -> Source {
        let Some(socket) = table::get(entry.fd) else {
            return registry::get(entry.fd).map_or(Source::Kernel, Source::EpollSet);
        };
        match table::enter(socket, entry.fd) {
            Some(guard) if socket.phase() != Phase::Kernel => {
                Source::Socket { socket, _guard: guard, is_counted: false }
            }
            _ => Source::Kernel,
        }
    }

    /// The joined socket.
    #[inline]
    fn joined(&self) -> Option<&'static Socket> {
        match self {
            Source::Socket { socket, .. } if socket.is_joined() => Some(socket),
            _ => None,
        }
    }

    /// What memory reports of it, of the events that `entry` requests.
    #[inline]
    fn memory_events(&self, entry: &pollfd) -> i16 {
        let is_ready = entry.events & INPUT != 0
            && match self {
                Source::Kernel => false,
                Source::Socket { .. } => self.joined().is_some_and(Socket::has_memory_bytes),
                Source::EpollSet(set) => set.is_pending(),
            };
        if is_ready { entry.events & INPUT } else { 0 }
    }
}

/// Whether the kernel alone reports the readiness of `fd`. An epoll set is waited for by the kernel
/// from now on.
#[inline]
pub fn is_kernel_only(fd: c_int) -> bool {
    match table::get(fd) {
        Some(socket) => socket.phase() == Phase::Kernel,
        None => registry::get(fd).is_none_or(|set| {
            set.become_external();
            set.is_kernel_only()
        }),
    }
}

/// Waits as `ppoll` does; `None` is no time limit. Returns the call's result, with errno set for
/// −1. A cancellation point: its sleep is libc's own call.
///
/// # Safety
/// `mask` is null or points to a signal set.
pub unsafe fn wait(fds: &mut [pollfd], limit_ns: Option<u64>, mask: *const c_void) -> c_int {
    blocking::cancellation_point();
    let count = fds.len();
    if count <= 8 {
        let mut sources = [const { Source::Kernel }; 8];
        return Call::new(fds, &mut sources[..count], mask).wait(limit_ns);
    }
    if count <= SMALL {
        let mut sources = [const { Source::Kernel }; SMALL];
        return Call::new(fds, &mut sources[..count], mask).wait(limit_ns);
    }
    let mut sources = Vec::new();
    sources.resize_with(count, Source::default);
    Call::new(fds, &mut sources, mask).wait(limit_ns)
}

struct Call<'a> {
    fds: &'a mut [pollfd],
    sources: &'a mut [Source],
    mask: *const c_void,
    signals: u32,
}

/// Result of a step: the call's result, or nothing yet.
type Found = Option<c_int>;

impl<'a> Call<'a> {
    fn new(fds: &'a mut [pollfd], sources: &'a mut [Source], mask: *const c_void) -> Call<'a> {
        for (entry, source) in fds.iter_mut().zip(sources.iter_mut()) {
            entry.revents = 0;
            *source = Source::of(entry);
        }
        Call { fds, sources, mask, signals: signals::delivery_count() }
    }

    fn wait(&mut self, limit_ns: Option<u64>) -> c_int {
        // Without memory that is worth looking into, the sleep in the kernel is the only call.
        let attempt = self.next_attempt();
        let looks = attempt != Next::LeaveOut;
        let must_check = limit_ns == Some(0) || looks || self.memory_is_ready();
        if must_check && let Some(result) = self.check() {
            return result;
        }
        if limit_ns == Some(0) {
            return 0;
        }
        let limit = WaitLimit::new(limit_ns);
        loop {
            let spun = if looks { self.spin(attempt, &limit) } else { None };
            if let Some(result) = spun.or_else(|| self.sleep(&limit)) {
                return result;
            }
            // The kernel has just said that it has nothing.
            let is_over = limit.left_ns() == Some(0);
            if is_over && !self.memory_is_ready() {
                return 0;
            }
            if let Some(result) = self.check() {
                return result;
            }
            if is_over {
                return 0;
            }
        }
    }

    fn pairs(&self) -> impl Iterator<Item = (&pollfd, &Source)> {
        self.fds.iter().zip(self.sources.iter())
    }

    /// Whether memory may have something to report.
    fn has_memory(&self) -> bool {
        self.pairs()
            .any(|(_, source)| source.joined().is_some() || matches!(source, Source::EpollSet(_)))
    }

    /// Whether memory has something to report.
    #[inline]
    fn memory_is_ready(&self) -> bool {
        self.pairs().any(|(entry, source)| source.memory_events(entry) != 0)
    }

    /// The joined socket whose spins show whether memory is of use.
    fn spin_target(&self) -> Option<&'static Socket> {
        self.pairs()
            .find_map(|(entry, source)| source.joined().filter(|_| entry.events & INPUT != 0))
    }

    /// Whether to look into memory before the sleep: not if there is none, nor if all that has come
    /// lately came through the kernel.
    fn next_attempt(&self) -> Next {
        match self.spin_target() {
            Some(target) => target.failed_spins.next(),
            None if self.has_memory() => Next::Make,
            None => Next::LeaveOut,
        }
    }

    /// Whether memory reports everything that is asked for.
    fn memory_is_sufficient(&self) -> bool {
        self.pairs().all(|(entry, source)| {
            entry.fd < 0
                || source.joined().is_some()
                    && entry.events & !(INPUT | END) == 0
                    && source.memory_events(entry) != 0
        })
    }

    /// Whether the kernel is polled although memory has reported everything, so that it can report
    /// an end.
    fn is_kernel_turn() -> bool {
        CALLS_WITHOUT_KERNEL.with(|calls| {
            calls.set((calls.get() + 1) % MEMORY_ONLY_CALLS);
            calls.get() == 0
        })
    }

    /// Adds the events of memory to those of the kernel; returns the count of entries with events.
    fn add_memory_events(&mut self) -> c_int {
        let mut found = 0;
        for (entry, source) in self.fds.iter_mut().zip(self.sources.iter()) {
            entry.revents |= source.memory_events(entry);
            found += c_int::from(entry.revents != 0);
        }
        found
    }

    /// Asks memory, and the kernel unless memory has reported everything.
    fn check(&mut self) -> Found {
        let is_ready = self.memory_is_ready();
        if is_ready && let Some(target) = self.spin_target() {
            target.failed_spins.reset();
        }
        if is_ready && self.memory_is_sufficient() && !Call::is_kernel_turn() {
            self.fds.iter_mut().for_each(|entry| entry.revents = 0);
            return Some(self.add_memory_events()).filter(|&found| found > 0);
        }
        self.check_kernel(is_ready)
    }

    /// Polls the kernel, which fills the array and delivers signals that the mask allows, and adds
    /// the events of memory. `is_ready`: memory has some.
    fn check_kernel(&mut self, is_ready: bool) -> Found {
        let saved = kernel::errno();
        let mut now = timespec { tv_sec: 0, tv_nsec: 0 };
        let (first, count) = (self.fds.as_mut_ptr(), self.fds.len());
        // SAFETY: the whole array; the time is live; the caller of `wait` guarantees the mask.
        let result = unsafe { kernel::ppoll(first, count, &raw mut now, self.mask, MASK_BYTES) };
        if result < 0 && !is_ready {
            return Some(-1);
        }
        kernel::set_errno(saved);
        self.note_kernel_events(result);
        Some(self.add_memory_events()).filter(|&found| found > 0)
    }

    /// The kernel has reported `count` entries: the next receiving calls ask it.
    fn note_kernel_events(&self, count: c_int) {
        if count <= 0 {
            return;
        }
        for (entry, source) in self.pairs() {
            if entry.revents & !(libc::POLLOUT | libc::POLLWRNORM) != 0
                && let Source::Socket { socket, .. } = source
            {
                socket.note_kernel_event();
            }
        }
    }

    /// Spins over the joined sockets of which input is wanted.
    fn spin(&mut self, attempt: Next, limit: &WaitLimit) -> Found {
        let wants_input = |entry: &pollfd| entry.events & INPUT != 0;
        let target = self.spin_target()?;
        let is_all_memory = self.mask.is_null()
            && self.pairs().all(|(entry, source)| {
                entry.fd < 0 || source.joined().is_some() && entry.events & !(INPUT | END) == 0
            });
        let (is_trial, budget) = (attempt == Next::Trial, &target.spin_budget_ns);
        let mut spin = SetSpin::begin(target, budget, !is_all_memory, is_trial, self.signals);
        loop {
            if self.memory_is_ready() {
                spin.adjust_budget(budget, true);
                return self.check();
            }
            let kernel_has_bytes = self.pairs().any(|(entry, source)| {
                wants_input(entry) && source.joined().is_some_and(Socket::kernel_has_bytes_for_us)
            });
            match spin.step(kernel_has_bytes) {
                SetSpinStep::Retry => {}
                SetSpinStep::CheckKernel => {
                    if let Some(result) = self.check_kernel(false) {
                        target.failed_spins.note(false);
                        return Some(result);
                    }
                    if limit.left_ns() == Some(0) {
                        return None;
                    }
                }
                SetSpinStep::Sleep => {
                    spin.adjust_budget(budget, false);
                    target.failed_spins.note(false);
                    return None;
                }
                SetSpinStep::Interrupted => return Some(kernel::fail(libc::EINTR) as c_int),
            }
        }
    }

    /// Sleeps in the kernel's own call, which all sockets rely on meanwhile.
    fn sleep(&mut self, limit: &WaitLimit) -> Found {
        self.begin_reliance();
        let mut result = None;
        if !self.memory_is_ready() {
            self.flush();
            result = self.sleep_in_kernel(limit);
        }
        self.end_reliance();
        result
    }

    fn begin_reliance(&mut self) {
        for (entry, source) in self.fds.iter().zip(self.sources.iter_mut()) {
            match source {
                Source::Socket { socket, is_counted, .. } if entry.events & INPUT != 0 => {
                    socket.rely_on_kernel();
                    *is_counted = true;
                }
                Source::EpollSet(set) => set.become_external(),
                Source::Socket { .. } | Source::Kernel => {}
            }
        }
    }

    fn end_reliance(&mut self) {
        for source in self.sources.iter_mut() {
            if let Source::Socket { socket, is_counted, .. } = source
                && std::mem::take(is_counted)
            {
                socket.end_reliance();
            }
        }
    }

    /// What the peers have not received from memory goes through the kernel.
    fn flush(&self) {
        let saved = kernel::errno();
        for (entry, source) in self.pairs() {
            if let Some(socket) = source.joined() {
                socket.flush_to_kernel(socket.current_descriptor(entry.fd));
            }
        }
        kernel::set_errno(saved);
    }

    fn sleep_in_kernel(&mut self, limit: &WaitLimit) -> Found {
        let time = signals::sleep_timeout(limit.left_ns());
        if signals::delivery_count() != self.signals {
            return Some(kernel::fail(libc::EINTR) as c_int);
        }
        let (first, count) = (self.fds.as_mut_ptr(), self.fds.len() as libc::nfds_t);
        // SAFETY: the whole array; the time is in this thread's own memory; the caller of `wait`
        // guarantees the mask.
        let found = unsafe { blocking::ppoll(first, count, time, self.mask.cast()) };
        self.note_kernel_events(found);
        if found == 0 && signals::delivery_count() != self.signals {
            return Some(kernel::fail(libc::EINTR) as c_int);
        }
        (found != 0).then_some(found)
    }
}

impl Drop for Call<'_> {
    /// The thread may be cancelled in its sleep.
    fn drop(&mut self) {
        self.end_reliance();
    }
}
