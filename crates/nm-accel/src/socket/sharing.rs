//! Who holds a socket: other processes after a fork, threads that are inside of a call, and what
//! the last of them does when it lets go.

use std::ffi::c_int;
use std::sync::atomic::Ordering;

use nm_ring::conduit::{CLOSED, WATCHES_DOORBELL};
use nm_ring::ledger::KernelReason;

use super::{AFTER, BEFORE, CLOSING, GONE, HOLD, KERNEL, Socket};
use crate::{kernel, ready, table};

/// Forks and the end.
impl Socket {
    /// Before a fork: a direction that is not yet in memory could be counted by two processes, so
    /// such a socket goes back to the kernel.
    pub fn before_fork(&'static self) {
        if self.joined() {
            let fd = self.descriptor();
            let Some(_inside) = fd.and_then(|fd| self.enter(fd)) else { return };
            let listening = self.own().state.load(Ordering::Acquire) & WATCHES_DOORBELL != 0;
            if self.stage_out.load(Ordering::Acquire) == BEFORE || !listening {
                self.demote(KernelReason::SharedByFork);
            }
        }
    }

    /// In the child of a fork: no other thread is inside, sending or waiting.
    pub fn forget_threads(&self) {
        for word in [&self.inside, &self.kernel_waiters, &self.kernel_senders, &self.switching] {
            word.store(0, Ordering::Relaxed);
        }
        for word in [&self.readers, &self.writers, &self.sleepers, &self.seen] {
            word.store(0, Ordering::Relaxed);
        }
        self.meeting_lock.store(0, Ordering::Relaxed);
    }

    /// Before the kernel closes what leads here last, `fd`: the peer is told in shared memory.
    fn part(&'static self, fd: c_int) {
        let record = self.record();
        let last = record.release() == 0;
        crate::meet::stop(self);
        if self.joined() && last {
            if self.owing() {
                self.pay(fd);
            }
            // One that has gone back to the kernel, or to others, is the kernel's to reset.
            let unread = self.stage_in.load(Ordering::Acquire) != AFTER
                && self.incoming().resend_from().is_none()
                && record.reason() == KernelReason::None
                && self.incoming().readable() > 0;
            self.hand_back(fd);
            self.own().state.fetch_or(CLOSED, Ordering::Release);
            self.end_out();
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

    /// Before the process ends without closing: its last bytes need nobody to send them again.
    pub fn leave_behind(&'static self) {
        if let Some(fd) = self.descriptor()
            && let Some(_inside) = self.enter(fd)
            && self.joined()
        {
            self.hand_back(fd);
        }
    }

    /// Before the kernel closes the last descriptor, which is out of the table already. Threads
    /// that are still inside keep a copy of it.
    pub fn leave(&'static self, fd: c_int) {
        if self.joined() && self.inside.load(Ordering::SeqCst) > 0 {
            // SAFETY: duplicates a descriptor; the copy is ours.
            let ghost = unsafe { kernel::fcntl(fd, libc::F_DUPFD_CLOEXEC, 0) };
            self.ghost.store(table::keep(ghost), Ordering::SeqCst);
        }
        self.inside.fetch_or(CLOSING | HOLD, Ordering::AcqRel);
        if self.ghost.load(Ordering::SeqCst) < 0 {
            self.part(fd);
        }
    }

    /// After the kernel has closed the last descriptor: the memory goes with the last thread.
    pub fn close(&'static self) {
        let before = self.inside.fetch_and(!HOLD, Ordering::AcqRel);
        if before == CLOSING | HOLD {
            self.reclaim();
        }
    }

    /// What a thread inside calls the socket by, once `fd` may have been closed under it.
    #[inline(always)]
    pub fn name_inside(&self, fd: c_int) -> c_int {
        if self.closing() { self.ghost.load(Ordering::SeqCst) } else { fd }
    }

    pub(super) fn reclaim(&'static self) {
        let order = (Ordering::AcqRel, Ordering::Relaxed);
        if self.inside.compare_exchange(CLOSING, CLOSING | GONE, order.0, order.1).is_err() {
            return;
        }
        let ghost = self.ghost.swap(-1, Ordering::AcqRel);
        if ghost >= 0 {
            self.part(ghost);
            table::release_own(ghost);
        }
        let bell = self.bell.swap(-1, Ordering::AcqRel);
        if bell >= 0 {
            ready::gone(self);
            self.phase.store(KERNEL, Ordering::Release);
            // SAFETY: a socket with a bell has been joined, and nobody is inside any more.
            unsafe { (*self.conduit.get()).assume_init_drop() };
            table::release_own(bell);
            table::release_own(self.peer_bell.swap(-1, Ordering::AcqRel));
        }
        self.phase.store(KERNEL, Ordering::Release);
        self.generation.fetch_add(1, Ordering::AcqRel);
        table::free(self);
    }
}
