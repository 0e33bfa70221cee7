//! Is B faster or slower than A, as good as A, or can that not be told? By rounds, and within the
//! modes that rounds fall into.
//!
//! Rounds of A and B are pooled and parted into modes ([`crate::modes`]). With one mode, an exact
//! Mann-Whitney test decides and the Hodges-Lehmann interval of the logarithms gives the size.
//! With several, two things may differ and each is tested at half the level: the values within
//! the modes (Mann-Whitney, stratified) and how often each mode occurs (Fisher). All tests are
//! exact under exchange of labels, and the modes do not depend on labels, so that like against
//! like is called different in at most 5 of 100 cases, whatever the distribution of the rounds.

use std::fmt;

use nm_model::verdict::Interval;

use crate::bootstrap;
use crate::describe::{median, thinned};
use crate::fisher::fisher;
use crate::hodges_lehmann;
use crate::mann_whitney::{Stratum, mann_whitney, stratified};
use crate::modes;

pub use crate::holm::holm;

/// Rounds a side below which nothing is claimed.
pub const ROUNDS_MIN: usize = 5;

/// Most rounds a side that are looked at; of more, evenly spaced ones.
pub const ROUNDS_MAX: usize = 1000;

/// A difference is claimed when its p-value is at most this.
pub const LEVEL: f64 = 0.05;

/// What a comparison came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// A difference is shown.
    Difference,
    /// The interval of the ratio lies inside the margin.
    Equivalent,
    /// Neither is shown.
    Unclear,
}

/// What a comparison rests on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Basis {
    /// All rounds of a side together.
    Overall,
    /// Rounds of one mode against rounds of the same mode.
    WithinModes,
    /// How often each mode occurs.
    ModeShares,
}

/// A group that rounds fall into.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Mode {
    /// Rounds of A in it.
    pub rounds_a: usize,
    /// Rounds of B in it.
    pub rounds_b: usize,
    /// Median of all its rounds.
    pub median: f64,
}

/// B against A in one figure.
#[derive(Debug, Clone, PartialEq)]
pub struct Ratio {
    /// Median of B divided by median of A. Not finite if a side is empty or A's median is zero.
    pub ratio: f64,
    /// 95 % interval of [`Ratio::ratio`] over rounds; absent below five rounds a side.
    pub interval: Option<Interval>,
    /// B divided by A within the modes; present if rounds fall into several and both sides share
    /// at least one.
    pub within_mode_ratio: Option<f64>,
    /// 95 % interval of [`Ratio::within_mode_ratio`].
    pub within_mode_interval: Option<Interval>,
    /// Probability of so large a difference between like and like; absent below five rounds.
    pub p_value: Option<f64>,
    /// What it came to.
    pub verdict: Found,
    /// What `p_value` rests on.
    pub basis: Basis,
    /// The groups that the rounds of both sides fall into, in rising order; one if they do not.
    pub modes: Vec<Mode>,
    /// How it was found and what limits it, as a clause.
    pub note: String,
}

impl Ratio {
    /// The ratio and interval that `basis` speaks of: those within the modes if the difference lies
    /// there, since the overall ratio then shows mostly which mode the middle round fell into.
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
pub fn compare(a: &[f64], b: &[f64], margin: f64, seed: u64) -> Ratio {
    let finite = |values: &[f64]| -> Vec<f64> {
        let finite: Vec<f64> = values.iter().copied().filter(|value| value.is_finite()).collect();
        thinned(&finite, ROUNDS_MAX)
    };
    let (a, b) = (finite(a), finite(b));
    if a.len().min(b.len()) < ROUNDS_MIN {
        return too_few(&a, &b);
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

/// A ratio of which nothing is known but the medians.
fn bare(a: &[f64], b: &[f64]) -> Ratio {
    let ratio = match (median(a), median(b)) {
        (Some(a), Some(b)) => b / a,
        _ => f64::NAN,
    };
    let pooled = median(&[a, b].concat());
    let mode = |median| Mode { rounds_a: a.len(), rounds_b: b.len(), median };
    Ratio {
        ratio,
        interval: None,
        within_mode_ratio: None,
        within_mode_interval: None,
        p_value: None,
        verdict: Found::Unclear,
        basis: Basis::Overall,
        modes: pooled.map(mode).into_iter().collect(),
        note: String::new(),
    }
}

fn too_few(a: &[f64], b: &[f64]) -> Ratio {
    let rounds = rounds_text(a, b);
    let note = format!("{rounds}: no claim below {ROUNDS_MIN} rounds a side");
    Ratio { note, ..bare(a, b) }
}

/// Values of zero, such as a loss: they have no logarithm and no ratio, but an order.
fn with_zeros(a: &[f64], b: &[f64]) -> Ratio {
    let p_value = mann_whitney(a, b).p_value;
    let all_equal = a.iter().chain(b).all(|value| *value == a[0]);
    let verdict = match () {
        () if all_equal => Found::Equivalent,
        () if p_value <= LEVEL => Found::Difference,
        () => Found::Unclear,
    };
    let test = format!("Mann-Whitney p = {p_value:.2e}; values of zero have no ratio");
    let found = if all_equal { "all values are equal".to_string() } else { test };
    let note = format!("{}: {found}", rounds_text(a, b));
    Ratio { p_value: Some(p_value), verdict, note, ..bare(a, b) }
}

fn one_mode(a: &[f64], b: &[f64], margin: f64) -> Ratio {
    let bare = bare(a, b);
    let p_value = mann_whitney(a, b).p_value;
    let shift = log_shift(&[(a.to_vec(), b.to_vec())]);
    // The interval belongs to the Hodges-Lehmann ratio. The ratio of medians is what people can
    // check against the two medians; should it lie outside, the interval is widened to hold it.
    let interval = shift.and_then(|(_, interval)| interval).map(|interval| Interval {
        low: interval.low.min(bare.ratio),
        high: interval.high.max(bare.ratio),
        ..interval
    });
    let (verdict, remark) = judge(p_value, interval, margin);
    let note = format!("{}: Mann-Whitney p = {p_value:.2e}{remark}", rounds_text(a, b));
    Ratio { interval, p_value: Some(p_value), verdict, note, ..bare }
}

fn several_modes(a: &[f64], b: &[f64], boundaries: &[f64], margin: f64, seed: u64) -> Ratio {
    let pairs: Vec<(Vec<f64>, Vec<f64>)> =
        modes::split(a, boundaries).into_iter().zip(modes::split(b, boundaries)).collect();
    let strata: Vec<_> = pairs.iter().map(|(a, b)| Stratum { a, b }).collect();
    let p_within = stratified(&strata).p_value;
    let p_shares = mode_shares(a, b, boundaries, &pairs);
    // Two chances to be wrong, so each counts double.
    let p_value = (2.0 * p_within.min(p_shares)).min(1.0);
    let basis = if p_shares <= p_within { Basis::ModeShares } else { Basis::WithinModes };
    let within = log_shift(&pairs);
    let interval = bootstrap::ratio_of_medians(a, b, seed);
    let (mut verdict, mut remark) = judge(p_value, interval, margin);
    if 2.0 * p_shares <= LEVEL {
        // Equal medians do not make up for modes that occur more often on one side.
        verdict = Found::Difference;
        remark = "";
    }
    let within_text = match within {
        Some((ratio, Some(i))) => {
            format!("within them B is {ratio:.4} of A [{:.4}, {:.4}]", i.low, i.high)
        }
        Some((ratio, None)) => format!("within them B is {ratio:.4} of A, too few for an interval"),
        None => "A and B share none".to_string(),
    };
    let modes = pairs.iter().map(describe_mode).collect::<Vec<_>>();
    let note = format!(
        "{} fall into {} modes ({}): {within_text} (p = {p_within:.2e}), \
         their shares differ with p = {p_shares:.2e}{remark}",
        rounds_text(a, b),
        modes.len(),
        modes.iter().map(Mode::to_string).collect::<Vec<_>>().join(", "),
    );
    Ratio {
        interval,
        within_mode_ratio: within.map(|(ratio, _)| ratio),
        within_mode_interval: within.and_then(|(_, interval)| interval),
        p_value: Some(p_value),
        verdict,
        basis,
        modes,
        note,
        ..bare(a, b)
    }
}

/// p-value of the shares of the modes: Fisher for two, by the modes' order for more.
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
    let found = hodges_lehmann::shift(&strata)?;
    let interval = found.interval.map(|interval| Interval {
        low: interval.low.exp(),
        high: interval.high.exp(),
        ..interval
    });
    Some((found.shift.exp(), interval))
}

/// Verdict, and a remark for the note where both claims hold.
fn judge(p_value: f64, interval: Option<Interval>, margin: f64) -> (Found, &'static str) {
    let inside = interval.is_some_and(|i| 1.0 - margin <= i.low && i.high <= 1.0 + margin);
    match (inside, p_value <= LEVEL) {
        (true, true) => (Found::Equivalent, "; a difference is shown, smaller than the margin"),
        (true, false) => (Found::Equivalent, ""),
        (false, true) => (Found::Difference, ""),
        (false, false) => (Found::Unclear, ""),
    }
}

fn describe_mode((a, b): &(Vec<f64>, Vec<f64>)) -> Mode {
    let pooled = [a.as_slice(), b].concat();
    // A mode holds at least two rounds by construction.
    Mode { rounds_a: a.len(), rounds_b: b.len(), median: median(&pooled).unwrap_or(f64::NAN) }
}

fn rounds_text(a: &[f64], b: &[f64]) -> String {
    format!("{} rounds of A and {} of B", a.len(), b.len())
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "about {:.5}: {} of A, {} of B", self.median, self.rounds_a, self.rounds_b)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn scaled(values: &[f64], by: f64) -> Vec<f64> {
        values.iter().map(|value| value * by).collect()
    }

    const STEADY: [f64; 6] = [4000.0, 4010.0, 3990.0, 4005.0, 3995.0, 4002.0];

    #[test]
    fn below_five_rounds_there_is_no_claim() {
        let found = compare(&[1.0, 2.0, 3.0], &[90.0; 10], 0.05, 1);
        assert_eq!((found.verdict, found.interval, found.p_value), (Found::Unclear, None, None));
        assert_eq!(found.ratio, 45.0);
        assert_eq!(found.note, "3 rounds of A and 10 of B: no claim below 5 rounds a side");
        assert!(compare(&[], &[], 0.05, 1).ratio.is_nan());
        assert_eq!(compare(&[f64::NAN; 9], &STEADY, 0.05, 1).verdict, Found::Unclear);
    }

    #[test]
    fn steady_rounds_are_equivalent_or_different() {
        let same = compare(&STEADY, &scaled(&STEADY, 1.0001), 0.05, 1);
        assert_eq!(same.verdict, Found::Equivalent);
        let slower = compare(&STEADY, &scaled(&STEADY, 1.08), 0.05, 1);
        assert_eq!((slower.verdict, slower.basis), (Found::Difference, Basis::Overall));
        assert!(slower.interval.unwrap().contains(1.08));
        let a_little = compare(&STEADY, &scaled(&STEADY, 1.02), 0.05, 1);
        assert_eq!(a_little.verdict, Found::Equivalent);
        assert!(a_little.note.ends_with("a difference is shown, smaller than the margin"));
    }

    #[test]
    fn a_shift_within_modes_is_found_and_sized_there() {
        let a = [3910.0, 3950.0, 3990.0, 4050.0, 5890.0, 5950.0, 6080.0, 4000.0, 3960.0, 6000.0];
        let mut b = scaled(&a, 1.05);
        b[4] = 4190.0;
        let found = compare(&a, &b, 0.05, 1);
        assert_eq!((found.verdict, found.basis), (Found::Difference, Basis::WithinModes));
        assert_eq!(found.modes.len(), 2);
        let (ratio, interval) = found.decisive();
        assert!((1.03..1.07).contains(&ratio), "{ratio}");
        assert!(!interval.unwrap().contains(1.0));
        assert!(found.interval.unwrap().contains(1.0));
    }

    #[test]
    fn modes_that_do_not_overlap_decide_by_their_shares() {
        let found = compare(&STEADY, &scaled(&STEADY, 1.5), 0.05, 1);
        assert_eq!((found.verdict, found.basis), (Found::Difference, Basis::ModeShares));
        assert_eq!(found.within_mode_ratio, None);
        assert!(found.interval.unwrap().contains(1.5));
    }

    #[test]
    fn zeros_have_an_order_but_no_ratio() {
        assert_eq!(compare(&[0.0; 5], &[0.0; 5], 0.05, 1).verdict, Found::Equivalent);
        let lossy = compare(&[0.0; 5], &[0.1, 0.2, 0.1, 0.3, 0.1], 0.05, 1);
        assert_eq!((lossy.verdict, lossy.interval), (Found::Difference, None));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        #[test]
        fn any_values_are_compared_without_a_panic(
            a in prop::collection::vec(any::<f64>(), 0..12),
            b in prop::collection::vec(any::<f64>(), 0..12),
            margin in any::<f64>(),
        ) {
            let found = compare(&a, &b, margin, 7);
            prop_assert!(!found.note.is_empty());
            prop_assert!(found.p_value.is_none_or(|p| (0.0..=1.0).contains(&p)));
        }

        #[test]
        fn the_same_input_gives_the_same_result_and_swapping_sides_the_same_p(
            a in prop::collection::vec(1.0..100.0f64, 5..12),
            b in prop::collection::vec(1.0..100.0f64, 5..12),
            seed: u64,
        ) {
            let found = compare(&a, &b, 0.05, seed);
            prop_assert_eq!(&found, &compare(&a, &b, 0.05, seed));
            let swapped = compare(&b, &a, 0.05, seed);
            prop_assert!((found.p_value.unwrap() - swapped.p_value.unwrap()).abs() < 1e-9);
            prop_assert!(found.interval.unwrap().contains(found.ratio));
        }
    }
}
