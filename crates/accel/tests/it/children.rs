//! Programs that a program starts while its connections are open. Those that merely inherit a
//! socket cost memory only as long as they could use it, and those that use it are served.

use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use crate::calls::*;
use crate::harness::{c_string, state};
use crate::support::*;

behaviours![
    system_five_times_and_memory_after_each,
    system_before_the_ends_have_met,
    popen_costs_nothing_while_the_program_lives,
    popen_holds_until_a_program_without_the_library_has_ended,
    popen_holds_what_was_made_inheritable_later,
    background_program_costs_nothing_while_it_lives,
    background_program_holds_until_it_has_ended,
    program_that_was_started_before_the_ends_met_holds,
    posix_spawn_costs_nothing_while_the_program_lives,
    posix_spawn_holds_until_a_program_without_the_library_has_ended,
    fork_and_exec_costs_nothing_while_the_program_lives,
    fork_and_exec_holds_what_was_made_inheritable_later,
    vfork_and_exec_costs_nothing_while_the_program_lives,
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
    bytes_in_memory_are_left_to_a_program_that_lives_on,
    bytes_in_memory_outlive_a_killed_process,
    socket_is_used_by_a_program_of_a_program,
    program_that_closes_all_descriptors_costs_nothing,
    program_with_an_inherited_epoll_set_is_held_for,
    killed_program_holds_nothing,
    many_sockets_are_held_and_are_free_again,
    program_learns_of_so_many_sockets,
];

/// A connection without data yet, whose descriptors started programs inherit.
#[track_caller]
fn unused_inheritable_pair() -> Pair {
    let (listening, address) = listener(Family::V4);
    let client = socket(address.family(), libc::SOCK_STREAM).unwrap();
    connect(client, &address).unwrap();
    let server = accept4(listening, 0).unwrap();
    close(listening).unwrap();
    Pair { client, server }
}

/// A joined connection whose descriptors started programs inherit.
#[track_caller]
fn inheritable_pair() -> Pair {
    join_both_ends(unused_inheritable_pair())
}

/// The same, but the program has made the descriptors inheritable after the connection had joined.
#[track_caller]
fn pair_made_inheritable() -> Pair {
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
    check_ends_are_held(pair, &[pair.client, pair.server]);
}

/// The same for the ends that the program uses.
#[track_caller]
fn check_ends_are_held(pair: Pair, ends: &[Fd]) {
    for _ in 0..20 {
        exchange(pair);
        for fd in ends {
            assert_ne!(state(*fd), Some(JOINED), "a program holds the socket");
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

/// Starts a program by `popen`, and does `meanwhile` while it lives.
fn while_popen_runs(command: &str, meanwhile: impl FnOnce()) {
    let command = c_string(command);
    // SAFETY: C strings; the stream is closed below.
    unsafe {
        let stream = libc::popen(command.as_ptr(), c"w".as_ptr());
        assert!(!stream.is_null());
        meanwhile();
        assert_eq!(libc::pclose(stream), 0);
    }
}

fn popen_costs_nothing_while_the_program_lives() {
    let pair = inheritable_pair();
    while_popen_runs("cat >/dev/null", || check_memory_is_used(pair));
    check_memory_is_used(pair);
}

fn popen_holds_until_a_program_without_the_library_has_ended() {
    let pair = inheritable_pair();
    let [out, into] = pipe();
    fcntl(into, libc::F_SETFD, 0).unwrap();
    // The second shell runs without the library, and reports that it does. (The socket is also held
    // for a moment before the first shell has accepted the memory.)
    let command =
        format!("unset LD_PRELOAD; exec sh -c 'echo >/proc/self/fd/{into}; exec cat >/dev/null'");
    while_popen_runs(&command, || {
        assert_eq!(read(out, &mut [0; 2]), Ok(1));
        check_it_is_held(pair);
    });
    check_memory_is_used(pair);
    close(out).unwrap();
    close(into).unwrap();
}

/// What is made inheritable later cannot be handed to the program, which is held for.
fn popen_holds_what_was_made_inheritable_later() {
    let pair = pair_made_inheritable();
    while_popen_runs("cat >/dev/null", || check_it_is_held(pair));
    check_memory_is_used(pair);
}

/// A pipe whose closing ends the program `cat`, and the program's number.
fn cat() -> (Process, Fd, Fd) {
    started(&["cat"])
}

/// The same, for a program that reads its standard input until its end.
fn started(words: &[&str]) -> (Process, Fd, Fd) {
    let [out, into] = pipe();
    let (process, read_end) = posix_spawn(words, &[(out, 0)]);
    close(out).unwrap();
    (process, into, read_end)
}

fn end_program((process, into, out): (Process, Fd, Fd)) {
    close(into).unwrap();
    process.join();
    close(out).unwrap();
}

fn posix_spawn_costs_nothing_while_the_program_lives() {
    let pair = inheritable_pair();
    let programs = [cat(), cat(), cat()];
    check_memory_is_used(pair);
    programs.into_iter().for_each(end_program);
    check_memory_is_used(pair);
}

fn posix_spawn_holds_until_a_program_without_the_library_has_ended() {
    let pair = inheritable_pair();
    let program = started(&["env", "-u", "LD_PRELOAD", "cat"]);
    eventually("the program without the library runs", || program_of(program.0.0).ends_with("cat"));
    check_it_is_held(pair);
    let other = cat();
    check_it_is_held(pair);
    end_program(other);
    check_it_is_held(pair);
    end_program(program);
    check_memory_is_used(pair);
}

/// The shell ends at once, but what it has started has inherited the socket as well.
fn background_program_costs_nothing_while_it_lives() {
    let pair = inheritable_pair();
    let [out, into] = pipe();
    fcntl(out, libc::F_SETFD, 0).unwrap();
    system(&format!("cat <&{out} >/dev/null 2>&1 &"));
    close(out).unwrap();
    check_memory_is_used(pair);
    close(into).unwrap();
    check_memory_is_used(pair);
}

fn background_program_holds_until_it_has_ended() {
    let pair = pair_made_inheritable();
    let [out, into] = pipe();
    fcntl(out, libc::F_SETFD, 0).unwrap();
    system(&format!("cat <&{out} >/dev/null 2>&1 &"));
    close(out).unwrap();
    check_it_is_held(pair);
    close(into).unwrap();
    check_memory_is_used(pair);
}

/// Ends that have not met when the program is started meet once it has ended.
fn program_that_was_started_before_the_ends_met_holds() {
    let pair = unused_inheritable_pair();
    let program = cat();
    for _ in 0..100 {
        exchange(pair);
    }
    assert_ne!(state(pair.client), Some(JOINED));
    end_program(program);
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

fn fork_and_exec_costs_nothing_while_the_program_lives() {
    let pair = inheritable_pair();
    let [out, into] = pipe();
    let process = match fork() {
        0 => exec_cat(out),
        child => Process(child),
    };
    eventually("the program runs", || program_of(process.0).ends_with("cat"));
    check_memory_is_used(pair);
    close(into).unwrap();
    process.join();
    check_memory_is_used(pair);
}

fn fork_and_exec_holds_what_was_made_inheritable_later() {
    let pair = pair_made_inheritable();
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

fn vfork_and_exec_costs_nothing_while_the_program_lives() {
    let pair = inheritable_pair();
    let [out, into] = pipe();
    // SAFETY: the child only executes.
    #[allow(deprecated)]
    let process = match unsafe { libc::vfork() } {
        0 => exec_cat(out),
        child => Process(child),
    };
    check_memory_is_used(pair);
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
    check_memory_is_used(pair);
    send_all(fd, b"before ");
    send_line(program.1);
    assert_eq!(recv_exact(pair.server, 14), b"before from-it");
    // Nothing is exchanged now: the program receives as well.
    assert_ne!(state(fd), Some(JOINED), "the program uses the socket");
    send_all(pair.server, b"to it\n");
    assert_eq!(recv_exact(pair.server, 5), b"to it");
    check_ends_are_held(pair, &[fd]);
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

/// The program has not used the socket when the last descriptor of ours is closed: it finds what
/// both ends have sent before that.
fn bytes_in_memory_are_left_to_a_program_that_lives_on() {
    let pair = inheritable_pair();
    let fd = pair.client;
    let program = shell(&format!("read go; read line <&{fd}; printf %s \"$line\" >&{fd}; read go"));
    check_memory_is_used(pair);
    send_all(pair.server, b"unread by us\n");
    send_all(fd, b"from us: ");
    close(fd).unwrap();
    send_line(program.1);
    assert_eq!(recv_exact(pair.server, 21), b"from us: unread by us");
    end_shell(program);
    assert_eq!(recv(pair.server, &mut [0; 8], 0), Ok(0));
}

/// As above, but this process is killed, so that nobody returns the bytes to the kernel for it.
fn bytes_in_memory_outlive_a_killed_process() {
    let pair = inheritable_pair();
    let fd = pair.client;
    let [out, into] = pipe();
    let [ready, tell] = pipe();
    let script =
        format!("echo ready; read go; read line <&{fd}; printf %s \"$line\" >&{fd}; read go");
    let owner = spawn(|| {
        close(pair.server).unwrap();
        let (_program, output) = posix_spawn(&["sh", "-c", &script], &[(out, 0)]);
        assert_eq!(recv_exact_of_pipe(output, 6), b"ready\n");
        assert_eq!(write(tell, b"!"), Ok(1));
        recv(pair.client, &mut [0; 0], 0).unwrap();
        loop {
            std::thread::park();
        }
    });
    close(fd).unwrap();
    close(out).unwrap();
    assert_eq!(recv_exact_of_pipe(ready, 1), b"!");
    send_all(pair.server, b"unread by it\n");
    owner.kill();
    send_line(into);
    assert_eq!(recv_exact(pair.server, 12), b"unread by it");
    send_line(into);
    assert_eq!(recv(pair.server, &mut [0; 8], 0), Ok(0));
}

fn recv_exact_of_pipe(fd: Fd, count: usize) -> Vec<u8> {
    let mut bytes = vec![0; count];
    let mut done = 0;
    while done < count {
        let now = read(fd, &mut bytes[done..]).unwrap();
        assert_ne!(now, 0, "the pipe has ended");
        done += now;
    }
    bytes
}

/// A program that starts another one, which uses the socket after the first has ended.
fn socket_is_used_by_a_program_of_a_program() {
    let pair = inheritable_pair();
    let fd = pair.client;
    // A shell gives background programs an empty standard input without another one.
    let second = format!("read go; printf by-the-second >&{fd}; read go");
    let script = format!("exec 9<&0; sh -c '{second}' <&9 & exit 0");
    let [out, into] = pipe();
    let (process, output) = posix_spawn(&["sh", "-c", &script], &[(out, 0)]);
    close(out).unwrap();
    process.join();
    check_memory_is_used(pair);
    send_line(into);
    assert_eq!(recv_exact(pair.server, 13), b"by-the-second");
    check_ends_are_held(pair, &[fd]);
    send_line(into);
    close(into).unwrap();
    close(output).unwrap();
    check_memory_is_used(pair);
}

/// Flags of a descriptor are not the socket's, and closing is no use of it either.
fn program_that_closes_all_descriptors_costs_nothing() {
    let pair = inheritable_pair();
    let program =
        shell(&format!("exec {}>&- {}>&-; echo closed; read go", pair.client, pair.server));
    assert_eq!(recv_exact_of_pipe(program.2, 7), b"closed\n");
    check_memory_is_used(pair);
    end_shell(program);
    exchange(pair);
}

/// A program that waits by an epoll set which it has inherited sees what the kernel has.
fn program_with_an_inherited_epoll_set_is_held_for() {
    let pair = inheritable_pair();
    // SAFETY: plain numbers.
    let set = unsafe { libc::epoll_create1(0) };
    assert!(set >= 0);
    let program = cat();
    check_it_is_held(pair);
    end_program(program);
    check_memory_is_used(pair);
    close(set).unwrap();
}

fn killed_program_holds_nothing() {
    for pair in [inheritable_pair(), pair_made_inheritable()] {
        let (process, into, output) = shell("read go");
        exchange(pair);
        process.kill();
        for fd in [into, output] {
            close(fd).unwrap();
        }
        check_memory_is_used(pair);
    }
}

fn many_sockets_are_held_and_are_free_again() {
    let pairs: Vec<Pair> = (0..20).map(|_| pair_made_inheritable()).collect();
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

/// Both ends of 32 connections are the limit of what a program learns of; the rest is held.
fn program_learns_of_so_many_sockets() {
    let pairs: Vec<Pair> = (0..40).map(|_| inheritable_pair()).collect();
    let program = shell("read go");
    // One at a time: until the program runs, all are held.
    for pair in &pairs[..32] {
        check_memory_is_used(*pair);
    }
    for pair in &pairs[32..] {
        check_it_is_held(*pair);
    }
    end_shell(program);
    for pair in &pairs {
        check_memory_is_used(*pair);
    }
}
