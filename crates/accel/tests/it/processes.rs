//! Processes: fork in every order, programs that take over a socket, descriptors in messages.

use std::ffi::c_int;

use libc::{MSG_DONTWAIT, POLLIN, SHUT_WR};

use crate::calls::*;
use crate::harness::{self, Body, Side, another, c_string};
use crate::support::*;

behaviours![
    fork_child_writes,
    fork_child_reads,
    fork_both_write_messages_that_stay_intact,
    fork_child_exits_first,
    fork_parent_closes_first,
    fork_all_must_close_for_the_end,
    fork_before_joining,
    fork_with_unread_data,
    fork_twice_three_generations,
    fork_child_killed_leaves_the_connection,
    fork_and_nonblocking_is_shared,
    fork_from_a_thread,
    fork_server,
    workers_with_one_listener,
    child_shuts_down_for_all,
    exec_cat_reads_the_socket,
    exec_cat_with_unread_data,
    exec_after_the_peer_has_closed,
    exec_after_the_peer_has_died,
    exec_after_the_peer_has_shut_down,
    exec_after_the_peer_has_ended,
    exec_after_a_shutdown_without_space,
    exec_that_fails_after_the_peer_has_died,
    descriptor_sent_after_the_peer_has_closed,
    descriptor_sent_after_the_peer_has_died,
    exec_echo_writes_to_the_socket,
    exec_of_a_close_on_exec_socket_ends_it,
    exec_by_execve_in_the_same_process,
    posix_spawn_gives_the_socket,
    posix_spawn_without_the_socket,
    system_while_connections_are_open,
    system_uses_an_inherited_socket,
    popen_while_connections_are_open,
    vfork_and_exec,
    vfork_child_closes_everything,
    clone_that_shares_memory_closes_everything,
    std_command_while_connections_are_open,
    descriptor_sent_to_a_child,
    descriptor_sent_with_unread_data,
    descriptor_sent_before_joining,
    descriptor_sent_to_itself,
    descriptor_sent_and_closed,
    descriptor_received_by_a_program_without_the_library,
    threads_share_reader_and_writer,
    threads_write_small_messages_that_stay_intact,
    threads_read_everything_once,
    exit_flushes_nothing_twice,
];

/// Bytes go from one descriptor to the other.
#[track_caller]
fn check_direction(from: Fd, to: Fd) {
    for count in [1, 100, 30_000] {
        let bytes = pattern(count as u64, count);
        send_all(from, &bytes);
        assert_bytes(&recv_exact(to, count), &bytes);
    }
}

fn fork_child_writes() {
    let pair = joined_pair();
    let child = spawn(|| send_all(pair.client, &pattern(1, 50_000)));
    assert_bytes(&recv_exact(pair.server, 50_000), &pattern(1, 50_000));
    child.join();
    check_direction(pair.client, pair.server);
    check_direction(pair.server, pair.client);
}

fn fork_child_reads() {
    let pair = joined_pair();
    let child = spawn(|| {
        assert_bytes(&recv_exact(pair.server, 50_000), &pattern(1, 50_000));
        send_all(pair.server, b"read");
    });
    send_all(pair.client, &pattern(1, 50_000));
    assert_eq!(recv_exact(pair.client, 4), b"read");
    child.join();
    check_direction(pair.client, pair.server);
}

/// Small messages of several writers may interleave, but each stays intact.
fn fork_both_write_messages_that_stay_intact() {
    let pair = joined_pair();
    let write_all = |letter: u8| {
        for _ in 0..500 {
            assert_eq!(send(pair.client, &[letter; 20], 0), Ok(20));
        }
    };
    let children = [spawn(|| write_all(b'a')), spawn(|| write_all(b'b'))];
    check_messages_are_intact(&recv_exact(pair.server, 20_000));
    children.into_iter().for_each(Process::join);
}

/// Messages of 20 equal letters.
#[track_caller]
fn check_messages_are_intact(bytes: &[u8]) {
    for message in bytes.chunks(20) {
        assert!(message.iter().all(|byte| *byte == message[0]), "torn: {message:?}");
    }
}

fn fork_child_exits_first() {
    let pair = joined_pair();
    spawn(|| send_all(pair.client, b"child")).join();
    assert_eq!(recv_exact(pair.server, 5), b"child");
    assert_eq!(recv(pair.server, &mut [0], MSG_DONTWAIT), Err(AGAIN));
    check_direction(pair.client, pair.server);
    check_direction(pair.server, pair.client);
}

fn fork_parent_closes_first() {
    let pair = joined_pair();
    let child = spawn(|| {
        close(pair.client).unwrap();
        for _ in 0..20 {
            let bytes = recv_exact(pair.server, 1000);
            send_all(pair.server, &bytes);
        }
    });
    close(pair.server).unwrap();
    for round in 0..20 {
        send_all(pair.client, &pattern(round, 1000));
        assert_bytes(&recv_exact(pair.client, 1000), &pattern(round, 1000));
    }
    assert_eq!(recv(pair.client, &mut [0], 0), Ok(0));
    child.join();
}

fn fork_all_must_close_for_the_end() {
    let pair = joined_pair();
    let [out, into] = pipe();
    let child = spawn(|| {
        close(pair.server).unwrap();
        read(out, &mut [0]).unwrap();
        send_all(pair.client, b"last");
    });
    close(pair.client).unwrap();
    assert_eq!(ready(pair.server, POLLIN, 30), 0);
    write(into, b"x").unwrap();
    assert_eq!(recv_to_end(pair.server), (b"last".to_vec(), Ok(())));
    child.join();
}

fn fork_before_joining() {
    let pair = unused_pair();
    let child = spawn(|| {
        close(pair.client).unwrap();
        for round in 0..300 {
            assert_bytes(&recv_exact(pair.server, 100), &pattern(round, 100));
            send_all(pair.server, &pattern(round, 90));
        }
    });
    close(pair.server).unwrap();
    for round in 0..300 {
        send_all(pair.client, &pattern(round, 100));
        assert_bytes(&recv_exact(pair.client, 90), &pattern(round, 90));
    }
    child.join();
}

fn fork_with_unread_data() {
    let pair = joined_pair();
    send_all(pair.client, &pattern(5, 40_000));
    let child = spawn(|| assert_bytes(&recv_exact(pair.server, 10_000), &pattern(5, 10_000)));
    child.join();
    assert_bytes(&recv_exact(pair.server, 30_000), &pattern_at(5, 10_000, 30_000));
}

fn fork_twice_three_generations() {
    let pair = joined_pair();
    spawn(|| {
        send_all(pair.client, b"child ");
        spawn(|| send_all(pair.client, b"grandchild ")).join();
    })
    .join();
    send_all(pair.client, b"parent");
    assert_eq!(recv_exact(pair.server, 23), b"child grandchild parent");
}

fn fork_child_killed_leaves_the_connection() {
    let pair = joined_pair();
    for _ in 0..10 {
        let child = spawn(|| {
            loop {
                let _ = recv(pair.server, &mut [0; 16], MSG_DONTWAIT);
            }
        });
        pause_ms(2);
        child.kill();
    }
    check_direction(pair.client, pair.server);
    check_direction(pair.server, pair.client);
}

fn fork_and_nonblocking_is_shared() {
    let pair = joined_pair();
    spawn(|| nonblocking(pair.server, true)).join();
    assert_eq!(recv(pair.server, &mut [0], 0), Err(AGAIN));
}

fn fork_from_a_thread() {
    let pair = joined_pair();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            spawn(|| send_all(pair.client, b"from a thread's child")).join();
        });
        assert_eq!(recv_exact(pair.server, 21), b"from a thread's child");
    });
    check_direction(pair.server, pair.client);
}

fn echo_until_end(fd: Fd) {
    let mut buffer = vec![0; 30_000];
    loop {
        match recv(fd, &mut buffer, 0).unwrap() {
            0 => return,
            count => send_all(fd, &buffer[..count]),
        }
    }
}

#[track_caller]
fn check_echo(address: &Address, seed: u64) {
    let fd = connected(address);
    for round in 0..50 {
        let bytes = pattern(seed + round, 700);
        send_all(fd, &bytes);
        assert_bytes(&recv_exact(fd, 700), &bytes);
    }
    shutdown(fd, SHUT_WR).unwrap();
    assert_eq!(recv(fd, &mut [0], 0), Ok(0));
    close(fd).unwrap();
}

/// Accepts in the parent and serves in a child, as inetd and old servers do.
fn fork_server() {
    let (listening, address) = listener(Family::V4);
    let server = spawn(|| {
        for _ in 0..5 {
            let fd = accept(listening).unwrap();
            let child = spawn(|| {
                close(listening).unwrap();
                echo_until_end(fd);
            });
            close(fd).unwrap();
            child.join();
        }
    });
    for client in 0..5 {
        check_echo(&address, client * 100);
    }
    server.join();
}

fn workers_with_one_listener() {
    let (listening, address) = listener(Family::V4);
    let workers = [0; 3].map(|_| {
        spawn(|| {
            for _ in 0..3 {
                let fd = accept(listening).unwrap();
                echo_until_end(fd);
                close(fd).unwrap();
            }
        })
    });
    close(listening).unwrap();
    for client in 0..9 {
        check_echo(&address, client * 100);
    }
    workers.into_iter().for_each(Process::join);
}

fn child_shuts_down_for_all() {
    let pair = joined_pair();
    spawn(|| shutdown(pair.client, SHUT_WR).unwrap()).join();
    assert_eq!(recv(pair.server, &mut [0], 0), Ok(0));
    assert_eq!(send(pair.client, b"x", libc::MSG_NOSIGNAL), Err(PIPE));
}

/// Replaces this process by a shell that runs a script.
fn exec_shell(script: &str) -> ! {
    let words = ["sh", "-c", script].map(c_string);
    let list = [words[0].as_ptr(), words[1].as_ptr(), words[2].as_ptr(), std::ptr::null()];
    // SAFETY: the strings are live for the call.
    unsafe { libc::execvp(list[0], list.as_ptr()) };
    panic!("no shell: {:?}", errno());
}

/// Puts the socket at number 3 and runs a script in a child.
#[track_caller]
fn shell_with_socket(fd: Fd, script: &str) -> Process {
    spawn(|| {
        if fd == 3 {
            fcntl(fd, libc::F_SETFD, 0).unwrap();
        } else {
            dup2(fd, 3).unwrap();
        }
        exec_shell(script)
    })
}

fn exec_cat_reads_the_socket() {
    let pair = joined_pair();
    let [out, into] = pipe();
    let child = spawn(|| {
        dup2(into, 1).unwrap();
        close(pair.client).unwrap();
        dup2(pair.server, 200).unwrap();
        dup2(200, 0).unwrap();
        exec_shell("exec cat")
    });
    close(into).unwrap();
    close(pair.server).unwrap();
    let bytes = pattern(1, 100_000);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            send_all(pair.client, &bytes);
            shutdown(pair.client, SHUT_WR).unwrap();
        });
        assert_bytes(&read_to_end(out), &bytes);
    });
    child.join();
}

fn exec_cat_with_unread_data() {
    let pair = joined_pair();
    send_all(pair.client, b"unread line\n");
    let child = shell_with_socket(pair.server, "read -r line <&3; echo \"got $line\" >&3");
    assert_eq!(recv_exact(pair.client, 16), b"got unread line\n");
    child.join();
    check_direction(pair.client, pair.server);
    check_direction(pair.server, pair.client);
}

/// Reads everything from descriptor 3: the first 20 000 bytes of a pattern, and the end.
const COUNT: &str = "test \"$(cat <&3 | wc -c)\" = 20000";

fn exec_after_the_peer_has_closed() {
    let pair = joined_pair();
    send_all(pair.client, &pattern(4, 20_000));
    close(pair.client).unwrap();
    shell_with_socket(pair.server, COUNT).join();
    assert_eq!(recv(pair.server, &mut [0], 0), Ok(0));
}

fn exec_after_the_peer_has_ended() {
    let (fd, child) = joined_with_child(|fd| send_all(fd, &pattern(4, 20_000)));
    child.join();
    shell_with_socket(fd, COUNT).join();
    assert_eq!(recv(fd, &mut [0], 0), Ok(0));
}

fn exec_after_the_peer_has_died() {
    let (fd, child) = joined_with_child(|fd| {
        send_all(fd, &pattern(4, 20_000));
        kill(std::process::id().cast_signed(), libc::SIGKILL);
    });
    waitpid(child.0).unwrap();
    shell_with_socket(fd, COUNT).join();
    // With the library the shell has got a copy of what was in memory, because no process can send
    // it again; what went through the kernel was read once.
    let (rest, how) = recv_to_end(fd);
    assert_eq!(how, Ok(()));
    assert!(rest.is_empty() || harness::accelerated(), "the shell has read everything");
    assert_bytes(&rest, &pattern_at(4, 20_000 - rest.len(), rest.len()));
}

fn exec_after_the_peer_has_shut_down() {
    let pair = joined_pair();
    send_all(pair.client, &pattern(4, 20_000));
    shutdown(pair.client, libc::SHUT_WR).unwrap();
    shell_with_socket(pair.server, COUNT).join();
    assert_eq!(recv(pair.server, &mut [0], 0), Ok(0));
    send_all(pair.server, b"still there");
    assert_eq!(recv_exact(pair.client, 11), b"still there");
}

/// If the kernel has no space for the bytes in memory, they cannot be replayed, and the connection
/// still carries the other direction: the program must see an error, not a false end.
fn exec_after_a_shutdown_without_space() {
    let pair = joined_pair();
    set_option(pair.client, libc::SOL_SOCKET, libc::SO_SNDBUF, 5_000).unwrap();
    send_all(pair.client, &pattern(4, 20_000));
    shutdown(pair.client, libc::SHUT_WR).unwrap();
    shell_with_socket(pair.server, COUNT).join();
    assert_eq!(recv_to_end(pair.server), (vec![], Ok(())));
    send_all(pair.server, b"still there");
    assert_eq!(recv_exact(pair.client, 11), b"still there");
}

fn exec_that_fails_after_the_peer_has_died() {
    let (fd, child) = joined_with_child(|fd| {
        send_all(fd, &pattern(4, 20_000));
        kill(std::process::id().cast_signed(), libc::SIGKILL);
    });
    waitpid(child.0).unwrap();
    fcntl(fd, libc::F_SETFD, 0).unwrap();
    let list = [c"program".as_ptr(), std::ptr::null()];
    // SAFETY: the strings are live for the call.
    assert_eq!(unsafe { libc::execv(c"/nowhere/program".as_ptr(), list.as_ptr()) }, -1);
    assert_eq!(errno(), Errno(libc::ENOENT));
    assert_eq!(recv_to_end(fd), (pattern(4, 20_000), Ok(())));
}

fn descriptor_sent_after_the_peer_has_closed() {
    let (over, pair) = (relay_descriptor(), joined_pair());
    let child = spawn(|| {
        close(pair.client).unwrap();
        close(pair.server).unwrap();
        let fd = receive_descriptor(over[1]);
        assert_eq!(recv_to_end(fd), (pattern(4, 20_000), Ok(())));
    });
    send_all(pair.client, &pattern(4, 20_000));
    close(pair.client).unwrap();
    send_descriptor(over[0], pair.server);
    child.join();
}

/// The receiver may be a program without the library, which would lose the bytes.
fn descriptor_sent_after_the_peer_has_died() {
    let over = relay_descriptor();
    let (fd, child) = joined_with_child(|fd| {
        send_all(fd, &pattern(4, 20_000));
        kill(std::process::id().cast_signed(), libc::SIGKILL);
    });
    waitpid(child.0).unwrap();
    let sent = try_to_send_descriptor(over[0], fd);
    // What went through the kernel, because this end slept, can be passed on.
    let lost = harness::accelerated() && sent == Err(Errno(libc::ECONNRESET));
    assert!(lost || sent == Ok(()), "{sent:?}");
    assert_eq!(recv_to_end(fd), (pattern(4, 20_000), Ok(())));
}

fn exec_echo_writes_to_the_socket() {
    let pair = joined_pair();
    send_all(pair.client, b"before ");
    shell_with_socket(pair.client, "echo from the shell >&3").join();
    send_all(pair.client, b"after");
    assert_eq!(recv_exact(pair.server, 27), b"before from the shell\nafter");
}

fn exec_of_a_close_on_exec_socket_ends_it() {
    let (fd, child) = joined_with_child(|fd| {
        fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC).unwrap();
        send_all(fd, b"bye");
        exec_shell("sleep 0.2");
    });
    assert_eq!(recv_to_end(fd), (b"bye".to_vec(), Ok(())));
    child.join();
}

fn exec_by_execve_in_the_same_process() {
    let (fd, child) = joined_with_child(|fd| {
        fcntl(fd, libc::F_SETFD, 0).unwrap();
        dup2(fd, 9).unwrap();
        exec_shell("read -r a <&9; echo \"$a $a\" >&9");
    });
    send_all(fd, b"twice\n");
    assert_eq!(recv_exact(fd, 12), b"twice twice\n");
    assert_eq!(recv(fd, &mut [0], 0), Ok(0));
    child.join();
}

fn posix_spawn_gives_the_socket() {
    let pair = joined_pair();
    send_all(pair.client, b"line one\n");
    let given = [(pair.server, 0)];
    let (child, out) = posix_spawn(&["head", "-n", "2"], &given);
    send_all(pair.client, b"line two\n");
    assert_eq!(read_to_end(out), b"line one\nline two\n");
    child.join();
    check_direction(pair.server, pair.client);
}

fn posix_spawn_without_the_socket() {
    let pair = joined_pair();
    send_all(pair.client, b"unread");
    let (child, out) = posix_spawn(&["echo", "hello"], &[]);
    assert_eq!(read_to_end(out), b"hello\n");
    child.join();
    assert_eq!(recv_exact(pair.server, 6), b"unread");
    check_direction(pair.client, pair.server);
    assert_state(pair.client, JOINED);
}

#[track_caller]
fn system(script: &str) -> c_int {
    // SAFETY: the script is live for the call.
    unsafe { libc::system(c_string(script).as_ptr()) }
}

fn system_while_connections_are_open() {
    let pair = joined_pair();
    send_all(pair.client, b"unread");
    assert_eq!(system("true"), 0);
    assert_eq!(system("exit 3"), 3 << 8);
    assert_eq!(recv_exact(pair.server, 6), b"unread");
    check_direction(pair.client, pair.server);
    assert_state(pair.client, JOINED);
}

fn system_uses_an_inherited_socket() {
    let pair = joined_pair();
    dup2(pair.client, 8).unwrap();
    assert_eq!(system("echo hello >&8"), 0);
    assert_eq!(recv_exact(pair.server, 6), b"hello\n");
    check_direction(8, pair.server);
    check_direction(pair.server, pair.client);
}

fn popen_while_connections_are_open() {
    let pair = joined_pair();
    send_all(pair.client, b"unread");
    let mut line = [0u8; 16];
    // SAFETY: the strings and the buffer are live for the calls.
    unsafe {
        let stream = libc::popen(c"echo piped".as_ptr(), c"r".as_ptr());
        assert!(!stream.is_null());
        assert!(!libc::fgets(line.as_mut_ptr().cast(), 16, stream).is_null());
        assert_eq!(libc::pclose(stream), 0);
    }
    assert_eq!(&line[..6], b"piped\n");
    assert_eq!(recv_exact(pair.server, 6), b"unread");
    check_direction(pair.client, pair.server);
}

unsafe extern "C" {
    fn vfork() -> c_int;
}

/// What a vfork child may do: place descriptors and execute a program.
#[track_caller]
fn vfork_and_run(in_child: impl Fn(), program: &std::ffi::CStr) -> Process {
    let list = [program.as_ptr(), std::ptr::null()];
    // SAFETY: the child calls only system calls and exec, and never returns from this function.
    let child = unsafe { vfork() };
    if child == 0 {
        in_child();
        // SAFETY: the list is live; if the program is missing, nothing is left to do.
        unsafe {
            libc::execvp(list[0], list.as_ptr());
            libc::_exit(127);
        }
    }
    Process(child)
}

fn vfork_and_exec() {
    let pair = joined_pair();
    send_all(pair.client, b"unread");
    vfork_and_run(|| (), c"true").join();
    assert_eq!(recv_exact(pair.server, 6), b"unread");
    check_direction(pair.client, pair.server);
    assert_state(pair.client, JOINED);
}

/// As Python's subprocess does: the child's closing must not affect the parent's connections.
fn vfork_child_closes_everything() {
    let pair = joined_pair();
    for _ in 0..5 {
        send_all(pair.client, b"unread");
        let close_all = || {
            for fd in 3..300 {
                let _ = close(fd);
            }
        };
        vfork_and_run(close_all, c"true").join();
        assert_eq!(recv_exact(pair.server, 6), b"unread");
        check_direction(pair.client, pair.server);
        check_direction(pair.server, pair.client);
    }
    assert_state(pair.client, JOINED);
}

/// As container run-times start programs: a child on the same memory, with a stack of its own.
fn clone_that_shares_memory_closes_everything() {
    extern "C" fn close_all(_: *mut std::ffi::c_void) -> c_int {
        for fd in 3..300 {
            let _ = close(fd);
        }
        // SAFETY: ends the child alone.
        unsafe { libc::_exit(0) }
    }
    let pair = joined_pair();
    let mut stack = vec![0_u128; 1 << 14];
    for _ in 0..5 {
        send_all(pair.client, b"unread");
        let top = stack.as_mut_ptr_range().end.cast();
        let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
        // SAFETY: the stack is live until the child has ended, because the call returns then.
        let child = unsafe { libc::clone(close_all, top, flags, std::ptr::null_mut()) };
        assert!(child > 0, "{:?}", errno());
        Process(child).join();
        assert_eq!(recv_exact(pair.server, 6), b"unread");
        check_direction(pair.client, pair.server);
        check_direction(pair.server, pair.client);
    }
    assert_state(pair.client, JOINED);
}

fn std_command_while_connections_are_open() {
    let pair = joined_pair();
    let output = std::process::Command::new("echo").arg("words").output().unwrap();
    assert_eq!(output.stdout, b"words\n");
    check_direction(pair.client, pair.server);
    assert_state(pair.client, JOINED);
}

/// A unix socket pair for descriptors.
fn relay_descriptor() -> [Fd; 2] {
    socketpair(libc::AF_UNIX, libc::SOCK_STREAM).unwrap()
}

/// A child that receives a descriptor and echoes on it until the end.
fn echo_on_received(over: [Fd; 2], pair: Pair) -> Process {
    spawn(|| {
        close(pair.client).unwrap();
        close(pair.server).unwrap();
        close(over[0]).unwrap();
        echo_until_end(receive_descriptor(over[1]));
    })
}

#[track_caller]
fn check_echo_of(fd: Fd, child: Process) {
    for round in 0..50 {
        send_all(fd, &pattern(round, 500));
        assert_bytes(&recv_exact(fd, 500), &pattern(round, 500));
    }
    shutdown(fd, SHUT_WR).unwrap();
    assert_eq!(recv(fd, &mut [0], 0), Ok(0));
    child.join();
}

fn descriptor_sent_to_a_child() {
    let (over, pair) = (relay_descriptor(), joined_pair());
    let child = echo_on_received(over, pair);
    send_descriptor(over[0], pair.server);
    close(pair.server).unwrap();
    check_echo_of(pair.client, child);
}

fn descriptor_sent_with_unread_data() {
    let (over, pair) = (relay_descriptor(), joined_pair());
    let child = echo_on_received(over, pair);
    send_all(pair.client, &pattern(8, 20_000));
    send_descriptor(over[0], pair.server);
    send_all(pair.client, &pattern_at(8, 20_000, 5_000));
    close(pair.server).unwrap();
    assert_bytes(&recv_exact(pair.client, 25_000), &pattern(8, 25_000));
    check_echo_of(pair.client, child);
}

fn descriptor_sent_before_joining() {
    let (over, pair) = (relay_descriptor(), unused_pair());
    let child = echo_on_received(over, pair);
    send_descriptor(over[0], pair.server);
    close(pair.server).unwrap();
    check_echo_of(pair.client, child);
}

fn descriptor_sent_to_itself() {
    let (over, pair) = (relay_descriptor(), joined_pair());
    send_all(pair.client, b"unread");
    send_descriptor(over[0], pair.server);
    let copy = receive_descriptor(over[1]);
    assert_eq!(recv_exact(copy, 6), b"unread");
    check_direction(pair.client, copy);
    check_direction(pair.server, pair.client);
    close(pair.server).unwrap();
    check_direction(copy, pair.client);
}

/// For a while the message holds the only reference to the descriptor.
fn descriptor_sent_and_closed() {
    let (over, pair) = (relay_descriptor(), joined_pair());
    send_descriptor(over[0], pair.server);
    close(pair.server).unwrap();
    assert_eq!(ready(pair.client, POLLIN, 20), 0);
    send_all(pair.client, b"to nobody yet");
    let copy = receive_descriptor(over[1]);
    assert_eq!(recv_exact(copy, 13), b"to nobody yet");
    check_direction(copy, pair.client);
}

/// The receiving program runs without the library.
fn descriptor_received_by_a_program_without_the_library() {
    let (over, pair) = (relay_descriptor(), joined_pair());
    send_all(pair.client, &pattern(8, 20_000));
    dup2(over[1], 77).unwrap();
    let name = concat!(module_path!(), "::echo_on_77");
    let mut program = another(name, Side::Kernel).spawn().unwrap();
    send_descriptor(over[0], pair.server);
    close(pair.server).unwrap();
    assert_bytes(&recv_exact(pair.client, 20_000), &pattern(8, 20_000));
    send_all(pair.client, b"more");
    assert_eq!(recv_exact(pair.client, 4), b"more");
    shutdown(pair.client, SHUT_WR).unwrap();
    assert_eq!(recv(pair.client, &mut [0], 0), Ok(0));
    assert!(program.wait().unwrap().success());
}

fn echo_on_77() {
    echo_until_end(receive_descriptor(77));
}

/// Bodies that other bodies start.
pub(crate) const PEERS: &[Body] = &[(concat!(module_path!(), "::echo_on_77"), echo_on_77)];

fn threads_share_reader_and_writer() {
    let pair = joined_pair();
    let bytes = pattern(1, 2 << 20);
    std::thread::scope(|scope| {
        scope.spawn(|| send_all(pair.client, &bytes));
        scope.spawn(|| {
            let got = recv_exact(pair.server, bytes.len());
            send_all(pair.server, &got);
        });
        assert_bytes(&recv_exact(pair.client, bytes.len()), &bytes);
    });
}

fn threads_write_small_messages_that_stay_intact() {
    let pair = joined_pair();
    std::thread::scope(|scope| {
        for letter in b'a'..b'd' {
            scope.spawn(move || {
                for _ in 0..1000 {
                    assert_eq!(send(pair.client, &[letter; 20], 0), Ok(20));
                }
            });
        }
        check_messages_are_intact(&recv_exact(pair.server, 60_000));
    });
}

fn threads_read_everything_once() {
    let pair = joined_pair();
    let total = std::thread::scope(|scope| {
        let readers = [0; 3].map(|_| {
            scope.spawn(|| {
                let (mut count, mut buffer) = (0u64, [0; 64]);
                loop {
                    match recv(pair.server, &mut buffer, 0).unwrap() {
                        0 => return count,
                        more => count += buffer[..more].iter().map(|b| u64::from(*b)).sum::<u64>(),
                    }
                }
            })
        });
        for _ in 0..3000 {
            send_all(pair.client, &[1, 2, 3, 4, 5]);
        }
        shutdown(pair.client, SHUT_WR).unwrap();
        readers.map(|reader| reader.join().unwrap()).iter().sum::<u64>()
    });
    assert_eq!(total, 45_000);
}

/// A child that ends by `exit` runs the exit handlers; only its own sockets end.
fn exit_flushes_nothing_twice() {
    let pair = joined_pair();
    let child = fork();
    if child == 0 {
        send_all(pair.client, b"child");
        // SAFETY: the child has nothing else to do; its exit handlers are meant to run.
        #[allow(clippy::exit)]
        std::process::exit(0);
    }
    Process(child).join();
    assert_eq!(recv_exact(pair.server, 5), b"child");
    check_direction(pair.client, pair.server);
    check_direction(pair.server, pair.client);
}
