//! The registrations of an epoll set of the accelerator as a state machine, against simulated
//! sockets and a simulated kernel, in any order of operations.

use std::cell::Cell;

use libc::{c_int, epoll_event};

#[path = "../../crates/accel/src/multiplex/activity.rs"]
#[allow(dead_code)]
mod activity;
#[path = "../../crates/accel/src/multiplex/bits.rs"]
#[allow(dead_code)]
mod bits;
#[path = "../../crates/accel/src/multiplex/events.rs"]
#[allow(dead_code)]
mod events;
#[path = "../../crates/accel/src/multiplex/member.rs"]
#[allow(dead_code)]
mod member;
#[path = "../../crates/accel/src/multiplex/members.rs"]
#[allow(dead_code)]
mod members;
#[path = "../../crates/accel/src/multiplex/wait_socket.rs"]
mod wait_socket;

use activity::{ACTIVE_MAX, SleepDecision};
use bits::{EDGE, EXCLUSIVE, INPUT_EVENTS, ONE_SHOT, WRITABLE};
use events::Events;
use member::Member;
use members::{AMBIGUOUS, Members};
use wait_socket::WaitSocket;

const IN: u32 = libc::EPOLLIN as u32;

/// Sockets, each with a descriptor of its own number. More than can be active at a time.
const SOCKETS: usize = ACTIVE_MAX + 8;

/// A registration may have one of so many data, so that some are equal.
const DATA: u64 = 80;

/// Most events of one wait: a kernel event and a memory event of each member.
const EVENTS: usize = 2 * SOCKETS;

#[derive(Clone, Copy)]
struct State {
    is_joined: bool,
    memory: u32,
    arrivals: u64,
    kernel: u32,
    /// An edge that the kernel has not reported.
    kernel_edge: bool,
    /// Members that rely on the kernel.
    users: i32,
}

const NEW: State =
    State { is_joined: true, memory: 0, arrivals: 0, kernel: 0, kernel_edge: false, users: 0 };

thread_local! {
    static STATES: [Cell<State>; SOCKETS] = const { [const { Cell::new(NEW) }; SOCKETS] };
}

/// A socket whose peer follows the protocol.
#[derive(Clone, Copy, PartialEq)]
struct Fake(usize);

impl Fake {
    fn state(self) -> State {
        STATES.with(|states| states[self.0].get())
    }

    fn change(self, change: impl FnOnce(&mut State)) {
        let mut state = self.state();
        change(&mut state);
        STATES.with(|states| states[self.0].set(state));
    }

    /// The peer sends: through the kernel if somebody relies on it, or if bytes are there.
    fn send(self) {
        self.change(|state| {
            if state.users > 0 || state.kernel > 0 || !state.is_joined {
                state.kernel += 1;
                state.kernel_edge = true;
            } else {
                state.memory += 1;
                state.arrivals += 1;
            }
        });
    }

    /// Both directions return to the kernel, with the bytes that are in memory; or to memory.
    fn join(self, is_joined: bool) {
        self.change(|state| {
            if !is_joined && state.memory > 0 {
                state.kernel += state.memory;
                (state.memory, state.kernel_edge) = (0, true);
            }
            state.is_joined = is_joined;
        });
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
        self.state().is_joined
    }

    fn has_memory_bytes(&self) -> bool {
        self.state().memory > 0
    }

    fn memory_arrivals(&self) -> u64 {
        self.state().arrivals
    }

    fn has_kernel_bytes(&self) -> bool {
        self.state().kernel > 0
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

/// What the kernel has of a registration.
#[derive(Clone, Copy)]
struct Registered {
    events: u32,
    data: u64,
}

struct Set {
    members: Members<Fake>,
    kernel: [Option<Registered>; SOCKETS],
    /// Whether a thread sleeps in the kernel's wait.
    is_asleep: bool,
    /// Whether the process uses the set: its members are counted or active.
    is_used: bool,
}

/// Operations of programs and peers in any order: the counts agree with each other after each, no
/// member that wants input is neither polled nor left to the kernel, and a wait reports what is
/// ready.
pub fn epoll_set(bytes: &[u8]) {
    STATES.with(|states| states.iter().for_each(|state| state.set(NEW)));
    let mut set = Set {
        members: Members::default(),
        kernel: [None; SOCKETS],
        is_asleep: false,
        is_used: true,
    };
    for input in bytes.chunks_exact(3) {
        set.step(input[0], usize::from(input[1]) % SOCKETS, input[2]);
        set.check();
    }
}

impl Set {
    fn may_activate(&self) -> bool {
        !self.is_asleep
    }

    fn step(&mut self, code: u8, index: usize, detail: u8) {
        let data = (index as u64 + u64::from(detail >> 7)) % DATA;
        match code % 16 {
            _ if !self.is_used => {
                // The first call of the process uses the set again.
                self.is_used = true;
                self.members.count_all();
            }
            0..=2 if self.kernel[index].is_none() => {
                let (socket, events) = (Fake(index), events_of(detail));
                let member = Member::new(index as c_int, events, data, Some(socket));
                self.members.insert(member, self.may_activate());
                self.register(index, events, data);
                self.settle();
            }
            0..=3 if self.kernel[index].is_some() => {
                let events = events_of(detail);
                // The kernel refuses to change such a registration.
                if events & EXCLUSIVE == 0 {
                    let may_activate = self.may_activate();
                    self.members.modify(index as c_int, events, data, may_activate);
                    self.register(index, events, data);
                    self.settle();
                }
            }
            4 if self.kernel[index].is_some() => {
                assert!(self.members.remove(index as c_int));
                self.kernel[index] = None;
            }
            5..=7 => Fake(index).send(),
            8 => Fake(index).change(|state| (state.memory, state.kernel) = (0, 0)),
            9 => Fake(index).join(detail % 2 == 0),
            10..=12 => self.wait(),
            13 if self.is_asleep => self.is_asleep = false,
            13 => self.sleep(),
            14 => self.members.rest_all(),
            15 if !self.is_asleep => {
                self.members.uncount_all();
                self.is_used = false;
            }
            _ => {}
        }
    }

    /// The kernel's ADD and MOD report what is ready at that time.
    fn register(&mut self, index: usize, events: u32, data: u64) {
        self.kernel[index] = Some(Registered { events, data });
        Fake(index).change(|state| state.kernel_edge = true);
    }

    fn settle(&mut self) {
        if self.is_asleep {
            self.members.request_wake_up();
        }
        while let Some(member) = self.members.next_outdated() {
            member.registered = member.wanted_registration();
            let (index, events, data) = (member.fd as usize, member.registered, member.data);
            self.register(index, events, data);
        }
    }

    /// What the kernel's wait reports now; the simulated sockets are always writable.
    fn kernel_events(&mut self) -> Vec<epoll_event> {
        let mut found = vec![];
        for index in 0..SOCKETS {
            let Some(Registered { events, data }) = self.kernel[index] else { continue };
            let state = Fake(index).state();
            let ready = if state.kernel > 0 { INPUT_EVENTS } else { 0 } | WRITABLE;
            let reported = events & ready;
            if reported == 0 || events & EDGE != 0 && !state.kernel_edge {
                continue;
            }
            Fake(index).change(|state| state.kernel_edge = false);
            if events & ONE_SHOT != 0 {
                self.kernel[index] = Some(Registered { events: ONE_SHOT | EDGE, data });
            }
            found.push(epoll_event { events: reported, u64: data });
        }
        found
    }

    /// A wait as the accelerator's `epoll_wait` does it, with room for all events.
    fn wait(&mut self) {
        let wanted = self.ready_data();
        let mut space = [epoll_event { events: 0, u64: 0 }; 2 * EVENTS];
        // SAFETY: the array outlives the events.
        let mut out = unsafe { Events::new(space.as_mut_ptr(), space.len()) };
        let may_activate = self.may_activate();
        self.members.begin_call();
        self.members.collect(&mut out, may_activate);
        self.settle();
        let reported = self.kernel_events();
        let (first, left) = out.rest();
        assert!(reported.len() <= left as usize);
        for (step, event) in reported.iter().enumerate() {
            // SAFETY: checked above.
            unsafe { first.add(step).write_unaligned(*event) };
        }
        let members = &mut self.members;
        out.accept(reported.len(), |events, data| {
            members.kernel_reported(events, data, may_activate)
        });
        self.settle();
        for data in wanted {
            let is_reported = space[..out.len()].iter().any(|event| {
                let (events, found) = (event.events, event.u64);
                found == data && events & INPUT_EVENTS != 0
            });
            assert!(is_reported, "the ready member with data {data} was not reported");
        }
    }

    /// Data of the members that a wait must report: level-triggered, with bytes to receive, and not
    /// disabled. The kernel alone knows whether a member is whose data another one has or had.
    fn ready_data(&self) -> Vec<u64> {
        let members = self.members.slots.iter().flatten();
        let ready = members.filter(|member| {
            let state = Fake(member.fd as usize).state();
            let kernel = self.kernel[member.fd as usize].map_or(0, |kernel| kernel.events);
            let is_unique =
                self.members.by_data.get(&member.data).is_some_and(|of| of.0 != AMBIGUOUS);
            member.events & EDGE == 0
                && member.events & INPUT_EVENTS != 0
                && !member.is_disabled
                && (is_unique || kernel & INPUT_EVENTS != 0)
                && (state.memory > 0 || state.kernel > 0)
        });
        ready.map(|member| member.data).collect()
    }

    /// A thread is about to sleep: every member is counted, and memory has nothing to report.
    fn sleep(&mut self) {
        self.is_asleep = true;
        let mut rested = vec![];
        match self.members.begin_sleep(&mut rested) {
            SleepDecision::Ready => self.is_asleep = false,
            SleepDecision::Sleep | SleepDecision::SleepBriefly => {
                assert!(!self.members.is_pending() && self.members.active() == 0);
                for member in self.members.slots.iter().flatten() {
                    assert!(member.is_counted || !member.wants_input());
                }
            }
        }
    }

    fn check(&self) {
        let members = &self.members;
        let mut users = [0; SOCKETS];
        let (mut active, mut watched, mut sockets) = (0, 0, 0);
        for (index, member) in members.slots.iter().enumerate() {
            let Some(member) = member else { continue };
            users[member.fd as usize] += i32::from(member.is_counted);
            active += usize::from(member.is_active());
            watched += usize::from(member.is_watched);
            sockets += usize::from(member.socket.is_some());
            let times = members.watched.iter().filter(|&&other| other as usize == index).count();
            assert_eq!(times, usize::from(member.is_watched), "watched once or not at all");
            let is_served = member.is_counted || member.is_active();
            assert!(is_served || !member.wants_input() || !self.is_used, "nobody would notice");
        }
        for (index, users) in users.into_iter().enumerate() {
            assert_eq!(Fake(index).state().users, users, "count of socket {index}");
        }
        assert_eq!((members.active(), members.sockets()), (active, sockets));
        assert_eq!(members.watched.len(), watched);
        assert!(active <= ACTIVE_MAX);
    }
}

fn events_of(detail: u8) -> u32 {
    let bits = [IN, WRITABLE, EDGE, ONE_SHOT, EXCLUSIVE, libc::EPOLLRDNORM as u32];
    let chosen = bits.iter().enumerate().filter(|(at, _)| detail >> at & 1 != 0);
    let events = chosen.fold(0, |all, (_, bit)| all | bit);
    // The kernel takes no other flags with this one.
    if events & EXCLUSIVE != 0 { events & !ONE_SHOT } else { events }
}
