//! Receiving and sending on a joined socket: with the semantics of TCP, whichever way each
//! direction goes at the moment.
//!
//! Each call gets the program's own call of the kernel (`raw`). Whenever a call must go through the
//! kernel as a whole it is that call. So blocking, time limits, signals and errors are the kernel's
//! own.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::slice;
use std::sync::atomic::Ordering;

use libc::iovec;
use nm_ring::ledger::KernelReason;
use nm_ring::pipe::QUARTER_BYTES;

use crate::socket::Socket;
use crate::socket::outgoing::{ATOMIC_BYTES, LARGE_BYTES};
use crate::wait::{self, Spin, SpinStep, WaitLimit, WaitMode};
use crate::{coalescing, contention, fallback, kernel, options, signals};

/// Longest sleep until memory has bytes, before the sleep is the kernel's, ns: in it nobody reports
/// the end of the stream.
const MEMORY_SLEEP_NS: u64 = 1_000_000;

/// Longest wait for bytes that the peer is just sending again through the kernel, ns.
const TAKE_BACK_NS: u64 = 10_000_000;

/// Attempts of one call to receive bytes that memory announces and that are not there. A peer that
/// takes bytes back causes a few; one that overwrites the memory could make a call loop forever.
const MISSING_BYTES_MAX: u32 = 1 << 20;

/// Longest time for which a non-blocking sender waits for space in a full pipe, ns: about what the
/// kernel's own copy of as many bytes takes.
const FULL_PIPE_NS: u64 = 10_000;

/// Longest time for which a blocking sender waits for space in a full pipe, ns; after it the kernel
/// takes the rest.
const FULL_PIPE_BLOCKING_NS: u64 = 200_000;

/// What the kernel's ticks take at most, ns.
const TICK_NS: u64 = 10_000_000;

/// Calls of so many bytes wait for a peer that is about to have received all.
const BULK_BYTES: usize = 16 * 1024;

/// Longest time for that, ns.
const DRAIN_NS: u64 = 10_000;

/// Longest time for that between two chunks of a blocking call, or blocking calls of a stream, ns:
/// about what the peer needs to wake up and to receive a chunk.
const DRAIN_CHUNK_NS: u64 = 60_000;

/// A blocking call of more bytes goes through the kernel in chunks of so many.
pub const CHUNK_BYTES: usize = ATOMIC_BYTES;

/// Calls through the kernel after which the count of sent bytes is checked, if it never fits.
const CALLS_PER_CORRECTION: u32 = 64;

/// Total bytes of a vector.
#[inline(always)]
pub fn total(parts: &[iovec]) -> usize {
    parts.iter().fold(0, |sum, part| sum.saturating_add(part.iov_len))
}

/// What a call asks for.
#[derive(Clone, Copy)]
pub struct Request<'a> {
    /// The socket.
    pub socket: &'static Socket,
    /// Its descriptor.
    pub fd: c_int,
    /// The caller's buffers.
    pub parts: &'a [iovec],
    /// The flags of recv or send.
    pub flags: c_int,
}

impl Request<'_> {
    #[inline(always)]
    fn has_flag(&self, flag: c_int) -> bool {
        self.flags & flag != 0
    }

    #[inline(always)]
    fn is_nonblocking(&self) -> bool {
        self.has_flag(libc::MSG_DONTWAIT) || self.socket.nonblocking()
    }

    /// The caller's buffers from byte `skip` on.
    fn rest(&self, mut skip: usize) -> impl Iterator<Item = (*mut u8, usize)> {
        self.parts.iter().filter_map(move |part| {
            if skip >= part.iov_len {
                skip -= part.iov_len;
                return None;
            }
            let start = part.iov_base.cast::<u8>().wrapping_add(skip);
            let bytes = part.iov_len - skip;
            skip = 0;
            Some((start, bytes))
        })
    }
}

/// Receives: returns the count, 0 at the end of the stream, or −1 with `errno` set.
#[inline]
pub fn receive(request: Request<'_>, raw: impl Fn() -> isize) -> isize {
    let total = total(request.parts);
    if total == 0 {
        return if request.socket.has_memory_bytes() { 0 } else { raw() };
    }
    let (mut done, mut limit, mut missing) = (0, None, 0);
    pause_if_streaming(&request);
    loop {
        if request.socket.has_memory_bytes() {
            done += receive_from_memory(&request, done);
            missing += 1;
        }
        if missing > MISSING_BYTES_MAX && done == 0 {
            request.socket.record().set_reason(KernelReason::Inconsistent, 0);
            return kernel::fail(libc::ECONNRESET);
        }
        let is_complete = done == total
            || done > 0 && (!request.has_flag(libc::MSG_WAITALL) || request.is_nonblocking());
        if is_complete {
            return receive_more(&request, done, total);
        }
        if request.has_flag(libc::MSG_PEEK) && done > 0 {
            match peek_rest(&request) {
                Some(result) => return result,
                None => {
                    done = 0;
                    continue;
                }
            }
        }
        if done == 0
            && let Some(errno) = request.socket.take_error()
        {
            return kernel::fail(errno);
        }
        if request.is_nonblocking() {
            if !request.socket.kernel_check_is_due(request.fd) {
                return kernel::fail(libc::EAGAIN);
            }
            return match receive_now(&request, done, &raw) {
                Some(result) => result,
                None => continue,
            };
        }
        let limit =
            limit.get_or_insert_with(|| WaitLimit::new(request.socket.receive_timeout_ns()));
        if done > 0 && limit.has_seen_handler() {
            return done as isize;
        }
        // The limit also holds if memory announces bytes at each check that are never there.
        if limit.left_ns() != Some(0) && wait_for_memory(&request, limit) {
            continue;
        }
        if limit.interrupted() {
            return if done > 0 { done as isize } else { kernel::fail(libc::EINTR) };
        }
        if let Some(result) = receive_in_kernel(&request, done, Some(limit), &raw) {
            return result;
        }
    }
}

/// Pauses before a blocking receive of a stream of small messages.
#[inline(always)]
fn pause_if_streaming(request: &Request<'_>) {
    let socket = request.socket;
    if request.is_nonblocking() {
        return;
    }
    let readable = || socket.incoming().readable();
    if socket.coalescing.is_pause_due(socket.outgoing().sent(), readable) {
        wait::pause(coalescing::PAUSE_NS);
        socket.coalescing.note_pause(readable());
    }
}

/// A call has `done` bytes from memory and may return. If the pipe is empty and the kernel has
/// bytes behind it, they belong to the call too: a program that takes a short read for the end of
/// what is there would not look again.
#[inline(always)]
fn receive_more(request: &Request<'_>, done: usize, total: usize) -> isize {
    let socket = request.socket;
    let is_all = done == total || request.has_flag(libc::MSG_PEEK);
    if is_all || !socket.kernel_may_have_bytes(request.fd) || socket.has_memory_bytes() {
        return done as isize;
    }
    // Only bytes: an error belongs to the next call.
    let unread = kernel::ioctl_int(request.fd, libc::FIONREAD as usize).unwrap_or(0);
    if unread <= 0 {
        return done as isize;
    }
    let now = Request { flags: request.flags | libc::MSG_DONTWAIT, ..*request };
    receive_in_kernel(&now, done, None, &|| -1).unwrap_or(done as isize)
}

/// Receives what is in memory, from byte `done` of the buffers on, and returns how much.
#[inline(always)]
fn receive_from_memory(request: &Request<'_>, done: usize) -> usize {
    let socket = request.socket;
    let incoming = socket.incoming();
    let _deferral = signals::defer_handlers();
    if !socket.lock_receive() {
        return 0;
    }
    let count = match request.parts {
        _ if request.has_flag(libc::MSG_PEEK | libc::MSG_TRUNC) => peek_or_discard(request, done),
        [one] if done == 0 => {
            // SAFETY: the caller's vector names writable memory of this length.
            incoming.pull(unsafe { slice::from_raw_parts_mut(one.iov_base.cast(), one.iov_len) })
        }
        _ => pull_parts(request, done),
    };
    if count > 0 && !request.has_flag(libc::MSG_PEEK) {
        let counters = &socket.record().incoming;
        counters.memory_bytes.add_exclusive(count as u64);
        counters.memory_calls.add_exclusive(1);
        socket.coalescing.note_receive(count, wait::now_ns);
        contention::note_bytes(count);
    }
    socket.unlock_receive();
    count
}

/// Receives part by part, under the receive lock.
fn pull_parts(request: &Request<'_>, done: usize) -> usize {
    let mut count = 0;
    for (start, bytes) in request.rest(done) {
        // SAFETY: the caller's vector names writable memory of this length.
        let buffer = unsafe { slice::from_raw_parts_mut(start, bytes) };
        let now = request.socket.incoming().pull(buffer);
        count += now;
        if now < bytes {
            break;
        }
    }
    count
}

/// `MSG_PEEK` leaves the bytes in the pipe, `MSG_TRUNC` does not copy them. Under the receive lock.
#[cold]
fn peek_or_discard(request: &Request<'_>, done: usize) -> usize {
    let incoming = request.socket.incoming();
    let wanted = total(request.parts) - done;
    if !request.has_flag(libc::MSG_PEEK) {
        return incoming.discard(wanted);
    }
    if request.has_flag(libc::MSG_TRUNC) {
        return incoming.readable().min(wanted);
    }
    let mut count = 0;
    for (start, bytes) in request.rest(done) {
        // SAFETY: the caller's vector names writable memory of this length.
        let buffer = unsafe { slice::from_raw_parts_mut(start, bytes) };
        let now = incoming.peek(count, buffer);
        count += now;
        if now < bytes {
            break;
        }
    }
    count
}

/// `MSG_PEEK | MSG_WAITALL` with bytes in memory: the rest, if any comes, is in the kernel. None:
/// the peer has moved the bytes meanwhile.
#[cold]
fn peek_rest(request: &Request<'_>) -> Option<isize> {
    let socket = request.socket;
    let _receiving = socket.begin_kernel_receive();
    let take_backs = socket.take_backs();
    // From here on nothing new comes to memory.
    let in_memory = receive_from_memory(request, 0);
    let mut done = in_memory;
    if let Some((start, bytes)) = request.rest(done).next() {
        // SAFETY: the caller's vector names writable memory of this length.
        let now = unsafe { receive_into(request.fd, start, bytes, request.flags) };
        done += now.max(0) as usize;
    }
    let is_unchanged =
        take_backs == socket.take_backs() && socket.incoming().readable() >= in_memory;
    is_unchanged.then_some(done as isize)
}

/// # Safety
/// `start` points to `bytes` writable bytes.
unsafe fn receive_into(fd: c_int, start: *mut u8, bytes: usize, flags: c_int) -> isize {
    let (start, none) = (start.cast::<c_void>(), ptr::null_mut());
    // SAFETY: the caller guarantees the buffer.
    unsafe { kernel::recvfrom(fd, start, bytes, flags, none, ptr::null_mut()) }
}

/// Receives from the kernel without waiting. None: look into memory again.
fn receive_now(request: &Request<'_>, done: usize, raw: &impl Fn() -> isize) -> Option<isize> {
    let begun_ns = wait::now_ns();
    loop {
        let take_backs = request.socket.take_backs();
        let result = receive_in_kernel(request, done, None, raw)?;
        if result >= 0 || kernel::errno() != libc::EAGAIN {
            return Some(result);
        }
        // Bytes that were reported already may be on their way from memory to the kernel.
        let moving = take_backs.0 != take_backs.1 || take_backs != request.socket.take_backs();
        let waits = moving && request.socket.may_wait_for_take_back();
        if !waits || wait::now_ns().saturating_sub(begun_ns) > TAKE_BACK_NS {
            if waits {
                request.socket.note_late_take_back();
            }
            kernel::set_errno(libc::EAGAIN);
            return Some(result);
        }
        rustix::thread::sched_yield();
    }
}

/// Receives by the kernel, which waits if the call does. None: memory has bytes, which come first.
fn receive_in_kernel(
    request: &Request<'_>,
    done: usize,
    limit: Option<&WaitLimit>,
    raw: &impl Fn() -> isize,
) -> Option<isize> {
    let socket = request.socket;
    let fd = socket.current_descriptor(request.fd);
    if fd < 0 {
        return Some(if done > 0 { done as isize } else { kernel::fail(libc::EBADF) });
    }
    let receiving = socket.begin_kernel_receive();
    if socket.has_memory_bytes() {
        return None;
    }
    if !request.is_nonblocking() {
        socket.flush_to_kernel(fd);
        socket.record().incoming.sleeps.add(1);
    }
    socket.note_kernel_asked();
    let result = match limit {
        Some(limit) if done > 0 && !wait_for_rest(fd, limit) => kernel::fail(libc::EINTR),
        _ if done > 0 || fd != request.fd => receive_rest(request, fd, done),
        _ => raw(),
    };
    let errno = kernel::errno();
    if result >= 0 || errno != libc::EAGAIN {
        socket.ask_kernel_again();
    }
    if result > 0 && !request.has_flag(libc::MSG_PEEK) {
        socket.count_kernel_received(result as usize);
        let counters = &socket.record().incoming;
        counters.kernel_bytes.add(result as u64);
        counters.kernel_calls.add(1);
        contention::note_bytes(result as usize);
    }
    drop(receiving);
    socket.publish_received(fd);
    kernel::set_errno(errno);
    Some(match result {
        0 if done == 0 && socket.end_is_a_reset() => {
            // As after a reset: nothing can be sent any more.
            // SAFETY: no pointers.
            unsafe { kernel::shutdown(fd, libc::SHUT_RDWR) };
            kernel::fail(libc::ECONNRESET)
        }
        0.. => done as isize + result,
        _ if done > 0 => {
            if !matches!(errno, libc::EAGAIN | libc::EINTR) {
                socket.keep_error(errno);
            }
            done as isize
        }
        _ => result,
    })
}

/// Sleeps until the kernel has bytes of a call that has received a part; false if the call ends
/// with that part, by its limit or a handler. A receive of the kernel alone would go on after a
/// handler with `SA_RESTART`: for the kernel nothing was received.
fn wait_for_rest(fd: c_int, limit: &WaitLimit) -> bool {
    let timeout = signals::sleep_timeout(limit.left_ns());
    let mut entry = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: the entry is live, the time is this thread's own, and there is no mask.
    !limit.has_seen_handler()
        && unsafe { kernel::ppoll(&raw mut entry, 1, timeout, ptr::null(), 0) } > 0
}

/// Receives the rest of a call from the kernel, part by part; −1 with `errno` set if there is
/// nothing.
#[cold]
fn receive_rest(request: &Request<'_>, fd: c_int, done: usize) -> isize {
    let mut received = 0;
    for (start, bytes) in request.rest(done) {
        // SAFETY: the caller's vector names writable memory of this length.
        let now = unsafe { receive_into(fd, start, bytes, request.flags) };
        if now < 0 && received == 0 {
            return now;
        }
        received += now.max(0);
        if now < bytes as isize || !request.has_flag(libc::MSG_WAITALL) {
            break;
        }
    }
    received
}

/// Waits, for a while, until memory has bytes; false: wait in the kernel.
#[inline(always)]
fn wait_for_memory(request: &Request<'_>, limit: &WaitLimit) -> bool {
    let socket = request.socket;
    let mode = WaitMode::of(socket);
    let budget_ns = wait::budget(&socket.spin_budget_ns, mode);
    let mut spin = Spin::begin(mode, budget_ns);
    loop {
        if socket.has_memory_bytes() {
            wait::adjust_budget(socket, true);
            spin.note_success();
            return true;
        }
        if socket.kernel_has_bytes_for_us() || spin.is_clock_due() && limit.interrupted() {
            return false;
        }
        match spin.step() {
            SpinStep::Retry => {}
            SpinStep::CheckKernel => {
                if limit.left_ns() == Some(0) || kernel::events(request.fd) & !libc::POLLOUT != 0 {
                    return false;
                }
                if socket.current_descriptor(request.fd) != request.fd {
                    return false;
                }
                if socket.return_is_requested() {
                    socket.flush_to_kernel(request.fd);
                }
            }
            SpinStep::Sleep => break,
        }
    }
    if budget_ns > 0 {
        wait::adjust_budget(socket, false);
        socket.record().incoming.failed_spins.add(1);
    }
    sleep_for_memory(request, limit)
}

/// Sleeps until memory has bytes, for a short time; true if it has.
fn sleep_for_memory(request: &Request<'_>, limit: &WaitLimit) -> bool {
    let socket = request.socket;
    // The peer must be able to answer to memory at all, and this end's bytes must not be waited for
    // by somebody who cannot see them.
    let is_short = limit.left_ns().is_some_and(|left| left <= MEMORY_SLEEP_NS);
    if is_short || !socket.peer_may_send_to_memory() {
        return false;
    }
    if kernel::events(request.fd) & !libc::POLLOUT == 0 {
        wait::sleep_for_memory(socket, MEMORY_SLEEP_NS);
    }
    socket.has_memory_bytes()
}

/// Sends: returns the count, or −1 with `errno` set.
#[inline]
pub fn send(request: Request<'_>, raw: impl Fn() -> isize) -> isize {
    let total = total(request.parts);
    let socket = request.socket;
    if total == 0 {
        return send_to_kernel(&request, 0, 0, raw);
    }
    if let Some(errno) = socket.take_error() {
        return kernel::fail(errno);
    }
    socket.learn_kernel_sent(request.fd);
    if !is_worth_memory(socket, total) {
        return send_to_kernel(&request, 0, total, raw);
    }
    if total >= BULK_BYTES && !socket.may_send_to_memory() && socket.is_within_memory_limit(total) {
        wait_for_drain(socket, DRAIN_NS);
    }
    let mut done = send_to_memory(&request, 0);
    if done == 0 && drain_stream(&request) {
        done = send_to_memory(&request, 0);
    }
    if done == total {
        return total as isize;
    }
    let mut limit = SendLimit::begin();
    if socket.may_send_to_memory() {
        done = send_to_full_pipe(&request, done, total, &mut limit);
        if limit.is_over && done > 0 {
            return done as isize;
        }
    }
    if done == total {
        return total as isize;
    }
    if total - done > CHUNK_BYTES && !request.is_nonblocking() && !has_send_timeout(request.fd) {
        return send_in_chunks(&request, done, total, limit, raw);
    }
    send_to_kernel(&request, done, total, raw)
}

/// Whether to send so many bytes to memory: not if that has failed again and again, and would cost
/// a copy of many bytes once more.
#[inline]
pub fn is_worth_memory(socket: &Socket, bytes: usize) -> bool {
    bytes < LARGE_BYTES || socket.peer_sleeps_for_memory() || socket.failed_sends.is_next_worth_it()
}

/// Waits a moment until the peer, which is awake, has received what is in the kernel: then memory
/// can take the next bytes.
fn wait_for_drain(socket: &'static Socket, limit_ns: u64) {
    let is_likely = || socket.failed_drains.is_next_worth_it();
    if !socket.is_draining() || !is_likely() {
        return;
    }
    let mode = WaitMode::of(socket);
    if mode == WaitMode::Sleep {
        return;
    }
    let mut spin = Spin::begin(mode, limit_ns);
    while socket.is_draining() && spin.step() != SpinStep::Sleep {}
    if !socket.is_draining() {
        spin.note_success();
    }
    socket.failed_drains.note(!socket.is_draining());
}

/// Memory could not take a message. If it is one of a stream that goes through the kernel, waits
/// now and then until the peer has received all; true if memory can take it now.
#[cold]
fn drain_stream(request: &Request<'_>) -> bool {
    let socket = request.socket;
    if !socket.sends_to_peer_behind.is_wait_due(socket.is_draining()) {
        return false;
    }
    wait_for_drain(socket, if request.is_nonblocking() { DRAIN_NS } else { DRAIN_CHUNK_NS });
    socket.may_send_to_memory()
}

/// Whether `SO_SNDTIMEO` is set: it limits a call, and would limit each of its chunks.
pub fn has_send_timeout(fd: c_int) -> bool {
    kernel::time_option(fd, libc::SO_SNDTIMEO) != Some(0)
}

/// Sends a large blocking call through the kernel, chunk by chunk, until memory can take the rest.
#[cold]
fn send_in_chunks(
    request: &Request<'_>,
    done: usize,
    total: usize,
    mut limit: SendLimit,
    raw: impl Fn() -> isize,
) -> isize {
    let socket = request.socket;
    let mut done = done;
    while total - done > CHUNK_BYTES {
        let sent = send_to_kernel(request, done, done + CHUNK_BYTES, || -1);
        if sent < (done + CHUNK_BYTES) as isize {
            return sent;
        }
        done = sent as usize;
        wait_for_drain(socket, DRAIN_CHUNK_NS);
        done = send_to_full_pipe(request, done, total, &mut limit);
        if limit.check(request.fd) {
            return done as isize;
        }
    }
    if done == total { total as isize } else { send_to_kernel(request, done, total, raw) }
}

/// Sends what fits to memory, from byte `done` of the buffers on, if the direction may use it;
/// returns how much.
#[inline(always)]
fn send_to_memory(request: &Request<'_>, done: usize) -> usize {
    let bytes = total(request.parts) - done;
    request.socket.send_to_memory(request.fd, bytes, || {
        let outgoing = request.socket.outgoing();
        match request.parts {
            [one] if done == 0 => {
                // SAFETY: the caller's vector names readable memory of this length.
                outgoing.push(unsafe { slice::from_raw_parts(one.iov_base.cast(), one.iov_len) })
            }
            _ => outgoing.push_parts(request.rest(done).map(|(start, bytes)| {
                // SAFETY: the caller's vector names readable memory of this length, live for the
                // call.
                unsafe { slice::from_raw_parts(start.cast_const(), bytes) }
            })),
        }
    })
}

/// Sends to memory alone, what it takes, waiting for space as long as it pays; the caller sends the
/// rest through the kernel. Returns how many bytes are there.
pub fn send_to_memory_alone(request: &Request<'_>) -> usize {
    let total = total(request.parts);
    request.socket.learn_kernel_sent(request.fd);
    let done = send_to_memory(request, 0);
    send_to_full_pipe(request, done, total, &mut SendLimit::begin())
}

/// What ends a call that has sent a part and waits for space in a full pipe, again and again: its
/// `SO_SNDTIMEO`, and a signal handler.
struct SendLimit {
    /// When the first wait began, ns, by the kernel's ticks.
    begun_ns: u64,
    /// The limit, ns; it is read only in a call that has taken long.
    limit_ns: Option<u64>,
    /// Shows whether a handler has run since the first wait began.
    wait: WaitLimit,
    is_over: bool,
}

impl SendLimit {
    fn begin() -> SendLimit {
        let wait = WaitLimit::new(None);
        SendLimit { begun_ns: wait::tick_ns(), limit_ns: None, wait, is_over: false }
    }

    /// Whether the call ends. A limit below [`TICK_NS`] is as long as that.
    fn check(&mut self, fd: c_int) -> bool {
        let elapsed_ns = wait::tick_ns() - self.begun_ns;
        if elapsed_ns >= TICK_NS {
            let read = || kernel::time_option(fd, libc::SO_SNDTIMEO).filter(|ns| *ns > 0);
            let limit_ns = *self.limit_ns.get_or_insert_with(|| read().unwrap_or(u64::MAX));
            self.is_over = elapsed_ns >= limit_ns;
        }
        self.is_over |= self.wait.has_seen_handler();
        self.is_over
    }
}

/// The pipe is full with `done` bytes of the call: waits for space as long as the peer is awake and
/// it pays; the kernel takes the rest, unless the call ends by its limit. Returns how many bytes of
/// the call were sent now.
#[cold]
fn send_to_full_pipe(
    request: &Request<'_>,
    done: usize,
    total: usize,
    limit: &mut SendLimit,
) -> usize {
    let socket = request.socket;
    let mut done = done;
    let mode = WaitMode::of(socket);
    let patience_ns = match mode {
        WaitMode::Sleep => 0,
        _ if request.is_nonblocking() => FULL_PIPE_NS,
        _ => FULL_PIPE_BLOCKING_NS,
    };
    let mut spin = Spin::begin(mode, patience_ns);
    while done < total && socket.may_send_to_memory() && socket.is_within_memory_limit(total - done)
    {
        let space = socket.outgoing().writable();
        let part = if socket.must_be_atomic(total - done) { ATOMIC_BYTES } else { QUARTER_BYTES };
        if space >= (total - done).min(part) {
            spin.note_success();
            done += send_to_memory(request, done);
            if limit.check(request.fd) {
                break;
            }
            spin = Spin::begin(mode, patience_ns);
        } else if spin.step() == SpinStep::Sleep {
            break;
        }
    }
    done
}

/// Sends the bytes from `done` to `end` through the kernel, blocking or not as the program set it.
/// Returns how many of the call were sent before and now.
fn send_to_kernel(
    request: &Request<'_>,
    done: usize,
    end: usize,
    raw: impl Fn() -> isize,
) -> isize {
    let socket = request.socket;
    let fd = socket.current_descriptor(request.fd);
    if fd < 0 {
        return if done > 0 { done as isize } else { kernel::fail(libc::EBADF) };
    }
    if done == 0
        && let Some(errno) = socket.take_error()
    {
        return kernel::fail(errno);
    }
    if socket.is_sent_past(fd) && !socket.is_held() {
        fallback::move_to_kernel(socket, KernelReason::SentPastLibrary);
    }
    // What is in memory would be behind these bytes for somebody who cannot read memory.
    socket.flush_to_kernel(fd);
    socket.note_hold_of_peer();
    options::apply_cork(socket, fd);
    if socket.is_draining() {
        socket.judged.note_peer_behind();
    }
    let sending = socket.begin_kernel_send();
    let mut sent = 0;
    let mut result = 0;
    let is_all = done == 0 && end == total(request.parts);
    if is_all && fd == request.fd {
        result = raw();
        sent = result.max(0) as usize;
    } else {
        for (start, bytes) in request.rest(done) {
            let (start, bytes) = (start.cast_const().cast(), bytes.min(end - done - sent));
            // SAFETY: the caller's vector names readable memory of this length.
            result = unsafe { kernel::sendto(fd, start, bytes, request.flags, ptr::null(), 0) };
            sent += result.max(0) as usize;
            if result < bytes as isize || done + sent == end {
                break;
            }
        }
    }
    let errno = kernel::errno();
    if sent > 0 {
        socket.count_kernel_sent(sent);
        let counters = &socket.record().outgoing;
        counters.kernel_bytes.add(sent as u64);
        counters.kernel_calls.add(1);
        contention::note_bytes(sent);
    }
    drop(sending);
    after_kernel_send(socket, fd);
    kernel::set_errno(errno);
    if done + sent > 0 { (done + sent) as isize } else { result }
}

/// Finds out what was sent through the kernel, if that is not known or does not fit.
#[inline]
fn after_kernel_send(socket: &'static Socket, fd: c_int) {
    socket.learn_kernel_sent(fd);
    let calls = socket.calls.load(Ordering::Relaxed).wrapping_add(1);
    socket.calls.store(calls, Ordering::Relaxed);
    if calls.is_multiple_of(CALLS_PER_CORRECTION) && !socket.is_held() {
        socket.correct_kernel_sent(fd);
        if socket.judged.is_worthless(socket.record(), wait::tick_ns()) {
            fallback::move_to_kernel(socket, KernelReason::NotWorthIt);
            socket.release_outgoing_area();
        }
    }
}
