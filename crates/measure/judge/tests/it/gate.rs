//! A run against the accepted runs of its machine.

use nm_judge::{CompareOptions, GateOptions, Selector, baseline, compare, gate};
use nm_model::baseline::Baseline;
use nm_model::gate::Gate;
use nm_model::result::{RunResult, RunState};
use nm_model::verdict::{Outcome, Relation};
use nm_model::{EndpointId, Side};
use proptest::prelude::*;

use crate::make::{pingpong, result, steady, stream};

/// A run of a host, begun on this day, with these medians in the rounds.
fn run_of(host: &str, day: u32, medians_ns: &[f64]) -> RunResult {
    let mut run = result(None);
    run.name = format!("{host}-{day}");
    run.started = Some(format!("2026-01-{day:02}T00:00:00Z"));
    run.series.push(pingpong("netns", "tcp-spin", 64, medians_ns));
    let facts = run.facts.entry(EndpointId::new("netns", Side::Client)).or_default();
    facts.host.name = host.to_string();
    run
}

fn run(day: u32, factor: f64) -> RunResult {
    run_of("a", day, &steady(4000.0 * factor, 6))
}

fn saved(run: &RunResult) -> Baseline {
    baseline(run, &CompareOptions::default().fail_on, &Selector::any())
}

fn gated(run: &RunResult, accepted: &[RunResult]) -> Gate {
    let accepted: Vec<Baseline> = accepted.iter().map(saved).collect();
    gate(&saved(run), &accepted.iter().collect::<Vec<_>>(), &GateOptions::default())
}

/// Accepted runs that differ by a few per cent.
fn usual() -> Vec<RunResult> {
    let factors = [1.0, 1.03, 0.98, 1.01, 0.97, 1.02, 0.99, 1.0];
    factors.iter().zip(1..).map(|(&factor, day)| run(day, factor)).collect()
}

#[test]
fn a_run_against_itself_passes_however_few_its_rounds_are() {
    for n_rounds in [1, 6] {
        let one = run_of("a", 1, &steady(4000.0, n_rounds));
        let found = gated(&one, std::slice::from_ref(&one));
        assert_eq!(found.outcome, Outcome::Pass, "{:?}", found.reasons);
        assert!(found.reasons[0].contains("every figure is the same"), "{:?}", found.reasons);
        assert!(found.figures.iter().all(|row| row.relation == Relation::Equivalent));
    }
}

#[test]
fn a_slower_run_fails_with_its_figure() {
    let found = gated(&run(9, 1.6), &usual());
    assert_eq!(found.outcome, Outcome::Fail);
    let start = "median of netns/tcp-spin pingpong 64 B is 60 % slower: 6.";
    assert!(found.reasons[0].starts_with(start), "{:?}", found.reasons);
    assert!(found.reasons[0].ends_with("of 8 accepted runs"), "{:?}", found.reasons);
    assert_eq!(gated(&run(9, 0.5), &usual()).outcome, Outcome::Pass, "faster is not worse");
}

#[test]
fn less_throughput_fails() {
    let of = |day: u32, gbps: f64| {
        let mut run = run(day, 1.0);
        run.series = vec![stream("netns", "tcp-spin", &steady(gbps, 6))];
        run
    };
    let accepted: Vec<RunResult> = (1..8).map(|day| of(day, 10.0)).collect();
    assert_eq!(gated(&of(9, 5.0), &accepted).outcome, Outcome::Fail);
    assert_eq!(gated(&of(9, 20.0), &accepted).outcome, Outcome::Pass);
}

#[test]
fn a_usual_run_passes_and_the_deviation_is_learned() {
    let found = gated(&run(9, 1.01), &usual());
    assert_eq!((found.outcome, found.baselines.len()), (Outcome::Pass, 8), "{:?}", found.reasons);
    let median = &found.figures[0];
    assert!((1.0..5.0).contains(&median.run_deviation_percent), "{median:?}");
    assert!(median.finds_by_two_percent < median.finds_percent, "{median:?}");
    let one = &gated(&run(9, 1.01), &usual()[..1]).figures[0];
    assert!((one.run_deviation_percent - 5.0).abs() < 1e-9, "assumed: {one:?}");
    assert!(median.finds_percent < one.finds_percent);
}

#[test]
fn with_one_accepted_run_the_ratio_and_its_deviation_are_those_of_a_comparison() {
    let (before, after) = (run(1, 1.0), run(2, 1.07));
    let options = CompareOptions::default();
    let row = compare(&before, &after, &options).overall[0].clone();
    let compared = gated(&after, &[before]).figures[0].clone();
    assert!((row.ratio.unwrap() / compared.ratio.unwrap() - 1.0).abs() < 1e-4);
    // The limits differ by their error rates alone: two figures, 5 % and 0.5 %.
    let width = |low: f64, high: f64| (high / low).ln();
    let of_pair = row.bounds.map(|ends| width(ends.low, ends.high)).unwrap();
    let of_gate = compared.bounds.map(|ends| width(ends.low, ends.high)).unwrap();
    assert!((of_gate / of_pair / (2.807 / 1.960) - 1.0).abs() < 0.01, "{of_pair} {of_gate}");
}

#[test]
fn runs_of_other_machines_do_not_count() {
    let mut accepted = usual();
    accepted.push(run_of("b", 8, &steady(9000.0, 6)));
    let found = gated(&run(9, 1.0), &accepted);
    assert_eq!((found.outcome, found.baselines.len()), (Outcome::Pass, 8));
    let expected = "1 accepted run of another machine left out: host a against b";
    assert!(found.reasons.iter().any(|reason| reason == expected), "{:?}", found.reasons);
    let alone = gated(&run_of("c", 9, &steady(4000.0, 6)), &accepted);
    assert_eq!(alone.outcome, Outcome::Inconclusive);
    assert_eq!(alone.reasons[0], "no accepted run of c to test against");
}

#[test]
fn the_last_runs_count_and_the_run_itself_does_not() {
    let mut accepted: Vec<RunResult> = (1..=15).map(|day| run(day, 1.0 + f64::from(day))).collect();
    accepted.reverse();
    let found = gated(&run(15, 16.0), &accepted);
    let names: Vec<&str> = found.baselines.iter().map(|one| one.name.as_str()).collect();
    let expected: Vec<String> = (5..=14).map(|day| format!("a-{day}")).collect();
    assert_eq!(names, expected);
    assert!(found.reasons.iter().any(|reason| reason.contains("it is left out")));
}

#[test]
fn a_figure_that_is_missing_or_not_like_for_like_leaves_the_gate_open() {
    let two = |run: RunResult| {
        let mut run = run;
        run.series.push(pingpong("netns", "udp-spin", 64, &steady(3000.0, 6)));
        run
    };
    let accepted: Vec<RunResult> = usual().into_iter().map(two).collect();
    let found = gated(&run(9, 1.0), &accepted);
    assert_eq!(found.outcome, Outcome::Inconclusive);
    let lacks = "the run lacks median of netns/udp-spin pingpong 64 B, and may be worse there";
    assert!(found.reasons.iter().any(|reason| reason == lacks), "{:?}", found.reasons);
    assert_eq!(gated(&run(9, 2.0), &accepted).outcome, Outcome::Fail, "a slower figure fails");
    let mut other = run(9, 1.0);
    other.series[0].comparability.firmware = Some("full".to_string());
    let found = gated(&other, &usual());
    assert_eq!(found.outcome, Outcome::Inconclusive);
    assert!(found.reasons.iter().any(|reason| reason.contains("not like for like: firmware")));
}

#[test]
fn an_interrupted_run_does_not_pass() {
    let stopped = RunResult { state: RunState::Interrupted, ..run(9, 1.0) };
    assert_eq!(gated(&stopped, &usual()).outcome, Outcome::Inconclusive);
}

#[test]
fn another_plan_is_named() {
    let text = |probe: &str| {
        format!(
            "name='{probe}'\n[[trials]]\nenvironments=['netns']\n\
         stacks=['tcp-spin']\nprobe='pingpong'"
        )
    };
    let with = |plan: &str, mut run: RunResult| {
        run.plan = Some(nm_model::Plan::parse(&text(plan)).unwrap());
        run
    };
    let accepted: Vec<RunResult> = usual().into_iter().map(|run| with("old", run)).collect();
    let found = gated(&with("new", run(9, 1.0)), &accepted);
    assert!(found.reasons.iter().any(|reason| reason.starts_with("the plan is new (")));
    let mut rounds = with("old", run(9, 1.0));
    rounds.plan.as_mut().unwrap().rounds += 3;
    let found = gated(&rounds, &accepted);
    assert!(!found.reasons.iter().any(|reason| reason.starts_with("the plan")), "only more rounds");
}

proptest! {
    #[test]
    fn any_runs_have_an_outcome_and_a_reason(
        new in prop::collection::vec(0.0..1e12f64, 1..8),
        before in prop::collection::vec(prop::collection::vec(0.0..1e12f64, 1..8), 0..6),
    ) {
        let accepted: Vec<RunResult> =
            before.iter().zip(1..).map(|(medians, day)| run_of("a", day, medians)).collect();
        let found = gated(&run_of("a", 20, &new), &accepted);
        prop_assert!(!found.reasons.is_empty());
        let is_worse = found.figures.iter().any(|row| row.relation == Relation::Worse);
        prop_assert_eq!(is_worse, found.outcome == Outcome::Fail);
    }
}
