//! An epoll set in which sockets in shared memory and descriptors of the kernel are mixed.
//!
//! The program's own epoll descriptor is kept and does the sleeping. What the kernel knows well
//! stays registered as the program asked. A joined socket is registered by its bell and by its
//! real descriptor, both edge-triggered and under a [`Tag`]; what the program asked for is here.
//!
//! At most about [`HOT`] sockets are walked at each call ("hot"). The others are armed for good:
//! a sender that finds the flag rings the bell, and so the kernel's own ready list names the
//! socket, which becomes hot. A set of any size costs a walk of [`HOT`] cache lines, and no word
//! is shared between connections.

use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};

use libc::{c_int, epoll_event};

use super::lock::{Guard, Lock};
use super::member::{Held, Kind, Member};
use super::tag::{INDEX_LIMIT, Tag};
use super::{EDGE, EXCLUSIVE, EXCLUSIVE_MAY, ONE_SHOT, registry};
use crate::socket::{Phase, Socket};
use crate::{kernel, table};

/// Sockets that are walked however rarely they are ready.
pub const HOT: usize = 64;

/// Walks in vain after which a socket beyond the first [`HOT`] is left to its bell.
const VAIN_LIMIT: u32 = 32;

/// What the kernel reports of the real descriptor of a joined socket.
const KERNEL_SIDE: u32 = (libc::EPOLLIN | libc::EPOLLRDHUP | libc::EPOLLPRI) as u32 | EDGE;

/// The slot number that stands for the set's own eventfd.
const KNOCK: usize = INDEX_LIMIT - 1;

/// One epoll set of this process.
#[derive(Default)]
pub struct Set {
    /// Descriptors of the program that lead here.
    pub descriptors: AtomicU32,
    /// Registrations that are followed here.
    members: AtomicU32,
    /// Of these: sockets in shared memory.
    joined: AtomicU32,
    /// Registrations that are the kernel's alone; those of closed descriptors are still counted.
    plain: AtomicU32,
    /// How long a spin for the set pays, ns: see `pause`.
    pub budget: Budget,
    /// Threads asleep in the kernel's wait.
    sleepers: AtomicU32,
    /// Waited for through poll, select or another set.
    exposed: AtomicBool,
    /// Made by the process that this one was forked from.
    inherited: AtomicBool,
    /// The set's own eventfd + 1; 0 if there is none. In the set, level-triggered: makes the real
    /// epoll descriptor readable when something here is ready that the kernel does not know of.
    knock: AtomicI32,
    inner: Lock<Inner>,
}

/// The spin that pays, ns; a new set begins with the longest.
pub struct Budget(pub AtomicU64);

impl Default for Budget {
    fn default() -> Budget {
        Budget(AtomicU64::new(u64::MAX))
    }
}

/// What the lock of a set guards.
#[derive(Default)]
pub struct Inner {
    slots: Vec<Slot>,
    free: Vec<u32>,
    hot: Vec<u32>,
    /// Where the next walk begins, so that each ready socket has its turn.
    next: usize,
    /// Slot + 1 by descriptor.
    by_fd: Vec<u32>,
    /// A socket is in here under two descriptors, which share a bell.
    twins: bool,
    /// Calls that have looked here.
    calls: u64,
    /// Calls that returned something without a look at the kernel.
    pub since_kernel: u32,
    /// The socket reported last: the one that is most likely worth waiting for.
    pub latest: Option<Held>,
}

#[derive(Default)]
struct Slot {
    uses: u32,
    member: Option<Member>,
}

/// Room for events in the program's memory.
pub struct Events {
    first: *mut epoll_event,
    limit: usize,
    len: usize,
    /// Which call's, counted by the set.
    call: u64,
}

impl Events {
    /// The program's array.
    ///
    /// # Safety
    /// `first` must be good for `limit` events as long as this lives.
    pub unsafe fn new(first: *mut epoll_event, limit: usize) -> Events {
        Events { first, limit, len: 0, call: 0 }
    }

    /// Events in it.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is room for no more.
    pub fn full(&self) -> bool {
        self.len >= self.limit
    }

    /// Where the next event goes, and how many more fit.
    pub fn rest(&self) -> (*mut epoll_event, c_int) {
        let left = c_int::try_from(self.limit - self.len).unwrap_or(c_int::MAX);
        (self.first.wrapping_add(self.len), left)
    }

    fn push(&mut self, events: u32, data: u64) {
        if !self.full() {
            let event = epoll_event { events, u64: data };
            // SAFETY: `len < limit`, and the caller of `new` vouches for the array; the type may
            // be packed, and programs may hand over any address.
            unsafe { self.first.add(self.len).write_unaligned(event) };
            self.len += 1;
        }
    }
}

impl Set {
    /// Whether nothing here needs more than the kernel's own call.
    #[inline]
    pub fn is_plain(&self) -> bool {
        self.members.load(Ordering::Acquire) == 0
    }

    /// Whether memory does not show all that may be ready: each call asks the kernel too. In a set
    /// of joined sockets only, the kernel has nothing but bells and ends to tell.
    #[inline]
    pub fn kernel_knows_more(&self) -> bool {
        self.plain.load(Ordering::Acquire) != 0
            || self.joined.load(Ordering::Acquire) != self.members.load(Ordering::Acquire)
    }

    /// Registrations may be in the set that this process has not seen.
    pub fn has_a_past(&self) {
        self.plain.store(1, Ordering::Release);
    }

    /// A thread waits in the kernel for a set in which nothing needed more, as yet.
    pub fn plain_wait<T>(&self, wait: impl FnOnce() -> T) -> T {
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

    /// The lock; `None` in a signal handler that interrupted its own thread inside.
    pub fn lock(&self) -> Option<Guard<'_, Inner>> {
        self.inner.lock()
    }

    /// A descriptor of this set, if it is still open.
    fn descriptor(&self) -> Option<c_int> {
        registry::find(|set| std::ptr::eq(set, self))
    }

    fn tag(inner: &Inner, index: usize, bell: bool) -> u64 {
        let generation = Tag::generation(inner.slots[index].uses);
        Tag { index, generation, bell }.data()
    }

    /// `epoll_ctl(EPOLL_CTL_ADD)`.
    pub fn add(&'static self, epoll: c_int, fd: c_int, events: u32, data: u64) -> c_int {
        let nested = registry::get(fd).filter(|set| !std::ptr::eq(*set, self));
        let socket = table::get(fd);
        // Dropped after the lock: who leaves last tells the set that the socket is gone.
        let _inside = socket.and_then(|socket| socket.enter(fd));
        let Some(mut inner) = self.lock() else { return kernel::fail(libc::EDEADLK) as c_int };
        // Before the phase is read: a socket that joins from now on finds the set.
        let kind = match (socket, nested) {
            (Some(socket), _) => {
                socket.sets.fetch_add(1, Ordering::SeqCst);
                match socket.phase() {
                    Phase::Joined => Kind::Joined(Held::new(socket)),
                    Phase::Candidate => Kind::Candidate(Held::new(socket)),
                    Phase::Kernel => {
                        socket.sets.fetch_sub(1, Ordering::SeqCst);
                        Kind::Plain
                    }
                }
            }
            (None, Some(set)) => Kind::Nested(set),
            (None, None) if may_connect(fd) => {
                EARLY.fetch_add(1, Ordering::SeqCst);
                Kind::Early
            }
            (None, None) => Kind::Plain,
        };
        if matches!(kind, Kind::Plain) && !Tag::resembles(data) {
            let result = control(epoll, libc::EPOLL_CTL_ADD, fd, events, data);
            if result == 0 {
                self.plain.fetch_add(1, Ordering::AcqRel);
            }
            return result;
        }
        let result = self.register(&mut inner, epoll, Member::new(fd, kind, events, data));
        if let (Err(()), Kind::Joined(held) | Kind::Candidate(held)) = (result, kind) {
            held.socket.sets.fetch_sub(1, Ordering::SeqCst);
        }
        if let (Err(()), Kind::Early) = (result, kind) {
            EARLY.fetch_sub(1, Ordering::SeqCst);
        }
        if result.is_err() { -1 } else { 0 }
    }

    /// Registers a member with the kernel and takes it in; errno says why not.
    fn register(&self, inner: &mut Inner, epoll: c_int, member: Member) -> Result<(), ()> {
        let Member { fd, kind, events, .. } = member;
        let joined = matches!(kind, Kind::Joined(_));
        if joined && events & EXCLUSIVE != 0 && events & !EXCLUSIVE_MAY != 0 {
            kernel::fail(libc::EINVAL);
            return Err(());
        }
        let Some(index) = inner.take_slot() else {
            kernel::fail(libc::ENOMEM);
            return Err(());
        };
        let tag = Set::tag(inner, index, false);
        let asked = if joined { KERNEL_SIDE } else { events };
        if control(epoll, libc::EPOLL_CTL_ADD, fd, asked, tag) < 0 {
            inner.give_back(index);
            return Err(());
        }
        inner.place(index, member);
        self.members.fetch_add(1, Ordering::AcqRel);
        if joined {
            self.begin_memory(inner, epoll, index);
        }
        if let Kind::Nested(set) = kind {
            set.exposed.store(true, Ordering::Release);
        }
        Ok(())
    }

    /// The member at `index` is in shared memory from now on: its bell goes into the set.
    fn begin_memory(&self, inner: &mut Inner, epoll: c_int, index: usize) {
        let Some(socket) = inner.member(index).and_then(|member| member.joined()) else { return };
        let saved = kernel::errno();
        let tag = Set::tag(inner, index, true);
        if control(epoll, libc::EPOLL_CTL_ADD, socket.bell(), libc::EPOLLIN as u32 | EDGE, tag) < 0
        {
            // The same socket under another descriptor brought it.
            inner.twins = true;
        }
        self.have_knock(epoll);
        kernel::set_errno(saved);
        self.joined.fetch_add(1, Ordering::AcqRel);
        socket.refresh();
        inner.warm(index);
        self.tell_sleepers(inner, index);
    }

    /// Makes the set's own eventfd, once.
    fn have_knock(&self, epoll: c_int) {
        if self.knock.load(Ordering::Acquire) != 0 {
            return;
        }
        // SAFETY: no memory is handed over.
        let fd = unsafe { kernel::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC) };
        let fd = table::keep(fd);
        if fd >= 0 {
            let tag = Tag { index: KNOCK, generation: 0, bell: true }.data();
            control(epoll, libc::EPOLL_CTL_ADD, fd, libc::EPOLLIN as u32, tag);
            self.knock.store(fd + 1, Ordering::Release);
        }
    }

    /// Makes the real epoll descriptor readable.
    fn ring_knock(&self) {
        let fd = self.knock.load(Ordering::Acquire) - 1;
        if fd >= 0 {
            let saved = kernel::errno();
            let one = 1_u64;
            // SAFETY: eight bytes are read from `one`.
            unsafe { kernel::write(fd, (&raw const one).cast(), 8) };
            kernel::set_errno(saved);
        }
    }

    /// Takes back what [`Set::ring_knock`] did.
    fn hush_knock(&self) {
        let fd = self.knock.load(Ordering::Acquire) - 1;
        if fd >= 0 {
            let saved = kernel::errno();
            let mut count = 0_u64;
            // SAFETY: eight bytes are written to `count`.
            unsafe { kernel::read(fd, (&raw mut count).cast(), 8) };
            kernel::set_errno(saved);
        }
    }

    /// A member has changed: threads asleep must hear of it, and be armed for it.
    fn tell_sleepers(&self, inner: &mut Inner, index: usize) {
        if self.sleepers.load(Ordering::SeqCst) == 0 && !self.exposed.load(Ordering::Acquire) {
            return;
        }
        if let Some(member) = inner.member(index) {
            member.arm_again();
            if member.due().is_some() {
                self.ring_knock();
            }
        }
    }

    /// `epoll_ctl(EPOLL_CTL_MOD)`.
    pub fn modify(&self, epoll: c_int, fd: c_int, events: u32, data: u64) -> c_int {
        let Some(mut inner) = self.lock() else { return kernel::fail(libc::EDEADLK) as c_int };
        let Some(index) = inner.find(fd) else {
            if Tag::resembles(data) {
                return self.follow(&mut inner, epoll, Member::new(fd, Kind::Plain, events, data));
            }
            return control(epoll, libc::EPOLL_CTL_MOD, fd, events, data);
        };
        let tag = Set::tag(&inner, index, false);
        let Some(member) = inner.member(index) else { return kernel::fail(libc::ENOENT) as c_int };
        let joined = member.joined().is_some();
        if joined && (events | member.events) & EXCLUSIVE != 0 {
            return kernel::fail(libc::EINVAL) as c_int;
        }
        let asked = if joined { KERNEL_SIDE } else { events };
        // In shared memory nothing changes for the kernel, but it is asked whether the program's
        // descriptor still is what it was when others share the set.
        if (!joined || self.inherited.load(Ordering::Acquire))
            && control(epoll, libc::EPOLL_CTL_MOD, fd, asked, tag) < 0
        {
            return -1;
        }
        member.disarm();
        (member.events, member.data) = (events, data);
        (member.disabled, member.fresh) = (false, true);
        if joined {
            inner.warm(index);
            self.tell_sleepers(&mut inner, index);
        }
        0
    }

    /// A plain registration gets data that look like a tag: it becomes a member.
    fn follow(&self, inner: &mut Inner, epoll: c_int, member: Member) -> c_int {
        let Some(index) = inner.take_slot() else { return kernel::fail(libc::ENOMEM) as c_int };
        let tag = Set::tag(inner, index, false);
        let result = control(epoll, libc::EPOLL_CTL_MOD, member.fd, member.events, tag);
        if result < 0 {
            inner.give_back(index);
        } else {
            inner.place(index, member);
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
                let _ = self.plain.fetch_update(order.0, order.1, |plain| plain.checked_sub(1));
            }
            _ => {}
        }
        result
    }

    /// Forgets the member at `index`. With `epoll` its bell is taken out of the set.
    fn remove(&self, inner: &mut Inner, epoll: Option<c_int>, index: usize) {
        let Some(mut member) = inner.slots[index].member.take() else { return };
        member.disarm();
        if let Kind::Joined(held) = member.kind {
            self.joined.fetch_sub(1, Ordering::AcqRel);
            let shared = inner.twins && inner.holder_of(held.socket).is_some();
            if held.alive()
                && !shared
                && let Some(epoll) = epoll
            {
                let saved = kernel::errno();
                control(epoll, libc::EPOLL_CTL_DEL, held.socket.bell(), 0, 0);
                kernel::set_errno(saved);
            }
        }
        if let Some(held) = member.held()
            && held.alive()
        {
            held.socket.sets.fetch_sub(1, Ordering::SeqCst);
        }
        if matches!(member.kind, Kind::Early) {
            EARLY.fetch_sub(1, Ordering::SeqCst);
        }
        inner.forget(member.fd, index);
        self.members.fetch_sub(1, Ordering::AcqRel);
    }

    /// Appends what is ready in shared memory, fairly.
    pub fn collect(&self, inner: &mut Inner, out: &mut Events) {
        let count = inner.hot.len();
        let (first, mut stale) = (inner.next, false);
        for step in 0..count {
            if out.full() {
                return;
            }
            let position = (first + step) % count;
            let index = inner.hot[position] as usize;
            let Some(member) = inner.slots[index].member.as_mut() else {
                stale = true;
                continue;
            };
            if member.told_in == out.call {
                continue;
            }
            if let Some(due) = member.due() {
                member.reported(due);
                member.told_in = out.call;
                out.push(due.events, member.data);
                inner.latest = member.held();
                inner.next = position + 1;
            } else {
                member.vain = member.vain.saturating_add(1);
                stale |= member.disabled
                    || count > HOT && member.vain > VAIN_LIMIT
                    || member.held().is_none_or(|held| !held.alive());
            }
        }
        if stale {
            self.cool_down(inner);
        }
    }

    /// Leaves to their bells what has long not been ready, until [`HOT`] sockets are walked, and
    /// drops what is no more.
    fn cool_down(&self, inner: &mut Inner) {
        let mut hot = std::mem::take(&mut inner.hot);
        let mut over = hot.len().saturating_sub(HOT);
        hot.retain(|&index| {
            let index = index as usize;
            let Some(member) = inner.slots[index].member.as_mut().filter(|member| member.hot)
            else {
                return false;
            };
            if member.held().is_none_or(|held| !held.alive()) {
                self.remove(inner, None, index);
                return false;
            }
            if member.disabled {
                member.disarm();
                member.hot = false;
            } else if over > 0 && member.vain > VAIN_LIMIT {
                member.arm();
                if member.due().is_none() {
                    member.hot = false;
                    over -= 1;
                } else {
                    member.disarm();
                }
            }
            member.hot
        });
        inner.hot = hot;
    }

    /// A thread is about to sleep: arms what is walked. `false` if something is ready.
    pub fn fall_asleep(&self, inner: &mut Inner, epoll: c_int) -> bool {
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        let mut ready = false;
        for position in 0..inner.hot.len() {
            let index = inner.hot[position] as usize;
            let tag = Set::tag(inner, index, false);
            if let Some(member) = inner.slots[index].member.as_mut() {
                member.arm();
                ready |= member.due().is_some();
                if member.needs_kernel_room() {
                    let room = KERNEL_SIDE | libc::EPOLLOUT as u32;
                    control(epoll, libc::EPOLL_CTL_MOD, member.fd, room, tag);
                }
            }
            if ready {
                break;
            }
        }
        if ready {
            self.wake_up(inner);
        }
        !ready
    }

    /// A thread has woken: disarms what is walked if no other thread sleeps.
    pub fn wake_up(&self, inner: &mut Inner) {
        let others = self.sleepers.fetch_sub(1, Ordering::SeqCst) > 1;
        for position in 0..inner.hot.len() {
            let index = inner.hot[position] as usize;
            if let Some(member) = inner.slots[index].member.as_mut() {
                if others {
                    member.arm_again();
                } else {
                    member.disarm();
                }
            }
        }
    }

    /// What is ready after this thread has taken its share is for the threads that sleep.
    pub fn relay(&self, inner: &mut Inner) {
        for position in 0..inner.hot.len() {
            let index = inner.hot[position] as usize;
            if let Some(member) = inner.slots[index].member.as_mut() {
                member.arm_again();
                if member.due().is_some() {
                    self.ring_knock();
                    return;
                }
            }
        }
    }

    /// Turns the `count` events that the kernel has appended into what the program is told, and
    /// warms what has rung.
    pub fn translate(&self, inner: &mut Inner, out: &mut Events, count: usize) {
        let (first, _) = out.rest();
        for step in 0..count {
            // SAFETY: the kernel has written `count` events here; the type may be packed.
            let event = unsafe { first.add(step).read_unaligned() };
            let (events, data) = (event.events, event.u64);
            let Some(tag) = Tag::parse(data) else {
                out.push(events, data);
                continue;
            };
            if tag.index == KNOCK {
                self.hush_knock();
            } else if inner.is_use(tag)
                && let Some((events, data)) = self.told(inner, tag, events)
            {
                out.push(events, data);
            }
        }
    }

    /// The kernel has told `events` of a member: what the program is told of it at once.
    fn told(&self, inner: &mut Inner, tag: Tag, events: u32) -> Option<(u32, u64)> {
        if inner.twins && tag.bell {
            // Whose bell it was cannot be told from the tag.
            inner.warm_all();
            return None;
        }
        let member = inner.member(tag.index)?;
        match member.kind {
            Kind::Joined(held) => {
                if !tag.bell && held.alive() {
                    held.socket.refresh();
                    // Bytes of the kernel that come on top of others are no new bit.
                    member.fresh |= !held.socket.whole();
                }
                inner.warm(tag.index);
                None
            }
            Kind::Nested(set) if member.events & EDGE == 0 && !set.shows(member.fd) => None,
            Kind::Plain | Kind::Early | Kind::Candidate(_) | Kind::Nested(_) => {
                if !tag.bell && !member.disabled {
                    member.disabled = member.events & ONE_SHOT != 0;
                    return Some((events, member.data));
                }
                None
            }
        }
    }

    /// Makes the real epoll descriptor readable exactly if something is ready: for a wait that
    /// sees this set from outside. Everything is armed then, so it becomes readable by itself.
    pub fn expose(&self) {
        self.exposed.store(true, Ordering::Release);
        if self.is_plain() {
            return;
        }
        for socket in self.rung() {
            // Without the lock: hushing tells the other sets that hold the socket.
            socket.hush();
        }
        let Some(mut inner) = self.lock() else { return };
        let mut ready = false;
        for index in 0..inner.slots.len() {
            inner.warm(index);
            let Some(member) = inner.slots[index].member.as_mut() else { continue };
            if let Kind::Nested(set) = member.kind {
                set.expose();
            }
            member.arm_again();
            ready |= member.due().is_some();
        }
        self.hush_knock();
        if ready {
            self.ring_knock();
        }
    }

    /// The joined sockets whose bell has something to say.
    fn rung(&self) -> Vec<&'static Socket> {
        let Some(inner) = self.lock() else { return Vec::new() };
        let members = inner.slots.iter().filter_map(|slot| slot.member.as_ref());
        members
            .filter(|member| member.held().is_some_and(|held| held.alive()))
            .filter_map(Member::joined)
            .filter(|socket| kernel_readable(socket.bell()))
            .collect()
    }

    /// Whether `poll` finds the exposed set readable.
    fn shows(&self, fd: c_int) -> bool {
        self.expose();
        kernel_readable(fd)
    }

    /// Nested sets are made to show what is ready in them.
    pub fn expose_nested(inner: &Inner) {
        for member in inner.slots.iter().filter_map(|slot| slot.member.as_ref()) {
            if let Kind::Nested(set) = member.kind
                && !member.disabled
            {
                set.expose();
            }
        }
    }

    /// `fd` has been connected: if it was registered before, `socket` is what was registered.
    pub fn socket_admitted(&self, fd: c_int, socket: &'static Socket) {
        let Some(mut inner) = self.lock() else { return };
        let Some(index) = inner.early(fd) else { return };
        EARLY.fetch_sub(1, Ordering::SeqCst);
        // Before the phase is read, as in `add`.
        socket.sets.fetch_add(1, Ordering::SeqCst);
        if let Some(member) = inner.member(index) {
            member.kind = Kind::Candidate(Held::new(socket));
        }
        if socket.phase() == Phase::Kernel {
            self.leave_to_kernel(&mut inner, index);
        }
    }

    /// `fd` is closed before it was ever connected.
    pub fn early_closed(&self, fd: c_int) {
        let Some(mut inner) = self.lock() else { return };
        if let Some(index) = inner.early(fd) {
            self.remove(&mut inner, None, index);
        }
    }

    /// A candidate will never join: the kernel gets the program's own data, and a set in which
    /// there is nothing else costs no more than the kernel's.
    fn leave_to_kernel(&self, inner: &mut Inner, index: usize) {
        let Some(epoll) = self.descriptor() else { return };
        let Some(member) = inner.member(index) else { return };
        let (fd, events, data) = (member.fd, member.events, member.data);
        // What has been reported once cannot be told to the kernel in another way.
        if member.disabled || events & EXCLUSIVE != 0 || Tag::resembles(data) {
            return;
        }
        let saved = kernel::errno();
        if control(epoll, libc::EPOLL_CTL_MOD, fd, events, data) == 0 {
            self.plain.fetch_add(1, Ordering::AcqRel);
            self.remove(inner, None, index);
        }
        kernel::set_errno(saved);
    }

    /// A socket that may be in here has joined.
    pub fn socket_joined(&self, socket: &'static Socket) {
        let Some(mut inner) = self.lock() else { return };
        for index in 0..inner.slots.len() {
            let tag = Set::tag(&inner, index, false);
            let Some(member) = inner.slots[index].member.as_mut() else { continue };
            let Kind::Candidate(held) = member.kind else { continue };
            let Some(epoll) = self.descriptor().filter(|_| std::ptr::eq(held.socket, socket))
            else {
                continue;
            };
            // An exclusive registration cannot be changed, only made again.
            if member.events & EXCLUSIVE != 0 {
                control(epoll, libc::EPOLL_CTL_DEL, member.fd, 0, 0);
                control(epoll, libc::EPOLL_CTL_ADD, member.fd, KERNEL_SIDE, tag);
            } else {
                control(epoll, libc::EPOLL_CTL_MOD, member.fd, KERNEL_SIDE, tag);
            }
            (member.kind, member.fresh) = (Kind::Joined(held), true);
            self.begin_memory(&mut inner, epoll, index);
        }
    }

    /// A socket that may be in here has gone back to the kernel.
    pub fn socket_left(&self, socket: &'static Socket) {
        let Some(mut inner) = self.lock() else { return };
        for index in 0..inner.slots.len() {
            let tag = Set::tag(&inner, index, false);
            let Some(member) = inner.slots[index].member.as_mut() else { continue };
            let Kind::Joined(held) = member.kind else { continue };
            let Some(epoll) = self.descriptor().filter(|_| std::ptr::eq(held.socket, socket))
            else {
                continue;
            };
            member.disarm();
            let events = if member.disabled { ONE_SHOT | EDGE } else { member.events };
            (member.kind, member.hot) = (Kind::Candidate(held), false);
            control(epoll, libc::EPOLL_CTL_DEL, held.socket.bell(), 0, 0);
            if events & EXCLUSIVE == 0 {
                control(epoll, libc::EPOLL_CTL_MOD, member.fd, events, tag);
            } else {
                control(epoll, libc::EPOLL_CTL_DEL, member.fd, 0, 0);
                control(epoll, libc::EPOLL_CTL_ADD, member.fd, events, tag);
            }
            self.joined.fetch_sub(1, Ordering::AcqRel);
            inner.hot.retain(|&hot| hot as usize != index);
            self.leave_to_kernel(&mut inner, index);
        }
    }

    /// The last descriptor of a socket that may be in here is being closed.
    pub fn socket_gone(&self, socket: &'static Socket) {
        let Some(mut inner) = self.lock() else { return };
        // A set that others hold too keeps the bell: it may be the other process's.
        let epoll = self.descriptor().filter(|_| !self.inherited.load(Ordering::Acquire));
        while let Some(index) = inner.holder_of(socket) {
            self.remove(&mut inner, epoll, index);
        }
    }

    /// Somebody else has drained the bell of a socket that may be in here.
    pub fn socket_heard(&self, socket: &'static Socket) {
        if self.sleepers.load(Ordering::SeqCst) == 0 && !self.exposed.load(Ordering::Acquire) {
            // Cold members still count on their bell.
            if self.joined.load(Ordering::Acquire) as usize <= HOT {
                return;
            }
        }
        let Some(mut inner) = self.lock() else { return };
        if let Some(index) = inner.holder_of(socket) {
            inner.warm(index);
            self.tell_sleepers(&mut inner, index);
        }
    }

    /// The last descriptor of the set is gone: everything is forgotten, the set may be reused.
    pub fn close(&self) {
        let Some(mut inner) = self.lock() else { return };
        for index in 0..inner.slots.len() {
            self.remove(&mut inner, None, index);
        }
        (inner.twins, inner.latest) = (false, None);
        inner.hot.clear();
        let knock = self.knock.swap(0, Ordering::AcqRel) - 1;
        if knock >= 0 {
            table::release_own(knock);
        }
        self.plain.store(0, Ordering::Release);
        self.exposed.store(false, Ordering::Release);
        self.inherited.store(false, Ordering::Release);
    }

    /// This process is a forked child: nobody else is inside, and the set is shared.
    pub fn forked(&self) {
        self.inner.reset();
        self.sleepers.store(0, Ordering::Release);
        self.inherited.store(true, Ordering::Release);
        let Some(mut inner) = self.lock() else { return };
        for index in 0..inner.slots.len() {
            if let Some(member) = inner.slots[index].member.as_mut() {
                member.forked();
            }
            inner.warm(index);
        }
    }
}

impl Inner {
    fn take_slot(&mut self) -> Option<usize> {
        if let Some(index) = self.free.pop() {
            return Some(index as usize);
        }
        if self.slots.len() >= KNOCK {
            return None;
        }
        self.slots.push(Slot::default());
        Some(self.slots.len() - 1)
    }

    fn give_back(&mut self, index: usize) {
        let slot = &mut self.slots[index];
        slot.uses = slot.uses.wrapping_add(1);
        slot.member = None;
        if let Ok(index) = u32::try_from(index) {
            self.free.push(index);
        }
    }

    fn place(&mut self, index: usize, member: Member) {
        if let (Ok(fd), Ok(number)) = (usize::try_from(member.fd), u32::try_from(index + 1)) {
            if self.by_fd.len() <= fd {
                self.by_fd.resize(fd + 1, 0);
            }
            self.by_fd[fd] = number;
        }
        self.slots[index].member = Some(member);
    }

    fn forget(&mut self, fd: c_int, index: usize) {
        let entry = usize::try_from(fd).ok().and_then(|fd| self.by_fd.get_mut(fd));
        if let Some(entry) = entry.filter(|entry| **entry as usize == index + 1) {
            *entry = 0;
        }
        self.hot.retain(|&hot| hot as usize != index);
        self.give_back(index);
    }

    #[inline]
    fn member(&mut self, index: usize) -> Option<&mut Member> {
        self.slots.get_mut(index)?.member.as_mut()
    }

    fn is_use(&self, tag: Tag) -> bool {
        let slot = self.slots.get(tag.index);
        slot.is_some_and(|slot| Tag::generation(slot.uses) == tag.generation)
    }

    /// The member registered by `fd`, if the descriptor still leads to what was registered.
    fn find(&self, fd: c_int) -> Option<usize> {
        let now = table::get(fd);
        let fits = |member: &Member| {
            member.fd == fd
                && match (member.kind, now) {
                    (Kind::Candidate(held) | Kind::Joined(held), Some(socket)) => {
                        held.alive() && std::ptr::eq(held.socket, socket)
                    }
                    (Kind::Plain, _) | (Kind::Early | Kind::Nested(_), None) => true,
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
    fn early(&self, fd: c_int) -> Option<usize> {
        self.slots.iter().position(|slot| {
            let member = slot.member.as_ref();
            member.is_some_and(|member| member.fd == fd && matches!(member.kind, Kind::Early))
        })
    }

    /// A member that is this socket.
    fn holder_of(&self, socket: &'static Socket) -> Option<usize> {
        self.slots.iter().position(|slot| {
            let held = slot.member.as_ref().and_then(Member::held);
            held.is_some_and(|held| std::ptr::eq(held.socket, socket))
        })
    }

    /// The member at `index` is walked from now on.
    fn warm(&mut self, index: usize) {
        if let Some(member) = self.member(index)
            && member.joined().is_some()
        {
            member.vain = 0;
            if !member.hot {
                member.hot = true;
                member.disarm();
                self.hot.push(u32::try_from(index).unwrap_or(0));
            }
        }
    }

    fn warm_all(&mut self) {
        for index in 0..self.slots.len() {
            self.warm(index);
        }
    }

    /// Calls with something from memory after which the kernel comes first, so that neither side of
    /// a set that is always ready keeps the other from being heard.
    pub fn turn_of_the_kernel(&self) -> u32 {
        if self.slots.len() - self.free.len() > self.hot.len() { 2 } else { 8 }
    }

    /// A call begins: what it has reported is not reported to it again.
    pub fn number(&mut self, out: &mut Events) {
        self.calls += 1;
        out.call = self.calls;
    }

    /// The socket to spin for: the one reported last, or any that is walked.
    pub fn worth_waiting_for(&mut self) -> Option<Held> {
        let fits = |held: &Held| held.alive() && held.socket.joined();
        if self.hot.is_empty() {
            return None;
        }
        self.latest = self.latest.filter(fits).or_else(|| {
            let mut hot = self.hot.iter();
            hot.find_map(|&index| self.slots[index as usize].member.as_ref()?.held().filter(fits))
        });
        self.latest
    }
}

/// `epoll_ctl` of the kernel.
pub fn control(epoll: c_int, op: c_int, fd: c_int, events: u32, data: u64) -> c_int {
    let mut event = epoll_event { events, u64: data };
    // SAFETY: the kernel reads one event.
    unsafe { kernel::epoll_ctl(epoll, op, fd, &raw mut event) }
}

/// Sockets that were registered before they were connected.
pub static EARLY: AtomicU32 = AtomicU32::new(0);

/// Whether `fd` is a TCP socket that does not listen: it may be connected later.
fn may_connect(fd: c_int) -> bool {
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
