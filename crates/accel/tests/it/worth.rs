//! Connections that memory does not serve. They leave it for good, and their memory returns to the
//! system. A process whose connections all did tries no more.

use std::time::Duration;

use libc::{POLLIN, pollfd};
use nm_ring::ledger::{KernelReason, LedgerView};
use nm_sys::clock::Deadline;

use crate::calls::*;
use crate::harness::{Body, Side, another, state};
use crate::joining::{ledgers, reasons};
use crate::support::*;
use crate::ways::{IN, recv_now};

/// Programs that the tests start with settings of their own.
pub(crate) const PEERS: &[Body] = &[
    (concat!(module_path!(), "::receivers_that_sleep"), receivers_that_sleep),
    (concat!(module_path!(), "::crowd"), crowd),
    (concat!(module_path!(), "::both_ends_after_the_time"), both_ends_after_the_time),
];

/// Connections in a row that are not worth it before a process tries no more.
const STREAK: usize = 8;

/// Bytes that each connection's memory holds at first.
const FIRST_BYTES: usize = 100_000;

/// So long a thread is not in a call, while the other end goes to sleep.
const PAUSE: Duration = Duration::from_micros(300);

/// Runs of which one must show that a process stops after a row of such connections. On a busy
/// machine memory carries enough for one of them now and then: that ends the row.
const TRIES: usize = 8;

/// What a run says whose row has ended.
const TRIES_AGAIN: &str = "the process tries again";

/// Time within which all connections are judged on a busy machine.
const JUDGED: Duration = Duration::from_secs(80);

/// Connections that take more than the first time for searches, each less than 0.2 ms.
const BEYOND_THE_TIME: usize = 40;

/// Most connections that are counted: one more takes the others with it.
const REGISTERED: usize = 1_024;

/// Connections of a crowd.
pub(crate) const CROWD: usize = 2_100;

const KERNEL: i32 = 1;
const UNMANAGED: i32 = 0;
const CANDIDATE: i32 = 2;
const JOINED: i32 = 3;

/// Runs a body with these settings.
#[track_caller]
fn check(name: &str, settings: &[(&str, &str)]) {
    run(name, settings).unwrap_or_else(|text| panic!("{name}: {text}"));
}

/// Runs a body with these settings; an error is what it has written.
fn run(name: &str, settings: &[(&str, &str)]) -> Result<(), String> {
    let mut program = another(&format!("{}::{name}", module_path!()), Side::Accelerated);
    let output = program.envs(settings.iter().copied()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    output.status.success().then_some(()).ok_or(text)
}

/// Bytes of the connections' memory that are present in this process.
fn present_bytes() -> usize {
    let text = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let (mut is_ours, mut kilobytes) = (false, 0);
    for line in text.lines() {
        if line.contains("/memfd:") {
            is_ours = line.contains("nearmetal-conduit");
        } else if let Some(size) = line.strip_prefix("Rss:").filter(|_| is_ours) {
            kilobytes += size.trim().trim_end_matches(" kB").parse::<usize>().unwrap();
            is_ours = false;
        }
    }
    kilobytes * 1024
}

/// The other end, once the memory was measured: receives what is there, then answers each message a
/// moment after it came.
fn answer(fd: Fd) {
    recv_exact(fd, FIRST_BYTES);
    send_all(fd, b"all");
    while ready(fd, POLLIN, -1) & POLLIN != 0 {
        let message = recv_now(fd);
        if message.is_empty() {
            break;
        }
        std::thread::sleep(PAUSE);
        send_all(fd, &message);
    }
}

/// One message on each connection, and the answers.
fn exchange(fds: &[Fd]) {
    std::thread::sleep(PAUSE);
    fds.iter().for_each(|fd| send_all(*fd, b"message"));
    let mut left: Vec<pollfd> =
        fds.iter().map(|fd| pollfd { fd: *fd, events: POLLIN, revents: 0 }).collect();
    while !left.is_empty() {
        poll(&mut left, SOON_MS).unwrap();
        for entry in left.iter().filter(|entry| entry.revents != 0) {
            assert_eq!(recv_exact(entry.fd, 7), b"message");
        }
        left.retain(|entry| entry.revents == 0);
    }
}

/// Each message goes to a receiver that sleeps in the kernel.
fn receivers_that_sleep() {
    let measured = pipe();
    let answer_then = |fd| {
        assert_eq!(read(measured[0], &mut [0]), Ok(1));
        answer(fd);
    };
    let pairs: Vec<(Fd, Process)> = (0..STREAK).map(|_| joined_with_child(answer_then)).collect();
    let fds: Vec<Fd> = pairs.iter().map(|(fd, _)| *fd).collect();
    fds.iter().for_each(|fd| send_all(*fd, &pattern(1, FIRST_BYTES)));
    let before = present_bytes();
    assert!(before >= STREAK * FIRST_BYTES, "{before} bytes in memory");
    write(measured[1], &[0; STREAK]).unwrap();
    fds.iter().for_each(|fd| assert_eq!(recv_exact(*fd, 3), b"all"));
    let deadline = Deadline::after(JUDGED);
    let not_worth = || reasons().iter().filter(|it| it.0 == KernelReason::NotWorthIt).count();
    // The children's ends are in the same ledger.
    while not_worth() < 2 * STREAK {
        assert!(!deadline.passed(), "{} ends are judged: {:?}", not_worth(), reasons());
        (0..100).for_each(|_| exchange(&fds));
    }
    let after = present_bytes();
    assert!(after < before / 2, "{after} bytes in memory, {before} before");
    // They go on through the kernel, and a new connection does not try.
    exchange(&fds);
    let pair = unused_pair();
    let states = (state(pair.client), state(pair.server));
    assert_eq!(states, (Some(KERNEL), Some(KERNEL)), "{TRIES_AGAIN}");
    assert_eq!(not_worth(), 2 * STREAK + 2, "{TRIES_AGAIN}");
    for (fd, child) in pairs {
        // Later children hold the descriptor too.
        shutdown(fd, libc::SHUT_WR).unwrap();
        child.join();
    }
}

#[test]
fn connections_whose_receivers_sleep_leave_memory_for_good() {
    // Receivers sleep at once.
    let settings = [("NEARMETAL_ACCEL_SPIN_US", "0")];
    let runs = (0..TRIES).map(|_| run("receivers_that_sleep", &settings));
    let failed: Vec<String> = runs.map_while(Result::err).collect();
    let other = failed.iter().find(|text| !text.contains(TRIES_AGAIN));
    assert!(failed.len() < TRIES && other.is_none(), "{}", failed.join("\n"));
}

/// Raises the limit of descriptors as far as this process may.
pub(crate) fn raise_descriptor_limit() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the limit is live for both calls.
    unsafe {
        assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit), 0);
        limit.rlim_cur = limit.rlim_max;
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit), 0);
    }
}

/// So many connections are open at once, and then few.
fn crowd() {
    raise_descriptor_limit();
    let joined = joined_pair();
    let (listening, address) = listener(Family::V4);
    let pair = || Pair { client: connected(&address), server: accept(listening).unwrap() };
    let mut pairs: Vec<Pair> = (0..(REGISTERED - 2) / 2).map(|_| pair()).collect();
    let first = pairs[0];
    assert_eq!(state(first.client), Some(CANDIDATE));
    let set = epoll_create();
    epoll_ctl(set, libc::EPOLL_CTL_ADD, first.server, IN, 1).unwrap();
    epoll_ctl(set, libc::EPOLL_CTL_ADD, joined.server, IN, 2).unwrap();
    let waiter = std::thread::spawn(move || recv_exact(first.client, 5));
    pause_ms(50);
    let left_out = || ledgers().iter().map(LedgerView::left_out).sum::<u64>();
    assert_eq!(left_out(), 0);
    pairs.extend((0..(CROWD - REGISTERED) / 2).map(|_| pair()));
    let last = pairs[pairs.len() - 1];
    for fd in [first.client, first.server, last.client, last.server] {
        assert_eq!(state(fd), Some(UNMANAGED));
    }
    assert_eq!(left_out(), CROWD as u64 - 2, "each one once, but not those in memory");
    assert_eq!(state(joined.client), Some(JOINED));
    send_all(first.server, b"later");
    assert_eq!(waiter.join().unwrap(), b"later");
    check_both_directions(last);
    check_both_directions(joined);
    epoll_ctl(set, libc::EPOLL_CTL_ADD, last.server, IN, 3).unwrap();
    check_events(set, [(first, 1), (joined, 2), (last, 3)]);
    epoll_ctl(set, libc::EPOLL_CTL_MOD, first.server, IN, 4).unwrap();
    check_events(set, [(last, 3), (first, 4), (joined, 2)]);
    epoll_ctl(set, libc::EPOLL_CTL_DEL, first.server, 0, 0).unwrap();
    send_all(first.client, b"x");
    assert_eq!(epoll_wait(set, 4, 0), Ok(vec![]));
    assert_eq!(recv_now(first.server), b"x");
    check_end_of_crowd(pairs, pair);
}

/// Each message to a server of the set is reported with its data, and received.
fn check_events(set: Fd, pairs: [(Pair, u64); 3]) {
    for (pair, data) in pairs {
        send_all(pair.client, b"x");
        assert_eq!(epoll_wait(set, 4, SOON_MS), Ok(vec![(IN, data)]));
        assert_eq!(ready(pair.server, POLLIN, SOON_MS), POLLIN);
        assert_eq!(recv_now(pair.server), b"x");
    }
}

/// The crowd lasts until half of those are left that it takes; then new connections may share
/// memory again.
fn check_end_of_crowd(mut pairs: Vec<Pair>, pair: impl Fn() -> Pair) {
    let mut close_until = |rest: usize| {
        for pair in pairs.drain(rest / 2..) {
            [pair.client, pair.server].into_iter().for_each(close_with_reset);
        }
    };
    close_until(REGISTERED / 2 + 10);
    let late = pair();
    assert_eq!((state(late.client), state(late.server)), (Some(UNMANAGED), Some(UNMANAGED)));
    close_until(REGISTERED / 2 - 20);
    let late = pair();
    assert_eq!((state(late.client), state(late.server)), (Some(CANDIDATE), Some(CANDIDATE)));
    check_both_directions(late);
}

#[test]
fn connections_beyond_a_crowd_are_left_to_the_kernel() {
    check("crowd", &[("NEARMETAL_ACCEL_AFTER", "32")]);
}

/// Exchanges messages until both ends are in shared memory, or have been left to the kernel.
fn has_joined(pair: Pair) -> bool {
    let deadline = Deadline::after(SOON);
    loop {
        let states = [pair.client, pair.server].map(|fd| state(fd).unwrap());
        if states == [JOINED; 2] || states == [KERNEL; 2] {
            return states == [JOINED; 2];
        }
        assert!(!deadline.passed(), "neither joined nor left: {states:?}");
        one_byte(pair.client, pair.server);
        one_byte(pair.server, pair.client);
    }
}

/// Both ends are in this process, which has used up what its searches may take: the end that waits
/// must leave the other one the time to answer. Where both ask at the same calls, only the first
/// few join; a busy machine may leave some of the others to the kernel.
fn both_ends_after_the_time() {
    let joined: Vec<Pair> =
        (0..BEYOND_THE_TIME).map(|_| unused_pair()).filter(|pair| has_joined(*pair)).collect();
    let count = joined.len();
    assert!(count > BEYOND_THE_TIME * 3 / 4, "{count} of {BEYOND_THE_TIME}: {:?}", reasons());
    check_both_directions(joined[count - 1]);
}

#[test]
fn both_ends_in_one_process_meet_after_the_first_time_for_searches() {
    check("both_ends_after_the_time", &[("NEARMETAL_ACCEL_AFTER", "32")]);
}
