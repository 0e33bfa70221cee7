//! Fallback: keeping a socket on the kernel, for a time or for the rest of its life.

use std::sync::atomic::Ordering;

use nm_ring::ledger::KernelReason;

use crate::socket::Socket;
use crate::{kernel, options, table};

/// Keeps a candidate on the kernel for the rest of its life; a joined socket gets a hold that does
/// not end.
pub fn move_to_kernel(socket: &'static Socket, reason: KernelReason) {
    if socket.leave_candidacy() {
        socket.record().set_reason(reason, 0);
        table::close_listener(socket);
        return;
    }
    hold(socket, reason);
}

/// Begins a hold, and has bytes that are in memory sent again through the kernel. Of a socket that
/// is not joined the hold prevents the rendezvous, and this returns false.
pub fn hold(socket: &'static Socket, reason: KernelReason) -> bool {
    let Some((_guard, fd)) = table::enter_any(socket).filter(|_| socket.is_joined()) else {
        socket.end().holds.fetch_add(1, Ordering::SeqCst);
        socket.record().set_reason(reason, 0);
        return false;
    };
    let errno = kernel::errno();
    // What this end has sent must be before what somebody else sends from now on.
    socket.flush_to_kernel(fd);
    socket.begin_hold(fd, reason);
    options::apply_cork(socket, fd);
    let local = table::local_peer_of(socket);
    let local = local.as_ref().map(|(_guard, peer, descriptor)| (*peer, *descriptor));
    socket.wait_for_return(fd, local);
    kernel::set_errno(errno);
    true
}
