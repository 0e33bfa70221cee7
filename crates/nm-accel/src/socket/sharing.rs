//! Who uses a socket: other processes after a fork and threads with an active call; and what the
//! last of them does when it closes the socket.

use std::ffi::c_int;
use std::sync::atomic::Ordering;

use nm_ring::conduit::{CLOSED, WATCHES_DOORBELL};
use nm_ring::ledger::KernelReason;

use super::{AFTER_PIPE, BEFORE_PIPE, CLOSE_IN_PROGRESS, CLOSING, KERNEL, RELEASED, Socket};
use crate::{kernel, multiplex, table};

/// Fork and close.
impl Socket {
    /// Before a fork: two processes could both count the bytes of a direction that is not in memory
    /// yet, so such a socket returns to the kernel.
    pub fn before_fork(&'static self) {
        if self.is_joined() {
            let fd = self.descriptor();
            let Some(_guard) = fd.and_then(|fd| self.enter(fd)) else { return };
            let listening = self.own().state.load(Ordering::Acquire) & WATCHES_DOORBELL != 0;
            if self.outgoing_stage.load(Ordering::Acquire) == BEFORE_PIPE || !listening {
                self.leave_shared_memory(KernelReason::SharedByFork);
            }
        }
    }

    /// In the child of a fork: no other thread is in a call, sending or waiting.
    pub fn reset_threads_after_fork(&self) {
        for word in
            [&self.active_calls, &self.kernel_waiters, &self.kernel_senders, &self.switching]
        {
            word.store(0, Ordering::Relaxed);
        }
        for word in [&self.readers, &self.writers, &self.sleepers, &self.sleepers_notified] {
            word.store(0, Ordering::Relaxed);
        }
    }

    /// Before the kernel closes `fd`, the last descriptor: publishes the end in shared memory.
    fn close_shared_end(&'static self, fd: c_int) {
        let record = self.record();
        let last = record.release() == 0;
        crate::rendezvous::close_listener(self);
        if self.is_joined() && last {
            if self.replay_pending() {
                self.replay(fd);
            }
            // If the socket has returned to the kernel, the kernel resets the connection where
            // needed.
            let unread = self.incoming_stage.load(Ordering::Acquire) != AFTER_PIPE
                && self.incoming().resend_from().is_none()
                && record.reason() == KernelReason::None
                && self.incoming().readable() > 0;
            self.flush_to_kernel(fd);
            self.own().state.fetch_or(CLOSED, Ordering::Release);
            self.end_outgoing_pipe();
            if unread {
                let linger = libc::linger { l_onoff: 1, l_linger: 0 };
                let length = size_of::<libc::linger>() as libc::socklen_t;
                let value = (&raw const linger).cast();
                let (level, name) = (libc::SOL_SOCKET, libc::SO_LINGER);
                // SAFETY: the value is live and of the stated size.
                unsafe { kernel::setsockopt(fd, level, name, value, length) };
            }
        }
    }

    /// Before the process ends without closing: its last bytes must not need this process any more.
    pub fn flush_before_exit(&'static self) {
        if let Some(fd) = self.descriptor()
            && let Some(_guard) = self.enter(fd)
            && self.is_joined()
        {
            self.flush_to_kernel(fd);
        }
    }

    /// Before the kernel closes the last descriptor, which is no longer in the table. Threads with
    /// an active call keep a duplicate of it.
    pub fn begin_close(&'static self, fd: c_int) {
        if self.is_joined() && self.active_calls.load(Ordering::SeqCst) > 0 {
            // SAFETY: duplicates a descriptor; the duplicate is ours.
            let duplicate = unsafe { kernel::fcntl(fd, libc::F_DUPFD_CLOEXEC, 0) };
            self.duplicate.store(table::protect(duplicate), Ordering::SeqCst);
        }
        self.active_calls.fetch_or(CLOSING | CLOSE_IN_PROGRESS, Ordering::AcqRel);
        if self.duplicate.load(Ordering::SeqCst) < 0 {
            self.close_shared_end(fd);
        }
    }

    /// After the kernel has closed the last descriptor: the last active call releases the memory.
    pub fn finish_close(&'static self) {
        let before = self.active_calls.fetch_and(!CLOSE_IN_PROGRESS, Ordering::AcqRel);
        if before == CLOSING | CLOSE_IN_PROGRESS {
            self.release_memory();
        }
    }

    /// The descriptor to use during a call, after `fd` may have been closed by another thread.
    #[inline(always)]
    pub fn current_descriptor(&self, fd: c_int) -> c_int {
        if self.is_closing() { self.duplicate.load(Ordering::SeqCst) } else { fd }
    }

    pub(super) fn release_memory(&'static self) {
        let order = (Ordering::AcqRel, Ordering::Relaxed);
        if self
            .active_calls
            .compare_exchange(CLOSING, CLOSING | RELEASED, order.0, order.1)
            .is_err()
        {
            return;
        }
        let duplicate = self.duplicate.swap(-1, Ordering::AcqRel);
        if duplicate >= 0 {
            self.close_shared_end(duplicate);
            table::close_library_descriptor(duplicate);
        }
        let doorbell = self.doorbell.swap(-1, Ordering::AcqRel);
        if doorbell >= 0 {
            debug_assert!(self.peer_doorbell.load(Ordering::Relaxed) >= 0);
            multiplex::socket_closed(self);
            self.phase.store(KERNEL, Ordering::Release);
            // SAFETY: a socket with a doorbell has been joined, and no call is active any more.
            unsafe { (*self.conduit.get()).assume_init_drop() };
            table::close_library_descriptor(doorbell);
            table::close_library_descriptor(self.peer_doorbell.swap(-1, Ordering::AcqRel));
        }
        self.phase.store(KERNEL, Ordering::Release);
        self.generation.fetch_add(1, Ordering::AcqRel);
        table::free(self);
    }
}
