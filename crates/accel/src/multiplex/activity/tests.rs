//! The members of a set against simulated sockets and a simulated kernel.

use std::cell::Cell;

use libc::epoll_event;

use super::*;
use crate::multiplex::bits::{EDGE, EXCLUSIVE, ONE_SHOT, WRITABLE};

const IN: u32 = libc::EPOLLIN as u32;

#[derive(Clone, Copy, Default)]
struct State {
    joined: bool,
    memory: u32,
    arrivals: u64,
    kernel: u32,
    /// An edge that the kernel has not reported.
    kernel_edge: bool,
    users: i32,
    /// After so many further looks at memory the peer takes its bytes back, if somebody relies on
    /// the kernel.
    take_back_after: Option<u32>,
}

/// A socket whose peer follows the protocol.
#[derive(Clone, Copy)]
struct Fake(&'static Cell<State>);

impl Fake {
    fn new() -> Fake {
        Fake(Box::leak(Box::new(Cell::new(State { joined: true, ..State::default() }))))
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.0.get();
        change(&mut state);
        self.0.set(state);
    }

    /// The peer sends a byte: through the kernel if somebody relies on it, or if bytes are there.
    fn send(&self) {
        self.change(|state| {
            if state.users > 0 || state.kernel > 0 || !state.joined {
                state.kernel += 1;
                state.kernel_edge = true;
            } else {
                state.memory += 1;
                state.arrivals += 1;
            }
        });
    }

    fn receive_all(&self) {
        self.change(|state| (state.memory, state.kernel) = (0, 0));
    }

    fn cancel_take_back(&self) {
        self.change(|state| state.take_back_after = None);
    }

    fn users(&self) -> i32 {
        self.0.get().users
    }
}

impl PartialEq for Fake {
    fn eq(&self, other: &Fake) -> bool {
        std::ptr::eq(self.0, other.0)
    }
}

impl WaitSocket for Fake {
    fn is_open_without(&self, _: c_int) -> bool {
        false
    }

    fn is_held_elsewhere(&self) -> bool {
        false
    }

    fn is_joined(&self) -> bool {
        self.0.get().joined
    }

    fn has_memory_bytes(&self) -> bool {
        let has_bytes = self.0.get().memory > 0;
        self.change(|state| match state.take_back_after {
            Some(0) => {
                state.take_back_after = None;
                if state.users > 0 && state.memory > 0 {
                    (state.kernel, state.memory) = (state.kernel + state.memory, 0);
                    state.kernel_edge = true;
                }
            }
            Some(looks) => state.take_back_after = Some(looks - 1),
            None => {}
        });
        has_bytes
    }

    fn memory_arrivals(&self) -> u64 {
        self.0.get().arrivals
    }

    fn has_kernel_bytes(&self) -> bool {
        self.0.get().kernel > 0
    }

    fn is_writable(&self, _: c_int) -> bool {
        true
    }

    fn note_kernel_event(&self) {}

    fn rely_on_kernel(&self) {
        self.change(|state| state.users += 1);
    }

    fn end_reliance(&self) {
        self.change(|state| state.users -= 1);
    }
}

/// A set, its sockets, and the kernel's registrations.
struct Set {
    members: Members<Fake>,
    sockets: Vec<Fake>,
    /// Events of the kernel's registration, by socket; none if it is not registered.
    kernel: Vec<Option<u32>>,
    sleepers: u32,
}

impl Set {
    fn new(sockets: usize) -> Set {
        Set {
            members: Members::default(),
            sockets: (0..sockets).map(|_| Fake::new()).collect(),
            kernel: vec![None; sockets],
            sleepers: 0,
        }
    }

    fn add(&mut self, index: usize, events: u32) {
        let member = Member::new(index as c_int, events, index as u64, Some(self.sockets[index]));
        self.members.insert(member, self.sleepers == 0);
        self.register(index, events);
    }

    fn modify(&mut self, index: usize, events: u32) {
        let may_activate = self.sleepers == 0;
        self.members.modify(index as c_int, events, index as u64, may_activate);
        self.register(index, events);
    }

    fn remove(&mut self, index: usize) {
        assert!(self.members.remove(index as c_int));
        self.kernel[index] = None;
    }

    /// The kernel's ADD and MOD report what is ready at that time.
    fn register(&mut self, index: usize, events: u32) {
        self.kernel[index] = Some(events);
        self.sockets[index].change(|state| state.kernel_edge = true);
    }

    fn settle(&mut self) {
        if self.sleepers > 0 {
            self.members.request_wake_up();
        }
        while let Some(member) = self.members.next_outdated() {
            member.registered = member.wanted_registration();
            let (index, registered) = (member.fd as usize, member.registered);
            self.register(index, registered);
        }
    }

    /// What the kernel's wait reports now; the simulated sockets are always writable.
    fn kernel_events(&mut self) -> Vec<(u32, u64)> {
        let mut found = Vec::new();
        for (index, socket) in self.sockets.iter().enumerate() {
            let Some(events) = self.kernel[index] else { continue };
            let state = socket.0.get();
            let ready = if state.kernel > 0 { IN } else { 0 } | WRITABLE;
            let reported = events & ready;
            if reported == 0 || events & EDGE != 0 && !state.kernel_edge {
                continue;
            }
            socket.change(|state| state.kernel_edge = false);
            if events & ONE_SHOT != 0 {
                self.kernel[index] = Some(ONE_SHOT | EDGE);
            }
            found.push((reported, index as u64));
        }
        found
    }

    /// A wait as in `epoll_wait`; returns the data of the members that it reports.
    fn wait(&mut self) -> Vec<u64> {
        let mut space = vec![epoll_event { events: 0, u64: 0 }; 2 * self.sockets.len() + 1];
        // SAFETY: the array outlives the events.
        let mut out = unsafe { Events::new(space.as_mut_ptr(), space.len()) };
        let may_activate = self.sleepers == 0;
        self.members.begin_call();
        self.members.collect(&mut out, may_activate);
        self.settle();
        let reported = self.kernel_events();
        let (first, _) = out.rest();
        for (step, &(events, data)) in reported.iter().enumerate() {
            // SAFETY: the array has room for twice as many events as there are sockets.
            unsafe { first.add(step).write_unaligned(epoll_event { events, u64: data }) };
        }
        let members = &mut self.members;
        out.accept(reported.len(), |events, data| {
            members.kernel_reported(events, data, may_activate)
        });
        self.settle();
        space[..out.len()].iter().map(|event| event.u64).collect()
    }

    /// Before a sleep, every member is counted, and no bytes are in memory of which a sleeping
    /// thread would have to learn.
    fn check_sleep(&mut self) {
        let mut rested = Vec::new();
        let decision = self.members.begin_sleep(&mut rested);
        assert_eq!(decision == SleepDecision::Ready, self.members.is_pending());
        if decision == SleepDecision::Ready {
            return;
        }
        assert_eq!(self.members.active(), 0);
        for index in 0..self.sockets.len() {
            let socket = self.sockets[index];
            let events = self.kernel[index].map(|_| self.events_of(index));
            let wants_input = events.is_some_and(|events| events & IN != 0);
            assert_eq!(socket.users(), i32::from(wants_input), "reliance of socket {index}");
            let has_bytes = socket.has_memory_bytes() && wants_input;
            let is_edge = events.is_some_and(|events| events & (EDGE | ONE_SHOT) != 0);
            assert!(!has_bytes || is_edge, "a level-triggered member has bytes in memory");
        }
    }

    fn events_of(&mut self, index: usize) -> u32 {
        let slot = self.members.index_of(index as c_int).unwrap();
        self.members.get(slot).unwrap().events
    }
}

#[test]
fn joined_member_is_active_until_a_thread_sleeps_and_again_after_an_event() {
    let mut set = Set::new(1);
    set.add(0, IN);
    assert_eq!((set.sockets[0].users(), set.members.active()), (0, 1));
    set.check_sleep();
    assert_eq!(set.sockets[0].users(), 1);
    set.sockets[0].send();
    assert_eq!(set.sockets[0].0.get().kernel, 1, "a sleeper is served by the kernel");
    assert_eq!(set.wait(), [0]);
    assert_eq!((set.sockets[0].users(), set.members.active()), (0, 1));
    set.sockets[0].receive_all();
    set.sockets[0].send();
    assert_eq!(set.sockets[0].0.get().memory, 1, "a thread that is awake is served by memory");
    assert_eq!((set.wait(), set.wait()), (vec![0], vec![0]));
    set.remove(0);
    assert_eq!((set.sockets[0].users(), set.members.active()), (0, 0));
}

/// The next message may come on another socket than the one that ended the sleep.
#[test]
fn members_that_were_active_before_a_sleep_are_active_after_it() {
    let mut set = Set::new(4);
    (0..4).for_each(|index| set.add(index, IN));
    set.check_sleep();
    set.sockets[0].send();
    set.members.restore_active();
    assert_eq!(set.wait(), [0]);
    assert_eq!(set.members.active(), 4);
    set.sockets[1].send();
    assert_eq!(set.sockets[1].0.get().memory, 1);
}

#[test]
fn trial_makes_members_active_that_were_used_lately() {
    let mut set = Set::new(3);
    (0..3).for_each(|index| set.add(index, IN));
    (0..3).for_each(|_| {
        set.wait();
    });
    set.members.rest_all();
    for _ in 0..=USED_CALLS {
        set.members.begin_call();
    }
    // By the kernel, as long as no trial is made.
    set.sockets[1].send();
    let mut kernel_reported = |data| set.members.kernel_reported(IN, data, false).events;
    assert_eq!((kernel_reported(1), set.members.active()), (IN, 0));
    set.members.activate_used();
    assert_eq!(set.members.active(), 1);
    assert_eq!(set.sockets.iter().map(Fake::users).collect::<Vec<_>>(), [1, 0, 1]);
}

#[test]
fn one_shot_and_exclusive_members_stay_counted_and_one_shot_is_disarmed_by_memory() {
    let mut set = Set::new(2);
    set.sockets.iter().for_each(Fake::send);
    set.add(0, IN | ONE_SHOT);
    set.add(1, IN | EXCLUSIVE);
    assert_eq!((set.sockets[0].users(), set.sockets[1].users()), (1, 1));
    assert_eq!(set.wait().len(), 2);
    assert_eq!(set.kernel[0], Some(ONE_SHOT | EDGE));
    assert_eq!(set.wait(), [1]);
    set.modify(0, IN | ONE_SHOT);
    set.sockets[1].receive_all();
    assert_eq!((set.wait(), set.wait()), (vec![0], vec![]));
    assert_eq!((set.sockets[0].users(), set.sockets[1].users()), (1, 1));
}

#[test]
fn edge_is_reported_once_per_arrival_and_again_after_a_modification() {
    let mut set = Set::new(1);
    set.add(0, IN | EDGE);
    set.sockets[0].send();
    assert_eq!((set.wait(), set.wait()), (vec![0], vec![]));
    set.sockets[0].send();
    assert_eq!((set.wait(), set.wait()), (vec![0], vec![]));
    set.modify(0, IN | EDGE);
    assert_eq!((set.wait(), set.wait()), (vec![0], vec![]));
    let mut rested = Vec::new();
    assert_eq!(set.members.begin_sleep(&mut rested), SleepDecision::SleepBriefly);
    assert_eq!(rested.len(), 1);
}

#[test]
fn thread_that_sleeps_is_woken_for_bytes_in_memory_of_a_new_member() {
    let mut set = Set::new(1);
    set.sockets[0].send();
    set.sleepers = 1;
    set.add(0, IN);
    set.settle();
    assert_eq!(set.kernel[0], Some(IN | WRITABLE), "writability wakes the thread");
    assert_eq!(set.wait(), [0]);
    assert_eq!(set.kernel[0], Some(IN), "the program's own registration is back");
    set.sockets[0].receive_all();
    assert_eq!(set.wait(), []);
}

#[test]
fn wake_up_that_is_reported_after_its_member_was_removed_is_dropped() {
    let mut set = Set::new(2);
    set.sockets[0].send();
    set.sleepers = 1;
    set.add(0, IN);
    set.settle();
    let reported = set.kernel_events();
    assert_eq!(reported, [(WRITABLE, 0)]);
    set.remove(0);
    assert_eq!(set.members.kernel_reported(WRITABLE, 0, false).events, 0);
    assert_eq!(set.members.kernel_reported(IN | WRITABLE, 0, false).events, IN);
    set.members.note_other(0);
    assert_eq!(set.members.kernel_reported(WRITABLE, 0, false).events, WRITABLE);
}

#[test]
fn wake_up_of_a_registration_that_was_replaced_is_dropped() {
    let mut set = Set::new(1);
    set.add(0, IN | ONE_SHOT);
    assert_eq!(set.members.kernel_reported(WRITABLE, 0, false).events, 0);
    set.settle();
    set.sockets[0].send();
    assert_eq!((set.wait(), set.wait()), (vec![0], vec![]));
}

#[test]
fn member_that_is_long_idle_makes_room_for_a_busy_one() {
    let mut set = Set::new(ACTIVE_MAX + 1);
    (0..=ACTIVE_MAX).for_each(|index| set.add(index, IN));
    assert_eq!((set.members.active(), set.sockets[ACTIVE_MAX].users()), (ACTIVE_MAX, 1));
    let busy = set.sockets[ACTIVE_MAX];
    for _ in 0..=IDLE_CALLS {
        busy.send();
        assert_eq!(set.wait(), [ACTIVE_MAX as u64]);
        busy.receive_all();
    }
    assert_eq!((set.members.active(), busy.users()), (ACTIVE_MAX, 0));
    let counted = set.sockets.iter().filter(|socket| socket.users() == 1).count();
    assert_eq!(counted, 1);
}

#[test]
fn orphans_are_counted_until_they_are_removed() {
    let mut set = Set::new(2);
    set.add(0, IN);
    set.add(1, IN);
    set.members.keep_as_orphan(0);
    assert_eq!((set.sockets[0].users(), set.members.active()), (1, 1));
    set.sockets[0].send();
    assert_eq!(set.wait(), [0]);
    assert_eq!(set.sockets[0].users(), 1, "an event does not make an orphan active");
    assert_eq!(set.members.remove_orphans(), 1);
    assert_eq!((set.sockets[0].users(), set.members.sockets()), (0, 1));
}

#[test]
fn members_with_equal_data_are_left_to_the_kernel() {
    let mut set = Set::new(2);
    for index in 0..2 {
        let member = Member::new(index, IN, 7, Some(set.sockets[index as usize]));
        set.members.insert(member, false);
    }
    let verdict = set.members.kernel_reported(IN, 7, true);
    assert_eq!((verdict.events, set.members.active()), (IN, 0));
    assert!(set.members.remove(0));
    assert_eq!(set.members.kernel_reported(IN, 7, true).events, IN);
    assert!(set.members.remove(1));
    assert!(set.sockets.iter().all(|socket| socket.users() == 0));
}

/// A small generator of random numbers.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) as usize % limit
    }
}

/// The peer of a counted member takes its bytes back after they were reported: the kernel reports
/// them too, before the program has seen the first report.
#[test]
fn member_is_reported_once_by_a_call_if_its_bytes_are_taken_back_meanwhile() {
    for kind in [IN, IN | EDGE, IN | ONE_SHOT, IN | EXCLUSIVE, IN | WRITABLE] {
        for looks in 0..4 {
            let mut set = Set::new(1);
            set.sockets[0].send();
            set.sleepers = 1;
            set.add(0, kind);
            set.sleepers = 0;
            set.sockets[0].change(|state| state.take_back_after = Some(looks));
            assert_eq!(set.wait(), [0], "{kind:x}, taken back after {looks} looks");
        }
    }
}

/// Two threads wait: memory reports a one-shot member to one of them while the other one has an
/// event of the kernel in its hands.
#[test]
fn one_shot_member_that_memory_has_reported_is_not_reported_by_another_call() {
    let mut set = Set::new(1);
    set.sockets[0].send();
    set.add(0, IN | ONE_SHOT);
    assert_eq!(set.wait(), [0]);
    let verdict = set.members.kernel_reported(IN, 0, false);
    assert!(verdict.events == 0 || verdict.merge == Merge::Only, "{verdict:?}");
}

/// Any order of registrations, arrivals, receptions, waits and sleeps: nothing that has arrived
/// stays unreported, and each reliance ends.
#[test]
fn any_order_of_events_reports_what_has_arrived() {
    const KINDS: [u32; 6] = [IN, IN | EDGE, IN | ONE_SHOT, IN | EXCLUSIVE, WRITABLE, IN | WRITABLE];
    let mut random = Random(0x5eed_1234_5678_9abc);
    for _ in 0..300 {
        let mut set = Set::new(4);
        let mut unreported = [false; 4];
        for _ in 0..200 {
            let index = random.below(4);
            let socket = set.sockets[index];
            let kind = KINDS[random.below(KINDS.len())];
            match (random.below(8), set.kernel[index].is_some()) {
                (0, false) => {
                    set.add(index, kind);
                    unreported[index] = socket.0.get().memory + socket.0.get().kernel > 0;
                }
                (0, true) if kind & EXCLUSIVE == 0 && set.events_of(index) & EXCLUSIVE == 0 => {
                    set.modify(index, kind);
                    unreported[index] = socket.0.get().memory + socket.0.get().kernel > 0;
                }
                (1, true) => set.remove(index),
                (2 | 3, _) => {
                    socket.send();
                    unreported[index] = true;
                }
                (4, _) if random.below(4) == 0 => {
                    let looks = random.below(6) as u32;
                    socket.change(|state| state.take_back_after = Some(looks));
                }
                (4, _) => {
                    socket.receive_all();
                    unreported[index] = false;
                }
                (5, _) => {
                    set.sockets.iter().for_each(Fake::cancel_take_back);
                    set.check_sleep();
                }
                (6 | 7, _) => check_wait(&mut set, &mut unreported),
                _ => {}
            }
        }
        for index in 0..4 {
            if set.kernel[index].is_some() {
                set.remove(index);
            }
        }
        assert!(set.sockets.iter().all(|socket| socket.users() == 0));
        assert_eq!((set.members.active(), set.members.has_watched()), (0, false));
    }
}

/// A wait reports each member with bytes: if it is edge-triggered or one-shot, once.
fn check_wait(set: &mut Set, unreported: &mut [bool; 4]) {
    let registered: Vec<u32> =
        (0..4).map(|index| set.kernel[index].map_or(0, |_| set.events_of(index))).collect();
    let disabled: Vec<bool> =
        set.kernel.iter().map(|events| *events == Some(ONE_SHOT | EDGE)).collect();
    let reported = set.wait();
    for index in 0..4 {
        let state = set.sockets[index].0.get();
        let events = registered[index];
        let has_bytes = state.memory + state.kernel > 0 && events & IN != 0;
        let is_once = events & (EDGE | ONE_SHOT) != 0;
        let expected = has_bytes && !disabled[index] && (!is_once || unreported[index]);
        let count = reported.iter().filter(|&&data| data == index as u64).count();
        assert!(count <= 1, "a member is reported once per call");
        assert!(count == 1 || !expected, "socket {index} with {events:x} is not reported");
        if count == 1 && has_bytes {
            unreported[index] = false;
        }
    }
}
