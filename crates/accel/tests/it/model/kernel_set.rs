//! The kernel's side of the epoll sets.

use super::checker::Label;
use super::state::{At, Config, SETS, Set, State};

/// Bytes arrived in the kernel: their members become ready, of exclusive ones at least one that
/// somebody sleeps on.
pub(super) fn arrive(config: &Config, state: &State, label: Label, next: &mut Vec<(Label, State)>) {
    let slept_on: Vec<usize> = (0..SETS).filter(|&set| is_slept_on(config, state, set)).collect();
    if config.exclusive && !slept_on.is_empty() {
        for set in slept_on {
            let mut after = *state;
            after.sets[set].kernel_listed = true;
            next.push((label, after));
        }
        return;
    }
    let mut after = *state;
    for set in &mut after.sets {
        set.kernel_listed = set.kernel_present;
    }
    next.push((label, after));
}

fn is_slept_on(config: &Config, state: &State, set: usize) -> bool {
    state.sets[set].kernel_present
        && state.sets[set].kernel_armed
        && (0..state.receivers.len())
            .any(|idx| config.set_of[idx] == set && state.receivers[idx].at == At::WaitKernel)
}

pub(super) fn is_ready(state: &State, set: &Set) -> bool {
    set.kernel_present && set.kernel_armed && set.kernel_listed && !state.kernel_empty()
}

/// The kernel reports the member.
pub(super) fn report(config: &Config, set: &mut Set) {
    if config.edge {
        set.kernel_listed = false;
    }
    if config.oneshot {
        set.kernel_armed = false;
    }
}

/// ADD or MOD: the kernel looks at the socket.
pub(super) fn arm(set: &mut Set, readable: bool) {
    set.kernel_present = true;
    set.kernel_armed = true;
    set.kernel_listed = readable;
}

pub(super) fn delete(set: &mut Set) {
    set.kernel_present = false;
    set.kernel_armed = false;
    set.kernel_listed = false;
}
