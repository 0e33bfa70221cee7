//! The published compute table: seconds of work of `bc` in 1 to 32 instances.

use nm_model::compute::{ComputeRound, Workload};
use nm_model::probe::{Case, ProbeKind};
use nm_model::result::{LatencyRound, RunResult, SeriesKey, Statistic};
use nm_model::stack::{Comparability, Stack};

use super::error::ReferenceError;
use super::series::{latency, series, to_ns};
use super::table::Table;

/// The study does not state the version of its `bc`.
const IMPLEMENTATION: &str = "bc of Debian Etch, scale=2000; 4*a(1)";

/// The study's tests and our layouts. Its guests, one on each of eight cores, are our cores: `2x8`
/// was two instances in each of eight guests.
const LAYOUTS: [(&str, &str); 5] =
    [("Baseline", "1x1"), ("1x8", "1xN"), ("8x1", "Nx1"), ("2x8", "2xN"), ("4x8", "4xN")];

/// A series for each test: mean CPU time, and jobs a second by the longest real time.
pub(super) fn fill(table: &Table, result: &mut RunResult) -> Result<(), ReferenceError> {
    let hypervisor = result.notes.get("hypervisor").cloned().unwrap_or_default();
    for line in table.lines() {
        let test = line.text("test")?;
        let (user_s, real_s) = (line.number("user_mean_s")?, line.number("real_max_s")?);
        let instances: u32 = line.integer("instances")?;
        result.notes.insert(format!("row {test}"), line.describe());
        let Some((_, layout)) = LAYOUTS.iter().find(|(name, _)| *name == test) else { continue };
        let Ok(layout) = layout.parse() else { continue };
        let round = LatencyRound {
            mean_ns: Some(to_ns(user_s, 1e9)),
            rate_per_s: Some(f64::from(instances) / real_s),
            compute: Some(Box::new(ComputeRound {
                implementation: IMPLEMENTATION.to_string(),
                window_s: real_s,
                threads: vec![],
            })),
            ..LatencyRound::default()
        };
        let key = SeriesKey {
            environment: result.name.clone(),
            stack: Stack::CPU.to_string(),
            probe: ProbeKind::Compute,
            case: Case::Layout { workload: Workload::Bc, layout },
            statistic: Statistic::JobTime,
        };
        let comparability = Comparability {
            layer: Some(format!("{hypervisor} guest")),
            implementation: Some(IMPLEMENTATION.to_string()),
            ..Comparability::default()
        };
        let settings = [("instances".into(), line_text(instances))];
        result.series.push(series(key, comparability, &settings, latency(&[], round)));
    }
    Ok(())
}

fn line_text(instances: u32) -> nm_model::SettingValue {
    nm_model::SettingValue::text(instances.to_string())
}
