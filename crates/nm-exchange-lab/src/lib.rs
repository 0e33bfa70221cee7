//! The exchange under load: what tells whether an environment will hold.
//!
//! [`run`] is one round: [`place`] chooses addresses, [`supervise`] starts the nodes and restarts
//! them, [`load`] is the clients. [`search`] finds the rate that an [`sla`] allows, [`torture`]
//! chooses what is killed when, and [`verify`] proves after a run that the network did what it told
//! its clients.
#![forbid(unsafe_code)]

pub mod hosts;
pub mod load;
pub mod place;
pub mod run;
pub mod search;
pub mod sla;
pub mod supervise;
#[cfg(feature = "test-support")]
pub mod testing;
pub mod torture;
pub mod verify;
