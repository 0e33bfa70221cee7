//! Tests of the nodes, in one binary.
#![allow(clippy::disallowed_methods, reason = "tests wait")]

mod added;
mod authentication;
mod control;
mod drained_gateway;
mod groups;
mod large_snapshot;
mod limits;
mod link_latencies;
mod losses;
mod membership;
mod moves;
mod nodes;
mod peer;
mod quiet_nodes;
mod refused;
mod shm;
mod wire_version;

#[global_allocator]
static ALLOCATOR: nm_test_support::CountingAllocator = nm_test_support::CountingAllocator;
