//! Holm's correction (1979) for several comparisons made at once. It adjusts p-values so that the
//! chance of any false claim among them stays below the level of a single test.

/// Adjusted p-values, in the order of `p_values`. A NaN counts as 1.
pub fn holm(p_values: &[f64]) -> Vec<f64> {
    let clean = |i: usize| if p_values[i].is_nan() { 1.0 } else { p_values[i].clamp(0.0, 1.0) };
    let mut order: Vec<usize> = (0..p_values.len()).collect();
    order.sort_by(|&i, &j| clean(i).total_cmp(&clean(j)));
    let mut adjusted = vec![1.0; p_values.len()];
    let mut largest = 0.0f64;
    for (step, &i) in order.iter().enumerate() {
        largest = largest.max(clean(i) * (p_values.len() - step) as f64).min(1.0);
        adjusted[i] = largest;
    }
    adjusted
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn textbook_example() {
        let adjusted = holm(&[0.01, 0.04, 0.03, 0.005]);
        for (got, want) in adjusted.iter().zip([0.03, 0.06, 0.06, 0.02]) {
            assert!((got - want).abs() < 1e-12, "{adjusted:?}");
        }
        assert_eq!(holm(&[]), Vec::<f64>::new());
        assert_eq!(holm(&[f64::NAN, 0.01]), [1.0, 0.02]);
    }

    proptest! {
        #[test]
        fn adjusted_lies_between_uncorrected_and_bonferroni(
            p in prop::collection::vec(0.0..=1.0f64, 0..20)
        ) {
            let n = p.len() as f64;
            for (plain, adjusted) in p.iter().zip(holm(&p)) {
                prop_assert!(*plain <= adjusted && adjusted <= (plain * n).min(1.0) + 1e-15);
            }
        }
    }
}
