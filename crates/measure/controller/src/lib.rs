//! Agents that connect out to a controller: places without ssh, such as pods and hosts behind a
//! NAT.
//!
//! [`agent`] is the agent's end and [`serve`] the controller's. Between them are [`hello`], one
//! line each way, and then one session of the agent protocol, over TLS ([`link`], [`tls`]).
//! [`local`] is the controller's socket, at which runs on its machine ask for agents. [`registry`]
//! and [`gate`] decide who may enter; both are without I/O, as is [`backoff`].
//!
//! A connection carries one session. Then the agent connects again, so a session needs no frames of
//! its own, and nothing of it is left for the next one.

#![forbid(unsafe_code)]

pub mod agent;
pub mod backoff;
pub mod gate;
pub mod hello;
pub mod link;
pub mod local;
pub mod registry;
pub mod serve;
pub mod tls;

/// Port of a controller, if none is given.
pub const PORT: u16 = 4850;

/// Version of this program: both ends must have the same.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
