//! The figures of one round, from all round trips.

use nm_model::exchange::Hop;
use nm_model::result::LatencyRound;
use nm_stats::quantile::rank;
use nm_stats::summary::{Sample, summarise};
use nm_wire::{RefusalReason, STAMPS};

use crate::recorder::LoadRecorder;

/// The figures of a round.
#[derive(Debug, Clone, PartialEq)]
pub struct Round {
    /// Round trips from the intended send to the reply, and the number of lost requests.
    pub latency: LatencyRound,
    /// How late the generator sent, against the schedule.
    pub lateness: LatencyRound,
    /// Requests per second of the schedule.
    pub offered_per_s: f64,
    /// Requests that were sent.
    pub sent: u64,
    /// Requests that were answered.
    pub answered: u64,
    /// Requests without a reply at the end of the drain time, or that were refused.
    pub lost: u64,
    /// Requests that the network refused to execute.
    pub refused: u64,
    /// Why it refused the first one.
    pub first_refusal: Option<RefusalReason>,
    /// Requests retransmitted after a connection was lost.
    pub resent: u64,
    /// Repeated replies.
    pub repeats: u64,
    /// Connections that were re-established.
    pub reconnects: u64,
    /// Messages to counterparties.
    pub private: u64,
    /// Gaps in the events of sessions that no replica can fill.
    pub unknown: u64,
    /// Broadcasts, each counted at every gateway.
    pub public: u64,
    /// Gaps in broadcasts, at every gateway.
    pub public_gaps: u64,
    /// Hash of all requests since the generator was created.
    pub stream_hash: u64,
    /// Latency by hop, if frames carry timestamps of one clock.
    pub hops: Vec<Hop>,
    /// Round trips by intended time since the start of the round.
    pub samples: Vec<Sample>,
    /// Start of the round on the monotonic clock, ns.
    pub start_ns: u64,
}

/// Names of the hops of a round trip.
const HOPS: [&str; STAMPS + 1] = [
    "client to gateway",
    "gateway to router",
    "router to mediator",
    "mediator to processor",
    "processor to client",
];

/// Latency of a request without a reply.
const NONE: u64 = u64::MAX;

/// Collects the samples of a round.
#[derive(Debug, Clone)]
pub struct RoundRecorder {
    start_ns: u64,
    /// Number of the first request of the round.
    first: u64,
    round_trips: Vec<Sample>,
    lateness: Vec<Sample>,
    hops: [Vec<u64>; STAMPS + 1],
    last_reply_ns: u64,
    answered: u64,
    refused: u64,
    first_refusal: Option<RefusalReason>,
}

impl RoundRecorder {
    /// A round that starts at `start_ns`; `first` is the number of its first request. Reserves
    /// memory for `about` samples.
    pub fn new(start_ns: u64, first: u64, about: usize) -> RoundRecorder {
        RoundRecorder {
            start_ns,
            first,
            round_trips: Vec::with_capacity(about),
            lateness: Vec::with_capacity(about),
            hops: std::array::from_fn(|_| Vec::with_capacity(about)),
            last_reply_ns: start_ns,
            answered: 0,
            refused: 0,
            first_refusal: None,
        }
    }

    /// Computes the figures. The counts of messages are left at zero.
    pub fn finish(self, offered_per_s: f64) -> Round {
        let sent = self.round_trips.len() as u64;
        let lost = sent - self.answered;
        let samples: Vec<Sample> =
            self.round_trips.into_iter().filter(|sample| sample.latency_ns != NONE).collect();
        let mut latency = summarise(&samples, lost, &[]);
        let seconds = self.last_reply_ns.saturating_sub(self.start_ns) as f64 / 1e9;
        latency.rate_per_s = (seconds > 0.0).then(|| self.answered as f64 / seconds);
        Round {
            latency,
            lateness: summarise(&self.lateness, 0, &[]),
            offered_per_s,
            sent,
            answered: self.answered,
            lost,
            refused: self.refused,
            first_refusal: self.first_refusal,
            resent: 0,
            repeats: 0,
            reconnects: 0,
            private: 0,
            unknown: 0,
            public: 0,
            public_gaps: 0,
            stream_hash: 0,
            hops: hops(self.hops),
            samples,
            start_ns: self.start_ns,
        }
    }
}

impl LoadRecorder for RoundRecorder {
    fn sent(&mut self, intended_ns: u64, sent_ns: u64) {
        let start_ns = intended_ns.saturating_sub(self.start_ns);
        let latency_ns = sent_ns.saturating_sub(intended_ns);
        self.lateness.push(Sample { start_ns, latency_ns });
        self.round_trips.push(Sample { start_ns, latency_ns: NONE });
    }

    /// One to a request of an earlier round is ignored.
    fn answered(&mut self, number: u64, intended_ns: u64, at_ns: u64) {
        let Some(at) = number.checked_sub(self.first) else { return };
        if let Some(sample) = self.round_trips.get_mut(at as usize) {
            sample.latency_ns = at_ns.saturating_sub(intended_ns).min(NONE - 1);
            self.answered += 1;
            self.last_reply_ns = self.last_reply_ns.max(at_ns);
        }
    }

    /// One of an earlier round is ignored.
    fn refused(&mut self, number: u64, _intended_ns: u64, reason: RefusalReason) {
        if number >= self.first {
            self.refused += 1;
            self.first_refusal.get_or_insert(reason);
        }
    }

    /// Ignored unless they rise: otherwise they are of several clocks, or of a retransmitted
    /// request.
    fn stamped(&mut self, intended_ns: u64, stamps: [u64; STAMPS], at_ns: u64) {
        let mut times = [intended_ns; STAMPS + 2];
        times[1..=STAMPS].copy_from_slice(&stamps);
        times[STAMPS + 1] = at_ns;
        if intended_ns >= self.start_ns && times.is_sorted() {
            for (hop, pair) in self.hops.iter_mut().zip(times.windows(2)) {
                hop.push(pair[1] - pair[0]);
            }
        }
    }

    fn unanswered(&self) -> u64 {
        self.round_trips.len() as u64 - self.answered - self.refused
    }

    /// A round has its figures at its end only.
    fn advance(&mut self, _: u64, _: u64) {}
}

fn hops(mut taken: [Vec<u64>; STAMPS + 1]) -> Vec<Hop> {
    let named = HOPS.into_iter().zip(&mut taken);
    named
        .filter(|(_, times)| !times.is_empty())
        .map(|(name, times)| {
            times.sort_unstable();
            let at = |percentile| times[rank(times.len(), percentile) - 1] as f64;
            let sum: u128 = times.iter().map(|ns| u128::from(*ns)).sum();
            Hop {
                name: name.to_string(),
                mean_ns: sum as f64 / times.len() as f64,
                median_ns: at(50.0),
                p99_ns: at(99.0),
            }
        })
        .collect()
}

/// ES10 and p99, ns, that a round must show if a stall of `stall_s` in `seconds` is all that makes
/// its round trips longer than `base_ns`.
///
/// Requests arrive evenly, so those scheduled during the stall wait a time that is uniform between
/// zero and the length of the stall.
pub fn stall_figures(seconds: f64, stall_s: f64, base_ns: f64) -> (f64, f64) {
    let caught = (stall_s / seconds).min(1.0);
    // Mean wait of the slowest `share` of all requests: a uniform tail, truncated at `share`.
    let tail_mean_s = |share: f64| {
        if caught <= share {
            caught / share * stall_s / 2.0
        } else {
            stall_s * (1.0 - share / caught / 2.0)
        }
    };
    let p99_s = if caught <= 0.01 { 0.0 } else { stall_s * (1.0 - 0.01 / caught) };
    (base_ns + tail_mean_s(0.1) * 1e9, base_ns + p99_s * 1e9)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_counts_answered_and_lost_requests() {
        let mut recorder = RoundRecorder::new(1_000, 10, 4);
        for at in 0..4 {
            recorder.sent(1_000 + at * 100, 1_007 + at * 100);
        }
        recorder.answered(9, 500, 3_000); // of the round before
        recorder.answered(14, 1_500, 3_000); // not sent yet
        recorder.refused(9, 500, RefusalReason::TooManyPendingBytes); // of the round before
        assert_eq!(recorder.unanswered(), 4);
        recorder.refused(11, 1_100, RefusalReason::UnknownPredecessor);
        assert_eq!(recorder.unanswered(), 3);
        for (number, intended_ns) in [(12, 1_200), (10, 1_000), (13, 1_300)] {
            recorder.answered(number, intended_ns, intended_ns + 50);
        }
        let stamps = [1_010, 1_020, 1_030, 1_040];
        recorder.stamped(1_000, stamps, 1_050);
        recorder.stamped(1_000, [1_010, 1_005, 1_030, 1_040], 1_050);
        recorder.stamped(1_000, [0; 4], 1_050);
        let round = recorder.finish(1e7);
        assert_eq!((round.sent, round.answered, round.lost, round.refused), (4, 3, 1, 1));
        assert_eq!(round.first_refusal, Some(RefusalReason::UnknownPredecessor));
        assert_eq!((round.latency.count, round.latency.lost), (Some(3), 1));
        assert_eq!((round.latency.mean_ns, round.lateness.mean_ns), (Some(50.0), Some(7.0)));
        assert_eq!(round.latency.rate_per_s, Some(3.0 / 350e-9));
        let starts: Vec<u64> = round.samples.iter().map(|sample| sample.start_ns).collect();
        assert_eq!(starts, [0, 200, 300]);
        let means: Vec<f64> = round.hops.iter().map(|hop| hop.mean_ns).collect();
        assert_eq!(means, [10.0; 5]);
    }

    #[test]
    fn a_pause_that_hits_more_than_a_tenth_has_its_figures_too() {
        // The stall covers the round: waits are uniform from 0 to 1 s.
        let (es10_ns, p99_ns) = stall_figures(1.0, 1.0, 0.0);
        assert!((es10_ns - 0.95e9).abs() < 1.0 && (p99_ns - 0.99e9).abs() < 1.0);
        let (es10_ns, p99_ns) = stall_figures(5.0, 0.1, 200e3);
        assert!((es10_ns - 10.2e6).abs() < 1.0 && (p99_ns - 50.2e6).abs() < 1.0);
        let (es10_ns, p99_ns) = stall_figures(100.0, 0.1, 200e3);
        assert!((es10_ns - 700e3).abs() < 1.0 && (p99_ns - 200e3).abs() < 1.0);
    }
}
