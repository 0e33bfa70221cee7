//! Why a run decides nothing although targets were missed or trials failed.
//!
//! A figure may miss its target while other programs took more CPU time than the plan allows. It
//! shows nothing about the machine then: the user can end them and repeat the run. What the machine
//! itself breaks (stolen time, quota, clock, CPUs) fails the run, with or without such programs.
//! What could not be read excuses no figure.

use nm_model::machine::{MachineLimits, MachineUse};
use nm_model::result::{RunResult, RunState, TrialFailure};
use nm_model::row::RowId;
use nm_model::undecided::Undecided;
use nm_model::verdict::{Outcome, Verdict};

/// Why nothing, or not all, is decided by a result with verdicts; none where the verdicts decide.
pub(crate) fn undecided(result: &RunResult) -> Option<Undecided> {
    match result.outcome {
        Outcome::Pass => None,
        Outcome::Fail => disturbed(result),
        Outcome::Inconclusive => lost(result).or_else(|| interrupted(result)),
    }
}

/// Targets of figures with this outcome.
fn figures(result: &RunResult, outcome: Outcome) -> impl Iterator<Item = &Verdict> {
    let is_of = move |verdict: &&Verdict| !verdict.is_of_machine && verdict.outcome == outcome;
    result.verdicts.iter().filter(is_of)
}

fn disturbed(result: &RunResult) -> Option<Undecided> {
    let limits: &MachineLimits = result.plan.as_ref()?.machine.as_ref()?;
    let percent = result.machine.as_ref().and_then(MachineUse::other_work_percent)?;
    let limit_percent = limits.other_work_percent_max;
    let mut verdicts = result.verdicts.iter();
    let fails_by_machine = verdicts.any(|v| v.is_of_machine && v.outcome == Outcome::Fail);
    let n_missed = figures(result, Outcome::Fail).count() as u32;
    let is_disturbed = percent > limit_percent && !fails_by_machine && n_missed > 0;
    is_disturbed.then_some(Undecided::OtherPrograms { n_missed, percent, limit_percent })
}

/// Targets of figures without a decision, and all of them.
fn open(result: &RunResult) -> (u32, u32) {
    let n_targets = result.verdicts.iter().filter(|verdict| !verdict.is_of_machine).count();
    (figures(result, Outcome::Inconclusive).count() as u32, n_targets as u32)
}

fn lost(result: &RunResult) -> Option<Undecided> {
    let (n_undecided, n_targets) = open(result);
    if n_undecided == 0 {
        return None;
    }
    let n_rounds = result.plan.as_ref().map_or(0, |plan| plan.rounds);
    let made = |row: Option<RowId>, reason: &str| Undecided::Lost {
        row,
        reason: reason.to_string(),
        n_rounds,
        n_undecided,
        n_targets,
    };
    let failures = result.failures.iter();
    if let Some(failure) = failures.into_iter().find(|failure| leaves_open(result, failure)) {
        return Some(made(failure.row.clone(), &failure.reason));
    }
    let missing = result.not_available.first().filter(|_| result.series.is_empty())?;
    Some(made(None, &missing.reason))
}

/// Whether a target that was not decided has a series of the row that failed.
fn leaves_open(result: &RunResult, failure: &TrialFailure) -> bool {
    let Some(row) = &failure.row else { return true };
    if row.factor.is_some() {
        return false;
    }
    let start = format!("{}/{} {} ", row.environment, row.stack, row.probe);
    let of_targets = figures(result, Outcome::Inconclusive).flat_map(|verdict| &verdict.evidence);
    let mut open = of_targets.filter(|evidence| evidence.outcome == Outcome::Inconclusive);
    open.any(|evidence| format!("{} ", evidence.series).starts_with(&start))
}

fn interrupted(result: &RunResult) -> Option<Undecided> {
    let (n_undecided, n_targets) = open(result);
    let is_ended = result.state == RunState::Interrupted && n_undecided > 0;
    is_ended.then_some(Undecided::Interrupted { n_undecided, n_targets })
}
