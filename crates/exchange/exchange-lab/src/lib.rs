//! The exchange under load: measures whether an environment carries it.
//!
//! [`run`] is one round: [`place`] chooses addresses, [`supervise`] starts the nodes and restarts
//! them, [`load`] simulates the clients. [`search`] finds the highest rate within an [`sla`],
//! [`policy_runner`] carries out policies on a running network, [`resize`] grows and shrinks it.
//! [`torture`] draws which nodes are killed and when. A run that is to be checked leaves a
//! [`recording`], and [`verify`] checks that its journals agree with what its clients received.
//! A [`day`] is one run whose load changes by a script.
#![forbid(unsafe_code)]

pub mod add;
mod archive;
mod bounded_lines;
pub mod day;
pub mod drain;
pub mod host_agent;
pub mod host_protocol;
pub mod hosts;
pub mod load;
pub mod mover;
pub mod place;
pub mod policy_runner;
pub mod recording;
pub mod remote;
pub mod replace;
pub mod resize;
pub mod run;
pub mod search;
pub mod sites;
pub mod sla;
pub mod supervise;
#[cfg(feature = "test-support")]
pub mod testing;
pub mod torture;
pub mod verify;
