//! Programs that this one starts and that inherit sockets. As long as one of them can use a socket,
//! its bytes must go through the kernel: the socket is held ([`Socket::begin_hold`]). When none is
//! left, memory is used again.
//!
//! How the end is noticed: a started program inherits one more descriptor, at a high number. It is
//! an open file description of the ledger's file made for this start, which holds a lock on one
//! byte for each socket that the program inherits. The kernel keeps such a lock until the last
//! descriptor of that description is closed, in the program itself and in all programs that it
//! starts in turn. Any process of the family can ask whether a byte is locked.
//!
//! A program may close the descriptor of the lock and still use the socket, if it was given the
//! socket on purpose: as a standard stream, or by a duplicate made for it. Such a socket stays on
//! the kernel. Sockets that exec closes are not inherited and need nothing.

use std::ffi::c_int;
use std::sync::atomic::{AtomicI32, AtomicU8, Ordering};

use nm_ring::ledger::{KernelReason, Record};

use crate::process::{MemoryOwnership, memory_ownership};
use crate::socket::{Phase, Socket};
use crate::{fallback, kernel, table};

/// State in [`nm_ring::ledger::EndState::inheritors`]: the socket is held for a started program.
const HELD: u32 = 1;
/// As [`HELD`], begun before the socket was joined.
const HELD_EARLY: u32 = 2;
const STATES: u32 = HELD | HELD_EARLY;
/// Above the states: counts starts, so that an end that was found before a start is not believed
/// after it.
const ONE_START: u32 = 4;

/// The ledger's file, whose bytes are locked.
static LOCK_FILE: AtomicI32 = AtomicI32::new(-1);

/// Which fork of the family this process is, modulo 255, from 1 on.
static GENERATION: AtomicU8 = AtomicU8::new(1);

/// The generation in which a descriptor was duplicated, or marked to survive an exec.
static GIVEN: [AtomicU8; table::DESCRIPTORS] = [const { AtomicU8::new(0) }; table::DESCRIPTORS];

/// Stores the ledger's file. Called once, by the constructor.
pub fn prepare(ledger: c_int) {
    LOCK_FILE.store(ledger, Ordering::Relaxed);
}

/// In the child of a fork: what the parent did with its descriptors was not meant for a program
/// that the child will execute.
pub fn forked_child() {
    let next = GENERATION.load(Ordering::Relaxed) % u8::MAX + 1;
    GENERATION.store(next, Ordering::Relaxed);
}

/// The program has duplicated a descriptor as `fd`, or has asked that `fd` survives an exec.
pub fn descriptor_given(fd: c_int) {
    if let Some(entry) = usize::try_from(fd).ok().and_then(|fd| GIVEN.get(fd)) {
        entry.store(GENERATION.load(Ordering::Relaxed), Ordering::Relaxed);
    }
}

/// `fd` is a new connection.
pub fn descriptor_opened(fd: c_int) {
    if let Some(entry) = usize::try_from(fd).ok().and_then(|fd| GIVEN.get(fd)) {
        entry.store(0, Ordering::Relaxed);
    }
}

fn is_given(fd: c_int) -> bool {
    let entry = usize::try_from(fd).ok().and_then(|fd| GIVEN.get(fd));
    entry.is_some_and(|entry| entry.load(Ordering::Relaxed) == GENERATION.load(Ordering::Relaxed))
}

/// How a program is started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartKind {
    /// By a call that starts it in a child of this process.
    Child,
    /// This process becomes the program.
    Exec,
}

/// A start of a program: until this is dropped, in the process that starts it, the descriptor of
/// its locks is open here and inherited.
pub struct Start {
    locks: c_int,
    ownership: MemoryOwnership,
}

impl Start {
    /// Before a program is started: all sockets that it will inherit go through the kernel from now
    /// on. `inherited` is called for each descriptor.
    ///
    /// In a vfork child the flags are read from the kernel, which knows the child's own
    /// descriptors; a socket that the child duplicated has returned already (see `descriptors`).
    pub fn begin(kind: StartKind, mut inherited: impl FnMut(c_int, &'static Socket)) -> Start {
        let mut start = Start { locks: -1, ownership: MemoryOwnership::Owner };
        let mut known = false;
        table::for_each_socket(|_| known = true);
        if !known {
            return start;
        }
        start.ownership = memory_ownership();
        table::for_each_descriptor(|fd, socket| {
            // SAFETY: a query of plain numbers.
            let flags = unsafe { kernel::fcntl(fd, libc::F_GETFD, 0) };
            let is_inherited = flags >= 0 && flags & libc::FD_CLOEXEC == 0;
            if is_inherited && socket.phase() != Phase::Kernel {
                if start.is_for_good(kind, fd, socket) || !start.lock(socket) {
                    keep_on_kernel(socket);
                } else {
                    begin_inheritance(socket);
                }
                inherited(fd, socket);
            }
        });
        start
    }

    /// Whether the program may use the socket although it has closed the descriptor of the locks,
    /// or nobody will be left who could use memory again.
    fn is_for_good(&self, kind: StartKind, fd: c_int, socket: &Socket) -> bool {
        if (0..=2).contains(&fd) {
            return true;
        }
        let is_last = socket.record().holders.load(Ordering::Relaxed) <= 1;
        kind == StartKind::Exec
            && self.ownership == MemoryOwnership::Owner
            && (is_last || is_given(fd))
    }

    /// Locks the byte of `socket` for the program; false if that is not possible.
    fn lock(&mut self, socket: &Socket) -> bool {
        if self.locks < 0 {
            self.locks = open_for_locks(self.ownership);
        }
        let mut lock = lock_of(socket, libc::F_RDLCK);
        // SAFETY: the structure is live for the call.
        let result =
            unsafe { kernel::fcntl(self.locks, libc::F_OFD_SETLK, (&raw mut lock).addr()) };
        self.locks >= 0 && result == 0
    }
}

impl Drop for Start {
    fn drop(&mut self) {
        if self.locks < 0 {
            return;
        }
        let errno = kernel::errno();
        match self.ownership {
            MemoryOwnership::Owner => table::close_library_descriptor(self.locks),
            // SAFETY: the child of a vfork closes a descriptor that it made itself.
            MemoryOwnership::Borrower => unsafe {
                kernel::close(self.locks);
            },
        }
        kernel::set_errno(errno);
    }
}

/// The lock of a socket: on one byte, which all processes of the family know.
fn lock_of(socket: &Socket, kind: c_int) -> libc::flock {
    let place = std::ptr::from_ref::<Record>(socket.record()).addr() / size_of::<Record>();
    // SAFETY: all zero is a valid structure.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as i16;
    lock.l_whence = libc::SEEK_SET as i16;
    lock.l_start = place as i64;
    lock.l_len = 1;
    lock
}

/// Opens the ledger's file once more, as a description of its own that exec does not close, at a
/// high number. −1 if that is not possible, for example without /proc.
fn open_for_locks(ownership: MemoryOwnership) -> c_int {
    use rustix::fs::{CWD, Mode, OFlags, openat};
    use std::os::fd::IntoRawFd;
    let mut path = [0_u8; 32];
    let name = descriptor_path(&mut path, LOCK_FILE.load(Ordering::Relaxed));
    let Ok(opened) = openat(CWD, name, OFlags::RDONLY, Mode::empty()) else { return -1 };
    let opened = opened.into_raw_fd();
    if ownership == MemoryOwnership::Owner {
        let protected = table::protect(opened);
        // SAFETY: plain numbers; the descriptor is the library's.
        unsafe { kernel::fcntl(protected, libc::F_SETFD, 0) };
        return protected;
    }
    const FROM: usize = 512;
    // SAFETY: plain numbers; both descriptors are this child's own.
    unsafe {
        let high = kernel::fcntl(opened, libc::F_DUPFD, FROM);
        if high < 0 {
            return opened;
        }
        kernel::close(opened);
        high
    }
}

/// `/proc/self/fd/N`, without allocating: this may be the child of a fork.
fn descriptor_path(place: &mut [u8; 32], fd: c_int) -> &std::ffi::CStr {
    const FOLDER: &[u8] = b"/proc/self/fd/";
    place[..FOLDER.len()].copy_from_slice(FOLDER);
    let digits = fd.max(0).checked_ilog10().unwrap_or(0) as usize + 1;
    let mut rest = fd.max(0).cast_unsigned();
    for at in (0..digits).rev() {
        place[FOLDER.len() + at] = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    place[FOLDER.len() + digits] = 0;
    std::ffi::CStr::from_bytes_until_nul(place).unwrap_or(c"")
}

/// Keeps a socket on the kernel for good, for all processes that share it.
pub fn keep_on_kernel(socket: &'static Socket) {
    if !socket.is_joined() {
        socket.end().holds.fetch_add(1, Ordering::SeqCst);
    }
    fallback::move_to_kernel(socket, KernelReason::Exec);
}

/// Begins to hold a socket that a program is about to inherit, and whose byte is locked for it.
fn begin_inheritance(socket: &'static Socket) {
    // First of all, so that it is in effect whoever else does the same.
    let state = if fallback::hold(socket, KernelReason::Exec) { HELD } else { HELD_EARLY };
    let word = &socket.end().inheritors;
    let mut before = word.load(Ordering::SeqCst);
    loop {
        let is_new = before & STATES == 0;
        let after = before.wrapping_add(ONE_START) | if is_new { state } else { 0 };
        match word.compare_exchange(before, after, Ordering::SeqCst, Ordering::SeqCst) {
            Ok(_) if is_new => return,
            Ok(_) => break,
            Err(now) => before = now,
        }
    }
    end_hold(socket, state);
}

fn end_hold(socket: &'static Socket, state: u32) {
    if state & HELD_EARLY != 0 {
        socket.end().holds.fetch_sub(1, Ordering::SeqCst);
        socket.record().clear_reason(KernelReason::Exec);
    } else if let Some((_guard, fd)) = table::enter_any(socket) {
        socket.end_hold(fd, KernelReason::Exec);
    }
}

/// In a data call of a socket that is held: ends the hold if no started program is left that could
/// use the socket. Asks the kernel at most once per tick of its coarse clock, which is 1 to 10 ms.
#[cold]
pub fn check(socket: &'static Socket) {
    let end = socket.end();
    if end.inheritors.load(Ordering::Relaxed) & STATES == 0 {
        return;
    }
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the structure is live for the call.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_COARSE, &raw mut time) };
    let now = (time.tv_sec as u32).wrapping_mul(1_000_000).wrapping_add(time.tv_nsec as u32 / 1000);
    if end.inheritors_checked_at_us.swap(now, Ordering::Relaxed) != now {
        end_inheritance(socket);
    }
}

/// The same at once for all sockets: a started program has just ended.
pub fn check_all() {
    let errno = kernel::errno();
    if memory_ownership() == MemoryOwnership::Owner {
        table::for_each_socket(end_inheritance);
    }
    kernel::set_errno(errno);
}

fn end_inheritance(socket: &'static Socket) {
    let word = &socket.end().inheritors;
    let before = word.load(Ordering::SeqCst);
    if before & STATES == 0 {
        return;
    }
    let errno = kernel::errno();
    let mut lock = lock_of(socket, libc::F_WRLCK);
    let file = LOCK_FILE.load(Ordering::Relaxed);
    // SAFETY: the structure is live for the call.
    let result = unsafe { kernel::fcntl(file, libc::F_OFD_GETLK, (&raw mut lock).addr()) };
    let is_free = result == 0 && lock.l_type == libc::F_UNLCK as i16;
    let order = Ordering::SeqCst;
    if is_free && word.compare_exchange(before, before & !STATES, order, order).is_ok() {
        end_hold(socket, before & STATES);
    }
    kernel::set_errno(errno);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_of_a_descriptor_is_written_without_allocating() {
        for (fd, path) in [
            (0, c"/proc/self/fd/0"),
            (7, c"/proc/self/fd/7"),
            (10, c"/proc/self/fd/10"),
            (1_048_575, c"/proc/self/fd/1048575"),
            (i32::MAX, c"/proc/self/fd/2147483647"),
        ] {
            assert_eq!(descriptor_path(&mut [0xff; 32], fd), path);
        }
    }

    #[test]
    fn descriptors_given_before_a_fork_are_not_given_after_it() {
        descriptor_given(77);
        assert!(is_given(77) && !is_given(78) && !is_given(-1));
        descriptor_opened(77);
        assert!(!is_given(77));
        descriptor_given(77);
        forked_child();
        assert!(!is_given(77));
        for _ in 0..300 {
            forked_child();
            assert_ne!(GENERATION.load(Ordering::Relaxed), 0);
        }
    }
}
