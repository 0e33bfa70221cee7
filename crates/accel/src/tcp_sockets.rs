//! Which descriptors are TCP sockets. A connection costs no system call to find that out. The
//! program's own call of `socket` tells it, and an accepted socket has the protocol of its
//! listener, of which the kernel is asked once.
//!
//! What is stored is a hint. A descriptor may be closed and opened again without this library. The
//! kernel may use another protocol than the program has asked for (Multipath TCP). The rendezvous
//! asks the kernel before a connection shares memory.

use std::ffi::c_int;
use std::sync::atomic::{AtomicU8, Ordering};

use crate::kernel;
use crate::table::DESCRIPTORS;

const UNKNOWN: u8 = 0;
const TCP: u8 = 1;
const OTHER: u8 = 2;

static PROTOCOLS: [AtomicU8; DESCRIPTORS] = [const { AtomicU8::new(UNKNOWN) }; DESCRIPTORS];

/// Bits of a socket's type that are flags.
const TYPE_FLAGS: c_int = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;

fn entry(fd: c_int) -> Option<&'static AtomicU8> {
    PROTOCOLS.get(usize::try_from(fd).ok()?)
}

fn store(fd: c_int, is_tcp: bool) {
    if let Some(entry) = entry(fd) {
        entry.store(if is_tcp { TCP } else { OTHER }, Ordering::Relaxed);
    }
}

/// The program has created the socket `fd`.
pub fn created(fd: c_int, domain: c_int, kind: c_int, protocol: c_int) {
    let is_tcp = matches!(domain, libc::AF_INET | libc::AF_INET6)
        && kind & !TYPE_FLAGS == libc::SOCK_STREAM
        && matches!(protocol, 0 | libc::IPPROTO_TCP);
    store(fd, is_tcp);
}

/// `fd` is closed, or is about to be.
#[inline]
pub fn closed(fd: c_int) {
    if let Some(entry) = entry(fd)
        && entry.load(Ordering::Relaxed) != UNKNOWN
    {
        entry.store(UNKNOWN, Ordering::Relaxed);
    }
}

/// Whether `fd`, which may be a listener, is a TCP socket. Asks the kernel if that is not known,
/// and stores the answer.
pub fn is_tcp(fd: c_int) -> bool {
    let known = entry(fd).map_or(UNKNOWN, |entry| entry.load(Ordering::Relaxed));
    if known != UNKNOWN {
        return known == TCP;
    }
    let is_tcp = is_tcp_by_kernel(fd);
    store(fd, is_tcp);
    is_tcp
}

/// Whether `fd` is a TCP socket, as the kernel says.
pub fn is_tcp_by_kernel(fd: c_int) -> bool {
    kernel::option(fd, libc::SOL_SOCKET, libc::SO_PROTOCOL) == Some(libc::IPPROTO_TCP)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd as _;

    #[test]
    fn socket_of_the_program_is_known_by_its_call_and_others_by_the_kernel() {
        let fd = 700_222;
        for (domain, kind, protocol, expected) in [
            (libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0, true),
            (libc::AF_INET6, libc::SOCK_STREAM | libc::SOCK_NONBLOCK, libc::IPPROTO_TCP, true),
            (libc::AF_INET, libc::SOCK_STREAM, libc::IPPROTO_MPTCP, false),
            (libc::AF_INET, libc::SOCK_DGRAM, 0, false),
            (libc::AF_UNIX, libc::SOCK_STREAM, 0, false),
        ] {
            created(fd, domain, kind, protocol);
            assert_eq!(is_tcp(fd), expected, "{domain} {kind} {protocol}");
        }
        closed(fd);
        assert!(!is_tcp(fd), "no such descriptor");
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let datagrams = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        assert!(is_tcp(listener.as_raw_fd()) && !is_tcp(datagrams.as_raw_fd()));
        closed(listener.as_raw_fd());
        closed(datagrams.as_raw_fd());
        assert!(!is_tcp(-1) && !is_tcp(c_int::MAX));
    }
}
