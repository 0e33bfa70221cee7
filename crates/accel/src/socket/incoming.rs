//! The incoming direction: who relies on the kernel, and what was received through it.

use std::ffi::c_int;
use std::sync::atomic::{AtomicU64, Ordering};

use nm_ring::conduit::{CLOSED, READ_SHUT, WRITE_SHUT};
use nm_ring::ledger::KernelReason;
use nm_ring::process_lock::LockOutcome;

use super::{JOINED, ONE_RELIANCE, PEER_IS_DEAD, PHASE_MASK, Socket, fence_after_change};
use crate::{kernel, process, tcp_info, wait};

/// Longest time for which a non-blocking call on an empty pipe does not ask the kernel, ns.
const KERNEL_CHECK_NS: u64 = 50_000;

/// In place of the time when the kernel was asked: the next call asks it.
const ASK_AGAIN: u64 = 0;

/// Take-backs of a peer that may take too long before nobody waits for them any more.
const LATE_TAKE_BACKS_MAX: u32 = 3;

/// Count of waits of this process that have returned events of the kernel for a socket that is not
/// known: for any of them.
static KERNEL_EVENTS_OF_ANY: AtomicU64 = AtomicU64::new(0);

/// A wait has returned to the program that the kernel has something to receive, for a socket that
/// is not known.
pub fn note_kernel_event_of_any() {
    KERNEL_EVENTS_OF_ANY.fetch_add(1, Ordering::Relaxed);
}

/// A call of the kernel that receives, from [`Socket::begin_kernel_receive`] on. The peer sends
/// through the kernel while it exists.
pub struct KernelReceive<'a>(&'a Socket);

impl Drop for KernelReceive<'_> {
    fn drop(&mut self) {
        self.0.end().kernel_receivers.fetch_sub(1, Ordering::SeqCst);
        self.0.end_reliance();
    }
}

/// Waiting, and receiving through the kernel.
impl Socket {
    /// Announces that a thread of this process, or a registration in an epoll set, relies on the
    /// kernel to report what arrives: the peer then sends through the kernel. Counted: each call
    /// needs its [`Socket::end_reliance`]. In any phase.
    ///
    /// Bytes may be in memory already: the caller must check [`Socket::has_memory_bytes`] once more
    /// before it relies on the kernel.
    #[inline]
    pub fn rely_on_kernel(&self) {
        self.change_reliances(|count| count.wrapping_add(1));
        // The peer publishes its bytes, then reads the count; this end counts, then reads the
        // position of the bytes.
        fence_after_change();
    }

    /// Reverts one [`Socket::rely_on_kernel`].
    #[inline]
    pub fn end_reliance(&self) {
        self.change_reliances(|count| count.wrapping_sub(1));
    }

    #[inline]
    fn change_reliances(&self, change: impl Fn(u32) -> u32) {
        let word = &self.phase_and_reliances;
        let mut before = word.load(Ordering::SeqCst);
        loop {
            if before & PHASE_MASK == JOINED {
                let users = &self.incoming().kernel_use.users;
                // A peer that overwrites the count harms its own connection only.
                users.fetch_add(change(0), Ordering::SeqCst);
                return;
            }
            let count = change(before / ONE_RELIANCE) & (u32::MAX / ONE_RELIANCE);
            let after = (count * ONE_RELIANCE) | (before & PHASE_MASK);
            match word.compare_exchange(before, after, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => return,
                Err(now) => before = now,
            }
        }
    }

    /// Whether the peer could send to memory now, as far as this end knows: it could answer a
    /// thread that sleeps until memory has bytes.
    pub fn peer_may_send_to_memory(&self) -> bool {
        let incoming = self.incoming();
        incoming.kernel_use.users.load(Ordering::Relaxed) == 0
            && incoming.kernel_use.received.load(Ordering::Relaxed) != 0
            && !self.kernel_has_bytes_for_us()
            && self.peer().state.load(Ordering::Relaxed) & (CLOSED | WRITE_SHUT) == 0
    }

    /// Whether unread bytes are in memory. Only for a joined socket, during a call.
    #[inline(always)]
    pub fn has_memory_bytes(&self) -> bool {
        self.incoming().readable() > 0
    }

    /// Grows with each arrival in memory: for edge-triggered waiting. Only for a joined socket,
    /// during a call.
    #[inline(always)]
    pub fn memory_arrivals(&self) -> u64 {
        self.incoming().written()
    }

    /// Whether the peer says that it has sent bytes through the kernel that were not received: then
    /// the kernel is to be asked at once.
    #[inline(always)]
    pub fn kernel_has_bytes_for_us(&self) -> bool {
        let incoming = self.incoming();
        incoming.kernel_sent.sent.load(Ordering::Relaxed)
            != incoming.kernel_use.received.load(Ordering::Relaxed)
    }

    /// A wait returns to the program that the kernel has something to receive: the next call on an
    /// empty pipe asks the kernel, whatever the time.
    #[inline]
    pub fn note_kernel_event(&self) {
        self.kernel_events.fetch_add(1, Ordering::Relaxed);
    }

    /// Grows with each wait that may have returned events of the kernel for this socket.
    #[inline]
    fn kernel_events(&self) -> u64 {
        let of_any = KERNEL_EVENTS_OF_ANY.load(Ordering::Relaxed);
        self.kernel_events.load(Ordering::Relaxed).wrapping_add(of_any)
    }

    /// Whether the kernel may have bytes that no wait reports again: the peer or a wait has
    /// announced something since the kernel was asked last, or it had more to say then, or another
    /// thread is just asking it. The peer's announcement alone is not enough: it comes after the
    /// bytes, and an edge-triggered wait may have reported them in between.
    #[inline]
    pub fn kernel_may_have_bytes(&self, fd: c_int) -> bool {
        self.kernel_has_bytes_for_us()
            || self.kernel_events() != self.kernel_events_seen.load(Ordering::Relaxed)
            || self.end().kernel_receivers.load(Ordering::SeqCst) != 0
            || self.kernel_asked_at_ns.load(Ordering::Relaxed) == ASK_AGAIN
                && self.kernel_has_more(fd)
    }

    /// The kernel had something to say when it was asked last: whether it still has. This does not
    /// rely on the kernel: a program that receives in a loop would do so just when the answer
    /// comes, which would go through the kernel therefore, and so would the next ones.
    #[cold]
    fn kernel_has_more(&self, fd: c_int) -> bool {
        if kernel::events(fd) & !libc::POLLOUT != 0 {
            return true;
        }
        // A wait reports what arrives from now on.
        let (word, order) = (&self.kernel_asked_at_ns, Ordering::SeqCst);
        let _ = word.compare_exchange(ASK_AGAIN, wait::now_ns(), order, order);
        false
    }

    /// Whether a non-blocking call on an empty pipe must ask the kernel: it does so when something
    /// was announced, and every now and then, because an end of the stream is announced by nobody.
    #[inline]
    pub fn kernel_check_is_due(&self, fd: c_int) -> bool {
        let (begun, ended) = self.take_backs();
        begun != ended || self.kernel_may_have_bytes(fd) || {
            let asked_at_ns = self.kernel_asked_at_ns.load(Ordering::Relaxed);
            wait::now_ns().wrapping_sub(asked_at_ns) > KERNEL_CHECK_NS
        }
    }

    /// The kernel is about to be asked, between [`Socket::begin_kernel_receive`] and its end: only
    /// there may other threads rely on the answer.
    #[inline]
    pub fn note_kernel_asked(&self) {
        self.kernel_events_seen.store(self.kernel_events(), Ordering::Relaxed);
        self.kernel_asked_at_ns.store(wait::now_ns(), Ordering::SeqCst);
        self.check_before_next_send();
    }

    /// The kernel had something else to say than that there is nothing: the next call asks it
    /// again.
    #[inline]
    pub fn ask_kernel_again(&self) {
        self.kernel_asked_at_ns.store(ASK_AGAIN, Ordering::SeqCst);
    }

    /// The kernel has reported `errno` to a call that returns bytes: the next one returns it.
    pub fn keep_error(&self, errno: c_int) {
        self.pending_error.store(errno, Ordering::Relaxed);
    }

    /// The error that an earlier call has left, once.
    #[inline]
    pub fn take_error(&self) -> Option<c_int> {
        if self.pending_error.load(Ordering::Relaxed) == 0 {
            return None;
        }
        Some(self.pending_error.swap(0, Ordering::Relaxed)).filter(|&errno| errno != 0)
    }

    /// Begins a call of the kernel that receives, in any phase. Of a joined socket, the caller must
    /// check [`Socket::has_memory_bytes`] after it, and receive those first.
    #[inline]
    pub fn begin_kernel_receive(&self) -> KernelReceive<'_> {
        self.end().kernel_receivers.fetch_add(1, Ordering::SeqCst);
        self.rely_on_kernel();
        KernelReceive(self)
    }

    /// As [`Socket::begin_kernel_receive`] for a candidate: if it joins meanwhile, the peer sends
    /// through the kernel until the last such call has published what was received.
    #[inline]
    pub fn begin_candidate_receive(&self) {
        self.end().kernel_receivers.fetch_add(1, Ordering::SeqCst);
    }

    /// Ends it. If the socket has joined meanwhile, the last call publishes what was received.
    #[inline]
    pub fn end_candidate_receive(&self, fd: c_int) {
        let last = self.end().kernel_receivers.fetch_sub(1, Ordering::SeqCst) == 1;
        if last && self.is_joined() {
            self.publish_received(fd);
        }
    }

    /// Counts bytes that a kernel call has received on a joined socket.
    #[inline]
    pub fn count_kernel_received(&self, bytes: usize) {
        let received = &self.incoming().kernel_use.received;
        if received.load(Ordering::Relaxed) != 0 {
            received.fetch_add(bytes as u64, Ordering::SeqCst);
        }
    }

    /// Publishes how many bytes this end has received through the kernel, by the kernel's count, if
    /// that is not known yet and no thread is in a receiving call of the kernel. From then on the
    /// peer may send to memory.
    pub fn publish_received(&self, fd: c_int) {
        let received = &self.incoming().kernel_use.received;
        if received.load(Ordering::Relaxed) != 0
            || self.end().kernel_receivers.load(Ordering::SeqCst) != 0
            || self.end().holds.load(Ordering::SeqCst) != 0
            || !self.lock_receive()
        {
            return;
        }
        let nobody_receives = || self.end().kernel_receivers.load(Ordering::SeqCst) == 0;
        if received.load(Ordering::Relaxed) == 0
            && let Some(count) = tcp_info::received_through_kernel(fd)
            && nobody_receives()
        {
            let published = count.saturating_add(1);
            received.store(published, Ordering::SeqCst);
            // A call that began and ended in between has not counted its bytes. A count that is too
            // low does no harm, but would never become equal to the peer's.
            if !nobody_receives() || tcp_info::received_through_kernel(fd) != Some(count) {
                let order = (Ordering::SeqCst, Ordering::Relaxed);
                let _ = received.compare_exchange(published, 0, order.0, order.1);
            }
        }
        self.unlock_receive();
    }

    /// The peer's take-backs that have begun, and those that have ended: bytes are in neither place
    /// while the two differ.
    #[inline]
    pub fn take_backs(&self) -> (u32, u32) {
        let sent = &self.incoming().kernel_sent;
        // In this order: what has ended has begun.
        let ended = sent.take_backs_ended.load(Ordering::SeqCst);
        (sent.take_backs_begun.load(Ordering::SeqCst), ended)
    }

    /// Whether a call may wait for the peer's take-back to end: not once that took too long several
    /// times, because the peer is stopped, or violates the protocol to hold this process up.
    pub fn may_wait_for_take_back(&self) -> bool {
        self.late_take_backs.load(Ordering::Relaxed) < LATE_TAKE_BACKS_MAX
    }

    /// A call has waited for the end of a take-back in vain.
    pub fn note_late_take_back(&self) {
        self.late_take_backs.fetch_add(1, Ordering::Relaxed);
    }

    /// Locks receiving from memory for this process; false if that failed for about a second. The
    /// caller defers signal handlers while it holds the lock.
    #[inline(always)]
    pub fn lock_receive(&self) -> bool {
        let (lock, owner) = (&self.end().receive_lock, process::lock_owner());
        let outcome = if self.has_one_user() { lock.lock_alone(owner) } else { lock.lock(owner) };
        outcome != LockOutcome::TimedOut
    }

    /// Unlocks receiving from memory.
    #[inline(always)]
    pub fn unlock_receive(&self) {
        self.end().receive_lock.unlock();
    }

    /// The kernel reports the end of the stream: whether the program must see a reset instead. If
    /// the peer did not announce the end in shared memory, it has died; if it left bytes of ours
    /// unread, the kernel would have reset the connection.
    pub fn end_is_a_reset(&self) -> bool {
        let peer_has_shut = self.peer().state.load(Ordering::Acquire) & (CLOSED | WRITE_SHUT) != 0;
        let own_read_shut = self.own().state.load(Ordering::Acquire) & READ_SHUT != 0;
        let is_reset = !peer_has_shut
            && !own_read_shut
            && self.outgoing().readable() > 0
            && self.reset_reported.swap(1, Ordering::AcqRel) == 0;
        if is_reset {
            self.record().set_reason(KernelReason::PeerDied, 0);
            self.forbids_memory.fetch_or(PEER_IS_DEAD, Ordering::Relaxed);
        }
        is_reset
    }

    /// Whether the peer neither sends nor receives any more.
    pub fn peer_is_gone(&self, fd: c_int) -> bool {
        let state = self.peer().state.load(Ordering::Acquire);
        // A FIN that was not announced in shared memory: the peer has died.
        state & CLOSED != 0 || state & WRITE_SHUT == 0 && kernel::events(fd) & libc::POLLRDHUP != 0
    }
}
