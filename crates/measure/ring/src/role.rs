//! Which end of a shared memory region a process holds.

/// The two ends of a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndpointRole {
    /// The end that created the memory.
    Creator = 0,
    /// The end that received the descriptor and opened the memory.
    Opener = 1,
}
