//! A result against the targets of its plan.
//!
//! The value of a series is its estimate over rounds. A series passes only if its 95 % interval
//! lies completely on the right side of the limit, fails only if it lies completely on the wrong
//! side, and is inconclusive otherwise: fewer than five rounds, a percentile without enough
//! samples, figures of another tool or of a published run, or a doubt that could invalidate the
//! pass (see `doubts`).
//!
//! [`Scope::Every`]: each covered series must pass, and each row of the plan must be present;
//! a missing one makes the target inconclusive. [`Scope::Any`]: for each case one passing
//! series is enough. A row that cannot run on this machine is left out; a row that ran
//! without a figure counts as inconclusive.

use nm_model::campaign::NotAvailable;
use nm_model::metric::{Metric, Quantity};
use nm_model::plan::{EnvironmentKind, Plan, PlanTarget, Scope};
use nm_model::probe::{Case, ProbeKind};
use nm_model::result::{
    Estimate, RunResult, RunState, Series, SeriesKey, Source, Statistic, TrialFailure,
};
use nm_model::stack::{Launcher, Mode, Protocol, Stack, StackPair};
use nm_model::target::Target;
use nm_model::verdict::{Evidence, Outcome, Verdict};

use crate::compare::compare_parts;
use crate::doubts::{reason_against_pass, worsening_doubts};
use crate::select::{Selector, paths};
use crate::wording::{at_case, count, figure, interval, list, subject};

/// Most paths that a reason lists.
const NAMED_MAX: usize = 8;

/// Judges every target of the result's plan, makes the comparisons of the plan, and sets the
/// outcome, which is that of all targets together: inconclusive if there are none. An incomplete
/// run passes no target.
///
/// `references` finds a published run by name, for comparisons with `reference:NAME`.
pub fn judge(result: &mut RunResult, references: &dyn Fn(&str) -> Option<RunResult>) {
    for series in &mut result.series {
        if series.estimates.is_empty() {
            nm_stats::rounds::estimate(series);
        }
    }
    let targets = result.plan.as_ref().map(|plan| plan.targets.clone()).unwrap_or_default();
    result.verdicts = targets.iter().map(|target| judge_target(result, target)).collect();
    result.outcome = Outcome::all(result.verdicts.iter().map(|verdict| verdict.outcome));
    if result.state != RunState::Complete && result.outcome == Outcome::Pass {
        result.outcome = Outcome::Inconclusive;
    }
    let planned = result.plan.as_ref().map(|plan| plan.comparisons.clone()).unwrap_or_default();
    result.comparisons =
        planned.iter().map(|planned| compare_parts(result, planned, references)).collect();
}

/// One series or missing row under a target.
struct Finding {
    key: SeriesKey,
    evidence: Evidence,
    /// The factor by which the value may become worse before it violates the limit; below 1 if it
    /// violates it.
    headroom: Option<f64>,
    is_missing: bool,
}

fn judge_target(result: &RunResult, wanted: &PlanTarget) -> Verdict {
    let selector = Selector::new(&wanted.on);
    let mut findings: Vec<Finding> = result
        .series
        .iter()
        .filter(|series| covers(wanted, &selector, &series.key))
        .filter(|series| !is_replaced_by_intended(result, &series.key))
        .map(|series| judge_series(&wanted.require, series, &result.source))
        .collect();
    findings.extend(missing(result, wanted, &selector));
    if findings.is_empty() {
        return nothing_covered(result, wanted);
    }
    let (mut outcome, mut reason) = match wanted.scope {
        Scope::Every => every(wanted, &findings),
        Scope::Any => any(wanted, &findings),
    };
    if outcome == Outcome::Pass && result.state != RunState::Complete {
        outcome = Outcome::Inconclusive;
        reason = format!("the run did not come to its end; so far {reason}");
    }
    Verdict {
        target: target_text(wanted),
        require: Some(wanted.require.clone()),
        outcome,
        reason,
        evidence: findings.into_iter().map(|finding| finding.evidence).collect(),
    }
}

/// The target as the plan writes it, with the series it applies to.
fn target_text(wanted: &PlanTarget) -> String {
    let mut text = wanted.require.text.clone();
    if !Selector::new(&wanted.on).is_any() {
        text.push_str(&format!(" on {}", wanted.on));
    }
    if let Some(probe) = wanted.probe {
        text.push_str(&format!(", {probe}"));
    }
    if wanted.scope == Scope::Any {
        text.push_str(", any stack");
    }
    text
}

fn covers(wanted: &PlanTarget, selector: &Selector, key: &SeriesKey) -> bool {
    let is_stream = key.statistic == Statistic::Throughput;
    let has_metric = match wanted.require.metric.quantity() {
        Quantity::Throughput => is_stream,
        Quantity::Latency | Quantity::Ratio | Quantity::Rate => !is_stream,
    };
    has_metric
        && selector.matches_key(key)
        && wanted.probe.is_none_or(|probe| probe == key.probe)
        && wanted.require.covers(&key.case)
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

fn judge_series(target: &Target, series: &Series, source: &Source) -> Finding {
    let estimate = series.estimate(target.metric);
    let (outcome, reason) = match estimate {
        Some(estimate) => judge_estimate(target, series, estimate, source),
        None => (Outcome::Inconclusive, absent(target.metric, series)),
    };
    Finding {
        key: series.key.clone(),
        headroom: estimate.and_then(|estimate| headroom(target, estimate.value)),
        is_missing: false,
        evidence: Evidence {
            series: series.key.to_string(),
            outcome,
            value: estimate.map(|estimate| estimate.value),
            interval: estimate.and_then(|estimate| estimate.interval),
            reason,
        },
    }
}

fn headroom(target: &Target, value: f64) -> Option<f64> {
    let headroom =
        if target.op.is_upper_bound() { target.limit / value } else { value / target.limit };
    (!headroom.is_nan()).then_some(headroom)
}

fn absent(metric: Metric, series: &Series) -> String {
    let rounds = count(series.rounds.len(), "round", "rounds");
    match metric {
        Metric::Percentile(_) if !series.rounds.is_empty() => {
            format!("{metric} is n/a in {rounds}: too few samples, or not asked for")
        }
        _ => format!("no {metric} was recorded in {rounds}"),
    }
}

fn judge_estimate(
    target: &Target,
    series: &Series,
    estimate: &Estimate,
    source: &Source,
) -> (Outcome, String) {
    let metric = target.metric;
    let value = figure(metric, estimate.value);
    let limit = figure(metric, target.limit);
    let side = if target.op.holds(estimate.value, target.limit) { "right" } else { "wrong" };
    match source {
        Source::Measured { .. } => {}
        Source::Reference { .. } => {
            let reason = format!(
                "{value} in a single published run, on the {side} side of the limit {limit}, but \
                 without rounds nothing is shown"
            );
            return (Outcome::Inconclusive, reason);
        }
        Source::Imported { tool } => {
            let reason = format!(
                "{value} by {tool}, on the {side} side of the limit {limit}, but another tool's \
                 output shows neither its samples nor its doubts"
            );
            return (Outcome::Inconclusive, reason);
        }
    }
    let rounds = count(estimate.rounds as usize, "round", "rounds");
    let (Some(ends), true) = (estimate.interval, estimate.rounds >= Plan::ROUNDS_MIN) else {
        let reason = format!(
            "{value} over {rounds}, on the {side} side of the limit {limit}, but fewer than {} \
             rounds support no verdict",
            Plan::ROUNDS_MIN
        );
        return (Outcome::Inconclusive, reason);
    };
    let shown = format!(
        "{value} ({:.0} % interval {} over {rounds}), limit {limit}",
        ends.level * 100.0,
        interval(metric, ends)
    );
    let holds = |value: f64| target.op.holds(value, target.limit);
    match (holds(ends.low), holds(ends.high)) {
        (true, true) => match reason_against_pass(target, series) {
            None => (Outcome::Pass, shown),
            Some(reason) => (Outcome::Inconclusive, format!("{shown}; but {reason}")),
        },
        (false, false) => match worsening_doubts(series) {
            None => (Outcome::Fail, shown),
            Some(doubts) => (Outcome::Fail, format!("{shown}; {doubts}")),
        },
        _ => (Outcome::Inconclusive, format!("{shown}: the limit lies inside the interval")),
    }
}

/// One case of a row of the plan.
struct PlannedCase<'a> {
    key: SeriesKey,
    /// Why the row cannot run here, if it cannot.
    unavailable: Option<&'a NotAvailable>,
}

/// The cases of the plan that this target covers.
fn planned<'a>(
    result: &'a RunResult,
    wanted: &PlanTarget,
    selector: &Selector,
) -> Vec<PlannedCase<'a>> {
    let mut found = vec![];
    for block in result.plan.iter().flat_map(|plan| &plan.trials) {
        let probe = block.probe.kind();
        let unavailable = |environment: EnvironmentKind, stack: &StackPair| {
            result.not_available.iter().find(|row| {
                row.environment == environment && row.stack == *stack && row.probe == probe
            })
        };
        for &environment in &block.environments {
            for stack in &block.stacks {
                let keys = block.probe.cases().into_iter().map(|case| SeriesKey {
                    environment: environment.to_string(),
                    stack: block.probe.stack_name(stack),
                    probe,
                    case,
                    statistic: planned_statistic(wanted.require.metric, probe),
                });
                let covered = keys.filter(|key| covers(wanted, selector, key));
                let unavailable = unavailable(environment, stack);
                found.extend(covered.map(|key| PlannedCase { key, unavailable }));
            }
        }
    }
    found
}

/// The planned cases of this target that have no series, in order of their text.
fn missing(result: &RunResult, wanted: &PlanTarget, selector: &Selector) -> Vec<Finding> {
    let mut found: Vec<Finding> = vec![];
    for PlannedCase { key, unavailable } in planned(result, wanted, selector) {
        let is_measured = result
            .series
            .iter()
            .any(|series| series.key.is_same_case(&key) && !series.rounds.is_empty());
        let is_left_out = unavailable.is_some() && wanted.scope == Scope::Any;
        if is_measured || is_left_out || found.iter().any(|finding| finding.key == key) {
            continue;
        }
        let reason = match unavailable {
            Some(row) => format!("not available: {}", row.reason),
            None => not_measured(result, &key),
        };
        found.push(unknown(key, reason));
    }
    found.sort_by(|a, b| a.evidence.series.cmp(&b.evidence.series));
    found
}

fn planned_statistic(metric: Metric, probe: ProbeKind) -> Statistic {
    use ProbeKind::{Pingpong, Stream};
    match (probe, metric) {
        (Stream, _) => Statistic::Throughput,
        (Pingpong, _) => Statistic::HalfRoundTrip,
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
        let is_of_row =
            |failure: &&TrialFailure| failure.row.as_ref().is_some_and(|row| key.is_of_row(row));
        failures.iter().filter(is_of_row)
    };
    let case = |failure: &TrialFailure| failure.row.as_ref().and_then(|row| row.case);
    of_row().find(|failure| case(failure) == Some(key.case)).or_else(|| of_row().next())
}

fn unknown(key: SeriesKey, reason: String) -> Finding {
    Finding {
        evidence: Evidence {
            series: key.to_string(),
            outcome: Outcome::Inconclusive,
            value: None,
            interval: None,
            reason,
        },
        key,
        headroom: None,
        is_missing: true,
    }
}

fn nothing_covered(result: &RunResult, wanted: &PlanTarget) -> Verdict {
    let selector = Selector::new(&wanted.on);
    let existing = paths(&result.series);
    // By the plan: a series of the exchange has the layout as its stack, its row the stack of
    // links.
    let unavailable = planned(result, wanted, &selector)
        .into_iter()
        .find_map(|PlannedCase { key, unavailable }| Some((key, unavailable?)));
    let reason = if let Some((key, row)) = unavailable {
        format!("{} is not available: {}", key.path(), row.reason)
    } else if existing.is_empty() {
        "nothing was measured".to_string()
    } else if result.series.iter().any(|series| selector.matches_key(&series.key)) {
        format!("no series of `{}` has {} as the target requires", wanted.on, wanted.require.metric)
    } else {
        format!(
            "nothing measured matches `{}`; measured were {}",
            wanted.on,
            list(&existing, NAMED_MAX)
        )
    };
    Verdict {
        target: target_text(wanted),
        require: Some(wanted.require.clone()),
        outcome: Outcome::Inconclusive,
        reason,
        evidence: vec![],
    }
}

/// `median half round trip over netns/tcp-spin at 64 B`.
fn subject_of(wanted: &PlanTarget, key: &SeriesKey) -> String {
    let subject = subject(wanted.require.metric, key.statistic);
    format!("{subject} over {} {}", key.path(), at_case(key))
}

/// The finding nearest to the limit, or furthest beyond it.
fn tightest<'a>(findings: impl IntoIterator<Item = &'a Finding>) -> Option<&'a Finding> {
    findings.into_iter().min_by(|a, b| {
        let headroom = |finding: &Finding| finding.headroom.unwrap_or(f64::INFINITY);
        headroom(a).total_cmp(&headroom(b))
    })
}

fn every(wanted: &PlanTarget, findings: &[Finding]) -> (Outcome, String) {
    let outcome = Outcome::all(findings.iter().map(|finding| finding.evidence.outcome));
    let decisive: Vec<&Finding> =
        findings.iter().filter(|finding| finding.evidence.outcome == outcome).collect();
    let Some(first) = tightest(decisive.iter().copied()) else {
        return (Outcome::Inconclusive, "nothing was judged".to_string());
    };
    let sentence = format!("{} is {}", subject_of(wanted, &first.key), first.evidence.reason);
    let sentence = match first.is_missing {
        true => {
            format!("{} has no figure: {}", subject_of(wanted, &first.key), first.evidence.reason)
        }
        false if first.evidence.value.is_none() => {
            format!("{}: {}", subject_of(wanted, &first.key), first.evidence.reason)
        }
        false => sentence,
    };
    let all = count(findings.len(), "series", "series");
    let reason = match (outcome, decisive.len()) {
        (_, 1) if findings.len() == 1 => sentence,
        (Outcome::Pass, _) => format!("all {all} meet it; the nearest: {sentence}"),
        (_, 1) => sentence,
        (Outcome::Fail, n) => format!("{sentence}; {n} of {all} fail"),
        (Outcome::Inconclusive, n) => format!("{sentence}; {n} of {all} show nothing"),
    };
    (outcome, reason)
}

/// Orders stacks by what they require of a machine: no bypass before bypass, sleeping before
/// spinning.
fn cost(stack: &str) -> (u32, u32, String) {
    let end = |stack: &Stack| {
        let bypass = match (stack.launcher, stack.protocol) {
            (None, Protocol::Tcp | Protocol::Udp | Protocol::Multicast | Protocol::Unix) => 0,
            (Some(Launcher::Accel), _) | (None, Protocol::Shm) => 1,
            (None, Protocol::Xdp | Protocol::XdpTcp) => 2,
            (Some(_), _) => 3,
        };
        let waiting = match stack.mode {
            Mode::Blocking => 0,
            Mode::Poll | Mode::Select | Mode::Epoll => 1,
            Mode::BusyPoll => 2,
            _ => 3,
        };
        (bypass, waiting)
    };
    match stack.parse::<StackPair>() {
        Ok(pair) => {
            let (client, server) = (end(&pair.client), end(&pair.server));
            (client.0 + server.0, client.1 + server.1, stack.to_string())
        }
        Err(_) => (u32::MAX, u32::MAX, stack.to_string()),
    }
}

fn any(wanted: &PlanTarget, findings: &[Finding]) -> (Outcome, String) {
    // Each statistic of a case (service time, from intended send) is judged on its own.
    type CaseId = (ProbeKind, Case, Statistic);
    let mut cases: Vec<(CaseId, Vec<&Finding>)> = vec![];
    for finding in findings {
        let key = &finding.key;
        let case = (key.probe, key.case, key.statistic);
        match cases.iter_mut().find(|(known, _)| *known == case) {
            Some((_, of_case)) => of_case.push(finding),
            None => cases.push((case, vec![finding])),
        }
    }
    let outcome_of =
        |of_case: &[&Finding]| Outcome::any(of_case.iter().map(|finding| finding.evidence.outcome));
    let outcome = Outcome::all(cases.iter().map(|(_, of_case)| outcome_of(of_case)));
    if outcome == Outcome::Pass {
        let cases: Vec<Vec<&Finding>> = cases.into_iter().map(|(_, of_case)| of_case).collect();
        return (outcome, cheapest(wanted, &cases));
    }
    let best = cases.iter().filter(|(_, of_case)| outcome_of(of_case) == outcome).filter_map(
        |(_, of_case)| {
            let decided = of_case.iter().filter(|finding| finding.evidence.outcome == outcome);
            decided.max_by(|a, b| {
                let headroom = |finding: &Finding| finding.headroom.unwrap_or(0.0);
                headroom(a).total_cmp(&headroom(b))
            })
        },
    );
    let Some(worst) = tightest(best.copied()) else {
        return (Outcome::Inconclusive, "nothing was judged".to_string());
    };
    let reason = match outcome {
        Outcome::Fail => format!(
            "no stack of `{}` meets it {}; the best: {} is {}",
            wanted.on,
            at_case(&worst.key),
            subject_of(wanted, &worst.key),
            worst.evidence.reason
        ),
        _ => format!(
            "no stack of `{}` is shown to meet it {}; {}: {}",
            wanted.on,
            at_case(&worst.key),
            subject_of(wanted, &worst.key),
            worst.evidence.reason
        ),
    };
    (outcome, reason)
}

/// The stack of least cost that meets a target: one for all cases if there is one, else one for
/// each.
fn cheapest(wanted: &PlanTarget, cases: &[Vec<&Finding>]) -> String {
    let is_same_stack =
        |a: &SeriesKey, b: &SeriesKey| a.environment == b.environment && a.stack == b.stack;
    let passing = |of_case: &[&Finding], key: &SeriesKey| {
        of_case.iter().any(|finding| {
            is_same_stack(&finding.key, key) && finding.evidence.outcome == Outcome::Pass
        })
    };
    let mut candidates: Vec<&SeriesKey> = cases
        .iter()
        .flatten()
        .filter(|finding| finding.evidence.outcome == Outcome::Pass)
        .map(|finding| &finding.key)
        .collect();
    candidates.sort_by_key(|key| cost(&key.stack));
    let for_all = candidates.iter().find(|key| cases.iter().all(|of_case| passing(of_case, key)));
    let Some(winner) = for_all else {
        let each: Vec<String> = cases
            .iter()
            .filter_map(|of_case| {
                let key = candidates
                    .iter()
                    .find(|key| key.case == of_case[0].key.case && passing(of_case, key))?;
                Some(format!("{} {}", key.path(), at_case(key)))
            })
            .collect();
        return format!("each case has a stack that meets it: {}", list(&each, NAMED_MAX));
    };
    let of_winner =
        cases.iter().flatten().copied().filter(|finding| is_same_stack(&finding.key, winner));
    let nearest = tightest(of_winner).map_or_else(String::new, |finding| {
        format!(": {} is {}", subject_of(wanted, &finding.key), finding.evidence.reason)
    });
    format!("{} is the cheapest stack that meets it{nearest}", winner.path())
}
