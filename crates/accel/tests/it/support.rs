//! Common parts of the bodies: joined connections, processes, patterns.

use std::ffi::{c_int, c_void};
use std::mem::zeroed;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::Duration;

use libc::{POLLIN, POLLOUT, pollfd, sigset_t};
use nm_sys::clock::Deadline;

use crate::calls::*;
use crate::harness::{accelerated, mark, pin_to, run_and_exit, state};

/// Time limit for anything that must happen.
pub(crate) const SOON: Duration = Duration::from_secs(30);
pub(crate) const SOON_MS: c_int = 30_000;
/// States that the library reports.
pub(crate) const KERNEL: i32 = 1;
pub(crate) const JOINED: i32 = 3;

/// The address family of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Family {
    V4,
    V6,
    /// A v6 socket at both ends, with v4 addresses.
    ConduitMapping,
}

impl Family {
    pub(crate) fn domain(self) -> c_int {
        if self == Family::V4 { libc::AF_INET } else { libc::AF_INET6 }
    }

    pub(crate) fn address(self, port: u16) -> Address {
        let mut host = [0; 16];
        match self {
            Family::V4 => return Address::v4([127, 0, 0, 1], port),
            Family::V6 => host[15] = 1,
            Family::ConduitMapping => host[10..].copy_from_slice(&[255, 255, 127, 0, 0, 1]),
        }
        Address::v6(host, port)
    }
}

/// The two ends of a connection.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pair {
    pub client: Fd,
    pub server: Fd,
}

/// A listening socket on a free port and its address.
#[track_caller]
pub(crate) fn listener(family: Family) -> (Fd, Address) {
    let fd = socket(family.domain(), libc::SOCK_STREAM | libc::SOCK_CLOEXEC).unwrap();
    set_option(fd, libc::SOL_SOCKET, libc::SO_REUSEADDR, 1).unwrap();
    bind(fd, &family.address(0)).unwrap();
    listen(fd, 1024).unwrap();
    (fd, getsockname(fd).unwrap())
}

/// A socket connected to `address`.
#[track_caller]
pub(crate) fn connected(address: &Address) -> Fd {
    let fd = socket(address.family(), libc::SOCK_STREAM | libc::SOCK_CLOEXEC).unwrap();
    connect(fd, address).unwrap();
    fd
}

/// A connection that has carried no data yet.
#[track_caller]
pub(crate) fn unused_pair() -> Pair {
    unused_pair_of(Family::V4)
}

#[track_caller]
pub(crate) fn unused_pair_of(family: Family) -> Pair {
    let (listening, address) = listener(family);
    let client = connected(&address);
    let server = accept4(listening, libc::SOCK_CLOEXEC).unwrap();
    close(listening).unwrap();
    Pair { client, server }
}

/// A connection in shared memory, both ends here, nothing in flight.
#[track_caller]
pub(crate) fn joined_pair() -> Pair {
    join_both_ends(unused_pair())
}

#[track_caller]
pub(crate) fn joined_pair_of(family: Family) -> Pair {
    join_both_ends(unused_pair_of(family))
}

/// A joined connection whose ends do not block.
#[track_caller]
pub(crate) fn joined_nonblocking() -> Pair {
    let pair = joined_pair();
    nonblocking(pair.client, true);
    nonblocking(pair.server, true);
    pair
}

/// Exchanges messages until both ends are in shared memory. The ends may block or not.
#[track_caller]
pub(crate) fn join_both_ends(pair: Pair) -> Pair {
    mark();
    let deadline = Deadline::after(SOON);
    let mut rounds = 0;
    while rounds < 4 || [pair.client, pair.server].map(state).iter().flatten().any(|s| *s != JOINED)
    {
        let states = [pair.client, pair.server].map(state);
        assert!(!deadline.passed(), "not joined after {rounds} rounds: {states:?}");
        one_byte(pair.client, pair.server);
        one_byte(pair.server, pair.client);
        rounds += 1;
    }
    pair
}

#[track_caller]
pub(crate) fn one_byte(from: Fd, to: Fd) {
    assert_eq!(send(from, b"w", libc::MSG_NOSIGNAL), Ok(1));
    wait_for(to, POLLIN);
    assert_eq!(recv(to, &mut [0], 0), Ok(1));
}

/// Turns Nagle's algorithm off at both ends, so that no message waits for an acknowledgement.
#[track_caller]
pub(crate) fn without_delay(pair: Pair) -> Pair {
    for fd in [pair.client, pair.server] {
        set_option(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, 1).unwrap();
    }
    pair
}

/// A joined connection without Nagle's algorithm.
#[track_caller]
pub(crate) fn joined_without_delay() -> Pair {
    without_delay(joined_pair())
}

/// Bytes in each direction, several times.
#[track_caller]
pub(crate) fn check_both_directions(pair: Pair) {
    for count in [1, 200, 20_000] {
        for (from, to) in [(pair.client, pair.server), (pair.server, pair.client)] {
            send_all(from, &pattern(count as u64, count));
            assert_bytes(&recv_exact(to, count), &pattern(count as u64, count));
        }
    }
}

/// A new pair whose server has sent and whose client has answered in so many calls.
#[track_caller]
pub(crate) fn new_pair_after(sent: usize, answered: usize) -> Pair {
    let pair = unused_pair();
    for (from, to, calls) in
        [(pair.server, pair.client, sent), (pair.client, pair.server, answered)]
    {
        (0..calls).for_each(|_| send_all(from, b"s"));
        recv_exact(to, calls);
    }
    pair
}

/// A joined connection whose kernel buffers for sending are small, so that it is soon full.
#[track_caller]
pub(crate) fn small_pair() -> Pair {
    let pair = without_delay(unused_pair());
    for fd in [pair.client, pair.server] {
        set_option(fd, libc::SOL_SOCKET, libc::SO_SNDBUF, 20_000).unwrap();
    }
    join_both_ends(pair)
}

/// The same between two processes: one calls this with `leads`, the other without.
#[track_caller]
pub(crate) fn join_with_peer(fd: Fd, leads: bool) {
    mark();
    let deadline = Deadline::after(SOON);
    let here = || u8::from(state(fd).is_none_or(|state| state == JOINED));
    for round in 0.. {
        assert!(!deadline.passed(), "not joined after {round} rounds: {:?}", state(fd));
        let mut there = [0];
        let own = [here()];
        if leads {
            send_all(fd, &own);
        }
        assert_eq!(recv(fd, &mut there, 0), Ok(1));
        if !leads {
            send_all(fd, &own);
        }
        if own == [1] && there == [1] && round >= 4 {
            break;
        }
    }
    // The leader reads everything before the other continues: a peer that dies next leaves no byte.
    if leads {
        send_all(fd, b"k");
    } else {
        assert_eq!(recv_exact(fd, 1), b"k");
    }
}

/// One end of a joined connection here; `body` gets the other in a process of its own, which ends
/// when `body` does. The child connects.
#[track_caller]
pub(crate) fn joined_with_child(body: impl FnOnce(Fd)) -> (Fd, Process) {
    let (listening, address) = listener(Family::V4);
    let child = spawn(|| {
        close(listening).unwrap();
        let fd = connected(&address);
        join_with_peer(fd, true);
        body(fd);
    });
    let fd = accept(listening).unwrap();
    close(listening).unwrap();
    join_with_peer(fd, false);
    (fd, child)
}

/// The same with the child as the end that accepts.
#[track_caller]
pub(crate) fn joined_with_serving_child(body: impl FnOnce(Fd)) -> (Fd, Process) {
    let (listening, address) = listener(Family::V4);
    let child = spawn(|| {
        let fd = accept(listening).unwrap();
        close(listening).unwrap();
        join_with_peer(fd, false);
        body(fd);
    });
    close(listening).unwrap();
    let fd = connected(&address);
    join_with_peer(fd, true);
    (fd, child)
}

/// With the library: asserts that the socket is in the state `wanted`.
#[track_caller]
pub(crate) fn assert_state(fd: Fd, wanted: i32) {
    if let Some(state) = state(fd) {
        assert_eq!(state, wanted, "state of descriptor {fd} (1 kernel, 2 candidate, 3 joined)");
    }
}

/// With the library: asserts that the socket goes to the kernel permanently.
#[track_caller]
pub(crate) fn assert_goes_to_kernel(fd: Fd) {
    if accelerated() {
        let states = || state(fd);
        eventually("the socket goes to the kernel", || states().is_none_or(|s| s <= KERNEL));
    }
}

/// A child process.
#[derive(Debug)]
pub(crate) struct Process(pub c_int);

impl Process {
    /// Waits until it succeeds.
    #[track_caller]
    pub(crate) fn join(self) {
        let status = waitpid(self.0).unwrap();
        assert!(
            libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0,
            "the child ended with wait status {status:#x}"
        );
    }

    /// Kills it, as `kill -9` does, and waits until it has ended.
    #[track_caller]
    /// Stops it, and waits until it stands still: on the way there a call that waits may still take
    /// what arrives.
    pub(crate) fn stop(&self) {
        kill(self.0, libc::SIGSTOP);
        let path = format!("/proc/{}/stat", self.0);
        let is_stopped = || {
            let stat = std::fs::read_to_string(&path).unwrap();
            stat.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with('T'))
        };
        while !is_stopped() {
            pause_ms(1);
        }
    }

    pub(crate) fn kill(self) {
        kill(self.0, libc::SIGKILL);
        let status = waitpid(self.0).unwrap();
        assert!(libc::WIFSIGNALED(status), "the child had ended by itself: {status:#x}");
    }
}

/// Runs `body` in a forked child.
pub(crate) fn spawn(body: impl FnOnce()) -> Process {
    match fork() {
        0 => run_and_exit(body),
        child => Process(child),
    }
}

// Data.

/// `count` bytes that identify their position: different for each `seed`, without a period that
/// could hide an error of buffer sizes.
pub(crate) fn pattern(seed: u64, count: usize) -> Vec<u8> {
    pattern_at(seed, 0, count)
}

/// The bytes of a pattern from `offset` on.
pub(crate) fn pattern_at(seed: u64, offset: usize, count: usize) -> Vec<u8> {
    let words = offset / 8..(offset + count).div_ceil(8);
    let mut bytes = Vec::with_capacity(words.len() * 8);
    for word in words {
        let mixed = (word as u64 ^ seed << 40).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        bytes.extend_from_slice(&(mixed ^ mixed >> 29).to_le_bytes());
    }
    bytes.drain(..offset % 8);
    bytes.truncate(count);
    bytes
}

/// What came instead of the wanted bytes: which of them, and how many.
fn shift_of(got: &[u8], wanted: &[u8], from: usize) -> String {
    let instead = &got[from..got.len().min(from + 16)];
    let Some(origin) = wanted.windows(instead.len()).position(|it| it == instead) else {
        return format!("{instead:02x?} are none of the wanted ones");
    };
    let same = got[from..].iter().zip(&wanted[origin..]).take_while(|(got, it)| got == it).count();
    let end = from + same;
    let again = got.len().min(end + 16);
    let next = wanted.windows(again - end).position(|it| it == &got[end..again]);
    format!("{same} bytes from {origin} on came, then those from {next:?} on")
}

/// Compares two byte rows and reports where they differ first.
#[track_caller]
pub(crate) fn assert_bytes(got: &[u8], wanted: &[u8]) {
    if got == wanted {
        return;
    }
    let different = got.iter().zip(wanted).position(|(got, wanted)| got != wanted);
    if let Some(from) = different {
        let shift = shift_of(got, wanted, from);
        panic!("of {} bytes those from {from} on differ: {shift}", got.len());
    }
    assert_eq!(got.len(), wanted.len(), "lengths differ");
}

/// Sends everything; waits for space if the socket does not block.
#[track_caller]
pub(crate) fn send_all(fd: Fd, bytes: &[u8]) {
    let mut sent = 0;
    while sent < bytes.len() {
        match send(fd, &bytes[sent..], libc::MSG_NOSIGNAL) {
            Ok(count) => sent += count,
            Err(AGAIN) => wait_for(fd, POLLOUT),
            Err(error) => panic!("send after {sent} of {} bytes: {error:?}", bytes.len()),
        }
    }
}

/// Receives exactly `count` bytes; waits for them if the socket does not block.
#[track_caller]
pub(crate) fn recv_exact(fd: Fd, count: usize) -> Vec<u8> {
    let mut bytes = vec![0; count];
    let mut got = 0;
    while got < count {
        match recv(fd, &mut bytes[got..], 0) {
            Ok(0) => panic!("end of stream after {got} of {count} bytes"),
            Ok(more) => got += more,
            Err(AGAIN) => wait_for(fd, POLLIN),
            Err(error) => panic!("recv after {got} of {count} bytes: {error:?}"),
        }
    }
    bytes
}

/// Receives until the end of the stream or an error: all bytes, and how it ended.
#[track_caller]
pub(crate) fn recv_to_end(fd: Fd) -> (Vec<u8>, Outcome<()>) {
    let mut bytes = vec![];
    let mut buffer = vec![0; 65_536];
    loop {
        match recv(fd, &mut buffer, 0) {
            Ok(0) => return (bytes, Ok(())),
            Ok(count) => bytes.extend_from_slice(&buffer[..count]),
            Err(AGAIN) => wait_for(fd, POLLIN),
            Err(error) => return (bytes, Err(error)),
        }
    }
}

/// Sends until there is no space left, not for one byte, and none becomes free: returns how many
/// bytes of the pattern `seed` were sent.
#[track_caller]
pub(crate) fn fill(fd: Fd, seed: u64) -> usize {
    fill_from(fd, seed, 0)
}

/// The same after `sent` bytes of the pattern: returns how many were sent altogether.
#[track_caller]
pub(crate) fn fill_from(fd: Fd, seed: u64, mut sent: usize) -> usize {
    // Where CPUs are busy, the kernel may take some time to see that the peer's end took bytes.
    let (mut chunk, mut refused) = (16_384, 0);
    while refused < 10 {
        match send(fd, &pattern_at(seed, sent, chunk), libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) {
            Ok(count) => {
                sent += count;
                refused = 0;
            }
            Err(AGAIN) if chunk > 1 => chunk = 1,
            Err(AGAIN) if ready(fd, POLLOUT, 30) == 0 => refused += 1,
            Err(AGAIN) => chunk = 16_384,
            Err(error) => panic!("send after {sent} bytes: {error:?}"),
        }
    }
    sent
}

/// The error of a call that sends a byte more than [`fill`] has sent, of which there are `sent`.
/// The kernel may find space for some bytes long after it refused others.
#[track_caller]
pub(crate) fn refused_byte(
    seed: u64,
    sent: &mut usize,
    call: impl Fn(&[u8]) -> Outcome,
) -> Outcome {
    loop {
        let result = call(&pattern_at(seed, *sent, 1));
        match result {
            Ok(count) => *sent += count,
            Err(_) => return result,
        }
    }
}

/// Waits until one of `events` is reported; errors and hang-ups count.
#[track_caller]
pub(crate) fn wait_for(fd: Fd, events: i16) {
    mark();
    let shown = ready(fd, events, SOON_MS);
    assert_ne!(shown, 0, "poll({events:#x}) shows nothing for {SOON_MS} ms");
}

/// The events that poll reports of one descriptor within a time.
#[track_caller]
pub(crate) fn ready(fd: Fd, events: i16, timeout_ms: c_int) -> i16 {
    let mut list = [pollfd { fd, events, revents: 0 }];
    loop {
        match poll(&mut list, timeout_ms) {
            Ok(_) => return list[0].revents,
            Err(INTR) => {}
            Err(error) => panic!("poll: {error:?}"),
        }
    }
}

#[track_caller]
pub(crate) fn nonblocking(fd: Fd, on: bool) {
    let flags = fcntl(fd, libc::F_GETFL, 0).unwrap();
    let flags = if on { flags | libc::O_NONBLOCK } else { flags & !libc::O_NONBLOCK };
    fcntl(fd, libc::F_SETFL, flags).unwrap();
}

/// Bytes that can be received now.
#[track_caller]
pub(crate) fn unread(fd: Fd) -> c_int {
    let mut count = -1;
    ioctl(fd, libc::FIONREAD, &mut count).unwrap();
    count
}

/// Sets one of the two time limits, in milliseconds.
#[track_caller]
pub(crate) fn set_limit(fd: Fd, option: c_int, ms: i64) {
    let limit = libc::timeval { tv_sec: ms / 1000, tv_usec: ms % 1000 * 1000 };
    set_option(fd, libc::SOL_SOCKET, option, limit).unwrap();
}

/// Makes close send a reset instead of a FIN.
#[track_caller]
pub(crate) fn close_with_reset(fd: Fd) {
    let linger = libc::linger { l_onoff: 1, l_linger: 0 };
    set_option(fd, libc::SOL_SOCKET, libc::SO_LINGER, linger).unwrap();
    close(fd).unwrap();
}

// Time and signals.

pub(crate) fn pause_ms(ms: u64) {
    std::thread::sleep(Duration::from_millis(ms));
}

/// Waits until a condition is true that must become true.
#[track_caller]
pub(crate) fn eventually(what: &str, mut true_now: impl FnMut() -> bool) {
    mark();
    let deadline = Deadline::after(SOON);
    while !true_now() {
        assert!(!deadline.passed(), "not within {SOON:?}: {what}");
        pause_ms(1);
    }
}

/// Signals that [`counted`] has handled.
pub(crate) static HANDLED: AtomicU32 = AtomicU32::new(0);

/// A handler that counts.
pub(crate) extern "C" fn counted(_signal: c_int) {
    HANDLED.fetch_add(1, SeqCst);
}

/// Installs a handler with `sigaction`.
pub(crate) fn handle(signal: c_int, handler: extern "C" fn(c_int), flags: c_int) {
    // SAFETY: all zero is an action without flags and mask; the handler is never unloaded.
    unsafe {
        let mut action: libc::sigaction = zeroed();
        action.sa_sigaction = handler as *const () as libc::sighandler_t;
        action.sa_flags = flags;
        assert_eq!(libc::sigaction(signal, &raw const action, null_mut()), 0);
    }
}

/// Sends SIGALRM every `ms` from now on; 0 ends it. Repeated, in case one arrives too early.
pub(crate) fn alarm_every(ms: i64) {
    let time = libc::timeval { tv_sec: ms / 1000, tv_usec: ms % 1000 * 1000 };
    let timer = libc::itimerval { it_interval: time, it_value: time };
    // SAFETY: the timer is live for the call.
    assert_eq!(unsafe { libc::setitimer(libc::ITIMER_REAL, &raw const timer, null_mut()) }, 0);
}

/// A set of one signal.
pub(crate) fn only(signal: c_int) -> sigset_t {
    // SAFETY: the set is live for the calls.
    unsafe {
        let mut set: sigset_t = zeroed();
        libc::sigemptyset(&raw mut set);
        if signal != 0 {
            libc::sigaddset(&raw mut set, signal);
        }
        set
    }
}

/// Blocks or unblocks a signal in this thread.
pub(crate) fn block(signal: c_int, blocked: bool) {
    let how = if blocked { libc::SIG_BLOCK } else { libc::SIG_UNBLOCK };
    let set = only(signal);
    // SAFETY: the set is live for the call.
    assert_eq!(unsafe { libc::sigprocmask(how, &raw const set, null_mut()) }, 0);
}

/// Pins this process to the first CPU that it may use.
pub(crate) fn on_one_cpu() {
    // SAFETY: the sets are live for the calls; all zero is the empty set.
    unsafe {
        let mut allowed: libc::cpu_set_t = zeroed();
        let size = size_of::<libc::cpu_set_t>();
        assert_eq!(libc::sched_getaffinity(0, size, &raw mut allowed), 0);
        let first = (0..1024).find(|cpu| libc::CPU_ISSET(*cpu, &allowed)).unwrap();
        pin_to(first).unwrap();
    }
}

// Descriptors in messages.

/// Sends `fd` and one byte over a Unix socket.
#[track_caller]
pub(crate) fn send_descriptor(over: Fd, fd: Fd) {
    assert_eq!(try_to_send_descriptor(over, fd), Ok(()));
}

/// The same, which may fail.
pub(crate) fn try_to_send_descriptor(over: Fd, fd: Fd) -> Outcome<()> {
    let mut byte = [b'd'];
    let mut vector = receive_parts(&mut [&mut byte[..]]);
    let mut header = header(&mut vector);
    let mut control = [0u64; 8];
    header.msg_control = control.as_mut_ptr().cast::<c_void>();
    // SAFETY: the control buffer is larger than one descriptor needs, and aligned.
    unsafe {
        header.msg_controllen = libc::CMSG_SPACE(4) as _;
        let message = libc::CMSG_FIRSTHDR(&raw const header);
        (*message).cmsg_level = libc::SOL_SOCKET;
        (*message).cmsg_type = libc::SCM_RIGHTS;
        (*message).cmsg_len = libc::CMSG_LEN(4) as _;
        libc::CMSG_DATA(message).cast::<c_int>().write_unaligned(fd);
        if libc::sendmsg(over, &raw const header, 0) == 1 { Ok(()) } else { Err(errno()) }
    }
}

/// Receives a descriptor.
#[track_caller]
pub(crate) fn receive_descriptor(over: Fd) -> Fd {
    let mut byte = [0];
    let mut vector = receive_parts(&mut [&mut byte[..]]);
    let mut header = header(&mut vector);
    let mut control = [0u64; 8];
    header.msg_control = control.as_mut_ptr().cast::<c_void>();
    header.msg_controllen = size_of_val(&control) as _;
    // SAFETY: the control buffer is live for the call; the message is as the kernel wrote it.
    unsafe {
        assert_eq!(libc::recvmsg(over, &raw mut header, 0), 1, "{:?}", errno());
        let message = libc::CMSG_FIRSTHDR(&raw const header);
        assert!(!message.is_null(), "no descriptor came");
        libc::CMSG_DATA(message).cast::<c_int>().read_unaligned()
    }
}

/// Starts a program by libc's own call with a pipe as its standard output: the descriptors `given`
/// get fixed numbers in it. Returns the read end.
#[track_caller]
pub(crate) fn posix_spawn(words: &[&str], given: &[(Fd, Fd)]) -> (Process, Fd) {
    let [out, into] = pipe();
    let words: Vec<_> = words.iter().map(|word| crate::harness::c_string(word)).collect();
    let mut argv: Vec<_> = words.iter().map(|word| word.as_ptr().cast_mut()).collect();
    argv.push(null_mut());
    let mut process = 0;
    // SAFETY: actions, strings and environment are live for the call.
    unsafe {
        let mut actions: libc::posix_spawn_file_actions_t = zeroed();
        assert_eq!(libc::posix_spawn_file_actions_init(&raw mut actions), 0);
        for (fd, at) in given.iter().chain(&[(into, 1)]) {
            assert_eq!(libc::posix_spawn_file_actions_adddup2(&raw mut actions, *fd, *at), 0);
        }
        let status = libc::posix_spawnp(
            &raw mut process,
            argv[0],
            &raw const actions,
            null(),
            argv.as_ptr(),
            environ,
        );
        assert_eq!(Errno(status), Errno(0));
        libc::posix_spawn_file_actions_destroy(&raw mut actions);
    }
    close(into).unwrap();
    (Process(process), out)
}

unsafe extern "C" {
    static environ: *const *mut std::ffi::c_char;
}

/// Reads a pipe until its end.
#[track_caller]
pub(crate) fn read_to_end(fd: Fd) -> Vec<u8> {
    let mut bytes = vec![];
    let mut buffer = [0; 4096];
    loop {
        match read(fd, &mut buffer).unwrap() {
            0 => return bytes,
            count => bytes.extend_from_slice(&buffer[..count]),
        }
    }
}
