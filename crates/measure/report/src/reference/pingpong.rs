//! The published ping-pong runs: sfnt-pingpong's columns, half round trips in ns, by message size.

use nm_model::SettingValue;
use nm_model::probe::{Case, ProbeKind};
use nm_model::result::{LatencyRound, RunResult, SeriesKey, Statistic};
use nm_model::stack::Comparability;

use super::error::ReferenceError;
use super::series::{latency, series};
use super::table::Table;

/// All of them ran TCP under Onload's latency profile, which spins.
const STACK: &str = "onload+tcp-spin";

pub(super) fn fill(table: &Table, result: &mut RunResult) -> Result<(), ReferenceError> {
    let note = |name: &str| result.notes.get(name).cloned();
    let firmware = note("firmware").filter(|text| text != "not stated");
    let comparability = Comparability {
        protocol: note("proto"),
        mode: Some("spin".to_string()),
        bypass: Some("onload".to_string()),
        link: note("link_gbps").map(|gbps| format!("{gbps} Gb/s")),
        // The part behind the comma is how functions were split, not another firmware.
        firmware: firmware
            .as_deref()
            .map(|text| text.split(',').next().unwrap_or(text).to_string()),
        layer: note("layer"),
        ..Default::default()
    };
    let settings = [
        ("firmware".into(), SettingValue::text(firmware.unwrap_or_default())),
        ("nic".into(), SettingValue::text(note("nic").unwrap_or_default())),
        ("pinning".into(), SettingValue::text(note("pin").unwrap_or_default())),
    ];
    for line in table.lines() {
        let key = SeriesKey {
            environment: result.name.clone(),
            stack: STACK.to_string(),
            probe: ProbeKind::Pingpong,
            case: Case::Message { size_bytes: line.integer("size")? },
            statistic: Statistic::HalfRoundTrip,
        };
        let data = latency(
            &[(50.0, line.number("median")?), (99.0, line.number("p99")?)],
            LatencyRound {
                count: Some(line.integer("iter")?),
                mean_ns: Some(line.number("mean")?),
                min_ns: Some(line.number("min")?),
                max_ns: Some(line.number("max")?),
                stddev_ns: Some(line.number("stddev")?),
                ..Default::default()
            },
        );
        result.series.push(series(key, comparability.clone(), &settings, data));
    }
    Ok(())
}
