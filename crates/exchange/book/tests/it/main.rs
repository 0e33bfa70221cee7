//! Tests of the book, in one binary.

mod book;
mod limits;
mod quiet;
mod scenarios;

#[global_allocator]
static ALLOCATOR: nm_test_support::CountingAllocator = nm_test_support::CountingAllocator;
