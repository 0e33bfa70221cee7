//! Environments and agents: where endpoints run, and how they are driven.
//!
//! The binary exposes three hidden subcommands for it: `agent` ([`agent::serve`] on standard input
//! and output), `lab-hold` ([`environment::hold`]) and `lab-wire` ([`wire::run`]).

#![forbid(unsafe_code)]

pub mod accelerator;
pub mod affinity;
pub mod agent;
pub mod doctor;
pub mod environment;
pub mod exchange;
pub mod launcher;
pub mod ledger;
mod netlink;
pub mod pair;
pub mod resolve;
pub mod trial;
pub mod wire;
