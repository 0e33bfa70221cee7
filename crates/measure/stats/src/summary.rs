//! The samples of one round, described exactly.

use nm_model::result::{LatencyRound, PercentileValue, Slice};

use crate::histogram;
use crate::quantile::{has_enough_samples, interval_ranks, rank};

/// Percentiles that every round has.
pub const PERCENTILES: [f64; 6] = nm_model::metric::PERCENTILES;

/// Time slices of a round.
pub const SLICES: usize = 40;

/// One measured latency.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sample {
    /// When it was taken, ns since the round's first sample.
    pub start_ns: u64,
    /// The latency, ns.
    pub latency_ns: u64,
}

/// Describes a round from all its `samples`, given in order of time, and the number of messages
/// that were `lost`. `percentiles` (0 to 100) are added to [`PERCENTILES`]; invalid ones are
/// left out. A percentile with fewer than ten samples beyond it has no value; the median, p0 and
/// p100 have one as soon as there is a sample. `rate_per_s` is left empty: only the probe knows it.
///
/// Keeps one sorted copy of the latencies and the histogram while it works.
pub fn summarise(samples: &[Sample], lost: u64, percentiles: &[f64]) -> LatencyRound {
    let mut sorted: Vec<u64> = samples.iter().map(|sample| sample.latency_ns).collect();
    sorted.sort_unstable();
    let slowest = &sorted[sorted.len() - sorted.len().div_ceil(10)..];
    LatencyRound {
        count: Some(samples.len() as u64),
        lost,
        mean_ns: mean(&sorted),
        min_ns: sorted.first().map(|ns| *ns as f64),
        max_ns: sorted.last().map(|ns| *ns as f64),
        stddev_ns: stddev(&sorted),
        es10_ns: mean(slowest),
        percentiles: all_percentiles(percentiles).map(|p| percentile_value(&sorted, p)).collect(),
        rate_per_s: None,
        histogram: encoded(&sorted),
        slices: slices(samples),
        ..LatencyRound::default()
    }
}

fn encoded(sorted: &[u64]) -> Option<String> {
    // Encoding fails only above 2^63 samples.
    (!sorted.is_empty()).then(|| histogram::encode_sorted(sorted).ok())?
}

/// The fixed percentiles and the valid ones of `more`, in rising order, each once.
fn all_percentiles(more: &[f64]) -> impl Iterator<Item = f64> {
    let valid = more.iter().copied().filter(|p| (0.0..=100.0).contains(p));
    // Adding zero turns -0 into 0.
    let mut all: Vec<f64> = PERCENTILES.into_iter().chain(valid).map(|p| p + 0.0).collect();
    all.sort_by(f64::total_cmp);
    all.dedup();
    all.into_iter()
}

fn percentile_value(sorted: &[u64], percentile: f64) -> PercentileValue {
    let none = PercentileValue { percentile, value_ns: None, low_ns: None, high_ns: None };
    if !has_enough_samples(sorted.len() as u64, percentile) {
        return none;
    }
    let at = |rank: usize| sorted[rank - 1] as f64;
    let ranks = interval_ranks(sorted.len(), percentile);
    PercentileValue {
        value_ns: Some(at(rank(sorted.len(), percentile))),
        low_ns: ranks.map(|(low, _)| at(low)),
        high_ns: ranks.map(|(_, high)| at(high)),
        ..none
    }
}

/// Mean by an integer sum, which 2^64 samples of any size do not overflow.
fn mean(values: &[u64]) -> Option<f64> {
    let n = values.len() as u128;
    let sum: u128 = values.iter().map(|v| u128::from(*v)).sum();
    let quotient = sum.checked_div(n)?;
    Some(quotient as f64 + (sum % n) as f64 / n as f64)
}

/// Sample standard deviation in two passes, which avoids cancellation.
fn stddev(values: &[u64]) -> Option<f64> {
    let mean = mean(values)?;
    let squares: f64 = values.iter().map(|v| (*v as f64 - mean).powi(2)).sum();
    (values.len() > 1).then(|| (squares / (values.len() - 1) as f64).sqrt())
}

/// The round in [`SLICES`] equal slices of time; slices without a sample are left out.
fn slices(samples: &[Sample]) -> Vec<Slice> {
    let Some(last) = samples.iter().map(|sample| sample.start_ns).max() else { return vec![] };
    let width_ns = (last / SLICES as u64) + 1;
    let mut scratch: Vec<u64> = vec![];
    samples
        .chunk_by(|x, y| x.start_ns / width_ns == y.start_ns / width_ns)
        .map(|chunk| {
            scratch.clear();
            scratch.extend(chunk.iter().map(|sample| sample.latency_ns));
            scratch.sort_unstable();
            let at = |percentile| scratch[rank(scratch.len(), percentile) - 1] as f64;
            Slice {
                start_ms: (chunk[0].start_ns / width_ns * width_ns) as f64 / 1e6,
                count: chunk.len() as u64,
                median_ns: at(50.0),
                p99_ns: at(99.0),
                max_ns: at(100.0),
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn round(latencies: &[u64]) -> LatencyRound {
        summarise(&samples(latencies), 0, &[])
    }

    fn samples(latencies: &[u64]) -> Vec<Sample> {
        let at = |(i, ns): (usize, &u64)| Sample { start_ns: i as u64 * 1000, latency_ns: *ns };
        latencies.iter().enumerate().map(at).collect()
    }

    fn value(round: &LatencyRound, percentile: f64) -> Option<f64> {
        round.percentiles.iter().find(|p| p.percentile == percentile).unwrap().value_ns
    }

    #[test]
    fn no_samples_have_no_figures() {
        let round = summarise(&[], 3, &[99.5]);
        assert_eq!((round.count, round.lost, round.mean_ns), (Some(0), 3, None));
        assert_eq!((round.min_ns, round.max_ns, round.es10_ns), (None, None, None));
        assert!(round.percentiles.iter().all(|p| p.value_ns.is_none()));
        assert_eq!(round.percentiles.len(), 7);
        assert_eq!((round.histogram, round.slices), (None, vec![]));
    }

    #[test]
    fn one_sample_has_mean_and_median_only() {
        let round = round(&[700]);
        assert_eq!(
            (round.mean_ns, round.stddev_ns, round.es10_ns),
            (Some(700.0), None, Some(700.0))
        );
        assert_eq!((value(&round, 50.0), value(&round, 90.0)), (Some(700.0), None));
        assert_eq!(round.slices.len(), 1);
    }

    #[test]
    fn figures_of_a_million_samples() {
        let round = round(&(1..=1_000_000).collect::<Vec<u64>>());
        assert_eq!(round.mean_ns, Some(500_000.5));
        assert_eq!(value(&round, 50.0), Some(500_000.0));
        assert_eq!(value(&round, 99.999), Some(999_990.0));
        assert_eq!(round.es10_ns, Some(950_000.5));
        assert!((round.stddev_ns.unwrap() - 288_675.278_932_699).abs() < 1e-3);
        assert_eq!(round.slices.len(), 40);
        assert_eq!(round.slices.iter().map(|s| s.count).sum::<u64>(), 1_000_000);
        let p99 = round.percentiles.iter().find(|p| p.percentile == 99.0).unwrap();
        assert_eq!((p99.low_ns, p99.high_ns), (Some(989_805.0), Some(990_196.0)));
    }

    #[test]
    fn huge_latencies_do_not_overflow() {
        let day_ns = 86_400_000_000_000;
        let round = round(&[day_ns, u64::MAX, u64::MAX]);
        assert!((round.mean_ns.unwrap() / 12_297_858_248_000_000_000.0 - 1.0).abs() < 1e-6);
    }

    #[test]
    fn invalid_percentiles_are_left_out_and_duplicates_appear_once() {
        let round = summarise(&samples(&[1, 2, 3]), 0, &[101.0, f64::NAN, 50.0, 100.0, -0.0]);
        let all: Vec<f64> = round.percentiles.iter().map(|p| p.percentile).collect();
        assert_eq!(all, [0.0, 50.0, 90.0, 99.0, 99.9, 99.99, 99.999, 100.0]);
        assert_eq!((value(&round, 0.0), value(&round, 100.0)), (Some(1.0), Some(3.0)));
    }

    #[test]
    fn slices_without_samples_are_left_out() {
        let at = |start_ns| Sample { start_ns, latency_ns: 5 };
        let starts: Vec<f64> =
            slices(&[at(0), at(1), at(79_999_999)]).iter().map(|s| s.start_ms).collect();
        assert_eq!(starts, [0.0, 78.0]);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn figures_keep_their_order(latencies in prop::collection::vec(0u64..5_000_000, 1..3000)) {
            let round = round(&latencies);
            let (min, max) = (round.min_ns.unwrap(), round.max_ns.unwrap());
            let (mean, es10) = (round.mean_ns.unwrap(), round.es10_ns.unwrap());
            prop_assert!(min <= mean && mean <= es10 && es10 <= max);
            let mut last = min;
            for p in &round.percentiles {
                let Some(value) = p.value_ns else { continue };
                prop_assert!(last <= value && value <= max);
                prop_assert!(p.low_ns.is_none_or(|low| low <= value));
                prop_assert!(p.high_ns.is_none_or(|high| high >= value));
                last = value;
            }
            let in_slices: u64 = round.slices.iter().map(|slice| slice.count).sum();
            prop_assert_eq!(in_slices, latencies.len() as u64);
        }
    }
}
