//! epoll_create, epoll_create1, epoll_ctl, epoll_wait, epoll_pwait and epoll_pwait2.

use std::ffi::c_void;

use libc::{c_int, epoll_event, sigset_t, timespec};

use super::poll::nanoseconds;
use crate::ready::pause::{Pause, Turn};
use crate::ready::set::{Events, Set};
use crate::ready::{self, registry};
use crate::wait::{self, Patience};
use crate::{kernel, signals, table};

/// Bytes of the kernel's signal set.
const MASK_BYTES: usize = 8;

/// Looks at the kernel in one call that bring nothing but bells.
const BELLS_AT_ONCE: usize = 16;

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
    // SAFETY: no memory is handed over.
    let fd = unsafe { kernel::epoll_create1(flags) };
    if fd >= 0 && table::owner_pid() != 0 {
        ready::created(fd);
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
    if table::is_ours(fd) {
        return kernel::fail(libc::EBADF) as c_int;
    }
    let known = registry::get(epoll).or_else(|| ready::adopted(epoll, op, fd));
    let Some(set) = known.filter(|_| !event.is_null() || op == libc::EPOLL_CTL_DEL) else {
        // SAFETY: the caller's event.
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
        // SAFETY: the caller's event.
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
    // SAFETY: the caller's promise is handed on.
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
    // SAFETY: the caller's array and mask.
    let plain =
        || unsafe { kernel::epoll_pwait(epoll, events, limit, timeout_ms, mask, MASK_BYTES) };
    // SAFETY: the caller's array and mask.
    unsafe { wait(epoll, events, limit, limit_ns, mask, plain) }
}

/// The wait, or the `plain` one if nothing in the set needs more.
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
    plain: impl FnOnce() -> c_int,
) -> c_int {
    let set = registry::get(epoll).filter(|_| limit > 0 && !events.is_null());
    let Some(set) = set else { return plain() };
    if !set.is_plain() {
        // SAFETY: the caller's promise is handed on.
        return unsafe { Call::new(set, epoll, events, limit, mask).wait(limit_ns) };
    }
    if limit_ns == Some(0) {
        return plain();
    }
    let begun = limit_ns.map(|_| wait::now_ns());
    let count = set.plain_wait(plain);
    if count <= 0 || set.is_plain() {
        return count;
    }
    // Another thread has put a connection in while this one slept.
    let passed = begun.map_or(0, |begun| wait::now_ns().saturating_sub(begun));
    let left_ns = limit_ns.map(|limit| limit.saturating_sub(passed));
    // SAFETY: the caller's promise is handed on.
    let mut call = unsafe { Call::new(set, epoll, events, limit, mask) };
    call.heed(count);
    // SAFETY: the caller's promise is handed on.
    call.done().unwrap_or_else(|| unsafe { call.wait(left_ns) })
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
    // SAFETY: the caller's array, time and mask.
    let plain = || unsafe { kernel::epoll_pwait2(epoll, events, limit, timeout, mask, MASK_BYTES) };
    // SAFETY: null, or the caller's time.
    match unsafe { timeout.as_ref() }.copied().map(nanoseconds) {
        // The kernel refuses the time.
        Some(None) => plain(),
        // SAFETY: the caller's array and mask.
        limit_ns => unsafe { wait(epoll, events, limit, limit_ns.flatten(), mask, plain) },
    }
}

/// One wait for a set in which the accelerator follows something.
struct Call {
    set: &'static Set,
    epoll: c_int,
    events: Events,
    mask: *const c_void,
    signals: u32,
}

/// What a step found: the call's result, or nothing yet.
type Found = Option<c_int>;

impl Call {
    /// # Safety
    /// `events` is good for `limit` events during the call; `mask` is null or points to a set.
    unsafe fn new(
        set: &'static Set,
        epoll: c_int,
        events: *mut epoll_event,
        limit: c_int,
        mask: *const c_void,
    ) -> Call {
        let limit = usize::try_from(limit).unwrap_or(0);
        // SAFETY: the caller's promise is handed on.
        let events = unsafe { Events::new(events, limit) };
        Call { set, epoll, events, mask, signals: signals::count_all() }
    }

    /// # Safety
    /// As [`Call::new`].
    unsafe fn wait(&mut self, limit_ns: Option<u64>) -> c_int {
        if let Some(result) = self.look_at_both() {
            return result;
        }
        if limit_ns == Some(0) {
            return 0;
        }
        let patience = Patience::new(limit_ns);
        loop {
            if let Some(result) = self.spin(&patience) {
                return result;
            }
            if let Some(result) = self.sleep(&patience) {
                return result;
            }
            if patience.left_ns() == Some(0) {
                return self.look_at_both().unwrap_or(0);
            }
        }
    }

    /// Memory first, as a rule, then the kernel.
    fn look_at_both(&mut self) -> Found {
        let mut kernel_first = false;
        if let Some(mut inner) = self.set.lock() {
            inner.number(&mut self.events);
            inner.since_kernel += 1;
            kernel_first = inner.since_kernel >= inner.turn_of_the_kernel();
            if !kernel_first {
                self.set.collect(&mut inner, &mut self.events);
            }
        }
        let enough = self.events.full() || self.events.len() > 0 && !self.set.kernel_knows_more();
        if !kernel_first && enough {
            return self.done();
        }
        self.look_at_kernel()
    }

    /// Looks at memory alone.
    #[inline]
    fn look_at_memory(&mut self) -> Found {
        if let Some(mut inner) = self.set.lock() {
            self.set.collect(&mut inner, &mut self.events);
        }
        self.done()
    }

    /// Appends what the kernel has, and then what memory has, to what has been found.
    fn look_at_kernel(&mut self) -> Found {
        let saved = kernel::errno();
        if let Some(mut inner) = self.set.lock() {
            inner.since_kernel = 0;
            Set::expose_nested(&inner);
        }
        for _ in 0..BELLS_AT_ONCE {
            let (first, room) = self.events.rest();
            // SAFETY: the rest of the program's array; the mask is the program's.
            let count =
                unsafe { kernel::epoll_pwait(self.epoll, first, room, 0, self.mask, MASK_BYTES) };
            if count < 0 && self.events.len() == 0 {
                return Some(-1);
            }
            self.heed(count);
            // Bells must not crowd out what they tell of. Once there is something to tell, another
            // look would bring what is level-triggered a second time.
            if count < room || self.events.len() > 0 {
                break;
            }
        }
        kernel::set_errno(saved);
        if let Some(interrupted) = self.let_signals_in() {
            return Some(interrupted);
        }
        self.done()
    }

    /// Translates `count` events that the kernel has appended, and looks at memory again.
    fn heed(&mut self, count: c_int) {
        if let Some(mut inner) = self.set.lock() {
            let count = usize::try_from(count).unwrap_or(0);
            self.set.translate(&mut inner, &mut self.events, count);
            self.set.collect(&mut inner, &mut self.events);
        }
    }

    /// The kernel's wait without a time limit does not let signals in by itself: a pending one
    /// that only the call's mask allows is let in here, as a wait that sleeps would.
    fn let_signals_in(&mut self) -> Found {
        if self.mask.is_null() || self.events.len() > 0 {
            return None;
        }
        let mut now = timespec { tv_sec: 0, tv_nsec: 0 };
        let none = std::ptr::null_mut();
        // SAFETY: no entries; the time is live; the mask is the program's.
        let result = unsafe { kernel::ppoll(none, 0, &raw mut now, self.mask, MASK_BYTES) };
        (result < 0).then_some(-1)
    }

    /// The call's result if something has been found.
    fn done(&mut self) -> Found {
        let found = self.events.len();
        if found == 0 {
            return None;
        }
        if self.set.has_sleepers()
            && let Some(mut inner) = self.set.lock()
        {
            self.set.relay(&mut inner);
        }
        c_int::try_from(found).ok()
    }

    fn spin(&mut self, patience: &Patience) -> Found {
        let mut pause = {
            // The lock keeps the socket's memory.
            let mut inner = self.set.lock()?;
            let latest = inner.worth_waiting_for()?;
            let often = self.set.kernel_knows_more();
            Pause::begin(latest.socket, &self.set.budget.0, often, self.signals)
        };
        loop {
            if let Some(result) = self.look_at_memory() {
                pause.learn(&self.set.budget.0, true);
                return Some(result);
            }
            match pause.turn() {
                Turn::Again => {}
                Turn::Kernel => {
                    if let Some(result) = self.look_at_kernel() {
                        return Some(result);
                    }
                    if patience.left_ns() == Some(0) {
                        return None;
                    }
                }
                Turn::Sleep => {
                    pause.learn(&self.set.budget.0, false);
                    return None;
                }
                Turn::Interrupted => return Some(kernel::fail(libc::EINTR) as c_int),
            }
        }
    }

    /// Sleeps in the kernel's wait, armed for everything that memory may bring.
    fn sleep(&mut self, patience: &Patience) -> Found {
        let asleep = self.set.lock().is_none_or(|mut inner| {
            Set::expose_nested(&inner);
            self.set.fall_asleep(&mut inner, self.epoll)
        });
        if !asleep {
            return self.look_at_memory();
        }
        let time = signals::sleep_timeout(patience.left_ns());
        let count = if signals::count_all() == self.signals {
            let (first, room) = self.events.rest();
            // SAFETY: the program's array and mask; the time is this thread's own place for it.
            unsafe { kernel::epoll_pwait2(self.epoll, first, room, time, self.mask, MASK_BYTES) }
        } else {
            kernel::fail(libc::EINTR) as c_int
        };
        let errno = kernel::errno();
        if let Some(mut inner) = self.set.lock() {
            self.set.wake_up(&mut inner);
        }
        if count < 0 {
            kernel::set_errno(errno);
            return Some(-1);
        }
        self.heed(count);
        if count == 0 && self.events.len() == 0 && signals::count_all() != self.signals {
            return Some(kernel::fail(libc::EINTR) as c_int);
        }
        self.done()
    }
}
