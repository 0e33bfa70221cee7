//! A result against the targets of its plan.
//!
//! The value of a series is its estimate over rounds. A series passes only if its 95 % interval
//! lies completely on the right side of the limit. It fails only if the interval lies completely on
//! the wrong side. It is inconclusive otherwise, and with fewer than five rounds or a percentile
//! without enough samples. Figures of another tool or of a published run are inconclusive as well.
//! So is a doubt that could
//! invalidate the pass (see `doubts`).
//!
//! [`Scope::Every`]: each covered series must pass, and each row of the plan must be present;
//! a missing one makes the target inconclusive. [`Scope::Any`]: for each case one passing
//! series is enough. A row that cannot run on this machine is left out with [`Scope::Any`], and
//! with either scope if the plan calls it optional. A row that ran without a figure counts as
//! inconclusive, and so does one that was given up after failures.
//!
//! Figures of emulated guests are never judged: an optional row of them is left out, any other one
//! counts as inconclusive.
//!
//! A target is not judged at all if the run is a part of the plan that has none of its rows. Nor is
//! it if all of its rows are optional and cannot run here, or ran in emulated guests only. A part
//! of a plan can fail, but not pass, unless it is to be judged alone.
//!
//! [`Scope::Every`]: nm_model::plan::Scope::Every
//! [`Scope::Any`]: nm_model::plan::Scope::Any

use nm_model::GuestExecution;
use nm_model::coverage::{NotJudged, NotJudgedReason, PlanItem};
use nm_model::plan::{Plan, PlanComparison, PlanRow, PlanTarget, published_run};
use nm_model::result::{RunResult, RunState, Series, SeriesKey, Statistic};
use nm_model::verdict::{Comparison, Outcome, Verdict};

use crate::compare::compare_parts;
use crate::factors;
use crate::finding::{Finding, judge_series};
use crate::machine::judge_machine;
use crate::planned::{LeftOut, NAMED_MAX, Planned, covers, left_out_text, planned, planned_cases};
use crate::scope::{Decision, decide};
use crate::select::paths;
use crate::undecided::undecided;
use crate::wording::list;

/// Finds a published run by name.
type FindRun<'a> = &'a dyn Fn(&str) -> Option<RunResult>;

/// Judges the machine and every target of the result's plan, makes the comparisons of the plan, and
/// sets the outcome, which is that of all limits and targets together: inconclusive if there are
/// none. An incomplete run passes no target, and a part of a plan does not pass, unless it is to be
/// judged alone. Targets that are missed beside programs that the user can end leave the run open,
/// each with its own verdict (see `undecided`).
///
/// `references` finds a published run by name, for comparisons with `reference:NAME`.
pub fn judge(result: &mut RunResult, references: FindRun<'_>) {
    for series in &mut result.series {
        if series.estimates.is_empty() {
            nm_stats::rounds::estimate(series);
        }
    }
    let plan = result.plan.clone();
    let rows = plan.as_ref().map(Plan::rows).unwrap_or_default();
    let (targets, comparisons) =
        plan.as_ref().map_or((&[][..], &[][..]), |plan| (&plan.targets[..], &plan.comparisons[..]));
    let mut judged = Judged::default();
    if let Some(limits) = plan.as_ref().and_then(|plan| plan.machine.as_ref()) {
        judged.verdicts = judge_machine(limits, result.machine.as_ref());
    }
    for target in targets {
        let split = Split::of_rows(result, rows.iter().filter(|row| target.covers_row(row)));
        judged.target(result, target, &split);
    }
    for comparison in comparisons {
        let sides = comparison.sides().map(|side| {
            let covered = rows.iter().filter(|row| PlanComparison::side_covers_row(side, row));
            (published_run(side).is_none()).then(|| Split::of_rows(result, covered))
        });
        judged.comparison(result, comparison, sides, references);
    }
    result.outcome = Outcome::all(judged.verdicts.iter().map(|verdict| verdict.outcome));
    if result.outcome == Outcome::Pass && judged.has_emulation_alone() {
        result.outcome = Outcome::Inconclusive;
    }
    let is_part = judged.is_part && result.part.as_ref().is_some_and(|part| !part.is_judged_alone);
    if result.outcome == Outcome::Pass && (result.state != RunState::Complete || is_part) {
        result.outcome = Outcome::Inconclusive;
    }
    result.verdicts = judged.verdicts;
    result.comparisons = judged.comparisons;
    result.not_judged = judged.not_judged;
    result.undecided = undecided(result);
    if result.undecided.is_some() {
        result.outcome = Outcome::Inconclusive;
    }
    factors::judge(result);
}

/// The rows of the whole plan that a target or a side of a comparison covers.
struct Split {
    n_planned: u32,
    /// Those that this run has.
    n_judged: u32,
    /// Of those, the rows that are optional and cannot run here, or ran in emulated guests.
    left_out: Vec<LeftOut>,
    /// Whether a row that is left out ran in emulated guests.
    has_emulated: bool,
}

impl Split {
    fn of_rows<'a>(result: &RunResult, rows: impl Iterator<Item = &'a PlanRow<'a>>) -> Split {
        let mut split = Split { n_planned: 0, n_judged: 0, left_out: vec![], has_emulated: false };
        for row in rows {
            split.n_planned += 1;
            if result.part.as_ref().is_some_and(|part| !row.is_taken_by(&part.only)) {
                continue;
            }
            split.n_judged += 1;
            if !row.block.optional {
                continue;
            }
            let unavailable = result.unavailable_row(row).filter(|one| !one.has_failed);
            let unavailable = unavailable.map(|one| one.reason.clone());
            let emulated = result.emulation_of(row).and_then(GuestExecution::mark);
            split.has_emulated |= unavailable.is_none() && emulated.is_some();
            if let Some(reason) = unavailable.or(emulated) {
                split.left_out.push(LeftOut { path: row.path(), reason });
            }
        }
        split
    }

    /// Whether `--only` left out all rows.
    fn is_empty(&self) -> bool {
        self.n_planned > 0 && self.n_judged == 0
    }

    /// Whether `--only` left out some rows, but not all.
    fn is_partial(&self) -> bool {
        0 < self.n_judged && self.n_judged < self.n_planned
    }

    /// Why none of the rows has a figure that counts, if all of them are left out.
    fn all_left_out(&self) -> Option<NotJudgedReason> {
        let is_all = self.n_judged > 0 && self.left_out.len() == self.n_judged as usize;
        let rows = left_out_text(&self.left_out);
        is_all.then(|| match self.has_emulated {
            true => NotJudgedReason::Emulated {
                reason: format!("optional, and figures of emulated guests do not count: {rows}"),
            },
            false => NotJudgedReason::NotAvailable {
                reason: format!("optional and not available: {rows}"),
            },
        })
    }
}

/// What judging has found so far.
#[derive(Default)]
struct Judged {
    verdicts: Vec<Verdict>,
    comparisons: Vec<Comparison>,
    not_judged: Vec<NotJudged>,
    /// Whether a target or comparison lost rows to `--only`.
    is_part: bool,
}

impl Judged {
    /// Whether no target was judged, and of one because its rows ran in emulated guests only: the
    /// limits of the machine alone are no pass then.
    fn has_emulation_alone(&self) -> bool {
        let is_emulated = |one: &NotJudged| matches!(one.reason, NotJudgedReason::Emulated { .. });
        self.not_judged.iter().any(is_emulated)
            && self.verdicts.iter().all(|verdict| verdict.is_of_machine)
    }

    fn target(&mut self, result: &RunResult, target: &PlanTarget, split: &Split) {
        let not_judged =
            |reason| NotJudged { item: PlanItem::Target, text: target.to_string(), reason };
        self.is_part |= split.is_empty() || split.is_partial();
        if split.is_empty() {
            return self.not_judged.push(not_judged(NotJudgedReason::RowsLeftOut));
        }
        let planned = planned(result, target);
        let counts = |series: &Series| !series.is_emulated() && covers(target, &series.key);
        let is_measured = result.series.iter().any(counts);
        if let (Some(reason), false) = (split.all_left_out(), is_measured) {
            return self.not_judged.push(not_judged(reason));
        }
        if split.is_partial() {
            let Split { n_judged, n_planned, .. } = *split;
            let reason = NotJudgedReason::SomeRowsLeftOut { n_judged, n_planned };
            self.not_judged.push(not_judged(reason));
        }
        self.verdicts.push(judge_target(result, target, planned, split));
    }

    fn comparison(
        &mut self,
        result: &RunResult,
        comparison: &PlanComparison,
        sides: [Option<Split>; 2],
        references: FindRun<'_>,
    ) {
        let sides: Vec<Split> = sides.into_iter().flatten().collect();
        let not_judged =
            |reason| NotJudged { item: PlanItem::Comparison, text: comparison.to_string(), reason };
        self.is_part |= sides.iter().any(|side| side.is_empty() || side.is_partial());
        if sides.iter().any(Split::is_empty) {
            return self.not_judged.push(not_judged(NotJudgedReason::RowsLeftOut));
        }
        if let Some(reason) = sides.iter().find_map(Split::all_left_out) {
            return self.not_judged.push(not_judged(reason));
        }
        if sides.iter().any(Split::is_partial) {
            let n_judged = sides.iter().map(|side| side.n_judged).sum();
            let n_planned = sides.iter().map(|side| side.n_planned).sum();
            let reason = NotJudgedReason::SomeRowsLeftOut { n_judged, n_planned };
            self.not_judged.push(not_judged(reason));
        }
        self.comparisons.push(compare_parts(result, comparison, references));
    }
}

fn judge_target(
    result: &RunResult,
    wanted: &PlanTarget,
    planned: Planned,
    split: &Split,
) -> Verdict {
    let mut findings: Vec<Finding> = result
        .series
        .iter()
        .filter(|series| !series.is_emulated() && covers(wanted, &series.key))
        .filter(|series| !is_replaced_by_intended(result, &series.key))
        .map(|series| judge_series(&wanted.require, series, &result.source))
        .collect();
    findings.extend(planned.missing);
    let decision = match findings.is_empty() {
        true => Decision::nothing_covered(nothing_covered(result, wanted)),
        false => decide(wanted, &findings),
    };
    let Decision { mut outcome, mut reason, is_same_host_only, decisive } = decision;
    if outcome == Outcome::Pass && result.state != RunState::Complete {
        outcome = Outcome::Inconclusive;
        reason = format!("the run did not come to its end; so far {reason}");
    }
    if split.is_partial() {
        let Split { n_judged, n_planned, .. } = split;
        reason = format!("on {n_judged} of its {n_planned} rows: {reason}");
    }
    if !planned.left_out.is_empty() && !findings.is_empty() {
        reason = format!("{reason}; left out: {}", left_out_text(&planned.left_out));
    }
    Verdict {
        target: wanted.to_string(),
        require: Some(wanted.require.clone()),
        outcome,
        reason,
        is_same_host_only: is_same_host_only && outcome == Outcome::Pass,
        is_of_machine: false,
        why: wanted.why.clone(),
        decisive,
        evidence: findings.into_iter().map(|finding| finding.evidence).collect(),
    }
}

/// Whether these are service times of a case that also has round trips from the intended send. A
/// target for an open loop limits the time that a user waits, so only the latter are judged:
/// service times leave out the time that a request was queued.
fn is_replaced_by_intended(result: &RunResult, key: &SeriesKey) -> bool {
    key.statistic == Statistic::RoundTrip
        && result.series.iter().any(|series| {
            series.key.statistic == Statistic::RoundTripFromIntended
                && series.key.is_same_case(key)
                && !series.rounds.is_empty()
        })
}

/// Why a target has neither series nor planned cases that count.
fn nothing_covered(result: &RunResult, wanted: &PlanTarget) -> String {
    let existing = paths(&result.series);
    // By the plan: a series of the exchange has the layout as its stack, its row the stack of
    // links.
    let unavailable = planned_cases(result, wanted)
        .into_iter()
        .find_map(|case| Some((case.key, case.unavailable?)));
    let is_emulated = |series: &&Series| series.is_emulated() && covers(wanted, &series.key);
    let emulated = paths(result.series.iter().filter(is_emulated));
    if !emulated.is_empty() {
        let rows = list(&emulated, NAMED_MAX);
        format!("figures of emulated guests are not judged: {rows} are EMULATED")
    } else if let Some((key, row)) = unavailable {
        format!("{} is not available: {}", key.path(), row.reason)
    } else if existing.is_empty() {
        "nothing was measured".to_string()
    } else if result.series.iter().any(|series| wanted.on.matches_key(&series.key)) {
        format!("no series of `{}` has {} as the target requires", wanted.on, wanted.require.metric)
    } else {
        format!(
            "nothing measured matches `{}`; measured were {}",
            wanted.on,
            list(&existing, NAMED_MAX)
        )
    }
}
