//! Series of published figures: one round, and often only some of its figures.

use nm_model::result::{
    LatencyRound, PercentileValue, Round, RoundData, Series, SeriesKey, ThroughputRound,
};
use nm_model::stack::Comparability;
use nm_model::{SettingKind, SettingValue};

/// A series of one round, as all published ones are.
pub fn series(
    key: SeriesKey,
    comparability: Comparability,
    settings: &[(SettingKind, SettingValue)],
    data: RoundData,
) -> Series {
    Series {
        comparability: Comparability {
            statistic: Some(key.statistic.name().to_string()),
            ..comparability
        },
        key,
        settings: settings
            .iter()
            .filter(|(_, value)| !value.to_string().is_empty())
            .cloned()
            .collect(),
        rounds: vec![Round { round: 0, started_s: 0.0, data, placements: vec![], doubts: vec![] }],
        estimates: vec![],
        doubts: vec![],
    }
}

/// Latencies of which only some percentiles are published. The 50th is always listed.
pub fn latency(percentiles: &[(f64, f64)], rest: LatencyRound) -> RoundData {
    let mut all: Vec<PercentileValue> = percentiles
        .iter()
        .map(|(percentile, value_ns)| PercentileValue {
            percentile: *percentile,
            value_ns: Some(*value_ns),
            low_ns: None,
            high_ns: None,
        })
        .collect();
    if !percentiles.iter().any(|(percentile, _)| *percentile == 50.0) {
        let absent =
            PercentileValue { percentile: 50.0, value_ns: None, low_ns: None, high_ns: None };
        all.insert(0, absent);
    }
    RoundData::Latency(LatencyRound { percentiles: all, ..rest })
}

/// A total of flows that are not published one by one.
pub fn total(gbps: f64) -> RoundData {
    RoundData::Throughput(ThroughputRound { total_gbps: gbps, ..Default::default() })
}

/// Milliseconds or microseconds as ns, without rounding errors of binary fractions.
pub fn to_ns(value: f64, unit_ns: f64) -> f64 {
    (value * unit_ns * 1e3).round() / 1e3
}
