//! Plain descriptions of a few values: mean, median, standard deviation, coefficient of variation.
//! `None` where there are too few values. Values must be finite.

/// Arithmetic mean.
pub fn mean(values: &[f64]) -> Option<f64> {
    let n = values.len() as f64;
    // Dividing first keeps sums of huge values finite.
    (!values.is_empty()).then(|| values.iter().map(|v| v / n).sum())
}

/// Median; the mean of the two middle values if their number is even.
pub fn median(values: &[f64]) -> Option<f64> {
    median_of_sorted(&sorted(values))
}

/// Median of values that are already in rising order.
pub fn median_of_sorted(sorted: &[f64]) -> Option<f64> {
    let upper = *sorted.get(sorted.len() / 2)?;
    if sorted.len() % 2 == 1 {
        return Some(upper);
    }
    let lower = sorted[sorted.len() / 2 - 1];
    // Halves first: the sum of huge values stays finite, and larger values never give less.
    Some(lower / 2.0 + upper / 2.0)
}

/// Sample standard deviation (divisor `n - 1`); needs two values.
pub fn stddev(values: &[f64]) -> Option<f64> {
    if values.len() < 2 {
        return None;
    }
    let mean = mean(values)?;
    let squares: f64 = values.iter().map(|v| (v - mean).powi(2)).sum();
    Some((squares / (values.len() - 1) as f64).sqrt())
}

/// Coefficient of variation, %: sample standard deviation by mean. `None` if the mean is zero.
pub fn cv_percent(values: &[f64]) -> Option<f64> {
    let mean = mean(values)?;
    Some(100.0 * stddev(values)? / mean.abs()).filter(|cv| cv.is_finite())
}

/// At most `limit` of the values, evenly spaced and in their order: limits work that grows with the
/// square of their number.
pub fn thinned(values: &[f64], limit: usize) -> Vec<f64> {
    values.iter().copied().step_by(values.len().div_ceil(limit.max(1)).max(1)).collect()
}

/// The values in rising order.
pub fn sorted(values: &[f64]) -> Vec<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn too_few_values_have_no_figures() {
        assert_eq!((mean(&[]), median(&[]), stddev(&[1.0])), (None, None, None));
        assert_eq!(cv_percent(&[0.0, 0.0]), None);
        assert_eq!(median(&[3.0, 1.0]), Some(2.0));
        assert_eq!(thinned(&[1.0, 2.0, 3.0, 4.0, 5.0], 2), [1.0, 4.0]);
        assert_eq!(thinned(&[], 0), Vec::<f64>::new());
    }

    proptest! {
        #[test]
        fn figures_scale_with_the_values(
            values in prop::collection::vec(1.0..1e6f64, 2..40),
            k in 0.1..10.0,
        ) {
            let scaled: Vec<f64> = values.iter().map(|v| v * k).collect();
            let near = |a: f64, b: f64| (a - b).abs() <= 1e-9 * (1.0 + b.abs());
            prop_assert!(near(mean(&scaled).unwrap(), k * mean(&values).unwrap()));
            prop_assert!(near(median(&scaled).unwrap(), k * median(&values).unwrap()));
            prop_assert!(near(stddev(&scaled).unwrap(), k * stddev(&values).unwrap()));
            prop_assert!(near(cv_percent(&scaled).unwrap(), cv_percent(&values).unwrap()));
        }
    }
}
