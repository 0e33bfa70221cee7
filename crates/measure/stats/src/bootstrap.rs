//! The bootstrap over rounds (Efron and Tibshirani, 1993). Resample whole rounds with replacement,
//! compute the figure again, and take the interval from the quantiles of the resampled figures.
//!
//! The plain percentile interval is used, not BCa: the correction of BCa needs a jackknife, which
//! fails for medians of few values.

use nm_model::verdict::Interval;

use crate::describe::median_of_sorted;
use crate::random::Random;

/// Confidence of the intervals.
pub const LEVEL: f64 = 0.95;

/// Resamples; about 50 of them lie beyond each end of the interval.
pub const RESAMPLES: usize = 2000;

/// 95 % interval of a figure of one group. `None` if there are no values. `figure` gets the
/// resampled values in rising order.
pub fn interval(
    values: &[f64],
    seed: u64,
    figure: impl Fn(&[f64]) -> Option<f64>,
) -> Option<Interval> {
    let mut random = Random::new(seed);
    let mut buffer = vec![];
    percentile_interval(|| {
        resample(values, &mut random, &mut buffer);
        figure(&buffer)
    })
}

/// 95 % interval of the median of `b` divided by the median of `a`, each group resampled on its
/// own. `None` if a group is empty or a ratio is not finite.
pub fn ratio_of_medians(a: &[f64], b: &[f64], seed: u64) -> Option<Interval> {
    let mut random = Random::new(seed);
    let mut buffer = vec![];
    percentile_interval(|| {
        resample(a, &mut random, &mut buffer);
        let median_a = median_of_sorted(&buffer)?;
        resample(b, &mut random, &mut buffer);
        Some(median_of_sorted(&buffer)? / median_a)
    })
}

/// Fills `into` with as many values as `values` has, drawn with replacement and sorted.
fn resample(values: &[f64], random: &mut Random, into: &mut Vec<f64>) {
    into.clear();
    into.extend((0..values.len()).map(|_| values[random.below(values.len())]));
    into.sort_unstable_by(f64::total_cmp);
}

fn percentile_interval(mut draw: impl FnMut() -> Option<f64>) -> Option<Interval> {
    let mut figures = Vec::with_capacity(RESAMPLES);
    for _ in 0..RESAMPLES {
        figures.push(draw().filter(|figure| figure.is_finite())?);
    }
    figures.sort_unstable_by(f64::total_cmp);
    let beyond = ((1.0 - LEVEL) / 2.0 * RESAMPLES as f64).floor() as usize;
    Some(Interval { low: figures[beyond], high: figures[RESAMPLES - 1 - beyond], level: LEVEL })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::describe::mean;
    use proptest::prelude::*;

    #[test]
    fn no_values_have_no_interval() {
        assert_eq!(interval(&[], 1, median_of_sorted), None);
        assert_eq!(ratio_of_medians(&[1.0], &[], 1), None);
        assert_eq!(ratio_of_medians(&[0.0], &[1.0], 1), None);
    }

    #[test]
    fn interval_of_a_mean_has_about_its_nominal_coverage() {
        let mut random = Random::new(3);
        let covered = (0..200)
            .filter(|seed| {
                let values: Vec<f64> = (0..20).map(|_| random.unit()).collect();
                interval(&values, *seed, mean).unwrap().contains(0.5)
            })
            .count();
        // The percentile interval of 20 values is a little narrow: 92 to 95 %.
        assert!((175..=197).contains(&covered), "{covered} of 200");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn interval_lies_inside_the_data(
            values in prop::collection::vec(1.0..9.0f64, 1..12),
            seed: u64,
        ) {
            let interval = interval(&values, seed, median_of_sorted).unwrap();
            prop_assert!(interval.low <= interval.high);
            prop_assert!(values.iter().any(|v| *v <= interval.low));
            prop_assert!(values.iter().any(|v| *v >= interval.high));
        }
    }
}
