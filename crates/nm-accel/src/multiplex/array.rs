//! Waiting for an array of descriptors: the common part of poll and select.

use std::cell::Cell;
use std::ffi::c_void;

use libc::{c_int, pollfd, timespec};

use super::epoll_set::EpollSet;
use super::spin::{SetSpin, SetSpinStep};
use super::{ALWAYS, READ_EVENTS, WRITE_EVENTS, registry, with_tcp_names};
use crate::socket::{CallGuard, IN_PIPE, Phase, Socket};
use crate::wait::WaitLimit;
use crate::{kernel, signals, table};

/// Largest count of descriptors for which a call allocates no memory.
pub const SMALL: usize = 64;

/// Calls of a thread that are answered without the kernel, before the kernel is polled too.
const MEMORY_ONLY_CALLS: u32 = 64;

std::thread_local! {
    /// Count of the latest calls that were answered without the kernel.
    static CALLS_WITHOUT_KERNEL: Cell<u32> = const { Cell::new(0) };
}

/// Which source reports the readiness of a descriptor.
#[derive(Default)]
enum Source {
    /// The kernel.
    #[default]
    Kernel,
    /// The kernel, until the two ends share memory.
    Candidate(&'static Socket),
    /// Shared memory. `armed`: whether the thread waits for the doorbell to read and to write.
    SharedMemory { socket: &'static Socket, _guard: CallGuard, armed: Option<(bool, bool)> },
    /// The kernel, after an epoll set has published what is ready in memory.
    EpollSet(&'static EpollSet),
}

/// Whether the kernel alone reports the readiness of `fd`.
#[inline]
pub fn is_kernel_only(fd: c_int) -> bool {
    match table::get(fd) {
        Some(socket) => socket.phase() == Phase::Kernel,
        None => registry::get(fd).is_none_or(EpollSet::is_kernel_only),
    }
}

/// Waits as `ppoll` does; `None` is no time limit. Returns the call's result, with errno set for
/// −1.
///
/// # Safety
/// `mask` is null or points to a signal set.
pub unsafe fn wait(fds: &mut [pollfd], limit_ns: Option<u64>, mask: *const c_void) -> c_int {
    let count = fds.len();
    if count <= 8 {
        let mut sources = [const { Source::Kernel }; 8];
        let mut entries = [UNUSED_ENTRY; 16];
        // SAFETY: the caller guarantees the mask.
        unsafe { wait_in(fds, limit_ns, mask, &mut sources[..count], &mut entries[..2 * count]) }
    } else if count <= SMALL {
        let mut sources = [const { Source::Kernel }; SMALL];
        let mut entries = [UNUSED_ENTRY; 2 * SMALL];
        // SAFETY: the caller guarantees the mask.
        unsafe { wait_in(fds, limit_ns, mask, &mut sources[..count], &mut entries[..2 * count]) }
    } else {
        let mut sources = Vec::new();
        sources.resize_with(count, Source::default);
        let mut entries = vec![UNUSED_ENTRY; 2 * count];
        // SAFETY: the caller guarantees the mask.
        unsafe { wait_in(fds, limit_ns, mask, &mut sources, &mut entries) }
    }
}

/// An entry that the kernel ignores.
const UNUSED_ENTRY: pollfd = pollfd { fd: -1, events: 0, revents: 0 };

/// # Safety
/// As [`wait`]; `sources` is as long as `fds`, `entries` twice as long.
unsafe fn wait_in(
    fds: &mut [pollfd],
    limit_ns: Option<u64>,
    mask: *const c_void,
    sources: &mut [Source],
    entries: &mut [pollfd],
) -> c_int {
    let signals = signals::delivery_count();
    let limit = WaitLimit::new(limit_ns);
    for entry in fds.iter_mut() {
        entry.revents = 0;
    }
    let mut call = Call { fds, sources, entries, mask, signals };
    loop {
        call.resolve_sources();
        let found = call.check();
        if found != 0 || limit_ns == Some(0) {
            return found;
        }
        match call.spin(&limit) {
            SetSpinStep::Interrupted => return kernel::fail(libc::EINTR) as c_int,
            SetSpinStep::Retry => continue,
            SetSpinStep::CheckKernel | SetSpinStep::Sleep => {}
        }
        let slept = call.sleep(&limit);
        if slept < 0 {
            return -1;
        }
        if limit.left_ns() == Some(0) {
            call.resolve_sources();
            return call.check();
        }
    }
}

struct Call<'a> {
    fds: &'a mut [pollfd],
    sources: &'a mut [Source],
    entries: &'a mut [pollfd],
    mask: *const c_void,
    signals: u32,
}

impl Call<'_> {
    /// Determines the source of each descriptor.
    fn resolve_sources(&mut self) {
        for (entry, source) in self.fds.iter().zip(self.sources.iter_mut()) {
            *source = match table::get(entry.fd) {
                Some(socket) => match (socket.phase(), socket.enter(entry.fd)) {
                    (Phase::Joined, Some(inside)) => {
                        Source::SharedMemory { socket, _guard: inside, armed: None }
                    }
                    (Phase::Candidate, Some(_)) => Source::Candidate(socket),
                    _ => Source::Kernel,
                },
                None => match registry::get(entry.fd) {
                    Some(set) if !set.is_kernel_only() => Source::EpollSet(set),
                    _ => Source::Kernel,
                },
            };
        }
    }

    /// Whether one of the descriptors is reported by the kernel, or has a direction that is not in
    /// memory.
    fn needs_kernel_check(&self) -> bool {
        let mut pairs = self.fds.iter().zip(self.sources.iter());
        pairs.any(|(entry, source)| match source {
            Source::SharedMemory { socket, .. } => !socket.is_fully_in_memory(),
            _ => entry.fd >= 0,
        })
    }

    /// Whether the kernel must be polled although memory has events: a socket that is always ready
    /// must not hide the events of another descriptor.
    fn is_kernel_turn(&self, found: c_int) -> bool {
        if usize::try_from(found).is_ok_and(|found| found == self.fds.len()) {
            return false;
        }
        CALLS_WITHOUT_KERNEL.with(|calls| {
            calls.set((calls.get() + 1) % MEMORY_ONLY_CALLS);
            calls.get() == 0
        })
    }

    /// Checks memory, and polls the kernel unless memory has reported everything. Returns the count
    /// of descriptors with events, or −1.
    fn check(&mut self) -> c_int {
        let found = self.check_memory();
        if found > 0 && !self.needs_kernel_check() && !self.is_kernel_turn(found) {
            return found;
        }
        match self.check_kernel() {
            -1 if found == 0 => -1,
            -1 => found,
            more => self.check_memory() + more,
        }
    }

    /// Fills in the events of the joined sockets.
    #[inline]
    fn check_memory(&mut self) -> c_int {
        let mut found = 0;
        for (entry, source) in self.fds.iter_mut().zip(self.sources.iter()) {
            let Source::SharedMemory { socket, .. } = source else { continue };
            let wanted = u32::from(entry.events.cast_unsigned()) | ALWAYS;
            let mut events = with_tcp_names(socket.readiness()) & wanted;
            if events != 0 && may_be_stale(socket) {
                socket.poll_kernel_events(entry.fd);
                events = with_tcp_names(socket.readiness()) & wanted;
            }
            entry.revents = (events as u16).cast_signed();
            found += c_int::from(events != 0);
        }
        found
    }

    /// Fills in the events of the kernel's descriptors, stores those of the joined sockets, and
    /// delivers signals that the mask allows. Returns the count of kernel descriptors with events.
    fn check_kernel(&mut self) -> c_int {
        for ((entry, source), polled) in
            self.fds.iter().zip(self.sources.iter()).zip(self.entries.iter_mut())
        {
            *polled = match source {
                Source::SharedMemory { socket, .. } => unreported_events(socket, entry.fd),
                _ => pollfd { revents: 0, ..*entry },
            };
            if let Source::EpollSet(set) = source {
                set.publish_readiness();
            }
        }
        let mut now = timespec { tv_sec: 0, tv_nsec: 0 };
        let (first, count) = (self.entries.as_mut_ptr(), self.fds.len());
        // SAFETY: `entries` has more than `count` entries; the time is live; the caller guarantees
        // the mask.
        let result = unsafe { kernel::ppoll(first, count, &raw mut now, self.mask, MASK_BYTES) };
        if result < 0 {
            return result;
        }
        let mut found = 0;
        for ((entry, source), polled) in
            self.fds.iter_mut().zip(self.sources.iter()).zip(self.entries.iter())
        {
            if let Source::SharedMemory { socket, .. } = source {
                if polled.revents != 0 {
                    socket.poll_kernel_events(entry.fd);
                }
            } else {
                entry.revents = polled.revents;
                found += c_int::from(polled.revents != 0);
            }
        }
        found
    }

    /// Spins over all sources. `Retry`: check everything again.
    fn spin(&mut self, limit: &WaitLimit) -> SetSpinStep {
        let joined = self.sources.iter().find_map(|source| match source {
            Source::SharedMemory { socket, .. } => Some(*socket),
            _ => None,
        });
        let Some(socket) = joined else { return SetSpinStep::Sleep };
        let often = self.needs_kernel_check() || !self.mask.is_null();
        let mut spin = SetSpin::begin(socket, &socket.spin_budgets_ns[0], often, self.signals);
        loop {
            if self.check_memory() > 0 {
                spin.adjust_budget(&socket.spin_budgets_ns[0], true);
                return SetSpinStep::Retry;
            }
            match spin.step() {
                SetSpinStep::Retry => {}
                SetSpinStep::CheckKernel => {
                    if limit.left_ns() == Some(0) {
                        return SetSpinStep::Sleep;
                    }
                    if self.check_kernel() != 0 || self.sources_changed() {
                        return SetSpinStep::Retry;
                    }
                }
                SetSpinStep::Sleep => {
                    spin.adjust_budget(&socket.spin_budgets_ns[0], false);
                    return SetSpinStep::Sleep;
                }
                SetSpinStep::Interrupted => return SetSpinStep::Interrupted,
            }
        }
    }

    /// Whether a socket has joined, has returned to the kernel, or was closed.
    fn sources_changed(&self) -> bool {
        self.sources.iter().any(|source| match source {
            Source::Candidate(socket) => socket.is_joined(),
            Source::SharedMemory { socket, .. } => socket.is_closing() || !socket.is_joined(),
            Source::Kernel | Source::EpollSet(_) => false,
        })
    }

    /// Polls the kernel sockets of the joined sockets; one that was closed is left to the kernel.
    fn refresh_joined(&mut self) {
        for (entry, source) in self.fds.iter().zip(self.sources.iter_mut()) {
            if let Source::SharedMemory { socket, .. } = source {
                if socket.is_closing() || !socket.is_joined() {
                    *source = Source::Kernel;
                } else {
                    socket.poll_kernel_events(entry.fd);
                }
            }
        }
    }

    /// Sleeps until an event is possible: 0, or −1 if the call must return.
    fn sleep(&mut self, limit: &WaitLimit) -> c_int {
        self.refresh_joined();
        let begun_count = self.begin_kernel_waits();
        let mut result = 0;
        if begun_count == self.sources.len() {
            self.arm();
            if self.check_memory() == 0 {
                result = self.sleep_in_kernel(limit);
            }
            self.disarm();
        }
        for source in &self.sources[..begun_count] {
            if let Source::Candidate(socket) = source {
                socket.end_kernel_wait();
            }
        }
        result
    }

    /// Counts this thread as a kernel waiter of the candidates; stops at one that has just joined.
    /// Returns how many sources were processed.
    fn begin_kernel_waits(&self) -> usize {
        let is_refused =
            |source: &Source| matches!(source, Source::Candidate(s) if !s.begin_kernel_wait());
        self.sources.iter().position(is_refused).unwrap_or(self.sources.len())
    }

    fn arm(&mut self) {
        for (entry, source) in self.fds.iter().zip(self.sources.iter_mut()) {
            if let Source::SharedMemory { socket, armed, .. } = source {
                let wanted = u32::from(entry.events.cast_unsigned());
                let pair = (wanted & READ_EVENTS != 0, wanted & WRITE_EVENTS != 0);
                socket.begin_sleep();
                socket.arm(pair.0, pair.1);
                *armed = Some(pair);
            }
        }
    }

    fn disarm(&mut self) {
        for source in self.sources.iter_mut() {
            if let Source::SharedMemory { socket, armed, .. } = source
                && let Some((readable, writable)) = armed.take()
            {
                socket.disarm(readable, writable);
                socket.end_sleep();
            }
        }
    }

    /// The sleep itself. For joined sockets it waits for the events that are not known yet, and for
    /// their doorbells, whose entries follow the program's own.
    fn sleep_in_kernel(&mut self, limit: &WaitLimit) -> c_int {
        let mut count = self.fds.len();
        for (index, (entry, source)) in self.fds.iter().zip(self.sources.iter()).enumerate() {
            self.entries[index] = pollfd { revents: 0, ..*entry };
            match source {
                Source::SharedMemory { socket, .. } => {
                    self.entries[index] = unreported_events(socket, entry.fd);
                    let doorbell =
                        pollfd { fd: socket.doorbell(), events: libc::POLLIN, revents: 0 };
                    self.entries[count] = doorbell;
                    count += 1;
                    socket.record().incoming.sleeps.add(1);
                }
                Source::EpollSet(set) => set.publish_readiness(),
                Source::Kernel | Source::Candidate(_) => {}
            }
        }
        let time = signals::sleep_timeout(limit.left_ns());
        if signals::delivery_count() != self.signals {
            return kernel::fail(libc::EINTR) as c_int;
        }
        let first = self.entries.as_mut_ptr();
        // SAFETY: `count` entries have been written; the time is in this thread's own memory; the
        // caller guarantees the mask.
        let found = unsafe { kernel::ppoll(first, count, time, self.mask, MASK_BYTES) };
        if found > 0 {
            self.handle_wakeups();
        } else if found == 0 && signals::delivery_count() != self.signals {
            return kernel::fail(libc::EINTR) as c_int;
        }
        found.min(0)
    }

    /// Drains the doorbells that have rung, and polls the kernel sockets that have events.
    fn handle_wakeups(&mut self) {
        let mut doorbell = self.fds.len();
        for (index, source) in self.sources.iter().enumerate() {
            let Source::SharedMemory { socket, .. } = source else { continue };
            if self.entries[doorbell].revents != 0 {
                socket.drain_as_sleeper();
            }
            if self.entries[index].revents != 0 {
                socket.poll_kernel_events(self.fds[index].fd);
            }
            doorbell += 1;
        }
    }
}

/// Bytes of the kernel's signal set.
const MASK_BYTES: usize = 8;

/// Whether the stored kernel events may be outdated: one direction is in the kernel, or the
/// connection has begun to end.
fn may_be_stale(socket: &Socket) -> bool {
    !socket.is_fully_in_memory() || socket.kernel_events() & libc::EPOLLRDHUP as u32 != 0
}

/// The kernel events of a joined socket that would be new. Events that are known already would end
/// each sleep at once.
fn unreported_events(socket: &Socket, fd: c_int) -> pollfd {
    let known = socket.kernel_events();
    if known & ALWAYS != 0 {
        return UNUSED_ENTRY;
    }
    let mut events = READ_EVENTS;
    if socket.outgoing_stage.load(std::sync::atomic::Ordering::Relaxed) != IN_PIPE {
        events |= WRITE_EVENTS;
    }
    pollfd { fd, events: ((events & !with_tcp_names(known)) as u16).cast_signed(), revents: 0 }
}
