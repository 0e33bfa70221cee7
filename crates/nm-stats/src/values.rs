//! The values that a series has over its rounds.

use nm_model::Metric;
use nm_model::result::Round;

/// Rounds below which there is no interval.
pub const ROUNDS_MIN: usize = 5;

/// The finite values of `metric` in `rounds`, in their order.
pub fn values(rounds: &[Round], metric: Metric) -> Vec<f64> {
    rounds.iter().filter_map(|round| round.value(metric)).filter(|v| v.is_finite()).collect()
}

/// The metric by which the rounds of a series are compared with each other: throughput, or the
/// median latency (the mean where a median is not known).
pub fn principal(rounds: &[Round]) -> Option<Metric> {
    [Metric::Throughput, Metric::Median, Metric::Mean]
        .into_iter()
        .find(|metric| rounds.iter().any(|round| round.value(*metric).is_some()))
}
