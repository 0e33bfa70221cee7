//! What the plan has for a target: the cases that it covers, and those without a figure. Also the
//! rows that are left out because they cannot run here, or ran in emulated guests.

use nm_model::GuestExecution;
use nm_model::campaign::NotAvailable;
use nm_model::metric::{Metric, Quantity};
use nm_model::plan::{PlanRow, PlanTarget, Scope};
use nm_model::probe::ProbeKind;
use nm_model::result::{RunResult, RunState, SeriesKey, Statistic, TrialFailure};

use crate::finding::Finding;
use crate::wording::{count, list};

/// Most paths that a reason lists.
pub(crate) const NAMED_MAX: usize = 8;

/// Whether a target is for a series.
pub(crate) fn covers(wanted: &PlanTarget, key: &SeriesKey) -> bool {
    let is_stream = key.statistic == Statistic::Throughput;
    let has_metric = match wanted.require.metric.quantity() {
        Quantity::Throughput => is_stream,
        Quantity::Latency | Quantity::Ratio | Quantity::Rate => !is_stream,
    };
    let is_of_class =
        wanted.classes.is_empty() || key.class().is_some_and(|class| wanted.covers_class(class));
    has_metric
        && is_of_class
        && wanted.on.matches_key(key)
        && wanted.covers_probe(key.probe)
        && wanted.require.covers(&key.case)
}

/// One case of a row of the plan.
pub(crate) struct PlannedCase<'a> {
    pub key: SeriesKey,
    /// Whether the row may be left out where it cannot run.
    pub is_optional: bool,
    /// Why the row cannot run here, if it cannot.
    pub unavailable: Option<&'a NotAvailable>,
    /// The mark of its figures, if its guests were emulated.
    pub emulated: Option<String>,
}

impl PlannedCase<'_> {
    /// Whether the row cannot run here, rather than having failed.
    fn cannot_run(&self) -> bool {
        self.unavailable.is_some_and(|row| !row.has_failed)
    }
}

/// The cases of the planned rows of this run that a target covers.
pub(crate) fn planned_cases<'a>(
    result: &'a RunResult,
    wanted: &PlanTarget,
) -> Vec<PlannedCase<'a>> {
    let mut found = vec![];
    for row in result.planned_rows() {
        let unavailable = result.unavailable_row(&row);
        let is_optional = row.block.optional;
        let emulated = result.emulation_of(&row).and_then(GuestExecution::mark);
        let keys = keys_of_row(&row, wanted.require.metric);
        let covered = keys.into_iter().filter(|key| covers(wanted, key));
        found.extend(covered.map(|key| {
            let emulated = emulated.clone();
            PlannedCase { key, is_optional, unavailable, emulated }
        }));
    }
    found
}

fn keys_of_row(row: &PlanRow<'_>, metric: Metric) -> Vec<SeriesKey> {
    let probe = row.probe().kind();
    let key = |case| SeriesKey {
        environment: row.environment.to_string(),
        stack: row.stack_name(),
        probe,
        case,
        statistic: planned_statistic(metric, probe),
    };
    row.probe().cases().into_iter().map(key).collect()
}

/// What the plan has for a target beside the measured series.
#[derive(Default)]
pub(crate) struct Planned {
    /// Cases without a figure that the target counts, in order of their text.
    pub missing: Vec<Finding>,
    /// Rows that it does not count, because they cannot run here or ran in emulated guests.
    pub left_out: Vec<LeftOut>,
}

/// A row that is left out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LeftOut {
    pub path: String,
    pub reason: String,
}

/// Divides the planned cases without a figure into those that count, and rows that are left out:
/// optional ones that cannot run here or ran in emulated guests, and any that cannot run here where
/// one series is enough. A row that is not optional counts also if its guests were emulated.
pub(crate) fn planned(result: &RunResult, wanted: &PlanTarget) -> Planned {
    let mut planned = Planned::default();
    for case in planned_cases(result, wanted) {
        let is_left_out = case.cannot_run() && (case.is_optional || wanted.scope == Scope::Any);
        let PlannedCase { key, unavailable, emulated, is_optional } = case;
        let is_measured = result.series.iter().any(|series| {
            series.key.is_same_case(&key) && !series.rounds.is_empty() && !series.is_emulated()
        });
        if is_measured || planned.missing.iter().any(|finding| finding.key == key) {
            continue;
        }
        let mut leave_out = |reason: String| {
            let row = LeftOut { path: key.path(), reason };
            if !planned.left_out.contains(&row) {
                planned.left_out.push(row);
            }
        };
        match (unavailable, emulated) {
            (Some(row), _) if is_left_out => leave_out(row.reason.clone()),
            (_, Some(mark)) if is_optional => leave_out(mark),
            (_, Some(mark)) => {
                let reason = format!("{mark}: figures of emulated guests are not judged");
                planned.missing.push(Finding::missing(key, reason));
            }
            (Some(row), None) => {
                let reason = format!("not available: {}", row.reason);
                planned.missing.push(Finding::missing(key, reason));
            }
            (None, None) => {
                let reason = not_measured(result, &key);
                planned.missing.push(Finding::missing(key, reason));
            }
        }
    }
    planned.missing.sort_by(|a, b| a.evidence.series.cmp(&b.evidence.series));
    planned
}

/// The rows that are left out, by reason: `netns/xdp-spin, bridge/xdp-spin (AF_XDP needs root)`.
pub(crate) fn left_out_text(rows: &[LeftOut]) -> String {
    let mut by_reason: Vec<(&str, Vec<&str>)> = vec![];
    for row in rows {
        match by_reason.iter_mut().find(|(reason, _)| *reason == row.reason) {
            Some((_, paths)) => paths.push(&row.path),
            None => by_reason.push((&row.reason, vec![&row.path])),
        }
    }
    let each: Vec<String> = by_reason
        .iter()
        .map(|(reason, paths)| match paths.len() {
            0..=NAMED_MAX => format!("{} ({reason})", list(paths, NAMED_MAX)),
            n => format!("{} ({reason})", count(n, "row", "rows")),
        })
        .collect();
    each.join("; ")
}

fn planned_statistic(metric: Metric, probe: ProbeKind) -> Statistic {
    use ProbeKind::{Compute, Jitter, Pingpong, Stream};
    match (probe, metric) {
        (Stream, _) => Statistic::Throughput,
        (Pingpong, _) => Statistic::HalfRoundTrip,
        (Compute, _) => Statistic::JobTime,
        (Jitter, _) => Statistic::Interruption,
        _ => Statistic::RoundTripFromIntended,
    }
}

fn not_measured(result: &RunResult, key: &SeriesKey) -> String {
    match failure_of(&result.failures, key) {
        Some(failure) => format!("not measured: {failure}"),
        None if result.state != RunState::Complete => {
            "not measured before the run ended".to_string()
        }
        None => "not measured".to_string(),
    }
}

/// The failure that left a series without figures: that of its own case, else that of another case
/// of its row, after which the trial did not go on.
fn failure_of<'a>(failures: &'a [TrialFailure], key: &SeriesKey) -> Option<&'a TrialFailure> {
    let of_row = || {
        let is_of_row = |failure: &&TrialFailure| {
            let row = failure.row.as_ref();
            row.is_some_and(|row| row.factor.is_none() && key.is_of_row(row))
        };
        failures.iter().filter(is_of_row)
    };
    let case = |failure: &TrialFailure| failure.row.as_ref().and_then(|row| row.case);
    of_row().find(|failure| case(failure) == Some(key.case)).or_else(|| of_row().next())
}
