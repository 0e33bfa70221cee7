//! The figure that decides the outcome: of each target, and of the result in one sentence that
//! every report can show.
//!
//! `Failed: p99 of 1000 requests/s over TCP (netns/tcp-spin) is 29.60 ms, limit 10 ms, on a busy
//! machine; repeat when idle.`

use nm_model::doubt::DoubtKind;
use nm_model::metric::{Metric, Quantity};
use nm_model::probe::{Case, ProbeKind};
use nm_model::result::{SeriesKey, Statistic};
use nm_model::stack::{Launcher, Protocol, Stack, StackPair};
use nm_model::target::{Op, Target};
use nm_model::verdict::{Evidence, Verdict};
use nm_model::{Outcome, RunResult, Series};

use crate::units;
use crate::view;

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

/// A limit of the machine that keeps `result` from passing: one that fails before one that is
/// undecided.
pub fn broken_machine_limit(result: &RunResult) -> Option<&Verdict> {
    let of = |outcome| {
        let mut verdicts = result.verdicts.iter();
        verdicts.find(move |verdict| verdict.is_of_machine && verdict.outcome == outcome)
    };
    of(Outcome::Fail).or_else(|| of(Outcome::Inconclusive))
}

/// The outcome with what decides it, as one sentence: a limit of the machine before any figure.
/// None where [`of_result`] has none.
pub fn sentence(result: &RunResult) -> Option<String> {
    if let Some(verdict) = broken_machine_limit(result) {
        let start = match verdict.outcome {
            Outcome::Fail => "Failed by the machine itself",
            _ => "Disturbed by the machine",
        };
        return Some(format!("{start}: {}.", verdict.reason));
    }
    let decisive = of_result(result)?;
    let subject = subject_of(&decisive);
    let limit = decisive.verdict.require.as_ref().map(required).unwrap_or_default();
    let value = decisive.value_text();
    Some(match result.outcome {
        Outcome::Fail => {
            let circumstance = circumstance(result, decisive.series)
                .map(|(clause, advice)| format!(", {clause}; {advice}"))
                .unwrap_or_default();
            format!("Failed: {subject} is {value}{limit}{circumstance}.")
        }
        Outcome::Pass => {
            format!("Passed; nearest to its limit is {subject} with {value}{limit}.")
        }
        Outcome::Inconclusive => {
            format!("Not decided: {subject}: {}.", decisive.evidence.reason.trim_end_matches('.'))
        }
    })
}

fn subject_of(decisive: &Decisive<'_>) -> String {
    let metric = decisive.verdict.require.as_ref().map(|target| target.metric);
    match (metric, decisive.series) {
        (Some(metric), Some(series)) => subject(metric, &series.key),
        (Some(metric), None) => format!("{} of {}", name_of(metric), decisive.evidence.series),
        (None, _) => decisive.evidence.series.clone(),
    }
}

/// A figure in words: `p99 of 1000 requests/s over TCP (netns/tcp-spin)`.
pub fn subject(metric: Metric, key: &SeriesKey) -> String {
    let (name, path) = (name_of(metric), key.path());
    let over = carrier(&key.stack).map_or(String::new(), |words| format!(" over {words}"));
    let is_latency = metric.quantity() == Quantity::Latency;
    match (key.probe, key.case) {
        (ProbeKind::Exchange, Case::Request { rate_per_s: Some(rate), .. }) => {
            format!("{name} of {} orders/s through the exchange ({path})", units::plain(rate))
        }
        (_, Case::Request { size, rate_per_s: Some(rate) }) => {
            format!("{name} of {} requests/s of {size} B{over} ({path})", units::plain(rate))
        }
        (_, Case::Request { size, rate_per_s: None }) => {
            format!("{name} of requests of {size} B, one at a time,{over} ({path})")
        }
        (_, Case::Message { .. } | Case::Paced { .. }) if is_latency => {
            let trip = match key.statistic {
                Statistic::HalfRoundTrip => "half round trip",
                _ => "round trip",
            };
            format!("{name} {trip} of {} messages{over} ({path})", view::case_text(&key.case))
        }
        (_, Case::Flows { pattern, .. }) => format!("{name} of {pattern}{over} ({path})"),
        (_, Case::Layout { workload, layout }) => {
            format!("{name} of {workload} by {layout} threads ({path})")
        }
        (ProbeKind::Jitter, Case::Total) if metric == Metric::TimeLost => {
            format!("share of time lost to interruptions ({path})")
        }
        (ProbeKind::Jitter, Case::Total) => format!("{name} of interruptions ({path})"),
        (_, Case::Message { .. } | Case::Paced { .. } | Case::Total) => {
            format!("{name} of {} messages{over} ({path})", view::case_text(&key.case))
        }
    }
}

fn name_of(metric: Metric) -> String {
    match metric {
        Metric::Es10 => "mean of the slowest 10 %".to_string(),
        other => other.to_string(),
    }
}

/// What carries the bytes of a stack, in words; none for a name that is no stack.
fn carrier(stack: &str) -> Option<String> {
    let pair: StackPair = stack.parse().ok()?;
    let (client, server) = (carrier_of(pair.client), carrier_of(pair.server));
    Some(if client == server { client } else { format!("{client} to {server}") })
}

fn carrier_of(stack: Stack) -> String {
    let protocol = match stack.protocol {
        Protocol::Tcp => "TCP",
        Protocol::Udp => "UDP",
        Protocol::Multicast => "multicast UDP",
        Protocol::Unix => "a Unix socket",
        Protocol::Shm => "shared memory",
        Protocol::Xdp => "UDP by AF_XDP",
        Protocol::XdpTcp => "TCP by AF_XDP",
        Protocol::Cpu => "no network",
    };
    match stack.launcher {
        None => protocol.to_string(),
        Some(Launcher::Accel) => format!("accelerated {protocol}"),
        Some(launcher) => format!("{protocol} under {launcher}"),
    }
}

/// `, limit 10 ms` or `, at least 3 Gb/s required`.
fn required(target: &Target) -> String {
    let limit = limit_text(target);
    match target.op.is_upper_bound() {
        true => format!(", limit {limit}"),
        false => format!(", at least {limit} required"),
    }
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

/// Doubts that can have made a figure worse, most important first: under what circumstance it was
/// measured, and what to do.
const CIRCUMSTANCES: [(DoubtKind, &str, &str); 10] = [
    (DoubtKind::BusyHost, "on a busy machine", "repeat when idle"),
    (DoubtKind::Steal, "while the hypervisor took CPU time", "repeat on dedicated CPUs"),
    (DoubtKind::Throttled, "under a CPU quota", "remove the quota and repeat"),
    (DoubtKind::SharedCpu, "with both ends on one CPU", "give them two CPUs and repeat"),
    (DoubtKind::SmtSiblings, "with both ends on one core", "pin them to two cores and repeat"),
    (DoubtKind::Preempted, "while other threads took its CPU", "isolate the CPU and repeat"),
    (DoubtKind::Migrated, "while its thread moved between CPUs", "pin the thread and repeat"),
    (DoubtKind::NotPinned, "with a thread that was not pinned", "pin the thread and repeat"),
    (
        DoubtKind::BelowSystem,
        "while the CPU was taken away below the system",
        "repeat on dedicated CPUs",
    ),
    (DoubtKind::ClockFallback, "with a slow clock", "repeat where the TSC can be used"),
];

/// What would help a figure that was measured under a circumstance that made it worse.
pub(crate) fn advice(result: &RunResult, series: Option<&Series>) -> Option<&'static str> {
    circumstance(result, series).map(|(_, advice)| advice)
}

fn circumstance(
    result: &RunResult,
    series: Option<&Series>,
) -> Option<(&'static str, &'static str)> {
    let of_series = series.into_iter().flat_map(|series| &series.doubts);
    let kinds: Vec<DoubtKind> = of_series.chain(&result.doubts).map(|doubt| doubt.kind).collect();
    let found = CIRCUMSTANCES.iter().find(|(kind, _, _)| kinds.contains(kind));
    found.map(|(_, clause, advice)| (*clause, *advice))
}
