//! Socket options that change how bytes are moved: which of them memory cannot provide, and those
//! that this library provides itself. All others are the kernel's own, and have no effect on bytes
//! in memory.

use std::ffi::c_int;
use std::sync::atomic::Ordering;

use crate::kernel;
use crate::socket::Socket;
use crate::socket::outgoing::CORK_IS_SET;

/// Options that only the kernel supports: level, name, largest value without effect. A socket on
/// which one of them is set stays on the kernel. `SO_ZEROCOPY` and `SO_OOBINLINE` are not among
/// them, because the calls that they are about (`MSG_ZEROCOPY`, `MSG_OOB`) go to the kernel.
const KERNEL_ONLY: &[(c_int, c_int, c_int)] = &[
    (libc::SOL_SOCKET, libc::SO_RCVLOWAT, 1),
    (libc::SOL_SOCKET, libc::SO_TIMESTAMP, 0),
    (libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, 0),
    (libc::SOL_SOCKET, libc::SO_TIMESTAMPING, 0),
    (libc::SOL_SOCKET, SO_TIMESTAMP_NEW, 0),
    (libc::SOL_SOCKET, SO_TIMESTAMPNS_NEW, 0),
    (libc::SOL_SOCKET, SO_TIMESTAMPING_NEW, 0),
    (libc::SOL_SOCKET, libc::SO_PEEK_OFF, -1),
    (libc::IPPROTO_TCP, libc::TCP_REPAIR, 0),
];

const SO_TIMESTAMP_NEW: c_int = 63;
const SO_TIMESTAMPNS_NEW: c_int = 64;
const SO_TIMESTAMPING_NEW: c_int = 65;
const TCP_ULP: c_int = 31;

/// `recvmsg` tells how many bytes are unread; also the type of its control message.
pub const TCP_INQ: c_int = 36;

/// Bit in [`nm_ring::ledger::EndState::options`]: `TCP_INQ` is set.
const TELLS_UNREAD: u32 = 1;

/// Bit in [`nm_ring::ledger::EndState::options`]: the library has set `TCP_NODELAY`, the program
/// has not.
const NODELAY_IS_OURS: u32 = 2;

/// Bit in [`nm_ring::ledger::EndState::options`]: the program has set `TCP_CORK`.
const CORK_IS_WANTED: u32 = 4;

/// Whether only the kernel supports this value of this option.
pub fn needs_kernel(level: c_int, name: c_int, value: c_int) -> bool {
    let listed = |&&(its_level, its_name, _): &&(c_int, c_int, c_int)| {
        (its_level, its_name) == (level, name)
    };
    (level, name) == (libc::IPPROTO_TCP, TCP_ULP)
        || KERNEL_ONLY.iter().find(listed).is_some_and(|&(_, _, harmless)| value > harmless)
}

/// The number under which the ledger stores an option.
pub fn number(level: c_int, name: c_int) -> u32 {
    (level as u32) << 16 | name as u32 & 0xffff
}

/// The number of an option that is set on `fd` and that only the kernel supports.
pub fn kernel_only_option_of(fd: c_int) -> Option<u32> {
    let is_set = |&&(level, name, harmless): &&(c_int, c_int, c_int)| {
        kernel::option(fd, level, name).is_some_and(|value| value > harmless)
    };
    KERNEL_ONLY.iter().find(is_set).map(|&(level, name, _)| number(level, name))
}

/// The program has set an option to `value`.
pub fn was_set(socket: &Socket, level: c_int, name: c_int, value: c_int) {
    if (level, name) == (libc::IPPROTO_TCP, TCP_INQ) {
        set_tells_unread(socket, value != 0);
    }
    if (level, name) == (libc::IPPROTO_TCP, libc::TCP_NODELAY) && socket.is_joined() {
        set_bit(socket, NODELAY_IS_OURS, value == 0);
    }
    if is_cork(level, name) {
        let bits = if value != 0 { CORK_IS_WANTED | CORK_IS_SET } else { CORK_IS_SET };
        set_bit(socket, bits, value != 0);
    }
}

fn is_cork(level: c_int, name: c_int) -> bool {
    (level, name) == (libc::IPPROTO_TCP, libc::TCP_CORK)
}

/// The program sets `TCP_CORK`: keeps its value without asking the kernel, because it only matters
/// for what is sent through the kernel. False if the kernel must have the value at once, or if it
/// is another option. Servers set it twice for each answer.
pub fn keeps_cork(socket: &Socket, level: c_int, name: c_int, value: c_int) -> bool {
    if !is_cork(level, name) {
        return false;
    }
    let options = &socket.end().options;
    let may_keep = socket.is_joined() && !socket.is_held();
    if value == 0 {
        // First of all: see `apply_cork`.
        return options.fetch_and(!CORK_IS_WANTED, Ordering::SeqCst) & CORK_IS_SET == 0 && may_keep;
    }
    if may_keep {
        options.fetch_or(CORK_IS_WANTED, Ordering::SeqCst);
    }
    may_keep
}

/// Before something is sent through the kernel: gives it the program's `TCP_CORK`.
#[inline]
pub fn apply_cork(socket: &Socket, fd: c_int) {
    let both = CORK_IS_WANTED | CORK_IS_SET;
    if socket.end().options.load(Ordering::SeqCst) & both == CORK_IS_WANTED {
        set_cork(socket, fd);
    }
}

/// Another thread may end the wish meanwhile: either it sees that the kernel has it, and sets the
/// kernel's to 0 after this, or this sees that it is not wanted any more.
#[cold]
fn set_cork(socket: &Socket, fd: c_int) {
    let options = &socket.end().options;
    if options.fetch_or(CORK_IS_SET, Ordering::SeqCst) & CORK_IS_WANTED != 0 {
        kernel::set_option(fd, libc::IPPROTO_TCP, libc::TCP_CORK, 1);
    }
    if options.load(Ordering::SeqCst) & CORK_IS_WANTED == 0 {
        kernel::set_option(fd, libc::IPPROTO_TCP, libc::TCP_CORK, 0);
        options.fetch_and(!CORK_IS_SET, Ordering::SeqCst);
    }
}

/// Whether the program's value of an option is 1 while the kernel's is not.
pub fn is_on_for_program(socket: &Socket, level: c_int, name: c_int) -> bool {
    is_cork(level, name) && socket.end().options.load(Ordering::SeqCst) & CORK_IS_WANTED != 0
}

/// Learns the options that were set before the library knew the socket, for example on its
/// listener.
pub fn learn(socket: &Socket, fd: c_int) {
    if let Some(value) = kernel::option(fd, libc::IPPROTO_TCP, TCP_INQ) {
        set_tells_unread(socket, value != 0);
    }
    if let Some(value) = kernel::option(fd, libc::IPPROTO_TCP, libc::TCP_CORK) {
        set_bit(socket, CORK_IS_WANTED | CORK_IS_SET, value != 0);
    }
}

fn set_tells_unread(socket: &Socket, on: bool) {
    set_bit(socket, TELLS_UNREAD, on);
}

fn set_bit(socket: &Socket, bit: u32, on: bool) {
    let options = &socket.end().options;
    if on {
        options.fetch_or(bit, Ordering::SeqCst);
    } else {
        options.fetch_and(!bit, Ordering::SeqCst);
    }
}

/// Whether `recvmsg` tells how many bytes are unread.
#[inline]
pub fn tells_unread(socket: &Socket) -> bool {
    socket.end().options.load(Ordering::Relaxed) & TELLS_UNREAD != 0
}

/// Two ends have met. What they send through the kernel from now on is sent at once: an answer in
/// memory acknowledges nothing, so the kernel would keep back a small message that follows another
/// one until the peer's delayed acknowledgement (Nagle's algorithm), 40 ms. The program still sees
/// its own value.
pub fn send_at_once(socket: &Socket, fd: c_int) {
    if kernel::option(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY) == Some(0) {
        set_bit(socket, NODELAY_IS_OURS, true);
        kernel::set_option(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, 1);
    }
}

/// Whether the program sets `TCP_NODELAY` to 0 while the kernel's stays on.
pub fn keeps_nodelay(socket: &Socket, level: c_int, name: c_int, value: c_int) -> bool {
    (level, name, value) == (libc::IPPROTO_TCP, libc::TCP_NODELAY, 0) && socket.is_joined()
}

/// Whether the program's value of an option is 0 while the kernel's is not.
pub fn is_off_for_program(socket: &Socket, level: c_int, name: c_int) -> bool {
    (level, name) == (libc::IPPROTO_TCP, libc::TCP_NODELAY)
        && socket.end().options.load(Ordering::SeqCst) & NODELAY_IS_OURS != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_that_need_the_kernel_have_names() {
        let ulp = (libc::IPPROTO_TCP, TCP_ULP, 0);
        for (level, name, _) in KERNEL_ONLY.iter().copied().chain([ulp]) {
            let known = nm_ring::ledger::option_name(number(level, name));
            assert!(known.is_some(), "level {level}, option {name}");
        }
    }

    #[test]
    fn options_that_need_the_kernel_are_few() {
        assert!(needs_kernel(libc::SOL_SOCKET, libc::SO_RCVLOWAT, 2));
        assert!(!needs_kernel(libc::SOL_SOCKET, libc::SO_RCVLOWAT, 1));
        assert!(needs_kernel(libc::IPPROTO_TCP, TCP_ULP, 0));
        assert!(needs_kernel(libc::SOL_SOCKET, SO_TIMESTAMPNS_NEW, 1));
        for (level, name) in [
            (libc::IPPROTO_TCP, libc::TCP_NODELAY),
            (libc::IPPROTO_TCP, TCP_INQ),
            (libc::SOL_SOCKET, libc::SO_ZEROCOPY),
            (libc::SOL_SOCKET, libc::SO_OOBINLINE),
        ] {
            assert!(!needs_kernel(level, name, 1), "{level} {name}");
        }
    }
}
