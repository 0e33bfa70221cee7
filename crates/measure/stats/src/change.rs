//! Changes of the level of a series, found while the series goes on.
//!
//! Values come one by one, as logarithms. The last 4 to 40 values are compared with those before
//! them since the last change. Values far out are clipped, so a single outlier
//! decides nothing. The scale is that of the series itself, with both modes of a series with two.
//! A window must stand out by more than [`threshold`] deviations. It must also stand out by more
//! than any window of the same length before: noise that stays for a while has done so before.

use crate::describe::median;
use crate::random::Random;

/// Values of a level, before a change of it can be found.
pub const LEARNED_MIN: usize = 30;

/// Most values of a level that are kept.
const LEVEL_MAX: usize = 500;

/// Fewest values of a new level.
const WINDOW_MIN: usize = 4;

/// Most values of a new level that are compared.
const WINDOW_MAX: usize = 40;

/// Values are clipped at this many deviations.
const CLIP: f64 = 3.0;

/// Smallest deviation: 1.5 %. Figures that repeat exactly would make every change a large one, and
/// values that are clipped at less than [`SHIFT_MIN`] would show none.
const SCALE_MIN: f64 = 0.015;

/// Smallest change that is one: 3 %.
const SHIFT_MIN: f64 = 0.03;

const _: () = assert!(CLIP * SCALE_MIN > 1.4 * SHIFT_MIN);

/// By how much more than any window before a window must stand out.
const HISTORY_FACTOR: f64 = 1.1;

/// Threshold for [`VALUES_OF_THRESHOLD`] values, from simulated series: the calibration test.
const THRESHOLD: f64 = 4.5;

/// Trials of 30 days, one each 10 minutes.
const VALUES_OF_THRESHOLD: f64 = 4320.0;

/// Values after which a change should be found.
const WITHIN: usize = 5;

/// Draws from a series' own values, by which a change is stated.
const DRAWS: usize = 400;

/// In how many of the draws the stated change is found: 97 of 100 of the draws, because they know
/// the level, are 95 of 100 of new values.
const DRAWS_FOUND: usize = DRAWS * 97 / 100;

/// How far a window must stand out, in deviations, so that `n_values` of all series together give
/// less than one false alarm.
pub fn threshold(n_values: f64) -> f64 {
    let times = (n_values / VALUES_OF_THRESHOLD).max(1.0);
    (THRESHOLD * THRESHOLD + 2.0 * times.ln()).sqrt()
}

/// A change of the level.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Change {
    /// Values since the change, the one that showed it included.
    pub n_values: usize,
    /// Level before, a logarithm.
    pub before: f64,
    /// Level of the values since, a logarithm.
    pub after: f64,
}

/// A series that goes on.
#[derive(Debug, Clone)]
pub struct Series {
    threshold: f64,
    /// Values since the last change.
    level: Vec<f64>,
}

/// Centre and deviation of values, robust against a few outliers.
#[derive(Debug, Clone, Copy)]
struct Scale {
    low: f64,
    high: f64,
    centre: f64,
    deviation: f64,
}

impl Scale {
    fn of(values: &[f64]) -> Option<Scale> {
        let mut sorted = values.to_vec();
        sorted.sort_unstable_by(f64::total_cmp);
        let at = |share: f64| sorted[((sorted.len() - 1) as f64 * share).round() as usize];
        let middle = median(values)?;
        // Between the outer tenths are both modes of a series of two, and no rare outlier.
        let width = ((at(0.9) - at(0.1)) / 2.563).max(SCALE_MIN);
        let (low, high) = (middle - CLIP * width, middle + CLIP * width);
        let n = values.len() as f64;
        let clipped = || values.iter().map(|value| value.clamp(low, high));
        let centre = clipped().sum::<f64>() / n;
        let squares: f64 = clipped().map(|value| (value - centre).powi(2)).sum();
        let deviation = (squares / (n - 1.0).max(1.0)).sqrt().max(SCALE_MIN);
        Some(Scale { low, high, centre, deviation })
    }

    fn clipped(&self, value: f64) -> f64 {
        value.clamp(self.low, self.high) - self.centre
    }
}

impl Series {
    /// A series without values, with a threshold of [`threshold`].
    pub fn new(threshold: f64) -> Series {
        Series { threshold, level: vec![] }
    }

    /// Values since the last change that are known.
    pub fn n_known(&self) -> usize {
        self.level.len()
    }

    /// Median of the level, a logarithm.
    pub fn level(&self) -> Option<f64> {
        median(&self.level)
    }

    /// Takes the next value, a logarithm; a change, if it shows one.
    pub fn push(&mut self, value: f64) -> Option<Change> {
        self.level.push(value);
        let found = self.found();
        if let Some(change) = found {
            self.level.drain(..self.level.len() - change.n_values);
        } else if self.level.len() > LEVEL_MAX + WINDOW_MAX {
            self.level.drain(..WINDOW_MAX);
        }
        found
    }

    fn found(&self) -> Option<Change> {
        let n_known = self.level.len().checked_sub(LEARNED_MIN)?;
        let mut found: Option<(f64, Change)> = None;
        // Before it, the scale would be one of the values that are tested.
        let (before, _) = self.level.split_at(self.level.len() - n_known.min(WINDOW_MAX));
        let scale = Scale::of(before)?;
        let sums: Vec<f64> = std::iter::once(0.0)
            .chain(self.level.iter().scan(0.0, |sum, value| {
                *sum += scale.clipped(*value);
                Some(*sum)
            }))
            .collect();
        let total = self.level.len();
        for n in WINDOW_MIN..=n_known.min(WINDOW_MAX) {
            let start = total - n;
            let rest = start as f64;
            let centre = sums[start] / rest;
            let shift = (sums[total] - sums[start]) / n as f64 - centre;
            let deviation = scale.deviation * (1.0 / n as f64 + 1.0 / rest).sqrt();
            let score = shift.abs() / deviation;
            let is_far = score > self.threshold && shift.abs() >= SHIFT_MIN.ln_1p();
            if !is_far || found.is_some_and(|(best, _)| score <= best) {
                continue;
            }
            let spread = (0..=start.saturating_sub(n))
                .map(|at| ((sums[at + n] - sums[at]) / n as f64 - centre).abs())
                .fold(0.0, f64::max);
            if shift.abs() > HISTORY_FACTOR * spread {
                let (before, after) =
                    (median(&self.level[..start])?, median(&self.level[start..])?);
                found = Some((score, Change { n_values: n, before, after }));
            }
        }
        found.map(|(_, change)| change)
    }

    /// The smallest slowdown that this series shows within five values in 95 of 100 draws from its
    /// own values, a ratio; absent while the level is not known.
    pub fn detectable(&self, seed: u64) -> Option<f64> {
        if self.level.len() < LEARNED_MIN {
            return None;
        }
        let is_found = |ratio: f64| {
            let mut random = Random::new(seed);
            let n_found = (0..DRAWS).filter(|_| {
                let mut series = self.clone();
                (0..WITHIN).any(|_| {
                    let value = self.level[random.below(self.level.len())] + ratio.ln();
                    series.push(value).is_some_and(|change| change.after > change.before)
                })
            });
            n_found.count() >= DRAWS_FOUND
        };
        // Steps of one per cent up to 60 %, then of a tenth, up to ten times.
        let fine = (103..160).map(|percent| f64::from(percent) / 100.0);
        let ratios: Vec<f64> =
            fine.chain((16..=100).map(|tenth| f64::from(tenth) / 10.0)).collect();
        let at = ratios.partition_point(|ratio| !is_found(*ratio));
        ratios.get(at).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_found_once_and_becomes_the_level() {
        let mut series = Series::new(threshold(1.0));
        let value = |at: usize| 100.0_f64.ln() + 0.01 * ((at * 7) % 5) as f64;
        assert!((0..60).all(|at| series.push(value(at)).is_none()));
        let found: Vec<Change> = (60..200).filter_map(|at| series.push(value(at) + 0.5)).collect();
        let [change] = found[..] else { panic!("{found:?}") };
        assert_eq!(change.n_values, WINDOW_MIN);
        assert!((change.after - change.before - 0.5).abs() < 0.02, "{change:?}");
        assert!((series.level().unwrap() - value(1) - 0.5).abs() < 0.03);
    }

    #[test]
    fn a_series_that_repeats_exactly_shows_a_step() {
        let mut series = Series::new(threshold(1.0));
        assert!((0..60).all(|_| series.push(7.0).is_none()));
        let found: Vec<Change> = (0..5).filter_map(|_| series.push(7.1)).collect();
        assert_eq!(found.len(), 1, "{found:?}");
    }

    #[test]
    fn one_outlier_of_any_size_is_no_change() {
        let mut series = Series::new(threshold(1.0));
        for at in 0..500_usize {
            let outlier = if at % 40 == 39 { 50.0 } else { 0.0 };
            assert_eq!(series.push(((at * 13) % 11) as f64 * 0.01 + outlier), None, "{at}");
        }
    }

    #[test]
    fn more_values_need_a_higher_threshold() {
        assert!(threshold(4320.0) < threshold(43_200.0));
        assert!((threshold(0.0) - THRESHOLD).abs() < 1e-12);
    }
}
