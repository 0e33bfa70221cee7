//! The design of the accelerator as a model, checked exhaustively. It is one direction of a
//! connection on its way between memory and kernel, in every order of memory accesses and system
//! calls. The order of accesses is sequentially consistent here. Every pair of a store and a load
//! that must not be exchanged has a full fence between them. The loom tests of `nm-ring` check
//! that.

mod checker;
mod epoll;
mod fellow;
mod kernel_set;
mod programs;
mod receive;
mod sender;
mod senders;
mod state;

use checker::{Explored, Label, Model, explore};
use state::{At, Config, Fault, Operation, Program, RECEIVERS, Receiver, SendAt, State};

/// Enough for each of the configurations below.
const STATES_MAX: usize = 1_000_000;

impl Model for Config {
    type State = State;

    fn initial(&self) -> State {
        State::new(self)
    }

    fn steps(&self, state: &State, next: &mut Vec<(Label, State)>) -> bool {
        sender::steps(self, state, next);
        let is_free = matches!(state.sender.at, SendAt::Idle | SendAt::Asleep);
        let changes = |next: &[(Label, State)]| next.iter().any(|(_, after)| after != state);
        let mut goes_on = !is_free && changes(next);
        for idx in 0..RECEIVERS {
            let before = next.len();
            match state.receivers[idx].at {
                At::Turn | At::Returned => {
                    programs::steps(self, state, idx, next);
                    continue;
                }
                at if is_learning(at) => programs::learn(self, state, idx, next),
                at if is_fellow(at) => fellow::steps(self, state, idx, next),
                at if is_epoll(at) => epoll::steps(self, state, idx, next),
                _ => receive::steps(self, state, idx, next),
            }
            goes_on |= changes(&next[before..]);
        }
        for (_, after) in next {
            *after = after.canonical(self);
        }
        goes_on
    }

    fn violation(&self, state: &State, at_rest: bool) -> Option<&'static str> {
        if state.shared.users < 0 {
            return Some("kernel_users below 0");
        }
        state.wrong.or_else(|| at_rest.then(|| stuck_waiter(self, state)).flatten())
    }
}

fn is_fellow(at: At) -> bool {
    use At::*;
    matches!(at, FellowLock | FellowCount | FellowAnnounce | FellowCheck)
        || matches!(at, FellowTakeBack | FellowResend | FellowSent | FellowEnd)
}

fn is_learning(at: At) -> bool {
    matches!(
        at,
        At::LearnNobodyInside
            | At::LearnBytes
            | At::LearnUnread
            | At::LearnAgain
            | At::LearnStillNobody
            | At::LearnPublish
            | At::LearnVerify
            | At::LearnRevert
    )
}

fn is_epoll(at: At) -> bool {
    matches!(
        at,
        At::WaitLock
            | At::WaitActivate
            | At::WaitPipe
            | At::WaitKernelAtOnce
            | At::WaitCount
            | At::WaitPipeCounted
            | At::WaitUnlock
            | At::WaitKernel
            | At::WaitRelock
            | At::WaitDisarm
            | At::WaitReport
            | At::ControlLock
            | At::ControlKernel
            | At::ControlCount
            | At::ControlPipe
            | At::ControlUnlock
    )
}

/// No call goes on by itself: a thread that waits for bytes that are there waits for ever.
fn stuck_waiter(config: &Config, state: &State) -> Option<&'static str> {
    use SendAt::{Asleep, Idle, KernelSend};
    if !matches!(state.sender.at, Idle | Asleep | KernelSend) {
        return Some("the sender waits for something other than room in the kernel");
    }
    // Each of them has received until there was nothing: an edge that was reported does not excuse
    // bytes that are left.
    let all_wait_after_drain = (0..RECEIVERS).all(|idx| match config.programs[idx] {
        Program::Absent => true,
        Program::Epoll { drain: true, .. } => state.receivers[idx].at == At::WaitKernel,
        _ => false,
    });
    for (idx, receiver) in state.receivers.iter().enumerate() {
        let set = &state.sets[config.set_of[idx]];
        let news = !(config.edge || config.exclusive) || set.arrived || all_wait_after_drain;
        match receiver.at {
            At::KernelReceive | At::PollKernel if state.unread() => {
                return Some("a receiver waits although bytes are unread");
            }
            // The bytes come when the sender sleeps or sends.
            At::ChildReceive if state.unread() && state.sender.at != Idle => {
                return Some("a child waits although bytes are unread");
            }
            At::WaitKernel if state.unread() && set.present && set.armed && news => {
                return Some("epoll_wait waits although its member has news");
            }
            At::WaitLock | At::WaitRelock | At::ControlLock => {
                return Some("a thread waits for a lock for ever");
            }
            _ => {}
        }
    }
    let between_calls = |receiver: &Receiver| matches!(receiver.at, At::Turn | At::Returned);
    let held = config.programs.contains(&Program::HandOver);
    let counts_fit = state.shared.received == state.sender.kernel_sent;
    let all_received = !state.unread() && state.receivers.iter().all(between_calls);
    if state.shared.known && all_received && !counts_fit && !held {
        return Some("all was received, and the counts do not say so");
    }
    None
}

const NONE: Program = Program::Absent;
const BLOCKING: Program = Program::Blocking;
const POLL: Program = Program::Poll { drain: true };
const POLL_ONE: Program = Program::Poll { drain: false };
const EPOLL: Program = Program::Epoll { drain: true, rearm: false };
const EPOLL_ONE: Program = Program::Epoll { drain: false, rearm: false };
const REARM: Program = Program::Epoll { drain: false, rearm: true };
const CONTROL: Program =
    Program::Control(&[Operation::Add, Operation::Modify, Operation::Delete, Operation::Add]);

/// Both ends share memory, nothing is registered, sends of one and two bytes without an end.
fn plain(first: Program, second: Program) -> Config {
    Config {
        room: 2,
        lengths: &[1, 2],
        calls_max: None,
        programs: [first, second, NONE],
        set_of: [0; RECEIVERS],
        joined: true,
        edge: false,
        oneshot: false,
        exclusive: false,
        registered: [false; 2],
        sleeps: false,
        fault: None,
    }
}

/// The socket is a member of a level-triggered set.
fn level(first: Program, second: Program) -> Config {
    Config { registered: [true, false], ..plain(first, second) }
}

fn edge(first: Program, second: Program) -> Config {
    Config { edge: true, ..level(first, second) }
}

fn oneshot(first: Program, second: Program) -> Config {
    Config { oneshot: true, ..level(first, second) }
}

/// With the least room, for models with many threads.
fn small(config: Config) -> Config {
    Config { room: 1, lengths: &[1], ..config }
}

/// The ends do not know of each other yet.
fn joining(config: Config) -> Config {
    Config { joined: false, lengths: &[1], calls_max: Some(3), ..config }
}

/// The socket is handed to a child without the library, and comes back.
fn handing_over(config: Config) -> Config {
    Config { sleeps: true, lengths: &[1], calls_max: Some(2), ..config }
}

fn describe(explored: &Explored) -> String {
    let mut text = format!("{} states", explored.states);
    if let Some(violation) = &explored.violation {
        text += &format!(", violated: {}\n", violation.what);
        for (thread, step) in &violation.trace {
            let who = if *thread == 0 { "sender".into() } else { format!("receiver {thread}") };
            text += &format!("  {who:<10} {step}\n");
        }
        text += &violation.last;
    }
    text
}

/// No state of the model violates a property, and the steps in `covered` are possible in it.
fn check(config: &Config, covered: &[&str]) {
    let explored = explore(config, STATES_MAX);
    assert!(explored.violation.is_none(), "{config:?}: {}", describe(&explored));
    for step in covered {
        let count = explored.steps.get(step).copied().unwrap_or(0);
        assert!(count > 0, "{config:?}: no step '{step}' in {} states", explored.states);
    }
}

const TAKEN_BACK: &str = "sender takes the unread bytes back";
const FROM_PIPE: &str = "receive takes a byte from the pipe";
const FROM_KERNEL: &str = "receive takes a byte from the kernel";
const ALL_WAYS: &[&str] = &[TAKEN_BACK, FROM_PIPE, FROM_KERNEL, "the pipe is full"];

#[test]
fn blocking_receivers_get_every_byte_in_order() {
    check(&plain(BLOCKING, NONE), ALL_WAYS);
    check(&Config { room: 1, ..plain(BLOCKING, BLOCKING) }, ALL_WAYS);
}

#[test]
fn poll_reports_every_arrival_and_nothing_else() {
    check(&plain(POLL, NONE), ALL_WAYS);
    check(&plain(POLL_ONE, NONE), ALL_WAYS);
    check(&small(plain(POLL_ONE, POLL)), &[TAKEN_BACK, FROM_PIPE, FROM_KERNEL]);
}

#[test]
fn calls_that_do_not_wait_find_what_was_sent() {
    let at_once = plain(Program::PollAtOnce, NONE);
    check(&at_once, &[TAKEN_BACK, FROM_PIPE, "receive finds that the kernel has nothing"]);
    let sleeps = Config { sleeps: true, ..at_once };
    check(&sleeps, &["sender takes back before it sleeps", "poll tries again"]);
}

#[test]
fn level_triggered_waits_return_while_bytes_are_unread() {
    check(&level(EPOLL_ONE, NONE), ALL_WAYS);
    let covered = &[TAKEN_BACK, "the member becomes active", FROM_PIPE];
    check(&small(level(EPOLL_ONE, EPOLL_ONE)), covered);
}

#[test]
fn edge_triggered_waits_report_each_arrival() {
    check(&edge(EPOLL, NONE), ALL_WAYS);
    check(&edge(EPOLL_ONE, NONE), ALL_WAYS);
    check(&small(edge(EPOLL, EPOLL)), &[TAKEN_BACK, "the member becomes active", FROM_PIPE]);
}

#[test]
fn one_shot_members_are_reported_once_for_each_arming() {
    let disarmed = "epoll_wait disarms the member in the kernel";
    check(&oneshot(REARM, NONE), &[TAKEN_BACK, disarmed, FROM_PIPE]);
    let woken = "epoll_wait is woken by the temporary descriptor";
    check(&small(oneshot(REARM, REARM)), &[woken, disarmed]);
    check(&Config { edge: true, ..small(oneshot(REARM, REARM)) }, &[woken, disarmed]);
}

#[test]
fn exclusive_members_wake_one_of_the_sleepers() {
    let sets = Config {
        exclusive: true,
        registered: [true; 2],
        set_of: [0, 1, 0],
        calls_max: Some(2),
        ..small(level(EPOLL_ONE, EPOLL_ONE))
    };
    check(&sets, &[TAKEN_BACK, "epoll_wait is woken by the kernel", FROM_PIPE]);
}

#[test]
fn members_are_added_changed_and_removed_at_any_moment() {
    let registered = [false; 2];
    let covered = &["epoll_ctl removes the member", "epoll_wait is woken by the kernel"];
    check(&Config { registered, ..small(level(EPOLL_ONE, CONTROL)) }, covered);
    check(&Config { registered, ..small(edge(EPOLL, CONTROL)) }, covered);
}

#[test]
fn a_thread_sleeps_beside_the_one_that_sends() {
    let taken_back = "the other thread takes the unread bytes back";
    let covered = &[taken_back, "sender finds a take back", "the pipe is full", FROM_PIPE];
    let config = |receiver| Config { room: 1, ..plain(receiver, Program::Fellow) };
    check(&config(BLOCKING), covered);
    check(&config(POLL), covered);
}

#[test]
fn ends_join_at_any_moment() {
    let reverts = "join reverts kernel_received";
    let covered = &["join publishes kernel_received", reverts, FROM_PIPE, FROM_KERNEL];
    check(&joining(plain(BLOCKING, Program::Join)), covered);
    for config in [plain(POLL, Program::Join), level(EPOLL_ONE, Program::Join)] {
        check(&Config { calls_max: Some(2), ..joining(config) }, covered);
    }
}

#[test]
fn a_child_without_the_library_has_the_socket_for_a_time() {
    let covered = &["the child receives by the kernel", "sender writes to the pipe"];
    check(&handing_over(plain(Program::HandOver, NONE)), covered);
    check(&handing_over(plain(BLOCKING, Program::HandOver)), covered);
}

/// Without one of the rules something goes wrong, and the checker finds it.
fn check_fault(fault: Fault, config: Config, what: &str) {
    let explored = explore(&Config { fault: Some(fault), ..config }, STATES_MAX);
    let found = explored.violation.as_ref().map(|violation| violation.what);
    assert_eq!(found, Some(what), "{fault:?}: {}", describe(&explored));
}

const NEVER_EQUAL: &str = "all was received, and the counts do not say so";
const WAITS: &str = "a receiver waits although bytes are unread";
const EPOLL_WAITS: &str = "epoll_wait waits although its member has news";
const DISORDER: &str = "a byte arrived out of order";
const LOST: &str = "sent, and nothing to receive";
const HIDDEN: &str = "reported as readable, and nothing to receive";

#[test]
fn faults_of_the_sender_are_found() {
    use Fault::*;
    check_fault(NoRecheckAfterPublish, plain(BLOCKING, NONE), WAITS);
    check_fault(ReceivedNotChecked, plain(POLL, NONE), DISORDER);
    check_fault(TakeBackWithoutExchange, plain(POLL, NONE), NEVER_EQUAL);
    check_fault(TakeBackOwnBytesOnly, edge(EPOLL_ONE, NONE), EPOLL_WAITS);
    let no_room = "the kernel has no room for what was taken back";
    check_fault(TakeBackBehindKernel, plain(POLL, NONE), no_room);
    let beside = Config { room: 1, ..plain(BLOCKING, Program::Fellow) };
    check_fault(TakeBackBesideSender, beside, no_room);
    let child = handing_over(plain(Program::HandOver, NONE));
    check_fault(NoTakeBackBeforeSleep, child, "a child waits although bytes are unread");
}

#[test]
fn faults_of_the_receiver_are_found() {
    use Fault::*;
    check_fault(NoCountBeforeSleep, plain(BLOCKING, NONE), WAITS);
    check_fault(NoCheckAfterCount, plain(BLOCKING, NONE), WAITS);
    check_fault(NoCheckAfterCount, plain(POLL, NONE), WAITS);
    check_fault(NoCheckAfterCount, level(EPOLL_ONE, NONE), EPOLL_WAITS);
    check_fault(TakeBacksNotWatched, plain(POLL, NONE), HIDDEN);
    let at_once = plain(Program::PollAtOnce, NONE);
    check_fault(TakeBacksNotWatched, Config { sleeps: true, ..at_once.clone() }, LOST);
    check_fault(KernelNotAsked, at_once, HIDDEN);
    check_fault(KernelNotAskedAgain, edge(EPOLL, NONE), EPOLL_WAITS);
    check_fault(SettledAlthoughReported, small(edge(EPOLL, EPOLL)), HIDDEN);
}

#[test]
fn faults_of_waiting_are_found() {
    use Fault::*;
    let controlled = Config { registered: [false; 2], ..small(level(EPOLL_ONE, CONTROL)) };
    check_fault(NoWakeAfterControl, controlled, EPOLL_WAITS);
    check_fault(NoWakeAfterControl, small(oneshot(REARM, REARM)), EPOLL_WAITS);
    let three = Config {
        registered: [false; 2],
        programs: [EPOLL_ONE, EPOLL_ONE, CONTROL],
        calls_max: Some(1),
        ..small(level(NONE, NONE))
    };
    check_fault(NoWakeOfNextSleeper, three, EPOLL_WAITS);
    check_fault(ActiveBesideSleepers, small(level(EPOLL_ONE, EPOLL_ONE)), EPOLL_WAITS);
    let twice = "one arming was reported twice";
    check_fault(OneshotNotDisarmed, oneshot(EPOLL_ONE, NONE), twice);
    check_fault(StaleEventsReported, small(oneshot(REARM, REARM)), twice);
}

#[test]
fn faults_of_joining_are_found() {
    use Fault::*;
    let config = || joining(plain(POLL, Program::Join));
    check_fault(LearnBesideReceivers, config(), NEVER_EQUAL);
    check_fault(LearnUnreadFirst, config(), DISORDER);
    check_fault(LearnWithoutVerifying, config(), NEVER_EQUAL);
    check_fault(ReceivedCountedAfterUncount, config(), NEVER_EQUAL);
}
