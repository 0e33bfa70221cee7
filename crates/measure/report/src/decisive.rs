//! The figure that decides the outcome, of each target and of the result.

use nm_model::doubt::DoubtKind;
use nm_model::metric::Quantity;
use nm_model::target::{Op, Target};
use nm_model::verdict::{Evidence, Verdict};
use nm_model::{Outcome, RunResult, Series};

use crate::units;

/// A target with the series that decides its verdict.
#[derive(Debug, Clone, Copy)]
pub struct Decisive<'a> {
    /// The verdict.
    pub verdict: &'a Verdict,
    /// The series under the target.
    pub evidence: &'a Evidence,
    /// The series itself; absent if it was not measured.
    pub series: Option<&'a Series>,
}

impl Decisive<'_> {
    /// How much of the limit the figure uses: up to 1 if it meets the target, more if it does not.
    /// Absent where there is no figure, or the limit is zero.
    pub fn use_of_limit(&self) -> Option<f64> {
        use_of_limit(self.verdict, self.evidence)
    }

    /// The figure with its unit, `n/a` if there is none.
    pub fn value_text(&self) -> String {
        match &self.verdict.require {
            Some(target) => units::figure(target.metric, self.evidence.value),
            None => units::or_not_available(self.evidence.value, |v| units::significant(v, 4)),
        }
    }
}

fn use_of_limit(verdict: &Verdict, evidence: &Evidence) -> Option<f64> {
    let (target, value) = (verdict.require.as_ref()?, evidence.value?);
    let share =
        if target.op.is_upper_bound() { value / target.limit } else { target.limit / value };
    share.is_finite().then_some(share)
}

/// The series that decides `verdict`, as the judge names it. In older results: of those with the
/// verdict's outcome the one that uses most of the limit; where other series do not pass although
/// the target does, one is enough, and it is the one that uses least.
pub fn of_verdict<'a>(result: &'a RunResult, verdict: &'a Verdict) -> Option<Decisive<'a>> {
    let named = verdict.decisive.as_ref();
    if let Some(evidence) = verdict.evidence.iter().find(|e| Some(&e.series) == named) {
        return Some(Decisive { verdict, evidence, series: series_of(result, evidence) });
    }
    let is_any = verdict.outcome == Outcome::Pass
        && verdict.evidence.iter().any(|evidence| evidence.outcome != Outcome::Pass);
    let mut found: Option<(&Evidence, f64)> = None;
    for evidence in verdict.evidence.iter().filter(|e| e.outcome == verdict.outcome) {
        let share = use_of_limit(verdict, evidence);
        let rank = match is_any {
            true => -share.unwrap_or(f64::INFINITY),
            false => share.unwrap_or(f64::NEG_INFINITY),
        };
        if found.is_none_or(|(_, highest)| rank > highest) {
            found = Some((evidence, rank));
        }
    }
    let evidence = found?.0;
    Some(Decisive { verdict, evidence, series: series_of(result, evidence) })
}

fn series_of<'a>(result: &'a RunResult, evidence: &Evidence) -> Option<&'a Series> {
    result.series.iter().find(|series| series.key.to_string() == evidence.series)
}

/// The figure that decides the outcome of `result`; none if no figure was judged, or if something
/// else than a figure decides.
pub fn of_result(result: &RunResult) -> Option<Decisive<'_>> {
    let verdicts = result
        .verdicts
        .iter()
        .filter(|verdict| verdict.outcome == result.outcome && !verdict.is_of_machine);
    let mut found: Option<(Decisive<'_>, f64)> = None;
    for decisive in verdicts.filter_map(|verdict| of_verdict(result, verdict)) {
        let rank = decisive.use_of_limit().unwrap_or(f64::NEG_INFINITY);
        if found.is_none_or(|(_, highest)| rank > highest) {
            found = Some((decisive, rank));
        }
    }
    Some(found?.0)
}

/// The limit of a target with its unit, without needless zeros: `10 ms`, `3 Gb/s`, `0 %`.
pub fn limit_text(target: &Target) -> String {
    match target.metric.quantity() {
        Quantity::Latency => units::latency_tick(target.limit),
        Quantity::Throughput => format!("{} Gb/s", units::plain(target.limit)),
        Quantity::Ratio => format!("{} %", units::plain(target.limit * 100.0)),
        Quantity::Rate => format!("{}/s", units::plain(target.limit)),
    }
}

/// Metric, sign and limit of a target: `p99 < 100 µs`.
pub fn requirement_text(target: &Target) -> String {
    let sign = match target.op {
        Op::Less => "<",
        Op::AtMost => "≤",
        Op::More => ">",
        Op::AtLeast => "≥",
        Op::Equal => "=",
    };
    format!("{} {sign} {}", target.metric, limit_text(target))
}

/// Doubts that can have made a figure worse, most important first, and what to do.
const ADVICE: [(DoubtKind, &str); 10] = [
    (DoubtKind::BusyHost, "repeat when idle"),
    (DoubtKind::Steal, "repeat on dedicated CPUs"),
    (DoubtKind::Throttled, "remove the quota and repeat"),
    (DoubtKind::SharedCpu, "give both ends two CPUs and repeat"),
    (DoubtKind::SmtSiblings, "pin both ends to two cores and repeat"),
    (DoubtKind::Preempted, "isolate the CPU and repeat"),
    (DoubtKind::Migrated, "pin the thread and repeat"),
    (DoubtKind::NotPinned, "pin the thread and repeat"),
    (DoubtKind::BelowSystem, "repeat on dedicated CPUs"),
    (DoubtKind::ClockFallback, "repeat where the TSC can be used"),
];

/// What would help a figure that was measured under a circumstance that made it worse.
pub(crate) fn advice(result: &RunResult, series: Option<&Series>) -> Option<&'static str> {
    let of_series = series.into_iter().flat_map(|series| &series.doubts);
    let kinds: Vec<DoubtKind> = of_series.chain(&result.doubts).map(|doubt| doubt.kind).collect();
    let found = ADVICE.iter().find(|(kind, _)| kinds.contains(kind));
    found.map(|(_, advice)| *advice)
}
