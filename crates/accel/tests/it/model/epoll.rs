//! The steps of `epoll_wait` and `epoll_ctl`.

use super::checker::Label;
use super::kernel_set;
use super::state::{At, Config, Fault, Operation, Outcome, Program, RECEIVERS, Set, State};

type Next = Vec<(Label, State)>;

const FROM_MEMORY: u8 = 1;
const FROM_KERNEL: u8 = 2;
const WOKEN: u8 = 3;

pub(super) fn steps(config: &Config, state: &State, idx: usize, next: &mut Next) {
    let set = &state.sets[config.set_of[idx]];
    let mut after = *state;
    let label = match state.receivers[idx].at {
        At::WaitLock | At::WaitRelock | At::ControlLock if set.lock != 0 => return,
        At::WaitKernel if !set.wake && !kernel_set::is_ready(state, set) => return,
        At::WaitActivate => return activate(config, state, idx, next),
        At::WaitDisarm | At::WaitReport | At::WaitRelock => report_step(config, &mut after, idx),
        At::ControlLock
        | At::ControlKernel
        | At::ControlCount
        | At::ControlPipe
        | At::ControlUnlock => control_step(config, &mut after, idx),
        _ => wait_step(config, &mut after, idx),
    };
    next.push(((idx + 1, label), after));
}

/// A member may be polled in memory while nobody sleeps on the set; whether it is, is a choice.
fn activate(config: &Config, state: &State, idx: usize, next: &mut Next) {
    let set_idx = config.set_of[idx];
    let set = &state.sets[set_idx];
    let alone = set.sleepers == 0 || config.has(Fault::ActiveBesideSleepers);
    if set.counted && alone {
        let mut after = *state;
        after.shared.users -= 1;
        after.sets[set_idx].counted = false;
        after.receivers[idx].at = At::WaitPipe;
        next.push(((idx + 1, "the member becomes active"), after));
    }
    let mut after = *state;
    after.receivers[idx].at = At::WaitPipe;
    next.push(((idx + 1, "epoll_wait begins"), after));
}

/// The pipe has something to report for this member.
fn pipe_ready(config: &Config, state: &State, set: &Set) -> bool {
    let news = !config.edge || state.shared.tail > set.reported;
    set.present && set.armed && !state.pipe_empty() && news
}

/// Remembers that the member was found readable in memory.
fn found_in_memory(config: &Config, state: &mut State, idx: usize) {
    let tail = state.shared.tail;
    let set = &mut state.sets[config.set_of[idx]];
    if config.edge {
        set.reported = tail;
    }
    set.arrived = false;
    let receiver = &mut state.receivers[idx];
    receiver.notified = true;
    receiver.a = FROM_MEMORY;
    receiver.at = if config.oneshot { At::WaitDisarm } else { At::WaitReport };
}

fn wait_step(config: &Config, state: &mut State, idx: usize) -> &'static str {
    let set_idx = config.set_of[idx];
    let in_pipe = pipe_ready(config, state, &state.sets[set_idx]);
    match state.receivers[idx].at {
        At::WaitLock => {
            state.sets[set_idx].lock = lock_of(idx);
            state.receivers[idx].at = At::WaitActivate;
            "epoll_wait locks the set"
        }
        At::WaitPipe if in_pipe => {
            found_in_memory(config, state, idx);
            "epoll_wait finds bytes in the pipe"
        }
        At::WaitPipe => {
            state.receivers[idx].at = At::WaitKernelAtOnce;
            "epoll_wait finds nothing in the pipe"
        }
        At::WaitKernelAtOnce => kernel_at_once(config, state, idx),
        At::WaitCount => {
            let set = &mut state.sets[set_idx];
            if set.present && set.armed && !set.counted {
                set.counted = true;
                state.shared.users += 1;
            }
            let count_only = config.has(Fault::NoCheckAfterCount);
            state.receivers[idx].at = if count_only { At::WaitUnlock } else { At::WaitPipeCounted };
            "epoll_wait counts the member"
        }
        At::WaitPipeCounted if in_pipe => {
            found_in_memory(config, state, idx);
            "epoll_wait finds bytes in the pipe after counting"
        }
        At::WaitPipeCounted => {
            state.receivers[idx].at = At::WaitUnlock;
            "epoll_wait reads the pipe again"
        }
        At::WaitUnlock => {
            let set = &mut state.sets[set_idx];
            set.sleepers += 1;
            set.lock = 0;
            state.receivers[idx].at = At::WaitKernel;
            "epoll_wait counts itself as a sleeper and unlocks"
        }
        At::WaitKernel => wake_up(config, state, idx),
        _ => unreachable!("not a step of a wait"),
    }
}

fn lock_of(idx: usize) -> u8 {
    u8::try_from(idx + 1).expect("few threads")
}

/// Takes the event that the kernel has for the member.
fn harvest(config: &Config, state: &mut State, idx: usize) {
    let set = &mut state.sets[config.set_of[idx]];
    kernel_set::report(config, set);
    set.arrived = false;
    let receiver = &mut state.receivers[idx];
    receiver.notified = true;
    receiver.a = FROM_KERNEL;
    receiver.stale = false;
}

fn kernel_at_once(config: &Config, state: &mut State, idx: usize) -> &'static str {
    let set_idx = config.set_of[idx];
    let ready = kernel_set::is_ready(state, &state.sets[set_idx]);
    if ready {
        harvest(config, state, idx);
        state.receivers[idx].at = At::WaitReport;
        return "epoll_wait finds bytes in the kernel";
    }
    let set = &mut state.sets[set_idx];
    set.kernel_listed &= state.kernel.sent != state.kernel.read;
    set.wake = false;
    state.receivers[idx].at = At::WaitCount;
    "epoll_wait finds nothing in the kernel"
}

fn wake_up(config: &Config, state: &mut State, idx: usize) -> &'static str {
    let set_idx = config.set_of[idx];
    if kernel_set::is_ready(state, &state.sets[set_idx]) {
        harvest(config, state, idx);
        state.receivers[idx].at = At::WaitRelock;
        return "epoll_wait is woken by the kernel";
    }
    state.sets[set_idx].wake = false;
    state.receivers[idx].a = WOKEN;
    state.receivers[idx].at = At::WaitRelock;
    "epoll_wait is woken by the temporary descriptor"
}

fn report_step(config: &Config, state: &mut State, idx: usize) -> &'static str {
    let set_idx = config.set_of[idx];
    state.kernel_reported |= state.receivers[idx].a == FROM_KERNEL;
    match state.receivers[idx].at {
        At::WaitRelock => relock(config, state, idx),
        At::WaitDisarm => {
            if !config.has(Fault::OneshotNotDisarmed) {
                state.sets[set_idx].kernel_armed = false;
            }
            state.receivers[idx].at = At::WaitReport;
            "epoll_wait disarms the member in the kernel"
        }
        _ => {
            let from_memory = state.receivers[idx].a == FROM_MEMORY;
            let chain = !config.edge && !config.oneshot && from_memory;
            if config.exclusive {
                state.sets.iter_mut().for_each(|set| set.arrived = false);
            }
            let pipe_empty = state.pipe_empty();
            let set = &mut state.sets[set_idx];
            set.wake |=
                chain && set.sleepers > 0 && !pipe_empty && !config.has(Fault::NoWakeOfNextSleeper);
            if config.oneshot {
                set.arms -= 1;
                set.armed = false;
                if set.counted {
                    set.counted = false;
                    state.shared.users -= 1;
                }
                if set.arms < 0 {
                    state.wrong = Some("one arming was reported twice");
                }
            }
            set.lock = 0;
            state.receivers[idx].at = At::Returned;
            state.receivers[idx].outcome = Outcome::Ready;
            "epoll_wait reports the member and unlocks"
        }
    }
}

/// A sleeper has woken: what it harvested counts only if nobody changed the member since.
fn relock(config: &Config, state: &mut State, idx: usize) -> &'static str {
    let set = &mut state.sets[config.set_of[idx]];
    let receiver = &mut state.receivers[idx];
    set.lock = lock_of(idx);
    set.sleepers -= 1;
    let stale = receiver.stale || !set.present || !set.armed;
    let drop = stale && !config.has(Fault::StaleEventsReported);
    if receiver.a == FROM_KERNEL && !drop {
        receiver.at = At::WaitReport;
        return "epoll_wait locks the set after its sleep";
    }
    set.arrived = receiver.a == FROM_KERNEL && state.sender.next_byte > state.delivered;
    receiver.notified = false;
    receiver.at = At::WaitActivate;
    "epoll_wait locks the set after its sleep and looks again"
}

/// The operation that `epoll_ctl` of thread `idx` makes.
fn operation(config: &Config, state: &State, idx: usize) -> Operation {
    match config.programs[idx] {
        Program::Control(operations) => operations[usize::from(state.receivers[idx].done)],
        _ => Operation::Modify,
    }
}

fn control_step(config: &Config, state: &mut State, idx: usize) -> &'static str {
    let set_idx = config.set_of[idx];
    match state.receivers[idx].at {
        At::ControlLock => {
            state.sets[set_idx].lock = lock_of(idx);
            state.receivers[idx].at = At::ControlKernel;
            "epoll_ctl locks the set"
        }
        At::ControlKernel => control_kernel(config, state, idx),
        At::ControlCount => {
            let set = &mut state.sets[set_idx];
            if set.sleepers > 0 && !set.counted {
                set.counted = true;
                state.shared.users += 1;
            }
            state.receivers[idx].at = At::ControlPipe;
            "epoll_ctl counts the member if somebody sleeps on the set"
        }
        At::ControlPipe => {
            let in_pipe = pipe_ready(config, state, &state.sets[set_idx]);
            let set = &mut state.sets[set_idx];
            set.wake |= in_pipe && set.sleepers > 0 && !config.has(Fault::NoWakeAfterControl);
            state.receivers[idx].at = At::ControlUnlock;
            "epoll_ctl reads the pipe and wakes a sleeper"
        }
        _ => {
            state.sets[set_idx].lock = 0;
            let receiver = &mut state.receivers[idx];
            receiver.done += u8::from(matches!(config.programs[idx], Program::Control(_)));
            receiver.at = At::Returned;
            receiver.outcome = Outcome::Done;
            "epoll_ctl unlocks the set"
        }
    }
}

fn control_kernel(config: &Config, state: &mut State, idx: usize) -> &'static str {
    let readable = !state.kernel_empty();
    let unread = state.unread();
    let what = operation(config, state, idx);
    for other in (0..RECEIVERS).filter(|&other| config.set_of[other] == config.set_of[idx]) {
        state.receivers[other].stale = true;
    }
    let set = &mut state.sets[config.set_of[idx]];
    if what == Operation::Delete {
        kernel_set::delete(set);
        set.present = false;
        set.armed = false;
        if set.counted {
            set.counted = false;
            state.shared.users -= 1;
        }
        state.receivers[idx].at = At::ControlUnlock;
        return "epoll_ctl removes the member";
    }
    kernel_set::arm(set, readable);
    set.present = true;
    set.armed = true;
    set.arms += i8::from(config.oneshot);
    set.reported = 0;
    set.arrived = unread;
    state.receivers[idx].at = At::ControlCount;
    "epoll_ctl adds or arms the member"
}
