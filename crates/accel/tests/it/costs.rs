//! What the library costs a connection that memory does not serve, in system calls: a program makes
//! the same number with it and without it.

use libc::{
    EPOLLET, EPOLLIN, IPPROTO_TCP, POLLIN, SO_LINGER, SO_SNDBUF, SOL_SOCKET, TCP_CORK, pollfd,
};
use nm_test_support::system_calls;

use crate::calls::*;
use crate::data::echo_child;
use crate::harness::{Body, Side, accelerated, another, note};
use crate::support::*;
use crate::worth::{CROWD, raise_descriptor_limit};

/// Programs whose system calls are counted.
pub(crate) const PEERS: &[Body] = &[
    (concat!(module_path!(), "::short_connections"), short_connections),
    (concat!(module_path!(), "::connections_of_some_requests"), connections_of_some_requests),
    (concat!(module_path!(), "::connections_of_a_crowd"), connections_of_a_crowd),
    (concat!(module_path!(), "::waits_without_memory"), waits_without_memory),
    (concat!(module_path!(), "::corked_answers"), corked_answers),
    (concat!(module_path!(), "::few_large_messages_taken_back"), few_large_messages_taken_back),
    (concat!(module_path!(), "::large_messages_taken_back"), large_messages_taken_back),
    (
        concat!(module_path!(), "::waits_for_what_the_kernel_carries"),
        waits_for_what_the_kernel_carries,
    ),
    (concat!(module_path!(), "::answers_on_one_cpu"), answers_on_one_cpu),
    (concat!(module_path!(), "::connections_move_without_a_set"), connections_move_without_a_set),
];

/// Connections before the count, after which the next ones are expected to be short.
const BEFORE: usize = 300;
const COUNTED: usize = 100;

/// Runs of which one must show what the machine allows.
const TRIES: usize = 5;

/// Messages that are too few to learn from.
const FEW: usize = 10;

/// Bytes of a message that takes much of a pipe.
const LARGE_BYTES: usize = 100_000;

/// System calls of a program.
struct Counts {
    /// All but yields.
    calls: u64,
    /// Yields of the CPU, in waits for a peer on the same CPU: they cost less than other calls.
    yields: u64,
}

/// System calls of a program on that side, with the default settings.
#[track_caller]
fn counted(name: &str, side: Side) -> Counts {
    counted_with(name, side, &[])
}

/// As [`counted`], with these settings.
#[track_caller]
fn counted_with(name: &str, side: Side, settings: &[(&str, &str)]) -> Counts {
    let mut program = another(&format!("{}::{name}", module_path!()), side);
    program.env("NEARMETAL_ACCEL_AFTER", "32").envs(settings.iter().copied());
    let output = program.output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{name} on {side:?}: {text}");
    let numbers = text.trim().split_once(' ');
    let counts = numbers.and_then(|(calls, yields)| {
        Some(Counts { calls: calls.parse().ok()?, yields: yields.parse().ok()? })
    });
    counts.unwrap_or_else(|| panic!("no numbers: {text}"))
}

#[track_caller]
fn check_costs_nothing(name: &str) {
    let [plain, accelerated] = [Side::Kernel, Side::Accelerated].map(|side| {
        let Counts { calls, yields } = counted(name, side);
        calls + yields
    });
    assert!(plain >= COUNTED as u64, "{plain} calls");
    // A vector that grows may cost a few, however many connections there are.
    assert!(accelerated <= plain + 5, "{accelerated} system calls, {plain} without the library");
}

/// `trials`: calls for those times when memory is tried again, or the count of bytes is read from
/// the kernel.
#[track_caller]
fn check_costs_little(name: &str, trials: usize) {
    // A call that is counted takes so long that only some fit into a spin, so it is short.
    let settings = [("NEARMETAL_ACCEL_SPIN_US", "20")];
    let plain = counted(name, Side::Kernel);
    let Counts { calls, yields } = counted_with(name, Side::Accelerated, &settings);
    let limit = plain.calls + trials as u64;
    assert!(calls <= limit, "{calls} system calls, {} without the library", plain.calls);
    // One in each wait, and more in trials.
    assert!(yields <= 4 * COUNTED as u64, "{yields} yields");
}

/// Prints how many system calls `work` makes.
fn print_calls(work: impl FnOnce() + Send) {
    let ((), calls) = system_calls(work);
    let (yields, others): (Vec<i64>, Vec<i64>) =
        calls.values().flatten().copied().partition(|number| *number == libc::SYS_sched_yield);
    note(&format!("{} {}", others.len(), yields.len()));
}

/// A connection for so many requests, with its server in an epoll set.
fn requests(count: usize, listening: Fd, address: &Address, set: Fd) {
    let client = connected(address);
    let server = accept4(listening, libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC).unwrap();
    epoll_ctl(set, libc::EPOLL_CTL_ADD, server, (EPOLLIN | EPOLLET) as u32, 7).unwrap();
    for rest in (0..count).rev() {
        send_all(client, b"request");
        assert_eq!(epoll_wait(set, 8, SOON_MS).unwrap().len(), 1);
        assert_eq!(recv(server, &mut [0; 100], 0), Ok(7));
        send_all(server, b"answer");
        if rest == 0 {
            close(server).unwrap();
        }
        assert_eq!(recv_exact(client, 6), b"answer");
    }
    // Leaves no port in TIME_WAIT.
    let reset = libc::linger { l_onoff: 1, l_linger: 0 };
    set_option(client, SOL_SOCKET, SO_LINGER, reset).unwrap();
    close(client).unwrap();
}

/// Connections one after the other, of so many requests each.
fn connections_of(count: usize) {
    let (listening, address) = listener(Family::V4);
    let set = epoll_create();
    (0..BEFORE).for_each(|_| requests(count, listening, &address, set));
    print_calls(|| (0..COUNTED).for_each(|_| requests(count, listening, &address, set)));
}

fn short_connections() {
    connections_of(1);
}

fn connections_of_some_requests() {
    connections_of(40);
}

/// Connections of a process that has too many of them.
fn connections_of_a_crowd() {
    raise_descriptor_limit();
    let (listening, address) = listener(Family::V4);
    let set = epoll_create();
    let others: Vec<[Fd; 2]> =
        (0..CROWD / 2).map(|_| [connected(&address), accept(listening).unwrap()]).collect();
    print_calls(|| (0..COUNTED).for_each(|_| requests(40, listening, &address, set)));
    others.into_iter().flatten().for_each(close_with_reset);
}

/// Waits by poll and by epoll for a connection that has not joined.
fn waits_without_memory() {
    let pair = unused_pair();
    let set = epoll_create();
    epoll_ctl(set, libc::EPOLL_CTL_ADD, pair.server, EPOLLIN as u32, 7).unwrap();
    print_calls(|| {
        for _ in 0..COUNTED {
            let mut list = [pollfd { fd: pair.client, events: POLLIN, revents: 0 }];
            assert_eq!(poll(&mut list, 1), Ok(0));
            assert_eq!(epoll_wait(set, 8, 1).unwrap(), []);
            assert_eq!(epoll_wait(set, 8, 0).unwrap(), []);
        }
    });
}

/// Answers as web servers send them, from memory to a receiver that does not sleep.
fn corked_answers() {
    let pair = if accelerated() { joined_pair() } else { unused_pair() };
    print_calls(|| {
        for _ in 0..COUNTED {
            set_option(pair.server, IPPROTO_TCP, TCP_CORK, 1).unwrap();
            assert_eq!(option(pair.server, IPPROTO_TCP, TCP_CORK), Ok(1));
            send_all(pair.server, b"head");
            send_all(pair.server, b"body");
            set_option(pair.server, IPPROTO_TCP, TCP_CORK, 0).unwrap();
            assert_eq!(recv_exact(pair.client, 8), b"headbody");
        }
    });
}

/// A message that the peer has not received when its sender goes to sleep.
fn large_message_taken_back(pair: &Pair, message: &[u8]) {
    send_all(pair.client, message);
    let mut list = [pollfd { fd: pair.client, events: POLLIN, revents: 0 }];
    assert_eq!(poll(&mut list, 1), Ok(0));
    assert_bytes(&recv_exact(pair.server, message.len()), message);
}

fn few_large_messages_taken_back() {
    let pair = if accelerated() { joined_pair() } else { unused_pair() };
    let message = pattern(1, LARGE_BYTES);
    print_calls(|| (0..FEW).for_each(|_| large_message_taken_back(&pair, &message)));
}

fn large_messages_taken_back() {
    let pair = if accelerated() { joined_pair() } else { unused_pair() };
    let message = pattern(1, LARGE_BYTES);
    (0..BEFORE).for_each(|_| large_message_taken_back(&pair, &message));
    print_calls(|| (0..COUNTED).for_each(|_| large_message_taken_back(&pair, &message)));
}

/// Waits for messages that memory may not hold, because the sender's buffer is smaller.
fn waits_for_what_the_kernel_carries() {
    let pair = if accelerated() { joined_pair() } else { unused_pair() };
    set_option(pair.client, SOL_SOCKET, SO_SNDBUF, 8 * 1024).unwrap();
    let message = pattern(1, 10_000);
    let round = || {
        let mut list = [pollfd { fd: pair.server, events: POLLIN, revents: 0 }];
        assert_eq!(poll(&mut list, 1), Ok(0));
        send_all(pair.client, &message);
        assert_eq!(poll(&mut list, SOON_MS), Ok(1));
        assert_bytes(&recv_exact(pair.server, message.len()), &message);
    };
    (0..BEFORE).for_each(|_| round());
    print_calls(|| (0..COUNTED).for_each(|_| round()));
}

/// Two processes on one CPU ask and answer.
fn answers_on_one_cpu() {
    on_one_cpu();
    let (fd, child) = joined_with_child(echo_child);
    let round = || {
        send_all(fd, b"request");
        assert_eq!(recv_exact(fd, 7), b"request");
    };
    (0..BEFORE).for_each(|_| round());
    print_calls(|| (0..COUNTED).for_each(|_| round()));
    close(fd).unwrap();
    child.join();
}

#[test]
fn ends_on_one_cpu_answer_each_other_in_memory() {
    // Beside others on the CPU many waits end in a sleep, as on the kernel, which needs two calls
    // for each answer.
    let plain = counted("answers_on_one_cpu", Side::Kernel).calls;
    let limit = plain - plain / 10;
    let is_within = |_| counted("answers_on_one_cpu", Side::Accelerated).calls < limit;
    assert!((0..TRIES).any(is_within), "{limit} system calls or more, of the kernel's {plain}");
}

#[test]
fn taking_back_a_large_message_is_one_call_that_sends() {
    let calls = counted("few_large_messages_taken_back", Side::Accelerated).calls;
    // Beside it, the sender asks the kernel for its space and counts, and the receiver may be
    // given the message in pieces.
    assert!(calls <= 20 * FEW as u64, "{calls} system calls");
}

#[test]
fn messages_that_would_be_taken_back_go_through_the_kernel_at_once() {
    check_costs_little("large_messages_taken_back", COUNTED);
}

#[test]
fn waits_that_memory_never_answers_soon_cost_nothing() {
    check_costs_little("waits_for_what_the_kernel_carries", COUNTED / 4);
}

#[test]
fn cork_costs_no_system_call_for_bytes_in_memory() {
    let calls = counted("corked_answers", Side::Accelerated).calls;
    // The program's question for its value is a call of the kernel.
    assert!(calls < 2 * COUNTED as u64, "{calls} system calls");
}

#[test]
fn short_connections_need_no_more_system_calls_than_without_the_library() {
    check_costs_nothing("short_connections");
}

#[test]
fn connections_of_a_crowd_need_no_more_system_calls_than_without_the_library() {
    check_costs_nothing("connections_of_a_crowd");
}

#[test]
fn connections_that_end_before_meeting_pays_do_not_meet() {
    check_costs_nothing("connections_of_some_requests");
}

#[test]
fn waits_for_connections_that_have_not_joined_are_one_system_call_each() {
    check_costs_nothing("waits_without_memory");
}

/// System calls that a move to memory may cost both ends together, looks for their peers included.
const CALLS_PER_MOVE: u64 = 300;

/// Connections that do not block and are in no set, until all have moved to memory if the library
/// is there.
fn connections_move_without_a_set() {
    let (listening, address) = listener(Family::V4);
    let pairs: Vec<Pair> = (0..2 * COUNTED)
        .map(|_| {
            let client = connected(&address);
            let server = accept4(listening, libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC).unwrap();
            nonblocking(client, true);
            Pair { client, server }
        })
        .collect();
    print_calls(|| pairs.iter().copied().for_each(|pair| _ = join_both_ends(pair)));
}

#[test]
fn a_move_costs_the_same_however_many_connections_there_are() {
    let settings = [("NEARMETAL_ACCEL_AFTER", "1")];
    let plain = counted("connections_move_without_a_set", Side::Kernel).calls;
    let name = "connections_move_without_a_set";
    let moved = counted_with(name, Side::Accelerated, &settings).calls;
    let limit = plain + 2 * COUNTED as u64 * CALLS_PER_MOVE;
    assert!(moved <= limit, "{moved} system calls, {plain} without the library");
}
