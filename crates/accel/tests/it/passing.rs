//! Descriptors that travel: to other processes and back, under other numbers, at the limit of
//! descriptors, in epoll sets of epoll sets.

use libc::{EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD, MSG_DONTWAIT, POLLIN, SHUT_WR};

use crate::calls::*;
use crate::harness::accelerated;
use crate::support::joined_without_delay as joined_pair;
use crate::support::*;
use crate::ways::*;

behaviours![
    sent_away_and_back_again_and_again,
    sent_round_three_processes,
    sent_twice_to_one_process,
    sent_while_the_peer_sends,
    sent_while_a_thread_waits,
    both_ends_sent_to_one_process,
    sent_after_an_overflow,
    sent_with_half_closed_directions,
    descriptor_that_nobody_takes_is_closed,
    receiver_without_space_closes_the_descriptor,
    peeked_descriptor_is_a_duplicate,
    set_sent_to_another_process,
    duplicates_in_a_chain,
    duplicate_over_a_member_of_a_set,
    duplicate_over_a_set,
    range_closed_with_members_of_sets,
    range_closed_in_a_child,
    range_closed_after_unsharing,
    number_used_in_turn_by_connections_and_files,
    all_numbers_up_to_the_limit_are_the_programs,
    accept_at_the_limit_and_after_a_close,
    connect_at_the_limit_and_after_a_close,
    four_hundred_connections_below_a_limit_of_1024,
    limit_lowered_below_open_connections,
    limit_raised_while_connections_are_open,
    sets_in_sets_in_sets,
    edge_triggered_set_in_a_set,
    one_shot_set_in_a_set,
    set_in_two_sets,
    member_added_to_an_inner_set_while_waiting,
    inner_set_closed_while_waiting,
    set_with_members_of_every_kind,
    set_polled_while_its_members_join,
    set_whose_members_all_end,
    thousand_changes_of_one_set,
];

/// A pair of sockets over which descriptors are sent.
fn relay() -> [Fd; 2] {
    socketpair(libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_CLOEXEC).unwrap()
}

/// A child without the sockets of `pair`.
fn spawn_without(pair: Pair, body: impl FnOnce()) -> Process {
    spawn(|| {
        close(pair.client).unwrap();
        close(pair.server).unwrap();
        body();
    })
}

fn echo_messages(fd: Fd, count: u32) {
    for _ in 0..count {
        wait_for(fd, POLLIN);
        let bytes = recv_now(fd);
        send_all(fd, &bytes);
    }
}

#[track_caller]
fn check_echo(fd: Fd, count: u64) {
    for round in 0..count {
        send_all(fd, &pattern(round, 60));
        assert_bytes(&recv_exact(fd, 60), &pattern(round, 60));
    }
}

fn sent_away_and_back_again_and_again() {
    let (over, pair) = (relay(), joined_pair());
    let child = spawn_without(pair, || {
        for _ in 0..3 {
            let fd = receive_descriptor(over[1]);
            echo_messages(fd, 20);
            send_descriptor(over[1], fd);
            close(fd).unwrap();
        }
    });
    let Pair { client, mut server } = pair;
    for _ in 0..3 {
        send_descriptor(over[0], server);
        close(server).unwrap();
        check_echo(client, 20);
        server = receive_descriptor(over[0]);
        check_both_directions(Pair { client, server });
    }
    child.join();
}

fn sent_round_three_processes() {
    let relays = [relay(), relay(), relay()];
    let pair = joined_pair();
    let children = [0, 1].map(|index: usize| {
        spawn_without(pair, || {
            let fd = receive_descriptor(relays[index][1]);
            echo_messages(fd, 20);
            send_descriptor(relays[index + 1][0], fd);
        })
    });
    send_descriptor(relays[0][0], pair.server);
    close(pair.server).unwrap();
    check_echo(pair.client, 40);
    let server = receive_descriptor(relays[2][1]);
    children.into_iter().for_each(Process::join);
    check_both_directions(Pair { client: pair.client, server });
}

fn sent_twice_to_one_process() {
    let (over, pair) = (relay(), joined_pair());
    let child = spawn_without(pair, || {
        let fds = [0; 2].map(|_| receive_descriptor(over[1]));
        assert_ne!(fds[0], fds[1]);
        for round in 0..20 {
            echo_messages(fds[round % 2], 1);
        }
    });
    send_descriptor(over[0], pair.server);
    send_descriptor(over[0], pair.server);
    close(pair.server).unwrap();
    check_echo(pair.client, 20);
    assert_eq!(recv(pair.client, &mut [0], 0), Ok(0));
    child.join();
}

/// The peer sends before, during and after the handing over: what nobody has received moves along.
fn sent_while_the_peer_sends() {
    let (over, pair) = (relay(), joined_pair());
    let child = spawn_without(pair, || {
        let fd = receive_descriptor(over[1]);
        assert_bytes(&recv_exact(fd, 50_000), &pattern_at(1, 100_000, 50_000));
        send_all(fd, b"half");
        assert_bytes(&recv_to_end(fd).0, &pattern_at(1, 150_000, 850_000));
        send_all(fd, b"all");
    });
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for part in 0..1000 {
                send_all(pair.client, &pattern_at(1, part * 1000, 1000));
                if part == 149 {
                    assert_eq!(recv_exact(pair.client, 4), b"half");
                }
            }
            shutdown(pair.client, SHUT_WR).unwrap();
        });
        assert_bytes(&recv_exact(pair.server, 100_000), &pattern(1, 100_000));
        send_descriptor(over[0], pair.server);
        close(pair.server).unwrap();
    });
    assert_eq!(recv_exact(pair.client, 3), b"all");
    child.join();
}

fn sent_while_a_thread_waits() {
    each_way(|way| {
        let (over, pair) = (relay(), joined_pair());
        let waiter = Waiter::for_data(way, pair.server);
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| waiter.wait());
            pause_ms(3);
            let child = spawn_without(pair, || {
                let fd = receive_descriptor(over[1]);
                send_all(fd, b"by the child");
            });
            send_descriptor(over[0], pair.server);
            assert_eq!(recv_exact(pair.client, 12), b"by the child");
            child.join();
            assert!(!thread.is_finished());
            send_all(pair.client, b"x");
        });
        assert_eq!(recv_now(pair.server), b"x");
        for fd in [over[0], over[1], pair.client, pair.server] {
            close(fd).unwrap();
        }
    });
}

fn both_ends_sent_to_one_process() {
    let (over, pair) = (relay(), joined_pair());
    let child = spawn_without(pair, || {
        let [client, server] = [0; 2].map(|_| receive_descriptor(over[1]));
        assert_eq!(recv_exact(server, 6), b"unread");
        check_both_directions(Pair { client, server });
    });
    send_all(pair.client, b"unread");
    send_descriptor(over[0], pair.client);
    send_descriptor(over[0], pair.server);
    close(pair.client).unwrap();
    close(pair.server).unwrap();
    child.join();
}

/// With the library: bytes in memory that the kernel has no space for cannot move along. The
/// program must see an error, not a gap, and can still receive everything itself; then it works.
fn sent_after_an_overflow() {
    let (over, pair) = (relay(), small_pair());
    let sent = fill(pair.client, 1);
    let child = spawn_without(pair, || {
        let fd = receive_descriptor(over[1]);
        let (got, how) = recv_to_end(fd);
        assert_bytes(&got, &pattern_at(1, sent - got.len(), got.len()));
        assert_eq!(how, Ok(()));
        send_all(fd, &got.len().to_ne_bytes());
    });
    let mut left = sent;
    let refused = try_to_send_descriptor(over[0], pair.server);
    if accelerated() && refused == Err(RESET) {
        assert_bytes(&recv_exact(pair.server, sent), &pattern(1, sent));
        left = 0;
        send_descriptor(over[0], pair.server);
    } else {
        assert_eq!(refused, Ok(()));
    }
    close(pair.server).unwrap();
    shutdown(pair.client, SHUT_WR).unwrap();
    assert_eq!(recv_exact(pair.client, 8), left.to_ne_bytes());
    child.join();
}

fn sent_with_half_closed_directions() {
    let (over, pair) = (relay(), joined_pair());
    let child = spawn_without(pair, || {
        let fd = receive_descriptor(over[1]);
        assert_eq!(recv_to_end(fd), (pattern(1, 5_000), Ok(())));
        send_all(fd, b"all");
    });
    send_all(pair.client, &pattern(1, 5_000));
    shutdown(pair.client, SHUT_WR).unwrap();
    send_descriptor(over[0], pair.server);
    close(pair.server).unwrap();
    assert_eq!(recv_to_end(pair.client), (b"all".to_vec(), Ok(())));
    child.join();
}

/// The message holds the last reference; when it is lost, the connection ends.
fn descriptor_that_nobody_takes_is_closed() {
    let (over, pair) = (relay(), joined_pair());
    send_descriptor(over[0], pair.server);
    close(pair.server).unwrap();
    assert_eq!(ready(pair.client, POLLIN, 10), 0);
    close(over[1]).unwrap();
    close(over[0]).unwrap();
    assert_eq!(recv(pair.client, &mut [0], 0), Ok(0));
}

fn receiver_without_space_closes_the_descriptor() {
    let (over, pair) = (relay(), joined_pair());
    send_descriptor(over[0], pair.server);
    close(pair.server).unwrap();
    let mut byte = [0];
    let (count, flags) = recvmsg(over[1], &mut [&mut byte[..]], 0).unwrap();
    assert_eq!((count, flags & libc::MSG_CTRUNC), (1, libc::MSG_CTRUNC));
    assert_eq!(recv(pair.client, &mut [0], 0), Ok(0));
}

fn peeked_descriptor_is_a_duplicate() {
    let (over, pair) = (relay(), joined_pair());
    send_descriptor(over[0], pair.server);
    let mut byte = [0];
    let mut vector = receive_parts(&mut [&mut byte[..]]);
    let mut header = header(&mut vector);
    let mut control = [0u64; 8];
    header.msg_control = control.as_mut_ptr().cast();
    header.msg_controllen = size_of_val(&control) as _;
    // SAFETY: the buffers are live for the call; the message is as the kernel wrote it.
    let peeked = unsafe {
        assert_eq!(libc::recvmsg(over[1], &raw mut header, libc::MSG_PEEK), 1);
        let message = libc::CMSG_FIRSTHDR(&raw const header);
        assert!(!message.is_null());
        libc::CMSG_DATA(message).cast::<i32>().read_unaligned()
    };
    let taken = receive_descriptor(over[1]);
    assert_ne!(peeked, taken);
    close(pair.server).unwrap();
    check_both_directions(Pair { client: pair.client, server: peeked });
    close(peeked).unwrap();
    check_both_directions(Pair { client: pair.client, server: taken });
}

/// An epoll set is a descriptor as well; the receiver waits for sockets that it does not hold.
fn set_sent_to_another_process() {
    let (over, pair) = (relay(), joined_pair());
    let set = epoll_create();
    epoll_ctl(set, EPOLL_CTL_ADD, pair.server, IN, 9).unwrap();
    let child = spawn_without(pair, || {
        let set = receive_descriptor(over[1]);
        send_all(over[1], b"ready");
        assert_eq!(epoll_wait(set, 4, SOON_MS), Ok(vec![(IN, 9)]));
    });
    send_descriptor(over[0], set);
    assert_eq!(recv_exact(over[0], 5), b"ready");
    send_all(pair.client, b"x");
    child.join();
    assert_eq!(epoll_wait(set, 4, SOON_MS), Ok(vec![(IN, 9)]));
}

fn duplicates_in_a_chain() {
    let pair = joined_pair();
    let mut fd = pair.server;
    for _ in 0..300 {
        let next = dup(fd).unwrap();
        close(fd).unwrap();
        one_byte(pair.client, next);
        one_byte(next, pair.client);
        fd = next;
    }
    join_both_ends(Pair { client: pair.client, server: fd });
}

fn duplicate_over_a_member_of_a_set() {
    let (old, new) = (joined_pair(), joined_pair());
    let set = epoll_create();
    epoll_ctl(set, EPOLL_CTL_ADD, old.server, IN, 1).unwrap();
    dup2(new.server, old.server).unwrap();
    send_all(new.client, b"x");
    assert_eq!(epoll_wait(set, 4, 10), Ok(vec![]));
    let found = epoll_ctl(set, EPOLL_CTL_DEL, old.server, 0, 0);
    assert_eq!(found, Err(Errno(libc::ENOENT)));
    epoll_ctl(set, EPOLL_CTL_ADD, old.server, IN, 2).unwrap();
    assert_eq!(epoll_wait(set, 4, SOON_MS), Ok(vec![(IN, 2)]));
}

fn duplicate_over_a_set() {
    let (one, two) = (joined_pair(), joined_pair());
    let sets = [epoll_create(), epoll_create()];
    epoll_ctl(sets[0], EPOLL_CTL_ADD, one.server, IN, 1).unwrap();
    epoll_ctl(sets[1], EPOLL_CTL_ADD, two.server, IN, 2).unwrap();
    dup2(sets[1], sets[0]).unwrap();
    send_all(one.client, b"x");
    send_all(two.client, b"x");
    assert_eq!(epoll_wait(sets[0], 4, SOON_MS), Ok(vec![(IN, 2)]));
    epoll_ctl(sets[0], EPOLL_CTL_MOD, two.server, IN, 3).unwrap();
    assert_eq!(epoll_wait(sets[1], 4, SOON_MS), Ok(vec![(IN, 3)]));
    dup2(two.client, sets[1]).unwrap();
    recv_exact(two.server, 1);
    check_both_directions(Pair { client: sets[1], server: two.server });
}

fn close_range(first: Fd, last: u32, flags: u32) {
    // SAFETY: the body passes its own descriptors.
    assert_eq!(unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) }, 0);
}

fn range_closed_with_members_of_sets() {
    let pairs = [0; 4].map(|_| joined_pair());
    let set = epoll_create();
    for (index, pair) in pairs.iter().enumerate() {
        dup2(pair.server, 300 + index as Fd).unwrap();
        close(pair.server).unwrap();
        epoll_ctl(set, EPOLL_CTL_ADD, 300 + index as Fd, IN, index as u64).unwrap();
    }
    close_range(301, 302, 0);
    for fd in [pairs[1].client, pairs[2].client] {
        assert_eq!(recv(fd, &mut [0], 0), Ok(0));
    }
    for index in [0, 3] {
        send_all(pairs[index].client, b"x");
        assert_eq!(epoll_wait(set, 4, SOON_MS), Ok(vec![(IN, index as u64)]));
        recv_exact(300 + index as Fd, 1);
    }
}

fn range_closed_in_a_child() {
    let pair = joined_pair();
    send_all(pair.client, b"unread");
    spawn(|| close_range(3, u32::MAX, 0)).join();
    assert_eq!(recv_exact(pair.server, 6), b"unread");
    check_both_directions(pair);
    join_both_ends(pair);
}

/// The calling thread gets a table of descriptors of its own.
fn range_closed_after_unsharing() {
    let pair = joined_pair();
    spawn(|| {
        close_range(pair.client + 1000, u32::MAX, libc::CLOSE_RANGE_UNSHARE);
        check_both_directions(pair);
    })
    .join();
    check_both_directions(pair);
}

fn number_used_in_turn_by_connections_and_files() {
    let first = joined_pair();
    let number = first.server;
    close(first.client).unwrap();
    close(number).unwrap();
    for round in 0..20 {
        let [out, into] = pipe();
        dup2(into, number).unwrap();
        assert_eq!(write(number, b"file"), Ok(4));
        assert_eq!(read(out, &mut [0; 9]), Ok(4));
        let pair = if round % 2 == 0 { joined_pair() } else { unused_pair() };
        dup2(pair.server, number).unwrap();
        close(pair.server).unwrap();
        check_reports(
            Pair { client: pair.client, server: number },
            &Waiter::for_data(Way::Level, number),
            3,
        );
        [out, into, pair.client].into_iter().for_each(|fd| close(fd).unwrap());
    }
}

fn limit_descriptors(to: u64) {
    let limit = libc::rlimit { rlim_cur: to, rlim_max: 4096 };
    // SAFETY: the limit is live for the call.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) }, 0);
}

/// Opens files until none can be opened: how many.
fn open_all() -> Vec<Fd> {
    let mut files = vec![];
    loop {
        match open(c"/dev/null", libc::O_RDONLY) {
            Ok(fd) => files.push(fd),
            Err(error) => {
                assert_eq!(error, Errno(libc::EMFILE));
                return files;
            }
        }
    }
}

fn all_numbers_up_to_the_limit_are_the_programs() {
    limit_descriptors(100);
    let pairs = [0; 10].map(|_| joined_pair());
    // Three standard streams, twenty sockets.
    assert_eq!(open_all().len(), 77);
    pairs.into_iter().for_each(check_both_directions);
}

fn accept_at_the_limit_and_after_a_close() {
    limit_descriptors(64);
    let (listening, address) = listener(Family::V4);
    let pair = joined_pair();
    let client = connected(&address);
    let files = open_all();
    assert_eq!(accept(listening), Err(Errno(libc::EMFILE)));
    check_both_directions(pair);
    close(files[0]).unwrap();
    let server = accept(listening).unwrap();
    assert_eq!(accept4(listening, 0), Err(Errno(libc::EMFILE)));
    for round in 0..50 {
        send_all(client, &pattern(round, 80));
        assert_bytes(&recv_exact(server, 80), &pattern(round, 80));
        one_byte(server, client);
    }
}

fn connect_at_the_limit_and_after_a_close() {
    limit_descriptors(64);
    let (listening, address) = listener(Family::V4);
    let mut files = open_all();
    assert_eq!(socket(libc::AF_INET, libc::SOCK_STREAM), Err(Errno(libc::EMFILE)));
    (0..2).for_each(|_| close(files.pop().unwrap()).unwrap());
    let client = connected(&address);
    let server = accept(listening).unwrap();
    for round in 0..50 {
        send_all(client, &pattern(round, 80));
        assert_bytes(&recv_exact(server, 80), &pattern(round, 80));
        one_byte(server, client);
    }
}

/// Both ends are in this process: 800 descriptors, and no more than the kernel needs.
fn four_hundred_connections_below_a_limit_of_1024() {
    limit_descriptors(1024);
    let (listening, address) = listener(Family::V4);
    let set = epoll_create();
    let pairs: Vec<Pair> = (0..400)
        .map(|index| {
            let client = connected(&address);
            let server = accept(listening).unwrap();
            epoll_ctl(set, EPOLL_CTL_ADD, server, IN, index).unwrap();
            without_delay(Pair { client, server })
        })
        .collect();
    for round in 0..6 {
        for (index, pair) in pairs.iter().enumerate() {
            send_all(pair.client, &pattern(round, 50));
            assert_eq!(epoll_wait(set, 4, SOON_MS), Ok(vec![(IN, index as u64)]));
            assert_bytes(&recv_now(pair.server), &pattern(round, 50));
            send_all(pair.server, b"a");
            recv_exact(pair.client, 1);
        }
    }
    // Three standard streams, the listener, the set.
    assert_eq!(open_all().len(), 1024 - 805);
}

fn limit_lowered_below_open_connections() {
    let pairs = [0; 20].map(|_| joined_pair());
    let fresh = unused_pair();
    limit_descriptors(10);
    pairs.into_iter().for_each(check_both_directions);
    for _ in 0..30 {
        one_byte(fresh.client, fresh.server);
        one_byte(fresh.server, fresh.client);
    }
    open_all();
    assert_eq!(dup(fresh.client), Err(Errno(libc::EMFILE)));
    close(fresh.client).unwrap();
    assert_eq!(recv(fresh.server, &mut [0], 0), Ok(0));
}

fn limit_raised_while_connections_are_open() {
    limit_descriptors(40);
    let pairs = [0; 8].map(|_| joined_pair());
    assert_eq!(open_all().len(), 21);
    limit_descriptors(4096);
    assert_eq!(dup2(pairs[0].server, 3000), Ok(3000));
    check_both_directions(Pair { client: pairs[0].client, server: 3000 });
    join_both_ends(unused_pair());
}

fn sets_in_sets_in_sets() {
    let pair = joined_pair();
    let mut set = epoll_create();
    epoll_ctl(set, EPOLL_CTL_ADD, pair.server, IN, 0).unwrap();
    // The kernel permits four sets in each other.
    for depth in 1..4 {
        let outer = epoll_create();
        epoll_ctl(outer, EPOLL_CTL_ADD, set, IN, depth).unwrap();
        set = outer;
    }
    for _ in 0..10 {
        assert_eq!(epoll_wait(set, 4, 0), Ok(vec![]));
        send_all(pair.client, b"x");
        assert_eq!(epoll_wait(set, 4, SOON_MS), Ok(vec![(IN, 3)]));
        assert_eq!(recv_now(pair.server), b"x");
    }
    join_both_ends(pair);
}

fn edge_triggered_set_in_a_set() {
    let pair = joined_pair();
    let (inner, outer) = (epoll_create(), epoll_create());
    epoll_ctl(inner, EPOLL_CTL_ADD, pair.server, IN | EDGE, 1).unwrap();
    epoll_ctl(outer, EPOLL_CTL_ADD, inner, IN, 2).unwrap();
    for _ in 0..10 {
        send_all(pair.client, b"x");
        assert_eq!(epoll_wait(outer, 4, SOON_MS), Ok(vec![(IN, 2)]));
        assert_eq!(epoll_wait(inner, 4, 0), Ok(vec![(IN, 1)]));
        assert_eq!(epoll_wait(outer, 4, 0), Ok(vec![]));
        assert_eq!(recv_now(pair.server), b"x");
    }
}

fn one_shot_set_in_a_set() {
    let pair = joined_pair();
    let (inner, outer) = (epoll_create(), epoll_create());
    epoll_ctl(inner, EPOLL_CTL_ADD, pair.server, IN, 1).unwrap();
    epoll_ctl(outer, EPOLL_CTL_ADD, inner, IN | ONCE, 2).unwrap();
    for _ in 0..5 {
        send_all(pair.client, b"x");
        assert_eq!(epoll_wait(outer, 4, SOON_MS), Ok(vec![(IN, 2)]));
        assert_eq!(epoll_wait(outer, 4, 0), Ok(vec![]));
        assert_eq!(recv_now(pair.server), b"x");
        epoll_ctl(outer, EPOLL_CTL_MOD, inner, IN | ONCE, 2).unwrap();
    }
}

fn set_in_two_sets() {
    let pair = joined_pair();
    let inner = epoll_create();
    epoll_ctl(inner, EPOLL_CTL_ADD, pair.server, IN, 1).unwrap();
    let outers = [0, 1].map(|index| {
        let outer = epoll_create();
        epoll_ctl(outer, EPOLL_CTL_ADD, inner, IN, index).unwrap();
        outer
    });
    for _ in 0..5 {
        std::thread::scope(|scope| {
            for (index, outer) in outers.into_iter().enumerate() {
                let wanted = Ok(vec![(IN, index as u64)]);
                scope.spawn(move || assert_eq!(epoll_wait(outer, 4, SOON_MS), wanted));
            }
            pause_ms(2);
            send_all(pair.client, b"x");
        });
        assert_eq!(recv_now(pair.server), b"x");
    }
}

fn member_added_to_an_inner_set_while_waiting() {
    let pair = joined_pair();
    let (inner, outer) = (epoll_create(), epoll_create());
    epoll_ctl(outer, EPOLL_CTL_ADD, inner, IN, 2).unwrap();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| epoll_wait(outer, 4, SOON_MS));
        pause_ms(5);
        epoll_ctl(inner, EPOLL_CTL_ADD, pair.server, IN, 1).unwrap();
        pause_ms(5);
        assert!(!waiter.is_finished());
        send_all(pair.client, b"x");
        assert_eq!(waiter.join().unwrap(), Ok(vec![(IN, 2)]));
    });
    assert_eq!(epoll_wait(inner, 4, 0), Ok(vec![(IN, 1)]));
}

fn inner_set_closed_while_waiting() {
    let pair = joined_pair();
    let (inner, outer) = (epoll_create(), epoll_create());
    epoll_ctl(inner, EPOLL_CTL_ADD, pair.server, IN, 1).unwrap();
    epoll_ctl(outer, EPOLL_CTL_ADD, inner, IN, 2).unwrap();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| epoll_wait(outer, 4, 60));
        pause_ms(5);
        close(inner).unwrap();
        send_all(pair.client, b"x");
        assert_eq!(waiter.join().unwrap(), Ok(vec![]));
    });
    assert_eq!(recv_now(pair.server), b"x");
    check_both_directions(pair);
}

/// Level, edge, one shot and exclusive in one set, some joined and some not, and a set.
fn set_with_members_of_every_kind() {
    let pairs =
        [joined_pair(), joined_pair(), joined_pair(), joined_pair(), unused_pair(), unused_pair()];
    let kinds = [0, EDGE, ONCE, EXCLUSIVE, 0, EDGE];
    let (set, inner) = (epoll_create(), epoll_create());
    let nested = joined_pair();
    epoll_ctl(inner, EPOLL_CTL_ADD, nested.server, IN, 0).unwrap();
    epoll_ctl(set, EPOLL_CTL_ADD, inner, IN, 100).unwrap();
    for (index, (pair, kind)) in pairs.iter().zip(kinds).enumerate() {
        epoll_ctl(set, EPOLL_CTL_ADD, pair.server, IN | kind, index as u64).unwrap();
    }
    for _ in 0..10 {
        pairs.iter().for_each(|pair| send_all(pair.client, b"x"));
        send_all(nested.client, b"x");
        let mut seen = std::collections::BTreeSet::new();
        while seen.len() < 7 {
            let found = epoll_wait(set, 3, SOON_MS).unwrap();
            assert!(!found.is_empty(), "only {seen:?} are reported");
            for (events, data) in found {
                assert_eq!(events, IN);
                seen.insert(data);
                let fd = if data == 100 { nested.server } else { pairs[data as usize].server };
                assert_eq!(recv_now(fd), b"x");
                if data == 2 {
                    epoll_ctl(set, EPOLL_CTL_MOD, fd, IN | ONCE, 2).unwrap();
                }
            }
        }
        assert_eq!(epoll_wait(set, 3, 0), Ok(vec![]));
    }
}

fn set_polled_while_its_members_join() {
    let pairs = [0; 4].map(|_| unused_pair());
    let set = epoll_create();
    for (index, pair) in pairs.iter().enumerate() {
        epoll_ctl(set, EPOLL_CTL_ADD, pair.server, IN, index as u64).unwrap();
    }
    for round in 0..120 {
        let index = round * 7 % 4;
        assert_eq!(ready(set, POLLIN, 0), 0);
        send_all(pairs[index].client, b"x");
        wait_for(set, POLLIN);
        assert_eq!(epoll_wait(set, 4, 0), Ok(vec![(IN, index as u64)]));
        assert_eq!(recv_now(pairs[index].server), b"x");
        send_all(pairs[index].server, b"a");
        recv_exact(pairs[index].client, 1);
    }
}

fn set_whose_members_all_end() {
    let set = epoll_create();
    let pairs: Vec<Pair> = (0..30).map(|_| joined_pair()).collect();
    for pair in &pairs {
        epoll_ctl(set, EPOLL_CTL_ADD, pair.server, IN, pair.server as u64).unwrap();
    }
    pairs.iter().for_each(|pair| close(pair.client).unwrap());
    let mut ended = 0;
    while ended < 30 {
        for (_, data) in epoll_wait(set, 8, SOON_MS).unwrap() {
            assert_eq!(recv(data as Fd, &mut [0], MSG_DONTWAIT), Ok(0));
            close(data as Fd).unwrap();
            ended += 1;
        }
    }
    assert_eq!(epoll_wait(set, 8, 0), Ok(vec![]));
}

fn thousand_changes_of_one_set() {
    let pairs = [0; 5].map(|_| joined_pair());
    let set = epoll_create();
    let mut member = [false; 5];
    for step in 0..1000usize {
        let index = step * 7 % 5;
        let (pair, kind) = (pairs[index], [0, EDGE, ONCE][step % 3]);
        match (member[index], step % 4) {
            (false, _) => {
                epoll_ctl(set, EPOLL_CTL_ADD, pair.server, IN | kind, index as u64).unwrap();
                member[index] = true;
            }
            (true, 0) => {
                epoll_ctl(set, EPOLL_CTL_DEL, pair.server, 0, 0).unwrap();
                member[index] = false;
            }
            (true, _) => {
                epoll_ctl(set, EPOLL_CTL_MOD, pair.server, IN | kind, index as u64).unwrap();
            }
        }
        if step % 2 == 0 {
            send_all(pair.client, b"x");
            wait_for(pair.server, POLLIN);
            let wanted = if member[index] { vec![(IN, index as u64)] } else { vec![] };
            assert_eq!(epoll_wait(set, 4, 0), Ok(wanted), "step {step}");
            assert_eq!(recv_now(pair.server), b"x");
        }
    }
}
