//! Tests of the exchange under load, in one binary.

mod bytes;
mod faults;
mod load;
mod shm;
mod told;
mod verify;
