//! A distributed stock exchange: the application that tells whether an environment will hold.
//!
//! Orders travel in a ring: client → gateway → router → mediator → transaction processor →
//! gateway → client. A mediator matches the orders of its instruments, each of which is a
//! *segment*: the unit of state, of order and of routing.
#![forbid(unsafe_code)]

pub mod batch;
pub mod book;
pub mod cell;
pub mod codec;
pub mod control;
pub mod hosts;
pub mod journal;
pub mod link;
pub mod load;
pub mod naive;
pub mod network;
pub mod node;
pub mod order;
pub mod place;
pub mod replica;
pub mod run;
pub mod saved;
pub mod search;
pub mod sla;
pub mod supervise;
#[doc(hidden)]
pub mod testing;
pub mod torture;
pub mod verify;
pub mod wire;
