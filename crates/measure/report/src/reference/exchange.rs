//! The published runs of the distributed exchange: round trips through four classes of node.

use nm_model::probe::{Case, ProbeKind, RrSize};
use nm_model::result::{LatencyRound, RunResult, SeriesKey, Statistic};
use nm_model::stack::Comparability;
use nm_model::{SettingKind, SettingValue};

use super::error::ReferenceError;
use super::series::{latency, series, to_ns};
use super::table::{Line, Table};

/// Mean size of a message; they ran from 200 B to 80 kB.
const MESSAGE_BYTES: u32 = 800;

fn key(line: Line, result: &RunResult) -> Result<SeriesKey, ReferenceError> {
    Ok(SeriesKey {
        environment: result.name.clone(),
        stack: line.text("layout")?.to_string(),
        probe: ProbeKind::Exchange,
        case: Case::Request {
            size: RrSize { request_bytes: MESSAGE_BYTES, response_bytes: MESSAGE_BYTES },
            rate_per_s: Some(line.number("txns_per_s")?),
        },
        statistic: Statistic::RoundTrip,
    })
}

fn comparability(result: &RunResult) -> Comparability {
    Comparability {
        protocol: Some("tcp".to_string()),
        bypass: Some("sfc_front acceleration".to_string()),
        link: Some("10 Gb/s".to_string()),
        layer: result.notes.get("hypervisor").cloned(),
        ..Default::default()
    }
}

const MESSAGE_TEXT: &str = "200 B to 80 kB, mean 800 B";

fn nodes(line: Line) -> Result<(SettingKind, SettingValue), ReferenceError> {
    Ok((SettingKind::Nodes, SettingValue::Number(line.integer("nodes")?)))
}

/// Mean, p90, ES 10 % and p99 by layout and rate.
pub(super) fn fill_latency(table: &Table, result: &mut RunResult) -> Result<(), ReferenceError> {
    for line in table.lines() {
        let ns = |column: &str| line.number(column).map(|ms| to_ns(ms, 1e6));
        let data = latency(
            &[(90.0, ns("p90_ms")?), (99.0, ns("p99_ms")?)],
            LatencyRound {
                mean_ns: Some(ns("mean_ms")?),
                es10_ns: Some(ns("es10_ms")?),
                rate_per_s: Some(line.number("txns_per_s")?),
                ..Default::default()
            },
        );
        let settings =
            [nodes(line)?, (SettingKind::MessageSizes, SettingValue::text(MESSAGE_TEXT))];
        result.series.push(series(key(line, result)?, comparability(result), &settings, data));
    }
    Ok(())
}

/// The rates that were carried become series; those that were not had no figure and become notes.
pub(super) fn fill_scaling(table: &Table, result: &mut RunResult) -> Result<(), ReferenceError> {
    for line in table.lines() {
        let outcome = line.text("result")?;
        let name = format!("{} at {}/s", line.text("layout")?, line.text("txns_per_s")?);
        result.notes.insert(name, line.describe());
        if outcome != "pass" {
            continue;
        }
        let round =
            LatencyRound { rate_per_s: Some(line.number("txns_per_s")?), ..Default::default() };
        let settings = [
            nodes(line)?,
            (SettingKind::MessageSizes, SettingValue::text(MESSAGE_TEXT)),
            ("result".into(), SettingValue::text(outcome)),
        ];
        let data = latency(&[], round);
        result.series.push(series(key(line, result)?, comparability(result), &settings, data));
    }
    Ok(())
}
