//! Outliers by the median absolute deviation (Iglewicz and Hoaglin, 1993): a value is an
//! outlier when its modified z-score exceeds 3.5.

use crate::describe::median;

/// Modified z-score beyond which a value is an outlier.
pub const LIMIT: f64 = 3.5;

/// Converts the median absolute deviation of normal values to their standard deviation.
const NORMAL_SCALE: f64 = 1.482_602_218_505_602;

/// Median absolute deviation from the median, unscaled.
pub fn mad(values: &[f64]) -> Option<f64> {
    let centre = median(values)?;
    median(&values.iter().map(|v| (v - centre).abs()).collect::<Vec<_>>())
}

/// Indices of the outliers, in rising order. A value within `distance_min` of the median is never
/// an outlier, however close together the other values are.
pub fn outliers(values: &[f64], distance_min: f64) -> Vec<usize> {
    let (Some(centre), Some(mad)) = (median(values), mad(values)) else { return vec![] };
    let limit = (LIMIT * NORMAL_SCALE * mad).max(distance_min);
    (0..values.len()).filter(|&i| (values[i] - centre).abs() > limit).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn one_far_value_is_an_outlier_and_a_near_one_is_not() {
        assert_eq!(outliers(&[1.0, 1.1, 0.9, 1.0, 5.0], 0.0), [4]);
        assert_eq!(outliers(&[1.0, 1.0, 1.0, 1.0, 1.01], 0.05), Vec::<usize>::new());
        assert_eq!(outliers(&[], 0.0), Vec::<usize>::new());
    }

    proptest! {
        #[test]
        fn fewer_than_half_of_the_values_are_outliers(
            values in prop::collection::vec(-1e6..1e6f64, 0..40),
        ) {
            prop_assert!(2 * outliers(&values, 0.0).len() <= values.len());
        }
    }
}
