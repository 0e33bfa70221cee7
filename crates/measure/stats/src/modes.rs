//! Modes: whether the rounds form separate groups.
//!
//! Whole runs of a ping-pong are in one of two or more modes, tens of percent apart. The mode
//! depends on which core or cache the host gave them. Rounds of one mode agree within a few
//! percent. A test that ignores the modes cannot show a small difference; [`mod@crate::compare`]
//! therefore tests within the modes.
//!
//! Grouping uses the pooled values only, never the side that a value came from, so that tests that
//! permute labels within the groups stay exact.

use crate::describe::sorted;

/// A gap between neighbours must exceed this ratio to separate two modes.
pub const RATIO_MIN: f64 = 1.10;

/// It must also exceed this many times the median gap between neighbours.
const GAPS_MIN: f64 = 10.0;

/// Rounds that form a mode; fewer belong to the nearest mode.
const ROUNDS_MIN: usize = 2;

/// Boundaries between modes, ascending; empty if there is one mode. Values must be positive.
pub fn boundaries(values: &[f64]) -> Vec<f64> {
    debug_assert!(values.iter().all(|value| *value > 0.0), "values are positive");
    let mut logs: Vec<f64> = values.iter().map(|v| v.ln()).collect();
    logs.sort_unstable_by(f64::total_cmp);
    let gaps: Vec<f64> = logs.windows(2).map(|w| w[1] - w[0]).collect();
    let limit = RATIO_MIN.ln().max(GAPS_MIN * lower_median(&gaps));
    // Runs of neighbours without a wide gap, as half-open ranges of `logs`.
    let mut groups = vec![];
    let mut start = 0;
    for (i, gap) in gaps.iter().enumerate() {
        if *gap > limit {
            groups.push(start..i + 1);
            start = i + 1;
        }
    }
    groups.push(start..logs.len());
    groups.retain(|group| group.len() >= ROUNDS_MIN);
    // A boundary in the middle of each gap assigns every single round to the nearer mode.
    groups.windows(2).map(|w| (f64::midpoint(logs[w[0].end - 1], logs[w[1].start])).exp()).collect()
}

/// The lower of the two middle values, so that with few gaps the wide ones do not raise the limit.
fn lower_median(gaps: &[f64]) -> f64 {
    sorted(gaps).get(gaps.len().saturating_sub(1) / 2).copied().unwrap_or(0.0)
}

/// The index of the mode, counted from 0, that `value` belongs to.
pub fn mode_of(value: f64, boundaries: &[f64]) -> usize {
    boundaries.partition_point(|boundary| *boundary <= value)
}

/// Values sorted into modes, in the order given.
pub fn split(values: &[f64], boundaries: &[f64]) -> Vec<Vec<f64>> {
    let mut modes = vec![vec![]; boundaries.len() + 1];
    for &value in values {
        modes[mode_of(value, boundaries)].push(value);
    }
    modes
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn two_modes_of_a_spinning_pingpong_are_separated() {
        let values = [3910.0, 5890.0, 3950.0, 4050.0, 6080.0, 5900.0, 3990.0];
        let boundaries = boundaries(&values);
        assert_eq!(boundaries.len(), 1);
        let sizes: Vec<usize> = split(&values, &boundaries).iter().map(Vec::len).collect();
        assert_eq!(sizes, [4, 3]);
    }

    #[test]
    fn high_variance_is_one_mode_and_a_single_round_is_none() {
        assert_eq!(boundaries(&[3910.0, 3950.0, 4050.0, 4200.0]), Vec::<f64>::new());
        assert_eq!(boundaries(&[3910.0, 3950.0, 4050.0, 9000.0]), Vec::<f64>::new());
        assert_eq!(boundaries(&[]), Vec::<f64>::new());
        let with_single = boundaries(&[100.0, 101.0, 130.0, 200.0, 201.0]);
        assert_eq!(with_single.len(), 1);
        assert_eq!(mode_of(130.0, &with_single), 0);
    }

    proptest! {
        #[test]
        fn order_and_unit_do_not_change_the_modes(
            mut values in prop::collection::vec(1.0..1e4f64, 0..30),
        ) {
            let split_sizes = |values: &[f64]| -> Vec<usize> {
                split(values, &boundaries(values)).iter().map(Vec::len).collect()
            };
            let sizes = split_sizes(&values);
            prop_assert!(sizes.len() == 1 || sizes.iter().all(|size| *size >= ROUNDS_MIN));
            values.reverse();
            prop_assert_eq!(&split_sizes(&values), &sizes);
            values.iter_mut().for_each(|v| *v *= 1024.0);
            prop_assert_eq!(&split_sizes(&values), &sizes);
        }
    }
}
