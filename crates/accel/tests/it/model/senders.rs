//! Several senders at one end, calls of two bytes, and a sender past the library. Which way does
//! each call go, under the send lock and beside it? The receiving end takes bytes from memory
//! first, and relies on the kernel at any moment.

use super::checker::{Label, Model, explore};

/// Most senders, and most calls of each.
const SENDERS: usize = 3;
const CALLS: usize = 3;

/// Bytes of a call.
const BYTES: u8 = 2;

/// Most bytes of all.
const ALL: usize = 12;

/// One call of a sender's program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Call {
    /// Through the library.
    Library,
    /// By a system call that the library does not see.
    Past,
}

/// A rule that is left out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// A call writes to the pipe what there is room for.
    PartOfACall,
    /// The lock is released before what was taken back is in the kernel.
    SentAgainWithoutLock,
    /// A call goes to memory beside one that sends through the kernel.
    SendersNotCounted,
    /// A call through the kernel does not wait for one that has the lock.
    LockNotAwaited,
    /// The bytes of the present call stay in the pipe because another sender uses the kernel.
    OwnBytesLeft,
    /// The kernel's count is not compared.
    NotCompared,
}

struct Config {
    programs: &'static [&'static [Call]],
    /// Bytes that the pipe has room for.
    room: u8,
    fault: Option<Fault>,
}

/// Where a sender is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum At {
    Idle,
    May,
    Lock,
    Push,
    ReadUsers,
    BeginTakeBack,
    TakeBackOwn,
    TakeBack,
    SendAgain,
    EndTakeBack,
    Count,
    LookForLock,
    AwaitLock,
    KernelSend,
    CountSent,
    Uncount,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Sender {
    at: At,
    call: u8,
    /// Bytes of the call that were sent.
    done: u8,
    has_lock: bool,
    /// Bytes that were taken back and are not in the kernel again.
    taken: [u8; 4],
    taken_len: u8,
    /// Bytes that the kernel took and that are not counted.
    uncounted: u8,
}

/// Where the receiver is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Receiver {
    Free,
    Relies,
    InKernel,
    /// It has received bytes of the kernel that it has not counted.
    Counts(u8),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct State {
    senders: [Sender; SENDERS],
    receiver: Receiver,
    pipe: [u8; ALL],
    pipe_len: u8,
    kernel: [u8; ALL],
    kernel_len: u8,
    /// Bytes that the kernel has taken, that the library has counted, and that the peer has.
    kernel_sent: u8,
    counted: u8,
    received_count: u8,
    kernel_senders: u8,
    is_locked: bool,
    is_found: bool,
    received: [u8; ALL],
    received_len: u8,
}

/// A byte that tells its sender, call and place.
fn byte(sender: usize, call: u8, place: u8) -> u8 {
    (sender as u8 * CALLS as u8 + call) * BYTES + place
}

impl State {
    fn may_send_to_memory(&self, config: &Config) -> bool {
        let is_alone = self.kernel_senders == 0 || config.has(Fault::SendersNotCounted);
        self.received_count == self.counted
            && self.receiver == Receiver::Free
            && is_alone
            && !self.is_found
    }

    fn kernel_take(&mut self, byte: u8) {
        self.kernel[usize::from(self.kernel_len)] = byte;
        self.kernel_len += 1;
        self.kernel_sent += 1;
    }

    fn receive(&mut self, byte: u8) {
        self.received[usize::from(self.received_len)] = byte;
        self.received_len += 1;
    }

    fn receive_from_pipe(&mut self) {
        self.receive(self.pipe[0]);
        self.pipe.rotate_left(1);
        self.pipe_len -= 1;
        self.pipe[usize::from(self.pipe_len)..].fill(0);
    }

    fn receive_from_kernel(&mut self) {
        self.receive(self.kernel[0]);
        self.kernel.rotate_left(1);
        self.kernel_len -= 1;
        self.kernel[usize::from(self.kernel_len)..].fill(0);
    }

    fn unlock(&mut self, idx: usize) {
        if self.senders[idx].has_lock {
            (self.senders[idx].has_lock, self.is_locked) = (false, false);
        }
    }

    /// The call ends, or goes on through the kernel.
    fn go_on(&mut self, idx: usize) {
        self.unlock(idx);
        let sender = &mut self.senders[idx];
        if sender.done == BYTES {
            (sender.at, sender.done, sender.call) = (At::Idle, 0, sender.call + 1);
        } else {
            sender.at = At::Count;
        }
    }
}

impl Config {
    fn has(&self, fault: Fault) -> bool {
        self.fault == Some(fault)
    }

    fn call(&self, state: &State, idx: usize) -> Option<Call> {
        self.programs.get(idx)?.get(usize::from(state.senders[idx].call)).copied()
    }

    /// The next step of a sender.
    fn sender_step(&self, state: &State, idx: usize) -> Option<(&'static str, State)> {
        let mut after = *state;
        let call = state.senders[idx].call;
        let sender = &mut after.senders[idx];
        let label = match sender.at {
            At::Idle => match self.call(state, idx)? {
                Call::Library => {
                    sender.at = At::May;
                    "a call begins"
                }
                Call::Past => {
                    sender.call += 1;
                    (0..BYTES).for_each(|place| after.kernel_take(byte(idx, call, place)));
                    "a call passes the library by"
                }
            },
            At::May => self.look_whether_memory_may_be_used(&mut after, idx),
            At::Lock if state.is_locked => return None,
            At::Lock => {
                (sender.has_lock, after.is_locked) = (true, true);
                let room = self.room - state.pipe_len;
                let needed = if self.has(Fault::PartOfACall) { 1 } else { BYTES };
                let may = state.may_send_to_memory(self) && room >= needed;
                after.senders[idx].at = At::Push;
                if !may {
                    after.go_on(idx);
                }
                "the lock is taken"
            }
            At::Push => {
                let count = (self.room - state.pipe_len).min(BYTES);
                for place in 0..count {
                    after.pipe[usize::from(after.pipe_len)] = byte(idx, call, place);
                    after.pipe_len += 1;
                }
                let sender = &mut after.senders[idx];
                (sender.done, sender.at) = (count, At::ReadUsers);
                "a call is written to the pipe"
            }
            At::ReadUsers => {
                if state.receiver == Receiver::Free {
                    after.go_on(idx);
                } else {
                    sender.at = At::BeginTakeBack;
                }
                "it is looked who relies on the kernel"
            }
            At::BeginTakeBack
            | At::TakeBackOwn
            | At::TakeBack
            | At::SendAgain
            | At::EndTakeBack => self.take_back_step(&mut after, idx),
            _ => self.kernel_step(&mut after, idx)?,
        };
        Some((label, after))
    }

    fn look_whether_memory_may_be_used(&self, after: &mut State, idx: usize) -> &'static str {
        let may = after.may_send_to_memory(self);
        // While nobody else sends, the library's count is complete.
        let is_past = after.kernel_senders == 0 && after.kernel_sent > after.counted;
        if may && is_past && !self.has(Fault::NotCompared) {
            after.is_found = true;
            after.senders[idx].at = At::Count;
            return "a sender past the library is found";
        }
        after.senders[idx].at = if may { At::Lock } else { At::Count };
        "it is looked whether memory may be used"
    }

    fn take_back_step(&self, after: &mut State, idx: usize) -> &'static str {
        match after.senders[idx].at {
            At::BeginTakeBack => {
                after.kernel_senders += 1;
                after.senders[idx].at = At::TakeBackOwn;
                "a take back begins"
            }
            At::TakeBackOwn => {
                let own = [0, 1].map(|place| byte(idx, after.senders[idx].call, place));
                let is_own = after.pipe_len == BYTES && after.pipe[..2] == own;
                let is_first =
                    after.received_count == after.counted && after.kernel_sent == after.counted;
                if is_own && !self.has(Fault::OwnBytesLeft) {
                    self.take_back(after, idx);
                } else if after.kernel_senders == 1 && is_first {
                    after.senders[idx].at = At::TakeBack;
                } else {
                    after.senders[idx].at = At::EndTakeBack;
                }
                "a sender looks what is unread"
            }
            At::TakeBack => {
                self.take_back(after, idx);
                "the unread bytes are taken back"
            }
            At::SendAgain => {
                let sender = &mut after.senders[idx];
                let (taken, len) = (sender.taken, sender.taken_len);
                (sender.taken, sender.taken_len) = ([0; 4], 0);
                sender.at = At::EndTakeBack;
                taken[..usize::from(len)].iter().for_each(|byte| after.kernel_take(*byte));
                after.counted += len;
                "the bytes are sent again"
            }
            _ => {
                after.kernel_senders -= 1;
                after.go_on(idx);
                "a take back ends"
            }
        }
    }

    /// Nobody else takes what the pipe has.
    fn take_back(&self, after: &mut State, idx: usize) {
        let (len, pipe) = (after.pipe_len, after.pipe);
        let sender = &mut after.senders[idx];
        sender.taken[..usize::from(len)].copy_from_slice(&pipe[..usize::from(len)]);
        (sender.taken_len, sender.at) = (len, At::SendAgain);
        (after.pipe_len, after.pipe) = (0, [0; ALL]);
        if self.has(Fault::SentAgainWithoutLock) {
            after.unlock(idx);
        }
    }

    fn kernel_step(&self, after: &mut State, idx: usize) -> Option<&'static str> {
        let call = after.senders[idx].call;
        let sender = &mut after.senders[idx];
        Some(match sender.at {
            At::Count => {
                after.kernel_senders += 1;
                sender.at = At::LookForLock;
                "a sender counts itself"
            }
            At::LookForLock if after.is_locked && !self.has(Fault::LockNotAwaited) => {
                after.kernel_senders -= 1;
                sender.at = At::AwaitLock;
                "the lock is found"
            }
            At::LookForLock => {
                sender.at = At::KernelSend;
                "the lock is free"
            }
            At::AwaitLock if after.is_locked => return None,
            At::AwaitLock => {
                after.kernel_senders += 1;
                sender.at = At::KernelSend;
                "the lock was awaited"
            }
            At::KernelSend => {
                let from = sender.done;
                (sender.at, sender.done, sender.uncounted) = (At::CountSent, BYTES, BYTES - from);
                (from..BYTES).for_each(|place| after.kernel_take(byte(idx, call, place)));
                "the kernel takes a call"
            }
            At::CountSent => {
                after.counted += sender.uncounted;
                (sender.uncounted, sender.at) = (0, At::Uncount);
                "a call is counted"
            }
            _ => {
                after.kernel_senders -= 1;
                after.go_on(idx);
                "a sender uncounts itself"
            }
        })
    }

    fn receiver_steps(&self, state: &State, next: &mut Vec<(Label, State)>) {
        let mut go = |label, change: &dyn Fn(&mut State)| {
            let mut after = *state;
            change(&mut after);
            next.push(((SENDERS, label), after));
        };
        match state.receiver {
            Receiver::Free => {
                if state.pipe_len > 0 {
                    go("a byte of the pipe is received", &State::receive_from_pipe);
                }
                go("the receiver relies on the kernel", &|it| it.receiver = Receiver::Relies);
            }
            Receiver::Relies if state.pipe_len > 0 => {
                go("the receiver finds memory", &|it| it.receiver = Receiver::Free);
            }
            Receiver::Relies => go("the receiver waits", &|it| it.receiver = Receiver::InKernel),
            Receiver::InKernel => {
                for count in 1..=state.kernel_len {
                    go("the kernel gives bytes", &|it| {
                        (0..count).for_each(|_| it.receive_from_kernel());
                        it.receiver = Receiver::Counts(count);
                    });
                }
            }
            Receiver::Counts(count) => go("the receiver counts", &|it| {
                it.received_count += count;
                it.receiver = Receiver::Free;
            }),
        }
    }
}

impl Model for Config {
    type State = State;

    fn initial(&self) -> State {
        let sender = Sender {
            at: At::Idle,
            call: 0,
            done: 0,
            has_lock: false,
            taken: [0; 4],
            taken_len: 0,
            uncounted: 0,
        };
        State {
            senders: [sender; SENDERS],
            receiver: Receiver::Free,
            pipe: [0; ALL],
            pipe_len: 0,
            kernel: [0; ALL],
            kernel_len: 0,
            kernel_sent: 0,
            counted: 0,
            received_count: 0,
            kernel_senders: 0,
            is_locked: false,
            is_found: false,
            received: [0; ALL],
            received_len: 0,
        }
    }

    fn steps(&self, state: &State, next: &mut Vec<(Label, State)>) -> bool {
        let mut goes_on = false;
        for idx in 0..SENDERS {
            if let Some((label, after)) = self.sender_step(state, idx) {
                next.push(((idx, label), after));
                goes_on = true;
            }
        }
        let before = next.len();
        self.receiver_steps(state, next);
        goes_on || next.len() > before && state.receiver != Receiver::Free
    }

    fn violation(&self, state: &State, at_rest: bool) -> Option<&'static str> {
        let received = &state.received[..usize::from(state.received_len)];
        for (at, &this) in received.iter().enumerate() {
            let is_first = this % BYTES == 0;
            let before = at.checked_sub(1).map(|at| received[at]);
            if !is_first && before != Some(this - 1) {
                return Some(TORN);
            }
            let calls = CALLS as u8 * BYTES;
            let is_later = |other: &u8| other / calls == this / calls && *other > this;
            if received[..at].iter().any(is_later) {
                return Some(DISORDER);
            }
        }
        let is_waiting = state.receiver == Receiver::InKernel;
        (at_rest && is_waiting && state.pipe_len + state.kernel_len > 0).then_some(WAITS)
    }
}

const TORN: &str = "another call's byte lies between those of a call";
const DISORDER: &str = "a sender's calls arrived in another order";
const WAITS: &str = "the receiver waits although bytes are unread";

use Call::{Library, Past};

/// Three threads or processes send at the same time.
const THREE: &[&[Call]] = &[&[Library, Library], &[Library], &[Library]];

/// A thread sends by turns through the library and past it. What it sends past the library while
/// another thread is in a call cannot be found in time.
const BY_TURNS: &[&[Call]] = &[&[Library, Past, Library]];

const STATES_MAX: usize = 4_000_000;

fn config(programs: &'static [&'static [Call]], fault: Option<Fault>) -> Config {
    // Less than two calls: the second one finds too little room.
    Config { programs, room: 3, fault }
}

#[test]
fn calls_of_several_senders_stay_together_and_in_order() {
    for programs in [THREE, BY_TURNS] {
        let explored = explore(&config(programs, None), STATES_MAX);
        assert!(explored.violation.is_none(), "{programs:?}: {:#?}", explored.violation);
        let was_made = |step| explored.steps.get(step).copied().unwrap_or(0) > 0;
        let has_past = programs.iter().any(|calls| calls.contains(&Past));
        for step in ["the bytes are sent again", "the lock is found"] {
            let is_possible = step != "the lock is found" || programs == THREE;
            assert!(was_made(step) == is_possible, "{programs:?}: step '{step}'");
        }
        assert_eq!(was_made("a sender past the library is found"), has_past, "{programs:?}");
    }
}

#[test]
fn faults_of_several_senders_are_found() {
    for (fault, programs, what) in [
        (Fault::PartOfACall, THREE, TORN),
        (Fault::SentAgainWithoutLock, THREE, TORN),
        (Fault::LockNotAwaited, THREE, TORN),
        (Fault::OwnBytesLeft, THREE, DISORDER),
        (Fault::NotCompared, BY_TURNS, DISORDER),
        (Fault::SendersNotCounted, THREE, DISORDER),
    ] {
        let explored = explore(&config(programs, Some(fault)), STATES_MAX);
        let found = explored.violation.as_ref().map(|violation| violation.what);
        assert_eq!(found, Some(what), "{fault:?}: {} states", explored.states);
    }
}
