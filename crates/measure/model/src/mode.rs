//! The ways in which an endpoint waits for bytes.

use crate::named_enum::named_enum;

named_enum!(
    /// How an endpoint waits for bytes.
    Mode, "mode", {
        /// A receive call that sleeps in the kernel.
        Blocking = "blocking",
        /// Non-blocking receive calls in a loop.
        Spin = "spin",
        /// A sleeping receive with `SO_BUSY_POLL`: the kernel spins on the device first.
        BusyPoll = "busy-poll",
        /// `select`, then receive.
        Select = "select",
        /// `select` with time-out zero in a loop, then receive.
        SelectSpin = "select-spin",
        /// `poll`, then receive.
        Poll = "poll",
        /// `poll` with time-out zero in a loop, then receive.
        PollSpin = "poll-spin",
        /// `epoll_wait`, then receive.
        Epoll = "epoll",
        /// `epoll_wait` with time-out zero in a loop, then receive.
        EpollSpin = "epoll-spin",
    }
);

impl Mode {
    /// Whether a waiting thread keeps its CPU busy.
    pub fn spins(self) -> bool {
        matches!(self, Mode::Spin | Mode::SelectSpin | Mode::PollSpin | Mode::EpollSpin)
    }

    /// The mode with the same calls that sleeps where this one spins.
    pub fn sleeping(self) -> Mode {
        match self {
            Mode::Spin => Mode::Blocking,
            Mode::SelectSpin => Mode::Select,
            Mode::PollSpin => Mode::Poll,
            Mode::EpollSpin => Mode::Epoll,
            other => other,
        }
    }
}
