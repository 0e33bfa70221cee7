//! The intended send times: an absolute schedule drawn from a seed, independent of the network.

use std::fmt;
use std::str::FromStr;

use nm_stats::random::Random;
use thiserror::Error;

use super::random::exponential;

/// The arrival process of requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Arrivals {
    /// Equal intervals.
    Even,
    /// A Poisson process.
    #[default]
    Poisson,
    /// A self-exciting (Hawkes) process with an exponential kernel.
    Bursts,
}

impl Arrivals {
    /// All of them.
    pub const ALL: [Arrivals; 3] = [Arrivals::Even, Arrivals::Poisson, Arrivals::Bursts];

    /// Its name.
    pub fn name(self) -> &'static str {
        ["even", "poisson", "bursts"][self as usize]
    }
}

impl fmt::Display for Arrivals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A text that is not the name of an arrival process.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("`{0}` is no kind of arrivals: even, poisson or bursts")]
pub struct UnknownArrivals(String);

impl FromStr for Arrivals {
    type Err = UnknownArrivals;

    fn from_str(text: &str) -> Result<Arrivals, UnknownArrivals> {
        Arrivals::ALL
            .into_iter()
            .find(|known| known.name() == text)
            .ok_or_else(|| UnknownArrivals(text.to_string()))
    }
}

/// Mean number of requests that one request triggers directly.
const BRANCHING: f64 = 0.7;

/// Time constant of the exponential kernel, s.
const EXCITEMENT_S: f64 = 0.001;

/// An endless schedule: times in ns since its start.
#[derive(Debug, Clone)]
pub struct Schedule {
    arrivals: Arrivals,
    rate_per_s: f64,
    random: Random,
    now_s: f64,
    /// Intensity above the base rate right after the last request, 1/s.
    excitement_per_s: f64,
    count: u64,
}

impl Schedule {
    /// A schedule with a mean rate, from the state of a generator of random numbers.
    pub fn new(arrivals: Arrivals, rate_per_s: f64, random: Random) -> Schedule {
        Schedule { arrivals, rate_per_s, random, now_s: 0.0, excitement_per_s: 0.0, count: 0 }
    }

    /// Returns the random generator, to continue with it.
    pub fn into_random(self) -> Random {
        self.random
    }

    fn advance_excited(&mut self) {
        let base_per_s = self.rate_per_s * (1.0 - BRANCHING);
        // Ogata's thinning: the intensity only falls until the next request, so the present value
        // is an upper bound.
        loop {
            let bound_per_s = base_per_s + self.excitement_per_s;
            let gap_s = exponential(&mut self.random) / bound_per_s;
            self.now_s += gap_s;
            self.excitement_per_s *= (-gap_s / EXCITEMENT_S).exp();
            let accepted = (base_per_s + self.excitement_per_s) / bound_per_s;
            if self.random.unit() < accepted {
                self.excitement_per_s += BRANCHING / EXCITEMENT_S;
                return;
            }
        }
    }
}

impl Iterator for Schedule {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        match self.arrivals {
            Arrivals::Even => self.now_s = self.count as f64 / self.rate_per_s,
            Arrivals::Poisson => self.now_s += exponential(&mut self.random) / self.rate_per_s,
            Arrivals::Bursts => self.advance_excited(),
        }
        self.count += 1;
        Some((self.now_s * 1e9) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(arrivals: Arrivals, seed: u64) -> Vec<u64> {
        Schedule::new(arrivals, 20_000.0, Random::new(seed)).take(200_000).collect()
    }

    /// Variance of the counts in windows of 10 ms over their mean: 1 for a Poisson process.
    fn dispersion(times: &[u64]) -> f64 {
        let mut counts = vec![0f64; (times[times.len() - 1] / 10_000_000 + 1) as usize];
        times.iter().for_each(|at| counts[(at / 10_000_000) as usize] += 1.0);
        counts.pop();
        let mean = counts.iter().sum::<f64>() / counts.len() as f64;
        counts.iter().map(|count| (count - mean).powi(2)).sum::<f64>() / counts.len() as f64 / mean
    }

    #[test]
    fn every_process_has_its_rate_and_dispersion() {
        for (arrivals, spread) in [
            (Arrivals::Even, 0.0..0.01),
            (Arrivals::Poisson, 0.8..1.25),
            (Arrivals::Bursts, 5.0..14.0),
        ] {
            let times = times(arrivals, 11);
            assert!(times.windows(2).all(|pair| pair[0] <= pair[1]));
            let seconds = times[times.len() - 1] as f64 / 1e9;
            assert!((seconds / 10.0 - 1.0).abs() < 0.03, "{arrivals}: {seconds} s");
            let found = dispersion(&times);
            assert!(spread.contains(&found), "{arrivals}: {found}");
            assert_eq!(arrivals.to_string().parse(), Ok(arrivals));
        }
        assert!("often".parse::<Arrivals>().unwrap_err().to_string().contains("`often`"));
    }

    #[test]
    fn equal_seeds_give_equal_schedules() {
        assert_eq!(times(Arrivals::Bursts, 1), times(Arrivals::Bursts, 1));
        assert_ne!(times(Arrivals::Poisson, 1), times(Arrivals::Poisson, 2));
    }
}
