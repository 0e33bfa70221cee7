//! Readiness by epoll: level, edge, one shot, exclusive, nested sets, sets and processes.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use libc::{EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD, POLLIN, SHUT_WR};

use crate::calls::*;
use crate::support::*;
use crate::ways::recv_now;

behaviours![
    edge_for_input_and_space_has_the_events_of_each_arrival,
    edge_for_input_and_space_after_partial_reads,
    level_reports_data_until_it_is_read,
    level_reports_space,
    level_reports_space_after_full,
    level_wakes_for_data,
    level_wakes_for_space,
    edge_reports_data_once,
    edge_reports_more_data_again,
    edge_reports_space_once_after_full,
    edge_reports_data_that_was_present_at_add,
    edge_reports_the_end,
    edge_is_reported_again_after_modification,
    edge_reader_gets_what_arrived_before_the_report,
    edge_reader_that_stops_at_a_short_read_gets_all,
    oneshot_reports_once_until_rearmed,
    oneshot_edge,
    exclusive_wakes_a_waiter,
    end_is_reported_without_being_requested,
    half_close_reports_rdhup,
    reset_reports_err_and_hup,
    program_data_is_returned,
    add_twice_is_rejected,
    modify_unknown_is_rejected,
    delete_unknown_is_rejected,
    errors_of_wait,
    set_in_itself_is_rejected,
    modify_changes_interest,
    delete_stops_reports,
    hang_up_is_reported_without_interest,
    added_before_connect,
    added_before_joining,
    added_while_listening_and_accepted,
    waiting_while_the_connection_joins,
    edge_waiting_while_the_connection_joins,
    close_removes,
    duplicate_keeps_the_registration,
    two_descriptors_of_one_socket,
    descriptor_reused_after_close,
    one_socket_in_two_sets,
    both_ends_in_one_set,
    mixes_sockets_and_other_descriptors,
    small_event_array_is_shared_fairly,
    each_socket_is_reported_once_per_call,
    hundred_sockets,
    several_threads_in_one_set,
    several_threads_receive_each_event_once,
    added_by_another_thread_while_waiting,
    set_watched_by_poll,
    set_watched_by_select,
    nested_set,
    poll_waits_for_a_set,
    set_after_fork,
    duplicate_of_a_set,
    pwait_with_a_signal_mask,
    pwait2_below_a_millisecond,
    wait_is_interrupted,
    wakes_when_peer_is_killed,
    echo_server_with_many_clients,
    edge_echo_with_large_messages,
];

const IN: u32 = libc::EPOLLIN as u32;
const OUT: u32 = libc::EPOLLOUT as u32;
const RDHUP: u32 = libc::EPOLLRDHUP as u32;
const HUP: u32 = libc::EPOLLHUP as u32;
const ERR: u32 = libc::EPOLLERR as u32;
const EDGE: u32 = libc::EPOLLET as u32;
const ONCE: u32 = libc::EPOLLONESHOT as u32;

/// A new set with one socket in it, with its own number as data.
#[track_caller]
fn set_of(fd: Fd, events: u32) -> Fd {
    let set = epoll_create();
    add(set, fd, events);
    set
}

#[track_caller]
fn add(set: Fd, fd: Fd, events: u32) {
    epoll_ctl(set, EPOLL_CTL_ADD, fd, events, fd as u64).unwrap();
}

/// The data of the sockets that the set reports; waits for the first.
#[track_caller]
fn soon(set: Fd) -> Vec<(u32, u64)> {
    epoll_wait(set, 16, SOON_MS).unwrap()
}

#[track_caller]
fn now(set: Fd) -> Vec<(u32, u64)> {
    epoll_wait(set, 16, 0).unwrap()
}

/// The set reports nothing, now and a little later.
#[track_caller]
fn quiet(set: Fd) {
    assert_eq!(epoll_wait(set, 16, 30), Ok(vec![]));
}

fn level_reports_data_until_it_is_read() {
    let pair = joined_pair();
    let set = set_of(pair.server, IN);
    quiet(set);
    send_all(pair.client, b"ab");
    for _ in 0..3 {
        assert_eq!(soon(set), [(IN, pair.server as u64)]);
    }
    recv_exact(pair.server, 1);
    assert_eq!(now(set), [(IN, pair.server as u64)]);
    recv_exact(pair.server, 1);
    quiet(set);
    assert_state(pair.server, JOINED);
}

fn level_reports_space() {
    let pair = joined_pair();
    let set = set_of(pair.client, IN | OUT);
    assert_eq!(now(set), [(OUT, pair.client as u64)]);
    send_all(pair.server, b"x");
    wait_for(pair.client, POLLIN);
    assert_eq!(now(set), [(IN | OUT, pair.client as u64)]);
}

fn level_reports_space_after_full() {
    let pair = joined_pair();
    let set = set_of(pair.client, OUT);
    let sent = fill(pair.client, 1);
    quiet(set);
    recv_exact(pair.server, sent);
    assert_eq!(soon(set), [(OUT, pair.client as u64)]);
}

fn level_wakes_for_data() {
    let pair = joined_pair();
    let set = set_of(pair.server, IN);
    std::thread::scope(|scope| {
        let waiter =
            scope.spawn(|| assert_eq!(epoll_wait(set, 4, -1), Ok(vec![(IN, pair.server as u64)])));
        pause_ms(30);
        assert!(!waiter.is_finished());
        send_all(pair.client, b"x");
    });
}

fn level_wakes_for_space() {
    let pair = joined_pair();
    let set = set_of(pair.client, OUT);
    let sent = fill(pair.client, 1);
    std::thread::scope(|scope| {
        let waiter =
            scope.spawn(|| assert_eq!(epoll_wait(set, 4, -1), Ok(vec![(OUT, pair.client as u64)])));
        pause_ms(30);
        assert!(!waiter.is_finished());
        recv_exact(pair.server, sent);
    });
}

fn edge_reports_data_once() {
    let pair = joined_pair();
    let set = set_of(pair.server, IN | EDGE);
    quiet(set);
    send_all(pair.client, b"ab");
    assert_eq!(soon(set), [(IN, pair.server as u64)]);
    quiet(set);
    recv_exact(pair.server, 1);
    quiet(set);
}

fn edge_reports_more_data_again() {
    let pair = joined_pair();
    let set = set_of(pair.server, IN | EDGE);
    for _ in 0..10 {
        send_all(pair.client, b"more");
        assert_eq!(soon(set), [(IN, pair.server as u64)]);
        quiet(set);
    }
    recv_exact(pair.server, 40);
    send_all(pair.client, b"x");
    assert_eq!(soon(set), [(IN, pair.server as u64)]);
}

fn edge_reports_space_once_after_full() {
    let pair = joined_pair();
    let set = set_of(pair.client, OUT | EDGE);
    assert_eq!(now(set), [(OUT, pair.client as u64)]);
    quiet(set);
    let sent = fill(pair.client, 1);
    now(set);
    recv_exact(pair.server, sent);
    assert_eq!(soon(set), [(OUT, pair.client as u64)]);
}

fn edge_reports_data_that_was_present_at_add() {
    let pair = joined_pair();
    send_all(pair.client, b"x");
    wait_for(pair.server, POLLIN);
    let set = set_of(pair.server, IN | OUT | EDGE);
    assert_eq!(now(set), [(IN | OUT, pair.server as u64)]);
    quiet(set);
}

fn edge_reports_the_end() {
    let pair = joined_pair();
    let set = set_of(pair.server, IN | RDHUP | EDGE);
    shutdown(pair.client, SHUT_WR).unwrap();
    assert_eq!(soon(set), [(IN | RDHUP, pair.server as u64)]);
    quiet(set);
}

fn edge_is_reported_again_after_modification() {
    let pair = joined_pair();
    let set = set_of(pair.server, IN | EDGE);
    send_all(pair.client, b"x");
    assert_eq!(soon(set), [(IN, pair.server as u64)]);
    quiet(set);
    epoll_ctl(set, EPOLL_CTL_MOD, pair.server, IN | EDGE, 7).unwrap();
    assert_eq!(soon(set), [(IN, 7)]);
    quiet(set);
}

/// Sends by the kernel's own call, which the library does not see: as if the thread were stopped
/// before the library could count the bytes.
#[track_caller]
fn send_uncounted(fd: Fd, bytes: &[u8]) {
    // SAFETY: the descriptor is open until the call ends.
    let fd = unsafe { std::os::fd::BorrowedFd::borrow_raw(fd) };
    assert_eq!(rustix::io::write(fd, bytes), Ok(bytes.len()));
}

/// All bytes go through the kernel, because the set itself was waited for. The reader receives
/// until there is nothing, and sends meanwhile.
fn edge_reader_gets_what_arrived_before_the_report() {
    let pair = joined_nonblocking();
    let set = set_of(pair.server, IN | EDGE);
    ready(set, POLLIN, 0);
    for round in 0..200 {
        let (first, second) = (pattern(round, 100), pattern(round, 60));
        send_all(pair.client, &first);
        send_uncounted(pair.client, &second);
        assert_eq!(soon(set), [(IN, pair.server as u64)]);
        let mut got = vec![];
        let mut buffer = [0; 50];
        while let Ok(count) = recv(pair.server, &mut buffer, 0) {
            got.extend_from_slice(&buffer[..count]);
            send_all(pair.server, b"a");
            send_all(pair.server, b"b");
        }
        assert_bytes(&got, &[first, second].concat());
        recv_now(pair.client);
    }
}

/// As epoll(7) allows for streams: a read that gets less than it asks for was the last one.
fn edge_reader_that_stops_at_a_short_read_gets_all() {
    let pair = joined_nonblocking();
    let set = set_of(pair.server, IN | EDGE);
    for round in 0..200 {
        let (first, second) = (pattern(round, 100), pattern(round, 60));
        send_all(pair.client, &first);
        send_uncounted(pair.client, &second);
        let mut got = vec![];
        while got.len() < 160 {
            let reports = soon(set);
            assert_eq!(reports, [(IN, pair.server as u64)], "{} bytes in round {round}", got.len());
            let mut buffer = [0; 1000];
            let count = recv(pair.server, &mut buffer, 0).unwrap();
            got.extend_from_slice(&buffer[..count]);
        }
        assert_bytes(&got, &[first, second].concat());
        assert_eq!(recv(pair.server, &mut [0], 0), Err(AGAIN));
    }
}

fn oneshot_reports_once_until_rearmed() {
    let pair = joined_pair();
    let set = set_of(pair.server, IN | ONCE);
    send_all(pair.client, b"x");
    assert_eq!(soon(set), [(IN, pair.server as u64)]);
    send_all(pair.client, b"y");
    quiet(set);
    epoll_ctl(set, EPOLL_CTL_MOD, pair.server, IN | ONCE, 3).unwrap();
    assert_eq!(soon(set), [(IN, 3)]);
    quiet(set);
    recv_exact(pair.server, 2);
    epoll_ctl(set, EPOLL_CTL_MOD, pair.server, IN | ONCE, 4).unwrap();
    quiet(set);
    send_all(pair.client, b"z");
    assert_eq!(soon(set), [(IN, 4)]);
}

fn oneshot_edge() {
    let pair = joined_pair();
    let set = set_of(pair.server, IN | ONCE | EDGE);
    send_all(pair.client, b"x");
    assert_eq!(soon(set), [(IN, pair.server as u64)]);
    close(pair.client).unwrap();
    quiet(set);
    epoll_ctl(set, EPOLL_CTL_MOD, pair.server, IN | ONCE | EDGE, 1).unwrap();
    assert_eq!(soon(set), [(IN, 1)]);
}

fn exclusive_wakes_a_waiter() {
    let pair = joined_pair();
    let exclusive = IN | libc::EPOLLEXCLUSIVE as u32;
    let sets = [set_of(pair.server, exclusive), set_of(pair.server, exclusive)];
    let refused = epoll_ctl(sets[0], EPOLL_CTL_MOD, pair.server, IN, 0);
    assert_eq!(refused, Err(INVAL));
    let woken = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for set in sets {
            let woken = &woken;
            scope.spawn(move || {
                if !epoll_wait(set, 4, 500).unwrap().is_empty() {
                    woken.fetch_add(1, SeqCst);
                }
            });
        }
        pause_ms(30);
        send_all(pair.client, b"x");
    });
    assert!(woken.load(SeqCst) > 0);
}

fn end_is_reported_without_being_requested() {
    let pair = joined_pair();
    let set = set_of(pair.server, IN | OUT);
    close(pair.client).unwrap();
    wait_for(pair.server, POLLIN);
    assert_eq!(now(set), [(IN | OUT, pair.server as u64)]);
    shutdown(pair.server, SHUT_WR).unwrap();
    eventually("hung up", || now(set)[0].0 & HUP != 0);
    assert_eq!(now(set), [(IN | OUT | HUP, pair.server as u64)]);
}

fn half_close_reports_rdhup() {
    let pair = joined_pair();
    let set = set_of(pair.server, IN | RDHUP);
    send_all(pair.client, b"x");
    assert_eq!(soon(set), [(IN, pair.server as u64)]);
    shutdown(pair.client, SHUT_WR).unwrap();
    eventually("the end shows", || now(set) == [(IN | RDHUP, pair.server as u64)]);
    recv_exact(pair.server, 1);
    assert_eq!(now(set), [(IN | RDHUP, pair.server as u64)]);
}

fn reset_reports_err_and_hup() {
    let pair = joined_pair();
    let set = set_of(pair.server, IN | OUT | RDHUP);
    close_with_reset(pair.client);
    wait_for(pair.server, 0);
    assert_eq!(now(set), [(IN | OUT | RDHUP | ERR | HUP, pair.server as u64)]);
}

fn program_data_is_returned() {
    let set = epoll_create();
    let odd = [0, 1, u64::MAX, 1 << 63, 0xffff_ffff, 0x8000_0000_0000_0001, 0x5a5a_5a5a << 32];
    let pairs = odd.map(|data| {
        let pair = joined_pair();
        epoll_ctl(set, EPOLL_CTL_ADD, pair.server, IN, data).unwrap();
        pair
    });
    for (pair, data) in pairs.iter().zip(odd) {
        send_all(pair.client, b"x");
        assert_eq!(soon(set), [(IN, data)]);
        recv_exact(pair.server, 1);
    }
    let [out, into] = pipe();
    for data in odd {
        epoll_ctl(set, EPOLL_CTL_ADD, out, IN, data).unwrap();
        write(into, b"x").unwrap();
        assert_eq!(soon(set), [(IN, data)]);
        read(out, &mut [0]).unwrap();
        epoll_ctl(set, EPOLL_CTL_DEL, out, 0, 0).unwrap();
    }
}

fn add_twice_is_rejected() {
    let pair = joined_pair();
    let set = set_of(pair.server, IN);
    let again = epoll_ctl(set, EPOLL_CTL_ADD, pair.server, OUT, 0);
    assert_eq!(again, Err(Errno(libc::EEXIST)));
    send_all(pair.client, b"x");
    assert_eq!(soon(set), [(IN, pair.server as u64)]);
}

fn modify_unknown_is_rejected() {
    let pair = joined_pair();
    let set = epoll_create();
    let result = epoll_ctl(set, EPOLL_CTL_MOD, pair.server, IN, 0);
    assert_eq!(result, Err(Errno(libc::ENOENT)));
}

fn delete_unknown_is_rejected() {
    let pair = joined_pair();
    let set = set_of(pair.server, IN);
    assert_eq!(epoll_ctl(set, EPOLL_CTL_DEL, pair.client, 0, 0), Err(Errno(libc::ENOENT)));
    epoll_ctl(set, EPOLL_CTL_DEL, pair.server, 0, 0).unwrap();
    assert_eq!(epoll_ctl(set, EPOLL_CTL_DEL, pair.server, 0, 0), Err(Errno(libc::ENOENT)));
    assert_eq!(epoll_ctl(set, EPOLL_CTL_DEL, 999, 0, 0), Err(BADF));
}

fn errors_of_wait() {
    let pair = joined_pair();
    let set = set_of(pair.server, IN);
    assert_eq!(epoll_wait(set, 0, 0), Err(INVAL));
    assert_eq!(epoll_wait(pair.server, 4, 0), Err(INVAL));
    assert_eq!(epoll_wait(998, 4, 0), Err(BADF));
    assert_eq!(epoll_ctl(set, 77, pair.server, IN, 0), Err(INVAL));
    assert_eq!(epoll_ctl(pair.server, EPOLL_CTL_ADD, pair.client, IN, 0), Err(INVAL));
}

fn set_in_itself_is_rejected() {
    let set = epoll_create();
    assert_eq!(epoll_ctl(set, EPOLL_CTL_ADD, set, IN, 0), Err(INVAL));
    let file = open(c"/proc/self/status", libc::O_RDONLY).unwrap();
    assert!(epoll_ctl(set, EPOLL_CTL_ADD, file, IN, 0).is_err());
}

fn modify_changes_interest() {
    let pair = joined_pair();
    let set = set_of(pair.server, IN);
    send_all(pair.client, b"x");
    assert_eq!(soon(set), [(IN, pair.server as u64)]);
    epoll_ctl(set, EPOLL_CTL_MOD, pair.server, OUT, 5).unwrap();
    assert_eq!(now(set), [(OUT, 5)]);
    epoll_ctl(set, EPOLL_CTL_MOD, pair.server, 0, 6).unwrap();
    quiet(set);
    epoll_ctl(set, EPOLL_CTL_MOD, pair.server, IN | OUT, 7).unwrap();
    assert_eq!(now(set), [(IN | OUT, 7)]);
}

fn delete_stops_reports() {
    let pair = joined_pair();
    let set = set_of(pair.server, IN);
    send_all(pair.client, b"x");
    assert_eq!(soon(set).len(), 1);
    epoll_ctl(set, EPOLL_CTL_DEL, pair.server, 0, 0).unwrap();
    quiet(set);
    add(set, pair.server, IN);
    assert_eq!(soon(set).len(), 1);
}

fn hang_up_is_reported_without_interest() {
    let pair = joined_pair();
    let set = set_of(pair.server, 0);
    send_all(pair.client, b"x");
    quiet(set);
    close_with_reset(pair.client);
    assert_eq!(soon(set), [(ERR | HUP, pair.server as u64)]);
}

fn added_before_connect() {
    let (listening, address) = listener(Family::V4);
    let client = socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_NONBLOCK).unwrap();
    let set = set_of(client, IN | OUT);
    assert_eq!(soon(set), [(OUT | HUP, client as u64)]);
    assert_eq!(connect(client, &address), Err(Errno(libc::EINPROGRESS)));
    let server = accept(listening).unwrap();
    eventually("connected", || now(set) == [(OUT, client as u64)]);
    let pair = join_both_ends(Pair { client, server });
    epoll_ctl(set, EPOLL_CTL_MOD, client, IN, 9).unwrap();
    quiet(set);
    send_all(pair.server, b"x");
    assert_eq!(soon(set), [(IN, 9)]);
}

fn added_before_joining() {
    let pair = unused_pair();
    let set = set_of(pair.server, IN);
    let edge = set_of(pair.client, IN | EDGE);
    let pair = join_both_ends(pair);
    now(edge);
    quiet(set);
    send_all(pair.client, b"x");
    send_all(pair.server, b"y");
    assert_eq!(soon(set), [(IN, pair.server as u64)]);
    assert_eq!(soon(edge), [(IN, pair.client as u64)]);
    quiet(edge);
}

fn added_while_listening_and_accepted() {
    let (listening, address) = listener(Family::V4);
    let set = set_of(listening, IN);
    let client = connected(&address);
    assert_eq!(soon(set), [(IN, listening as u64)]);
    let server = accept(listening).unwrap();
    add(set, server, IN);
    quiet(set);
    let pair = join_both_ends(Pair { client, server });
    send_all(pair.client, b"x");
    assert_eq!(soon(set), [(IN, server as u64)]);
}

/// A thread waits for the set while the connection joins by traffic of the other direction.
#[track_caller]
fn check_waiting_while_joining(events: u32) {
    let pair = unused_pair();
    let set = set_of(pair.server, events);
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            assert_eq!(epoll_wait(set, 4, -1), Ok(vec![(IN, pair.server as u64)]));
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

fn waiting_while_the_connection_joins() {
    check_waiting_while_joining(IN);
}

fn edge_waiting_while_the_connection_joins() {
    check_waiting_while_joining(IN | EDGE);
}

fn close_removes() {
    let pair = joined_pair();
    let set = set_of(pair.server, IN);
    send_all(pair.client, b"x");
    assert_eq!(soon(set).len(), 1);
    close(pair.server).unwrap();
    quiet(set);
}

fn duplicate_keeps_the_registration() {
    let pair = joined_pair();
    let set = set_of(pair.server, IN);
    let other = dup(pair.server).unwrap();
    close(pair.server).unwrap();
    send_all(pair.client, b"x");
    assert_eq!(soon(set), [(IN, pair.server as u64)]);
    recv_exact(other, 1);
    quiet(set);
    close(other).unwrap();
    quiet(set);
}

fn two_descriptors_of_one_socket() {
    let pair = joined_pair();
    let other = dup(pair.server).unwrap();
    let set = set_of(pair.server, IN);
    add(set, other, IN | OUT);
    send_all(pair.client, b"x");
    wait_for(pair.server, POLLIN);
    let found = now(set);
    assert_eq!(found.len(), 2);
    for wanted in [(IN, pair.server as u64), (IN | OUT, other as u64)] {
        assert!(found.contains(&wanted), "{found:?}");
    }
}

fn descriptor_reused_after_close() {
    let set = epoll_create();
    for round in 0..50 {
        let pair = joined_pair();
        epoll_ctl(set, EPOLL_CTL_ADD, pair.server, IN, round).unwrap();
        send_all(pair.client, b"x");
        assert_eq!(soon(set), [(IN, round)]);
        close(pair.server).unwrap();
        close(pair.client).unwrap();
        assert_eq!(now(set), []);
    }
}

fn one_socket_in_two_sets() {
    let pair = joined_pair();
    let sets = [set_of(pair.server, IN), set_of(pair.server, IN | EDGE)];
    send_all(pair.client, b"x");
    for set in sets {
        assert_eq!(soon(set), [(IN, pair.server as u64)]);
    }
    assert_eq!(now(sets[0]).len(), 1);
    quiet(sets[1]);
}

fn both_ends_in_one_set() {
    let pair = joined_pair();
    let set = set_of(pair.server, IN);
    add(set, pair.client, IN);
    for _ in 0..200 {
        send_all(pair.client, b"ping");
        assert_eq!(soon(set), [(IN, pair.server as u64)]);
        recv_exact(pair.server, 4);
        send_all(pair.server, b"pong");
        assert_eq!(soon(set), [(IN, pair.client as u64)]);
        recv_exact(pair.client, 4);
    }
}

fn mixes_sockets_and_other_descriptors() {
    let pair = joined_pair();
    let [out, into] = pipe();
    let (listening, address) = listener(Family::V4);
    let event = eventfd();
    // SAFETY: no pointers but the time, which is live for the call.
    let timer = unsafe {
        let timer = libc::timerfd_create(libc::CLOCK_MONOTONIC, 0);
        let after =
            libc::itimerspec { it_interval: timespec_of(0), it_value: timespec_of(1_000_000) };
        assert_eq!(libc::timerfd_settime(timer, 0, &raw const after, std::ptr::null_mut()), 0);
        timer
    };
    let set = set_of(pair.server, IN);
    for fd in [out, listening, event, timer] {
        add(set, fd, IN);
    }
    assert_eq!(soon(set), [(IN, timer as u64)]);
    epoll_ctl(set, EPOLL_CTL_DEL, timer, 0, 0).unwrap();
    write(into, b"x").unwrap();
    assert_eq!(soon(set), [(IN, out as u64)]);
    let _other = connected(&address);
    write(event, &1u64.to_ne_bytes()).unwrap();
    send_all(pair.client, b"x");
    let mut seen = vec![];
    eventually("all four show", || {
        seen = now(set).iter().map(|(_, data)| *data as Fd).collect();
        seen.len() == 4
    });
    for fd in [pair.server, out, listening, event] {
        assert!(seen.contains(&fd));
    }
}

/// With room for one event per call, every ready socket must be reported soon.
fn small_event_array_is_shared_fairly() {
    let set = epoll_create();
    let pairs: Vec<Pair> = (0..10).map(|_| joined_pair()).collect();
    let [out, into] = pipe();
    add(set, out, IN);
    write(into, b"x").unwrap();
    for pair in &pairs {
        add(set, pair.server, IN);
        send_all(pair.client, b"x");
        wait_for(pair.server, POLLIN);
    }
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..100 {
        let found = epoll_wait(set, 1, SOON_MS).unwrap();
        assert_eq!(found.len(), 1);
        seen.insert(found[0].1);
    }
    assert_eq!(seen.len(), 11, "only {seen:?} came up in 100 calls");
}

/// Independent of other doorbells, and of the size of the event array.
fn each_socket_is_reported_once_per_call() {
    for fresh_count in 1..6 {
        let joined: Vec<Pair> = (0..3).map(|_| joined_pair()).collect();
        let fresh: Vec<Pair> = (0..fresh_count).map(|_| unused_pair()).collect();
        let set = epoll_create();
        for pair in joined.iter().chain(&fresh) {
            add(set, pair.server, IN);
        }
        fresh.iter().for_each(|pair| send_all(pair.client, b"x"));
        for places in 1..=2 * joined.len() + fresh.len() {
            // A set that is watched from outside must be woken by all its members.
            ready(set, POLLIN, 0);
            joined.iter().for_each(|pair| send_all(pair.client, b"x"));
            let found = epoll_wait(set, places, 1000).unwrap();
            let mut names: Vec<u64> = found.iter().map(|(_, data)| *data).collect();
            names.sort_unstable();
            names.dedup();
            assert_eq!(names.len(), found.len(), "{places} places: {found:?}");
        }
    }
}

fn hundred_sockets() {
    let set = epoll_create();
    let pairs: Vec<Pair> = (0..100).map(|_| joined_pair()).collect();
    for (index, pair) in pairs.iter().enumerate() {
        epoll_ctl(set, EPOLL_CTL_ADD, pair.server, IN, index as u64).unwrap();
    }
    for turn in 0..500 {
        let index = turn * 37 % 100;
        send_all(pairs[index].client, b"x");
        assert_eq!(soon(set), [(IN, index as u64)]);
        recv_exact(pairs[index].server, 1);
    }
}

fn several_threads_in_one_set() {
    let pair = joined_pair();
    let set = set_of(pair.server, IN | ONCE);
    let got = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while got.load(SeqCst) < 300 {
                    if epoll_wait(set, 4, 20).unwrap().is_empty() {
                        continue;
                    }
                    let mut buffer = [0; 16];
                    let count = recv(pair.server, &mut buffer, libc::MSG_DONTWAIT).unwrap();
                    got.fetch_add(count, SeqCst);
                    epoll_ctl(set, EPOLL_CTL_MOD, pair.server, IN | ONCE, 0).unwrap();
                }
            });
        }
        for _ in 0..300 {
            send_all(pair.client, b"x");
        }
    });
    assert_eq!(got.load(SeqCst), 300);
}

fn several_threads_receive_each_event_once() {
    let pair = joined_pair();
    let set = set_of(pair.server, IN | EDGE);
    let seen = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| seen.fetch_add(epoll_wait(set, 4, 300).unwrap().len(), SeqCst));
        }
        pause_ms(50);
        send_all(pair.client, b"x");
    });
    assert_eq!(seen.load(SeqCst), 1);
}

fn added_by_another_thread_while_waiting() {
    let pair = joined_pair();
    let set = epoll_create();
    std::thread::scope(|scope| {
        let waiter =
            scope.spawn(|| assert_eq!(epoll_wait(set, 4, -1), Ok(vec![(IN, pair.server as u64)])));
        pause_ms(20);
        add(set, pair.server, IN);
        pause_ms(20);
        assert!(!waiter.is_finished());
        send_all(pair.client, b"x");
    });
}

fn set_watched_by_poll() {
    let pair = joined_pair();
    let set = set_of(pair.server, IN);
    assert_eq!(ready(set, POLLIN, 0), 0);
    send_all(pair.client, b"x");
    wait_for(set, POLLIN);
    recv_exact(pair.server, 1);
    assert_eq!(ready(set, POLLIN, 30), 0);
    send_all(pair.client, b"x");
    wait_for(set, POLLIN);
}

fn set_watched_by_select() {
    let pair = joined_pair();
    let set = set_of(pair.server, IN);
    send_all(pair.client, b"x");
    let mut reads = Set::of(&[set]);
    assert_eq!(select(Some(&mut reads), None, None, None), Ok(1));
}

fn nested_set() {
    let pair = joined_pair();
    let inner = set_of(pair.server, IN);
    let outer = set_of(inner, IN);
    quiet(outer);
    for _ in 0..5 {
        send_all(pair.client, b"x");
        assert_eq!(soon(outer), [(IN, inner as u64)]);
        assert_eq!(soon(inner), [(IN, pair.server as u64)]);
        recv_exact(pair.server, 1);
        quiet(outer);
    }
}

fn poll_waits_for_a_set() {
    let pair = joined_pair();
    let set = set_of(pair.server, IN);
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| wait_for(set, POLLIN));
        pause_ms(30);
        assert!(!waiter.is_finished());
        send_all(pair.client, b"x");
    });
    assert_eq!(now(set), [(IN, pair.server as u64)]);
}

fn set_after_fork() {
    let pair = joined_pair();
    let set = set_of(pair.server, IN);
    let child = spawn(|| {
        for _ in 0..20 {
            assert_eq!(soon(set), [(IN, pair.server as u64)]);
            assert_eq!(recv_exact(pair.server, 1), b"x");
            send_all(pair.server, b"y");
        }
    });
    close(pair.server).unwrap();
    for _ in 0..20 {
        send_all(pair.client, b"x");
        assert_eq!(recv_exact(pair.client, 1), b"y");
    }
    child.join();
}

fn duplicate_of_a_set() {
    let pair = joined_pair();
    let set = set_of(pair.server, IN);
    let other = dup(set).unwrap();
    close(set).unwrap();
    send_all(pair.client, b"x");
    assert_eq!(soon(other), [(IN, pair.server as u64)]);
    epoll_ctl(other, EPOLL_CTL_MOD, pair.server, IN, 8).unwrap();
    assert_eq!(soon(other), [(IN, 8)]);
}

fn pwait_with_a_signal_mask() {
    let pair = joined_pair();
    let set = set_of(pair.server, IN);
    handle(libc::SIGUSR1, counted, libc::SA_RESTART);
    block(libc::SIGUSR1, true);
    // SAFETY: a signal to this thread, which has a handler for it.
    unsafe { libc::raise(libc::SIGUSR1) };
    assert_eq!(epoll_pwait(set, 4, 10, Some(&only(libc::SIGUSR1))), Ok(vec![]));
    assert_eq!(HANDLED.load(SeqCst), 0);
    assert_eq!(epoll_pwait(set, 4, -1, Some(&only(0))), Err(INTR));
    assert_eq!(HANDLED.load(SeqCst), 1);
}

fn pwait2_below_a_millisecond() {
    let pair = joined_pair();
    let set = set_of(pair.server, IN);
    for ns in [0, 1, 1_000, 300_000] {
        assert_eq!(epoll_wait_ns(set, Some(ns)), Ok(vec![]));
    }
    send_all(pair.client, b"x");
    assert_eq!(epoll_wait_ns(set, None), Ok(vec![(IN, pair.server as u64)]));
}

fn wait_is_interrupted() {
    let pair = joined_pair();
    let set = set_of(pair.server, IN);
    handle(libc::SIGALRM, counted, libc::SA_RESTART);
    alarm_every(20);
    assert_eq!(epoll_wait(set, 4, -1), Err(INTR));
    assert_eq!(epoll_wait(set, 4, 20_000), Err(INTR));
}

fn wakes_when_peer_is_killed() {
    let (fd, child) = joined_with_child(|_| pause_ms(60_000));
    let set = set_of(fd, IN | RDHUP | EDGE);
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            let found = epoll_wait(set, 4, -1).unwrap();
            assert_eq!((found.len(), found[0].0 & (IN | RDHUP)), (1, IN | RDHUP));
        });
        pause_ms(30);
        assert!(!waiter.is_finished());
        child.kill();
    });
}

fn echo_server_with_many_clients() {
    let (listening, address) = listener(Family::V4);
    let server = spawn(|| serve(listening, 8, IN));
    close(listening).unwrap();
    std::thread::scope(|scope| {
        for client in 0..8u64 {
            let address = &address;
            scope.spawn(move || {
                let fd = connected(address);
                for round in 0..300 {
                    let bytes = pattern(client * 1000 + round, (round as usize * 7) % 500 + 1);
                    send_all(fd, &bytes);
                    assert_bytes(&recv_exact(fd, bytes.len()), &bytes);
                }
                close(fd).unwrap();
            });
        }
    });
    server.join();
}

/// Echoes to `clients` connections and returns after the last of them.
fn serve(listening: Fd, clients: usize, events: u32) {
    let set = set_of(listening, IN);
    let (mut ended, mut buffer) = (0, vec![0; 65_536]);
    while ended < clients {
        for (_, data) in epoll_wait(set, 4, SOON_MS).unwrap() {
            let fd = data as Fd;
            if fd == listening {
                add(set, accept4(listening, libc::SOCK_NONBLOCK).unwrap(), events);
                continue;
            }
            loop {
                match recv(fd, &mut buffer, 0) {
                    Ok(0) => {
                        close(fd).unwrap();
                        ended += 1;
                        break;
                    }
                    Ok(count) => send_all(fd, &buffer[..count]),
                    Err(error) => {
                        assert_eq!(error, AGAIN);
                        break;
                    }
                }
            }
        }
    }
}

fn edge_echo_with_large_messages() {
    let (listening, address) = listener(Family::V4);
    let server = spawn(|| serve(listening, 2, IN | RDHUP | EDGE));
    close(listening).unwrap();
    std::thread::scope(|scope| {
        for client in 0..2u64 {
            let address = &address;
            scope.spawn(move || {
                let fd = connected(address);
                for round in 0..10 {
                    let bytes = pattern(client * 1000 + round, 300_000);
                    std::thread::scope(|scope| {
                        scope.spawn(|| send_all(fd, &bytes));
                        assert_bytes(&recv_exact(fd, bytes.len()), &bytes);
                    });
                }
                close(fd).unwrap();
            });
        }
    });
    server.join();
}

/// Each arrival is reported once, as both: there is space as well.
fn edge_for_input_and_space_has_the_events_of_each_arrival() {
    let pair = joined_pair();
    let set = set_of(pair.server, IN | OUT | EDGE);
    assert_eq!(now(set), [(OUT, pair.server as u64)]);
    for round in 0..20 {
        send_all(pair.client, b"message");
        let found = epoll_wait(set, 4, SOON_MS).unwrap();
        assert_eq!(found, [(IN | OUT, pair.server as u64)], "round {round}");
        assert_eq!(epoll_wait(set, 4, 0).unwrap(), [], "round {round}: nothing has arrived");
        if round % 3 == 2 {
            recv_exact(pair.server, 21);
            assert_eq!(epoll_wait(set, 4, 0).unwrap(), [], "round {round}: nothing has arrived");
        }
    }
}

/// A read of a part is no arrival.
fn edge_for_input_and_space_after_partial_reads() {
    for events in [IN | EDGE, IN | OUT | EDGE, IN | OUT | RDHUP | EDGE] {
        let pair = joined_pair();
        let set = set_of(pair.server, events);
        epoll_wait(set, 4, 0).unwrap();
        for round in 0..20 {
            send_all(pair.client, &[0; 100]);
            let found = epoll_wait(set, 4, SOON_MS).unwrap();
            assert_eq!(found, [(events & (IN | OUT), pair.server as u64)], "round {round}");
            for _ in 0..4 {
                recv_exact(pair.server, 25);
                let found = epoll_wait(set, 4, if round == 5 { 20 } else { 0 }).unwrap();
                assert_eq!(found, [], "round {round}: a part was read");
            }
            assert_eq!(recv(pair.server, &mut [0], libc::MSG_DONTWAIT), Err(AGAIN));
            assert_eq!(epoll_wait(set, 4, 0).unwrap(), [], "round {round}: all was read");
        }
    }
}
