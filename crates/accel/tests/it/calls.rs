//! libc's calls with their errors as values: the symbols that a C program would call, so that the
//! library intercepts them. One wrapper per call, without retries.

use std::ffi::{CStr, c_int, c_void};
use std::fmt;
use std::mem::{size_of, size_of_val, zeroed};
use std::ptr::{null, null_mut};

use libc::{epoll_event, fd_set, iovec, msghdr, nfds_t, pollfd, sigset_t, socklen_t, timespec};

use crate::harness::mark;

/// The value of `errno`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Errno(pub c_int);

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = std::io::Error::from_raw_os_error(self.0);
        write!(f, "{text}")
    }
}

pub(crate) const AGAIN: Errno = Errno(libc::EAGAIN);
pub(crate) const INTR: Errno = Errno(libc::EINTR);
pub(crate) const PIPE: Errno = Errno(libc::EPIPE);
pub(crate) const RESET: Errno = Errno(libc::ECONNRESET);
pub(crate) const BADF: Errno = Errno(libc::EBADF);
pub(crate) const NOTCONN: Errno = Errno(libc::ENOTCONN);
pub(crate) const INVAL: Errno = Errno(libc::EINVAL);

pub(crate) type Outcome<T = usize> = Result<T, Errno>;
pub(crate) type Fd = c_int;

pub(crate) fn errno() -> Errno {
    // SAFETY: the variable is this thread's own.
    Errno(unsafe { *libc::__errno_location() })
}

fn size(result: isize) -> Outcome {
    usize::try_from(result).map_err(|_| errno())
}

fn number(result: c_int) -> Outcome<c_int> {
    if result < 0 { Err(errno()) } else { Ok(result) }
}

fn done(result: c_int) -> Outcome<()> {
    number(result).map(drop)
}

// Data.

#[track_caller]
pub(crate) fn send(fd: Fd, bytes: &[u8], flags: c_int) -> Outcome {
    mark();
    // SAFETY: the bytes are live for the call.
    size(unsafe { libc::send(fd, bytes.as_ptr().cast(), bytes.len(), flags) })
}

#[track_caller]
pub(crate) fn recv(fd: Fd, buffer: &mut [u8], flags: c_int) -> Outcome {
    mark();
    // SAFETY: the buffer is live for the call.
    size(unsafe { libc::recv(fd, buffer.as_mut_ptr().cast(), buffer.len(), flags) })
}

/// `recv` with any length, for `MSG_TRUNC`, which needs no buffer.
#[track_caller]
pub(crate) fn recv_discarding(fd: Fd, length: usize, flags: c_int) -> Outcome {
    mark();
    // SAFETY: with MSG_TRUNC a stream socket writes nothing.
    size(unsafe { libc::recv(fd, null_mut(), length, flags | libc::MSG_TRUNC) })
}

#[track_caller]
pub(crate) fn sendto(fd: Fd, bytes: &[u8], flags: c_int, to: Option<&Address>) -> Outcome {
    mark();
    let (name, length) = to.map_or((null(), 0), |to| (to.as_ptr(), to.length));
    // SAFETY: the bytes and the address are live for the call.
    size(unsafe {
        libc::sendto(fd, bytes.as_ptr().cast(), bytes.len(), flags, name.cast(), length)
    })
}

/// `recvfrom`, and the length of the address that it returned (unchanged: 77).
#[track_caller]
pub(crate) fn recvfrom(fd: Fd, buffer: &mut [u8], flags: c_int) -> Outcome<(usize, Address)> {
    mark();
    let mut from = Address::default();
    from.length = size_of_val(&from.storage) as socklen_t;
    let (name, length) = (from.as_mut_ptr(), &raw mut from.length);
    // SAFETY: the buffer and the address are live for the call.
    let result = unsafe {
        libc::recvfrom(fd, buffer.as_mut_ptr().cast(), buffer.len(), flags, name, length)
    };
    size(result).map(|count| (count, from))
}

#[track_caller]
pub(crate) fn read(fd: Fd, buffer: &mut [u8]) -> Outcome {
    mark();
    // SAFETY: the buffer is live for the call.
    size(unsafe { libc::read(fd, buffer.as_mut_ptr().cast(), buffer.len()) })
}

#[track_caller]
pub(crate) fn write(fd: Fd, bytes: &[u8]) -> Outcome {
    mark();
    // SAFETY: the bytes are live for the call.
    size(unsafe { libc::write(fd, bytes.as_ptr().cast(), bytes.len()) })
}

/// The parts of a vector as the kernel's structures.
pub(crate) fn parts_of(parts: &[&[u8]]) -> Vec<iovec> {
    let part =
        |part: &&[u8]| iovec { iov_base: part.as_ptr().cast_mut().cast(), iov_len: part.len() };
    parts.iter().map(part).collect()
}

/// Parts to receive into.
pub(crate) fn receive_parts(rooms: &mut [&mut [u8]]) -> Vec<iovec> {
    let room =
        |room: &mut &mut [u8]| iovec { iov_base: room.as_mut_ptr().cast(), iov_len: room.len() };
    rooms.iter_mut().map(room).collect()
}

#[track_caller]
pub(crate) fn writev(fd: Fd, parts: &[&[u8]]) -> Outcome {
    mark();
    let vector = parts_of(parts);
    // SAFETY: the parts are live for the call.
    size(unsafe { libc::writev(fd, vector.as_ptr(), vector.len() as c_int) })
}

#[track_caller]
pub(crate) fn readv(fd: Fd, rooms: &mut [&mut [u8]]) -> Outcome {
    mark();
    let vector = receive_parts(rooms);
    // SAFETY: the parts are live for the call.
    size(unsafe { libc::readv(fd, vector.as_ptr(), vector.len() as c_int) })
}

/// A message header over a vector.
pub(crate) fn header(vector: &mut [iovec]) -> msghdr {
    // SAFETY: all zero is a header without name and control data.
    let mut header: msghdr = unsafe { zeroed() };
    header.msg_iov = vector.as_mut_ptr();
    header.msg_iovlen = vector.len() as _;
    header
}

#[track_caller]
pub(crate) fn sendmsg(fd: Fd, parts: &[&[u8]], flags: c_int) -> Outcome {
    mark();
    let mut vector = parts_of(parts);
    let header = header(&mut vector);
    // SAFETY: the header and its parts are live for the call.
    size(unsafe { libc::sendmsg(fd, &raw const header, flags) })
}

/// `recvmsg`: count and the flags of the message.
#[track_caller]
pub(crate) fn recvmsg(fd: Fd, rooms: &mut [&mut [u8]], flags: c_int) -> Outcome<(usize, c_int)> {
    mark();
    let mut vector = receive_parts(rooms);
    let mut header = header(&mut vector);
    // SAFETY: the header and its parts are live for the call.
    let result = unsafe { libc::recvmsg(fd, &raw mut header, flags) };
    size(result).map(|count| (count, header.msg_flags))
}

/// `sendmmsg`: the length of each message that was sent.
#[track_caller]
pub(crate) fn sendmmsg(fd: Fd, messages: &[&[&[u8]]], flags: c_int) -> Outcome<Vec<usize>> {
    mark();
    let mut vectors: Vec<_> = messages.iter().map(|parts| parts_of(parts)).collect();
    let mut headers: Vec<_> = vectors
        .iter_mut()
        .map(|vector| libc::mmsghdr { msg_hdr: header(vector), msg_len: 0 })
        .collect();
    // SAFETY: the headers and all parts are live for the call.
    let sent =
        unsafe { libc::sendmmsg(fd, headers.as_mut_ptr(), headers.len() as u32, flags as _) };
    number(sent).map(|sent| headers[..sent as usize].iter().map(|h| h.msg_len as usize).collect())
}

/// `recvmmsg` into one part per message: the length of each message that was received.
#[track_caller]
pub(crate) fn recvmmsg(fd: Fd, rooms: &mut [&mut [u8]], flags: c_int) -> Outcome<Vec<usize>> {
    mark();
    let mut vectors: Vec<_> = receive_parts(rooms).into_iter().map(|room| [room]).collect();
    let mut headers: Vec<_> = vectors
        .iter_mut()
        .map(|vector| libc::mmsghdr { msg_hdr: header(vector), msg_len: 0 })
        .collect();
    // SAFETY: the headers and all parts are live for the call.
    let came = unsafe {
        libc::recvmmsg(fd, headers.as_mut_ptr(), headers.len() as u32, flags as _, null_mut())
    };
    number(came).map(|came| headers[..came as usize].iter().map(|h| h.msg_len as usize).collect())
}

#[track_caller]
pub(crate) fn sendfile(to: Fd, from: Fd, offset: Option<&mut i64>, count: usize) -> Outcome {
    mark();
    let offset = offset.map_or(null_mut(), std::ptr::from_mut);
    // SAFETY: the offset is null or live for the call.
    size(unsafe { libc::sendfile(to, from, offset, count) })
}

#[track_caller]
pub(crate) fn splice(from: Fd, to: Fd, count: usize, flags: u32) -> Outcome {
    mark();
    // SAFETY: no offsets.
    size(unsafe { libc::splice(from, null_mut(), to, null_mut(), count, flags) })
}

// Sockets.

/// A socket address of any family.
#[derive(Clone, Copy)]
pub(crate) struct Address {
    pub storage: libc::sockaddr_storage,
    pub length: socklen_t,
}

impl Default for Address {
    fn default() -> Address {
        // SAFETY: all zero is an address of no family.
        Address { storage: unsafe { zeroed() }, length: 0 }
    }
}

impl Address {
    pub(crate) fn v4(host: [u8; 4], port: u16) -> Address {
        let mut address = Address::default();
        let name = libc::sockaddr_in {
            sin_family: libc::AF_INET as u16,
            sin_port: port.to_be(),
            sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(host) },
            sin_zero: [0; 8],
        };
        // SAFETY: the storage is large and aligned enough for every family.
        unsafe { address.as_mut_ptr().cast::<libc::sockaddr_in>().write(name) };
        address.length = size_of_val(&name) as socklen_t;
        address
    }

    pub(crate) fn v6(host: [u8; 16], port: u16) -> Address {
        let mut address = Address::default();
        // SAFETY: all zero is a v6 address.
        let mut name: libc::sockaddr_in6 = unsafe { zeroed() };
        name.sin6_family = libc::AF_INET6 as u16;
        name.sin6_port = port.to_be();
        name.sin6_addr.s6_addr = host;
        // SAFETY: the storage is large and aligned enough for every family.
        unsafe { address.as_mut_ptr().cast::<libc::sockaddr_in6>().write(name) };
        address.length = size_of_val(&name) as socklen_t;
        address
    }

    pub(crate) fn as_ptr(&self) -> *const libc::sockaddr {
        (&raw const self.storage).cast()
    }

    pub(crate) fn as_mut_ptr(&mut self) -> *mut libc::sockaddr {
        (&raw mut self.storage).cast()
    }

    pub(crate) fn family(&self) -> c_int {
        c_int::from(self.storage.ss_family)
    }

    /// The port, which has the same offset in both families.
    pub(crate) fn port(&self) -> u16 {
        // SAFETY: the storage is large and aligned enough for every family.
        u16::from_be(unsafe { (*self.as_ptr().cast::<libc::sockaddr_in>()).sin_port })
    }
}

pub(crate) fn socket(family: c_int, kind: c_int) -> Outcome<Fd> {
    mark();
    // SAFETY: no pointers.
    number(unsafe { libc::socket(family, kind, 0) })
}

pub(crate) fn socketpair(family: c_int, kind: c_int) -> Outcome<[Fd; 2]> {
    let mut pair = [-1; 2];
    // SAFETY: the pair is live for the call.
    done(unsafe { libc::socketpair(family, kind, 0, pair.as_mut_ptr()) }).map(|()| pair)
}

pub(crate) fn bind(fd: Fd, address: &Address) -> Outcome<()> {
    // SAFETY: the address is live for the call.
    done(unsafe { libc::bind(fd, address.as_ptr(), address.length) })
}

pub(crate) fn listen(fd: Fd, backlog: c_int) -> Outcome<()> {
    // SAFETY: no pointers.
    done(unsafe { libc::listen(fd, backlog) })
}

#[track_caller]
pub(crate) fn connect(fd: Fd, address: &Address) -> Outcome<()> {
    mark();
    // SAFETY: the address is live for the call.
    done(unsafe { libc::connect(fd, address.as_ptr(), address.length) })
}

#[track_caller]
pub(crate) fn accept(fd: Fd) -> Outcome<Fd> {
    mark();
    // SAFETY: no address is requested.
    number(unsafe { libc::accept(fd, null_mut(), null_mut()) })
}

/// `accept` with the peer's address.
#[track_caller]
pub(crate) fn accept_from(fd: Fd) -> Outcome<(Fd, Address)> {
    mark();
    let mut from = Address::default();
    from.length = size_of_val(&from.storage) as socklen_t;
    let (name, length) = (from.as_mut_ptr(), &raw mut from.length);
    // SAFETY: the address is live for the call.
    number(unsafe { libc::accept(fd, name, length) }).map(|fd| (fd, from))
}

#[track_caller]
pub(crate) fn accept4(fd: Fd, flags: c_int) -> Outcome<Fd> {
    mark();
    // SAFETY: no address is requested.
    number(unsafe { libc::accept4(fd, null_mut(), null_mut(), flags) })
}

#[track_caller]
pub(crate) fn shutdown(fd: Fd, how: c_int) -> Outcome<()> {
    mark();
    // SAFETY: no pointers.
    done(unsafe { libc::shutdown(fd, how) })
}

pub(crate) fn getsockname(fd: Fd) -> Outcome<Address> {
    let mut name = Address::default();
    name.length = size_of_val(&name.storage) as socklen_t;
    let (at, length) = (name.as_mut_ptr(), &raw mut name.length);
    // SAFETY: the address is live for the call.
    done(unsafe { libc::getsockname(fd, at, length) }).map(|()| name)
}

pub(crate) fn getpeername(fd: Fd) -> Outcome<Address> {
    let mut name = Address::default();
    name.length = size_of_val(&name.storage) as socklen_t;
    let (at, length) = (name.as_mut_ptr(), &raw mut name.length);
    // SAFETY: the address is live for the call.
    done(unsafe { libc::getpeername(fd, at, length) }).map(|()| name)
}

/// Sets an option of any plain type.
pub(crate) fn set_option<T: Copy>(fd: Fd, level: c_int, name: c_int, value: T) -> Outcome<()> {
    mark();
    let at = (&raw const value).cast::<c_void>();
    // SAFETY: the value is live for the call.
    done(unsafe { libc::setsockopt(fd, level, name, at, size_of::<T>() as socklen_t) })
}

/// An option that is a number.
pub(crate) fn option(fd: Fd, level: c_int, name: c_int) -> Outcome<c_int> {
    let mut value = 0;
    let mut length = size_of::<c_int>() as socklen_t;
    let at = (&raw mut value).cast::<c_void>();
    // SAFETY: value and length are live for the call.
    done(unsafe { libc::getsockopt(fd, level, name, at, &raw mut length) }).map(|()| value)
}

/// `ioctl` that reads or writes a number.
pub(crate) fn ioctl(fd: Fd, request: u64, value: &mut c_int) -> Outcome<c_int> {
    // SAFETY: the number is live for the call.
    number(unsafe { libc::ioctl(fd, request as _, std::ptr::from_mut(value)) })
}

// Descriptors.

#[track_caller]
pub(crate) fn close(fd: Fd) -> Outcome<()> {
    mark();
    // SAFETY: the body owns the descriptor.
    done(unsafe { libc::close(fd) })
}

pub(crate) fn dup(fd: Fd) -> Outcome<Fd> {
    // SAFETY: no pointers.
    number(unsafe { libc::dup(fd) })
}

#[track_caller]
pub(crate) fn dup2(fd: Fd, new: Fd) -> Outcome<Fd> {
    mark();
    // SAFETY: the body owns the descriptor.
    number(unsafe { libc::dup2(fd, new) })
}

#[track_caller]
pub(crate) fn dup3(fd: Fd, new: Fd, flags: c_int) -> Outcome<Fd> {
    mark();
    // SAFETY: the body owns the descriptor.
    number(unsafe { libc::dup3(fd, new, flags) })
}

pub(crate) fn fcntl(fd: Fd, command: c_int, argument: c_int) -> Outcome<c_int> {
    mark();
    // SAFETY: the commands of these tests take numbers.
    number(unsafe { libc::fcntl(fd, command, argument) })
}

pub(crate) fn pipe() -> [Fd; 2] {
    let mut ends = [-1; 2];
    // SAFETY: the array is live for the call.
    done(unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) }).unwrap();
    ends
}

pub(crate) fn eventfd() -> Fd {
    // SAFETY: no pointers.
    number(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) }).unwrap()
}

pub(crate) fn open(path: &CStr, flags: c_int) -> Outcome<Fd> {
    // SAFETY: the path is a C string.
    number(unsafe { libc::open(path.as_ptr(), flags, 0o600) })
}

// Readiness.

#[track_caller]
pub(crate) fn poll(list: &mut [pollfd], timeout_ms: c_int) -> Outcome<c_int> {
    mark();
    // SAFETY: the list is live for the call.
    number(unsafe { libc::poll(list.as_mut_ptr(), list.len() as nfds_t, timeout_ms) })
}

#[track_caller]
pub(crate) fn ppoll(
    list: &mut [pollfd],
    timeout_ns: Option<i64>,
    mask: Option<&sigset_t>,
) -> Outcome<c_int> {
    mark();
    let time = timeout_ns.map(timespec_of);
    let time = time.as_ref().map_or(null(), std::ptr::from_ref);
    let mask = mask.map_or(null(), std::ptr::from_ref);
    // SAFETY: list, time and mask are live for the call.
    number(unsafe { libc::ppoll(list.as_mut_ptr(), list.len() as nfds_t, time, mask) })
}

pub(crate) fn timespec_of(ns: i64) -> timespec {
    timespec { tv_sec: ns / 1_000_000_000, tv_nsec: ns % 1_000_000_000 }
}

/// A set of descriptors for `select`.
#[derive(Clone, Copy)]
pub(crate) struct Set(fd_set);

impl Set {
    pub(crate) fn of(members: &[Fd]) -> Set {
        // SAFETY: all zero is the empty set; the members are below FD_SETSIZE.
        unsafe {
            let mut set: fd_set = zeroed();
            for member in members {
                libc::FD_SET(*member, &raw mut set);
            }
            Set(set)
        }
    }

    pub(crate) fn has(&self, fd: Fd) -> bool {
        // SAFETY: the set is live and the descriptor below FD_SETSIZE.
        unsafe { libc::FD_ISSET(fd, &raw const self.0) }
    }
}

/// `select` for the given sets; the time is in and out, in microseconds.
#[track_caller]
pub(crate) fn select(
    reads: Option<&mut Set>,
    writes: Option<&mut Set>,
    faults: Option<&mut Set>,
    time_us: Option<&mut i64>,
) -> Outcome<c_int> {
    mark();
    let [reads, writes, faults] =
        [reads, writes, faults].map(|set| set.map_or(null_mut(), |set| &raw mut set.0));
    let mut value = libc::timeval { tv_sec: 0, tv_usec: 0 };
    let at = match &time_us {
        Some(us) => {
            value = libc::timeval { tv_sec: **us / 1_000_000, tv_usec: **us % 1_000_000 };
            &raw mut value
        }
        None => null_mut(),
    };
    // SAFETY: the sets and the time are live for the call.
    let result = unsafe { libc::select(libc::FD_SETSIZE as c_int, reads, writes, faults, at) };
    let result = number(result);
    if let Some(us) = time_us {
        *us = value.tv_sec * 1_000_000 + value.tv_usec;
    }
    result
}

#[track_caller]
pub(crate) fn pselect(
    reads: &mut Set,
    timeout_ns: Option<i64>,
    mask: Option<&sigset_t>,
) -> Outcome<c_int> {
    mark();
    let time = timeout_ns.map(timespec_of);
    let time = time.as_ref().map_or(null(), std::ptr::from_ref);
    let mask = mask.map_or(null(), std::ptr::from_ref);
    let count = libc::FD_SETSIZE as c_int;
    // SAFETY: set, time and mask are live for the call.
    number(unsafe { libc::pselect(count, &raw mut reads.0, null_mut(), null_mut(), time, mask) })
}

pub(crate) fn epoll_create() -> Fd {
    // SAFETY: no pointers.
    number(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) }).unwrap()
}

#[track_caller]
pub(crate) fn epoll_ctl(set: Fd, what: c_int, fd: Fd, events: u32, data: u64) -> Outcome<()> {
    mark();
    let mut event = epoll_event { events, u64: data };
    // SAFETY: the event is live for the call.
    done(unsafe { libc::epoll_ctl(set, what, fd, &raw mut event) })
}

/// `epoll_wait`: events and data of the ready descriptors, in the order returned.
#[track_caller]
pub(crate) fn epoll_wait(set: Fd, most: usize, timeout_ms: c_int) -> Outcome<Vec<(u32, u64)>> {
    mark();
    let mut events = vec![epoll_event { events: 0, u64: 0 }; most];
    // SAFETY: the events are live for the call.
    let found = unsafe { libc::epoll_wait(set, events.as_mut_ptr(), most as c_int, timeout_ms) };
    number(found).map(|found| events[..found as usize].iter().map(|e| (e.events, e.u64)).collect())
}

#[track_caller]
pub(crate) fn epoll_pwait(
    set: Fd,
    most: usize,
    timeout_ms: c_int,
    mask: Option<&sigset_t>,
) -> Outcome<Vec<(u32, u64)>> {
    mark();
    let mut events = vec![epoll_event { events: 0, u64: 0 }; most];
    let mask = mask.map_or(null(), std::ptr::from_ref);
    // SAFETY: the events and the mask are live for the call.
    let found =
        unsafe { libc::epoll_pwait(set, events.as_mut_ptr(), most as c_int, timeout_ms, mask) };
    number(found).map(|found| events[..found as usize].iter().map(|e| (e.events, e.u64)).collect())
}

// glibc 2.35 and later; declared here because the libc crate does not have it.
unsafe extern "C" {
    fn epoll_pwait2(
        set: c_int,
        events: *mut epoll_event,
        most: c_int,
        time: *const timespec,
        mask: *const sigset_t,
    ) -> c_int;
}

#[track_caller]
pub(crate) fn epoll_wait_ns(set: Fd, timeout_ns: Option<i64>) -> Outcome<Vec<(u32, u64)>> {
    mark();
    let mut events = vec![epoll_event { events: 0, u64: 0 }; 16];
    let time = timeout_ns.map(timespec_of);
    let time = time.as_ref().map_or(null(), std::ptr::from_ref);
    // SAFETY: the events and the time are live for the call.
    let found = unsafe { epoll_pwait2(set, events.as_mut_ptr(), 16, time, null()) };
    number(found).map(|found| events[..found as usize].iter().map(|e| (e.events, e.u64)).collect())
}

// Processes.

pub(crate) fn fork() -> c_int {
    // SAFETY: the child of these tests does nothing that needs another thread.
    number(unsafe { libc::fork() }).unwrap()
}

/// `waitpid`: the status as the kernel returns it.
#[track_caller]
pub(crate) fn waitpid(process: c_int) -> Outcome<c_int> {
    mark();
    let mut status = 0;
    // SAFETY: the status is live for the call.
    number(unsafe { libc::waitpid(process, &raw mut status, 0) }).map(|_| status)
}

pub(crate) fn kill(process: c_int, signal: c_int) {
    // SAFETY: the body passes a process that it started.
    done(unsafe { libc::kill(process, signal) }).unwrap();
}
