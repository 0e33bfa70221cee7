//! The steps of receiving, of `poll`, and of a child that has the socket without the library.

use super::checker::Label;
use super::state::{At, Config, Fault, Outcome, State};

type Next = Vec<(Label, State)>;

/// One step of thread `idx`, if it can make one.
pub(super) fn steps(config: &Config, state: &State, idx: usize, next: &mut Next) {
    let mut after = *state;
    let label = match state.receivers[idx].at {
        At::KernelReceive if state.receivers[idx].blocking && state.kernel_empty() => return,
        At::ChildReceive | At::PollKernel if state.kernel_empty() => return,
        At::PollPipe
        | At::PollTakeBacks
        | At::PollKernelAtOnce
        | At::PollCheckTakeBacks
        | At::PollCount
        | At::PollPipeCounted
        | At::PollKernel
        | At::PollUncount => poll_step(config, &mut after, idx),
        At::HoldCount | At::HoldForget | At::ChildReceive | At::HoldEnd => {
            hold_step(&mut after, idx)
        }
        At::ReadKnown | At::AddReceived | At::UncountGot => count_received(config, &mut after, idx),
        At::LookWhetherEmpty | At::SettleEmpty => settle(config, &mut after, idx),
        At::ReadPipe => return read_pipe(state, idx, next),
        At::SkipTakingBack | At::SkipKernel => skip_step(config, &mut after, idx),
        _ => receive_step(config, &mut after, idx),
    };
    next.push(((idx + 1, label), after));
}

/// A call without blocking need not ask the kernel each time, as long as the sender, the waits and
/// other threads say that it has nothing.
fn read_pipe(state: &State, idx: usize, next: &mut Next) {
    let mut after = *state;
    let receiver = &mut after.receivers[idx];
    receiver.a = state.shared.head;
    let empty = state.pipe_empty();
    receiver.at = if empty { At::CountReceive } else { At::TakeFromPipe };
    next.push(((idx + 1, "receive reads the pipe"), after));
    if empty && !state.receivers[idx].blocking {
        let mut after = *state;
        after.receivers[idx].at = At::SkipTakingBack;
        next.push(((idx + 1, "receive reads the pipe, the kernel was asked just now"), after));
    }
}

/// The kernel was asked just now: no need to ask it again unless the sender says so.
fn skip_step(config: &Config, state: &mut State, idx: usize) -> &'static str {
    let must_ask = state.kernel_reported || state.shared.inside > 0;
    let receiver = &mut state.receivers[idx];
    let shared = &mut state.shared;
    if receiver.at == At::SkipTakingBack {
        let ask = shared.taking_back && !config.has(Fault::TakeBacksNotWatched);
        receiver.at = if ask { At::CountReceive } else { At::SkipKernel };
        return "receive reads take_backs";
    }
    let ask = must_ask || !shared.known || shared.published_sent != shared.received;
    if ask && !config.has(Fault::KernelNotAsked) {
        receiver.at = At::CountReceive;
        return "receive finds that the kernel has bytes";
    }
    if state.kernel_had_bytes {
        receiver.at = At::LookWhetherEmpty;
        return "receive finds that the kernel had bytes";
    }
    receiver.at = At::Returned;
    receiver.outcome = Outcome::Empty;
    check_empty(state, idx);
    "receive finds that the kernel has nothing"
}

fn receive_step(config: &Config, state: &mut State, idx: usize) -> &'static str {
    let receiver = &mut state.receivers[idx];
    let shared = &mut state.shared;
    match receiver.at {
        At::TakeFromPipe => {
            if shared.head != receiver.a {
                receiver.at = At::ReadPipe;
                return "receive finds head changed";
            }
            shared.head += 1;
            receiver.at = At::Returned;
            receiver.outcome = Outcome::Got;
            let byte = shared.pipe[usize::from(receiver.a)];
            state.deliver(byte);
            "receive takes a byte from the pipe"
        }
        At::CountReceive => {
            let counted = !config.has(Fault::NoCountBeforeSleep);
            shared.users += i8::from(counted);
            shared.inside += 1;
            receiver.at = At::ReadTakeBacks;
            "receive counts itself"
        }
        At::ReadTakeBacks => {
            receiver.moved = shared.taking_back;
            receiver.at = At::CheckPipeCounted;
            "receive reads take_backs"
        }
        At::CheckPipeCounted => {
            let empty = shared.head == shared.tail || config.has(Fault::NoCheckAfterCount);
            receiver.at = if empty { At::KernelReceive } else { At::UncountAndRetry };
            if empty {
                (state.kernel_reported, state.kernel_had_bytes) = (false, false);
            }
            "receive reads the pipe again"
        }
        At::UncountAndRetry => {
            uncount(config, state);
            state.receivers[idx].at = At::ReadPipe;
            "receive uncounts itself and tries again"
        }
        At::KernelReceive => kernel_receive(config, state, idx),
        At::CheckTakeBacks => {
            let retry = receiver.moved && !config.has(Fault::TakeBacksNotWatched);
            receiver.at = if retry { At::UncountAndRetry } else { At::UncountEmpty };
            if !retry {
                check_empty(state, idx);
            }
            "receive reads take_backs again"
        }
        At::UncountEmpty => {
            uncount(config, state);
            state.receivers[idx].at = At::Returned;
            state.receivers[idx].outcome = Outcome::Empty;
            "receive uncounts itself"
        }
        _ => unreachable!("not a step of a receive"),
    }
}

/// The call finds nothing: that must be true.
fn check_empty(state: &mut State, idx: usize) {
    let receiver = &state.receivers[idx];
    if receiver.notified {
        state.wrong = Some("reported as readable, and nothing to receive");
    } else if receiver.promised {
        state.wrong = Some("sent, and nothing to receive");
    }
}

fn uncount(config: &Config, state: &mut State) {
    state.shared.users -= i8::from(!config.has(Fault::NoCountBeforeSleep));
    state.shared.inside -= 1;
}

fn kernel_receive(config: &Config, state: &mut State, idx: usize) -> &'static str {
    if state.kernel_empty() {
        state.receivers[idx].at = At::CheckTakeBacks;
        return "the kernel has nothing";
    }
    state.kernel_receive();
    let late = config.has(Fault::ReceivedCountedAfterUncount);
    state.receivers[idx].at = if late { At::UncountGot } else { At::ReadKnown };
    "receive takes a byte from the kernel"
}

/// The kernel had bytes when it was asked last: the call need not ask it if it has nothing now.
fn settle(config: &Config, state: &mut State, idx: usize) -> &'static str {
    let empty = state.kernel_empty();
    let receiver = &mut state.receivers[idx];
    if receiver.at == At::LookWhetherEmpty {
        receiver.at = if empty { At::SettleEmpty } else { At::CountReceive };
        return "receive looks whether the kernel has more";
    }
    receiver.at = At::Returned;
    receiver.outcome = Outcome::Empty;
    state.kernel_had_bytes = false;
    state.kernel_reported &= !config.has(Fault::SettledAlthoughReported);
    check_empty(state, idx);
    "receive finds that the kernel has nothing more"
}

/// Counting what was received, then leaving the count of users (or, as a fault, before).
fn count_received(config: &Config, state: &mut State, idx: usize) -> &'static str {
    let late = config.has(Fault::ReceivedCountedAfterUncount);
    state.kernel_had_bytes |=
        state.receivers[idx].at == At::ReadKnown && !config.has(Fault::KernelNotAskedAgain);
    let (at, label) = match state.receivers[idx].at {
        At::ReadKnown if state.shared.known => (At::AddReceived, "receive reads kernel_received"),
        At::ReadKnown if late => (At::Returned, "receive finds kernel_received unknown"),
        At::ReadKnown => (At::UncountGot, "receive finds kernel_received unknown"),
        At::AddReceived => {
            state.shared.received += 1;
            let at = if late { At::Returned } else { At::UncountGot };
            (at, "receive adds to kernel_received")
        }
        _ => {
            uncount(config, state);
            let at = if late { At::ReadKnown } else { At::Returned };
            (at, "receive uncounts itself")
        }
    };
    let receiver = &mut state.receivers[idx];
    receiver.at = at;
    receiver.outcome = Outcome::Got;
    label
}

fn poll_step(config: &Config, state: &mut State, idx: usize) -> &'static str {
    let (pipe_empty, kernel_empty) = (state.pipe_empty(), state.kernel_empty());
    let counted = i8::from(!config.has(Fault::NoCountBeforeSleep));
    let receiver = &mut state.receivers[idx];
    let shared = &mut state.shared;
    let (at, notified, label) = match receiver.at {
        At::PollTakeBacks => {
            receiver.moved = shared.taking_back;
            (At::PollPipe, false, "poll reads take_backs")
        }
        At::PollPipe if !pipe_empty => (At::Returned, true, "poll finds bytes in the pipe"),
        At::PollPipe if receiver.blocking => (At::PollCount, false, "poll finds the pipe empty"),
        At::PollPipe => (At::PollKernelAtOnce, false, "poll finds the pipe empty"),
        At::PollKernelAtOnce if kernel_empty => {
            (At::PollCheckTakeBacks, false, "poll finds nothing in the kernel")
        }
        At::PollKernelAtOnce => {
            state.kernel_reported = true;
            (At::Returned, true, "poll finds bytes in the kernel")
        }
        At::PollCheckTakeBacks => return poll_check(config, state, idx),
        At::PollCount => {
            shared.users += counted;
            (At::PollPipeCounted, false, "poll counts itself")
        }
        At::PollPipeCounted if pipe_empty || config.has(Fault::NoCheckAfterCount) => {
            (At::PollKernel, false, "poll reads the pipe again")
        }
        At::PollPipeCounted => (At::PollUncount, true, "poll finds bytes in the pipe"),
        At::PollKernel => {
            state.kernel_reported = true;
            (At::PollUncount, true, "poll is woken by the kernel")
        }
        At::PollUncount => {
            shared.users -= counted;
            (At::Returned, false, "poll uncounts itself")
        }
        _ => unreachable!("not a step of a poll"),
    };
    receiver.at = at;
    if notified {
        receiver.notified = true;
        receiver.outcome = Outcome::Ready;
    }
    label
}

fn poll_check(config: &Config, state: &mut State, idx: usize) -> &'static str {
    let receiver = &mut state.receivers[idx];
    if receiver.moved && !config.has(Fault::TakeBacksNotWatched) {
        receiver.at = At::PollTakeBacks;
        return "poll tries again";
    }
    receiver.at = At::Returned;
    receiver.outcome = Outcome::NotReady;
    check_empty(state, idx);
    "poll finds nothing"
}

/// A child without the library: `kernel_users` counts it, and what it receives is not counted.
fn hold_step(state: &mut State, idx: usize) -> &'static str {
    let counted = 1;
    match state.receivers[idx].at {
        At::HoldCount => {
            state.shared.users += counted;
            state.receivers[idx].at = At::Turn;
            "hold begins"
        }
        At::HoldForget => {
            state.shared.known = false;
            state.receivers[idx].at = At::LearnNobodyInside;
            "kernel_received becomes unknown"
        }
        At::ChildReceive => {
            state.kernel_receive();
            state.receivers[idx].at = At::Turn;
            "the child receives by the kernel"
        }
        At::HoldEnd => {
            state.shared.users -= counted;
            state.receivers[idx].at = At::Returned;
            state.receivers[idx].outcome = Outcome::Done;
            "hold ends"
        }
        _ => unreachable!("not a step of a hold"),
    }
}
