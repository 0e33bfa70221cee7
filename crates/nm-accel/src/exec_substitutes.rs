//! Bytes that lie in a pipe and cannot come again through the kernel: the peer was killed, or it
//! sent its FIN when the kernel had no room for them (see [`Socket::flush_to_kernel`]). This library goes
//! on reading them; a program without it, which gets the kernel's descriptor through an exec or
//! from another process, would take the kernel's end of the stream for the end of the data, and
//! never know.
//!
//! Such a program gets another descriptor in its place. If the peer is gone, so that nothing more
//! can come nor go, it is a local stream that holds the rest and then ends. Else the connection is
//! still needed in the other direction, which no other descriptor can replace: then it is one whose
//! first read fails with `ECONNRESET`.

use std::ffi::c_int;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use crate::socket::{Socket, pid};
use crate::{kernel, signals, table};

/// Descriptors that one exec can replace.
const REPLACED_MAX: usize = 16;

/// Bytes that a local stream is asked to hold, at least as many as a pipe's with what the kernel
/// counts besides.
const BUFFER_BYTES: usize = 1 << 20;

/// A descriptor that stands for another one.
struct Replaced {
    fd: c_int,
    /// Copy of the original, closed by an exec.
    original: c_int,
    socket: &'static Socket,
}

/// The descriptors that an exec is about to hand on, with their places taken.
pub struct Substitutes([Option<Replaced>; REPLACED_MAX]);

impl Substitutes {
    /// None so far.
    pub fn new() -> Substitutes {
        Substitutes([const { None }; REPLACED_MAX])
    }

    /// Replaces `fd`, of this process alone, if bytes of `socket` would be lost.
    pub fn replace(&mut self, fd: c_int, socket: &'static Socket) {
        let Some(_guard) = socket.enter(fd) else { return };
        if !socket.is_joined() || !socket.has_unreturnable_bytes() {
            return;
        }
        let free_entry = self.0.iter().position(Option::is_none);
        // SAFETY: copies a descriptor; the copy is ours.
        let original = unsafe { kernel::fcntl(fd, libc::F_DUPFD_CLOEXEC, 0) };
        let mut others = self.0.iter().flatten();
        let known = others.find(|other| ptr::eq(other.socket, socket)).map(|other| other.fd);
        let fresh = if known.is_none() { substitute_for(socket) } else { None };
        let source = known.or(fresh.as_ref().map(AsRawFd::as_raw_fd));
        // Where there is no descriptor left, none at all is better than one that lies.
        // SAFETY: the program is about to be replaced; should that fail, `undo` brings it back.
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

    /// The exec has failed: everything is as it was.
    pub fn undo(self) {
        for replaced in self.0.into_iter().flatten() {
            if replaced.original >= 0 {
                // SAFETY: the copy is ours, and the descriptor was the program's.
                unsafe {
                    kernel::dup3(replaced.original, replaced.fd, 0);
                    kernel::close(replaced.original);
                }
            }
        }
    }
}

/// A stream that holds what is left, or that fails.
fn substitute_for(socket: &'static Socket) -> Option<OwnedFd> {
    if socket.peer_is_gone() {
        let (near, far) = local_stream()?;
        if copy_remaining(socket, &far).is_some() {
            return Some(near);
        }
    }
    // What the other end leaves unread when it is closed, resets this one.
    let (near, far) = local_stream()?;
    rustix::io::write(&near, b"x").ok()?;
    drop(far);
    Some(near)
}

fn local_stream() -> Option<(OwnedFd, OwnedFd)> {
    socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).ok()
}

/// Copies what is left of the pipe; None if it does not fit.
fn copy_remaining(socket: &'static Socket, end: &OwnedFd) -> Option<()> {
    // Where the limit is lower, it becomes as large as the limit.
    let _ = rustix::net::sockopt::set_socket_send_buffer_size(end, BUFFER_BYTES);
    let incoming = socket.incoming();
    let _deferral = signals::defer_handlers();
    if !incoming.lock_receive(pid()) {
        return None;
    }
    let (mut offset, readable) = (0, incoming.readable());
    let mut buffer = [0; 4096];
    while offset < readable {
        let count = incoming.peek(offset, &mut buffer);
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        let start = buffer.as_ptr().cast();
        // SAFETY: the buffer is live and no shorter than `count`.
        let sent = unsafe { kernel::sendto(end.as_raw_fd(), start, count, flags, ptr::null(), 0) };
        if count == 0 || sent != count as isize {
            break;
        }
        offset += count;
    }
    incoming.unlock_receive();
    (offset >= readable).then_some(())
}

/// Whether `fd` must not be passed to another process, as bytes would be lost.
pub fn must_not_be_passed(fd: c_int) -> bool {
    let Some(socket) = table::get(fd).filter(|socket| socket.is_joined()) else { return false };
    socket.enter(fd).is_some_and(|_guard| socket.is_joined() && socket.has_unreturnable_bytes())
}
