//! Tests of the exchange under load, in one binary.

mod added_nodes;
mod bytes;
mod delivery;
mod faults;
mod gateway_drain;
mod large_move;
mod large_snapshot;
mod load;
mod moved;
mod session_moves;
mod shm;
mod site_latencies;
mod verify;
