//! Several results as a trend: each figure of each series in the order of the results' start.
//!
//! Results of one machine make a series; several machines are several series, one after the other.
//! Each result is tested against those before it on its machine, by the rules of [`gate`]. Series
//! of emulated guests are left out; a sentence for each says so.

use std::collections::BTreeSet;

use nm_model::baseline::{Baseline, MachineIdentity};
use nm_model::doubt::DoubtKind;
use nm_model::metric::{Metric, Quantity};
use nm_model::result::{RunResult, Series, Statistic};
use nm_model::stack::Difference;
use nm_model::trend::{Trend, TrendGate, TrendLine, TrendPoint, TrendResult};
use nm_model::verdict::Outcome;

use crate::baseline::baseline;
use crate::baseline_gate::{GateOptions, gate};
use crate::envdiff::envdiff;
use crate::pairing::{Any, fits};
use crate::select::{Selector, paths};
use crate::wording::list;

/// Fewest results of a trend.
pub const RESULTS_MIN: usize = 2;

/// Most results of a trend.
pub const RESULTS_MAX: usize = 100;

/// Which figures a trend follows.
#[derive(Debug, Clone, PartialEq)]
pub struct TrendOptions {
    /// The figures. Those that a series cannot have are left out for it.
    pub metrics: Vec<Metric>,
    /// Which series.
    pub on: Selector,
    /// The figures in which each result is tested against those before it.
    pub tested: Vec<Metric>,
    /// How it is tested.
    pub gate: GateOptions,
}

/// Why results make no trend.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TrendError {
    /// Fewer than [`RESULTS_MIN`] or more than [`RESULTS_MAX`].
    #[error("a trend has {RESULTS_MIN} to {RESULTS_MAX} results, {0} were given")]
    Count(usize),
    /// No series has a place that matches, or no series has one of the figures.
    #[error("nothing in the results matches `{on}` with {metrics}; they have {known}")]
    Nothing {
        /// The place.
        on: String,
        /// The figures.
        metrics: String,
        /// Places that there are.
        known: String,
    },
    /// All series that match were measured in emulated guests.
    #[error("figures of emulated guests make no trend: {0}")]
    Emulated(String),
}

/// Checks the number of results, before they are read.
///
/// # Errors
/// [`TrendError::Count`].
pub fn check_count(n_results: usize) -> Result<(), TrendError> {
    match (RESULTS_MIN..=RESULTS_MAX).contains(&n_results) {
        true => Ok(()),
        false => Err(TrendError::Count(n_results)),
    }
}

/// The trend of `results`, each with the name that the user gave it.
///
/// # Errors
/// If there are too few or too many, or none has the series and figures that are asked for.
pub fn trend(
    mut results: Vec<(String, RunResult)>,
    options: &TrendOptions,
) -> Result<Trend, TrendError> {
    check_count(results.len())?;
    results.sort_by_key(|(_, result)| start(result));
    let of_machines = by_machine(&mut results, options);
    for series in results.iter_mut().flat_map(|(_, result)| &mut result.series) {
        if series.estimates.is_empty() {
            nm_stats::rounds::estimate(series);
        }
    }
    let runs: Vec<&RunResult> = results.iter().map(|(_, run)| run).collect();
    let machines: Vec<usize> = of_machines.iter().map(|(machine, _)| *machine).collect();
    let lines = lines(&runs, &machines, options);
    let refused = refused(&results, &options.on);
    if lines.is_empty() && !refused.is_empty() {
        return Err(TrendError::Emulated(list(&refused, 4)));
    }
    if lines.is_empty() {
        let metrics: Vec<String> = options.metrics.iter().map(Metric::to_string).collect();
        return Err(TrendError::Nothing {
            on: options.on.text().to_string(),
            metrics: list(&metrics, 8),
            known: list(&paths(runs.iter().flat_map(|run| &run.series)), 8),
        });
    }
    let gates = gates(&of_machines, &options.gate);
    Ok(Trend { results: described(&results, of_machines), lines, refused, gates })
}

/// Puts the results of one machine together, in the order of their first ones. The answer is the
/// number of each result's machine, and its figures.
fn by_machine(
    results: &mut Vec<(String, RunResult)>,
    options: &TrendOptions,
) -> Vec<(usize, Baseline)> {
    let mut machines: Vec<MachineIdentity> = vec![];
    let mut all: Vec<(usize, Baseline, (String, RunResult))> = vec![];
    for (name, run) in results.drain(..) {
        let of_run =
            Baseline { name: name.clone(), ..baseline(&run, &options.tested, &options.on) };
        let is_same = |known: &MachineIdentity| known.differences(&of_run.machine).is_empty();
        let machine = machines.iter().position(is_same).unwrap_or_else(|| {
            machines.push(of_run.machine.clone());
            machines.len() - 1
        });
        all.push((machine, of_run, (name, run)));
    }
    all.sort_by_key(|(machine, ..)| *machine);
    let (of_machines, sorted): (Vec<_>, Vec<_>) =
        all.into_iter().map(|(machine, of_run, result)| ((machine, of_run), result)).unzip();
    *results = sorted;
    of_machines
}

/// Each result against those before it on its machine. One that failed is not accepted.
fn gates(of_machines: &[(usize, Baseline)], options: &GateOptions) -> Vec<TrendGate> {
    let mut gates: Vec<TrendGate> = vec![];
    let mut accepted: Vec<&Baseline> = vec![];
    let mut current = None;
    for (at, (machine, run)) in of_machines.iter().enumerate() {
        if current != Some(*machine) {
            (current, accepted) = (Some(*machine), vec![run]);
            continue;
        }
        let found = gate(run, &accepted, options);
        if found.outcome != Outcome::Fail {
            accepted.push(run);
        }
        gates.push(TrendGate { result: at, gate: found });
    }
    gates
}

/// A sentence for each series of a result that was measured in emulated guests.
fn refused(results: &[(String, RunResult)], on: &Selector) -> Vec<String> {
    let mut refused = vec![];
    for (name, run) in results {
        for series in run.series.iter().filter(|series| on.matches_key(&series.key)) {
            if let Some(mark) = series.emulated_mark() {
                refused.push(format!("{} of {name} is left out: {mark}", series.key));
            }
        }
    }
    refused
}

/// Orders results: times in UTC sort as text, but for the `Z` behind an optional fraction.
fn start(result: &RunResult) -> Option<String> {
    result.started.as_ref().map(|started| started.trim_end_matches('Z').to_string())
}

fn described(
    results: &[(String, RunResult)],
    of_machines: Vec<(usize, Baseline)>,
) -> Vec<TrendResult> {
    let mut described: Vec<TrendResult> = vec![];
    for (at, ((name, run), (machine, of_run))) in results.iter().zip(of_machines).enumerate() {
        let before = described.last().filter(|before| before.machine == machine);
        let changes = before.map(|_| envdiff(&results[at - 1].1, run)).unwrap_or_default();
        described.push(TrendResult {
            name: name.clone(),
            started: run.started.clone(),
            machine,
            identity: of_run.machine,
            plan: run.plan.as_ref().map(|plan| plan.name.clone()),
            state: run.state,
            changes,
        });
    }
    described
}

/// One series in each result, if the result has it.
type Followed<'a> = Vec<Option<&'a Series>>;

fn lines(runs: &[&RunResult], machines: &[usize], options: &TrendOptions) -> Vec<TrendLine> {
    let mut lines = vec![];
    for followed in followed(runs, &options.on) {
        let Some(first) = followed.iter().flatten().next() else { continue };
        for &metric in &options.metrics {
            if !can_have(first.key.statistic, metric) {
                continue;
            }
            let line = TrendLine { series: first.key.clone(), metric, points: vec![] };
            let line = TrendLine { points: points(&followed, machines, metric), ..line };
            if line.points.iter().any(|point| point.value.is_some()) {
                lines.push(line);
            }
        }
    }
    lines
}

fn can_have(statistic: Statistic, metric: Metric) -> bool {
    (statistic == Statistic::Throughput) == (metric.quantity() == Quantity::Throughput)
}

/// The series of all results, equal ones together.
fn followed<'a>(runs: &[&'a RunResult], on: &Selector) -> Vec<Followed<'a>> {
    let chosen: Vec<Vec<&Series>> = runs
        .iter()
        .map(|run| {
            let is_chosen = |one: &&Series| on.matches_key(&one.key) && !one.is_emulated();
            run.series.iter().filter(is_chosen).collect()
        })
        .collect();
    let sides: Vec<&[&Series]> = chosen.iter().map(Vec::as_slice).collect();
    let any = Any::of(&sides);
    let mut all: Vec<Followed<'a>> = vec![];
    for (at, of_run) in chosen.iter().enumerate() {
        for &series in of_run {
            let known = all.iter_mut().find(|followed| {
                let first = followed.iter().flatten().next();
                followed[at].is_none() && first.is_some_and(|first| fits(first, series, any))
            });
            match known {
                Some(followed) => followed[at] = Some(series),
                None => {
                    let mut new = vec![None; runs.len()];
                    new[at] = Some(series);
                    all.push(new);
                }
            }
        }
    }
    all
}

fn points(followed: &Followed<'_>, machines: &[usize], metric: Metric) -> Vec<TrendPoint> {
    let mut points = vec![];
    let mut base: Option<&Series> = None;
    let (mut first, mut previous): (Option<f64>, Option<f64>) = (None, None);
    let mut current = None;
    for (series, &machine) in followed.iter().zip(machines) {
        if current != Some(machine) {
            (current, base, first, previous) = (Some(machine), None, None, None);
        }
        let Some(series) = series else {
            points.push(TrendPoint::default());
            continue;
        };
        let base = *base.get_or_insert(series);
        let mut point =
            TrendPoint { differences: differences(base, series), ..point(series, metric) };
        let ratio = |to: Option<f64>| {
            let ratio = point.value? / to.filter(|to| *to > 0.0)?;
            ratio.is_finite().then_some(ratio)
        };
        (point.ratio_to_first, point.ratio_to_previous) = (ratio(first), ratio(previous));
        previous = point.value.or(previous);
        first = first.or(point.value);
        points.push(point);
    }
    points
}

/// The figure as reports show it.
fn point(series: &Series, metric: Metric) -> TrendPoint {
    let interval = match metric {
        // That of the estimate is about the median of the rounds' extremes.
        Metric::Min | Metric::Max => None,
        _ => series.estimate(metric).and_then(|found| found.interval),
    };
    let doubts: BTreeSet<DoubtKind> = series.doubts.iter().map(|doubt| doubt.kind).collect();
    TrendPoint {
        is_measured: true,
        value: nm_stats::rounds::figure(&series.rounds, metric),
        interval,
        rounds: series.rounds.iter().filter(|round| round.value(metric).is_some()).count() as u32,
        doubts: doubts.into_iter().collect(),
        ..TrendPoint::default()
    }
}

fn differences(base: &Series, series: &Series) -> Vec<Difference> {
    base.comparability.differences(&series.comparability)
}
