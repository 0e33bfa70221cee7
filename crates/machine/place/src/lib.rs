//! Which CPUs a workload gets, and why: one rule for audits, guests, exports and pinning.
//!
//! [`choose`] is a function of a [`Topology`] and a [`Wish`] alone: it reads nothing. Each decision
//! that it makes has a sentence in [`Chosen::reasons`].

#![forbid(unsafe_code)]

mod choose;
mod topology;

pub use choose::{Chosen, Refusal, Wish, choose, cores_apart};
pub use topology::{Core, Topology};
