//! Figures of tables that fit no series, and figures from sentences. Each line becomes a note; a
//! figure that is plainly one measurement becomes a series of one point as well.

use nm_model::SettingValue;
use nm_model::doubt::{Doubt, DoubtKind};
use nm_model::probe::{Case, ProbeKind, RrSize};
use nm_model::result::{LatencyRound, RunResult, SeriesKey, Statistic};
use nm_model::stack::Comparability;

use super::error::ReferenceError;
use super::series::{latency, series, to_ns, total};
use super::table::Table;

/// What a figure with a plain meaning is a measurement of.
struct Point {
    id: &'static str,
    probe: ProbeKind,
    statistic: Statistic,
    /// Request and response size, where the study names one.
    request_bytes: Option<u32>,
    /// The figure of the same measurement that is its rate.
    rate_id: Option<&'static str>,
}

const fn point(id: &'static str, probe: ProbeKind, statistic: Statistic) -> Point {
    Point { id, probe, statistic, request_bytes: None, rate_id: None }
}

const fn request(id: &'static str, bytes: u32, rate_id: Option<&'static str>) -> Point {
    Point {
        request_bytes: Some(bytes),
        rate_id,
        ..point(id, ProbeKind::Rr, Statistic::HalfRoundTrip)
    }
}

const POINTS: &[Point] = &[
    point("monterey-ping-oneway", ProbeKind::Pingpong, Statistic::HalfRoundTrip),
    point("monterey-ping-rtt", ProbeKind::Pingpong, Statistic::RoundTrip),
    request("monterey-tcprr-lat-1B", 1, Some("monterey-tcprr-rate-1B")),
    request("monterey-tcprr-lat-1kB", 1_000, None),
    request("monterey-tcprr-lat-100kB", 100_000, Some("monterey-tcprr-rate-100kB")),
    point("monterey-intrahost-cap", ProbeKind::Stream, Statistic::Throughput),
    point("monterey-mean-best", ProbeKind::Exchange, Statistic::RoundTrip),
    point("vmware-rtt-vnic", ProbeKind::Pingpong, Statistic::RoundTrip),
    point("vmware-rtt-passthrough", ProbeKind::Pingpong, Statistic::RoundTrip),
    point("vmware-rtt-bypass-low", ProbeKind::Pingpong, Statistic::RoundTrip),
    point("vmware-rtt-bypass-high", ProbeKind::Pingpong, Statistic::RoundTrip),
    point("xen-total-noaccel", ProbeKind::Stream, Statistic::Throughput),
    point("xen-total-accel", ProbeKind::Stream, Statistic::Throughput),
    point("deftech-baseline-claim", ProbeKind::Pingpong, Statistic::HalfRoundTrip),
    point("deftech-fullfeature-claim", ProbeKind::Pingpong, Statistic::HalfRoundTrip),
    point("deftech-hft-claim", ProbeKind::Pingpong, Statistic::HalfRoundTrip),
    point("deftech-hft-vm-claim", ProbeKind::Pingpong, Statistic::HalfRoundTrip),
];

/// The figures in sentences: id, study, value, unit, meaning.
pub(super) fn fill_figures(table: &Table, result: &mut RunResult) -> Result<(), ReferenceError> {
    result.doubts.push(Doubt::new(
        DoubtKind::Inferred,
        "latencies are taken as means; the sentences do not say which figure they are",
    ));
    for line in table.lines() {
        let (id, study) = (line.text("id")?, line.text("study")?);
        let (value, unit) = (line.text("value")?, line.text("unit")?);
        let meaning = line.text("meaning")?;
        result.notes.insert(id.to_string(), format!("{value} {unit}: {meaning} ({study})"));
        let Some(point) = POINTS.iter().find(|point| point.id == id) else { continue };
        let value = line.number("value")?;
        let rate = table.lines().find(|line| line.text("id").ok() == point.rate_id);
        let rate_per_s = rate.map(|line| line.number("value")).transpose()?;
        let data = match unit {
            "us" | "ms" => {
                let unit_ns = if unit == "us" { 1e3 } else { 1e6 };
                let mean_ns = Some(to_ns(value, unit_ns));
                latency(&[], LatencyRound { mean_ns, rate_per_s, ..Default::default() })
            }
            "Gb/s" => total(value),
            _ => {
                return Err(ReferenceError::UnknownUnit {
                    id: id.to_string(),
                    unit: unit.to_string(),
                });
            }
        };
        let key = SeriesKey {
            environment: study.to_string(),
            stack: id.to_string(),
            probe: point.probe,
            case: match point.request_bytes {
                None => Case::Total,
                Some(bytes) => Case::Request {
                    size: RrSize { request_bytes: bytes, response_bytes: bytes },
                    rate_per_s: None,
                },
            },
            statistic: point.statistic,
        };
        let settings = [("meaning".into(), SettingValue::text(meaning))];
        result.series.push(series(key, Comparability::default(), &settings, data));
    }
    Ok(())
}
