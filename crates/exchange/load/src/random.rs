//! Distributions of the load, based on the seeded generator of nm-stats.

use nm_stats::random::Random;
use thiserror::Error;

/// An interarrival time of a Poisson process, in units of its mean.
pub fn exponential(random: &mut Random) -> f64 {
    // One minus a number below one is never zero.
    -(1.0 - random.unit()).ln()
}

/// A distribution over the numbers from 0 on, each with its weight.
#[derive(Debug, Clone, PartialEq)]
pub struct Weighted {
    /// Cumulative probability by number.
    cumulated: Vec<f64>,
}

impl Weighted {
    /// Numbers with these weights, of which at least one is above zero.
    pub fn new(weights: impl IntoIterator<Item = f64>) -> Weighted {
        let mut sum = 0.0;
        let mut cumulated: Vec<f64> = weights
            .into_iter()
            .map(|weight| {
                sum += weight;
                sum
            })
            .collect();
        for value in &mut cumulated {
            *value /= sum;
        }
        Weighted { cumulated }
    }

    /// How many numbers there are.
    pub fn count(&self) -> u32 {
        self.cumulated.len() as u32
    }

    /// Draws a number.
    pub fn draw(&self, random: &mut Random) -> u32 {
        let unit = random.unit();
        let at = self.cumulated.partition_point(|share| *share <= unit);
        at.min(self.cumulated.len() - 1) as u32
    }
}

/// The weights of a Zipf distribution over `count` numbers, at least one; with an exponent of zero
/// all are equally likely.
pub fn zipf_weights(count: u32, exponent: f64) -> impl Iterator<Item = f64> {
    (1..=count.max(1)).map(move |rank| f64::from(rank).powf(-exponent))
}

/// Why there is no distribution of these sizes.
#[derive(Debug, Clone, Copy, PartialEq, Error)]
pub enum SizesError {
    /// The mean does not lie between the ends.
    #[error("sizes of {min} to {max} bytes have no mean of {mean}: it must lie between them")]
    Outside {
        /// Smallest size, bytes.
        min: u32,
        /// Largest size, bytes.
        max: u32,
        /// Mean size, bytes.
        mean: u32,
    },
    /// The mean cannot be reached with a bounded Pareto distribution.
    #[error("a mean size of {mean} bytes is too near to one of its ends")]
    NearEnd {
        /// Mean size, bytes.
        mean: f64,
    },
}

/// Message sizes: a bounded Pareto distribution with a given mean.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sizes {
    min: f64,
    max: f64,
    /// Tail index; zero if all sizes are equal.
    tail: f64,
}

impl Sizes {
    /// Sizes from `min` to `max`, bytes, of this mean.
    ///
    /// # Errors
    /// If the mean does not lie between the ends.
    pub fn new(min: u32, max: u32, mean: u32) -> Result<Sizes, SizesError> {
        if min == 0 || !(min..=max).contains(&mean) || (min < max && (mean == min || mean == max)) {
            return Err(SizesError::Outside { min, max, mean });
        }
        let (min, max, mean) = (f64::from(min), f64::from(max), f64::from(mean));
        if min == max {
            return Ok(Sizes { min, max, tail: 0.0 });
        }
        let tail = tail_index(min, max, mean);
        if (bounded_pareto_mean(min, max, tail) / mean - 1.0).abs() > 1e-3 {
            return Err(SizesError::NearEnd { mean });
        }
        Ok(Sizes { min, max, tail })
    }

    /// Sizes of the published study: 200 B to 80 kB, 800 B on average.
    pub fn study() -> Sizes {
        let (min, max) = (200.0, 80_000.0);
        Sizes { min, max, tail: tail_index(min, max, 800.0) }
    }

    /// Draws a size, bytes.
    pub fn draw(&self, random: &mut Random) -> u32 {
        let unit = random.unit();
        let (a, ratio) = (self.tail, self.min / self.max);
        let size = if self.min == self.max {
            self.min
        } else if a.abs() < 1e-9 {
            self.min * ratio.powf(-unit)
        } else {
            self.min * (1.0 - unit * (1.0 - ratio.powf(a))).powf(-1.0 / a)
        };
        size.clamp(self.min, self.max) as u32
    }
}

/// Tail index of the bounded Pareto distribution with this mean.
fn tail_index(min: f64, max: f64, mean: f64) -> f64 {
    // The mean falls as the tail index grows: bisection.
    let (mut low, mut high) = (-50.0, 50.0);
    for _ in 0..200 {
        let tail = f64::midpoint(low, high);
        if bounded_pareto_mean(min, max, tail) > mean { low = tail } else { high = tail }
    }
    f64::midpoint(low, high)
}

/// Mean of a bounded Pareto distribution with this tail index.
fn bounded_pareto_mean(min: f64, max: f64, tail: f64) -> f64 {
    let ratio = max / min;
    // Both expressions have a removable singularity; near it a linear one is accurate enough.
    let integral = |power: f64| {
        if power.abs() < 1e-9 { ratio.ln() } else { (ratio.powf(power) - 1.0) / power }
    };
    min * integral(1.0 - tail) / integral(-tail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_the_mean_and_the_ends_that_were_asked_for() {
        for (min, max, mean) in [(200, 80_000, 800), (200, 1000, 900), (100, 100, 100)] {
            let sizes = Sizes::new(min, max, mean).unwrap();
            let mut random = Random::new(3);
            let drawn: Vec<u32> = (0..400_000).map(|_| sizes.draw(&mut random)).collect();
            assert!(drawn.iter().all(|size| (min..=max).contains(size)));
            let found = drawn.iter().map(|size| f64::from(*size)).sum::<f64>() / 400_000.0;
            assert!((found / f64::from(mean) - 1.0).abs() < 0.03, "{found} for {mean}");
        }
        assert_eq!(Sizes::new(200, 80_000, 800), Ok(Sizes::study()));
        for (min, max, mean) in [(0, 9, 5), (10, 20, 9), (10, 20, 20), (20, 10, 15)] {
            assert!(Sizes::new(min, max, mean).unwrap_err().to_string().contains("between"));
        }
    }

    #[test]
    fn ranks_fall_by_their_power() {
        let (zipf, mut random) = (Weighted::new(zipf_weights(4, 1.0)), Random::new(5));
        let mut counts = [0f64; 4];
        for _ in 0..100_000 {
            counts[zipf.draw(&mut random) as usize] += 1.0 / 100_000.0;
        }
        for (rank, share) in counts.iter().enumerate() {
            let expected = 12.0 / 25.0 / (rank + 1) as f64;
            assert!((share - expected).abs() < 0.01, "{counts:?}");
        }
        assert_eq!(Weighted::new(zipf_weights(0, 1.0)).draw(&mut random), 0);
    }

    #[test]
    fn gaps_have_a_mean_of_one() {
        let mut random = Random::new(6);
        let sum: f64 = (0..100_000).map(|_| exponential(&mut random)).sum();
        assert!((sum / 100_000.0 - 1.0).abs() < 0.02, "{sum}");
    }
}
