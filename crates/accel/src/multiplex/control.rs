//! `epoll_ctl`: the kernel's registrations are the program's own, and what is stored here follows
//! them.

use std::sync::atomic::Ordering;

use libc::{c_int, epoll_event};

use super::bits::EXCLUSIVE;
use super::epoll_set::{EpollSet, SetState};
use super::kernel_list::Registration;
use super::member::Member;
use super::nested::NestedSet;
use super::socket_ref::SocketRef;
use super::{registered, registry};
use crate::kernel;
use crate::socket::{Phase, Socket};
use crate::table::{self, CallGuard};

/// What the program registers.
struct Request {
    fd: c_int,
    events: u32,
    data: u64,
}

/// A call on a socket: its memory stays mapped.
struct SocketCall {
    socket: &'static Socket,
    _guard: CallGuard,
}

impl SocketCall {
    fn begin(fd: c_int) -> Option<SocketCall> {
        let socket = table::get(fd)?;
        Some(SocketCall { socket, _guard: table::enter(socket, fd)? })
    }
}

/// `epoll_ctl`.
impl EpollSet {
    /// `EPOLL_CTL_ADD`.
    pub fn add(&'static self, epoll: c_int, fd: c_int, events: u32, data: u64) -> c_int {
        let nested = registry::get(fd).filter(|set| !std::ptr::eq(*set, self));
        if let Some(nested) = nested {
            nested.become_external();
        }
        // Dropped after the lock: the end of the last active call releases the memory.
        let call;
        let Some(mut inner) = self.lock() else {
            return control(epoll, libc::EPOLL_CTL_ADD, fd, events, data);
        };
        let result = control(epoll, libc::EPOLL_CTL_ADD, fd, events, data);
        if result == 0 {
            registered::add(fd, self);
            call = SocketCall::begin(fd);
            self.insert(&mut inner, Request { fd, events, data }, call.as_ref());
            self.note_change(&mut inner);
            self.settle(&mut inner, epoll);
        }
        result
    }

    /// Stores the registrations that the set had before this process knew it.
    pub fn adopt(&'static self, list: &[Registration]) {
        for known in list.iter().filter(|known| known.is_ours()) {
            let Registration { fd, events, data, .. } = *known;
            registered::add(fd, self);
            let call = SocketCall::begin(fd);
            if let Some(mut inner) = self.lock() {
                self.insert(&mut inner, Request { fd, events, data }, call.as_ref());
            }
        }
    }

    /// Another process has changed the registrations: does the same here.
    #[cold]
    pub fn take_over_changes(&'static self, epoll: c_int) {
        let mut added = Vec::new();
        if let Some(mut inner) = self.lock() {
            self.note_changes_seen();
            let Some(list) = Registration::read_all(epoll) else { return };
            let mut known = Vec::new();
            inner.members.for_each_fd(|fd| known.push(fd));
            for &fd in &known {
                let listed = list.iter().find(|listed| listed.fd == fd && listed.is_ours());
                match listed {
                    None => {
                        self.forget(&mut inner, fd);
                    }
                    Some(listed) => inner.members.follow(fd, listed.events, listed.data),
                }
            }
            added.extend(list.into_iter().filter(|listed| !known.contains(&listed.fd)));
        }
        added.retain(|listed| table::get(listed.fd).is_some());
        self.adopt(&added);
    }

    /// Stores a registration that the kernel has accepted.
    fn insert(&'static self, inner: &mut SetState, request: Request, call: Option<&SocketCall>) {
        let Request { fd, events, data } = request;
        let nested = registry::get(fd).filter(|set| !std::ptr::eq(*set, self));
        if let Some(set) = nested {
            inner.nested.insert(NestedSet { fd, set, events, data, must_report: true });
        } else if call.is_some() || !table::is_left_out(fd) && is_unconnected_tcp(fd) {
            let socket = call.map(|call| call.socket);
            let socket = socket.filter(|socket| socket.phase() != Phase::Kernel);
            // Before it is known whether a thread sleeps: see `epoll_wait`.
            self.tracked.fetch_add(1, Ordering::SeqCst);
            let member = Member::new(fd, events, data, socket.map(SocketRef::new));
            let may_activate = self.may_activate(inner);
            inner.members.insert(member, may_activate);
        } else {
            self.kernel_only.fetch_add(1, Ordering::Relaxed);
            registered::remove(fd, self);
            inner.members.note_other(data);
        }
        self.update_tracked(inner);
        inner.pacing.note_change();
    }

    /// `EPOLL_CTL_MOD`.
    pub fn modify(&self, epoll: c_int, fd: c_int, events: u32, data: u64) -> c_int {
        let Some(mut inner) = self.lock() else {
            return control(epoll, libc::EPOLL_CTL_MOD, fd, events, data);
        };
        let result = control(epoll, libc::EPOLL_CTL_MOD, fd, events, data);
        if result == 0 {
            let may_activate = self.may_activate(&inner);
            inner.members.note_other(data);
            inner.members.modify(fd, events, data, may_activate);
            inner.nested.modify(fd, events, data);
            self.note_change(&mut inner);
            self.settle(&mut inner, epoll);
        }
        result
    }

    /// `EPOLL_CTL_DEL`.
    pub fn delete(&'static self, epoll: c_int, fd: c_int) -> c_int {
        let Some(mut inner) = self.lock() else {
            return control(epoll, libc::EPOLL_CTL_DEL, fd, 0, 0);
        };
        let result = control(epoll, libc::EPOLL_CTL_DEL, fd, 0, 0);
        if result < 0 {
            return result;
        }
        self.note_change(&mut inner);
        if !self.forget(&mut inner, fd) {
            let order = (Ordering::Relaxed, Ordering::Relaxed);
            let _ = self.kernel_only.fetch_update(order.0, order.1, |count| count.checked_sub(1));
        }
        result
    }

    /// A registration was changed by this process.
    fn note_change(&self, inner: &mut SetState) {
        inner.pacing.note_change();
        self.note_own_change();
    }

    /// The socket of `fd` will never share memory: the kernel alone has its registration from now
    /// on. False if another thread, which this one has interrupted, uses the set.
    pub(super) fn leave_to_kernel(&'static self, fd: c_int) -> bool {
        let Some(mut inner) = self.lock() else { return false };
        if self.forget(&mut inner, fd) {
            self.kernel_only.fetch_add(1, Ordering::Relaxed);
        }
        true
    }

    /// Removes what is stored for `fd`; false if there is nothing.
    pub(super) fn forget(&'static self, inner: &mut SetState, fd: c_int) -> bool {
        let known = inner.members.remove(fd) || inner.nested.remove(fd);
        if known {
            registered::remove(fd, self);
            self.update_tracked(inner);
        }
        known
    }
}

/// Agreement with the kernel.
impl EpollSet {
    /// Brings the kernel's registrations up to date, and wakes a thread that sleeps in the kernel
    /// if memory has something for it.
    pub fn settle(&self, inner: &mut SetState, epoll: c_int) {
        if inner.members.has_watched() && self.has_waiters() && inner.members.request_wake_up() {
            self.wake_ups.fetch_add(1, Ordering::SeqCst);
        }
        if inner.members.has_outdated() {
            self.update_registrations(inner, epoll);
        }
    }

    #[cold]
    pub(super) fn update_registrations(&self, inner: &mut SetState, epoll: c_int) {
        let saved = kernel::errno();
        while let Some(member) = inner.members.next_outdated() {
            let (fd, data, wanted) = (member.fd, member.data, member.wanted_registration());
            if (wanted | member.registered) & EXCLUSIVE == 0 {
                control(epoll, libc::EPOLL_CTL_MOD, fd, wanted, data);
            } else {
                // An exclusive registration cannot be modified, only replaced.
                control(epoll, libc::EPOLL_CTL_DEL, fd, 0, 0);
                control(epoll, libc::EPOLL_CTL_ADD, fd, wanted, data);
            }
            member.registered = wanted;
        }
        kernel::set_errno(saved);
    }
}

/// The kernel's `epoll_ctl`.
pub fn control(epoll: c_int, op: c_int, fd: c_int, events: u32, data: u64) -> c_int {
    let mut event = epoll_event { events, u64: data };
    // SAFETY: the kernel reads one event.
    unsafe { kernel::epoll_ctl(epoll, op, fd, &raw mut event) }
}

/// Whether `fd` is a TCP socket that does not listen, so that it may be connected later.
fn is_unconnected_tcp(fd: c_int) -> bool {
    let saved = kernel::errno();
    let tcp = kernel::option(fd, libc::SOL_SOCKET, libc::SO_PROTOCOL) == Some(libc::IPPROTO_TCP);
    let may = tcp && kernel::option(fd, libc::SOL_SOCKET, libc::SO_ACCEPTCONN) == Some(0);
    kernel::set_errno(saved);
    may
}
