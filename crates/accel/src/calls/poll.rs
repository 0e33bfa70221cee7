//! poll, ppoll and their variants with bounds checks.

use libc::{c_int, nfds_t, pollfd, sigset_t, timespec};

use crate::multiplex::array;
use crate::table::DESCRIPTORS;
use crate::{blocking, kernel};

/// Whether the kernel alone reports the readiness of the whole array.
///
/// # Safety
/// `fds` is null or points to `count` entries.
#[inline]
unsafe fn is_kernel_only(fds: *const pollfd, count: nfds_t) -> bool {
    // More entries than descriptors can exist: the kernel rejects the call.
    if fds.is_null() || count as usize > DESCRIPTORS {
        return true;
    }
    for index in 0..count as usize {
        // SAFETY: within the caller's array.
        let fd = unsafe { (*fds.add(index)).fd };
        if !array::is_kernel_only(fd) {
            return false;
        }
    }
    true
}

/// The array as a slice.
///
/// # Safety
/// `fds` points to `count` entries that nothing else changes during the call.
unsafe fn slice<'a>(fds: *mut pollfd, count: nfds_t) -> &'a mut [pollfd] {
    // SAFETY: the caller guarantees the array.
    unsafe { std::slice::from_raw_parts_mut(fds, count as usize) }
}

/// `poll(2)`.
///
/// # Safety
/// As libc's.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn poll(fds: *mut pollfd, count: nfds_t, timeout_ms: c_int) -> c_int {
    let limit_ns = u64::try_from(timeout_ms).ok().map(|ms| ms * 1_000_000);
    // SAFETY: the program's own array.
    if !unsafe { is_kernel_only(fds, count) } {
        // SAFETY: the program's own array; there is no mask.
        return unsafe { array::wait(slice(fds, count), limit_ns, std::ptr::null()) };
    }
    // SAFETY: the program's own array.
    unsafe { blocking::poll(fds, count, timeout_ms) }
}

/// `ppoll(2)`. The program's time is not changed, as with libc.
///
/// # Safety
/// As libc's.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn ppoll(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: null, or the caller's time.
    let time = unsafe { timeout.as_ref() }.copied();
    let limit_ns = match time.map(nanoseconds) {
        Some(None) => return kernel::fail(libc::EINVAL) as c_int,
        Some(Some(ns)) => Some(ns),
        None => None,
    };
    // SAFETY: the program's own array.
    if !unsafe { is_kernel_only(fds, count) } {
        // SAFETY: the program's own array and mask.
        return unsafe { array::wait(slice(fds, count), limit_ns, mask.cast()) };
    }
    // SAFETY: the program's own array, time and mask.
    unsafe { blocking::ppoll(fds, count, timeout, mask) }
}

/// A time limit, ns, if the kernel accepts it.
pub fn nanoseconds(time: timespec) -> Option<u64> {
    let seconds = u64::try_from(time.tv_sec).ok()?;
    let rest = u64::try_from(time.tv_nsec).ok().filter(|&ns| ns < 1_000_000_000)?;
    Some(seconds.saturating_mul(1_000_000_000).saturating_add(rest))
}

/// Aborts as glibc's checked calls do when the array is smaller than its count.
fn check(count: nfds_t, bytes: usize) {
    if bytes / size_of::<pollfd>() < count as usize {
        // The program is about to write beyond its array. SAFETY: aborts the process.
        unsafe { libc::abort() };
    }
}

/// `poll` as compiled with `_FORTIFY_SOURCE`.
///
/// # Safety
/// As libc's.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn __poll_chk(
    fds: *mut pollfd,
    count: nfds_t,
    timeout_ms: c_int,
    bytes: usize,
) -> c_int {
    check(count, bytes);
    // SAFETY: the array is as large as the check found.
    unsafe { poll(fds, count, timeout_ms) }
}

/// `ppoll` as compiled with `_FORTIFY_SOURCE`.
///
/// # Safety
/// As libc's.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn __ppoll_chk(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
    bytes: usize,
) -> c_int {
    check(count, bytes);
    // SAFETY: the array is as large as the check found; time and mask are null or live.
    unsafe { ppoll(fds, count, timeout, mask) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_times_are_rejected() {
        let time = |tv_sec, tv_nsec| timespec { tv_sec, tv_nsec };
        assert_eq!(nanoseconds(time(1, 5)), Some(1_000_000_005));
        assert_eq!(nanoseconds(time(i64::MAX, 999_999_999)), Some(u64::MAX));
        assert_eq!(nanoseconds(time(-1, 0)), None);
        assert_eq!(nanoseconds(time(0, 1_000_000_000)), None);
        assert_eq!(nanoseconds(time(0, -1)), None);
    }
}
