//! The exchange under load: measures whether an environment carries it.
//!
//! [`run`] is one round: [`place`] chooses addresses, [`supervise`] starts the nodes and restarts
//! them, [`load`] simulates the clients. [`search`] finds the highest rate within an [`sla`],
//! [`torture`] draws which nodes are killed and when. A run that is to be checked leaves a
//! [`recording`], and [`verify`] checks that its journals agree with what its clients received.
#![forbid(unsafe_code)]

pub mod hosts;
pub mod load;
pub mod place;
pub mod recording;
pub mod run;
pub mod search;
pub mod sla;
pub mod supervise;
#[cfg(feature = "test-support")]
pub mod testing;
pub mod torture;
pub mod verify;
