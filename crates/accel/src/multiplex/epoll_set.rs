//! An epoll set of this process: its registrations, and whether threads or other processes sleep in
//! the kernel's wait for it.
//!
//! The kernel's registrations are the program's own, with its own data. What is stored here says
//! which members may be polled in memory (see `activity`). None may while a thread sleeps in the
//! kernel on this set, because that thread relies on the kernel. None may either if somebody may
//! sleep of whom this process does not know.

use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};

use libc::c_int;

use super::members::Members;
use super::nested::NestedSets;
use super::pacing::Pacing;
use super::payoff::Payoff;
use super::socket_ref::SocketRef;
use super::users::Users;
use crate::lock::{Guard, Lock};
use crate::socket::{Phase, Socket};

/// The process uses the set.
const USED: u32 = 0;
/// The set came through a fork and was not used since; or its use ended before an exec.
const UNUSED: u32 = 1;
/// As [`UNUSED`], because an exec was about to happen.
const SUSPENDED: u32 = 2;

/// One epoll set.
#[derive(Default)]
pub struct EpollSet {
    /// Count of the program's descriptors of this set.
    pub descriptors: AtomicU32,
    /// The set that was made before this one.
    pub made_before: AtomicPtr<EpollSet>,
    /// Count of registrations that memory may concern: sockets and other sets.
    pub(super) tracked: AtomicU32,
    /// Count of registrations that only the kernel has, including those of closed descriptors.
    pub(super) kernel_only: AtomicU32,
    /// Spin budget of the set: see `spin`.
    pub budget: Budget,
    /// Threads that sleep in the kernel's wait.
    sleepers: AtomicU32,
    /// Count of registrations that were extended to wake a thread: see
    /// [`Members::request_wake_up`].
    pub(super) wake_ups: AtomicU32,
    /// It is waited for through poll, select or another set, or was passed to another process.
    is_external: AtomicBool,
    /// Another process may use it that cannot be counted: what its members count stays.
    is_passed_on: AtomicBool,
    /// It was inherited, or a fork has happened since it was created.
    is_forked: AtomicBool,
    /// [`USED`], [`UNUSED`] or [`SUSPENDED`].
    usage: AtomicU32,
    users: Users,
    /// Count of changes of the registrations, by any process, that are taken over here.
    changes_seen: AtomicU32,
    inner: Lock<SetState>,
}

/// Spin budget, ns; a new set begins with the longest.
pub struct Budget(pub AtomicU64);

impl Default for Budget {
    fn default() -> Budget {
        Budget(AtomicU64::new(u64::MAX))
    }
}

/// State that the set's lock guards.
#[derive(Default)]
pub struct SetState {
    /// Registrations of sockets.
    pub members: Members<SocketRef>,
    /// Registrations of other sets.
    pub nested: NestedSets<&'static EpollSet>,
    /// When the kernel is polled.
    pub pacing: Pacing,
    /// Whether memory is polled.
    pub payoff: Payoff,
}

/// Use of the set.
impl EpollSet {
    /// Whether the kernel's own call is sufficient for this set.
    #[inline]
    pub fn is_kernel_only(&self) -> bool {
        self.tracked.load(Ordering::SeqCst) == 0
    }

    /// Whether all registrations are sockets.
    pub fn has_sockets_only(&self) -> bool {
        self.kernel_only.load(Ordering::Relaxed) == 0
    }

    /// The program has created it with `epoll_create`.
    pub fn begin(&self) {
        self.usage.store(USED, Ordering::Relaxed);
        self.is_forked.store(false, Ordering::Relaxed);
        self.descriptors.store(1, Ordering::Release);
        self.users.begin();
        self.note_changes_seen();
    }

    /// Locks the set, and begins to use it if it was inherited; `None` in a signal handler that
    /// interrupted the thread that holds the lock.
    #[inline]
    pub fn lock(&self) -> Option<Guard<'_, SetState>> {
        let mut inner = self.inner.lock()?;
        if self.usage.load(Ordering::Relaxed) != USED {
            self.begin_use(&mut inner);
        }
        Some(inner)
    }

    /// The process uses a set that it inherited: its members rely on the kernel for it as well.
    #[cold]
    fn begin_use(&self, inner: &mut SetState) {
        self.usage.store(USED, Ordering::Relaxed);
        self.users.join();
        inner.members.count_all();
        inner.pacing.note_change();
    }

    /// The process ends its use, before an exec or its end.
    pub fn suspend(&self) {
        let Some(mut inner) = self.inner.lock() else { return };
        if self.usage.load(Ordering::Relaxed) == USED {
            self.usage.store(SUSPENDED, Ordering::Relaxed);
            self.end_use(&mut inner);
        }
    }

    fn end_use(&self, inner: &mut SetState) {
        self.users.leave();
        if !self.is_passed_on.load(Ordering::Acquire) {
            inner.members.uncount_all();
        }
    }

    /// The exec has failed: threads may sleep on the set.
    pub fn resume(&self) {
        if self.usage.load(Ordering::Relaxed) == SUSPENDED {
            drop(self.lock());
        }
    }

    /// Somebody waits for the set in a way that only the kernel serves: no member is active any
    /// more.
    pub fn become_external(&self) {
        if !self.is_external.swap(true, Ordering::SeqCst)
            && let Some(mut inner) = self.lock()
        {
            inner.members.rest_all();
        }
    }

    /// Another process gets a descriptor of the set.
    pub fn pass_on(&self) {
        self.is_passed_on.store(true, Ordering::Release);
        self.become_external();
    }

    /// Whether members may be active: it pays, nobody sleeps in the kernel's wait, and nobody could
    /// sleep of whom this process does not know.
    #[inline]
    pub fn may_activate(&self, inner: &SetState) -> bool {
        inner.payoff.is_positive()
            && self.sleepers.load(Ordering::SeqCst) == 0
            && !self.is_external.load(Ordering::SeqCst)
            && self.users.is_sole().unwrap_or(!self.is_forked.load(Ordering::Relaxed))
    }

    /// Whether other processes may have registrations that are not known here yet.
    #[inline]
    pub fn is_shared(&self) -> bool {
        self.is_forked.load(Ordering::Relaxed)
    }

    /// Whether another process has changed the registrations.
    #[inline]
    pub fn has_foreign_changes(&self) -> bool {
        self.is_forked.load(Ordering::Relaxed)
            && self.users.changes() != self.changes_seen.load(Ordering::Relaxed)
    }

    /// What other processes have changed is about to be taken over.
    pub(super) fn note_changes_seen(&self) {
        self.changes_seen.store(self.users.changes(), Ordering::Relaxed);
    }

    /// This process has changed a registration. Under the set's lock.
    pub(super) fn note_own_change(&self) {
        if self.is_forked.load(Ordering::Relaxed) {
            let before = self.users.note_change();
            let order = (Ordering::Relaxed, Ordering::Relaxed);
            let after = before.wrapping_add(1);
            let _ = self.changes_seen.compare_exchange(before, after, order.0, order.1);
        }
    }

    /// A thread is about to sleep in the kernel's wait, with all members counted.
    pub fn begin_sleep(&self) {
        self.sleepers.fetch_add(1, Ordering::SeqCst);
    }

    /// It sleeps no more.
    pub fn end_sleep(&self) {
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
    }

    /// Whether somebody may sleep until the kernel reports something.
    #[inline]
    pub(super) fn has_waiters(&self) -> bool {
        self.sleepers.load(Ordering::SeqCst) != 0 || self.is_external.load(Ordering::SeqCst)
    }

    /// Whether memory has something to report, for somebody who waits for the set itself.
    pub fn is_pending(&self) -> bool {
        if self.is_kernel_only() {
            return false;
        }
        let nested = {
            let Some(inner) = self.lock() else { return false };
            if inner.members.is_pending() {
                return true;
            }
            inner.nested.all()
        };
        // Without the lock: no thread holds the locks of two sets.
        nested.iter().any(|nested| nested.set.is_pending())
    }

    pub(super) fn update_tracked(&self, inner: &SetState) {
        let count = inner.members.sockets() + inner.nested.len();
        self.tracked.store(u32::try_from(count).unwrap_or(u32::MAX), Ordering::SeqCst);
    }
}

/// Events in the life of descriptors and processes.
impl EpollSet {
    /// `fd`, which may be registered, was connected and belongs to `socket`. During a call.
    pub fn socket_registered(&self, fd: c_int, socket: &'static Socket) {
        let Some(mut inner) = self.lock() else { return };
        self.tracked.fetch_add(1, Ordering::SeqCst);
        if socket.phase() != Phase::Kernel {
            inner.members.bind(fd, SocketRef::new(socket));
        }
        self.update_tracked(&inner);
    }

    /// `fd` is about to be closed. If another descriptor of this process keeps its socket open, the
    /// kernel keeps the registration. Returns whether that is so.
    pub fn descriptor_closed(&'static self, fd: c_int) -> bool {
        let Some(mut inner) = self.inner.lock() else { return false };
        let is_used = self.usage.load(Ordering::Relaxed) == USED;
        if !is_used || !inner.members.is_kept_open(fd) {
            if is_used {
                // While another process holds the socket, the kernel keeps the registration.
                inner.members.leave_counted(fd);
            }
            self.forget(&mut inner, fd);
            return false;
        }
        inner.members.cancel_wake_up(fd);
        if let Some(epoll) = self.descriptor().filter(|_| inner.members.has_outdated()) {
            self.update_registrations(&mut inner, epoll);
        }
        inner.members.keep_as_orphan(fd);
        true
    }

    /// Removes what remains of sockets whose last descriptor is about to be closed; returns how
    /// many there were.
    pub fn remove_orphans(&self) -> u32 {
        let Some(mut inner) = self.inner.lock() else { return 0 };
        let removed = inner.members.remove_orphans();
        self.update_tracked(&inner);
        removed
    }

    /// The last descriptor of the set is closed: removes everything. Returns the count of its
    /// orphans, and whether it can be reused: not if a thread still waits for it. `forget` is
    /// called for each descriptor that was registered.
    pub fn close(&'static self, forget: impl FnMut(c_int)) -> (u32, bool) {
        let Some(mut inner) = self.inner.lock() else { return (0, false) };
        let has_sleepers = self.sleepers.load(Ordering::SeqCst) != 0;
        if self.usage.swap(USED, Ordering::Relaxed) == USED {
            // A thread that sleeps goes on with the kernel's set: what is counted stays counted.
            self.is_passed_on.fetch_or(has_sleepers, Ordering::SeqCst);
            self.end_use(&mut inner);
        }
        inner.members.for_each_fd(forget);
        let orphans = inner.members.clear();
        inner.nested = NestedSets::default();
        (inner.pacing, inner.payoff) = (Pacing::default(), Payoff::default());
        self.update_tracked(&inner);
        self.kernel_only.store(0, Ordering::Relaxed);
        for flag in [&self.is_external, &self.is_passed_on, &self.is_forked] {
            flag.store(false, Ordering::SeqCst);
        }
        (orphans, !has_sleepers)
    }

    /// Before a fork: the child gets a consistent copy.
    pub fn before_fork(&self) {
        self.inner.acquire();
    }

    /// In the parent, after [`EpollSet::before_fork`].
    pub fn after_fork_in_parent(&self) {
        let is_open = self.descriptors.load(Ordering::Relaxed) > 0;
        self.is_forked.store(is_open, Ordering::Relaxed);
        self.inner.release_if_held();
    }

    /// In the child of a fork, which has no other thread and does not use the set yet.
    pub fn forked_child(&self) {
        self.inner.reset();
        self.sleepers.store(0, Ordering::SeqCst);
        let is_open = self.descriptors.load(Ordering::Relaxed) > 0;
        self.is_forked.store(is_open, Ordering::Relaxed);
        self.usage.store(UNUSED, Ordering::Relaxed);
        if let Some(mut inner) = self.inner.lock() {
            inner.members.forget_counts();
        }
    }
}
