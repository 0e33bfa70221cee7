//! The distribution of a series as a percentile plot draws it. At each percentile it has the median
//! of the rounds, which is the figure that tables show, and the range of the rounds.

use nm_model::metric::Metric;
use nm_model::result::{LatencyRound, Series};
use nm_stats::describe;
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

/// The lowest and the highest round at one place of the axis.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RangePoint {
    /// As in [`Point`].
    pub nines: f64,
    /// Value of the lowest round, ns.
    pub low_ns: f64,
    /// Value of the highest round, ns.
    pub high_ns: f64,
}

/// The rounds of one series.
#[derive(Debug, Clone, PartialEq)]
pub struct Distribution {
    /// Samples of all rounds together, if known.
    pub count: Option<u64>,
    /// Largest of all rounds, ns.
    pub max_ns: Option<f64>,
    /// The medians of the rounds, as far as each round has ten samples beyond the point.
    pub curve: Vec<Point>,
    /// The range of the rounds along the curve; empty below two rounds.
    pub range: Vec<RangePoint>,
    /// The percentiles that tables show, at their places.
    pub figures: Vec<Point>,
    /// Whether the curve comes from histograms, or joins single percentiles.
    pub is_complete: bool,
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
    /// The distribution of `series`.
    pub fn of(series: &Series) -> Distribution {
        let figures = figures(series);
        let lines = histograms(series).map(|all| lines_of(&all)).unwrap_or_default();
        let mut distribution = Distribution {
            count: view::samples(series),
            max_ns: view::value(series, Metric::Max),
            curve: vec![],
            range: vec![],
            is_complete: !lines.is_empty(),
            figures,
        };
        if lines.is_empty() {
            let min = view::value(series, Metric::Min).filter(|ns| *ns > 0.0);
            let start = min.map(|value_ns| Point { nines: 0.0, value_ns });
            distribution.curve = start.into_iter().chain(distribution.figures.clone()).collect();
        } else {
            distribution.join(&lines);
        }
        distribution
    }

    /// Median and range of the rounds' lines at each place.
    fn join(&mut self, lines: &[Vec<f64>]) {
        let n_points = lines.iter().map(Vec::len).min().unwrap_or(0);
        for index in 0..n_points {
            let nines = nines_at(index);
            let values: Vec<f64> = lines.iter().map(|line| line[index]).collect();
            let Some(value_ns) = describe::median(&values).filter(|ns| *ns > 0.0) else { continue };
            self.curve.push(Point { nines, value_ns });
            let low_ns = values.iter().copied().fold(f64::INFINITY, f64::min);
            let high_ns = values.iter().copied().fold(0.0, f64::max);
            if lines.len() > 1 && low_ns > 0.0 {
                self.range.push(RangePoint { nines, low_ns, high_ns });
            }
        }
    }

    /// The largest sample, at the end of the axis that n samples reach.
    pub fn end(&self) -> Option<Point> {
        let count = self.count.filter(|n| *n > 0)?;
        Some(Point { nines: (count as f64).log10(), value_ns: self.max_ns? })
    }
}

/// The percentiles of a series that tables show, in rising order.
fn figures(series: &Series) -> Vec<Point> {
    let mut known: Vec<f64> = view::latency_rounds(series)
        .flat_map(|round| &round.percentiles)
        .map(|p| p.percentile)
        .filter(|p| 0.0 < *p && *p < 100.0)
        .collect();
    known.sort_by(f64::total_cmp);
    known.dedup();
    let point = |p: f64| {
        let metric = if p == 50.0 { Metric::Median } else { Metric::Percentile(p) };
        Some(Point { nines: nines(p), value_ns: view::value(series, metric)? })
    };
    known.into_iter().filter_map(point).filter(|p| p.value_ns > 0.0).collect()
}

/// The histograms of all rounds with samples; `None` if one of them has none.
fn histograms(series: &Series) -> Option<Vec<Histogram>> {
    let with_samples = view::latency_rounds(series).filter(|round| round.count != Some(0));
    let all: Option<Vec<Histogram>> = with_samples.map(histogram_of).collect();
    all.filter(|all| !all.is_empty() && all.iter().all(|one| !one.is_empty()))
}

/// The values of each round at the places of the curve.
fn lines_of(all: &[Histogram]) -> Vec<Vec<f64>> {
    let shortest = all.iter().map(Histogram::len).min().unwrap_or(0);
    let end = (shortest as f64 / SAMPLES_BEYOND_MIN).log10();
    if end < 0.0 {
        return vec![];
    }
    let n_points = (end * f64::from(POINTS_PER_DECADE)).floor() as usize + 1;
    all.iter().map(|one| line_of(one, n_points)).collect()
}

/// The values of a histogram at the first `n_points` places, in one pass.
fn line_of(histogram: &Histogram, n_points: usize) -> Vec<f64> {
    let n_samples = histogram.len() as f64;
    let rank = |index: usize| {
        let quantile = 1.0 - 10f64.powf(-nines_at(index));
        ((quantile * n_samples).ceil() as u64).max(1)
    };
    let mut line = Vec::with_capacity(n_points);
    let mut n_below = 0u64;
    for step in histogram.iter_recorded() {
        n_below += step.count_since_last_iteration();
        while line.len() < n_points && rank(line.len()) <= n_below {
            line.push(step.value_iterated_to() as f64);
        }
    }
    line
}

/// Place of point `index` of the curve on the axis.
fn nines_at(index: usize) -> f64 {
    index as f64 / f64::from(POINTS_PER_DECADE)
}

#[cfg(test)]
mod tests {
    use nm_model::result::RoundData;
    use nm_stats::{Sample, summarise};

    use super::*;
    use crate::probes::exchange::fixture;

    #[test]
    fn the_axis_counts_nines() {
        assert_eq!(nines(0.0), 0.0);
        assert!((nines(90.0) - 1.0).abs() < 1e-12);
        assert!((nines(99.9) - 3.0).abs() < 1e-9);
    }

    fn histogram(values: impl Iterator<Item = u64>) -> Histogram {
        let mut sorted: Vec<u64> = values.collect();
        sorted.sort_unstable();
        histogram::decode(&histogram::encode_sorted(&sorted).unwrap()).unwrap()
    }

    #[test]
    fn a_line_has_the_quantiles_of_its_round() {
        let one = histogram(1..=1000);
        let line = line_of(&one, 33);
        assert_eq!((line[0], line[16], line[32]), (1.0, 900.0, 990.0));
        let expected = |index: usize| one.value_at_quantile(1.0 - 10f64.powf(-nines_at(index)));
        assert!((0..33).all(|index| line[index] == expected(index) as f64), "{line:?}");
    }

    #[test]
    fn the_curve_goes_through_the_figures_of_the_tables() {
        let mut series = fixture::result(1.0, 3).series.remove(0);
        for (round, factor) in series.rounds.iter_mut().zip([1, 3, 40]) {
            let sample = |i: u64| Sample { start_ns: i, latency_ns: 1000 + factor * i };
            let samples: Vec<Sample> = (0..20_000).map(sample).collect();
            round.data = RoundData::Latency(summarise(&samples, 0, &[]));
        }
        let distribution = Distribution::of(&series);
        let places: Vec<f64> = distribution.figures.iter().map(|p| p.nines).collect();
        assert_eq!(places, [50.0, 90.0, 99.0, 99.9].map(nines));
        for figure in &distribution.figures[1..] {
            let on_curve =
                distribution.curve.iter().find(|p| (p.nines - figure.nines).abs() < 1e-9);
            let ratio = on_curve.expect("the curve reaches it").value_ns / figure.value_ns;
            assert!((ratio - 1.0).abs() < 1e-3, "{ratio} at {}", figure.nines);
        }
        // Far below the slowest round, which the pooled samples would follow.
        let p99 = view::value(&series, Metric::Percentile(99.0)).unwrap();
        assert_eq!(p99, 1000.0 + 3.0 * 19_799.0);
        let ends: Vec<f64> = distribution.range.iter().map(|r| r.high_ns / r.low_ns).collect();
        assert!(ends.iter().all(|ratio| *ratio >= 1.0) && ends[16] > 30.0, "{ends:?}");
    }

    #[test]
    fn lines_end_where_the_shortest_round_has_ten_samples_beyond() {
        let lines = lines_of(&[histogram(1..=1000), histogram(1..=100_000)]);
        assert!(lines.iter().all(|line| line.len() == 33), "{lines:?}");
        assert!(lines_of(&[histogram(1..=9), histogram(1..=1000)]).is_empty());
    }
}
