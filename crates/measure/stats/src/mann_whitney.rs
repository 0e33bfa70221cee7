//! The Mann-Whitney test (Mann and Whitney, 1947), also within strata. Do the values of B tend to
//! lie above those of A, comparing only values of the same stratum?
//!
//! The statistic is the number of pairs (one of A, one of B, same stratum) in which B is larger;
//! ties count half. Its distribution under permutation of the labels inside each stratum is
//! computed exactly, ties included; above [`EXACT_MAX`] values the normal approximation is used.

use crate::normal;

/// Most values (both sides, all strata) for which the exact distribution is computed.
pub const EXACT_MAX: usize = 64;

/// Probability beyond each end of a 95 % interval, and the standard normal quantile there.
const TAIL: f64 = 0.025;
const Z_TAIL: f64 = 1.959_963_984_540_054;

/// The values of one stratum.
#[derive(Debug, Clone, Copy)]
pub struct Stratum<'a> {
    /// First group.
    pub a: &'a [f64],
    /// Second group.
    pub b: &'a [f64],
}

/// What the test found.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MannWhitney {
    /// Pairs in which the value of B is larger, ties half.
    pub u: f64,
    /// All pairs.
    pub pairs: f64,
    /// Two-sided p-value; 1 if there are no pairs.
    pub p_value: f64,
}

/// Tests `b` against `a`.
pub fn mann_whitney(a: &[f64], b: &[f64]) -> MannWhitney {
    stratified(&[Stratum { a, b }])
}

/// Tests B against A within strata. A stratum with values of one side only carries no information
/// and is left out.
pub fn stratified(strata: &[Stratum<'_>]) -> MannWhitney {
    let n: usize = usable(strata).map(|s| s.a.len() + s.b.len()).sum();
    if n <= EXACT_MAX { exact(strata) } else { asymptotic(strata) }
}

/// The exact test, for any number of values.
pub fn exact(strata: &[Stratum<'_>]) -> MannWhitney {
    let twice_u: usize = usable(strata).map(twice_wins).sum();
    let mut counts = vec![1.0];
    for stratum in usable(strata) {
        counts = convolve(&counts, &distribution(stratum));
    }
    debug_assert!(twice_u < counts.len(), "U is at most the number of pairs");
    let total: f64 = counts.iter().sum();
    let at_most: f64 = counts[..=twice_u].iter().sum();
    let at_least: f64 = counts[twice_u..].iter().sum();
    MannWhitney {
        u: twice_u as f64 / 2.0,
        pairs: pairs(strata),
        p_value: (2.0 * at_most.min(at_least) / total).min(1.0),
    }
}

/// The test by the normal approximation, corrected for ties and for continuity.
pub fn asymptotic(strata: &[Stratum<'_>]) -> MannWhitney {
    let u = usable(strata).map(|s| twice_wins(s) as f64 / 2.0).sum::<f64>();
    let variance: f64 = usable(strata).map(variance).sum();
    let pairs = pairs(strata);
    let distance = ((u - pairs / 2.0).abs() - 0.5).max(0.0);
    let p_value = if variance > 0.0 { normal::two_sided(distance / variance.sqrt()) } else { 1.0 };
    MannWhitney { u, pairs, p_value }
}

/// How many of the sorted differences of all pairs lie beyond each end of their 95 % interval:
/// the largest k with `P(U <= k) <= 2.5 %` when there are no ties. `None` if the probability of
/// k = 0 is already larger. `sizes` are those of A and B in each stratum.
pub fn critical_value(sizes: &[(usize, usize)]) -> Option<usize> {
    let usable = || sizes.iter().copied().filter(|(a, b)| *a > 0 && *b > 0);
    if usable().map(|(a, b)| a + b).sum::<usize>() > EXACT_MAX {
        let pairs: f64 = usable().map(|(a, b)| (a * b) as f64).sum();
        let variance: f64 = usable().map(|(a, b)| (a * b * (a + b + 1)) as f64 / 12.0).sum();
        // The asymptotic test, solved for U.
        let k = pairs / 2.0 - 0.5 - Z_TAIL * variance.sqrt();
        return (k >= 0.0).then_some(k as usize);
    }
    let mut counts = vec![1.0];
    for (a, b) in usable() {
        let ranks: Vec<usize> = (1..=a + b).map(|rank| 2 * rank).collect();
        counts = convolve(&counts, &rank_sums(&ranks, b));
    }
    let total: f64 = counts.iter().sum();
    let mut at_most = 0.0;
    // Without ties only even values of the doubled statistic occur.
    let rejected = counts.iter().step_by(2).take_while(|count| {
        at_most += **count;
        at_most <= TAIL * total
    });
    rejected.count().checked_sub(1)
}

fn usable<'s, 'a>(strata: &'s [Stratum<'a>]) -> impl Iterator<Item = &'s Stratum<'a>> {
    strata.iter().filter(|s| !s.a.is_empty() && !s.b.is_empty())
}

fn pairs(strata: &[Stratum<'_>]) -> f64 {
    usable(strata).map(|s| s.a.len() as f64 * s.b.len() as f64).sum()
}

/// Twice the number of pairs in which B is larger, so that ties are counted in integers.
fn twice_wins(stratum: &Stratum<'_>) -> usize {
    let wins = |b: f64| -> usize {
        stratum.a.iter().map(|&a| if b > a { 2 } else { usize::from(b == a) }).sum()
    };
    stratum.b.iter().map(|&b| wins(b)).sum()
}

/// Doubled mid-ranks of the pooled values in rising order, and the sizes of the groups of ties.
fn doubled_ranks(stratum: &Stratum<'_>) -> (Vec<usize>, Vec<usize>) {
    let mut pooled = [stratum.a, stratum.b].concat();
    pooled.sort_by(f64::total_cmp);
    let ties: Vec<usize> = pooled.chunk_by(|x, y| x == y).map(<[f64]>::len).collect();
    let mut ranks = Vec::with_capacity(pooled.len());
    for &size in &ties {
        let before = ranks.len();
        ranks.resize(before + size, 2 * before + size + 1);
    }
    (ranks, ties)
}

/// Number of choices of B's labels for each value of twice U.
fn distribution(stratum: &Stratum<'_>) -> Vec<f64> {
    rank_sums(&doubled_ranks(stratum).0, stratum.b.len())
}

/// For each doubled U: in how many ways `chosen` of the `ranks` give it. Index 0 is the smallest
/// possible rank sum without ties, `chosen (chosen + 1)` when doubled.
fn rank_sums(ranks: &[usize], chosen: usize) -> Vec<f64> {
    let smallest = chosen * (chosen + 1);
    let largest = smallest + 2 * chosen * (ranks.len() - chosen);
    let mut ways = vec![vec![0.0f64; largest + 1]; chosen + 1];
    ways[0][0] = 1.0;
    for &rank in ranks {
        for size in (1..=chosen).rev() {
            let (smaller, larger) = ways.split_at_mut(size);
            for (sum, count) in larger[0].iter_mut().enumerate().skip(rank) {
                *count += smaller[size - 1][sum - rank];
            }
        }
    }
    ways[chosen].split_off(smallest)
}

fn convolve(x: &[f64], y: &[f64]) -> Vec<f64> {
    let mut result = vec![0.0; x.len() + y.len() - 1];
    for (i, x) in x.iter().enumerate().filter(|(_, x)| **x > 0.0) {
        for (j, y) in y.iter().enumerate() {
            result[i + j] += x * y;
        }
    }
    result
}

fn variance(stratum: &Stratum<'_>) -> f64 {
    let (a, b) = (stratum.a.len() as f64, stratum.b.len() as f64);
    let n = a + b;
    let ties: f64 =
        doubled_ranks(stratum).1.iter().map(|&size| (size as f64).powi(3) - size as f64).sum();
    a * b / 12.0 * (n + 1.0 - ties / (n * (n - 1.0)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// By definition: every choice of B's labels, one by one.
    fn by_brute_force(a: &[f64], b: &[f64]) -> f64 {
        let pooled = [a, b].concat();
        let deviation = |wins: usize| wins.abs_diff(a.len() * b.len());
        let observed = deviation(twice_wins(&Stratum { a, b }));
        let (mut extreme, mut all) = (0.0, 0.0);
        for mask in 0u32..1 << pooled.len() {
            if mask.count_ones() as usize != b.len() {
                continue;
            }
            let side = |want: u32| -> Vec<f64> {
                let chosen = |i: &usize| mask >> i & 1 == want;
                (0..pooled.len()).filter(chosen).map(|i| pooled[i]).collect()
            };
            let wins = twice_wins(&Stratum { a: &side(0), b: &side(1) });
            all += 1.0;
            extreme += f64::from(u8::from(deviation(wins) >= observed));
        }
        extreme / all
    }

    #[test]
    fn complete_separation_has_the_smallest_possible_p() {
        let test = mann_whitney(&[1.0, 2.0, 3.0, 4.0, 5.0], &[6.0, 7.0, 8.0, 9.0, 10.0]);
        assert_eq!((test.u, test.pairs), (25.0, 25.0));
        assert!((test.p_value - 2.0 / 252.0).abs() < 1e-12);
    }

    #[test]
    fn strata_multiply_and_one_sided_strata_are_left_out() {
        let (one, two) = ([1.0, 2.0], [3.0, 4.0]);
        let pair = Stratum { a: &one, b: &two };
        let one_sided = Stratum { a: &one, b: &[] };
        assert!((exact(&[pair, pair, one_sided]).p_value - 2.0 / 36.0).abs() < 1e-12);
        assert_eq!(exact(&[one_sided]), MannWhitney { u: 0.0, pairs: 0.0, p_value: 1.0 });
        assert_eq!(asymptotic(&[one_sided]).p_value, 1.0);
    }

    #[test]
    fn critical_values_agree_with_published_tables() {
        // Two-sided 5 %: 2 at 5 v 5, 8 at 7 v 7, 23 at 10 v 10, none at 3 v 3.
        let table = [(5, Some(2)), (7, Some(8)), (10, Some(23)), (3, None)];
        for (n, k) in table {
            assert_eq!(critical_value(&[(n, n)]), k, "{n} v {n}");
        }
        assert_eq!(critical_value(&[]), None);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        #[test]
        fn exact_test_agrees_with_brute_force(
            a in prop::collection::vec(0u8..9, 1..6),
            b in prop::collection::vec(0u8..9, 1..6),
        ) {
            let (a, b) = (a.iter().map(|v| f64::from(*v)).collect::<Vec<_>>(),
                b.iter().map(|v| f64::from(*v)).collect::<Vec<_>>());
            // With ties the distribution may be skewed, and doubling the smaller tail is then not
            // the same as counting both; one tail of the two is, up to a factor of two.
            let (p, brute) = (mann_whitney(&a, &b).p_value, by_brute_force(&a, &b));
            prop_assert!(p >= brute / 2.0 - 1e-12 && p <= 2.0 * brute + 1e-12, "{p} {brute}");
            let mut distinct = [a.clone(), b.clone()].concat();
            distinct.sort_by(f64::total_cmp);
            distinct.dedup();
            if distinct.len() == a.len() + b.len() {
                prop_assert!((p - brute).abs() < 1e-12, "{p} {brute}");
            }
        }

        #[test]
        fn swapped_sides_or_transformed_values_change_nothing(
            a in prop::collection::vec(0.0..9.0f64, 1..40),
            b in prop::collection::vec(0.0..9.0f64, 1..40),
        ) {
            let test = mann_whitney(&a, &b);
            let swapped = mann_whitney(&b, &a);
            prop_assert!((test.p_value - swapped.p_value).abs() < 1e-9);
            prop_assert_eq!(test.u + swapped.u, test.pairs);
            let stretch = |v: &[f64]| v.iter().map(|v| v.exp()).collect::<Vec<_>>();
            prop_assert_eq!(mann_whitney(&stretch(&a), &stretch(&b)), test);
        }

        #[test]
        fn approximation_is_close_at_the_limit_of_the_exact_test(
            a in prop::collection::vec(0.0..9.0f64, 30..32),
            b in prop::collection::vec(1.0..9.0f64, 30..32),
        ) {
            let strata = [Stratum { a: &a, b: &b }];
            prop_assert!((exact(&strata).p_value - asymptotic(&strata).p_value).abs() < 0.01);
        }
    }
}
