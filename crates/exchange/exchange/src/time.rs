//! The clocks of the machine; in a simulation, its own.

use nm_sys::clock;

/// The monotonic clock, ns.
pub fn monotonic_ns() -> u64 {
    #[cfg(test)]
    if let Some(now_ns) = testing::now_ns() {
        return now_ns;
    }
    clock::monotonic_ns()
}

/// The wall clock, ns since 1970.
pub fn wall_clock_ns() -> u64 {
    #[cfg(test)]
    if let Some(now_ns) = testing::now_ns() {
        return testing::EPOCH_NS + now_ns;
    }
    nm_replica::wall_clock_ns()
}

/// Clocks that a simulation sets.
#[cfg(test)]
pub mod testing {
    use std::cell::Cell;

    /// What the wall clock shows when the monotonic clock shows zero.
    pub const EPOCH_NS: u64 = 1_800_000_000_000_000_000;

    thread_local! {
        static NOW: Cell<Option<u64>> = const { Cell::new(None) };
    }

    /// From now on the clocks of this thread show this time, ns; `None` ends that.
    pub fn set(now_ns: Option<u64>) {
        NOW.set(now_ns);
    }

    /// What was set.
    pub fn now_ns() -> Option<u64> {
        NOW.get()
    }
}
