//! Targets of a stand-alone run, given by `--target`.

use nm_model::capability::{Obstacle, case_obstacle};
use nm_model::plan::{PlanTarget, Scope};
use nm_model::target::LimitError;
use nm_model::{Case, Metric, Plan, ProbeKind, ProbeSpec, Selector, StackPair, Target};

/// Rounds of a run with targets, if the user gives none: fewer support no verdict.
pub const ROUNDS: u32 = Plan::ROUNDS_MIN;

/// Why a target cannot be judged by a run.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum TargetFault {
    /// The probe gives no such figure.
    #[error("target `{target}` cannot apply: {probe} gives no {metric}, but {known}")]
    Metric { target: String, probe: ProbeKind, metric: Metric, known: String },
    /// The percentile is not recorded.
    #[error(
        "target `{target}` cannot apply: {probe} records the percentiles {known}, not {metric}"
    )]
    Percentile { target: String, probe: ProbeKind, metric: Metric, known: String },
    /// No case meets the conditions.
    #[error("target `{target}` covers none of the cases that would be measured: {cases}")]
    Cases { target: String, cases: String },
    /// The limit decides nothing.
    #[error(transparent)]
    Limit(#[from] LimitError),
    /// A case that it covers cannot be measured.
    #[error("target `{target}` covers {case}, which cannot be measured: {reason}")]
    Unavailable { target: String, case: Case, reason: Obstacle },
}

/// The percentiles that the targets ask for.
pub fn percentiles(targets: &[Target]) -> impl Iterator<Item = f64> {
    targets.iter().filter_map(|target| match target.metric {
        Metric::Percentile(percentile) => Some(percentile),
        _ => None,
    })
}

/// The plan of a run of `probe` that holds its targets and nothing else; none without targets. Its
/// rows are not listed: a stand-alone run is between two addresses, not in an environment of plans.
///
/// # Errors
/// The first target that the run could not judge.
pub fn plan(
    targets: &[Target],
    probe: &ProbeSpec,
    stacks: &StackPair,
    rounds: u32,
) -> Result<Option<Plan>, TargetFault> {
    for target in targets {
        target.check_limit()?;
        check_metric(target, probe)?;
        check_cases(target, probe, stacks)?;
    }
    // Figures of a probe without a network are meant only by targets that name it.
    let kind = Some(probe.kind()).filter(|kind| !kind.uses_network());
    let on_all = |target: &Target| PlanTarget {
        require: target.clone(),
        on: Selector::any(),
        probe: kind,
        classes: vec![],
        scope: Scope::Every,
        why: "given on the command line".to_string(),
    };
    Ok((!targets.is_empty()).then(|| Plan {
        name: probe.kind().to_string(),
        summary: "a stand-alone run, judged by the targets of its command line".to_string(),
        rounds,
        seed: 1,
        references: vec![],
        trials: vec![],
        targets: targets.iter().map(on_all).collect(),
        comparisons: vec![],
        machine: None,
        guests: None,
        hosts: None,
        attached: None,
        factors: vec![],
        subplans: vec![],
    }))
}

fn check_metric(target: &Target, probe: &ProbeSpec) -> Result<(), TargetFault> {
    if probe.records(target.metric) {
        return Ok(());
    }
    let (text, kind, metric) = (target.text.clone(), probe.kind(), target.metric);
    let percentiles = probe.percentiles();
    if matches!(metric, Metric::Percentile(_)) && !percentiles.is_empty() {
        let known: Vec<String> = percentiles.iter().map(|p| format!("p{p}")).collect();
        let known = known.join(", ");
        return Err(TargetFault::Percentile { target: text, probe: kind, metric, known });
    }
    let is_recorded = |name: &str| {
        let metric = name.parse();
        metric.is_ok_and(|m: Metric| !matches!(m, Metric::Percentile(_)) && probe.records(m))
    };
    let names = Metric::NAMES.iter().copied().filter(|name| *name != "p50" && is_recorded(name));
    let mut known = names.collect::<Vec<&str>>().join(", ");
    if !percentiles.is_empty() {
        known += " and percentiles";
    }
    Err(TargetFault::Metric { target: text, probe: kind, metric, known })
}

fn check_cases(target: &Target, probe: &ProbeSpec, stacks: &StackPair) -> Result<(), TargetFault> {
    let (text, cases) = (target.text.clone(), probe.cases());
    let covered: Vec<Case> = cases.iter().copied().filter(|case| target.covers(case)).collect();
    if covered.is_empty() {
        let cases: Vec<String> = cases.iter().map(ToString::to_string).collect();
        return Err(TargetFault::Cases { target: text, cases: cases.join(", ") });
    }
    let unavailable = |case: Case| case_obstacle(stacks, &case).map(|reason| (case, reason));
    match covered.into_iter().find_map(unavailable) {
        Some((case, reason)) => Err(TargetFault::Unavailable { target: text, case, reason }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nm_model::probe::{PingpongSpec, RrSpec, StreamSpec};

    fn planned(targets: &[&str], probe: &ProbeSpec) -> Result<Option<Plan>, TargetFault> {
        let targets: Vec<Target> = targets.iter().map(|target| target.parse().unwrap()).collect();
        plan(&targets, probe, &"udp-blocking".parse().unwrap(), 5)
    }

    #[test]
    fn a_target_is_judged_by_a_probe_that_gives_its_figure() {
        let spec = PingpongSpec { sizes: vec![64, 40_000], ..PingpongSpec::default() };
        let pingpong = ProbeSpec::Pingpong(spec);
        let stream = ProbeSpec::Stream(StreamSpec::default());
        let rr = ProbeSpec::Rr(RrSpec::default());
        for (target, probe) in [
            ("p99 < 20us at size<=1024", &pingpong),
            ("median < 5us at size<=1024", &pingpong),
            ("loss <= 0", &rr),
            ("p99.99 < 1ms", &rr),
            ("rate >= 900", &rr),
            ("throughput >= 1 Gb/s at pattern=1-uni-1", &stream),
        ] {
            let plan = planned(&[target], probe).unwrap().unwrap();
            assert_eq!((plan.targets.len(), plan.rounds), (1, 5), "{target}");
        }
        assert_eq!(planned(&[], &rr).unwrap(), None);
        for (target, probe, why) in [
            ("throughput >= 1", &pingpong, "pingpong gives no throughput, but mean, min"),
            ("p99 < 1ms", &stream, "stream gives no p99, but throughput"),
            ("median < 1ms", &stream, "stream gives no median"),
            ("p98 < 1ms", &rr, "records the percentiles p50, p90, p99, p99.9"),
            ("p99 < 5", &rr, "target `p99 < 5` has no unit"),
            ("p99 < 1ms at size=3", &rr, "none of the cases that would be measured: "),
            ("p99 < 1ms at pattern=1-uni-1", &pingpong, "none of the cases"),
            ("p99 < 1ms", &pingpong, "messages over udp have at most 32768 bytes"),
        ] {
            let error = planned(&[target], probe).unwrap_err().to_string();
            assert!(error.contains(why), "{target}: {error}");
        }
    }

    #[test]
    fn percentile_that_is_asked_for_is_recorded() {
        let targets: Vec<Target> = vec!["p98 < 1ms".parse().unwrap(), "max < 1s".parse().unwrap()];
        let spec = PingpongSpec {
            percentiles: percentiles(&targets).collect(),
            ..PingpongSpec::default()
        };
        assert_eq!(spec.percentiles, [98.0]);
        let stacks = "tcp-spin".parse().unwrap();
        assert!(plan(&targets, &ProbeSpec::Pingpong(spec), &stacks, 5).is_ok());
    }
}
