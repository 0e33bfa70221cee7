//! Moving a socket between the kernel and shared memory: joining, switching each direction into its
//! pipe, and returning without losing a byte.

use std::ffi::c_int;
use std::ptr;
use std::sync::atomic::{Ordering, fence};

use nm_ring::EndpointRole;
use nm_ring::conduit::{CLOSED, ConduitMapping, WATCHES_DOORBELL, WRITE_SHUT};
use nm_ring::ledger::{KernelReason, SocketPhase};

use super::{AFTER_PIPE, CANDIDATE, IN_PIPE, JOINED, KERNEL, Phase, Socket, pid};
use crate::rendezvous::{OFFERED, WITHDRAWN};
use crate::{kernel, multiplex, signals, table, wait};

/// Calls after which memory that the peer has not accepted is withdrawn.
const OFFER_CALLS: u32 = 512;

/// Least time before such memory is withdrawn, ns.
const OFFER_NS: u64 = 2_000_000_000;

/// To shared memory and back.
impl Socket {
    /// Stores the region and the doorbells that the two ends have agreed on. All bytes go through
    /// the kernel until [`Socket::announce_doorbell_watched`] has announced that this end reads
    /// its pipe.
    pub fn join(
        &'static self,
        mapped: ConduitMapping,
        role: EndpointRole,
        doorbell: c_int,
        peer_doorbell: c_int,
    ) {
        assert!(!self.is_joined() && self.doorbell() < 0, "a socket joins once");
        assert!(doorbell >= 0 && peer_doorbell >= 0, "a joined socket has both doorbells");
        // SAFETY: the phase is not `Joined` yet, so no thread reads it; the rendezvous lock admits
        // one thread at a time.
        unsafe { (*self.conduit.get()).write(mapped) };
        self.role.store(u32::from(role == EndpointRole::Opener), Ordering::Relaxed);
        self.doorbell.store(doorbell, Ordering::Relaxed);
        self.peer_doorbell.store(peer_doorbell, Ordering::Relaxed);
        self.phase.store(JOINED, Ordering::SeqCst);
        self.record().set_phase(SocketPhase::SharedMemory);
        multiplex::socket_joined(self);
        self.announce_doorbell_watched();
    }

    /// Announces that this end reads its pipe, once no thread waits in the kernel alone.
    pub(super) fn announce_doorbell_watched(&self) {
        fence(Ordering::SeqCst);
        if self.is_joined() && self.kernel_waiters.load(Ordering::SeqCst) == 0 {
            self.own().state.fetch_or(WATCHES_DOORBELL, Ordering::Release);
        }
    }

    /// Must be called before a wait in the kernel that does not watch the doorbell. False if the
    /// socket has just been joined: then the caller must wait another way.
    pub fn begin_kernel_wait(&self) -> bool {
        self.kernel_waiters.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        if self.phase.load(Ordering::SeqCst) == JOINED {
            self.end_kernel_wait();
            return false;
        }
        true
    }

    /// Must be called after such a wait.
    pub fn end_kernel_wait(&self) {
        if self.kernel_waiters.fetch_sub(1, Ordering::SeqCst) == 1
            && self.phase.load(Ordering::SeqCst) == JOINED
        {
            self.announce_doorbell_watched();
        }
    }

    /// Must be called before bytes are sent through the kernel while the outgoing direction has not
    /// switched to its pipe. False if it is just switching: then the caller must retry.
    pub fn begin_kernel_send(&self) -> bool {
        self.kernel_senders.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        if self.switching.load(Ordering::SeqCst) != 0 {
            self.end_kernel_send();
            return false;
        }
        true
    }

    /// Must be called after such a send.
    pub fn end_kernel_send(&self) {
        self.kernel_senders.fetch_sub(1, Ordering::SeqCst);
    }

    /// Switches the outgoing direction to the pipe if that is possible now.
    pub fn start_outgoing_pipe(&self, fd: c_int) {
        let wanted = self.peer().state.load(Ordering::Acquire);
        if wanted & WATCHES_DOORBELL == 0 || wanted & CLOSED != 0 {
            return;
        }
        if self.switching.swap(1, Ordering::SeqCst) != 0 {
            return;
        }
        fence(Ordering::SeqCst);
        let outgoing = self.outgoing();
        let _deferral = signals::defer_handlers();
        if self.kernel_senders.load(Ordering::SeqCst) == 0 && outgoing.lock_send(pid()) {
            if outgoing.starts_at().is_none() && outgoing.ends_at().is_none() {
                if let Some(sent) = crate::rendezvous::sent_through_kernel(self, fd) {
                    outgoing.set_starts_at(sent);
                    self.outgoing_stage.store(IN_PIPE, Ordering::Release);
                }
            } else {
                let stage = if outgoing.ends_at().is_some() { AFTER_PIPE } else { IN_PIPE };
                self.outgoing_stage.store(stage, Ordering::Release);
            }
            outgoing.unlock_send();
        }
        self.switching.store(0, Ordering::SeqCst);
    }

    /// Withdraws the memory that this end has offered, if the peer has not accepted it for a while:
    /// the other end may not be accelerated, or makes no calls any more. Called by each call that
    /// finds a direction before its pipe.
    #[cold]
    pub fn withdraw_stale_offer(&'static self) {
        let offer = &self.conduit().opened;
        if self.role() != EndpointRole::Creator || offer.load(Ordering::Acquire) != OFFERED {
            return;
        }
        let calls = self.calls.fetch_add(1, Ordering::Relaxed);
        let now = wait::now_ns();
        match self.offered_at_ns.load(Ordering::Relaxed) {
            0 => self.offered_at_ns.store(now, Ordering::Relaxed),
            since if calls >= OFFER_CALLS && now.saturating_sub(since) >= OFFER_NS => {
                let order = (Ordering::AcqRel, Ordering::Relaxed);
                if offer.compare_exchange(OFFERED, WITHDRAWN, order.0, order.1).is_ok() {
                    self.leave_shared_memory(KernelReason::PeerNotAccelerated);
                }
            }
            _ => {}
        }
    }

    /// Ends the outgoing pipe: later bytes go through the kernel.
    pub fn end_outgoing_pipe(&self) {
        if self.outgoing_stage.load(Ordering::Acquire) == AFTER_PIPE {
            return;
        }
        let outgoing = self.outgoing();
        {
            let _deferral = signals::defer_handlers();
            if outgoing.lock_send(pid()) {
                if outgoing.ends_at().is_none() {
                    outgoing.set_ends_at(outgoing.written());
                }
                self.outgoing_stage.store(AFTER_PIPE, Ordering::Release);
                outgoing.unlock_send();
            }
        }
        self.wake_peer_reader();
    }

    /// Ends the incoming pipe; its unread bytes are sent again through the kernel.
    fn end_incoming_pipe(&self) {
        let incoming = self.incoming();
        let gone = self.peer_is_gone();
        {
            let _deferral = signals::defer_handlers();
            if !incoming.lock_receive(pid()) {
                return;
            }
            if incoming.lock_send(pid()) {
                let unread = incoming.readable() > 0;
                if incoming.ends_at().is_none() {
                    incoming.set_ends_at(incoming.written());
                    if unread && !gone {
                        incoming.request_resend_from(incoming.consumed());
                    }
                }
                if !unread || incoming.resend_from().is_some() {
                    self.incoming_stage.store(AFTER_PIPE, Ordering::Release);
                }
                incoming.unlock_send();
            }
            incoming.unlock_receive();
        }
        self.ring_peer_doorbell();
        self.wait_for_replay();
    }

    /// Whether the incoming pipe has bytes that cannot be sent again through the kernel: it had
    /// ended before this end returned, or the peer that would have to send them is gone.
    pub fn has_unreturnable_bytes(&self) -> bool {
        let incoming = self.incoming();
        incoming.ends_at().is_some() && incoming.resend_from().is_none() && incoming.readable() > 0
    }

    /// Whether the peer neither sends nor receives any more.
    pub fn peer_is_gone(&self) -> bool {
        let state = self.peer().state.load(Ordering::Acquire);
        if state & CLOSED != 0 {
            return true;
        }
        // A FIN that was not announced in shared memory: the peer has died.
        state & WRITE_SHUT == 0 && self.refresh_kernel_events() & libc::EPOLLRDHUP as u32 != 0
    }

    /// Gives the peer some time to replay what was left in the pipe.
    fn wait_for_replay(&self) {
        if self.incoming().resend_from().is_some() {
            self.replay_at_local_peer();
        }
        for _ in 0..200 {
            match self.incoming().resend_from() {
                Some(from) if from != self.incoming().written() => {}
                _ => return,
            }
            if self.refresh_kernel_events()
                & (libc::EPOLLHUP | libc::EPOLLERR | libc::EPOLLRDHUP) as u32
                != 0
            {
                return;
            }
            let _ = kernel::poll(&mut [], Some(5_000_000));
        }
    }

    /// If both ends are in this process, no other process can replay, so the other end does it
    /// here.
    fn replay_at_local_peer(&self) {
        let token = self.connection_token.load(Ordering::Relaxed);
        table::for_each_socket(|other| {
            let same = other.connection_token.load(Ordering::Relaxed) == token && token != 0;
            if same
                && !ptr::eq(other, self)
                && let Some(fd) = other.descriptor()
                && let Some(_guard) = other.enter(fd)
                && other.is_joined()
            {
                other.replay(fd);
            }
        });
    }

    /// Whether bytes of the outgoing pipe still have to be replayed through the kernel.
    #[inline]
    pub fn replay_pending(&self) -> bool {
        let outgoing = self.outgoing();
        outgoing.resend_from().is_some_and(|from| from != outgoing.written())
    }

    /// Before this end's FIN: sends what the peer has not read yet through the kernel, if that has
    /// space for all of it. After that any process can read the bytes, also one without this
    /// library, and this process may end.
    pub fn flush_to_kernel(&self, fd: c_int) {
        let outgoing = self.outgoing();
        if self.outgoing_stage.load(Ordering::Acquire) != IN_PIPE || outgoing.readable() == 0 {
            return;
        }
        let _deferral = signals::defer_handlers();
        if !outgoing.lock_receive(pid()) {
            return;
        }
        if outgoing.lock_send(pid()) {
            let unread = outgoing.readable();
            if outgoing.ends_at().is_none() && unread > 0 && kernel_send_space(fd) >= unread {
                outgoing.request_resend_from(outgoing.consumed());
                outgoing.set_ends_at(outgoing.written());
                self.replay_locked(fd);
            }
            outgoing.unlock_send();
        }
        outgoing.unlock_receive();
    }

    /// Replays through the kernel what the peer has requested of the outgoing pipe, as far as the
    /// kernel accepts it without blocking.
    pub fn replay(&self, fd: c_int) {
        let outgoing = self.outgoing();
        let _deferral = signals::defer_handlers();
        if outgoing.lock_send(pid()) {
            self.replay_locked(fd);
            outgoing.unlock_send();
        }
    }

    fn replay_locked(&self, fd: c_int) {
        let outgoing = self.outgoing();
        self.outgoing_stage.store(AFTER_PIPE, Ordering::Release);
        let mut buffer = [0_u8; 4096];
        while let Some(from) = outgoing.resend_from() {
            let offset = from.wrapping_sub(outgoing.consumed());
            let bytes = outgoing.peek(offset as usize, &mut buffer);
            if bytes == 0 {
                break;
            }
            let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
            let start = buffer.as_ptr().cast();
            // SAFETY: the buffer is live and at least `bytes` long.
            let sent = unsafe { kernel::sendto(fd, start, bytes, flags, ptr::null(), 0) };
            if sent <= 0 {
                // In a vfork child the descriptor may be closed: the parent replays later.
                let later = [libc::EAGAIN, libc::EINTR, libc::EBADF, libc::ENOBUFS];
                if sent < 0 && !later.contains(&kernel::errno()) {
                    outgoing.request_resend_from(outgoing.written());
                }
                break;
            }
            outgoing.request_resend_from(from.wrapping_add(sent as u64));
        }
    }

    /// Handles what the peer may have requested in shared memory.
    pub fn handle_peer_requests(&self) {
        if self.outgoing().ends_at().is_some()
            && self.replay_pending()
            && let Some(fd) = self.descriptor()
        {
            self.replay(fd);
        }
    }

    /// Returns both directions to the kernel without losing bytes.
    pub fn leave_shared_memory(&'static self, reason: KernelReason) {
        self.record().set_reason(reason, 0);
        if !self.is_joined() {
            return;
        }
        let errno = kernel::errno();
        self.end_outgoing_pipe();
        self.end_incoming_pipe();
        self.finish_return();
        self.wake_own_sleepers();
        kernel::set_errno(errno);
    }

    /// Moves the socket to the kernel permanently, in any phase.
    pub fn move_to_kernel(&'static self, reason: KernelReason) {
        match self.phase() {
            Phase::Joined => {
                let fd = self.descriptor();
                if let Some(_guard) = fd.and_then(|fd| self.enter(fd)) {
                    self.leave_shared_memory(reason);
                }
            }
            Phase::Candidate => {
                let old = (CANDIDATE, KERNEL);
                let order = Ordering::SeqCst;
                if self.phase.compare_exchange(old.0, old.1, order, order).is_ok() {
                    self.record().set_reason(reason, 0);
                    self.record().set_phase(SocketPhase::Kernel);
                    crate::rendezvous::close_listener(self);
                } else if self.is_joined() {
                    self.move_to_kernel(reason);
                }
            }
            Phase::Kernel => {}
        }
    }

    /// Ends the phase `Joined` once both directions are in the kernel again.
    pub fn finish_return(&'static self) {
        let both_returned = self.incoming_stage.load(Ordering::Acquire) == AFTER_PIPE
            && self.outgoing_stage.load(Ordering::Acquire) == AFTER_PIPE;
        if both_returned && !self.replay_pending() {
            let order = Ordering::SeqCst;
            if self.phase.compare_exchange(JOINED, KERNEL, order, order).is_ok() {
                self.record().set_phase(SocketPhase::Kernel);
                multiplex::socket_returned(self);
            }
        }
    }
}

/// Bytes that the kernel accepts without blocking, at least. Its own overhead counts in the buffer
/// size, up to as much again.
fn kernel_send_space(fd: c_int) -> usize {
    let size = kernel::option(fd, libc::SOL_SOCKET, libc::SO_SNDBUF).unwrap_or(0);
    let queued = kernel::ioctl_int(fd, libc::TIOCOUTQ as usize).unwrap_or(size);
    usize::try_from(size / 2 - queued).unwrap_or(0)
}
