//! epoll_create, epoll_create1, epoll_ctl, epoll_wait, epoll_pwait and epoll_pwait2.

use libc::{c_int, epoll_event, sigset_t, timespec};

use super::poll::nanoseconds;
use crate::multiplex::{self, EpollSet, epoll_wait};
use crate::{blocking, kernel, table};

/// Most events of one call: the kernel rejects more.
const EVENTS_MAX: usize = i32::MAX as usize / size_of::<epoll_event>();

/// `epoll_create(2)`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn epoll_create(size: c_int) -> c_int {
    if size <= 0 {
        return kernel::fail(libc::EINVAL) as c_int;
    }
    create(0)
}

/// `epoll_create1(2)`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn epoll_create1(flags: c_int) -> c_int {
    create(flags)
}

fn create(flags: c_int) -> c_int {
    // SAFETY: no pointers.
    let fd = unsafe { kernel::epoll_create1(flags) };
    if fd >= 0 {
        multiplex::epoll_created(fd);
    }
    fd
}

/// `epoll_ctl(2)`.
///
/// # Safety
/// As libc's.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn epoll_ctl(
    epoll: c_int,
    op: c_int,
    fd: c_int,
    event: *mut epoll_event,
) -> c_int {
    if table::is_library_descriptor(fd) {
        return kernel::fail(libc::EBADF) as c_int;
    }
    let known = multiplex::set_of(epoll);
    let set = known.or_else(|| table::get(fd).and_then(|_| multiplex::adopt_if_unknown(epoll)));
    let Some(set) = set.filter(|_| !event.is_null() || op == libc::EPOLL_CTL_DEL) else {
        // SAFETY: the program's own event.
        return unsafe { kernel::epoll_ctl(epoll, op, fd, event) };
    };
    if op == libc::EPOLL_CTL_DEL {
        return set.delete(epoll, fd);
    }
    // SAFETY: not null, and the caller's; the type may be packed.
    let event_value = unsafe { event.read_unaligned() };
    let (events, data) = (event_value.events, event_value.u64);
    match op {
        libc::EPOLL_CTL_ADD => set.add(epoll, fd, events, data),
        libc::EPOLL_CTL_MOD => set.modify(epoll, fd, events, data),
        // SAFETY: the program's own event.
        _ => unsafe { kernel::epoll_ctl(epoll, op, fd, event) },
    }
}

/// The set to wait for, if the kernel's own call may not be sufficient. Arguments that the kernel
/// rejects go to its own call.
#[inline]
fn set_to_wait_for(
    epoll: c_int,
    events: *const epoll_event,
    limit: c_int,
) -> Option<&'static EpollSet> {
    let is_valid = !events.is_null()
        && usize::try_from(limit).is_ok_and(|limit| limit > 0 && limit <= EVENTS_MAX);
    if !is_valid {
        return None;
    }
    multiplex::set_of(epoll).or_else(|| multiplex::adopt_if_unknown(epoll))
}

/// A time-out in milliseconds; none is no limit.
fn milliseconds(timeout_ms: c_int) -> Option<u64> {
    u64::try_from(timeout_ms).ok().map(|ms| ms * 1_000_000)
}

/// `epoll_wait(2)`.
///
/// # Safety
/// As libc's.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn epoll_wait(
    epoll: c_int,
    events: *mut epoll_event,
    limit: c_int,
    timeout_ms: c_int,
) -> c_int {
    // SAFETY: the program's own array.
    let kernel_wait = || unsafe { blocking::epoll_wait(epoll, events, limit, timeout_ms) };
    let Some(set) = set_to_wait_for(epoll, events, limit) else { return kernel_wait() };
    let (limit_ns, mask) = (milliseconds(timeout_ms), std::ptr::null());
    // SAFETY: the program's own array; there is no mask.
    unsafe { epoll_wait::wait(set, epoll, events, limit, limit_ns, mask, kernel_wait) }
}

/// `epoll_pwait(2)`.
///
/// # Safety
/// As libc's.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn epoll_pwait(
    epoll: c_int,
    events: *mut epoll_event,
    limit: c_int,
    timeout_ms: c_int,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the program's own array and mask.
    let kernel_wait = || unsafe { blocking::epoll_pwait(epoll, events, limit, timeout_ms, mask) };
    let Some(set) = set_to_wait_for(epoll, events, limit) else { return kernel_wait() };
    let (limit_ns, mask) = (milliseconds(timeout_ms), mask.cast());
    // SAFETY: the program's own array and mask.
    unsafe { epoll_wait::wait(set, epoll, events, limit, limit_ns, mask, kernel_wait) }
}

/// `epoll_pwait2(2)`.
///
/// # Safety
/// As libc's.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn epoll_pwait2(
    epoll: c_int,
    events: *mut epoll_event,
    limit: c_int,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the program's own array, time and mask.
    let kernel_wait = || unsafe { blocking::epoll_pwait2(epoll, events, limit, timeout, mask) };
    // SAFETY: null, or the caller's time.
    let limit_ns = match unsafe { timeout.as_ref() }.copied().map(nanoseconds) {
        // The kernel rejects the time.
        Some(None) => return kernel_wait(),
        limit_ns => limit_ns.flatten(),
    };
    let Some(set) = set_to_wait_for(epoll, events, limit) else { return kernel_wait() };
    // SAFETY: the program's own array and mask.
    unsafe { epoll_wait::wait(set, epoll, events, limit, limit_ns, mask.cast(), kernel_wait) }
}
