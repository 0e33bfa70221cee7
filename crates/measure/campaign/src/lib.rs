//! Runs the trials of a plan. A [`Runner`] gives each trial what it needs, records what comes of
//! it, and says whether the run goes on. An [`environments::EnvironmentPool`] runs trials between
//! agents.
//!
//! Nothing here prints, handles signals or ends the process: the program passes in a
//! [`progress::ProgressDisplay`] and the flag that Ctrl-C sets.

#![forbid(unsafe_code)]

pub mod concurrent;
pub mod destination;
pub mod environments;
pub mod exchange_round;
pub mod progress;
pub mod recorder;
mod runner;
pub mod schedule;
pub mod trial;
mod tuned_step;

pub use destination::{Destination, RunName};
pub use runner::{EndedRun, OnFailure, Runner};
