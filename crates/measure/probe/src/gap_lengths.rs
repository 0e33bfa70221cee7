//! The lengths of gaps and what follows from them: percentiles, histograms, and the delay of a
//! message that arrives at a random time.

use nm_model::metric::PERCENTILES;
use nm_model::result::{LatencyRound, PercentileValue};
use nm_stats::histogram::{self, Histogram};
use nm_stats::quantile::{BEYOND_MIN, has_enough_samples, rank};

/// Percentiles of the delay, of all time.
const DELAY_PERCENTILES: [f64; 4] = [99.0, 99.9, 99.99, 99.999];

/// Lengths in rising order with their numbers, ns.
#[derive(Debug, Default)]
pub struct GapLengths {
    counted: Vec<(u64, u64)>,
    count: u64,
    sum: u128,
}

impl GapLengths {
    /// Lengths one by one, and those of a histogram.
    pub fn new(lengths_ns: impl Iterator<Item = u64>, more: &[&Histogram]) -> GapLengths {
        let of_histogram = |histogram: &Histogram| {
            let values: Vec<(u64, u64)> = histogram
                .iter_recorded()
                .map(|value| (value.value_iterated_to(), value.count_at_value()))
                .collect();
            values
        };
        let mut counted: Vec<(u64, u64)> = lengths_ns.map(|length_ns| (length_ns, 1)).collect();
        counted.extend(more.iter().flat_map(|histogram| of_histogram(histogram)));
        counted.sort_unstable();
        let count = counted.iter().map(|(_, count)| count).sum();
        let sum = counted.iter().map(|(ns, count)| u128::from(*ns) * u128::from(*count)).sum();
        GapLengths { counted, count, sum }
    }

    /// How many there are.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The length with this rank from 1, ns.
    fn at(&self, rank: u64) -> Option<u64> {
        let mut before = 0;
        self.counted.iter().find_map(|(ns, count)| {
            before += count;
            (before >= rank).then_some(*ns)
        })
    }

    /// The usual percentiles, without intervals.
    pub fn percentiles(&self) -> Vec<PercentileValue> {
        let value = |percentile| {
            let is_enough = has_enough_samples(self.count, percentile);
            let ns = self.at(rank(self.count as usize, percentile) as u64).filter(|_| is_enough);
            plain(percentile, ns.map(|ns| ns as f64))
        };
        PERCENTILES.map(value).to_vec()
    }

    /// The sum of the `number` shortest, ns.
    pub fn sum_of_shortest(&self, number: u64) -> u64 {
        let (mut left, mut sum) = (number, 0u64);
        for (ns, count) in &self.counted {
            let taken = left.min(*count);
            sum = sum.saturating_add(ns.saturating_mul(taken));
            left -= taken;
        }
        sum
    }

    /// Percentiles of the delay of a message that arrives at a random time of `elapsed_ns`: it is
    /// delayed by more than x with the probability Σ (length − x) / elapsed over the gaps longer
    /// than x. One beyond which there are fewer than ten gaps has no value.
    pub fn delays(&self, elapsed_ns: u64) -> Vec<PercentileValue> {
        let value = |percentile: f64| {
            let wanted_ns = (1.0 - percentile / 100.0) * elapsed_ns as f64;
            let (mut sum, mut number) = (0.0, 0.0);
            let mut delay = 0.0;
            let mut longest_first = self.counted.iter().rev().peekable();
            while let Some((ns, count)) = longest_first.next() {
                sum += *ns as f64 * *count as f64;
                number += *count as f64;
                delay = (sum - wanted_ns) / number;
                let next = longest_first.peek().map_or(0.0, |(ns, _)| *ns as f64);
                if delay >= next {
                    break;
                }
            }
            let is_enough = delay <= 0.0 || number >= BEYOND_MIN;
            plain(percentile, is_enough.then_some(delay.max(0.0)))
        };
        DELAY_PERCENTILES.map(value).to_vec()
    }

    /// The histogram of lengths, and that of lost time: each length as many times as it has ns.
    pub fn histograms(&self) -> [Option<String>; 2] {
        let (mut gaps, mut lost) = (histogram::empty(), histogram::empty());
        for (ns, count) in &self.counted {
            gaps.saturating_record_n(*ns, *count);
            lost.saturating_record_n(*ns, ns.saturating_mul(*count));
        }
        [gaps, lost].map(|one| (!one.is_empty()).then(|| histogram::encode(&one).ok())?)
    }

    /// A round from lengths of which only the number is known for some: figures to three digits.
    pub fn round(&self) -> LatencyRound {
        let mean = (self.count > 0).then(|| self.sum as f64 / self.count as f64);
        let squares = |mean: f64| {
            let terms = self.counted.iter().map(|(ns, n)| (*ns as f64 - mean).powi(2) * *n as f64);
            terms.sum::<f64>()
        };
        let slowest = self.count.div_ceil(10);
        let below = self.count - slowest;
        let es10 = (slowest > 0).then(|| {
            let sum = self.sum - u128::from(self.sum_of_shortest(below));
            sum as f64 / slowest as f64
        });
        LatencyRound {
            count: Some(self.count),
            mean_ns: mean,
            min_ns: self.at(1).map(|ns| ns as f64),
            max_ns: self.counted.last().map(|(ns, _)| *ns as f64),
            stddev_ns: mean
                .filter(|_| self.count > 1)
                .map(|mean| (squares(mean) / (self.count - 1) as f64).sqrt()),
            es10_ns: es10,
            percentiles: self.percentiles(),
            histogram: self.histograms()[0].clone(),
            ..LatencyRound::default()
        }
    }
}

fn plain(percentile: f64, value_ns: Option<f64>) -> PercentileValue {
    PercentileValue { percentile, value_ns, low_ns: None, high_ns: None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nm_stats::{Sample, summarise};
    use proptest::prelude::*;

    fn lengths(all: &[u64]) -> GapLengths {
        GapLengths::new(all.iter().copied(), &[])
    }

    fn value(values: &[PercentileValue], percentile: f64) -> Option<f64> {
        values.iter().find(|value| value.percentile == percentile).unwrap().value_ns
    }

    #[test]
    fn a_random_message_is_delayed_by_what_is_left_of_a_gap() {
        // 100 gaps of 1 ms in 1 s: a tenth of all time; 1 % of it is in the last 100 µs … of each.
        let delays = lengths(&[1_000_000; 100]).delays(1_000_000_000);
        assert!((value(&delays, 99.0).unwrap() - 900_000.0).abs() < 1.0, "{delays:?}");
        assert!((value(&delays, 99.9).unwrap() - 990_000.0).abs() < 1.0);
        // Less than 1 % of the time is lost.
        let delays = lengths(&[1_000; 100]).delays(1_000_000_000);
        assert_eq!(value(&delays, 99.0), Some(0.0));
        // One gap alone decides: no claim.
        let delays = lengths(&[1_000_000_000]).delays(2_000_000_000);
        assert_eq!(value(&delays, 99.0), None);
        assert_eq!(value(&lengths(&[]).delays(1), 99.0), Some(0.0));
    }

    #[test]
    fn the_shortest_are_summed_across_equal_lengths() {
        let lengths = lengths(&[5, 5, 7, 9]);
        assert_eq!([0, 1, 3, 9].map(|number| lengths.sum_of_shortest(number)), [0, 5, 17, 26]);
    }

    #[test]
    fn lost_time_is_a_histogram_of_ns() {
        let [gaps, lost] = lengths(&[100, 900]).histograms();
        let decode = |text: Option<String>| histogram::decode(&text.unwrap()).unwrap();
        assert_eq!(decode(gaps).len(), 2);
        let lost = decode(lost);
        assert_eq!((lost.len(), lost.value_at_quantile(0.05), lost.max()), (1_000, 100, 900));
        assert_eq!(lengths(&[]).histograms(), [None, None]);
    }

    proptest! {
        /// Counted lengths give the figures that single ones give.
        #[test]
        fn counting_changes_no_figure(all in prop::collection::vec(1u64..2_000, 1..300)) {
            let samples: Vec<Sample> =
                all.iter().map(|&latency_ns| Sample { start_ns: 0, latency_ns }).collect();
            let exact = summarise(&samples, 0, &[]);
            // Half of them through a histogram, which keeps values below 2048 exactly.
            let mut histogram = histogram::empty();
            let (single, counted) = all.split_at(all.len() / 2);
            counted.iter().for_each(|ns| histogram.saturating_record(*ns));
            let round = GapLengths::new(single.iter().copied(), &[&histogram]).round();
            prop_assert_eq!((round.count, round.min_ns, round.max_ns),
                (exact.count, exact.min_ns, exact.max_ns));
            for (ours, theirs) in round.percentiles.iter().zip(&exact.percentiles) {
                prop_assert_eq!(ours.value_ns, theirs.value_ns);
            }
            let close = |a: Option<f64>, b: Option<f64>| match (a, b) {
                (Some(a), Some(b)) => (a - b).abs() <= 1e-6 * b.max(1.0),
                (a, b) => a == b,
            };
            prop_assert!(close(round.mean_ns, exact.mean_ns));
            prop_assert!(close(round.es10_ns, exact.es10_ns));
            prop_assert!(close(round.stddev_ns, exact.stddev_ns));
            prop_assert_eq!(round.histogram, exact.histogram);
        }

        /// The delay's definition, by brute force.
        #[test]
        fn delays_have_their_probability(all in prop::collection::vec(1u64..5_000, 20..200)) {
            let elapsed = all.iter().sum::<u64>() * 3;
            for delay in lengths(&all).delays(elapsed) {
                let Some(x) = delay.value_ns.filter(|x| *x > 0.0) else { continue };
                let over: f64 = all.iter().map(|ns| (*ns as f64 - x).max(0.0)).sum();
                let share = over / elapsed as f64;
                prop_assert!((share - (1.0 - delay.percentile / 100.0)).abs() < 1e-9, "{share}");
            }
        }
    }
}
