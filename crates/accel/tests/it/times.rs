//! Time limits: which calls time out, with which error, not too early, and the state afterwards.

use std::time::Duration;

use libc::{MSG_WAITALL, POLLIN, SO_RCVTIMEO, SO_SNDTIMEO, pollfd};
use nm_sys::clock::Moment;

use crate::calls::*;
use crate::support::*;

behaviours![
    receive_times_out,
    read_times_out,
    recvmsg_times_out,
    receive_within_its_limit_returns_data,
    limit_of_zero_is_none,
    wait_for_all_returns_what_arrived_in_time,
    wait_for_all_without_data_times_out,
    send_times_out,
    send_returns_the_count_sent_in_time,
    slow_reader_does_not_extend_the_limit_of_a_send,
    steady_reader_does_not_extend_the_limit_of_a_send,
    limit_is_read_back,
    limit_set_before_joining_applies,
    send_and_receive_limits_are_independent,
    limit_does_not_affect_nonblocking_calls,
    poll_times_out,
    epoll_times_out,
    select_times_out,
    limit_belongs_to_the_description,
];

/// Sends 64 MiB with a time limit to a reader that takes `bytes` at a time and pauses.
fn must_end_at_the_limit(limit_ms: i64, bytes: usize, pause: impl Fn() + Sync) {
    let pair = joined_pair();
    set_limit(pair.client, SO_SNDTIMEO, limit_ms);
    let sent_bytes = vec![7; 64 << 20];
    let has_ended = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut buffer = vec![0; bytes];
            while !has_ended.load(std::sync::atomic::Ordering::Relaxed) {
                let _ = recv(pair.server, &mut buffer, libc::MSG_DONTWAIT);
                pause();
            }
        });
        let sent = send(pair.client, &sent_bytes, 0);
        has_ended.store(true, std::sync::atomic::Ordering::Relaxed);
        assert!(sent.unwrap() < sent_bytes.len(), "the limit has begun anew");
    });
}

/// The limit is one of the call, however large: a reader that takes a little at a time does not
/// begin it anew.
fn slow_reader_does_not_extend_the_limit_of_a_send() {
    must_end_at_the_limit(60, 200_000, || pause_ms(1));
}

/// One for which no wait is long.
fn steady_reader_does_not_extend_the_limit_of_a_send() {
    let pause = Duration::from_micros(8);
    must_end_at_the_limit(10, 16 << 10, || {
        let start = Moment::now();
        while start.elapsed() < pause {}
    });
}

/// Runs `call` and requires that it takes at least `ms`.
#[track_caller]
fn at_least<T>(ms: u64, call: impl FnOnce() -> T) -> T {
    let start = Moment::now();
    let result = call();
    // The kernel counts in its own ticks, which are at most 10 ms.
    let took = start.elapsed();
    assert!(took.as_millis() as u64 + 10 >= ms, "gave up after {took:?}, not {ms} ms");
    result
}

fn receive_times_out() {
    let pair = joined_pair();
    set_limit(pair.server, SO_RCVTIMEO, 60);
    assert_eq!(at_least(60, || recv(pair.server, &mut [0], 0)), Err(AGAIN));
    assert_eq!(at_least(60, || recv(pair.server, &mut [0], libc::MSG_PEEK)), Err(AGAIN));
    send_all(pair.client, b"x");
    assert_eq!(recv(pair.server, &mut [0], 0), Ok(1));
    assert_state(pair.server, JOINED);
}

fn read_times_out() {
    let pair = joined_pair();
    set_limit(pair.server, SO_RCVTIMEO, 40);
    assert_eq!(at_least(40, || read(pair.server, &mut [0])), Err(AGAIN));
    assert_eq!(at_least(40, || readv(pair.server, &mut [&mut [0]])), Err(AGAIN));
}

fn recvmsg_times_out() {
    let pair = joined_pair();
    set_limit(pair.server, SO_RCVTIMEO, 40);
    assert_eq!(at_least(40, || recvmsg(pair.server, &mut [&mut [0]], 0)), Err(AGAIN));
}

fn receive_within_its_limit_returns_data() {
    let pair = joined_pair();
    set_limit(pair.server, SO_RCVTIMEO, 20_000);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            pause_ms(30);
            send_all(pair.client, b"in time");
        });
        assert_eq!(recv(pair.server, &mut [0; 20], 0), Ok(7));
    });
}

fn limit_of_zero_is_none() {
    let pair = joined_pair();
    set_limit(pair.server, SO_RCVTIMEO, 20);
    assert_eq!(recv(pair.server, &mut [0], 0), Err(AGAIN));
    set_limit(pair.server, SO_RCVTIMEO, 0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            pause_ms(60);
            send_all(pair.client, b"x");
        });
        assert_eq!(recv(pair.server, &mut [0], 0), Ok(1));
    });
}

fn wait_for_all_returns_what_arrived_in_time() {
    let pair = joined_pair();
    set_limit(pair.server, SO_RCVTIMEO, 50);
    send_all(pair.client, b"half");
    let mut buffer = [0; 8];
    assert_eq!(at_least(50, || recv(pair.server, &mut buffer, MSG_WAITALL)), Ok(4));
    assert_eq!(&buffer[..4], b"half");
}

fn wait_for_all_without_data_times_out() {
    let pair = joined_pair();
    set_limit(pair.server, SO_RCVTIMEO, 50);
    assert_eq!(at_least(50, || recv(pair.server, &mut [0; 8], MSG_WAITALL)), Err(AGAIN));
}

fn send_times_out() {
    let pair = joined_pair();
    let mut sent = fill(pair.client, 1);
    set_limit(pair.client, SO_SNDTIMEO, 60);
    let one = |byte: &[u8]| send(pair.client, byte, 0);
    assert_eq!(at_least(60, || refused_byte(1, &mut sent, one)), Err(AGAIN));
    assert_bytes(&recv_exact(pair.server, sent), &pattern(1, sent));
    assert_eq!(send(pair.client, b"x", 0), Ok(1));
    assert_eq!(recv_exact(pair.server, 1), b"x");
}

fn send_returns_the_count_sent_in_time() {
    let pair = joined_pair();
    set_limit(pair.client, SO_SNDTIMEO, 60);
    let bytes = pattern(2, 24 << 20);
    let sent = at_least(60, || send(pair.client, &bytes, 0)).unwrap();
    assert!(0 < sent && sent < bytes.len());
    assert_bytes(&recv_exact(pair.server, sent), &bytes[..sent]);
}

fn limit_is_read_back() {
    let pair = joined_pair();
    set_limit(pair.server, SO_RCVTIMEO, 3_000);
    let mut value = libc::timeval { tv_sec: 0, tv_usec: 0 };
    let mut length = size_of_val(&value) as libc::socklen_t;
    let at = (&raw mut value).cast();
    // SAFETY: value and length are live for the call.
    let result = unsafe {
        libc::getsockopt(pair.server, libc::SOL_SOCKET, SO_RCVTIMEO, at, &raw mut length)
    };
    assert_eq!((result, value.tv_sec, value.tv_usec), (0, 3, 0));
}

fn limit_set_before_joining_applies() {
    let pair = unused_pair();
    set_limit(pair.server, SO_RCVTIMEO, 40);
    let pair = join_both_ends(pair);
    assert_eq!(at_least(40, || recv(pair.server, &mut [0], 0)), Err(AGAIN));
}

fn send_and_receive_limits_are_independent() {
    let pair = joined_pair();
    set_limit(pair.client, SO_SNDTIMEO, 20);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            pause_ms(60);
            send_all(pair.server, b"x");
        });
        assert_eq!(recv(pair.client, &mut [0], 0), Ok(1));
    });
}

fn limit_does_not_affect_nonblocking_calls() {
    let pair = joined_nonblocking();
    set_limit(pair.server, SO_RCVTIMEO, 50_000);
    assert_eq!(recv(pair.server, &mut [0], 0), Err(AGAIN));
}

fn poll_times_out() {
    let pair = joined_pair();
    let mut list = [pollfd { fd: pair.server, events: POLLIN, revents: 7 }];
    assert_eq!(at_least(60, || poll(&mut list, 60)), Ok(0));
    assert_eq!(list[0].revents, 0);
    assert_eq!(at_least(30, || ppoll(&mut list, Some(30_500_000), None)), Ok(0));
}

fn epoll_times_out() {
    let pair = joined_pair();
    let set = epoll_create();
    epoll_ctl(set, libc::EPOLL_CTL_ADD, pair.server, libc::EPOLLIN as u32, 1).unwrap();
    assert_eq!(at_least(60, || epoll_wait(set, 4, 60)), Ok(vec![]));
    assert_eq!(at_least(30, || epoll_wait_ns(set, Some(30_500_000))), Ok(vec![]));
}

fn select_times_out() {
    let pair = joined_pair();
    let (mut reads, mut time_us) = (Set::of(&[pair.server]), 60_000);
    let found = at_least(60, || select(Some(&mut reads), None, None, Some(&mut time_us)));
    assert_eq!((found, reads.has(pair.server), time_us), (Ok(0), false, 0));
}

fn limit_belongs_to_the_description() {
    let pair = joined_pair();
    let other = dup(pair.server).unwrap();
    set_limit(other, SO_RCVTIMEO, 40);
    assert_eq!(at_least(40, || recv(pair.server, &mut [0], 0)), Err(AGAIN));
}
