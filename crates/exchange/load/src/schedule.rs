//! The intended send times: an absolute schedule drawn from a seed, independent of the network.

use std::fmt;
use std::str::FromStr;

use nm_stats::random::Random;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::random::exponential;

/// The arrival process of requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
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

/// How requests trigger further ones, for [`Arrivals::Bursts`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Bursts {
    /// Mean number of requests that one request triggers directly, below 1.
    pub triggered: f64,
    /// Time constant of the exponential kernel, s.
    pub decay_s: f64,
}

impl Default for Bursts {
    fn default() -> Bursts {
        Bursts { triggered: 0.7, decay_s: 0.001 }
    }
}

/// A rate that changes linearly, from now on.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rate {
    /// Requests a second now.
    pub now_per_s: f64,
    /// Its change in a second, requests a second.
    pub slope_per_s2: f64,
}

impl Rate {
    /// A rate that does not change.
    pub fn constant(now_per_s: f64) -> Rate {
        Rate { now_per_s, slope_per_s2: 0.0 }
    }

    fn after(self, gap_s: f64) -> f64 {
        self.now_per_s + self.slope_per_s2 * gap_s
    }

    /// Expected number of requests in a time from now on.
    fn requests_in(self, gap_s: f64) -> f64 {
        (self.now_per_s + self.slope_per_s2 * gap_s / 2.0) * gap_s
    }

    /// Time in which this number of requests is expected, s; infinite if the rate falls to zero
    /// before.
    fn time_of(self, requests: f64) -> f64 {
        let squared = self.now_per_s.powi(2) + 2.0 * self.slope_per_s2 * requests;
        if squared < 0.0 {
            return f64::INFINITY;
        }
        // This form has no difference of nearly equal numbers.
        2.0 * requests / (self.now_per_s + squared.sqrt())
    }
}

/// An arrival process: the gaps between requests, at a rate that may change.
#[derive(Debug, Clone)]
pub struct ArrivalProcess {
    arrivals: Arrivals,
    bursts: Bursts,
    random: Random,
    /// How many requests are to be expected until the next one, except in bursts.
    due: Option<f64>,
    /// Whether there was no request yet.
    is_first: bool,
    /// Intensity above the base rate, 1/s.
    excitement_per_s: f64,
}

impl ArrivalProcess {
    /// A process from the state of a generator of random numbers.
    pub fn new(arrivals: Arrivals, bursts: Bursts, random: Random) -> ArrivalProcess {
        let (due, is_first, excitement_per_s) = (None, true, 0.0);
        ArrivalProcess { arrivals, bursts, random, due, is_first, excitement_per_s }
    }

    /// Continues as another process, on the same stream of random numbers.
    pub fn switch_to(&mut self, arrivals: Arrivals, bursts: Bursts) {
        if (arrivals, bursts) != (self.arrivals, self.bursts) {
            let is_first = self.is_first;
            *self = ArrivalProcess::new(arrivals, bursts, self.random.clone());
            self.is_first = is_first;
        }
    }

    /// Returns the random generator, to continue with it.
    pub fn into_random(self) -> Random {
        self.random
    }

    /// The time from now until the next request, s; none if it is not within `left_s`, to which the
    /// process has then advanced.
    pub fn next_gap(&mut self, rate: Rate, left_s: f64) -> Option<f64> {
        if self.arrivals == Arrivals::Bursts {
            return self.next_excited(rate, left_s);
        }
        let due = self.due.take().unwrap_or_else(|| match self.arrivals {
            Arrivals::Even => f64::from(u8::from(!self.is_first)),
            _ => exponential(&mut self.random),
        });
        let gap_s = rate.time_of(due);
        if gap_s >= left_s {
            self.due = Some((due - rate.requests_in(left_s)).max(0.0));
            return None;
        }
        self.is_first = false;
        Some(gap_s)
    }

    fn next_excited(&mut self, rate: Rate, left_s: f64) -> Option<f64> {
        let Bursts { triggered, decay_s } = self.bursts;
        let base_at = |gap_s: f64| rate.after(gap_s) * (1.0 - triggered);
        let base_at_end_per_s = if left_s.is_finite() { base_at(left_s) } else { 0.0 };
        let mut at_s = 0.0;
        // Ogata's thinning: until the next request the excitement only falls, and the base rate is
        // highest at one of its ends, so their sum is an upper bound.
        loop {
            let bound_per_s = base_at(at_s).max(base_at_end_per_s) + self.excitement_per_s;
            let gap_s = exponential(&mut self.random) / bound_per_s;
            if at_s + gap_s >= left_s {
                self.excitement_per_s *= (-(left_s - at_s) / decay_s).exp();
                return None;
            }
            at_s += gap_s;
            self.excitement_per_s *= (-gap_s / decay_s).exp();
            let accepted = (base_at(at_s) + self.excitement_per_s) / bound_per_s;
            if self.random.unit() < accepted {
                self.excitement_per_s += triggered / decay_s;
                self.is_first = false;
                return Some(at_s);
            }
        }
    }
}

/// An endless schedule at one rate: times in ns since its start.
#[derive(Debug, Clone)]
pub struct Schedule {
    process: ArrivalProcess,
    rate: Rate,
    now_s: f64,
    count: u64,
}

impl Schedule {
    /// A schedule with a mean rate, from the state of a generator of random numbers.
    pub fn new(arrivals: Arrivals, rate_per_s: f64, random: Random) -> Schedule {
        let process = ArrivalProcess::new(arrivals, Bursts::default(), random);
        Schedule { process, rate: Rate::constant(rate_per_s), now_s: 0.0, count: 0 }
    }

    /// Returns the random generator, to continue with it.
    pub fn into_random(self) -> Random {
        self.process.into_random()
    }
}

impl Iterator for Schedule {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        self.now_s += self.process.next_gap(self.rate, f64::INFINITY)?;
        if self.process.arrivals == Arrivals::Even {
            // A sum of gaps would have one request more or fewer after some thousands.
            self.now_s = self.count as f64 / self.rate.now_per_s;
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
    fn equal_intervals_have_the_exact_number_of_requests() {
        for (rate_per_s, seconds) in [(400.0, 4.0), (1_000.0, 2.0), (20_000.0, 7.0), (30.0, 100.0)]
        {
            let times = Schedule::new(Arrivals::Even, rate_per_s, Random::new(1));
            let end_ns = (seconds * 1e9) as u64;
            let found = times.take_while(|at_ns| *at_ns < end_ns).count();
            assert_eq!(found as f64, rate_per_s * seconds, "{rate_per_s}/s in {seconds} s");
        }
    }

    /// Times of a rate that rises from 1000 to 9000 requests a second in ten seconds, s.
    fn rising(arrivals: Arrivals) -> Vec<f64> {
        let mut process = ArrivalProcess::new(arrivals, Bursts::default(), Random::new(3));
        let (slope_per_s2, mut now_s, mut times) = (800.0, 0.0, vec![]);
        let rate_at = |now_s: f64| Rate { now_per_s: 1000.0 + slope_per_s2 * now_s, slope_per_s2 };
        while let Some(gap_s) = process.next_gap(rate_at(now_s), 10.0 - now_s) {
            now_s += gap_s;
            times.push(now_s);
        }
        times
    }

    #[test]
    fn a_rising_rate_has_the_requests_of_its_integral() {
        for (arrivals, dispersion) in
            [(Arrivals::Even, 0.01), (Arrivals::Poisson, 1.0), (Arrivals::Bursts, 11.2)]
        {
            let times = rising(arrivals);
            assert!(times.is_sorted() && times.iter().all(|at_s| (0.0..10.0).contains(at_s)));
            for (from_s, to_s) in [(0.0, 10.0), (0.0, 2.0), (4.0, 6.0), (8.0, 10.0)] {
                let expected = (to_s - from_s) * (1000.0 + 400.0 * (from_s + to_s));
                let found = times.iter().filter(|at_s| (from_s..to_s).contains(*at_s)).count();
                // Four standard deviations of the count, and one request at the ends.
                let most_off = 4.0 * (dispersion * expected).sqrt() + 1.0;
                let off = (found as f64 - expected).abs();
                assert!(off <= most_off, "{arrivals} {from_s} to {to_s} s: {found}, {expected}");
            }
        }
    }

    #[test]
    fn a_gap_that_spans_a_change_of_the_rate_continues_at_the_new_one() {
        let mut process = ArrivalProcess::new(Arrivals::Even, Bursts::default(), Random::new(1));
        assert_eq!(process.next_gap(Rate::constant(10.0), 1.0), Some(0.0));
        // Half of the gap at 10 a second, the other half at 100 a second.
        assert_eq!(process.next_gap(Rate::constant(10.0), 0.05), None);
        let gap_s = process.next_gap(Rate::constant(100.0), 1.0).unwrap();
        assert!((gap_s - 0.005).abs() < 1e-12, "{gap_s}");
        // A rate that falls to zero too early has no further request.
        let falling = Rate { now_per_s: 1.0, slope_per_s2: -1.0 };
        assert_eq!(process.next_gap(falling, 1.0), None);
        process.switch_to(Arrivals::Poisson, Bursts::default());
        assert!(process.next_gap(Rate::constant(1e3), 1.0).unwrap() > 0.0);
    }

    #[test]
    fn bursts_follow_their_parameters() {
        let spread = |triggered| {
            let bursts = Bursts { triggered, decay_s: 0.001 };
            let mut process = ArrivalProcess::new(Arrivals::Bursts, bursts, Random::new(8));
            let mut now_s = 0.0;
            let next = || {
                now_s += process.next_gap(Rate::constant(20_000.0), f64::INFINITY)?;
                Some((now_s * 1e9) as u64)
            };
            let times: Vec<u64> = std::iter::from_fn(next).take(200_000).collect();
            assert!((times[199_999] as f64 / 1e10 - 1.0).abs() < 0.05);
            dispersion(&times)
        };
        // In the limit of long windows it is 1 / (1 - triggered)².
        assert!((3.0..5.0).contains(&spread(0.5)), "{}", spread(0.5));
        assert!((0.8..1.25).contains(&spread(0.0)), "{}", spread(0.0));
    }

    #[test]
    fn equal_seeds_give_equal_schedules() {
        assert_eq!(times(Arrivals::Bursts, 1), times(Arrivals::Bursts, 1));
        assert_ne!(times(Arrivals::Poisson, 1), times(Arrivals::Poisson, 2));
    }
}
