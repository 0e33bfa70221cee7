//! Programs that this one starts and that inherit sockets. As long as one of them can use a socket,
//! its bytes must go through the kernel: the socket is held ([`Socket::begin_hold`]). When none is
//! left, memory is used again.
//!
//! How the end is noticed: a started program inherits one more descriptor, at a high number. It is
//! an open file description of the ledger's file made for this start. It holds a lock on one byte
//! for each socket that the program inherits (see `ledgers`).
//!
//! A program that carries this library need not be feared until it uses the socket. It learns of
//! the sockets by messages in the queue of a second descriptor, and exchanges the locks for others
//! (see `inherited`).
//!
//! A program may close the descriptor of the lock and still use a socket that it was given on
//! purpose. It was given the socket as a standard stream, or by a duplicate made for it. Such a
//! socket stays on the kernel. Sockets that exec closes are not inherited and need nothing.

use std::ffi::c_int;
use std::os::fd::{BorrowedFd, IntoRawFd as _};
use std::sync::atomic::{AtomicU8, Ordering};

use nm_ring::EndpointRole;
use nm_ring::ledger::{INHERITED, KernelReason};

use crate::inherited::{self, INHERITED_MAX, Message};
use crate::ledgers::{self, LEDGERS_MAX, LockedByte, Place};
use crate::process::{MemoryOwnership, memory_ownership};
use crate::socket::{Phase, Socket};
use crate::{fallback, inheritors, kernel, rendezvous, table};

/// Which fork of the family this process is, modulo 255, from 1 on.
static GENERATION: AtomicU8 = AtomicU8::new(1);

/// The generation in which a descriptor was duplicated, or marked to survive an exec.
static GIVEN: [AtomicU8; table::DESCRIPTORS] = [const { AtomicU8::new(0) }; table::DESCRIPTORS];

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

/// A start of a program: until this is dropped, in the process that starts it, the descriptors of
/// its locks and messages are open here and inherited.
pub struct Start {
    kind: StartKind,
    ownership: MemoryOwnership,
    /// For each ledger, an open file description of its file.
    locks: [c_int; LEDGERS_MAX],
    /// The Unix socket whose queue has the messages, and its other end.
    queue: [c_int; 2],
    messages: usize,
}

impl Start {
    /// Before a program is started: all sockets that it will inherit go through the kernel from now
    /// on. `inherited` is called for each descriptor.
    ///
    /// In a vfork child the flags are read from the kernel, which knows the child's own
    /// descriptors; a socket that the child duplicated has returned already (see `descriptors`).
    pub fn begin(kind: StartKind, mut inherited: impl FnMut(c_int, &'static Socket)) -> Start {
        let (ownership, locks) = (MemoryOwnership::Owner, [-1; LEDGERS_MAX]);
        let mut start = Start { kind, ownership, locks, queue: [-1; 2], messages: 0 };
        let mut known = false;
        table::for_each_socket(|_| known = true);
        table::for_each_inherited(|_, _| known = true);
        if !known {
            return start;
        }
        start.ownership = memory_ownership();
        table::for_each_descriptor(|fd, socket| {
            if survives_exec(fd) && socket.phase() != Phase::Kernel {
                if start.is_for_good(fd, socket) || !start.hold(fd, socket) {
                    keep_on_kernel(socket);
                }
                inherited(fd, socket);
            }
        });
        table::for_each_inherited(|fd, index| start.pass_on(fd, index));
        start.close(start.queue[1]);
        start.queue[1] = -1;
        start
    }

    /// Whether the program may use the socket although it has closed the descriptor of the locks,
    /// or nobody will be left who could use memory again.
    fn is_for_good(&self, fd: c_int, socket: &Socket) -> bool {
        if (0..=2).contains(&fd) {
            return true;
        }
        let is_last = socket.record().holders.load(Ordering::Relaxed) <= 1;
        self.kind == StartKind::Exec
            && self.ownership == MemoryOwnership::Owner
            && (is_last || is_given(fd))
    }

    /// Holds `socket` for the program; false if that is not possible for a time.
    fn hold(&mut self, fd: c_int, socket: &'static Socket) -> bool {
        let Some(place) = ledgers::place_of(socket.record()) else { return false };
        if !self.lock(place) {
            return false;
        }
        {
            // A candidate must not join in another thread between the look at its phase and the
            // hold. The child of a vfork takes no locks of its parent.
            let may_lock = self.ownership == MemoryOwnership::Owner && !socket.is_joined();
            let _no_join = may_lock.then(rendezvous::prevent);
            inheritors::begin(socket);
        }
        let memory = socket.memory_file.load(Ordering::Acquire);
        if memory >= 0
            && let Some(_guard) = table::enter(socket, fd).filter(|_| socket.is_joined())
        {
            let state = (socket.record().generation(), socket.endpoint_role());
            self.send_message(fd, place, state, memory);
        }
        true
    }

    /// Holds a socket for the program that this one has inherited itself, and has not used.
    fn pass_on(&mut self, fd: c_int, index: usize) {
        let Some(known) = inherited::get(index).filter(|_| survives_exec(fd)) else { return };
        let is_given = self.kind == StartKind::Exec && is_given(fd);
        if is_given || !self.lock(known.place) {
            // Held as long as this process and the program live.
            table::get(fd);
            return;
        }
        if known.hold(fd) {
            self.send_message(fd, known.place, (known.generation, known.role), known.memory);
        } else {
            table::get(fd);
        }
    }

    /// Locks the byte of a socket for the program; false if that is not possible.
    fn lock(&mut self, place: Place) -> bool {
        let locks = &mut self.locks[place.ledger];
        if *locks < 0 {
            *locks = open_for_locks(ledgers::file(place.ledger), self.ownership);
        }
        ledgers::lock(*locks, place, LockedByte::InUse)
    }

    /// Leaves a message about the socket of `fd`, for a program that carries this library.
    fn send_message(
        &mut self,
        fd: c_int,
        place: Place,
        (generation, role): (u32, EndpointRole),
        memory: c_int,
    ) {
        let Some(cookie) = kernel::cookie(fd) else { return };
        if self.messages == 0 {
            self.queue = open_queue(self.ownership).unwrap_or([-1; 2]);
        }
        self.messages += 1;
        let (end, ledger) = (self.queue[1], ledgers::file(place.ledger));
        let Some(record) = ledgers::record_at(place) else { return };
        if end < 0 || ledger < 0 || self.messages > INHERITED_MAX {
            return;
        }
        let message = Message {
            starter: kernel::getpid().cast_unsigned(),
            cookie,
            record: place.record as u32,
            generation,
            role,
            locks: self.locks[place.ledger],
        };
        // Before the program can know of it.
        record.end.inheritors.fetch_or(INHERITED, Ordering::SeqCst);
        // SAFETY: all three are descriptors of this library, and open.
        let [end, ledger, memory] =
            [end, ledger, memory].map(|fd| unsafe { BorrowedFd::borrow_raw(fd) });
        // If it fails, the socket is held until the program has ended.
        let _ = nm_sys::unix::send_descriptors(end, &message.to_bytes(), &[ledger, memory]);
    }

    fn close(&self, fd: c_int) {
        match self.ownership {
            MemoryOwnership::Owner => table::close_library_descriptor(fd),
            MemoryOwnership::Borrower if fd >= 0 => {
                // SAFETY: the child of a vfork closes a descriptor that it made itself.
                unsafe { kernel::close(fd) };
            }
            MemoryOwnership::Borrower => {}
        }
    }
}

impl Drop for Start {
    fn drop(&mut self) {
        let errno = kernel::errno();
        for fd in self.locks.into_iter().chain(self.queue) {
            self.close(fd);
        }
        kernel::set_errno(errno);
    }
}

fn survives_exec(fd: c_int) -> bool {
    // SAFETY: a query of plain numbers.
    let flags = unsafe { kernel::fcntl(fd, libc::F_GETFD, 0) };
    flags >= 0 && flags & libc::FD_CLOEXEC == 0
}

/// A pair of Unix sockets. Exec does not close the first one, whose queue has what is sent by the
/// second one.
fn open_queue(ownership: MemoryOwnership) -> Option<[c_int; 2]> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (near, far) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).ok()?;
    let far = far.into_raw_fd();
    if ownership == MemoryOwnership::Owner {
        table::own_descriptor(far);
    }
    Some([make_inherited(near.into_raw_fd(), ownership), far])
}

/// Opens a ledger's file once more, as a description of its own that exec does not close, at a
/// high number. −1 if that is not possible, for example without /proc.
fn open_for_locks(file: c_int, ownership: MemoryOwnership) -> c_int {
    use rustix::fs::{CWD, Mode, OFlags, openat};
    let mut path = [0_u8; 32];
    let name = descriptor_path(&mut path, file);
    let Ok(opened) = openat(CWD, name, OFlags::RDONLY, Mode::empty()) else { return -1 };
    make_inherited(opened.into_raw_fd(), ownership)
}

/// Moves a descriptor of this library to a high number that exec does not close.
fn make_inherited(fd: c_int, ownership: MemoryOwnership) -> c_int {
    if ownership == MemoryOwnership::Owner {
        let protected = table::protect(fd);
        // SAFETY: plain numbers; the descriptor is the library's.
        unsafe { kernel::fcntl(protected, libc::F_SETFD, 0) };
        return protected;
    }
    const FROM: usize = 512;
    // SAFETY: plain numbers; both descriptors are this child's own.
    unsafe {
        let high = kernel::fcntl(fd, libc::F_DUPFD, FROM);
        if high < 0 {
            return fd;
        }
        kernel::close(fd);
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
