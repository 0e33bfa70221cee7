//! One series, or one missing case of a row of the plan, under a target.

use nm_model::metric::Metric;
use nm_model::plan::{Plan, PlanTarget};
use nm_model::result::{Estimate, Series, SeriesKey, Source};
use nm_model::target::Target;
use nm_model::verdict::{Evidence, Outcome};

use crate::doubts::{reason_against_pass, worsening_doubts};
use crate::wording::{at_case, count, figure, interval, subject};

/// One series or missing case under a target.
pub(crate) struct Finding {
    pub key: SeriesKey,
    pub evidence: Evidence,
    /// The factor by which the value may become worse before it violates the limit; below 1 if it
    /// violates it.
    pub headroom: Option<f64>,
    pub is_missing: bool,
}

impl Finding {
    /// A case without a figure.
    pub(crate) fn missing(key: SeriesKey, reason: String) -> Finding {
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
}

/// The outcome of one series.
pub(crate) fn judge_series(target: &Target, series: &Series, source: &Source) -> Finding {
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
    let n_known = series.rounds.iter().filter(|round| round.value(metric).is_some()).count();
    match metric {
        _ if n_known > 0 => format!("{metric} is known in only {n_known} of {rounds}"),
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

/// `median half round trip over netns/tcp-spin at 64 B`.
pub(crate) fn subject_of(wanted: &PlanTarget, key: &SeriesKey) -> String {
    let subject = subject(wanted.require.metric, key.statistic);
    format!("{subject} over {} {}", key.path(), at_case(key))
}

/// The finding nearest to the limit, or furthest beyond it.
pub(crate) fn tightest<'a>(findings: impl IntoIterator<Item = &'a Finding>) -> Option<&'a Finding> {
    findings.into_iter().min_by(|a, b| {
        let headroom = |finding: &Finding| finding.headroom.unwrap_or(f64::INFINITY);
        headroom(a).total_cmp(&headroom(b))
    })
}
