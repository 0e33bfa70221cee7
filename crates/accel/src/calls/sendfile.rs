//! `sendfile(2)` on a joined socket: the file is read into the connection's memory.

use std::ffi::c_int;

use libc::iovec;

use super::data::{managed, single_part, transmit_slow};
use crate::socket::Socket;
use crate::stream::{self, Request};
use crate::{kernel, table};

/// Bytes of a file that are read at a time if its pages are in the kernel's cache.
const CACHED_BYTES: usize = 32 * 1024;

/// Bytes of a file that are read at a time otherwise.
const BUFFERED_BYTES: usize = 16 * 1024;

/// `sendfile(2)`: into a joined socket as far as memory takes it, by reading the file; the kernel
/// sends the rest itself.
///
/// # Safety
/// As libc's function of this name.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn sendfile(
    out: c_int,
    file: c_int,
    offset: *mut i64,
    bytes: usize,
) -> isize {
    // SAFETY: the program's own arguments, passed on unchanged.
    let raw = || unsafe { kernel::sendfile(out, file, offset, bytes) };
    let Some(socket) = managed(out) else { return raw() };
    if !socket.is_joined() {
        return transmit_slow(socket, out, 0, raw);
    }
    let Some(_guard) = table::enter(socket, out) else { return raw() };
    // SAFETY: the program's own variable, if it gives one; else the file's own position is queried.
    let (begin, is_own) = unsafe {
        match offset.as_ref() {
            Some(&at) => (at, false),
            None => (kernel::lseek(file, 0, libc::SEEK_CUR), true),
        }
    };
    let sent = match begin {
        0.. if stream::is_worth_memory(socket, bytes) => {
            send_file_to_memory(socket, out, file, begin, bytes)
        }
        _ => 0,
    };
    let at = begin + sent as i64;
    if sent > 0 && is_own {
        // SAFETY: no pointers.
        unsafe { kernel::lseek(file, at, libc::SEEK_SET) };
    } else if sent > 0 && !offset.is_null() {
        // SAFETY: the program's own variable.
        unsafe { *offset = at };
    }
    if sent == bytes && bytes > 0 {
        return sent as isize;
    }
    // SAFETY: the program's own arguments; the offset was moved behind what was sent.
    let rest = || unsafe { kernel::sendfile(out, file, offset, bytes - sent) };
    let request = Request { socket, fd: out, parts: &[], flags: 0 };
    let result = stream::send(request, rest);
    if sent > 0 { sent as isize + result.max(0) } else { result }
}

/// Reads the file from `begin` on and sends to memory what that takes, at most `bytes`; returns how
/// much.
fn send_file_to_memory(
    socket: &'static Socket,
    out: c_int,
    file: c_int,
    begin: i64,
    bytes: usize,
) -> usize {
    let mut sent = 0;
    socket.learn_kernel_sent(out);
    while sent < bytes && socket.may_send_to_memory() {
        let at = begin + sent as i64;
        let mut now = send_cached(socket, out, file, at, CACHED_BYTES.min(bytes - sent));
        if now == 0 {
            now = send_buffered(socket, out, file, at, BUFFERED_BYTES.min(bytes - sent));
        }
        sent += now;
        if now == 0 {
            break;
        }
    }
    sent
}

/// Has the kernel copy what it has of the file into the connection's memory, without waiting for a
/// disk: the lock on sending is held meanwhile. Returns how many bytes are there; none if the file
/// is not in the cache, its system cannot say so, it has ended, or memory is full.
fn send_cached(socket: &'static Socket, out: c_int, file: c_int, at: i64, wanted: usize) -> usize {
    let push = || {
        let outgoing = socket.outgoing();
        let pieces = outgoing.free_pieces(wanted);
        if pieces[0].1 == 0 {
            return 0;
        }
        let parts = pieces.map(|(start, iov_len)| iovec { iov_base: start.cast(), iov_len });
        let errno = kernel::errno();
        // SAFETY: both parts are free space in the connection's memory, which is mapped.
        let read = unsafe { kernel::preadv2(file, parts.as_ptr(), 2, at, 0, libc::RWF_NOWAIT) };
        kernel::set_errno(errno);
        let count = usize::try_from(read).unwrap_or(0);
        if count > 0 {
            outgoing.push_filled(count);
        }
        count
    };
    socket.send_to_memory(out, wanted, push)
}

/// Reads the file first, which may take long, then sends that to memory.
#[cold]
fn send_buffered(
    socket: &'static Socket,
    out: c_int,
    file: c_int,
    at: i64,
    wanted: usize,
) -> usize {
    let mut buffer = [0_u8; BUFFERED_BYTES];
    let start = buffer.as_mut_ptr().cast();
    // SAFETY: the buffer is live and at least of this length.
    let read = unsafe { kernel::pread(file, start, wanted, at) };
    let Ok(read) = usize::try_from(read) else { return 0 };
    let parts = single_part(buffer.as_ptr().cast(), read);
    stream::send_to_memory_alone(&Request { socket, fd: out, parts: &parts, flags: 0 })
}
