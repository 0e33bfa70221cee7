//! The published throughput tables. Flow patterns are ours: `N-uni-N` and `N-bi-N` with N flows.

use nm_model::doubt::{Doubt, DoubtKind};
use nm_model::probe::{Case, Pattern, Preset, ProbeKind, Side};
use nm_model::result::{Flow, RoundData, RunResult, SeriesKey, Statistic, ThroughputRound};
use nm_model::stack::Comparability;
use nm_model::{SettingKind, SettingValue};

use super::error::ReferenceError;
use super::series::{series, total};
use super::table::{Line, Table};

/// No study names its write size; the tool's default is assumed, and marked as inferred.
fn inferred_write_size(result: &mut RunResult) {
    result.doubts.push(Doubt::new(
        DoubtKind::Inferred,
        "write size (each tool's default; the study does not say)",
    ));
}

fn key(result: &RunResult, stack: &str, pattern: Pattern, preset: Preset) -> SeriesKey {
    SeriesKey {
        environment: result.name.clone(),
        stack: stack.to_string(),
        probe: ProbeKind::Stream,
        case: Case::Flows { pattern, write_bytes: preset.write_bytes() },
        statistic: Statistic::Throughput,
    }
}

fn comparability(result: &RunResult, bypass: &str, preset: Preset, layer: &str) -> Comparability {
    let hypervisor = result.notes.get("hypervisor").map_or("", String::as_str);
    Comparability {
        protocol: Some("tcp".to_string()),
        bypass: Some(bypass.to_string()),
        link: Some("10 Gb/s".to_string()),
        layer: Some(format!("{hypervisor}, {layer}")),
        write_bytes: Some(preset.write_bytes().to_string()),
        ..Default::default()
    }
}

/// Total by tool and pattern, each with the range that the study expected.
pub(super) fn fill_patterns(table: &Table, result: &mut RunResult) -> Result<(), ReferenceError> {
    inferred_write_size(result);
    for line in table.lines() {
        let tool = line.text("tool")?;
        let preset = if tool == "nuttcp" { Preset::Nuttcp } else { Preset::Netperf };
        let pattern = line.integer("pattern")?;
        let bypass = "sfc_front acceleration";
        let comparability = comparability(result, bypass, preset, "guests on two hosts");
        let settings = settings(
            line,
            &["tool", "expected_min_gbps", "expected_max_gbps", "per_vm_gbps", "sd_percent"],
        )?;
        let key = key(result, preset.name(), pattern, preset);
        let data = total(line.number("total_gbps")?);
        result.series.push(series(key, comparability, &settings, data));
    }
    Ok(())
}

/// Total by number of guests on one host; `N-to-N` there is our `N-uni-N`.
pub(super) fn fill_intrahost(table: &Table, result: &mut RunResult) -> Result<(), ReferenceError> {
    inferred_write_size(result);
    for line in table.lines() {
        let published = line.text("pattern")?;
        let (stack, flows, layer) = match published.split_once("-to-") {
            Some((flows, _)) => ("nuttcp", flows, "guests of one host"),
            None => ("nuttcp-loopback", "1", "loopback inside one guest"),
        };
        let pattern = Pattern {
            flows: flows
                .parse()
                .map_err(|_| ReferenceError::UnknownPattern(published.to_string()))?,
            bidirectional: false,
        };
        let mut comparability = comparability(result, "none", Preset::Nuttcp, layer);
        comparability.link = Some("virtual".to_string());
        let settings = settings(line, &["pattern", "per_vm_gbps", "per_vm_pm"])?;
        let key = key(result, stack, pattern, Preset::Nuttcp);
        let data = total(line.number("total_gbps")?);
        result.series.push(series(key, comparability, &settings, data));
    }
    Ok(())
}

/// Four pairs each way: one pattern of eight flows for each mode, flows one by one. Bytes and
/// seconds of a flow are not published and stay zero.
pub(super) fn fill_xenserver(table: &Table, result: &mut RunResult) -> Result<(), ReferenceError> {
    inferred_write_size(result);
    let pattern = Pattern { flows: 8, bidirectional: true };
    for (mode, bypass) in [("non-accelerated", "none"), ("accelerated", "sfc_front acceleration")] {
        let mut flows = vec![];
        let mut directions = vec![];
        for line in table.lines() {
            if line.text("mode")? != mode {
                continue;
            }
            let pair: u32 = line.integer("pair")?;
            let direction = line.text("direction")?;
            let sender = match direction {
                "A->B" => Side::Client,
                "B->A" => Side::Server,
                _ => return Err(ReferenceError::UnknownDirection(direction.to_string())),
            };
            let offset = u32::from(sender == Side::Server);
            let index = pair.checked_sub(1).ok_or(ReferenceError::PairZero)? * 2 + offset;
            let gbps = line.number("mbps")? / 1e3;
            flows.push(Flow {
                index,
                pair: None,
                sender,
                bytes: 0,
                seconds: 0.0,
                gbps,
                retransmits: None,
            });
            let direction_total = (direction, line.number("direction_total_mbps")?);
            if !directions.contains(&direction_total) {
                directions.push(direction_total);
            }
        }
        flows.sort_by_key(|flow| flow.index);
        let mbps: f64 = flows.iter().map(|flow| (flow.gbps * 1e3).round()).sum();
        let data = RoundData::Throughput(ThroughputRound {
            total_gbps: mbps / 1e3,
            flows,
            ..Default::default()
        });
        let settings: Vec<(SettingKind, SettingValue)> = directions
            .into_iter()
            .map(|(direction, mbps)| match direction {
                "A->B" => (SettingKind::ClientToServer, SettingValue::MegabitsPerSecond(mbps)),
                _ => (SettingKind::ServerToClient, SettingValue::MegabitsPerSecond(mbps)),
            })
            .collect();
        let comparability = comparability(result, bypass, Preset::Netperf, "guests on two hosts");
        let key = key(result, &format!("netperf-{mode}"), pattern, Preset::Netperf);
        result.series.push(series(key, comparability, &settings, data));
    }
    Ok(())
}

/// Some columns of a line as settings; empty cells are left out.
fn settings(
    line: Line,
    columns: &[&str],
) -> Result<Vec<(SettingKind, SettingValue)>, ReferenceError> {
    let mut settings = vec![];
    for column in columns {
        let text = line.text(column)?;
        let value = match text.parse::<f64>() {
            Ok(gbps) if column.ends_with("_gbps") => SettingValue::GigabitsPerSecond(gbps),
            Ok(percent) if column.ends_with("_percent") => SettingValue::Percent(percent),
            // Names, patterns, and bounds such as `<1`.
            _ => SettingValue::text(text),
        };
        if !text.is_empty() {
            settings.push((SettingKind::from(*column), value));
        }
    }
    Ok(settings)
}
