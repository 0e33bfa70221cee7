//! epoll_create, epoll_create1, epoll_ctl, epoll_wait, epoll_pwait and epoll_pwait2.

use std::ffi::c_void;

use libc::{c_int, epoll_event, sigset_t, timespec};

use super::poll::nanoseconds;
use crate::multiplex::epoll_set::{EpollSet, Events};
use crate::multiplex::spin::{SetSpin, SetSpinStep};
use crate::multiplex::{self, registry};
use crate::wait::{self, WaitLimit};
use crate::{kernel, signals, table};

/// Bytes of the kernel's signal set.
const MASK_BYTES: usize = 8;

/// Most polls of the kernel in one call that return only doorbells.
const DOORBELL_ROUNDS_MAX: usize = 16;

/// `epoll_create(2)`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn epoll_create(size: c_int) -> c_int {
    if size <= 0 {
        return kernel::fail(libc::EINVAL) as c_int;
    }
    epoll_create1(0)
}

/// `epoll_create1(2)`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn epoll_create1(flags: c_int) -> c_int {
    // SAFETY: no pointers.
    let fd = unsafe { kernel::epoll_create1(flags) };
    if fd >= 0 && table::owner_pid() != 0 {
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
    let set = registry::get(epoll).or_else(|| multiplex::adopt_epoll(epoll, op, fd));
    let Some(set) = set.filter(|_| !event.is_null() || op == libc::EPOLL_CTL_DEL) else {
        // SAFETY: the program's own event.
        return unsafe { kernel::epoll_ctl(epoll, op, fd, event) };
    };
    if op == libc::EPOLL_CTL_DEL {
        return set.delete(epoll, fd);
    }
    // SAFETY: not null, and the caller's; the type may be packed.
    let (events, data) = unsafe {
        let event = event.read_unaligned();
        (event.events, event.u64)
    };
    match op {
        libc::EPOLL_CTL_ADD => set.add(epoll, fd, events, data),
        libc::EPOLL_CTL_MOD => set.modify(epoll, fd, events, data),
        // SAFETY: the program's own event.
        _ => unsafe { kernel::epoll_ctl(epoll, op, fd, event) },
    }
}

/// `epoll_wait(2)`.
///
/// # Safety
/// As libc's.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn epoll_wait(
    epoll: c_int,
    events: *mut epoll_event,
    limit: c_int,
    timeout_ms: c_int,
) -> c_int {
    // SAFETY: the caller guarantees the arguments, as the C function requires.
    unsafe { epoll_pwait(epoll, events, limit, timeout_ms, std::ptr::null()) }
}

/// `epoll_pwait(2)`.
///
/// # Safety
/// As libc's.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn epoll_pwait(
    epoll: c_int,
    events: *mut epoll_event,
    limit: c_int,
    timeout_ms: c_int,
    mask: *const sigset_t,
) -> c_int {
    let limit_ns = u64::try_from(timeout_ms).ok().map(|ms| ms * 1_000_000);
    let mask: *const c_void = mask.cast();
    // SAFETY: the program's own array and mask.
    let kernel_wait =
        || unsafe { kernel::epoll_pwait(epoll, events, limit, timeout_ms, mask, MASK_BYTES) };
    // SAFETY: the program's own array and mask.
    unsafe { wait(epoll, events, limit, limit_ns, mask, kernel_wait) }
}

/// Waits, by `kernel_wait` if the kernel's own call is sufficient for the set.
///
/// # Safety
/// As [`Call::new`].
#[inline]
unsafe fn wait(
    epoll: c_int,
    events: *mut epoll_event,
    limit: c_int,
    limit_ns: Option<u64>,
    mask: *const c_void,
    kernel_wait: impl FnOnce() -> c_int,
) -> c_int {
    let set = registry::get(epoll).filter(|_| limit > 0 && !events.is_null());
    let Some(set) = set else { return kernel_wait() };
    if !set.is_kernel_only() {
        // SAFETY: the caller guarantees the arguments, as the C function requires.
        return unsafe { Call::new(set, epoll, events, limit, mask).wait(limit_ns) };
    }
    if limit_ns == Some(0) {
        return kernel_wait();
    }
    let begun = limit_ns.map(|_| wait::now_ns());
    let count = set.wait_in_kernel(kernel_wait);
    if count <= 0 || set.is_kernel_only() {
        return count;
    }
    // Another thread has added a connection while this one slept.
    let passed = begun.map_or(0, |begun| wait::now_ns().saturating_sub(begun));
    let left_ns = limit_ns.map(|limit| limit.saturating_sub(passed));
    // SAFETY: the caller guarantees the arguments, as the C function requires.
    let mut call = unsafe { Call::new(set, epoll, events, limit, mask) };
    call.handle_events(count);
    // SAFETY: the caller guarantees the arguments, as the C function requires.
    call.result().unwrap_or_else(|| unsafe { call.wait(left_ns) })
}

/// `epoll_pwait2(2)`.
///
/// # Safety
/// As libc's.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn epoll_pwait2(
    epoll: c_int,
    events: *mut epoll_event,
    limit: c_int,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    let mask: *const c_void = mask.cast();
    // SAFETY: the program's own array, time and mask.
    let kernel_wait =
        || unsafe { kernel::epoll_pwait2(epoll, events, limit, timeout, mask, MASK_BYTES) };
    // SAFETY: null, or the caller's time.
    match unsafe { timeout.as_ref() }.copied().map(nanoseconds) {
        // The kernel rejects the time.
        Some(None) => kernel_wait(),
        // SAFETY: the program's own array and mask.
        limit_ns => unsafe { wait(epoll, events, limit, limit_ns.flatten(), mask, kernel_wait) },
    }
}

/// One wait for a set with members that the accelerator tracks.
struct Call {
    set: &'static EpollSet,
    epoll: c_int,
    events: Events,
    mask: *const c_void,
    signals: u32,
}

/// Result of a step: the call's result, or nothing yet.
type Found = Option<c_int>;

impl Call {
    /// # Safety
    /// `events` is valid for `limit` events during the call; `mask` is null or points to a set.
    unsafe fn new(
        set: &'static EpollSet,
        epoll: c_int,
        events: *mut epoll_event,
        limit: c_int,
        mask: *const c_void,
    ) -> Call {
        let limit = usize::try_from(limit).unwrap_or(0);
        // SAFETY: the caller guarantees the arguments, as the C function requires.
        let events = unsafe { Events::new(events, limit) };
        Call { set, epoll, events, mask, signals: signals::delivery_count() }
    }

    /// # Safety
    /// As [`Call::new`].
    unsafe fn wait(&mut self, limit_ns: Option<u64>) -> c_int {
        if let Some(result) = self.check_both() {
            return result;
        }
        if limit_ns == Some(0) {
            return 0;
        }
        let limit = WaitLimit::new(limit_ns);
        loop {
            if let Some(result) = self.spin(&limit) {
                return result;
            }
            if let Some(result) = self.sleep(&limit) {
                return result;
            }
            if limit.left_ns() == Some(0) {
                return self.check_both().unwrap_or(0);
            }
        }
    }

    /// Checks memory first, as a rule, then polls the kernel.
    fn check_both(&mut self) -> Found {
        let mut kernel_first = false;
        if let Some(mut inner) = self.set.lock() {
            inner.begin_call(&mut self.events);
            inner.calls_since_kernel += 1;
            kernel_first = inner.calls_since_kernel >= inner.calls_before_kernel_check();
            if !kernel_first {
                self.set.collect_ready(&mut inner, &mut self.events);
            }
        }
        let enough = self.events.full() || self.events.len() > 0 && !self.set.needs_kernel_check();
        if !kernel_first && enough {
            return self.result();
        }
        self.check_kernel()
    }

    /// Checks memory only.
    #[inline]
    fn check_memory(&mut self) -> Found {
        if let Some(mut inner) = self.set.lock() {
            self.set.collect_ready(&mut inner, &mut self.events);
        }
        self.result()
    }

    /// Appends the kernel's events, and then those of memory.
    fn check_kernel(&mut self) -> Found {
        let saved = kernel::errno();
        if let Some(mut inner) = self.set.lock() {
            inner.calls_since_kernel = 0;
            EpollSet::publish_nested(&inner);
        }
        for _ in 0..DOORBELL_ROUNDS_MAX {
            let (first, capacity) = self.events.rest();
            // SAFETY: the rest of the program's array; the mask is the program's.
            let count = unsafe {
                kernel::epoll_pwait(self.epoll, first, capacity, 0, self.mask, MASK_BYTES)
            };
            if count < 0 && self.events.len() == 0 {
                return Some(-1);
            }
            self.handle_events(count);
            // Doorbells must not crowd out the events that they announce. Once there is an event,
            // another poll would return level-triggered ones a second time.
            if count < capacity || self.events.len() > 0 {
                break;
            }
        }
        kernel::set_errno(saved);
        if let Some(interrupted) = self.deliver_pending_signals() {
            return Some(interrupted);
        }
        self.result()
    }

    /// Translates `count` events that the kernel has appended, and checks memory again.
    fn handle_events(&mut self, count: c_int) {
        if let Some(mut inner) = self.set.lock() {
            let count = usize::try_from(count).unwrap_or(0);
            self.set.translate(&mut inner, &mut self.events, count);
            self.set.collect_ready(&mut inner, &mut self.events);
        }
    }

    /// The kernel's wait with a time-out of zero does not deliver signals: a pending one that only
    /// the call's mask allows is delivered here, as in a wait that sleeps.
    fn deliver_pending_signals(&mut self) -> Found {
        if self.mask.is_null() || self.events.len() > 0 {
            return None;
        }
        let mut now = timespec { tv_sec: 0, tv_nsec: 0 };
        let none = std::ptr::null_mut();
        // SAFETY: no entries; the time is live; the mask is the program's.
        let result = unsafe { kernel::ppoll(none, 0, &raw mut now, self.mask, MASK_BYTES) };
        (result < 0).then_some(-1)
    }

    /// The call's result if there are events.
    fn result(&mut self) -> Found {
        let found = self.events.len();
        if found == 0 {
            return None;
        }
        if self.set.has_sleepers()
            && let Some(mut inner) = self.set.lock()
        {
            self.set.wake_other_sleepers(&mut inner);
        }
        c_int::try_from(found).ok()
    }

    fn spin(&mut self, limit: &WaitLimit) -> Found {
        let mut spin = {
            // The set's lock keeps the socket's memory mapped.
            let mut inner = self.set.lock()?;
            let last_reported = inner.spin_target()?;
            let often = self.set.needs_kernel_check();
            SetSpin::begin(last_reported.socket, &self.set.budget.0, often, self.signals)
        };
        loop {
            if let Some(result) = self.check_memory() {
                spin.adjust_budget(&self.set.budget.0, true);
                return Some(result);
            }
            match spin.step() {
                SetSpinStep::Retry => {}
                SetSpinStep::CheckKernel => {
                    if let Some(result) = self.check_kernel() {
                        return Some(result);
                    }
                    if limit.left_ns() == Some(0) {
                        return None;
                    }
                }
                SetSpinStep::Sleep => {
                    spin.adjust_budget(&self.set.budget.0, false);
                    return None;
                }
                SetSpinStep::Interrupted => return Some(kernel::fail(libc::EINTR) as c_int),
            }
        }
    }

    /// Sleeps in the kernel's wait, with the active members armed.
    fn sleep(&mut self, limit: &WaitLimit) -> Found {
        let asleep = self.set.lock().is_none_or(|mut inner| {
            EpollSet::publish_nested(&inner);
            self.set.begin_sleep(&mut inner, self.epoll)
        });
        if !asleep {
            return self.check_memory();
        }
        let time = signals::sleep_timeout(limit.left_ns());
        let count = if signals::delivery_count() == self.signals {
            let (first, capacity) = self.events.rest();
            // SAFETY: the program's array and mask; the time is in this thread's own memory.
            unsafe {
                kernel::epoll_pwait2(self.epoll, first, capacity, time, self.mask, MASK_BYTES)
            }
        } else {
            kernel::fail(libc::EINTR) as c_int
        };
        let errno = kernel::errno();
        if let Some(mut inner) = self.set.lock() {
            self.set.end_sleep(&mut inner);
        }
        if count < 0 {
            kernel::set_errno(errno);
            return Some(-1);
        }
        self.handle_events(count);
        if count == 0 && self.events.len() == 0 && signals::delivery_count() != self.signals {
            return Some(kernel::fail(libc::EINTR) as c_int);
        }
        self.result()
    }
}
