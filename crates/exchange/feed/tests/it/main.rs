//! Tests of the feed.

use nm_test_support::CountingAllocator;

mod codec;
mod derivation;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;
