//! An epoll set that mixes sockets in shared memory with descriptors of the kernel.
//!
//! The program's own epoll descriptor is kept and used for sleeping. Descriptors of the kernel stay
//! registered as the program requested. A joined socket is registered by its doorbell and by its
//! real descriptor, both edge-triggered and with an [`EventTag`]; the program's own events and data
//! are stored here.
//!
//! About [`ACTIVE_MAX`] sockets at most are scanned at each call ("active"). The others stay armed:
//! a sender that finds the flag rings the doorbell, so that the kernel's ready list names the
//! socket, which becomes active. A set of any size costs a scan of [`ACTIVE_MAX`] cache lines, and
//! no word is shared between connections.

use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};

use libc::{c_int, epoll_event};

use super::lock::{Guard, Lock};
use super::member::{Member, MemberKind, SocketRef};
use super::tag::{EventTag, INDEX_LIMIT};
use super::{EDGE, EXCLUSIVE, EXCLUSIVE_ALLOWED, ONE_SHOT, registry};
use crate::socket::{Phase, Socket};
use crate::{kernel, table};

/// Sockets that are scanned even if they are rarely ready.
pub const ACTIVE_MAX: usize = 64;

/// Scans without an event after which a socket beyond [`ACTIVE_MAX`] waits for its doorbell.
const IDLE_SCANS_MAX: u32 = 32;

/// Events for which the real descriptor of a joined socket is registered.
const KERNEL_EVENTS: u32 = (libc::EPOLLIN | libc::EPOLLRDHUP | libc::EPOLLPRI) as u32 | EDGE;

/// The slot number that stands for the set's own eventfd.
const WAKE_SLOT: usize = INDEX_LIMIT - 1;

/// One epoll set of this process.
#[derive(Default)]
pub struct EpollSet {
    /// Count of the program's descriptors of this set.
    pub descriptors: AtomicU32,
    /// Count of registrations that are tracked here.
    members: AtomicU32,
    /// How many of these are sockets in shared memory.
    joined: AtomicU32,
    /// Count of registrations that only the kernel has, including those of closed descriptors.
    kernel_only: AtomicU32,
    /// Spin budget of the set: see `spin`.
    pub budget: Budget,
    /// Threads that sleep in the kernel's wait.
    sleepers: AtomicU32,
    /// Whether it is waited for through poll, select or another set.
    is_watched_externally: AtomicBool,
    /// Whether the process that this one was forked from created it.
    is_inherited: AtomicBool,
    /// The set's own eventfd + 1; 0 if there is none. It is registered in the set, level-triggered:
    /// it makes the real epoll descriptor readable when a socket is ready of which the kernel does
    /// not know.
    wake_fd: AtomicI32,
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
    slots: Vec<Slot>,
    free: Vec<u32>,
    active: Vec<u32>,
    /// Where the next scan begins, so that each ready socket is reported in turn.
    next: usize,
    /// Slot + 1, by descriptor.
    by_fd: Vec<u32>,
    /// Whether a socket is registered by two descriptors, which share a doorbell.
    has_duplicates: bool,
    /// Count of calls.
    calls: u64,
    /// Calls that returned events without polling the kernel.
    pub calls_since_kernel: u32,
    /// The socket reported last, for which a spin is most likely to succeed.
    pub last_reported: Option<SocketRef>,
}

#[derive(Default)]
struct Slot {
    generation: u32,
    member: Option<Member>,
}

/// Space for events in the program's memory.
pub struct Events {
    first: *mut epoll_event,
    limit: usize,
    len: usize,
    /// The number of the call in this set.
    call: u64,
}

impl Events {
    /// The program's array.
    ///
    /// # Safety
    /// `first` must be valid for `limit` events as long as this exists.
    pub unsafe fn new(first: *mut epoll_event, limit: usize) -> Events {
        Events { first, limit, len: 0, call: 0 }
    }

    /// Count of events in it.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it is full.
    pub fn full(&self) -> bool {
        self.len >= self.limit
    }

    /// Where the next event is written, and how many more fit.
    pub fn rest(&self) -> (*mut epoll_event, c_int) {
        let left = c_int::try_from(self.limit - self.len).unwrap_or(c_int::MAX);
        (self.first.wrapping_add(self.len), left)
    }

    fn push(&mut self, events: u32, data: u64) {
        if !self.full() {
            let event = epoll_event { events, u64: data };
            // SAFETY: `len < limit`, and the caller of `new` guarantees the array; the type may be
            // packed, and programs may pass any address.
            unsafe { self.first.add(self.len).write_unaligned(event) };
            self.len += 1;
        }
    }
}

impl EpollSet {
    /// Whether the kernel's own call is sufficient for this set.
    #[inline]
    pub fn is_kernel_only(&self) -> bool {
        self.members.load(Ordering::Acquire) == 0
    }

    /// Whether memory does not show all events, so that each call polls the kernel too. In a set of
    /// joined sockets only, the kernel reports doorbells and ends only.
    #[inline]
    pub fn needs_kernel_check(&self) -> bool {
        self.kernel_only.load(Ordering::Acquire) != 0
            || self.joined.load(Ordering::Acquire) != self.members.load(Ordering::Acquire)
    }

    /// The set may have registrations that this process has not seen.
    pub fn set_has_unknown_members(&self) {
        self.kernel_only.store(1, Ordering::Release);
    }

    /// Waits in the kernel for a set that has no members to track yet.
    pub fn wait_in_kernel<T>(&self, wait: impl FnOnce() -> T) -> T {
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        let result = wait();
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
        result
    }

    /// Whether threads sleep in the kernel's wait for it.
    #[inline]
    pub fn has_sleepers(&self) -> bool {
        self.sleepers.load(Ordering::SeqCst) != 0
    }

    /// Locks the set; `None` in a signal handler that interrupted the thread that holds the lock.
    pub fn lock(&self) -> Option<Guard<'_, SetState>> {
        self.inner.lock()
    }

    /// A descriptor of this set, if it is still open.
    fn descriptor(&self) -> Option<c_int> {
        registry::find(|set| std::ptr::eq(set, self))
    }

    fn tag(inner: &SetState, index: usize, is_doorbell: bool) -> u64 {
        let generation = EventTag::generation(inner.slots[index].generation);
        EventTag { index, generation, is_doorbell }.data()
    }

    /// `epoll_ctl(EPOLL_CTL_ADD)`.
    pub fn add(&'static self, epoll: c_int, fd: c_int, events: u32, data: u64) -> c_int {
        let nested = registry::get(fd).filter(|set| !std::ptr::eq(*set, self));
        let socket = table::get(fd);
        // Dropped after the lock: the end of the last active call takes the lock to remove the
        // socket.
        let _guard = socket.and_then(|socket| socket.enter(fd));
        let Some(mut inner) = self.lock() else { return kernel::fail(libc::EDEADLK) as c_int };
        // Before the phase is read: a socket that joins after this finds the set.
        let kind = match (socket, nested) {
            (Some(socket), _) => {
                socket.epoll_registrations.fetch_add(1, Ordering::SeqCst);
                match socket.phase() {
                    Phase::Joined => MemberKind::Joined(SocketRef::new(socket)),
                    Phase::Candidate => MemberKind::Candidate(SocketRef::new(socket)),
                    Phase::Kernel => {
                        socket.epoll_registrations.fetch_sub(1, Ordering::SeqCst);
                        MemberKind::KernelOnly
                    }
                }
            }
            (None, Some(set)) => MemberKind::NestedSet(set),
            (None, None) if is_unconnected_tcp(fd) => {
                UNCONNECTED.fetch_add(1, Ordering::SeqCst);
                MemberKind::Unconnected
            }
            (None, None) => MemberKind::KernelOnly,
        };
        if matches!(kind, MemberKind::KernelOnly) && !EventTag::has_tag_prefix(data) {
            let result = control(epoll, libc::EPOLL_CTL_ADD, fd, events, data);
            if result == 0 {
                self.kernel_only.fetch_add(1, Ordering::AcqRel);
            }
            return result;
        }
        let result = self.register(&mut inner, epoll, Member::new(fd, kind, events, data));
        if let (Err(()), MemberKind::Joined(socket_ref) | MemberKind::Candidate(socket_ref)) =
            (result, kind)
        {
            socket_ref.socket.epoll_registrations.fetch_sub(1, Ordering::SeqCst);
        }
        if let (Err(()), MemberKind::Unconnected) = (result, kind) {
            UNCONNECTED.fetch_sub(1, Ordering::SeqCst);
        }
        if result.is_err() { -1 } else { 0 }
    }

    /// Registers a member with the kernel and stores it; errno says why that failed.
    fn register(&self, inner: &mut SetState, epoll: c_int, member: Member) -> Result<(), ()> {
        let Member { fd, kind, events, .. } = member;
        let joined = matches!(kind, MemberKind::Joined(_));
        if joined && events & EXCLUSIVE != 0 && events & !EXCLUSIVE_ALLOWED != 0 {
            kernel::fail(libc::EINVAL);
            return Err(());
        }
        let Some(index) = inner.allocate_slot() else {
            kernel::fail(libc::ENOMEM);
            return Err(());
        };
        let tag = EpollSet::tag(inner, index, false);
        let asked = if joined { KERNEL_EVENTS } else { events };
        if control(epoll, libc::EPOLL_CTL_ADD, fd, asked, tag) < 0 {
            inner.free_slot(index);
            return Err(());
        }
        inner.insert(index, member);
        self.members.fetch_add(1, Ordering::AcqRel);
        if joined {
            self.enter_shared_memory(inner, epoll, index);
        }
        if let MemberKind::NestedSet(set) = kind {
            set.is_watched_externally.store(true, Ordering::Release);
        }
        Ok(())
    }

    /// The member at `index` has joined shared memory: its doorbell is added to the set.
    fn enter_shared_memory(&self, inner: &mut SetState, epoll: c_int, index: usize) {
        let Some(socket) = inner.member(index).and_then(|member| member.joined_socket()) else {
            return;
        };
        let saved = kernel::errno();
        let tag = EpollSet::tag(inner, index, true);
        if control(epoll, libc::EPOLL_CTL_ADD, socket.doorbell(), libc::EPOLLIN as u32 | EDGE, tag)
            < 0
        {
            // The doorbell was added with another descriptor of the same socket.
            inner.has_duplicates = true;
        }
        self.create_wake_fd(epoll);
        kernel::set_errno(saved);
        self.joined.fetch_add(1, Ordering::AcqRel);
        socket.refresh_kernel_events();
        inner.activate(index);
        self.notify_sleepers(inner, index);
    }

    /// Creates the set's own eventfd, once.
    fn create_wake_fd(&self, epoll: c_int) {
        if self.wake_fd.load(Ordering::Acquire) != 0 {
            return;
        }
        // SAFETY: no pointers.
        let fd = unsafe { kernel::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC) };
        let fd = table::protect(fd);
        if fd >= 0 {
            let tag = EventTag { index: WAKE_SLOT, generation: 0, is_doorbell: true }.data();
            control(epoll, libc::EPOLL_CTL_ADD, fd, libc::EPOLLIN as u32, tag);
            self.wake_fd.store(fd + 1, Ordering::Release);
        }
    }

    /// Makes the real epoll descriptor readable.
    fn wake(&self) {
        let fd = self.wake_fd.load(Ordering::Acquire) - 1;
        if fd >= 0 {
            let saved = kernel::errno();
            let one = 1_u64;
            // SAFETY: eight bytes are read from `one`.
            unsafe { kernel::write(fd, (&raw const one).cast(), 8) };
            kernel::set_errno(saved);
        }
    }

    /// Undoes [`EpollSet::wake`].
    fn drain_wake_fd(&self) {
        let fd = self.wake_fd.load(Ordering::Acquire) - 1;
        if fd >= 0 {
            let saved = kernel::errno();
            let mut count = 0_u64;
            // SAFETY: eight bytes are written to `count`.
            unsafe { kernel::read(fd, (&raw mut count).cast(), 8) };
            kernel::set_errno(saved);
        }
    }

    /// A member has changed: wakes the sleeping threads, or arms it for them.
    fn notify_sleepers(&self, inner: &mut SetState, index: usize) {
        if self.sleepers.load(Ordering::SeqCst) == 0
            && !self.is_watched_externally.load(Ordering::Acquire)
        {
            return;
        }
        if let Some(member) = inner.member(index) {
            member.rearm();
            if member.pending_report().is_some() {
                self.wake();
            }
        }
    }

    /// `epoll_ctl(EPOLL_CTL_MOD)`.
    pub fn modify(&self, epoll: c_int, fd: c_int, events: u32, data: u64) -> c_int {
        let Some(mut inner) = self.lock() else { return kernel::fail(libc::EDEADLK) as c_int };
        let Some(index) = inner.find(fd) else {
            if EventTag::has_tag_prefix(data) {
                return self.track(
                    &mut inner,
                    epoll,
                    Member::new(fd, MemberKind::KernelOnly, events, data),
                );
            }
            return control(epoll, libc::EPOLL_CTL_MOD, fd, events, data);
        };
        let tag = EpollSet::tag(&inner, index, false);
        let Some(member) = inner.member(index) else { return kernel::fail(libc::ENOENT) as c_int };
        let joined = member.joined_socket().is_some();
        if joined && (events | member.events) & EXCLUSIVE != 0 {
            return kernel::fail(libc::EINVAL) as c_int;
        }
        let asked = if joined { KERNEL_EVENTS } else { events };
        // In shared memory nothing changes for the kernel. But if another process shares the set,
        // the kernel must confirm that the descriptor is still the registered one.
        if (!joined || self.is_inherited.load(Ordering::Acquire))
            && control(epoll, libc::EPOLL_CTL_MOD, fd, asked, tag) < 0
        {
            return -1;
        }
        member.disarm();
        (member.events, member.data) = (events, data);
        (member.disabled, member.must_report) = (false, true);
        if joined {
            inner.activate(index);
            self.notify_sleepers(&mut inner, index);
        }
        0
    }

    /// A registration of the kernel gets data that look like a tag: it becomes a member.
    fn track(&self, inner: &mut SetState, epoll: c_int, member: Member) -> c_int {
        let Some(index) = inner.allocate_slot() else { return kernel::fail(libc::ENOMEM) as c_int };
        let tag = EpollSet::tag(inner, index, false);
        let result = control(epoll, libc::EPOLL_CTL_MOD, member.fd, member.events, tag);
        if result < 0 {
            inner.free_slot(index);
        } else {
            inner.insert(index, member);
            self.members.fetch_add(1, Ordering::AcqRel);
        }
        result
    }

    /// `epoll_ctl(EPOLL_CTL_DEL)`.
    pub fn delete(&self, epoll: c_int, fd: c_int) -> c_int {
        let Some(mut inner) = self.lock() else { return kernel::fail(libc::EDEADLK) as c_int };
        let result = control(epoll, libc::EPOLL_CTL_DEL, fd, 0, 0);
        match inner.find(fd) {
            Some(index) if result == 0 => self.remove(&mut inner, Some(epoll), index),
            None if result == 0 => {
                let order = (Ordering::AcqRel, Ordering::Acquire);
                let _ =
                    self.kernel_only.fetch_update(order.0, order.1, |count| count.checked_sub(1));
            }
            _ => {}
        }
        result
    }

    /// Removes the member at `index`. With `epoll` its doorbell is removed from the set.
    fn remove(&self, inner: &mut SetState, epoll: Option<c_int>, index: usize) {
        let Some(mut member) = inner.slots[index].member.take() else { return };
        member.disarm();
        if let MemberKind::Joined(socket_ref) = member.kind {
            self.joined.fetch_sub(1, Ordering::AcqRel);
            let shared = inner.has_duplicates && inner.find_socket(socket_ref.socket).is_some();
            if socket_ref.is_current()
                && !shared
                && let Some(epoll) = epoll
            {
                let saved = kernel::errno();
                control(epoll, libc::EPOLL_CTL_DEL, socket_ref.socket.doorbell(), 0, 0);
                kernel::set_errno(saved);
            }
        }
        if let Some(socket_ref) = member.socket_ref()
            && socket_ref.is_current()
        {
            socket_ref.socket.epoll_registrations.fetch_sub(1, Ordering::SeqCst);
        }
        if matches!(member.kind, MemberKind::Unconnected) {
            UNCONNECTED.fetch_sub(1, Ordering::SeqCst);
        }
        inner.remove_entry(member.fd, index);
        self.members.fetch_sub(1, Ordering::AcqRel);
    }

    /// Appends the events of shared memory, in turn.
    pub fn collect_ready(&self, inner: &mut SetState, out: &mut Events) {
        let count = inner.active.len();
        let (first, mut has_idle) = (inner.next, false);
        for step in 0..count {
            if out.full() {
                return;
            }
            let position = (first + step) % count;
            let index = inner.active[position] as usize;
            let Some(member) = inner.slots[index].member.as_mut() else {
                has_idle = true;
                continue;
            };
            if member.reported_in_call == out.call {
                continue;
            }
            if let Some(report) = member.pending_report() {
                member.reported(report);
                member.reported_in_call = out.call;
                out.push(report.events, member.data);
                inner.last_reported = member.socket_ref();
                inner.next = position + 1;
            } else {
                member.idle_scans = member.idle_scans.saturating_add(1);
                has_idle |= member.disabled
                    || count > ACTIVE_MAX && member.idle_scans > IDLE_SCANS_MAX
                    || member.socket_ref().is_none_or(|socket_ref| !socket_ref.is_current());
            }
        }
        if has_idle {
            self.deactivate_idle(inner);
        }
    }

    /// Stops scanning sockets that have long had no events, until [`ACTIVE_MAX`] are left, and
    /// removes members whose socket was closed.
    fn deactivate_idle(&self, inner: &mut SetState) {
        let mut active = std::mem::take(&mut inner.active);
        let mut over = active.len().saturating_sub(ACTIVE_MAX);
        active.retain(|&index| {
            let index = index as usize;
            let Some(member) = inner.slots[index].member.as_mut().filter(|member| member.is_active)
            else {
                return false;
            };
            if member.socket_ref().is_none_or(|socket_ref| !socket_ref.is_current()) {
                self.remove(inner, None, index);
                return false;
            }
            if member.disabled {
                member.disarm();
                member.is_active = false;
            } else if over > 0 && member.idle_scans > IDLE_SCANS_MAX {
                member.arm();
                if member.pending_report().is_none() {
                    member.is_active = false;
                    over -= 1;
                } else {
                    member.disarm();
                }
            }
            member.is_active
        });
        inner.active = active;
    }

    /// A thread is about to sleep: arms the active members. `false` if one is ready.
    pub fn begin_sleep(&self, inner: &mut SetState, epoll: c_int) -> bool {
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        let mut ready = false;
        for position in 0..inner.active.len() {
            let index = inner.active[position] as usize;
            let tag = EpollSet::tag(inner, index, false);
            if let Some(member) = inner.slots[index].member.as_mut() {
                member.arm();
                ready |= member.pending_report().is_some();
                if member.waits_for_kernel_space() {
                    let events = KERNEL_EVENTS | libc::EPOLLOUT as u32;
                    control(epoll, libc::EPOLL_CTL_MOD, member.fd, events, tag);
                }
            }
            if ready {
                break;
            }
        }
        if ready {
            self.end_sleep(inner);
        }
        !ready
    }

    /// A thread has woken: disarms the active members if no other thread sleeps.
    pub fn end_sleep(&self, inner: &mut SetState) {
        let others = self.sleepers.fetch_sub(1, Ordering::SeqCst) > 1;
        for position in 0..inner.active.len() {
            let index = inner.active[position] as usize;
            if let Some(member) = inner.slots[index].member.as_mut() {
                if others {
                    member.rearm();
                } else {
                    member.disarm();
                }
            }
        }
    }

    /// Wakes the sleeping threads for events that this thread has not returned.
    pub fn wake_other_sleepers(&self, inner: &mut SetState) {
        for position in 0..inner.active.len() {
            let index = inner.active[position] as usize;
            if let Some(member) = inner.slots[index].member.as_mut() {
                member.rearm();
                if member.pending_report().is_some() {
                    self.wake();
                    return;
                }
            }
        }
    }

    /// Replaces the `count` events that the kernel has appended by the program's own events, and
    /// activates the members whose doorbell has rung.
    pub fn translate(&self, inner: &mut SetState, out: &mut Events, count: usize) {
        let (first, _) = out.rest();
        for step in 0..count {
            // SAFETY: the kernel has written `count` events here; the type may be packed.
            let event = unsafe { first.add(step).read_unaligned() };
            let (events, data) = (event.events, event.u64);
            let Some(tag) = EventTag::parse(data) else {
                out.push(events, data);
                continue;
            };
            if tag.index == WAKE_SLOT {
                self.drain_wake_fd();
            } else if inner.is_current_tag(tag)
                && let Some((events, data)) = self.translate_event(inner, tag, events)
            {
                out.push(events, data);
            }
        }
    }

    /// An event of the kernel for a member: what is reported to the program at once.
    fn translate_event(
        &self,
        inner: &mut SetState,
        tag: EventTag,
        events: u32,
    ) -> Option<(u32, u64)> {
        if inner.has_duplicates && tag.is_doorbell {
            // The tag does not tell which descriptor of the socket is meant.
            inner.activate_all();
            return None;
        }
        let member = inner.member(tag.index)?;
        match member.kind {
            MemberKind::Joined(socket_ref) => {
                if !tag.is_doorbell && socket_ref.is_current() {
                    socket_ref.socket.refresh_kernel_events();
                    // More bytes in the kernel do not change its events, so they are reported as
                    // new.
                    member.must_report |= !socket_ref.socket.is_fully_in_memory();
                }
                inner.activate(tag.index);
                None
            }
            MemberKind::NestedSet(set)
                if member.events & EDGE == 0 && !set.is_readable(member.fd) =>
            {
                None
            }
            MemberKind::KernelOnly
            | MemberKind::Unconnected
            | MemberKind::Candidate(_)
            | MemberKind::NestedSet(_) => {
                if !tag.is_doorbell && !member.disabled {
                    member.disabled = member.events & ONE_SHOT != 0;
                    return Some((events, member.data));
                }
                None
            }
        }
    }

    /// Makes the real epoll descriptor readable if and only if a member is ready, for a wait that
    /// watches this set from outside. All members are armed, so that later events make it readable
    /// too.
    pub fn publish_readiness(&self) {
        self.is_watched_externally.store(true, Ordering::Release);
        if self.is_kernel_only() {
            return;
        }
        for socket in self.sockets_to_drain() {
            // Without the lock: draining notifies the other sets that contain the socket.
            socket.drain();
        }
        let Some(mut inner) = self.lock() else { return };
        let mut ready = false;
        for index in 0..inner.slots.len() {
            inner.activate(index);
            let Some(member) = inner.slots[index].member.as_mut() else { continue };
            if let MemberKind::NestedSet(set) = member.kind {
                set.publish_readiness();
            }
            member.rearm();
            ready |= member.pending_report().is_some();
        }
        self.drain_wake_fd();
        if ready {
            self.wake();
        }
    }

    /// The joined sockets whose doorbell has rung.
    fn sockets_to_drain(&self) -> Vec<&'static Socket> {
        let Some(inner) = self.lock() else { return Vec::new() };
        let members = inner.slots.iter().filter_map(|slot| slot.member.as_ref());
        members
            .filter(|member| member.socket_ref().is_some_and(|socket_ref| socket_ref.is_current()))
            .filter_map(Member::joined_socket)
            .filter(|socket| kernel_readable(socket.doorbell()))
            .collect()
    }

    /// Whether poll finds the set readable, after its readiness was published.
    fn is_readable(&self, fd: c_int) -> bool {
        self.publish_readiness();
        kernel_readable(fd)
    }

    /// Publishes the readiness of nested sets.
    pub fn publish_nested(inner: &SetState) {
        for member in inner.slots.iter().filter_map(|slot| slot.member.as_ref()) {
            if let MemberKind::NestedSet(set) = member.kind
                && !member.disabled
            {
                set.publish_readiness();
            }
        }
    }

    /// `fd` was connected: if it was registered before, it is now a member for `socket`.
    pub fn socket_registered(&self, fd: c_int, socket: &'static Socket) {
        let Some(mut inner) = self.lock() else { return };
        let Some(index) = inner.find_unconnected(fd) else { return };
        UNCONNECTED.fetch_sub(1, Ordering::SeqCst);
        // Before the phase is read, as in `add`.
        socket.epoll_registrations.fetch_add(1, Ordering::SeqCst);
        if let Some(member) = inner.member(index) {
            member.kind = MemberKind::Candidate(SocketRef::new(socket));
        }
        if socket.phase() == Phase::Kernel {
            self.hand_to_kernel(&mut inner, index);
        }
    }

    /// `fd` was closed before it was connected.
    pub fn unconnected_closed(&self, fd: c_int) {
        let Some(mut inner) = self.lock() else { return };
        if let Some(index) = inner.find_unconnected(fd) {
            self.remove(&mut inner, None, index);
        }
    }

    /// A candidate will never join: the kernel gets the program's own data. A set without other
    /// members then costs no more than the kernel's.
    fn hand_to_kernel(&self, inner: &mut SetState, index: usize) {
        let Some(epoll) = self.descriptor() else { return };
        let Some(member) = inner.member(index) else { return };
        let (fd, events, data) = (member.fd, member.events, member.data);
        // A one-shot registration that was reported cannot be expressed to the kernel.
        if member.disabled || events & EXCLUSIVE != 0 || EventTag::has_tag_prefix(data) {
            return;
        }
        let saved = kernel::errno();
        if control(epoll, libc::EPOLL_CTL_MOD, fd, events, data) == 0 {
            self.kernel_only.fetch_add(1, Ordering::AcqRel);
            self.remove(inner, None, index);
        }
        kernel::set_errno(saved);
    }

    /// A socket that may be a member has joined.
    pub fn socket_joined(&self, socket: &'static Socket) {
        let Some(mut inner) = self.lock() else { return };
        for index in 0..inner.slots.len() {
            let tag = EpollSet::tag(&inner, index, false);
            let Some(member) = inner.slots[index].member.as_mut() else { continue };
            let MemberKind::Candidate(socket_ref) = member.kind else { continue };
            let Some(epoll) = self.descriptor().filter(|_| std::ptr::eq(socket_ref.socket, socket))
            else {
                continue;
            };
            // An exclusive registration cannot be modified, only replaced.
            if member.events & EXCLUSIVE != 0 {
                control(epoll, libc::EPOLL_CTL_DEL, member.fd, 0, 0);
                control(epoll, libc::EPOLL_CTL_ADD, member.fd, KERNEL_EVENTS, tag);
            } else {
                control(epoll, libc::EPOLL_CTL_MOD, member.fd, KERNEL_EVENTS, tag);
            }
            (member.kind, member.must_report) = (MemberKind::Joined(socket_ref), true);
            self.enter_shared_memory(&mut inner, epoll, index);
        }
    }

    /// A socket that may be a member has returned to the kernel.
    pub fn socket_returned(&self, socket: &'static Socket) {
        let Some(mut inner) = self.lock() else { return };
        for index in 0..inner.slots.len() {
            let tag = EpollSet::tag(&inner, index, false);
            let Some(member) = inner.slots[index].member.as_mut() else { continue };
            let MemberKind::Joined(socket_ref) = member.kind else { continue };
            let Some(epoll) = self.descriptor().filter(|_| std::ptr::eq(socket_ref.socket, socket))
            else {
                continue;
            };
            member.disarm();
            let events = if member.disabled { ONE_SHOT | EDGE } else { member.events };
            (member.kind, member.is_active) = (MemberKind::Candidate(socket_ref), false);
            control(epoll, libc::EPOLL_CTL_DEL, socket_ref.socket.doorbell(), 0, 0);
            if events & EXCLUSIVE == 0 {
                control(epoll, libc::EPOLL_CTL_MOD, member.fd, events, tag);
            } else {
                control(epoll, libc::EPOLL_CTL_DEL, member.fd, 0, 0);
                control(epoll, libc::EPOLL_CTL_ADD, member.fd, events, tag);
            }
            self.joined.fetch_sub(1, Ordering::AcqRel);
            inner.active.retain(|&active| active as usize != index);
            self.hand_to_kernel(&mut inner, index);
        }
    }

    /// The last descriptor of a socket that may be a member is being closed.
    pub fn socket_closed(&self, socket: &'static Socket) {
        let Some(mut inner) = self.lock() else { return };
        // A set that other processes share keeps the doorbell: it may be the other process's.
        let epoll = self.descriptor().filter(|_| !self.is_inherited.load(Ordering::Acquire));
        while let Some(index) = inner.find_socket(socket) {
            self.remove(&mut inner, epoll, index);
        }
    }

    /// Another thread has drained the doorbell of a socket that may be a member.
    pub fn doorbell_drained(&self, socket: &'static Socket) {
        if self.sleepers.load(Ordering::SeqCst) == 0
            && !self.is_watched_externally.load(Ordering::Acquire)
        {
            // Members that are not active still rely on their doorbell.
            if self.joined.load(Ordering::Acquire) as usize <= ACTIVE_MAX {
                return;
            }
        }
        let Some(mut inner) = self.lock() else { return };
        if let Some(index) = inner.find_socket(socket) {
            inner.activate(index);
            self.notify_sleepers(&mut inner, index);
        }
    }

    /// The last descriptor of the set is closed: removes everything, so that the set can be reused.
    pub fn close(&self) {
        let Some(mut inner) = self.lock() else { return };
        for index in 0..inner.slots.len() {
            self.remove(&mut inner, None, index);
        }
        (inner.has_duplicates, inner.last_reported) = (false, None);
        inner.active.clear();
        let wake_fd = self.wake_fd.swap(0, Ordering::AcqRel) - 1;
        if wake_fd >= 0 {
            table::close_library_descriptor(wake_fd);
        }
        self.kernel_only.store(0, Ordering::Release);
        self.is_watched_externally.store(false, Ordering::Release);
        self.is_inherited.store(false, Ordering::Release);
    }

    /// In the child of a fork: no other thread uses the set, and the parent shares it.
    pub fn reset_after_fork(&self) {
        self.inner.reset();
        self.sleepers.store(0, Ordering::Release);
        self.is_inherited.store(true, Ordering::Release);
        let Some(mut inner) = self.lock() else { return };
        for index in 0..inner.slots.len() {
            if let Some(member) = inner.slots[index].member.as_mut() {
                member.reset_after_fork();
            }
            inner.activate(index);
        }
    }
}

impl SetState {
    fn allocate_slot(&mut self) -> Option<usize> {
        if let Some(index) = self.free.pop() {
            return Some(index as usize);
        }
        if self.slots.len() >= WAKE_SLOT {
            return None;
        }
        self.slots.push(Slot::default());
        Some(self.slots.len() - 1)
    }

    fn free_slot(&mut self, index: usize) {
        let slot = &mut self.slots[index];
        slot.generation = slot.generation.wrapping_add(1);
        slot.member = None;
        if let Ok(index) = u32::try_from(index) {
            self.free.push(index);
        }
    }

    fn insert(&mut self, index: usize, member: Member) {
        if let (Ok(fd), Ok(number)) = (usize::try_from(member.fd), u32::try_from(index + 1)) {
            if self.by_fd.len() <= fd {
                self.by_fd.resize(fd + 1, 0);
            }
            self.by_fd[fd] = number;
        }
        self.slots[index].member = Some(member);
    }

    fn remove_entry(&mut self, fd: c_int, index: usize) {
        let entry = usize::try_from(fd).ok().and_then(|fd| self.by_fd.get_mut(fd));
        if let Some(entry) = entry.filter(|entry| **entry as usize == index + 1) {
            *entry = 0;
        }
        self.active.retain(|&active| active as usize != index);
        self.free_slot(index);
    }

    #[inline]
    fn member(&mut self, index: usize) -> Option<&mut Member> {
        self.slots.get_mut(index)?.member.as_mut()
    }

    fn is_current_tag(&self, tag: EventTag) -> bool {
        let slot = self.slots.get(tag.index);
        slot.is_some_and(|slot| EventTag::generation(slot.generation) == tag.generation)
    }

    /// The member registered by `fd`, if the descriptor still refers to what was registered.
    fn find(&self, fd: c_int) -> Option<usize> {
        let now = table::get(fd);
        let fits = |member: &Member| {
            member.fd == fd
                && match (member.kind, now) {
                    (
                        MemberKind::Candidate(socket_ref) | MemberKind::Joined(socket_ref),
                        Some(socket),
                    ) => socket_ref.is_current() && std::ptr::eq(socket_ref.socket, socket),
                    (MemberKind::KernelOnly, _)
                    | (MemberKind::Unconnected | MemberKind::NestedSet(_), None) => true,
                    _ => false,
                }
        };
        let number = usize::try_from(fd).ok().and_then(|fd| self.by_fd.get(fd).copied())?;
        if number == 0 {
            return None;
        }
        let quick = number as usize - 1;
        if self.slots.get(quick)?.member.as_ref().is_some_and(fits) {
            return Some(quick);
        }
        self.slots.iter().position(|slot| slot.member.as_ref().is_some_and(fits))
    }

    /// The member that was registered by `fd` before it was connected.
    fn find_unconnected(&self, fd: c_int) -> Option<usize> {
        self.slots.iter().position(|slot| {
            let member = slot.member.as_ref();
            member.is_some_and(|member| {
                member.fd == fd && matches!(member.kind, MemberKind::Unconnected)
            })
        })
    }

    /// A member for this socket.
    fn find_socket(&self, socket: &'static Socket) -> Option<usize> {
        self.slots.iter().position(|slot| {
            let socket_ref = slot.member.as_ref().and_then(Member::socket_ref);
            socket_ref.is_some_and(|socket_ref| std::ptr::eq(socket_ref.socket, socket))
        })
    }

    /// Scans the member at `index` from now on.
    fn activate(&mut self, index: usize) {
        if let Some(member) = self.member(index)
            && member.joined_socket().is_some()
        {
            member.idle_scans = 0;
            if !member.is_active {
                member.is_active = true;
                member.disarm();
                self.active.push(u32::try_from(index).unwrap_or(0));
            }
        }
    }

    fn activate_all(&mut self) {
        for index in 0..self.slots.len() {
            self.activate(index);
        }
    }

    /// Calls that may return events of memory only, before the kernel is polled first, so that
    /// neither part of a set that is always ready hides the other.
    pub fn calls_before_kernel_check(&self) -> u32 {
        if self.slots.len() - self.free.len() > self.active.len() { 2 } else { 8 }
    }

    /// Begins a call: members that it has reported are not reported to it again.
    pub fn begin_call(&mut self, out: &mut Events) {
        self.calls += 1;
        out.call = self.calls;
    }

    /// The socket to spin for: the one reported last, or any active one.
    pub fn spin_target(&mut self) -> Option<SocketRef> {
        let fits =
            |socket_ref: &SocketRef| socket_ref.is_current() && socket_ref.socket.is_joined();
        if self.active.is_empty() {
            return None;
        }
        self.last_reported = self.last_reported.filter(fits).or_else(|| {
            let mut active = self.active.iter();
            active.find_map(|&index| {
                self.slots[index as usize].member.as_ref()?.socket_ref().filter(fits)
            })
        });
        self.last_reported
    }
}

/// The kernel's `epoll_ctl`.
pub fn control(epoll: c_int, op: c_int, fd: c_int, events: u32, data: u64) -> c_int {
    let mut event = epoll_event { events, u64: data };
    // SAFETY: the kernel reads one event.
    unsafe { kernel::epoll_ctl(epoll, op, fd, &raw mut event) }
}

/// Count of sockets that were registered before they were connected.
pub static UNCONNECTED: AtomicU32 = AtomicU32::new(0);

/// Whether `fd` is a TCP socket that does not listen, so that it may be connected later.
fn is_unconnected_tcp(fd: c_int) -> bool {
    let saved = kernel::errno();
    let tcp = kernel::option(fd, libc::SOL_SOCKET, libc::SO_PROTOCOL) == Some(libc::IPPROTO_TCP);
    let may = tcp && kernel::option(fd, libc::SOL_SOCKET, libc::SO_ACCEPTCONN) == Some(0);
    kernel::set_errno(saved);
    may
}

/// Whether the kernel finds `fd` readable now.
fn kernel_readable(fd: c_int) -> bool {
    let mut one = [libc::pollfd { fd, events: libc::POLLIN, revents: 0 }];
    let errno = kernel::errno();
    let found = kernel::poll(&mut one, Some(0));
    kernel::set_errno(errno);
    found > 0
}
