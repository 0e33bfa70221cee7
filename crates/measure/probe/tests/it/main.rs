//! Both ends of each probe over loopback: that figures are reported, and that nothing hangs.

mod faults;
mod jitter;
mod matrix;
mod noise;
mod pair;
mod quiet;
mod stalls;
mod streams;
#[cfg(feature = "test-stack")]
mod test_stack;

/// Taken by whoever starts a process, and by a test whose closed descriptors must be closed at
/// once: until it executes its program, a new process holds a copy of every descriptor of the
/// tests that run beside.
static PROCESS_STARTS: std::sync::Mutex<()> = std::sync::Mutex::new(());

#[global_allocator]
static ALLOCATOR: nm_test_support::CountingAllocator = nm_test_support::CountingAllocator;
