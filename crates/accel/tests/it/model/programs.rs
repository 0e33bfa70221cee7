//! What the threads of the receiving end do between the library's steps, and the learning of
//! `kernel_received`.

use super::checker::Label;
use super::state::{At, Config, Fault, Outcome, Program, Receiver, State};

type Next = Vec<(Label, State)>;
type Go<'a> = &'a mut dyn FnMut(&'static str, &dyn Fn(&mut State));

/// The program's next call; it may also never come.
pub(super) fn steps(config: &Config, state: &State, idx: usize, next: &mut Next) {
    let mut go = |label, change: &dyn Fn(&mut State)| {
        let mut after = *state;
        after.receivers[idx].outcome = Outcome::None;
        change(&mut after);
        next.push(((idx + 1, label), after));
    };
    let receiver = &state.receivers[idx];
    let call = |after: &mut State, at, blocking| begin(after, idx, at, blocking);
    match (config.programs[idx], receiver.at, receiver.outcome) {
        (Program::Blocking, ..) => go("recv", &|after| call(after, At::ReadPipe, true)),
        (Program::Poll { .. }, At::Turn, _)
        | (Program::Poll { drain: false }, _, Outcome::Got | Outcome::Empty)
        | (Program::Poll { drain: true }, _, Outcome::Empty)
        | (Program::PollAtOnce, _, Outcome::Empty) => {
            go("poll", &|after| call(after, At::PollPipe, true));
        }
        (Program::PollAtOnce, At::Turn, _) | (Program::PollAtOnce, _, Outcome::Got) => {
            go("poll at once", &|after| call(after, At::PollTakeBacks, false));
        }
        (Program::Epoll { .. }, At::Turn, _)
        | (Program::Epoll { drain: false, rearm: false }, _, Outcome::Got | Outcome::Empty)
        | (Program::Epoll { drain: true, .. }, _, Outcome::Empty)
        | (Program::Epoll { rearm: true, .. }, _, Outcome::Done) => {
            go("epoll_wait", &|after| call(after, At::WaitLock, true));
        }
        (Program::Poll { .. } | Program::Epoll { .. }, _, Outcome::Ready)
        | (Program::PollAtOnce, _, Outcome::Ready | Outcome::NotReady) => {
            go("recv without blocking", &|after| call(after, At::ReadPipe, false));
        }
        (Program::Poll { drain: true } | Program::Epoll { drain: true, .. }, _, Outcome::Got) => {
            go("recv again", &|after| call(after, At::ReadPipe, false));
        }
        (Program::Epoll { rearm: true, .. }, _, Outcome::Got | Outcome::Empty) => {
            go("epoll_ctl MOD", &|after| call(after, At::ControlLock, true));
        }
        (Program::Control(operations), ..) => {
            if usize::from(receiver.done) < operations.len() {
                go("epoll_ctl", &|after| call(after, At::ControlLock, true));
            }
        }
        (Program::Fellow, ..) => {
            go("the other thread ends its turn", &|after| call(after, At::FellowLock, true));
        }
        (Program::Join, At::Turn, _) => {
            go("join begins", &|after| call(after, At::LearnNobodyInside, true));
        }
        (Program::HandOver, At::Turn, _) => hand_over(state, &mut go, idx),
        (Program::Join | Program::HandOver, ..) => {}
        (Program::Absent, ..) => {}
        _ => go("turn ends", &|after| after.receivers[idx].at = At::Turn),
    }
}

fn begin(state: &mut State, idx: usize, at: At, blocking: bool) {
    let promised = state.sender.returned > state.delivered;
    let receiver = &mut state.receivers[idx];
    receiver.at = at;
    receiver.blocking = blocking;
    receiver.promised = promised;
}

/// The child begins, receives any number of times, and ends.
fn hand_over(state: &State, go: Go<'_>, idx: usize) {
    match state.receivers[idx].done {
        0 => go("exec", &|after| {
            after.receivers[idx].done = 1;
            after.receivers[idx].at = At::HoldCount;
        }),
        _ => {
            go("the child waits", &|after| after.receivers[idx].at = At::ChildReceive);
            go("the child ends", &|after| after.receivers[idx].at = At::HoldForget);
        }
    }
}

/// Learns how many bytes were taken from the kernel, while no thread is inside a kernel receive.
pub(super) fn learn(config: &Config, state: &State, idx: usize, next: &mut Next) {
    let mut after = *state;
    let shared = &mut after.shared;
    let receiver = &mut after.receivers[idx];
    let dequeued = state.kernel.read;
    let label = match receiver.at {
        At::LearnNobodyInside | At::LearnStillNobody => {
            let still = receiver.at == At::LearnStillNobody;
            let nobody = shared.inside == 0 || config.has(Fault::LearnBesideReceivers);
            receiver.at = match (nobody, still) {
                (false, _) => At::LearnNobodyInside,
                (true, true) => At::LearnPublish,
                (true, false) if config.has(Fault::LearnUnreadFirst) => At::LearnUnread,
                (true, false) => At::LearnBytes,
            };
            "join looks for threads inside a receive"
        }
        At::LearnBytes | At::LearnUnread | At::LearnAgain => {
            learn_from_kernel(config, state, receiver)
        }
        At::LearnPublish => {
            (shared.received, shared.known) = (receiver.a, true);
            receiver.at = At::LearnVerify;
            "join publishes kernel_received"
        }
        At::LearnVerify => {
            let fits = shared.inside == 0 && dequeued == receiver.a;
            let verified = fits || config.has(Fault::LearnWithoutVerifying);
            let held = matches!(config.programs[idx], Program::HandOver);
            receiver.at = match (verified, held) {
                (false, _) => At::LearnRevert,
                (true, true) => At::HoldEnd,
                (true, false) => At::Returned,
            };
            receiver.outcome = Outcome::Done;
            "join verifies kernel_received"
        }
        _ => {
            let unchanged = shared.received == receiver.a;
            shared.known &= !unchanged;
            receiver.at = At::LearnNobodyInside;
            "join reverts kernel_received"
        }
    };
    next.push(((idx + 1, label), after));
}

/// `bytes_received`, what is unread (SIOCINQ), and `bytes_received` again, which must not have
/// changed.
fn learn_from_kernel(config: &Config, state: &State, receiver: &mut Receiver) -> &'static str {
    let (sent, unread) = (state.kernel.sent, state.kernel.sent - state.kernel.read);
    let unread_first = config.has(Fault::LearnUnreadFirst);
    match receiver.at {
        At::LearnBytes if unread_first => {
            receiver.a = sent - receiver.b;
            receiver.at = At::LearnStillNobody;
            "join reads bytes_received"
        }
        At::LearnBytes => {
            receiver.a = sent;
            receiver.at = At::LearnUnread;
            "join reads bytes_received"
        }
        At::LearnUnread => {
            receiver.b = unread;
            receiver.at = if unread_first { At::LearnBytes } else { At::LearnAgain };
            "join reads SIOCINQ"
        }
        _ if receiver.a == sent => {
            receiver.a -= receiver.b;
            receiver.at = At::LearnStillNobody;
            "join reads the same bytes_received again"
        }
        _ => {
            receiver.at = At::LearnBytes;
            "join reads another bytes_received"
        }
    }
}
