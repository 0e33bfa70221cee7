//! Readiness of sets that mix sockets in shared memory with descriptors of the kernel: what poll,
//! select and epoll have in common, and the hooks by which the rest of the crate tells of changes.

mod lock;
pub mod many;
mod member;
pub mod pause;
pub mod registry;
pub mod set;
mod tag;

use std::sync::atomic::Ordering;

use libc::c_int;

use crate::socket::{Phase, Socket};
use crate::{kernel, table};
use lock::Lock;
use set::{EARLY, Set};

/// Reported whether asked for or not.
pub const ALWAYS: u32 = (libc::EPOLLERR | libc::EPOLLHUP) as u32;
/// Edge-triggered.
pub const EDGE: u32 = libc::EPOLLET as u32;
/// Reported once.
pub const ONE_SHOT: u32 = libc::EPOLLONESHOT as u32;
/// Wakes one of several sets.
pub const EXCLUSIVE: u32 = libc::EPOLLEXCLUSIVE as u32;
/// Flags that the kernel lets stand beside [`EXCLUSIVE`].
pub const EXCLUSIVE_MAY: u32 =
    (libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLWAKEUP) as u32 | ALWAYS | EDGE | EXCLUSIVE;
/// What arrives.
pub const READ_SIDE: u32 =
    (libc::EPOLLIN | libc::EPOLLRDNORM | libc::EPOLLRDHUP | libc::EPOLLPRI) as u32;
/// What makes room.
pub const WRITE_SIDE: u32 = (libc::EPOLLOUT | libc::EPOLLWRNORM) as u32;

/// Readiness with the names that the kernel's TCP adds.
#[inline]
pub fn wide(bits: u32) -> u32 {
    let mut wide = bits;
    if bits & libc::EPOLLIN as u32 != 0 {
        wide |= libc::EPOLLRDNORM as u32;
    }
    if bits & libc::EPOLLOUT as u32 != 0 {
        wide |= libc::EPOLLWRNORM as u32;
    }
    wide
}

/// Sets whose last descriptor is closed, for reuse: a thread may still be inside of one.
static UNUSED: Lock<Vec<&'static Set>> = Lock::new(Vec::new());

/// A new epoll descriptor of the program.
pub fn created(fd: c_int) {
    let unused = UNUSED.lock().and_then(|mut unused| unused.pop());
    let set = unused.unwrap_or_else(|| Box::leak(Box::default()));
    set.descriptors.store(1, Ordering::Release);
    drop_one(registry::replace(fd, Some(set)));
}

/// An epoll descriptor that this process did not see being made (it came through exec or from
/// another process) and that a socket of ours is about to be put in: followed from now on.
#[cold]
pub fn adopted(epoll: c_int, op: c_int, fd: c_int) -> Option<&'static Set> {
    let socket = table::get(fd)?;
    if op != libc::EPOLL_CTL_ADD || socket.phase() == Phase::Kernel || borrowed() {
        return None;
    }
    if table::get(epoll).is_some() {
        return None;
    }
    // If it is none, the kernel will say so, and nothing comes of it.
    created(epoll);
    let set = registry::get(epoll)?;
    set.has_a_past();
    Some(set)
}

/// A descriptor led to `set` and does so no longer.
fn drop_one(set: Option<&'static Set>) {
    let Some(set) = set else { return };
    if set.descriptors.fetch_sub(1, Ordering::AcqRel) == 1 {
        set.close();
        if let Some(mut unused) = UNUSED.lock() {
            unused.push(set);
        }
    }
}

/// A vfork child shares our memory, and what it does to its descriptors is no business of ours.
fn borrowed() -> bool {
    table::owner_pid() != kernel::getpid()
}

/// A descriptor that is not in the table of sockets is closed: it may have been an epoll set.
#[inline]
pub fn descriptor_closed(fd: c_int) {
    if EARLY.load(Ordering::Acquire) != 0 && !borrowed() {
        each(|set| set.early_closed(fd));
    }
    if registry::get(fd).is_some() && !borrowed() {
        drop_one(registry::replace(fd, None));
    }
}

/// `new` is what `old` is, from now on; `old` is not in the table of sockets.
#[inline]
pub fn descriptor_copied(old: c_int, new: c_int) {
    let set = registry::get(old);
    if (set.is_none() && registry::get(new).is_none()) || borrowed() {
        return;
    }
    if let Some(set) = set {
        set.descriptors.fetch_add(1, Ordering::AcqRel);
    }
    drop_one(registry::replace(new, set));
}

/// Calls `tell` with each set.
fn each(mut tell: impl FnMut(&'static Set)) {
    registry::find(|set| {
        if !set.is_plain() {
            tell(set);
        }
        false
    });
}

/// `fd` is in the table from now on: it may have been registered before it was connected.
pub fn admitted(fd: c_int, socket: &'static Socket) {
    if EARLY.load(Ordering::SeqCst) != 0 {
        each(|set| set.socket_admitted(fd, socket));
    }
}

/// `socket` is in shared memory from now on, and its peer does not know that yet.
pub fn joined(socket: &'static Socket) {
    if socket.sets.load(Ordering::SeqCst) != 0 {
        each(|set| set.socket_joined(socket));
    }
}

/// `socket` has gone back to the kernel.
pub fn left(socket: &'static Socket) {
    if socket.sets.load(Ordering::SeqCst) != 0 {
        each(|set| set.socket_left(socket));
    }
}

/// A descriptor of `socket` is about to be closed. As with the kernel its registrations stay as
/// long as another descriptor leads to the socket, so there is nothing to do before [`gone`].
pub fn closing(_fd: c_int, _socket: &'static Socket) {}

/// The last descriptor of `socket` is closed, and its bell and memory are about to go.
pub fn gone(socket: &'static Socket) {
    if socket.sets.load(Ordering::SeqCst) != 0 {
        each(|set| set.socket_gone(socket));
    }
}

/// Somebody has drained the bell of `socket`, for which sets may be waiting too.
pub fn heard(socket: &'static Socket) {
    each(|set| set.socket_heard(socket));
}

/// This process is a forked child.
pub fn forked_child() {
    UNUSED.reset();
    registry::find(|set| {
        set.forked();
        false
    });
}
