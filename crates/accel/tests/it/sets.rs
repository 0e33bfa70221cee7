//! Epoll sets that are used in unusual ways: passed on, closed while waited for, with equal data.
//! Some have more busy members than are polled in memory.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use libc::{EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD};

use crate::calls::*;
use crate::support::*;

behaviours![
    set_passed_to_another_process,
    set_passed_to_a_process_that_changes_it,
    set_closed_while_a_thread_waits,
    set_closed_and_made_again,
    members_with_equal_data,
    member_with_the_data_of_another_descriptor,
    more_busy_members_than_are_polled,
    members_take_turns_in_two_sets,
    wait_for_too_many_events_is_rejected,
    one_shot_with_data_that_came_before,
    sets_of_two_threads_get_one_message_each,
];

const IN: u32 = libc::EPOLLIN as u32;
const OUT: u32 = libc::EPOLLOUT as u32;
const ONCE: u32 = libc::EPOLLONESHOT as u32;

fn add(set: Fd, fd: Fd, events: u32, data: u64) {
    epoll_ctl(set, EPOLL_CTL_ADD, fd, events, data).unwrap();
}

fn set_passed_to_another_process() {
    let over = socketpair(libc::AF_UNIX, libc::SOCK_STREAM).unwrap();
    let child = spawn(|| {
        let set = receive_descriptor(over[1]);
        for _ in 0..5 {
            assert_eq!(epoll_wait(set, 4, SOON_MS), Ok(vec![(IN, 7)]));
            write(over[1], b"x").unwrap();
            read(over[1], &mut [0]).unwrap();
        }
    });
    let pair = joined_pair();
    let set = epoll_create();
    add(set, pair.server, IN, 7);
    send_all(pair.client, b"first");
    assert_eq!(epoll_wait(set, 4, SOON_MS), Ok(vec![(IN, 7)]));
    recv_exact(pair.server, 5);
    send_descriptor(over[0], set);
    for _ in 0..5 {
        send_all(pair.client, b"hello");
        read(over[0], &mut [0]).unwrap();
        assert_eq!(epoll_wait(set, 4, 0), Ok(vec![(IN, 7)]));
        recv_exact(pair.server, 5);
        write(over[0], b"x").unwrap();
    }
    child.join();
}

fn set_passed_to_a_process_that_changes_it() {
    let over = socketpair(libc::AF_UNIX, libc::SOCK_STREAM).unwrap();
    let child = spawn(|| {
        let set = receive_descriptor(over[1]);
        let [out, into] = pipe();
        add(set, out, IN, 9);
        write(into, b"x").unwrap();
        assert_eq!(epoll_wait(set, 4, SOON_MS), Ok(vec![(IN, 9)]));
        epoll_ctl(set, EPOLL_CTL_DEL, out, 0, 0).unwrap();
        write(over[1], b"x").unwrap();
    });
    let pair = joined_pair();
    let set = epoll_create();
    add(set, pair.server, IN, 7);
    send_descriptor(over[0], set);
    read(over[0], &mut [0]).unwrap();
    assert_eq!(epoll_wait(set, 4, 0), Ok(vec![]));
    send_all(pair.client, b"x");
    assert_eq!(epoll_wait(set, 4, SOON_MS), Ok(vec![(IN, 7)]));
    child.join();
}

/// The kernel's wait keeps the set until it returns.
fn set_closed_while_a_thread_waits() {
    let (pair, set) = (joined_pair(), epoll_create());
    add(set, pair.server, IN, 7);
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| assert_eq!(epoll_wait(set, 4, -1), Ok(vec![(IN, 7)])));
        pause_ms(30);
        close(set).unwrap();
        assert!(!waiter.is_finished());
        send_all(pair.client, b"x");
    });
    assert_eq!(epoll_wait(set, 4, 0), Err(BADF));
}

fn set_closed_and_made_again() {
    let pair = joined_pair();
    for round in 0..50 {
        let set = epoll_create();
        assert_eq!(epoll_wait(set, 4, 0), Ok(vec![]));
        add(set, pair.server, IN, round);
        send_all(pair.client, b"x");
        assert_eq!(epoll_wait(set, 4, SOON_MS), Ok(vec![(IN, round)]));
        recv_exact(pair.server, 1);
        close(set).unwrap();
    }
}

fn members_with_equal_data() {
    let pairs: Vec<Pair> = (0..3).map(|_| joined_pair()).collect();
    let set = epoll_create();
    pairs.iter().for_each(|pair| add(set, pair.server, IN, 7));
    for round in 0..30 {
        let pair = &pairs[round % 3];
        send_all(pair.client, b"x");
        assert_eq!(epoll_wait(set, 4, SOON_MS), Ok(vec![(IN, 7)]));
        recv_exact(pair.server, 1);
        assert_eq!(epoll_wait(set, 4, 1), Ok(vec![]));
    }
    epoll_ctl(set, EPOLL_CTL_DEL, pairs[0].server, 0, 0).unwrap();
    epoll_ctl(set, EPOLL_CTL_MOD, pairs[1].server, IN, 8).unwrap();
    send_all(pairs[1].client, b"x");
    assert_eq!(epoll_wait(set, 4, SOON_MS), Ok(vec![(IN, 8)]));
}

fn member_with_the_data_of_another_descriptor() {
    let (pair, [out, into]) = (joined_pair(), pipe());
    let set = epoll_create();
    add(set, pair.server, IN, 7);
    add(set, out, IN, 7);
    for _ in 0..10 {
        write(into, b"x").unwrap();
        assert_eq!(epoll_wait(set, 1, SOON_MS), Ok(vec![(IN, 7)]));
        read(out, &mut [0]).unwrap();
        send_all(pair.client, b"x");
        assert_eq!(epoll_wait(set, 1, SOON_MS), Ok(vec![(IN, 7)]));
        recv_exact(pair.server, 1);
        assert_eq!(epoll_wait(set, 1, 1), Ok(vec![]));
    }
}

fn more_busy_members_than_are_polled() {
    let pairs: Vec<Pair> = (0..150).map(|_| joined_pair()).collect();
    let set = epoll_create();
    for (index, pair) in pairs.iter().enumerate() {
        add(set, pair.server, IN, index as u64);
    }
    for round in 0..10 {
        for (index, pair) in pairs.iter().enumerate() {
            send_all(pair.client, &pattern(index as u64, 10 + round));
        }
        let mut served = 0;
        while served < pairs.len() {
            let found = epoll_wait(set, 16, SOON_MS).unwrap();
            assert!(!found.is_empty(), "{served} of {} are reported", pairs.len());
            for (events, data) in found {
                assert_eq!(events, IN);
                let bytes = recv_exact(pairs[data as usize].server, 10 + round);
                assert_bytes(&bytes, &pattern(data, 10 + round));
                served += 1;
            }
        }
        assert_eq!(epoll_wait(set, 16, 0), Ok(vec![]));
    }
}

fn members_take_turns_in_two_sets() {
    let pair = joined_pair();
    let sets = [epoll_create(), epoll_create()];
    for round in 0..40 {
        let set = sets[round % 2];
        add(set, pair.server, IN, round as u64);
        send_all(pair.client, b"x");
        assert_eq!(epoll_wait(set, 4, SOON_MS), Ok(vec![(IN, round as u64)]));
        if round % 3 == 0 {
            recv_exact(pair.server, 1);
            assert_eq!(epoll_wait(set, 4, 1), Ok(vec![]));
        }
        epoll_ctl(set, EPOLL_CTL_DEL, pair.server, 0, 0).unwrap();
        assert_eq!(epoll_wait(set, 4, 0), Ok(vec![]));
        if round % 3 != 0 {
            recv_exact(pair.server, 1);
        }
    }
}

fn wait_for_too_many_events_is_rejected() {
    let (pair, set) = (joined_pair(), epoll_create());
    add(set, pair.server, IN, 7);
    send_all(pair.client, b"x");
    let mut event = libc::epoll_event { events: 0, u64: 0 };
    // SAFETY: the kernel rejects the count before it writes.
    let result = unsafe { libc::epoll_wait(set, &raw mut event, i32::MAX, 0) };
    assert_eq!((result, errno()), (-1, INVAL));
    assert_eq!(epoll_wait(set, 4, SOON_MS), Ok(vec![(IN, 7)]));
}

fn one_shot_with_data_that_came_before() {
    let (pair, set) = (joined_pair(), epoll_create());
    send_all(pair.client, b"early");
    wait_for(pair.server, libc::POLLIN);
    add(set, pair.server, IN | ONCE, 7);
    assert_eq!(epoll_wait(set, 4, SOON_MS), Ok(vec![(IN, 7)]));
    send_all(pair.client, b"later");
    assert_eq!(epoll_wait(set, 4, 20), Ok(vec![]));
    close(pair.client).unwrap();
    assert_eq!(epoll_wait(set, 4, 20), Ok(vec![]));
    epoll_ctl(set, EPOLL_CTL_MOD, pair.server, IN | OUT | ONCE, 8).unwrap();
    assert_eq!(epoll_wait(set, 4, SOON_MS), Ok(vec![(IN | OUT, 8)]));
    assert_eq!(recv_exact(pair.server, 10), b"earlylater");
}

fn sets_of_two_threads_get_one_message_each() {
    let pairs = [joined_pair(), joined_pair()];
    let set = epoll_create();
    let seen = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let found = epoll_wait(set, 1, SOON_MS).unwrap();
                let [(IN, data)] = found[..] else { panic!("{found:?}") };
                assert_eq!(recv_exact(pairs[data as usize].server, 1), b"x");
                seen.fetch_add(1, SeqCst);
            });
        }
        for pair in &pairs {
            send_all(pair.client, b"x");
        }
        pause_ms(20);
        for (index, pair) in pairs.iter().enumerate() {
            add(set, pair.server, IN | ONCE, index as u64);
        }
    });
    assert_eq!(seen.load(SeqCst), 2);
}
