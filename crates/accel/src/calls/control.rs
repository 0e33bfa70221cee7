//! Control messages of `recvmsg` that the library provides itself, because the kernel does not know
//! what is in memory.

use std::ffi::c_int;

use libc::{cmsghdr, msghdr};

use crate::options::{self, TCP_INQ};
use crate::socket::Socket;
use crate::{kernel, table};

/// The program's space for control messages before a call.
#[derive(Clone, Copy)]
pub struct ControlSpace {
    start: *mut u8,
    bytes: usize,
}

impl ControlSpace {
    /// The space of `header`.
    pub fn of(header: &msghdr) -> ControlSpace {
        let bytes = if header.msg_control.is_null() { 0 } else { header.msg_controllen };
        ControlSpace { start: header.msg_control.cast(), bytes }
    }

    /// Writes one control message with a number, as the kernel does: as much of it as there is
    /// space for. Returns the bytes used, and whether all of it was written.
    ///
    /// # Safety
    /// The space is writable.
    unsafe fn put(self, level: c_int, kind: c_int, value: c_int) -> (usize, bool) {
        const HEADER: usize = size_of::<cmsghdr>();
        const LENGTH: usize = HEADER + size_of::<c_int>();
        if self.bytes < HEADER {
            return (0, false);
        }
        let length = LENGTH.min(self.bytes);
        // SAFETY: all zero is a valid header.
        let mut header: cmsghdr = unsafe { std::mem::zeroed() };
        header.cmsg_len = length;
        header.cmsg_level = level;
        header.cmsg_type = kind;
        let value = value.to_ne_bytes();
        // SAFETY: the space holds `length` bytes, of which the header comes first; it need not be
        // aligned.
        unsafe {
            self.start.cast::<cmsghdr>().write_unaligned(header);
            self.start.add(HEADER).copy_from_nonoverlapping(value.as_ptr(), length - HEADER);
        }
        (LENGTH.next_multiple_of(size_of::<usize>()).min(self.bytes), length == LENGTH)
    }
}

/// After a successful `recvmsg` on a joined socket with `TCP_INQ`: tells how many bytes are unread,
/// in memory and in the kernel.
///
/// # Safety
/// `space` is that of `message`, which the program passed to the call.
pub unsafe fn tell_unread(
    socket: &'static Socket,
    fd: c_int,
    message: &mut msghdr,
    space: ControlSpace,
) {
    let Some(_guard) = table::enter(socket, fd).filter(|_| socket.is_joined()) else { return };
    if !options::tells_unread(socket) {
        return;
    }
    // SAFETY: the caller guarantees the space.
    let (used, is_complete) = unsafe { space.put(libc::IPPROTO_TCP, TCP_INQ, unread(socket, fd)) };
    message.msg_controllen = used;
    if !is_complete {
        message.msg_flags |= libc::MSG_CTRUNC;
    }
}

/// Unread bytes; 1 if there are none and the stream has ended, as the kernel tells it.
fn unread(socket: &'static Socket, fd: c_int) -> c_int {
    let in_memory = socket.incoming().readable();
    if in_memory > 0 {
        return c_int::try_from(in_memory).unwrap_or(c_int::MAX);
    }
    let events = kernel::events(fd);
    if events & (libc::POLLIN | libc::POLLRDHUP | libc::POLLHUP) == 0 {
        return 0;
    }
    kernel::ioctl_int(fd, libc::FIONREAD as usize).unwrap_or(0).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put_into(bytes: usize) -> (Vec<u8>, (usize, bool)) {
        let mut memory = vec![0xee; bytes + 8];
        let space = ControlSpace { start: memory.as_mut_ptr(), bytes };
        // SAFETY: the space is the vector's.
        let result = unsafe { space.put(libc::IPPROTO_TCP, TCP_INQ, 0x0102_0304) };
        assert_eq!(memory[bytes..], [0xee; 8], "behind the space");
        (memory, result)
    }

    #[test]
    fn control_message_is_cut_where_the_space_ends() {
        let (memory, result) = put_into(24);
        assert_eq!(result, (24, true));
        assert_eq!(memory[..8], 20_u64.to_ne_bytes());
        assert_eq!(memory[16..20], 0x0102_0304_i32.to_ne_bytes());
        assert_eq!(put_into(20).1, (20, true));
        let (memory, result) = put_into(18);
        assert_eq!(result, (18, false));
        assert_eq!(memory[..8], 18_u64.to_ne_bytes());
        assert_eq!(put_into(15).1, (0, false));
        assert_eq!(put_into(0).1, (0, false));
    }
}
