//! An allocator that counts the allocations and releases of each thread.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
    static RELEASES: Cell<u64> = const { Cell::new(0) };
    static HELD_BYTES: Cell<i64> = const { Cell::new(0) };
    static WATCHED: Cell<Option<&'static AtomicU64>> = const { Cell::new(None) };
}

/// To be a test program's `#[global_allocator]`.
#[derive(Debug)]
pub struct CountingAllocator;

/// Allocations and releases of the current thread so far.
pub fn allocations() -> u64 {
    ALLOCATIONS.get()
}

/// Releases of the current thread so far, which [`allocations`] counts too.
pub fn releases() -> u64 {
    RELEASES.get()
}

/// Bytes that the current thread has allocated and not released; negative if it has released what
/// others allocated.
pub fn held_bytes() -> i64 {
    HELD_BYTES.get()
}

/// From now on the allocations and releases of this thread are also counted in `count`, which
/// other threads can read.
pub fn watch(count: &'static AtomicU64) {
    WATCHED.set(Some(count));
}

fn count() {
    ALLOCATIONS.set(ALLOCATIONS.get() + 1);
    if let Some(watched) = WATCHED.get() {
        watched.fetch_add(1, Ordering::Relaxed);
    }
}

// SAFETY: every call goes to the system's allocator unchanged; counting touches only plain cells
// and numbers.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        HELD_BYTES.set(HELD_BYTES.get() + layout.size() as i64);
        // SAFETY: the caller keeps the contract, which is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count();
        RELEASES.set(RELEASES.get() + 1);
        HELD_BYTES.set(HELD_BYTES.get() - layout.size() as i64);
        // SAFETY: the caller keeps the contract, which is the same.
        unsafe { System.dealloc(pointer, layout) }
    }
}
