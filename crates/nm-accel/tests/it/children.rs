//! Programs that a program starts while its connections are open: those that merely inherit a
//! socket cost memory only as long as they could use it, and those that use it are served.

use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use crate::calls::*;
use crate::harness::{c_string, state};
use crate::support::*;

behaviours![
    system_five_times_and_memory_after_each,
    system_before_the_ends_have_met,
    popen_holds_until_the_program_has_ended,
    background_program_holds_until_it_has_ended,
    posix_spawn_holds_until_the_program_has_ended,
    fork_and_exec_holds_until_the_program_has_ended,
    vfork_and_exec_holds_until_the_program_has_ended,
    fork_twice_as_a_daemon_does,
    inherited_socket_is_written_in_order,
    inherited_socket_is_read_and_written_by_turns,
    failed_exec_holds_nothing,
    closed_on_exec_costs_nothing,
    descriptor_for_the_locks_is_not_left_open,
    fork_while_threads_are_in_every_call,
    start_while_threads_use_the_socket,
    program_that_lives_on_writes_and_reads_later,
    program_that_lives_on_closes_the_socket,
    program_that_lives_on_outlives_our_descriptor,
    program_that_lives_on_starts_another_one,
    killed_program_holds_nothing,
    many_sockets_are_held_and_are_free_again,
];

/// A joined connection whose descriptors started programs inherit.
#[track_caller]
fn inheritable_pair() -> Pair {
    let pair = joined_pair();
    for fd in [pair.client, pair.server] {
        fcntl(fd, libc::F_SETFD, 0).unwrap();
    }
    pair
}

/// Bytes go both ways.
#[track_caller]
fn exchange(pair: Pair) {
    for (from, to) in [(pair.client, pair.server), (pair.server, pair.client)] {
        send_all(from, b"both ways");
        assert_eq!(recv_exact(to, 9), b"both ways");
    }
}

/// Memory is used again, soon.
#[track_caller]
fn check_memory_is_used(pair: Pair) {
    eventually("memory is used again", || {
        exchange(pair);
        [pair.client, pair.server].map(state).iter().flatten().all(|state| *state == JOINED)
    });
}

/// While a started program could use the socket, memory is not used.
#[track_caller]
fn check_it_is_held(pair: Pair) {
    for _ in 0..20 {
        exchange(pair);
        for fd in [pair.client, pair.server] {
            assert_ne!(state(fd), Some(JOINED), "a program holds the socket");
        }
    }
}

fn system(command: &str) {
    let command = c_string(command);
    // SAFETY: a C string.
    assert_eq!(unsafe { libc::system(command.as_ptr()) }, 0);
}

fn system_five_times_and_memory_after_each() {
    let pair = inheritable_pair();
    for _ in 0..5 {
        system("uname -a >/dev/null");
        check_memory_is_used(pair);
    }
}

fn system_before_the_ends_have_met() {
    let pair = unused_pair();
    for fd in [pair.client, pair.server] {
        fcntl(fd, libc::F_SETFD, 0).unwrap();
    }
    system("true");
    exchange(pair);
    system("true");
    check_memory_is_used(pair);
}

fn popen_holds_until_the_program_has_ended() {
    let pair = inheritable_pair();
    // SAFETY: C strings; the stream is closed below.
    unsafe {
        let stream = libc::popen(c"cat >/dev/null".as_ptr(), c"w".as_ptr());
        assert!(!stream.is_null());
        check_it_is_held(pair);
        assert_eq!(libc::pclose(stream), 0);
    }
    check_memory_is_used(pair);
}

/// A pipe whose closing ends the program `cat`, and the program's number.
fn cat() -> (Process, Fd, Fd) {
    let [out, into] = pipe();
    let (process, read_end) = posix_spawn(&["cat"], &[(out, 0)]);
    close(out).unwrap();
    (process, into, read_end)
}

fn posix_spawn_holds_until_the_program_has_ended() {
    let pair = inheritable_pair();
    let (process, into, out) = cat();
    check_it_is_held(pair);
    close(into).unwrap();
    process.join();
    close(out).unwrap();
    check_memory_is_used(pair);
}

/// The shell ends at once, but what it has started has inherited the socket as well.
fn background_program_holds_until_it_has_ended() {
    let pair = inheritable_pair();
    let [out, into] = pipe();
    fcntl(out, libc::F_SETFD, 0).unwrap();
    system(&format!("cat <&{out} >/dev/null 2>&1 &"));
    close(out).unwrap();
    check_it_is_held(pair);
    close(into).unwrap();
    check_memory_is_used(pair);
}

/// Executes `cat` with `input` as its standard input.
fn exec_cat(input: Fd) -> ! {
    let words = [c"cat".as_ptr(), null()];
    // SAFETY: C strings, closed by a null pointer; the process is a child that only executes.
    unsafe {
        libc::dup2(input, 0);
        libc::execvp(words[0], words.as_ptr());
        libc::_exit(9)
    }
}

fn fork_and_exec_holds_until_the_program_has_ended() {
    let pair = inheritable_pair();
    let [out, into] = pipe();
    let process = match fork() {
        0 => exec_cat(out),
        child => Process(child),
    };
    // The fork shares memory; the exec, which no other process notices, ends that.
    eventually("the program runs", || program_of(process.0).ends_with("cat"));
    check_it_is_held(pair);
    close(into).unwrap();
    process.join();
    check_memory_is_used(pair);
}

fn program_of(process: i32) -> String {
    let link = std::fs::read_link(format!("/proc/{process}/exe")).unwrap_or_default();
    let name = link.file_name().map(|name| name.to_string_lossy().into_owned());
    // Where cat is a link to a program of many names, the comm file has the name.
    let comm = std::fs::read_to_string(format!("/proc/{process}/comm")).unwrap_or_default();
    if comm.trim() == "cat" { comm.trim().to_owned() } else { name.unwrap_or_default() }
}

fn vfork_and_exec_holds_until_the_program_has_ended() {
    let pair = inheritable_pair();
    let [out, into] = pipe();
    // SAFETY: the child only executes.
    #[allow(deprecated)]
    let process = match unsafe { libc::vfork() } {
        0 => exec_cat(out),
        child => Process(child),
    };
    check_it_is_held(pair);
    close(into).unwrap();
    process.join();
    check_memory_is_used(pair);
}

fn fork_twice_as_a_daemon_does() {
    let pair = inheritable_pair();
    let [out, into] = pipe();
    spawn(|| {
        if fork() == 0 {
            exec_cat(out);
        }
    })
    .join();
    exchange(pair);
    close(into).unwrap();
    close(out).unwrap();
    check_memory_is_used(pair);
}

/// What the program writes comes behind what was sent before it and before what is sent after it.
fn inherited_socket_is_written_in_order() {
    let pair = inheritable_pair();
    for round in 0..5 {
        send_all(pair.client, b"before ");
        system(&format!("printf {round} >&{}", pair.client));
        send_all(pair.client, b" after");
        let wanted = format!("before {round} after");
        assert_eq!(recv_exact(pair.server, wanted.len()), wanted.as_bytes());
        check_memory_is_used(pair);
    }
}

fn inherited_socket_is_read_and_written_by_turns() {
    let pair = inheritable_pair();
    for _ in 0..3 {
        send_all(pair.server, b"for the program\n");
        let fd = pair.client;
        system(&format!("read line <&{fd}; test \"$line\" = 'for the program'"));
        send_all(pair.server, b"for us");
        assert_eq!(recv_exact(pair.client, 6), b"for us");
        check_memory_is_used(pair);
    }
}

fn failed_exec_holds_nothing() {
    let pair = inheritable_pair();
    spawn(|| {
        let words = [c"/no/such/program".as_ptr(), null()];
        // SAFETY: C strings, closed by a null pointer.
        assert_eq!(unsafe { libc::execv(words[0], words.as_ptr()) }, -1);
        exchange(pair);
    })
    .join();
    check_memory_is_used(pair);
}

fn closed_on_exec_costs_nothing() {
    let pair = joined_pair();
    let (process, into, out) = cat();
    exchange(pair);
    assert_state(pair.client, JOINED);
    close(into).unwrap();
    process.join();
    close(out).unwrap();
    exchange(pair);
    assert_state(pair.server, JOINED);
}

fn open_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

fn descriptor_for_the_locks_is_not_left_open() {
    let pair = inheritable_pair();
    let before = open_descriptors();
    for _ in 0..20 {
        system("true");
        let (process, into, out) = cat();
        close(into).unwrap();
        process.join();
        close(out).unwrap();
    }
    assert_eq!(open_descriptors(), before);
    // SAFETY: C strings that name no program.
    let result = unsafe {
        let words = [c"/no/such/program".as_ptr().cast_mut(), null_mut()];
        let (mut process, none) = (0, null());
        libc::posix_spawn(&raw mut process, words[0], null(), null(), words.as_ptr(), none)
    };
    assert_ne!(result, 0);
    assert_eq!(open_descriptors(), before);
    check_memory_is_used(pair);
}

/// Runs `other` in a thread, again and again, while `body` runs.
fn while_repeating(other: impl Fn() + Sync, body: impl FnOnce()) {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(SeqCst) {
                other();
            }
        });
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body));
        done.store(true, SeqCst);
        if let Err(panic) = ended {
            std::panic::resume_unwind(panic);
        }
    });
}

/// A child finds no lock that is held for ever, and no list that was being changed.
fn fork_while_threads_are_in_every_call() {
    let (busy, quiet) = (joined_pair(), joined_pair());
    let change_everything = || {
        let set = epoll_create();
        let copy = dup(busy.server).unwrap();
        for fd in [busy.client, busy.server, copy] {
            epoll_ctl(set, libc::EPOLL_CTL_ADD, fd, libc::EPOLLIN as u32, 1).unwrap();
        }
        exchange(busy);
        epoll_wait(set, 4, 0).unwrap();
        ready(busy.client, libc::POLLIN, 0);
        epoll_ctl(set, libc::EPOLL_CTL_DEL, copy, 0, 0).unwrap();
        close(copy).unwrap();
        close(set).unwrap();
    };
    while_repeating(change_everything, || {
        for _ in 0..30 {
            spawn(|| {
                let set = epoll_create();
                epoll_ctl(set, libc::EPOLL_CTL_ADD, quiet.server, libc::EPOLLIN as u32, 7).unwrap();
                send_all(quiet.client, b"from the child");
                assert_eq!(epoll_wait(set, 4, SOON_MS), Ok(vec![(libc::EPOLLIN as u32, 7)]));
                assert_eq!(recv_exact(quiet.server, 14), b"from the child");
                exchange(quiet);
            })
            .join();
        }
    });
    exchange(busy);
    exchange(quiet);
}

fn start_while_threads_use_the_socket() {
    let pair = inheritable_pair();
    while_repeating(
        || exchange(pair),
        || {
            for _ in 0..5 {
                system("true");
            }
        },
    );
    check_memory_is_used(pair);
}

/// A shell that runs `script`, whose `read` waits for a line from us: the program, the end of the
/// pipe for our lines, and that of its output.
fn shell(script: &str) -> (Process, Fd, Fd) {
    let [out, into] = pipe();
    let (process, output) = posix_spawn(&["sh", "-c", script], &[(out, 0)]);
    close(out).unwrap();
    (process, into, output)
}

/// Ends a shell whose script waits for a last line.
fn end_shell((process, into, output): (Process, Fd, Fd)) {
    send_line(into);
    process.join();
    close(into).unwrap();
    close(output).unwrap();
}

fn send_line(into: Fd) {
    assert_eq!(write(into, b"go\n"), Ok(3));
}

fn program_that_lives_on_writes_and_reads_later() {
    let pair = inheritable_pair();
    let fd = pair.client;
    let script = format!(
        "read go; printf from-it >&{fd}; read line <&{fd}; printf %s \"$line\" >&{fd}; read go"
    );
    let program = shell(&script);
    for _ in 0..20 {
        exchange(pair);
    }
    send_all(fd, b"before ");
    send_line(program.1);
    assert_eq!(recv_exact(pair.server, 14), b"before from-it");
    send_all(pair.server, b"to it\n");
    assert_eq!(recv_exact(pair.server, 5), b"to it");
    check_it_is_held(pair);
    end_shell(program);
    check_memory_is_used(pair);
}

/// The end of the stream comes with the last close, which is the program's or ours.
fn program_that_lives_on_closes_the_socket() {
    let pair = inheritable_pair();
    let fd = pair.client;
    assert!(fd < 10, "a shell's redirections take one digit");
    let program = shell(&format!("read go; exec {fd}>&-; echo closed; read go"));
    exchange(pair);
    send_all(fd, b"the last bytes");
    close(fd).unwrap();
    assert_eq!(recv_exact(pair.server, 14), b"the last bytes");
    assert_eq!(recv(pair.server, &mut [0; 8], libc::MSG_DONTWAIT), Err(AGAIN));
    send_line(program.1);
    assert_eq!(recv(pair.server, &mut [0; 8], 0), Ok(0));
    end_shell(program);
}

fn program_that_lives_on_outlives_our_descriptor() {
    let pair = inheritable_pair();
    let fd = pair.client;
    let program = shell(&format!("read go; printf late >&{fd}; read line <&{fd}; read go"));
    exchange(pair);
    send_all(fd, b"early ");
    close(fd).unwrap();
    send_line(program.1);
    assert_eq!(recv_exact(pair.server, 10), b"early late");
    send_all(pair.server, b"an answer\n");
    end_shell(program);
    assert_eq!(recv(pair.server, &mut [0; 8], 0), Ok(0));
}

fn program_that_lives_on_starts_another_one() {
    let pair = inheritable_pair();
    let fd = pair.client;
    let program = shell(&format!("read go; env printf by-another >&{fd}; read go"));
    exchange(pair);
    send_line(program.1);
    assert_eq!(recv_exact(pair.server, 10), b"by-another");
    exchange(pair);
    end_shell(program);
    check_memory_is_used(pair);
}

fn killed_program_holds_nothing() {
    let pair = inheritable_pair();
    let (process, into, output) = shell("read go");
    check_it_is_held(pair);
    process.kill();
    for fd in [into, output] {
        close(fd).unwrap();
    }
    check_memory_is_used(pair);
}

fn many_sockets_are_held_and_are_free_again() {
    let pairs: Vec<Pair> = (0..20).map(|_| inheritable_pair()).collect();
    let program = shell("read go");
    for pair in &pairs {
        exchange(*pair);
        assert_ne!(state(pair.client), Some(JOINED), "a program holds the socket");
    }
    end_shell(program);
    for pair in &pairs {
        check_memory_is_used(*pair);
    }
}
