//! The nodes of a distributed stock exchange.
//!
//! Orders travel in a ring: client → gateway → router → mediator → transaction processor →
//! gateway → client. A mediator matches the orders of its instruments; an instrument is the unit of
//! state, of order and of routing.
//!
//! [`network`] is the file that all nodes share, [`master`] what may be traded, and [`firms`] whose
//! sessions may trade. [`link`] carries frames between nodes, whose messages are those of
//! [`nm_wire`]; [`moves`] says how they move an instrument, [`client`] makes links from outside.
//! [`cell`] is the state of one group of instruments, [`control`] decides where each instrument is,
//! [`node`] runs one node. [`output_queue`] takes what a node writes, and [`refusals`] says whom it
//! does not answer for a while. [`limits`] are what clients can ask of all of it. [`decimal`] are
//! exact prices and quantities.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "tests wait"))]

mod background;
pub mod batch;
pub mod cell;
#[expect(
    clippy::disallowed_methods,
    reason = "waits for an answer, in programs that are no nodes and in threads of their own"
)]
pub mod client;
pub mod control;
pub mod decimal;
pub mod firms;
pub mod hashes;
pub mod leader_clock;
pub mod limits;
pub mod link;
pub mod master;
pub mod moves;
pub mod network;
pub mod node;
pub mod output_queue;
pub mod refusals;
pub mod resend;
#[cfg(feature = "test-support")]
#[allow(clippy::disallowed_methods, reason = "tests wait")]
pub mod testing;
mod time;
