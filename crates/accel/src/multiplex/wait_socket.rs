//! What an epoll set needs of the sockets in it. Tests and fuzzers have simulated ones.

use libc::c_int;

/// What a registration needs of its socket. Called under the lock of the set: a socket is removed
/// from all sets before its memory is unmapped.
pub trait WaitSocket: Copy + PartialEq {
    /// Whether another descriptor than `fd`, which is being closed, keeps it open in this process.
    fn is_open_without(&self, fd: c_int) -> bool;

    /// Whether another process holds it. Once this process has closed its last descriptor.
    fn is_held_elsewhere(&self) -> bool;

    /// Whether its two ends share memory.
    fn is_joined(&self) -> bool;

    /// Whether bytes wait in memory to be received.
    fn has_memory_bytes(&self) -> bool;

    /// Grows with each arrival of bytes in memory.
    fn memory_arrivals(&self) -> u64;

    /// Whether the peer has sent bytes through the kernel that were not received yet.
    fn has_kernel_bytes(&self) -> bool;

    /// Whether it has space for more bytes; `fd` is its descriptor.
    fn is_writable(&self, fd: c_int) -> bool;

    /// A wait returns to the program that the kernel has something to receive.
    fn note_kernel_event(&self);

    /// From now on the peer sends through the kernel. Check [`WaitSocket::has_memory_bytes`] after
    /// it.
    fn rely_on_kernel(&self);

    /// Ends one [`WaitSocket::rely_on_kernel`].
    fn end_reliance(&self);
}
