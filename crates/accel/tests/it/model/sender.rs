//! The steps of the sending thread.

use super::checker::Label;
use super::kernel_set;
use super::state::{Config, Fault, SendAt, Sender, State};

type Next = Vec<(Label, State)>;

const SENDER: usize = 0;

pub(super) fn steps(config: &Config, state: &State, next: &mut Next) {
    match state.sender.at {
        SendAt::Idle | SendAt::Asleep => idle(config, state, next),
        SendAt::CheckReceived | SendAt::BeforeKernel | SendAt::BeforeSleep
            if state.shared.fellow_locks => {}
        SendAt::WaitForTakeBack if state.shared.fellow_locks => {}
        SendAt::KernelSend => kernel_send(config, state, next),
        SendAt::Resend => resend(config, state, next),
        _ => {
            let mut after = *state;
            let label = memory_step(config, &mut after);
            next.push(((SENDER, label), after));
        }
    }
}

/// The program's own choice: send, or sleep.
fn idle(config: &Config, state: &State, next: &mut Next) {
    if config.sleeps && state.sender.at == SendAt::Idle {
        let mut after = *state;
        after.sender.at = SendAt::BeforeSleep;
        next.push(((SENDER, "sender is about to sleep"), after));
    }
    if config.calls_max.is_some_and(|most| state.sender.calls >= most) {
        return;
    }
    for &bytes in config.lengths {
        let mut after = *state;
        after.sender.calls += 1;
        after.sender.left = bytes;
        after.sender.at = SendAt::CheckUsers;
        next.push(((SENDER, "send begins"), after));
    }
}

/// A step that reads or writes memory, and never waits.
fn memory_step(config: &Config, state: &mut State) -> &'static str {
    let sender = &mut state.sender;
    let shared = &mut state.shared;
    match sender.at {
        SendAt::CheckUsers => {
            sender.at =
                if shared.users == 0 { SendAt::CheckReceived } else { SendAt::BeforeKernel };
            "sender reads kernel_users"
        }
        SendAt::CheckReceived => {
            let equal = shared.received == sender.kernel_sent;
            let free = shared.known && (equal || config.has(Fault::ReceivedNotChecked));
            sender.at = if free { SendAt::Push } else { SendAt::BeforeKernel };
            "sender reads kernel_received"
        }
        SendAt::Push => push(config, state),
        SendAt::Recheck => {
            let seen = shared.users != 0 && !config.has(Fault::NoRecheckAfterPublish);
            sender.at = match (seen, sender.left) {
                (true, _) => SendAt::BeginTakeBack,
                (false, 0) => returned(sender),
                (false, _) => SendAt::BeforeKernel,
            };
            "sender reads kernel_users again"
        }
        SendAt::BeforeKernel => {
            // What is left of a call that has filled the pipe comes behind the pipe's bytes.
            let take_back = !sender.has_pushed && may_take_back(config, state);
            state.sender.at = if take_back { SendAt::BeginTakeBack } else { SendAt::CountSender };
            "sender looks for unread bytes before the kernel send"
        }
        SendAt::BeforeSleep => before_sleep(config, state),
        SendAt::CountSender | SendAt::LookForTakeBack | SendAt::WaitForTakeBack => {
            begin_kernel_send(state)
        }
        SendAt::CountSent | SendAt::UncountSender => end_kernel_send(state),
        _ => take_back_step(config, state),
    }
}

fn returned(sender: &mut Sender) -> SendAt {
    sender.returned = sender.next_byte;
    (sender.has_pushed, sender.tail_before, sender.accepted) = (false, 0, 0);
    SendAt::Idle
}

/// The sender counts itself, then looks for a take back by another thread, and waits for its end.
fn begin_kernel_send(state: &mut State) -> &'static str {
    let (sender, shared) = (&mut state.sender, &mut state.shared);
    match sender.at {
        SendAt::CountSender => {
            shared.senders += 1;
            sender.at = SendAt::LookForTakeBack;
            "sender counts itself"
        }
        SendAt::LookForTakeBack if shared.taking_back => {
            shared.senders -= 1;
            sender.at = SendAt::WaitForTakeBack;
            "sender finds a take back"
        }
        SendAt::LookForTakeBack => {
            sender.at = SendAt::KernelSend;
            "sender finds no take back"
        }
        // Counted under the send lock.
        _ => {
            shared.senders += 1;
            sender.at = SendAt::KernelSend;
            "sender counts itself after a take back"
        }
    }
}

fn end_kernel_send(state: &mut State) -> &'static str {
    let (sender, shared) = (&mut state.sender, &mut state.shared);
    if sender.at == SendAt::CountSent {
        sender.kernel_sent += sender.accepted;
        shared.published_sent = sender.kernel_sent;
        sender.accepted = 0;
        sender.at = SendAt::UncountSender;
        return "sender counts what it sent";
    }
    shared.senders -= 1;
    sender.at = returned(sender);
    "sender uncounts itself"
}

fn push(config: &Config, state: &mut State) -> &'static str {
    let (sender, shared) = (&mut state.sender, &mut state.shared);
    let room = config.room - (shared.tail - shared.head);
    let count = sender.left.min(room);
    sender.tail_before = shared.tail;
    if count == 0 {
        sender.at = SendAt::BeforeKernel;
        return "the pipe is full";
    }
    for _ in 0..count {
        shared.pipe[usize::from(shared.tail)] = sender.next_byte;
        shared.tail += 1;
        sender.next_byte += 1;
    }
    sender.has_pushed = true;
    sender.left -= count;
    sender.at = SendAt::Recheck;
    state.note_arrival();
    "sender writes to the pipe"
}

/// Bytes in the pipe can go to the kernel: none are there that were sent after them.
pub(super) fn may_take_back(config: &Config, state: &State) -> bool {
    let is_first = state.shared.known && state.shared.received == state.sender.kernel_sent;
    !state.pipe_empty() && (is_first || config.has(Fault::TakeBackBehindKernel))
}

fn before_sleep(config: &Config, state: &mut State) -> &'static str {
    if may_take_back(config, state) && !config.has(Fault::NoTakeBackBeforeSleep) {
        state.sender.sleeps = true;
        state.sender.at = SendAt::BeginTakeBack;
        return "sender takes back before it sleeps";
    }
    state.sender.at = SendAt::Asleep;
    "sender sleeps"
}

/// Bytes begin to move from memory to the kernel, or have arrived there.
pub(super) fn set_taking_back(state: &mut State, taking_back: bool) {
    state.shared.taking_back = taking_back;
    for receiver in &mut state.receivers {
        receiver.moved = true;
    }
}

/// The steps by which unread bytes leave the pipe for the kernel.
fn take_back_step(config: &Config, state: &mut State) -> &'static str {
    let (sender, shared) = (&mut state.sender, &mut state.shared);
    match sender.at {
        SendAt::BeginTakeBack => {
            sender.at = SendAt::ReadHead;
            set_taking_back(state, true);
            "take back begins"
        }
        SendAt::ReadHead => {
            sender.from = shared.head;
            let own_only = config.has(Fault::TakeBackOwnBytesOnly) && !sender.sleeps;
            let older = own_only && shared.head < sender.tail_before;
            let nothing = shared.head == shared.tail;
            sender.at = if older || nothing { SendAt::EndTakeBack } else { SendAt::TakeBack };
            "sender reads head"
        }
        SendAt::TakeBack => {
            if shared.head == sender.from || config.has(Fault::TakeBackWithoutExchange) {
                sender.to = shared.tail;
                shared.head = shared.tail;
                sender.at = SendAt::Resend;
                return "sender takes the unread bytes back";
            }
            sender.at = SendAt::ReadHead;
            "sender finds head changed"
        }
        SendAt::CountResent => {
            sender.kernel_sent += sender.accepted;
            shared.published_sent = sender.kernel_sent;
            sender.at = if sender.from == sender.to { SendAt::EndTakeBack } else { SendAt::Resend };
            "sender counts what it sent again"
        }
        SendAt::EndTakeBack => {
            set_taking_back(state, false);
            end_take_back(&mut state.sender);
            "take back ends"
        }
        _ => unreachable!("not a step of a take back"),
    }
}

fn end_take_back(sender: &mut Sender) {
    (sender.from, sender.to, sender.accepted) = (0, 0, 0);
    sender.at = if sender.sleeps {
        sender.sleeps = false;
        SendAt::Asleep
    } else if sender.left > 0 {
        SendAt::CountSender
    } else {
        returned(sender)
    };
}

/// A blocking send by the kernel: waits for room, and accepts what there is room for.
fn kernel_send(config: &Config, state: &State, next: &mut Next) {
    let count = state.sender.left.min(state.kernel_room(config));
    if count == 0 {
        return;
    }
    let mut after = *state;
    for _ in 0..count {
        after.kernel_accept(after.sender.next_byte);
        after.sender.next_byte += 1;
    }
    after.sender.left -= count;
    after.sender.accepted += count;
    // A call that waits for room counts its bytes at its end.
    if after.sender.left == 0 {
        after.sender.at = SendAt::CountSent;
    }
    after.note_arrival();
    kernel_set::arrive(config, &after, (SENDER, "sender sends by the kernel"), next);
}

/// The bytes taken back go to the kernel, which must have room for them at once.
fn resend(config: &Config, state: &State, next: &mut Next) {
    let mut after = *state;
    let count = (after.sender.to - after.sender.from).min(after.kernel_room(config));
    if count < after.sender.to - after.sender.from {
        after.wrong = Some("the kernel has no room for what was taken back");
    }
    for position in after.sender.from..after.sender.from + count {
        let byte = after.shared.pipe[usize::from(position)];
        after.kernel_accept(byte);
    }
    after.sender.from += count;
    after.sender.accepted = count;
    after.sender.at = SendAt::CountResent;
    kernel_set::arrive(config, &after, (SENDER, "sender sends again by the kernel"), next);
}
