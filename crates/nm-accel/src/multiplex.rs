//! Readiness of sets that mix sockets in shared memory with descriptors of the kernel: the common
//! part of poll, select and epoll, and the hooks by which the rest of the crate reports changes.
//!
//! The kernel's readiness is true for everybody who relies on the kernel
//! ([`Socket::rely_on_kernel`]). So a thread that sleeps does it by its own call, with its own
//! descriptors; what is added here are the bytes that are in memory while nobody sleeps.
//!
//! | module       | what it contains                                                   |
//! | ------------ | ------------------------------------------------------------------ |
//! | `array`      | poll and select                                                    |
//! | `epoll_wait` | one wait for an epoll set                                          |
//! | `epoll_set`  | an epoll set: the threads and processes that use it                |
//! | `control`    | changes of its registrations                                       |
//! | `members`    | its registrations, by descriptor and by data                       |
//! | `activity`   | which of them are counted, active and watched                      |
//! | `member`     | one registration                                                   |
//! | `nested`     | sets in sets                                                       |
//! | `adopt`      | sets that this process has not created                             |
//! | `users`      | how many processes use a set                                       |

mod activity;
mod adopt;
pub mod array;
mod control;
mod epoll_set;
pub mod epoll_wait;
mod events;
mod kernel_list;
mod lock;
mod member;
mod members;
mod nested;
mod pacing;
mod registered;
mod registry;
mod socket_ref;
mod spin;
mod users;

use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use libc::c_int;

use crate::process;
use crate::socket::Socket;
use lock::Lock;

pub use adopt::adopt_if_unknown;
pub use epoll_set::EpollSet;
pub use registry::get as set_of;

/// Reported even if not requested.
pub const ALWAYS: u32 = (libc::EPOLLERR | libc::EPOLLHUP) as u32;
/// Edge-triggered.
pub const EDGE: u32 = libc::EPOLLET as u32;
/// Reported once, then disabled.
pub const ONE_SHOT: u32 = libc::EPOLLONESHOT as u32;
/// Wakes only one of several sets.
pub const EXCLUSIVE: u32 = libc::EPOLLEXCLUSIVE as u32;
/// Flags that a one-shot registration keeps when the kernel disables it.
pub const PRIVATE: u32 = libc::EPOLLWAKEUP as u32 | ONE_SHOT | EDGE | EXCLUSIVE;
/// Events of bytes that have arrived.
pub const INPUT_EVENTS: u32 = (libc::EPOLLIN | libc::EPOLLRDNORM) as u32;
/// Event that wakes a thread at once, because a socket is writable as a rule.
pub const WRITABLE: u32 = libc::EPOLLOUT as u32;
/// Events after which a receiving call finds something in the kernel.
pub const READY_TO_READ: u32 = INPUT_EVENTS | ALWAYS | libc::EPOLLRDHUP as u32;

/// Closed sets, kept for reuse: a thread may still be using one.
static CLOSED_SETS: Lock<Vec<&'static EpollSet>> = Lock::new(Vec::new());

/// The set that was made last.
static NEWEST_SET: AtomicPtr<EpollSet> = AtomicPtr::new(ptr::null_mut());

/// Count of descriptors that were closed while another descriptor kept their registration.
static ORPHANS: AtomicU32 = AtomicU32::new(0);

/// The program has created an epoll descriptor.
pub fn epoll_created(fd: c_int) {
    if process::owner_pid() != 0 {
        let set = unused_set();
        set.begin();
        release_set(registry::replace(fd, Some(set)));
    }
}

fn unused_set() -> &'static EpollSet {
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

/// One descriptor less refers to `set`.
fn release_set(set: Option<&'static EpollSet>) {
    let Some(set) = set else { return };
    if set.descriptors.fetch_sub(1, Ordering::AcqRel) > 1 {
        return;
    }
    let (orphans, is_reusable) = set.close();
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

/// The exec has failed.
pub fn exec_failed() {
    registry::for_each(EpollSet::resume);
}
