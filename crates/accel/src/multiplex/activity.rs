//! Which members of an epoll set are counted, active and watched, and what a wait reports of them.

use libc::c_int;

use super::bits::{INPUT_EVENTS, WRITABLE};
use super::events::{Events, Merge, Verdict};
use super::member::Member;
use super::members::{AMBIGUOUS, Members};
use super::wait_socket::WaitSocket;

/// Most members that are active at a time.
pub const ACTIVE_MAX: usize = 64;

/// Calls of the set after which an active member that was not reported makes room for another one.
pub const IDLE_CALLS: u64 = 32;

/// Calls of the set within which a member counts as used lately.
const USED_CALLS: u64 = 2 * ACTIVE_MAX as u64;

/// Whether a thread may sleep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SleepDecision {
    /// Memory has something to report.
    Ready,
    /// Every member is counted.
    Sleep,
    /// As `Sleep`, but arrivals in memory must be checked again soon: see
    /// [`Member::has_reported_bytes`].
    SleepBriefly,
}

/// What a pass over the watched members has found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Pass {
    /// The kernel must be asked for events of the same members.
    pub needs_kernel: bool,
    /// The kernel has bytes for an active member.
    pub kernel_has_bytes: bool,
}

/// Counted, active and watched members.
impl<S: WaitSocket> Members<S> {
    /// After a change of registration: decides whether the member is active, counted, or neither.
    pub(super) fn adjust(&mut self, index: u32, may_activate: bool) {
        let Some(member) = self.get(index) else { return };
        if !member.wants_input() {
            self.unwatch(index);
            if let Some(member) = self.get(index) {
                member.uncount();
            }
        } else if !member.may_be_active() || !(may_activate || member.is_active()) {
            self.rest(index);
        } else if !member.is_active() {
            self.activate(index);
        }
    }

    fn watch(&mut self, index: u32) {
        let Some(member) = self.get(index) else { return };
        if !member.is_watched {
            member.is_watched = true;
            self.watched.push(index);
        }
    }

    /// Ends the watch of a member, which must be counted or removed then.
    pub(super) fn unwatch(&mut self, index: u32) {
        let Some(member) = self.get(index) else { return };
        let (was_watched, was_active) = (member.is_watched, member.is_active());
        member.is_watched = false;
        if was_watched {
            self.active -= usize::from(was_active);
            self.watched.retain(|&other| other != index);
        }
    }

    /// Counts the member; it stays watched while bytes are in memory.
    fn rest(&mut self, index: u32) {
        let Some(member) = self.get(index) else { return };
        let was_active = member.is_active();
        let has_bytes = member.count();
        self.active -= usize::from(was_active);
        if has_bytes {
            self.watch(index);
        } else {
            self.unwatch(index);
        }
    }

    /// Makes a member active that may be. If there is no room, the one that has not been reported
    /// for the longest time is counted again, if that is long ago.
    fn activate(&mut self, index: u32) {
        if self.active >= ACTIVE_MAX {
            let calls = self.calls;
            let idle = self.watched.iter().filter_map(|&index| {
                let member = self.slots[index as usize].as_ref()?;
                let is_idle = member.is_active() && calls - member.used_at > IDLE_CALLS;
                is_idle.then_some((member.used_at, index))
            });
            match idle.min() {
                Some((_, idle)) => self.rest(idle),
                None => return self.rest(index),
            }
        }
        let calls = self.calls;
        if let Some(member) = self.get(index) {
            member.uncount();
            member.used_at = calls;
        }
        self.watch(index);
        self.active += 1;
    }

    /// Count of active members.
    #[inline]
    pub fn active(&self) -> usize {
        self.active
    }

    /// Whether every member is active: the kernel has little to report then.
    pub fn is_all_active(&self) -> bool {
        self.active == self.sockets()
    }

    /// Whether members are watched.
    #[inline]
    pub fn has_watched(&self) -> bool {
        !self.watched.is_empty()
    }

    /// Count of watched members.
    #[inline]
    pub fn watched(&self) -> usize {
        self.watched.len()
    }

    /// Makes the members active that were when a thread began to sleep, and were used lately.
    pub fn restore_active(&mut self) {
        let mut rested = std::mem::take(&mut self.rested);
        rested.drain(..).for_each(|index| self.activate_if_used(index));
        self.rested = rested;
    }

    /// Makes members active that were used lately, as far as there is room.
    pub fn activate_used(&mut self) {
        for index in 0..self.slots.len() as u32 {
            if self.active >= ACTIVE_MAX {
                break;
            }
            self.activate_if_used(index);
        }
    }

    fn activate_if_used(&mut self, index: u32) {
        let calls = self.calls;
        let is_used = |member: &mut Member<S>| {
            member.is_counted && member.may_be_active() && calls - member.used_at <= USED_CALLS
        };
        if self.get(index).is_some_and(is_used) {
            self.activate(index);
        }
    }

    /// Counts every active member.
    pub fn rest_all(&mut self) {
        for position in (0..self.watched.len()).rev() {
            let index = self.watched[position];
            if self.get(index).is_some_and(|member| member.is_active()) {
                self.rest(index);
            }
        }
    }

    /// Ends what is counted, before an exec or the end of the process.
    pub fn uncount_all(&mut self) {
        self.slots.iter_mut().flatten().for_each(Member::uncount);
        self.forget_counts();
    }

    /// In the child of a fork, whose sockets do not rely on the kernel for it yet.
    pub fn forget_counts(&mut self) {
        for member in self.slots.iter_mut().flatten() {
            (member.is_counted, member.is_watched) = (false, false);
        }
        self.watched.clear();
        self.active = 0;
    }

    /// Counts every member that is interested in input.
    pub fn count_all(&mut self) {
        for index in 0..self.slots.len() as u32 {
            if self.get(index).is_some_and(|member| member.wants_input()) {
                self.rest(index);
            }
        }
    }
}

/// Waiting.
impl<S: WaitSocket> Members<S> {
    /// Begins a call.
    pub fn begin_call(&mut self) {
        self.calls += 1;
    }

    /// Reports what memory has, in turn.
    #[inline]
    pub fn collect(&mut self, out: &mut Events, may_activate: bool) -> Pass {
        out.begin_pass();
        let (count, first) = (self.watched.len(), self.next);
        let (mut pass, mut is_stale) = (Pass::default(), false);
        for step in 0..count {
            let position = (first + step) % count;
            let index = self.watched[position];
            let calls = self.calls;
            let Some(member) = self.slots[index as usize].as_mut() else { continue };
            if let Some(report) = member.pending() {
                let needs_kernel = member.needs_kernel();
                if !out.push(report.events, member.data) {
                    break;
                }
                pass.needs_kernel |= needs_kernel;
                member.reported(report, calls);
                if member.registered != member.wanted_registration() {
                    self.outdated.push(index);
                }
                is_stale |= member.is_counted;
                (self.last_reported, self.next) = (index, position + 1);
            } else if member.is_counted {
                is_stale = true;
            } else {
                pass.kernel_has_bytes |=
                    member.socket.is_some_and(|socket| socket.has_kernel_bytes());
            }
        }
        if is_stale {
            self.sort_out(may_activate);
        }
        pass
    }

    /// Ends the watch of counted members whose bytes in memory were received; those that were
    /// reported in this call become active.
    fn sort_out(&mut self, may_activate: bool) {
        for position in (0..self.watched.len()).rev() {
            let index = self.watched[position];
            let calls = self.calls;
            let Some(member) = self.get(index).filter(|member| member.is_counted) else { continue };
            if may_activate && member.reported_at == calls && member.may_be_active() {
                self.activate(index);
            } else if !member.socket.is_some_and(|socket| socket.has_memory_bytes()) {
                self.unwatch(index);
            }
        }
    }

    /// Whether memory has something to report.
    pub fn is_pending(&self) -> bool {
        self.watched.iter().any(|&index| {
            self.slots[index as usize].as_ref().is_some_and(|member| member.pending().is_some())
        })
    }

    /// A member with something to report that the present call has not reported.
    fn unreported(&self) -> Option<u32> {
        self.watched.iter().copied().find(|&index| {
            self.slots[index as usize].as_ref().is_some_and(|member| {
                member.pending().is_some()
                    && (member.must_report || member.reported_at != self.calls)
            })
        })
    }

    /// Makes the kernel wake a thread that sleeps on the set, if memory has something to report
    /// that the present call has not reported: the registration of that member is extended by
    /// writability. [`Members::next_outdated`] tells the kernel. False if nothing was extended.
    pub fn request_wake_up(&mut self) -> bool {
        let Some(index) = self.unreported() else { return false };
        let Some(member) = self.get(index).filter(|member| !member.is_waking) else {
            return false;
        };
        member.is_waking = true;
        self.outdated.push(index);
        true
    }

    /// `fd` is about to be closed: ends what [`Members::request_wake_up`] began.
    pub fn cancel_wake_up(&mut self, fd: c_int) {
        if let Some(index) = self.index_of(fd)
            && let Some(member) = self.get(index)
        {
            member.is_waking = false;
            self.outdated.push(index);
        }
    }

    /// The kernel has reported for these data that there is something to receive. False: they may
    /// be those of several members.
    #[inline]
    pub fn note_kernel_event(&self, data: u64) -> bool {
        match self.by_data.get(&data) {
            Some(&(AMBIGUOUS, _)) => return false,
            Some(&(index, _)) => {
                let member = self.slots.get(index as usize).and_then(Option::as_ref);
                if let Some(socket) = member.and_then(|member| member.socket) {
                    socket.note_kernel_event();
                }
            }
            None => {}
        }
        true
    }

    /// The kernel has reported an event: decides what the program gets, and makes the member
    /// active.
    pub fn kernel_reported(&mut self, events: u32, data: u64, may_activate: bool) -> Verdict {
        let index = self.by_data.get(&data).map_or(AMBIGUOUS, |entry| entry.0);
        let calls = self.calls;
        let has_watched = self.has_watched();
        let is_retired = index == AMBIGUOUS && self.is_retired(data);
        let Some(member) = self.get(index) else {
            let events = if is_retired { events & !WRITABLE } else { events };
            let merge = if has_watched { Merge::IfReported } else { Merge::Never };
            return Verdict { events, merge };
        };
        if member.socket.is_none() {
            return Verdict { events, merge: Merge::Never };
        }
        // Memory may have reported it in this call although it is not watched any more: the peer
        // has taken the bytes back, and the kernel reports them. A one-shot member that was
        // reported is not reported again by another call.
        let merge = if member.is_disabled { Merge::Only } else { Merge::IfReported };
        let wanted = member.kernel_reported(events, calls);
        let verdict = Verdict { events: wanted, merge };
        let becomes_active = may_activate
            && member.is_counted
            && wanted & INPUT_EVENTS != 0
            && member.may_be_active();
        let is_outdated = member.registered != member.wanted_registration();
        if wanted & INPUT_EVENTS != 0 {
            self.last_reported = index;
        }
        if is_outdated {
            self.outdated.push(index);
        }
        if becomes_active {
            self.activate(index);
        }
        verdict
    }

    /// A thread is about to sleep: counts all members. `rested` gets the sockets that were active.
    /// If memory has something to report, they are active again.
    pub fn begin_sleep(&mut self, rested: &mut Vec<(S, c_int)>) -> SleepDecision {
        self.rested.clear();
        for position in (0..self.watched.len()).rev() {
            let index = self.watched[position];
            let Some(member) = self.get(index).filter(|member| member.is_active()) else {
                continue;
            };
            rested.extend(member.socket.map(|socket| (socket, member.fd)));
            self.rest(index);
            self.rested.push(index);
        }
        if self.is_pending() {
            let mut rested = std::mem::take(&mut self.rested);
            rested.drain(..).for_each(|index| self.activate(index));
            self.rested = rested;
            return SleepDecision::Ready;
        }
        let mut members = self.watched.iter().filter_map(|&i| self.slots[i as usize].as_ref());
        if members.any(Member::has_reported_bytes) {
            return SleepDecision::SleepBriefly;
        }
        SleepDecision::Sleep
    }

    /// The joined socket for which a spin is most likely to succeed: the one reported last, or any
    /// active one.
    pub fn spin_target(&mut self) -> Option<S> {
        if self.active == 0 {
            return None;
        }
        let last = self.last_reported;
        let target = |member: Option<&Member<S>>| {
            let socket = member.filter(|member| member.is_active())?.socket?;
            socket.is_joined().then_some(socket)
        };
        let known = self.slots.get(last as usize).and_then(|slot| target(slot.as_ref()));
        known.or_else(|| {
            self.watched.iter().find_map(|&index| target(self.slots[index as usize].as_ref()))
        })
    }
}

#[cfg(test)]
mod tests;
