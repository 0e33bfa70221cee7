//! Every way of waiting × everything that can end a wait, on connections in shared memory.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use libc::{MSG_DONTWAIT, MSG_NOSIGNAL, SHUT_RD, SHUT_RDWR, SHUT_WR};

use crate::calls::*;
use crate::harness::note;
use crate::support::joined_without_delay as joined_pair;
use crate::support::*;
use crate::ways::*;

behaviours![
    every_wait_reports_each_message_once,
    every_wait_sleeps_until_data,
    every_wait_sleeps_until_the_end,
    every_wait_sleeps_until_a_reset,
    every_wait_sleeps_until_the_peer_is_killed,
    every_wait_sleeps_until_its_own_shutdown,
    every_wait_sleeps_until_data_from_another_process,
    every_wait_for_space_sleeps_until_space,
    every_wait_for_space_sleeps_until_the_peer_closes,
    every_wait_reports_data_before_the_end,
    every_wait_reports_data_that_a_killed_peer_left,
    every_wait_reports_what_arrived_before_it_was_set_up,
    every_wait_reports_a_rest_unless_edge_triggered,
    every_wait_finds_nothing_after_another_descriptor_received,
    every_wait_with_no_time_finds_data_soon,
    every_wait_with_little_time_finds_data_soon,
    every_wait_is_interrupted_by_a_handler,
    every_wait_ends_only_once_data_is_there,
    every_wait_survives_a_stop_of_the_process,
    every_wait_survives_a_stop_of_the_peer,
    two_ends_wait_in_turn,
    each_end_waits_in_another_way,
    one_socket_is_waited_for_in_every_way_at_once,
    waits_in_every_way_after_much_data,
    waits_after_overflow_into_the_kernel,
    waits_change_from_call_to_call,
    waiting_for_data_and_space_at_once,
];

/// `wait` runs in a thread of its own, asleep when `end` is called.
#[track_caller]
fn check_asleep_until<T: Send>(wait: impl FnOnce() -> T + Send, end: impl FnOnce()) -> T {
    std::thread::scope(|scope| {
        let waiter = scope.spawn(wait);
        pause_ms(8);
        assert!(!waiter.is_finished(), "the wait ended too early");
        end();
        waiter.join().unwrap()
    })
}

fn every_wait_reports_each_message_once() {
    each_way(|way| {
        let pair = joined_pair();
        check_reports(pair, &Waiter::for_data(way, pair.server), 50);
        assert_state(pair.server, JOINED);
    });
}

fn every_wait_sleeps_until_data() {
    each_way(|way| {
        let pair = joined_pair();
        let waiter = Waiter::for_data(way, pair.server);
        for _ in 0..2 {
            check_asleep_until(|| waiter.wait(), || send_all(pair.client, b"x"));
            assert_eq!(recv_now(pair.server), b"x");
        }
        join_both_ends(pair);
    });
}

fn every_wait_sleeps_until_the_end() {
    each_way(|way| {
        let pair = joined_pair();
        let waiter = Waiter::for_data(way, pair.server);
        check_asleep_until(|| waiter.wait(), || close(pair.client).unwrap());
        assert_eq!(recv(pair.server, &mut [0], 0), Ok(0));
    });
}

fn every_wait_sleeps_until_a_reset() {
    each_way(|way| {
        let pair = joined_pair();
        let waiter = Waiter::for_data(way, pair.server);
        check_asleep_until(|| waiter.wait(), || close_with_reset(pair.client));
        // The blocking receive has taken the error already.
        let wanted = if way == Way::Peek { Ok(0) } else { Err(RESET) };
        assert_eq!(recv(pair.server, &mut [0], 0), wanted);
    });
}

fn every_wait_sleeps_until_the_peer_is_killed() {
    each_way(|way| {
        let (fd, child) = joined_with_child(|_| pause_ms(60_000));
        let waiter = Waiter::for_data(way, fd);
        check_asleep_until(|| waiter.wait(), || child.kill());
        assert_eq!(recv(fd, &mut [0], 0), Ok(0));
    });
}

fn every_wait_sleeps_until_its_own_shutdown() {
    each_way(|way| {
        let pair = joined_pair();
        let waiter = Waiter::for_data(way, pair.server);
        check_asleep_until(|| waiter.wait(), || shutdown(pair.server, SHUT_RD).unwrap());
        assert_eq!(recv(pair.server, &mut [0], 0), Ok(0));
    });
}

fn every_wait_sleeps_until_data_from_another_process() {
    each_way(|way| {
        let (fd, child) = joined_with_child(|fd| {
            for _ in 0..3 {
                assert_eq!(recv_exact(fd, 1), b"?");
                pause_ms(3);
                send_all(fd, b"!");
            }
        });
        let waiter = Waiter::for_data(way, fd);
        for _ in 0..3 {
            send_all(fd, b"?");
            waiter.wait();
            assert_eq!(recv_now(fd), b"!");
        }
        child.join();
    });
}

/// For each way of waiting a connection whose client has sent until it was full: how many bytes.
#[track_caller]
fn full_pairs() -> Vec<(Way, Pair, usize)> {
    let pairs = WAYS.map(|way| (way, small_pair()));
    std::thread::scope(|scope| {
        let fill = |(way, pair): (Way, Pair)| (way, pair, fill(pair.client, 1));
        let threads = pairs.map(|pair| scope.spawn(move || fill(pair)));
        threads.map(|thread| thread.join().unwrap()).into()
    })
}

fn every_wait_for_space_sleeps_until_space() {
    for (way, pair, mut sent) in full_pairs().drain(1..) {
        note(&format!("waiting by {way:?}"));
        let waiter = Waiter::for_space(way, pair.client);
        while waiter.shows(0) {
            sent = fill_from(pair.client, 1, sent);
        }
        let make_space = || assert_bytes(&recv_exact(pair.server, sent), &pattern(1, sent));
        check_asleep_until(|| waiter.wait(), make_space);
        assert_eq!(send(pair.client, b"x", MSG_DONTWAIT), Ok(1));
        assert_eq!(recv_exact(pair.server, 1), b"x");
    }
}

fn every_wait_for_space_sleeps_until_the_peer_closes() {
    for (way, pair, mut sent) in full_pairs().drain(1..) {
        note(&format!("waiting by {way:?}"));
        let waiter = Waiter::for_space(way, pair.client);
        while waiter.shows(0) {
            sent = fill_from(pair.client, 1, sent);
        }
        check_asleep_until(|| waiter.wait(), || close(pair.server).unwrap());
        assert_eq!(send(pair.client, b"x", MSG_NOSIGNAL), Err(RESET));
        assert_eq!(send(pair.client, b"x", MSG_NOSIGNAL), Err(PIPE));
    }
}

fn every_wait_reports_data_before_the_end() {
    each_way(|way| {
        let pair = joined_pair();
        let waiter = Waiter::for_data(way, pair.server);
        check_asleep_until(
            || waiter.wait(),
            || {
                send_all(pair.client, b"last");
                shutdown(pair.client, SHUT_WR).unwrap();
            },
        );
        assert_eq!(recv_exact(pair.server, 4), b"last");
        assert_eq!(recv(pair.server, &mut [0], 0), Ok(0));
        if waiter.is_level() {
            waiter.wait();
        }
        send_all(pair.server, b"answer");
        assert_eq!(recv_exact(pair.client, 6), b"answer");
    });
}

fn every_wait_reports_data_that_a_killed_peer_left() {
    each_way(|way| {
        let (fd, child) = joined_with_child(|fd| {
            send_all(fd, &pattern(7, 3000));
            kill(std::process::id().cast_signed(), libc::SIGKILL);
        });
        let waiter = Waiter::for_data(way, fd);
        waiter.wait();
        waitpid(child.0).unwrap();
        assert_eq!(recv_to_end(fd), (pattern(7, 3000), Ok(())));
    });
}

fn every_wait_reports_what_arrived_before_it_was_set_up() {
    each_way(|way| {
        let pair = joined_pair();
        send_all(pair.client, b"early");
        let waiter = Waiter::for_data(way, pair.server);
        waiter.wait();
        assert_eq!(recv_exact(pair.server, 5), b"early");
        assert!(!waiter.shows(0));
        check_reports(pair, &waiter, 5);
    });
}

fn every_wait_reports_a_rest_unless_edge_triggered() {
    each_way(|way| {
        let pair = joined_pair();
        let waiter = Waiter::for_data(way, pair.server);
        send_all(pair.client, b"abcdef");
        waiter.wait();
        for byte in b"abcde" {
            assert_eq!(recv_exact(pair.server, 1), [*byte]);
            assert_eq!(waiter.shows(0), waiter.is_level());
        }
        send_all(pair.client, b"g");
        waiter.wait();
        assert_eq!(recv_exact(pair.server, 2), b"fg");
        assert!(!waiter.shows(0));
    });
}

fn every_wait_finds_nothing_after_another_descriptor_received() {
    each_way(|way| {
        let pair = joined_pair();
        let waiter = Waiter::for_data(way, pair.server);
        let other = dup(pair.server).unwrap();
        for _ in 0..5 {
            send_all(pair.client, b"taken");
            assert_eq!(recv_exact(other, 5), b"taken");
            assert!(!waiter.shows(0), "nothing is left");
        }
        check_reports(pair, &waiter, 5);
    });
}

fn every_wait_with_no_time_finds_data_soon() {
    each_way(|way| {
        let pair = joined_pair();
        let waiter = Waiter::for_data(way, pair.server);
        for round in 0..20u8 {
            assert!(!waiter.shows(0));
            send_all(pair.client, &[round]);
            eventually("the byte is shown", || waiter.shows(0));
            assert_eq!(recv_now(pair.server), [round]);
        }
    });
}

fn every_wait_with_little_time_finds_data_soon() {
    each_way(|way| {
        let pair = joined_pair();
        let waiter = Waiter::for_data(way, pair.server);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 0..5u8 {
                    pause_ms(2);
                    send_all(pair.client, &[round]);
                    recv_exact(pair.client, 1);
                }
            });
            for round in 0..5u8 {
                eventually("the byte is shown", || waiter.shows(1));
                assert_eq!(recv_now(pair.server), [round]);
                send_all(pair.server, b"a");
            }
        });
    });
}

fn every_wait_is_interrupted_by_a_handler() {
    handle(libc::SIGALRM, counted, 0);
    each_way(|way| {
        let pair = joined_pair();
        let waiter = Waiter::for_data(way, pair.server);
        alarm_every(5);
        assert_eq!(waiter.outcome(-1), Err(INTR));
        alarm_every(0);
        check_reports(pair, &waiter, 3);
    });
}

/// No wait may end without an event, however long it takes.
fn every_wait_ends_only_once_data_is_there() {
    each_way(|way| {
        let pair = joined_pair();
        let waiter = Waiter::for_data(way, pair.server);
        let is_sent = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..10 {
                    pause_ms(1);
                    is_sent.store(true, SeqCst);
                    send_all(pair.client, b"x");
                    recv_exact(pair.client, 1);
                }
            });
            for _ in 0..10 {
                waiter.wait();
                assert!(is_sent.swap(false, SeqCst), "reported before it was sent");
                assert_eq!(recv_now(pair.server), b"x");
                send_all(pair.server, b"y");
            }
        });
    });
}

/// A stopped process sleeps for its peer; what arrives meanwhile is there when it continues.
fn every_wait_survives_a_stop_of_the_process() {
    each_way(|way| {
        let (fd, child) = joined_with_child(|fd| {
            let waiter = Waiter::for_data(way, fd);
            for _ in 0..2 {
                // Linux may end a wait for an epoll set when the process continues.
                while waiter.outcome(SOON_MS) != Ok(true) {}
                let bytes = recv_exact(fd, 3000);
                send_all(fd, &bytes);
            }
        });
        for round in 0..2 {
            pause_ms(3);
            child.stop();
            send_all(fd, &pattern(round, 3000));
            pause_ms(3);
            kill(child.0, libc::SIGCONT);
            assert_bytes(&recv_exact(fd, 3000), &pattern(round, 3000));
        }
        child.join();
    });
}

fn every_wait_survives_a_stop_of_the_peer() {
    each_way(|way| {
        let (fd, child) = joined_with_child(|fd| {
            while let Ok(1..) = recv(fd, &mut [0; 2000], 0) {
                send_all(fd, b"a");
            }
        });
        let waiter = Waiter::for_data(way, fd);
        child.stop();
        send_all(fd, &pattern(1, 2000));
        // The stop is a signal to the parent, which may interrupt it even without a handler.
        let wait = || while waiter.outcome(SOON_MS) != Ok(true) {};
        check_asleep_until(wait, || kill(child.0, libc::SIGCONT));
        assert_eq!(recv(fd, &mut [0], 0), Ok(1));
        shutdown(fd, SHUT_WR).unwrap();
        let _ = recv_to_end(fd);
        child.join();
    });
}

/// Answers each message of one end from a thread that waits in the same way.
#[track_caller]
fn check_exchange(pair: Pair, ways: [Way; 2], rounds: u64) {
    let ends = [pair.client, pair.server];
    let waiters = [0, 1].map(|end| Waiter::for_data(ways[end], ends[end]));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..rounds {
                waiters[1].wait();
                assert_bytes(&recv_now(pair.server), &pattern(round, 30));
                send_all(pair.server, &pattern(!round, 40));
            }
        });
        for round in 0..rounds {
            send_all(pair.client, &pattern(round, 30));
            waiters[0].wait();
            assert_bytes(&recv_now(pair.client), &pattern(!round, 40));
        }
    });
}

fn two_ends_wait_in_turn() {
    each_way(|way| {
        let pair = joined_pair();
        check_exchange(pair, [way, way], 150);
        join_both_ends(pair);
    });
}

fn each_end_waits_in_another_way() {
    for distance in [1, 4, 6] {
        for (index, way) in WAYS.into_iter().enumerate() {
            let other = WAYS[(index + distance) % WAYS.len()];
            note(&format!("waiting by {way:?} and {other:?}"));
            check_exchange(joined_pair(), [way, other], 25);
        }
    }
}

/// A thread for each way sleeps; one message must wake all that are level-triggered.
fn one_socket_is_waited_for_in_every_way_at_once() {
    let pair = joined_pair();
    let ways = WAYS.map(|way| Waiter::for_data(way, pair.server));
    for _ in 0..3 {
        std::thread::scope(|scope| {
            for waiter in &ways {
                scope.spawn(|| waiter.wait());
            }
            pause_ms(10);
            send_all(pair.client, b"for all");
        });
        assert_eq!(recv_exact(pair.server, 7), b"for all");
        assert!(ways.iter().all(|waiter| !waiter.shows(0)));
    }
    join_both_ends(pair);
}

fn waits_in_every_way_after_much_data() {
    each_way(|way| {
        let pair = joined_pair();
        let waiter = Waiter::for_data(way, pair.server);
        let bytes = pattern(3, 600_000);
        std::thread::scope(|scope| {
            scope.spawn(|| send_all(pair.client, &bytes));
            let (mut got, mut buffer) = (vec![], vec![0; 50_000]);
            while got.len() < bytes.len() {
                waiter.wait();
                while let Ok(count) = recv(pair.server, &mut buffer, MSG_DONTWAIT) {
                    got.extend_from_slice(&buffer[..count]);
                }
            }
            assert_bytes(&got, &bytes);
        });
        check_reports(pair, &waiter, 3);
        join_both_ends(pair);
    });
}

fn waits_after_overflow_into_the_kernel() {
    for (way, pair, sent) in full_pairs() {
        note(&format!("waiting by {way:?}"));
        let waiter = Waiter::for_data(way, pair.server);
        let (mut got, mut buffer) = (vec![], vec![0; 9_000]);
        while got.len() < sent {
            waiter.wait();
            while let Ok(count) = recv(pair.server, &mut buffer, MSG_DONTWAIT) {
                got.extend_from_slice(&buffer[..count]);
            }
        }
        assert_bytes(&got, &pattern(1, sent));
        assert!(!waiter.shows(0));
        check_reports(pair, &waiter, 10);
        join_both_ends(pair);
    }
}

fn waits_change_from_call_to_call() {
    let pair = joined_pair();
    let ways = WAYS.map(|way| Waiter::for_data(way, pair.server));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..600u64 {
                send_all(pair.client, &pattern(round, 20));
                recv_exact(pair.client, 1);
            }
        });
        for round in 0..600u64 {
            ways[(round * 31 % 101) as usize % WAYS.len()].wait();
            assert_bytes(&recv_now(pair.server), &pattern(round, 20));
            // The edge-triggered set still holds the event of a message that another way reported.
            ways[6].shows(0);
            send_all(pair.server, b"a");
        }
    });
}

fn waiting_for_data_and_space_at_once() {
    let pair = small_pair();
    let set = epoll_create();
    epoll_ctl(set, libc::EPOLL_CTL_ADD, pair.client, IN | OUT, 5).unwrap();
    assert_eq!(epoll_wait(set, 4, SOON_MS), Ok(vec![(OUT, 5)]));
    let sent = fill(pair.client, 1);
    assert_eq!(epoll_wait(set, 4, 0), Ok(vec![]));
    let shown = check_asleep_until(|| epoll_wait(set, 4, -1), || send_all(pair.server, b"in"));
    assert_eq!(shown, Ok(vec![(IN, 5)]));
    recv_exact(pair.client, 2);
    let shown = check_asleep_until(
        || epoll_wait(set, 4, -1),
        || {
            recv_exact(pair.server, sent);
        },
    );
    assert_eq!(shown, Ok(vec![(OUT, 5)]));
    shutdown(pair.server, SHUT_RDWR).unwrap();
    eventually("the end", || epoll_wait(set, 4, 0).unwrap()[0].0 & IN != 0);
}
