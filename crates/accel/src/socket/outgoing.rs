//! The outgoing direction: when it may use memory, and how bytes are taken back from there.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::atomic::{Ordering, fence};

use nm_ring::conduit::{CLOSED, RETURN_REQUESTED, WRITE_SHUT};
use nm_ring::pipe::PIPE_BYTES;
use nm_ring::process_lock::LockOutcome;

use super::{PEER_IS_DEAD, SENT_PAST, Socket, fence_after_change};
use crate::{contention, kernel, process, signals, tcp_info, wait};

/// Shortest time between two looks for the death of a peer that leaves bytes unread, ns. It is
/// measured in ticks of the kernel.
const PEER_CHECK_NS: u64 = 1_000_000;

/// The same while the peer receives something in between, ns.
const RECEIVING_PEER_CHECK_NS: u64 = 20_000_000;

/// Longest wait of a take back for a call of the kernel that sends: one that takes longer has sent
/// something.
const OTHER_SENDER_NS: u64 = 2_000_000;

/// Longest wait for space that the kernel said it had, ns.
const SPACE_TIMEOUT_NS: u64 = 1_000_000_000;

/// A call of at most so many bytes goes one way as a whole if others may send at the same time.
pub const ATOMIC_BYTES: usize = PIPE_BYTES / 2;

/// Sends to memory from one comparison of counts with the kernel to the next; a multiple of the
/// other number.
const CHECK_INTERVAL: u64 = 256;

/// The same while several processes hold the socket.
const SHARED_CHECK_INTERVAL: u64 = 16;

/// From so many bytes on it matters whether they are copied to memory in vain.
pub const LARGE_BYTES: usize = 8 * 1024;

/// Bit in [`nm_ring::ledger::EndState::options`]: the kernel's `TCP_CORK` is set.
pub const CORK_IS_SET: u32 = 8;

/// A call of the kernel that sends, from [`Socket::begin_kernel_send`] on.
pub struct KernelSend<'a>(&'a Socket);

impl Drop for KernelSend<'_> {
    fn drop(&mut self) {
        self.0.end().kernel_senders.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Bytes were taken back from memory, until this is dropped: then they were sent through the
/// kernel. It lives under the send lock, so that nobody sends between the bytes.
struct TakeBack<'a> {
    socket: &'a Socket,
    fd: c_int,
    /// Whether the kernel may hold what was sent.
    must_push: bool,
    _sending: KernelSend<'a>,
}

impl Drop for TakeBack<'_> {
    fn drop(&mut self) {
        let sent = &self.socket.outgoing().kernel_sent;
        if self.must_push {
            // The peer may know of the bytes already: the kernel must not hold them because of
            // TCP_CORK or MSG_MORE. Setting the option pushes what is queued, in spite of both.
            let errno = kernel::errno();
            kernel::set_option(self.fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, 1);
            kernel::set_errno(errno);
        }
        sent.take_backs_ended.fetch_add(1, Ordering::SeqCst);
    }
}

/// Which way to send.
impl Socket {
    /// Whether the next bytes may go to memory: nobody at the other end relies on the kernel, and
    /// all that went through the kernel was received.
    #[inline(always)]
    pub fn may_send_to_memory(&self) -> bool {
        let outgoing = self.outgoing();
        let end = self.end();
        let received = outgoing.kernel_use.received.load(Ordering::Acquire);
        received != 0
            && received == end.kernel_sent.load(Ordering::Acquire)
            && outgoing.kernel_use.users.load(Ordering::Acquire) == 0
            && end.kernel_senders.load(Ordering::Acquire) == 0
            && end.holds.load(Ordering::Acquire) == 0
            && self.peer().state.load(Ordering::Relaxed) & (CLOSED | RETURN_REQUESTED) == 0
            && self.own().state.load(Ordering::Relaxed) & WRITE_SHUT == 0
            && self.forbids_memory.load(Ordering::Relaxed) == 0
    }

    /// Whether the peer has not received all that went through the kernel, and could use memory
    /// then.
    #[inline]
    pub fn is_draining(&self) -> bool {
        let received = self.outgoing().kernel_use.received.load(Ordering::Acquire);
        let sent = self.end().kernel_sent.load(Ordering::Acquire);
        received != 0
            && sent != 0
            && received != sent
            && self.end().holds.load(Ordering::Relaxed) == 0
            && self.forbids_memory.load(Ordering::Relaxed) == 0
    }

    /// Reads how many unread bytes memory may hold: as many as the kernel's buffer takes, which the
    /// program may have made small.
    pub fn read_memory_limit(&self, fd: c_int) {
        let size = kernel::option(fd, libc::SOL_SOCKET, libc::SO_SNDBUF).unwrap_or(0);
        let space = usize::try_from(size / 2).unwrap_or(0);
        let limit = if space >= PIPE_BYTES { usize::MAX } else { space };
        self.memory_limit.store(limit, Ordering::Relaxed);
    }

    /// Whether memory may hold `bytes` more: none if that would be more than the kernel's buffer
    /// takes.
    #[inline(always)]
    pub fn is_within_memory_limit(&self, bytes: usize) -> bool {
        let limit = self.memory_limit.load(Ordering::Relaxed);
        limit == usize::MAX || self.outgoing().readable().saturating_add(bytes) <= limit
    }

    /// Whether a call of so many bytes must go one way as a whole, because another thread or
    /// process may send at the same time: the kernel does not mix their bytes either.
    #[inline(always)]
    pub fn must_be_atomic(&self, bytes: usize) -> bool {
        bytes <= ATOMIC_BYTES && !self.has_one_user()
    }

    /// Sends to memory by `push`, at most `bytes`, if the direction may use it; returns how many of
    /// them are there for the peer. If the peer has begun to rely on the kernel, they are taken
    /// back and sent through the kernel at once.
    #[inline(always)]
    pub fn send_to_memory(&self, fd: c_int, bytes: usize, push: impl FnOnce() -> usize) -> usize {
        if !self.may_send_to_memory()
            || !self.is_within_memory_limit(bytes)
            || self.is_check_due() && self.check_for_sends_past(fd)
        {
            return 0;
        }
        let outgoing = self.outgoing();
        let _deferral = signals::defer_handlers();
        if !self.lock_send() {
            return 0;
        }
        // Another thread may have sent through the kernel meanwhile, or filled the pipe.
        let is_shared = !self.has_one_user();
        if is_shared {
            // After the lock: see `begin_kernel_send`.
            fence(Ordering::SeqCst);
        }
        if is_shared
            && (!self.may_send_to_memory() || bytes <= ATOMIC_BYTES && outgoing.writable() < bytes)
        {
            self.unlock_send();
            return 0;
        }
        let mut count = push();
        // This end publishes, then reads who relies on the kernel; the other end counts itself,
        // then looks for bytes.
        fence(Ordering::SeqCst);
        let is_relied_on = outgoing.kernel_use.users.load(Ordering::Relaxed) != 0;
        let mut is_taken_back = false;
        if is_relied_on {
            (count, is_taken_back) = self.take_back_after(fd, count);
        }
        if count > 0 {
            let counters = &self.record().outgoing;
            counters.memory_bytes.add_exclusive(count as u64);
            counters.memory_calls.add_exclusive(1);
            contention::note_bytes(count);
        }
        self.unlock_send();
        if count > 0 {
            self.wake_sleeper_if_any();
        }
        if count >= LARGE_BYTES || !self.has_received_since_last_send() {
            if outgoing.readable() > count {
                self.look_for_death(fd);
            } else if count >= LARGE_BYTES {
                self.note_large_send(is_taken_back);
            }
        }
        count
    }

    /// Whether this end has received from memory since it was asked last, that is since the last
    /// send: then the peer is alive, and how much it has received need not be read. That would take
    /// the cache line of its position away from it, which it needs for the next bytes.
    #[inline(always)]
    fn has_received_since_last_send(&self) -> bool {
        let consumed = self.incoming().consumed();
        let known = &self.consumed_at_last_send;
        let has_received = known.load(Ordering::Relaxed) != consumed;
        if has_received {
            known.store(consumed, Ordering::Relaxed);
        }
        has_received
    }

    /// The peer has received all that was sent to memory before, unless it was taken back. So will
    /// it be with the bytes that were just sent, if `is_taken_back`.
    fn note_large_send(&self, is_taken_back: bool) {
        if self.was_taken_back.load(Ordering::Relaxed) == 0 {
            self.failed_sends.reset();
        } else if !is_taken_back {
            self.was_taken_back.store(0, Ordering::Relaxed);
        }
    }

    /// So many bytes that were sent to memory were taken back: a send through the kernel would have
    /// been cheaper.
    fn note_take_back(&self, bytes: usize) {
        if bytes >= LARGE_BYTES {
            self.failed_sends.add();
            self.was_taken_back.store(1, Ordering::Relaxed);
        }
    }

    /// Somebody began to rely on the kernel while a call pushed `count` bytes: takes back all that
    /// is unread, and sends it through the kernel, where it wakes those who know of it and wait for
    /// more. Returns how many bytes of the call the peer has or will get, and whether any were
    /// taken back. Under the send lock, so that no other call comes between them.
    #[cold]
    fn take_back_after(&self, fd: c_int, count: usize) -> (usize, bool) {
        let outgoing = self.outgoing();
        // Whatever others send at the same time may come before this call, if that has received
        // nothing of it: then a thread that waits in the kernel finds no older byte there.
        let mut take_back = self.announce_take_back(fd);
        let mut taken_back = outgoing.take_back_unread(count);
        if taken_back == 0 {
            drop(take_back);
            if kernel_send_space(fd) < outgoing.readable() {
                return (count, false);
            }
            let Some(begun) = self.begin_take_back_soon(fd) else { return (count, false) };
            if self.kernel_has_bytes_of_others(fd) {
                return (count, false);
            }
            take_back = begun;
            taken_back = outgoing.take_back(outgoing.consumed());
        }
        let result = self.finish_take_back(fd, count, taken_back);
        drop(take_back);
        result
    }

    /// Whether the kernel has bytes that somebody sent without this library: what is in memory must
    /// not come behind them, and they wake the peer. While nobody else sends.
    fn kernel_has_bytes_of_others(&self, fd: c_int) -> bool {
        let counted = self.end().kernel_sent.load(Ordering::SeqCst);
        !tcp_info::has_sent(fd, counted.wrapping_sub(1))
            && tcp_info::sent_through_kernel(fd, self.is_client())
                .is_some_and(|sent| sent.count >= counted)
    }

    /// Sends what was taken back; the results are those of [`Socket::take_back_after`].
    fn finish_take_back(&self, fd: c_int, count: usize, taken_back: usize) -> (usize, bool) {
        if taken_back == 0 {
            return (count, false);
        }
        self.note_take_back(taken_back);
        let missing = taken_back - self.send_taken_back(fd, taken_back);
        if missing > count {
            // Only a peer that violates the protocol gets here: rather no stream than one with a
            // gap.
            // SAFETY: no pointers.
            unsafe { kernel::shutdown(fd, libc::SHUT_RDWR) };
        }
        (count.saturating_sub(missing), true)
    }

    /// Begins to move bytes from memory to the kernel, if nothing is there that was sent after
    /// them. Another thread of this end may be about to send such bytes: it counts itself as a
    /// sender, then looks for this; here it is the other way round, so that one of the two sees the
    /// other. Under the send lock.
    fn begin_take_back(&self, fd: c_int) -> Option<TakeBack<'_>> {
        let take_back = self.announce_take_back(fd);
        let is_alone = self.end().kernel_senders.load(Ordering::SeqCst) == 1;
        (is_alone && self.all_sent_was_received()).then_some(take_back)
    }

    /// The peer sees that bytes may be in neither place for a moment, and this end that a thread
    /// sends through the kernel. Under the send lock.
    fn announce_take_back(&self, fd: c_int) -> TakeBack<'_> {
        let sending = self.count_kernel_sender();
        self.outgoing().kernel_sent.take_backs_begun.fetch_add(1, Ordering::SeqCst);
        TakeBack { socket: self, fd, must_push: true, _sending: sending }
    }

    /// The same when the bytes must not stay in memory: waits a moment for another sender. If that
    /// takes longer or has sent something, its bytes are in the kernel and wake the peer, who
    /// receives what is in memory first.
    fn begin_take_back_soon(&self, fd: c_int) -> Option<TakeBack<'_>> {
        let begun_ns = wait::now_ns();
        loop {
            let take_back = self.begin_take_back(fd);
            let waited_ns = wait::now_ns().saturating_sub(begun_ns);
            if take_back.is_some() || !self.all_sent_was_received() || waited_ns > OTHER_SENDER_NS {
                return take_back;
            }
            rustix::thread::sched_yield();
        }
    }

    /// Whether the kernel has nothing from this end that the peer has not received. Not exact while
    /// a call of the kernel sends.
    fn all_sent_was_received(&self) -> bool {
        let received = self.outgoing().kernel_use.received.load(Ordering::SeqCst);
        received == self.end().kernel_sent.load(Ordering::SeqCst) && received != 0
    }

    /// Whether the program may send more: as the kernel says, which has space when the peer has
    /// received all that it was given.
    pub fn is_writable(&self, fd: c_int) -> bool {
        self.all_sent_was_received() || kernel::events(fd) & libc::POLLOUT != 0
    }

    /// Whether a thread of the peer sleeps until memory has bytes.
    #[inline(always)]
    pub fn peer_sleeps_for_memory(&self) -> bool {
        self.outgoing().kernel_use.sleeper.load(Ordering::Relaxed) != 0
    }

    #[inline(always)]
    fn wake_sleeper_if_any(&self) {
        if self.peer_sleeps_for_memory() {
            self.wake_sleeper();
        }
    }

    /// Wakes a thread of the peer that sleeps until memory has bytes.
    #[cold]
    fn wake_sleeper(&self) {
        let sleeper = &self.outgoing().kernel_use.sleeper;
        if sleeper.swap(0, Ordering::SeqCst) != 0 {
            nm_sys::futex::wake_all(sleeper);
            self.record().outgoing.wakeups.add(1);
        }
    }

    /// The peer leaves bytes unread: if it has died, the kernel says so, and later bytes go there.
    fn look_for_death(&self, fd: c_int) {
        let now = wait::tick_ns();
        let (checked, position) = (&self.peer_checked_at_ns, &self.peer_checked_position);
        let consumed = self.outgoing().consumed();
        let has_received = position.load(Ordering::Relaxed) != consumed;
        let pause_ns = if has_received { RECEIVING_PEER_CHECK_NS } else { PEER_CHECK_NS };
        if now.wrapping_sub(checked.load(Ordering::Relaxed)) < pause_ns {
            return;
        }
        checked.store(now, Ordering::Relaxed);
        position.store(consumed, Ordering::Relaxed);
        let has_shut = self.peer().state.load(Ordering::Relaxed) & WRITE_SHUT != 0;
        let ended = libc::POLLHUP | libc::POLLERR | if has_shut { 0 } else { libc::POLLRDHUP };
        if kernel::events(fd) & ended != 0 {
            self.forbids_memory.fetch_or(PEER_IS_DEAD, Ordering::Relaxed);
        }
    }

    /// Begins a call of the kernel that sends, in any phase. Another thread or process that is just
    /// sending to memory, or taking bytes back from there, finishes first: it looks for this call
    /// under the lock, so one of the two sees the other.
    #[inline]
    pub fn begin_kernel_send(&self) -> KernelSend<'_> {
        let sending = self.count_kernel_sender();
        if !self.is_joined() || !self.end().send_lock.is_held() {
            return sending;
        }
        drop(sending);
        self.begin_kernel_send_after_lock()
    }

    #[cold]
    fn begin_kernel_send_after_lock(&self) -> KernelSend<'_> {
        let _deferral = signals::defer_handlers();
        let is_locked = self.lock_send();
        let sending = self.count_kernel_sender();
        if is_locked {
            self.unlock_send();
        }
        sending
    }

    fn count_kernel_sender(&self) -> KernelSend<'_> {
        self.end().kernel_senders.fetch_add(1, Ordering::SeqCst);
        KernelSend(self)
    }

    /// Counts bytes that a kernel call has sent, before its [`KernelSend`] ends. During a call
    /// (`table::enter`), of a candidate or a joined socket.
    #[inline]
    pub fn count_kernel_sent(&self, bytes: usize) {
        let sent = &self.end().kernel_sent;
        if sent.load(Ordering::Relaxed) != 0 {
            let now = sent.fetch_add(bytes as u64, Ordering::SeqCst) + bytes as u64;
            // Either this thread sees that the socket has joined, or the one that joins it sees
            // these bytes.
            fence_after_change();
            if self.is_joined() {
                self.outgoing().kernel_sent.sent.store(now, Ordering::Relaxed);
                // A thread of the peer that sleeps until memory has bytes looks at this count
                // first.
                fence(Ordering::SeqCst);
                self.wake_sleeper_if_any();
            }
        }
    }

    /// Whether it is time to compare counts with the kernel before memory is used.
    #[inline(always)]
    fn is_check_due(&self) -> bool {
        let sends = self.record().outgoing.memory_calls.get();
        self.must_check.load(Ordering::Relaxed) != 0
            || sends.is_multiple_of(SHARED_CHECK_INTERVAL) && self.is_one_to_check(sends)
    }

    /// Whether the send is one before which counts are compared, after so many sends.
    fn is_one_to_check(&self, sends: u64) -> bool {
        sends.is_power_of_two()
            || sends.is_multiple_of(CHECK_INTERVAL)
            || self.record().holders.load(Ordering::Relaxed) > 1
    }

    /// The next send to memory compares counts with the kernel first: the call before has taken
    /// long enough that this costs little.
    #[inline]
    pub fn check_before_next_send(&self) {
        self.must_check.store(1, Ordering::Relaxed);
    }

    /// Compares what the kernel has sent with what this library has sent through it. True if
    /// somebody sends without this library: memory would be out of order.
    #[cold]
    fn check_for_sends_past(&self, fd: c_int) -> bool {
        self.must_check.store(0, Ordering::Relaxed);
        self.has_sends_past(fd)
    }

    /// Whether the kernel has sent bytes of this end that no call of this library has sent: a part
    /// of the program makes system calls of its own. False if it cannot be said now.
    pub fn has_sends_past(&self, fd: c_int) -> bool {
        self.sends_past(fd) == Some(true)
    }

    /// As [`Socket::has_sends_past`]; none if it cannot be said now.
    fn sends_past(&self, fd: c_int) -> Option<bool> {
        let end = self.end();
        if self.forbids_memory.load(Ordering::Relaxed) & SENT_PAST != 0 {
            return Some(true);
        }
        // While nobody sends, and the count has not changed, it belongs to the kernel's.
        let nobody_sends = || {
            end.kernel_senders.load(Ordering::SeqCst) == 0 && end.holds.load(Ordering::SeqCst) == 0
        };
        if self.is_joined() && self.own().state.load(Ordering::SeqCst) & WRITE_SHUT != 0 {
            return Some(false);
        }
        if !nobody_sends() {
            return None;
        }
        let counted = end.kernel_sent.load(Ordering::SeqCst);
        let errno = kernel::errno();
        let is_more = counted != 0
            && !tcp_info::has_sent(fd, counted - 1)
            && tcp_info::sent_through_kernel(fd, self.is_client())
                .is_some_and(|sent| sent.count >= counted);
        kernel::set_errno(errno);
        if !nobody_sends() || end.kernel_sent.load(Ordering::SeqCst) != counted {
            return None;
        }
        if is_more {
            self.forbids_memory.fetch_or(SENT_PAST, Ordering::Relaxed);
        }
        Some(is_more)
    }

    /// Before a call that sends through the kernel: whether somebody is known to send without this
    /// library, or the peer has received more than this library has sent.
    #[inline]
    pub fn is_sent_past(&self, fd: c_int) -> bool {
        let received = self.outgoing().kernel_use.received.load(Ordering::Acquire);
        let sent = self.end().kernel_sent.load(Ordering::Acquire);
        self.forbids_memory.load(Ordering::Relaxed) & SENT_PAST != 0
            || sent != 0 && received > sent && self.has_sends_past(fd)
    }

    /// Finds out how many bytes this end has sent through the kernel, by the kernel's count, if
    /// that is not known and the peer has published what it received.
    #[inline]
    pub fn learn_kernel_sent(&self, fd: c_int) {
        let received = self.outgoing().kernel_use.received.load(Ordering::Relaxed);
        if received != 0 && self.end().kernel_sent.load(Ordering::Relaxed) == 0 {
            self.read_kernel_sent(fd);
        }
    }

    #[cold]
    fn read_kernel_sent(&self, fd: c_int) {
        let end = self.end();
        let _deferral = signals::defer_handlers();
        if end.holds.load(Ordering::SeqCst) != 0
            || end.kernel_senders.load(Ordering::SeqCst) != 0
            || !self.lock_send()
        {
            return;
        }
        // A thread that begins to send now counts its bytes once more: then the count is too high,
        // never equal to the peer's, and read again later (`correct_kernel_sent`).
        if let Some(sent) = tcp_info::sent_through_kernel(fd, self.is_client())
            && end.kernel_senders.load(Ordering::SeqCst) == 0
        {
            let count = sent.count.saturating_add(1);
            end.kernel_sent.store(count, Ordering::SeqCst);
            self.outgoing().kernel_sent.sent.store(count, Ordering::Relaxed);
        }
        self.unlock_send();
    }

    /// Reads the count again, if the kernel has nothing left to deliver and the count still differs
    /// from the peer's, because bytes were counted twice.
    #[cold]
    pub fn correct_kernel_sent(&self, fd: c_int) {
        let received = self.outgoing().kernel_use.received.load(Ordering::SeqCst);
        if received != 0
            && received != self.end().kernel_sent.load(Ordering::SeqCst)
            && kernel::ioctl_int(fd, libc::TIOCOUTQ as usize) == Some(0)
            && self.sends_past(fd) == Some(false)
        {
            self.read_kernel_sent(fd);
        }
    }

    /// Before this process sleeps, ends, or must not be waited for: takes back what the peer has
    /// not received, and sends it through the kernel, if that has space for all of it. So no two
    /// ends sleep with bytes in memory, and any process can read the bytes, also one without this
    /// library.
    pub fn flush_to_kernel(&self, fd: c_int) {
        let outgoing = self.outgoing();
        // Behind bytes that are in the kernel these would be out of order.
        if outgoing.readable() == 0 || !self.all_sent_was_received() || self.peer_is_gone(fd) {
            return;
        }
        let _deferral = signals::defer_handlers();
        if !self.lock_send() {
            return;
        }
        if let Some(mut take_back) = self.begin_take_back(fd) {
            // These calls alone send what is taken back, and without MSG_MORE.
            take_back.must_push = self.end().options.load(Ordering::SeqCst) & CORK_IS_SET != 0;
            let sent = tcp_info::sent_through_kernel(fd, self.is_client());
            let counted = self.end().kernel_sent.load(Ordering::SeqCst);
            // Others may have sent without this library.
            if let Some(sent) = sent
                && sent.count.saturating_add(1) == counted
                && send_space(fd, sent.queued) >= outgoing.readable()
            {
                let count = outgoing.take_back(outgoing.consumed());
                self.note_take_back(count);
                if self.send_taken_back(fd, count) < count {
                    // As in `take_back_after`.
                    // SAFETY: no pointers.
                    unsafe { kernel::shutdown(fd, libc::SHUT_RDWR) };
                }
            }
            drop(take_back);
        }
        self.unlock_send();
    }

    /// Sends the last `count` bytes of the pipe through the kernel; returns how many it took. Under
    /// the send lock.
    fn send_taken_back(&self, fd: c_int, count: usize) -> usize {
        let outgoing = self.outgoing();
        let from = outgoing.sent().wrapping_sub(count as u64);
        // The peer can write there too, but only to what it receives.
        let mut sent = 0;
        for (start, bytes) in outgoing.sent_pieces(from, count) {
            let is_last = sent + bytes == count;
            // SAFETY: the bytes lie in the connection's memory, which is mapped.
            let now = unsafe { self.send_piece(fd, start.cast(), bytes, is_last) };
            sent += now;
            if now < bytes {
                break;
            }
        }
        let counters = &self.record().outgoing;
        counters.kernel_bytes.add(sent as u64);
        counters.memory_bytes.add_exclusive(0_u64.wrapping_sub(count as u64));
        sent
    }

    /// Sends one piece through the kernel and counts it; returns how much of it was sent.
    ///
    /// # Safety
    /// `start` points to `bytes` mapped bytes.
    unsafe fn send_piece(
        &self,
        fd: c_int,
        start: *const c_void,
        bytes: usize,
        is_last: bool,
    ) -> usize {
        let more = if is_last { 0 } else { libc::MSG_MORE };
        let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT | more;
        let mut done = 0;
        while done < bytes {
            let start = start.wrapping_byte_add(done);
            // SAFETY: the caller guarantees the bytes.
            let sent = unsafe { kernel::sendto(fd, start, bytes - done, flags, ptr::null(), 0) };
            if sent > 0 {
                self.count_kernel_sent(sent as usize);
                done += sent as usize;
            } else if sent < 0 && kernel::errno() == libc::EAGAIN {
                // Rare: the kernel had space, but not for this many small segments.
                let mut writable = [libc::pollfd { fd, events: libc::POLLOUT, revents: 0 }];
                if kernel::poll(&mut writable, Some(SPACE_TIMEOUT_NS)) == 0 {
                    break;
                }
            } else if sent == 0 || kernel::errno() != libc::EINTR {
                // It belongs to the program's next call.
                self.keep_error(kernel::errno());
                break;
            }
        }
        done
    }

    /// Before the kernel sends its FIN: nothing more is sent to memory, and no thread is about to.
    /// What is there goes through the kernel if that has space, else the peer receives it before
    /// the FIN.
    pub fn shut_write(&self, fd: c_int) {
        self.own().set_flags(WRITE_SHUT);
        {
            let _deferral = signals::defer_handlers();
            // A thread that has not seen the flag finishes first.
            if self.lock_send() {
                self.unlock_send();
            }
        }
        self.flush_to_kernel(fd);
    }

    /// Whether each direction may use memory as soon as its receiver is awake.
    pub fn both_directions_are_known(&self) -> bool {
        let outgoing = self.outgoing().kernel_use.received.load(Ordering::Relaxed);
        let incoming = self.incoming().kernel_use.received.load(Ordering::Relaxed);
        outgoing != 0 && incoming != 0 && !self.return_is_requested()
    }

    /// Whether the other end asks for what it has not received, through the kernel.
    #[inline]
    pub fn return_is_requested(&self) -> bool {
        self.peer().state.load(Ordering::Relaxed) & RETURN_REQUESTED != 0
    }

    /// Locks sending to memory for this process; false if that failed for about a second. The
    /// caller defers signal handlers while it holds the lock.
    #[inline(always)]
    pub fn lock_send(&self) -> bool {
        let (lock, owner) = (&self.end().send_lock, process::lock_owner());
        let outcome = if self.has_one_user() { lock.lock_alone(owner) } else { lock.lock(owner) };
        match outcome {
            LockOutcome::Acquired => true,
            LockOutcome::TakenFromDeadProcess => {
                self.outgoing().recover_sender();
                true
            }
            LockOutcome::TimedOut => false,
        }
    }

    /// Unlocks sending to memory.
    #[inline(always)]
    pub fn unlock_send(&self) {
        self.end().send_lock.unlock();
    }
}

/// Bytes that the kernel accepts without blocking, at least.
fn kernel_send_space(fd: c_int) -> usize {
    kernel::ioctl_int(fd, libc::TIOCOUTQ as usize).map_or(0, |queued| send_space(fd, queued))
}

/// The same while so many bytes are queued. The kernel's own overhead counts in the buffer size, up
/// to as much again.
fn send_space(fd: c_int, queued: c_int) -> usize {
    let size = kernel::option(fd, libc::SOL_SOCKET, libc::SO_SNDBUF).unwrap_or(0);
    usize::try_from(size / 2 - queued).unwrap_or(0)
}
