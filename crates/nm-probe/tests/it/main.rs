//! Both ends of each probe over loopback: that figures are reported, and that nothing hangs.

mod faults;
mod jitter;
mod matrix;
mod pair;
mod quiet;
mod stalls;
mod streams;

#[global_allocator]
static ALLOCATOR: nm_test_support::CountingAllocator = nm_test_support::CountingAllocator;
