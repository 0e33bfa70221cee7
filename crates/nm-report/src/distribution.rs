//! The distribution of a series: the merged histograms of its rounds, and the curve that a
//! percentile plot draws of them.

use nm_model::metric::Metric;
use nm_model::result::{LatencyRound, Series};
use nm_stats::histogram::{self, Histogram};

use crate::view;

/// The point of a percentile plot: where on the axis, and the value there.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Point {
    /// `log10(1 / (1 - q))`: 0 at the minimum, 1 at p90, 2 at p99, …
    pub nines: f64,
    /// Value, ns.
    pub value_ns: f64,
}

/// All rounds of one series.
#[derive(Debug, Clone, PartialEq)]
pub struct Distribution {
    /// Samples, if known.
    pub count: Option<u64>,
    /// Smallest, ns.
    pub min_ns: Option<f64>,
    /// Largest, ns.
    pub max_ns: Option<f64>,
    /// The curve as far as ten samples lie beyond each point.
    pub curve: Vec<Point>,
    /// Whether the curve comes from histograms, or joins single percentiles.
    pub is_complete: bool,
    merged: Option<Histogram>,
}

/// Fewest samples beyond a percentile that make it meaningful.
const SAMPLES_BEYOND_MIN: f64 = 10.0;

/// Points of the curve for each factor of ten of 1 / (1 - q).
const POINTS_PER_DECADE: u32 = 16;

/// Position of a percentile (0 to 100) on the axis.
pub fn nines(percentile: f64) -> f64 {
    -(1.0 - percentile / 100.0).log10()
}

/// The histogram of a round, if it has one that can be read.
pub fn histogram_of(round: &LatencyRound) -> Option<Histogram> {
    histogram::decode(round.histogram.as_ref()?).ok()
}

impl Distribution {
    /// Merges the rounds of `series`.
    pub fn of(series: &Series) -> Distribution {
        let mut merged: Option<Histogram> = None;
        let mut is_complete = true;
        for round in view::latency_rounds(series) {
            match (histogram_of(round), &mut merged) {
                (Some(one), None) => merged = Some(one),
                (Some(one), Some(all)) => is_complete &= all.add(&one).is_ok(),
                (None, _) => is_complete = false,
            }
        }
        let merged = merged.filter(|all| is_complete && !all.is_empty());
        let mut distribution = Distribution {
            count: view::samples(series),
            min_ns: view::value(series, Metric::Min),
            max_ns: view::value(series, Metric::Max),
            curve: vec![],
            is_complete: merged.is_some(),
            merged,
        };
        distribution.curve = match &distribution.merged {
            Some(all) => distribution.curve_of(all),
            None => distribution.curve_of_percentiles(series),
        };
        distribution
    }

    fn curve_of(&self, all: &Histogram) -> Vec<Point> {
        let end = (all.len() as f64 / SAMPLES_BEYOND_MIN).log10();
        let n_points = (end * f64::from(POINTS_PER_DECADE)).floor().max(0.0) as u32;
        let point = |index: u32| {
            let nines = f64::from(index) / f64::from(POINTS_PER_DECADE);
            let value = all.value_at_quantile(1.0 - 10f64.powf(-nines)) as f64;
            let (low, high) = (self.min_ns.unwrap_or(0.0), self.max_ns.unwrap_or(f64::MAX));
            Point { nines, value_ns: if index == 0 { low } else { value.max(low).min(high) } }
        };
        (0..=n_points).map(point).filter(|p| p.value_ns > 0.0).collect()
    }

    fn curve_of_percentiles(&self, series: &Series) -> Vec<Point> {
        let mut known: Vec<f64> = view::latency_rounds(series)
            .flat_map(|round| &round.percentiles)
            .filter(|p| p.value_ns.is_some() && p.percentile < 100.0)
            .map(|p| p.percentile)
            .collect();
        known.sort_by(f64::total_cmp);
        known.dedup();
        let metric = |p: f64| if p == 50.0 { Metric::Median } else { Metric::Percentile(p) };
        let start = self.min_ns.map(|value_ns| Point { nines: 0.0, value_ns });
        let rest = known.into_iter().filter(|p| *p > 0.0).filter_map(|p| {
            let value_ns = view::value(series, metric(p))?;
            Some(Point { nines: nines(p), value_ns })
        });
        start.into_iter().chain(rest).filter(|p| p.value_ns > 0.0).collect()
    }

    /// The largest sample, at the end of the axis that n samples reach.
    pub fn end(&self) -> Option<Point> {
        let count = self.count.filter(|n| *n > 0)?;
        Some(Point { nines: (count as f64).log10(), value_ns: self.max_ns? })
    }

    /// A percentile (0 to 100) of all rounds together, ns; absent where fewer than ten samples lie
    /// beyond it or where it is not known.
    pub fn percentile(&self, series: &Series, percentile: f64) -> Option<f64> {
        match &self.merged {
            Some(all) => {
                let beyond = all.len() as f64 * (1.0 - percentile / 100.0);
                // Tolerance: 1 - 0.999 is not exactly 0.001.
                (beyond + 1e-6 >= SAMPLES_BEYOND_MIN)
                    .then(|| all.value_at_quantile(percentile / 100.0) as f64)
            }
            None if percentile == 50.0 => view::value(series, Metric::Median),
            None => view::value(series, Metric::Percentile(percentile)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_axis_counts_nines() {
        assert_eq!(nines(0.0), 0.0);
        assert!((nines(90.0) - 1.0).abs() < 1e-12);
        assert!((nines(99.9) - 3.0).abs() < 1e-9);
    }
}
