//! System calls by number, through `syscall`: those that have a function here go to it.

use std::ffi::{c_int, c_long};
use std::ptr;

use super::{data, descriptors, epoll, handover, poll, processes, select, sendfile, sockets};
use crate::{io_uring, kernel, system_call_filter, table};

/// `long syscall(long number, ...)`: calls that this library replaces go to its functions, the rest
/// go to the kernel
///
/// # Safety
/// As the system call of that number.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn syscall(
    number: c_long,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> c_long {
    let int = |word: usize| word as c_int;
    // Unlike libc's functions, this one is no cancellation point.
    if moves_data(number) && table::get(int(a)).is_none() {
        // SAFETY: the caller guarantees the arguments of the call of this number.
        return unsafe { kernel::call(number, a, b, c, d, e, f) } as c_long;
    }
    // SAFETY: the caller guarantees the arguments of the call of this number, and each function
    // takes the same ones.
    unsafe {
        let result = match number {
            libc::SYS_read => data::read(int(a), b as _, c),
            libc::SYS_write => data::write(int(a), b as _, c),
            libc::SYS_readv => data::readv(int(a), b as _, int(c)),
            libc::SYS_writev => data::writev(int(a), b as _, int(c)),
            libc::SYS_recvfrom => data::recvfrom(int(a), b as _, c, int(d), e as _, f as _),
            libc::SYS_sendto => data::sendto(int(a), b as _, c, int(d), e as _, f as _),
            libc::SYS_recvmsg => data::recvmsg(int(a), b as _, int(c)),
            libc::SYS_sendmsg => data::sendmsg(int(a), b as _, int(c)),
            libc::SYS_recvmmsg => data::recvmmsg(int(a), b as _, c as _, int(d), e as _) as isize,
            libc::SYS_sendmmsg => data::sendmmsg(int(a), b as _, c as _, int(d)) as isize,
            libc::SYS_sendfile => sendfile::sendfile(int(a), int(b), c as _, d),
            libc::SYS_splice => handover::splice(int(a), b as _, int(c), d as _, e, f as _),
            libc::SYS_io_uring_setup if !io_uring::before_ring() => kernel::fail(libc::EPERM),
            libc::SYS_io_uring_setup => kernel::call(number, a, b, c, d, e, f),
            _ => return other_syscall(number, [a, b, c, d, e, f]),
        };
        result as c_long
    }
}

/// Whether the system call moves data of the descriptor that is its first argument, and of no
/// other.
fn moves_data(number: c_long) -> bool {
    matches!(
        number,
        libc::SYS_read
            | libc::SYS_write
            | libc::SYS_readv
            | libc::SYS_writev
            | libc::SYS_recvfrom
            | libc::SYS_sendto
            | libc::SYS_recvmsg
            | libc::SYS_recvmmsg
    )
}

/// System calls by number that do not move data.
///
/// # Safety
/// As the system call of that number.
unsafe fn other_syscall(number: c_long, words: [usize; 6]) -> c_long {
    let [a, b, c, d, e, f] = words;
    let int = |word: usize| word as c_int;
    // SAFETY: the caller guarantees the arguments of the call of this number, and each function
    // takes the same ones.
    unsafe {
        let result = match number {
            libc::SYS_close => descriptors::close(int(a)),
            libc::SYS_dup => descriptors::dup(int(a)),
            libc::SYS_dup3 => descriptors::dup3(int(a), int(b), int(c)),
            libc::SYS_fcntl => descriptors::fcntl(int(a), int(b), c),
            libc::SYS_close_range => descriptors::close_range(a as _, b as _, int(c)),
            libc::SYS_socket => sockets::socket(int(a), int(b), int(c)),
            libc::SYS_connect => sockets::connect(int(a), b as _, c as _),
            libc::SYS_accept => sockets::accept(int(a), b as _, c as _),
            libc::SYS_accept4 => sockets::accept4(int(a), b as _, c as _, int(d)),
            libc::SYS_shutdown => sockets::shutdown(int(a), int(b)),
            libc::SYS_setsockopt => sockets::setsockopt(int(a), int(b), int(c), d as _, e as _),
            libc::SYS_ioctl => sockets::ioctl(int(a), b as _, c as _),
            libc::SYS_epoll_ctl => epoll::epoll_ctl(int(a), int(b), int(c), d as _),
            libc::SYS_prctl => processes::prctl(int(a), b, c, d, e),
            libc::SYS_seccomp => return filter(words),
            libc::SYS_execve => processes::execve(a as _, b as _, c as _),
            libc::SYS_execveat => processes::execveat(int(a), b as _, c as _, d as _, int(e)),
            libc::SYS_clone => return raw_fork(number, words, a),
            // SAFETY: the kernel's structure begins with the flags; the caller passes one.
            libc::SYS_clone3 => {
                let flags = (a as *const u64).as_ref().map_or(0, |flags| *flags as usize);
                return raw_fork(number, words, flags);
            }
            libc::SYS_ppoll => poll::ppoll(a as _, b as _, c as _, d as _),
            libc::SYS_pselect6 => {
                // The mask and its size are passed in memory.
                let mask = (f as *const *const libc::sigset_t).as_ref();
                let mask = mask.map_or(ptr::null(), |mask| *mask);
                select::pselect(int(a), b as _, c as _, d as _, e as _, mask)
            }
            libc::SYS_epoll_pwait => epoll::epoll_pwait(int(a), b as _, int(c), int(d), e as _),
            libc::SYS_epoll_pwait2 => epoll::epoll_pwait2(int(a), b as _, int(c), d as _, e as _),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_fork => return raw_fork(number, words, 0),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_vfork => return raw_fork(number, words, libc::CLONE_VM as usize),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_dup2 => descriptors::dup2(int(a), int(b)),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_poll => poll::poll(a as _, b as _, int(c)),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_select => select::select(int(a), b as _, c as _, d as _, e as _),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_epoll_wait => epoll::epoll_wait(int(a), b as _, int(c), int(d)),
            _ => return kernel::call(number, a, b, c, d, e, f) as c_long,
        };
        c_long::from(result)
    }
}

/// `seccomp(2)`: without a filter the call only asks whether the kernel knows filters.
///
/// # Safety
/// As seccomp(2).
unsafe fn filter(words: [usize; 6]) -> c_long {
    let [operation, b, arguments, d, e, f] = words;
    const STRICT: u32 = libc::SECCOMP_SET_MODE_STRICT;
    const FILTER: u32 = libc::SECCOMP_SET_MODE_FILTER;
    let operation_number = operation as u32;
    if operation_number == STRICT || operation_number == FILTER && arguments != 0 {
        system_call_filter::before_filter();
    }
    // SAFETY: the arguments are those of seccomp(2), which the caller guarantees.
    unsafe { kernel::call(libc::SYS_seccomp, operation, b, arguments, d, e, f) as c_long }
}

/// A fork by number, which runs no fork handlers. A child that shares our memory is a borrower: it
/// is noted only.
///
/// # Safety
/// As clone(2); the child must not need a stack of its own.
unsafe fn raw_fork(number: c_long, words: [usize; 6], flags: usize) -> c_long {
    let [a, b, c, d, e, f] = words;
    let copies = flags & libc::CLONE_VM as usize == 0;
    if copies {
        processes::before_fork();
    } else {
        processes::note_clone(flags);
    }
    // SAFETY: the words are those of the call, which needs no stack of its own.
    let pid = unsafe { kernel::call(number, a, b, c, d, e, f) } as c_long;
    if copies {
        processes::after_bare_fork(pid);
    }
    pid
}
