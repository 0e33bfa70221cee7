//! Sleeping until the peer rings, waking the peer, and what poll, select and epoll are told.

use std::cell::Cell;
use std::ffi::c_int;
use std::ptr;
use std::sync::atomic::{Ordering, fence};

use libc::pollfd;
use nm_ring::conduit::CLOSED;

use super::{BEFORE, PIPE, Socket, WRITABLE_BYTES};
use crate::{kernel, ready};

std::thread_local! {
    /// The socket and the ring that this thread has counted last.
    static LAST_SEEN: Cell<(usize, u32)> = const { Cell::new((0, 0)) };
}

/// Sleeping and waking.
impl Socket {
    /// The eventfd that the peer writes to when this end has said that it sleeps.
    #[inline(always)]
    pub fn bell(&self) -> c_int {
        self.bell.load(Ordering::Relaxed)
    }

    /// Drains the own bell for an epoll set, and does what the peer asked for. While a thread
    /// sleeps on the bell itself, the draining is left to it.
    pub fn hush(&'static self) {
        if self.sleepers.load(Ordering::SeqCst) == 0 {
            self.drain();
        }
        self.attend();
    }

    /// A thread is about to sleep on the bell itself.
    pub fn lie_down(&self) {
        self.sleepers.fetch_add(1, Ordering::SeqCst);
    }

    /// It sleeps no more.
    pub fn get_up(&self) {
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
    }

    /// As [`Socket::hush`], for a thread between [`Socket::lie_down`] and [`Socket::get_up`]. A
    /// bell drained by the first would not wake the others, so the last who has seen it ring
    /// drains it.
    pub fn hush_asleep(&'static self) {
        let sleepers = self.sleepers.load(Ordering::SeqCst);
        if sleepers <= 1 {
            self.seen.store(0, Ordering::SeqCst);
            self.drain();
        } else {
            let ring = (ptr::from_ref(self).addr(), self.rings.load(Ordering::SeqCst));
            if LAST_SEEN.replace(ring) != ring {
                self.seen.fetch_add(1, Ordering::SeqCst);
            }
            if self.seen.load(Ordering::SeqCst) >= sleepers {
                self.seen.store(0, Ordering::SeqCst);
                self.rings.fetch_add(1, Ordering::SeqCst);
                self.drain();
            } else {
                rustix::thread::sched_yield();
            }
        }
        self.attend();
    }

    fn drain(&'static self) {
        let mut count = 0_u64;
        // SAFETY: the bell is an eventfd, which gives 8 bytes.
        unsafe { kernel::read(self.bell(), (&raw mut count).cast(), 8) };
        if self.sets.load(Ordering::Relaxed) != 0 {
            ready::heard(self);
        }
    }

    /// Says that threads of this process are about to sleep until the socket is readable, or
    /// writable. Counted: each call wants its [`Socket::disarm`]. Look again after it.
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

    /// Takes an [`Socket::arm`] with the same arguments back.
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
    pub fn ring_reader(&self) {
        if self.outgoing().take_reader_waiting() {
            self.ring_peer();
        }
    }

    /// Wakes the peer if it sleeps until this end has taken something.
    #[inline(always)]
    pub fn ring_writer(&self) {
        if self.incoming().take_writer_waiting() {
            self.ring_peer();
        }
    }

    #[cold]
    pub(super) fn ring_peer(&self) {
        ring(self.peer_bell.load(Ordering::Relaxed));
        self.record().outgoing.doorbells.add(1);
    }

    /// Wakes this process's own sleepers, so that they look again.
    pub fn wake_own(&self) {
        ring(self.bell());
    }
}

/// Readiness, for poll, select and epoll.
impl Socket {
    /// What the socket is ready for, as `EPOLL*` bits, from memory alone: the kernel's part is as
    /// of the last [`Socket::refresh`].
    pub fn readiness(&self) -> u32 {
        let mut bits = self.known.load(Ordering::Acquire);
        if self.incoming().readable() > 0 && self.pipe_is_next() {
            bits |= (libc::EPOLLIN | libc::EPOLLRDNORM) as u32;
        }
        let peer = self.peer().state.load(Ordering::Acquire);
        if self.stage_out.load(Ordering::Acquire) == PIPE && peer & CLOSED == 0 {
            let writable = (libc::EPOLLOUT | libc::EPOLLWRNORM) as u32;
            let over = bits & (libc::EPOLLHUP | libc::EPOLLERR) as u32 != 0;
            if self.outgoing().writable() >= WRITABLE_BYTES || over {
                bits |= writable;
                self.note_room();
            } else {
                bits &= !writable;
                self.note_full();
            }
        }
        bits
    }

    /// Whether the next byte to receive is one of the pipe's: not while bytes before it are still
    /// on their way through the kernel.
    #[inline(always)]
    pub fn pipe_is_next(&self) -> bool {
        match self.stage_in.load(Ordering::Acquire) {
            // What has been handed back is with the kernel already.
            PIPE => self.incoming().resend_from().is_none(),
            BEFORE => self.pipe_begins(),
            _ => false,
        }
    }

    #[cold]
    fn pipe_begins(&self) -> bool {
        let Some(begin) = self.incoming().starts_at() else { return false };
        let taken = self.descriptor().and_then(crate::meet::taken_from_kernel);
        taken.is_some_and(|(taken, _)| begin <= taken)
    }

    /// Whether both directions are in shared memory now.
    pub fn whole(&self) -> bool {
        self.stage_in.load(Ordering::Acquire) == PIPE
            && self.stage_out.load(Ordering::Acquire) == PIPE
            && self.incoming().ends_at().is_none()
            && self.outgoing().ends_at().is_none()
    }

    /// Looks at the kernel socket, remembers what it says, and gives that as `EPOLL*` bits.
    pub fn refresh(&self) -> u32 {
        let Some(fd) = self.descriptor() else { return 0 };
        self.look(fd)
    }

    /// As [`Socket::refresh`], of a known descriptor.
    pub fn look(&self, fd: c_int) -> u32 {
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
        self.remember(bits);
        bits
    }

    /// Remembers what the kernel socket was just seen to be ready for.
    pub fn remember(&self, bits: u32) {
        let old = self.known.swap(bits, Ordering::AcqRel);
        if bits & !old != 0 {
            self.news.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// What the kernel socket was last seen to be ready for.
    pub fn known(&self) -> u32 {
        self.known.load(Ordering::Acquire)
    }

    /// Forgets that the kernel socket had something to read, or room.
    pub fn forget(&self, bits: c_int) {
        self.known.fetch_and(!(bits as u32), Ordering::AcqRel);
    }

    /// Two counters that grow with each arrival of bytes or of an end, and with each gain of room
    /// after there was none: what edge-triggered waiting goes by.
    pub fn edge(&self) -> (u64, u64) {
        let news = self.news.load(Ordering::Acquire);
        (
            self.incoming().written().wrapping_add(news),
            self.fulls.load(Ordering::Acquire).wrapping_add(news),
        )
    }

    /// Remembers that the outgoing pipe was found full.
    pub fn note_full(&self) {
        self.fulls.fetch_or(1, Ordering::AcqRel);
    }

    /// Remembers that the outgoing pipe has room again.
    fn note_room(&self) {
        if self.fulls.load(Ordering::Relaxed) & 1 != 0 {
            self.fulls.fetch_add(1, Ordering::AcqRel);
        }
    }
}

/// Wakes whoever waits for an eventfd.
fn ring(bell: c_int) {
    let errno = kernel::errno();
    let one = 1_u64;
    // SAFETY: the value is live and 8 bytes long.
    unsafe { kernel::write(bell, (&raw const one).cast(), 8) };
    kernel::set_errno(errno);
}
