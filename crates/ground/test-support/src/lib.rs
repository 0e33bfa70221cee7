//! What the tests of several crates count: allocations by thread, and system calls as the kernel
//! reports them. Used as a dev-dependency only.

mod allocations;
mod calls;

pub use allocations::{CountingAllocator, allocations, held_bytes, releases, watch};
pub use calls::{Calls, report_system_calls, supervise, system_calls};
