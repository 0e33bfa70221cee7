//! Tests of the load and its clients, in one binary.

mod delivery;
mod load;
mod session_moves;
