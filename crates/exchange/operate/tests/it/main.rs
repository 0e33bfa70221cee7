//! Tests of operating a network, in one binary.

mod added_nodes;
mod instruments;
mod large_move;
mod site_latencies;
