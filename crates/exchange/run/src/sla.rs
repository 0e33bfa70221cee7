//! The service level agreement (SLA) of the exchange. The mean of the slowest 10 % and the 99th
//! percentile of round trips are both below a limit, and no request is lost.

use nm_model::Metric;
use nm_model::exchange::SLA_MS;
use nm_model::result::LatencyRound;
use nm_stats::summary::Sample;
use thiserror::Error;

/// A limit for round trips.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sla {
    /// Limit, ns.
    pub limit_ns: u64,
}

/// Why a round is not within the limit.
#[derive(Debug, Clone, Copy, PartialEq, Error)]
pub enum SlaViolation {
    /// Requests without a reply.
    #[error("{lost} of {sent} requests were not answered")]
    Lost {
        /// Requests without a reply.
        lost: u64,
        /// All requests.
        sent: u64,
    },
    /// A figure reaches the limit.
    #[error("{name} is {found_ms:.3} ms, the limit {limit_ms} ms")]
    AboveLimit {
        /// Name of the figure.
        name: &'static str,
        /// Its value, ms.
        found_ms: f64,
        /// The limit, ms.
        limit_ms: f64,
    },
    /// A figure is missing.
    #[error("too few samples for {0}")]
    TooFewSamples(&'static str),
}

impl Default for Sla {
    fn default() -> Sla {
        Sla::of_ms(SLA_MS)
    }
}

impl Sla {
    /// A limit in ms.
    pub fn of_ms(limit_ms: f64) -> Sla {
        Sla { limit_ns: (limit_ms * 1e6) as u64 }
    }

    /// Checks that a round is within the limit.
    ///
    /// # Errors
    /// What was too slow, lost or missing.
    pub fn judge(&self, round: &LatencyRound) -> Result<(), SlaViolation> {
        let sent = round.count.unwrap_or(0) + round.lost;
        let p99_ns = round.value(Metric::Percentile(99.0));
        self.judge_figures(sent, round.lost, round.value(Metric::Es10), p99_ns)
    }

    /// Checks that the figures of `sent` requests are within the limit, of which `lost` have no
    /// reply.
    ///
    /// # Errors
    /// What was too slow, lost or missing.
    pub fn judge_figures(
        &self,
        sent: u64,
        lost: u64,
        es10_ns: Option<f64>,
        p99_ns: Option<f64>,
    ) -> Result<(), SlaViolation> {
        let limit_ns = self.limit_ns as f64;
        if lost > 0 {
            return Err(SlaViolation::Lost { lost, sent });
        }
        for (value_ns, name) in [(es10_ns, "ES10"), (p99_ns, "p99")] {
            match value_ns {
                Some(ns) if ns < limit_ns => {}
                Some(ns) => {
                    let (found_ms, limit_ms) = (ns / 1e6, limit_ns / 1e6);
                    return Err(SlaViolation::AboveLimit { name, found_ms, limit_ms });
                }
                None => return Err(SlaViolation::TooFewSamples(name)),
            }
        }
        Ok(())
    }

    /// Whether a load generator that sent so late, by ES10 and p99, may itself be why round trips
    /// are beyond the limit: they count from when requests were to be sent, so half of the limit
    /// is used up before the network has them.
    pub fn is_late(&self, es10_ns: Option<f64>, p99_ns: Option<f64>) -> bool {
        es10_ns.into_iter().chain(p99_ns).any(|ns| ns >= self.limit_ns as f64 / 2.0)
    }

    /// Time from a fault at `at_ns` (on the samples' clock) until the service is within the limit
    /// again, and the longest round trip meanwhile, ns.
    ///
    /// The time ends at the intended send of the last request above the limit. One that follows
    /// more than `calm_ns` after the one before has another cause and does not count.
    pub fn recovery_after(&self, samples: &[Sample], at_ns: u64, calm_ns: u64) -> (u64, u64) {
        let (mut back_ns, mut worst_ns) = (0, 0);
        for sample in samples {
            // Requests in flight at the time of the fault count as well.
            let done_ns = sample.start_ns + sample.latency_ns;
            if done_ns < at_ns || sample.latency_ns < self.limit_ns {
                continue;
            }
            let after_ns = sample.start_ns.saturating_sub(at_ns);
            if after_ns > back_ns + calm_ns {
                break;
            }
            back_ns = back_ns.max(after_ns);
            worst_ns = worst_ns.max(sample.latency_ns);
        }
        (back_ns, worst_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_generator_is_late_that_uses_half_of_the_limit() {
        let sla = Sla::of_ms(10.0);
        assert!(!sla.is_late(Some(4.9e6), Some(4.9e6)) && !sla.is_late(None, None));
        assert!(sla.is_late(Some(5.0e6), Some(0.0)) && sla.is_late(None, Some(5.0e6)));
    }
    use nm_stats::summary::summarise;

    const MS: u64 = 1_000_000;

    fn at(start_ms: u64, latency_ms: u64) -> Sample {
        Sample { start_ns: start_ms * MS, latency_ns: latency_ms * MS }
    }

    #[test]
    fn es10_p99_and_losses_are_checked() {
        let sla = Sla::default();
        assert_eq!(sla.limit_ns, 10 * MS);
        let round = |slow: u64, slow_ms: u64, lost| {
            let samples: Vec<Sample> =
                (0..10_000).map(|i| at(i, if i < slow { slow_ms } else { 1 })).collect();
            summarise(&samples, lost, &[])
        };
        assert_eq!(sla.judge(&round(0, 0, 0)), Ok(()));
        assert!(sla.judge(&round(0, 0, 1)).unwrap_err().to_string().contains("1 of 10001"));
        // 0.9 % at 200 ms leave p99 alone but not the mean of the slowest 10 %.
        assert!(
            sla.judge(&round(90, 200, 0)).unwrap_err().to_string().starts_with("ES10 is 18.910 ms")
        );
        // 2 % at 12 ms leave the mean of the slowest 10 % alone but not p99.
        assert!(
            sla.judge(&round(200, 12, 0)).unwrap_err().to_string().starts_with("p99 is 12.000 ms")
        );
        assert!(sla.judge(&summarise(&[], 0, &[])).unwrap_err().to_string().contains("too few"));
    }

    #[test]
    fn recovery_is_the_time_until_requests_are_within_the_limit_again() {
        let sla = Sla::default();
        // A pause of 100 ms from 500 ms on: a request at t waits until 600 ms.
        let samples: Vec<Sample> =
            (0..2000).map(|t| at(t, if (500..600).contains(&t) { 600 - t } else { 1 })).collect();
        let (back_ns, worst_ns) = sla.recovery_after(&samples, 500 * MS, 100 * MS);
        assert_eq!((back_ns / MS, worst_ns / MS), (90, 100));
        assert_eq!(sla.recovery_after(&samples, 700 * MS, 100 * MS), (0, 0));
        // Slow requests long after the fault have another cause.
        assert_eq!(sla.recovery_after(&samples, 200 * MS, 100 * MS), (0, 0));
    }
}
