//! Bits of events, and sets of them.

/// Reported even if not requested.
pub const ALWAYS: u32 = (libc::EPOLLERR | libc::EPOLLHUP) as u32;
/// Edge-triggered.
pub const EDGE: u32 = libc::EPOLLET as u32;
/// Reported once, then disabled.
pub const ONE_SHOT: u32 = libc::EPOLLONESHOT as u32;
/// Wakes only one of several sets.
pub const EXCLUSIVE: u32 = libc::EPOLLEXCLUSIVE as u32;
/// Flags that a one-shot registration keeps when the kernel disables it.
pub const PRIVATE: u32 = libc::EPOLLWAKEUP as u32 | ONE_SHOT | EDGE | EXCLUSIVE;
/// Events of bytes that have arrived.
pub const INPUT_EVENTS: u32 = (libc::EPOLLIN | libc::EPOLLRDNORM) as u32;
/// Event that wakes a thread at once, because a socket is writable as a rule.
pub const WRITABLE: u32 = libc::EPOLLOUT as u32;
/// Events after which a receiving call finds something in the kernel.
pub const READY_TO_READ: u32 = INPUT_EVENTS | ALWAYS | libc::EPOLLRDHUP as u32;
