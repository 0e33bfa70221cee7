//! Runs the exchange under load: measures whether an environment carries it.
//!
//! [`round`] is one round: [`place`] chooses addresses, [`supervise`] starts the nodes and restarts
//! them, and [`nm_load`] simulates the clients. [`search`] finds the highest rate within an
//! [`sla`], [`torture`] draws which nodes are killed and when. A [`day`] is one run whose load
//! changes by a script. A run that is to be checked leaves a recording for [`nm_verify`].
//!
//! Without a load, [`serve`] keeps the nodes of a host running until it is ended; [`layout`] makes
//! the network's file for that.
#![forbid(unsafe_code)]

mod backoff;
mod bounded_lines;
pub mod day;
pub mod follow;
pub mod hosts;
pub mod layout;
mod mover;
mod node_logs;
pub mod page;
pub mod place;
pub mod reload;
pub mod round;
pub mod search;
pub mod serve;
pub mod sla;
pub mod supervise;
#[cfg(feature = "test-support")]
pub mod testing;
pub mod torture;
