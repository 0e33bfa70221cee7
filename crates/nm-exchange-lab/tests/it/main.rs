//! Tests of the exchange under load, in one binary.

mod bytes;
mod delivery;
mod faults;
mod large_move;
mod load;
mod moved;
mod shm;
mod verify;
