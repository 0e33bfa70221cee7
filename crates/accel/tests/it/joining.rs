//! Every way of waiting × every moment at which a connection may move from the kernel to memory.

use libc::{EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD, MSG_DONTWAIT, MSG_WAITALL, SHUT_WR};

use nm_ring::ledger::{KernelReason, LedgerView, REASON_OF_PEER, SocketPhase};
use nm_sys::clock::Deadline;

use crate::calls::*;
use crate::harness::{note, state};
use crate::support::{self, *};
use crate::ways::*;

behaviours![
    asleep_while_the_other_direction_joins,
    registered_before_joining_and_waited_for_afterwards,
    every_message_may_be_the_one_that_joins,
    both_ends_wait_for_every_message_while_joining,
    data_unread_at_the_join_is_reported,
    half_read_data_at_the_join_is_reported,
    data_in_both_directions_unread_at_the_join,
    set_made_for_each_message_while_joining,
    interest_changed_before_each_message_while_joining,
    removed_and_added_before_each_message_while_joining,
    added_for_space_removed_and_added_for_data,
    second_connect_on_a_connected_socket,
    registered_before_the_connection_is_made,
    nonblocking_connect_is_waited_for_in_every_way,
    apache_bench_loop_against_a_level_triggered_server,
    apache_bench_loop_against_an_edge_triggered_server,
    apache_bench_loop_by_poll,
    apache_bench_loop_with_responses_of_one_read,
    responses_that_end_at_the_size_of_a_read,
    receive_for_all_bytes_while_joining,
    every_receive_call_blocks_while_joining,
    blocked_send_while_joining,
    blocked_sends_in_both_directions_while_joining,
    thread_polls_and_thread_receives_while_joining,
    peeking_while_joining,
    polling_without_time_while_joining,
    end_after_every_number_of_messages,
    half_close_after_every_number_of_messages,
    reset_after_every_number_of_messages,
    space_after_a_full_buffer_while_joining,
    duplicate_made_after_every_number_of_messages,
    nonblocking_mode_changed_while_joining,
    one_way_stream_while_nothing_comes_back,
    large_messages_join_too,
    requests_in_advance_while_joining,
    many_connections_of_one_set_join_in_turn,
    connections_that_start_at_once_all_join,
    idle_connections_beside_busy_ones_join_later,
    option_set_before_joining_is_known_at_both_ends,
];

#[track_caller]
fn unused_pair() -> Pair {
    without_delay(support::unused_pair())
}

fn asleep_while_the_other_direction_joins() {
    each_way(|way| {
        let pair = unused_pair();
        let waiter = Waiter::for_data(way, pair.server);
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                waiter.wait();
                assert_eq!(recv_exact(pair.server, 4), b"here");
            });
            pause_ms(5);
            for round in 0..60 {
                send_all(pair.server, &pattern(round, 100));
                assert_bytes(&recv_exact(pair.client, 100), &pattern(round, 100));
            }
            assert!(!thread.is_finished());
            send_all(pair.client, b"here");
        });
        join_both_ends(pair);
    });
}

fn registered_before_joining_and_waited_for_afterwards() {
    each_way(|way| {
        let pair = unused_pair();
        let waiter = Waiter::for_data(way, pair.server);
        let pair = join_both_ends(pair);
        waiter.shows(0);
        assert!(!waiter.shows(0));
        check_reports(pair, &waiter, 20);
    });
}

/// Calls that the two ends make first, so that they join at different times.
const FIRST_CALLS: [(usize, usize); 6] = [(0, 0), (1, 0), (0, 1), (3, 0), (2, 7), (0, 9)];

fn every_message_may_be_the_one_that_joins() {
    each_way(|way| {
        for (sent, answered) in FIRST_CALLS {
            let pair = new_pair_after(sent, answered);
            let waiter = Waiter::for_data(way, pair.server);
            check_reports(pair, &waiter, 24);
            drop(waiter);
            close(pair.client).unwrap();
            close(pair.server).unwrap();
        }
    });
}

fn both_ends_wait_for_every_message_while_joining() {
    each_way(|way| {
        for (sent, answered) in &FIRST_CALLS[..4] {
            let pair = new_pair_after(*sent, *answered);
            let there = Waiter::for_data(way, pair.server);
            let back = Waiter::for_data(way, pair.client);
            let turned = Pair { client: pair.server, server: pair.client };
            for _ in 0..15 {
                check_reports(pair, &there, 1);
                check_reports(turned, &back, 1);
            }
            join_both_ends(pair);
        }
    });
}

/// The client sends one byte at a time, which the server reads, and answers; `unread` bytes stay
/// unread at the server.
#[track_caller]
fn exchange_behind(pair: Pair, rounds: usize) {
    for _ in 0..rounds {
        send_all(pair.server, b"back");
        assert_eq!(recv_exact(pair.client, 4), b"back");
    }
}

fn data_unread_at_the_join_is_reported() {
    each_way(|way| {
        let pair = unused_pair();
        let waiter = Waiter::for_data(way, pair.server);
        send_all(pair.client, b"ab");
        exchange_behind(pair, 25);
        send_all(pair.client, b"cd");
        waiter.wait();
        assert_eq!(recv_exact(pair.server, 4), b"abcd");
        assert!(!waiter.shows(0));
        check_reports(pair, &waiter, 20);
        join_both_ends(pair);
    });
}

fn half_read_data_at_the_join_is_reported() {
    each_way(|way| {
        let pair = unused_pair();
        let waiter = Waiter::for_data(way, pair.server);
        send_all(pair.client, b"abcdefgh");
        waiter.wait();
        assert_eq!(recv_exact(pair.server, 3), b"abc");
        exchange_behind(pair, 25);
        assert_eq!(waiter.shows(0), waiter.is_level());
        send_all(pair.client, b"ij");
        waiter.wait();
        assert_eq!(recv_exact(pair.server, 7), b"defghij");
        assert!(!waiter.shows(0));
        check_reports(pair, &waiter, 20);
    });
}

fn data_in_both_directions_unread_at_the_join() {
    each_way(|way| {
        let pair = unused_pair();
        let waiters = [pair.client, pair.server].map(|fd| Waiter::for_data(way, fd));
        let mut taken = 0;
        for turn in 0..40 {
            send_all(pair.client, &pattern_at(1, turn * 10, 10));
            send_all(pair.server, &pattern_at(2, turn * 10, 10));
            if turn >= 5 {
                waiters.iter().for_each(Waiter::wait);
                assert_bytes(&recv_exact(pair.server, 9), &pattern_at(1, taken, 9));
                assert_bytes(&recv_exact(pair.client, 9), &pattern_at(2, taken, 9));
                taken += 9;
            }
        }
        let rest = 400 - taken;
        assert_bytes(&recv_exact(pair.server, rest), &pattern_at(1, taken, rest));
        assert_bytes(&recv_exact(pair.client, rest), &pattern_at(2, taken, rest));
        assert!(waiters.iter().all(|waiter| !waiter.shows(0)));
        join_both_ends(pair);
    });
}

/// As programs do that make an epoll set, or a list of descriptors, for one wait.
fn set_made_for_each_message_while_joining() {
    each_way(|way| {
        let pair = unused_pair();
        for round in 0..30u8 {
            if round % 2 == 0 {
                send_all(pair.client, &[round]);
            }
            let waiter = Waiter::for_data(way, pair.server);
            if round % 2 == 1 {
                send_all(pair.client, &[round]);
            }
            waiter.wait();
            assert_eq!(recv_now(pair.server), [round]);
            assert!(!waiter.shows(0));
            send_all(pair.server, b"a");
            recv_exact(pair.client, 1);
        }
    });
}

fn interest_changed_before_each_message_while_joining() {
    for events in SETS {
        let pair = unused_pair();
        let set = epoll_create();
        epoll_ctl(set, EPOLL_CTL_ADD, pair.server, events, 0).unwrap();
        for round in 0..40u64 {
            if round % 3 == 0 {
                epoll_ctl(set, EPOLL_CTL_MOD, pair.server, OUT | (events & EDGE), 99).unwrap();
                assert_eq!(epoll_wait(set, 4, SOON_MS), Ok(vec![(OUT, 99)]));
            }
            if round % 2 == 0 {
                send_all(pair.client, b"x");
            }
            epoll_ctl(set, EPOLL_CTL_MOD, pair.server, events, round).unwrap();
            if round % 2 == 1 {
                send_all(pair.client, b"x");
            }
            assert_eq!(epoll_wait(set, 4, SOON_MS), Ok(vec![(IN, round)]), "round {round}");
            assert_eq!(recv_now(pair.server), b"x");
            send_all(pair.server, b"a");
            recv_exact(pair.client, 1);
        }
    }
}

fn removed_and_added_before_each_message_while_joining() {
    for events in SETS {
        let pair = unused_pair();
        let set = epoll_create();
        for round in 0..40u64 {
            if round % 2 == 0 {
                send_all(pair.client, b"x");
            }
            epoll_ctl(set, EPOLL_CTL_ADD, pair.server, events, round).unwrap();
            if round % 2 == 1 {
                send_all(pair.client, b"x");
            }
            assert_eq!(epoll_wait(set, 1, SOON_MS), Ok(vec![(IN, round)]), "round {round}");
            if round % 3 == 0 {
                epoll_ctl(set, EPOLL_CTL_DEL, pair.server, 0, 0).unwrap();
            }
            assert_eq!(recv_now(pair.server), b"x");
            if round % 3 != 0 {
                epoll_ctl(set, EPOLL_CTL_DEL, pair.server, 0, 0).unwrap();
            }
            send_all(pair.server, b"a");
            recv_exact(pair.client, 1);
            assert_eq!(epoll_wait(set, 1, 0), Ok(vec![]));
        }
    }
}

/// A connection that is being made: descriptor in the set `set`, for its own number.
#[track_caller]
fn begin_connecting(address: &Address) -> Fd {
    let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    let fd = socket(libc::AF_INET, kind).unwrap();
    assert_eq!(connect(fd, address), Err(Errno(libc::EINPROGRESS)));
    fd
}

fn added_for_space_removed_and_added_for_data() {
    let (listening, address) = listener(Family::V4);
    for events in SETS {
        let set = epoll_create();
        let client = begin_connecting(&address);
        epoll_ctl(set, EPOLL_CTL_ADD, client, OUT, 1).unwrap();
        let server = accept(listening).unwrap();
        assert_eq!(epoll_wait(set, 1, SOON_MS), Ok(vec![(OUT, 1)]));
        epoll_ctl(set, EPOLL_CTL_DEL, client, 0, 0).unwrap();
        for round in 0..30 {
            send_all(client, b"request");
            if round % 4 == 0 {
                assert_eq!(recv_exact(server, 7), b"request");
                send_all(server, b"answer");
            }
            epoll_ctl(set, EPOLL_CTL_ADD, client, events, round).unwrap();
            if round % 4 != 0 {
                assert_eq!(recv_exact(server, 7), b"request");
                send_all(server, b"answer");
            }
            assert_eq!(epoll_wait(set, 1, SOON_MS), Ok(vec![(IN, round)]));
            assert_eq!(recv_now(client), b"answer");
            epoll_ctl(set, EPOLL_CTL_DEL, client, 0, 0).unwrap();
        }
        join_both_ends(Pair { client, server });
    }
}

fn second_connect_on_a_connected_socket() {
    let (listening, address) = listener(Family::V4);
    let client = begin_connecting(&address);
    wait_for(client, libc::POLLOUT);
    assert_eq!(connect(client, &address), Ok(()));
    assert_eq!(connect(client, &address), Err(Errno(libc::EISCONN)));
    let pair = join_both_ends(Pair { client, server: accept(listening).unwrap() });
    assert_eq!(connect(pair.client, &address), Err(Errno(libc::EISCONN)));
    join_both_ends(pair);
}

/// The registration is older than the connection, and stays.
fn registered_before_the_connection_is_made() {
    let (listening, address) = listener(Family::V4);
    for events in [IN, IN | EDGE] {
        let client = socket(libc::AF_INET, libc::SOCK_STREAM).unwrap();
        let set = epoll_create();
        epoll_ctl(set, EPOLL_CTL_ADD, client, events, 7).unwrap();
        connect(client, &address).unwrap();
        let server = accept(listening).unwrap();
        epoll_wait(set, 4, 0).unwrap();
        for _ in 0..30 {
            send_all(server, b"x");
            assert_eq!(epoll_wait(set, 4, SOON_MS), Ok(vec![(IN, 7)]));
            assert_eq!(recv_now(client), b"x");
            assert_eq!(epoll_wait(set, 4, 0), Ok(vec![]));
            send_all(client, b"y");
            recv_exact(server, 1);
        }
        join_both_ends(Pair { client, server });
    }
}

fn nonblocking_connect_is_waited_for_in_every_way() {
    let (listening, address) = listener(Family::V4);
    each_way_for_space(|way| {
        let client = begin_connecting(&address);
        let waiter = Waiter::for_space(way, client);
        waiter.wait();
        assert_eq!(option(client, libc::SOL_SOCKET, libc::SO_ERROR), Ok(0));
        let server = accept(listening).unwrap();
        drop(waiter);
        let pair = Pair { client: server, server: client };
        check_reports(pair, &Waiter::for_data(way, client), 10);
        join_both_ends(pair);
    });
}

// The loop of Apache's ab: it reads at most 8 192 bytes at a time and stops when a response is
// complete, so that it never sees EAGAIN.

const READ: usize = 8192;

/// A client's connection: bytes of the current response that came, and responses still to come.
struct Request {
    fd: Fd,
    got: usize,
    left: u32,
}

/// Answers each request of 50 bytes with `size` bytes, until all `clients` have ended.
fn serve_responses(listening: Fd, clients: usize, events: u32, size: usize) {
    let set = epoll_create();
    epoll_ctl(set, EPOLL_CTL_ADD, listening, IN, listening as u64).unwrap();
    let (mut ended, mut buffer) = (0, [0; 50]);
    while ended < clients {
        for (_, data) in epoll_wait(set, 16, SOON_MS).unwrap() {
            let fd = data as Fd;
            if fd == listening {
                let fd = accept4(listening, libc::SOCK_NONBLOCK).unwrap();
                epoll_ctl(set, EPOLL_CTL_ADD, fd, events, fd as u64).unwrap();
                continue;
            }
            loop {
                match recv(fd, &mut buffer, 0) {
                    Ok(50) => send_all(fd, &pattern(fd as u64, size)),
                    Ok(0) => {
                        close(fd).unwrap();
                        ended += 1;
                        break;
                    }
                    Err(AGAIN) => break,
                    other => panic!("a request came as {other:?}"),
                }
                if events & EDGE == 0 {
                    break;
                }
            }
        }
    }
}

/// One read of a response; when it is complete, the next request.
fn read_response(request: &mut Request, size: usize) {
    let mut buffer = [0; READ];
    let count = recv(request.fd, &mut buffer, 0).expect("what is reported can be received");
    assert_ne!(count, 0, "the server has closed");
    request.got += count;
    if request.got == size {
        request.got = 0;
        request.left -= 1;
        if request.left > 0 {
            send_all(request.fd, &[b'r'; 50]);
        }
    }
}

/// Makes all connections as ab does: adds each for space, and then for data.
fn connect_all(set: Fd, address: &Address, count: usize, left: u32) -> Vec<Request> {
    let mut requests = vec![];
    for index in 0..count {
        let fd = begin_connecting(address);
        epoll_ctl(set, EPOLL_CTL_ADD, fd, OUT, index as u64).unwrap();
        requests.push(Request { fd, got: 0, left });
    }
    let mut connected = 0;
    while connected < count {
        for (_, index) in epoll_wait(set, count, SOON_MS).unwrap() {
            let fd = requests[index as usize].fd;
            assert_eq!(connect(fd, address), Ok(()));
            epoll_ctl(set, EPOLL_CTL_DEL, fd, 0, 0).unwrap();
            send_all(fd, &[b'r'; 50]);
            epoll_ctl(set, EPOLL_CTL_ADD, fd, IN, index).unwrap();
            connected += 1;
        }
    }
    requests
}

#[track_caller]
fn check_apache_bench(server_events: u32, clients: usize, size: usize, left: u32) {
    let (listening, address) = listener(Family::V4);
    let server = spawn(|| serve_responses(listening, clients, server_events, size));
    close(listening).unwrap();
    let set = epoll_create();
    let mut requests = connect_all(set, &address, clients, left);
    while requests.iter().any(|request| request.left > 0) {
        let found = epoll_wait(set, clients, SOON_MS).unwrap();
        assert!(!found.is_empty(), "connections stand still");
        for (_, index) in found {
            read_response(&mut requests[index as usize], size);
        }
    }
    for request in requests {
        close(request.fd).unwrap();
    }
    server.join();
}

fn apache_bench_loop_against_a_level_triggered_server() {
    check_apache_bench(IN, 8, 9_000, 60);
}

fn apache_bench_loop_against_an_edge_triggered_server() {
    check_apache_bench(IN | RDHUP | EDGE, 8, 9_000, 60);
}

fn apache_bench_loop_with_responses_of_one_read() {
    for clients in [1, 2, 4, 16] {
        check_apache_bench(IN, clients, 600, 40);
    }
}

fn responses_that_end_at_the_size_of_a_read() {
    check_apache_bench(IN, 4, READ, 30);
    check_apache_bench(IN | EDGE, 4, 2 * READ, 30);
}

fn apache_bench_loop_by_poll() {
    let (listening, address) = listener(Family::V4);
    let server = spawn(|| serve_responses(listening, 8, IN, 9_000));
    close(listening).unwrap();
    let set = epoll_create();
    let mut requests = connect_all(set, &address, 8, 50);
    close(set).unwrap();
    while requests.iter().any(|request| request.left > 0) {
        let entry =
            |request: &Request| libc::pollfd { fd: request.fd, events: libc::POLLIN, revents: 0 };
        let mut list: Vec<_> = requests.iter().map(entry).collect();
        assert_ne!(poll(&mut list, SOON_MS), Ok(0), "connections stand still");
        for (request, entry) in requests.iter_mut().zip(list) {
            if entry.revents != 0 {
                read_response(request, 9_000);
            }
        }
    }
    requests.iter().for_each(|request| close(request.fd).unwrap());
    server.join();
}

fn receive_for_all_bytes_while_joining() {
    let pair = unused_pair();
    std::thread::scope(|scope| {
        let receiver = scope.spawn(|| {
            let mut bytes = vec![0; 4000];
            assert_eq!(recv(pair.server, &mut bytes, MSG_WAITALL), Ok(4000));
            assert_bytes(&bytes, &pattern(1, 4000));
        });
        for part in 0..40 {
            send_all(pair.client, &pattern_at(1, part * 100, 100));
            send_all(pair.server, b"other way");
            assert_eq!(recv_exact(pair.client, 9), b"other way");
            assert!(part == 39 || !receiver.is_finished());
        }
    });
    join_both_ends(pair);
}

fn every_receive_call_blocks_while_joining() {
    let calls: [fn(Fd, &mut [u8]) -> Outcome; 5] = [
        |fd, buffer| recv(fd, buffer, 0),
        read,
        |fd, buffer| readv(fd, &mut [buffer]),
        |fd, buffer| recvmsg(fd, &mut [buffer], 0).map(|(count, _)| count),
        |fd, buffer| recvfrom(fd, buffer, 0).map(|(count, _)| count),
    ];
    for (index, call) in calls.into_iter().enumerate() {
        note(&format!("call {index}"));
        let pair = unused_pair();
        std::thread::scope(|scope| {
            let receiver = scope.spawn(|| {
                let mut buffer = [0; 10];
                assert_eq!(call(pair.server, &mut buffer), Ok(4));
                assert_eq!(&buffer[..4], b"here");
            });
            pause_ms(5);
            exchange_behind(pair, 60);
            assert!(!receiver.is_finished());
            send_all(pair.client, b"here");
        });
        join_both_ends(pair);
    }
}

/// The sender blocks before the connection joins; what it sends must stay in order.
fn blocked_send_while_joining() {
    let pair = unused_pair();
    let bytes = pattern(1, 8 << 20);
    std::thread::scope(|scope| {
        scope.spawn(|| send_all(pair.client, &bytes));
        pause_ms(10);
        exchange_behind(pair, 60);
        assert_bytes(&recv_exact(pair.server, bytes.len()), &bytes);
    });
    join_both_ends(pair);
}

fn blocked_sends_in_both_directions_while_joining() {
    let pair = unused_pair();
    let (there, back) = (pattern(1, 5 << 20), pattern(2, 5 << 20));
    std::thread::scope(|scope| {
        scope.spawn(|| send_all(pair.client, &there));
        scope.spawn(|| send_all(pair.server, &back));
        pause_ms(10);
        let reader = scope.spawn(|| assert_bytes(&recv_exact(pair.client, back.len()), &back));
        assert_bytes(&recv_exact(pair.server, there.len()), &there);
        reader.join().unwrap();
    });
    join_both_ends(pair);
}

/// One thread sleeps in poll, another in a receive; both see data from before and after the join.
fn thread_polls_and_thread_receives_while_joining() {
    let pair = unused_pair();
    std::thread::scope(|scope| {
        let poller = scope.spawn(|| wait_for(pair.server, libc::POLLHUP));
        let receiver = scope.spawn(|| recv_to_end(pair.server).0);
        for round in 0..50 {
            send_all(pair.client, &pattern_at(1, round * 50, 50));
            exchange_behind(pair, 1);
        }
        assert!(!poller.is_finished() && !receiver.is_finished());
        shutdown(pair.client, SHUT_WR).unwrap();
        assert_bytes(&receiver.join().unwrap(), &pattern(1, 2500));
        shutdown(pair.server, SHUT_WR).unwrap();
    });
}

fn peeking_while_joining() {
    let pair = unused_pair();
    for round in 0..60u8 {
        send_all(pair.client, &[round, round + 1]);
        for size in [1, 2, 9] {
            let mut buffer = [0; 9];
            let flags = libc::MSG_PEEK;
            wait_for(pair.server, libc::POLLIN);
            assert_eq!(recv(pair.server, &mut buffer[..size], flags), Ok(size.min(2)));
            assert_eq!(buffer[0], round);
        }
        assert_eq!(unread(pair.server), 2);
        assert_eq!(recv_exact(pair.server, 2), [round, round + 1]);
        exchange_behind(pair, 1);
    }
    join_both_ends(pair);
}

fn polling_without_time_while_joining() {
    each_way(|way| {
        let pair = unused_pair();
        let waiter = Waiter::for_data(way, pair.server);
        for round in 0..40u8 {
            assert!(!waiter.shows(0));
            send_all(pair.client, &[round]);
            eventually("the byte is shown", || waiter.shows(0));
            assert_eq!(recv_now(pair.server), [round]);
            exchange_behind(pair, 1);
        }
    });
}

/// A connection after `count` messages in each direction.
#[track_caller]
fn pair_after_messages(count: usize) -> Pair {
    let pair = unused_pair();
    for _ in 0..count {
        one_byte(pair.client, pair.server);
        one_byte(pair.server, pair.client);
    }
    pair
}

fn end_after_every_number_of_messages() {
    for count in 0..16 {
        for way in [Way::Peek, Way::Poll, Way::Level, Way::Edge] {
            let pair = pair_after_messages(count);
            let waiter = Waiter::for_data(way, pair.server);
            send_all(pair.client, &pattern(1, 700));
            close(pair.client).unwrap();
            waiter.wait();
            assert_eq!(recv_to_end(pair.server), (pattern(1, 700), Ok(())), "after {count}");
        }
    }
}

fn half_close_after_every_number_of_messages() {
    for count in 0..20 {
        let pair = pair_after_messages(count);
        send_all(pair.client, &pattern(1, 700));
        shutdown(pair.client, SHUT_WR).unwrap();
        for round in 0..20 {
            send_all(pair.server, &pattern(round, 300));
            assert_bytes(&recv_exact(pair.client, 300), &pattern(round, 300));
        }
        assert_eq!(recv_to_end(pair.server), (pattern(1, 700), Ok(())), "after {count}");
    }
}

fn reset_after_every_number_of_messages() {
    for count in 0..20 {
        let pair = pair_after_messages(count);
        send_all(pair.client, &pattern(1, 700));
        wait_for(pair.server, libc::POLLIN);
        close_with_reset(pair.client);
        wait_for(pair.server, libc::POLLHUP);
        assert_eq!(recv_to_end(pair.server), (pattern(1, 700), Err(RESET)), "after {count}");
    }
}

fn space_after_a_full_buffer_while_joining() {
    for way in [Way::Select, Way::Level, Way::Edge] {
        let pair = unused_pair();
        for fd in [pair.client, pair.server] {
            set_option(fd, libc::SOL_SOCKET, libc::SO_SNDBUF, 20_000).unwrap();
        }
        let waiter = Waiter::for_space(way, pair.client);
        let mut sent = fill(pair.client, 1);
        exchange_behind(pair, 40);
        while waiter.shows(0) {
            sent = fill_from(pair.client, 1, sent);
        }
        assert_bytes(&recv_exact(pair.server, sent), &pattern(1, sent));
        waiter.wait();
        assert_eq!(send(pair.client, b"more", MSG_DONTWAIT), Ok(4));
        assert_eq!(recv_exact(pair.server, 4), b"more");
        join_both_ends(pair);
    }
}

fn duplicate_made_after_every_number_of_messages() {
    for count in 0..20 {
        let pair = pair_after_messages(count);
        let other = dup(pair.server).unwrap();
        let waiter = Waiter::for_data(Way::Level, other);
        for round in 0..20u8 {
            let fd = if round % 2 == 0 { other } else { pair.server };
            send_all(pair.client, &[round]);
            waiter.wait();
            assert_eq!(recv_now(fd), [round]);
            send_all(fd, &[round]);
            assert_eq!(recv_exact(pair.client, 1), [round]);
        }
    }
}

fn nonblocking_mode_changed_while_joining() {
    let pair = unused_pair();
    for round in 0..60 {
        let is_on = round % 2 == 0;
        nonblocking(pair.server, is_on);
        let flags = if is_on { 0 } else { MSG_DONTWAIT };
        assert_eq!(recv(pair.server, &mut [0], flags), Err(AGAIN));
        one_byte(pair.client, pair.server);
        one_byte(pair.server, pair.client);
    }
    join_both_ends(pair);
}

/// Nothing comes back, not even after the end of the stream of messages.
fn one_way_stream_while_nothing_comes_back() {
    let (listening, address) = listener(Family::V4);
    let child = spawn(|| {
        let fd = connected(&address);
        for part in 0..20_000 {
            send_all(fd, &pattern_at(1, part * 100, 100));
        }
        close(fd).unwrap();
    });
    let fd = accept(listening).unwrap();
    assert_bytes(&recv_to_end(fd).0, &pattern(1, 2_000_000));
    child.join();
}

/// A connection with few calls, each of a mebibyte.
fn large_messages_join_too() {
    let pair = unused_pair();
    let bytes = pattern(1, 1 << 20);
    let exchange = |from: Fd, to: Fd| {
        std::thread::scope(|scope| {
            scope.spawn(|| send_all(from, &bytes));
            assert_bytes(&recv_exact(to, bytes.len()), &bytes);
        });
    };
    let is_joined = |fd: Fd| crate::harness::state(fd).is_none_or(|state| state == JOINED);
    let mut rounds = 0;
    while rounds < 4 || !is_joined(pair.client) || !is_joined(pair.server) {
        exchange(pair.client, pair.server);
        exchange(pair.server, pair.client);
        rounds += 1;
        assert!(rounds < 60, "not joined after {rounds} messages of a mebibyte");
    }
}

/// The client has always three requests on their way.
fn requests_in_advance_while_joining() {
    each_way(|way| {
        let pair = unused_pair();
        let waiters = [pair.client, pair.server].map(|fd| Waiter::for_data(way, fd));
        (0..3).for_each(|round| send_all(pair.client, &pattern(round, 40)));
        for round in 0..60 {
            if waiters[1].is_level() {
                waiters[1].wait();
            }
            assert_bytes(&recv_exact(pair.server, 40), &pattern(round, 40));
            send_all(pair.server, &pattern(round, 200));
            waiters[0].wait();
            assert_bytes(&recv_exact(pair.client, 200), &pattern(round, 200));
            send_all(pair.client, &pattern(round + 3, 40));
        }
    });
}

fn many_connections_of_one_set_join_in_turn() {
    for events in [IN, IN | EDGE] {
        let set = epoll_create();
        let mut pairs: Vec<Pair> = vec![];
        for round in 0..60 {
            if round % 2 == 0 {
                let pair = unused_pair();
                epoll_ctl(set, EPOLL_CTL_ADD, pair.server, events, pairs.len() as u64).unwrap();
                pairs.push(pair);
            }
            for (index, pair) in pairs.iter().enumerate().skip(pairs.len().saturating_sub(9)) {
                send_all(pair.client, &[round]);
                assert_eq!(epoll_wait(set, pairs.len(), SOON_MS), Ok(vec![(IN, index as u64)]));
                assert_eq!(recv_now(pair.server), [round]);
                send_all(pair.server, b"a");
                recv_exact(pair.client, 1);
            }
        }
    }
}

/// The two programs open a hundred connections before the first message.
fn connections_that_start_at_once_all_join() {
    let (listening, address) = listener(Family::V4);
    let child = spawn(|| {
        let fds: Vec<Fd> = (0..100).map(|_| connected(&address)).collect();
        for round in 0..30 {
            fds.iter().for_each(|fd| send_all(*fd, &pattern(round, 64)));
            for fd in &fds {
                assert_bytes(&recv_exact(*fd, 64), &pattern(round, 64));
            }
        }
        fds.iter().for_each(|fd| join_with_peer(*fd, true));
    });
    let fds: Vec<Fd> = (0..100).map(|_| accept(listening).unwrap()).collect();
    for round in 0..30 {
        for fd in &fds {
            assert_bytes(&recv_exact(*fd, 64), &pattern(round, 64));
            send_all(*fd, &pattern(round, 64));
        }
    }
    fds.iter().for_each(|fd| join_with_peer(*fd, false));
    child.join();
}

fn idle_connections_beside_busy_ones_join_later() {
    let set = epoll_create();
    let idle: Vec<Pair> = (0..30).map(|_| unused_pair()).collect();
    for (index, pair) in idle.iter().enumerate() {
        epoll_ctl(set, EPOLL_CTL_ADD, pair.server, IN, index as u64).unwrap();
    }
    let busy = joined_pair();
    epoll_ctl(set, EPOLL_CTL_ADD, busy.server, IN, 1000).unwrap();
    for (index, pair) in idle.iter().enumerate() {
        for _ in 0..20 {
            send_all(busy.client, b"busy");
            assert_eq!(epoll_wait(set, 4, SOON_MS), Ok(vec![(IN, 1000)]));
            recv_exact(busy.server, 4);
        }
        send_all(pair.client, b"x");
        assert_eq!(epoll_wait(set, 4, SOON_MS), Ok(vec![(IN, index as u64)]));
        assert_eq!(recv_now(pair.server), b"x");
        join_both_ends(*pair);
        assert_eq!(epoll_wait(set, 4, 0), Ok(vec![]));
    }
}

/// The ledgers among the descriptors of this process; none without the library.
pub(crate) fn ledgers() -> Vec<LedgerView> {
    let links = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let is_ledger = |link: &std::fs::DirEntry| {
        std::fs::read_link(link.path())
            .is_ok_and(|target| target.to_string_lossy().starts_with("/memfd:nearmetal-accel "))
    };
    let files = links.filter(is_ledger).filter_map(|link| std::fs::File::open(link.path()).ok());
    files.filter_map(|file| LedgerView::open(file.into()).ok()).collect()
}

/// Why each open socket of this process uses the kernel, and whether the other end gave the
/// reason; none without the library.
pub(crate) fn reasons() -> Vec<(KernelReason, bool)> {
    let reasons = |ledger: LedgerView| {
        let open = ledger.records().filter(|it| it.phase != SocketPhase::Closed);
        open.map(|it| (it.reason, it.detail == REASON_OF_PEER)).collect::<Vec<_>>()
    };
    ledgers().into_iter().flat_map(reasons).collect()
}

/// An option that only the kernel supports, set at one end while neither has looked for the other:
/// both know why they stay on the kernel.
fn option_set_before_joining_is_known_at_both_ends() {
    for by_server in [false, true] {
        let pair = unused_pair();
        let fd = if by_server { pair.server } else { pair.client };
        set_option(fd, libc::SOL_SOCKET, libc::SO_TIMESTAMP, 1).unwrap();
        let is_known = |reasons: &[(KernelReason, bool)]| {
            let option = KernelReason::SocketOption;
            [false, true].iter().all(|&of_peer| reasons.contains(&(option, of_peer)))
        };
        let deadline = Deadline::after(SOON);
        while state(pair.client).is_some() && !is_known(&reasons()) {
            assert!(!deadline.passed(), "not known: {:?}", reasons());
            one_byte(pair.client, pair.server);
            one_byte(pair.server, pair.client);
        }
        check_both_directions(pair);
        [pair.client, pair.server].into_iter().for_each(|fd| close(fd).unwrap());
    }
}
