//! The epoll sets of this process, and the hooks by which the rest of the crate reports what
//! happens to descriptors.

use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use libc::c_int;

use super::epoll_set::EpollSet;
use super::{registered, registry};
use crate::lock::Lock;
use crate::process;
use crate::socket::Socket;

/// Closed sets, kept for reuse: a thread may still be using one.
static CLOSED_SETS: Lock<Vec<&'static EpollSet>> = Lock::new(Vec::new());

/// The set that was made last.
static NEWEST_SET: AtomicPtr<EpollSet> = AtomicPtr::new(ptr::null_mut());

/// Count of descriptors that were closed while another descriptor kept their registration.
static ORPHANS: AtomicU32 = AtomicU32::new(0);

/// The program has created an epoll descriptor.
pub fn epoll_created(fd: c_int) {
    if process::owner_pid() != 0 && !process::is_restricted() {
        let set = unused_set();
        set.begin();
        release_set(registry::replace(fd, Some(set)));
    }
}

pub(super) fn unused_set() -> &'static EpollSet {
    // Locked to the end: during a fork no set is made.
    let mut unused = CLOSED_SETS.lock();
    if let Some(set) = unused.as_mut().and_then(|sets| sets.pop()) {
        return set;
    }
    let set: &'static EpollSet = Box::leak(Box::default());
    let pointer = ptr::from_ref(set).cast_mut();
    let mut newest = NEWEST_SET.load(Ordering::Acquire);
    loop {
        set.made_before.store(newest, Ordering::Relaxed);
        let order = (Ordering::AcqRel, Ordering::Acquire);
        match NEWEST_SET.compare_exchange(newest, pointer, order.0, order.1) {
            Ok(_) => return set,
            Err(now) => newest = now,
        }
    }
}

/// Calls `visit` with each set that was ever made, whether a descriptor refers to it or not: one
/// may be closed while it is locked for a fork.
fn for_each_made(mut visit: impl FnMut(&'static EpollSet)) {
    let mut next = NEWEST_SET.load(Ordering::Acquire);
    // SAFETY: null, or a set; sets are leaked and reused, never freed.
    while let Some(set) = unsafe { next.as_ref() } {
        visit(set);
        next = set.made_before.load(Ordering::Relaxed);
    }
}

impl EpollSet {
    /// A descriptor of this set, if it is still open.
    pub(super) fn descriptor(&self) -> Option<c_int> {
        registry::find(|set| ptr::eq(set, self))
    }
}

/// One descriptor less refers to `set`.
pub(super) fn release_set(set: Option<&'static EpollSet>) {
    let Some(set) = set else { return };
    if set.descriptors.fetch_sub(1, Ordering::AcqRel) > 1 {
        return;
    }
    let (orphans, is_reusable) = set.close(|fd| registered::remove(fd, set));
    ORPHANS.fetch_sub(orphans, Ordering::Relaxed);
    if is_reusable && let Some(mut sets) = CLOSED_SETS.lock() {
        sets.push(set);
    }
}

/// `fd` is about to be closed. Before the memory of its socket is unmapped.
#[inline]
pub fn descriptor_closed(fd: c_int) {
    let is_concerned = registered::is_anywhere(fd)
        || registry::get(fd).is_some()
        || ORPHANS.load(Ordering::Relaxed) != 0;
    if is_concerned && !process::is_borrower() {
        forget_descriptor(fd);
    }
}

#[cold]
fn forget_descriptor(fd: c_int) {
    registered::for_each_set(fd, |set| {
        let is_kept = set.descriptor_closed(fd);
        ORPHANS.fetch_add(u32::from(is_kept), Ordering::Relaxed);
    });
    registered::clear(fd);
    if ORPHANS.load(Ordering::Relaxed) != 0 {
        registry::for_each(|set| {
            ORPHANS.fetch_sub(set.remove_orphans(), Ordering::Relaxed);
        });
    }
    release_set(registry::replace(fd, None));
}

/// `old` was duplicated as `new`.
#[inline]
pub fn descriptor_copied(old: c_int, new: c_int) {
    let set = registry::get(old);
    if (set.is_none() && registry::get(new).is_none()) || process::is_borrower() {
        return;
    }
    if let Some(set) = set {
        set.descriptors.fetch_add(1, Ordering::AcqRel);
    }
    release_set(registry::replace(new, set));
}

/// `fd` is passed to another process.
pub fn descriptor_passed(fd: c_int) {
    if let Some(set) = registry::get(fd) {
        set.pass_on();
    }
}

/// `fd` was added to the table: it may have been registered before it was connected. Called during
/// a call on `socket`.
#[inline]
pub fn socket_registered(fd: c_int, socket: &'static Socket) {
    registered::for_each_set(fd, |set| set.socket_registered(fd, socket));
}

/// The socket of `fd` shares no memory, and never will. False if that cannot be noted now.
pub fn socket_left_out(fd: c_int) -> bool {
    let mut is_noted = true;
    registered::for_each_set(fd, |set| is_noted &= set.leave_to_kernel(fd));
    is_noted
}

/// Before a fork: no other thread changes a set until it has happened.
pub fn before_fork() {
    CLOSED_SETS.acquire();
    for_each_made(EpollSet::before_fork);
}

/// In the parent, after [`before_fork`].
pub fn after_fork_in_parent() {
    for_each_made(EpollSet::after_fork_in_parent);
    CLOSED_SETS.release_if_held();
}

/// In the child of a fork.
pub fn forked_child() {
    CLOSED_SETS.reset();
    for_each_made(EpollSet::forked_child);
}

/// Before an exec, and before the process ends: nobody here waits any more.
pub fn before_exec() {
    registry::for_each(EpollSet::suspend);
}

/// Before the program restricts its system calls: all sets are plain sets of the kernel from now
/// on. Their members that are sockets rely on the kernel already.
pub fn forget_all_sets() {
    registry::for_each(EpollSet::suspend);
    while let Some(fd) = registry::find(|_| true) {
        registry::replace(fd, None);
    }
}

/// The exec has failed.
pub fn exec_failed() {
    registry::for_each(EpollSet::resume);
}
