//! One second of a day, judged by itself.

use nm_load::seconds::RecordedSecond;
use nm_stats::quantile::rank;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::sla::Sla;

/// Whether a second is within the limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum SecondState {
    /// ES10 and p99 are below the limit, and every request was answered.
    Within,
    /// One of them is not.
    Outside,
    /// One of ES10 and p99 is not, but the load generator itself was late.
    Undecided,
    /// No request was intended for it.
    Empty,
}

impl SecondState {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            SecondState::Within => "within",
            SecondState::Outside => "outside",
            SecondState::Undecided => "undecided",
            SecondState::Empty => "empty",
        }
    }
}

/// The figures of one second: of the requests that were intended for it, whenever they were
/// answered.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SecondFigures {
    /// Its number since the start of the day, from 0 on.
    pub second: u32,
    /// Index of its phase.
    pub phase: u32,
    /// Requests that the script expects.
    pub offered: f64,
    /// Requests that were sent.
    pub sent: u64,
    /// Replies that arrived in this second.
    pub replies: u64,
    /// Requests without a reply, or that were refused.
    pub lost: u64,
    /// Requests that the network refused to execute.
    pub refused: u64,
    /// Mean round trip, ns.
    pub mean_ns: Option<f64>,
    /// Mean of the slowest 10 % of the round trips, ns.
    pub es10_ns: Option<f64>,
    /// The longest of the fastest 99 % of the round trips, ns. It describes this second only; the
    /// day is judged if it has enough samples in all.
    pub p99_ns: Option<f64>,
    /// Longest round trip, ns.
    pub max_ns: Option<u64>,
    /// 99th percentile, in the same sense, of how late the load generator sent, ns.
    pub lateness_p99_ns: Option<u64>,
    /// Whether it is within the limit.
    pub state: SecondState,
}

impl SecondFigures {
    /// Judges a second of a phase, in which `offered` requests were expected.
    pub fn of(recorded: &RecordedSecond, phase: u32, offered: f64, sla: Sla) -> SecondFigures {
        let mut sorted: Vec<u64> = recorded.samples.iter().map(|it| it.latency_ns).collect();
        sorted.sort_unstable();
        let mut lateness_ns = recorded.lateness_ns.clone();
        lateness_ns.sort_unstable();
        let p99_of = |sorted: &[u64]| {
            let at = rank(sorted.len(), 99.0).checked_sub(1)?;
            sorted.get(at).copied()
        };
        let slowest = &sorted[sorted.len() - sorted.len().div_ceil(10)..];
        let (mean_ns, es10_ns) = (mean(&sorted), mean(slowest));
        let p99_ns = p99_of(&sorted).map(|ns| ns as f64);
        let lateness_p99_ns = p99_of(&lateness_ns);
        let lost = recorded.lost();
        let judged = sla.judge_figures(recorded.sent, lost, es10_ns, p99_ns);
        // A late request has the lateness in its round trip, whatever the network does.
        let latest = &lateness_ns[lateness_ns.len() - lateness_ns.len().div_ceil(10)..];
        let is_late = sla.is_late(mean(latest), lateness_p99_ns.map(|ns| ns as f64));
        let state = match judged {
            _ if recorded.sent == 0 => SecondState::Empty,
            Ok(()) => SecondState::Within,
            Err(_) if is_late && lost == 0 => SecondState::Undecided,
            Err(_) => SecondState::Outside,
        };
        SecondFigures {
            second: recorded.second,
            phase,
            offered,
            sent: recorded.sent,
            replies: recorded.replies,
            lost,
            refused: recorded.refused,
            mean_ns,
            es10_ns,
            p99_ns,
            max_ns: sorted.last().copied(),
            lateness_p99_ns,
            state,
        }
    }

    /// The larger of ES10 and p99, ns: what the limit applies to.
    pub fn worst_ns(&self) -> f64 {
        self.es10_ns.unwrap_or(0.0).max(self.p99_ns.unwrap_or(0.0))
    }
}

fn mean(values: &[u64]) -> Option<f64> {
    let sum: u128 = values.iter().map(|ns| u128::from(*ns)).sum();
    (!values.is_empty()).then(|| sum as f64 / values.len() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nm_stats::summary::Sample;
    use nm_wire::RefusalReason;

    const MS: u64 = 1_000_000;

    fn second(latencies_ms: &[u64], late_ms: u64, lost: u64) -> SecondFigures {
        let sample = |ms: &u64| Sample { start_ns: 0, latency_ns: ms * MS };
        let recorded = RecordedSecond {
            second: 3,
            sent: latencies_ms.len() as u64 + lost,
            replies: 1,
            refused: lost.min(1),
            first_refusal: (lost > 0).then_some(RefusalReason::UnknownPredecessor),
            samples: latencies_ms.iter().map(sample).collect(),
            lateness_ns: vec![late_ms * MS; latencies_ms.len()],
        };
        SecondFigures::of(&recorded, 1, 20.0, Sla::default())
    }

    #[test]
    fn figures_are_those_of_the_published_study() {
        // 2 % of 200 requests take 12 ms, the others 1 ms: p99 is 12 ms, ES10 below the limit.
        let mut latencies_ms = vec![1; 196];
        latencies_ms.extend([12; 4]);
        let found = second(&latencies_ms, 0, 0);
        assert_eq!((found.p99_ns, found.max_ns), (Some(12e6), Some(12 * MS)));
        assert_eq!(found.es10_ns, Some((16.0 * 1e6 + 4.0 * 12e6) / 20.0));
        assert_eq!(found.state, SecondState::Outside);
        assert_eq!(found.worst_ns(), 12e6);
        // Half a per cent at 300 ms leave p99 alone, but not ES10.
        let mut latencies_ms = vec![1; 199];
        latencies_ms.push(300);
        let found = second(&latencies_ms, 0, 0);
        assert_eq!((found.p99_ns, found.state), (Some(1e6), SecondState::Outside));
        assert_eq!(found.worst_ns(), (19.0 * 1e6 + 300e6) / 20.0);
    }

    #[test]
    fn a_second_is_judged_by_limit_losses_and_the_generators_own_lateness() {
        assert_eq!(second(&[1, 2, 3], 0, 0).state, SecondState::Within);
        assert_eq!(second(&[1, 2, 10], 0, 0).state, SecondState::Outside);
        assert_eq!(second(&[1, 2, 10], 4, 0).state, SecondState::Outside);
        assert_eq!(second(&[1, 2, 10], 5, 0).state, SecondState::Undecided);
        assert_eq!(second(&[1, 2, 9], 8, 0).state, SecondState::Within);
        // A lost request is no matter of time.
        let lost = second(&[1, 2, 10], 5, 2);
        assert_eq!((lost.state, lost.lost, lost.refused), (SecondState::Outside, 2, 1));
        assert_eq!(second(&[], 0, 1).state, SecondState::Outside);
        let empty = second(&[], 0, 0);
        assert_eq!((empty.state, empty.p99_ns, empty.worst_ns()), (SecondState::Empty, None, 0.0));
    }
}
