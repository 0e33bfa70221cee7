//! Options, addresses and queries: the kernel's own answers where it has them, correct ones
//! elsewhere.

use libc::{IPPROTO_TCP, MSG_DONTWAIT, MSG_NOSIGNAL, POLLIN, SOL_SOCKET};

use crate::calls::*;
use crate::support::*;

behaviours![
    no_delay_is_kept,
    buffer_sizes_are_doubled,
    small_receive_buffer_limits_data,
    keepalive_is_kept,
    reuse_and_priority_are_kept,
    quickack_and_cork_lose_nothing,
    corked_bytes_reach_a_sleeper_when_the_cork_is_removed,
    cork_outlives_the_use_of_memory,
    user_timeout_is_kept,
    type_domain_protocol,
    accepting_or_not,
    names_of_both_ends,
    names_of_ipv6,
    names_of_mapped_ipv4,
    fionread_counts,
    fionread_after_partial_reads,
    siocoutq_reaches_zero,
    siocoutq_reaches_zero_before_the_peer_reads,
    no_error_is_pending,
    unknown_option_is_rejected,
    option_with_a_bad_length_is_rejected,
    low_water_mark_delays_poll,
    low_water_mark_for_a_blocking_receive,
    low_water_mark_keeps_unread_bytes,
    timestamps_keep_unread_bytes,
    urgent_data_arrives_inline,
    urgent_data_out_of_band,
    urgent_data_keeps_unread_bytes,
    asynchronous_input_signals,
    peek_offset_keeps_unread_bytes,
    nonblocking_by_fionbio,
    nonblocking_by_fcntl_and_back,
    nonblocking_is_shared_by_duplicates,
    tcp_info_reports_established,
    file_status_of_a_socket,
    no_bytes_lost_when_an_option_returns_both_directions,
    zero_copy_sends,
    congestion_control_is_a_name,
    bind_to_device_is_queried,
];

fn tcp(fd: Fd, name: i32) -> Outcome<i32> {
    option(fd, IPPROTO_TCP, name)
}

/// Data is still transferred in both directions.
#[track_caller]
fn check_alive(pair: Pair) {
    for round in 0..20 {
        for (from, to) in [(pair.client, pair.server), (pair.server, pair.client)] {
            send_all(from, &pattern(round, 777));
            assert_bytes(&recv_exact(to, 777), &pattern(round, 777));
        }
    }
}

fn no_delay_is_kept() {
    let pair = joined_pair();
    assert_eq!(tcp(pair.client, libc::TCP_NODELAY), Ok(0));
    assert_eq!(tcp(pair.server, libc::TCP_NODELAY), Ok(0));
    for on in [1, 0, 1] {
        set_option(pair.client, IPPROTO_TCP, libc::TCP_NODELAY, on).unwrap();
        assert_eq!(tcp(pair.client, libc::TCP_NODELAY), Ok(on));
        check_alive(pair);
    }
    assert_state(pair.client, JOINED);
}

fn buffer_sizes_are_doubled() {
    let pair = joined_pair();
    for name in [libc::SO_SNDBUF, libc::SO_RCVBUF] {
        set_option(pair.client, SOL_SOCKET, name, 30_000).unwrap();
        assert_eq!(option(pair.client, SOL_SOCKET, name), Ok(60_000));
    }
    check_alive(pair);
}

fn small_receive_buffer_limits_data() {
    let (listening, address) = listener(Family::V4);
    set_option(listening, SOL_SOCKET, libc::SO_RCVBUF, 4096).unwrap();
    let client = connected(&address);
    set_option(client, SOL_SOCKET, libc::SO_SNDBUF, 4096).unwrap();
    let pair = join_both_ends(Pair { client, server: accept(listening).unwrap() });
    let sent = fill(pair.client, 1);
    assert!(sent > 0);
    assert_bytes(&recv_exact(pair.server, sent), &pattern(1, sent));
    check_alive(pair);
}

fn keepalive_is_kept() {
    let pair = joined_pair();
    set_option(pair.client, SOL_SOCKET, libc::SO_KEEPALIVE, 1).unwrap();
    set_option(pair.client, IPPROTO_TCP, libc::TCP_KEEPIDLE, 17).unwrap();
    set_option(pair.client, IPPROTO_TCP, libc::TCP_KEEPINTVL, 3).unwrap();
    assert_eq!(option(pair.client, SOL_SOCKET, libc::SO_KEEPALIVE), Ok(1));
    assert_eq!(tcp(pair.client, libc::TCP_KEEPIDLE), Ok(17));
    assert_eq!(tcp(pair.client, libc::TCP_KEEPINTVL), Ok(3));
    check_alive(pair);
    assert_state(pair.client, JOINED);
}

fn reuse_and_priority_are_kept() {
    let pair = joined_pair();
    for (name, value) in [(libc::SO_REUSEADDR, 1), (libc::SO_PRIORITY, 3)] {
        set_option(pair.client, SOL_SOCKET, name, value).unwrap();
        assert_eq!(option(pair.client, SOL_SOCKET, name), Ok(value));
    }
    check_alive(pair);
    assert_state(pair.client, JOINED);
}

fn quickack_and_cork_lose_nothing() {
    let pair = joined_pair();
    set_option(pair.server, IPPROTO_TCP, libc::TCP_QUICKACK, 1).unwrap();
    set_option(pair.client, IPPROTO_TCP, libc::TCP_CORK, 1).unwrap();
    assert_eq!(tcp(pair.client, libc::TCP_CORK), Ok(1));
    send_all(pair.client, b"held ");
    send_all(pair.client, b"back");
    set_option(pair.client, IPPROTO_TCP, libc::TCP_CORK, 0).unwrap();
    assert_eq!(recv_exact(pair.server, 9), b"held back");
    check_alive(pair);
}

/// What is corked reaches a receiver that sleeps once the cork is removed, whichever way it goes.
fn corked_bytes_reach_a_sleeper_when_the_cork_is_removed() {
    let pair = joined_pair();
    for round in 0..20_u64 {
        set_option(pair.client, IPPROTO_TCP, libc::TCP_CORK, 1).unwrap();
        assert_eq!(tcp(pair.client, libc::TCP_CORK), Ok(1));
        std::thread::scope(|scope| {
            let receiver = scope.spawn(|| recv_exact(pair.server, 300));
            if round % 2 == 0 {
                std::thread::sleep(std::time::Duration::from_millis(3));
            }
            send_all(pair.client, &pattern(round, 300)[..100]);
            send_all(pair.client, &pattern(round, 300)[100..]);
            set_option(pair.client, IPPROTO_TCP, libc::TCP_CORK, 0).unwrap();
            assert_bytes(&receiver.join().unwrap(), &pattern(round, 300));
        });
        assert_eq!(tcp(pair.client, libc::TCP_CORK), Ok(0));
        check_alive(pair);
    }
}

/// The kernel must know of a cork that was set while bytes went through memory.
fn cork_outlives_the_use_of_memory() {
    let pair = joined_pair();
    set_option(pair.client, IPPROTO_TCP, libc::TCP_CORK, 1).unwrap();
    // The socket returns to the kernel.
    set_option(pair.client, SOL_SOCKET, libc::SO_RCVLOWAT, 2).unwrap();
    assert_eq!(tcp(pair.client, libc::TCP_CORK), Ok(1));
    send_all(pair.client, b"held back by the cork");
    set_option(pair.client, IPPROTO_TCP, libc::TCP_CORK, 0).unwrap();
    assert_eq!(tcp(pair.client, libc::TCP_CORK), Ok(0));
    assert_eq!(recv_exact(pair.server, 21), b"held back by the cork");
    send_all(pair.server, b"answer");
    assert_eq!(recv_exact(pair.client, 6), b"answer");
}

fn user_timeout_is_kept() {
    let pair = joined_pair();
    set_option(pair.client, IPPROTO_TCP, libc::TCP_USER_TIMEOUT, 5000).unwrap();
    assert_eq!(tcp(pair.client, libc::TCP_USER_TIMEOUT), Ok(5000));
    check_alive(pair);
}

fn type_domain_protocol() {
    for (family, domain) in [(Family::V4, libc::AF_INET), (Family::V6, libc::AF_INET6)] {
        let pair = joined_pair_of(family);
        for fd in [pair.client, pair.server] {
            assert_eq!(option(fd, SOL_SOCKET, libc::SO_TYPE), Ok(libc::SOCK_STREAM));
            assert_eq!(option(fd, SOL_SOCKET, libc::SO_DOMAIN), Ok(domain));
            assert_eq!(option(fd, SOL_SOCKET, libc::SO_PROTOCOL), Ok(IPPROTO_TCP));
        }
    }
}

fn accepting_or_not() {
    let (listening, _) = listener(Family::V4);
    assert_eq!(option(listening, SOL_SOCKET, libc::SO_ACCEPTCONN), Ok(1));
    let pair = joined_pair();
    assert_eq!(option(pair.server, SOL_SOCKET, libc::SO_ACCEPTCONN), Ok(0));
}

/// Each end's own address is the other's peer address.
#[track_caller]
fn check_names(pair: Pair, family: Family) {
    for (own, other) in [(pair.client, pair.server), (pair.server, pair.client)] {
        let (name, peer) = (getsockname(own).unwrap(), getpeername(other).unwrap());
        assert_eq!((name.port(), name.length), (peer.port(), peer.length));
        let wanted = family.address(name.port());
        assert_eq!(name.length, wanted.length);
        assert_eq!(name.family(), wanted.family());
    }
}

fn names_of_both_ends() {
    check_names(joined_pair(), Family::V4);
}

fn names_of_ipv6() {
    check_names(joined_pair_of(Family::V6), Family::V6);
}

fn names_of_mapped_ipv4() {
    check_names(joined_pair_of(Family::ConduitMapping), Family::ConduitMapping);
}

fn fionread_counts() {
    let pair = joined_pair();
    assert_eq!(unread(pair.server), 0);
    for (chunk, total) in [(1, 1), (55, 56), (1, 57), (9_943, 10_000)] {
        send_all(pair.client, &vec![0; chunk]);
        eventually("all is counted", || unread(pair.server) == total);
    }
    recv_exact(pair.server, 10_000);
    assert_eq!(unread(pair.server), 0);
    assert_state(pair.server, JOINED);
}

fn fionread_after_partial_reads() {
    let pair = joined_pair();
    send_all(pair.client, &pattern(1, 5000));
    eventually("all is counted", || unread(pair.server) == 5000);
    for taken in 1..=50 {
        recv_exact(pair.server, 100);
        assert_eq!(unread(pair.server), 5000 - taken * 100);
    }
}

fn siocoutq_reaches_zero() {
    let pair = joined_pair();
    send_all(pair.client, &pattern(1, 10_000));
    recv_exact(pair.server, 10_000);
    eventually("nothing is on its way", || {
        let mut queued = -1;
        ioctl(pair.client, libc::TIOCOUTQ, &mut queued).unwrap();
        assert!((0..=10_000).contains(&queued));
        queued == 0
    });
    assert_state(pair.client, JOINED);
}

/// What the peer's program has not read counts no more once the peer's host has it.
fn siocoutq_reaches_zero_before_the_peer_reads() {
    let pair = joined_pair();
    for count in [1, 100, 10_000] {
        send_all(pair.client, &pattern(1, count));
        eventually("nothing is on its way", || {
            let mut queued = -1;
            ioctl(pair.client, libc::TIOCOUTQ, &mut queued).unwrap();
            queued == 0
        });
    }
    recv_exact(pair.server, 10_101);
}

fn no_error_is_pending() {
    let pair = joined_pair();
    assert_eq!(option(pair.client, SOL_SOCKET, libc::SO_ERROR), Ok(0));
    assert_eq!(option(pair.server, SOL_SOCKET, libc::SO_ERROR), Ok(0));
}

fn unknown_option_is_rejected() {
    let pair = joined_pair();
    assert_eq!(set_option(pair.client, SOL_SOCKET, 9999, 1), Err(Errno(libc::ENOPROTOOPT)));
    assert_eq!(option(pair.client, SOL_SOCKET, 9999), Err(Errno(libc::ENOPROTOOPT)));
    check_alive(pair);
}

fn option_with_a_bad_length_is_rejected() {
    let pair = joined_pair();
    assert_eq!(set_option(pair.client, IPPROTO_TCP, libc::TCP_NODELAY, 1u8), Err(INVAL));
    assert_eq!(set_option(pair.client, SOL_SOCKET, libc::SO_RCVTIMEO, 1u8), Err(INVAL));
    assert_eq!(set_option(pair.client, SOL_SOCKET, libc::SO_RCVLOWAT, 1u8), Err(INVAL));
    check_alive(pair);
}

fn low_water_mark_delays_poll() {
    let pair = joined_pair();
    set_option(pair.server, SOL_SOCKET, libc::SO_RCVLOWAT, 100).unwrap();
    assert_eq!(option(pair.server, SOL_SOCKET, libc::SO_RCVLOWAT), Ok(100));
    send_all(pair.client, &pattern(1, 50));
    assert_eq!(ready(pair.server, POLLIN, 50), 0);
    send_all(pair.client, &pattern_at(1, 50, 50));
    wait_for(pair.server, POLLIN);
    assert_bytes(&recv_exact(pair.server, 100), &pattern(1, 100));
    check_alive_with_low_water(pair);
}

/// As [`check_alive`], with messages above the mark.
#[track_caller]
fn check_alive_with_low_water(pair: Pair) {
    send_all(pair.client, &pattern(9, 4000));
    assert_bytes(&recv_exact(pair.server, 4000), &pattern(9, 4000));
}

/// Sent at once: Linux does not wake a reader that has received a part already.
fn low_water_mark_for_a_blocking_receive() {
    let pair = joined_pair();
    set_option(pair.server, SOL_SOCKET, libc::SO_RCVLOWAT, 10).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            pause_ms(20);
            send_all(pair.client, &pattern(1, 10));
        });
        assert_eq!(recv(pair.server, &mut [0; 30], 0), Ok(10));
    });
}

fn low_water_mark_keeps_unread_bytes() {
    let pair = joined_pair();
    send_all(pair.client, &pattern(1, 30_000));
    wait_for(pair.server, POLLIN);
    recv_exact(pair.server, 10_000);
    set_option(pair.server, SOL_SOCKET, libc::SO_RCVLOWAT, 2).unwrap();
    assert_bytes(&recv_exact(pair.server, 20_000), &pattern_at(1, 10_000, 20_000));
    check_alive_with_low_water(pair);
    assert_goes_to_kernel(pair.server);
}

fn timestamps_keep_unread_bytes() {
    let pair = joined_pair();
    send_all(pair.client, &pattern(1, 40_000));
    wait_for(pair.server, POLLIN);
    set_option(pair.server, SOL_SOCKET, libc::SO_TIMESTAMPNS, 1).unwrap();
    assert_bytes(&recv_exact(pair.server, 40_000), &pattern(1, 40_000));
    check_alive(pair);
    assert_goes_to_kernel(pair.server);
}

fn urgent_data_arrives_inline() {
    let pair = joined_pair();
    set_option(pair.server, SOL_SOCKET, libc::SO_OOBINLINE, 1).unwrap();
    send_all(pair.client, b"abc");
    assert_eq!(send(pair.client, b"!", libc::MSG_OOB | MSG_NOSIGNAL), Ok(1));
    send_all(pair.client, b"def");
    // A receive stops at the urgent mark.
    let mut bytes = vec![];
    while bytes.len() < 7 {
        bytes.extend(recv_exact(pair.server, 1));
    }
    assert_eq!(bytes, b"abc!def");
}

fn urgent_data_out_of_band() {
    let pair = joined_pair();
    send_all(pair.client, b"ab");
    assert_eq!(send(pair.client, b"c!", libc::MSG_OOB | MSG_NOSIGNAL), Ok(2));
    wait_for(pair.server, libc::POLLPRI);
    let mut urgent = [0; 4];
    assert_eq!(recv(pair.server, &mut urgent, libc::MSG_OOB), Ok(1));
    assert_eq!(urgent[0], b'!');
    assert_eq!(recv_exact(pair.server, 3), b"abc");
    check_alive(pair);
    assert_goes_to_kernel(pair.client);
}

fn urgent_data_keeps_unread_bytes() {
    let pair = joined_pair();
    let bytes = pattern(4, 30_000);
    send_all(pair.client, &bytes);
    assert_eq!(send(pair.client, b"!", libc::MSG_OOB | MSG_NOSIGNAL), Ok(1));
    assert_bytes(&recv_exact(pair.server, 30_000), &bytes);
    wait_for(pair.server, libc::POLLPRI);
    assert_eq!(recv(pair.server, &mut [0], libc::MSG_OOB), Ok(1));
    check_alive(pair);
}

fn asynchronous_input_signals() {
    let pair = joined_pair();
    handle(libc::SIGIO, counted, libc::SA_RESTART);
    fcntl(pair.server, libc::F_SETOWN, std::process::id().cast_signed()).unwrap();
    let flags = fcntl(pair.server, libc::F_GETFL, 0).unwrap();
    fcntl(pair.server, libc::F_SETFL, flags | libc::O_ASYNC | libc::O_NONBLOCK).unwrap();
    assert_eq!(recv(pair.server, &mut [0], 0), Err(AGAIN));
    HANDLED.store(0, std::sync::atomic::Ordering::SeqCst);
    send_all(pair.client, b"ring");
    eventually("SIGIO comes", || HANDLED.load(std::sync::atomic::Ordering::SeqCst) > 0);
    assert_eq!(recv_exact(pair.server, 4), b"ring");
}

fn peek_offset_keeps_unread_bytes() {
    let pair = joined_pair();
    send_all(pair.client, &pattern(2, 20_000));
    wait_for(pair.server, POLLIN);
    // TCP supports it since Linux 6.9; an older kernel rejects it, and then nothing may have
    // changed.
    let known = set_option(pair.server, SOL_SOCKET, libc::SO_PEEK_OFF, 10).is_ok();
    let mut buffer = [0; 10];
    assert_eq!(recv(pair.server, &mut buffer, libc::MSG_PEEK), Ok(10));
    assert_bytes(&buffer, &pattern_at(2, if known { 10 } else { 0 }, 10));
    assert_bytes(&recv_exact(pair.server, 20_000), &pattern(2, 20_000));
}

fn nonblocking_by_fionbio() {
    let pair = joined_pair();
    ioctl(pair.server, libc::FIONBIO, &mut 1).unwrap();
    assert_eq!(recv(pair.server, &mut [0], 0), Err(AGAIN));
    assert_ne!(fcntl(pair.server, libc::F_GETFL, 0).unwrap() & libc::O_NONBLOCK, 0);
    ioctl(pair.server, libc::FIONBIO, &mut 0).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            pause_ms(20);
            send_all(pair.client, b"x");
        });
        assert_eq!(recv(pair.server, &mut [0], 0), Ok(1));
    });
    assert_state(pair.server, JOINED);
}

fn nonblocking_by_fcntl_and_back() {
    let pair = joined_pair();
    for _ in 0..3 {
        nonblocking(pair.server, true);
        assert_eq!(recv(pair.server, &mut [0], 0), Err(AGAIN));
        nonblocking(pair.server, false);
        assert_eq!(recv(pair.server, &mut [0], MSG_DONTWAIT), Err(AGAIN));
        send_all(pair.client, b"x");
        assert_eq!(recv(pair.server, &mut [0], 0), Ok(1));
    }
    assert_state(pair.server, JOINED);
}

fn nonblocking_is_shared_by_duplicates() {
    let pair = joined_pair();
    let other = dup(pair.server).unwrap();
    nonblocking(other, true);
    assert_eq!(recv(pair.server, &mut [0], 0), Err(AGAIN));
    assert_ne!(fcntl(pair.server, libc::F_GETFL, 0).unwrap() & libc::O_NONBLOCK, 0);
}

fn tcp_info_reports_established() {
    let pair = joined_pair();
    let mut info = [0u8; 104];
    let mut length = 104;
    let (at, name) = (info.as_mut_ptr().cast(), libc::TCP_INFO);
    // SAFETY: info and length are live for the call.
    let result = unsafe { libc::getsockopt(pair.client, IPPROTO_TCP, name, at, &raw mut length) };
    // The first byte is the state; 1 is ESTABLISHED.
    assert_eq!((result, info[0]), (0, 1));
}

fn file_status_of_a_socket() {
    let pair = joined_pair();
    // SAFETY: all zero is a status; it is live for the call.
    unsafe {
        let mut status: libc::stat = std::mem::zeroed();
        assert_eq!(libc::fstat(pair.client, &raw mut status), 0);
        assert_eq!(status.st_mode & libc::S_IFMT, libc::S_IFSOCK);
        assert_eq!(libc::isatty(pair.client), 0);
    }
}

fn no_bytes_lost_when_an_option_returns_both_directions() {
    let pair = joined_pair();
    let (there, back) = (pattern(1, 50_000), pattern(2, 50_000));
    send_all(pair.client, &there);
    send_all(pair.server, &back);
    for fd in [pair.client, pair.server] {
        set_option(fd, SOL_SOCKET, libc::SO_TIMESTAMP, 1).unwrap();
    }
    send_all(pair.client, b"after");
    assert_bytes(&recv_exact(pair.server, 50_000), &there);
    assert_eq!(recv_exact(pair.server, 5), b"after");
    assert_bytes(&recv_exact(pair.client, 50_000), &back);
    check_alive(pair);
}

fn zero_copy_sends() {
    let pair = joined_pair();
    set_option(pair.client, SOL_SOCKET, libc::SO_ZEROCOPY, 1).unwrap();
    let bytes = pattern(1, 20_000);
    let flags = MSG_NOSIGNAL | libc::MSG_ZEROCOPY;
    assert_eq!(send(pair.client, &bytes, flags), Ok(20_000));
    assert_bytes(&recv_exact(pair.server, 20_000), &bytes);
    // The kernel reports in the error queue that the bytes may be changed again.
    wait_for(pair.client, libc::POLLERR);
}

fn congestion_control_is_a_name() {
    let pair = joined_pair();
    let mut name = [0u8; 16];
    let mut length = 16;
    let (at, what) = (name.as_mut_ptr().cast(), libc::TCP_CONGESTION);
    // SAFETY: name and length are live for the call.
    let result = unsafe { libc::getsockopt(pair.client, IPPROTO_TCP, what, at, &raw mut length) };
    assert_eq!(result, 0, "{:?}", errno());
    assert!(name[0].is_ascii_lowercase());
}

fn bind_to_device_is_queried() {
    let pair = joined_pair();
    let mut name = [7u8; 16];
    let mut length = 16;
    let (at, what) = (name.as_mut_ptr().cast(), libc::SO_BINDTODEVICE);
    // SAFETY: name and length are live for the call.
    let result = unsafe { libc::getsockopt(pair.client, SOL_SOCKET, what, at, &raw mut length) };
    assert_eq!((result, length), (0, 0));
}
