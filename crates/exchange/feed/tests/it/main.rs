//! Tests of the feed.
#![allow(clippy::disallowed_methods, reason = "tests wait")]

use nm_test_support::CountingAllocator;

mod codec;
mod derivation;
mod documents;
mod follow;
mod independent;
mod receiver;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;
