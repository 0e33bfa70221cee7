//! Tests of the feed.

use nm_test_support::CountingAllocator;

mod codec;
mod derivation;
mod documents;
mod follow;
mod independent;
mod receiver;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;
