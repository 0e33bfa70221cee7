//! Percentiles as order statistics: the rank of a percentile, whether there are enough samples for
//! it, and the ranks of its confidence interval.

/// Confidence of the intervals of [`interval_ranks`].
pub const LEVEL: f64 = 0.95;

/// Samples that must lie beyond a percentile before it is given.
pub const BEYOND_MIN: f64 = 10.0;

/// Above this binomial variance the interval's ranks come from the normal approximation, whose
/// error is then below one rank in a thousand.
const EXACT_VARIANCE_MAX: f64 = 1e6;

/// Rank (from 1) of a percentile among `n` sorted samples: `ceil(n p / 100)`, at least 1, so that
/// p0 is the smallest and p100 the largest sample. Without samples it is 1, which none of them is.
pub fn rank(n: usize, percentile: f64) -> usize {
    let exact = n as f64 * percentile / 100.0;
    let nearest = exact.round();
    // 99.9 % of 1000 is 999, although the product of the binary fractions is slightly larger.
    let is_integer = (exact - nearest).abs() <= 1e-9 * nearest.max(1.0);
    let rank = if is_integer { nearest } else { exact.ceil() };
    (rank as usize).clamp(1, n.max(1))
}

/// Whether `n` samples suffice for a percentile: at least [`BEYOND_MIN`] are expected beyond it, in
/// the nearer tail. The minimum, the maximum and the median are always given: they describe the
/// sample itself.
pub fn has_enough_samples(n: u64, percentile: f64) -> bool {
    if n == 0 {
        return false;
    }
    let beyond_share = percentile.min(100.0 - percentile) / 100.0;
    let always = percentile == 0.0 || percentile == 50.0 || percentile == 100.0;
    always || n as f64 * beyond_share >= BEYOND_MIN * (1.0 - 1e-9)
}

/// Samples that [`has_enough_samples`] requires.
pub fn samples_needed(percentile: f64) -> u64 {
    let beyond_share = percentile.min(100.0 - percentile) / 100.0;
    if beyond_share <= 0.0 || percentile == 50.0 {
        return 1;
    }
    (BEYOND_MIN / beyond_share * (1.0 - 1e-9)).ceil() as u64
}

/// Ranks (from 1) of the order statistics between which the true percentile lies with at least
/// 95 % confidence, whatever the distribution; `None` if the sample is too small for either end.
///
/// The number of samples at or below the true percentile is binomial, so the ranks are its 2.5 %
/// and 97.5 % quantiles (the upper one moved up by one). It holds for independent samples.
pub fn interval_ranks(n: usize, percentile: f64) -> Option<(usize, usize)> {
    let share = percentile / 100.0;
    if n == 0 || !(share > 0.0 && share < 1.0) {
        return None;
    }
    let (low, high) = binomial_quantiles(n, share, (1.0 - LEVEL) / 2.0);
    let high = high + 1;
    (low >= 1 && high <= n).then_some((low, high))
}

/// The `tail` and `1 - tail` quantiles of a binomial: the smallest k whose cumulative probability
/// reaches them.
fn binomial_quantiles(n: usize, share: f64, tail: f64) -> (usize, usize) {
    let variance = n as f64 * share * (1.0 - share);
    if variance > EXACT_VARIANCE_MAX {
        let (mean, half) = (n as f64 * share, 1.959_963_984_540_054 * variance.sqrt());
        return ((mean - half).floor().max(0.0) as usize, ((mean + half).ceil() as usize).min(n));
    }
    // Weights relative to that of the mode, by recurrence outwards until they are negligible: no
    // factorials, so nothing overflows.
    let odds = share / (1.0 - share);
    let mode = (((n + 1) as f64 * share) as usize).min(n);
    let mut below = vec![];
    let mut weight = 1.0;
    for k in (1..=mode).rev() {
        weight *= k as f64 / ((n - k + 1) as f64 * odds);
        if weight < 1e-18 {
            break;
        }
        below.push(weight);
    }
    let mut weights: Vec<f64> = below.iter().rev().copied().collect();
    let first = mode - weights.len();
    weights.push(1.0);
    weight = 1.0;
    for k in mode..n {
        weight *= (n - k) as f64 * odds / (k + 1) as f64;
        if weight < 1e-18 {
            break;
        }
        weights.push(weight);
    }
    let total: f64 = weights.iter().sum();
    let quantile = |target: f64| {
        let mut sum = 0.0;
        for (offset, weight) in weights.iter().enumerate() {
            sum += weight;
            if sum >= target * total {
                return first + offset;
            }
        }
        first + weights.len() - 1
    };
    (quantile(tail), quantile(1.0 - tail))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn ranks_are_nearest_ranks_and_p100_is_the_maximum() {
        assert_eq!(rank(1000, 99.9), 999);
        assert_eq!(rank(1000, 99.99), 1000);
        assert_eq!(rank(1_000_000, 99.999), 999_990);
        assert_eq!((rank(4, 50.0), rank(5, 50.0)), (2, 3));
        assert_eq!((rank(7, 0.0), rank(7, 100.0), rank(0, 50.0)), (1, 7, 1));
    }

    #[test]
    fn ten_samples_must_lie_beyond() {
        assert!(has_enough_samples(1000, 99.0) && !has_enough_samples(999, 99.0));
        assert!(has_enough_samples(10_000, 99.9) && !has_enough_samples(9_999, 99.9));
        assert!(has_enough_samples(1_000_000, 99.999));
        assert!(
            has_enough_samples(1, 50.0)
                && has_enough_samples(1, 100.0)
                && has_enough_samples(1, 0.0)
                && !has_enough_samples(0, 50.0)
        );
        assert!(!has_enough_samples(99, 10.0));
        assert_eq!(samples_needed(99.9), 10_000);
        assert_eq!(samples_needed(99.999), 1_000_000);
        assert_eq!(samples_needed(50.0), 1);
    }

    #[test]
    fn textbook_interval_of_the_median() {
        assert_eq!(interval_ranks(10, 50.0), Some((2, 9)));
        assert_eq!(interval_ranks(5, 50.0), None);
        assert_eq!(interval_ranks(6, 50.0), Some((1, 6)));
        assert_eq!(interval_ranks(100, 99.0), None);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn interval_contains_the_rank(n in 1usize..5000, p in 0.01..99.99f64) {
            let rank = rank(n, p);
            prop_assert!((1..=n).contains(&rank));
            if let Some((low, high)) = interval_ranks(n, p) {
                prop_assert!(1 <= low && low <= rank && rank <= high && high <= n);
            }
        }

        #[test]
        fn approximation_and_exact_ranks_agree_at_the_limit(p in 10.0..90.0f64) {
            let n = 3_900_000;
            let (low, high) = interval_ranks(n, p).unwrap();
            let half = 1.959_963_984_540_054 * (n as f64 * p / 100.0 * (1.0 - p / 100.0)).sqrt();
            prop_assert!((low as f64 - (n as f64 * p / 100.0 - half)).abs() < 2.0);
            prop_assert!((high as f64 - (n as f64 * p / 100.0 + half)).abs() < 3.0);
        }
    }
}
