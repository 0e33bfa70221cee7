//! What the tests of several crates count: allocations by thread, and system calls as the kernel
//! reports them. Also the time limits of the processes that tests start, and the browser that shows
//! our pages. Used as a dev-dependency only.

mod allocations;
pub mod browser;
mod calls;
pub mod limit;
pub mod openmetrics;
pub mod skip;

pub use allocations::{CountingAllocator, allocations, held_bytes, releases, watch};
pub use calls::{Calls, report_system_calls, supervise, system_calls};

/// The same values from the smallest to the largest. This crate is optimised also where tests are
/// not: sorting the samples of a large run takes half a minute there.
#[must_use]
pub fn sorted(mut values: Vec<u64>) -> Vec<u64> {
    values.sort_unstable();
    values
}
