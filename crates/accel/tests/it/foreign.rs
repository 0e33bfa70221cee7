//! What programs do that are not written with this library in mind. They define libc's functions
//! themselves, cancel threads, use asynchronous i/o, and pass short buffers.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering::SeqCst};

use libc::{MSG_DONTWAIT, POLLIN};

use crate::calls::*;
use crate::harness::{self, Body, Side, another};
use crate::support::*;

behaviours![
    cancel_a_read_of_a_pipe,
    cancel_a_poll,
    cancel_a_select,
    cancel_an_epoll_wait,
    cancel_an_accept,
    cancel_a_connect,
    cancel_a_receive_of_an_unused_connection,
    cancel_a_receive_of_a_joined_connection,
    cancel_a_poll_of_a_joined_connection,
    cancel_a_blocked_send,
    cancel_before_a_call_that_would_not_block,
    cancel_disabled_until_later,
    connection_works_after_a_cancelled_receive,
    accept_with_a_short_buffer,
    accept_without_a_buffer,
    receive_message_keeps_what_the_kernel_reports,
    second_names_move_the_same_bytes,
    calls_by_number_wait_for_the_same_bytes,
    asynchronous_read_completes,
    asynchronous_write_completes,
    asynchronous_list_completes,
    unread_count_comes_with_each_message,
    unread_count_tells_the_end_of_the_stream,
    unread_count_in_a_short_space,
    ring_keeps_sockets_on_the_kernel,
];

/// Bodies that other bodies start in programs of their own.
pub(crate) const PEERS: &[Body] = &[
    (concat!(module_path!(), "::ring_for_files"), ring_for_files),
    (concat!(module_path!(), "::ring_is_refused"), ring_is_refused),
];

// Programs with their own definitions.

/// Compiles a program of one file.
fn compile(source: &str, into: &Path) -> PathBuf {
    let program = into.join(Path::new(source).file_stem().unwrap());
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let mut command = Command::new(rustc);
    command.args(["--edition", "2024", "-C", "link-arg=-rdynamic", "--cap-lints", "allow", "-o"]);
    command.arg(&program).arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it").join(source));
    let output = command.output().expect("rustc can be started");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    program
}

#[test]
fn program_with_its_own_definitions_of_libc_functions() {
    let folder = tempfile::tempdir().unwrap();
    let program = compile("foreign/own_definitions.rs", folder.path());
    for accelerated in [false, true] {
        let mut command = Command::new(&program);
        if accelerated {
            harness::accelerate(&mut command, harness::library());
        }
        let output = command.output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text == "complete\n", "{accelerated}: {output:?}");
    }
}

// Cancellation.

/// The value that `pthread_join` gives of a cancelled thread.
const CANCELLED: *mut libc::c_void = std::ptr::without_provenance_mut(usize::MAX);

unsafe extern "C" {
    fn pthread_cancel(thread: libc::pthread_t) -> libc::c_int;
    fn pthread_setcancelstate(state: libc::c_int, old: *mut libc::c_int) -> libc::c_int;
}

/// Descriptor that the thread under test uses.
static TARGET: AtomicI32 = AtomicI32::new(-1);
/// 1 once the thread is about to make its call, 2 after it.
static PROGRESS: AtomicU32 = AtomicU32::new(0);

type Routine = extern "C-unwind" fn(*mut libc::c_void) -> *mut libc::c_void;

unsafe extern "C" {
    // The libc crate declares the routine as a function that cannot be unwound.
    fn pthread_create(
        thread: *mut libc::pthread_t,
        attributes: *const libc::pthread_attr_t,
        routine: Routine,
        argument: *mut libc::c_void,
    ) -> libc::c_int;
}

/// Starts `routine` in a thread that may be cancelled: Rust's own threads may not.
fn start(fd: Fd, routine: Routine) -> libc::pthread_t {
    TARGET.store(fd, SeqCst);
    PROGRESS.store(0, SeqCst);
    let mut thread = 0;
    // SAFETY: the routine needs no argument, and nothing on its stack is dropped.
    assert_eq!(unsafe { pthread_create(&raw mut thread, null(), routine, null_mut()) }, 0);
    thread
}

/// Waits until the thread is in its call, as far as that can be seen from outside.
fn wait_until_it_blocks() {
    eventually("the thread makes its call", || PROGRESS.load(SeqCst) == 1);
    pause_ms(50);
    assert_eq!(PROGRESS.load(SeqCst), 1, "the call has ended");
}

#[track_caller]
fn check_it_is_cancelled(thread: libc::pthread_t) {
    mark_here();
    let mut result = null_mut();
    // SAFETY: the thread exists until it is joined.
    unsafe {
        assert_eq!(pthread_cancel(thread), 0);
        assert_eq!(libc::pthread_join(thread, &raw mut result), 0);
    }
    assert_eq!(result, CANCELLED);
    assert_eq!(PROGRESS.load(SeqCst), 1, "the thread went on after its call");
}

#[track_caller]
fn mark_here() {
    harness::mark();
}

/// Cancels a thread that blocks in `routine` on `fd`.
#[track_caller]
fn check_cancellation(fd: Fd, routine: Routine) {
    let thread = start(fd, routine);
    wait_until_it_blocks();
    check_it_is_cancelled(thread);
}

/// Declares thread routines: one blocking call each, on [`TARGET`].
macro_rules! routines {
    ($($name:ident($fd:ident) $call:block)*) => {$(
        extern "C-unwind" fn $name(_: *mut libc::c_void) -> *mut libc::c_void {
            let $fd = TARGET.load(SeqCst);
            PROGRESS.store(1, SeqCst);
            $call;
            PROGRESS.store(2, SeqCst);
            null_mut()
        }
    )*};
}

/// libc's calls as functions that a cancellation may unwind.
mod unwinding {
    use libc::{c_int, c_void};

    unsafe extern "C-unwind" {
        pub fn read(fd: c_int, buffer: *mut c_void, bytes: usize) -> isize;
        pub fn recv(fd: c_int, buffer: *mut c_void, bytes: usize, flags: c_int) -> isize;
        pub fn send(fd: c_int, buffer: *const c_void, bytes: usize, flags: c_int) -> isize;
        pub fn poll(fds: *mut libc::pollfd, count: libc::nfds_t, timeout_ms: c_int) -> c_int;
        pub fn select(
            count: c_int,
            readable: *mut libc::fd_set,
            writable: *mut libc::fd_set,
            except: *mut libc::fd_set,
            time: *mut libc::timeval,
        ) -> c_int;
        pub fn epoll_wait(
            set: c_int,
            events: *mut libc::epoll_event,
            most: c_int,
            timeout_ms: c_int,
        ) -> c_int;
        pub fn accept(
            fd: c_int,
            address: *mut libc::sockaddr,
            length: *mut libc::socklen_t,
        ) -> c_int;
        pub fn connect(fd: c_int, address: *const libc::sockaddr, length: libc::socklen_t)
        -> c_int;
    }
}

// Every buffer and structure of these routines lives on the thread's stack and needs no drop.
routines! {
    read_one(fd) {
        let mut byte = 0_u8;
        // SAFETY: the byte is live.
        unsafe { unwinding::read(fd, (&raw mut byte).cast(), 1) }
    }
    receive_one(fd) {
        let mut byte = 0_u8;
        // SAFETY: the byte is live.
        unsafe { unwinding::recv(fd, (&raw mut byte).cast(), 1, 0) }
    }
    poll_one(fd) {
        let mut list = libc::pollfd { fd, events: POLLIN, revents: 0 };
        // SAFETY: the list is live.
        unsafe { unwinding::poll(&raw mut list, 1, -1) }
    }
    select_one(fd) {
        // SAFETY: the set is live; the descriptor is below FD_SETSIZE.
        unsafe {
            let mut set: libc::fd_set = std::mem::zeroed();
            libc::FD_SET(fd, &raw mut set);
            unwinding::select(fd + 1, &raw mut set, null_mut(), null_mut(), null_mut())
        }
    }
    epoll_one(fd) {
        let mut event = libc::epoll_event { events: 0, u64: 0 };
        // SAFETY: the event is live.
        unsafe { unwinding::epoll_wait(fd, &raw mut event, 1, -1) }
    }
    accept_one(fd) {
        // SAFETY: no address is requested.
        unsafe { unwinding::accept(fd, null_mut(), null_mut()) }
    }
    connect_to_the_port(fd) {
        let address = Address::v4([127, 0, 0, 1], HANDLED.load(SeqCst) as u16);
        // SAFETY: the address is live.
        unsafe { unwinding::connect(fd, address.as_ptr(), address.length) }
    }
    send_for_ever(fd) {
        let bytes = [0_u8; 4096];
        // SAFETY: the bytes are live.
        while unsafe { unwinding::send(fd, bytes.as_ptr().cast(), 4096, 0) } > 0 {}
    }
    send_after_the_request(fd) {
        while HANDLED.load(SeqCst) == 0 {
            std::hint::spin_loop();
        }
        // SAFETY: the byte is live.
        unsafe { unwinding::send(fd, c"x".as_ptr().cast(), 1, 0) }
    }
    receive_with_cancellation_disabled(fd) {
        let mut byte = 0_u8;
        // SAFETY: the byte is live; the states are numbers.
        unsafe {
            const DISABLE: libc::c_int = 1;
            const ENABLE: libc::c_int = 0;
            pthread_setcancelstate(DISABLE, null_mut());
            unwinding::recv(fd, (&raw mut byte).cast(), 1, 0);
            HANDLED.fetch_add(u32::from(byte == b'!'), SeqCst);
            pthread_setcancelstate(ENABLE, null_mut());
            unwinding::recv(fd, (&raw mut byte).cast(), 1, 0);
        }
    }
}

fn cancel_a_read_of_a_pipe() {
    let [out, _into] = pipe();
    check_cancellation(out, read_one);
}

fn cancel_a_poll() {
    let [out, _into] = pipe();
    check_cancellation(out, poll_one);
}

fn cancel_a_select() {
    let [out, _into] = pipe();
    check_cancellation(out, select_one);
}

fn cancel_an_epoll_wait() {
    let (set, pair) = (epoll_create(), joined_pair());
    epoll_ctl(set, libc::EPOLL_CTL_ADD, pair.server, libc::EPOLLIN as u32, 1).unwrap();
    check_cancellation(set, epoll_one);
    send_all(pair.client, b"x");
    assert_eq!(epoll_wait(set, 4, SOON_MS), Ok(vec![(libc::EPOLLIN as u32, 1)]));
}

fn cancel_an_accept() {
    let (listening, _) = listener(Family::V4);
    check_cancellation(listening, accept_one);
}

/// A listener whose queue is full answers no more connections.
fn cancel_a_connect() {
    let (listening, address) = listener(Family::V4);
    listen(listening, 0).unwrap();
    let mut waiting = 0;
    eventually("the queue is full", || {
        let fd = socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_NONBLOCK).unwrap();
        assert_eq!(connect(fd, &address), Err(Errno(libc::EINPROGRESS)));
        waiting += i32::from(ready(fd, libc::POLLOUT, 200) == 0);
        waiting > 2
    });
    HANDLED.store(u32::from(address.port()), SeqCst);
    check_cancellation(socket(libc::AF_INET, libc::SOCK_STREAM).unwrap(), connect_to_the_port);
}

fn cancel_a_receive_of_an_unused_connection() {
    let pair = unused_pair();
    check_cancellation(pair.server, receive_one);
    let pair = join_both_ends(pair);
    assert_state(pair.server, JOINED);
}

/// The connection carries data after a thread was cancelled inside it.
#[track_caller]
fn check_both_ways(pair: Pair) {
    for round in 0..20 {
        for (from, to) in [(pair.client, pair.server), (pair.server, pair.client)] {
            send_all(from, &pattern(round, 777));
            assert_bytes(&recv_exact(to, 777), &pattern(round, 777));
        }
    }
}

fn cancel_a_receive_of_a_joined_connection() {
    let pair = joined_pair();
    check_cancellation(pair.server, receive_one);
    check_both_ways(pair);
}

fn cancel_a_poll_of_a_joined_connection() {
    let pair = joined_pair();
    check_cancellation(pair.server, poll_one);
    check_both_ways(pair);
}

fn cancel_a_blocked_send() {
    let pair = joined_pair();
    check_cancellation(pair.client, send_for_ever);
    let mut buffer = vec![0; 65_536];
    let mut total = 0;
    while ready(pair.server, POLLIN, 100) != 0 {
        total += recv(pair.server, &mut buffer, MSG_DONTWAIT).unwrap();
    }
    assert!(total > 0);
    check_both_ways(pair);
}

/// A pending request is acted on by a call that has no reason to sleep.
fn cancel_before_a_call_that_would_not_block() {
    let pair = joined_pair();
    HANDLED.store(0, SeqCst);
    let thread = start(pair.client, send_after_the_request);
    eventually("the thread runs", || PROGRESS.load(SeqCst) == 1);
    // SAFETY: the thread has not been joined.
    assert_eq!(unsafe { pthread_cancel(thread) }, 0);
    HANDLED.store(1, SeqCst);
    let mut result = null_mut();
    // SAFETY: the thread exists until it is joined.
    assert_eq!(unsafe { libc::pthread_join(thread, &raw mut result) }, 0);
    assert_eq!((result, PROGRESS.load(SeqCst)), (CANCELLED, 1));
    assert_eq!(recv(pair.server, &mut [0], MSG_DONTWAIT), Err(AGAIN));
}

fn cancel_disabled_until_later() {
    let pair = joined_pair();
    HANDLED.store(0, SeqCst);
    let thread = start(pair.server, receive_with_cancellation_disabled);
    wait_until_it_blocks();
    // SAFETY: the thread has not been joined.
    assert_eq!(unsafe { pthread_cancel(thread) }, 0);
    pause_ms(50);
    send_all(pair.client, b"!");
    let mut result = null_mut();
    mark_here();
    // SAFETY: the thread exists until it is joined.
    assert_eq!(unsafe { libc::pthread_join(thread, &raw mut result) }, 0);
    assert_eq!((result, PROGRESS.load(SeqCst)), (CANCELLED, 1));
    assert_eq!(HANDLED.load(SeqCst), 1, "the first byte was received");
}

fn connection_works_after_a_cancelled_receive() {
    let pair = joined_pair();
    for _ in 0..5 {
        check_cancellation(pair.server, receive_one);
        check_both_ways(pair);
    }
    close(pair.client).unwrap();
    assert_eq!(recv_to_end(pair.server), (vec![], Ok(())));
}

// Buffers.

fn accept_with_a_short_buffer() {
    let (listening, address) = listener(Family::V4);
    let client = connected(&address);
    // The byte behind the buffer must not change, and what is there must not be read as an address.
    let mut buffer = [0xee_u8; 16];
    let mut length: libc::socklen_t = 6;
    let (at, size) = (buffer.as_mut_ptr().cast(), &raw mut length);
    // SAFETY: the buffer is larger than the stated length.
    let server = unsafe { libc::accept(listening, at, size) };
    assert!(server >= 0);
    assert_eq!(length, 16);
    assert_eq!(buffer[6..], [0xee; 10]);
    let port = getsockname(client).unwrap().port();
    assert_eq!(u16::from_be_bytes([buffer[2], buffer[3]]), port);
    let pair = join_both_ends(Pair { client, server });
    assert_state(pair.server, JOINED);
}

fn accept_without_a_buffer() {
    let (listening, address) = listener(Family::V4);
    let client = connected(&address);
    let mut length: libc::socklen_t = 0;
    let mut byte = 0xee_u8;
    // SAFETY: the stated length is zero.
    let server = unsafe { libc::accept(listening, (&raw mut byte).cast(), &raw mut length) };
    assert!(server >= 0 && length == 16 && byte == 0xee);
    join_both_ends(Pair { client, server });
}

/// What the kernel tells in control messages before the ends have joined must survive.
fn receive_message_keeps_what_the_kernel_reports() {
    const TCP_INQ: libc::c_int = 36;
    let (listening, address) = listener(Family::V4);
    let client = socket(libc::AF_INET, libc::SOCK_STREAM).unwrap();
    set_option(client, libc::IPPROTO_TCP, TCP_INQ, 1).unwrap();
    connect(client, &address).unwrap();
    let server = accept(listening).unwrap();
    send_all(server, b"counted");
    eventually("all bytes have come", || unread(client) == 7);
    let mut bytes = [0; 4];
    let mut vector = receive_parts(&mut [&mut bytes[..]]);
    let mut header = header(&mut vector);
    let mut control = [0_u64; 16];
    header.msg_control = control.as_mut_ptr().cast();
    header.msg_controllen = size_of_val(&control) as _;
    // SAFETY: the control buffer is live; the message is as the kernel wrote it.
    unsafe {
        assert_eq!(libc::recvmsg(client, &raw mut header, 0), 4);
        let message = libc::CMSG_FIRSTHDR(&raw const header);
        assert!(!message.is_null(), "the control message is lost");
        assert_eq!((*message).cmsg_type, TCP_INQ);
        assert_eq!(libc::CMSG_DATA(message).cast::<libc::c_int>().read_unaligned(), 3);
    }
}

mod second {
    use libc::{c_int, c_void};

    unsafe extern "C" {
        pub fn __read(fd: c_int, buffer: *mut c_void, bytes: usize) -> isize;
        pub fn __write(fd: c_int, buffer: *const c_void, bytes: usize) -> isize;
        pub fn __send(fd: c_int, buffer: *const c_void, bytes: usize, flags: c_int) -> isize;
        pub fn __poll(fds: *mut libc::pollfd, count: libc::nfds_t, timeout_ms: c_int) -> c_int;
    }
}

fn second_names_move_the_same_bytes() {
    let pair = joined_pair();
    let mut bytes = [0_u8; 8];
    let mut list = [libc::pollfd { fd: pair.server, events: POLLIN, revents: 0 }];
    // SAFETY: all buffers are live.
    unsafe {
        assert_eq!(second::__send(pair.client, c"send".as_ptr().cast(), 4, 0), 4);
        assert_eq!(second::__write(pair.client, c"more".as_ptr().cast(), 4), 4);
        eventually("all bytes have come", || unread(pair.server) == 8);
        assert_eq!(second::__poll(list.as_mut_ptr(), 1, SOON_MS), 1);
        assert_eq!(second::__read(pair.server, bytes.as_mut_ptr().cast(), 8), 8);
    }
    assert_eq!(&bytes, b"sendmore");
    assert_state(pair.server, JOINED);
}

fn calls_by_number_wait_for_the_same_bytes() {
    use libc::{SYS_epoll_ctl, SYS_epoll_pwait, SYS_ppoll, SYS_pselect6, syscall};
    let (pair, set) = (joined_pair(), epoll_create());
    let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 5 };
    let mut list = [libc::pollfd { fd: pair.server, events: POLLIN, revents: 0 }];
    let none = null_mut::<libc::c_void>();
    // SAFETY: events, list, sets and buffers are live for the calls.
    unsafe {
        let add = libc::EPOLL_CTL_ADD;
        assert_eq!(syscall(SYS_epoll_ctl, set, add, pair.server, &raw mut event), 0);
        for round in 0..20_u8 {
            event = libc::epoll_event { events: 0, u64: 0 };
            assert_eq!(syscall(SYS_epoll_pwait, set, &raw mut event, 1, 0, none, 8), 0);
            assert_eq!(syscall(libc::SYS_sendto, pair.client, &raw const round, 1, 0, none, 0), 1);
            assert_eq!(syscall(SYS_epoll_pwait, set, &raw mut event, 1, SOON_MS, none, 8), 1);
            let data = event.u64;
            assert_eq!(data, 5);
            assert_eq!(syscall(SYS_ppoll, list.as_mut_ptr(), 1, none, none, 8), 1);
            let mut reads: libc::fd_set = std::mem::zeroed();
            libc::FD_SET(pair.server, &raw mut reads);
            let count = pair.server + 1;
            assert_eq!(syscall(SYS_pselect6, count, &raw mut reads, none, none, none, none), 1);
            let mut byte = 0xff_u8;
            assert_eq!(syscall(libc::SYS_read, pair.server, &raw mut byte, 1), 1);
            assert_eq!(byte, round);
        }
    }
    assert_state(pair.server, JOINED);
}

// Asynchronous i/o.

/// An operation on all of `bytes`.
fn operation(fd: Fd, bytes: &mut [u8], kind: libc::c_int) -> libc::aiocb {
    // SAFETY: all zero is an operation without notification.
    let mut block: libc::aiocb = unsafe { std::mem::zeroed() };
    block.aio_fildes = fd;
    block.aio_buf = bytes.as_mut_ptr().cast();
    block.aio_nbytes = bytes.len();
    block.aio_lio_opcode = kind;
    block.aio_sigevent.sigev_notify = libc::SIGEV_NONE;
    block
}

/// Waits until an operation is complete: bytes that it moved.
#[track_caller]
fn completed(block: &mut libc::aiocb) -> isize {
    // SAFETY: the operation's memory lives until it is complete.
    unsafe {
        eventually("the operation completes", || {
            libc::aio_error(&raw const *block) != libc::EINPROGRESS
        });
        libc::aio_return(&raw mut *block)
    }
}

fn asynchronous_read_completes() {
    for pair in [unused_pair(), joined_pair()] {
        let mut bytes = [0; 100];
        let mut block = operation(pair.server, &mut bytes, 0);
        // SAFETY: the operation and its buffer live until it is complete.
        assert_eq!(unsafe { libc::aio_read(&raw mut block) }, 0);
        pause_ms(20);
        send_all(pair.client, b"hello");
        assert_eq!(completed(&mut block), 5);
        assert_eq!(&bytes[..5], b"hello");
        check_both_ways(pair);
        if harness::accelerated() {
            assert_ne!(harness::state(pair.server), Some(JOINED));
        }
    }
}

fn asynchronous_write_completes() {
    for pair in [unused_pair(), joined_pair()] {
        send_all(pair.client, b"before ");
        let mut bytes = *b"after";
        let mut block = operation(pair.client, &mut bytes, 0);
        // SAFETY: the operation and its buffer live until it is complete.
        assert_eq!(unsafe { libc::aio_write(&raw mut block) }, 0);
        assert_eq!(completed(&mut block), 5);
        assert_eq!(recv_exact(pair.server, 12), b"before after");
        check_both_ways(pair);
    }
}

fn asynchronous_list_completes() {
    let pair = joined_pair();
    let (mut out, mut into) = (*b"listed", [0; 6]);
    let mut write = operation(pair.client, &mut out, libc::LIO_WRITE);
    let mut read = operation(pair.server, &mut into, libc::LIO_READ);
    let list = [&raw mut write, null_mut(), &raw mut read];
    // SAFETY: the operations and their buffers live until all are complete.
    unsafe {
        assert_eq!(libc::lio_listio(libc::LIO_WAIT, list.as_ptr(), 3, null_mut()), 0);
    }
    assert_eq!((completed(&mut write), completed(&mut read)), (6, 6));
    assert_eq!(&into, b"listed");
    check_both_ways(pair);
}

// Options that the library provides itself.

const TCP_INQ: libc::c_int = 36;

/// Receives up to `count` bytes by `recvmsg` with `space` bytes for control messages: what came,
/// the unread count if there was one, the control bytes used, and the flags.
#[track_caller]
fn receive_with_unread(fd: Fd, count: usize, space: usize) -> (usize, Option<i32>, usize, i32) {
    let mut bytes = vec![0; count];
    let mut vector = receive_parts(&mut [&mut bytes[..]]);
    let mut header = header(&mut vector);
    let mut control = [0_u64; 16];
    header.msg_control = control.as_mut_ptr().cast();
    header.msg_controllen = space as _;
    // SAFETY: the control buffer is live and larger than any space used here.
    unsafe {
        let came = libc::recvmsg(fd, &raw mut header, 0);
        assert!(came >= 0, "{:?}", errno());
        let message = libc::CMSG_FIRSTHDR(&raw const header);
        let shown_count = (!message.is_null() && (*message).cmsg_len as usize >= 20).then(|| {
            assert_eq!(((*message).cmsg_level, (*message).cmsg_type), (libc::IPPROTO_TCP, TCP_INQ));
            libc::CMSG_DATA(message).cast::<i32>().read_unaligned()
        });
        (came as usize, shown_count, header.msg_controllen as usize, header.msg_flags)
    }
}

fn unread_count_comes_with_each_message() {
    let pair = joined_pair();
    set_option(pair.server, libc::IPPROTO_TCP, TCP_INQ, 1).unwrap();
    assert_eq!(option(pair.server, libc::IPPROTO_TCP, TCP_INQ), Ok(1));
    assert_eq!(set_option(pair.server, libc::IPPROTO_TCP, TCP_INQ, 2), Err(INVAL));
    for _ in 0..50 {
        send_all(pair.client, b"counted");
        eventually("all bytes have come", || unread(pair.server) == 7);
        assert_eq!(receive_with_unread(pair.server, 4, 64), (4, Some(3), 24, 0));
        assert_eq!(receive_with_unread(pair.server, 4, 64), (3, Some(0), 24, 0));
    }
    assert_state(pair.server, JOINED);
    set_option(pair.server, libc::IPPROTO_TCP, TCP_INQ, 0).unwrap();
    send_all(pair.client, b"counted");
    eventually("all bytes have come", || unread(pair.server) == 7);
    assert_eq!(receive_with_unread(pair.server, 9, 64), (7, None, 0, 0));
}

/// Without it a program that believes "nothing is unread" would never see the end.
fn unread_count_tells_the_end_of_the_stream() {
    let pair = joined_pair();
    set_option(pair.server, libc::IPPROTO_TCP, TCP_INQ, 1).unwrap();
    send_all(pair.client, b"last");
    close(pair.client).unwrap();
    eventually("the end has come", || {
        ready(pair.server, libc::POLLRDHUP, 0) & libc::POLLRDHUP != 0 && unread(pair.server) == 4
    });
    assert_eq!(receive_with_unread(pair.server, 4, 64), (4, Some(1), 24, 0));
    assert_eq!(receive_with_unread(pair.server, 4, 64).0, 0);
}

fn unread_count_in_a_short_space() {
    let pair = joined_pair();
    set_option(pair.server, libc::IPPROTO_TCP, TCP_INQ, 1).unwrap();
    for (space, used, flags) in
        [(24, 24, 0), (20, 20, 0), (18, 18, libc::MSG_CTRUNC), (0, 0, libc::MSG_CTRUNC)]
    {
        send_all(pair.client, b"x");
        eventually("the byte has come", || unread(pair.server) == 1);
        let (came, _, control, shown) = receive_with_unread(pair.server, 9, space);
        assert_eq!((came, control, shown), (1, used, flags), "space {space}");
    }
}

// Rings of io_uring.

/// Creates a ring by number; `EPERM` and `ENOSYS` are what a system without io_uring reports.
fn create_ring() -> Outcome<Fd> {
    let mut parameters = [0_u32; 30];
    // SAFETY: the parameters are live and of the kernel's size.
    let fd = unsafe { libc::syscall(libc::SYS_io_uring_setup, 4, parameters.as_mut_ptr()) };
    if fd < 0 { Err(errno()) } else { Ok(fd as Fd) }
}

fn ring_keeps_sockets_on_the_kernel() {
    let pair = joined_pair();
    let Ok(_ring) = create_ring() else { return };
    check_both_ways(pair);
    if harness::accelerated() {
        assert_ne!(harness::state(pair.server), Some(JOINED));
        // The same with what a policy says about this program's rings.
        for (use_of_rings, body) in [("files", "ring_for_files"), ("refuse", "ring_is_refused")] {
            let name = format!("{}::{body}", module_path!());
            let mut program = another(&name, Side::Accelerated);
            program.env("NEARMETAL_ACCEL_POLICY", format!("%{use_of_rings}@*"));
            let output = program.output().unwrap();
            assert!(output.status.success(), "{use_of_rings}: {output:?}");
        }
    }
}

fn ring_for_files() {
    let pair = joined_pair();
    create_ring().unwrap();
    check_both_ways(pair);
    assert_state(pair.server, JOINED);
    let other = joined_pair();
    assert_state(other.client, JOINED);
}

fn ring_is_refused() {
    assert_eq!(create_ring(), Err(Errno(libc::EPERM)));
    assert_state(joined_pair().client, JOINED);
}
