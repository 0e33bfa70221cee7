//! Ways of waiting for bytes, one type for each mode of a stack.

use std::io;
use std::os::fd::RawFd;
use std::time::Duration;

use nm_sys::clock::Deadline;
use nm_sys::poll::{self, EpollOne, SelectOne};
use nm_sys::socket::DONT_WAIT;

use crate::SLICE;

/// How an endpoint waits before and in its receive calls.
pub trait Wait: Send + Sized {
    /// Flags of the receive call.
    const FLAGS: i32;
    /// Whether a wait that found nothing is tried again at once, until [`Patience`] is spent.
    const SPINS: bool;

    /// Gets ready to wait for `fd`.
    ///
    /// # Errors
    /// What the system says.
    fn new(fd: RawFd) -> io::Result<Self>;

    /// Waits before a receive call; answers whether one is worth making.
    ///
    /// # Errors
    /// What the system says.
    fn before(&self, fd: RawFd) -> io::Result<bool>;

    /// Waits for at most `limit`; a spinning way looks once.
    ///
    /// # Errors
    /// What the system says.
    fn within(&self, fd: RawFd, limit: Duration) -> io::Result<bool>;
}

/// A receive call that sleeps; `SO_RCVTIMEO` wakes it after [`SLICE`].
#[derive(Debug)]
pub struct Blocking;

impl Wait for Blocking {
    const FLAGS: i32 = 0;
    const SPINS: bool = false;

    fn new(_fd: RawFd) -> io::Result<Blocking> {
        Ok(Blocking)
    }

    #[inline(always)]
    fn before(&self, _fd: RawFd) -> io::Result<bool> {
        Ok(true)
    }

    fn within(&self, fd: RawFd, limit: Duration) -> io::Result<bool> {
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
    fn before(&self, _fd: RawFd) -> io::Result<bool> {
        Ok(true)
    }

    #[inline(always)]
    fn within(&self, _fd: RawFd, _limit: Duration) -> io::Result<bool> {
        Ok(true)
    }
}

/// Something that can be asked whether a descriptor is ready.
pub trait Multiplexer: Send + Sized {
    /// Gets ready to wait for `fd`.
    ///
    /// # Errors
    /// What the system says.
    fn new(fd: RawFd) -> io::Result<Self>;

    /// Whether `fd` is ready within `limit`.
    ///
    /// # Errors
    /// What the system says.
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

/// A multiplexer in front of each receive call: sleeping in it, or asking it in a loop.
#[derive(Debug)]
pub struct Multiplexed<M, const SPINS: bool>(M);

impl<M: Multiplexer, const SPINS: bool> Wait for Multiplexed<M, SPINS> {
    // Ready may turn out to be false (a datagram with a wrong checksum), so never sleep behind it.
    const FLAGS: i32 = DONT_WAIT;
    const SPINS: bool = SPINS;

    fn new(fd: RawFd) -> io::Result<Multiplexed<M, SPINS>> {
        Ok(Multiplexed(M::new(fd)?))
    }

    #[inline(always)]
    fn before(&self, fd: RawFd) -> io::Result<bool> {
        self.0.ready(fd, if SPINS { Duration::ZERO } else { SLICE })
    }

    #[inline(always)]
    fn within(&self, fd: RawFd, limit: Duration) -> io::Result<bool> {
        self.0.ready(fd, if SPINS { Duration::ZERO } else { limit })
    }
}

/// How long a spinning wait goes on: [`SLICE`], by a clock that is not read before the first
/// [`Patience::TURNS`] turns, so that a quick answer pays nothing for it.
#[derive(Debug, Default)]
pub struct Patience {
    turns: u32,
    deadline: Option<Deadline>,
}

impl Patience {
    /// Turns between two looks at the clock.
    pub const TURNS: u32 = 256;

    /// Counts a turn; answers whether patience is spent.
    #[inline(always)]
    pub fn spent(&mut self) -> bool {
        self.turns += 1;
        self.turns == Patience::TURNS && self.look()
    }

    #[cold]
    fn look(&mut self) -> bool {
        self.turns = 0;
        self.deadline.get_or_insert_with(|| Deadline::after(SLICE)).passed()
    }
}
