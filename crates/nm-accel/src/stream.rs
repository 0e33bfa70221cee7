//! Receiving and sending on a joined socket: bytes as TCP would carry them, whichever way each
//! direction goes at the moment.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::slice;
use std::sync::atomic::Ordering;

use libc::iovec;
use nm_ring::conduit::{CLOSED, WRITE_SHUT};
use nm_ring::ledger::KernelReason;

use crate::socket::{AFTER, BEFORE, PIPE, Socket, WRITABLE_BYTES, pid};
use crate::wait::{self, Patience, Woken};
use crate::{kernel, meet, signals};

/// Longest a non-blocking call on an empty pipe goes without a look at the kernel socket, ns.
const LOOK_NS: u64 = 50_000;

/// Longest a sender whose bytes are not taken goes without a look at the kernel socket, ns.
const SENDER_LOOK_NS: u64 = 20_000_000;

/// Looks in vain at bytes that the peer announces and does not deliver.
const CHEATS_MAX: u32 = 1000;

/// What bytes the kernel's and our own calls have in common: where the flags say nothing.
const READABLE: u32 = (libc::EPOLLIN | libc::EPOLLRDNORM) as u32;

/// Bits that tell of an end.
const ENDS: u32 = (libc::EPOLLHUP | libc::EPOLLERR | libc::EPOLLRDHUP) as u32;

/// Bytes in a vector.
pub fn total(parts: &[iovec]) -> usize {
    parts.iter().fold(0, |sum, part| sum.saturating_add(part.iov_len))
}

/// One call that receives.
struct Receiving<'a> {
    socket: &'static Socket,
    fd: c_int,
    parts: &'a [iovec],
    total: usize,
    flags: c_int,
    done: usize,
    cheats: u32,
}

/// What a look at one of the two sources gave.
enum Step {
    /// Look again.
    Again,
    /// Nothing there: wait.
    Empty,
    /// The call ends: with a count, or with −1 and `errno`.
    ConduitEnd(isize),
}

/// Turns of a call that move nothing and wait for nothing. An honest peer causes a few; one that
/// scribbles over the memory could keep a call turning for ever, since what it shows is never
/// there.
#[derive(Default)]
struct Vain {
    done: usize,
    turns: u32,
}

/// Turns in vain after which the connection counts as broken.
const VAIN_MAX: u32 = 1 << 20;

impl Vain {
    /// Counts a turn after `done` bytes; whether the peer cheats.
    fn too_often(&mut self, done: usize) -> bool {
        if done != self.done {
            (self.done, self.turns) = (done, 0);
        }
        self.turns += 1;
        self.turns > VAIN_MAX
    }
}

/// Receives into `parts`: the count, 0 at the end of the stream, −1 and `errno`.
#[inline]
pub fn receive(socket: &'static Socket, fd: c_int, parts: &[iovec], flags: c_int) -> isize {
    let total = total(parts);
    let mut call = Receiving { socket, fd, parts, total, flags, done: 0, cheats: 0 };
    let mut patience = None;
    let mut vain = Vain::default();
    loop {
        let step = match socket.stage_in.load(Ordering::Acquire) {
            PIPE => call.take_from_pipe(),
            BEFORE => call.before(),
            _ => call.take_from_kernel(usize::MAX),
        };
        match step {
            Step::Again if vain.too_often(call.done) => {
                return call.finish(kernel::fail(libc::ECONNRESET));
            }
            Step::Again => continue,
            Step::ConduitEnd(result) => return call.finish(result),
            Step::Empty => vain.turns = 0,
        }
        if call.done > 0 && flags & libc::MSG_WAITALL == 0 {
            return call.finish(0);
        }
        if flags & libc::MSG_DONTWAIT != 0 || socket.nonblocking() {
            return call.finish(kernel::fail(libc::EAGAIN));
        }
        let patience = patience.get_or_insert_with(|| Patience::new(socket.receive_timeout_ns()));
        // What was there at each look, and never at the call, lasts no longer than the call may.
        if patience.left_ns() == Some(0) {
            return call.finish(kernel::fail(libc::EAGAIN));
        }
        match wait::readable(socket, call.fd, patience) {
            Woken::Look => {}
            Woken::TimedOut => return call.finish(kernel::fail(libc::EAGAIN)),
            Woken::Interrupted => return call.finish(kernel::fail(libc::EINTR)),
        }
        call.fd = socket.name_inside(call.fd);
        if call.fd < 0 {
            return call.finish(kernel::fail(libc::EBADF));
        }
    }
}

impl Receiving<'_> {
    /// The call's result: bytes that were moved count more than an error after them.
    #[inline(always)]
    fn finish(&self, result: isize) -> isize {
        if self.done > 0 { self.done as isize } else { result }
    }

    fn is(&self, flag: c_int) -> bool {
        self.flags & flag != 0
    }

    /// Whether the call is done with what it has.
    #[inline(always)]
    fn enough(&self) -> bool {
        self.done >= self.total || !self.is(libc::MSG_WAITALL)
    }

    /// Looks at the pipe.
    #[inline(always)]
    fn take_from_pipe(&mut self) -> Step {
        let socket = self.socket;
        let back = socket.incoming();
        let readable = back.readable();
        if readable == 0 {
            return self.pipe_is_empty();
        }
        if self.total == 0 {
            return Step::ConduitEnd(0);
        }
        if self.flags & (libc::MSG_PEEK | libc::MSG_TRUNC) != 0 {
            return self.peek(readable);
        }
        let _deferral = signals::defer();
        if !back.lock_receive(pid()) {
            return Step::ConduitEnd(kernel::fail(libc::EAGAIN));
        }
        if self.has_gone_back() {
            return Step::Again;
        }
        let count = self.pull();
        if count > 0 {
            let flow = &socket.record().incoming;
            flow.memory_bytes.add_exclusive(count as u64);
            flow.memory_calls.add_exclusive(1);
        }
        back.unlock_receive();
        if count == 0 {
            return self.cheated();
        }
        self.done += count;
        socket.ring_writer();
        if self.enough() { Step::ConduitEnd(0) } else { Step::Again }
    }

    /// Under the receive lock, which is given back then: whether what is left comes through the
    /// kernel, because the peer or another process that shares this end wants it so.
    #[inline(always)]
    fn has_gone_back(&self) -> bool {
        let back = self.socket.incoming();
        if back.resend_from().is_none() {
            return false;
        }
        self.socket.stage_in.store(AFTER, Ordering::Release);
        back.unlock_receive();
        true
    }

    /// Bytes were announced, but another thread took them, or they never came.
    #[cold]
    fn cheated(&mut self) -> Step {
        self.cheats += 1;
        if self.cheats < CHEATS_MAX {
            return Step::Again;
        }
        self.socket.record().set_reason(KernelReason::Inconsistent, 0);
        Step::ConduitEnd(kernel::fail(libc::ECONNRESET))
    }

    /// Takes what fits, part by part, under the receive lock.
    #[inline(always)]
    fn pull(&self) -> usize {
        let back = self.socket.incoming();
        let (mut skip, mut count) = (self.done, 0);
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
            let now = back.pull(buffer);
            count += now;
            if now < bytes {
                break;
            }
        }
        count
    }

    /// `MSG_PEEK` leaves the bytes there, `MSG_TRUNC` does not copy them.
    #[cold]
    fn peek(&mut self, readable: usize) -> Step {
        let back = self.socket.incoming();
        let wanted = self.total.min(nm_ring::pipe::PIPE_BYTES);
        if self.is(libc::MSG_PEEK)
            && self.is(libc::MSG_WAITALL)
            && readable < wanted
            && back.ends_at().is_none()
            && self.socket.known() & ENDS == 0
        {
            return self.await_more(wanted);
        }
        let _deferral = signals::defer();
        if !back.lock_receive(pid()) {
            return Step::ConduitEnd(kernel::fail(libc::EAGAIN));
        }
        if self.has_gone_back() {
            return Step::Again;
        }
        let mut count = 0;
        if !self.is(libc::MSG_PEEK) {
            count = back.discard(self.total - self.done);
        } else if self.is(libc::MSG_TRUNC) {
            count = back.readable().min(self.total);
        } else {
            for part in self.parts.iter().filter(|part| part.iov_len > 0) {
                let start = part.iov_base.cast::<u8>();
                // SAFETY: the caller's vector names writable memory of this length.
                let buffer = unsafe { slice::from_raw_parts_mut(start, part.iov_len) };
                let now = back.peek(count, buffer);
                count += now;
                if now < part.iov_len {
                    break;
                }
            }
        }
        back.unlock_receive();
        self.done += count;
        if !self.is(libc::MSG_PEEK) {
            self.socket.ring_writer();
            return if self.enough() { Step::ConduitEnd(0) } else { Step::Again };
        }
        if count == 0 { self.cheated() } else { Step::ConduitEnd(0) }
    }

    /// Waits until so much lies there: only a short sleep, as the bell rings for the first byte.
    #[cold]
    fn await_more(&mut self, wanted: usize) -> Step {
        let patience = Patience::new(self.socket.receive_timeout_ns());
        let back = self.socket.incoming();
        if self.is(libc::MSG_DONTWAIT) || self.socket.nonblocking() {
            self.flags &= !libc::MSG_WAITALL;
            return Step::Again;
        }
        while back.readable() < wanted && back.ends_at().is_none() {
            if patience.interrupted() || patience.left_ns() == Some(0) || self.socket.closing() {
                break;
            }
            if self.socket.look(self.fd) & (ENDS | READABLE) != 0 {
                break;
            }
            let _ = kernel::poll(&mut [], Some(200_000));
        }
        self.flags &= !libc::MSG_WAITALL;
        Step::Again
    }

    /// The pipe is empty: at its end, the kernel has the word; else it may know of an end.
    #[inline(always)]
    fn pipe_is_empty(&mut self) -> Step {
        let socket = self.socket;
        if socket.incoming().ends_at().is_some() {
            return self.leave_pipe();
        }
        if socket.known() & (READABLE | ENDS) != 0 {
            return self.kernel_has_news();
        }
        if self.done == 0 && (self.is(libc::MSG_DONTWAIT) || socket.nonblocking()) {
            let now = wait::now_ns();
            if now.wrapping_sub(socket.looked_at.load(Ordering::Relaxed)) > LOOK_NS {
                socket.looked_at.store(now, Ordering::Relaxed);
                if socket.look(self.fd) & (READABLE | ENDS) != 0 {
                    return self.kernel_has_news();
                }
            }
        }
        Step::Empty
    }

    /// The peer has ended the pipe: once it is empty, the kernel goes on.
    #[cold]
    fn leave_pipe(&mut self) -> Step {
        let socket = self.socket;
        let back = socket.incoming();
        let _deferral = signals::defer();
        if back.lock_receive(pid()) {
            if back.readable() == 0 {
                socket.stage_in.store(AFTER, Ordering::Release);
                socket.record().incoming.fallbacks.add(1);
            }
            back.unlock_receive();
        }
        Step::Again
    }

    /// The kernel socket says something while the pipe was empty: an end, an error, or bytes that
    /// were written to it past this library.
    #[cold]
    fn kernel_has_news(&mut self) -> Step {
        let socket = self.socket;
        if socket.incoming().readable() > 0 || socket.incoming().ends_at().is_some() {
            return Step::Again;
        }
        let mut byte = 0_u8;
        let flags = libc::MSG_DONTWAIT | libc::MSG_PEEK;
        let (place, none) = ((&raw mut byte).cast(), ptr::null_mut());
        // SAFETY: the byte is live.
        let result = unsafe { kernel::recvfrom(self.fd, place, 1, flags, none, ptr::null_mut()) };
        if socket.incoming().readable() > 0 || socket.incoming().ends_at().is_some() {
            return Step::Again;
        }
        match result {
            0 => self.end_of_stream(),
            1.. => {
                let step = self.take_from_kernel(usize::MAX);
                socket.look(self.fd);
                step
            }
            _ if kernel::errno() == libc::EAGAIN => {
                socket.look(self.fd);
                if socket.known() & (READABLE | ENDS) == 0 { Step::Again } else { Step::Empty }
            }
            _ => Step::ConduitEnd(-1),
        }
    }

    /// The kernel says that the stream has ended. A peer that said nothing of it in shared memory
    /// has died, and where it left bytes of ours unread the kernel would have reset the connection.
    fn end_of_stream(&self) -> Step {
        let socket = self.socket;
        let said = socket.peer().state.load(Ordering::Acquire) & (CLOSED | WRITE_SHUT) != 0;
        let own = socket.own().state.load(Ordering::Acquire) & nm_ring::conduit::READ_SHUT != 0;
        if !said
            && !own
            && socket.outgoing().readable() > 0
            && socket.outgoing().resend_from().is_none()
            && socket.reset_told.swap(1, Ordering::AcqRel) == 0
        {
            socket.record().set_reason(KernelReason::PeerDied, 0);
            return Step::ConduitEnd(kernel::fail(libc::ECONNRESET));
        }
        Step::ConduitEnd(0)
    }

    /// Before the peer's pipe begins: bytes come through the kernel up to where it begins.
    #[cold]
    fn before(&mut self) -> Step {
        let socket = self.socket;
        socket.withdraw();
        let back = socket.incoming();
        let _deferral = signals::defer();
        if !back.lock_receive(pid()) {
            return Step::ConduitEnd(kernel::fail(libc::EAGAIN));
        }
        let step = self.before_locked();
        back.unlock_receive();
        step
    }

    fn before_locked(&mut self) -> Step {
        let socket = self.socket;
        let back = socket.incoming();
        let Some((taken, unread)) = meet::taken_from_kernel(self.fd) else { return Step::Again };
        // In this order: what lay in the kernel before this look belongs before the pipe.
        let limit = match (back.starts_at(), back.ends_at()) {
            (Some(begin), _) if begin <= taken => {
                // What is remembered of the kernel socket are bytes that have been taken since:
                // from now on nobody asks it again before it has news.
                socket.look(self.fd);
                socket.stage_in.store(PIPE, Ordering::Release);
                return Step::Again;
            }
            (Some(begin), _) => begin - taken,
            (None, Some(_)) => {
                socket.stage_in.store(AFTER, Ordering::Release);
                return Step::Again;
            }
            (None, None) if unread > 0 => unread,
            // Nothing there: what the kernel says beside bytes counts.
            (None, None) => {
                return match self.peek_kernel() {
                    1.. => Step::Again,
                    0 => Step::ConduitEnd(0),
                    _ if kernel::errno() == libc::EAGAIN => Step::Empty,
                    _ => Step::ConduitEnd(-1),
                };
            }
        };
        self.take_from_kernel(limit as usize)
    }

    fn peek_kernel(&self) -> isize {
        let mut byte = 0_u8;
        let flags = libc::MSG_DONTWAIT | libc::MSG_PEEK;
        let (place, none) = ((&raw mut byte).cast(), ptr::null_mut());
        // SAFETY: the byte is live.
        unsafe { kernel::recvfrom(self.fd, place, 1, flags, none, ptr::null_mut()) }
    }

    /// Receives at most `limit` bytes from the kernel, as far as they are there.
    fn take_from_kernel(&mut self, limit: usize) -> Step {
        let flags = (self.flags | libc::MSG_DONTWAIT) & !libc::MSG_WAITALL;
        let mut taken = 0;
        let mut skip = self.done;
        for part in self.parts {
            if skip >= part.iov_len && self.total > 0 {
                skip -= part.iov_len;
                continue;
            }
            let bytes = (part.iov_len - skip).min(limit - taken);
            let place = part.iov_base.cast::<u8>().wrapping_add(skip).cast::<c_void>();
            skip = 0;
            let none = ptr::null_mut();
            // SAFETY: the caller's vector names writable memory of this length.
            let result =
                unsafe { kernel::recvfrom(self.fd, place, bytes, flags, none, ptr::null_mut()) };
            if result <= 0 {
                if self.done + taken > 0 {
                    break;
                }
                self.socket.forget(READABLE as c_int);
                return match result {
                    0 => Step::ConduitEnd(0),
                    _ if kernel::errno() == libc::EAGAIN => Step::Empty,
                    _ => Step::ConduitEnd(-1),
                };
            }
            taken += result as usize;
            if (result as usize) < bytes || taken >= limit || self.is(libc::MSG_PEEK) {
                break;
            }
        }
        self.done += taken;
        if taken > 0 {
            let flow = &self.socket.record().incoming;
            flow.kernel_bytes.add(taken as u64);
            flow.kernel_calls.add(1);
        }
        self.socket.settle();
        if self.enough() || self.is(libc::MSG_PEEK) {
            Step::ConduitEnd(0)
        } else if taken == 0 {
            // The stream ended after what the call has.
            Step::ConduitEnd(self.done as isize)
        } else {
            Step::Again
        }
    }
}

/// One call that sends.
struct Sending<'a> {
    socket: &'static Socket,
    fd: c_int,
    parts: &'a [iovec],
    total: usize,
    flags: c_int,
    done: usize,
}

/// Sends `parts`: the count, or −1 and `errno`.
#[inline]
pub fn send(socket: &'static Socket, fd: c_int, parts: &[iovec], flags: c_int) -> isize {
    let mut call = Sending { socket, fd, parts, total: total(parts), flags, done: 0 };
    let mut patience = None;
    let mut vain = Vain::default();
    loop {
        let step = match socket.stage_out.load(Ordering::Acquire) {
            PIPE => call.give_to_pipe(),
            BEFORE => call.before(),
            _ => call.after(),
        };
        match step {
            Step::Again if vain.too_often(call.done) => {
                let reset = kernel::fail(libc::ECONNRESET);
                return if call.done > 0 { call.done as isize } else { reset };
            }
            Step::Again => continue,
            Step::ConduitEnd(result) => {
                return if call.done > 0 { call.done as isize } else { result };
            }
            Step::Empty => vain.turns = 0,
        }
        let done = call.done;
        let end = |error| if done > 0 { done as isize } else { kernel::fail(error) };
        if flags & libc::MSG_DONTWAIT != 0 || socket.nonblocking() {
            return end(libc::EAGAIN);
        }
        let patience = patience.get_or_insert_with(|| Patience::new(socket.send_timeout_ns()));
        // What was there at each look, and never at the call, lasts no longer than the call may.
        if patience.left_ns() == Some(0) {
            return end(libc::EAGAIN);
        }
        match wait::writable(socket, call.fd, patience) {
            Woken::Look => {}
            Woken::TimedOut => return end(libc::EAGAIN),
            Woken::Interrupted => return end(libc::EINTR),
        }
        call.fd = socket.name_inside(call.fd);
        if call.fd < 0 {
            return end(libc::EBADF);
        }
        if socket.known() & ENDS != 0 {
            socket.end_out();
        }
    }
}

impl Sending<'_> {
    /// The parts that are still to be sent.
    fn rest(&self) -> impl Iterator<Item = &'static [u8]> {
        let mut skip = self.done;
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
    fn give_to_pipe(&mut self) -> Step {
        let socket = self.socket;
        if socket.peer().state.load(Ordering::Acquire) & (CLOSED | WRITE_SHUT) != 0 {
            socket.end_out();
            // Not ended only if somebody keeps the lock.
            let ended = socket.stage_out.load(Ordering::Acquire) == AFTER;
            return if ended { Step::Again } else { Step::ConduitEnd(kernel::fail(libc::EAGAIN)) };
        }
        if self.total == 0 {
            return Step::ConduitEnd(0);
        }
        let out = socket.outgoing();
        let _deferral = signals::defer();
        if !out.lock_send(pid()) {
            return Step::ConduitEnd(kernel::fail(libc::EAGAIN));
        }
        if out.ends_at().is_some() {
            socket.stage_out.store(AFTER, Ordering::Release);
            socket.record().outgoing.fallbacks.add(1);
            out.unlock_send();
            return Step::Again;
        }
        let count = match self.parts {
            [one] if self.done == 0 => {
                // SAFETY: the caller's vector names readable memory of this length.
                out.push(unsafe { slice::from_raw_parts(one.iov_base.cast(), one.iov_len) })
            }
            _ => out.push_parts(self.rest()),
        };
        if count > 0 {
            let flow = &socket.record().outgoing;
            flow.memory_bytes.add_exclusive(count as u64);
            flow.memory_calls.add_exclusive(1);
        }
        out.unlock_send();
        socket.ring_reader();
        self.done += count;
        if self.done >= self.total {
            if out.readable() > count {
                self.look_now_and_then();
            }
            return Step::ConduitEnd(0);
        }
        if out.writable() >= WRITABLE_BYTES {
            return Step::Again;
        }
        socket.note_full();
        self.look_now_and_then();
        if socket.stage_out.load(Ordering::Relaxed) == AFTER { Step::Again } else { Step::Empty }
    }

    /// Bytes of ours lie unread: the peer may have died.
    fn look_now_and_then(&self) {
        let socket = self.socket;
        let now = wait::now_ns();
        if now.wrapping_sub(socket.looked_at.load(Ordering::Relaxed)) > SENDER_LOOK_NS {
            socket.looked_at.store(now, Ordering::Relaxed);
            if socket.look(self.fd) & ENDS != 0 {
                socket.end_out();
            }
        }
    }

    /// Before the pipe begins: begins it if that can be, else sends through the kernel.
    #[cold]
    fn before(&mut self) -> Step {
        let socket = self.socket;
        socket.withdraw();
        socket.start_out(self.fd);
        if socket.stage_out.load(Ordering::Acquire) != BEFORE {
            return Step::Again;
        }
        if !socket.kernel_send_begin() {
            std::hint::spin_loop();
            return Step::Again;
        }
        let step = if socket.stage_out.load(Ordering::Acquire) == BEFORE {
            self.give_to_kernel()
        } else {
            Step::Again
        };
        socket.kernel_send_end();
        step
    }

    /// After the pipe: what the peer gave back goes first.
    #[cold]
    fn after(&mut self) -> Step {
        let socket = self.socket;
        if socket.owing() {
            socket.pay(self.fd);
            if socket.owing() {
                return Step::Empty;
            }
        }
        let step = self.give_to_kernel();
        socket.settle();
        step
    }

    /// The kernel's own call for what is left, as blocking as the program wants it.
    fn give_to_kernel(&mut self) -> Step {
        let result = if self.done == 0 {
            // SAFETY: all zero is a valid message header.
            let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
            header.msg_iov = self.parts.as_ptr().cast_mut();
            header.msg_iovlen = self.parts.len() as _;
            // SAFETY: the vector is the caller's.
            unsafe { kernel::sendmsg(self.fd, &raw const header, self.flags) }
        } else {
            let Some(next) = self.rest().next() else { return Step::ConduitEnd(0) };
            let start = next.as_ptr().cast();
            // SAFETY: the part is live and of this length.
            unsafe { kernel::sendto(self.fd, start, next.len(), self.flags, ptr::null(), 0) }
        };
        if result < 0 {
            self.socket.forget(libc::EPOLLOUT | libc::EPOLLWRNORM);
            return Step::ConduitEnd(-1);
        }
        let flow = &self.socket.record().outgoing;
        flow.kernel_bytes.add(result as u64);
        flow.kernel_calls.add(1);
        let whole = self.done > 0 && result > 0 && self.done + (result as usize) < self.total;
        self.done += result as usize;
        if whole { Step::Again } else { Step::ConduitEnd(0) }
    }
}
