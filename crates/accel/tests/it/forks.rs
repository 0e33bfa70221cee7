//! Connections whose ends are shared by several processes. Both ends fork, one process waits while
//! another uses the socket, processes end at any moment, and servers have many processes.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use libc::{EPOLL_CTL_ADD, EPOLL_CTL_DEL, MSG_DONTWAIT, MSG_NOSIGNAL, POLLIN, SHUT_WR};

use crate::calls::*;
use crate::support::joined_without_delay as joined_pair;
use crate::support::*;
use crate::ways::*;

behaviours![
    both_ends_fork_one_reads_one_writes,
    both_ends_fork_one_polls_one_receives,
    both_ends_fork_one_waits_by_epoll_one_sends,
    reader_and_writer_are_children_of_one_program,
    parent_and_child_poll_and_both_see_one_message,
    parent_and_child_receive_one_message_each,
    parent_and_child_wait_for_one_set,
    child_waits_while_the_parent_receives,
    blocked_send_of_a_child_continues_when_read,
    children_send_in_turn_while_the_parent_sleeps,
    fork_after_every_number_of_messages,
    fork_while_a_thread_waits_in_every_way,
    fork_while_a_thread_sends,
    fork_while_threads_open_and_close_connections,
    fork_while_threads_change_a_set,
    fork_in_a_thread_while_the_main_thread_receives,
    child_with_a_set_of_its_own,
    child_adds_to_a_shared_set,
    child_removes_from_a_shared_set,
    set_keeps_a_socket_that_only_a_child_holds,
    child_closes_a_shared_set,
    child_killed_while_it_waits,
    child_killed_while_it_waits_in_epoll,
    child_killed_while_it_sends,
    child_killed_while_it_polls_again_and_again,
    child_exits_with_unread_data,
    parent_exits_and_the_child_continues,
    parent_killed_and_the_child_continues,
    all_of_one_end_killed_is_an_end,
    stopped_child_holds_nothing_up,
    shutdown_in_a_child_wakes_the_parents_wait,
    data_unread_in_both_directions_at_a_fork,
    full_buffer_at_a_fork,
    twenty_children_read_a_line_each,
    sockets_of_five_generations,
    fork_by_a_call_without_handlers,
    fork_by_a_system_call,
    handlers_at_fork_use_the_connection,
    program_becomes_a_daemon,
    daemon_by_forking_twice,
    child_on_a_pseudo_terminal,
    server_forks_for_each_connection_and_keeps_none,
    preforked_workers_accept_in_turn,
    preforked_workers_accept_under_a_lock,
    preforked_workers_wait_by_poll_then_accept,
    preforked_workers_wait_by_exclusive_epoll,
    workers_replaced_while_clients_are_connected,
    connection_made_before_and_used_after_a_fork,
    connection_returns_to_memory_after_the_child_has_ended,
    connection_that_is_about_to_join_in_a_child,
];

/// Sends `count` bytes of a pattern in pieces of different sizes.
fn send_pieces(fd: Fd, seed: u64, count: usize) {
    let (mut at, mut piece) = (0, 1);
    while at < count {
        let size = piece.min(count - at);
        send_all(fd, &pattern_at(seed, at, size));
        at += size;
        piece = piece * 13 % 5003 + 1;
    }
}

#[track_caller]
fn expect_pieces(fd: Fd, seed: u64, count: usize) {
    assert_bytes(&recv_exact(fd, count), &pattern(seed, count));
}

/// Both programs fork; on each end the child reads what the other end's parent writes.
fn both_ends_fork_one_reads_one_writes() {
    let (fd, there) = joined_with_child(|fd| {
        let reader = spawn(|| expect_pieces(fd, 1, 300_000));
        send_pieces(fd, 2, 300_000);
        reader.join();
    });
    let reader = spawn(|| expect_pieces(fd, 2, 300_000));
    send_pieces(fd, 1, 300_000);
    reader.join();
    there.join();
}

/// Polls until the end and receives nothing.
fn poll_until_end(fd: Fd) {
    while ready(fd, POLLIN | libc::POLLRDHUP, SOON_MS) & libc::POLLRDHUP == 0 {
        std::thread::yield_now();
    }
}

fn both_ends_fork_one_polls_one_receives() {
    let (fd, there) = joined_with_child(|fd| {
        let poller = spawn(|| poll_until_end(fd));
        echo_messages(fd);
        shutdown(fd, SHUT_WR).unwrap();
        poller.join();
    });
    let poller = spawn(|| poll_until_end(fd));
    for round in 0..100 {
        send_all(fd, &pattern(round, 200));
        assert_bytes(&recv_exact(fd, 200), &pattern(round, 200));
        if round % 25 == 0 {
            pause_ms(2);
        }
    }
    shutdown(fd, SHUT_WR).unwrap();
    assert_eq!(recv(fd, &mut [0], 0), Ok(0));
    poller.join();
    there.join();
}

/// Echoes until the end of the stream.
fn echo_messages(fd: Fd) {
    let mut buffer = vec![0; 30_000];
    loop {
        match recv(fd, &mut buffer, 0).unwrap() {
            0 => return,
            count => send_all(fd, &buffer[..count]),
        }
    }
}

fn both_ends_fork_one_waits_by_epoll_one_sends() {
    let waits = |fd: Fd, seed: u64| {
        let waiter = Waiter::for_data(Way::Edge, fd);
        let mut got = vec![];
        while got.len() < 20_000 {
            waiter.wait();
            let mut buffer = [0; 3000];
            while let Ok(count @ 1..) = recv(fd, &mut buffer, MSG_DONTWAIT) {
                got.extend_from_slice(&buffer[..count]);
            }
        }
        assert_bytes(&got, &pattern(seed, 20_000));
    };
    let (fd, there) = joined_with_child(|fd| {
        let waiting = spawn(|| waits(fd, 1));
        send_pieces(fd, 2, 20_000);
        waiting.join();
    });
    let waiting = spawn(|| waits(fd, 2));
    send_pieces(fd, 1, 20_000);
    waiting.join();
    there.join();
}

fn reader_and_writer_are_children_of_one_program() {
    let pair = joined_pair();
    let children = [
        spawn(|| send_pieces(pair.client, 1, 200_000)),
        spawn(|| expect_pieces(pair.server, 1, 200_000)),
        spawn(|| send_pieces(pair.server, 2, 200_000)),
        spawn(|| expect_pieces(pair.client, 2, 200_000)),
    ];
    children.into_iter().for_each(Process::join);
    check_both_directions(pair);
}

fn parent_and_child_poll_and_both_see_one_message() {
    let pair = joined_pair();
    let [out, into] = pipe();
    let child = spawn(|| {
        wait_for(pair.server, POLLIN);
        write(into, b"seen").unwrap();
    });
    std::thread::scope(|scope| {
        scope.spawn(|| {
            pause_ms(10);
            send_all(pair.client, b"x");
        });
        wait_for(pair.server, POLLIN);
    });
    assert_eq!(read(out, &mut [0; 9]), Ok(4));
    child.join();
    assert_eq!(recv_exact(pair.server, 1), b"x");
    check_both_directions(pair);
}

fn parent_and_child_receive_one_message_each() {
    let pair = joined_pair();
    let child = spawn(|| assert_eq!(recv(pair.server, &mut [0], 0), Ok(1)));
    std::thread::scope(|scope| {
        let receiver = scope.spawn(|| assert_eq!(recv(pair.server, &mut [0], 0), Ok(1)));
        pause_ms(10);
        assert!(!receiver.is_finished());
        send_all(pair.client, b"a");
        pause_ms(5);
        send_all(pair.client, b"b");
    });
    child.join();
    check_both_directions(pair);
}

/// The set is the same open file in both; each message wakes at least one, and one of them gets it.
fn parent_and_child_wait_for_one_set() {
    let pair = joined_pair();
    let set = epoll_create();
    epoll_ctl(set, EPOLL_CTL_ADD, pair.server, IN, 3).unwrap();
    let take = || {
        let mut count = 0;
        loop {
            assert_eq!(epoll_wait(set, 4, SOON_MS), Ok(vec![(IN, 3)]));
            match recv(pair.server, &mut [0], MSG_DONTWAIT) {
                Ok(0) => return count,
                Ok(_) => {
                    count += 1;
                    send_all(pair.server, b"got");
                }
                Err(error) => assert_eq!(error, AGAIN),
            }
        }
    };
    let child = spawn(|| {
        take();
    });
    std::thread::scope(|scope| {
        scope.spawn(take);
        for _ in 0..200 {
            send_all(pair.client, b"x");
            assert_eq!(recv_exact(pair.client, 3), b"got");
        }
        shutdown(pair.client, SHUT_WR).unwrap();
    });
    child.join();
}

fn child_waits_while_the_parent_receives() {
    each_way(|way| {
        let pair = joined_pair();
        let child = spawn(|| {
            let waiter = Waiter::for_data(way, pair.server);
            waiter.wait();
        });
        pause_ms(3);
        for round in 0..10 {
            send_all(pair.client, &pattern(round, 50));
            assert_bytes(&recv_exact(pair.server, 50), &pattern(round, 50));
        }
        shutdown(pair.client, SHUT_WR).unwrap();
        child.join();
    });
}

fn blocked_send_of_a_child_continues_when_read() {
    let pair = small_pair();
    let child = spawn(|| send_all(pair.client, &pattern(1, 600_000)));
    pause_ms(10);
    expect_pieces(pair.server, 1, 600_000);
    child.join();
    check_both_directions(pair);
}

fn children_send_in_turn_while_the_parent_sleeps() {
    let pair = joined_pair();
    for number in 0..15u8 {
        let child = spawn(|| {
            pause_ms(1);
            send_all(pair.client, &[number; 30]);
        });
        assert_eq!(recv_exact(pair.server, 30), [number; 30]);
        child.join();
    }
    join_both_ends(pair);
}

fn fork_after_every_number_of_messages() {
    for count in 0..14 {
        let pair = unused_pair();
        for _ in 0..count {
            one_byte(pair.client, pair.server);
            one_byte(pair.server, pair.client);
        }
        let child = spawn(|| {
            close(pair.client).unwrap();
            echo_messages(pair.server);
        });
        close(pair.server).unwrap();
        for round in 0..15 {
            send_all(pair.client, &pattern(round, 90));
            assert_bytes(&recv_exact(pair.client, 90), &pattern(round, 90));
        }
        close(pair.client).unwrap();
        child.join();
    }
}

/// The child must start in order, and the thread that waits must still be woken.
fn fork_while_a_thread_waits_in_every_way() {
    each_way(|way| {
        let (pair, other) = (joined_pair(), joined_pair());
        let waiter = Waiter::for_data(way, pair.server);
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| waiter.wait());
            pause_ms(4);
            spawn(|| {
                check_both_directions(other);
                check_reports(other, &Waiter::for_data(way, other.server), 3);
                send_all(pair.server, b"by the child");
            })
            .join();
            assert_eq!(recv_exact(pair.client, 12), b"by the child");
            assert!(!thread.is_finished());
            send_all(pair.client, b"x");
        });
        assert_eq!(recv_now(pair.server), b"x");
        check_both_directions(pair);
        check_both_directions(other);
    });
}

fn fork_while_a_thread_sends() {
    let (pair, other) = (joined_pair(), joined_pair());
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut round = 0;
            while !is_over.load(SeqCst) {
                send_all(pair.client, &pattern(round, 70));
                assert_bytes(&recv_exact(pair.client, 70), &pattern(round, 70));
                round += 1;
            }
            shutdown(pair.client, SHUT_WR).unwrap();
        });
        scope.spawn(|| echo_messages(pair.server));
        for _ in 0..20 {
            spawn(|| check_both_directions(other)).join();
        }
        is_over.store(true, SeqCst);
    });
}

fn fork_while_threads_open_and_close_connections() {
    let other = joined_pair();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !is_over.load(SeqCst) {
                    let pair = unused_pair();
                    (0..5).for_each(|_| one_byte(pair.client, pair.server));
                    close(pair.client).unwrap();
                    close(pair.server).unwrap();
                }
            });
        }
        for _ in 0..20 {
            spawn(|| {
                check_both_directions(other);
                join_both_ends(unused_pair());
            })
            .join();
        }
        is_over.store(true, SeqCst);
    });
}

fn fork_while_threads_change_a_set() {
    let pairs: Vec<Pair> = (0..8).map(|_| joined_pair()).collect();
    let (set, is_over) = (epoll_create(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(SeqCst) {
                for pair in &pairs[1..] {
                    epoll_ctl(set, EPOLL_CTL_ADD, pair.server, IN, 1).unwrap();
                }
                for pair in &pairs[1..] {
                    epoll_ctl(set, EPOLL_CTL_DEL, pair.server, 0, 0).unwrap();
                }
            }
        });
        scope.spawn(|| {
            while !is_over.load(SeqCst) {
                assert_eq!(epoll_wait(set, 8, 1), Ok(vec![]));
            }
        });
        for _ in 0..20 {
            spawn(|| {
                let waiter = Waiter::for_data(Way::Level, pairs[0].server);
                check_reports(pairs[0], &waiter, 5);
            })
            .join();
        }
        is_over.store(true, SeqCst);
    });
}

fn fork_in_a_thread_while_the_main_thread_receives() {
    let pair = joined_pair();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..10 {
                pause_ms(1);
                spawn(|| send_all(pair.client, &pattern_at(4, round * 30, 30))).join();
            }
        });
        assert_bytes(&recv_exact(pair.server, 300), &pattern(4, 300));
    });
    check_both_directions(pair);
}

fn child_with_a_set_of_its_own() {
    let pair = joined_pair();
    let set = epoll_create();
    epoll_ctl(set, EPOLL_CTL_ADD, pair.server, IN, 1).unwrap();
    spawn(|| {
        let waiter = Waiter::for_data(Way::Edge, pair.server);
        check_reports(pair, &waiter, 20);
    })
    .join();
    assert_eq!(epoll_wait(set, 4, 0), Ok(vec![]));
    send_all(pair.client, b"x");
    assert_eq!(epoll_wait(set, 4, SOON_MS), Ok(vec![(IN, 1)]));
}

/// The parent gets events of a socket that only the child has.
fn child_adds_to_a_shared_set() {
    let set = epoll_create();
    let (listening, address) = listener(Family::V4);
    let [out, into] = pipe();
    let child = spawn(|| {
        let fd = accept(listening).unwrap();
        join_with_peer(fd, false);
        epoll_ctl(set, EPOLL_CTL_ADD, fd, IN, 4711).unwrap();
        write(into, b"x").unwrap();
        wait_for(fd, libc::POLLRDHUP);
    });
    let fd = connected(&address);
    join_with_peer(fd, true);
    read(out, &mut [0]).unwrap();
    assert_eq!(epoll_wait(set, 4, 0), Ok(vec![]));
    send_all(fd, b"x");
    assert_eq!(epoll_wait(set, 4, SOON_MS), Ok(vec![(IN, 4711)]));
    close(fd).unwrap();
    child.join();
    assert_eq!(epoll_wait(set, 4, 0), Ok(vec![]));
}

fn child_removes_from_a_shared_set() {
    let pair = joined_pair();
    let set = epoll_create();
    epoll_ctl(set, EPOLL_CTL_ADD, pair.server, IN, 1).unwrap();
    send_all(pair.client, b"x");
    assert_eq!(epoll_wait(set, 4, SOON_MS), Ok(vec![(IN, 1)]));
    spawn(|| epoll_ctl(set, EPOLL_CTL_DEL, pair.server, 0, 0).unwrap()).join();
    assert_eq!(epoll_wait(set, 4, 20), Ok(vec![]));
    epoll_ctl(set, EPOLL_CTL_ADD, pair.server, IN, 2).unwrap();
    assert_eq!(epoll_wait(set, 4, SOON_MS), Ok(vec![(IN, 2)]));
}

/// The kernel removes a socket from a set only when nobody holds it any longer.
fn set_keeps_a_socket_that_only_a_child_holds() {
    let pair = joined_pair();
    let set = epoll_create();
    epoll_ctl(set, EPOLL_CTL_ADD, pair.server, IN, 1).unwrap();
    let [out, into] = pipe();
    let child = spawn(|| {
        close(pair.client).unwrap();
        read(out, &mut [0]).unwrap();
    });
    close(pair.server).unwrap();
    send_all(pair.client, b"x");
    assert_eq!(epoll_wait(set, 4, SOON_MS), Ok(vec![(IN, 1)]));
    write(into, b"x").unwrap();
    child.join();
    assert_eq!(epoll_wait(set, 4, 0), Ok(vec![]));
}

fn child_closes_a_shared_set() {
    let pair = joined_pair();
    let waiter = Waiter::for_data(Way::Nested, pair.server);
    spawn(|| {
        for fd in 3..100 {
            let _ = close(fd);
        }
    })
    .join();
    check_reports(pair, &waiter, 20);
    join_both_ends(pair);
}

/// A child is killed while it runs `body`; the connection goes on between the others.
#[track_caller]
fn check_killed_while(body: impl Fn(Pair)) {
    let pair = joined_pair();
    for _ in 0..4 {
        let child = spawn(|| body(pair));
        pause_ms(4);
        child.kill();
        check_both_directions(pair);
        check_reports(pair, &Waiter::for_data(Way::Level, pair.server), 3);
    }
}

fn child_killed_while_it_waits() {
    check_killed_while(|pair| {
        let _ = recv(pair.server, &mut [0], 0);
    });
    check_killed_while(|pair| wait_for(pair.server, POLLIN));
}

fn child_killed_while_it_waits_in_epoll() {
    check_killed_while(|pair| Waiter::for_data(Way::Level, pair.server).wait());
    check_killed_while(|pair| Waiter::for_data(Way::Edge, pair.client).wait());
}

fn child_killed_while_it_polls_again_and_again() {
    check_killed_while(|pair| {
        let waiter = Waiter::for_data(Way::Level, pair.server);
        while !waiter.shows(0) && ready(pair.client, POLLIN, 0) == 0 {}
        pause_ms(60_000);
    });
}

/// What the child had sent stays; what it had not sent is missing, and the parent's bytes follow.
fn child_killed_while_it_sends() {
    for round in 0..6 {
        let pair = small_pair();
        let child = spawn(|| {
            for part in 0.. {
                send_all(pair.client, &pattern_at(1, part * 1000, 1000));
            }
        });
        pause_ms(1 + round);
        child.kill();
        shutdown(pair.client, SHUT_WR).unwrap();
        let (got, how) = recv_to_end(pair.server);
        assert_bytes(&got, &pattern(1, got.len()));
        assert_eq!(how, Ok(()));
        send_all(pair.server, b"other way");
        assert_eq!(recv_exact(pair.client, 9), b"other way");
    }
}

fn child_exits_with_unread_data() {
    let pair = joined_pair();
    spawn(|| {
        send_all(pair.client, &pattern(6, 30_000));
        assert_bytes(&recv_exact(pair.server, 7_000), &pattern(6, 7_000));
    })
    .join();
    assert_eq!(unread(pair.server), 23_000);
    assert_bytes(&recv_exact(pair.server, 23_000), &pattern_at(6, 7_000, 23_000));
    check_both_directions(pair);
}

/// A process that forks an echoing child and ends: by itself or killed.
#[track_caller]
fn check_child_continues(end: impl FnOnce()) {
    let (listening, address) = listener(Family::V4);
    let parent = spawn(|| {
        let fd = accept(listening).unwrap();
        join_with_peer(fd, false);
        let _echo = spawn(|| {
            close(listening).unwrap();
            echo_messages(fd);
        });
        end();
    });
    close(listening).unwrap();
    let fd = connected(&address);
    join_with_peer(fd, true);
    waitpid(parent.0).unwrap();
    for round in 0..100 {
        send_all(fd, &pattern(round, 300));
        assert_bytes(&recv_exact(fd, 300), &pattern(round, 300));
    }
    shutdown(fd, SHUT_WR).unwrap();
    assert_eq!(recv(fd, &mut [0], 0), Ok(0));
}

fn parent_exits_and_the_child_continues() {
    check_child_continues(|| ());
}

fn parent_killed_and_the_child_continues() {
    check_child_continues(|| kill(std::process::id().cast_signed(), libc::SIGKILL));
}

fn all_of_one_end_killed_is_an_end() {
    let [out, into] = pipe();
    let (fd, child) = joined_with_child(|_| {
        let grandchild = spawn(|| pause_ms(60_000));
        write(into, &grandchild.0.to_ne_bytes()).unwrap();
        pause_ms(60_000);
    });
    let mut number = [0; 4];
    assert_eq!(read(out, &mut number), Ok(4));
    child.kill();
    assert_eq!(ready(fd, POLLIN, 20), 0);
    send_all(fd, b"unread");
    kill(i32::from_ne_bytes(number), libc::SIGKILL);
    assert_eq!(recv(fd, &mut [0], 0), Err(RESET));
}

/// A child that shares the socket is stopped inside a wait.
fn stopped_child_holds_nothing_up() {
    let pair = joined_pair();
    let child = spawn(|| {
        let _ = recv(pair.server, &mut [0; 10], 0);
        pause_ms(60_000);
    });
    pause_ms(5);
    child.stop();
    check_both_directions(pair);
    child.kill();
    check_both_directions(pair);
}

fn shutdown_in_a_child_wakes_the_parents_wait() {
    each_way(|way| {
        let pair = joined_pair();
        let waiter = Waiter::for_data(way, pair.server);
        let child = spawn(|| {
            pause_ms(4);
            shutdown(pair.server, libc::SHUT_RDWR).unwrap();
        });
        // The end of the child is a signal, which may interrupt the wait.
        while waiter.outcome(SOON_MS) != Ok(true) {}
        assert_eq!(recv(pair.server, &mut [0], 0), Ok(0));
        child.join();
    });
}

fn data_unread_in_both_directions_at_a_fork() {
    let pair = joined_pair();
    send_all(pair.client, &pattern(1, 9_000));
    send_all(pair.server, &pattern(2, 9_000));
    spawn(|| {
        expect_pieces(pair.server, 1, 4_000);
        send_all(pair.client, &pattern_at(1, 9_000, 500));
    })
    .join();
    expect_pieces(pair.client, 2, 9_000);
    assert_bytes(&recv_exact(pair.server, 5_500), &pattern_at(1, 4_000, 5_500));
    check_both_directions(pair);
}

fn full_buffer_at_a_fork() {
    let pair = small_pair();
    let sent = fill(pair.client, 1);
    let child = spawn(|| {
        wait_for(pair.client, libc::POLLOUT);
        send_all(pair.client, &pattern_at(1, sent, 5_000));
    });
    assert_bytes(&recv_exact(pair.server, sent + 5_000), &pattern(1, sent + 5_000));
    child.join();
    join_both_ends(pair);
}

fn twenty_children_read_a_line_each() {
    let pair = joined_pair();
    send_all(pair.client, &pattern(1, 10 * 37));
    for number in 0..20 {
        if number == 10 {
            send_all(pair.client, &pattern_at(1, 10 * 37, 10 * 37));
        }
        spawn(|| {
            assert_bytes(&recv_exact(pair.server, 37), &pattern_at(1, number * 37, 37));
        })
        .join();
    }
    assert_eq!(recv(pair.server, &mut [0], MSG_DONTWAIT), Err(AGAIN));
    join_both_ends(pair);
}

fn send_by_generation(fd: Fd, generation: u8) {
    send_all(fd, &[generation; 100]);
    if generation < 5 {
        spawn(|| send_by_generation(fd, generation + 1)).join();
        send_all(fd, &[10 - generation; 100]);
    }
}

fn sockets_of_five_generations() {
    let pair = joined_pair();
    spawn(|| send_by_generation(pair.client, 1)).join();
    for number in (1..=5).chain(6..=9) {
        assert_eq!(recv_exact(pair.server, 100), [number; 100]);
    }
    check_both_directions(pair);
}

unsafe extern "C" {
    /// glibc 2.34 and later: fork without the handlers of `pthread_atfork`.
    fn _Fork() -> libc::pid_t;
    fn daemon(keep_folder: i32, keep_streams: i32) -> i32;
}

/// Runs `body` in a child that `fork_child` makes.
#[track_caller]
fn spawn_by(fork_child: impl FnOnce() -> i32, body: impl FnOnce()) -> Process {
    match fork_child() {
        0 => crate::harness::run_and_exit(body),
        child => {
            assert!(child > 0, "{:?}", errno());
            Process(child)
        }
    }
}

#[track_caller]
fn check_forked_by(fork_child: impl Fn() -> i32) {
    let pair = joined_pair();
    send_all(pair.client, b"unread");
    spawn_by(&fork_child, || {
        assert_eq!(recv_exact(pair.server, 3), b"unr");
        check_both_directions(joined_pair());
        send_all(pair.server, b"child");
    })
    .join();
    assert_eq!(recv_exact(pair.server, 3), b"ead");
    assert_eq!(recv_exact(pair.client, 5), b"child");
    let echo = spawn_by(&fork_child, || {
        close(pair.client).unwrap();
        echo_messages(pair.server);
    });
    for round in 0..50 {
        send_all(pair.client, &pattern(round, 100));
        assert_bytes(&recv_exact(pair.client, 100), &pattern(round, 100));
    }
    shutdown(pair.client, SHUT_WR).unwrap();
    echo.join();
}

fn fork_by_a_call_without_handlers() {
    // SAFETY: no pointers; the process has one thread.
    check_forked_by(|| unsafe { _Fork() });
}

fn fork_by_a_system_call() {
    // SAFETY: a clone without a stack and shared memory is a fork; the process has one thread.
    check_forked_by(|| unsafe {
        libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0usize, 0usize, 0usize, 0usize) as i32
    });
}

/// Descriptor that the handlers use.
static AT_FORK: std::sync::atomic::AtomicI32 = std::sync::atomic::AtomicI32::new(-1);

fn send_at_fork(letter: u8) {
    assert_eq!(send(AT_FORK.load(SeqCst), &[letter], MSG_NOSIGNAL), Ok(1));
}

extern "C" fn before_fork() {
    send_at_fork(b'1');
}

extern "C" fn in_parent() {
    send_at_fork(b'p');
}

extern "C" fn in_child() {
    send_at_fork(b'c');
}

fn handlers_at_fork_use_the_connection() {
    let pair = joined_pair();
    AT_FORK.store(pair.client, SeqCst);
    // SAFETY: the handlers are functions that stay.
    unsafe { libc::pthread_atfork(Some(before_fork), Some(in_parent), Some(in_child)) };
    for _ in 0..5 {
        spawn(|| ()).join();
        let mut letters = recv_exact(pair.server, 3);
        letters[1..].sort_unstable();
        assert_eq!(letters, b"1cp");
    }
}

/// `daemon` forks inside libc; the connection goes on in the child.
fn program_becomes_a_daemon() {
    let (fd, child) = joined_with_child(|fd| {
        // SAFETY: no pointers.
        assert_eq!(unsafe { daemon(1, 1) }, 0);
        echo_messages(fd);
    });
    child.join();
    for round in 0..100 {
        send_all(fd, &pattern(round, 200));
        assert_bytes(&recv_exact(fd, 200), &pattern(round, 200));
    }
    shutdown(fd, SHUT_WR).unwrap();
    assert_eq!(recv(fd, &mut [0], 0), Ok(0));
}

fn daemon_by_forking_twice() {
    let (listening, address) = listener(Family::V4);
    spawn(|| {
        let held = joined_pair();
        // SAFETY: no pointers.
        unsafe { libc::setsid() };
        let _daemon = spawn(|| {
            let fd = accept(listening).unwrap();
            check_both_directions(held);
            echo_messages(fd);
        });
    })
    .join();
    close(listening).unwrap();
    let fd = connected(&address);
    for round in 0..100 {
        send_all(fd, &pattern(round, 200));
        assert_bytes(&recv_exact(fd, 200), &pattern(round, 200));
    }
    shutdown(fd, SHUT_WR).unwrap();
    assert_eq!(recv(fd, &mut [0], 0), Ok(0));
}

fn child_on_a_pseudo_terminal() {
    let pair = joined_pair();
    let mut terminal = -1;
    let null = std::ptr::null_mut::<libc::c_char>();
    // SAFETY: the descriptor is live for the call; the rest is optional.
    let child = spawn_by(
        || unsafe {
            libc::forkpty(&raw mut terminal, null, std::ptr::null_mut(), std::ptr::null_mut())
        },
        || {
            assert_eq!(recv_exact(pair.server, 3), b"one");
            send_all(pair.server, b"two");
        },
    );
    send_all(pair.client, b"one");
    assert_eq!(recv_exact(pair.client, 3), b"two");
    child.join();
    check_both_directions(pair);
}

#[track_caller]
fn check_echo_of(address: &Address, rounds: u64) -> Fd {
    let fd = connected(address);
    for round in 0..rounds {
        send_all(fd, &pattern(round, 300));
        assert_bytes(&recv_exact(fd, 300), &pattern(round, 300));
    }
    fd
}

#[track_caller]
fn end_echo_of(fd: Fd) {
    shutdown(fd, SHUT_WR).unwrap();
    assert_eq!(recv(fd, &mut [0], 0), Ok(0));
    close(fd).unwrap();
}

/// Clients stay connected at the same time, each to a child of its own.
fn server_forks_for_each_connection_and_keeps_none() {
    let (listening, address) = listener(Family::V4);
    let server = spawn(|| {
        let children = [0; 6].map(|_| {
            let fd = accept(listening).unwrap();
            let child = spawn(|| {
                close(listening).unwrap();
                echo_messages(fd);
            });
            close(fd).unwrap();
            child
        });
        children.into_iter().for_each(Process::join);
    });
    close(listening).unwrap();
    let clients = [0; 6].map(|_| check_echo_of(&address, 30));
    for fd in clients {
        send_all(fd, b"again");
        assert_eq!(recv_exact(fd, 5), b"again");
        end_echo_of(fd);
    }
    server.join();
}

/// Workers that live as long as the server, and a client for each connection that they accept.
#[track_caller]
fn check_workers(listening: Fd, address: &Address, accept_one: impl Fn() -> Fd) {
    let workers = [0; 3].map(|_| {
        spawn(|| {
            for _ in 0..3 {
                let fd = accept_one();
                echo_messages(fd);
                close(fd).unwrap();
            }
        })
    });
    close(listening).unwrap();
    // At most as many at a time as there are workers.
    for _ in 0..3 {
        let clients = [0; 3].map(|_| connected(address));
        for round in 0..30 {
            for fd in clients {
                send_all(fd, &pattern(round, 100));
            }
            for fd in clients {
                assert_bytes(&recv_exact(fd, 100), &pattern(round, 100));
            }
        }
        clients.into_iter().for_each(end_echo_of);
    }
    workers.into_iter().for_each(Process::join);
}

fn preforked_workers_accept_in_turn() {
    let (listening, address) = listener(Family::V4);
    check_workers(listening, &address, || accept(listening).unwrap());
}

/// As Apache's prefork does where several may not accept at once.
fn preforked_workers_accept_under_a_lock() {
    let (listening, address) = listener(Family::V4);
    let lock = pipe();
    write(lock[1], b"l").unwrap();
    check_workers(listening, &address, || {
        read(lock[0], &mut [0]).unwrap();
        wait_for(listening, POLLIN);
        let fd = accept(listening).unwrap();
        write(lock[1], b"l").unwrap();
        fd
    });
}

fn preforked_workers_wait_by_poll_then_accept() {
    let (listening, address) = listener(Family::V4);
    nonblocking(listening, true);
    check_workers(listening, &address, || {
        loop {
            wait_for(listening, POLLIN);
            match accept(listening) {
                Ok(fd) => return fd,
                Err(error) => assert_eq!(error, AGAIN),
            }
        }
    });
}

fn preforked_workers_wait_by_exclusive_epoll() {
    let (listening, address) = listener(Family::V4);
    nonblocking(listening, true);
    check_workers(listening, &address, || {
        let set = epoll_create();
        epoll_ctl(set, EPOLL_CTL_ADD, listening, IN | EXCLUSIVE, 1).unwrap();
        loop {
            assert_eq!(epoll_wait(set, 4, SOON_MS), Ok(vec![(IN, 1)]));
            match accept(listening) {
                Ok(fd) => {
                    close(set).unwrap();
                    return fd;
                }
                Err(error) => assert_eq!(error, AGAIN),
            }
        }
    });
}

/// A server that reloads: new workers accept, the old ones serve their connections to the end.
fn workers_replaced_while_clients_are_connected() {
    let (listening, address) = listener(Family::V4);
    let mut clients = vec![];
    let mut workers = vec![];
    for _ in 0..4 {
        workers.push(spawn(|| {
            let fd = accept(listening).unwrap();
            close(listening).unwrap();
            echo_messages(fd);
        }));
        clients.push(check_echo_of(&address, 20));
        for fd in &clients {
            send_all(*fd, b"still");
            assert_eq!(recv_exact(*fd, 5), b"still");
        }
    }
    // Each worker holds the clients that were made before it, so the last ones end first.
    while let (Some(fd), Some(worker)) = (clients.pop(), workers.pop()) {
        end_echo_of(fd);
        worker.join();
    }
}

/// A pool of connections that a program makes before it forks its workers, each using one.
fn connection_made_before_and_used_after_a_fork() {
    let pairs = [0; 4].map(|_| unused_pair());
    let workers = pairs.map(|pair| {
        spawn(|| {
            let waiter = Waiter::for_data(Way::Level, pair.server);
            for _ in 0..60 {
                waiter.wait();
                let message = recv_now(pair.server);
                send_all(pair.server, &message);
            }
        })
    });
    pairs.iter().for_each(|pair| close(pair.server).unwrap());
    for round in 0..60 {
        pairs.iter().for_each(|pair| send_all(pair.client, &pattern(round, 80)));
        for pair in &pairs {
            assert_bytes(&recv_exact(pair.client, 80), &pattern(round, 80));
        }
    }
    workers.into_iter().for_each(Process::join);
}

fn connection_returns_to_memory_after_the_child_has_ended() {
    let pair = joined_pair();
    for _ in 0..5 {
        spawn(|| {
            check_both_directions(pair);
            let waiter = Waiter::for_data(Way::Level, pair.server);
            check_reports(pair, &waiter, 3);
        })
        .join();
        join_both_ends(pair);
    }
}

/// The child's call may be the one that finds that the peer has accepted the memory: its parent,
/// and a program that the parent starts, must still receive what the peer sends.
fn connection_that_is_about_to_join_in_a_child() {
    for calls in 0..12 {
        let (listening, address) = listener(Family::V4);
        let server = spawn(|| {
            let fd = accept(listening).unwrap();
            let waiter = Waiter::for_data(Way::OneShot, fd);
            loop {
                waiter.wait();
                match recv_now(fd) {
                    end if end.is_empty() => return,
                    message => send_all(fd, &message),
                }
            }
        });
        close(listening).unwrap();
        let fd = connected(&address);
        let exchange = |text: &[u8]| {
            send_all(fd, text);
            assert_bytes(&recv_exact(fd, text.len()), text);
        };
        (0..calls).for_each(|_| exchange(b"parent"));
        // The peer accepts in the first exchange.
        spawn(|| (0..2).for_each(|_| exchange(b"child"))).join();
        dup2(fd, 8).unwrap();
        let script = c"printf program >&8; test $(head -c 7 <&8) = program";
        // SAFETY: a C string.
        assert_eq!(unsafe { libc::system(script.as_ptr()) }, 0, "after {calls} calls");
        exchange(b"parent again");
        close(8).unwrap();
        end_echo_of(fd);
        server.join();
    }
}
