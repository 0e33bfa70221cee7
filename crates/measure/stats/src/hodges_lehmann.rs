//! The Hodges-Lehmann shift (1963) with its exact interval. It is the median of the differences of
//! all pairs, one of A and one of B, taken within strata. The interval inverts the Mann-Whitney
//! test, so that it excludes zero exactly when that test finds a difference.

use nm_model::verdict::Interval;

use crate::describe::median_of_sorted;
use crate::mann_whitney::{Stratum, critical_value};

/// Confidence of the interval.
pub const LEVEL: f64 = 0.95;

/// A shift from A to B.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Shift {
    /// Median of the differences B - A.
    pub shift: f64,
    /// 95 % interval; `None` if there are too few values for that level.
    pub interval: Option<Interval>,
}

/// The shift within strata; `None` if no stratum has both sides.
pub fn shift(strata: &[Stratum<'_>]) -> Option<Shift> {
    let mut differences: Vec<f64> = strata
        .iter()
        .flat_map(|s| s.b.iter().flat_map(|b| s.a.iter().map(move |a| b - a)))
        .collect();
    differences.sort_unstable_by(f64::total_cmp);
    let sizes: Vec<_> = strata.iter().map(|s| (s.a.len(), s.b.len())).collect();
    let interval = critical_value(&sizes).map(|dropped| Interval {
        low: differences[dropped],
        high: differences[differences.len() - 1 - dropped],
        level: LEVEL,
    });
    Some(Shift { shift: median_of_sorted(&differences)?, interval })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mann_whitney::stratified;
    use proptest::prelude::*;

    #[test]
    fn too_few_values_have_no_interval_and_no_pairs_no_shift() {
        let few = shift(&[Stratum { a: &[1.0, 2.0], b: &[3.0] }]).unwrap();
        assert_eq!(few, Shift { shift: 1.5, interval: None });
        assert_eq!(shift(&[Stratum { a: &[1.0], b: &[] }]), None);
    }

    proptest! {
        #[test]
        fn constant_shift_is_estimated_exactly(
            a in prop::collection::vec(0.0..9.0f64, 5..15),
            by in -5.0..5.0f64,
        ) {
            let b: Vec<f64> = a.iter().map(|v| v + by).collect();
            let found = shift(&[Stratum { a: &a, b: &b }]).unwrap();
            prop_assert!((found.shift - by).abs() < 1e-9);
            let interval = found.interval.unwrap();
            prop_assert!(interval.low <= by + 1e-9 && by <= interval.high + 1e-9);
        }

        #[test]
        fn interval_excludes_zero_exactly_when_the_test_finds_a_difference(
            a in prop::collection::vec(0.0..9.0f64, 5..9),
            b in prop::collection::vec(2.0..11.0f64, 5..9),
            c in prop::collection::vec(0.0..9.0f64, 0..5),
            d in prop::collection::vec(2.0..11.0f64, 0..5),
        ) {
            let strata = [Stratum { a: &a, b: &b }, Stratum { a: &c, b: &d }];
            let interval = shift(&strata).unwrap().interval.unwrap();
            let claimed = stratified(&strata).p_value <= 0.05;
            prop_assert_eq!(claimed, !interval.contains(0.0));
        }
    }
}
