//! How long series were measured, from their rounds.

use nm_model::result::{RoundData, Series, Statistic};
use nm_model::{RunResult, Verdict};

/// Measuring time of the series that a verdict rests on, s.
pub(crate) fn of_evidence(verdict: &Verdict, result: &RunResult) -> f64 {
    let is_evidence = |series: &&Series| {
        let name = series.key.to_string();
        verdict.evidence.iter().any(|evidence| evidence.series == name)
    };
    result.series.iter().filter(is_evidence).map(of_series).sum()
}

/// Measuring time of all rounds of a series, s; zero where nothing tells it.
fn of_series(series: &Series) -> f64 {
    // Each sample of half a round trip took a whole one.
    let trips = if series.key.statistic == Statistic::HalfRoundTrip { 2.0 } else { 1.0 };
    series.rounds.iter().filter_map(|round| of_round(&round.data, trips)).sum()
}

fn of_round(data: &RoundData, trips: f64) -> Option<f64> {
    match data {
        RoundData::Throughput(data) => {
            data.flows.iter().map(|flow| flow.seconds).max_by(f64::total_cmp)
        }
        RoundData::Latency(data) => {
            let count = data.count? as f64;
            match (&data.jitter, data.rate_per_s) {
                (Some(jitter), _) => Some(jitter.window_s),
                (None, Some(rate_per_s)) if rate_per_s > 0.0 => Some(count / rate_per_s),
                (None, _) => Some(count * data.mean_ns? * trips / 1e9),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nm_model::Side;
    use nm_model::jitter::JitterRound;
    use nm_model::result::{Flow, LatencyRound, ThroughputRound};

    #[test]
    fn the_time_of_a_round_is_its_window_or_its_samples() {
        let latency = LatencyRound { count: Some(1000), ..LatencyRound::default() };
        let of = |data: &LatencyRound| of_round(&RoundData::Latency(data.clone()), 2.0);
        assert_eq!(of(&latency), None);
        assert_eq!(of(&LatencyRound { mean_ns: Some(5e3), ..latency.clone() }), Some(0.01));
        assert_eq!(of(&LatencyRound { rate_per_s: Some(500.0), ..latency.clone() }), Some(2.0));
        let jitter = JitterRound { window_s: 3.0, ..JitterRound::default() };
        assert_eq!(of(&LatencyRound { jitter: Some(Box::new(jitter)), ..latency }), Some(3.0));
        let flow = |seconds| Flow {
            index: 0,
            pair: None,
            sender: Side::Client,
            bytes: 1,
            seconds,
            gbps: 1.0,
            retransmits: None,
        };
        let flows = ThroughputRound { flows: vec![flow(1.0), flow(1.5)], ..Default::default() };
        assert_eq!(of_round(&RoundData::Throughput(flows), 1.0), Some(1.5));
    }
}
