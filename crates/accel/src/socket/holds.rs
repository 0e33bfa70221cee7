//! Holds: for some time both directions must use the kernel, because somebody who does not know the
//! memory can use the socket. When the last hold ends, memory is used again.

use std::ffi::c_int;
use std::sync::atomic::Ordering;

use nm_ring::conduit::RETURN_REQUESTED;
use nm_ring::ledger::{KernelReason, REASON_OF_PEER};

use super::Socket;
use crate::kernel;

/// Looks of a process for the peer's return of unread bytes, and the pause between them.
const RETURN_LOOKS: u32 = 200;
const RETURN_PAUSE_NS: u64 = 1_000_000;

/// Holds, in any phase; counted in memory that forks share.
impl Socket {
    /// Begins a hold: the peer sends through the kernel from now on, and so does this end. Bytes
    /// that are in memory already stay there: see [`Socket::wait_for_return`]. Who has sent without
    /// this library is found out before: the end of the hold forgets the counts that show it.
    pub fn begin_hold(&self, fd: c_int, reason: KernelReason) {
        self.has_sends_past(fd);
        self.end().holds.fetch_add(1, Ordering::SeqCst);
        self.rely_on_kernel();
        self.record().set_reason(reason, 0);
        if self.is_joined() {
            self.own().hold_reason.store(reason as u32, Ordering::Relaxed);
            self.record().outgoing.fallbacks.add(1);
            self.record().incoming.fallbacks.add(1);
        }
    }

    /// Ends a hold. After the last one the counts of both directions are read again from the
    /// kernel, because the socket may have been used without this library.
    pub fn end_hold(&self, fd: c_int, reason: KernelReason) {
        let last = self.end().holds.load(Ordering::SeqCst) == 1;
        if last {
            self.end().kernel_sent.store(0, Ordering::SeqCst);
        }
        if last && self.is_joined() {
            self.own().hold_reason.store(0, Ordering::Relaxed);
            self.own().state.fetch_and(!RETURN_REQUESTED, Ordering::SeqCst);
            self.incoming().kernel_use.received.store(0, Ordering::SeqCst);
        }
        self.end().holds.fetch_sub(1, Ordering::SeqCst);
        self.end_reliance();
        if last {
            self.record().clear_reason(reason);
            if self.is_joined() {
                self.end().rejoins.fetch_add(1, Ordering::Relaxed);
                self.publish_received(fd);
            }
        }
    }

    /// This end must send through the kernel: if the other end has a hold, notes why.
    #[cold]
    pub fn note_hold_of_peer(&self) {
        let number = self.peer().hold_reason.load(Ordering::Relaxed);
        let reason = KernelReason::from_number(number).unwrap_or(KernelReason::None);
        let noted = self.record().reason();
        if reason != KernelReason::None && noted == KernelReason::None {
            self.record().set_reason(reason, REASON_OF_PEER);
            self.record().outgoing.fallbacks.add(1);
            self.record().incoming.fallbacks.add(1);
        } else if number == 0 && self.record().reason_detail() == REASON_OF_PEER {
            self.record().clear_reason(noted);
            self.end().rejoins.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Whether a hold exists.
    #[inline]
    pub fn is_held(&self) -> bool {
        self.end().holds.load(Ordering::Relaxed) != 0
    }

    /// Asks the peer to send again, through the kernel, what is still in memory, and waits for it a
    /// moment: for a user of the descriptor who cannot read memory. `local_peer` is the other end
    /// if it is in this process, with its descriptor.
    pub fn wait_for_return(&self, fd: c_int, local_peer: Option<(&Socket, c_int)>) {
        if !self.has_memory_bytes() {
            return;
        }
        self.own().set_flags(RETURN_REQUESTED);
        if let Some((peer, descriptor)) = local_peer {
            peer.flush_to_kernel(descriptor);
        }
        for _ in 0..RETURN_LOOKS {
            if !self.has_memory_bytes() || self.peer_is_gone(fd) {
                return;
            }
            let _ = kernel::poll(&mut [], Some(RETURN_PAUSE_NS));
        }
    }
}
