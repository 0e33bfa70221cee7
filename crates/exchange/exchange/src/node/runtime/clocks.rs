//! The clocks of the machine, which only the event loop reads.

use nm_sys::clock;

use crate::time::{Meters, Time};

/// How old what is known of the wall clock may be, ns: it is read less often than the other one.
const WALL_CLOCK_AGE_MAX_NS: u64 = 10_000_000;

/// What measures the work of a role.
pub const METERS: Meters =
    Meters { monotonic_ns: clock::monotonic_ns, cpu_ns: nm_sys::counters::process_cpu_ns };

/// The clocks, and what was read of the wall clock.
#[derive(Debug, Default)]
pub struct Clocks {
    /// When it is read again, ns on the monotonic clock.
    wall_due_ns: u64,
    /// What it shows more than the monotonic clock, ns.
    wall_ahead_ns: u64,
}

impl Clocks {
    /// The time now.
    pub fn read(&mut self) -> Time {
        let monotonic_ns = clock::monotonic_ns();
        if monotonic_ns >= self.wall_due_ns {
            self.wall_due_ns = monotonic_ns + WALL_CLOCK_AGE_MAX_NS;
            self.wall_ahead_ns = nm_replica::wall_clock_ns().wrapping_sub(monotonic_ns);
        }
        Time { monotonic_ns, wall_ns: monotonic_ns.wrapping_add(self.wall_ahead_ns) }
    }
}
