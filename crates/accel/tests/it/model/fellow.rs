//! A thread of the sending end that goes to sleep, and takes back what is in the pipe before.

use super::checker::Label;
use super::kernel_set;
use super::sender::{may_take_back, set_taking_back};
use super::state::{At, Config, Fault, Outcome, State};

type Next = Vec<(Label, State)>;

pub(super) fn steps(config: &Config, state: &State, idx: usize, next: &mut Next) {
    let at = state.receivers[idx].at;
    if at == At::FellowLock && state.sender.holds_lock() {
        return;
    }
    let mut after = *state;
    if at == At::FellowResend {
        let label = (idx + 1, "the other thread sends again by the kernel");
        resend(config, &mut after, idx);
        kernel_set::arrive(config, &after, label, next);
        return;
    }
    let label = step(config, &mut after, idx);
    next.push(((idx + 1, label), after));
}

fn step(config: &Config, state: &mut State, idx: usize) -> &'static str {
    let (at, label) = match state.receivers[idx].at {
        At::FellowLock => {
            state.shared.fellow_locks = true;
            (At::FellowCount, "the other thread is about to sleep")
        }
        At::FellowCount => {
            state.shared.senders += 1;
            (At::FellowAnnounce, "the other thread counts itself as a sender")
        }
        At::FellowAnnounce => {
            set_taking_back(state, true);
            (At::FellowCheck, "the other thread announces its take back")
        }
        At::FellowCheck => {
            let alone = state.shared.senders == 1 || config.has(Fault::TakeBackBesideSender);
            let may = alone && may_take_back(config, state);
            state.receivers[idx].a = state.shared.head;
            (if may { At::FellowTakeBack } else { At::FellowEnd }, "the other thread looks around")
        }
        At::FellowTakeBack => take_back(state, idx),
        At::FellowSent => {
            state.sender.kernel_sent += state.receivers[idx].b;
            state.shared.published_sent = state.sender.kernel_sent;
            (At::FellowEnd, "the other thread counts what it sent")
        }
        _ => {
            set_taking_back(state, false);
            state.shared.senders -= 1;
            state.shared.fellow_locks = false;
            state.receivers[idx].outcome = Outcome::Done;
            (At::Returned, "the other thread sleeps")
        }
    };
    state.receivers[idx].at = at;
    label
}

fn take_back(state: &mut State, idx: usize) -> (At, &'static str) {
    if state.shared.head != state.receivers[idx].a {
        return (At::FellowCheck, "the other thread finds head changed");
    }
    (state.sender.from, state.sender.to) = (state.shared.head, state.shared.tail);
    state.shared.head = state.shared.tail;
    (At::FellowResend, "the other thread takes the unread bytes back")
}

fn resend(config: &Config, state: &mut State, idx: usize) {
    let count = (state.sender.to - state.sender.from).min(state.kernel_room(config));
    if count < state.sender.to - state.sender.from {
        state.wrong = Some("the kernel has no room for what was taken back");
    }
    for position in state.sender.from..state.sender.from + count {
        let byte = state.shared.pipe[usize::from(position)];
        state.kernel_accept(byte);
    }
    state.sender.from += count;
    state.receivers[idx].b = count;
    state.receivers[idx].at = At::FellowSent;
}
