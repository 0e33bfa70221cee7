//! Programs that make system calls themselves, past the C library, and programs that restrict which
//! ones they make.

use libc::MSG_DONTWAIT;
use nm_sys::clock::Deadline;

use crate::calls::*;
use crate::harness::{mark, state};
use crate::support::*;

behaviours![
    set_that_is_used_by_system_calls_of_its_own,
    unknown_set_is_looked_for_below_256,
    filter_of_system_calls_before_the_first_byte,
    filter_of_system_calls_on_a_joined_connection,
    filter_of_system_calls_with_unread_bytes,
    filter_of_system_calls_before_an_accept,
    question_for_filters_changes_nothing,
];

/// What a runtime does that is written without the C library's functions for epoll: the library
/// sees the connection and its data, but not who waits for it.
fn set_that_is_used_by_system_calls_of_its_own() {
    use rustix::event::epoll;
    let set = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
    let pair = without_delay(unused_pair());
    nonblocking(pair.server, true);
    // SAFETY: the descriptor stays open while it is borrowed.
    let server = unsafe { std::os::fd::BorrowedFd::borrow_raw(pair.server) };
    let (data, flags) = (epoll::EventData::new_u64(7), epoll::EventFlags::IN);
    epoll::add(&set, server, data, flags).unwrap();
    let soon = rustix::fs::Timespec { tv_sec: SOON.as_secs().cast_signed(), tv_nsec: 0 };
    for round in 0..50 {
        mark();
        send_all(pair.client, &pattern(round, 300));
        let (mut received, mut bytes) = (vec![], [0; 1000]);
        while received.len() < 300 {
            let mut events = [epoll::Event { flags, data }];
            let woken = epoll::wait(&set, &mut events, Some(&soon));
            assert_eq!(woken, Ok(1), "no wake-up in round {round}");
            while let Ok(count) = recv(pair.server, &mut bytes, 0) {
                received.extend(&bytes[..count]);
            }
        }
        assert_bytes(&received, &pattern(round, 300));
        send_all(pair.server, b"answer");
        assert_eq!(recv_exact(pair.client, 6), b"answer");
    }
}

/// A set with a higher number is not noticed, so that no connection costs a look at thousands of
/// descriptors. Here nobody waits for it.
fn unknown_set_is_looked_for_below_256() {
    use rustix::event::epoll;
    use rustix::io::fcntl_dupfd_cloexec;
    let set = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
    let high = fcntl_dupfd_cloexec(&set, 256).unwrap();
    drop(set);
    let nonblocking_pair = || {
        let pair = without_delay(unused_pair());
        [pair.client, pair.server].into_iter().for_each(|fd| nonblocking(fd, true));
        pair
    };
    check_both_directions(join_both_ends(nonblocking_pair()));
    let _low = fcntl_dupfd_cloexec(&high, 255).unwrap();
    let pair = nonblocking_pair();
    let deadline = Deadline::after(SOON);
    while [pair.client, pair.server].map(state).iter().flatten().any(|it| *it != KERNEL) {
        assert!(!deadline.passed(), "the set was not noticed");
        one_byte(pair.client, pair.server);
        one_byte(pair.server, pair.client);
    }
    check_both_directions(pair);
}

/// The system calls of [`answer_under_a_filter`], and no others.
const ALLOWED: [libc::c_long; 8] = [
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_recvfrom,
    libc::SYS_sendto,
    libc::SYS_accept,
    libc::SYS_close,
    libc::SYS_exit_group,
    libc::SYS_rt_sigreturn,
];

/// Ends the process at any system call that is not allowed.
fn restrict_system_calls() {
    use libc::{BPF_ABS, BPF_JEQ, BPF_JMP, BPF_K, BPF_LD, BPF_RET, BPF_W, sock_filter};
    let code = |parts: u32| parts as u16;
    let [load, equal, result] = [BPF_LD | BPF_W | BPF_ABS, BPF_JMP | BPF_JEQ | BPF_K, BPF_RET];
    let mut filter = vec![sock_filter { code: code(load), jt: 0, jf: 0, k: 0 }];
    for number in ALLOWED {
        filter.push(sock_filter { code: code(equal), jt: 0, jf: 1, k: number as u32 });
        filter.push(sock_filter { code: code(result), jt: 0, jf: 0, k: libc::SECCOMP_RET_ALLOW });
    }
    let end = libc::SECCOMP_RET_KILL_PROCESS;
    filter.push(sock_filter { code: code(result), jt: 0, jf: 0, k: end });
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: the filter is live for the calls.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        let mode = libc::SECCOMP_MODE_FILTER;
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, mode, &raw const program), 0);
    }
}

/// Returns what it receives by the allowed calls only, and ends.
fn answer_under_a_filter(fd: Fd) -> ! {
    restrict_system_calls();
    answer(fd);
}

fn answer(fd: Fd) -> ! {
    let mut bytes = [0_u8; 1000];
    loop {
        // SAFETY: the bytes are live; the calls are the C library's own, which the library
        // replaces.
        unsafe {
            let count = libc::read(fd, bytes.as_mut_ptr().cast(), bytes.len());
            if count <= 0 || libc::send(fd, bytes.as_ptr().cast(), count as usize, 0) != count {
                libc::close(fd);
                libc::_exit(count as i32);
            }
        }
    }
}

#[track_caller]
fn check_answers_under_a_filter(pair: Pair) {
    mark();
    let child = fork();
    if child == 0 {
        close(pair.client).unwrap();
        answer_under_a_filter(pair.server);
    }
    close(pair.server).unwrap();
    for round in 0..200 {
        send_all(pair.client, &pattern(round, 777));
        assert_bytes(&recv_exact(pair.client, 777), &pattern(round, 777));
    }
    shutdown(pair.client, libc::SHUT_WR).unwrap();
    assert_eq!(recv_to_end(pair.client), (vec![], Ok(())));
    assert_eq!(waitpid(child), Ok(0));
}

fn filter_of_system_calls_before_the_first_byte() {
    check_answers_under_a_filter(unused_pair());
}

fn filter_of_system_calls_on_a_joined_connection() {
    check_answers_under_a_filter(joined_pair());
}

fn filter_of_system_calls_with_unread_bytes() {
    let pair = joined_pair();
    let child = fork();
    if child == 0 {
        close(pair.client).unwrap();
        wait_for(pair.server, libc::POLLIN);
        answer_under_a_filter(pair.server);
    }
    close(pair.server).unwrap();
    for round in 0..20 {
        send_all(pair.client, &pattern(round, 1777));
    }
    for round in 0..20 {
        assert_bytes(&recv_exact(pair.client, 1777), &pattern(round, 1777));
    }
    close(pair.client).unwrap();
    assert_eq!(waitpid(child), Ok(0));
}

fn filter_of_system_calls_before_an_accept() {
    let (listening, address) = listener(Family::V4);
    let child = fork();
    if child == 0 {
        restrict_system_calls();
        // SAFETY: no address is wanted.
        let fd = unsafe { libc::accept(listening, std::ptr::null_mut(), std::ptr::null_mut()) };
        answer(fd);
    }
    let client = connected(&address);
    for round in 0..200 {
        send_all(client, &pattern(round, 777));
        assert_bytes(&recv_exact(client, 777), &pattern(round, 777));
    }
    shutdown(client, libc::SHUT_WR).unwrap();
    assert_eq!(recv_to_end(client), (vec![], Ok(())));
    assert_eq!(waitpid(child), Ok(0));
}

/// Without a filter the call asks whether the kernel knows filters.
fn question_for_filters_changes_nothing() {
    let pair = joined_pair();
    let none = std::ptr::null::<libc::sock_fprog>();
    // SAFETY: the kernel rejects the address.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, none), -1);
        let operation = libc::SECCOMP_SET_MODE_FILTER;
        assert_eq!(libc::syscall(libc::SYS_seccomp, operation, 0, none), -1);
    }
    check_both_directions(pair);
    assert_eq!(recv(pair.server, &mut [0], MSG_DONTWAIT), Err(AGAIN));
    assert_state(pair.server, JOINED);
}
