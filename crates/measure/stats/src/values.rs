//! The values that a series has over its rounds.

use nm_model::Metric;
use nm_model::metric::Quantity;
use nm_model::result::{Round, RoundData};

use crate::describe::median;

/// Rounds below which there is no interval.
pub const ROUNDS_MIN: usize = 5;

/// The finite values of `metric` in `rounds`, in their order.
///
/// A latency counts only if every round with samples has it, else there are no values: figures of
/// different rounds cannot stand side by side, or a higher percentile could be the smaller number.
pub fn values(rounds: &[Round], metric: Metric) -> Vec<f64> {
    if metric.quantity() != Quantity::Latency {
        return rounds.iter().filter_map(|round| finite(round, metric)).collect();
    }
    let described = described(rounds);
    let values: Vec<f64> = described.iter().filter_map(|round| finite(round, metric)).collect();
    if values.len() == described.len() { values } else { vec![] }
}

/// The figure of `metric` over `rounds`, as tables show it: the smallest minimum, the largest
/// maximum, else the median of their [`values`].
pub fn figure(rounds: &[Round], metric: Metric) -> Option<f64> {
    let values = values(rounds, metric);
    match metric {
        Metric::Min => values.into_iter().reduce(f64::min),
        Metric::Max => values.into_iter().reduce(f64::max),
        _ => median(&values),
    }
}

/// The metric by which the rounds of a series are compared with each other: throughput, or the
/// median latency (the mean where a median is not known).
pub fn principal(rounds: &[Round]) -> Option<Metric> {
    [Metric::Throughput, Metric::Median, Metric::Mean]
        .into_iter()
        .find(|metric| rounds.iter().any(|round| round.value(*metric).is_some()))
}

/// The rounds that latencies of the series are taken from: those with a median; where no round has
/// one, those with another percentile; where none has a percentile, all.
fn described(rounds: &[Round]) -> Vec<&Round> {
    let has_median = |round: &Round| finite(round, Metric::Median).is_some();
    let has_percentile = |round: &Round| match &round.data {
        RoundData::Latency(data) => {
            data.percentiles.iter().any(|p| p.value_ns.is_some_and(f64::is_finite))
        }
        RoundData::Throughput(_) => false,
    };
    let with = |has: &dyn Fn(&Round) -> bool| -> Vec<&Round> {
        rounds.iter().filter(|round| has(round)).collect()
    };
    [with(&has_median), with(&has_percentile)]
        .into_iter()
        .find(|found| !found.is_empty())
        .unwrap_or_else(|| rounds.iter().collect())
}

fn finite(round: &Round, metric: Metric) -> Option<f64> {
    round.value(metric).filter(|value| value.is_finite())
}
