//! Sockets in shared memory that this program has inherited from the one that has started it, and
//! has not used yet. Until it does, they cost the other program nothing; the first use returns them
//! to the kernel, for as long as this program lives.
//!
//! The other program holds each of these sockets by a lock on its first byte. It does so for any
//! program that may use it at once (see `children`). It also leaves a [`Message`] for each in the
//! queue of a Unix socket that is inherited. The constructor of this program reads the messages,
//! finds the descriptors, locks the second byte, and unlocks the first, which ends the hold.

use std::ffi::c_int;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, IntoRawFd as _, OwnedFd};
use std::sync::OnceLock;

use nm_ring::EndpointRole;
use nm_ring::conduit::ConduitMapping;
use nm_ring::ledger::{Ledger, Record, SocketPhase};
use rustix::net::{AddressFamily, RecvFlags, SocketType};

use crate::exec_substitutes::substitute_for;
use crate::ledgers::{self, LockedByte, Place};
use crate::lock::Lock;
use crate::socket::Socket;
use crate::{inheritors, kernel, open_files, table};

/// Sockets for which a started program can get messages; the rest are held for it.
pub const INHERITED_MAX: usize = 64;

/// First word of a message: a magic number that contains the version.
const MARK: u64 = 0x6e6d_696e_6865_0001;

/// What the starting program tells about one socket. With two descriptors: the files of the ledger
/// and of the connection's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// Process that the started program replaces, or that is its parent.
    pub starter: u32,
    /// The socket's `SO_COOKIE`, which no other one has.
    pub cookie: u64,
    /// Index of the record in the ledger.
    pub record: u32,
    /// Generation of the record.
    pub generation: u32,
    /// Which end of the connection's memory the socket is.
    pub role: EndpointRole,
    /// The inherited descriptor that has the locks.
    pub locks: c_int,
}

const MESSAGE_BYTES: usize = 40;

impl Message {
    /// The message as bytes.
    pub fn to_bytes(self) -> [u8; MESSAGE_BYTES] {
        let mut bytes = [0; MESSAGE_BYTES];
        bytes[..8].copy_from_slice(&MARK.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.cookie.to_le_bytes());
        let words =
            [self.starter, self.record, self.generation, self.role as u32, self.locks as u32];
        for (place, word) in bytes[16..].chunks_exact_mut(4).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    fn parse(bytes: &[u8]) -> Option<Message> {
        let long = |at| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        let short = |at| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
        if long(0)? != MARK || bytes.len() != MESSAGE_BYTES {
            return None;
        }
        let role = match short(28)? {
            0 => EndpointRole::Creator,
            1 => EndpointRole::Opener,
            _ => return None,
        };
        Some(Message {
            cookie: long(8)?,
            starter: short(16)?,
            record: short(20)?,
            generation: short(24)?,
            role,
            locks: short(32)?.cast_signed(),
        })
    }

    /// Whether the program that was started is this one: not one that it has started in turn.
    fn is_for_this_process(&self) -> bool {
        let parent = rustix::process::getppid().map_or(0, rustix::process::Pid::as_raw_pid);
        [parent, kernel::getpid()].map(i32::cast_unsigned).contains(&self.starter)
    }
}

/// A socket that was inherited.
pub struct Inherited {
    /// The socket's `SO_COOKIE`.
    pub cookie: u64,
    /// Its record.
    pub place: Place,
    /// Generation of the record.
    pub generation: u32,
    /// Which end of the connection's memory it is.
    pub role: EndpointRole,
    /// The file of the connection's memory, a descriptor of this library.
    pub memory: c_int,
    /// The inherited descriptor that has the locks.
    locks: c_int,
}

static INHERITED: OnceLock<Vec<Inherited>> = OnceLock::new();

/// Held during a first use.
static FIRST_USE: Lock<()> = Lock::new(());

/// The socket at `index`, as in the table.
pub fn get(index: usize) -> Option<&'static Inherited> {
    INHERITED.get()?.get(index)
}

/// Takes over what this program has inherited. Called once, by the constructor, before the program
/// has other threads.
pub fn prepare() {
    let Some(queue) = find_queue() else { return };
    let mut all = vec![];
    let mut bytes = [0; MESSAGE_BYTES];
    // SAFETY: the descriptor was found open, and nothing else uses it.
    let source = unsafe { BorrowedFd::borrow_raw(queue) };
    while let Ok((count, files)) = nm_sys::unix::receive_descriptors(source, &mut bytes) {
        if count == 0 {
            break;
        }
        all.extend(Message::parse(&bytes[..count]).and_then(|message| accept(message, files)));
    }
    // SAFETY: as above.
    unsafe { kernel::close(queue) };
    // The program could wait for these sockets by an epoll set or a ring, which asks nobody.
    let waits_elsewhere = [&b"anon_inode:[eventpoll]"[..], b"anon_inode:[io_uring]"]
        .iter()
        .any(|name| open_files::any(name, c_int::MAX, |_| true));
    if !waits_elsewhere {
        take_over(all);
    }
}

/// The Unix socket whose queue has messages for this process.
fn find_queue() -> Option<c_int> {
    let mut queue = None;
    open_files::any(b"socket:[", c_int::MAX, |fd| {
        // SAFETY: open while the folder is read: the process has one thread.
        let socket = unsafe { BorrowedFd::borrow_raw(fd) };
        let kind = (AddressFamily::UNIX, SocketType::SEQPACKET);
        let is_such = rustix::net::sockopt::socket_domain(socket) == Ok(kind.0)
            && rustix::net::sockopt::socket_type(socket) == Ok(kind.1);
        let mut bytes = [0; MESSAGE_BYTES];
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        let message =
            if is_such { rustix::net::recv(socket, &mut bytes, flags).ok() } else { None };
        let message = message.and_then(|(_, count)| Message::parse(bytes.get(..count)?));
        if message.is_some_and(|message| message.is_for_this_process()) {
            queue = Some(fd);
        }
        queue.is_some()
    });
    queue
}

/// A socket by its message, if the locks and the record are there.
fn accept(message: Message, files: Vec<OwnedFd>) -> Option<Inherited> {
    let [ledger, memory] = <[OwnedFd; 2]>::try_from(files).ok()?;
    if message.locks < 0 {
        return None;
    }
    // SAFETY: if it is not open, the query fails.
    let locks = unsafe { BorrowedFd::borrow_raw(message.locks) };
    if !ledgers::is_same_file(locks, &ledger) {
        return None;
    }
    let index = match ledgers::index_of_file(ledger.as_fd()) {
        Some(index) => index,
        None => {
            let shared = Ledger::open_shared(&ledger).ok()?;
            ledgers::add(shared, table::protect(ledger.into_raw_fd()))?
        }
    };
    let place = Place { ledger: index, record: message.record as usize };
    ledgers::record_at(place)?;
    Some(Inherited {
        cookie: message.cookie,
        place,
        generation: message.generation,
        role: message.role,
        memory: table::protect(memory.into_raw_fd()),
        locks: message.locks,
    })
}

/// Finds the descriptors of the sockets in `all`, and exchanges the locks of those that this
/// library sees all uses of.
fn take_over(all: Vec<Inherited>) {
    let mut descriptors = vec![];
    open_files::any(b"socket:[", c_int::MAX, |fd| {
        let cookie = kernel::cookie(fd);
        let index = all.iter().position(|inherited| Some(inherited.cookie) == cookie);
        descriptors.extend(index.map(|index| (fd, index)));
        false
    });
    for (index, inherited) in all.iter().enumerate() {
        // The C library reads and writes its standard streams without calling this library.
        let is_stream = descriptors.iter().any(|&(fd, it)| it == index && (0..=2).contains(&fd));
        if is_stream || !ledgers::lock(inherited.locks, inherited.place, LockedByte::Inherited) {
            descriptors.retain(|&(_, it)| it != index);
            continue;
        }
        table::own_descriptor(inherited.locks);
        ledgers::unlock(inherited.locks, inherited.place, LockedByte::InUse);
    }
    let _ = INHERITED.set(all);
    table::prepare_first_use(first_use);
    for (fd, index) in descriptors {
        table::bind_inherited(fd, index);
    }
}

/// The program uses `fd`, one of the descriptors of an inherited socket, for the first time: the
/// kernel's from now on.
fn first_use(fd: c_int, index: usize) {
    let errno = kernel::errno();
    {
        let _lock = FIRST_USE.lock();
        if let Some(inherited) = get(index)
            && table::inherited_index(fd) == Some(index)
        {
            // Another file, if the descriptor was closed and opened again without this library.
            if kernel::cookie(fd) != Some(inherited.cookie) {
                table::remove_inherited(fd);
            } else if inherited.return_to_kernel(fd) {
                table::for_each_inherited(|other, its_index| {
                    if its_index == index {
                        table::remove_inherited(other);
                    }
                });
            }
        }
    }
    kernel::set_errno(errno);
}

/// Before the program restricts its system calls: uses all that it has inherited.
pub fn use_all() {
    table::for_each_inherited(first_use);
}

/// In the child of a fork, which has one thread.
pub fn forked_child() {
    FIRST_USE.reset();
}

impl Inherited {
    /// Returns the socket to the kernel for as long as this program lives; false if there is no
    /// memory for that, so that the next use tries again.
    fn return_to_kernel(&self, fd: c_int) -> bool {
        // Nobody may end the hold that begins now.
        ledgers::lock(self.locks, self.place, LockedByte::InUse);
        self.hold(fd)
    }

    /// The socket's record; none if the starting program has closed the socket, so that all of its
    /// bytes are in the kernel already.
    fn record(&self) -> Option<&'static Record> {
        let is_current = |record: &&Record| {
            record.generation() == self.generation && record.phase() == SocketPhase::SharedMemory
        };
        ledgers::record_at(self.place).filter(is_current)
    }

    /// Holds the socket for a program whose lock is on its byte; false if there is no memory for
    /// that. `fd` is a descriptor of the socket.
    pub fn hold(&self, fd: c_int) -> bool {
        let Some(record) = self.record() else { return true };
        // SAFETY: the library's own descriptor, open as long as the process.
        let memory = unsafe { BorrowedFd::borrow_raw(self.memory) };
        let Ok(mapped) = ConduitMapping::open(memory) else { return false };
        let socket = Socket::new();
        socket.open_shared(fd, record, mapped, self.role);
        inheritors::begin_by_descriptor(&socket, fd);
        if socket.has_memory_bytes()
            && socket.peer_is_gone(fd)
            && let Some(substitute) = substitute_for(&socket, fd)
        {
            self.replace_by(&substitute);
        }
        socket.release_memory();
        true
    }

    /// What the peer has left in memory cannot be received from the kernel.
    fn replace_by(&self, substitute: &OwnedFd) {
        table::for_each_inherited(|fd, index| {
            if get(index).is_some_and(|other| std::ptr::eq(other, self)) {
                // SAFETY: the descriptor is one of the socket, and the kernel has nothing for it.
                unsafe {
                    let flags = kernel::fcntl(fd, libc::F_GETFD, 0);
                    kernel::dup3(substitute.as_raw_fd(), fd, 0);
                    kernel::fcntl(fd, libc::F_SETFD, flags.max(0) as usize);
                }
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_is_read_as_it_was_written() {
        let message = Message {
            starter: 12,
            cookie: u64::MAX - 3,
            record: 65_535,
            generation: 7,
            role: EndpointRole::Opener,
            locks: 1024,
        };
        let bytes = message.to_bytes();
        assert_eq!(Message::parse(&bytes), Some(message));
        assert_eq!(Message::parse(&bytes[..39]), None);
        assert_eq!(Message::parse(&[0; MESSAGE_BYTES]), None);
        let mut other = bytes;
        other[28] = 2;
        assert_eq!(Message::parse(&other), None, "no such end");
    }

    #[test]
    fn message_is_for_the_child_or_the_successor_of_its_sender() {
        let role = EndpointRole::Creator;
        let from =
            |starter| Message { starter, cookie: 0, record: 0, generation: 0, role, locks: 0 };
        assert!(from(kernel::getpid().cast_unsigned()).is_for_this_process());
        assert!(from(std::os::unix::process::parent_id()).is_for_this_process());
        assert!(!from(u32::MAX).is_for_this_process());
    }
}
