//! Tests of operating a network, in one binary.

mod added_nodes;
mod asking;
mod directions;
mod firms;
mod instruments;
mod large_move;
mod schedule;
mod site_latencies;
