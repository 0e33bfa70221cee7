//! Targets, comparability and comparison: results become verdicts with reasons.
//!
//! [`judge`] checks a result against the targets of its plan and makes the comparisons of the plan;
//! [`compare`] compares two results. Both give three-valued outcomes with reasons in sentences, and
//! never take missing evidence for a pass.

#![forbid(unsafe_code)]

mod baseline;
mod baseline_gate;
mod certificate;
mod compare;
mod cost;
mod doubts;
mod envdiff;
mod equivalence;
mod factors;
mod finding;
mod gate;
mod judge;
mod machine;
mod options;
mod pairing;
mod planned;
mod primary;
mod ranges;
mod rows;
mod scope;
mod select;
mod steps;
mod trend;
mod undecided;
mod watch;
mod wording;

pub use baseline::baseline;
pub use baseline_gate::{BASELINES, GateOptions, gate};
pub use certificate::{CertifyError, Checked, Signed, certified, check, hosts, hosts_of};
pub use compare::compare;
pub use envdiff::envdiff;
pub use equivalence::{EquivalenceOptions, equivalence};
pub use judge::judge;
pub use options::{CLOSE_PERCENT, CompareOptions};
pub use select::Selector;
pub use steps::{Step, StepCost, Steps, steps};
pub use trend::{RESULTS_MAX, RESULTS_MIN, TrendError, TrendOptions, check_count, trend};
pub use watch::{FIGURES_MAX, Watched};
