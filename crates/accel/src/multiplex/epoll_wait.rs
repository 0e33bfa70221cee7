//! One wait for an epoll set with members that may share memory.
//!
//! A set of which no member is active is waited for by the program's own call. Otherwise a wait has
//! three steps:
//!
//! 1. It asks memory and the kernel's wait with a time-out of zero in turn.
//! 2. It spins over the active members, as long as that pays.
//! 3. It counts all members, and sleeps in the kernel's wait, which fills the program's own array.

use std::ffi::c_void;
use std::sync::atomic::Ordering;

use libc::{c_int, epoll_event, timespec};

use super::activity::SleepDecision;
use super::bits::{INPUT_EVENTS, READY_TO_READ};
use super::epoll_set::{EpollSet, SetState};
use super::events::Events;
use super::socket_ref::SocketRef;
use super::spin::{SetSpin, SetSpinStep};
use crate::socket::incoming;
use crate::wait::{self, WaitLimit};
use crate::{blocking, kernel, signals, table};

/// Bytes of the kernel's signal set.
const MASK_BYTES: usize = 8;

/// Longest sleep while bytes are in memory that were reported already: more may follow unnoticed.
const BRIEF_SLEEP_NS: u64 = 10_000_000;

/// Waits, by `kernel_wait` if the kernel's own call is sufficient for the set.
///
/// # Safety
/// `events` is valid for `limit` events during the call; `mask` is null or points to a signal set.
#[inline]
pub unsafe fn wait(
    set: &'static EpollSet,
    epoll: c_int,
    events: *mut epoll_event,
    limit: c_int,
    limit_ns: Option<u64>,
    mask: *const c_void,
    kernel_wait: impl FnOnce() -> c_int,
) -> c_int {
    // SAFETY: the caller guarantees array and mask.
    let call = || unsafe { Call::new(set, epoll, events, limit, mask) };
    let Some(kernel_call) = KernelCall::begin(set, limit_ns != Some(0)) else {
        blocking::cancellation_point();
        return call().wait(limit_ns);
    };
    let begun = limit_ns.filter(|&ns| ns > 0).map(|_| wait::now_ns());
    let count = kernel_wait();
    if count <= 0 || kernel_call.end() {
        return count;
    }
    let mut call = call();
    call.accept(count);
    call.result().unwrap_or_else(|| {
        // All that the kernel reported was not for the program.
        let passed = begun.map_or(0, |begun| wait::now_ns().saturating_sub(begun));
        call.wait(limit_ns.map(|limit| limit.saturating_sub(passed)))
    })
}

/// A wait by the program's own call, which may have a time-out of zero.
struct KernelCall {
    sleep: Sleep,
    /// Count of the set's wake-ups when the set had no member; none if it had some.
    wake_ups: Option<u32>,
}

impl KernelCall {
    /// Begins the wait, if it is sufficient for the set.
    #[inline]
    fn begin(set: &'static EpollSet, may_sleep: bool) -> Option<KernelCall> {
        if set.is_kernel_only() {
            // Counted before it is looked again: a thread that adds a member does it the other way
            // round, and leaves the member counted if it finds this one.
            let sleep = Sleep::begin(set);
            let wake_ups = Some(set.wake_ups.load(Ordering::SeqCst));
            if set.is_kernel_only() {
                return Some(KernelCall { sleep, wake_ups });
            }
        }
        if set.has_foreign_changes() {
            return None;
        }
        let mut inner = set.lock()?;
        if !is_left_to_kernel(set, &mut inner, may_sleep) {
            return None;
        }
        inner.members.begin_call();
        // Under the set's lock, so that no member becomes active before it is counted.
        Some(KernelCall { sleep: Sleep::begin(set), wake_ups: None })
    }

    /// Ends the wait. Whether all that the kernel has reported is the program's: a member that came
    /// and went meanwhile may have woken the thread by an event that nobody requested.
    fn end(self) -> bool {
        let set = self.sleep.0;
        self.wake_ups == Some(set.wake_ups.load(Ordering::SeqCst)) && set.is_kernel_only()
    }
}

/// Whether the kernel's wait is sufficient this time: memory has nothing to report, and no member
/// is polled there. Begins a trial if one is due, and the thread may sleep.
fn is_left_to_kernel(set: &'static EpollSet, inner: &mut SetState, may_sleep: bool) -> bool {
    let has_memory = |inner: &SetState| inner.members.has_watched() || inner.nested.len() > 0;
    if has_memory(inner) {
        return false;
    }
    let begins_trial = may_sleep && !inner.payoff.is_positive() && inner.payoff.begin_trial();
    if begins_trial && set.may_activate(inner) {
        inner.members.activate_used();
        set.budget.0.store(u64::MAX, Ordering::Relaxed);
    }
    !has_memory(inner)
}

/// A sleep in the kernel's wait, with all members counted. The thread may be cancelled in it.
struct Sleep(&'static EpollSet);

impl Sleep {
    fn begin(set: &'static EpollSet) -> Sleep {
        set.begin_sleep();
        Sleep(set)
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        self.0.end_sleep();
    }
}

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
    /// As [`wait`].
    unsafe fn new(
        set: &'static EpollSet,
        epoll: c_int,
        events: *mut epoll_event,
        limit: c_int,
        mask: *const c_void,
    ) -> Call {
        let limit = usize::try_from(limit).unwrap_or(0);
        // SAFETY: the caller guarantees the array.
        let events = unsafe { Events::new(events, limit) };
        Call { set, epoll, events, mask, signals: signals::delivery_count() }
    }

    fn wait(&mut self, limit_ns: Option<u64>) -> c_int {
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

    /// Asks memory, and the kernel if it is due or memory has nothing.
    fn check_both(&mut self) -> Found {
        if self.set.has_foreign_changes() {
            self.set.take_over_changes(self.epoll);
        }
        let (mut ask_kernel, mut kernel_first) = (true, true);
        if let Some(mut inner) = self.set.lock() {
            inner.members.begin_call();
            if !self.set.may_activate(&inner) && inner.members.active() > 0 {
                inner.members.rest_all();
            }
            (ask_kernel, kernel_first) = inner.pacing.begin_call();
            if !kernel_first {
                let watched = inner.members.watched();
                inner.payoff.checked(watched);
                ask_kernel |= self.collect(&mut inner);
            }
        }
        self.report_nested();
        if !kernel_first && (self.events.is_full() || self.events.len() > 0 && !ask_kernel) {
            return self.result();
        }
        self.check_kernel(kernel_first)
    }

    /// Appends what memory has to report; returns whether the kernel must be asked too.
    #[inline]
    fn collect(&mut self, inner: &mut SetState) -> bool {
        let (may_activate, before) = (self.set.may_activate(inner), self.events.len());
        let pass = inner.members.collect(&mut self.events, may_activate);
        if self.events.len() > before {
            inner.payoff.found(self.events.len() - before);
        }
        self.set.settle(inner, self.epoll);
        pass.needs_kernel || pass.kernel_has_bytes
    }

    /// Asks memory only. The flag says that the kernel has bytes for an active member.
    #[inline]
    fn check_memory(&mut self) -> (Found, bool) {
        let mut ask_kernel = false;
        if let Some(mut inner) = self.set.lock() {
            ask_kernel = self.collect(&mut inner);
        }
        (self.result(), ask_kernel)
    }

    /// Reports the sets in this one for which memory has something to report.
    fn report_nested(&mut self) {
        let due = match self.set.lock() {
            Some(inner) if inner.nested.len() > 0 => inner.nested.due(),
            _ => return,
        };
        self.events.begin_pass();
        // Without the lock: no thread holds the locks of two sets.
        for nested in due.into_iter().filter(|nested| nested.set.is_pending()) {
            if self.events.push(nested.events & INPUT_EVENTS, nested.data)
                && let Some(mut inner) = self.set.lock()
            {
                inner.nested.reported(nested.fd);
            }
        }
    }

    /// Appends the kernel's events. `then_memory`: and after them those of memory.
    fn check_kernel(&mut self, then_memory: bool) -> Found {
        let saved = kernel::errno();
        let (first, capacity) = self.events.rest();
        // SAFETY: the rest of the program's array; the mask is the program's.
        let count =
            unsafe { kernel::epoll_pwait(self.epoll, first, capacity, 0, self.mask, MASK_BYTES) };
        if count < 0 && self.events.len() == 0 {
            return Some(-1);
        }
        kernel::set_errno(saved);
        self.accept(count);
        if then_memory {
            return self.check_memory().0.or_else(|| self.deliver_pending_signals());
        }
        self.result().or_else(|| self.deliver_pending_signals())
    }

    /// Accepts `count` events that the kernel has appended: its members become active.
    fn accept(&mut self, count: c_int) {
        let count = usize::try_from(count).unwrap_or(0);
        let Some(mut inner) = self.set.lock() else {
            self.events.accept_all(count);
            incoming::note_kernel_event_of_any();
            return;
        };
        inner.pacing.polled(count > 0);
        if count == 0 {
            return;
        }
        let may_activate = self.set.may_activate(&inner);
        let inner = &mut *inner;
        let (members, mut is_ambiguous) = (&mut inner.members, false);
        let active = members.active();
        let is_shared = self.set.is_shared();
        self.events.accept(count, |events, data| {
            is_ambiguous |=
                events & READY_TO_READ != 0 && (!members.note_kernel_event(data) || is_shared);
            members.kernel_reported(events, data, may_activate)
        });
        inner.payoff.activated(inner.members.active().saturating_sub(active));
        self.set.settle(inner, self.epoll);
        if is_ambiguous {
            incoming::note_kernel_event_of_any();
        }
    }

    /// The kernel's wait with a time-out of zero does not deliver signals: a pending one that only
    /// the call's mask allows is delivered here, as in a wait that sleeps.
    fn deliver_pending_signals(&mut self) -> Found {
        if self.mask.is_null() {
            return None;
        }
        let mut now = timespec { tv_sec: 0, tv_nsec: 0 };
        let none = std::ptr::null_mut();
        // SAFETY: no entries; the time is live; the mask is the program's.
        let result = unsafe { kernel::ppoll(none, 0, &raw mut now, self.mask, MASK_BYTES) };
        (result < 0).then_some(-1)
    }

    /// The call's result if there are events.
    #[inline]
    fn result(&self) -> Found {
        c_int::try_from(self.events.len()).ok().filter(|&found| found > 0)
    }

    fn spin(&mut self, limit: &WaitLimit) -> Found {
        let mut spin = {
            // The set's lock keeps the socket's memory mapped.
            let mut inner = self.set.lock()?;
            let target: SocketRef = inner.members.spin_target()?;
            let is_all_memory = self.set.has_sockets_only() && inner.members.is_all_active();
            SetSpin::begin(target.socket, &self.set.budget.0, !is_all_memory, false, self.signals)
        };
        loop {
            let (found, kernel_has_bytes) = self.check_memory();
            if found.is_some() {
                spin.adjust_budget(&self.set.budget.0, true);
                return found;
            }
            match spin.step(kernel_has_bytes) {
                SetSpinStep::Retry => {}
                SetSpinStep::CheckKernel => {
                    if let Some(result) = self.check_kernel(false) {
                        return Some(result);
                    }
                    if limit.left_ns() == Some(0) || self.is_without_active() {
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

    /// Whether another thread has made all members counted.
    fn is_without_active(&self) -> bool {
        self.set.lock().is_none_or(|inner| inner.members.active() == 0)
    }

    /// Sleeps in the kernel's wait, with all members counted.
    fn sleep(&mut self, limit: &WaitLimit) -> Found {
        let mut rested = Vec::new();
        let mut limit_ns = limit.left_ns();
        let sleep = match self.set.lock() {
            Some(mut inner) => match inner.members.begin_sleep(&mut rested) {
                SleepDecision::Ready => None,
                decision => {
                    inner.payoff.slept(rested.len());
                    if decision == SleepDecision::SleepBriefly {
                        let brief = limit_ns.map_or(BRIEF_SLEEP_NS, |ns| ns.min(BRIEF_SLEEP_NS));
                        limit_ns = Some(brief);
                    }
                    Some(Sleep::begin(self.set))
                }
            },
            None => Some(Sleep::begin(self.set)),
        };
        let Some(sleep) = sleep else { return self.check_memory().0 };
        flush(&rested);
        let count = self.sleep_in_kernel(limit_ns);
        drop(sleep);
        if !rested.is_empty() {
            self.restore_active();
        }
        if count < 0 {
            return Some(-1);
        }
        self.accept(count);
        if count == 0 && signals::delivery_count() != self.signals {
            return Some(kernel::fail(libc::EINTR) as c_int);
        }
        self.result()
    }

    /// After a sleep: the members that were active before are active again, if that pays.
    fn restore_active(&mut self) {
        let errno = kernel::errno();
        if let Some(mut inner) = self.set.lock()
            && self.set.may_activate(&inner)
        {
            inner.members.restore_active();
            self.set.settle(&mut inner, self.epoll);
        }
        kernel::set_errno(errno);
    }

    fn sleep_in_kernel(&mut self, limit_ns: Option<u64>) -> c_int {
        let time = signals::sleep_timeout(limit_ns);
        if signals::delivery_count() != self.signals {
            return kernel::fail(libc::EINTR) as c_int;
        }
        let (first, capacity) = self.events.rest();
        let mask = self.mask.cast();
        // SAFETY: the program's array and mask; the time is in this thread's own memory.
        let count = unsafe { blocking::epoll_pwait2(self.epoll, first, capacity, time, mask) };
        if count >= 0 || kernel::errno() != libc::ENOSYS {
            return count;
        }
        // A C library that does not have the call.
        // SAFETY: the program's array and mask; the time is in this thread's own memory.
        unsafe { kernel::epoll_pwait2(self.epoll, first, capacity, time, self.mask, MASK_BYTES) }
    }
}

/// Before a thread sleeps: what the peers have not received from memory goes through the kernel.
fn flush(rested: &[(SocketRef, c_int)]) {
    for &(member, fd) in rested {
        if let Some(_guard) = table::enter(member.socket, fd)
            && member.socket.is_joined()
        {
            let errno = kernel::errno();
            member.socket.flush_to_kernel(fd);
            kernel::set_errno(errno);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::multiplex::bits::WRITABLE;
    use crate::multiplex::member::Member;

    const INPUT: u32 = libc::EPOLLIN as u32;

    /// What a wait in a set without members finds if `meanwhile` happens during the kernel's wait
    /// and that reports `kernel`.
    fn found_by_wait(
        kernel: &[(u32, u64)],
        meanwhile: impl FnOnce(&'static EpollSet),
    ) -> Vec<(u32, u64)> {
        let set: &'static EpollSet = Box::leak(Box::default());
        // SAFETY: no pointers.
        let epoll = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        assert!(epoll >= 0);
        let mut space = [epoll_event { events: 0, u64: 0 }; 4];
        for (entry, &(events, data)) in space.iter_mut().zip(kernel) {
            *entry = epoll_event { events, u64: data };
        }
        let kernel_wait = || {
            meanwhile(set);
            kernel.len() as c_int
        };
        let (first, mask) = (space.as_mut_ptr(), std::ptr::null());
        // SAFETY: the array is live, and there is no mask.
        let count = unsafe { wait(set, epoll, first, 4, Some(0), mask, kernel_wait) };
        // SAFETY: closes a descriptor of this test.
        unsafe { libc::close(epoll) };
        space[..count as usize].iter().map(|event| (event.events, event.u64)).collect()
    }

    /// A member with bytes in memory comes, so that threads that sleep are woken, and goes.
    fn come_and_go(set: &'static EpollSet) {
        let mut inner = set.lock().expect("no other thread uses it");
        let mut member = Member::new(700, INPUT, 2, None);
        member.is_waking = true;
        set.wake_ups.fetch_add(1, Ordering::SeqCst);
        inner.members.insert(member, false);
        inner.members.remove(700);
    }

    #[test]
    fn event_that_woke_a_thread_for_a_member_that_has_gone_is_not_reported() {
        assert_eq!(found_by_wait(&[(WRITABLE, 2)], come_and_go), []);
        let with_another = [(WRITABLE, 2), (INPUT, 1)];
        assert_eq!(found_by_wait(&with_another, come_and_go), [(INPUT, 1)]);
        assert_eq!(found_by_wait(&[(WRITABLE, 2)], |_| ()), [(WRITABLE, 2)]);
    }
}
