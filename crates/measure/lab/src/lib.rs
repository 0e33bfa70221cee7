//! Environments and agents: where the two ends of a trial run, and how a controller drives them.
//!
//! The binary provides three hidden subcommands for it: `agent` ([`agent::serve`] on standard input
//! and output), `lab-hold` ([`environment::hold`]) and `lab-wire` ([`link_setup::run`]).

#![forbid(unsafe_code)]

pub mod accelerator;
pub mod affinity;
pub mod agent;
pub mod doctor;
pub mod environment;
pub mod exchange;
pub mod factor;
pub mod guest;
pub mod launcher;
pub mod ledger;
pub mod link_setup;
mod netlink;
pub mod pair;
pub mod resolve;
pub mod trial;
