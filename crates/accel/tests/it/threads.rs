//! Threads of one process that use the same connection, or the same set, at the same time.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Barrier, Mutex};

use libc::{EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD, MSG_DONTWAIT, POLLIN, SHUT_RDWR, SHUT_WR};

use crate::calls::*;
use crate::harness::note;
use crate::support::joined_without_delay as joined_pair;
use crate::support::*;
use crate::ways::*;

behaviours![
    one_polls_another_receives,
    one_waits_by_epoll_another_receives,
    two_receivers_get_one_message_each,
    two_senders_wait_for_space,
    two_waiters_of_one_set_take_two_sockets,
    threads_wake_by_every_way_at_the_end,
    shutdown_by_another_thread_wakes_every_wait,
    each_thread_has_a_connection,
    each_thread_has_a_set,
    connection_passes_from_thread_to_thread,
    threads_come_and_go_beside_a_connection,
    busy_connection_comes_and_goes_while_a_thread_waits,
    removed_while_a_thread_waits,
    modified_while_a_thread_waits,
    modified_for_space_while_a_thread_waits,
    rearmed_by_another_thread_while_one_waits,
    added_with_data_while_a_thread_waits,
    closed_while_a_thread_waits_for_the_set,
    number_reused_while_a_thread_waits_for_the_set,
    set_of_many_threads_serves_many_connections,
    exclusive_sets_of_several_threads,
    listener_and_connections_in_a_set_of_several_threads,
    duplicate_closed_while_a_thread_waits,
    one_thread_sends_another_closes,
    thread_wakes_the_others_by_a_pipe,
    thread_wakes_the_others_by_an_eventfd,
    thread_wakes_the_others_by_a_connection_to_itself,
    threads_start_and_end_while_one_waits,
    messages_of_ten_threads_stay_intact,
    large_vectors_of_two_threads_stay_intact,
    real_time_thread_waits_on_the_cpu_of_its_peer,
    low_priority_peer_on_the_same_cpu,
    threads_send_and_receive_on_both_ends_at_once,
];

/// Takes everything that `pair.server` gets, in two threads of which one waits first.
#[track_caller]
fn check_two_takers(wait: impl Fn() + Sync, pair: Pair) {
    let taken = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            loop {
                wait();
                match recv(pair.server, &mut [0; 7], MSG_DONTWAIT) {
                    Ok(0) => return,
                    Ok(count) => drop(taken.fetch_add(count, SeqCst)),
                    Err(error) => assert_eq!(error, AGAIN),
                }
            }
        });
        scope.spawn(|| {
            while let Ok(count @ 1..) = recv(pair.server, &mut [0; 11], 0) {
                taken.fetch_add(count, SeqCst);
            }
        });
        for round in 0..400 {
            send_all(pair.client, &[0; 5]);
            if round % 20 == 0 {
                eventually("all was taken", || taken.load(SeqCst) == 5 * (round + 1));
            }
        }
        shutdown(pair.client, SHUT_WR).unwrap();
    });
    assert_eq!(taken.load(SeqCst), 2000);
}

fn one_polls_another_receives() {
    let pair = joined_pair();
    check_two_takers(|| wait_for(pair.server, POLLIN), pair);
}

fn one_waits_by_epoll_another_receives() {
    let pair = joined_pair();
    let waiter = Waiter::for_data(Way::Level, pair.server);
    check_two_takers(|| waiter.wait(), pair);
}

fn two_receivers_get_one_message_each() {
    let pair = joined_pair();
    for _ in 0..5 {
        std::thread::scope(|scope| {
            let receivers =
                [0; 2].map(|_| scope.spawn(|| assert_eq!(recv(pair.server, &mut [0], 0), Ok(1))));
            pause_ms(3);
            send_all(pair.client, b"a");
            pause_ms(1);
            send_all(pair.client, b"b");
            receivers.into_iter().for_each(|receiver| receiver.join().unwrap());
        });
    }
    join_both_ends(pair);
}

fn two_senders_wait_for_space() {
    let pair = small_pair();
    let sent = fill(pair.client, 1);
    std::thread::scope(|scope| {
        for letter in [b'a', b'b'] {
            scope.spawn(move || send_all(pair.client, &[letter; 5000]));
        }
        pause_ms(5);
        assert_bytes(&recv_exact(pair.server, sent), &pattern(1, sent));
        let rest = recv_exact(pair.server, 10_000);
        assert_eq!(rest.iter().filter(|byte| **byte == b'a').count(), 5000);
        assert_eq!(rest.iter().filter(|byte| **byte == b'b').count(), 5000);
    });
    join_both_ends(pair);
}

/// Two threads sleep; two sockets become ready; each thread gets events until both were taken.
fn two_waiters_of_one_set_take_two_sockets() {
    let pairs = [joined_pair(), joined_pair()];
    let set = epoll_create();
    for pair in pairs {
        epoll_ctl(set, EPOLL_CTL_ADD, pair.server, IN | EDGE, pair.server as u64).unwrap();
    }
    for _ in 0..10 {
        std::thread::scope(|scope| {
            let waiters = [0; 2].map(|_| scope.spawn(|| epoll_wait(set, 1, SOON_MS).unwrap()));
            pause_ms(2);
            pairs.iter().for_each(|pair| send_all(pair.client, b"x"));
            let mut seen = waiters.map(|waiter| waiter.join().unwrap()[0].1);
            seen.sort_unstable();
            assert_eq!(seen, pairs.map(|pair| pair.server as u64));
        });
        pairs.iter().for_each(|pair| drop(recv_now(pair.server)));
    }
}

/// `end` runs while a thread sleeps in each of the ways at the same socket.
#[track_caller]
fn check_all_wake(pair: Pair, end: impl FnOnce()) {
    let waiters = WAYS.map(|way| Waiter::for_data(way, pair.server));
    std::thread::scope(|scope| {
        let threads: Vec<_> = waiters.iter().map(|one| scope.spawn(|| one.wait())).collect();
        pause_ms(10);
        assert!(threads.iter().all(|thread| !thread.is_finished()));
        end();
    });
}

fn threads_wake_by_every_way_at_the_end() {
    let pair = joined_pair();
    check_all_wake(pair, || close(pair.client).unwrap());
    assert_eq!(recv(pair.server, &mut [0], 0), Ok(0));
}

fn shutdown_by_another_thread_wakes_every_wait() {
    let pair = joined_pair();
    check_all_wake(pair, || shutdown(pair.server, SHUT_RDWR).unwrap());
    assert_eq!(recv(pair.server, &mut [0], 0), Ok(0));
}

fn each_thread_has_a_connection() {
    std::thread::scope(|scope| {
        for thread in 0..12u64 {
            scope.spawn(move || {
                let pair = joined_pair();
                let way = WAYS[thread as usize];
                check_reports(pair, &Waiter::for_data(way, pair.server), 60);
                join_both_ends(pair);
            });
        }
    });
}

/// As servers do that have an event loop for each thread.
fn each_thread_has_a_set() {
    let (listening, address) = listener(Family::V4);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| serve_two_connections(listening));
        }
        for client in 0..8u64 {
            scope.spawn(move || {
                let fd = connected(&address);
                for round in 0..50 {
                    send_all(fd, &pattern(client + round, 90));
                    assert_bytes(&recv_exact(fd, 90), &pattern(client + round, 90));
                }
                close(fd).unwrap();
            });
        }
    });
}

/// Accepts two connections and echoes on both in an event loop.
fn serve_two_connections(listening: Fd) {
    let set = epoll_create();
    let mut open = 2;
    for _ in 0..2 {
        let fd = accept4(listening, libc::SOCK_NONBLOCK).unwrap();
        epoll_ctl(set, EPOLL_CTL_ADD, fd, IN | EDGE, fd as u64).unwrap();
    }
    let mut buffer = [0; 300];
    while open > 0 {
        for (_, data) in epoll_wait(set, 4, SOON_MS).unwrap() {
            let fd = data as Fd;
            loop {
                match recv(fd, &mut buffer, 0) {
                    Ok(0) => {
                        close(fd).unwrap();
                        open -= 1;
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

/// A pool of threads of which always another one takes the connection.
fn connection_passes_from_thread_to_thread() {
    let pair = joined_pair();
    let next = Mutex::new(0u64);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let next = &next;
            scope.spawn(move || {
                let mut mine = 0;
                while mine < 50 {
                    let mut round = next.lock().unwrap();
                    if *round % 4 == thread {
                        send_all(pair.client, &pattern(*round, 60));
                        wait_for(pair.server, POLLIN);
                        assert_bytes(&recv_exact(pair.server, 60), &pattern(*round, 60));
                        *round += 1;
                        mine += 1;
                    }
                    drop(round);
                    std::thread::yield_now();
                }
            });
        }
    });
    join_both_ends(pair);
}

/// As Apache's event MPM: a thread sleeps in the set, others add a busy connection and remove it.
fn busy_connection_comes_and_goes_while_a_thread_waits() {
    let (pair, set) = (joined_pair(), epoll_create());
    let event = eventfd();
    epoll_ctl(set, EPOLL_CTL_ADD, event, IN, 1).unwrap();
    let seen = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            loop {
                for (events, data) in epoll_wait(set, 16, -1).unwrap() {
                    match data {
                        1 => return,
                        2 => drop(seen.fetch_add(1, SeqCst)),
                        other => panic!("a tag {other:#x} that nobody passed, events {events:#x}"),
                    }
                    assert_eq!(events, IN);
                }
            }
        });
        for round in 0..300 {
            let before = seen.load(SeqCst);
            if round % 3 == 0 {
                send_all(pair.client, b"busy");
            }
            epoll_ctl(set, EPOLL_CTL_ADD, pair.server, IN | ONCE, 2).unwrap();
            if round % 3 != 0 {
                send_all(pair.client, b"busy");
            }
            if round % 10 == 0 {
                eventually("it is reported", || seen.load(SeqCst) > before);
            }
            epoll_ctl(set, EPOLL_CTL_DEL, pair.server, 0, 0).unwrap();
            assert_eq!(recv_now(pair.server), b"busy");
        }
        write(event, &1u64.to_ne_bytes()).unwrap();
    });
}

/// A thread waits without end in a set, and `act` happens meanwhile: the events that end the wait.
#[track_caller]
fn events_after(set: Fd, act: impl FnOnce()) -> Vec<(u32, u64)> {
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| epoll_wait(set, 16, -1).unwrap());
        pause_ms(8);
        assert!(!waiter.is_finished());
        act();
        waiter.join().unwrap()
    })
}

/// The same with an `act` that must not end the wait: an eventfd does, as the only event.
#[track_caller]
fn check_no_event_after(set: Fd, act: impl FnOnce()) {
    let event = eventfd();
    epoll_ctl(set, EPOLL_CTL_ADD, event, IN, 1).unwrap();
    let found = events_after(set, || {
        act();
        pause_ms(10);
        write(event, &1u64.to_ne_bytes()).unwrap();
    });
    assert_eq!(found, [(IN, 1)]);
    close(event).unwrap();
}

fn removed_while_a_thread_waits() {
    let pair = joined_pair();
    for kind in [0, EDGE, ONCE] {
        let set = epoll_create();
        epoll_ctl(set, EPOLL_CTL_ADD, pair.server, IN | kind, 2).unwrap();
        check_no_event_after(set, || {
            epoll_ctl(set, EPOLL_CTL_DEL, pair.server, 0, 0).unwrap();
            send_all(pair.client, b"for nobody");
        });
        assert_eq!(recv_now(pair.server), b"for nobody");
    }
    join_both_ends(pair);
}

fn modified_while_a_thread_waits() {
    let pair = joined_pair();
    let set = epoll_create();
    epoll_ctl(set, EPOLL_CTL_ADD, pair.server, 0, 2).unwrap();
    send_all(pair.client, b"x");
    let found = events_after(set, || {
        epoll_ctl(set, EPOLL_CTL_MOD, pair.server, IN, 3).unwrap();
    });
    assert_eq!(found, [(IN, 3)]);
}

fn modified_for_space_while_a_thread_waits() {
    let pair = joined_pair();
    let set = epoll_create();
    epoll_ctl(set, EPOLL_CTL_ADD, pair.server, IN, 2).unwrap();
    let found = events_after(set, || {
        epoll_ctl(set, EPOLL_CTL_MOD, pair.server, IN | OUT, 3).unwrap();
    });
    assert_eq!(found, [(OUT, 3)]);
}

fn rearmed_by_another_thread_while_one_waits() {
    let pair = joined_pair();
    let set = epoll_create();
    epoll_ctl(set, EPOLL_CTL_ADD, pair.server, IN | ONCE, 2).unwrap();
    send_all(pair.client, b"x");
    assert_eq!(epoll_wait(set, 4, SOON_MS), Ok(vec![(IN, 2)]));
    for kind in [0, EDGE] {
        let found = events_after(set, || {
            epoll_ctl(set, EPOLL_CTL_MOD, pair.server, IN | ONCE | kind, 3).unwrap();
        });
        assert_eq!(found, [(IN, 3)]);
    }
    recv_exact(pair.server, 1);
    check_no_event_after(set, || {
        epoll_ctl(set, EPOLL_CTL_MOD, pair.server, IN | ONCE, 4).unwrap();
    });
}

fn added_with_data_while_a_thread_waits() {
    for pair in [joined_pair(), without_delay(unused_pair())] {
        for kind in [0, EDGE, ONCE, EXCLUSIVE] {
            let set = epoll_create();
            send_all(pair.client, b"x");
            wait_for(pair.server, POLLIN);
            let add = || epoll_ctl(set, EPOLL_CTL_ADD, pair.server, IN | kind, 2).unwrap();
            assert_eq!(events_after(set, add), [(IN, 2)]);
            recv_exact(pair.server, 1);
            close(set).unwrap();
        }
    }
}

fn closed_while_a_thread_waits_for_the_set() {
    let pair = joined_pair();
    let set = epoll_create();
    epoll_ctl(set, EPOLL_CTL_ADD, pair.server, IN, 2).unwrap();
    check_no_event_after(set, || close(pair.server).unwrap());
    assert_eq!(recv(pair.client, &mut [0], 0), Ok(0));
}

fn number_reused_while_a_thread_waits_for_the_set() {
    let (old, new) = (joined_pair(), joined_pair());
    let set = epoll_create();
    epoll_ctl(set, EPOLL_CTL_ADD, old.server, IN, 2).unwrap();
    let found = events_after(set, || {
        dup2(new.server, old.server).unwrap();
        epoll_ctl(set, EPOLL_CTL_ADD, old.server, IN, 3).unwrap();
        send_all(new.client, b"x");
    });
    assert_eq!(found, [(IN, 3)]);
    assert_eq!(recv_exact(old.server, 1), b"x");
}

/// A pool of threads in one set, each connection armed for one event at a time.
fn set_of_many_threads_serves_many_connections() {
    let pairs: Vec<Pair> = (0..10).map(|_| joined_pair()).collect();
    let set = epoll_create();
    for pair in &pairs {
        epoll_ctl(set, EPOLL_CTL_ADD, pair.server, IN | ONCE, pair.server as u64).unwrap();
    }
    let is_over = AtomicBool::new(false);
    let serve = || {
        while !is_over.load(SeqCst) {
            for (_, data) in epoll_wait(set, 2, 5).unwrap() {
                let bytes = recv_now(data as Fd);
                send_all(data as Fd, &bytes);
                epoll_ctl(set, EPOLL_CTL_MOD, data as Fd, IN | ONCE, data).unwrap();
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(serve);
        }
        for round in 0..60 {
            pairs.iter().for_each(|pair| send_all(pair.client, &pattern(round, 33)));
            for pair in &pairs {
                assert_bytes(&recv_exact(pair.client, 33), &pattern(round, 33));
            }
        }
        is_over.store(true, SeqCst);
    });
}

/// Each message must wake at least one of the threads, which all sleep in sets of their own.
fn exclusive_sets_of_several_threads() {
    let pair = joined_pair();
    let is_over = AtomicBool::new(false);
    let take = || {
        let waiter = Waiter::for_data(Way::Exclusive, pair.server);
        while !is_over.load(SeqCst) {
            if waiter.shows(20) && recv(pair.server, &mut [0; 10], MSG_DONTWAIT).is_ok() {
                send_all(pair.server, b"taken");
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(take);
        }
        for _ in 0..100 {
            send_all(pair.client, b"message");
            assert_eq!(recv_exact(pair.client, 5), b"taken");
        }
        is_over.store(true, SeqCst);
    });
}

fn listener_and_connections_in_a_set_of_several_threads() {
    let (listening, address) = listener(Family::V4);
    nonblocking(listening, true);
    let set = epoll_create();
    epoll_ctl(set, EPOLL_CTL_ADD, listening, IN | EDGE, listening as u64).unwrap();
    let ended = AtomicUsize::new(0);
    let serve = || {
        while ended.load(SeqCst) < 6 {
            for (_, data) in epoll_wait(set, 4, 5).unwrap() {
                if data as Fd == listening {
                    while let Ok(fd) = accept(listening) {
                        epoll_ctl(set, EPOLL_CTL_ADD, fd, IN | ONCE, fd as u64).unwrap();
                    }
                    continue;
                }
                let bytes = recv_now(data as Fd);
                if bytes.is_empty() {
                    close(data as Fd).unwrap();
                    ended.fetch_add(1, SeqCst);
                    continue;
                }
                send_all(data as Fd, &bytes);
                epoll_ctl(set, EPOLL_CTL_MOD, data as Fd, IN | ONCE, data).unwrap();
            }
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(serve);
        scope.spawn(serve);
        for client in 0..6 {
            scope.spawn(move || {
                let fd = connected(&address);
                for round in 0..40 {
                    send_all(fd, &pattern(client * 100 + round, 50));
                    assert_bytes(&recv_exact(fd, 50), &pattern(client * 100 + round, 50));
                }
                close(fd).unwrap();
            });
        }
    });
}

fn duplicate_closed_while_a_thread_waits() {
    each_way(|way| {
        let pair = joined_pair();
        let waiter = Waiter::for_data(way, pair.server);
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| waiter.wait());
            pause_ms(2);
            for _ in 0..10 {
                close(dup(pair.server).unwrap()).unwrap();
            }
            assert!(!thread.is_finished());
            send_all(pair.client, b"x");
        });
        assert_eq!(recv_now(pair.server), b"x");
    });
}

/// What was sent before the close arrives; the close may come at any moment.
/// A connection is used by a program with one thread, by several at once, and by one again.
fn threads_come_and_go_beside_a_connection() {
    let pair = joined_pair();
    for _ in 0..20 {
        for _ in 0..50 {
            send_all(pair.client, b"alone");
            assert_eq!(recv_exact(pair.server, 5), b"alone");
        }
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| recv_exact(pair.server, 800));
                scope.spawn(|| (0..200).for_each(|_| send_all(pair.client, b"both")));
            }
        });
    }
    join_both_ends(pair);
}

fn one_thread_sends_another_closes() {
    for round in 0..20 {
        let pair = joined_pair();
        let sent = AtomicUsize::new(0);
        let other = dup(pair.client).unwrap();
        close(pair.client).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let bytes = |at| pattern_at(9, at, 100);
                while let Ok(count) =
                    send(other, &bytes(sent.load(SeqCst)), libc::MSG_NOSIGNAL | MSG_DONTWAIT)
                {
                    sent.fetch_add(count, SeqCst);
                }
            });
            std::thread::sleep(std::time::Duration::from_micros(round * 50));
            shutdown(other, SHUT_WR).unwrap();
        });
        let (got, how) = recv_to_end(pair.server);
        assert_bytes(&got, &pattern(9, sent.load(SeqCst)));
        assert_eq!(how, Ok(()));
        close(other).unwrap();
    }
}

/// A thread waits for connections and for `wake`'s descriptor, as event loops do that other threads
/// give work to.
#[track_caller]
fn check_woken_by(out: Fd, wake: impl Fn(), take: impl Fn() + Sync) {
    let pairs: Vec<Pair> = (0..3).map(|_| joined_pair()).collect();
    let set = epoll_create();
    epoll_ctl(set, EPOLL_CTL_ADD, out, IN, 77).unwrap();
    for (index, pair) in pairs.iter().enumerate() {
        epoll_ctl(set, EPOLL_CTL_ADD, pair.server, IN, index as u64).unwrap();
    }
    let turns = Barrier::new(2);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..90 {
                let wanted = if round % 3 == 2 { 77 } else { round % 3 };
                assert_eq!(epoll_wait(set, 8, -1), Ok(vec![(IN, wanted)]));
                match wanted {
                    77 => take(),
                    index => drop(recv_now(pairs[index as usize].server)),
                }
                turns.wait();
            }
        });
        for round in 0..90 {
            if round % 10 == 0 {
                pause_ms(1);
            }
            match round % 3 {
                2 => wake(),
                index => send_all(pairs[index].client, b"work"),
            }
            turns.wait();
        }
    });
}

fn thread_wakes_the_others_by_a_pipe() {
    let [out, into] = pipe();
    check_woken_by(
        out,
        || assert_eq!(write(into, b"w"), Ok(1)),
        || assert_eq!(read(out, &mut [0; 9]), Ok(1)),
    );
}

fn thread_wakes_the_others_by_an_eventfd() {
    let event = eventfd();
    check_woken_by(
        event,
        || assert_eq!(write(event, &1u64.to_ne_bytes()), Ok(8)),
        || assert_eq!(read(event, &mut [0; 8]), Ok(8)),
    );
}

/// As programs do that know no pipes to wake by: the two ends are in one process.
fn thread_wakes_the_others_by_a_connection_to_itself() {
    let own = joined_pair();
    check_woken_by(
        own.server,
        || assert_eq!(send(own.client, b"w", 0), Ok(1)),
        || assert_eq!(recv(own.server, &mut [0; 9], 0), Ok(1)),
    );
}

fn threads_start_and_end_while_one_waits() {
    let pair = joined_pair();
    std::thread::scope(|scope| {
        let receiver = scope.spawn(|| recv(pair.server, &mut [0; 9], 0));
        for _ in 0..30 {
            std::thread::spawn(move || assert_eq!(ready(pair.server, POLLIN, 0), 0))
                .join()
                .unwrap();
        }
        assert!(!receiver.is_finished());
        std::thread::spawn(move || send_all(pair.client, b"x")).join().unwrap();
        assert_eq!(receiver.join().unwrap(), Ok(1));
    });
    join_both_ends(pair);
}

/// What one call sends, up to the kernel's and memory's size for one message, stays together.
fn messages_of_ten_threads_stay_intact() {
    let pair = joined_pair();
    std::thread::scope(|scope| {
        for letter in 0..10u8 {
            scope.spawn(move || {
                for _ in 0..100 {
                    assert_eq!(send(pair.client, &[letter; 50], 0), Ok(50));
                }
            });
        }
        for message in recv_exact(pair.server, 50_000).chunks(50) {
            assert!(message.iter().all(|byte| *byte == message[0]), "torn: {message:?}");
        }
    });
}

fn large_vectors_of_two_threads_stay_intact() {
    let pair = joined_pair();
    std::thread::scope(|scope| {
        for letter in 0..2u8 {
            scope.spawn(move || {
                let part = [letter; 250];
                for _ in 0..40 {
                    assert_eq!(writev(pair.client, &[&part[..]; 4]), Ok(1000));
                }
            });
        }
        for message in recv_exact(pair.server, 80_000).chunks(1000) {
            assert!(message.iter().all(|byte| *byte == message[0]), "torn");
        }
    });
}

/// Gives the calling thread a scheduling class.
#[track_caller]
fn schedule(class: i32, priority: i32) {
    let parameters = libc::sched_param { sched_priority: priority };
    // SAFETY: the parameters are live for the call.
    let result = unsafe { libc::sched_setscheduler(0, class, &raw const parameters) };
    assert_eq!(result, 0, "this test must run as root: scheduling class {class}: {:?}", errno());
}

/// Messages go to a thread of class `class` and back, both threads on one CPU: whoever spins keeps
/// the other from running.
#[track_caller]
fn check_scheduled(class: i32, priority: i32) {
    on_one_cpu();
    for way in [Way::Peek, Way::Poll, Way::Select, Way::Level, Way::Edge] {
        note(&format!("waiting by {way:?}"));
        let pair = joined_pair();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                schedule(class, priority);
                let waiter = Waiter::for_data(way, pair.server);
                for round in 0..200 {
                    waiter.wait();
                    assert_bytes(&recv_now(pair.server), &pattern(round, 60));
                    send_all(pair.server, &pattern(!round, 60));
                }
            });
            for round in 0..200 {
                send_all(pair.client, &pattern(round, 60));
                assert_bytes(&recv_exact(pair.client, 60), &pattern(!round, 60));
            }
        });
    }
}

fn real_time_thread_waits_on_the_cpu_of_its_peer() {
    check_scheduled(libc::SCHED_FIFO, 10);
}

fn low_priority_peer_on_the_same_cpu() {
    check_scheduled(libc::SCHED_BATCH, 0);
    check_scheduled(libc::SCHED_RR, 1);
}

/// Four threads, each sending and receiving everything in its direction.
fn threads_send_and_receive_on_both_ends_at_once() {
    let pair = joined_pair();
    std::thread::scope(|scope| {
        for (from, to, seed) in [(pair.client, pair.server, 1), (pair.server, pair.client, 2)] {
            scope.spawn(move || {
                for part in 0..400 {
                    let size = part * 37 % 900 + 1;
                    send_all(from, &pattern(seed + part as u64, size));
                }
            });
            scope.spawn(move || {
                for part in 0..400 {
                    let size = part * 37 % 900 + 1;
                    assert_bytes(&recv_exact(to, size), &pattern(seed + part as u64, size));
                }
            });
        }
    });
    join_both_ends(pair);
}
