//! Targets, comparability and comparison: results become verdicts with reasons.
//!
//! [`judge`] holds a result against the targets of its plan and makes the comparisons that the plan
//! asks for; [`compare`] sets two results side by side. Both give three-valued outcomes, each with
//! sentences that a person can paste, and never take missing evidence for a pass.

#![forbid(unsafe_code)]

mod compare;
mod envdiff;
mod judge;
mod options;
mod pairing;
mod rows;
mod select;
mod strength;
mod wording;

pub use compare::compare;
pub use envdiff::envdiff;
pub use judge::judge;
pub use options::{CLOSE_PERCENT, CompareOptions};
pub use select::Selector;
