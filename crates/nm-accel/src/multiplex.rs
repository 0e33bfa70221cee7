//! Readiness of sets that mix sockets in shared memory with descriptors of the kernel: the common
//! part of poll, select and epoll, and the hooks by which the rest of the crate reports changes.

pub mod array;
pub mod epoll_set;
mod lock;
mod member;
pub mod registry;
pub mod spin;
mod tag;

use std::sync::atomic::Ordering;

use libc::c_int;

use crate::socket::{Phase, Socket};
use crate::{kernel, table};
use epoll_set::{EpollSet, UNCONNECTED};
use lock::Lock;

/// Reported even if not requested.
pub const ALWAYS: u32 = (libc::EPOLLERR | libc::EPOLLHUP) as u32;
/// Edge-triggered.
pub const EDGE: u32 = libc::EPOLLET as u32;
/// Reported once, then disabled.
pub const ONE_SHOT: u32 = libc::EPOLLONESHOT as u32;
/// Wakes only one of several sets.
pub const EXCLUSIVE: u32 = libc::EPOLLEXCLUSIVE as u32;
/// Flags that the kernel accepts beside [`EXCLUSIVE`].
pub const EXCLUSIVE_ALLOWED: u32 =
    (libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLWAKEUP) as u32 | ALWAYS | EDGE | EXCLUSIVE;
/// Events of the incoming direction.
pub const READ_EVENTS: u32 =
    (libc::EPOLLIN | libc::EPOLLRDNORM | libc::EPOLLRDHUP | libc::EPOLLPRI) as u32;
/// Events of the outgoing direction.
pub const WRITE_EVENTS: u32 = (libc::EPOLLOUT | libc::EPOLLWRNORM) as u32;

/// Adds the synonyms that the kernel's TCP also reports.
#[inline]
pub fn with_tcp_names(bits: u32) -> u32 {
    let mut wide = bits;
    if bits & libc::EPOLLIN as u32 != 0 {
        wide |= libc::EPOLLRDNORM as u32;
    }
    if bits & libc::EPOLLOUT as u32 != 0 {
        wide |= libc::EPOLLWRNORM as u32;
    }
    wide
}

/// Closed sets, kept for reuse: a thread may still be using one.
static UNUSED: Lock<Vec<&'static EpollSet>> = Lock::new(Vec::new());

/// The program has created an epoll descriptor.
pub fn epoll_created(fd: c_int) {
    let unused = UNUSED.lock().and_then(|mut unused| unused.pop());
    let set = unused.unwrap_or_else(|| Box::leak(Box::default()));
    set.descriptors.store(1, Ordering::Release);
    release_set(registry::replace(fd, Some(set)));
}

/// Starts to track an epoll descriptor that this process did not create (it came through exec or
/// from another process), because the program is adding one of our sockets to it.
#[cold]
pub fn adopt_epoll(epoll: c_int, op: c_int, fd: c_int) -> Option<&'static EpollSet> {
    let socket = table::get(fd)?;
    if op != libc::EPOLL_CTL_ADD || socket.phase() == Phase::Kernel || is_borrowed_memory() {
        return None;
    }
    if table::get(epoll).is_some() {
        return None;
    }
    // If it is no epoll descriptor, the kernel refuses the call, and the entry has no effect.
    epoll_created(epoll);
    let set = registry::get(epoll)?;
    set.set_has_unknown_members();
    Some(set)
}

/// One descriptor less refers to `set`.
fn release_set(set: Option<&'static EpollSet>) {
    let Some(set) = set else { return };
    if set.descriptors.fetch_sub(1, Ordering::AcqRel) == 1 {
        set.close();
        if let Some(mut unused) = UNUSED.lock() {
            unused.push(set);
        }
    }
}

/// Whether this is a vfork child: it shares our memory, but its descriptors are its own and must
/// not be tracked.
fn is_borrowed_memory() -> bool {
    table::owner_pid() != kernel::getpid()
}

/// A descriptor without a socket was closed: it may have been an epoll set.
#[inline]
pub fn descriptor_closed(fd: c_int) {
    if UNCONNECTED.load(Ordering::Acquire) != 0 && !is_borrowed_memory() {
        for_each_set(|set| set.unconnected_closed(fd));
    }
    if registry::get(fd).is_some() && !is_borrowed_memory() {
        release_set(registry::replace(fd, None));
    }
}

/// `old`, a descriptor without a socket, was duplicated as `new`.
#[inline]
pub fn descriptor_copied(old: c_int, new: c_int) {
    let set = registry::get(old);
    if (set.is_none() && registry::get(new).is_none()) || is_borrowed_memory() {
        return;
    }
    if let Some(set) = set {
        set.descriptors.fetch_add(1, Ordering::AcqRel);
    }
    release_set(registry::replace(new, set));
}

/// Calls `visit` with each set that has members to track.
fn for_each_set(mut visit: impl FnMut(&'static EpollSet)) {
    registry::find(|set| {
        if !set.is_kernel_only() {
            visit(set);
        }
        false
    });
}

/// `fd` was added to the table: it may have been registered before it was connected.
pub fn socket_registered(fd: c_int, socket: &'static Socket) {
    if UNCONNECTED.load(Ordering::SeqCst) != 0 {
        for_each_set(|set| set.socket_registered(fd, socket));
    }
}

/// `socket` has joined shared memory; its peer does not know yet.
pub fn socket_joined(socket: &'static Socket) {
    if socket.epoll_registrations.load(Ordering::SeqCst) != 0 {
        for_each_set(|set| set.socket_joined(socket));
    }
}

/// `socket` has returned to the kernel.
pub fn socket_returned(socket: &'static Socket) {
    if socket.epoll_registrations.load(Ordering::SeqCst) != 0 {
        for_each_set(|set| set.socket_returned(socket));
    }
}

/// The last descriptor of `socket` is closed; its doorbell and memory are about to be released.
pub fn socket_closed(socket: &'static Socket) {
    if socket.epoll_registrations.load(Ordering::SeqCst) != 0 {
        for_each_set(|set| set.socket_closed(socket));
    }
}

/// A thread has drained the doorbell of `socket`; sets may be waiting for it too.
pub fn doorbell_drained(socket: &'static Socket) {
    for_each_set(|set| set.doorbell_drained(socket));
}

/// Called in the child of a fork.
pub fn forked_child() {
    UNUSED.reset();
    registry::find(|set| {
        set.reset_after_fork();
        false
    });
}
