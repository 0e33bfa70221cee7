//! Receiving and sending on a joined socket: with the semantics of TCP, whichever way each
//! direction goes at the moment.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::slice;
use std::sync::atomic::Ordering;

use libc::iovec;
use nm_ring::conduit::{CLOSED, WRITE_SHUT};
use nm_ring::ledger::KernelReason;

use crate::socket::{AFTER_PIPE, BEFORE_PIPE, IN_PIPE, Socket, WRITABLE_BYTES, pid};
use crate::wait::{self, WaitLimit, WaitOutcome};
use crate::{kernel, rendezvous, signals};

/// Longest time that non-blocking calls on an empty pipe do not poll the kernel socket, ns.
const KERNEL_CHECK_NS: u64 = 50_000;

/// Longest time that a sender whose bytes are not read does not poll the kernel socket, ns.
const SENDER_KERNEL_CHECK_NS: u64 = 20_000_000;

/// Attempts to read bytes that the peer has published but that are not there.
const MISSING_BYTES_MAX: u32 = 1000;

/// Bits that report data.
const READABLE: u32 = (libc::EPOLLIN | libc::EPOLLRDNORM) as u32;

/// Bits that report the end of the connection.
const END_EVENTS: u32 = (libc::EPOLLHUP | libc::EPOLLERR | libc::EPOLLRDHUP) as u32;

/// Total bytes of a vector.
pub fn total(parts: &[iovec]) -> usize {
    parts.iter().fold(0, |sum, part| sum.saturating_add(part.iov_len))
}

/// One receiving call.
struct ReceiveCall<'a> {
    socket: &'static Socket,
    fd: c_int,
    parts: &'a [iovec],
    total: usize,
    flags: c_int,
    transferred: usize,
    missing_bytes: u32,
}

/// Result of one attempt to transfer bytes.
enum Step {
    /// Try again at once.
    Retry,
    /// Nothing could be transferred: wait.
    Wait,
    /// The call returns: a count, or −1 with `errno` set.
    Return(isize),
}

/// Counts attempts of a call that transfer nothing and do not wait. A correct peer causes a few;
/// one that keeps changing the shared memory could make a call loop forever, because the bytes it
/// announces are never there.
#[derive(Default)]
struct SpuriousWakeups {
    transferred: usize,
    count: u32,
}

/// Spurious wake-ups after which the connection is reset.
const SPURIOUS_WAKEUPS_MAX: u32 = 1 << 20;

impl SpuriousWakeups {
    /// Counts an attempt after `transferred` bytes; true if the peer violates the protocol.
    fn exceeds_limit(&mut self, transferred: usize) -> bool {
        if transferred != self.transferred {
            (self.transferred, self.count) = (transferred, 0);
        }
        self.count += 1;
        self.count > SPURIOUS_WAKEUPS_MAX
    }
}

/// Receives into `parts`: returns the count, 0 at the end of the stream, or −1 with `errno` set.
#[inline]
pub fn receive(socket: &'static Socket, fd: c_int, parts: &[iovec], flags: c_int) -> isize {
    let total = total(parts);
    let mut call =
        ReceiveCall { socket, fd, parts, total, flags, transferred: 0, missing_bytes: 0 };
    let mut limit = None;
    let mut spurious = SpuriousWakeups::default();
    loop {
        let step = match socket.incoming_stage.load(Ordering::Acquire) {
            IN_PIPE => call.receive_from_pipe(),
            BEFORE_PIPE => call.before_pipe(),
            _ => call.receive_from_kernel(usize::MAX),
        };
        match step {
            Step::Retry if spurious.exceeds_limit(call.transferred) => {
                return call.finish(kernel::fail(libc::ECONNRESET));
            }
            Step::Retry => continue,
            Step::Return(result) => return call.finish(result),
            Step::Wait => spurious.count = 0,
        }
        if call.transferred > 0 && flags & libc::MSG_WAITALL == 0 {
            return call.finish(0);
        }
        if flags & libc::MSG_DONTWAIT != 0 || socket.nonblocking() {
            return call.finish(kernel::fail(libc::EAGAIN));
        }
        let limit = limit.get_or_insert_with(|| WaitLimit::new(socket.receive_timeout_ns()));
        // A hostile peer may announce bytes at each check that are never there: the time limit
        // holds all the same.
        if limit.left_ns() == Some(0) {
            return call.finish(kernel::fail(libc::EAGAIN));
        }
        match wait::readable(socket, call.fd, limit) {
            WaitOutcome::Retry => {}
            WaitOutcome::TimedOut => return call.finish(kernel::fail(libc::EAGAIN)),
            WaitOutcome::Interrupted => return call.finish(kernel::fail(libc::EINTR)),
        }
        call.fd = socket.current_descriptor(call.fd);
        if call.fd < 0 {
            return call.finish(kernel::fail(libc::EBADF));
        }
    }
}

impl ReceiveCall<'_> {
    /// The call's result: transferred bytes take precedence over a later error.
    #[inline(always)]
    fn finish(&self, result: isize) -> isize {
        if self.transferred > 0 { self.transferred as isize } else { result }
    }

    fn has_flag(&self, flag: c_int) -> bool {
        self.flags & flag != 0
    }

    /// Whether the call may return with what it has.
    #[inline(always)]
    fn is_complete(&self) -> bool {
        self.transferred >= self.total || !self.has_flag(libc::MSG_WAITALL)
    }

    /// Receives from the pipe.
    #[inline(always)]
    fn receive_from_pipe(&mut self) -> Step {
        let socket = self.socket;
        let incoming = socket.incoming();
        let readable = incoming.readable();
        if readable == 0 {
            return self.on_empty_pipe();
        }
        if self.total == 0 {
            return Step::Return(0);
        }
        if self.flags & (libc::MSG_PEEK | libc::MSG_TRUNC) != 0 {
            return self.peek(readable);
        }
        let _deferral = signals::defer_handlers();
        if !incoming.lock_receive(pid()) {
            return Step::Return(kernel::fail(libc::EAGAIN));
        }
        if self.has_returned_to_kernel() {
            return Step::Retry;
        }
        let count = self.pull();
        if count > 0 {
            let counters = &socket.record().incoming;
            counters.memory_bytes.add_exclusive(count as u64);
            counters.memory_calls.add_exclusive(1);
        }
        incoming.unlock_receive();
        if count == 0 {
            return self.protocol_violation();
        }
        self.transferred += count;
        socket.wake_peer_writer();
        if self.is_complete() { Step::Return(0) } else { Step::Retry }
    }

    /// Under the receive lock, which is released if true: whether the remaining bytes come through
    /// the kernel, because the peer or another process that shares this end requested it.
    #[inline(always)]
    fn has_returned_to_kernel(&self) -> bool {
        let incoming = self.socket.incoming();
        if incoming.resend_from().is_none() {
            return false;
        }
        self.socket.incoming_stage.store(AFTER_PIPE, Ordering::Release);
        incoming.unlock_receive();
        true
    }

    /// Bytes were announced, but another thread took them, or they were never there.
    #[cold]
    fn protocol_violation(&mut self) -> Step {
        self.missing_bytes += 1;
        if self.missing_bytes < MISSING_BYTES_MAX {
            return Step::Retry;
        }
        self.socket.record().set_reason(KernelReason::Inconsistent, 0);
        Step::Return(kernel::fail(libc::ECONNRESET))
    }

    /// Receives what fits, part by part, under the receive lock.
    #[inline(always)]
    fn pull(&self) -> usize {
        let incoming = self.socket.incoming();
        let (mut skip, mut count) = (self.transferred, 0);
        for part in self.parts {
            if skip >= part.iov_len {
                skip -= part.iov_len;
                continue;
            }
            let bytes = part.iov_len - skip;
            // SAFETY: the caller's vector names writable memory of this length.
            let buffer =
                unsafe { slice::from_raw_parts_mut(part.iov_base.cast::<u8>().add(skip), bytes) };
            skip = 0;
            let now = incoming.pull(buffer);
            count += now;
            if now < bytes {
                break;
            }
        }
        count
    }

    /// `MSG_PEEK` leaves the bytes in the pipe, `MSG_TRUNC` does not copy them.
    #[cold]
    fn peek(&mut self, readable: usize) -> Step {
        let incoming = self.socket.incoming();
        let wanted = self.total.min(nm_ring::pipe::PIPE_BYTES);
        if self.has_flag(libc::MSG_PEEK)
            && self.has_flag(libc::MSG_WAITALL)
            && readable < wanted
            && incoming.ends_at().is_none()
            && self.socket.kernel_events() & END_EVENTS == 0
        {
            return self.wait_for_bytes(wanted);
        }
        let _deferral = signals::defer_handlers();
        if !incoming.lock_receive(pid()) {
            return Step::Return(kernel::fail(libc::EAGAIN));
        }
        if self.has_returned_to_kernel() {
            return Step::Retry;
        }
        let mut count = 0;
        if !self.has_flag(libc::MSG_PEEK) {
            count = incoming.discard(self.total - self.transferred);
        } else if self.has_flag(libc::MSG_TRUNC) {
            count = incoming.readable().min(self.total);
        } else {
            for part in self.parts.iter().filter(|part| part.iov_len > 0) {
                let start = part.iov_base.cast::<u8>();
                // SAFETY: the caller's vector names writable memory of this length.
                let buffer = unsafe { slice::from_raw_parts_mut(start, part.iov_len) };
                let now = incoming.peek(count, buffer);
                count += now;
                if now < part.iov_len {
                    break;
                }
            }
        }
        incoming.unlock_receive();
        self.transferred += count;
        if !self.has_flag(libc::MSG_PEEK) {
            self.socket.wake_peer_writer();
            return if self.is_complete() { Step::Return(0) } else { Step::Retry };
        }
        if count == 0 { self.protocol_violation() } else { Step::Return(0) }
    }

    /// Waits until `wanted` bytes are in the pipe, by short sleeps, because the doorbell rings for
    /// the first byte only.
    #[cold]
    fn wait_for_bytes(&mut self, wanted: usize) -> Step {
        let limit = WaitLimit::new(self.socket.receive_timeout_ns());
        let incoming = self.socket.incoming();
        if self.has_flag(libc::MSG_DONTWAIT) || self.socket.nonblocking() {
            self.flags &= !libc::MSG_WAITALL;
            return Step::Retry;
        }
        while incoming.readable() < wanted && incoming.ends_at().is_none() {
            if limit.interrupted() || limit.left_ns() == Some(0) || self.socket.is_closing() {
                break;
            }
            if self.socket.poll_kernel_events(self.fd) & (END_EVENTS | READABLE) != 0 {
                break;
            }
            let _ = kernel::poll(&mut [], Some(200_000));
        }
        self.flags &= !libc::MSG_WAITALL;
        Step::Retry
    }

    /// The pipe is empty: it may have ended, or the kernel may report an end.
    #[inline(always)]
    fn on_empty_pipe(&mut self) -> Step {
        let socket = self.socket;
        if socket.incoming().ends_at().is_some() {
            return self.leave_pipe();
        }
        if socket.kernel_events() & (READABLE | END_EVENTS) != 0 {
            return self.on_kernel_event();
        }
        if self.transferred == 0 && (self.has_flag(libc::MSG_DONTWAIT) || socket.nonblocking()) {
            let now = wait::now_ns();
            if now.wrapping_sub(socket.kernel_checked_at_ns.load(Ordering::Relaxed))
                > KERNEL_CHECK_NS
            {
                socket.kernel_checked_at_ns.store(now, Ordering::Relaxed);
                if socket.poll_kernel_events(self.fd) & (READABLE | END_EVENTS) != 0 {
                    return self.on_kernel_event();
                }
            }
        }
        Step::Wait
    }

    /// The peer has ended the pipe: once it is empty, bytes come through the kernel.
    #[cold]
    fn leave_pipe(&mut self) -> Step {
        let socket = self.socket;
        let incoming = socket.incoming();
        let _deferral = signals::defer_handlers();
        if incoming.lock_receive(pid()) {
            if incoming.readable() == 0 {
                socket.incoming_stage.store(AFTER_PIPE, Ordering::Release);
                socket.record().incoming.fallbacks.add(1);
            }
            incoming.unlock_receive();
        }
        Step::Retry
    }

    /// The kernel socket has events while the pipe was empty: an end, an error, or bytes that were
    /// written to it without this library.
    #[cold]
    fn on_kernel_event(&mut self) -> Step {
        let socket = self.socket;
        if socket.incoming().readable() > 0 || socket.incoming().ends_at().is_some() {
            return Step::Retry;
        }
        let mut byte = 0_u8;
        let flags = libc::MSG_DONTWAIT | libc::MSG_PEEK;
        let (target, none) = ((&raw mut byte).cast(), ptr::null_mut());
        // SAFETY: the byte is live.
        let result = unsafe { kernel::recvfrom(self.fd, target, 1, flags, none, ptr::null_mut()) };
        if socket.incoming().readable() > 0 || socket.incoming().ends_at().is_some() {
            return Step::Retry;
        }
        match result {
            0 => self.end_of_stream(),
            1.. => {
                let step = self.receive_from_kernel(usize::MAX);
                socket.poll_kernel_events(self.fd);
                step
            }
            _ if kernel::errno() == libc::EAGAIN => {
                socket.poll_kernel_events(self.fd);
                if socket.kernel_events() & (READABLE | END_EVENTS) == 0 {
                    Step::Retry
                } else {
                    Step::Wait
                }
            }
            _ => Step::Return(-1),
        }
    }

    /// The kernel reports the end of the stream. If the peer did not announce it in shared memory,
    /// it has died; if it left bytes of ours unread, the kernel would have reset the connection.
    fn end_of_stream(&self) -> Step {
        let socket = self.socket;
        let peer_has_shut =
            socket.peer().state.load(Ordering::Acquire) & (CLOSED | WRITE_SHUT) != 0;
        let own_read_shut =
            socket.own().state.load(Ordering::Acquire) & nm_ring::conduit::READ_SHUT != 0;
        if !peer_has_shut
            && !own_read_shut
            && socket.outgoing().readable() > 0
            && socket.outgoing().resend_from().is_none()
            && socket.reset_reported.swap(1, Ordering::AcqRel) == 0
        {
            socket.record().set_reason(KernelReason::PeerDied, 0);
            return Step::Return(kernel::fail(libc::ECONNRESET));
        }
        Step::Return(0)
    }

    /// Before the peer's pipe begins: bytes come through the kernel up to that position.
    #[cold]
    fn before_pipe(&mut self) -> Step {
        let socket = self.socket;
        socket.withdraw_stale_offer();
        let incoming = socket.incoming();
        let _deferral = signals::defer_handlers();
        if !incoming.lock_receive(pid()) {
            return Step::Return(kernel::fail(libc::EAGAIN));
        }
        // Another thread may have moved the direction on since its stage was read.
        let step = match socket.incoming_stage.load(Ordering::Acquire) {
            BEFORE_PIPE => self.before_pipe_locked(),
            _ => Step::Retry,
        };
        incoming.unlock_receive();
        step
    }

    fn before_pipe_locked(&mut self) -> Step {
        let socket = self.socket;
        let incoming = socket.incoming();
        let Some((received, unread)) = rendezvous::received_through_kernel(self.fd) else {
            return Step::Retry;
        };
        // In this order: what the kernel had before this check belongs before the pipe.
        let limit = match (incoming.starts_at(), incoming.ends_at()) {
            (Some(begin), _) if begin <= received => {
                // The stored kernel events are of bytes that were received since. The kernel is not
                // polled again before it reports new events, so they must be cleared now.
                socket.poll_kernel_events(self.fd);
                socket.incoming_stage.store(IN_PIPE, Ordering::Release);
                return Step::Retry;
            }
            (Some(begin), _) => begin - received,
            (None, Some(_)) => {
                socket.incoming_stage.store(AFTER_PIPE, Ordering::Release);
                return Step::Retry;
            }
            (None, None) if unread > 0 => unread,
            // No bytes: the kernel may report an end or an error.
            (None, None) => {
                return match self.peek_kernel() {
                    1.. => Step::Retry,
                    0 => Step::Return(0),
                    _ if kernel::errno() == libc::EAGAIN => Step::Wait,
                    _ => Step::Return(-1),
                };
            }
        };
        self.receive_from_kernel(limit as usize)
    }

    fn peek_kernel(&self) -> isize {
        let mut byte = 0_u8;
        let flags = libc::MSG_DONTWAIT | libc::MSG_PEEK;
        let (target, none) = ((&raw mut byte).cast(), ptr::null_mut());
        // SAFETY: the byte is live.
        unsafe { kernel::recvfrom(self.fd, target, 1, flags, none, ptr::null_mut()) }
    }

    /// Receives at most `limit` bytes from the kernel without blocking.
    fn receive_from_kernel(&mut self, limit: usize) -> Step {
        let flags = (self.flags | libc::MSG_DONTWAIT) & !libc::MSG_WAITALL;
        let mut received = 0;
        let mut skip = self.transferred;
        for part in self.parts {
            if skip >= part.iov_len && self.total > 0 {
                skip -= part.iov_len;
                continue;
            }
            let bytes = (part.iov_len - skip).min(limit - received);
            let target = part.iov_base.cast::<u8>().wrapping_add(skip).cast::<c_void>();
            skip = 0;
            let none = ptr::null_mut();
            // SAFETY: the caller's vector names writable memory of this length.
            let result =
                unsafe { kernel::recvfrom(self.fd, target, bytes, flags, none, ptr::null_mut()) };
            if result <= 0 {
                if self.transferred + received > 0 {
                    break;
                }
                self.socket.clear_kernel_events(READABLE as c_int);
                return match result {
                    0 => Step::Return(0),
                    _ if kernel::errno() == libc::EAGAIN => Step::Wait,
                    _ => Step::Return(-1),
                };
            }
            received += result as usize;
            if (result as usize) < bytes || received >= limit || self.has_flag(libc::MSG_PEEK) {
                break;
            }
        }
        self.transferred += received;
        if received > 0 {
            let counters = &self.socket.record().incoming;
            counters.kernel_bytes.add(received as u64);
            counters.kernel_calls.add(1);
        }
        self.socket.finish_return();
        if self.is_complete() || self.has_flag(libc::MSG_PEEK) {
            Step::Return(0)
        } else if received == 0 {
            // The stream ended after the bytes that the call has received.
            Step::Return(self.transferred as isize)
        } else {
            Step::Retry
        }
    }
}

/// One sending call.
struct SendCall<'a> {
    socket: &'static Socket,
    fd: c_int,
    parts: &'a [iovec],
    total: usize,
    flags: c_int,
    transferred: usize,
}

/// Sends `parts`: returns the count, or −1 with `errno` set.
#[inline]
pub fn send(socket: &'static Socket, fd: c_int, parts: &[iovec], flags: c_int) -> isize {
    let mut call = SendCall { socket, fd, parts, total: total(parts), flags, transferred: 0 };
    let mut limit = None;
    let mut spurious = SpuriousWakeups::default();
    loop {
        let step = match socket.outgoing_stage.load(Ordering::Acquire) {
            IN_PIPE => call.send_to_pipe(),
            BEFORE_PIPE => call.before_pipe(),
            _ => call.after_pipe(),
        };
        match step {
            Step::Retry if spurious.exceeds_limit(call.transferred) => {
                let reset = kernel::fail(libc::ECONNRESET);
                return if call.transferred > 0 { call.transferred as isize } else { reset };
            }
            Step::Retry => continue,
            Step::Return(result) => {
                return if call.transferred > 0 { call.transferred as isize } else { result };
            }
            Step::Wait => spurious.count = 0,
        }
        let transferred = call.transferred;
        let end = |error| if transferred > 0 { transferred as isize } else { kernel::fail(error) };
        if flags & libc::MSG_DONTWAIT != 0 || socket.nonblocking() {
            return end(libc::EAGAIN);
        }
        let limit = limit.get_or_insert_with(|| WaitLimit::new(socket.send_timeout_ns()));
        // A hostile peer may show free space at each check that is never there: the time limit
        // holds all the same.
        if limit.left_ns() == Some(0) {
            return end(libc::EAGAIN);
        }
        match wait::writable(socket, call.fd, limit) {
            WaitOutcome::Retry => {}
            WaitOutcome::TimedOut => return end(libc::EAGAIN),
            WaitOutcome::Interrupted => return end(libc::EINTR),
        }
        call.fd = socket.current_descriptor(call.fd);
        if call.fd < 0 {
            return end(libc::EBADF);
        }
        if socket.kernel_events() & END_EVENTS != 0 {
            socket.end_outgoing_pipe();
        }
    }
}

impl SendCall<'_> {
    /// The parts that are still to be sent.
    fn remaining_parts(&self) -> impl Iterator<Item = &'static [u8]> {
        let mut skip = self.transferred;
        self.parts.iter().filter_map(move |part| {
            if skip >= part.iov_len {
                skip -= part.iov_len;
                return None;
            }
            let (start, bytes) =
                (part.iov_base.cast::<u8>().wrapping_add(skip), part.iov_len - skip);
            skip = 0;
            // SAFETY: the caller's vector names readable memory of this length, live for the call.
            Some(unsafe { slice::from_raw_parts(start, bytes) })
        })
    }

    /// Pushes what fits into the pipe.
    #[inline(always)]
    fn send_to_pipe(&mut self) -> Step {
        let socket = self.socket;
        if socket.peer().state.load(Ordering::Acquire) & (CLOSED | WRITE_SHUT) != 0 {
            socket.end_outgoing_pipe();
            // It is not ended only if the lock could not be acquired.
            let ended = socket.outgoing_stage.load(Ordering::Acquire) == AFTER_PIPE;
            return if ended { Step::Retry } else { Step::Return(kernel::fail(libc::EAGAIN)) };
        }
        if self.total == 0 {
            return Step::Return(0);
        }
        let outgoing = socket.outgoing();
        let _deferral = signals::defer_handlers();
        if !outgoing.lock_send(pid()) {
            return Step::Return(kernel::fail(libc::EAGAIN));
        }
        if outgoing.ends_at().is_some() {
            socket.outgoing_stage.store(AFTER_PIPE, Ordering::Release);
            socket.record().outgoing.fallbacks.add(1);
            outgoing.unlock_send();
            return Step::Retry;
        }
        let count = match self.parts {
            [one] if self.transferred == 0 => {
                // SAFETY: the caller's vector names readable memory of this length.
                outgoing.push(unsafe { slice::from_raw_parts(one.iov_base.cast(), one.iov_len) })
            }
            _ => outgoing.push_parts(self.remaining_parts()),
        };
        if count > 0 {
            let counters = &socket.record().outgoing;
            counters.memory_bytes.add_exclusive(count as u64);
            counters.memory_calls.add_exclusive(1);
        }
        outgoing.unlock_send();
        socket.wake_peer_reader();
        self.transferred += count;
        if self.transferred >= self.total {
            if outgoing.readable() > count {
                self.check_kernel_occasionally();
            }
            return Step::Return(0);
        }
        if outgoing.writable() >= WRITABLE_BYTES {
            return Step::Retry;
        }
        socket.note_full();
        self.check_kernel_occasionally();
        if socket.outgoing_stage.load(Ordering::Relaxed) == AFTER_PIPE {
            Step::Retry
        } else {
            Step::Wait
        }
    }

    /// The peer leaves bytes unread: it may have died.
    fn check_kernel_occasionally(&self) {
        let socket = self.socket;
        let now = wait::now_ns();
        if now.wrapping_sub(socket.kernel_checked_at_ns.load(Ordering::Relaxed))
            > SENDER_KERNEL_CHECK_NS
        {
            socket.kernel_checked_at_ns.store(now, Ordering::Relaxed);
            if socket.poll_kernel_events(self.fd) & END_EVENTS != 0 {
                socket.end_outgoing_pipe();
            }
        }
    }

    /// Before the pipe begins: begins it if possible, else sends through the kernel.
    #[cold]
    fn before_pipe(&mut self) -> Step {
        let socket = self.socket;
        socket.withdraw_stale_offer();
        socket.start_outgoing_pipe(self.fd);
        if socket.outgoing_stage.load(Ordering::Acquire) != BEFORE_PIPE {
            return Step::Retry;
        }
        if !socket.begin_kernel_send() {
            std::hint::spin_loop();
            return Step::Retry;
        }
        let step = if socket.outgoing_stage.load(Ordering::Acquire) == BEFORE_PIPE {
            self.send_to_kernel()
        } else {
            Step::Retry
        };
        socket.end_kernel_send();
        step
    }

    /// After the pipe: bytes that the peer requested again are replayed first.
    #[cold]
    fn after_pipe(&mut self) -> Step {
        let socket = self.socket;
        if socket.replay_pending() {
            socket.replay(self.fd);
            if socket.replay_pending() {
                return Step::Wait;
            }
        }
        let step = self.send_to_kernel();
        socket.finish_return();
        step
    }

    /// Sends the rest by the kernel's own call, blocking or not as the program set it.
    fn send_to_kernel(&mut self) -> Step {
        let result = if self.transferred == 0 {
            // SAFETY: all zero is a valid message header.
            let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
            header.msg_iov = self.parts.as_ptr().cast_mut();
            header.msg_iovlen = self.parts.len() as _;
            // SAFETY: the vector is the caller's.
            unsafe { kernel::sendmsg(self.fd, &raw const header, self.flags) }
        } else {
            let Some(next) = self.remaining_parts().next() else { return Step::Return(0) };
            let start = next.as_ptr().cast();
            // SAFETY: the part is live and of this length.
            unsafe { kernel::sendto(self.fd, start, next.len(), self.flags, ptr::null(), 0) }
        };
        if result < 0 {
            self.socket.clear_kernel_events(libc::EPOLLOUT | libc::EPOLLWRNORM);
            return Step::Return(-1);
        }
        let counters = &self.socket.record().outgoing;
        counters.kernel_bytes.add(result as u64);
        counters.kernel_calls.add(1);
        let retry =
            self.transferred > 0 && result > 0 && self.transferred + (result as usize) < self.total;
        self.transferred += result as usize;
        if retry { Step::Retry } else { Step::Return(0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::socket::Phase;
    use crate::table;
    use nm_ring::EndpointRole;
    use nm_ring::conduit::ConduitMapping;
    use nm_ring::ledger::Ledger;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::{AsRawFd as _, IntoRawFd as _};

    /// A joined socket on `fd`; like those of the library, it is never freed.
    fn joined(fd: c_int) -> &'static Socket {
        table::take_ownership();
        let (ledger, _) = Ledger::create(std::process::id(), "test", "", 0).unwrap();
        let ledger: &'static Ledger = Box::leak(Box::new(ledger));
        let record = ledger.claim(std::process::id(), 0).expect("a new ledger has room");
        let socket: &'static Socket = Box::leak(Box::new(Socket::new()));
        socket.open(fd, record, Phase::Candidate);
        let (conduit, _) = ConduitMapping::new().unwrap();
        let [own, peer] = [(); 2].map(|()| {
            let flags = rustix::event::EventfdFlags::NONBLOCK;
            rustix::event::eventfd(0, flags).unwrap().into_raw_fd()
        });
        socket.join(conduit, EndpointRole::Opener, own, peer);
        socket
    }

    /// A call has read the stage, and before it has the lock another thread moves the direction
    /// through the pipe and back to the kernel.
    #[test]
    fn a_receive_that_lost_a_race_does_not_move_the_direction_back() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let socket = joined(client.as_raw_fd());
        socket.incoming().set_starts_at(0);
        socket.incoming().set_ends_at(0);
        socket.incoming_stage.store(AFTER_PIPE, Ordering::Release);
        let mut bytes = [0_u8; 8];
        let parts = [iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() }];
        let (fd, total) = (client.as_raw_fd(), bytes.len());
        let mut call = ReceiveCall {
            socket,
            fd,
            parts: &parts,
            total,
            flags: 0,
            transferred: 0,
            missing_bytes: 0,
        };
        assert!(matches!(call.before_pipe(), Step::Retry));
        assert_eq!(socket.incoming_stage.load(Ordering::Acquire), AFTER_PIPE);
    }
}
