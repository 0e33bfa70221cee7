//! Bytes in memory that the peer did not send again through the kernel: it was killed, or is busy
//! elsewhere (see `Socket::wait_for_return`). This library can still read them. A program without
//! it gets the kernel's descriptor through an exec or from another process. It would take the
//! kernel's end of the stream for the end of the data and lose bytes silently.
//!
//! Such a program gets a substitute descriptor. If the peer is gone, nothing more can be sent or
//! received. The substitute is then a local stream that holds the rest and ends. Otherwise the
//! other direction of the connection is still needed, which no other descriptor can replace: then
//! the substitute's first read fails with `ECONNRESET`.

use std::ffi::c_int;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use crate::socket::Socket;
use crate::{kernel, signals, table};

/// Descriptors that one exec can substitute.
const REPLACED_MAX: usize = 16;

/// Buffer requested for a local stream: at least the size of a pipe, plus the kernel's overhead.
const BUFFER_BYTES: usize = 1 << 20;

/// A substituted descriptor.
struct Replaced {
    fd: c_int,
    /// Duplicate of the original, which exec closes.
    original: c_int,
    socket: &'static Socket,
}

/// The descriptors that an exec passes on, and that have been substituted.
pub struct Substitutes([Option<Replaced>; REPLACED_MAX]);

impl Substitutes {
    /// No substitutes.
    pub fn new() -> Substitutes {
        Substitutes([const { None }; REPLACED_MAX])
    }

    /// Substitutes `fd`, in this process only, if bytes of `socket` would be lost.
    pub fn replace(&mut self, fd: c_int, socket: &'static Socket) {
        let Some(_guard) = table::enter(socket, fd) else { return };
        if !socket.is_joined() || !socket.has_memory_bytes() {
            return;
        }
        let free_entry = self.0.iter().position(Option::is_none);
        // SAFETY: duplicates a descriptor; the duplicate is ours.
        let original = unsafe { kernel::fcntl(fd, libc::F_DUPFD_CLOEXEC, 0) };
        let mut others = self.0.iter().flatten();
        let known = others.find(|other| ptr::eq(other.socket, socket)).map(|other| other.fd);
        let fresh = if known.is_none() { substitute_for(socket, fd) } else { None };
        let source = known.or(fresh.as_ref().map(AsRawFd::as_raw_fd));
        // If no descriptor is left, closing it is better than silent loss. SAFETY: the program is
        // about to be replaced; if that fails, `undo` restores the descriptor.
        unsafe {
            match source {
                Some(source) => kernel::dup3(source, fd, 0),
                None => kernel::close(fd),
            };
        }
        if let Some(free_entry) = free_entry {
            self.0[free_entry] = Some(Replaced { fd, original, socket });
        }
    }

    /// The exec has failed: restores all descriptors.
    pub fn undo(self) {
        for replaced in self.0.into_iter().flatten() {
            if replaced.original >= 0 {
                // SAFETY: the duplicate is ours, and the descriptor was the program's.
                unsafe {
                    kernel::dup3(replaced.original, replaced.fd, 0);
                    kernel::close(replaced.original);
                }
            }
        }
    }
}

/// A stream that holds the remaining bytes, or whose first read fails.
pub fn substitute_for(socket: &Socket, fd: c_int) -> Option<OwnedFd> {
    if socket.peer_is_gone(fd) {
        let (near, far) = local_stream()?;
        if copy_remaining(socket, &far).is_some() {
            return Some(near);
        }
    }
    // Closing the far end with a byte unread makes a read of the near end fail with `ECONNRESET`.
    let (near, far) = local_stream()?;
    rustix::io::write(&near, b"x").ok()?;
    drop(far);
    Some(near)
}

fn local_stream() -> Option<(OwnedFd, OwnedFd)> {
    socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).ok()
}

/// Copies the remaining bytes of the pipe; none if they do not fit.
fn copy_remaining(socket: &Socket, end: &OwnedFd) -> Option<()> {
    // If the system's limit is lower, the buffer becomes as large as the limit.
    let _ = rustix::net::sockopt::set_socket_send_buffer_size(end, BUFFER_BYTES);
    let incoming = socket.incoming();
    let _deferral = signals::defer_handlers();
    if !socket.lock_receive() {
        return None;
    }
    let (mut offset, readable) = (0, incoming.readable());
    let mut buffer = [0; 4096];
    while offset < readable {
        let count = incoming.peek(offset, &mut buffer);
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        let start = buffer.as_ptr().cast();
        // SAFETY: the buffer is live and at least `count` long.
        let sent = unsafe { kernel::sendto(end.as_raw_fd(), start, count, flags, ptr::null(), 0) };
        if count == 0 || sent != count as isize {
            break;
        }
        offset += count;
    }
    socket.unlock_receive();
    (offset >= readable).then_some(())
}

/// Whether `fd` must not be passed to another process, as bytes would be lost.
pub fn must_not_be_passed(fd: c_int) -> bool {
    let Some(socket) = table::get(fd).filter(|socket| socket.is_joined()) else { return false };
    table::enter(socket, fd).is_some_and(|_guard| socket.is_joined() && socket.has_memory_bytes())
}
