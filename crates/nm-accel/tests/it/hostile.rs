//! A peer that means harm: a program without the library that speaks the meeting's protocol, brings
//! nonsense, or joins in earnest and then scribbles over the shared memory. Only its own bytes may
//! suffer. Each body lives in a network namespace of its own, so that the only meeting is the one
//! under attack.

use std::hash::{DefaultHasher, Hasher as _};
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::process::Child;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use libc::{MSG_DONTWAIT, MSG_NOSIGNAL, POLLIN, POLLOUT};
use nm_ring::EndpointRole;
use nm_ring::conduit::{CONDUIT_BYTES, ConduitMapping, WATCHES_DOORBELL};
use nm_sys::clock::{Deadline, Moment};

use crate::calls::*;
use crate::harness::{Body, Side, another, c_string, note, state};
use crate::spaces::own_network;
use crate::support::*;

accelerated_only![
    garbage_at_the_meeting,
    wrong_version_at_the_meeting,
    wrong_size_at_the_meeting,
    no_memory_at_the_meeting,
    unsealed_memory_at_the_meeting,
    short_memory_at_the_meeting,
    file_in_place_of_memory_at_the_meeting,
    gone_at_once_from_the_meeting,
    silent_at_the_meeting,
    another_user_at_the_meeting,
    scribbling_while_we_receive,
    scribbling_while_we_send,
    scribbling_while_we_wait,
    scribbling_over_the_control_words,
    squatter_that_never_answers,
    squatter_of_another_user,
    squatter_that_scribbles_while_we_receive,
    squatter_that_scribbles_while_we_send,
];

/// Program of the peer.
pub(crate) const PEERS: &[Body] =
    &[(concat!(module_path!(), "::attack"), attack), (concat!(module_path!(), "::squat"), squat)];

const MANNER: &str = "NEARMETAL_TEST_MANNER";
const PORT: &str = "NEARMETAL_TEST_PORT";
/// The version that the meeting speaks; see `meet.rs`.
const VERSION: u32 = 1;
/// Bytes and answers before the attack, so that the accelerated end has opened the meeting.
const ROUNDS: usize = 20;

/// A connection to a peer that attacks by `manner`, after the first messages.
#[track_caller]
fn attacked(manner: &str) -> (Fd, Child) {
    if manner.starts_with("squatter") {
        return squatted(manner);
    }
    let (listening, address) = listener(Family::V4);
    let mut peer = another(concat!(module_path!(), "::attack"), Side::Kernel);
    peer.env(MANNER, manner).env(PORT, address.port().to_string());
    let peer = peer.spawn().unwrap();
    let fd = accept(listening).unwrap();
    for _ in 0..ROUNDS {
        assert_eq!(recv_exact(fd, 1), b"p");
        send_all(fd, b"q");
    }
    (fd, peer)
}

/// A connection to a server that sits on the meeting's name.
#[track_caller]
fn squatted(manner: &str) -> (Fd, Child) {
    let (listening, address) = listener(Family::V4);
    let mut peer = another(concat!(module_path!(), "::squat"), Side::Kernel);
    peer.env(MANNER, manner).env(PORT, listening.to_string());
    // Only this descriptor of the body outlives the exec.
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

/// The connection goes on until the kernel has it for good, and nothing is lost.
#[track_caller]
fn check_goes_back(manner: &str) {
    own_network();
    let (fd, mut peer) = attacked(manner);
    let deadline = Deadline::after(SOON);
    let mut round = 0;
    while state(fd) != Some(KERNEL) {
        assert!(!deadline.passed(), "still {:?} after {round} rounds", state(fd));
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
    assert!(peer.wait().unwrap().success(), "the squatter was not asked for");
    check_others();
}

fn squatter_that_never_answers() {
    check_goes_back("squatter silent");
}

fn squatter_of_another_user() {
    // SAFETY: a question.
    let user = unsafe { libc::geteuid() };
    assert_eq!(user, 0, "this test must run as root: its peer becomes another user");
    check_goes_back("squatter of another user");
}

fn squatter_that_scribbles_while_we_receive() {
    check_survives("squatter scribble", receive_somehow);
}

fn squatter_that_scribbles_while_we_send() {
    check_survives("squatter scribble control", |fd, _| {
        // SAFETY: the peer may die at any time; that must not end this process.
        unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
        send_somehow(fd, 1);
        receive_somehow(fd, 1);
    });
}

/// The peer came with nonsense: the connection goes on over the kernel.
#[track_caller]
fn check_goes_on(manner: &str) {
    own_network();
    let (fd, mut peer) = attacked(manner);
    for round in 0..300 {
        assert_bytes(&recv_exact(fd, 500), &pattern(round, 500));
        send_all(fd, &pattern(round, 400));
        assert_ne!(state(fd), Some(JOINED), "joined with a peer that brought nonsense");
    }
    assert_eq!(recv(fd, &mut [0], 0), Ok(0));
    assert!(peer.wait().unwrap().success(), "the attacker did not get to its meeting");
    check_others();
}

/// Other connections of the process are as they should be.
#[track_caller]
fn check_others() {
    let pair = joined_pair();
    for (from, to) in [(pair.client, pair.server), (pair.server, pair.client)] {
        send_all(from, &pattern(1, 50_000));
        assert_bytes(&recv_exact(to, 50_000), &pattern(1, 50_000));
    }
}

fn garbage_at_the_meeting() {
    check_goes_on("garbage");
}

fn wrong_version_at_the_meeting() {
    check_goes_on("wrong version");
}

fn wrong_size_at_the_meeting() {
    check_goes_on("wrong size");
}

fn no_memory_at_the_meeting() {
    check_goes_on("no memory");
}

fn unsealed_memory_at_the_meeting() {
    check_goes_on("unsealed");
}

fn short_memory_at_the_meeting() {
    check_goes_on("short");
}

fn file_in_place_of_memory_at_the_meeting() {
    check_goes_on("file");
}

fn gone_at_once_from_the_meeting() {
    check_goes_on("gone");
}

fn silent_at_the_meeting() {
    check_goes_on("silent");
}

fn another_user_at_the_meeting() {
    // SAFETY: a question.
    let user = unsafe { libc::geteuid() };
    assert_eq!(user, 0, "this test must run as root: its peer becomes another user");
    check_goes_on("another user");
}

/// Calls on joined sockets whose memory changes all the time, for a while each: a reset that the
/// peer claims ends a connection soon, and most of the harm is done before.
#[track_caller]
fn check_survives(manner: &str, call: impl Fn(Fd, u64)) {
    own_network();
    for _ in 0..8 {
        survive(manner, &call);
    }
    check_others();
}

#[track_caller]
fn survive(manner: &str, call: &impl Fn(Fd, u64)) {
    let (fd, mut peer) = attacked(manner);
    set_limit(fd, libc::SO_RCVTIMEO, 20);
    set_limit(fd, libc::SO_SNDTIMEO, 20);
    let mut joined = false;
    let start_of_all = Moment::now();
    let deadline = Deadline::after(Duration::from_millis(200));
    for turn in 0.. {
        // Data calls bring the socket to the meeting.
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

fn receive_somehow(fd: Fd, turn: u64) {
    let mut buffer = vec![0; 1 + turn as usize * 7919 % 100_000];
    let flags = [0, MSG_DONTWAIT, libc::MSG_PEEK, libc::MSG_WAITALL, libc::MSG_TRUNC];
    let _ = recv(fd, &mut buffer, flags[turn as usize % 5]);
    let mut count = 0;
    ioctl(fd, libc::FIONREAD, &mut count).unwrap();
    assert!((0..=1 << 24).contains(&count), "FIONREAD says {count}");
}

fn send_somehow(fd: Fd, turn: u64) {
    let bytes = vec![7; 1 + turn as usize * 7919 % 100_000];
    let flags = [0, MSG_DONTWAIT][turn as usize % 2];
    if let Ok(count) = send(fd, &bytes, flags | MSG_NOSIGNAL) {
        assert!(count <= bytes.len());
    }
    if let Ok(count) = writev(fd, &[&bytes[..1], &bytes]) {
        assert!(count <= bytes.len() + 1);
    }
}

fn scribbling_while_we_receive() {
    check_survives("scribble", receive_somehow);
}

fn scribbling_while_we_send() {
    check_survives("scribble", |fd, turn| {
        // SAFETY: the peer may die at any time; that must not end this process.
        unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
        send_somehow(fd, turn);
    });
}

fn scribbling_while_we_wait() {
    let set = epoll_create();
    check_survives("scribble", |fd, turn| {
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

fn scribbling_over_the_control_words() {
    check_survives("scribble control", |fd, turn| {
        // SAFETY: as above.
        unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
        receive_somehow(fd, turn);
        send_somehow(fd, turn);
        let _ = option(fd, libc::SOL_SOCKET, libc::SO_ERROR);
        if turn % 50 == 49 {
            let _ = close(dup(fd).unwrap());
        }
    });
}

/// The peer: connects, talks a little, finds the meeting and spoils it.
fn attack() {
    let manner = std::env::var(MANNER).unwrap();
    let port = std::env::var(PORT).unwrap().parse().unwrap();
    let fd = connected(&Family::V4.address(port));
    for _ in 0..ROUNDS {
        send_all(fd, b"p");
        assert_eq!(recv_exact(fd, 1), b"q");
    }
    let meeting = meeting(&manner);
    let kept = spoil(meeting, &manner);
    if manner.starts_with("scribble") {
        scribble(&kept.expect("memory that was given away"), manner == "scribble control", fd);
    }
    for round in 0..300 {
        send_all(fd, &pattern(round, 500));
        assert_bytes(&recv_exact(fd, 400), &pattern(round, 400));
    }
}

/// The peer: accepts, and sits on the name under which the client looks for an accelerated server.
fn squat() {
    let manner = std::env::var(MANNER).unwrap();
    let listening = std::env::var(PORT).unwrap().parse().unwrap();
    let (fd, client) = accept_from(listening).unwrap();
    close(listening).unwrap();
    if manner == "squatter of another user" {
        become_nobody();
    }
    let meeting = socket(libc::AF_UNIX, libc::SOCK_SEQPACKET).unwrap();
    let server = getsockname(fd).unwrap().port();
    let name = name_of_meeting(client.port(), server);
    bind(meeting, &abstract_address(&name)).unwrap();
    listen(meeting, 8).unwrap();
    for _ in 0..ROUNDS {
        send_all(fd, b"p");
        assert_eq!(recv_exact(fd, 1), b"q");
    }
    let mut visits = vec![];
    if manner.contains("scribble") {
        let visitor = accept(meeting).unwrap();
        let mapped = ConduitMapping::open(first_descriptor(visitor)).unwrap();
        mapped.opened.store(1, Relaxed);
        mapped.own(EndpointRole::Opener).set_flags(WATCHES_DOORBELL);
        scribble(&mapped, manner.ends_with("control"), fd);
    }
    nonblocking(meeting, true);
    for round in 0.. {
        visits.extend(accept(meeting).ok());
        send_all(fd, &pattern(round, 500));
        if recv(fd, &mut [0], libc::MSG_PEEK) != Ok(1) {
            break;
        }
        assert_bytes(&recv_exact(fd, 400), &pattern(round, 400));
    }
    assert_ne!(visits.len(), 0, "nobody came");
}

/// The name that the two ends of a connection over 127.0.0.1 make for their meeting; what goes into
/// it is no secret. See `meet.rs`.
fn name_of_meeting(client: u16, server: u16) -> String {
    let words = [0usize, 1].map(|seed| {
        let mut hasher = DefaultHasher::new();
        hasher.write_usize(seed);
        hasher.write_u32(0);
        for port in [client, server] {
            hasher.write(&[127, 0, 0, 1]);
            hasher.write_u16(port);
        }
        hasher.finish()
    });
    format!("nearmetal-accel/{VERSION}/{:016x}{:016x}", words[0], words[1])
}

/// The first descriptor that comes with a message.
fn first_descriptor(from: Fd) -> OwnedFd {
    let mut bytes = [0; 8];
    let mut vector = rooms_of(&mut [&mut bytes[..]]);
    let mut header = header(&mut vector);
    let mut control = [0u64; 16];
    header.msg_control = control.as_mut_ptr().cast();
    header.msg_controllen = size_of_val(&control) as _;
    // SAFETY: everything that the header names is there; the kernel lays the descriptors into the
    // control buffer, and they belong to nobody yet.
    unsafe {
        assert_eq!(libc::recvmsg(from, &raw mut header, 0), 8, "{:?}", errno());
        let message = libc::CMSG_FIRSTHDR(&raw const header);
        OwnedFd::from_raw_fd(libc::CMSG_DATA(message).cast::<Fd>().read_unaligned())
    }
}

fn become_nobody() {
    // SAFETY: numbers; this process is root, and nobody afterwards.
    let changed = unsafe { libc::setgid(65_534) == 0 && libc::setuid(65_534) == 0 };
    assert!(changed, "the peer could not become another user: {:?}", errno());
}

/// The address of an abstract unix socket.
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

/// A connection to the only meeting of this namespace.
fn meeting(manner: &str) -> Fd {
    let mut name = None;
    eventually("the accelerated end opens a meeting", || {
        let table = std::fs::read_to_string("/proc/self/net/unix").unwrap();
        let names = table.lines().filter_map(|line| line.split_once("@nearmetal-accel/"));
        name = names.map(|(_, rest)| format!("nearmetal-accel/{rest}")).next();
        name.is_some()
    });
    if manner == "another user" {
        become_nobody();
    }
    let address = abstract_address(&name.unwrap());
    let fd = socket(libc::AF_UNIX, libc::SOCK_SEQPACKET).unwrap();
    connect(fd, &address).unwrap();
    fd
}

/// What is brought to the meeting; memory that was given away in earnest comes back.
fn spoil(meeting: Fd, manner: &str) -> Option<ConduitMapping> {
    let size = CONDUIT_BYTES as u32;
    let (mapped, memory) = ConduitMapping::new().unwrap();
    let bells = [eventfd(), eventfd()];
    let bring = |words: [u32; 2], memory: Fd| bring(meeting, words, &[memory, bells[0], bells[1]]);
    match manner {
        "garbage" => drop(send(meeting, b"who goes there? a long line of nonsense", 0)),
        "wrong version" => bring([VERSION + 1, size], memory.as_raw_fd()),
        "wrong size" => bring([VERSION, size + 4096], memory.as_raw_fd()),
        "no memory" => bring_nothing(meeting, [VERSION, size]),
        "unsealed" => bring([VERSION, size], plain_memory(CONDUIT_BYTES as i64)),
        "short" => bring([VERSION, size], plain_memory(4096)),
        "file" => bring([VERSION, size], open(c"/dev/null", libc::O_RDWR).unwrap()),
        "gone" => close(meeting).unwrap(),
        // It stays open and says nothing.
        "silent" => {}
        _ => bring([VERSION, size], memory.as_raw_fd()),
    }
    Some(mapped)
}

fn plain_memory(size: i64) -> Fd {
    // SAFETY: the name is a C string, the rest are numbers.
    unsafe {
        let fd = libc::memfd_create(c"plain".as_ptr(), libc::MFD_ALLOW_SEALING);
        assert_eq!(libc::ftruncate(fd, size), 0);
        fd
    }
}

fn bring_nothing(meeting: Fd, words: [u32; 2]) {
    bring(meeting, words, &[]);
}

fn bring(meeting: Fd, words: [u32; 2], descriptors: &[Fd]) {
    let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    let mut vector = rooms_of(&mut [&mut bytes[..]]);
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
    // SAFETY: everything that the header names is there.
    let sent = unsafe { libc::sendmsg(meeting, &raw const header, MSG_NOSIGNAL) };
    note(&format!("the attacker's message: {sent}"));
}

/// Writes random words to random places, most of them where positions and states lie, until the
/// harness ends it. The other end's bytes are read away, so that it does not stand still.
fn scribble(mapped: &ConduitMapping, control: bool, fd: Fd) -> ! {
    let first = std::ptr::from_ref(&**mapped).cast::<AtomicU64>();
    // SAFETY: the region is that long, mapped for ever, and all of it is shared words.
    let words = unsafe { std::slice::from_raw_parts(first, CONDUIT_BYTES / 8) };
    // First it behaves, so that the other end takes the memory.
    mapped.own(EndpointRole::Creator).set_flags(WATCHES_DOORBELL);
    eventually("the accelerated end takes the memory", || {
        let _ = recv(fd, &mut [0; 4096], MSG_DONTWAIT);
        mapped.opened.load(Relaxed) != 0
    });
    pause_ms(50);
    let mut random = 0x2545_f491_4f6c_dd1du64 ^ u64::from(std::process::id());
    let mut next = || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random
    };
    // Both ends, and the lines before each area, lie in the first kilobytes of each half.
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
