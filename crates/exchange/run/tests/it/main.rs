//! Tests of runs, in one binary.

mod bytes;
mod faults;
mod gateway_drain;
mod shm;
