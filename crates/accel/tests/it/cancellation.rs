//! `pthread_cancel`: which calls it ends, on every kind of descriptor, and that the connection can
//! be used afterwards by the other threads.

use std::ffi::{c_int, c_void};
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering::SeqCst};

use libc::{
    MSG_DONTWAIT, epoll_event, fd_set, iovec, msghdr, pollfd, pthread_t, sigset_t, timespec,
};

use nm_ring::ledger::KernelReason;

use crate::calls::*;
use crate::joining::reasons;
use crate::support::*;
use crate::ways::IN;

behaviours![
    read_on_a_joined_socket_is_cancelled,
    vector_and_message_receives_are_cancelled,
    send_on_a_full_socket_is_cancelled,
    poll_and_ppoll_are_cancelled,
    select_and_pselect_are_cancelled,
    epoll_waits_are_cancelled,
    wait_for_a_pipe_is_cancelled,
    read_of_a_pipe_is_cancelled,
    accept_is_cancelled,
    receive_for_all_bytes_is_cancelled,
    peek_is_cancelled,
    pending_cancellation_takes_no_bytes,
    cancelled_thread_leaves_no_lock,
    thread_cancelled_while_it_exchanges_messages,
    destructor_of_a_cancelled_thread_uses_the_connection,
    udp_and_unix_receives_are_cancelled,
];

unsafe extern "C" {
    // The libc crate declares the routine as a function that cannot be unwound.
    fn pthread_create(
        thread: *mut pthread_t,
        attributes: *const libc::pthread_attr_t,
        start: extern "C-unwind" fn(*mut c_void) -> *mut c_void,
        argument: *mut c_void,
    ) -> c_int;
    fn pthread_cancel(thread: pthread_t) -> c_int;
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
}

// The calls themselves, declared so that a cancelled thread may unwind through them.
unsafe extern "C-unwind" {
    fn pthread_testcancel();
    fn recv(fd: c_int, buffer: *mut c_void, length: usize, flags: c_int) -> isize;
    fn read(fd: c_int, buffer: *mut c_void, length: usize) -> isize;
    fn readv(fd: c_int, parts: *const iovec, count: c_int) -> isize;
    fn recvfrom(
        fd: c_int,
        buffer: *mut c_void,
        length: usize,
        flags: c_int,
        name: *mut c_void,
        name_length: *mut u32,
    ) -> isize;
    fn recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> isize;
    fn send(fd: c_int, buffer: *const c_void, length: usize, flags: c_int) -> isize;
    fn write(fd: c_int, buffer: *const c_void, length: usize) -> isize;
    fn poll(list: *mut pollfd, count: libc::nfds_t, time_ms: c_int) -> c_int;
    fn ppoll(
        list: *mut pollfd,
        count: libc::nfds_t,
        time: *const timespec,
        mask: *const sigset_t,
    ) -> c_int;
    fn select(
        count: c_int,
        reads: *mut fd_set,
        writes: *mut fd_set,
        faults: *mut fd_set,
        time: *mut libc::timeval,
    ) -> c_int;
    fn pselect(
        count: c_int,
        reads: *mut fd_set,
        writes: *mut fd_set,
        faults: *mut fd_set,
        time: *const timespec,
        mask: *const sigset_t,
    ) -> c_int;
    fn epoll_wait(set: c_int, events: *mut epoll_event, most: c_int, time_ms: c_int) -> c_int;
    fn epoll_pwait(
        set: c_int,
        events: *mut epoll_event,
        most: c_int,
        time_ms: c_int,
        mask: *const sigset_t,
    ) -> c_int;
    fn accept(fd: c_int, name: *mut libc::sockaddr, length: *mut u32) -> c_int;
    fn accept4(fd: c_int, name: *mut libc::sockaddr, length: *mut u32, flags: c_int) -> c_int;
}

const PTHREAD_CANCEL_ENABLE: c_int = 0;
const PTHREAD_CANCEL_DISABLE: c_int = 1;
/// The value of a thread that was cancelled.
const CANCELED: *mut c_void = usize::MAX as *mut c_void;
/// What a call of [`Blocking`] returned, if it did.
static RETURNED: AtomicI32 = AtomicI32::new(-9);

/// A blocking call on a descriptor. It may be left at any time, so it must own nothing.
type Blocking = unsafe extern "C-unwind" fn(c_int) -> isize;

/// What a thread of these tests gets.
#[repr(C)]
struct Job {
    call: Blocking,
    fd: c_int,
}

extern "C-unwind" fn run(job: *mut c_void) -> *mut c_void {
    // SAFETY: the job outlives the thread, which its creator waits for.
    let (call, fd) = unsafe { ((*job.cast::<Job>()).call, (*job.cast::<Job>()).fd) };
    // SAFETY: the call takes any descriptor.
    let result = unsafe { call(fd) };
    RETURNED.store(result as i32, SeqCst);
    null_mut()
}

/// Starts a thread that runs a blocking call.
fn start(job: &mut Job) -> pthread_t {
    let mut thread = 0;
    let job = std::ptr::from_mut(job).cast();
    // SAFETY: thread and job are live until the thread was waited for.
    assert_eq!(unsafe { pthread_create(&raw mut thread, null(), run, job) }, 0);
    thread
}

fn cancel(thread: pthread_t) {
    // SAFETY: the thread was not waited for.
    assert_eq!(unsafe { pthread_cancel(thread) }, 0);
}

/// Waits for a thread; whether it was cancelled.
fn end_of(thread: pthread_t) -> bool {
    let mut value = null_mut();
    // SAFETY: the thread was not waited for; the value is live for the call.
    assert_eq!(unsafe { libc::pthread_join(thread, &raw mut value) }, 0);
    value == CANCELED
}

/// A thread that blocks in each of these calls is cancelled.
#[track_caller]
fn check_cancelled(fd: Fd, calls: &[Blocking]) {
    for (index, call) in calls.iter().enumerate() {
        let mut job = Job { call: *call, fd };
        let thread = start(&mut job);
        pause_ms(10);
        cancel(thread);
        assert!(end_of(thread), "call {index} returned {}", RETURNED.load(SeqCst));
    }
}

/// The connection works and returns to memory.
#[track_caller]
fn check_usable(pair: Pair) {
    check_messages(pair, 20);
    join_both_ends(pair);
}

/// As [`check_usable`], where a thread may have been cancelled in a send of the kernel's. If the
/// bytes were sent and nobody is left to count them, they look like those of a sender past the
/// library, and the connection stays on the kernel.
fn check_usable_after_a_send(pair: Pair) {
    // More than there are from one comparison with the kernel's count to the next.
    check_messages(pair, 300);
    let reasons = reasons();
    if [false, true].iter().any(|of| reasons.contains(&(KernelReason::SentPastLibrary, *of))) {
        return check_both_directions(pair);
    }
    join_both_ends(pair);
}

fn check_messages(pair: Pair, rounds: u64) {
    for round in 0..rounds {
        for (from, to) in [(pair.client, pair.server), (pair.server, pair.client)] {
            send_all(from, &pattern(round, 300));
            assert_bytes(&recv_exact(to, 300), &pattern(round, 300));
        }
    }
}

// SAFETY of these functions: the buffers are live for the calls; no other pointers.
static mut BYTES: [u8; 4096] = [0; 4096];

unsafe extern "C-unwind" fn recv_one(fd: c_int) -> isize {
    // SAFETY: the buffer is large enough and never read.
    unsafe { recv(fd, (&raw mut BYTES).cast(), 1, 0) }
}

unsafe extern "C-unwind" fn recv_all(fd: c_int) -> isize {
    // SAFETY: as above.
    unsafe { recv(fd, (&raw mut BYTES).cast(), 4096, libc::MSG_WAITALL) }
}

unsafe extern "C-unwind" fn recv_peek(fd: c_int) -> isize {
    // SAFETY: as above.
    unsafe { recv(fd, (&raw mut BYTES).cast(), 1, libc::MSG_PEEK) }
}

unsafe extern "C-unwind" fn read_one(fd: c_int) -> isize {
    // SAFETY: as above.
    unsafe { read(fd, (&raw mut BYTES).cast(), 1) }
}

unsafe extern "C-unwind" fn readv_one(fd: c_int) -> isize {
    let part = iovec { iov_base: (&raw mut BYTES).cast(), iov_len: 1 };
    // SAFETY: as above.
    unsafe { readv(fd, &raw const part, 1) }
}

unsafe extern "C-unwind" fn recvfrom_one(fd: c_int) -> isize {
    // SAFETY: as above; no name is requested.
    unsafe { recvfrom(fd, (&raw mut BYTES).cast(), 1, 0, null_mut(), null_mut()) }
}

unsafe extern "C-unwind" fn recvmsg_one(fd: c_int) -> isize {
    let mut part = iovec { iov_base: (&raw mut BYTES).cast(), iov_len: 1 };
    // SAFETY: all zero is a message without name and control data; the rest as above.
    unsafe {
        let mut message: msghdr = std::mem::zeroed();
        message.msg_iov = &raw mut part;
        message.msg_iovlen = 1;
        recvmsg(fd, &raw mut message, 0)
    }
}

unsafe extern "C-unwind" fn send_one(fd: c_int) -> isize {
    // SAFETY: the buffer is live.
    unsafe { send(fd, (&raw const BYTES).cast(), 1, libc::MSG_NOSIGNAL) }
}

unsafe extern "C-unwind" fn write_much(fd: c_int) -> isize {
    // SAFETY: the buffer is live.
    unsafe { write(fd, (&raw const BYTES).cast(), 4096) }
}

unsafe extern "C-unwind" fn poll_one(fd: c_int) -> isize {
    let mut list = pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: the list is live for the call.
    unsafe { poll(&raw mut list, 1, -1) as isize }
}

unsafe extern "C-unwind" fn ppoll_one(fd: c_int) -> isize {
    let mut list = pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: the list is live for the call.
    unsafe { ppoll(&raw mut list, 1, null(), null()) as isize }
}

unsafe extern "C-unwind" fn select_one(fd: c_int) -> isize {
    // SAFETY: all zero is the empty set, which is live for the call.
    unsafe {
        let mut set: fd_set = std::mem::zeroed();
        libc::FD_SET(fd, &raw mut set);
        select(fd + 1, &raw mut set, null_mut(), null_mut(), null_mut()) as isize
    }
}

unsafe extern "C-unwind" fn pselect_one(fd: c_int) -> isize {
    // SAFETY: as above.
    unsafe {
        let mut set: fd_set = std::mem::zeroed();
        libc::FD_SET(fd, &raw mut set);
        pselect(fd + 1, &raw mut set, null_mut(), null_mut(), null(), null()) as isize
    }
}

unsafe extern "C-unwind" fn epoll_wait_one(set: c_int) -> isize {
    let mut event = epoll_event { events: 0, u64: 0 };
    // SAFETY: the event is live for the call.
    unsafe { epoll_wait(set, &raw mut event, 1, -1) as isize }
}

unsafe extern "C-unwind" fn epoll_pwait_one(set: c_int) -> isize {
    let mut event = epoll_event { events: 0, u64: 0 };
    // SAFETY: the event is live for the call.
    unsafe { epoll_pwait(set, &raw mut event, 1, 60_000, null()) as isize }
}

unsafe extern "C-unwind" fn accept_one(fd: c_int) -> isize {
    // SAFETY: no name is requested.
    unsafe { accept(fd, null_mut(), null_mut()) as isize }
}

unsafe extern "C-unwind" fn accept4_one(fd: c_int) -> isize {
    // SAFETY: no name is requested.
    unsafe { accept4(fd, null_mut(), null_mut(), 0) as isize }
}

fn read_on_a_joined_socket_is_cancelled() {
    let pair = joined_pair();
    check_cancelled(pair.server, &[read_one, read_one]);
    check_usable(pair);
}

fn vector_and_message_receives_are_cancelled() {
    let pair = joined_pair();
    check_cancelled(pair.server, &[readv_one, recvfrom_one, recvmsg_one]);
    check_usable(pair);
}

fn send_on_a_full_socket_is_cancelled() {
    let pair = small_pair();
    let sent = fill(pair.client, 1);
    check_cancelled(pair.client, &[send_one]);
    assert_bytes(&recv_exact(pair.server, sent), &pattern(1, sent));
    assert_eq!(super::calls::recv(pair.server, &mut [0], MSG_DONTWAIT), Err(AGAIN));
    check_usable(pair);
}

fn poll_and_ppoll_are_cancelled() {
    let pair = joined_pair();
    check_cancelled(pair.server, &[poll_one, ppoll_one]);
    check_usable(pair);
}

fn select_and_pselect_are_cancelled() {
    let pair = joined_pair();
    check_cancelled(pair.server, &[select_one, pselect_one]);
    check_usable(pair);
}

fn epoll_waits_are_cancelled() {
    let pair = joined_pair();
    let set = epoll_create();
    epoll_ctl(set, libc::EPOLL_CTL_ADD, pair.server, IN, 1).unwrap();
    check_cancelled(set, &[epoll_wait_one, epoll_pwait_one]);
    send_all(pair.client, b"x");
    assert_eq!(super::calls::epoll_wait(set, 4, SOON_MS), Ok(vec![(IN, 1)]));
    recv_exact(pair.server, 1);
    check_usable(pair);
}

fn wait_for_a_pipe_is_cancelled() {
    let pair = joined_pair();
    let [out, _into] = pipe();
    check_cancelled(out, &[poll_one, select_one]);
    check_usable(pair);
}

fn read_of_a_pipe_is_cancelled() {
    let pair = joined_pair();
    let [out, into] = pipe();
    check_cancelled(out, &[read_one, readv_one]);
    assert_eq!(super::calls::write(into, b"x"), Ok(1));
    assert_eq!(super::calls::read(out, &mut [0]), Ok(1));
    let big = [0; 65_536];
    nonblocking(into, true);
    while super::calls::write(into, &big).is_ok() {}
    nonblocking(into, false);
    check_cancelled(into, &[write_much]);
    check_usable(pair);
}

fn accept_is_cancelled() {
    let (listening, address) = listener(Family::V4);
    check_cancelled(listening, &[accept_one, accept4_one]);
    let client = connected(&address);
    let server = super::calls::accept(listening).unwrap();
    check_usable(Pair { client, server });
}

/// The part that had come is lost with the thread, as POSIX allows; later bytes are not.
fn receive_for_all_bytes_is_cancelled() {
    let pair = joined_pair();
    check_cancelled(pair.server, &[recv_all]);
    send_all(pair.client, b"later");
    assert_eq!(recv_exact(pair.server, 5), b"later");
    check_usable(pair);
}

fn peek_is_cancelled() {
    let pair = joined_pair();
    check_cancelled(pair.server, &[recv_peek]);
    check_usable(pair);
}

/// Set once the thread has been cancelled.
static IS_CANCELLED: AtomicBool = AtomicBool::new(false);

fn wait_until_cancelled() {
    // SAFETY: the state concerns this thread.
    unsafe { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, null_mut()) };
    while !IS_CANCELLED.load(SeqCst) {
        pause_ms(1);
    }
}

unsafe extern "C-unwind" fn recv_pending(fd: c_int) -> isize {
    wait_until_cancelled();
    // SAFETY: as above.
    unsafe {
        pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, null_mut());
        recv_one(fd)
    }
}

/// Runs a call in a thread that is cancelled already.
fn check_pending(call: Blocking, fd: Fd) {
    let mut job = Job { call, fd };
    let thread = start(&mut job);
    cancel(thread);
    IS_CANCELLED.store(true, SeqCst);
    assert!(end_of(thread), "the call returned {}", RETURNED.load(SeqCst));
}

fn pending_cancellation_takes_no_bytes() {
    let pair = joined_pair();
    send_all(pair.client, b"kept");
    wait_for(pair.server, libc::POLLIN);
    check_pending(recv_pending, pair.server);
    assert_eq!(recv_exact(pair.server, 4), b"kept");
    check_usable(pair);
}

fn cancelled_thread_leaves_no_lock() {
    let pair = joined_pair();
    let set = epoll_create();
    epoll_ctl(set, libc::EPOLL_CTL_ADD, pair.server, IN, 1).unwrap();
    for _ in 0..3 {
        check_cancelled(pair.server, &[recv_one]);
        check_cancelled(set, &[epoll_wait_one]);
        let other = dup(pair.server).unwrap();
        epoll_ctl(set, libc::EPOLL_CTL_DEL, pair.server, 0, 0).unwrap();
        epoll_ctl(set, libc::EPOLL_CTL_ADD, pair.server, IN, 1).unwrap();
        spawn(|| send_all(pair.client, b"child")).join();
        assert_eq!(recv_exact(other, 5), b"child");
        close(other).unwrap();
    }
    shutdown(pair.client, libc::SHUT_WR).unwrap();
    assert_eq!(super::calls::recv(pair.server, &mut [0], 0), Ok(0));
}

unsafe extern "C-unwind" fn echo_bytes(fd: c_int) -> isize {
    // SAFETY: as above.
    unsafe {
        while recv(fd, (&raw mut BYTES).cast(), 1, 0) == 1 {
            send(fd, (&raw const BYTES).cast(), 1, libc::MSG_NOSIGNAL);
            pthread_testcancel();
        }
        0
    }
}

fn thread_cancelled_while_it_exchanges_messages() {
    for round in 0..10 {
        let pair = joined_pair();
        let mut job = Job { call: echo_bytes, fd: pair.server };
        let thread = start(&mut job);
        for _ in 0..round * 3 {
            send_all(pair.client, b"x");
            assert_eq!(recv_exact(pair.client, 1), b"x");
        }
        cancel(thread);
        assert!(end_of(thread));
        check_usable_after_a_send(pair);
    }
}

/// Descriptor that the destructor uses.
static LEFT: AtomicI32 = AtomicI32::new(-1);

unsafe extern "C" fn send_at_exit(_: *mut c_void) {
    let _ = super::calls::send(LEFT.load(SeqCst), b"bye", libc::MSG_NOSIGNAL);
}

static mut KEY: libc::pthread_key_t = 0;

unsafe extern "C-unwind" fn recv_with_destructor(fd: c_int) -> isize {
    // SAFETY: the key was made before the thread; the value is never followed.
    unsafe {
        libc::pthread_setspecific(KEY, (&raw const BYTES).cast());
        recv_one(fd)
    }
}

fn destructor_of_a_cancelled_thread_uses_the_connection() {
    let pair = joined_pair();
    LEFT.store(pair.server, SeqCst);
    // SAFETY: no thread uses the key yet.
    unsafe { libc::pthread_key_create(&raw mut KEY, Some(send_at_exit)) };
    check_cancelled(pair.server, &[recv_with_destructor]);
    assert_eq!(recv_exact(pair.client, 3), b"bye");
    check_usable(pair);
}

fn udp_and_unix_receives_are_cancelled() {
    let pair = joined_pair();
    let datagram = socket(libc::AF_INET, libc::SOCK_DGRAM).unwrap();
    bind(datagram, &Family::V4.address(0)).unwrap();
    check_cancelled(datagram, &[recv_one, recvfrom_one, recvmsg_one]);
    let local = socketpair(libc::AF_UNIX, libc::SOCK_STREAM).unwrap();
    check_cancelled(local[0], &[recv_one, read_one]);
    check_usable(pair);
}
