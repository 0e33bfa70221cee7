//! The Mann-Kendall test for drift (Mann, 1945; Kendall, 1975): do values rise or fall over
//! time, not necessarily linearly? The Theil-Sen slope gives by how much. Work grows with the
//! square of the number of values.

use crate::describe::median;
use crate::normal;

/// Most values for which the exact distribution is computed.
pub const EXACT_MAX: usize = 30;

/// What the test found.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MannKendall {
    /// Pairs that rise minus pairs that fall.
    pub score: f64,
    /// Variance of the score without drift, corrected for ties.
    pub variance: f64,
    /// Two-sided p-value; 1 for fewer than three values.
    pub p_value: f64,
}

/// Tests `values`, given in order of time. Exact without ties up to [`EXACT_MAX`] values, else the
/// normal approximation with continuity correction.
pub fn mann_kendall(values: &[f64]) -> MannKendall {
    let n = values.len();
    let mut score = 0i64;
    for (i, later) in values.iter().enumerate() {
        for earlier in &values[..i] {
            score += i64::from(later > earlier) - i64::from(later < earlier);
        }
    }
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let term = |k: usize| (k * k.saturating_sub(1) * (2 * k + 5)) as f64;
    let tied: f64 = sorted.chunk_by(|x, y| x == y).map(|group| term(group.len())).sum();
    let variance = (term(n) - tied) / 18.0;
    let p_value = if n < 3 || variance <= 0.0 {
        1.0
    } else if n <= EXACT_MAX && tied == 0.0 {
        exact_p(n, score)
    } else {
        normal::two_sided((score.abs() - 1).max(0) as f64 / variance.sqrt())
    };
    MannKendall { score: score as f64, variance, p_value }
}

/// Theil-Sen slope: median of the slopes of all pairs, per step. `None` below two values.
pub fn slope(values: &[f64]) -> Option<f64> {
    let mut slopes = vec![];
    for (i, later) in values.iter().enumerate() {
        let earlier = values[..i].iter().enumerate();
        slopes.extend(earlier.map(|(j, earlier)| (later - earlier) / (i - j) as f64));
    }
    median(&slopes)
}

/// Share of all orders of `n` values whose score is at least as far from zero as `score`. A score
/// is the number of pairs minus twice the number of inversions; the distribution of the inversions
/// is built up by adding one value at a time.
fn exact_p(n: usize, score: i64) -> f64 {
    let pairs = n * (n - 1) / 2;
    let mut shares = vec![1.0f64];
    for k in 2..=n {
        let mut next = vec![0.0; shares.len() + k - 1];
        for (i, share) in shares.iter().enumerate() {
            next[i..i + k].iter_mut().for_each(|s| *s += share / k as f64);
        }
        shares = next;
    }
    let extreme = |inversions: usize| (pairs as i64 - 2 * inversions as i64).abs() >= score.abs();
    let p: f64 = (0..shares.len()).filter(|i| extreme(*i)).map(|i| shares[i]).sum();
    p.min(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn monotonic_rise_has_the_smallest_possible_p() {
        let test = mann_kendall(&[1.0, 2.0, 3.0, 4.0, 5.0]);
        assert_eq!(test.score, 10.0);
        assert!((test.p_value - 2.0 / 120.0).abs() < 1e-12);
        assert_eq!(slope(&[1.0, 3.0, 5.0]), Some(2.0));
    }

    #[test]
    fn equal_or_few_values_show_no_drift() {
        assert_eq!(mann_kendall(&[2.0; 40]).p_value, 1.0);
        assert_eq!(mann_kendall(&[1.0, 2.0]).p_value, 1.0);
        assert_eq!(mann_kendall(&[]).p_value, 1.0);
        assert_eq!(slope(&[1.0]), None);
    }

    proptest! {
        #[test]
        fn reversed_values_have_the_opposite_score(
            values in prop::collection::vec(0.0..9.0f64, 0..50),
        ) {
            let test = mann_kendall(&values);
            let reversed: Vec<f64> = values.iter().rev().copied().collect();
            let back = mann_kendall(&reversed);
            prop_assert_eq!(test.score, -back.score);
            prop_assert!((test.p_value - back.p_value).abs() < 1e-12);
            prop_assert!((0.0..=1.0).contains(&test.p_value));
        }
    }
}
