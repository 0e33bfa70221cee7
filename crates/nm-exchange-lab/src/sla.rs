//! The promise that the exchange is judged by: mean of the slowest 10 % and 99th percentile of the
//! round trips both below a limit, and nothing lost.

use nm_model::Metric;
use nm_model::exchange::SLA_MS;
use nm_model::result::LatencyRound;
use nm_stats::summary::Sample;

/// A limit for round trips.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sla {
    /// ns.
    pub limit_ns: u64,
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

    /// Whether a round kept it; if not, why, as a clause.
    ///
    /// # Errors
    /// What was too slow, lost or missing.
    pub fn judge(&self, round: &LatencyRound) -> Result<(), String> {
        let ms = |ns: f64| ns / 1e6;
        let limit_ns = self.limit_ns as f64;
        if round.lost > 0 {
            let sent = round.count.unwrap_or(0) + round.lost;
            return Err(format!("{} of {sent} requests were not answered", round.lost));
        }
        for (metric, name) in [(Metric::Es10, "ES10"), (Metric::Percentile(99.0), "p99")] {
            match round.value(metric) {
                Some(ns) if ns < limit_ns => {}
                Some(ns) => {
                    let (ns, limit) = (ms(ns), ms(limit_ns));
                    return Err(format!("{name} is {ns:.3} ms, the limit {limit} ms"));
                }
                None => return Err(format!("too few samples for {name}")),
            }
        }
        Ok(())
    }

    /// How long after a disturbance at `at_ns` (on the samples' clock) requests broke the limit:
    /// until the intended send of the last one of an unbroken run of unexpected_restarts.
    /// A request that breaks the limit more than `calm_ns` after the one before it has another
    /// cause. With it, the longest round trip among them.
    pub fn back_after(&self, samples: &[Sample], at_ns: u64, calm_ns: u64) -> (u64, u64) {
        let (mut back_ns, mut worst_ns) = (0, 0);
        for sample in samples {
            // One that was on its way when it happened counts as well.
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
    use nm_stats::summary::summarise;

    const MS: u64 = 1_000_000;

    fn at(start_ms: u64, latency_ms: u64) -> Sample {
        Sample { start_ns: start_ms * MS, latency_ns: latency_ms * MS }
    }

    #[test]
    fn both_figures_and_the_losses_count() {
        let sla = Sla::default();
        assert_eq!(sla.limit_ns, 10 * MS);
        let round = |slow: u64, slow_ms: u64, lost| {
            let samples: Vec<Sample> =
                (0..10_000).map(|i| at(i, if i < slow { slow_ms } else { 1 })).collect();
            summarise(&samples, lost, &[])
        };
        assert_eq!(sla.judge(&round(0, 0, 0)), Ok(()));
        assert!(sla.judge(&round(0, 0, 1)).unwrap_err().contains("1 of 10001"));
        // 0.9 % at 200 ms leave p99 alone but not the mean of the slowest 10 %.
        assert!(sla.judge(&round(90, 200, 0)).unwrap_err().starts_with("ES10 is 18.910 ms"));
        // 2 % at 12 ms leave the mean of the slowest 10 % alone but not p99.
        assert!(sla.judge(&round(200, 12, 0)).unwrap_err().starts_with("p99 is 12.000 ms"));
        assert!(sla.judge(&summarise(&[], 0, &[])).unwrap_err().contains("too few"));
    }

    #[test]
    fn the_time_until_the_limit_is_met_again() {
        let sla = Sla::default();
        // A pause of 100 ms from 500 ms on: who requests at t waits until 600 ms.
        let samples: Vec<Sample> =
            (0..2000).map(|t| at(t, if (500..600).contains(&t) { 600 - t } else { 1 })).collect();
        let (back_ns, worst_ns) = sla.back_after(&samples, 500 * MS, 100 * MS);
        assert_eq!((back_ns / MS, worst_ns / MS), (90, 100));
        assert_eq!(sla.back_after(&samples, 700 * MS, 100 * MS), (0, 0));
        // Trouble long after it has another cause.
        assert_eq!(sla.back_after(&samples, 200 * MS, 100 * MS), (0, 0));
    }
}
