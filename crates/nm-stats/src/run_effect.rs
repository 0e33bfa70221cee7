//! Two runs of one system differ by more than their rounds show. This is what a pair of runs can
//! decide if the deviation between runs is known or assumed.
//!
//! The logarithm of the ratio of two medians has two parts: what sets whole runs apart, which is
//! given as the deviation of one run, and what the rounds of each side leave open. Limits are
//! one-sided and corrected for the number of figures (Bonferroni), so of two equal systems at most
//! 5 of 100 pairs have any figure beyond its limit.

use crate::compare::ROUNDS_MIN;
use crate::mann_whitney::mann_whitney;
use crate::normal;

/// Deviation between runs of one system that is assumed where it is not known, as a share.
pub const RUN_DEVIATION: f64 = 0.05;

/// Deviation of a round that is assumed where a side has fewer than [`ROUNDS_MIN`] rounds: single
/// runs of one system have differed by half.
pub const ROUND_DEVIATION: f64 = 0.5;

/// Largest chance of a false alarm, one-sided, over all figures of a pair.
pub const ALPHA: f64 = 0.05;

/// Largest chance to miss a slowdown of the size that a pair is said to find.
pub const BETA: f64 = 0.05;

/// A pair that finds no less than a doubling shows no absence of a slowdown.
pub const FOUND_MAX: f64 = std::f64::consts::LN_2;

/// How far the logarithm of the ratio of two medians scatters between equal systems.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Deviation {
    /// The standard deviation.
    pub sd: f64,
    /// The part that the rounds have in it, if there were no difference between runs.
    pub of_rounds: f64,
    /// Degrees of freedom of the estimate; infinite for what is given or assumed.
    pub freedom: f64,
    /// Whether a side has fewer than [`ROUNDS_MIN`] rounds, so its rounds' part is assumed.
    pub is_assumed: bool,
}

/// What a pair of runs shows in one figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// B is worse beyond the limit and the margin.
    Worse,
    /// B is better beyond the limit and the margin.
    Better,
    /// B is not worse by more than the upper bound of the ratio.
    NotWorse,
    /// Neither is shown.
    Undecided,
}

/// The variance of the logarithm of the median of one side, with its degrees of freedom.
fn of_median(values: &[f64]) -> (f64, f64) {
    let logs: Vec<f64> = values.iter().map(|value| value.ln()).filter(|l| l.is_finite()).collect();
    let n = logs.len() as f64;
    if logs.len() < ROUNDS_MIN {
        return (ROUND_DEVIATION.powi(2) / n.max(1.0), f64::INFINITY);
    }
    let mean = logs.iter().sum::<f64>() / n;
    let variance = logs.iter().map(|log| (log - mean).powi(2)).sum::<f64>() / (n - 1.0);
    // The median of normal values scatters more than their mean, by pi / 2 in the limit. That of
    // values in modes scatters more still, which the order statistics about it show.
    let of_normal = std::f64::consts::FRAC_PI_2 * variance / n;
    (of_normal.max(of_order(logs)), n - 1.0)
}

/// Variance of the median by the width of its 95 % interval of order statistics (McKean and
/// Schrader), at the nearest ranks.
fn of_order(mut logs: Vec<f64>) -> f64 {
    let z = normal::quantile(0.025);
    logs.sort_by(f64::total_cmp);
    let n = logs.len();
    let below = ((n as f64 + 1.0) / 2.0 - z * (n as f64).sqrt() / 2.0).round().max(1.0) as usize;
    ((logs[n - below] - logs[below - 1]) / (2.0 * z)).powi(2)
}

/// The deviation of the ratio of the medians of `a` and `b`, one value a round. `of_run` is the
/// deviation of a run: zero for parts of one run, whose rounds are interleaved.
pub fn deviation(of_run: f64, a: &[f64], b: &[f64]) -> Deviation {
    let (variance_a, freedom_a) = of_median(a);
    let (variance_b, freedom_b) = of_median(b);
    let of_rounds = variance_a + variance_b;
    let variance = 2.0 * of_run * of_run + of_rounds;
    // Welch and Satterthwaite; what is given has no part below the line.
    let uncertain = variance_a.powi(2) / freedom_a + variance_b.powi(2) / freedom_b;
    Deviation {
        sd: variance.sqrt(),
        of_rounds: of_rounds.sqrt(),
        freedom: if uncertain > 0.0 { variance * variance / uncertain } else { f64::INFINITY },
        is_assumed: a.len().min(b.len()) < ROUNDS_MIN,
    }
}

/// The value that Student's t with so many degrees of freedom exceeds with this probability, by
/// the expansion of Cornish and Fisher about the normal one; within 2 % from four degrees on.
fn student(tail: f64, freedom: f64) -> f64 {
    let z = normal::quantile(tail);
    let square = z * z;
    let first = z * (square + 1.0) / 4.0;
    let second = z * ((5.0 * square + 16.0) * square + 3.0) / 96.0;
    let third = z * (((3.0 * square + 19.0) * square + 17.0) * square - 15.0) / 384.0;
    z + first / freedom + second / freedom.powi(2) + third / freedom.powi(3)
}

impl Deviation {
    /// What the logarithm of the ratio must exceed, with so many figures tested at once.
    pub fn limit(&self, n_figures: usize) -> f64 {
        self.sd * student(ALPHA / n_figures.max(1) as f64, self.freedom)
    }

    /// The smallest slowdown that is found with 95 % power, as a logarithm.
    pub fn smallest_found(&self, n_figures: usize) -> f64 {
        self.limit(n_figures) + self.sd * student(BETA, self.freedom)
    }

    /// Most by which B is worse, as a logarithm, if the ratio of the medians is `exp(log_ratio)`.
    pub fn upper_bound(&self, log_ratio: f64, n_figures: usize) -> f64 {
        log_ratio + self.limit(n_figures)
    }

    /// Decides on one of `n_figures`. `log_ratio` is positive where B is worse; `margin` is the
    /// logarithm of the ratio that counts as equal.
    pub fn decide(&self, log_ratio: f64, n_figures: usize, margin: f64) -> Found {
        let beyond = self.limit(n_figures).max(margin);
        let smallest = self.smallest_found(n_figures);
        let upper = self.upper_bound(log_ratio, n_figures);
        match () {
            () if log_ratio > beyond => Found::Worse,
            () if log_ratio < -beyond => Found::Better,
            () if upper <= margin || (upper <= smallest && smallest <= FOUND_MAX) => {
                Found::NotWorse
            }
            () => Found::Undecided,
        }
    }

    /// Rounds a side with which this pair would find a slowdown of `exp(wanted)`, if its rounds
    /// vary as they do; nothing if the runs themselves differ too much.
    pub fn rounds_for(&self, wanted: f64, n_figures: usize, n_rounds: usize) -> Option<usize> {
        let quantiles = normal::quantile(ALPHA / n_figures.max(1) as f64) + normal::quantile(BETA);
        let of_runs = self.sd.powi(2) - self.of_rounds.powi(2);
        let left = (wanted / quantiles).powi(2) - of_runs;
        let factor = self.of_rounds.powi(2) / left;
        let rounds = (factor * n_rounds.max(1) as f64).ceil();
        (left > 0.0 && rounds < 1e4).then(|| (rounds as usize).max(n_rounds + 1).max(ROUNDS_MIN))
    }
}

/// Whether the rounds themselves differ, by the exact Mann-Whitney test, one-sided at 5 % over all
/// figures. Rounds in two modes can have medians in different ones by chance, far beyond any limit
/// from their deviation. Five rounds a side that do not overlap differ, however many figures there
/// are. With fewer no test can tell: then it is the limit alone.
pub fn do_rounds_differ(a: &[f64], b: &[f64], n_figures: usize) -> bool {
    /// Of the two orders of five and five in which all of one side come first.
    const APART: f64 = 2.0 / 252.0;
    let level = (2.0 * ALPHA / n_figures.max(1) as f64).clamp(APART, ALPHA) + 1e-12;
    a.len().min(b.len()) < ROUNDS_MIN || mann_whitney(a, b).p_value <= level
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn one_figure_of_runs_that_differ_by_5_percent_finds_26_percent() {
        let steady = [100.0; 5];
        let pair = deviation(0.05, &steady, &steady);
        assert!((pair.sd - 0.05 * 2.0f64.sqrt()).abs() < 1e-12, "{pair:?}");
        assert!((pair.smallest_found(1).exp() - 1.262).abs() < 0.001);
        assert!((pair.limit(1).exp() - 1.123).abs() < 0.001);
        assert!(pair.limit(4) > pair.limit(1));
    }

    #[test]
    fn parts_of_one_run_have_the_rounds_part_alone() {
        let rounds = [98.0, 99.0, 100.0, 101.0, 102.0];
        let pair = deviation(0.0, &rounds, &rounds);
        assert_eq!(pair.sd, pair.of_rounds);
        // Two sides of equal variance have the freedom of both.
        assert!((pair.freedom - 8.0).abs() < 0.01, "{pair:?}");
    }

    #[test]
    fn quantiles_of_student_have_their_textbook_values() {
        for (tail, freedom, expected) in
            [(0.05, 8.0, 1.860), (0.0125, 8.0, 2.752), (0.025, 4.0, 2.776), (0.05, 4.0, 2.132)]
        {
            let found = student(tail, freedom);
            assert!((found / expected - 1.0).abs() < 0.02, "{tail} {freedom}: {found}");
        }
        assert_eq!(student(0.05, f64::INFINITY), normal::quantile(0.05));
    }

    #[test]
    fn what_is_300_times_slower_is_always_worse() {
        let slow = 300.0f64.ln();
        let steady = [10.0, 10.1, 9.9, 10.2, 9.8];
        let one_bad = [10.0, 10.1, 9.9, 10.2, 3000.0];
        for n_figures in [1, 2, 4] {
            for a in [&steady[..], &one_bad, &steady[..1], &steady[..4]] {
                let b: Vec<f64> = steady.iter().map(|value| value * 300.0).collect();
                let pair = deviation(RUN_DEVIATION, a, &b);
                assert_eq!(pair.decide(slow, n_figures, 0.05), Found::Worse, "{a:?} {n_figures}");
            }
        }
    }

    #[test]
    fn few_rounds_show_no_absence_of_a_slowdown() {
        for n_rounds in 1..5 {
            let pair = deviation(RUN_DEVIATION, &vec![10.0; n_rounds], &vec![10.0; n_rounds]);
            assert_eq!(pair.decide(0.0, 1, 0.05), Found::Undecided, "{n_rounds}");
            assert!(pair.is_assumed);
        }
        let pair = deviation(RUN_DEVIATION, &[10.0; 5], &[10.0; 5]);
        assert_eq!(pair.decide(0.0, 1, 0.05), Found::NotWorse);
    }

    #[test]
    fn more_rounds_are_named_only_where_they_would_do() {
        let wide = [60.0, 80.0, 100.0, 130.0, 170.0];
        let pair = deviation(0.0, &wide, &wide);
        let rounds = pair.rounds_for(FOUND_MAX, 1, 5).unwrap();
        assert!((8..20).contains(&rounds), "{rounds}");
        assert_eq!(deviation(1.0, &wide, &wide).rounds_for(FOUND_MAX, 1, 5), None);
    }

    proptest! {
        #[test]
        fn any_rounds_have_a_decision(
            a in prop::collection::vec(prop::num::f64::ANY, 0..8),
            b in prop::collection::vec(prop::num::f64::ANY, 0..8),
            of_run in 0.0..1.0f64,
            log_ratio in prop::num::f64::ANY,
        ) {
            let pair = deviation(of_run, &a, &b);
            let _ = pair.decide(log_ratio, a.len(), 0.05);
            let _ = pair.rounds_for(FOUND_MAX, a.len(), b.len());
        }
    }
}
