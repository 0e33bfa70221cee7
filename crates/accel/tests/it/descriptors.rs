//! Descriptors: duplicates, lowest numbers, ranges, flags; the library's own ones are out of the
//! way.

use libc::{F_DUPFD, F_DUPFD_CLOEXEC, F_GETFD, F_SETFD, FD_CLOEXEC, MSG_DONTWAIT, O_CLOEXEC};

use crate::calls::*;
use crate::support::*;

behaviours![
    dup_is_the_same_socket,
    dup2_is_the_same_socket,
    dup2_onto_itself,
    dup2_over_a_joined_socket_closes_it,
    dup2_of_a_joined_socket_over_a_joined_one,
    dup2_of_a_file_over_a_joined_socket,
    dup3_sets_close_on_exec,
    dup3_onto_itself_is_rejected,
    fcntl_dupfd,
    fcntl_dupfd_cloexec,
    closing_one_of_two_keeps_the_connection,
    closing_both_ends_the_connection,
    dup_before_joining,
    lowest_descriptor_after_close,
    lowest_descriptor_for_every_call,
    dup_of_a_closed_descriptor,
    close_on_exec_flag,
    accepted_socket_has_no_flags,
    accept4_flags,
    close_range_closes,
    close_range_leaves_other_descriptors_open,
    close_range_cloexec,
    closefrom_closes,
    closing_every_descriptor_one_by_one,
    descriptors_stay_low,
    descriptor_limit,
    close_while_another_thread_reads,
    descriptor_reused_by_a_file,
    dup2_onto_standard_input,
    shutdown_affects_all_duplicates,
];

/// Bytes go from one descriptor to the other.
#[track_caller]
fn check_direction(from: Fd, to: Fd) {
    send_all(from, b"way");
    assert_eq!(recv_exact(to, 3), b"way");
}

fn dup_is_the_same_socket() {
    let pair = joined_pair();
    let other = dup(pair.server).unwrap();
    for fd in [other, pair.server] {
        check_direction(pair.client, fd);
        check_direction(fd, pair.client);
    }
    send_all(pair.client, b"ab");
    assert_eq!(recv_exact(other, 1), b"a");
    assert_eq!(recv_exact(pair.server, 1), b"b");
    assert_state(other, JOINED);
}

fn dup2_is_the_same_socket() {
    let pair = joined_pair();
    assert_eq!(dup2(pair.server, 200), Ok(200));
    check_direction(pair.client, 200);
    check_direction(200, pair.client);
    assert_state(200, JOINED);
}

fn dup2_onto_itself() {
    let pair = joined_pair();
    assert_eq!(dup2(pair.server, pair.server), Ok(pair.server));
    check_direction(pair.client, pair.server);
    assert_eq!(dup2(555, 555), Err(BADF));
}

fn dup2_over_a_joined_socket_closes_it() {
    let (one, two) = (joined_pair(), joined_pair());
    assert_eq!(dup2(one.server, two.server), Ok(two.server));
    assert_eq!(recv(two.client, &mut [0], 0), Ok(0));
    check_direction(one.client, two.server);
    check_direction(one.server, one.client);
}

fn dup2_of_a_joined_socket_over_a_joined_one() {
    let (one, two) = (joined_pair(), joined_pair());
    let kept = dup(two.server).unwrap();
    dup2(one.server, two.server).unwrap();
    check_direction(two.client, kept);
    check_direction(one.client, two.server);
    close(one.server).unwrap();
    check_direction(one.client, two.server);
}

fn dup2_of_a_file_over_a_joined_socket() {
    let pair = joined_pair();
    let [out, into] = pipe();
    dup2(into, pair.server).unwrap();
    assert_eq!(recv(pair.client, &mut [0], 0), Ok(0));
    assert_eq!(write(pair.server, b"to the pipe"), Ok(11));
    assert_eq!(read(out, &mut [0; 20]), Ok(11));
}

fn dup3_sets_close_on_exec() {
    let pair = joined_pair();
    assert_eq!(dup3(pair.server, 201, O_CLOEXEC), Ok(201));
    assert_eq!(fcntl(201, F_GETFD, 0), Ok(FD_CLOEXEC));
    assert_eq!(dup3(pair.server, 202, 0), Ok(202));
    assert_eq!(fcntl(202, F_GETFD, 0), Ok(0));
    check_direction(pair.client, 201);
}

fn dup3_onto_itself_is_rejected() {
    let pair = joined_pair();
    assert_eq!(dup3(pair.server, pair.server, 0), Err(INVAL));
    assert_eq!(dup3(pair.server, 203, 77), Err(INVAL));
    check_direction(pair.client, pair.server);
}

fn fcntl_dupfd() {
    let pair = joined_pair();
    assert_eq!(fcntl(pair.server, F_DUPFD, 150), Ok(150));
    assert_eq!(fcntl(pair.server, F_DUPFD, 150), Ok(151));
    assert_eq!(fcntl(150, F_GETFD, 0), Ok(0));
    close(pair.server).unwrap();
    check_direction(pair.client, 150);
    check_direction(151, pair.client);
}

fn fcntl_dupfd_cloexec() {
    let pair = joined_pair();
    assert_eq!(fcntl(pair.server, F_DUPFD_CLOEXEC, 150), Ok(150));
    assert_eq!(fcntl(150, F_GETFD, 0), Ok(FD_CLOEXEC));
    check_direction(pair.client, 150);
    assert_eq!(fcntl(pair.server, F_DUPFD, -1), Err(INVAL));
}

fn closing_one_of_two_keeps_the_connection() {
    let pair = joined_pair();
    let other = dup(pair.server).unwrap();
    send_all(pair.client, b"unread");
    close(pair.server).unwrap();
    assert_eq!(recv_exact(other, 6), b"unread");
    assert_eq!(recv(pair.client, &mut [0], MSG_DONTWAIT), Err(AGAIN));
    check_direction(other, pair.client);
}

fn closing_both_ends_the_connection() {
    let pair = joined_pair();
    let other = dup(pair.server).unwrap();
    close(pair.server).unwrap();
    close(other).unwrap();
    assert_eq!(recv(pair.client, &mut [0], 0), Ok(0));
}

fn dup_before_joining() {
    let pair = unused_pair();
    let other = dup(pair.server).unwrap();
    let pair = join_both_ends(pair);
    check_direction(pair.client, other);
    close(pair.server).unwrap();
    check_direction(other, pair.client);
}

/// Opens files until all numbers up to the highest open one are used; returns the next number.
fn first_free_above(highest: Fd) -> Fd {
    loop {
        let fd = open(c"/dev/null", libc::O_RDONLY).unwrap();
        if fd > highest {
            close(fd).unwrap();
            return fd;
        }
    }
}

fn lowest_descriptor_after_close() {
    let pairs: Vec<Pair> = (0..5).map(|_| joined_pair()).collect();
    let next = first_free_above(pairs[4].server.max(pairs[4].client));
    let freed = pairs[2].server;
    close(freed).unwrap();
    assert_eq!(open(c"/dev/null", libc::O_RDONLY), Ok(freed));
    assert_eq!(open(c"/dev/null", libc::O_RDONLY), Ok(next));
}

fn lowest_descriptor_for_every_call() {
    let pair = joined_pair();
    let next = first_free_above(pair.client.max(pair.server));
    let (listening, address) = listener(Family::V4);
    let client = connected(&address);
    assert_eq!((listening, client), (next, next + 1));
    assert_eq!(accept(listening), Ok(next + 2));
    assert_eq!(dup(client), Ok(next + 3));
    assert_eq!(epoll_create(), next + 4);
    assert_eq!(pipe(), [next + 5, next + 6]);
    join_both_ends(Pair { client, server: next + 2 });
    assert_eq!(open(c"/dev/null", libc::O_RDONLY), Ok(next + 7));
}

fn dup_of_a_closed_descriptor() {
    let pair = joined_pair();
    close(pair.client).unwrap();
    assert_eq!(dup(pair.client), Err(BADF));
    assert_eq!(dup2(pair.client, 250), Err(BADF));
    assert_eq!(dup2(pair.server, -1), Err(BADF));
}

fn close_on_exec_flag() {
    let pair = joined_pair();
    for flag in [FD_CLOEXEC, 0, FD_CLOEXEC] {
        fcntl(pair.server, F_SETFD, flag).unwrap();
        assert_eq!(fcntl(pair.server, F_GETFD, 0), Ok(flag));
    }
    check_direction(pair.client, pair.server);
}

fn accepted_socket_has_no_flags() {
    let (listening, address) = listener(Family::V4);
    nonblocking(listening, true);
    let _client = connected(&address);
    wait_for(listening, libc::POLLIN);
    let server = accept(listening).unwrap();
    assert_eq!(fcntl(server, F_GETFD, 0), Ok(0));
    assert_eq!(fcntl(server, libc::F_GETFL, 0), Ok(libc::O_RDWR));
}

fn accept4_flags() {
    let (listening, address) = listener(Family::V4);
    let client = connected(&address);
    let server = accept4(listening, libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC).unwrap();
    assert_eq!(fcntl(server, F_GETFD, 0), Ok(FD_CLOEXEC));
    let pair = join_both_ends(Pair { client, server });
    assert_eq!(recv(pair.server, &mut [0], 0), Err(AGAIN));
    assert_eq!(accept4(listening, 0x77), Err(INVAL));
}

#[track_caller]
fn close_range(first: u32, last: u32, flags: u32) {
    // SAFETY: the body passes its own descriptors.
    assert_eq!(unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) }, 0);
}

fn close_range_closes() {
    let pair = joined_pair();
    dup2(pair.server, 300).unwrap();
    close(pair.server).unwrap();
    close_range(290, 310, 0);
    assert_eq!(recv(pair.client, &mut [0], 0), Ok(0));
    assert_eq!(send(300, b"x", 0), Err(BADF));
}

fn close_range_leaves_other_descriptors_open() {
    let pair = joined_pair();
    dup2(pair.server, 300).unwrap();
    dup2(pair.client, 400).unwrap();
    close_range(500, u32::MAX, 0);
    check_direction(400, 300);
    check_direction(300, 400);
    assert_state(300, JOINED);
}

fn close_range_cloexec() {
    let pair = joined_pair();
    dup2(pair.server, 300).unwrap();
    close_range(300, 300, libc::CLOSE_RANGE_CLOEXEC);
    assert_eq!(fcntl(300, F_GETFD, 0), Ok(FD_CLOEXEC));
    check_direction(pair.client, 300);
}

// glibc 2.34 and later; declared here because the libc crate does not have it.
unsafe extern "C" {
    fn closefrom(first: Fd);
}

fn closefrom_closes() {
    let pair = joined_pair();
    dup2(pair.server, 300).unwrap();
    close(pair.server).unwrap();
    // SAFETY: nothing uses the other descriptors.
    unsafe { closefrom(300) };
    assert_eq!(recv(pair.client, &mut [0], 0), Ok(0));
    let fresh = joined_pair();
    check_direction(fresh.client, fresh.server);
}

/// Closes every number that could be open, as old daemons do.
fn closing_every_descriptor_one_by_one() {
    let pair = joined_pair();
    for fd in 3..4096 {
        if fd != pair.client && fd != pair.server {
            let _ = close(fd);
        }
    }
    for _ in 0..100 {
        check_direction(pair.client, pair.server);
        check_direction(pair.server, pair.client);
    }
    let fresh = joined_pair();
    check_direction(fresh.client, fresh.server);
}

fn descriptors_stay_low() {
    let pairs: Vec<Pair> = (0..20).map(|_| joined_pair()).collect();
    let highest = pairs.iter().flat_map(|pair| [pair.client, pair.server]).max();
    let lowest = pairs.iter().flat_map(|pair| [pair.client, pair.server]).min();
    // Forty numbers, one between them that a closed listener has freed.
    assert!(highest.unwrap() - lowest.unwrap() <= 40, "{lowest:?} to {highest:?}");
}

fn descriptor_limit() {
    let limit = libc::rlimit { rlim_cur: 64, rlim_max: 64 };
    // SAFETY: the limit is live for the call.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) }, 0);
    let pair = unused_pair();
    let mut files = vec![];
    let refused = loop {
        match open(c"/dev/null", libc::O_RDONLY) {
            Ok(fd) => files.push(fd),
            Err(error) => break error,
        }
    };
    assert_eq!(refused, Errno(libc::EMFILE));
    for round in 0..100 {
        send_all(pair.client, &pattern(round, 500));
        assert_bytes(&recv_exact(pair.server, 500), &pattern(round, 500));
        check_direction(pair.server, pair.client);
    }
}

/// The reader may keep waiting (Linux keeps the socket for it) or see an end; it must return when
/// the peer sends or ends, without a fault.
fn close_while_another_thread_reads() {
    let pair = joined_pair();
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| recv(pair.server, &mut [0; 8], 0));
        pause_ms(30);
        assert!(!reader.is_finished());
        close(pair.server).unwrap();
        pause_ms(30);
        // If the reader was not in its call yet, the socket was closed, and this is refused.
        let _ = send(pair.client, b"x", libc::MSG_NOSIGNAL);
        let is_shut = shutdown(pair.client, libc::SHUT_RDWR);
        assert!([Ok(()), Err(NOTCONN)].contains(&is_shut), "{is_shut:?}");
        let outcome = reader.join().unwrap();
        let allowed = [Ok(0), Ok(1), Err(BADF), Err(RESET)];
        assert!(allowed.contains(&outcome), "{outcome:?}");
    });
    let fresh = joined_pair();
    check_direction(fresh.client, fresh.server);
}

fn descriptor_reused_by_a_file() {
    let pair = joined_pair();
    let number = pair.server;
    close(number).unwrap();
    let [out, into] = pipe();
    assert!(out == number || into == number || out < number);
    dup2(into, number).unwrap();
    assert_eq!(write(number, b"plain"), Ok(5));
    let mut buffer = [0; 9];
    assert_eq!(read(out, &mut buffer), Ok(5));
    assert_eq!(recv(number, &mut buffer, 0), Err(Errno(libc::ENOTSOCK)));
    assert_eq!(recv(pair.client, &mut buffer, 0), Ok(0));
}

fn dup2_onto_standard_input() {
    let pair = joined_pair();
    send_all(pair.client, b"unread ");
    dup2(pair.server, 0).unwrap();
    send_all(pair.client, b"later");
    assert_eq!(recv_exact(0, 12), b"unread later");
    check_direction(0, pair.client);
    check_direction(pair.client, pair.server);
}

fn shutdown_affects_all_duplicates() {
    let pair = joined_pair();
    let other = dup(pair.server).unwrap();
    shutdown(other, libc::SHUT_WR).unwrap();
    assert_eq!(recv(pair.client, &mut [0], 0), Ok(0));
    assert_eq!(send(pair.server, b"x", libc::MSG_NOSIGNAL), Err(PIPE));
}
