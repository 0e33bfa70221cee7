//! Sleeping until the peer rings the doorbell, waking the peer, and what poll, select and epoll
//! report.

use std::cell::Cell;
use std::ffi::c_int;
use std::ptr;
use std::sync::atomic::{Ordering, fence};

use libc::pollfd;
use nm_ring::conduit::CLOSED;

use super::{BEFORE_PIPE, IN_PIPE, Socket, WRITABLE_BYTES};
use crate::{kernel, multiplex};

std::thread_local! {
    /// The socket and the ring that this thread counted last.
    static LAST_COUNTED: Cell<(usize, u32)> = const { Cell::new((0, 0)) };
}

/// Sleeping and waking.
impl Socket {
    /// The eventfd that the peer writes to when this end has announced that it sleeps.
    #[inline(always)]
    pub fn doorbell(&self) -> c_int {
        self.doorbell.load(Ordering::Relaxed)
    }

    /// Drains this end's doorbell for an epoll set, and handles what the peer requested. While a
    /// thread sleeps on the doorbell itself, that thread drains it.
    pub fn drain(&'static self) {
        if self.sleepers.load(Ordering::SeqCst) == 0 {
            self.drain_doorbell();
        }
        self.handle_peer_requests();
    }

    /// A thread is about to sleep on the doorbell itself.
    pub fn begin_sleep(&self) {
        self.sleepers.fetch_add(1, Ordering::SeqCst);
    }

    /// The thread sleeps no more.
    pub fn end_sleep(&self) {
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
    }

    /// As [`Socket::drain`], for a thread between [`Socket::begin_sleep`] and
    /// [`Socket::end_sleep`]. If the first woken thread drained the doorbell, the others would not
    /// wake up, so the last one that has seen the ring drains it.
    pub fn drain_as_sleeper(&'static self) {
        let sleepers = self.sleepers.load(Ordering::SeqCst);
        if sleepers <= 1 {
            self.sleepers_notified.store(0, Ordering::SeqCst);
            self.drain_doorbell();
        } else {
            let ring = (ptr::from_ref(self).addr(), self.doorbell_drains.load(Ordering::SeqCst));
            if LAST_COUNTED.replace(ring) != ring {
                self.sleepers_notified.fetch_add(1, Ordering::SeqCst);
            }
            if self.sleepers_notified.load(Ordering::SeqCst) >= sleepers {
                self.sleepers_notified.store(0, Ordering::SeqCst);
                self.doorbell_drains.fetch_add(1, Ordering::SeqCst);
                self.drain_doorbell();
            } else {
                rustix::thread::sched_yield();
            }
        }
        self.handle_peer_requests();
    }

    fn drain_doorbell(&'static self) {
        let mut count = 0_u64;
        // SAFETY: the doorbell is an eventfd, which returns 8 bytes.
        unsafe { kernel::read(self.doorbell(), (&raw mut count).cast(), 8) };
        if self.epoll_registrations.load(Ordering::Relaxed) != 0 {
            multiplex::doorbell_drained(self);
        }
    }

    /// Announces that threads of this process are about to sleep until the socket is readable, or
    /// writable. Counted: each call needs its [`Socket::disarm`]. The caller must check once more
    /// after it.
    pub fn arm(&self, readable: bool, writable: bool) {
        if readable {
            self.readers.fetch_add(1, Ordering::AcqRel);
            self.incoming().arm_reader();
        }
        if writable {
            self.writers.fetch_add(1, Ordering::AcqRel);
            self.outgoing().arm_writer();
        }
        fence(Ordering::SeqCst);
    }

    /// Reverts an [`Socket::arm`] with the same arguments.
    pub fn disarm(&self, readable: bool, writable: bool) {
        if readable {
            if self.readers.fetch_sub(1, Ordering::AcqRel) == 1 {
                self.incoming().disarm_reader();
            } else {
                self.incoming().arm_reader();
            }
        }
        if writable {
            if self.writers.fetch_sub(1, Ordering::AcqRel) == 1 {
                self.outgoing().disarm_writer();
            } else {
                self.outgoing().arm_writer();
            }
        }
    }

    /// Wakes the peer if it sleeps until this end has sent something.
    #[inline(always)]
    pub fn wake_peer_reader(&self) {
        if self.outgoing().take_reader_waiting() {
            self.ring_peer_doorbell();
        }
    }

    /// Wakes the peer if it sleeps until this end has received something.
    #[inline(always)]
    pub fn wake_peer_writer(&self) {
        if self.incoming().take_writer_waiting() {
            self.ring_peer_doorbell();
        }
    }

    #[cold]
    pub(super) fn ring_peer_doorbell(&self) {
        ring_doorbell(self.peer_doorbell.load(Ordering::Relaxed));
        self.record().outgoing.doorbells.add(1);
    }

    /// Wakes this process's own sleepers, so that they check again.
    pub fn wake_own_sleepers(&self) {
        ring_doorbell(self.doorbell());
    }
}

/// Readiness, for poll, select and epoll.
impl Socket {
    /// What the socket is ready for, as `EPOLL*` bits, without a system call: the kernel's part is
    /// as of the last [`Socket::refresh_kernel_events`].
    pub fn readiness(&self) -> u32 {
        let mut bits = self.kernel_events.load(Ordering::Acquire);
        if self.incoming().readable() > 0 && self.pipe_is_next() {
            bits |= (libc::EPOLLIN | libc::EPOLLRDNORM) as u32;
        }
        let peer = self.peer().state.load(Ordering::Acquire);
        if self.outgoing_stage.load(Ordering::Acquire) == IN_PIPE && peer & CLOSED == 0 {
            let writable = (libc::EPOLLOUT | libc::EPOLLWRNORM) as u32;
            let over = bits & (libc::EPOLLHUP | libc::EPOLLERR) as u32 != 0;
            if self.outgoing().writable() >= WRITABLE_BYTES || over {
                bits |= writable;
                self.note_space();
            } else {
                bits &= !writable;
                self.note_full();
            }
        }
        bits
    }

    /// Whether the next byte to receive is in the pipe: not while earlier bytes are still in flight
    /// through the kernel.
    #[inline(always)]
    pub fn pipe_is_next(&self) -> bool {
        match self.incoming_stage.load(Ordering::Acquire) {
            // Bytes whose replay was requested come through the kernel.
            IN_PIPE => self.incoming().resend_from().is_none(),
            BEFORE_PIPE => self.kernel_bytes_are_consumed(),
            _ => false,
        }
    }

    #[cold]
    fn kernel_bytes_are_consumed(&self) -> bool {
        let Some(begin) = self.incoming().starts_at() else { return false };
        let taken = self.descriptor().and_then(crate::rendezvous::received_through_kernel);
        taken.is_some_and(|(taken, _)| begin <= taken)
    }

    /// Whether both directions are in shared memory now.
    pub fn is_fully_in_memory(&self) -> bool {
        self.incoming_stage.load(Ordering::Acquire) == IN_PIPE
            && self.outgoing_stage.load(Ordering::Acquire) == IN_PIPE
            && self.incoming().ends_at().is_none()
            && self.outgoing().ends_at().is_none()
    }

    /// Polls the kernel socket, stores the result, and returns it as `EPOLL*` bits.
    pub fn refresh_kernel_events(&self) -> u32 {
        let Some(fd) = self.descriptor() else { return 0 };
        self.poll_kernel_events(fd)
    }

    /// As [`Socket::refresh_kernel_events`], with a known descriptor.
    pub fn poll_kernel_events(&self, fd: c_int) -> u32 {
        let events = libc::POLLIN
            | libc::POLLOUT
            | libc::POLLRDHUP
            | libc::POLLPRI
            | libc::POLLRDNORM
            | libc::POLLWRNORM;
        let mut one = [pollfd { fd, events, revents: 0 }];
        let errno = kernel::errno();
        kernel::poll(&mut one, Some(0));
        kernel::set_errno(errno);
        let bits = one[0].revents as u16 as u32 & !(libc::POLLNVAL as u32);
        self.store_kernel_events(bits);
        bits
    }

    /// Stores the events of the kernel socket.
    pub fn store_kernel_events(&self, bits: u32) {
        let old = self.kernel_events.swap(bits, Ordering::AcqRel);
        if bits & !old != 0 {
            self.kernel_event_count.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Events of the kernel socket when it was last polled.
    pub fn kernel_events(&self) -> u32 {
        self.kernel_events.load(Ordering::Acquire)
    }

    /// Clears stored readable or writable events of the kernel socket.
    pub fn clear_kernel_events(&self, bits: c_int) {
        self.kernel_events.fetch_and(!(bits as u32), Ordering::AcqRel);
    }

    /// Two counters for edge-triggered waiting: one grows with each arrival of bytes or of an end,
    /// the other each time that space becomes free after there was none.
    pub fn edge_counters(&self) -> (u64, u64) {
        let kernel_events = self.kernel_event_count.load(Ordering::Acquire);
        (
            self.incoming().written().wrapping_add(kernel_events),
            self.full_transitions.load(Ordering::Acquire).wrapping_add(kernel_events),
        )
    }

    /// Notes that the outgoing pipe was found full.
    pub fn note_full(&self) {
        self.full_transitions.fetch_or(1, Ordering::AcqRel);
    }

    /// Notes that the outgoing pipe has space again.
    fn note_space(&self) {
        if self.full_transitions.load(Ordering::Relaxed) & 1 != 0 {
            self.full_transitions.fetch_add(1, Ordering::AcqRel);
        }
    }
}

/// Wakes the threads that wait for an eventfd.
fn ring_doorbell(doorbell: c_int) {
    let errno = kernel::errno();
    let one = 1_u64;
    // SAFETY: the value is live and 8 bytes long.
    unsafe { kernel::write(doorbell, (&raw const one).cast(), 8) };
    kernel::set_errno(errno);
}
