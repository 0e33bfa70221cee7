//! Ways of waiting for bytes, one type for each mode of a stack.

use std::io;
use std::os::fd::RawFd;
use std::time::Duration;

use nm_sys::clock::Deadline;
use nm_sys::poll::{self, EpollOne, SelectOne};
use nm_sys::socket::DONT_WAIT;

use crate::transport::CALL_TIMEOUT;

/// How an endpoint waits before and in its receive calls.
pub trait Wait: Send + Sized {
    /// Flags of the receive call.
    const FLAGS: i32;
    /// Whether a wait that found nothing is repeated at once, until [`SpinLimit`] is reached.
    const SPINS: bool;

    /// Prepares to wait for `fd`.
    ///
    /// # Errors
    /// Those of the system calls.
    fn new(fd: RawFd) -> io::Result<Self>;

    /// Waits before a receive call; returns whether one is worth making.
    ///
    /// # Errors
    /// Those of the system call.
    fn before_receive(&self, fd: RawFd) -> io::Result<bool>;

    /// Waits for at most `limit`; a spinning way checks once.
    ///
    /// # Errors
    /// Those of the system call.
    fn readable(&self, fd: RawFd, limit: Duration) -> io::Result<bool>;
}

/// A receive call that sleeps; `SO_RCVTIMEO` wakes it after [`CALL_TIMEOUT`].
#[derive(Debug)]
pub struct Blocking;

impl Wait for Blocking {
    const FLAGS: i32 = 0;
    const SPINS: bool = false;

    fn new(_fd: RawFd) -> io::Result<Blocking> {
        Ok(Blocking)
    }

    #[inline(always)]
    fn before_receive(&self, _fd: RawFd) -> io::Result<bool> {
        Ok(true)
    }

    fn readable(&self, fd: RawFd, limit: Duration) -> io::Result<bool> {
        poll::readable(fd, limit)
    }
}

/// Receive calls that never sleep, in a loop.
#[derive(Debug)]
pub struct Spin;

impl Wait for Spin {
    const FLAGS: i32 = DONT_WAIT;
    const SPINS: bool = true;

    fn new(_fd: RawFd) -> io::Result<Spin> {
        Ok(Spin)
    }

    #[inline(always)]
    fn before_receive(&self, _fd: RawFd) -> io::Result<bool> {
        Ok(true)
    }

    #[inline(always)]
    fn readable(&self, _fd: RawFd, _limit: Duration) -> io::Result<bool> {
        Ok(true)
    }
}

/// A system call that reports whether a descriptor is ready.
pub trait Multiplexer: Send + Sized {
    /// Prepares to wait for `fd`.
    ///
    /// # Errors
    /// Those of the system calls.
    fn new(fd: RawFd) -> io::Result<Self>;

    /// Whether `fd` is ready within `limit`.
    ///
    /// # Errors
    /// Those of the system call.
    fn ready(&self, fd: RawFd, limit: Duration) -> io::Result<bool>;
}

/// `poll`.
#[derive(Debug)]
pub struct Poll;

impl Multiplexer for Poll {
    fn new(_fd: RawFd) -> io::Result<Poll> {
        Ok(Poll)
    }

    #[inline(always)]
    fn ready(&self, fd: RawFd, limit: Duration) -> io::Result<bool> {
        poll::readable(fd, limit)
    }
}

impl Multiplexer for SelectOne {
    fn new(fd: RawFd) -> io::Result<SelectOne> {
        SelectOne::new(fd)
    }

    #[inline(always)]
    fn ready(&self, _fd: RawFd, limit: Duration) -> io::Result<bool> {
        self.wait(limit)
    }
}

impl Multiplexer for EpollOne {
    fn new(fd: RawFd) -> io::Result<EpollOne> {
        EpollOne::new(fd)
    }

    #[inline(always)]
    fn ready(&self, _fd: RawFd, limit: Duration) -> io::Result<bool> {
        self.wait(limit)
    }
}

/// A multiplexer in front of each receive call: sleeping in it, or calling it in a loop.
#[derive(Debug)]
pub struct Multiplexed<M, const SPINS: bool>(M);

impl<M: Multiplexer, const SPINS: bool> Wait for Multiplexed<M, SPINS> {
    // A descriptor that is reported ready may have nothing after all (a datagram with a wrong
    // checksum), so the receive call itself must not sleep.
    const FLAGS: i32 = DONT_WAIT;
    const SPINS: bool = SPINS;

    fn new(fd: RawFd) -> io::Result<Multiplexed<M, SPINS>> {
        Ok(Multiplexed(M::new(fd)?))
    }

    #[inline(always)]
    fn before_receive(&self, fd: RawFd) -> io::Result<bool> {
        self.0.ready(fd, if SPINS { Duration::ZERO } else { CALL_TIMEOUT })
    }

    #[inline(always)]
    fn readable(&self, fd: RawFd, limit: Duration) -> io::Result<bool> {
        self.0.ready(fd, if SPINS { Duration::ZERO } else { limit })
    }
}

/// Ends a spinning wait after [`CALL_TIMEOUT`]. The clock is first read after
/// [`SpinLimit::SPINS_PER_CLOCK_READ`] spins, so a quick answer does not pay for it.
#[derive(Debug, Default)]
pub struct SpinLimit {
    spins: u32,
    deadline: Option<Deadline>,
}

impl SpinLimit {
    /// Spins between two readings of the clock.
    pub const SPINS_PER_CLOCK_READ: u32 = 256;

    /// Counts a spin; returns whether the limit is reached.
    #[inline(always)]
    pub fn count_spin(&mut self) -> bool {
        self.spins += 1;
        self.spins == SpinLimit::SPINS_PER_CLOCK_READ && self.deadline_passed()
    }

    #[cold]
    fn deadline_passed(&mut self) -> bool {
        self.spins = 0;
        self.deadline.get_or_insert_with(|| Deadline::after(CALL_TIMEOUT)).passed()
    }
}
