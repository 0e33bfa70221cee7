//! Tests of the exchange, in one binary.

mod book;
mod calls;
mod control;
mod faults;
mod journal;
mod load;
mod nodes;
mod quiet;
mod quiet_nodes;
mod replica;
mod scenarios;
mod shm;
mod told;
mod verify;
