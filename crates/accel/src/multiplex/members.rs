//! The members of one epoll set: look-up by descriptor and by data. Which of them are counted,
//! active and watched is in `activity`.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use libc::c_int;

use super::bits::{ALWAYS, ONE_SHOT, PRIVATE};
use super::member::Member;
use super::wait_socket::WaitSocket;

/// Stands for members whose data are not unique.
pub const AMBIGUOUS: u32 = u32::MAX;

/// Most removed registrations whose wake-ups are remembered.
const RETIRED_MAX: usize = 64;

/// Hashes integers: one multiplication, because both keys are chosen by the program itself.
#[derive(Default)]
pub struct IntHasher(u64);

impl Hasher for IntHasher {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_i32(&mut self, value: i32) {
        self.write_u64(u64::from(value.cast_unsigned()));
    }

    fn write_u64(&mut self, value: u64) {
        let mixed = (self.0 ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ mixed >> 32;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

type IntMap<K, V> = HashMap<K, V, BuildHasherDefault<IntHasher>>;

/// The members of one set.
pub struct Members<S> {
    pub(super) slots: Vec<Option<Member<S>>>,
    free: Vec<u32>,
    by_fd: IntMap<c_int, u32>,
    /// Member and count of members with these data.
    pub(super) by_data: IntMap<u64, (u32, u32)>,
    pub(super) watched: Vec<u32>,
    /// Count of orphans among the members.
    orphans: u32,
    /// Count of members with a socket.
    sockets: usize,
    /// Members whose kernel registration must be brought up to date.
    pub(super) outdated: Vec<u32>,
    pub(super) active: usize,
    /// Members that were active when a thread began to sleep.
    pub(super) rested: Vec<u32>,
    /// Data of registrations that were removed while they were to wake a thread: it may report that
    /// later.
    retired: Vec<u64>,
    /// Where the next pass begins, so that each ready member is reported in turn.
    pub(super) next: usize,
    pub(super) calls: u64,
    pub(super) last_reported: u32,
}

impl<S> Default for Members<S> {
    fn default() -> Members<S> {
        Members {
            slots: Vec::new(),
            free: Vec::new(),
            by_fd: IntMap::default(),
            by_data: IntMap::default(),
            watched: Vec::new(),
            orphans: 0,
            sockets: 0,
            outdated: Vec::new(),
            retired: Vec::new(),
            active: 0,
            rested: Vec::new(),
            next: 0,
            calls: 0,
            last_reported: 0,
        }
    }
}

/// Registration.
impl<S: WaitSocket> Members<S> {
    #[inline]
    pub(super) fn get(&mut self, index: u32) -> Option<&mut Member<S>> {
        self.slots.get_mut(index as usize)?.as_mut()
    }

    /// The number of the member registered by `fd`.
    pub(super) fn index_of(&self, fd: c_int) -> Option<u32> {
        self.by_fd.get(&fd).copied()
    }

    /// Adds a registration. One that `fd` still has is outdated: its descriptor was closed without
    /// this library.
    pub fn insert(&mut self, member: Member<S>, may_activate: bool) {
        self.remove(member.fd);
        let (fd, data) = (member.fd, member.data);
        self.sockets += usize::from(member.socket.is_some());
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            (self.slots.len() - 1) as u32
        });
        self.slots[index as usize] = Some(member);
        self.by_fd.insert(fd, index);
        self.index_data(data, index);
        self.adjust(index, may_activate);
    }

    /// The kernel has accepted new events and data for `fd`.
    pub fn modify(&mut self, fd: c_int, events: u32, data: u64, may_activate: bool) {
        let Some(index) = self.index_of(fd) else { return };
        let Some(member) = self.get(index) else { return };
        let (before, was_waking) = (member.data, member.is_waking);
        member.modify(events, data);
        if before != data {
            self.retire(before, was_waking);
            self.forget_data(before, index);
            self.index_data(data, index);
        }
        self.adjust(index, may_activate);
    }

    /// `fd`, which may have been registered before, is connected now and has a socket.
    pub fn bind(&mut self, fd: c_int, socket: S) {
        let Some(index) = self.index_of(fd) else { return };
        if self.get(index).is_none_or(|member| member.socket == Some(socket)) {
            return;
        }
        self.unwatch(index);
        if let Some(member) = self.get(index) {
            member.uncount();
            let had_socket = member.socket.replace(socket).is_some();
            member.must_report = true;
            self.sockets += usize::from(!had_socket);
        }
        self.adjust(index, false);
    }

    /// Removes the registration of `fd`; false if there is none.
    pub fn remove(&mut self, fd: c_int) -> bool {
        let index = self.by_fd.remove(&fd);
        index.is_some_and(|index| self.drop_slot(index))
    }

    /// `fd` is closed, but another descriptor keeps its socket open, and with it the registration.
    pub fn keep_as_orphan(&mut self, fd: c_int) {
        let Some(index) = self.by_fd.remove(&fd) else { return };
        if let Some(member) = self.get(index) {
            member.is_orphan = true;
            self.orphans += 1;
            self.adjust(index, false);
        }
    }

    /// Whether the socket of `fd` is open by another descriptor.
    pub fn is_kept_open(&mut self, fd: c_int) -> bool {
        let socket = self.index_of(fd).and_then(|index| self.get(index)?.socket);
        socket.is_some_and(|socket| socket.is_open_without(fd))
    }

    /// `fd` is being closed: if another process holds the socket, what is counted stays counted.
    pub fn leave_counted(&mut self, fd: c_int) {
        if let Some(index) = self.index_of(fd)
            && let Some(member) = self.get(index).filter(|member| member.wants_input())
            && member.socket.is_some_and(|socket| socket.is_held_elsewhere())
        {
            self.unwatch(index);
            if let Some(member) = self.get(index) {
                member.count();
                member.is_counted = false;
            }
        }
    }

    /// Another process has registered `fd` with these events and data, or the kernel has disabled a
    /// one-shot registration.
    pub fn follow(&mut self, fd: c_int, events: u32, data: u64) {
        let Some(member) = self.index_of(fd).and_then(|index| self.get(index)) else { return };
        let is_same = member.registered & !ALWAYS == events && member.data == data;
        let is_disabled = events & !PRIVATE == 0 && member.events & ONE_SHOT != 0;
        if !is_same && !is_disabled {
            self.modify(fd, events, data, false);
        }
    }

    /// Removes what remains of closed descriptors, if the last one of the socket is closed too;
    /// returns how many.
    pub fn remove_orphans(&mut self) -> u32 {
        let before = self.orphans;
        for index in 0..self.slots.len() as u32 {
            let is_gone = |member: &mut Member<S>| {
                member.is_orphan && !member.socket.is_some_and(|socket| socket.is_open_without(-1))
            };
            if self.orphans > 0 && self.get(index).is_some_and(is_gone) {
                self.drop_slot(index);
            }
        }
        before - self.orphans
    }

    /// Forgets everything; what is counted stays counted. Returns the count of orphans.
    pub fn clear(&mut self) -> u32 {
        std::mem::take(self).orphans
    }

    fn drop_slot(&mut self, index: u32) -> bool {
        self.unwatch(index);
        let Some(mut member) = self.slots[index as usize].take() else { return false };
        member.uncount();
        self.retire(member.data, member.is_waking);
        self.orphans -= u32::from(member.is_orphan);
        self.sockets -= usize::from(member.socket.is_some());
        self.forget_data(member.data, index);
        self.outdated.retain(|&other| other != index);
        self.free.push(index);
        true
    }

    fn retire(&mut self, data: u64, was_waking: bool) {
        if was_waking {
            self.retired.truncate(RETIRED_MAX - 1);
            self.retired.insert(0, data);
        }
    }

    /// Whether an event with these data, which no member has, may come from a removed member that
    /// was to wake a thread.
    pub(super) fn is_retired(&self, data: u64) -> bool {
        self.retired.contains(&data)
    }

    /// The kernel has accepted a registration with these data, which is no member.
    pub fn note_other(&mut self, data: u64) {
        self.retired.retain(|&retired| retired != data);
    }

    fn index_data(&mut self, data: u64, index: u32) {
        let entry = self.by_data.entry(data).or_insert((index, 0));
        entry.1 += 1;
        if entry.1 > 1 {
            entry.0 = AMBIGUOUS;
        }
    }

    fn forget_data(&mut self, data: u64, index: u32) {
        if let Some(entry) = self.by_data.get_mut(&data) {
            entry.1 -= 1;
            if entry.0 == index {
                entry.0 = AMBIGUOUS;
            }
            if entry.1 == 0 {
                self.by_data.remove(&data);
            }
        }
    }

    /// Count of members with a socket.
    #[inline]
    pub fn sockets(&self) -> usize {
        self.sockets
    }

    /// Calls `visit` with each descriptor that has a registration.
    pub fn for_each_fd(&self, visit: impl FnMut(c_int)) {
        self.by_fd.keys().copied().for_each(visit);
    }

    /// Whether kernel registrations must be brought up to date.
    #[inline]
    pub fn has_outdated(&self) -> bool {
        !self.outdated.is_empty()
    }

    /// A member whose kernel registration must be brought up to date.
    pub fn next_outdated(&mut self) -> Option<&mut Member<S>> {
        while let Some(index) = self.outdated.pop() {
            let is_outdated = |member: &mut Member<S>| {
                !member.is_orphan && member.registered != member.wanted_registration()
            };
            if self.get(index).is_some_and(is_outdated) {
                return self.get(index);
            }
        }
        None
    }
}
