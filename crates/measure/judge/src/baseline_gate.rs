//! A run against the accepted runs of its machine.
//!
//! Each primary figure is measured against the mean of the last accepted runs by the deviation
//! between runs, which these runs show (see `nm_stats::run_effect`). Runs of other machines do not
//! count, and figures that are not like for like decide nothing. A figure that the accepted runs
//! have and the run lacks leaves the outcome open.

use std::collections::BTreeMap;

use nm_model::baseline::{Baseline, BaselineFigure, FigureKey};
use nm_model::comparison::change_text;
use nm_model::gate::{AcceptedRun, Gate, GateFigure};
use nm_model::verdict::{Interval, Outcome, Relation};
use nm_stats::describe::{mean, median};
use nm_stats::run_effect::{self, Deviation, FOUND_MAX, Family, Found, RUN_DEVIATION};

use crate::baseline::is_same_run;
use crate::gate::found_text;
use crate::wording::{count, figure, list};

/// Accepted runs that a gate takes by default, the last ones.
pub const BASELINES: usize = 10;

/// How a run is tested.
#[derive(Debug, Clone, PartialEq)]
pub struct GateOptions {
    /// Most accepted runs that count, the last ones.
    pub last: usize,
    /// Ratio that still counts as equal, %.
    pub margin_percent: f64,
    /// Standard deviation between runs that is taken beside what the accepted runs show, %;
    /// [`RUN_DEVIATION`] if absent.
    pub run_deviation_percent: Option<f64>,
}

impl Default for GateOptions {
    fn default() -> GateOptions {
        GateOptions { last: BASELINES, margin_percent: 5.0, run_deviation_percent: None }
    }
}

/// Tests `run` against `accepted`, in any order.
pub fn gate(run: &Baseline, accepted: &[&Baseline], options: &GateOptions) -> Gate {
    let Chosen { baselines, mut remarks } = choose(run, accepted, options.last);
    let mut gate = Gate {
        run: named(run),
        machine: run.machine.clone(),
        baselines: baselines.iter().map(|one| named(one)).collect(),
        margin_percent: options.margin_percent,
        run_deviation_percent: options.run_deviation_percent.unwrap_or(RUN_DEVIATION * 100.0),
        is_stated: options.run_deviation_percent.is_some(),
        figures: vec![],
        doubts: run.doubts.clone(),
        outcome: Outcome::Inconclusive,
        reasons: vec![],
    };
    let Some(newest) = baselines.last() else {
        let machine = &run.machine;
        gate.reasons = vec![format!("no accepted run of {machine} to test against")];
        gate.reasons.append(&mut remarks);
        return gate;
    };
    let mut missing = vec![];
    let pairs: Vec<Pair> = newest
        .figures
        .iter()
        .filter_map(|figure| {
            pair(run, &baselines, newest, &figure.key).map_err(|e| missing.push(e)).ok()
        })
        .collect();
    let family = Family::of_gate(pairs.len());
    let margin = (1.0 + options.margin_percent.max(0.0) / 100.0).ln();
    let of_run = gate.run_deviation_percent / 100.0;
    let tested: Vec<Tested> =
        pairs.iter().map(|pair| pair.tested(of_run, family, margin)).collect();
    gate.figures = tested.iter().map(|one| one.row.clone()).collect();
    let is_equal = missing.is_empty() && baselines.iter().all(|one| is_same_run(one, run));
    if is_equal {
        gate.figures.iter_mut().for_each(|row| row.relation = Relation::Equivalent);
    }
    decide(&mut gate, &tested, family, is_equal, &missing);
    if !run.is_complete {
        gate.reasons.push("the run did not come to its end".to_string());
        if gate.outcome == Outcome::Pass {
            gate.outcome = Outcome::Inconclusive;
        }
    }
    gate.reasons.append(&mut missing);
    gate.reasons.append(&mut remarks);
    gate.reasons.extend(new_figures(run, newest));
    gate
}

fn named(run: &Baseline) -> AcceptedRun {
    AcceptedRun { name: run.name.clone(), started: run.started.clone() }
}

/// The accepted runs that count, oldest first, and what is to be said about them.
struct Chosen<'a> {
    baselines: Vec<&'a Baseline>,
    remarks: Vec<String>,
}

fn choose<'a>(run: &Baseline, accepted: &[&'a Baseline], last: usize) -> Chosen<'a> {
    let mut remarks = vec![];
    let mut others: BTreeMap<String, usize> = BTreeMap::new();
    let mut baselines: Vec<&Baseline> = vec![];
    for &one in accepted {
        let differences = one.machine.differences(&run.machine);
        if differences.is_empty() {
            baselines.push(one);
            continue;
        }
        let each: Vec<String> =
            differences.iter().map(|d| format!("{} {} against {}", d.field, d.b, d.a)).collect();
        *others.entry(list(&each, 4)).or_default() += 1;
    }
    for (how, n_runs) in others {
        let runs = count(n_runs, "accepted run", "accepted runs");
        remarks.push(format!("{runs} of another machine left out: {how}"));
    }
    // Without the Z, a start with a fraction comes behind the one without.
    let start = |one: &&Baseline| one.started.as_ref().map(|s| s.trim_end_matches('Z').to_string());
    baselines.sort_by_key(start);
    if baselines.iter().any(|one| !is_same_run(one, run)) {
        let n_before = baselines.len();
        baselines.retain(|one| !is_same_run(one, run));
        if baselines.len() < n_before {
            remarks.push("the run itself is among the accepted ones; it is left out".to_string());
        }
    }
    baselines.drain(..baselines.len().saturating_sub(last.max(1)));
    let is_other_plan = |one: &&Baseline| one.plan != run.plan;
    if let Some(other) = baselines.iter().rev().copied().find(|one| is_other_plan(one)) {
        let n_runs = baselines.iter().filter(|one| is_other_plan(one)).count();
        let runs = count(n_runs, "accepted run", "accepted runs");
        let plan = |one: &Baseline| match &one.plan {
            Some(plan) => format!("{} ({})", plan.name, plan.hash),
            None => "none".to_string(),
        };
        remarks.push(format!("the plan is {}, that of {runs} {}", plan(run), plan(other)));
    }
    if let Some(other) = baselines.last().filter(|one| one.kernels != run.kernels) {
        let of = |one: &Baseline| one.kernels.join(" and ");
        remarks.push(format!("the kernel is {}, that of the last one {}", of(run), of(other)));
    }
    Chosen { baselines, remarks }
}

/// A figure of the run with that of each accepted run that has it like for like.
pub(crate) struct Pair<'a> {
    pub key: &'a FigureKey,
    pub before: Vec<&'a [f64]>,
    pub rounds: &'a [f64],
}

/// The figure of `key` in a run. Environments need not agree by name where both runs have only one;
/// the same holds for stacks.
fn find<'a>(run: &'a Baseline, of: &Baseline, key: &FigureKey) -> Option<&'a BaselineFigure> {
    let are_single = |name: fn(&FigureKey) -> &String| {
        [run, of].iter().all(|one| {
            let mut names = one.figures.iter().map(|figure| name(&figure.key));
            let first = names.next();
            names.all(|other| Some(other) == first)
        })
    };
    let is_any_environment = are_single(|key| &key.environment);
    let is_any_stack = are_single(|key| &key.stack);
    run.figures.iter().find(|figure| {
        let mut other = figure.key.clone();
        if is_any_environment {
            other.environment.clone_from(&key.environment);
        }
        if is_any_stack {
            other.stack.clone_from(&key.stack);
        }
        other == *key
    })
}

/// # Errors
/// Why there is none, as a sentence.
pub(crate) fn pair<'a>(
    run: &'a Baseline,
    baselines: &[&'a Baseline],
    newest: &Baseline,
    key: &'a FigureKey,
) -> Result<Pair<'a>, String> {
    let new = find(run, newest, key)
        .ok_or_else(|| format!("the run lacks {key}, and may be worse there"))?;
    let known = baselines.iter().filter_map(|one| find(one, newest, key));
    let (mut before, mut unlike): (Vec<&[f64]>, Vec<String>) = (vec![], vec![]);
    for figure in known {
        let differences = figure.comparability.differences(&new.comparability);
        match differences.is_empty() {
            true => before.push(&figure.rounds),
            false => {
                let each = differences.iter();
                unlike = each.map(|d| format!("{} is {} against {}", d.field, d.b, d.a)).collect();
            }
        }
    }
    match before.is_empty() {
        true => Err(format!("{key} is not like for like: {}", list(&unlike, 4))),
        false => Ok(Pair { key, before, rounds: &new.rounds }),
    }
}

/// A figure with its decision.
struct Tested {
    row: GateFigure,
    deviation: Deviation,
    found: Found,
    n_rounds: usize,
}

impl Pair<'_> {
    fn tested(&self, of_run: f64, family: Family, margin: f64) -> Tested {
        let deviation = run_effect::against(of_run, &self.before, self.rounds);
        let log = run_effect::log_ratio(&self.before, self.rounds);
        let sign = if self.key.metric.more_is_better() { -1.0 } else { 1.0 };
        let pooled = self.before.concat();
        let is_zero = |rounds: &[f64]| median(rounds) == Some(0.0);
        let found = match log {
            Some(log) => {
                let rounds = [&pooled[..], self.rounds];
                run_effect::decide(&deviation, sign * log, rounds, family, margin)
            }
            // Zeros have no ratio: only zeros are as good as zeros.
            None if is_zero(self.rounds) && self.before.iter().all(|one| is_zero(one)) => {
                Found::NotWorse
            }
            None => Found::Undecided,
        };
        let limit = deviation.limit(family);
        let percent = |log: f64| log.exp_m1().min(1e9) * 100.0;
        let logs: Vec<f64> =
            self.before.iter().filter_map(|one| median(one)).map(f64::ln).collect();
        let bounds = |log: f64| Interval {
            low: (log - limit).exp(),
            high: (log + limit).exp(),
            level: 1.0 - 2.0 * family.alpha,
        };
        let row = GateFigure {
            key: self.key.clone(),
            n_baselines: u32::try_from(self.before.len()).unwrap_or(u32::MAX),
            baseline: mean(&logs).map(f64::exp),
            value: median(self.rounds),
            ratio: log.map(f64::exp),
            bounds: log.map(bounds),
            run_deviation_percent: deviation.of_run * 100.0,
            finds_percent: percent(deviation.smallest_found(family, margin)),
            finds_by_two_percent: percent(deviation.smallest_found_by_two(family, margin)),
            has_few_rounds: deviation.is_assumed,
            relation: relation(found),
        };
        let n_rounds = self.before.iter().map(|one| one.len()).min().unwrap_or_default();
        Tested { row, deviation, found, n_rounds: n_rounds.min(self.rounds.len()) }
    }
}

fn relation(found: Found) -> Relation {
    match found {
        Found::Worse => Relation::Worse,
        Found::Better => Relation::Better,
        Found::NotWorse => Relation::Equivalent,
        Found::Undecided => Relation::Unclear,
    }
}

/// Sets the outcome and its reasons.
fn decide(gate: &mut Gate, tested: &[Tested], family: Family, is_equal: bool, missing: &[String]) {
    // Ratios that read the same count as one, and the first figure is named.
    let size = |one: &&Tested| one.row.ratio.map_or(0.0, |ratio| (ratio.ln().abs() * 1e4).round());
    let of = |found| tested.iter().rev().filter(move |one| one.found == found);
    let worst = of(Found::Worse).max_by(|x, y| size(x).total_cmp(&size(y)));
    let open =
        of(Found::Undecided).max_by(|x, y| x.row.finds_percent.total_cmp(&y.row.finds_percent));
    let (outcome, reason) = match (worst, open) {
        (Some(worst), _) => (Outcome::Fail, worse(worst)),
        _ if is_equal && !tested.is_empty() => {
            let same = "the run is the accepted one: every figure is the same";
            (Outcome::Pass, same.to_string())
        }
        (None, Some(open)) => (Outcome::Inconclusive, undecided(open, family)),
        _ if tested.is_empty() => {
            (Outcome::Inconclusive, "no primary figure can be tested".to_string())
        }
        _ => (Outcome::Pass, as_good(tested, family)),
    };
    gate.outcome = match outcome {
        Outcome::Pass if !missing.is_empty() => Outcome::Inconclusive,
        outcome => outcome,
    };
    gate.reasons.push(reason);
    gate.reasons.extend(detection(gate));
}

/// `30 % slower`, or `not a ratio`.
fn change(row: &GateFigure) -> String {
    let change = row.ratio.and_then(|ratio| change_text(row.key.metric, ratio));
    change.unwrap_or_else(|| "not a ratio".to_string())
}

fn worse(one: &Tested) -> String {
    let row = &one.row;
    let text = |value: Option<f64>| value.map_or("n/a".to_string(), |v| figure(row.key.metric, v));
    let runs = count(row.n_baselines as usize, "accepted run", "accepted runs");
    format!(
        "{} is {}: {} against {} of {runs}",
        row.key,
        change(row),
        text(row.value),
        text(row.baseline)
    )
}

fn as_good(tested: &[Tested], family: Family) -> String {
    let upper = tested.iter().map(|one| {
        let sign = if one.row.key.metric.more_is_better() { -1.0 } else { 1.0 };
        let log = sign * one.row.ratio.unwrap_or(1.0).ln();
        one.deviation.upper_bound(log, family).exp_m1() * 100.0
    });
    let upper = upper.fold(0.0, f64::max);
    let figures = count(tested.len(), "primary figure", "primary figures");
    format!("not worse than the accepted runs by more than {upper:.0} % in {figures}")
}

/// Which figure is undecided, and what would decide.
fn undecided(one: &Tested, family: Family) -> String {
    let size = one.deviation.smallest_found(family, 0.0);
    let is_wide = size > FOUND_MAX;
    let rounds = one.deviation.rounds_for(FOUND_MAX, family, one.n_rounds);
    let wanted = match rounds {
        _ if one.deviation.is_assumed => "five rounds a run or more would decide".to_string(),
        Some(rounds) if is_wide => format!("about {rounds} rounds a run would decide"),
        _ => "a second run, or more accepted runs, would decide".to_string(),
    };
    let found = match is_wide {
        true => format!("the gate finds no less than {}", found_text(size)),
        false => "too much for equal, too little for worse".to_string(),
    };
    format!("{} is {}: {found}; {wanted}", one.row.key, change(&one.row))
}

/// What the gate finds, of the figure that it finds the least in, and what that rests on.
fn detection(gate: &Gate) -> Vec<String> {
    let by_size = |x: &&GateFigure, y: &&GateFigure| x.finds_percent.total_cmp(&y.finds_percent);
    let (least, most) = (gate.figures.iter().min_by(by_size), gate.figures.iter().max_by(by_size));
    let (Some(least), Some(widest)) = (least, most) else { return vec![] };
    let n = widest.n_baselines as usize;
    let text = |percent: f64| match percent {
        percent if percent < 200.0 => format!("{percent:.0} %"),
        percent => format!("a factor of {:.0}", percent / 100.0 + 1.0),
    };
    let size = |row: &GateFigure| text(row.finds_by_two_percent);
    let sizes = match gate.figures.len() {
        n if size(least) == size(widest) => {
            let figures = count(n, "primary figure", "primary figures");
            format!("{} and more in {figures}", size(widest))
        }
        n => format!(
            "{} and more in the steadiest of {n} primary figures, {} in the noisiest,",
            size(least),
            size(widest)
        ),
    };
    let finds = format!(
        "with {} this gate finds {sizes} within two runs: 95 of 100 are found, at most 1 run of \
         100 is a false alarm",
        count(n, "accepted run", "accepted runs"),
    );
    let given = gate.run_deviation_percent;
    let how = if gate.is_stated { "as stated" } else { "assumed (--run-deviation)" };
    let basis = match n {
        1 => format!("runs of one system differ by {given} % {how}"),
        _ => format!(
            "runs differ by {:.1} %: learned from {n} of them; {given} % {how} counts as {} more",
            widest.run_deviation_percent,
            run_effect::ASSUMED_FREEDOM
        ),
    };
    let few = "a run has fewer than five rounds, so the scatter of its rounds is assumed";
    let has_few = gate.figures.iter().any(|figure| figure.has_few_rounds);
    [finds, basis].into_iter().chain(has_few.then(|| few.to_string())).collect()
}

/// Figures that only the run has.
fn new_figures(run: &Baseline, newest: &Baseline) -> Option<String> {
    let is_new = |figure: &&BaselineFigure| find(newest, run, &figure.key).is_none();
    let n_new = run.figures.iter().filter(is_new).count();
    (n_new > 0).then(|| {
        let figures = count(n_new, "figure", "figures");
        format!("{figures} of the run without an accepted value: not tested")
    })
}
