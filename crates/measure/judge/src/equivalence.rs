//! Whether the figures of a run are those of a certificate: two one-sided tests of each figure.
//!
//! Runs of one system differ by more than their rounds show. So the interval of each ratio has the
//! deviation between runs in it (see `nm_stats::run_effect`). A certificate holds if the intervals
//! of all figures lie within the margin: no correction is needed, because all must. It no longer
//! holds if one figure lies beyond the margin at a level that is corrected for their number.

use nm_model::baseline::Baseline;
use nm_model::certificate::{Equivalence, EquivalenceFigure};
use nm_model::verdict::{Interval, Outcome, Relation};
use nm_stats::describe::median;
use nm_stats::run_effect::{self, ALPHA, Family, Found, RUN_DEVIATION};

use crate::baseline::is_same_run;
use crate::baseline_gate::{Pair, pair};
use crate::wording::{count, figure, list};

/// How a run is tested.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct EquivalenceOptions {
    /// Ratio that counts as equal, %.
    pub margin_percent: f64,
    /// Standard deviation between runs of one system, %; [`RUN_DEVIATION`] if absent.
    pub run_deviation_percent: Option<f64>,
}

/// Tests the figures of `run` against those that were certified.
pub fn equivalence(
    certified: &Baseline,
    run: &Baseline,
    options: &EquivalenceOptions,
) -> Equivalence {
    let of_run = options.run_deviation_percent.unwrap_or(RUN_DEVIATION * 100.0);
    let mut open = not_comparable(certified, run);
    let mut pairs = vec![];
    for figure in &certified.figures {
        match pair(run, &[certified], certified, &figure.key) {
            Ok(pair) => pairs.push(pair),
            Err(reason) => open.push(reason),
        }
    }
    let margin = (1.0 + options.margin_percent.max(0.0) / 100.0).ln();
    let n_figures = pairs.len();
    let figures: Vec<EquivalenceFigure> =
        pairs.iter().map(|pair| tested(pair, of_run / 100.0, margin, n_figures)).collect();
    let mut found = Equivalence {
        outcome: Outcome::Inconclusive,
        margin_percent: options.margin_percent,
        run_deviation_percent: of_run,
        figures,
        reasons: vec![],
    };
    (found.outcome, found.reasons) = decided(&found, open);
    found
}

/// Why the figures of a run say nothing about those of a certificate.
fn not_comparable(certified: &Baseline, run: &Baseline) -> Vec<String> {
    let mut reasons = vec![];
    let differences = certified.machine.differences(&run.machine);
    if !differences.is_empty() {
        let each: Vec<String> =
            differences.iter().map(|d| format!("{} {} against {}", d.field, d.b, d.a)).collect();
        reasons.push(format!("the run is of another machine: {}", list(&each, 4)));
    }
    if certified.plan != run.plan {
        let plan = |one: &Baseline| match &one.plan {
            Some(plan) => format!("{} ({})", plan.name, plan.hash),
            None => "no plan".to_string(),
        };
        reasons.push(format!(
            "the run follows {}, the certified one {}",
            plan(run),
            plan(certified)
        ));
    }
    if is_same_run(certified, run) {
        reasons.push("the run is the certified one; a new run would decide".to_string());
    }
    if !run.is_complete {
        reasons.push("the run did not come to its end".to_string());
    }
    reasons
}

fn tested(pair: &Pair, of_run: f64, margin: f64, n_figures: usize) -> EquivalenceFigure {
    let deviation = run_effect::against(of_run, &pair.before, pair.rounds);
    let log = run_effect::log_ratio(&pair.before, pair.rounds);
    let before = pair.before.concat();
    let is_zero = |rounds: &[f64]| median(rounds) == Some(0.0);
    let one = Family { n_figures: 1, ..Family::of_pair(1) };
    let limit = deviation.limit(one);
    let relation = match log {
        Some(log) => {
            let all = Family::of_pair(n_figures);
            let sign = if pair.key.metric.more_is_better() { -1.0 } else { 1.0 };
            let is_beyond = log.abs() - deviation.limit(all) > margin;
            let sides = [&before[..], pair.rounds];
            match run_effect::decide(&deviation, sign * log, sides, all, margin) {
                Found::Worse if is_beyond => Relation::Worse,
                Found::Better if is_beyond => Relation::Better,
                _ if log.abs() + limit < margin => Relation::Equivalent,
                _ => Relation::Unclear,
            }
        }
        // Zeros have no ratio: only zeros are equal to zeros.
        None if is_zero(pair.rounds) && is_zero(&before) => Relation::Equivalent,
        None => Relation::Unclear,
    };
    EquivalenceFigure {
        key: pair.key.clone(),
        certified: median(&before),
        value: median(pair.rounds),
        ratio: log.map(f64::exp),
        interval: log.map(|log| Interval {
            low: (log - limit).exp(),
            high: (log + limit).exp(),
            level: 1.0 - 2.0 * ALPHA,
        }),
        relation,
    }
}

/// The outcome with its reasons; `open` are those why there is none.
fn decided(found: &Equivalence, mut open: Vec<String>) -> (Outcome, Vec<String>) {
    let margin = found.margin_percent;
    let size = |one: &&EquivalenceFigure| one.ratio.map_or(0.0, |ratio| ratio.ln().abs());
    let of = |relation: Relation| found.figures.iter().filter(move |one| one.relation == relation);
    let beyond = of(Relation::Worse).chain(of(Relation::Better));
    let furthest = beyond.max_by(|x, y| size(x).total_cmp(&size(y)));
    let unclear = of(Relation::Unclear).max_by(|x, y| size(x).total_cmp(&size(y)));
    match (furthest, unclear) {
        (Some(one), _) if open.is_empty() => {
            let reason = format!(
                "its figures no longer hold: {}, beyond the margin of {margin} %",
                shown(one)
            );
            (Outcome::Fail, vec![reason])
        }
        (_, Some(one)) if open.is_empty() => {
            let reason = format!(
                "its figures do not decide: {}, and the margin is {margin} %; more rounds, five at \
                 least, a wider --margin or a smaller --run-deviation would decide",
                shown(one)
            );
            (Outcome::Inconclusive, vec![reason])
        }
        _ if open.is_empty() && !found.figures.is_empty() => {
            let figures = count(found.figures.len(), "figure", "figures");
            let widest = found.figures.iter().max_by(|x, y| size(x).total_cmp(&size(y)));
            let widest = widest.map(|one| format!("; {}", shown(one))).unwrap_or_default();
            let reason = format!("its figures hold: {figures} within {margin} %{widest}");
            (Outcome::Pass, vec![reason])
        }
        _ => {
            let first = match open.is_empty() {
                true => "there is no figure".to_string(),
                false => open.remove(0),
            };
            let mut reasons = vec![format!("its figures do not decide: {first}")];
            reasons.append(&mut open);
            (Outcome::Inconclusive, reasons)
        }
    }
}

/// `p99 of … is 1.3 times the certified one (90 %: 1.1 to 1.5; 13 us against 10 us)`.
fn shown(one: &EquivalenceFigure) -> String {
    let text = |value: Option<f64>| value.map_or("n/a".to_string(), |v| figure(one.key.metric, v));
    let values = format!("{} against {}", text(one.value), text(one.certified));
    match (one.ratio, one.interval) {
        (Some(ratio), Some(interval)) => format!(
            "{} is {ratio:.2} times the certified one ({:.0} %: {:.2} to {:.2}; {values})",
            one.key,
            interval.level * 100.0,
            interval.low,
            interval.high
        ),
        _ => format!("{} has no ratio ({values})", one.key),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use nm_model::baseline::{
        BaselineFigure, FigureKey, MachineIdentity, PlanIdentity, SCHEMA_VERSION, unit,
    };
    use nm_model::metric::Metric;
    use nm_model::probe::ProbeKind;
    use nm_model::result::Statistic;
    use nm_model::stack::Comparability;
    use nm_stats::random::Random;

    use super::*;

    fn key(size: usize) -> FigureKey {
        FigureKey {
            environment: "loopback".to_string(),
            stack: "tcp-spin".to_string(),
            probe: ProbeKind::Pingpong,
            statistic: Statistic::HalfRoundTrip,
            cases: format!("{size} B"),
            metric: Metric::Median,
        }
    }

    /// A run of figures with these rounds.
    pub(crate) fn run(figures: &[Vec<f64>]) -> Baseline {
        let figure = |(at, rounds): (usize, &Vec<f64>)| BaselineFigure {
            key: key(at),
            unit: unit(Metric::Median).to_string(),
            comparability: Comparability::default(),
            samples_min: Some(1000),
            rounds: rounds.clone(),
        };
        Baseline {
            schema: SCHEMA_VERSION,
            name: "run".to_string(),
            started: None,
            nearmetal_version: None,
            plan: Some(PlanIdentity { name: "plan".to_string(), hash: "0123".to_string() }),
            machine: MachineIdentity { hosts: vec!["host".to_string()], ..Default::default() },
            kernels: vec![],
            outcome: Outcome::Pass,
            is_complete: true,
            doubts: vec![],
            figures: figures.iter().enumerate().map(figure).collect(),
        }
    }

    fn found(certified: &[Vec<f64>], other: &[Vec<f64>], margin_percent: f64) -> Equivalence {
        let options = EquivalenceOptions { margin_percent, run_deviation_percent: None };
        equivalence(&run(certified), &run(other), &options)
    }

    fn steady(level: f64) -> Vec<f64> {
        (0..7).map(|at| level * (1.0 + f64::from(at) * 0.001)).collect()
    }

    #[test]
    fn a_margin_decides_between_holds_and_no_longer_holds_and_neither() {
        let certified = [steady(100.0), steady(200.0)];
        let outcome = |level: f64| {
            let found = found(&certified, &[steady(100.1), steady(level)], 25.0);
            (found.outcome, found.reasons[0].clone())
        };
        let (holds, reason) = outcome(201.0);
        assert_eq!(holds, Outcome::Pass, "{reason}");
        assert!(reason.starts_with("its figures hold: 2 figures within 25 %"), "{reason}");
        for level in [320.0, 120.0] {
            let (gone, reason) = outcome(level);
            assert_eq!(gone, Outcome::Fail, "{reason}");
            assert!(reason.contains("median of loopback/tcp-spin pingpong 1 B is"), "{reason}");
            assert!(reason.contains("times the certified one (90 %: "), "{reason}");
        }
        for level in [240.0, 250.0, 165.0] {
            let (open, reason) = outcome(level);
            assert_eq!(open, Outcome::Inconclusive, "{reason}");
        }
    }

    #[test]
    fn what_cannot_be_compared_decides_nothing() {
        let certified = run(&[steady(100.0), steady(200.0)]);
        let again = run(&[steady(100.5), steady(200.5)]);
        let options = EquivalenceOptions { margin_percent: 25.0, run_deviation_percent: None };
        let reason = |certified: &Baseline, run: &Baseline| {
            let found = equivalence(certified, run, &options);
            assert_eq!(found.outcome, Outcome::Inconclusive, "{:?}", found.reasons);
            found.reasons.join("; ")
        };
        assert_eq!(equivalence(&certified, &again, &options).outcome, Outcome::Pass);
        assert!(reason(&certified, &certified).contains("is the certified one"));
        let mut other = again.clone();
        other.machine.hosts = vec!["other".to_string()];
        assert!(reason(&certified, &other).contains("another machine: host other against host"));
        let mut other = again.clone();
        other.plan = None;
        assert!(reason(&certified, &other).contains("follows no plan, the certified one plan"));
        let mut other = again.clone();
        other.figures.pop();
        assert!(reason(&certified, &other).contains("the run lacks median of"));
        let mut other = again.clone();
        other.is_complete = false;
        assert!(reason(&certified, &other).contains("did not come to its end"));
        let few = run(&[vec![100.0; 2], vec![200.0; 2]]);
        assert!(reason(&certified, &few).contains("five at least"));
        assert!(reason(&run(&[]), &again).contains("there is no figure"));
    }

    /// Of pairs of runs that differ by 5 % from run to run, and by this ratio in the first figure:
    /// how many hold and how many no longer do.
    fn shares(ratio: f64) -> [usize; 2] {
        let mut random = Random::new(7);
        let mut normal = move || {
            let [u, v] = [(); 2].map(|()| random.below(1 << 30) as f64 / f64::from(1 << 30));
            (-2.0 * (u + 1e-12).ln()).sqrt() * (std::f64::consts::TAU * v).cos()
        };
        let mut counts = [0, 0];
        for _ in 0..500 {
            let mut side = |ratio: f64| -> Vec<Vec<f64>> {
                (0..3)
                    .map(|at| {
                        let level = if at == 0 { ratio } else { 1.0 } * (normal() * 0.05).exp();
                        (0..7).map(|_| level * (normal() * 0.02).exp()).collect()
                    })
                    .collect()
            };
            let (certified, other) = (side(1.0), side(ratio));
            match found(&certified, &other, 30.0).outcome {
                Outcome::Pass => counts[0] += 1,
                Outcome::Fail => counts[1] += 1,
                Outcome::Inconclusive => {}
            }
        }
        counts
    }

    #[test]
    fn errors_of_both_kinds_are_at_most_5_of_100() {
        // Equal systems, at the margin, and far beyond it; 500 pairs each.
        let [holds, gone] = shares(1.0);
        assert!(holds > 375 && gone <= 25, "{holds} {gone}");
        for ratio in [1.3, 1.0 / 1.3] {
            let [holds, gone] = shares(ratio);
            assert!(holds <= 25 && gone <= 25, "{ratio}: {holds} {gone}");
        }
        let [holds, gone] = shares(2.0);
        assert!(holds == 0 && gone > 450, "{holds} {gone}");
    }
}
