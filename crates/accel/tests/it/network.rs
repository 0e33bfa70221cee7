//! Connecting and accepting, peers without the library, other kinds of sockets, files and streams.

use std::ffi::{c_char, c_int};

use libc::{MSG_DONTWAIT, MSG_NOSIGNAL, POLLERR, POLLHUP, POLLIN, POLLOUT, SHUT_WR};

use crate::calls::*;
use crate::harness::{Body, Side, another, c_string};
use crate::support::*;

behaviours![
    refused_connection,
    refused_nonblocking_connection,
    connecting_without_blocking,
    connecting_twice,
    connecting_a_listener,
    accept_without_blocking,
    accept_returns_the_peer_address,
    send_before_connecting,
    receive_before_connecting,
    shutdown_before_connecting,
    data_sent_before_accept,
    client_gone_before_accept,
    many_connections_one_after_another,
    five_hundred_connections_at_once,
    port_reused_quickly,
    bound_client,
    connection_to_itself,
    unix_sockets_are_untouched,
    udp_sockets_are_untouched,
    pipes_are_untouched,
    server_without_the_library,
    client_without_the_library,
    server_without_the_library_large_data,
    peer_without_the_library_is_killed,
    sendfile_sends_a_file,
    sendfile_moves_the_files_position,
    sendfile_with_an_offset,
    sendfile_larger_than_the_buffer,
    sendfile_of_a_file_on_disk,
    sendfile_on_a_full_socket,
    splice_out_of_a_socket,
    splice_into_a_socket,
    splice_with_unread_data,
    stdio_reads_lines,
    stdio_with_unread_data,
    stdio_writes,
    stdio_both_ways,
    dprintf_writes,
    standard_input_and_output_of_inetd,
    connections_as_standard_streams,
];

/// The address of a socket that does not listen: while it is there, nobody else gets the port.
fn refused() -> Address {
    let fd = socket(libc::AF_INET, libc::SOCK_STREAM).unwrap();
    bind(fd, &Family::V4.address(0)).unwrap();
    getsockname(fd).unwrap()
}

fn refused_connection() {
    let fd = socket(libc::AF_INET, libc::SOCK_STREAM).unwrap();
    assert_eq!(connect(fd, &refused()), Err(Errno(libc::ECONNREFUSED)));
    let (listening, address) = listener(Family::V4);
    connect(fd, &address).unwrap();
    join_both_ends(Pair { client: fd, server: accept(listening).unwrap() });
}

fn refused_nonblocking_connection() {
    let fd = socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_NONBLOCK).unwrap();
    assert_eq!(connect(fd, &refused()), Err(Errno(libc::EINPROGRESS)));
    let shown = ready(fd, POLLOUT, SOON_MS);
    assert_eq!(shown & (POLLERR | POLLHUP), POLLERR | POLLHUP);
    let error = option(fd, libc::SOL_SOCKET, libc::SO_ERROR);
    assert_eq!(error, Ok(libc::ECONNREFUSED));
}

fn connecting_without_blocking() {
    let (listening, address) = listener(Family::V4);
    let client = socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_NONBLOCK).unwrap();
    assert_eq!(connect(client, &address), Err(Errno(libc::EINPROGRESS)));
    wait_for(client, POLLOUT);
    assert_eq!(option(client, libc::SOL_SOCKET, libc::SO_ERROR), Ok(0));
    let server = accept(listening).unwrap();
    let pair = join_both_ends(Pair { client, server });
    assert_eq!(recv(pair.client, &mut [0], 0), Err(AGAIN));
    assert_eq!(recv(pair.server, &mut [0], MSG_DONTWAIT), Err(AGAIN));
}

fn connecting_twice() {
    let pair = joined_pair();
    let address = getpeername(pair.client).unwrap();
    assert_eq!(connect(pair.client, &address), Err(Errno(libc::EISCONN)));
    one_byte(pair.client, pair.server);
    assert_state(pair.client, JOINED);
}

fn connecting_a_listener() {
    let (listening, address) = listener(Family::V4);
    assert_eq!(connect(listening, &address), Err(Errno(libc::EISCONN)));
    let pair = joined_pair();
    assert_eq!(listen(pair.client, 1), Err(INVAL));
    assert_eq!(accept(pair.client), Err(INVAL));
}

fn accept_without_blocking() {
    let (listening, address) = listener(Family::V4);
    nonblocking(listening, true);
    assert_eq!(accept(listening), Err(AGAIN));
    let client = connected(&address);
    wait_for(listening, POLLIN);
    join_both_ends(Pair { client, server: accept(listening).unwrap() });
    assert_eq!(accept(listening), Err(AGAIN));
}

fn accept_returns_the_peer_address() {
    let (listening, address) = listener(Family::V6);
    let client = connected(&address);
    let (server, from) = accept_from(listening).unwrap();
    assert_eq!(from.port(), getsockname(client).unwrap().port());
    assert_eq!(from.length, address.length);
    join_both_ends(Pair { client, server });
}

fn send_before_connecting() {
    let fd = socket(libc::AF_INET, libc::SOCK_STREAM).unwrap();
    assert_eq!(send(fd, b"x", MSG_NOSIGNAL), Err(PIPE));
}

fn receive_before_connecting() {
    let fd = socket(libc::AF_INET, libc::SOCK_STREAM).unwrap();
    assert_eq!(recv(fd, &mut [0], 0), Err(NOTCONN));
    assert_eq!(getpeername(fd).map(drop), Err(NOTCONN));
}

fn shutdown_before_connecting() {
    let fd = socket(libc::AF_INET, libc::SOCK_STREAM).unwrap();
    assert_eq!(shutdown(fd, SHUT_WR), Err(NOTCONN));
}

fn data_sent_before_accept() {
    let (listening, address) = listener(Family::V4);
    let client = connected(&address);
    send_all(client, &pattern(1, 10_000));
    let server = accept(listening).unwrap();
    assert_bytes(&recv_exact(server, 10_000), &pattern(1, 10_000));
    join_both_ends(Pair { client, server });
}

fn client_gone_before_accept() {
    let (listening, address) = listener(Family::V4);
    let client = connected(&address);
    send_all(client, b"and gone");
    close(client).unwrap();
    let server = accept(listening).unwrap();
    assert_eq!(recv_to_end(server), (b"and gone".to_vec(), Ok(())));
}

fn many_connections_one_after_another() {
    let (listening, address) = listener(Family::V4);
    for round in 0..300 {
        let client = connected(&address);
        let server = accept(listening).unwrap();
        for turn in 0..round % 8 {
            send_all(client, &pattern(turn, 100));
            assert_bytes(&recv_exact(server, 100), &pattern(turn, 100));
            send_all(server, &pattern(turn, 50));
            assert_bytes(&recv_exact(client, 50), &pattern(turn, 50));
        }
        let ends = if round % 2 == 0 { [client, server] } else { [server, client] };
        close(ends[0]).unwrap();
        assert_eq!(recv(ends[1], &mut [0], 0), Ok(0));
        close(ends[1]).unwrap();
    }
}

fn five_hundred_connections_at_once() {
    let limit = libc::rlimit { rlim_cur: 4096, rlim_max: 4096 };
    // SAFETY: the limit is live for the call; a lower one that cannot be raised fails below.
    unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) };
    let pairs: Vec<Pair> = (0..250).map(|_| joined_pair()).collect();
    let more: Vec<Pair> = (0..250).map(|_| unused_pair()).collect();
    for (index, pair) in pairs.iter().chain(&more).enumerate() {
        send_all(pair.client, &pattern(index as u64, 200));
        send_all(pair.server, &pattern(!(index as u64), 200));
    }
    for (index, pair) in pairs.iter().chain(&more).enumerate() {
        assert_bytes(&recv_exact(pair.server, 200), &pattern(index as u64, 200));
        assert_bytes(&recv_exact(pair.client, 200), &pattern(!(index as u64), 200));
        close(pair.client).unwrap();
        assert_eq!(recv(pair.server, &mut [0], 0), Ok(0));
        close(pair.server).unwrap();
    }
    joined_pair();
}

fn port_reused_quickly() {
    let (listening, address) = listener(Family::V4);
    let own = socket(libc::AF_INET, libc::SOCK_STREAM).unwrap();
    bind(own, &Family::V4.address(0)).unwrap();
    let name = getsockname(own).unwrap();
    close(own).unwrap();
    // Resets leave no TIME_WAIT behind, so that the same two ports can connect again at once.
    for round in 0..20 {
        let client = socket(libc::AF_INET, libc::SOCK_STREAM).unwrap();
        set_option(client, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1).unwrap();
        bind(client, &name).unwrap();
        connect(client, &address).unwrap();
        let pair = join_both_ends(Pair { client, server: accept(listening).unwrap() });
        send_all(pair.client, &pattern(round, 100));
        assert_bytes(&recv_exact(pair.server, 100), &pattern(round, 100));
        close_with_reset(pair.client);
        assert_eq!(recv(pair.server, &mut [0], 0), Err(RESET));
        close(pair.server).unwrap();
    }
}

fn bound_client() {
    let (listening, address) = listener(Family::V4);
    let client = socket(libc::AF_INET, libc::SOCK_STREAM).unwrap();
    bind(client, &Address::v4([127, 0, 0, 2], 0)).unwrap();
    connect(client, &address).unwrap();
    let server = accept(listening).unwrap();
    let pair = join_both_ends(Pair { client, server });
    one_byte(pair.client, pair.server);
}

/// TCP lets a socket connect to itself; it then receives what it sends.
fn connection_to_itself() {
    let fd = socket(libc::AF_INET, libc::SOCK_STREAM).unwrap();
    bind(fd, &Family::V4.address(0)).unwrap();
    connect(fd, &getsockname(fd).unwrap()).unwrap();
    for round in 0..100 {
        send_all(fd, &pattern(round, 300));
        assert_bytes(&recv_exact(fd, 300), &pattern(round, 300));
    }
    shutdown(fd, SHUT_WR).unwrap();
    assert_eq!(recv(fd, &mut [0], 0), Ok(0));
}

fn unix_sockets_are_untouched() {
    let pair = socketpair(libc::AF_UNIX, libc::SOCK_STREAM).unwrap();
    for _ in 0..20 {
        send_all(pair[0], b"unix");
        assert_eq!(recv_exact(pair[1], 4), b"unix");
    }
    let packets = socketpair(libc::AF_UNIX, libc::SOCK_SEQPACKET).unwrap();
    send(packets[0], b"one", 0).unwrap();
    send(packets[0], b"two", 0).unwrap();
    assert_eq!(recv(packets[1], &mut [0; 9], 0), Ok(3));
    assert_eq!(recv(packets[1], &mut [0; 9], libc::MSG_TRUNC), Ok(3));
    assert!(crate::harness::state(pair[0]).is_none_or(|state| state <= KERNEL));
}

fn udp_sockets_are_untouched() {
    let [one, two] = [0; 2].map(|_| {
        let fd = socket(libc::AF_INET, libc::SOCK_DGRAM).unwrap();
        bind(fd, &Family::V4.address(0)).unwrap();
        fd
    });
    let name = getsockname(two).unwrap();
    connect(one, &name).unwrap();
    for round in 0..20 {
        send(one, &pattern(round, 100), 0).unwrap();
        assert_eq!(sendto(one, b"second", 0, Some(&name)), Ok(6));
        let mut buffer = [0; 200];
        assert_eq!(recv(two, &mut buffer, 0), Ok(100));
        let (count, from) = recvfrom(two, &mut buffer, 0).unwrap();
        assert_eq!((count, from.port()), (6, getsockname(one).unwrap().port()));
    }
}

fn pipes_are_untouched() {
    let [out, into] = pipe();
    let _pair = joined_pair();
    assert_eq!(writev(into, &[b"a", b"bc"]), Ok(3));
    let mut buffer = [0; 4];
    assert_eq!(readv(out, &mut [&mut buffer[..]]), Ok(3));
    assert_eq!(send(into, b"x", 0), Err(Errno(libc::ENOTSOCK)));
}

/// Bodies that other bodies start in programs of their own.
pub(crate) const PEERS: &[Body] = &[
    (concat!(module_path!(), "::accept_and_echo"), accept_and_echo),
    (concat!(module_path!(), "::connect_and_echo"), connect_and_echo),
];

/// The listener is descriptor 77.
fn accept_and_echo() {
    echo(accept(77).unwrap());
}

/// The port is in the environment.
fn connect_and_echo() {
    let port = std::env::var("NEARMETAL_TEST_PORT").unwrap().parse().unwrap();
    echo(connected(&Family::V4.address(port)));
}

fn echo(fd: Fd) {
    let mut buffer = vec![0; 50_000];
    loop {
        match recv(fd, &mut buffer, 0).unwrap() {
            0 => return,
            count => send_all(fd, &buffer[..count]),
        }
    }
}

/// A program without the library that accepts on a listener of ours.
fn plain_server() -> (std::process::Child, Fd) {
    let (listening, address) = listener(Family::V4);
    dup2(listening, 77).unwrap();
    let name = concat!(module_path!(), "::accept_and_echo");
    let program = another(name, Side::Kernel).spawn().unwrap();
    close(listening).unwrap();
    close(77).unwrap();
    (program, connected(&address))
}

#[track_caller]
fn check_echo(fd: Fd, rounds: u64) {
    for round in 0..rounds {
        send_all(fd, &pattern(round, 300));
        assert_bytes(&recv_exact(fd, 300), &pattern(round, 300));
    }
}

#[track_caller]
fn check_end(fd: Fd, mut program: std::process::Child) {
    shutdown(fd, SHUT_WR).unwrap();
    assert_eq!(recv(fd, &mut [0], 0), Ok(0));
    assert!(program.wait().unwrap().success());
}

fn server_without_the_library() {
    let (program, fd) = plain_server();
    check_echo(fd, 1000);
    assert!(crate::harness::state(fd).is_none_or(|state| state < JOINED));
    check_end(fd, program);
}

fn client_without_the_library() {
    let (listening, address) = listener(Family::V4);
    let name = concat!(module_path!(), "::connect_and_echo");
    let mut program = another(name, Side::Kernel);
    let program = program.env("NEARMETAL_TEST_PORT", address.port().to_string()).spawn().unwrap();
    let fd = accept(listening).unwrap();
    check_echo(fd, 1000);
    assert!(crate::harness::state(fd).is_none_or(|state| state < JOINED));
    check_end(fd, program);
}

fn server_without_the_library_large_data() {
    let (program, fd) = plain_server();
    let bytes = pattern(4, 4 << 20);
    std::thread::scope(|scope| {
        scope.spawn(|| send_all(fd, &bytes));
        assert_bytes(&recv_exact(fd, bytes.len()), &bytes);
    });
    check_end(fd, program);
}

fn peer_without_the_library_is_killed() {
    let (mut program, fd) = plain_server();
    check_echo(fd, 20);
    program.kill().unwrap();
    program.wait().unwrap();
    assert_eq!(recv(fd, &mut [0], 0), Ok(0));
}

/// An unnamed file that contains `bytes`; its position is at its beginning.
fn file_of(bytes: &[u8]) -> Fd {
    // SAFETY: the name is a C string.
    let fd = unsafe { libc::memfd_create(c"file".as_ptr(), 0) };
    assert!(fd >= 0);
    let mut written = 0;
    while written < bytes.len() {
        written += write(fd, &bytes[written..]).unwrap();
    }
    seek(fd, 0);
    fd
}

fn seek(fd: Fd, to: i64) {
    // SAFETY: no pointers.
    assert_eq!(unsafe { libc::lseek(fd, to, libc::SEEK_SET) }, to);
}

fn position(fd: Fd) -> i64 {
    // SAFETY: no pointers.
    unsafe { libc::lseek(fd, 0, libc::SEEK_CUR) }
}

fn sendfile_sends_a_file() {
    let pair = joined_pair();
    let bytes = pattern(1, 50_000);
    let file = file_of(&bytes);
    send_all(pair.client, b"head");
    assert_eq!(sendfile(pair.client, file, None, 50_000), Ok(50_000));
    assert_eq!(sendfile(pair.client, file, None, 50_000), Ok(0));
    send_all(pair.client, b"tail");
    assert_eq!(recv_exact(pair.server, 4), b"head");
    assert_bytes(&recv_exact(pair.server, 50_000), &bytes);
    assert_eq!(recv_exact(pair.server, 4), b"tail");
}

fn sendfile_moves_the_files_position() {
    let pair = joined_pair();
    let file = file_of(&pattern(1, 1000));
    seek(file, 100);
    assert_eq!(sendfile(pair.client, file, None, 200), Ok(200));
    assert_eq!(position(file), 300);
    assert_bytes(&recv_exact(pair.server, 200), &pattern_at(1, 100, 200));
}

fn sendfile_with_an_offset() {
    let pair = joined_pair();
    let file = file_of(&pattern(1, 1000));
    let mut offset = 700;
    assert_eq!(sendfile(pair.client, file, Some(&mut offset), 1000), Ok(300));
    assert_eq!((offset, position(file)), (1000, 0));
    assert_bytes(&recv_exact(pair.server, 300), &pattern_at(1, 700, 300));
}

fn sendfile_larger_than_the_buffer() {
    let pair = joined_pair();
    let bytes = pattern(1, 5 << 20);
    let file = file_of(&bytes);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut sent = 0;
            while sent < bytes.len() {
                sent += sendfile(pair.client, file, None, bytes.len() - sent).unwrap();
            }
        });
        assert_bytes(&recv_exact(pair.server, bytes.len()), &bytes);
    });
}

/// Whether or not its pages are in the kernel's cache.
fn sendfile_of_a_file_on_disk() {
    let pair = joined_pair();
    let bytes = pattern(1, 150_001);
    let mut file = tempfile::tempfile().unwrap();
    std::io::Write::write_all(&mut file, &bytes).unwrap();
    file.sync_all().unwrap();
    let fd = std::os::fd::AsRawFd::as_raw_fd(&file);
    for is_cached in [true, false] {
        if !is_cached {
            // SAFETY: no pointers.
            assert_eq!(unsafe { libc::posix_fadvise(fd, 0, 0, libc::POSIX_FADV_DONTNEED) }, 0);
        }
        let mut offset = 1;
        assert_eq!(sendfile(pair.client, fd, Some(&mut offset), 200_000), Ok(150_000));
        assert_bytes(&recv_exact(pair.server, 150_000), &bytes[1..]);
    }
}

fn sendfile_on_a_full_socket() {
    let pair = joined_nonblocking();
    let bytes = pattern(1, 24 << 20);
    let file = file_of(&bytes);
    let mut sent = 0;
    let refused = loop {
        match sendfile(pair.client, file, None, 1 << 20) {
            Ok(count) => sent += count,
            Err(error) => break error,
        }
    };
    assert_eq!((refused, position(file)), (AGAIN, sent as i64));
    assert_bytes(&recv_exact(pair.server, sent), &bytes[..sent]);
}

fn splice_out_of_a_socket() {
    let pair = joined_pair();
    let [out, into] = pipe();
    send_all(pair.client, b"spliced");
    wait_for(pair.server, POLLIN);
    assert_eq!(splice(pair.server, into, 100, 0), Ok(7));
    let mut buffer = [0; 9];
    assert_eq!(read(out, &mut buffer), Ok(7));
    assert_eq!(&buffer[..7], b"spliced");
    one_byte(pair.client, pair.server);
    one_byte(pair.server, pair.client);
}

fn splice_into_a_socket() {
    let pair = joined_pair();
    let [out, into] = pipe();
    send_all(pair.client, b"before ");
    write(into, b"spliced ").unwrap();
    assert_eq!(splice(out, pair.client, 100, 0), Ok(8));
    send_all(pair.client, b"after");
    assert_eq!(recv_exact(pair.server, 20), b"before spliced after");
    one_byte(pair.server, pair.client);
}

fn splice_with_unread_data() {
    let pair = joined_pair();
    let [out, into] = pipe();
    let bytes = pattern(1, 20_000);
    send_all(pair.client, &bytes);
    assert_bytes(&recv_exact(pair.server, 5_000), &bytes[..5_000]);
    let mut got = vec![];
    while got.len() < 15_000 {
        let count = splice(pair.server, into, 4_096, 0).unwrap();
        let mut buffer = vec![0; count];
        assert_eq!(read(out, &mut buffer), Ok(count));
        got.extend(buffer);
    }
    assert_bytes(&got, &bytes[5_000..]);
    assert_goes_to_kernel(pair.server);
}

/// A stream over a descriptor.
fn stream_of(fd: Fd, mode: &str) -> *mut libc::FILE {
    // SAFETY: the mode is live for the call.
    let stream = unsafe { libc::fdopen(fd, c_string(mode).as_ptr()) };
    assert!(!stream.is_null(), "{:?}", errno());
    stream
}

#[track_caller]
fn line_of(stream: *mut libc::FILE) -> String {
    let mut line = [0u8; 100];
    // SAFETY: the buffer is live for the call, the stream is open.
    let got = unsafe { libc::fgets(line.as_mut_ptr().cast::<c_char>(), 100, stream) };
    assert!(!got.is_null(), "{:?}", errno());
    let end = line.iter().position(|byte| *byte == 0).unwrap();
    String::from_utf8_lossy(&line[..end]).into_owned()
}

fn put(stream: *mut libc::FILE, text: &str) {
    // SAFETY: the text is live for the call, the stream is open.
    unsafe {
        assert!(libc::fputs(c_string(text).as_ptr(), stream) >= 0);
        assert_eq!(libc::fflush(stream), 0);
    }
}

fn stdio_reads_lines() {
    let pair = joined_pair();
    let stream = stream_of(pair.server, "r");
    send_all(pair.client, b"one\ntwo\nthr");
    assert_eq!(line_of(stream), "one\n");
    assert_eq!(line_of(stream), "two\n");
    send_all(pair.client, b"ee\n");
    assert_eq!(line_of(stream), "three\n");
    assert_goes_to_kernel(pair.server);
}

fn stdio_with_unread_data() {
    let pair = joined_pair();
    send_all(pair.client, b"skip unread\n");
    assert_eq!(recv_exact(pair.server, 5), b"skip ");
    let stream = stream_of(pair.server, "r+");
    assert_eq!(line_of(stream), "unread\n");
    send_all(pair.client, b"later\n");
    assert_eq!(line_of(stream), "later\n");
}

fn stdio_writes() {
    let pair = joined_pair();
    send_all(pair.client, b"before ");
    let stream = stream_of(dup(pair.client).unwrap(), "w");
    put(stream, "by stdio ");
    send_all(pair.client, b"after");
    assert_eq!(recv_exact(pair.server, 21), b"before by stdio after");
    // SAFETY: the stream is open and not used again.
    assert_eq!(unsafe { libc::fclose(stream) }, 0);
    close(pair.client).unwrap();
    assert_eq!(recv(pair.server, &mut [0], 0), Ok(0));
}

fn stdio_both_ways() {
    let pair = joined_pair();
    let (reads, writes) = (stream_of(pair.server, "r"), stream_of(dup(pair.server).unwrap(), "w"));
    for round in 0..50 {
        send_all(pair.client, format!("question {round}\n").as_bytes());
        let line = line_of(reads);
        put(writes, &format!("answer to {line}"));
        let wanted = format!("answer to question {round}\n");
        assert_eq!(recv_exact(pair.client, wanted.len()), wanted.as_bytes());
    }
}

unsafe extern "C" {
    fn dprintf(fd: Fd, format: *const c_char, ...) -> c_int;
}

fn dprintf_writes() {
    let pair = joined_pair();
    send_all(pair.client, b"number ");
    let number: c_int = 42;
    // SAFETY: the format takes one int.
    let count = unsafe { dprintf(pair.client, c"is %d\n".as_ptr(), number) };
    assert_eq!(count, 6);
    assert_eq!(recv_exact(pair.server, 13), b"number is 42\n");
}

/// A service that uses its standard streams, with a shell in between. A program that has closed its
/// standard streams gets their numbers for its sockets, and the C library writes to them directly.
fn connections_as_standard_streams() {
    let (listening, address) = listener(Family::V4);
    close(0).unwrap();
    close(1).unwrap();
    let client = connected(&address);
    let server = accept(listening).unwrap();
    assert_eq!((client, server), (0, 1));
    for round in 0..200 {
        send_all(client, &pattern(round, 300));
        assert_bytes(&recv_exact(server, 300), &pattern(round, 300));
        send_all(server, &pattern(round, 200));
        assert_bytes(&recv_exact(client, 200), &pattern(round, 200));
    }
    assert_state(client, KERNEL);
    assert_state(server, KERNEL);
}

fn standard_input_and_output_of_inetd() {
    let pair = joined_pair();
    let child = spawn(|| {
        close(pair.client).unwrap();
        dup2(pair.server, 0).unwrap();
        dup2(pair.server, 1).unwrap();
        close(pair.server).unwrap();
        let words = ["sh", "-c", "while read -r a; do echo \"<$a>\"; done"].map(c_string);
        let list = [words[0].as_ptr(), words[1].as_ptr(), words[2].as_ptr(), std::ptr::null()];
        // SAFETY: the strings are live for the call.
        unsafe { libc::execvp(list[0], list.as_ptr()) };
    });
    close(pair.server).unwrap();
    for word in ["one", "two", "three"] {
        send_all(pair.client, format!("{word}\n").as_bytes());
        let wanted = format!("<{word}>\n");
        assert_eq!(recv_exact(pair.client, wanted.len()), wanted.as_bytes());
    }
    shutdown(pair.client, SHUT_WR).unwrap();
    assert_eq!(recv(pair.client, &mut [0], 0), Ok(0));
    child.join();
}
