//! Readiness by `poll`, `ppoll`, `select` and `pselect`.

use std::sync::atomic::Ordering::SeqCst;

use libc::{
    MSG_NOSIGNAL, POLLERR, POLLHUP, POLLIN, POLLNVAL, POLLOUT, POLLRDHUP, SHUT_RDWR, SHUT_WR,
    pollfd,
};

use crate::calls::*;
use crate::support::*;

behaviours![
    poll_reports_data_and_space,
    poll_reports_only_requested_events,
    poll_reports_no_space_when_full,
    poll_reports_space_after_full,
    poll_wakes_for_data,
    poll_wakes_for_space,
    poll_reports_the_end,
    poll_reports_half_close,
    poll_reports_own_half_close,
    poll_reports_both_halves_closed,
    poll_reports_a_reset,
    poll_reports_hang_up_without_request,
    poll_reports_the_end_after_data,
    poll_mixes_sockets_and_other_descriptors,
    poll_waits_on_sockets_and_other_descriptors,
    poll_of_no_descriptors,
    poll_ignores_negative_descriptors,
    poll_reports_closed_descriptors,
    poll_same_socket_twice,
    poll_many_sockets,
    poll_forever_is_woken_by_a_pipe,
    poll_while_the_connection_joins,
    poll_unconnected_socket,
    poll_wakes_when_peer_is_killed,
    ppoll_with_a_signal_mask,
    ppoll_below_a_millisecond,
    poll_with_an_invalid_array,
    select_reports_data_and_space,
    select_returns_only_ready_descriptors,
    select_counts_each_set,
    select_wakes_for_data,
    select_wakes_for_space,
    select_reports_the_end,
    select_returns_the_remaining_time,
    select_mixes_sockets_and_other_descriptors,
    select_rejects_closed_descriptors,
    select_of_no_descriptors,
    select_with_a_small_count,
    select_while_the_connection_joins,
    pselect_does_not_change_its_time,
    pselect_with_a_signal_mask,
    select_exceptional_set_reports_urgent_data,
    writable_socket_hides_no_other_that_joins,
    received_data_is_not_reported_again_while_joining,
];

fn asked(fd: Fd, events: i16) -> pollfd {
    pollfd { fd, events, revents: 0 }
}

fn poll_reports_data_and_space() {
    let pair = joined_pair();
    assert_eq!(ready(pair.server, POLLIN | POLLOUT, 0), POLLOUT);
    send_all(pair.client, b"x");
    wait_for(pair.server, POLLIN);
    assert_eq!(ready(pair.server, POLLIN | POLLOUT, 0), POLLIN | POLLOUT);
    recv_exact(pair.server, 1);
    assert_eq!(ready(pair.server, POLLIN | POLLOUT, 0), POLLOUT);
    assert_state(pair.server, JOINED);
}

fn poll_reports_only_requested_events() {
    let pair = joined_pair();
    send_all(pair.client, b"x");
    wait_for(pair.server, POLLIN);
    assert_eq!(ready(pair.server, POLLOUT, 0), POLLOUT);
    assert_eq!(ready(pair.server, 0, 0), 0);
    let all = POLLIN | libc::POLLRDNORM | libc::POLLPRI;
    assert_eq!(ready(pair.server, all, 0), POLLIN | libc::POLLRDNORM);
}

fn poll_reports_no_space_when_full() {
    let pair = joined_pair();
    fill(pair.client, 1);
    assert_eq!(ready(pair.client, POLLIN | POLLOUT, 0), 0);
    assert_eq!(ready(pair.server, POLLIN | POLLOUT, 0), POLLIN | POLLOUT);
}

fn poll_reports_space_after_full() {
    let pair = joined_pair();
    let sent = fill(pair.client, 1);
    recv_exact(pair.server, sent);
    wait_for(pair.client, POLLOUT);
    assert_eq!(ready(pair.client, POLLIN | POLLOUT, 0), POLLOUT);
}

fn poll_wakes_for_data() {
    let pair = joined_pair();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let mut list = [asked(pair.server, POLLIN)];
            assert_eq!(poll(&mut list, -1), Ok(1));
            assert_eq!(list[0].revents, POLLIN);
            recv_exact(pair.server, 3);
        });
        pause_ms(30);
        assert!(!waiter.is_finished());
        send_all(pair.client, b"abc");
    });
}

fn poll_wakes_for_space() {
    let pair = joined_pair();
    let sent = fill(pair.client, 1);
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| wait_for(pair.client, POLLOUT));
        pause_ms(30);
        assert!(!waiter.is_finished());
        recv_exact(pair.server, sent);
    });
}

fn poll_reports_the_end() {
    let pair = joined_pair();
    close(pair.client).unwrap();
    wait_for(pair.server, POLLRDHUP);
    let all = POLLIN | POLLOUT | POLLRDHUP;
    assert_eq!(ready(pair.server, all, 0), all);
    assert_eq!(ready(pair.server, POLLIN, 0), POLLIN);
}

fn poll_reports_half_close() {
    let pair = joined_pair();
    shutdown(pair.client, SHUT_WR).unwrap();
    wait_for(pair.server, POLLRDHUP);
    let all = POLLIN | POLLOUT | POLLRDHUP;
    assert_eq!(ready(pair.server, all, 0), all);
    assert_eq!(ready(pair.client, all, 0), POLLOUT);
}

fn poll_reports_own_half_close() {
    let pair = joined_pair();
    shutdown(pair.client, SHUT_WR).unwrap();
    assert_eq!(ready(pair.client, POLLIN, 20), 0);
    send_all(pair.server, b"x");
    wait_for(pair.client, POLLIN);
    assert_eq!(ready(pair.client, POLLIN | POLLRDHUP, 0), POLLIN);
}

fn poll_reports_both_halves_closed() {
    let pair = joined_pair();
    shutdown(pair.client, SHUT_WR).unwrap();
    shutdown(pair.server, SHUT_WR).unwrap();
    for fd in [pair.client, pair.server] {
        eventually("hung up", || ready(fd, POLLIN | POLLRDHUP, 0) & POLLHUP != 0);
        assert_eq!(ready(fd, POLLIN | POLLRDHUP, 0), POLLIN | POLLRDHUP | POLLHUP);
    }
}

fn poll_reports_a_reset() {
    let pair = joined_pair();
    close_with_reset(pair.client);
    wait_for(pair.server, 0);
    let all = POLLIN | POLLOUT | POLLRDHUP;
    assert_eq!(ready(pair.server, all, 0), all | POLLERR | POLLHUP);
    assert_eq!(recv(pair.server, &mut [0], 0), Err(RESET));
    assert_eq!(ready(pair.server, all, 0), all | POLLHUP);
}

fn poll_reports_hang_up_without_request() {
    let pair = joined_pair();
    shutdown(pair.client, SHUT_RDWR).unwrap();
    assert_ne!(ready(pair.client, 0, 0) & POLLHUP, 0);
}

fn poll_reports_the_end_after_data() {
    let pair = joined_pair();
    send_all(pair.client, b"abc");
    shutdown(pair.client, SHUT_WR).unwrap();
    wait_for(pair.server, POLLRDHUP);
    assert_eq!(ready(pair.server, POLLIN | POLLRDHUP, 0), POLLIN | POLLRDHUP);
    recv_exact(pair.server, 3);
    assert_eq!(ready(pair.server, POLLIN | POLLRDHUP, 0), POLLIN | POLLRDHUP);
    assert_eq!(recv(pair.server, &mut [0], 0), Ok(0));
}

fn poll_mixes_sockets_and_other_descriptors() {
    let pair = joined_pair();
    let [out, into] = pipe();
    let (listening, address) = listener(Family::V4);
    let (event, datagram) = (eventfd(), socket(libc::AF_INET, libc::SOCK_DGRAM).unwrap());
    let fds = [pair.server, out, listening, event, datagram, pair.client];
    let mut list = fds.map(|fd| asked(fd, POLLIN));
    assert_eq!(poll(&mut list, 0), Ok(0));
    write(into, b"x").unwrap();
    assert_eq!(poll(&mut list, SOON_MS), Ok(1));
    assert_eq!(list.map(|entry| entry.revents), [0, POLLIN, 0, 0, 0, 0]);
    send_all(pair.server, b"y");
    let _other = connected(&address);
    write(event, &1u64.to_ne_bytes()).unwrap();
    wait_for(pair.client, POLLIN);
    wait_for(listening, POLLIN);
    assert_eq!(poll(&mut list, 0), Ok(4));
    assert_eq!(list.map(|entry| entry.revents), [0, POLLIN, POLLIN, POLLIN, 0, POLLIN]);
}

fn poll_waits_on_sockets_and_other_descriptors() {
    let pair = joined_pair();
    let [out, into] = pipe();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for turn in 0..50 {
                if turn % 2 == 0 {
                    send_all(pair.client, b"s");
                } else {
                    write(into, b"p").unwrap();
                }
                pause_ms(1);
            }
        });
        let mut counts = [0; 2];
        while counts != [25, 25] {
            let mut list = [asked(pair.server, POLLIN), asked(out, POLLIN)];
            poll(&mut list, SOON_MS).unwrap();
            assert!(list.iter().any(|entry| entry.revents != 0));
            for (entry, count) in list.iter().zip(&mut counts) {
                if entry.revents & POLLIN != 0 {
                    *count += read(entry.fd, &mut [0]).unwrap();
                }
            }
        }
    });
}

fn poll_of_no_descriptors() {
    let _pair = joined_pair();
    assert_eq!(poll(&mut [], 0), Ok(0));
    assert_eq!(poll(&mut [], 10), Ok(0));
}

fn poll_ignores_negative_descriptors() {
    let pair = joined_pair();
    send_all(pair.client, b"x");
    wait_for(pair.server, POLLIN);
    let mut list = [asked(-1, POLLIN), asked(pair.server, POLLIN), asked(-pair.server, POLLIN)];
    list[0].revents = 99;
    assert_eq!(poll(&mut list, -1), Ok(1));
    assert_eq!(list.map(|entry| entry.revents), [0, POLLIN, 0]);
}

fn poll_reports_closed_descriptors() {
    let pair = joined_pair();
    let closed = dup(pair.client).unwrap();
    close(closed).unwrap();
    let mut list = [asked(pair.server, POLLIN), asked(closed, POLLIN)];
    assert_eq!(poll(&mut list, -1), Ok(1));
    assert_eq!(list.map(|entry| entry.revents), [0, POLLNVAL]);
}

fn poll_same_socket_twice() {
    let pair = joined_pair();
    send_all(pair.client, b"x");
    wait_for(pair.server, POLLIN);
    let mut list = [asked(pair.server, POLLIN), asked(pair.server, POLLOUT)];
    assert_eq!(poll(&mut list, 0), Ok(2));
    assert_eq!(list.map(|entry| entry.revents), [POLLIN, POLLOUT]);
}

fn poll_many_sockets() {
    let pairs: Vec<Pair> = (0..100).map(|_| joined_pair()).collect();
    for (index, pair) in pairs.iter().enumerate().filter(|(index, _)| index % 7 == 3) {
        send_all(pair.client, &[index as u8]);
        wait_for(pair.server, POLLIN);
    }
    let mut list: Vec<_> = pairs.iter().map(|pair| asked(pair.server, POLLIN)).collect();
    assert_eq!(poll(&mut list, -1), Ok(14));
    for (index, entry) in list.iter().enumerate() {
        assert_eq!(entry.revents != 0, index % 7 == 3, "socket {index}");
    }
}

fn poll_forever_is_woken_by_a_pipe() {
    let pair = joined_pair();
    let [out, into] = pipe();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let mut list = [asked(pair.server, POLLIN), asked(out, POLLIN)];
            assert_eq!(poll(&mut list, -1), Ok(1));
            assert_eq!(list[1].revents, POLLIN);
        });
        pause_ms(50);
        assert!(!waiter.is_finished());
        write(into, b"x").unwrap();
    });
}

/// One thread polls for one direction while another makes the connection join by traffic of the
/// other direction; then the first must see new data.
fn poll_while_the_connection_joins() {
    let pair = unused_pair();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            wait_for(pair.server, POLLIN);
            assert_eq!(recv_exact(pair.server, 4), b"here");
        });
        pause_ms(20);
        for round in 0..200 {
            send_all(pair.server, &pattern(round, 100));
            assert_bytes(&recv_exact(pair.client, 100), &pattern(round, 100));
        }
        assert!(!waiter.is_finished());
        send_all(pair.client, b"here");
    });
}

fn poll_unconnected_socket() {
    let fd = socket(libc::AF_INET, libc::SOCK_STREAM).unwrap();
    assert_eq!(ready(fd, POLLIN | POLLOUT, 0), POLLOUT | POLLHUP);
}

fn poll_wakes_when_peer_is_killed() {
    let (fd, child) = joined_with_child(|_| pause_ms(60_000));
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| wait_for(fd, POLLIN | POLLRDHUP));
        pause_ms(30);
        assert!(!waiter.is_finished());
        child.kill();
    });
    assert_eq!(ready(fd, POLLIN | POLLRDHUP, 0) & (POLLIN | POLLRDHUP), POLLIN | POLLRDHUP);
}

fn ppoll_with_a_signal_mask() {
    let pair = joined_pair();
    handle(libc::SIGUSR1, counted, libc::SA_RESTART);
    block(libc::SIGUSR1, true);
    // SAFETY: a signal to this thread, which has a handler for it.
    unsafe { libc::raise(libc::SIGUSR1) };
    let mut list = [asked(pair.server, POLLIN)];
    assert_eq!(ppoll(&mut list, Some(0), Some(&only(libc::SIGUSR1))), Ok(0));
    assert_eq!(HANDLED.load(SeqCst), 0);
    assert_eq!(ppoll(&mut list, None, Some(&only(0))), Err(INTR));
    assert_eq!(HANDLED.load(SeqCst), 1);
}

fn ppoll_below_a_millisecond() {
    let pair = joined_pair();
    let mut list = [asked(pair.server, POLLIN)];
    for ns in [0, 1, 1_000, 300_000] {
        assert_eq!(ppoll(&mut list, Some(ns), None), Ok(0));
    }
    assert_eq!(ppoll(&mut list, Some(-1), None), Err(INVAL));
}

fn poll_with_an_invalid_array() {
    let pair = joined_pair();
    // SAFETY: the kernel checks the address and rejects it; a count beyond the limit likewise.
    unsafe {
        assert_eq!(libc::poll(std::ptr::null_mut(), 0, 0), 0);
        let mut one = asked(pair.server, POLLIN);
        assert_eq!(libc::poll(&raw mut one, u64::from(u32::MAX), 0), -1);
        assert_eq!(errno(), INVAL);
    }
}

fn select_reports_data_and_space() {
    let pair = joined_pair();
    send_all(pair.client, b"x");
    wait_for(pair.server, POLLIN);
    let (mut reads, mut writes) = (Set::of(&[pair.server]), Set::of(&[pair.server]));
    assert_eq!(select(Some(&mut reads), Some(&mut writes), None, None), Ok(2));
    assert!(reads.has(pair.server) && writes.has(pair.server));
    assert_state(pair.server, JOINED);
}

fn select_returns_only_ready_descriptors() {
    let (one, two) = (joined_pair(), joined_pair());
    send_all(two.client, b"x");
    let mut reads = Set::of(&[one.server, two.server, one.client]);
    assert_eq!(select(Some(&mut reads), None, None, None), Ok(1));
    assert!(!reads.has(one.server) && reads.has(two.server) && !reads.has(one.client));
}

fn select_counts_each_set() {
    let (one, two) = (joined_pair(), joined_pair());
    send_all(two.client, b"x");
    wait_for(two.server, POLLIN);
    let both = [one.server, two.server];
    let (mut reads, mut writes, mut faults) = (Set::of(&both), Set::of(&both), Set::of(&both));
    let found = select(Some(&mut reads), Some(&mut writes), Some(&mut faults), None);
    assert_eq!(found, Ok(3));
    assert!(!faults.has(one.server) && !faults.has(two.server));
}

fn select_wakes_for_data() {
    let pair = joined_pair();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let mut reads = Set::of(&[pair.server]);
            assert_eq!(select(Some(&mut reads), None, None, None), Ok(1));
        });
        pause_ms(30);
        assert!(!waiter.is_finished());
        send_all(pair.client, b"x");
    });
}

fn select_wakes_for_space() {
    let pair = joined_pair();
    let sent = fill(pair.client, 1);
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let mut writes = Set::of(&[pair.client]);
            assert_eq!(select(None, Some(&mut writes), None, None), Ok(1));
        });
        pause_ms(30);
        assert!(!waiter.is_finished());
        recv_exact(pair.server, sent);
    });
}

fn select_reports_the_end() {
    let pair = joined_pair();
    close(pair.client).unwrap();
    let mut reads = Set::of(&[pair.server]);
    assert_eq!(select(Some(&mut reads), None, None, None), Ok(1));
    assert_eq!(recv(pair.server, &mut [0], 0), Ok(0));
}

fn select_returns_the_remaining_time() {
    let pair = joined_pair();
    send_all(pair.client, b"x");
    let (mut reads, mut time_us) = (Set::of(&[pair.server]), 30_000_000);
    assert_eq!(select(Some(&mut reads), None, None, Some(&mut time_us)), Ok(1));
    assert!(0 < time_us && time_us <= 30_000_000, "{time_us} us left");
}

fn select_mixes_sockets_and_other_descriptors() {
    let pair = joined_pair();
    let [out, into] = pipe();
    let mut reads = Set::of(&[pair.server, out]);
    write(into, b"x").unwrap();
    assert_eq!(select(Some(&mut reads), None, None, None), Ok(1));
    assert!(reads.has(out) && !reads.has(pair.server));
    send_all(pair.client, b"x");
    wait_for(pair.server, POLLIN);
    let mut reads = Set::of(&[pair.server, out]);
    assert_eq!(select(Some(&mut reads), None, None, None), Ok(2));
}

fn select_rejects_closed_descriptors() {
    let pair = joined_pair();
    let closed = dup(pair.client).unwrap();
    close(closed).unwrap();
    let mut reads = Set::of(&[pair.server, closed]);
    assert_eq!(select(Some(&mut reads), None, None, None), Err(BADF));
}

fn select_of_no_descriptors() {
    let _pair = joined_pair();
    let mut time_us = 1000;
    assert_eq!(select(None, None, None, Some(&mut time_us)), Ok(0));
}

/// Only numbers below the first argument count.
fn select_with_a_small_count() {
    let pair = joined_pair();
    send_all(pair.client, b"x");
    wait_for(pair.server, POLLIN);
    // SAFETY: set and time are live for the call.
    unsafe {
        let mut reads: libc::fd_set = std::mem::zeroed();
        libc::FD_SET(pair.server, &raw mut reads);
        let mut time = libc::timeval { tv_sec: 0, tv_usec: 0 };
        let at = &raw mut reads;
        let time = &raw mut time;
        let null = std::ptr::null_mut();
        assert_eq!(libc::select(pair.server, at, null, null, time), 0);
        libc::FD_SET(pair.server, &raw mut reads);
        assert_eq!(libc::select(pair.server + 1, at, null, null, time), 1);
        assert_eq!(libc::select(-1, at, null, null, time), -1);
        assert_eq!(errno(), INVAL);
    }
}

fn select_while_the_connection_joins() {
    let pair = unused_pair();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let mut reads = Set::of(&[pair.server]);
            assert_eq!(select(Some(&mut reads), None, None, None), Ok(1));
            assert_eq!(recv_exact(pair.server, 4), b"here");
        });
        pause_ms(20);
        for round in 0..200 {
            send_all(pair.server, &pattern(round, 100));
            assert_bytes(&recv_exact(pair.client, 100), &pattern(round, 100));
        }
        assert!(!waiter.is_finished());
        send_all(pair.client, b"here");
    });
}

fn pselect_does_not_change_its_time() {
    let pair = joined_pair();
    let mut reads = Set::of(&[pair.server]);
    assert_eq!(pselect(&mut reads, Some(2_000_000), None), Ok(0));
    send_all(pair.client, b"x");
    let mut reads = Set::of(&[pair.server]);
    assert_eq!(pselect(&mut reads, None, None), Ok(1));
}

fn pselect_with_a_signal_mask() {
    let pair = joined_pair();
    handle(libc::SIGUSR1, counted, libc::SA_RESTART);
    block(libc::SIGUSR1, true);
    // SAFETY: a signal to this thread, which has a handler for it.
    unsafe { libc::raise(libc::SIGUSR1) };
    let mut reads = Set::of(&[pair.server]);
    assert_eq!(pselect(&mut reads, None, Some(&only(0))), Err(INTR));
    assert_eq!(HANDLED.load(SeqCst), 1);
}

fn select_exceptional_set_reports_urgent_data() {
    let pair = joined_pair();
    assert_eq!(send(pair.client, b"!", libc::MSG_OOB | MSG_NOSIGNAL), Ok(1));
    wait_for(pair.server, libc::POLLPRI);
    let mut faults = Set::of(&[pair.server]);
    assert_eq!(select(None, None, Some(&mut faults), None), Ok(1));
    assert_eq!(recv(pair.server, &mut [0], libc::MSG_OOB), Ok(1));
}

/// Calls that the two ends make first, so that they join at different times.
const FIRST_CALLS: [(usize, usize); 9] =
    [(0, 0), (0, 1), (1, 0), (0, 3), (3, 0), (5, 2), (2, 7), (9, 0), (0, 9)];

/// A program that polls again and again finds one socket writable at each call. It must still see
/// events of another one whose bytes come through the kernel until its ends have joined.
fn writable_socket_hides_no_other_that_joins() {
    let busy = joined_pair();
    for (sent, answered) in FIRST_CALLS {
        let pair = new_pair_after(sent, answered);
        for number in 0..24 {
            send_all(pair.server, &[number]);
            eventually("the byte is shown", || {
                let mut list = [asked(busy.client, POLLOUT), asked(pair.client, POLLIN)];
                poll(&mut list, 0).unwrap();
                assert_eq!(list[0].revents, POLLOUT);
                list[1].revents & POLLIN != 0
            });
            assert_eq!(recv_exact(pair.client, 1), [number]);
            send_all(pair.client, &[number]);
            eventually("the byte is selected", || {
                let mut readable = Set::of(&[pair.server]);
                let mut writable = Set::of(&[busy.client]);
                select(Some(&mut readable), Some(&mut writable), None, Some(&mut 0)).unwrap();
                assert!(writable.has(busy.client));
                readable.has(pair.server)
            });
            assert_eq!(recv_exact(pair.server, 1), [number]);
        }
        close(pair.client).unwrap();
        close(pair.server).unwrap();
    }
}

/// A call that receives the last bytes of the kernel and the first ones of memory leaves no event
/// of either.
fn received_data_is_not_reported_again_while_joining() {
    for (sent, answered) in FIRST_CALLS {
        let pair = new_pair_after(sent, answered);
        nonblocking(pair.client, true);
        let set = epoll_create();
        epoll_ctl(set, libc::EPOLL_CTL_ADD, pair.client, libc::EPOLLIN as u32, 0).unwrap();
        let shown = |how: i32| match how % 3 {
            0 => ready(pair.client, POLLIN, 0) != 0,
            1 => !epoll_wait(set, 4, 0).unwrap().is_empty(),
            _ => {
                let mut readable = Set::of(&[pair.client]);
                select(Some(&mut readable), None, None, Some(&mut 0)).unwrap();
                readable.has(pair.client)
            }
        };
        for round in 0..24 {
            send_all(pair.server, b"one");
            // Each call of an end may be the one at which it joins.
            send_all(pair.client, b"x");
            send_all(pair.server, b"two");
            recv_exact(pair.server, 1);
            let mut got = 0;
            while got < 6 {
                eventually("bytes are shown", || shown(round));
                let mut bytes = [0; 100];
                got += recv(pair.client, &mut bytes, 0).expect("what is shown can be received");
            }
            for how in 0..3 {
                assert!(!shown(how), "round {round}: nothing is there, and {how} shows something");
            }
        }
        for fd in [set, pair.client, pair.server] {
            close(fd).unwrap();
        }
    }
}
