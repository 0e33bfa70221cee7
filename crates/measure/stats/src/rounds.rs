//! The figures of a series over its rounds. For each metric it has the median of the rounds'
//! values, with an interval by bootstrap over rounds. It also has the doubts that follow from the
//! differences of rounds.
//!
//! All latencies of a series are estimated from the same rounds, so percentiles rise with the
//! percentile; one that a round lacks is not estimated.

use nm_model::Metric;
use nm_model::result::{Estimate, Round, RoundData, Series};

use crate::bootstrap;
use crate::describe::{cv_percent, median_of_sorted, sorted};
use crate::doubts;

pub use crate::values::{ROUNDS_MIN, figure, principal, values};

/// Seed of the bootstrap; any fixed number makes the same rounds give the same interval.
const SEED: u64 = 0x6e65_6172_6d65_7461;

/// Fills `series.estimates` and `series.doubts` from `series.rounds`. Calling it again, or again
/// after more rounds, gives the same as calling it once.
///
/// Doubts that are neither found here nor come from a round, such as that the series was imported,
/// are kept.
pub fn estimate(series: &mut Series) {
    series.estimates = metrics(&series.rounds)
        .into_iter()
        .filter_map(|metric| estimate_of(metric, &values(&series.rounds, metric)))
        .collect();
    series.doubts = doubts::of(series);
}

/// Every metric that a round could have, percentiles as the rounds list them.
fn metrics(rounds: &[Round]) -> Vec<Metric> {
    let mut percentiles: Vec<f64> = rounds
        .iter()
        .flat_map(|round| match &round.data {
            RoundData::Latency(data) => data.percentiles.as_slice(),
            RoundData::Throughput(_) => &[],
        })
        .map(|value| value.percentile)
        .filter(|percentile| *percentile != 50.0)
        .collect();
    percentiles.sort_by(f64::total_cmp);
    percentiles.dedup();
    let mut metrics = vec![Metric::Mean, Metric::Min, Metric::Median];
    metrics.extend(percentiles.into_iter().map(Metric::Percentile));
    metrics.extend([Metric::Max, Metric::Stddev, Metric::Es10]);
    metrics.extend([Metric::Loss, Metric::Rate, Metric::Throughput, Metric::TimeLost]);
    metrics
}

fn estimate_of(metric: Metric, values: &[f64]) -> Option<Estimate> {
    let enough = values.len() >= ROUNDS_MIN;
    Some(Estimate {
        metric,
        value: median_of_sorted(&sorted(values))?,
        interval: enough.then(|| bootstrap::interval(values, SEED, median_of_sorted)).flatten(),
        cv_percent: cv_percent(values),
        rounds: values.len() as u32,
    })
}
