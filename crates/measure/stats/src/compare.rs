//! Whether B is faster or slower than A, equivalent to A, or whether that is unclear: by rounds,
//! and within the modes of the rounds.
//!
//! Rounds of A and B are pooled and split into modes ([`crate::modes`]). With one mode, an exact
//! Mann-Whitney test decides, and the Hodges-Lehmann interval of the logarithms gives the size of
//! the difference. With several modes, two things may differ and each is tested at half the level.
//! They are the values within the modes (stratified Mann-Whitney test) and how often each mode
//! occurs (Fisher test). All tests are exact under permutation of the labels A and B, and the modes
//! do not depend on the labels. Two equal systems are therefore called different in at most 5 of
//! 100 cases, whatever the distribution of the rounds.

use nm_model::verdict::Interval;

use crate::bootstrap;
use crate::describe::{median, thinned};
use crate::fisher::fisher;
use crate::hodges_lehmann;
use crate::mann_whitney::{Stratum, mann_whitney, stratified};
use crate::modes;

/// Rounds a side below which no difference is claimed.
pub const ROUNDS_MIN: usize = 5;

/// Most rounds a side that are used; of more, evenly spaced ones.
pub const ROUNDS_MAX: usize = 1000;

/// A difference is claimed when its p-value is at most this.
pub const LEVEL: f64 = 0.05;

/// What a comparison claims.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Claim {
    /// A and B differ.
    Difference,
    /// The interval of the ratio lies inside the margin.
    Equivalent,
    /// Neither is shown.
    Unclear,
}

/// Which values a comparison is based on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Basis {
    /// All rounds of a side together.
    Overall,
    /// Rounds of one mode against rounds of the same mode.
    WithinModes,
    /// How often each mode occurs.
    ModeShares,
}

/// How a comparison was decided.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Evidence {
    /// A side has fewer than [`ROUNDS_MIN`] rounds.
    TooFewRounds,
    /// All values are equal, and some are zero.
    AllEqual,
    /// Mann-Whitney test; some values are zero, so there is no ratio.
    Zeros {
        /// p-value of the test.
        p_value: f64,
    },
    /// Mann-Whitney test; all rounds are in one mode.
    OneMode {
        /// p-value of the test.
        p_value: f64,
    },
    /// The rounds are in several modes.
    SeveralModes {
        /// p-value of the stratified Mann-Whitney test within the modes.
        p_within: f64,
        /// p-value of the test of how often each mode occurs.
        p_shares: f64,
    },
}

/// A group of rounds of similar value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Mode {
    /// Rounds of A in it.
    pub rounds_a: usize,
    /// Rounds of B in it.
    pub rounds_b: usize,
    /// Median of all its rounds.
    pub median: f64,
}

/// B compared with A in one metric. [`RoundsComparison::note`] describes it in words.
#[derive(Debug, Clone, PartialEq)]
pub struct RoundsComparison {
    /// Rounds of A and of B.
    pub rounds: [usize; 2],
    /// Median of B divided by median of A. Not finite if a side is empty or A's median is zero.
    pub ratio: f64,
    /// 95 % interval of [`RoundsComparison::ratio`] over rounds; absent below five rounds a side.
    pub interval: Option<Interval>,
    /// B divided by A within the modes; present if there are several modes and both sides share at
    /// least one.
    pub within_mode_ratio: Option<f64>,
    /// 95 % interval of [`RoundsComparison::within_mode_ratio`].
    pub within_mode_interval: Option<Interval>,
    /// Probability of a difference of this size between equal systems; absent below five rounds.
    pub p_value: Option<f64>,
    /// What it claims.
    pub claim: Claim,
    /// A difference is shown as well, but it is smaller than the margin.
    pub differs_within_margin: bool,
    /// Which values `p_value` is based on.
    pub basis: Basis,
    /// How it was decided.
    pub evidence: Evidence,
    /// The modes of the rounds of both sides, in rising order; a single one if there are no groups.
    pub modes: Vec<Mode>,
}

impl RoundsComparison {
    /// The ratio and interval that belong to `basis`: those within the modes if the difference is
    /// there, because the overall ratio then shows mostly in which mode the median round is.
    pub fn decisive(&self) -> (f64, Option<Interval>) {
        match (self.basis, self.within_mode_ratio) {
            (Basis::WithinModes, Some(ratio)) => (ratio, self.within_mode_interval),
            _ => (self.ratio, self.interval),
        }
    }
}

/// Compares `b` with `a`, one value a round. Equivalence is claimed if the whole interval lies
/// within `1 - margin` and `1 + margin`. `seed` is for the bootstrap; equal seeds give equal
/// results. Values that are not finite are left out.
pub fn compare(a: &[f64], b: &[f64], margin: f64, seed: u64) -> RoundsComparison {
    let finite = |values: &[f64]| -> Vec<f64> {
        let finite: Vec<f64> = values.iter().copied().filter(|value| value.is_finite()).collect();
        thinned(&finite, ROUNDS_MAX)
    };
    let (a, b) = (finite(a), finite(b));
    if a.len().min(b.len()) < ROUNDS_MIN {
        return undecided(&a, &b, Evidence::TooFewRounds);
    }
    if a.iter().chain(&b).any(|value| *value <= 0.0) {
        return with_zeros(&a, &b);
    }
    let boundaries = modes::boundaries(&[a.as_slice(), &b].concat());
    if boundaries.is_empty() {
        one_mode(&a, &b, margin)
    } else {
        several_modes(&a, &b, &boundaries, margin, seed)
    }
}

/// The medians and their ratio, without any claim.
fn undecided(a: &[f64], b: &[f64], evidence: Evidence) -> RoundsComparison {
    let ratio = match (median(a), median(b)) {
        (Some(a), Some(b)) => b / a,
        _ => f64::NAN,
    };
    let pooled = median(&[a, b].concat());
    let mode = |median| Mode { rounds_a: a.len(), rounds_b: b.len(), median };
    RoundsComparison {
        rounds: [a.len(), b.len()],
        ratio,
        interval: None,
        within_mode_ratio: None,
        within_mode_interval: None,
        p_value: None,
        claim: Claim::Unclear,
        differs_within_margin: false,
        basis: Basis::Overall,
        evidence,
        modes: pooled.map(mode).into_iter().collect(),
    }
}

/// Values of zero, such as a loss, have an order, but no logarithm and no ratio.
fn with_zeros(a: &[f64], b: &[f64]) -> RoundsComparison {
    let p_value = mann_whitney(a, b).p_value;
    let all_equal = a.iter().chain(b).all(|value| *value == a[0]);
    let claim = match () {
        () if all_equal => Claim::Equivalent,
        () if p_value <= LEVEL => Claim::Difference,
        () => Claim::Unclear,
    };
    let evidence = if all_equal { Evidence::AllEqual } else { Evidence::Zeros { p_value } };
    RoundsComparison { p_value: Some(p_value), claim, ..undecided(a, b, evidence) }
}

fn one_mode(a: &[f64], b: &[f64], margin: f64) -> RoundsComparison {
    let p_value = mann_whitney(a, b).p_value;
    let base = undecided(a, b, Evidence::OneMode { p_value });
    let shift = log_shift(&[(a.to_vec(), b.to_vec())]);
    // The interval belongs to the Hodges-Lehmann ratio, but readers see the ratio of the two
    // medians. Should that lie outside the interval, the interval is widened to contain it.
    let interval = shift.and_then(|(_, interval)| interval).map(|interval| Interval {
        low: interval.low.min(base.ratio),
        high: interval.high.max(base.ratio),
        ..interval
    });
    let (claim, differs_within_margin) = decide(p_value, interval, margin);
    RoundsComparison { interval, p_value: Some(p_value), claim, differs_within_margin, ..base }
}

fn several_modes(
    a: &[f64],
    b: &[f64],
    boundaries: &[f64],
    margin: f64,
    seed: u64,
) -> RoundsComparison {
    let pairs: Vec<(Vec<f64>, Vec<f64>)> =
        modes::split(a, boundaries).into_iter().zip(modes::split(b, boundaries)).collect();
    let strata: Vec<_> = pairs.iter().map(|(a, b)| Stratum { a, b }).collect();
    let p_within = stratified(&strata).p_value;
    let p_shares = mode_shares(a, b, boundaries, &pairs);
    // Two tests are made, so each p-value counts double (Bonferroni).
    let p_value = (2.0 * p_within.min(p_shares)).min(1.0);
    let basis = if p_shares <= p_within { Basis::ModeShares } else { Basis::WithinModes };
    let within = log_shift(&pairs);
    let interval = bootstrap::ratio_of_medians(a, b, seed);
    let (mut claim, mut differs_within_margin) = decide(p_value, interval, margin);
    if 2.0 * p_shares <= LEVEL {
        // Equal medians are not equivalence if a mode occurs more often on one side.
        claim = Claim::Difference;
        differs_within_margin = false;
    }
    RoundsComparison {
        interval,
        within_mode_ratio: within.map(|(ratio, _)| ratio),
        within_mode_interval: within.and_then(|(_, interval)| interval),
        p_value: Some(p_value),
        claim,
        differs_within_margin,
        basis,
        modes: pairs.iter().map(mode_of_pair).collect(),
        ..undecided(a, b, Evidence::SeveralModes { p_within, p_shares })
    }
}

/// p-value of how often each mode occurs: Fisher test for two modes, Mann-Whitney test of the
/// modes' order for more.
fn mode_shares(a: &[f64], b: &[f64], boundaries: &[f64], pairs: &[(Vec<f64>, Vec<f64>)]) -> f64 {
    if let [(a_low, b_low), (a_high, b_high)] = pairs {
        let count = |values: &Vec<f64>| values.len() as u64;
        return fisher([[count(a_low), count(a_high)], [count(b_low), count(b_high)]]);
    }
    let numbers = |values: &[f64]| -> Vec<f64> {
        values.iter().map(|value| modes::mode_of(*value, boundaries) as f64).collect()
    };
    mann_whitney(&numbers(a), &numbers(b)).p_value
}

/// Hodges-Lehmann ratio within the pairs of groups, with its interval.
fn log_shift(pairs: &[(Vec<f64>, Vec<f64>)]) -> Option<(f64, Option<Interval>)> {
    let log = |values: &Vec<f64>| -> Vec<f64> { values.iter().map(|value| value.ln()).collect() };
    let logs: Vec<_> = pairs.iter().map(|(a, b)| (log(a), log(b))).collect();
    let strata: Vec<_> = logs.iter().map(|(a, b)| Stratum { a, b }).collect();
    let estimate = hodges_lehmann::shift(&strata)?;
    let interval = estimate.interval.map(|interval| Interval {
        low: interval.low.exp(),
        high: interval.high.exp(),
        ..interval
    });
    Some((estimate.shift.exp(), interval))
}

/// The claim, and whether a difference is shown that is smaller than the margin.
fn decide(p_value: f64, interval: Option<Interval>, margin: f64) -> (Claim, bool) {
    let inside = interval.is_some_and(|i| 1.0 - margin <= i.low && i.high <= 1.0 + margin);
    match (inside, p_value <= LEVEL) {
        (true, differs) => (Claim::Equivalent, differs),
        (false, true) => (Claim::Difference, false),
        (false, false) => (Claim::Unclear, false),
    }
}

fn mode_of_pair((a, b): &(Vec<f64>, Vec<f64>)) -> Mode {
    let pooled = [a.as_slice(), b].concat();
    debug_assert!(pooled.len() >= 2, "a mode holds at least two rounds");
    Mode { rounds_a: a.len(), rounds_b: b.len(), median: median(&pooled).unwrap_or(f64::NAN) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nm_model::Metric;
    use proptest::prelude::*;

    fn scaled(values: &[f64], by: f64) -> Vec<f64> {
        values.iter().map(|value| value * by).collect()
    }

    const STEADY: [f64; 6] = [4000.0, 4010.0, 3990.0, 4005.0, 3995.0, 4002.0];

    #[test]
    fn below_five_rounds_nothing_is_claimed() {
        let comparison = compare(&[1.0, 2.0, 3.0], &[90.0; 10], 0.05, 1);
        assert_eq!(
            (comparison.claim, comparison.interval, comparison.p_value),
            (Claim::Unclear, None, None)
        );
        assert_eq!(comparison.ratio, 45.0);
        assert_eq!(
            comparison.note(Metric::Median, ["A", "B"]),
            "3 rounds of A and 10 of B: no claim below 5 rounds a side"
        );
        assert!(compare(&[], &[], 0.05, 1).ratio.is_nan());
        assert_eq!(compare(&[f64::NAN; 9], &STEADY, 0.05, 1).claim, Claim::Unclear);
    }

    #[test]
    fn steady_rounds_are_equivalent_or_different() {
        let same = compare(&STEADY, &scaled(&STEADY, 1.0001), 0.05, 1);
        assert_eq!(same.claim, Claim::Equivalent);
        let slower = compare(&STEADY, &scaled(&STEADY, 1.08), 0.05, 1);
        assert_eq!((slower.claim, slower.basis), (Claim::Difference, Basis::Overall));
        assert!(slower.interval.unwrap().contains(1.08));
        let a_little = compare(&STEADY, &scaled(&STEADY, 1.02), 0.05, 1);
        assert_eq!(a_little.claim, Claim::Equivalent);
        assert!(
            a_little
                .note(Metric::Median, ["A", "B"])
                .ends_with("a difference is shown, smaller than the margin")
        );
    }

    #[test]
    fn a_shift_within_modes_is_found_and_sized_there() {
        let a = [3910.0, 3950.0, 3990.0, 4050.0, 5890.0, 5950.0, 6080.0, 4000.0, 3960.0, 6000.0];
        let mut b = scaled(&a, 1.05);
        b[4] = 4190.0;
        let comparison = compare(&a, &b, 0.05, 1);
        assert_eq!((comparison.claim, comparison.basis), (Claim::Difference, Basis::WithinModes));
        assert_eq!(comparison.modes.len(), 2);
        let (ratio, interval) = comparison.decisive();
        assert!((1.03..1.07).contains(&ratio), "{ratio}");
        assert!(!interval.unwrap().contains(1.0));
        assert!(comparison.interval.unwrap().contains(1.0));
    }

    #[test]
    fn modes_that_do_not_overlap_decide_by_their_shares() {
        let comparison = compare(&STEADY, &scaled(&STEADY, 1.5), 0.05, 1);
        assert_eq!((comparison.claim, comparison.basis), (Claim::Difference, Basis::ModeShares));
        assert_eq!(comparison.within_mode_ratio, None);
        assert!(comparison.interval.unwrap().contains(1.5));
    }

    #[test]
    fn zeros_have_an_order_but_no_ratio() {
        assert_eq!(compare(&[0.0; 5], &[0.0; 5], 0.05, 1).claim, Claim::Equivalent);
        let lossy = compare(&[0.0; 5], &[0.1, 0.2, 0.1, 0.3, 0.1], 0.05, 1);
        assert_eq!((lossy.claim, lossy.interval), (Claim::Difference, None));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        #[test]
        fn any_values_are_compared_without_a_panic(
            a in prop::collection::vec(any::<f64>(), 0..12),
            b in prop::collection::vec(any::<f64>(), 0..12),
            margin in any::<f64>(),
        ) {
            let comparison = compare(&a, &b, margin, 7);
            prop_assert!(!comparison.note(Metric::Median, ["A", "B"]).is_empty());
            prop_assert!(comparison.p_value.is_none_or(|p| (0.0..=1.0).contains(&p)));
        }

        #[test]
        fn equal_input_gives_equal_results_and_swapped_sides_the_same_p(
            a in prop::collection::vec(1.0..100.0f64, 5..12),
            b in prop::collection::vec(1.0..100.0f64, 5..12),
            seed: u64,
        ) {
            let comparison = compare(&a, &b, 0.05, seed);
            prop_assert_eq!(&comparison, &compare(&a, &b, 0.05, seed));
            let swapped = compare(&b, &a, 0.05, seed);
            prop_assert!((comparison.p_value.unwrap() - swapped.p_value.unwrap()).abs() < 1e-9);
            prop_assert!(comparison.interval.unwrap().contains(comparison.ratio));
        }
    }
}
