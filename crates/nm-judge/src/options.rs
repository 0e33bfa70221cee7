//! What a comparison compares, and its margin.

use nm_model::metric::Metric;

use crate::select::Selector;

/// Two single runs are called close if their median ratio is within this, %.
pub const CLOSE_PERCENT: f64 = 10.0;

/// Parts to compare, and how.
#[derive(Debug, Clone, PartialEq)]
pub struct CompareOptions {
    /// Ratio that still counts as equal, %.
    pub margin_percent: f64,
    /// The figures that decide the outcome. Those that a series cannot have are left out for it.
    pub fail_on: Vec<Metric>,
    /// Which series of A.
    pub a: Selector,
    /// Which series of B.
    pub b: Selector,
    /// Seed of the bootstrap.
    pub seed: u64,
}

impl Default for CompareOptions {
    fn default() -> CompareOptions {
        CompareOptions {
            margin_percent: 5.0,
            fail_on: vec![Metric::Median, Metric::Percentile(99.0), Metric::Throughput],
            a: Selector::any(),
            b: Selector::any(),
            seed: 1,
        }
    }
}
