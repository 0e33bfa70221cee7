//! Many hosts: who they are, which pairs are tried when, and which host or pair stands out.
//!
//! Nothing here does I/O. [`hosts`] reads the text of a list, [`pairs`] makes the rounds,
//! [`schedule`] says what to start next and takes what came of it. [`effects`] finds outliers,
//! [`facts`] what sets them apart, and [`result`] is what is kept of all that.

#![forbid(unsafe_code)]

pub mod blame;
pub mod effects;
pub mod facts;
mod fleet_host;
pub mod hosts;
pub mod hunt;
mod inventory;
pub mod pairs;
mod range;
pub mod result;
pub mod schedule;

pub use hosts::{FleetHost, HostsError};
pub use pairs::{Pair, Pairs, PairsError};
