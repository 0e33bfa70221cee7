//! Raw system calls that bypass libc: one function each, with libc's convention of −1 and `errno`.
//! Everything in this crate calls the kernel through this module, because libc's names lead back
//! into the crate.

use std::arch::asm;
use std::ffi::{c_char, c_int, c_long, c_void};
use std::ptr;

use libc::{iovec, pollfd, sockaddr, socklen_t, timespec};

/// One system call with the kernel's own convention: a result, or `-errno`.
///
/// # Safety
/// The arguments are what the call of that number expects: pointers valid for what it reads or
/// writes through them.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
#[allow(clippy::too_many_arguments)]
pub unsafe fn raw(
    number: c_long,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> isize {
    let result: isize;
    // SAFETY: the kernel's calling convention; the caller guarantees number and arguments.
    unsafe {
        asm!("syscall", inlateout("rax") number as isize => result, in("rdi") a, in("rsi") b,
            in("rdx") c, in("r10") d, in("r8") e, in("r9") f, lateout("rcx") _, lateout("r11") _,
            options(nostack));
    }
    result
}

/// One system call with the kernel's own convention: a result, or `-errno`.
///
/// # Safety
/// The arguments are what the call of that number expects: pointers valid for what it reads or
/// writes through them.
#[cfg(target_arch = "aarch64")]
#[inline(always)]
#[allow(clippy::too_many_arguments)]
pub unsafe fn raw(
    number: c_long,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> isize {
    let result: isize;
    // SAFETY: the kernel's calling convention; the caller guarantees number and arguments.
    unsafe {
        asm!("svc 0", in("x8") number, inlateout("x0") a as isize => result, in("x1") b,
            in("x2") c, in("x3") d, in("x4") e, in("x5") f, options(nostack));
    }
    result
}

/// One system call with libc's convention: a result, or −1 and `errno`.
///
/// # Safety
/// As [`raw`].
#[inline(always)]
#[allow(clippy::too_many_arguments)]
pub unsafe fn call(
    number: c_long,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> isize {
    // SAFETY: the caller guarantees number and arguments.
    let result = unsafe { raw(number, a, b, c, d, e, f) };
    if (-4095..0).contains(&result) { fail(-result as c_int) } else { result }
}

/// This thread's `errno`.
#[inline]
pub fn errno() -> c_int {
    // SAFETY: libc's own variable, valid as long as the thread lives.
    unsafe { *libc::__errno_location() }
}

/// Sets this thread's `errno`.
#[inline]
pub fn set_errno(value: c_int) {
    // SAFETY: libc's own variable, valid as long as the thread lives.
    unsafe { *libc::__errno_location() = value };
}

/// Sets `errno` and returns −1, as a failed call does.
#[cold]
pub fn fail(value: c_int) -> isize {
    set_errno(value);
    -1
}

/// A descriptor (or another `int`) as a register: sign-extended, as C passes it.
#[inline(always)]
fn int(value: c_int) -> usize {
    value as isize as usize
}

/// A pointer as a register.
#[inline(always)]
fn at<T>(pointer: *const T) -> usize {
    pointer.addr()
}

/// Declares system calls as functions: name, number, and how each argument becomes a register.
macro_rules! calls {
    ($($(#[$doc:meta])* $name:ident = $number:ident
        ($($argument:ident: $type:ty => $how:expr),*) -> $result:ty;)*) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        /// Every pointer is valid for what the call reads or writes through it.
        #[inline(always)]
        pub unsafe fn $name($($argument: $type),*) -> $result {
            let mut registers = [0_usize; 6];
            let mut next = 0;
            $(registers[next] = $how; next += 1;)*
            let _ = next;
            let [a, b, c, d, e, f] = registers;
            // SAFETY: the number and its arguments belong together; the caller guarantees the
            // pointers.
            unsafe { call(libc::$number, a, b, c, d, e, f) as $result }
        }
    )*};
}

calls! {
    /// `pread64(2)`.
    pread = SYS_pread64(fd: c_int => int(fd), buffer: *mut c_void => at(buffer),
        bytes: usize => bytes, offset: i64 => offset as usize) -> isize;
    /// `preadv2(2)`; a register of 64 bits holds the whole offset, and `offset_high` is 0.
    preadv2 = SYS_preadv2(fd: c_int => int(fd), parts: *const iovec => at(parts),
        count: usize => count, offset: i64 => offset as usize, offset_high: usize => offset_high,
        flags: c_int => int(flags)) -> isize;
    /// `recvfrom(2)`.
    recvfrom = SYS_recvfrom(fd: c_int => int(fd), buffer: *mut c_void => at(buffer),
        bytes: usize => bytes, flags: c_int => int(flags), address: *mut sockaddr => at(address),
        length: *mut socklen_t => at(length)) -> isize;
    /// `sendto(2)`.
    sendto = SYS_sendto(fd: c_int => int(fd), buffer: *const c_void => at(buffer),
        bytes: usize => bytes, flags: c_int => int(flags), address: *const sockaddr => at(address),
        length: socklen_t => length as usize) -> isize;
    /// `sendfile(2)`.
    sendfile = SYS_sendfile(out: c_int => int(out), file: c_int => int(file),
        offset: *mut i64 => at(offset), bytes: usize => bytes) -> isize;
    /// `lseek(2)`.
    lseek = SYS_lseek(fd: c_int => int(fd), offset: i64 => offset as usize,
        whence: c_int => int(whence)) -> i64;
    /// `socket(2)`.
    socket = SYS_socket(domain: c_int => int(domain), kind: c_int => int(kind),
        protocol: c_int => int(protocol)) -> c_int;
    /// `bind(2)`.
    bind = SYS_bind(fd: c_int => int(fd), address: *const sockaddr => at(address),
        length: socklen_t => length as usize) -> c_int;
    /// `listen(2)`.
    listen = SYS_listen(fd: c_int => int(fd), backlog: c_int => int(backlog)) -> c_int;
    /// `connect(2)`.
    connect = SYS_connect(fd: c_int => int(fd), address: *const sockaddr => at(address),
        length: socklen_t => length as usize) -> c_int;
    /// `accept4(2)`.
    accept4 = SYS_accept4(fd: c_int => int(fd), address: *mut sockaddr => at(address),
        length: *mut socklen_t => at(length), flags: c_int => int(flags)) -> c_int;
    /// `shutdown(2)`.
    shutdown = SYS_shutdown(fd: c_int => int(fd), how: c_int => int(how)) -> c_int;
    /// `getsockname(2)`.
    getsockname = SYS_getsockname(fd: c_int => int(fd), address: *mut sockaddr => at(address),
        length: *mut socklen_t => at(length)) -> c_int;
    /// `getpeername(2)`.
    getpeername = SYS_getpeername(fd: c_int => int(fd), address: *mut sockaddr => at(address),
        length: *mut socklen_t => at(length)) -> c_int;
    /// `getsockopt(2)`.
    getsockopt = SYS_getsockopt(fd: c_int => int(fd), level: c_int => int(level),
        name: c_int => int(name), value: *mut c_void => at(value),
        length: *mut socklen_t => at(length)) -> c_int;
    /// `setsockopt(2)`.
    setsockopt = SYS_setsockopt(fd: c_int => int(fd), level: c_int => int(level),
        name: c_int => int(name), value: *const c_void => at(value),
        length: socklen_t => length as usize) -> c_int;
    /// `ioctl(2)`.
    ioctl = SYS_ioctl(fd: c_int => int(fd), request: usize => request, argument: usize => argument)
        -> c_int;
    /// `fcntl(2)`.
    fcntl = SYS_fcntl(fd: c_int => int(fd), command: c_int => int(command),
        argument: usize => argument) -> c_int;
    /// `close(2)`.
    close = SYS_close(fd: c_int => int(fd)) -> c_int;
    /// `dup(2)`.
    dup = SYS_dup(fd: c_int => int(fd)) -> c_int;
    /// `dup3(2)`.
    dup3 = SYS_dup3(old: c_int => int(old), new: c_int => int(new), flags: c_int => int(flags))
        -> c_int;
    /// `close_range(2)`.
    close_range = SYS_close_range(first: u32 => first as usize, last: u32 => last as usize,
        flags: c_int => int(flags)) -> c_int;
    /// `ppoll(2)`; the mask is the kernel's 8 bytes.
    ppoll = SYS_ppoll(fds: *mut pollfd => at(fds), count: usize => count,
        timeout: *mut timespec => at(timeout), mask: *const c_void => at(mask),
        mask_bytes: usize => mask_bytes) -> c_int;
    /// `epoll_create1(2)`.
    epoll_create1 = SYS_epoll_create1(flags: c_int => int(flags)) -> c_int;
    /// `epoll_ctl(2)`.
    epoll_ctl = SYS_epoll_ctl(set: c_int => int(set), operation: c_int => int(operation),
        fd: c_int => int(fd), event: *mut libc::epoll_event => at(event)) -> c_int;
    /// `epoll_pwait(2)`; the mask is the kernel's 8 bytes.
    epoll_pwait = SYS_epoll_pwait(set: c_int => int(set),
        events: *mut libc::epoll_event => at(events), count: c_int => int(count),
        timeout_ms: c_int => int(timeout_ms), mask: *const c_void => at(mask),
        mask_bytes: usize => mask_bytes) -> c_int;
    /// `epoll_pwait2(2)`; the mask is the kernel's 8 bytes.
    epoll_pwait2 = SYS_epoll_pwait2(set: c_int => int(set),
        events: *mut libc::epoll_event => at(events), count: c_int => int(count),
        timeout: *const timespec => at(timeout), mask: *const c_void => at(mask),
        mask_bytes: usize => mask_bytes) -> c_int;
    /// `unlinkat(2)`.
    unlinkat = SYS_unlinkat(folder: c_int => int(folder), path: *const c_char => at(path),
        flags: c_int => int(flags)) -> c_int;
}

/// This process's id, queried from the kernel: correct in a vfork child too.
pub fn getpid() -> i32 {
    // SAFETY: no arguments, cannot fail.
    unsafe { raw(libc::SYS_getpid, 0, 0, 0, 0, 0, 0) as i32 }
}

/// The limit of descriptors, soft and hard, as the kernel stores it; 0 twice if the kernel does not
/// say, because a filter refuses the call.
pub fn descriptor_limit() -> [u64; 2] {
    let mut limit = [0_u64; 2];
    let (which, place) = (libc::RLIMIT_NOFILE as usize, limit.as_mut_ptr().addr());
    // SAFETY: the kernel writes two numbers, which are live.
    unsafe { raw(libc::SYS_prlimit64, 0, which, 0, place, 0, 0) };
    limit
}

/// Sets it, and gives what it was until then, in one step; none if that is not allowed.
pub fn swap_descriptor_limit(limit: [u64; 2]) -> Option<[u64; 2]> {
    let mut before = [0_u64; 2];
    let (which, place) = (libc::RLIMIT_NOFILE as usize, limit.as_ptr().addr());
    let old = before.as_mut_ptr().addr();
    // SAFETY: the kernel reads two numbers and writes two, which are live.
    let is_set = unsafe { raw(libc::SYS_prlimit64, 0, which, place, old, 0, 0) == 0 };
    is_set.then_some(before)
}

/// Polls `fds`, or waits for them, with no signal mask; `None` is no time limit.
pub fn poll(fds: &mut [pollfd], timeout_ns: Option<u64>) -> c_int {
    let mut time = timeout_ns.map(|ns| timespec {
        tv_sec: (ns / 1_000_000_000) as i64,
        tv_nsec: (ns % 1_000_000_000) as i64,
    });
    let time = time.as_mut().map_or(ptr::null_mut(), ptr::from_mut);
    // SAFETY: the slice and the time are live and of the stated size.
    unsafe { ppoll(fds.as_mut_ptr(), fds.len(), time, ptr::null(), 0) }
}

/// What the kernel reports of one descriptor now, as `POLL*` bits; `errno` stays as it is.
pub fn events(fd: c_int) -> i16 {
    let wanted = libc::POLLIN | libc::POLLOUT | libc::POLLRDHUP | libc::POLLPRI;
    let mut one = [pollfd { fd, events: wanted, revents: 0 }];
    let saved = errno();
    poll(&mut one, Some(0));
    set_errno(saved);
    one[0].revents
}

/// An option of `int` size, if the socket supports it.
pub fn option(fd: c_int, level: c_int, name: c_int) -> Option<c_int> {
    let mut value: c_int = 0;
    let mut length = size_of::<c_int>() as socklen_t;
    // SAFETY: both point to live values of the stated size.
    let result = unsafe { getsockopt(fd, level, name, (&raw mut value).cast(), &raw mut length) };
    (result == 0).then_some(value)
}

/// The number that the kernel has given a socket and no other one; none for other files.
pub fn cookie(fd: c_int) -> Option<u64> {
    let mut value = 0_u64;
    let mut length = size_of::<u64>() as socklen_t;
    let place = (&raw mut value).cast();
    // SAFETY: both point to live values of the stated size.
    let result =
        unsafe { getsockopt(fd, libc::SOL_SOCKET, libc::SO_COOKIE, place, &raw mut length) };
    (result == 0).then_some(value)
}

/// A time limit of a socket, ns; 0 if there is none.
pub fn time_option(fd: c_int, name: c_int) -> Option<u64> {
    let mut time = libc::timeval { tv_sec: 0, tv_usec: 0 };
    let mut length = size_of::<libc::timeval>() as socklen_t;
    let value = (&raw mut time).cast();
    // SAFETY: both point to live values of the stated size.
    let result = unsafe { getsockopt(fd, libc::SOL_SOCKET, name, value, &raw mut length) };
    let seconds_ns = (time.tv_sec as u64).saturating_mul(1_000_000_000);
    (result == 0).then(|| seconds_ns.saturating_add(time.tv_usec as u64 * 1000))
}

/// Sets a socket option whose value is an `int`.
pub fn set_option(fd: c_int, level: c_int, name: c_int, value: c_int) {
    let length = size_of::<c_int>() as socklen_t;
    // SAFETY: the value is live and of the stated size.
    unsafe { setsockopt(fd, level, name, (&raw const value).cast(), length) };
}

/// The result of an `ioctl` that writes one `int`.
pub fn ioctl_int(fd: c_int, request: usize) -> Option<c_int> {
    let mut value: c_int = 0;
    // SAFETY: the requests used here (FIONREAD and its like) write one int.
    let result = unsafe { ioctl(fd, request, (&raw mut value).addr()) };
    (result == 0).then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_call_returns_minus_one_and_errno() {
        // SAFETY: no descriptor has this number; nothing is closed.
        assert_eq!(unsafe { close(-1) }, -1);
        assert_eq!(errno(), libc::EBADF);
        assert_eq!(getpid() as u32, std::process::id());
    }
}
