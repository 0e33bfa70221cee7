//! The next definitions, usually libc's own, of calls that may block. They are used for descriptors
//! whose bytes go through the kernel: libc's calls are cancellation points (see `pthread_cancel`),
//! raw system calls are not.
//!
//! A cancellation unwinds the thread from within such a call. So their ABI is `C-unwind`, as that
//! of the exported functions that call them. No caller may hold a lock or a count meanwhile unless
//! a value that is dropped gives it back.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicU32, Ordering};

use libc::{
    epoll_event, fd_set, iovec, mmsghdr, msghdr, nfds_t, pollfd, pthread_t, sigset_t, sockaddr,
    socklen_t, timespec, timeval,
};

use crate::kernel;
use crate::next::Next;

/// Declares calls: each looks its next definition up once, and fails with `ENOSYS` if there is
/// none.
macro_rules! calls {
    ($($(#[$doc:meta])* $name:ident($($argument:ident: $kind:ty),*) -> $result:ty;)*) => {
        $(
            $(#[$doc])*
            ///
            /// # Safety
            /// As libc's function of this name.
            #[inline(always)]
            pub unsafe fn $name($($argument: $kind),*) -> $result {
                match next::$name.get() {
                    // SAFETY: the next definition has the same declaration, to which the caller
                    // keeps.
                    Some(real) => unsafe { real($($argument),*) },
                    None => kernel::fail(libc::ENOSYS) as $result,
                }
            }
        )*

        #[allow(non_upper_case_globals)]
        mod next {
            use super::*;
            $(
                pub static $name: Next<unsafe extern "C-unwind" fn($($kind),*) -> $result> = {
                    let name = concat!(stringify!($name), "\0");
                    let Ok(name) = std::ffi::CStr::from_bytes_with_nul(name.as_bytes()) else {
                        panic!("a name without NUL")
                    };
                    // SAFETY: the type fits libc's declaration of this name; a variadic function
                    // may be called with fixed arguments of the same classes on the supported
                    // processors.
                    unsafe { Next::new(name) }
                };
            )*
        }

        /// Looks all of them up, because a signal handler or the child of a fork must not.
        pub fn prepare() {
            $(next::$name.get();)*
        }
    };
}

calls! {
    /// `read(2)`.
    read(fd: c_int, buffer: *mut c_void, bytes: usize) -> isize;
    /// `write(2)`.
    write(fd: c_int, buffer: *const c_void, bytes: usize) -> isize;
    /// `readv(2)`.
    readv(fd: c_int, vector: *const iovec, count: c_int) -> isize;
    /// `writev(2)`.
    writev(fd: c_int, vector: *const iovec, count: c_int) -> isize;
    /// `preadv2(2)`.
    preadv2(fd: c_int, vector: *const iovec, count: c_int, offset: i64, flags: c_int) -> isize;
    /// `pwritev2(2)`.
    pwritev2(fd: c_int, vector: *const iovec, count: c_int, offset: i64, flags: c_int) -> isize;
    /// `recvfrom(2)`.
    recvfrom(fd: c_int, buffer: *mut c_void, bytes: usize, flags: c_int, address: *mut sockaddr,
        length: *mut socklen_t) -> isize;
    /// `sendto(2)`.
    sendto(fd: c_int, buffer: *const c_void, bytes: usize, flags: c_int,
        address: *const sockaddr, length: socklen_t) -> isize;
    /// `recvmsg(2)`.
    recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> isize;
    /// `sendmsg(2)`.
    sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> isize;
    /// `recvmmsg(2)`.
    recvmmsg(fd: c_int, messages: *mut mmsghdr, count: u32, flags: c_int,
        timeout: *mut timespec) -> c_int;
    /// `sendmmsg(2)`.
    sendmmsg(fd: c_int, messages: *mut mmsghdr, count: u32, flags: c_int) -> c_int;
    /// `splice(2)`.
    splice(source: c_int, source_offset: *mut i64, target: c_int, target_offset: *mut i64,
        bytes: usize, flags: u32) -> isize;
    /// `connect(2)`.
    connect(fd: c_int, address: *const sockaddr, length: socklen_t) -> c_int;
    /// `accept(2)`.
    accept(fd: c_int, address: *mut sockaddr, length: *mut socklen_t) -> c_int;
    /// `accept4(2)`.
    accept4(fd: c_int, address: *mut sockaddr, length: *mut socklen_t, flags: c_int) -> c_int;
    /// `poll(2)`.
    poll(fds: *mut pollfd, count: nfds_t, timeout_ms: c_int) -> c_int;
    /// `ppoll(2)`.
    ppoll(fds: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t)
        -> c_int;
    /// `select(2)`.
    select(count: c_int, readable: *mut fd_set, writable: *mut fd_set, except: *mut fd_set,
        timeout: *mut timeval) -> c_int;
    /// `pselect(2)`.
    pselect(count: c_int, readable: *mut fd_set, writable: *mut fd_set, except: *mut fd_set,
        timeout: *const timespec, mask: *const sigset_t) -> c_int;
    /// `epoll_wait(2)`.
    epoll_wait(set: c_int, events: *mut epoll_event, count: c_int, timeout_ms: c_int) -> c_int;
    /// `epoll_pwait(2)`.
    epoll_pwait(set: c_int, events: *mut epoll_event, count: c_int, timeout_ms: c_int,
        mask: *const sigset_t) -> c_int;
    /// `epoll_pwait2(2)`, in glibc since 2.35.
    epoll_pwait2(set: c_int, events: *mut epoll_event, count: c_int, timeout: *const timespec,
        mask: *const sigset_t) -> c_int;
    /// `close(2)`.
    close(fd: c_int) -> c_int;
    /// `fcntl(2)`.
    fcntl(fd: c_int, command: c_int, argument: usize) -> c_int;
    /// `system(3)`.
    system(command: *const std::ffi::c_char) -> c_int;
    /// `pthread_cancel(3)`.
    pthread_cancel(thread: pthread_t) -> c_int;
}

/// Not zero once the program has cancelled a thread.
static CANCELLATIONS_USED: AtomicU32 = AtomicU32::new(0);

unsafe extern "C-unwind" {
    fn pthread_testcancel();
}

/// A cancellation point: acts on a request to cancel this thread. For calls that POSIX lists as
/// cancellation points and that do not reach libc. Costs one load in a program that cancels no
/// thread.
#[inline(always)]
pub fn cancellation_point() {
    if CANCELLATIONS_USED.load(Ordering::Relaxed) != 0 {
        // SAFETY: no arguments; it may unwind, and all callers up to the exported functions may be
        // unwound.
        unsafe { pthread_testcancel() };
    }
}

/// `int pthread_cancel(pthread_t thread)`: the library's calls look for a request from now on
///
/// # Safety
/// As pthread_cancel(3).
#[cfg_attr(not(test), unsafe(export_name = "pthread_cancel"))]
pub unsafe extern "C-unwind" fn cancel_thread(thread: pthread_t) -> c_int {
    CANCELLATIONS_USED.store(1, Ordering::SeqCst);
    // SAFETY: the caller guarantees a thread that has not been joined.
    unsafe { pthread_cancel(thread) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_call_has_a_next_definition() {
        prepare();
        let mut ends = [-1; 2];
        // SAFETY: the array is live; the descriptors are this test's own.
        unsafe {
            assert_eq!(libc::pipe(ends.as_mut_ptr()), 0);
            assert_eq!(write(ends[1], c"ab".as_ptr().cast(), 2), 2);
            let mut list = [pollfd { fd: ends[0], events: libc::POLLIN, revents: 0 }];
            assert_eq!(poll(list.as_mut_ptr(), 1, 1000), 1);
            let mut buffer = [0_u8; 2];
            assert_eq!(read(ends[0], buffer.as_mut_ptr().cast(), 2), 2);
            assert_eq!(&buffer, b"ab");
            assert_eq!((close(ends[0]), close(ends[1])), (0, 0));
            assert_eq!(close(ends[0]), -1);
            assert_eq!(kernel::errno(), libc::EBADF);
        }
    }
}
