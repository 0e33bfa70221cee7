//! Results made by hand.

use nm_model::plan::Plan;
use nm_model::probe::{Case, ProbeKind};
use nm_model::result::{
    LatencyRound, PercentileValue, Round, RoundData, RunResult, Series, SeriesKey, Source,
    Statistic, ThroughputRound, TrialFailure,
};
use nm_model::stack::Comparability;
use nm_model::{RowId, Settings};

/// A measured result without series.
pub fn result(plan: Option<&str>) -> RunResult {
    RunResult {
        plan: plan.map(|text| Plan::parse(text).unwrap()),
        ..RunResult::new("made", Source::Measured { version: "0".to_string() })
    }
}

/// The failure of one round of a row.
pub fn failure(environment: &str, stack: &str, probe: ProbeKind, reason: &str) -> TrialFailure {
    let (environment, stack) = (environment.to_string(), stack.to_string());
    let row = RowId { environment, stack, probe, case: None, round: Some(0), factor: None };
    TrialFailure { row: Some(row), reason: reason.to_string() }
}

fn round(at: usize, data: RoundData) -> Round {
    Round { round: at as u32, started_s: at as f64, data, placements: vec![], doubts: vec![] }
}

/// Ping-pong with these medians, one a round; p99 is twice the median.
pub fn pingpong(environment: &str, stack: &str, size_bytes: u32, medians_ns: &[f64]) -> Series {
    let rounds = medians_ns.iter().enumerate().map(|(at, median)| {
        let percentile = |percentile, value_ns| PercentileValue {
            percentile,
            value_ns,
            low_ns: None,
            high_ns: None,
        };
        let data = LatencyRound {
            count: Some(100_000),
            mean_ns: Some(median * 1.05),
            min_ns: Some(median * 0.9),
            max_ns: Some(median * 50.0),
            stddev_ns: Some(median * 0.1),
            percentiles: vec![
                percentile(50.0, Some(*median)),
                percentile(99.0, Some(median * 2.0)),
                percentile(99.999, None),
            ],
            ..Default::default()
        };
        round(at, RoundData::Latency(data))
    });
    let statistic = Statistic::HalfRoundTrip;
    let key = SeriesKey {
        environment: environment.to_string(),
        stack: stack.to_string(),
        probe: ProbeKind::Pingpong,
        case: Case::Message { size_bytes },
        statistic,
    };
    series(key, rounds.collect())
}

/// One flow with these totals, one a round.
pub fn stream(environment: &str, stack: &str, totals_gbps: &[f64]) -> Series {
    let rounds = totals_gbps.iter().enumerate().map(|(at, &total_gbps)| {
        round(at, RoundData::Throughput(ThroughputRound { total_gbps, ..Default::default() }))
    });
    let key = SeriesKey {
        environment: environment.to_string(),
        stack: stack.to_string(),
        probe: ProbeKind::Stream,
        case: Case::Flows { pattern: "1-uni-1".parse().unwrap(), write_bytes: 131_072 },
        statistic: Statistic::Throughput,
    };
    series(key, rounds.collect())
}

fn series(key: SeriesKey, rounds: Vec<Round>) -> Series {
    let mut series = Series {
        comparability: Comparability {
            statistic: Some(key.statistic.to_string()),
            ..Default::default()
        },
        key,
        settings: Settings::new(),
        rounds,
        estimates: vec![],
        doubts: vec![],
    };
    nm_stats::rounds::estimate(&mut series);
    series
}

/// `n` steady values about `middle`, within half a per cent.
pub fn steady(middle: f64, n: usize) -> Vec<f64> {
    (0..n).map(|at| middle * (1.0 + 0.002 * ((at * 7 % 5) as f64 - 2.0))).collect()
}
