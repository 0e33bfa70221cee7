//! Tests of the exchange under load, in one binary.

mod bytes;
mod delivery;
mod faults;
mod load;
mod shm;
mod verify;
