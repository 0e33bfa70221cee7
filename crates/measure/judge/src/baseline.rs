//! The primary figures of a run and its machine, as a baseline.

use std::collections::BTreeSet;

use nm_model::baseline::{
    Baseline, BaselineFigure, FigureKey, MachineIdentity, PlanIdentity, SCHEMA_VERSION, unit,
};
use nm_model::facts::Facts;
use nm_model::metric::Metric;
use nm_model::probe::Case;
use nm_model::result::{RoundData, RunResult, RunState, Series, SeriesKey, Source};
use sha2::{Digest, Sha256};

use crate::options::CompareOptions;
use crate::primary::Primary;
use crate::rows::{SIZE_BYTES_MAX, cases_text, metrics, round_means, values};
use crate::select::Selector;

/// Most rounds that a figure keeps: those behind do not make its median much better.
const ROUNDS_MAX: usize = 100;

/// The baseline of a run, with those of these figures that its primary series have. `on` chooses
/// among the series.
pub fn baseline(run: &RunResult, figures: &[Metric], on: &Selector) -> Baseline {
    let is_chosen = |series: &&Series| on.matches_key(&series.key) && !series.is_emulated();
    let chosen: Vec<&Series> = run.series.iter().filter(is_chosen).collect();
    let primary = Primary::of(run, run, &chosen);
    let series: Vec<&Series> = chosen.into_iter().filter(|one| primary.has(one)).collect();
    let doubts = run.doubts.iter().chain(series.iter().flat_map(|one| &one.doubts));
    let doubts: BTreeSet<_> = doubts.map(|doubt| doubt.kind).collect();
    let facts = machines(run);
    let kernels = facts.iter().map(|facts| facts.host.kernel.clone());
    Baseline {
        schema: SCHEMA_VERSION,
        name: run.name.clone(),
        started: run.started.clone(),
        nearmetal_version: match &run.source {
            Source::Measured { version } => Some(version.clone()),
            _ => None,
        },
        plan: plan_identity(run),
        machine: machine(run, &facts),
        kernels: each_once(kernels),
        outcome: run.outcome,
        is_complete: run.state == RunState::Complete,
        doubts: doubts.into_iter().collect(),
        figures: groups(&series).iter().flat_map(|group| of_group(group, figures)).collect(),
    }
}

/// Whether two baselines are of one run: the same start and figures.
pub(crate) fn is_same_run(a: &Baseline, b: &Baseline) -> bool {
    a.started == b.started && a.figures == b.figures
}

/// The facts of the machines; those of guests only where no other is known.
pub(crate) fn machines(run: &RunResult) -> Vec<&Facts> {
    let is_guest = |environment: &str| environment.starts_with("vm-");
    let hosts = run.facts.iter().filter(|(end, _)| !is_guest(&end.environment));
    let hosts: Vec<&Facts> = hosts.map(|(_, facts)| facts).collect();
    if hosts.is_empty() { run.facts.values().collect() } else { hosts }
}

fn each_once(values: impl Iterator<Item = String>) -> Vec<String> {
    let values: BTreeSet<String> = values.filter(|value| !value.is_empty()).collect();
    values.into_iter().collect()
}

fn machine(run: &RunResult, facts: &[&Facts]) -> MachineIdentity {
    let cpu = |facts: &&Facts| {
        let model = facts.cpu.model.as_deref().unwrap_or("unknown model");
        format!("{model}, {} CPUs", facts.cpu.online)
    };
    let hypervisor = |facts: &&Facts| facts.virtualization.hypervisor.clone();
    MachineIdentity {
        label: run.label.clone(),
        hosts: each_once(facts.iter().map(|facts| facts.host.name.clone())),
        cpus: each_once(facts.iter().map(cpu)),
        hypervisors: each_once(facts.iter().filter_map(hypervisor)),
    }
}

/// The plan without its number of rounds, which `--rounds` changes, and the part that was run.
fn plan_identity(run: &RunResult) -> Option<PlanIdentity> {
    let mut plan = run.plan.clone()?;
    plan.rounds = 0;
    let content = serde_json::to_vec(&(&plan, &run.part)).ok()?;
    let digest = Sha256::digest(&content);
    let hash = digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    Some(PlanIdentity { name: plan.name, hash })
}

/// The series of one row and statistic, with sizes that count.
fn groups<'s>(series: &[&'s Series]) -> Vec<Vec<&'s Series>> {
    let is_one = |a: &SeriesKey, b: &SeriesKey| {
        (&a.environment, &a.stack, a.probe, a.statistic)
            == (&b.environment, &b.stack, b.probe, b.statistic)
    };
    let mut groups: Vec<Vec<&Series>> = vec![];
    for &one in series {
        if one.key.case.size_bytes().is_some_and(|size| size > SIZE_BYTES_MAX) {
            continue;
        }
        match groups.iter_mut().find(|group| is_one(&group[0].key, &one.key)) {
            Some(group) => group.push(one),
            None => groups.push(vec![one]),
        }
    }
    groups
}

fn of_group(group: &[&Series], figures: &[Metric]) -> Vec<BaselineFigure> {
    let key = &group[0].key;
    let options = CompareOptions { fail_on: figures.to_vec(), ..CompareOptions::default() };
    let known = metrics(key.statistic, &options).into_iter();
    known
        .filter(|metric| figures.contains(metric))
        .filter_map(|metric| {
            let (known, mut rounds) = rounds(group, metric);
            rounds.truncate(ROUNDS_MAX);
            rounds.iter_mut().for_each(|value| *value = rounded(*value));
            let cases: Vec<Case> = known.iter().map(|one| one.key.case).collect();
            (!rounds.is_empty()).then(|| BaselineFigure {
                key: FigureKey {
                    environment: key.environment.clone(),
                    stack: key.stack.clone(),
                    probe: key.probe,
                    statistic: key.statistic,
                    cases: cases_text(&cases),
                    metric,
                },
                unit: unit(metric).to_string(),
                comparability: known[0].comparability.clone(),
                samples_min: samples_min(&known),
                rounds,
            })
        })
        .collect()
}

/// The series that have the metric, and the value of each round.
fn rounds<'s>(group: &[&'s Series], metric: Metric) -> (Vec<&'s Series>, Vec<f64>) {
    let known: Vec<&Series> =
        group.iter().copied().filter(|one| !values(one, metric).is_empty()).collect();
    let rounds = match known[..] {
        [one] => values(one, metric),
        _ => round_means(&known, metric),
    };
    (known, rounds)
}

fn samples_min(series: &[&Series]) -> Option<u64> {
    let rounds = series.iter().flat_map(|one| &one.rounds);
    let counts = rounds.filter_map(|round| match &round.data {
        RoundData::Latency(data) => data.count,
        RoundData::Throughput(_) => None,
    });
    counts.min()
}

/// Six significant digits.
fn rounded(value: f64) -> f64 {
    format!("{value:.5e}").parse().unwrap_or(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_keep_six_digits() {
        assert_eq!(rounded(1_234.567_89), 1_234.57);
        assert_eq!(rounded(0.000_123_456_789), 0.000_123_457);
        assert_eq!(rounded(0.0), 0.0);
    }
}
