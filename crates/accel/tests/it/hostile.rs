//! A hostile peer: a program without the library that speaks the rendezvous protocol, sends invalid
//! data, or joins correctly and then overwrites the shared memory. Only its own bytes may suffer.
//! Each body runs in a network namespace of its own, so that the only rendezvous is that of the
//! connection under attack.

use std::hash::{DefaultHasher, Hasher as _};
use std::os::fd::{AsRawFd, BorrowedFd, IntoRawFd as _, OwnedFd};
use std::process::Child;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use libc::{MSG_DONTWAIT, MSG_NOSIGNAL, POLLIN, POLLOUT};
use nm_ring::EndpointRole;
use nm_ring::conduit::{CONDUIT_BYTES, ConduitMapping};
use nm_ring::pipe::PIPE_BYTES;
use nm_sys::clock::{Deadline, Moment};

use crate::calls::*;
use crate::harness::{Body, Side, another, c_string, note, state};
use crate::spaces::enter_own_network;
use crate::support::*;

accelerated_only![
    rendezvous_with_garbage,
    rendezvous_with_wrong_version,
    rendezvous_with_wrong_size,
    rendezvous_without_a_statement,
    rendezvous_with_a_statement_for_another_channel,
    rendezvous_with_a_statement_about_another_connection,
    rendezvous_with_a_file_instead_of_a_statement,
    rendezvous_from_a_socket_without_a_name,
    squatter_without_memory,
    squatter_with_unsealed_memory,
    squatter_with_short_memory,
    squatter_with_a_file_instead_of_memory,
    squatter_with_a_statement_for_another_channel,
    third_process_that_takes_the_servers_name,
    third_process_that_comes_as_the_client,
    rendezvous_peer_disconnects_at_once,
    rendezvous_peer_is_silent,
    rendezvous_with_another_user,
    overwriting_while_we_receive,
    overwriting_while_we_send,
    overwriting_while_we_wait,
    overwriting_the_control_words,
    take_back_that_never_ends,
    squatter_that_never_answers,
    squatter_of_another_user,
    squatter_that_overwrites_while_we_receive,
    squatter_that_overwrites_while_we_send,
];

/// Program of the peer.
pub(crate) const PEERS: &[Body] = &[
    (concat!(module_path!(), "::attack"), attack),
    (concat!(module_path!(), "::squat"), squat),
    (concat!(module_path!(), "::intrude"), intrude),
];

const MANNER: &str = "NEARMETAL_TEST_MANNER";
const PORT: &str = "NEARMETAL_TEST_PORT";
/// Version of the rendezvous protocol; see `rendezvous.rs`.
const VERSION: u32 = 3;
/// Messages before the attack, so that the accelerated end has opened the rendezvous.
const ROUNDS: usize = 20;

/// A connection to a peer that attacks by `attack_kind`, after the first messages.
#[track_caller]
fn attacked(attack_kind: &str) -> (Fd, Child) {
    if attack_kind.starts_with("squatter") {
        return squatted(attack_kind);
    }
    let (listening, address) = listener(Family::V4);
    let mut peer = another(concat!(module_path!(), "::attack"), Side::Kernel);
    peer.env(MANNER, attack_kind).env(PORT, address.port().to_string());
    let peer = peer.spawn().unwrap();
    let fd = accept(listening).unwrap();
    for _ in 0..ROUNDS {
        assert_eq!(recv_exact(fd, 1), b"p");
        send_all(fd, b"q");
    }
    (fd, peer)
}

/// A connection to a server that listens on the rendezvous name of an accelerated server.
#[track_caller]
fn squatted(attack_kind: &str) -> (Fd, Child) {
    let (listening, address) = listener(Family::V4);
    let mut peer = another(concat!(module_path!(), "::squat"), Side::Kernel);
    peer.env(MANNER, attack_kind).env(PORT, listening.to_string());
    // Only this descriptor of the body stays open across the exec.
    fcntl(listening, libc::F_SETFD, 0).unwrap();
    let peer = peer.spawn().unwrap();
    close(listening).unwrap();
    let fd = connected(&address);
    for _ in 0..ROUNDS {
        assert_eq!(recv_exact(fd, 1), b"p");
        send_all(fd, b"q");
    }
    (fd, peer)
}

/// Rounds until an end that gets no answer has returned to the kernel: it counts as many calls, and
/// a round has two at least.
const RETURN_ROUNDS_MAX: u64 = 1 << 16;

/// Status of a third process that was given bytes of the connection.
const HAS_BYTES: i32 = 77;

/// A process that holds no end of a connection, and knows its addresses as every process does,
/// tries to get its bytes: it gets none, and the connection does not suffer.
#[track_caller]
fn check_third_process(attack_kind: &str) {
    enter_own_network();
    let pair = unused_pair();
    let mut third = another(concat!(module_path!(), "::intrude"), Side::Kernel);
    let ports = [pair.client, pair.server].map(|fd| getsockname(fd).unwrap().port());
    third.env(MANNER, attack_kind).env(PORT, format!("{} {}", ports[0], ports[1]));
    let ready = pipe();
    fcntl(ready[1], libc::F_SETFD, 0).unwrap();
    third.env(READY, ready[1].to_string());
    let mut third = third.spawn().unwrap();
    if attack_kind == "server" {
        assert_eq!(read(ready[0], &mut [0]), Ok(1), "the third process has taken the name");
    } else {
        // The server's end begins to listen, and the third process is the first to come.
        send_all(pair.server, b"first");
        pause_ms(300);
        assert_bytes(&recv_exact(pair.client, 5), b"first");
    }
    let deadline = Deadline::after(Duration::from_millis(1500));
    for round in 0.. {
        for (from, to) in [(pair.client, pair.server), (pair.server, pair.client)] {
            send_all(from, &pattern(round, 100));
            assert_bytes(&recv_exact(to, 100), &pattern(round, 100));
        }
        if deadline.passed() || third.try_wait().unwrap().is_some() {
            break;
        }
    }
    let _ = third.kill();
    let code = third.wait().unwrap().code();
    assert_eq!(code, None, "the third process ended by itself: {HAS_BYTES} if it has bytes");
}

fn third_process_that_takes_the_servers_name() {
    check_third_process("server");
}

fn third_process_that_comes_as_the_client() {
    check_third_process("client");
}

/// Descriptor by which the third process says that it is ready.
const READY: &str = "NEARMETAL_TEST_READY";

/// The third process: meets an end in place of the other one, says all that it can say without a
/// descriptor of the connection, and looks into every memory that it gets.
fn intrude() {
    let ports = std::env::var(PORT).unwrap();
    let (client, server) = ports.split_once(' ').unwrap();
    let address =
        abstract_address(&rendezvous_name(client.parse().unwrap(), server.parse().unwrap()));
    let ready: Fd = std::env::var(READY).unwrap().parse().unwrap();
    let (mapped, memory) = ConduitMapping::<PIPE_BYTES>::new().unwrap();
    let statement = statement(unused_pair().client, CHANNEL ^ own_process());
    let (mut watched, mut kept) = (vec![mapped], vec![]);
    if std::env::var(MANNER).unwrap() == "server" {
        let rendezvous = socket(libc::AF_UNIX, libc::SOCK_SEQPACKET).unwrap();
        bind(rendezvous, &address).unwrap();
        listen(rendezvous, 8).unwrap();
        write(ready, b"r").unwrap();
        loop {
            if crate::support::ready(rendezvous, POLLIN, 1) > 0 {
                let visitor = accept(rendezvous).unwrap();
                // The client's own statement, in case that a copy will do.
                let sent = descriptors(visitor);
                watched.extend(accepted_memories(&sent));
                let copy = sent.first().map_or(statement, AsRawFd::as_raw_fd);
                offer(visitor, GREETING, &[copy, memory.as_raw_fd()]);
                kept.push(sent);
            }
            watched.iter().for_each(look_into);
        }
    }
    for visits in 0.. {
        let visit = socket(libc::AF_UNIX, libc::SOCK_SEQPACKET).unwrap();
        let name = format!("nearmetal-accel/channel/{CHANNEL:016x}");
        bind(visit, &abstract_address(&name)).unwrap();
        if connect(visit, &address).is_ok() {
            // With memory in place of the statement, and in the form of this version.
            let first = [memory.as_raw_fd(), statement][visits % 2];
            offer(visit, GREETING, &[first, memory.as_raw_fd()]);
            if crate::support::ready(visit, POLLIN, 50) > 0 {
                watched.extend(accepted_memories(&descriptors(visit)));
            }
            (0..50).for_each(|_| watched.iter().for_each(look_into));
        }
        watched.iter().for_each(look_into);
        close(visit).unwrap();
    }
}

/// Ends with [`HAS_BYTES`] if memory has bytes of the connection. Says whatever makes an end send
/// there.
fn look_into(mapped: &ConduitMapping) {
    for role in [EndpointRole::Creator, EndpointRole::Opener] {
        claim_received(mapped, role);
        if mapped.incoming(role).readable() > 0 {
            note("the third process has bytes of the connection");
            // SAFETY: this process has nothing to clean up.
            unsafe { libc::_exit(HAS_BYTES) };
        }
    }
}

/// The message of an end that does not refuse.
const GREETING: [u32; 2] = [VERSION, CONDUIT_BYTES as u32];

/// The connection continues until it has returned to the kernel, and nothing is lost.
#[track_caller]
fn check_returns_to_kernel(attack_kind: &str) {
    enter_own_network();
    let (fd, mut peer) = attacked(attack_kind);
    let mut round = 0;
    while state(fd) != Some(KERNEL) {
        assert!(round < RETURN_ROUNDS_MAX, "still {:?} after {round} rounds", state(fd));
        assert_bytes(&recv_exact(fd, 500), &pattern(round, 500));
        send_all(fd, &pattern(round, 400));
        round += 1;
    }
    for round in round..round + 300 {
        assert_bytes(&recv_exact(fd, 500), &pattern(round, 500));
        send_all(fd, &pattern(round, 400));
    }
    shutdown(fd, libc::SHUT_WR).unwrap();
    assert_eq!(recv_to_end(fd).1, Ok(()));
    assert!(peer.wait().unwrap().success(), "the squatter was not used");
    check_others();
}

fn squatter_that_never_answers() {
    check_returns_to_kernel("squatter silent");
}

fn squatter_of_another_user() {
    // SAFETY: queries a number.
    let user = unsafe { libc::geteuid() };
    assert_eq!(user, 0, "this test must run as root: its peer becomes another user");
    check_returns_to_kernel("squatter of another user");
}

fn squatter_that_overwrites_while_we_receive() {
    check_survival("squatter overwrite", receive_ignoring_errors);
}

fn squatter_that_overwrites_while_we_send() {
    check_survival("squatter overwrite control", |fd, _| {
        // SAFETY: ignoring SIGPIPE needs no handler; the peer may die at any time.
        unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
        send_ignoring_errors(fd, 1);
        receive_ignoring_errors(fd, 1);
    });
}

/// The peer sent invalid data: the connection continues over the kernel.
#[track_caller]
fn check_continues(attack_kind: &str) {
    enter_own_network();
    let (fd, mut peer) = attacked(attack_kind);
    for round in 0..300 {
        assert_bytes(&recv_exact(fd, 500), &pattern(round, 500));
        send_all(fd, &pattern(round, 400));
        assert!(state(fd) < Some(JOINED), "joined with a peer that sent invalid data");
    }
    assert_eq!(recv(fd, &mut [0], 0), Ok(0));
    assert!(peer.wait().unwrap().success(), "the attacker did not get to its rendezvous");
    check_others();
}

/// Other connections of the process work.
#[track_caller]
fn check_others() {
    let pair = joined_pair();
    for (from, to) in [(pair.client, pair.server), (pair.server, pair.client)] {
        send_all(from, &pattern(1, 50_000));
        assert_bytes(&recv_exact(to, 50_000), &pattern(1, 50_000));
    }
}

fn rendezvous_with_garbage() {
    check_continues("garbage");
}

fn rendezvous_with_wrong_version() {
    check_continues("wrong version");
}

fn rendezvous_with_wrong_size() {
    check_continues("wrong size");
}

fn rendezvous_without_a_statement() {
    check_continues("no statement");
}

fn rendezvous_with_a_statement_for_another_channel() {
    check_continues("other channel");
}

fn rendezvous_with_a_statement_about_another_connection() {
    check_continues("other connection");
}

fn rendezvous_with_a_file_instead_of_a_statement() {
    check_continues("file");
}

fn rendezvous_from_a_socket_without_a_name() {
    check_continues("no name");
}

fn squatter_without_memory() {
    check_continues("squatter: no memory");
}

fn squatter_with_unsealed_memory() {
    check_continues("squatter: unsealed");
}

fn squatter_with_short_memory() {
    check_continues("squatter: short");
}

fn squatter_with_a_file_instead_of_memory() {
    check_continues("squatter: file");
}

fn squatter_with_a_statement_for_another_channel() {
    check_continues("squatter: other channel");
}

fn rendezvous_peer_disconnects_at_once() {
    check_continues("gone");
}

fn rendezvous_peer_is_silent() {
    check_continues("silent");
}

fn rendezvous_with_another_user() {
    // SAFETY: queries a number.
    let user = unsafe { libc::geteuid() };
    assert_eq!(user, 0, "this test must run as root: its peer becomes another user");
    check_continues("another user");
}

/// Calls on joined sockets whose memory changes all the time, for a while each: a reset that the
/// peer claims ends a connection soon, and most attacks happen before.
#[track_caller]
fn check_survival(attack_kind: &str, call: impl Fn(Fd, u64)) {
    enter_own_network();
    for _ in 0..8 {
        use_attacked_sockets(attack_kind, &call);
    }
    check_others();
}

#[track_caller]
fn use_attacked_sockets(attack_kind: &str, call: &impl Fn(Fd, u64)) {
    let (fd, mut peer) = attacked(attack_kind);
    set_limit(fd, libc::SO_RCVTIMEO, 20);
    set_limit(fd, libc::SO_SNDTIMEO, 20);
    let mut joined = false;
    let start_of_all = Moment::now();
    let deadline = Deadline::after(Duration::from_millis(200));
    for turn in 0.. {
        // Data calls bring the socket to the rendezvous.
        let _ = send(fd, b"w", MSG_NOSIGNAL | MSG_DONTWAIT);
        joined |= state(fd).is_some_and(|state| state >= JOINED);
        let start = Moment::now();
        call(fd, turn);
        let took = start.elapsed();
        assert!(took < Duration::from_secs(8), "a call with a limit of 20 ms took {took:?}");
        if joined && deadline.passed() {
            break;
        }
        assert!(
            start_of_all.elapsed() < SOON,
            "the attacker never joined, so that nothing was tested"
        );
    }
    close(fd).unwrap();
    peer.kill().unwrap();
    peer.wait().unwrap();
}

fn receive_ignoring_errors(fd: Fd, turn: u64) {
    let mut buffer = vec![0; 1 + turn as usize * 7919 % 100_000];
    let flags = [0, MSG_DONTWAIT, libc::MSG_PEEK, libc::MSG_WAITALL, libc::MSG_TRUNC];
    let _ = recv(fd, &mut buffer, flags[turn as usize % 5]);
    let mut count = 0;
    ioctl(fd, libc::FIONREAD, &mut count).unwrap();
    assert!((0..=1 << 24).contains(&count), "FIONREAD returned {count}");
}

fn send_ignoring_errors(fd: Fd, turn: u64) {
    let bytes = vec![7; 1 + turn as usize * 7919 % 100_000];
    let flags = [0, MSG_DONTWAIT][turn as usize % 2];
    if let Ok(count) = send(fd, &bytes, flags | MSG_NOSIGNAL) {
        assert!(count <= bytes.len());
    }
    if let Ok(count) = writev(fd, &[&bytes[..1], &bytes]) {
        assert!(count <= bytes.len() + 1);
    }
}

fn overwriting_while_we_receive() {
    check_survival("overwrite", receive_ignoring_errors);
}

fn overwriting_while_we_send() {
    check_survival("overwrite", |fd, turn| {
        // SAFETY: ignoring SIGPIPE needs no handler; the peer may die at any time.
        unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
        send_ignoring_errors(fd, turn);
    });
}

fn overwriting_while_we_wait() {
    let set = epoll_create();
    check_survival("overwrite", |fd, turn| {
        if turn == 0 {
            epoll_ctl(set, libc::EPOLL_CTL_ADD, fd, libc::EPOLLIN as u32, 1).unwrap();
        }
        let _ = ready(fd, [POLLIN, POLLOUT, POLLIN | POLLOUT][turn as usize % 3], 5);
        let _ = epoll_wait(set, 4, 5);
        let (mut reads, mut time_us) = (Set::of(&[fd]), 2_000);
        let _ = select(Some(&mut reads), None, None, Some(&mut time_us));
        let _ = recv(fd, &mut [0; 1000], MSG_DONTWAIT);
    });
}

/// The peer claims for ever that bytes are on their way from memory to the kernel. Calls that do
/// not block wait for that a few times only: waiting each time would take longer than a body may.
fn take_back_that_never_ends() {
    enter_own_network();
    let (fd, mut peer) = attacked("take back");
    eventually("the attacker has joined", || {
        let _ = send(fd, b"w", MSG_NOSIGNAL | MSG_DONTWAIT);
        state(fd).is_some_and(|state| state >= JOINED)
    });
    for _ in 0..6_000 {
        let _ = recv(fd, &mut [0; 10], MSG_DONTWAIT);
    }
    close(fd).unwrap();
    peer.kill().unwrap();
    peer.wait().unwrap();
    check_others();
}

fn overwriting_the_control_words() {
    check_survival("overwrite control", |fd, turn| {
        // SAFETY: as above.
        unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
        receive_ignoring_errors(fd, turn);
        send_ignoring_errors(fd, turn);
        let _ = option(fd, libc::SOL_SOCKET, libc::SO_ERROR);
        if turn % 50 == 49 {
            let _ = close(dup(fd).unwrap());
        }
    });
}

/// The peer: connects, exchanges some messages, finds the rendezvous and attacks it.
fn attack() {
    let attack_kind = std::env::var(MANNER).unwrap();
    let port = std::env::var(PORT).unwrap().parse().unwrap();
    let fd = connected(&Family::V4.address(port));
    for _ in 0..ROUNDS {
        send_all(fd, b"p");
        assert_eq!(recv_exact(fd, 1), b"q");
    }
    let rendezvous = rendezvous_connection(&attack_kind);
    attack_rendezvous(rendezvous, &attack_kind, fd);
    if attack_kind == "take back" || attack_kind.starts_with("overwrite") {
        eventually("the accelerated end offers memory", || {
            let _ = recv(fd, &mut [0; 65_536], MSG_DONTWAIT);
            crate::support::ready(rendezvous, POLLIN, 0) > 0
        });
        let [_, memory] = &descriptors(rendezvous)[..] else { panic!("no memory was sent") };
        let mapped = ConduitMapping::<PIPE_BYTES>::open(memory).unwrap();
        mapped.opened.store(1, Relaxed);
        if attack_kind == "take back" {
            claim_received(&mapped, EndpointRole::Opener);
            mapped.outgoing(EndpointRole::Opener).kernel_sent.take_backs_begun.store(1, Relaxed);
            loop {
                let _ = recv(fd, &mut [0; 4096], 0);
                claim_received(&mapped, EndpointRole::Opener);
            }
        }
        let control = attack_kind == "overwrite control";
        overwrite((&mapped, EndpointRole::Opener), control, fd);
    }
    for round in 0..300 {
        send_all(fd, &pattern(round, 500));
        assert_bytes(&recv_exact(fd, 400), &pattern(round, 400));
    }
    let has_answer = attack_kind != "gone" && crate::support::ready(rendezvous, POLLIN, 0) > 0;
    assert!(!has_answer || descriptors(rendezvous).is_empty(), "memory for an invalid proof");
}

/// The peer: accepts, and listens on the name under which the client looks for an accelerated
/// server.
fn squat() {
    let attack_kind = std::env::var(MANNER).unwrap();
    let listening = std::env::var(PORT).unwrap().parse().unwrap();
    let (fd, client) = accept_from(listening).unwrap();
    close(listening).unwrap();
    if attack_kind == "squatter of another user" {
        change_to_nobody();
    }
    let rendezvous = socket(libc::AF_UNIX, libc::SOCK_SEQPACKET).unwrap();
    let server = getsockname(fd).unwrap().port();
    let name = rendezvous_name(client.port(), server);
    bind(rendezvous, &abstract_address(&name)).unwrap();
    listen(rendezvous, 8).unwrap();
    for _ in 0..ROUNDS {
        send_all(fd, b"p");
        assert_eq!(recv_exact(fd, 1), b"q");
    }
    let mut visits = vec![];
    if attack_kind.contains("overwrite") {
        let visitor = accept(rendezvous).unwrap();
        let mapped = answer_visitor(visitor, &attack_kind, fd);
        let control = attack_kind.ends_with("control");
        overwrite((&mapped, EndpointRole::Creator), control, fd);
    }
    if attack_kind.contains(": ") {
        answer_visitor(accept(rendezvous).unwrap(), &attack_kind, fd);
        for round in 0..300 {
            send_all(fd, &pattern(round, 500));
            assert_bytes(&recv_exact(fd, 400), &pattern(round, 400));
        }
        return;
    }
    nonblocking(rendezvous, true);
    for round in 0.. {
        visits.extend(accept(rendezvous).ok());
        send_all(fd, &pattern(round, 500));
        if recv(fd, &mut [0], libc::MSG_PEEK) != Ok(1) {
            break;
        }
        assert_bytes(&recv_exact(fd, 400), &pattern(round, 400));
    }
    assert_ne!(visits.len(), 0, "no client connected");
}

/// The rendezvous name of a connection over 127.0.0.1; it contains no secret. See `rendezvous.rs`.
fn rendezvous_name(client: u16, server: u16) -> String {
    let words = [0usize, 1].map(|seed| {
        let mut hasher = DefaultHasher::new();
        hasher.write_usize(seed);
        for port in [client, server] {
            hasher.write(&[127, 0, 0, 1]);
            hasher.write_u16(port);
        }
        hasher.finish()
    });
    format!("nearmetal-accel/{VERSION}/{:016x}{:016x}", words[0], words[1])
}

/// The descriptors that arrive with a message.
fn descriptors(from: Fd) -> Vec<OwnedFd> {
    // SAFETY: the descriptor is open for the whole call.
    let from = unsafe { BorrowedFd::borrow_raw(from) };
    nm_sys::unix::receive_descriptors(from, &mut [0; 8]).map(|it| it.1).unwrap_or_default()
}

/// The memories among them, each accepted.
fn accepted_memories(sent: &[OwnedFd]) -> Vec<ConduitMapping> {
    let memories = sent.iter().filter_map(|it| ConduitMapping::open(it).ok());
    memories.inspect(|mapped| mapped.opened.store(1, Relaxed)).collect()
}

/// Answers a client that has come to the rendezvous, as the attack wants it. Returns the memory
/// that was offered.
fn answer_visitor(visitor: Fd, attack_kind: &str, fd: Fd) -> ConduitMapping {
    assert_eq!(descriptors(visitor).len(), 1, "the client sends its statement");
    let (mapped, memory) = ConduitMapping::<PIPE_BYTES>::new().unwrap();
    let manner = attack_kind.split_once(": ").map_or("", |it| it.1);
    let channel = channel_of(&peer_name(visitor)) ^ u64::from(manner == "other channel");
    let statement = statement(fd, channel.rotate_left(32) ^ own_process());
    let memory = match manner {
        "unsealed" => unsealed_memory(CONDUIT_BYTES as i64),
        "short" => unsealed_memory(4096),
        "file" => open(c"/dev/null", libc::O_RDWR).unwrap(),
        _ => memory.into_raw_fd(),
    };
    let sent = if manner == "no memory" { vec![statement] } else { vec![statement, memory] };
    offer(visitor, [VERSION, CONDUIT_BYTES as u32], &sent);
    mapped
}

/// A statement as `possession.rs` describes it: an epoll set with the socket.
fn statement(fd: Fd, number: u64) -> Fd {
    let set = epoll_create();
    epoll_ctl(set, libc::EPOLL_CTL_ADD, fd, 0, number).unwrap();
    set
}

/// The inode of this process, if the kernel gives processes one.
fn own_process() -> u64 {
    // SAFETY: plain numbers; all zero is a valid value of both structures.
    unsafe {
        let process = libc::syscall(libc::SYS_pidfd_open, libc::getpid(), 0) as Fd;
        let (mut system, mut stat): (libc::statfs, libc::stat) =
            (std::mem::zeroed(), std::mem::zeroed());
        assert_eq!(libc::fstatfs(process, &raw mut system), 0);
        assert_eq!(libc::fstat(process, &raw mut stat), 0);
        if system.f_type == 0x5049_4446 { stat.st_ino } else { 0 }
    }
}

/// The name of the socket at the other end of a unix connection, without its first zero.
fn peer_name(unix: Fd) -> String {
    // SAFETY: all zero is an address; both are live and of the stated size.
    let (address, length) = unsafe {
        let mut address: libc::sockaddr_un = std::mem::zeroed();
        let mut length = size_of::<libc::sockaddr_un>() as u32;
        let place = (&raw mut address).cast();
        assert_eq!(libc::getpeername(unix, place, &raw mut length), 0);
        (address, length)
    };
    address.sun_path[1..length as usize - 2].iter().map(|byte| *byte as u8 as char).collect()
}

/// The number in the name of a client's unix socket.
fn channel_of(name: &str) -> u64 {
    let digits = name.strip_prefix("nearmetal-accel/channel/").expect("the name of a channel");
    u64::from_str_radix(digits, 16).unwrap()
}

fn change_to_nobody() {
    // SAFETY: no pointers but an empty list; this process is root, and nobody afterwards.
    let changed = unsafe { libc::setgid(65_534) == 0 && libc::setuid(65_534) == 0 };
    assert!(changed, "the peer could not become another user: {:?}", errno());
}

/// The address of an abstract Unix socket.
fn abstract_address(name: &str) -> Address {
    let name = c_string(name);
    let mut address = Address::default();
    // SAFETY: the storage is large and aligned enough; the name is shorter than a path may be.
    unsafe {
        let place = address.as_mut_ptr().cast::<libc::sockaddr_un>();
        (*place).sun_family = libc::AF_UNIX as u16;
        let path = (&raw mut (*place).sun_path).cast::<u8>();
        path.add(1).copy_from_nonoverlapping(name.as_ptr().cast(), name.count_bytes());
    }
    address.length = (3 + name.count_bytes()) as u32;
    address
}

/// Connects to the only rendezvous of this namespace.
fn rendezvous_connection(attack_kind: &str) -> Fd {
    let mut name = None;
    eventually("the accelerated end opens a rendezvous", || {
        let table = std::fs::read_to_string("/proc/self/net/unix").unwrap();
        let prefix = format!("@nearmetal-accel/{VERSION}/");
        let names = table.lines().filter_map(|line| line.split_once(&prefix));
        name = names.map(|(_, rest)| format!("nearmetal-accel/{VERSION}/{rest}")).next();
        name.is_some()
    });
    if attack_kind == "another user" {
        change_to_nobody();
    }
    let address = abstract_address(&name.unwrap());
    let fd = socket(libc::AF_UNIX, libc::SOCK_SEQPACKET).unwrap();
    if attack_kind != "no name" {
        bind(fd, &abstract_address(&format!("nearmetal-accel/channel/{CHANNEL:016x}"))).unwrap();
    }
    connect(fd, &address).unwrap();
    fd
}

/// Number of the attacker's channel.
const CHANNEL: u64 = 0x1234_5678;

/// Sends the attack's message to the rendezvous, about the connection `fd`.
fn attack_rendezvous(rendezvous: Fd, attack_kind: &str, fd: Fd) {
    let size = CONDUIT_BYTES as u32;
    let number = CHANNEL ^ own_process();
    let send_statement = |words: [u32; 2], about: Fd, number: u64| {
        offer(rendezvous, words, &[statement(about, number)]);
    };
    match attack_kind {
        "garbage" => drop(send(rendezvous, b"not a message of the rendezvous protocol", 0)),
        "wrong version" => send_statement([VERSION + 1, size], fd, number),
        "wrong size" => send_statement([VERSION, size + 4096], fd, number),
        "no statement" => offer(rendezvous, [VERSION, size], &[]),
        "other channel" => send_statement([VERSION, size], fd, number ^ 1),
        "other connection" => send_statement([VERSION, size], unused_pair().client, number),
        "file" => offer(rendezvous, [VERSION, size], &[open(c"/dev/null", libc::O_RDWR).unwrap()]),
        "gone" => close(rendezvous).unwrap(),
        // It stays open and sends nothing.
        "silent" => {}
        _ => send_statement([VERSION, size], fd, number),
    }
}

fn unsealed_memory(size: i64) -> Fd {
    // SAFETY: the name is a C string, the rest are numbers.
    unsafe {
        let fd = libc::memfd_create(c"plain".as_ptr(), libc::MFD_ALLOW_SEALING);
        assert_eq!(libc::ftruncate(fd, size), 0);
        fd
    }
}

fn offer(rendezvous: Fd, words: [u32; 2], descriptors: &[Fd]) {
    let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    let mut vector = receive_parts(&mut [&mut bytes[..]]);
    let mut header = header(&mut vector);
    let mut control = [0u64; 16];
    let length = size_of_val(descriptors) as u32;
    if length > 0 {
        header.msg_control = control.as_mut_ptr().cast();
        // SAFETY: the control buffer is larger than three descriptors need, and aligned.
        unsafe {
            header.msg_controllen = libc::CMSG_SPACE(length) as _;
            let message = libc::CMSG_FIRSTHDR(&raw const header);
            (*message).cmsg_level = libc::SOL_SOCKET;
            (*message).cmsg_type = libc::SCM_RIGHTS;
            (*message).cmsg_len = libc::CMSG_LEN(length) as _;
            let place = libc::CMSG_DATA(message).cast::<Fd>();
            place.copy_from_nonoverlapping(descriptors.as_ptr(), descriptors.len());
        }
    }
    // SAFETY: everything that the header points to is live.
    let sent = unsafe { libc::sendmsg(rendezvous, &raw const header, MSG_NOSIGNAL) };
    note(&format!("the attacker's message: {sent}"));
}

/// Claims to have received all that came through the kernel, so that the other end uses memory.
fn claim_received(mapped: &ConduitMapping, role: EndpointRole) {
    let incoming = mapped.incoming(role);
    let sent = incoming.kernel_sent.sent.load(Relaxed).max(1 + ROUNDS as u64);
    incoming.kernel_use.received.store(sent, Relaxed);
}

/// Writes random words to random offsets, most of them where positions and states are, until the
/// harness ends it. Reads the other end's bytes, so that it does not block.
fn overwrite((mapped, role): (&ConduitMapping, EndpointRole), control: bool, fd: Fd) -> ! {
    let first = std::ptr::from_ref(&**mapped).cast::<AtomicU64>();
    // SAFETY: the region is that long and never unmapped, and all of it is shared words.
    let words = unsafe { std::slice::from_raw_parts(first, CONDUIT_BYTES / 8) };
    // Correct at first, so that the other end accepts the memory.
    eventually("the accelerated end takes the memory", || {
        let _ = recv(fd, &mut [0; 4096], MSG_DONTWAIT);
        mapped.opened.load(Relaxed) != 0
    });
    for _ in 0..50 {
        claim_received(mapped, role);
        pause_ms(1);
    }
    let mut random = 0x2545_f491_4f6c_dd1du64 ^ u64::from(std::process::id());
    let mut next = || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random
    };
    // Both ends, and the lines before each area, are in the first kilobytes of each half.
    let heads = [0, words.len() / 2 - 512];
    for turn in 0u64.. {
        let place = if control || turn % 4 != 0 {
            heads[(next() % 2) as usize] + (next() % 1024) as usize
        } else {
            (next() % words.len() as u64) as usize
        };
        let value = match next() % 4 {
            0 => next(),
            1 => next() % 1_000_000,
            2 => words[place].load(Relaxed).wrapping_add(next() % 100),
            _ => [0, 1, u64::MAX, 1 << 63][(next() % 4) as usize],
        };
        words[place % words.len()].store(value, Relaxed);
        if turn % 1024 == 0 {
            let _ = recv(fd, &mut [0; 4096], MSG_DONTWAIT);
            let _ = send(fd, b"p", MSG_DONTWAIT | MSG_NOSIGNAL);
        }
    }
    unreachable!("the harness ends it");
}
