//! Waiting for an array of descriptors: what poll and select have in common.

use std::cell::Cell;
use std::ffi::c_void;

use libc::{c_int, pollfd, timespec};

use super::pause::{Pause, Turn};
use super::set::Set;
use super::{ALWAYS, READ_SIDE, WRITE_SIDE, registry, wide};
use crate::socket::{Inside, PIPE, Phase, Socket};
use crate::wait::Patience;
use crate::{kernel, signals, table};

/// Descriptors up to which a call needs no memory of its own.
pub const SMALL: usize = 64;

/// Calls of a thread that memory alone answers, before the kernel is asked too.
const MEMORY_ALONE: u32 = 64;

std::thread_local! {
    /// How many there were of late.
    static CALLS_WITHOUT_KERNEL: Cell<u32> = const { Cell::new(0) };
}

/// Who knows about a descriptor.
#[derive(Default)]
enum Seat {
    /// The kernel.
    #[default]
    Kernel,
    /// The kernel, until the two ends meet.
    Candidate(&'static Socket),
    /// Memory. Whether the bell was asked for, for reading and for writing.
    Joined { socket: &'static Socket, _inside: Inside, armed: Option<(bool, bool)> },
    /// The kernel, after an epoll set has shown it what is ready in memory.
    Set(&'static Set),
}

/// Whether the kernel alone can answer for `fd`.
#[inline]
pub fn is_plain(fd: c_int) -> bool {
    match table::get(fd) {
        Some(socket) => socket.phase() == Phase::Kernel,
        None => registry::get(fd).is_none_or(Set::is_plain),
    }
}

/// Waits as `ppoll` does, `None` for ever. The result is the call's: errno is set for −1.
///
/// # Safety
/// `mask` is null or points to a signal set.
pub unsafe fn wait(fds: &mut [pollfd], limit_ns: Option<u64>, mask: *const c_void) -> c_int {
    let count = fds.len();
    if count <= 8 {
        let mut seats = [const { Seat::Kernel }; 8];
        let mut asked = [NOBODY; 16];
        // SAFETY: the caller's promise is handed on.
        unsafe { wait_in(fds, limit_ns, mask, &mut seats[..count], &mut asked[..2 * count]) }
    } else if count <= SMALL {
        let mut seats = [const { Seat::Kernel }; SMALL];
        let mut asked = [NOBODY; 2 * SMALL];
        // SAFETY: the caller's promise is handed on.
        unsafe { wait_in(fds, limit_ns, mask, &mut seats[..count], &mut asked[..2 * count]) }
    } else {
        let mut seats = Vec::new();
        seats.resize_with(count, Seat::default);
        let mut asked = vec![NOBODY; 2 * count];
        // SAFETY: the caller's promise is handed on.
        unsafe { wait_in(fds, limit_ns, mask, &mut seats, &mut asked) }
    }
}

/// An entry that the kernel passes over.
const NOBODY: pollfd = pollfd { fd: -1, events: 0, revents: 0 };

/// # Safety
/// As [`wait`]; `seats` is as long as `fds`, `asked` twice as long.
unsafe fn wait_in(
    fds: &mut [pollfd],
    limit_ns: Option<u64>,
    mask: *const c_void,
    seats: &mut [Seat],
    asked: &mut [pollfd],
) -> c_int {
    let signals = signals::count_all();
    let patience = Patience::new(limit_ns);
    for entry in fds.iter_mut() {
        entry.revents = 0;
    }
    let mut call = Call { fds, seats, asked, mask, signals };
    loop {
        call.take_seats();
        let found = call.look();
        if found != 0 || limit_ns == Some(0) {
            return found;
        }
        match call.spin(&patience) {
            Turn::Interrupted => return kernel::fail(libc::EINTR) as c_int,
            Turn::Again => continue,
            Turn::Kernel | Turn::Sleep => {}
        }
        let slept = call.sleep(&patience);
        if slept < 0 {
            return -1;
        }
        if patience.left_ns() == Some(0) {
            call.take_seats();
            return call.look();
        }
    }
}

struct Call<'a> {
    fds: &'a mut [pollfd],
    seats: &'a mut [Seat],
    asked: &'a mut [pollfd],
    mask: *const c_void,
    signals: u32,
}

impl Call<'_> {
    /// Finds out who knows about each descriptor now.
    fn take_seats(&mut self) {
        for (entry, seat) in self.fds.iter().zip(self.seats.iter_mut()) {
            *seat = match table::get(entry.fd) {
                Some(socket) => match (socket.phase(), socket.enter(entry.fd)) {
                    (Phase::Joined, Some(inside)) => {
                        Seat::Joined { socket, _inside: inside, armed: None }
                    }
                    (Phase::Candidate, Some(_)) => Seat::Candidate(socket),
                    _ => Seat::Kernel,
                },
                None => match registry::get(entry.fd) {
                    Some(set) if !set.is_plain() => Seat::Set(set),
                    _ => Seat::Kernel,
                },
            };
        }
    }

    /// A descriptor is among them that only the kernel can answer for, or that has a direction
    /// which is not in memory.
    fn kernel_knows_more(&self) -> bool {
        let mut pairs = self.fds.iter().zip(self.seats.iter());
        pairs.any(|(entry, seat)| match seat {
            Seat::Joined { socket, .. } => !socket.whole(),
            _ => entry.fd >= 0,
        })
    }

    /// Whether the kernel's turn has come although memory has something: a descriptor that is
    /// always ready must not keep the end of another one from being heard.
    fn is_turn_of_the_kernel(&self, found: c_int) -> bool {
        if usize::try_from(found).is_ok_and(|found| found == self.fds.len()) {
            return false;
        }
        CALLS_WITHOUT_KERNEL.with(|calls| {
            calls.set((calls.get() + 1) % MEMORY_ALONE);
            calls.get() == 0
        })
    }

    /// Looks at memory, and at the kernel unless memory has said all: descriptors that have
    /// something to report, or −1.
    fn look(&mut self) -> c_int {
        let found = self.look_at_memory();
        if found > 0 && !self.kernel_knows_more() && !self.is_turn_of_the_kernel(found) {
            return found;
        }
        match self.look_at_kernel() {
            -1 if found == 0 => -1,
            -1 => found,
            more => self.look_at_memory() + more,
        }
    }

    /// Fills in what memory says of the joined sockets.
    #[inline]
    fn look_at_memory(&mut self) -> c_int {
        let mut found = 0;
        for (entry, seat) in self.fds.iter_mut().zip(self.seats.iter()) {
            let Seat::Joined { socket, .. } = seat else { continue };
            let wanted = u32::from(entry.events.cast_unsigned()) | ALWAYS;
            let mut events = wide(socket.readiness()) & wanted;
            if events != 0 && may_be_old(socket) {
                socket.look(entry.fd);
                events = wide(socket.readiness()) & wanted;
            }
            entry.revents = (events as u16).cast_signed();
            found += c_int::from(events != 0);
        }
        found
    }

    /// Fills in what the kernel says of its own, remembers what it says of the joined sockets, and
    /// lets in the signals of the mask. Descriptors of the kernel that have something to report.
    fn look_at_kernel(&mut self) -> c_int {
        for ((entry, seat), asked) in
            self.fds.iter().zip(self.seats.iter()).zip(self.asked.iter_mut())
        {
            *asked = match seat {
                Seat::Joined { socket, .. } => unknown_of(socket, entry.fd),
                _ => pollfd { revents: 0, ..*entry },
            };
            if let Seat::Set(set) = seat {
                set.expose();
            }
        }
        let mut now = timespec { tv_sec: 0, tv_nsec: 0 };
        let (first, count) = (self.asked.as_mut_ptr(), self.fds.len());
        // SAFETY: `asked` has more than `count` entries; the time is live; the mask is the
        // caller's promise.
        let result = unsafe { kernel::ppoll(first, count, &raw mut now, self.mask, MASK_BYTES) };
        if result < 0 {
            return result;
        }
        let mut found = 0;
        for ((entry, seat), asked) in
            self.fds.iter_mut().zip(self.seats.iter()).zip(self.asked.iter())
        {
            if let Seat::Joined { socket, .. } = seat {
                if asked.revents != 0 {
                    socket.look(entry.fd);
                }
            } else {
                entry.revents = asked.revents;
                found += c_int::from(asked.revents != 0);
            }
        }
        found
    }

    /// Looks for a while. `Again`: look at everything.
    fn spin(&mut self, patience: &Patience) -> Turn {
        let joined = self.seats.iter().find_map(|seat| match seat {
            Seat::Joined { socket, .. } => Some(*socket),
            _ => None,
        });
        let Some(socket) = joined else { return Turn::Sleep };
        let often = self.kernel_knows_more() || !self.mask.is_null();
        let mut pause = Pause::begin(socket, &socket.budgets[0], often, self.signals);
        loop {
            if self.look_at_memory() > 0 {
                pause.learn(&socket.budgets[0], true);
                return Turn::Again;
            }
            match pause.turn() {
                Turn::Again => {}
                Turn::Kernel => {
                    if patience.left_ns() == Some(0) {
                        return Turn::Sleep;
                    }
                    if self.look_at_kernel() != 0 || self.something_changed() {
                        return Turn::Again;
                    }
                }
                Turn::Sleep => {
                    pause.learn(&socket.budgets[0], false);
                    return Turn::Sleep;
                }
                Turn::Interrupted => return Turn::Interrupted,
            }
        }
    }

    /// A socket has joined, or has left memory or the process.
    fn something_changed(&self) -> bool {
        self.seats.iter().any(|seat| match seat {
            Seat::Candidate(socket) => socket.joined(),
            Seat::Joined { socket, .. } => socket.closing() || !socket.joined(),
            Seat::Kernel | Seat::Set(_) => false,
        })
    }

    /// Remembers what the kernel says of the joined sockets; a closed one loses its seat.
    fn ask_of_joined(&mut self) {
        for (entry, seat) in self.fds.iter().zip(self.seats.iter_mut()) {
            if let Seat::Joined { socket, .. } = seat {
                if socket.closing() || !socket.joined() {
                    *seat = Seat::Kernel;
                } else {
                    socket.look(entry.fd);
                }
            }
        }
    }

    /// Sleeps until something may have happened: 0, or −1 if the call has to end.
    fn sleep(&mut self, patience: &Patience) -> c_int {
        self.ask_of_joined();
        let begun = self.begin_kernel_waits();
        let mut result = 0;
        if begun == self.seats.len() {
            self.arm();
            if self.look_at_memory() == 0 {
                result = self.sleep_in_kernel(patience);
            }
            self.disarm();
        }
        for seat in &self.seats[..begun] {
            if let Seat::Candidate(socket) = seat {
                socket.kernel_wait_end();
            }
        }
        result
    }

    /// Tells the candidates that a thread waits in the kernel; seats told, all unless one joined.
    fn begin_kernel_waits(&self) -> usize {
        let refuses = |seat: &Seat| matches!(seat, Seat::Candidate(s) if !s.kernel_wait_begin());
        self.seats.iter().position(refuses).unwrap_or(self.seats.len())
    }

    fn arm(&mut self) {
        for (entry, seat) in self.fds.iter().zip(self.seats.iter_mut()) {
            if let Seat::Joined { socket, armed, .. } = seat {
                let wanted = u32::from(entry.events.cast_unsigned());
                let pair = (wanted & READ_SIDE != 0, wanted & WRITE_SIDE != 0);
                socket.lie_down();
                socket.arm(pair.0, pair.1);
                *armed = Some(pair);
            }
        }
    }

    fn disarm(&mut self) {
        for seat in self.seats.iter_mut() {
            if let Seat::Joined { socket, armed, .. } = seat
                && let Some((readable, writable)) = armed.take()
            {
                socket.disarm(readable, writable);
                socket.get_up();
            }
        }
    }

    /// The sleep itself, with the joined sockets asked by what is not known of them yet, and by
    /// their bells behind the program's own entries.
    fn sleep_in_kernel(&mut self, patience: &Patience) -> c_int {
        let mut count = self.fds.len();
        for (index, (entry, seat)) in self.fds.iter().zip(self.seats.iter()).enumerate() {
            self.asked[index] = pollfd { revents: 0, ..*entry };
            match seat {
                Seat::Joined { socket, .. } => {
                    self.asked[index] = unknown_of(socket, entry.fd);
                    let bell = pollfd { fd: socket.bell(), events: libc::POLLIN, revents: 0 };
                    self.asked[count] = bell;
                    count += 1;
                    socket.record().incoming.sleeps.add(1);
                }
                Seat::Set(set) => set.expose(),
                Seat::Kernel | Seat::Candidate(_) => {}
            }
        }
        let time = signals::sleep_timeout(patience.left_ns());
        if signals::count_all() != self.signals {
            return kernel::fail(libc::EINTR) as c_int;
        }
        let first = self.asked.as_mut_ptr();
        // SAFETY: `count` entries have been written; the time is this thread's own place for it;
        // the mask is the caller's promise.
        let found = unsafe { kernel::ppoll(first, count, time, self.mask, MASK_BYTES) };
        if found > 0 {
            self.heed();
        } else if found == 0 && signals::count_all() != self.signals {
            return kernel::fail(libc::EINTR) as c_int;
        }
        found.min(0)
    }

    /// Hears the bells that have rung, and remembers what the kernel sockets have said.
    fn heed(&mut self) {
        let mut bell = self.fds.len();
        for (index, seat) in self.seats.iter().enumerate() {
            let Seat::Joined { socket, .. } = seat else { continue };
            if self.asked[bell].revents != 0 {
                socket.hush_asleep();
            }
            if self.asked[index].revents != 0 {
                socket.look(self.fds[index].fd);
            }
            bell += 1;
        }
    }
}

/// Bytes of the kernel's signal set.
const MASK_BYTES: usize = 8;

/// Whether what is remembered of the kernel socket may be old: a part of it is the kernel's, or its
/// end has begun.
fn may_be_old(socket: &Socket) -> bool {
    !socket.whole() || socket.known() & libc::EPOLLRDHUP as u32 != 0
}

/// What the kernel is asked of a joined socket: all that would be news. What is known already would
/// end each sleep at once.
fn unknown_of(socket: &Socket, fd: c_int) -> pollfd {
    let known = socket.known();
    if known & ALWAYS != 0 {
        return NOBODY;
    }
    let mut events = READ_SIDE;
    if socket.stage_out.load(std::sync::atomic::Ordering::Relaxed) != PIPE {
        events |= WRITE_SIDE;
    }
    pollfd { fd, events: ((events & !wide(known)) as u16).cast_signed(), revents: 0 }
}
