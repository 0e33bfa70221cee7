//! What a node's roles are given of the machine's clocks: they read none.

/// The time on both clocks of a machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Time {
    /// On the monotonic clock, ns.
    pub monotonic_ns: u64,
    /// On the wall clock, ns since 1970.
    pub wall_ns: u64,
}

/// Measures: the timestamps of frames, and what work takes. Nothing that a role decides depends on
/// it.
#[derive(Debug, Clone, Copy)]
pub struct Meters {
    /// The monotonic clock now, ns.
    pub monotonic_ns: fn() -> u64,
    /// CPU time of the process, ns.
    pub cpu_ns: fn() -> u64,
}
