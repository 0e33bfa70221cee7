//! Two runs of one system differ by more than their rounds show. This is what a run can show
//! against one or several runs before it, its baselines.
//!
//! The logarithm of a run's median scatters about that of its system. Whole runs differ by a
//! deviation that is given, assumed, or learned from the baselines, and by what the run's rounds
//! leave open. A ratio against the mean of the baselines has both parts of both sides. Limits are
//! one-sided and corrected for the number of figures (Bonferroni). So of equal systems at most the
//! stated share has any figure beyond its limit. A pair is a run against one baseline.

use crate::compare::ROUNDS_MIN;
use crate::describe::{mean, median, stddev};
use crate::mann_whitney::mann_whitney;
use crate::normal;

/// Deviation between runs of one system that is assumed where it is not known, as a share.
pub const RUN_DEVIATION: f64 = 0.05;

/// Deviation of a round that is assumed where a side has fewer than [`ROUNDS_MIN`] rounds: single
/// runs of one system have differed by half.
pub const ROUND_DEVIATION: f64 = 0.5;

/// Largest chance of a false alarm, one-sided, over all figures of a pair.
pub const ALPHA: f64 = 0.05;

/// Chance of a false alarm, one-sided, over all figures of a gate, if runs were normal. It is half
/// of what is promised: runs have heavier tails.
pub const GATE_ALPHA: f64 = 0.005;

/// Chance that a gate misses the step that it states, if runs were normal. It is half of what is
/// promised: runs have modes, and the scatter of their rounds is known from a few.
pub const GATE_BETA: f64 = 0.025;

/// Most degrees of freedom of a learned deviation: runs have heavier tails than the normal
/// distribution, however many there are.
pub const LEARNED_FREEDOM_MAX: f64 = 10.0;

/// How many runs an assumed deviation counts for, beside those that the baselines show.
pub const ASSUMED_FREEDOM: f64 = 3.0;

/// Largest chance to miss a slowdown of the size that a pair is said to find.
pub const BETA: f64 = 0.05;

/// A pair that finds no less than a doubling shows no absence of a slowdown.
pub const FOUND_MAX: f64 = std::f64::consts::LN_2;

/// Figures that are tested at once.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Family {
    /// Largest chance of a false alarm in any of them, one-sided.
    pub alpha: f64,
    /// Largest chance to miss a slowdown of the size that is said to be found.
    pub beta: f64,
    /// How many there are.
    pub n_figures: usize,
}

impl Family {
    /// The figures of a pair of runs.
    pub fn of_pair(n_figures: usize) -> Family {
        Family { alpha: ALPHA, beta: BETA, n_figures }
    }

    /// The figures of a gate.
    pub fn of_gate(n_figures: usize) -> Family {
        Family { alpha: GATE_ALPHA, beta: GATE_BETA, n_figures }
    }

    /// The chance for each figure.
    fn level(self) -> f64 {
        self.alpha / self.n_figures.max(1) as f64
    }
}

/// How far the logarithm of the ratio of a run to its baselines scatters between equal systems.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Deviation {
    /// The standard deviation.
    pub sd: f64,
    /// The part that the rounds have in it, if there were no difference between runs.
    pub of_rounds: f64,
    /// Standard deviation between runs, without the rounds' part.
    pub of_run: f64,
    /// How many baselines it is against.
    pub n_baselines: usize,
    /// Degrees of freedom of the estimate; infinite for what is given or assumed.
    pub freedom: f64,
    /// Whether a side has fewer than [`ROUNDS_MIN`] rounds, so its rounds' part is assumed.
    pub is_assumed: bool,
}

/// What a run shows in one figure.
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

/// The logarithm of the median of a run's rounds; nothing if it has none above zero.
fn log_median(rounds: &[f64]) -> Option<f64> {
    median(rounds).map(f64::ln).filter(|log| log.is_finite())
}

/// The logarithm of the ratio of a run to the geometric mean of its baselines, each by the median
/// of its rounds; nothing if one of them is zero.
pub fn log_ratio(baselines: &[&[f64]], run: &[f64]) -> Option<f64> {
    let logs: Option<Vec<f64>> = baselines.iter().map(|rounds| log_median(rounds)).collect();
    Some(log_median(run)? - mean(&logs?)?)
}

/// The deviation of the ratio of the medians of `a` and `b`, one value a round. `of_run` is the
/// deviation of a run: zero for parts of one run, whose rounds are interleaved.
pub fn deviation(of_run: f64, a: &[f64], b: &[f64]) -> Deviation {
    against(of_run, &[a], b)
}

/// The deviation of the ratio of `run` to its `baselines`, one value a round. The deviation between
/// runs is `of_run` as it is for one baseline. Several show one of their own, and `of_run` counts
/// as [`ASSUMED_FREEDOM`] runs more.
pub fn against(of_run: f64, baselines: &[&[f64]], run: &[f64]) -> Deviation {
    let n = baselines.len().max(1) as f64;
    let (mut of_baseline, freedom_a) = of_medians(baselines);
    let (mut of_this, freedom_b) = of_median(run);
    let logs: Vec<f64> = baselines.iter().filter_map(|rounds| log_median(rounds)).collect();
    let shown = stddev(&logs).map_or(0.0, |sd| sd * sd);
    // The runs show both parts together, so both are shrunk together.
    let assumed = of_run * of_run + of_baseline;
    let freedom = ASSUMED_FREEDOM + n - 1.0;
    let learned = (ASSUMED_FREEDOM * assumed + (n - 1.0) * shown) / freedom;
    let between = (learned - of_baseline).max(0.0);
    // Rounds with outliers leave less open than their scatter says, if the runs agree.
    let share = if n > 1.0 && learned < of_baseline { learned / of_baseline } else { 1.0 };
    of_baseline *= share;
    of_this *= share;
    // Rounds vary from run to run; those of this run are not taken to be better than usual.
    let usual = (n - 1.0) * of_baseline / n;
    let own = (of_this - usual).max(of_this / n);
    let of_rounds = own + of_baseline;
    let of_runs = between * (1.0 + 1.0 / n);
    let variance = of_runs + of_rounds;
    // Welch and Satterthwaite; what is given has no part below the line.
    let freedom_a = if share < 1.0 { freedom_a.min(freedom) } else { freedom_a };
    let learned_part = if n > 1.0 { of_runs.powi(2) / freedom } else { 0.0 };
    let uncertain = learned_part + of_baseline.powi(2) / freedom_a + own.powi(2) / freedom_b;
    let freedom = if uncertain > 0.0 { variance * variance / uncertain } else { f64::INFINITY };
    let freedom_max = if n > 1.0 { LEARNED_FREEDOM_MAX } else { f64::INFINITY };
    let n_rounds = baselines.iter().map(|rounds| rounds.len()).min().unwrap_or_default();
    Deviation {
        sd: variance.sqrt(),
        of_rounds: of_rounds.sqrt(),
        of_run: between.sqrt(),
        n_baselines: baselines.len(),
        freedom: freedom.min(freedom_max),
        is_assumed: n_rounds.min(run.len()) < ROUNDS_MIN,
    }
}

/// The mean variance of the medians of several runs, with its degrees of freedom.
fn of_medians(runs: &[&[f64]]) -> (f64, f64) {
    let each: Vec<(f64, f64)> = runs.iter().map(|rounds| of_median(rounds)).collect();
    let sum: f64 = each.iter().map(|(variance, _)| variance).sum();
    let uncertain: f64 = each.iter().map(|(variance, freedom)| variance * variance / freedom).sum();
    let freedom = if uncertain > 0.0 { sum * sum / uncertain } else { f64::INFINITY };
    (sum / runs.len().max(1) as f64, freedom)
}

/// The value that Student's t with so many degrees of freedom exceeds with this probability, by
/// the expansion of Cornish and Fisher about the normal one; within 2 % from four degrees on.
pub fn student(tail: f64, freedom: f64) -> f64 {
    let z = normal::quantile(tail);
    let square = z * z;
    let first = z * (square + 1.0) / 4.0;
    let second = z * ((5.0 * square + 16.0) * square + 3.0) / 96.0;
    let third = z * (((3.0 * square + 19.0) * square + 17.0) * square - 15.0) / 384.0;
    z + first / freedom + second / freedom.powi(2) + third / freedom.powi(3)
}

/// By how many deviations a slowdown exceeds the limit if the chance is `beta` that neither of
/// two runs finds it. Both runs share the baselines, which are the part `shared` of the variance,
/// and the estimate of the deviation with its `freedom`.
fn within_two(beta: f64, shared: f64, freedom: f64) -> f64 {
    let own = (1.0 - shared).max(1e-9).sqrt();
    // Trapezium over the part that is shared, and over the estimate by the true deviation.
    let parts: Vec<(f64, f64)> = (-10..=10)
        .map(|at| f64::from(at) * 0.5)
        .map(|part| (part, (-part * part / 2.0).exp()))
        .collect();
    let estimates: Vec<(f64, f64)> = match freedom.is_finite() {
        true => (1..=24)
            .map(|at| f64::from(at) * 0.1)
            .map(|u| (u, ((freedom - 1.0) * u.ln() + freedom * (1.0 - u * u) / 2.0).exp()))
            .collect(),
        false => vec![(1.0, 1.0)],
    };
    let neither = |above: f64| -> f64 {
        let (mut missed, mut all) = (0.0, 0.0);
        for (estimate, weight) in &estimates {
            for (part, density) in &parts {
                let one = normal::upper_tail((above * estimate + shared.sqrt() * part) / own);
                missed += weight * density * one * one;
                all += weight * density;
            }
        }
        missed / all
    };
    let (mut low, mut high) = (0.0, 8.0);
    for _ in 0..20 {
        let middle = (low + high) / 2.0;
        if neither(middle) > beta { low = middle } else { high = middle }
    }
    high
}

impl Deviation {
    /// What the logarithm of the ratio must exceed in each figure of the family.
    pub fn limit(&self, family: Family) -> f64 {
        self.sd * student(family.level(), self.freedom)
    }

    /// The smallest slowdown that one run finds with 95 % power, as a logarithm. What is within
    /// `margin`, the logarithm of the ratio that counts as equal, is not found.
    pub fn smallest_found(&self, family: Family, margin: f64) -> f64 {
        self.limit(family).max(margin) + self.sd * student(family.beta, self.freedom)
    }

    /// The smallest slowdown that at least one of two runs finds with 95 % power, as a logarithm.
    pub fn smallest_found_by_two(&self, family: Family, margin: f64) -> f64 {
        let n = self.n_baselines.max(1) as f64;
        let above = within_two(family.beta, 1.0 / (n + 1.0), self.freedom);
        self.limit(family).max(margin) + self.sd * above
    }

    /// Most by which the run is worse, as a logarithm, if its ratio is `exp(log_ratio)`.
    pub fn upper_bound(&self, log_ratio: f64, family: Family) -> f64 {
        log_ratio + self.limit(family)
    }

    /// Decides on one figure of the family. `log_ratio` is positive where the run is worse;
    /// `margin` is the logarithm of the ratio that counts as equal.
    fn decide(&self, log_ratio: f64, family: Family, margin: f64) -> Found {
        let beyond = self.limit(family).max(margin);
        let smallest = self.smallest_found(family, 0.0);
        let upper = self.upper_bound(log_ratio, family);
        match () {
            () if log_ratio > beyond => Found::Worse,
            () if log_ratio < -beyond => Found::Better,
            () if upper <= margin || (upper <= smallest && smallest <= FOUND_MAX) => {
                Found::NotWorse
            }
            () => Found::Undecided,
        }
    }

    /// Rounds a side with which this run would find a slowdown of `exp(wanted)`, if its rounds
    /// vary as they do; nothing if the runs themselves differ too much.
    pub fn rounds_for(&self, wanted: f64, family: Family, n_rounds: usize) -> Option<usize> {
        let quantiles = normal::quantile(family.level()) + normal::quantile(family.beta);
        let of_runs = self.sd.powi(2) - self.of_rounds.powi(2);
        let left = (wanted / quantiles).powi(2) - of_runs;
        let factor = self.of_rounds.powi(2) / left;
        let rounds = (factor * n_rounds.max(1) as f64).ceil();
        (left > 0.0 && rounds < 1e4).then(|| (rounds as usize).max(n_rounds + 1).max(ROUNDS_MIN))
    }
}

/// What a run shows in one figure, if also its rounds differ from those `before`, of all baselines.
pub fn decide(
    deviation: &Deviation,
    log_ratio: f64,
    [before, rounds]: [&[f64]; 2],
    family: Family,
    margin: f64,
) -> Found {
    match deviation.decide(log_ratio, family, margin) {
        Found::Worse | Found::Better if !do_rounds_differ(before, rounds, family) => {
            Found::Undecided
        }
        found => found,
    }
}

/// Whether the rounds themselves differ, by the exact Mann-Whitney test, one-sided at 5 % over all
/// figures. Rounds in two modes can have medians in different ones by chance, far beyond any limit
/// from their deviation. Five rounds a side that do not overlap differ, however many figures there
/// are. With fewer no test can tell: then it is the limit alone.
fn do_rounds_differ(a: &[f64], b: &[f64], family: Family) -> bool {
    /// Of the two orders of five and five in which all of one side come first.
    const APART: f64 = 2.0 / 252.0;
    let level = (2.0 * ALPHA / family.n_figures.max(1) as f64).clamp(APART, ALPHA) + 1e-12;
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
        assert!((pair.smallest_found(Family::of_pair(1), 0.0).exp() - 1.262).abs() < 0.001);
        assert!((pair.limit(Family::of_pair(1)).exp() - 1.123).abs() < 0.001);
        assert!(pair.limit(Family::of_pair(4)) > pair.limit(Family::of_pair(1)));
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
                assert_eq!(
                    pair.decide(slow, Family::of_pair(n_figures), 0.05),
                    Found::Worse,
                    "{a:?} {n_figures}"
                );
            }
        }
    }

    #[test]
    fn few_rounds_show_no_absence_of_a_slowdown() {
        for n_rounds in 1..5 {
            let pair = deviation(RUN_DEVIATION, &vec![10.0; n_rounds], &vec![10.0; n_rounds]);
            assert_eq!(pair.decide(0.0, Family::of_pair(1), 0.05), Found::Undecided, "{n_rounds}");
            assert!(pair.is_assumed);
        }
        let pair = deviation(RUN_DEVIATION, &[10.0; 5], &[10.0; 5]);
        assert_eq!(pair.decide(0.0, Family::of_pair(1), 0.05), Found::NotWorse);
    }

    #[test]
    fn more_rounds_are_named_only_where_they_would_do() {
        let wide = [60.0, 80.0, 100.0, 130.0, 170.0];
        let pair = deviation(0.0, &wide, &wide);
        let rounds = pair.rounds_for(FOUND_MAX, Family::of_pair(1), 5).unwrap();
        assert!((8..20).contains(&rounds), "{rounds}");
        assert_eq!(deviation(1.0, &wide, &wide).rounds_for(FOUND_MAX, Family::of_pair(1), 5), None);
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
            let _ = pair.decide(log_ratio, Family::of_gate(a.len()), 0.05);
            let _ = pair.rounds_for(FOUND_MAX, Family::of_gate(a.len()), b.len());
        }
    }
}
