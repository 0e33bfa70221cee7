//! Holds for started programs that may use a socket without this library. As long as there is one,
//! the socket's bytes must go through the kernel ([`Socket::begin_hold`]). When none is left,
//! memory is used again: a data call of the socket notices it by the lock that the program has (see
//! `ledgers`).

use std::sync::atomic::Ordering;

use nm_ring::ledger::{INHERITED, KernelReason};

use crate::ledgers::{self, LockedByte};
use crate::process::{MemoryOwnership, memory_ownership};
use crate::socket::Socket;
use crate::{fallback, kernel, options, table};

/// State in [`nm_ring::ledger::EndState::inheritors`]: the socket is held for a started program.
const HELD: u32 = 1;
/// As [`HELD`], begun before the socket was joined.
const HELD_EARLY: u32 = 2;
const STATES: u32 = HELD | HELD_EARLY;
/// Above the states and [`INHERITED`]: counts starts, so that an end that was found before a start
/// is not believed after it.
const ONE_START: u32 = 8;

const _: () = assert!(INHERITED == 4);

/// Begins to hold a socket that a program is about to inherit, and whose byte is locked for it.
pub fn begin(socket: &'static Socket) {
    // First of all, so that it is in effect whoever else does the same.
    let state = if fallback::hold(socket, KernelReason::Exec) { HELD } else { HELD_EARLY };
    if !note_hold(socket, state) {
        end_hold(socket, state);
    }
}

/// The same for a socket that is joined, but that no descriptor of this process belongs to, except
/// `fd` for the moment.
pub fn begin_by_descriptor(socket: &Socket, fd: std::ffi::c_int) {
    socket.flush_to_kernel(fd);
    socket.begin_hold(fd, KernelReason::Exec);
    options::apply_cork(socket, fd);
    socket.wait_for_return(fd, None);
    if !note_hold(socket, HELD) {
        socket.end_hold(fd, KernelReason::Exec);
    }
}

/// Notes a start and its hold; false if the socket is held for another program already.
fn note_hold(socket: &Socket, state: u32) -> bool {
    let change = |before: u32| {
        let is_new = before & STATES == 0;
        Some(before.wrapping_add(ONE_START) | if is_new { state } else { 0 })
    };
    let order = Ordering::SeqCst;
    let before = socket.end().inheritors.fetch_update(order, order, change).unwrap_or_default();
    before & STATES == 0
}

fn end_hold(socket: &'static Socket, state: u32) {
    if state & HELD_EARLY != 0 {
        socket.end().holds.fetch_sub(1, Ordering::SeqCst);
        socket.record().clear_reason(KernelReason::Exec);
    } else if let Some((_guard, fd)) = table::enter_any(socket) {
        socket.end_hold(fd, KernelReason::Exec);
    }
}

/// In a data call of a socket that is held: ends the hold if no started program is left that could
/// use the socket. Asks the kernel at most once per tick of its coarse clock, which is 1 to 10 ms.
#[cold]
pub fn check(socket: &'static Socket) {
    let end = socket.end();
    if end.inheritors.load(Ordering::Relaxed) & STATES == 0 {
        return;
    }
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the structure is live for the call.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_COARSE, &raw mut time) };
    let now = (time.tv_sec as u32).wrapping_mul(1_000_000).wrapping_add(time.tv_nsec as u32 / 1000);
    if end.inheritors_checked_at_us.swap(now, Ordering::Relaxed) != now {
        end_if_free(socket);
    }
}

/// The same at once for all sockets: a started program has just ended.
pub fn check_all() {
    let errno = kernel::errno();
    if memory_ownership() == MemoryOwnership::Owner {
        table::for_each_socket(end_if_free);
    }
    kernel::set_errno(errno);
}

fn end_if_free(socket: &'static Socket) {
    let word = &socket.end().inheritors;
    let before = word.load(Ordering::SeqCst);
    if before & STATES == 0 {
        return;
    }
    let errno = kernel::errno();
    let order = Ordering::SeqCst;
    if let Some(place) = ledgers::place_of(socket.record())
        && !ledgers::is_locked(place, LockedByte::InUse)
        // In this order: the program locks the second byte before it unlocks the first.
        && let is_inherited = ledgers::is_locked(place, LockedByte::Inherited)
        && let kept = if is_inherited { !STATES } else { !(STATES | INHERITED) }
        && word.compare_exchange(before, before & kept, order, order).is_ok()
    {
        end_hold(socket, before & STATES);
    }
    kernel::set_errno(errno);
}
