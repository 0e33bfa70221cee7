//! Comparisons: equal results get no claim, and differences are listed.

use nm_judge::{CompareOptions, Selector, compare, judge};
use nm_model::campaign::NotAvailable;
use nm_model::comparison::{RangeOf, SignificanceTest};
use nm_model::doubt::{Doubt, DoubtKind};
use nm_model::environment::EnvironmentKind;
use nm_model::metric::Metric;
use nm_model::probe::ProbeKind;
use nm_model::result::{PercentileValue, RoundData, RunResult, RunState, Series, Statistic};
use nm_model::verdict::{Comparison, ComparisonRow, Outcome, Relation};
use nm_model::{EndpointId, Side};
use proptest::prelude::*;

use crate::make::{pingpong, result, steady, stream};

fn run(factor: f64, n: usize) -> RunResult {
    let mut run = result(None);
    for size in [64, 1024] {
        run.series.push(pingpong("netns", "tcp-spin", size, &steady(4000.0 * factor, n)));
    }
    run
}

fn row(comparison: &Comparison, metric: Metric) -> Relation {
    comparison.overall.iter().find(|row| row.metric == metric).unwrap().relation
}

#[test]
fn a_result_is_as_good_as_itself() {
    let one = run(1.0, 6);
    let same = compare(&one, &one, &CompareOptions::default());
    assert_eq!(same.outcome, Outcome::Pass, "{:?}", same.reasons);
    assert!(same.rows.iter().chain(&same.overall).all(|row| row.ratio == Some(1.0)));
    assert!(same.differences.is_empty() && same.facts.is_empty() && same.unmatched.is_empty());
}

#[test]
fn worse_beyond_the_margin_fails() {
    let worse = compare(&run(1.0, 6), &run(1.2, 6), &CompareOptions::default());
    assert_eq!(worse.outcome, Outcome::Fail, "{:?}", worse.reasons);
    assert_eq!(row(&worse, Metric::Median), Relation::Worse);
    assert!(
        worse.reasons[0].starts_with("median is worse: 20 % slower (x1.2) over 64..1024 B (95")
    );
    let better = compare(&run(1.2, 6), &run(1.0, 6), &CompareOptions::default());
    assert_eq!(better.outcome, Outcome::Pass, "{:?}", better.reasons);
    assert_eq!(row(&better, Metric::Median), Relation::Better);
}

/// Of seven stacks two are primary, so five rounds decide, however many other figures there are.
#[test]
fn the_number_of_other_figures_does_not_keep_five_rounds_from_deciding() {
    let stacks = |factor: f64, n: usize| {
        let mut run = result(None);
        for stack in ["tcp", "udp", "unix", "mcast", "shm", "xdp", "xdp-tcp"] {
            run.series.push(pingpong("netns", stack, 64, &steady(4000.0 * factor, n)));
        }
        run
    };
    let compared =
        |factor, n| compare(&stacks(1.0, n), &stacks(factor, n), &CompareOptions::default());
    for n in [5, 7] {
        let slower = compared(3.0, n);
        assert_eq!(slower.outcome, Outcome::Fail, "{:?}", slower.reasons);
        let detection = slower.detection.unwrap();
        assert_eq!(detection.n_figures, 4);
        assert!(slower.overall.iter().filter(|row| row.is_primary).count() == 4);
        assert!((detection.finds_percent - 32.0).abs() < 1.0, "{detection:?}");
        let equal = compared(1.001, n);
        assert_eq!(equal.outcome, Outcome::Pass, "{:?}", equal.reasons);
        assert!(equal.reasons[0].contains("is not worse than"), "{:?}", equal.reasons);
    }
}

#[test]
fn secondary_figures_and_series_without_counterpart_never_change_the_outcome() {
    let with = |shm: f64| {
        let mut run = run(1.0, 6);
        run.series.push(pingpong("netns", "shm-spin", 64, &steady(200.0 * shm, 6)));
        run
    };
    let mut worse = with(50.0);
    let found = compare(&with(1.0), &worse, &CompareOptions::default());
    assert_eq!(found.outcome, Outcome::Pass, "{:?}", found.reasons);
    let is_worse = |row: &&ComparisonRow| row.relation == Relation::Worse && !row.is_primary;
    assert!(found.overall.iter().filter(is_worse).count() > 0, "it is still to be looked at");
    worse.series[2].comparability.firmware = Some("full".to_string());
    assert_eq!(compare(&with(1.0), &worse, &CompareOptions::default()).outcome, Outcome::Pass);
    worse.series.truncate(2);
    let missing = compare(&with(1.0), &worse, &CompareOptions::default());
    assert_eq!(missing.outcome, Outcome::Pass, "{:?}", missing.reasons);
    assert_eq!(missing.unmatched.len(), 1);
}

#[test]
fn the_deviation_between_runs_decides_how_much_is_slower() {
    let outcome = |factor: f64, percent: Option<f64>| {
        let options = CompareOptions { run_deviation_percent: percent, ..Default::default() };
        compare(&run(1.0, 6), &run(factor, 6), &options).outcome
    };
    assert_eq!(outcome(1.08, None), Outcome::Pass, "two runs of one system differ by as much");
    assert_eq!(outcome(1.08, Some(1.0)), Outcome::Fail);
    assert_eq!(outcome(1.08, Some(0.0)), Outcome::Fail);
    assert_eq!(outcome(1.04, Some(0.0)), Outcome::Pass, "the margin still counts");
    assert_eq!(outcome(1.3, Some(20.0)), Outcome::Inconclusive, "no pair can tell");
    assert_eq!(outcome(300.0, Some(20.0)), Outcome::Fail);
}

#[test]
fn what_would_decide_is_named() {
    let wide: Vec<f64> = [60.0, 80.0, 100.0, 130.0, 170.0].map(|part| part * 40.0).to_vec();
    let found = one_case(&wide, &wide.iter().map(|value| value * 1.1).collect::<Vec<_>>());
    assert_eq!(found.outcome, Outcome::Inconclusive);
    assert!(found.reasons[0].contains("rounds a side would decide"), "{:?}", found.reasons);
    let few = one_case(&[1200.0], &[1500.0]);
    assert!(few.reasons[0].ends_with("five rounds a side or more would decide"), "{few:?}");
}

#[test]
fn parts_that_differ_by_design_have_a_cost_and_no_verdict() {
    let plan = "name='p'\n[[trials]]\nenvironments=['netns']\n\
                stacks=['tcp-spin','tcp-blocking']\nprobe='pingpong'\n\
                [[comparisons]]\na='netns/tcp-spin'\nb='netns/tcp-blocking'";
    let mut run = result(Some(plan));
    run.series.push(pingpong("netns", "tcp-spin", 64, &steady(4000.0, 6)));
    let mut blocking = pingpong("netns", "tcp-blocking", 64, &steady(36_000.0, 6));
    blocking.comparability.mode = Some("blocking".to_string());
    run.series.push(blocking);
    judge(&mut run, &|_| None);
    let found = &run.comparisons[0];
    assert!(found.is_cost && found.detection.is_none());
    assert_eq!(found.outcome, Outcome::Pass, "{:?}", found.reasons);
    let start = "netns/tcp-blocking takes 32 us more than netns/tcp-spin, 9 times as long (8.9";
    assert!(found.reasons[0].starts_with(start), "{:?}", found.reasons);
}

#[test]
fn runs_that_were_not_interleaved_get_a_reason() {
    let at = |started: &str| {
        let mut run = run(1.0, 6);
        run.started = Some(started.to_string());
        run
    };
    let is_warned = |a: &RunResult, b: &RunResult| {
        let reasons = compare(a, b, &CompareOptions::default()).reasons;
        reasons.iter().any(|reason| reason.contains("not interleaved"))
    };
    let (morning, evening) = (at("2026-01-01T08:00:00Z"), at("2026-01-01T20:00:00Z"));
    assert!(is_warned(&morning, &evening));
    assert!(!is_warned(&morning, &morning));
}

#[test]
fn more_throughput_is_better() {
    let of = |gbps| {
        let mut run = result(None);
        run.series.push(stream("netns", "tcp-blocking", &steady(gbps, 6)));
        run
    };
    let options = CompareOptions::default();
    let outcome = |a, b| compare(&of(a), &of(b), &options).outcome;
    assert_eq!((outcome(10.0, 12.0), outcome(12.0, 10.0)), (Outcome::Pass, Outcome::Fail));
}

#[test]
fn too_few_rounds_claim_nothing() {
    let few = compare(&run(1.0, 4), &run(2.0, 4), &CompareOptions::default());
    assert_eq!(few.outcome, Outcome::Inconclusive);
    assert!(few.rows.iter().all(|row| row.relation == Relation::Unclear));
    assert!(few.reasons.iter().any(|reason| reason.contains("too few rounds")), "{few:?}");
}

#[test]
fn results_that_are_not_like_for_like_never_pass() {
    let one = run(1.0, 6);
    let mut other = run(1.0, 6);
    for series in &mut other.series {
        series.comparability.firmware = Some("full".to_string());
    }
    let found = compare(&one, &other, &CompareOptions::default());
    assert_eq!(found.outcome, Outcome::Inconclusive);
    assert_eq!(found.reasons[0], "not like for like: firmware is unknown against full");
    assert_eq!(found.overall[0].ratio, Some(1.0));
}

#[test]
fn figures_that_are_not_like_for_like_decide_in_neither_direction() {
    let with_firmware = |run: &RunResult, size: u32| {
        let mut run = run.clone();
        let is_of_size = |series: &&mut Series| series.key.case.size_bytes() == Some(size);
        let changed = run.series.iter_mut().filter(is_of_size);
        changed.for_each(|series| series.comparability.firmware = Some("full".to_string()));
        run
    };
    let (one, slower) = (run(1.0, 6), run(1.5, 6));
    let outcome = |a: &RunResult, b: &RunResult| compare(a, b, &CompareOptions::default()).outcome;
    let mut all_differ = with_firmware(&slower, 64);
    assert_eq!(outcome(&one, &all_differ), Outcome::Fail, "1024 B is like for like, and worse");
    all_differ = with_firmware(&all_differ, 1024);
    assert_eq!(outcome(&one, &all_differ), Outcome::Inconclusive);
    assert_eq!(outcome(&all_differ, &one), Outcome::Inconclusive);
}

#[test]
fn a_result_that_lacks_series_is_not_as_good() {
    let complete = run(1.0, 6);
    let mut part = complete.clone();
    part.series.truncate(1);
    let found = compare(&complete, &part, &CompareOptions::default());
    assert_eq!(found.outcome, Outcome::Inconclusive);
    let missing = "1 of 2 series of made (A) are missing in made (B), and may be worse there";
    assert_eq!(found.reasons[0], missing);
    assert_eq!(found.unmatched, ["only made (A) has netns/tcp-spin pingpong 1024 B"]);
    let more = compare(&part, &complete, &CompareOptions::default());
    assert_eq!(more.outcome, Outcome::Pass, "{:?}", more.reasons);
    part.series[0] = run(1.5, 6).series.swap_remove(0);
    assert_eq!(compare(&complete, &part, &CompareOptions::default()).outcome, Outcome::Fail);
}

#[test]
fn an_interrupted_run_is_not_as_good() {
    let mut other = run(1.0, 6);
    other.state = RunState::Interrupted;
    let found = compare(&run(1.0, 6), &other, &CompareOptions::default());
    assert_eq!(found.outcome, Outcome::Inconclusive);
}

#[test]
fn an_unknown_figure_that_counts_is_inconclusive() {
    let options = CompareOptions { fail_on: vec![Metric::Percentile(99.99)], ..Default::default() };
    let same = compare(&run(1.0, 6), &run(1.0, 6), &options);
    assert_eq!(same.outcome, Outcome::Pass, "a result is equal to itself, whatever it lacks");
    let found = compare(&run(1.0, 6), &run(1.01, 6), &options);
    assert_eq!(found.outcome, Outcome::Inconclusive);
    assert!(found.reasons.iter().any(|reason| reason.contains("p99.99 of pingpong is not known")));
}

#[test]
fn single_paths_match_under_any_name_and_others_by_name() {
    let mut bridge = run(1.0, 6);
    for series in &mut bridge.series {
        series.key.environment = "bridge".to_string();
    }
    assert_eq!(compare(&run(1.0, 6), &bridge, &CompareOptions::default()).rows.len(), 10);
    let mut both = bridge.clone();
    both.series.extend(run(1.0, 6).series);
    let found = compare(&run(1.0, 6), &both, &CompareOptions::default());
    assert_eq!(found.unmatched.len(), 2);
    assert!(found.unmatched[0].starts_with("only made (B) has bridge/tcp-spin pingpong"));
    let options = CompareOptions { b: Selector::new("bridge/*"), ..Default::default() };
    assert!(compare(&run(1.0, 6), &both, &options).unmatched.is_empty());
    let options = CompareOptions { b: Selector::new("moon/*"), ..Default::default() };
    let nothing = compare(&run(1.0, 6), &both, &options);
    assert_eq!(nothing.outcome, Outcome::Inconclusive);
    assert_eq!(
        nothing.reasons,
        ["nothing in made moon/* matches `moon/*`; it has bridge/tcp-spin, netns/tcp-spin"]
    );
}

#[test]
fn facts_that_differ_are_listed_except_volatile_ones() {
    let of = |model: &str, load, tsc_hz| {
        let mut run = run(1.0, 6);
        for side in [Side::Client, Side::Server] {
            let facts = run.facts.entry(EndpointId::new("netns", side)).or_default();
            facts.cpu.model = Some(model.to_string());
            facts.host.load_1m = Some(load);
            facts.clock.tsc_hz = Some(tsc_hz);
        }
        run
    };
    let differing = |a, b| -> Vec<String> {
        let found = compare(&a, &b, &CompareOptions::default());
        found.facts.iter().map(|d| format!("{} {} {}", d.field, d.a, d.b)).collect()
    };
    let one = || of("one", 0.1, 2_445_431_312.84);
    assert_eq!(differing(one(), of("two", 0.9, 2_445_432_469.73)), ["cpu.model one two"]);
    let other_clock = differing(one(), of("one", 0.1, 2.6e9));
    assert_eq!(other_clock, ["clock.tsc_hz 2445 MHz 2600 MHz"]);
}

#[test]
fn a_plan_compares_parts_and_published_runs() {
    let plan = "name='p'\n[[trials]]\nenvironments=['netns','bridge']\n\
                stacks=['tcp-spin']\nprobe='pingpong'\n\
                [[comparisons]]\na='netns/tcp-spin'\nb='bridge/tcp-spin'\n\
                [[comparisons]]\na='reference:known'\nb='netns/*'\n\
                [[comparisons]]\na='reference:other'\nb='netns/*'";
    let mut run = result(Some(plan));
    run.series.push(pingpong("netns", "tcp-spin", 64, &steady(4000.0, 6)));
    run.series.push(pingpong("bridge", "tcp-spin", 64, &steady(6000.0, 6)));
    let known = {
        let mut known = result(None);
        known.series.push(pingpong("known", "onload+tcp-spin", 64, &[1500.0]));
        known
    };
    judge(&mut run, &|name| (name == "known").then(|| known.clone()));
    assert_eq!(run.comparisons.len(), 3);
    assert!(run.comparisons[0].is_cost);
    let cost = "bridge/tcp-spin takes 2 us more than netns/tcp-spin, 1.5 times as long (1.49 to";
    assert!(run.comparisons[0].reasons[0].starts_with(cost), "{:?}", run.comparisons[0].reasons);
    assert_eq!(run.comparisons[1].a, "reference:known");
    assert_eq!(run.comparisons[1].overall[0].a, Some(1500.0));
    assert!(run.comparisons[1].reasons[0].contains("too few rounds for an interval"));
    assert_eq!(run.comparisons[2].reasons, ["there is no published run `other`"]);
}

#[test]
fn a_side_that_could_not_run_has_its_reason() {
    let plan = "name='p'\n[[trials]]\nenvironments=['netns']\nstacks=['tcp-spin','unix-spin']\n\
                probe='pingpong'\n[[comparisons]]\na='netns/tcp-spin'\nb='netns/unix-spin'";
    let mut run = result(Some(plan));
    run.series.push(pingpong("netns", "tcp-spin", 64, &steady(4000.0, 6)));
    run.not_available.push(NotAvailable {
        environment: EnvironmentKind::Netns,
        stack: "unix-spin".parse().unwrap(),
        probe: ProbeKind::Pingpong,
        reason: "Unix sockets do not reach another namespace".to_string(),
        has_failed: false,
    });
    judge(&mut run, &|_| None);
    let reason = "netns/unix-spin is not available: Unix sockets do not reach another namespace";
    assert_eq!(run.comparisons[0].reasons, [reason]);
    assert_eq!(run.comparisons[0].outcome, Outcome::Inconclusive);
}

#[test]
fn a_worse_case_is_listed_beside_another_statistic_of_that_case() {
    let run = |factor: f64| {
        let mut run = result(None);
        let at = |statistic, size| {
            let mut series = pingpong("netns", "tcp-spin", size, &steady(4000.0 * factor, 12));
            series.key.statistic = statistic;
            series
        };
        run.series.push(at(Statistic::RoundTrip, 64));
        run.series.push(at(Statistic::RoundTripFromIntended, 64));
        run.series.push(at(Statistic::RoundTripFromIntended, 128));
        run
    };
    let found = compare(&run(1.0), &run(1.2), &CompareOptions::default());
    let listed = |case: &str| {
        let start = format!("median is worse: 20 % slower (x1.2) {case} (");
        found.reasons.iter().filter(|reason| reason.starts_with(&start)).count()
    };
    let intended = "round trip from intended send";
    assert_eq!(listed("for round trip 64 B"), 1, "{:?}", found.reasons);
    assert_eq!(listed(&format!("for {intended} 64 B")), 1);
    assert_eq!(listed(&format!("for {intended} 128 B")), 1);
    assert_eq!(listed(&format!("{intended} over 64..128 B")), 1);
}

#[test]
fn doubts_of_either_side_are_listed() {
    let mut noisy = run(1.0, 6);
    noisy.series[0].doubts.push(Doubt::new(DoubtKind::Steal, "3 % stolen"));
    let found = compare(&run(1.0, 6), &noisy, &CompareOptions::default());
    assert_eq!(found.reasons.last().unwrap(), "doubts about made (B): stolen time");
}

/// Ping-pong of one case, one value a round, compared under the names `before` and `after`.
fn one_case(a: &[f64], b: &[f64]) -> Comparison {
    let side = |medians: &[f64]| {
        let mut run = result(None);
        run.series.push(pingpong("netns", "tcp-spin", 64, medians));
        run
    };
    let options = CompareOptions {
        name_a: Some("before".to_string()),
        name_b: Some("after".to_string()),
        ..Default::default()
    };
    compare(&side(a), &side(b), &options)
}

fn all_rows(comparison: &Comparison) -> impl Iterator<Item = &ComparisonRow> {
    comparison.overall.iter().chain(&comparison.rows)
}

#[test]
fn every_row_is_listed_once_and_rows_over_cases_say_so() {
    let single = one_case(&steady(4000.0, 6), &steady(4800.0, 6));
    for row in all_rows(&single) {
        let same = |other: &&ComparisonRow| (&other.case, other.metric) == (&row.case, row.metric);
        assert_eq!(all_rows(&single).filter(same).count(), 1, "{} {}", row.case, row.metric);
        assert_eq!((row.case.as_str(), row.n_cases), ("64 B", 1));
    }
    assert_eq!(single.outcome, Outcome::Fail);
    let several = compare(&run(1.0, 6), &run(1.2, 6), &CompareOptions::default());
    for row in &several.overall {
        assert_eq!((row.case.as_str(), row.n_cases), ("over 64..1024 B", 2));
    }
}

#[test]
fn a_row_of_several_probes_or_statistics_names_its_own() {
    let mut both = run(1.0, 6);
    both.series.push(stream("netns", "tcp-spin", &steady(10.0, 6)));
    let found = compare(&both, &both, &CompareOptions::default());
    let cases: Vec<&str> = found.overall.iter().map(|row| row.case.as_str()).collect();
    assert!(cases.contains(&"pingpong over 64..1024 B"), "{cases:?}");
    assert!(cases.contains(&"stream 1-uni-1, 131072 B writes"), "{cases:?}");
}

#[test]
fn every_probability_has_one_test_and_stands_once() {
    let rounds = compare(&run(1.0, 6), &run(1.2, 6), &CompareOptions::default());
    let single = compare(&run(1.0, 1), &run(1.2, 1), &CompareOptions::default());
    for row in all_rows(&rounds).chain(all_rows(&single)) {
        assert_eq!(row.p_value.is_some(), row.test.is_some(), "{} {}", row.case, row.metric);
        assert!(!row.basis.contains("p ="), "{}", row.basis);
    }
    assert!(all_rows(&rounds).all(|row| row.test.is_some_and(SignificanceTest::is_over_rounds)));
    assert!(single.overall.iter().all(|row| row.test == Some(SignificanceTest::Sign)));
    assert!(single.rows.iter().all(|row| row.test.is_none()));
}

#[test]
fn the_sides_have_the_names_that_they_were_given() {
    let found = one_case(&steady(4000.0, 6), &steady(4800.0, 4));
    assert_eq!((found.a.as_str(), found.b.as_str()), ("before", "after"));
    let basis = &found.overall[0].basis;
    assert!(basis.starts_with("6 rounds of before and 4 of after: below 5 a side"), "{basis}");
    let mut other = run(1.0, 6);
    other.series[0].doubts.push(Doubt::new(DoubtKind::Steal, "3 % stolen"));
    other.series.push(pingpong("netns", "tcp-spin", 4096, &steady(4000.0, 6)));
    let options = CompareOptions { name_b: Some("today".to_string()), ..Default::default() };
    let found = compare(&run(1.0, 6), &other, &options);
    assert_eq!((found.a.as_str(), found.b.as_str()), ("made", "today"));
    assert_eq!(found.unmatched, ["only today has netns/tcp-spin pingpong 4096 B"]);
    assert_eq!(found.reasons.last().unwrap(), "doubts about today: stolen time");
}

#[test]
fn a_large_difference_of_single_runs_is_called_what_it_is() {
    let found = one_case(&[1200.0], &[360_000.0]);
    assert_eq!(found.outcome, Outcome::Fail, "far beyond what single runs differ by");
    assert_eq!(found.overall[0].relation, Relation::Worse);
    assert_eq!(
        found.reasons[0],
        "median is clearly worse: 300 times slower (x300) for 64 B (a single run a side: no \
         interval over rounds; min to p99 of the samples: 1.08 us to 2.4 us of before, 324 us to \
         720 us of after)"
    );
    assert!(found.reasons[1].contains("fewer than five rounds"), "{:?}", found.reasons);
    let near = one_case(&[1200.0], &[1500.0]);
    assert_eq!(near.overall[0].finding(), "too few rounds to claim; the ranges overlap");
    // Two to four rounds have values of their own to compare.
    let rounds = one_case(&[1200.0, 1210.0], &[1500.0, 1510.0, 1490.0]);
    let ranges = rounds.overall[0].ranges.unwrap();
    assert_eq!(ranges.span, RangeOf::Rounds);
    assert_eq!((ranges.a.high, ranges.b.low), (1210.0, 1490.0));
    assert_eq!(rounds.overall[0].ranges_apart, Some(true));
    assert_eq!(rounds.outcome, Outcome::Inconclusive);
}

#[test]
fn rows_over_several_cases_count_those_whose_ranges_do_not_overlap() {
    let run = |medians: &[f64]| {
        let mut run = result(None);
        for (median, size) in medians.iter().zip([64, 128, 256]) {
            run.series.push(pingpong("netns", "tcp-spin", size, &[*median]));
        }
        run
    };
    let options = CompareOptions::default();
    let apart = compare(&run(&[1e3, 1e3, 1e3]), &run(&[9e4, 9e4, 9e4]), &options);
    assert_eq!(apart.overall[0].ranges_apart, Some(true));
    assert!(apart.overall[0].basis.ends_with("the ranges do not overlap in any case"));
    assert!(apart.reasons[0].contains("90 times slower (x90) over 64..256 B"));
    let partly = compare(&run(&[1e3, 1e3, 1e3]), &run(&[9e4, 1e3, 9e4]), &options);
    assert_eq!(partly.overall[0].ranges_apart, Some(false));
    assert!(partly.overall[0].basis.ends_with("the ranges do not overlap in 2 of 3 cases"));
}

#[test]
fn single_runs_with_histograms_compare_the_inner_samples() {
    let run = |factor: u64| {
        let mut series = pingpong("netns", "tcp-spin", 64, &[factor as f64 * 50.0]);
        let samples: Vec<u64> = (1..=100).map(|value| value * factor).collect();
        let RoundData::Latency(data) = &mut series.rounds[0].data else { panic!("latency") };
        data.histogram = Some(nm_stats::histogram::encode_sorted(&samples).unwrap());
        let mut run = result(None);
        run.series.push(series);
        run
    };
    let found = compare(&run(10), &run(1000), &CompareOptions::default());
    let ranges = found.overall[0].ranges.unwrap();
    assert_eq!(ranges.span.to_string(), "p5 to p95 of the samples");
    assert!((ranges.a.low - 50.0).abs() <= 1.0 && (ranges.a.high - 950.0).abs() <= 1.0);
    assert_eq!(found.overall[0].ranges_apart, Some(true));
    // What p5 to p95 says nothing about: the range of p99 reaches from the minimum to p99.
    let p99 = found.overall.iter().find(|row| row.metric == Metric::Percentile(99.0)).unwrap();
    assert_eq!(p99.ranges.unwrap().span.to_string(), "min to p99 of the samples");
}

#[test]
fn equal_runs_say_so() {
    let equal = "the two sides are equal: every figure of every round is the same";
    for n_rounds in [1, 6] {
        let found = compare(&run(1.0, n_rounds), &run(1.0, n_rounds), &CompareOptions::default());
        assert_eq!(found.reasons[0], equal);
        assert_eq!(found.outcome, Outcome::Pass, "{n_rounds} rounds");
    }
    let found = compare(&run(1.0, 6), &run(1.0001, 6), &CompareOptions::default());
    assert!(!found.reasons.iter().any(|reason| reason == equal));
}

#[test]
fn equal_distributions_are_seldom_called_different() {
    // Rounds that fall into two modes at random, as real ones do; halves of one run compared.
    let mut state = 7u64;
    let mut random = move || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as f64 / f64::from(1u32 << 31)
    };
    let mut bimodal = || -> Vec<f64> {
        (0..8)
            .map(|_| (if random() < 0.4 { 5950.0 } else { 3980.0 }) * (1.0 + 0.02 * random()))
            .collect()
    };
    let mut claims = 0;
    for _ in 0..60 {
        let mut side = || {
            let mut run = result(None);
            run.series.push(pingpong("netns", "tcp-spin", 64, &bimodal()));
            run
        };
        let found = compare(&side(), &side(), &CompareOptions::default());
        let claims_difference =
            |relation| matches!(relation, Relation::Worse | Relation::Better | Relation::Differs);
        claims += usize::from(found.overall.iter().any(|row| claims_difference(row.relation)));
    }
    // At most 3 are expected at a level of 5 %, and 6 would be unlikely; the seed is fixed.
    assert!(claims <= 5, "{claims} of 60");
}

proptest! {
    #[test]
    fn a_single_run_never_decides(medians in prop::collection::vec(100.0..1e6f64, 1..12)) {
        let side = |factor: f64| {
            let mut run = result(None);
            for (at, median) in medians.iter().enumerate() {
                run.series.push(pingpong("x", "tcp", 1 + at as u32, &[median * factor]));
            }
            run
        };
        let found = compare(&side(1.0), &side(3.0), &CompareOptions::default());
        prop_assert_eq!(found.outcome, Outcome::Inconclusive);
        let same = compare(&side(1.0), &side(1.0), &CompareOptions::default());
        for row in same.rows.iter().chain(&same.overall) {
            prop_assert!(matches!(row.relation, Relation::Unclear | Relation::Equivalent));
        }
    }

    #[test]
    fn arbitrary_rounds_never_panic(
        a in prop::collection::vec(prop::num::f64::ANY, 0..8),
        b in prop::collection::vec(prop::num::f64::ANY, 0..8),
        margin in prop::num::f64::ANY,
    ) {
        let side = |medians: &[f64]| {
            let mut run = result(None);
            run.series.push(pingpong("x", "tcp", 1, medians));
            run.series.push(pingpong("x", "tcp", 2, medians));
            run
        };
        let options = CompareOptions { margin_percent: margin, ..Default::default() };
        let _ = compare(&side(&a), &side(&b), &options);
    }
}

#[test]
fn a_percentile_that_some_rounds_lack_is_not_compared() {
    let with_p999 = |n_rounds: usize| {
        let mut run = run(1.0, 6);
        for round in run.series.iter_mut().flat_map(|series| &mut series.rounds[..n_rounds]) {
            let RoundData::Latency(data) = &mut round.data else { panic!("not a latency") };
            data.percentiles.push(PercentileValue {
                percentile: 99.9,
                value_ns: Some(1.0),
                low_ns: None,
                high_ns: None,
            });
        }
        run
    };
    let has_p999 = |a: &RunResult, b: &RunResult| {
        let found = compare(a, b, &CompareOptions::default());
        let mut rows = found.rows.iter().chain(&found.overall);
        rows.any(|row| row.metric == Metric::Percentile(99.9))
    };
    assert!(has_p999(&with_p999(6), &with_p999(6)));
    assert!(!has_p999(&with_p999(6), &with_p999(1)));
}
