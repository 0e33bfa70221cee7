//! Trends: order, changes, what is missing, what is not like for like, and the exit by the last.

use nm_judge::{GateOptions, RESULTS_MAX, Selector, TrendError, TrendOptions, trend};
use nm_model::metric::Metric;
use nm_model::result::RunResult;
use nm_model::trend::Trend;
use nm_model::verdict::Outcome;
use nm_model::{EndpointId, Side};

use crate::make::{pingpong, result, steady, stream};

const P99: Metric = Metric::Percentile(99.0);

fn options() -> TrendOptions {
    TrendOptions {
        metrics: vec![Metric::Median, P99, Metric::Throughput],
        on: Selector::any(),
        tested: vec![Metric::Median, Metric::Percentile(99.0), Metric::Throughput],
        gate: GateOptions::default(),
    }
}

fn run(started: Option<&str>, factor: f64, n: usize) -> RunResult {
    let mut run = result(None);
    run.started = started.map(str::to_string);
    run.series.push(pingpong("netns", "tcp-spin", 64, &steady(4000.0 * factor, n)));
    run
}

fn of(runs: Vec<RunResult>) -> Trend {
    let named = runs.into_iter().enumerate().map(|(at, run)| (format!("run {at}"), run));
    trend(named.collect(), &options()).unwrap()
}

fn names(trend: &Trend) -> Vec<&str> {
    trend.results.iter().map(|result| result.name.as_str()).collect()
}

#[test]
fn results_are_in_the_order_of_their_start() {
    let found = of(vec![
        run(Some("2026-01-03T00:00:00Z"), 1.0, 6),
        run(Some("2026-01-01T00:00:00.5Z"), 1.0, 6),
        run(None, 1.0, 6),
        run(Some("2026-01-01T00:00:00Z"), 1.0, 6),
    ]);
    assert_eq!(names(&found), ["run 2", "run 3", "run 1", "run 0"]);
}

#[test]
fn a_trend_has_two_to_a_hundred_results() {
    let many = |n: usize| (0..n).map(|at| (at.to_string(), run(None, 1.0, 1))).collect::<Vec<_>>();
    for n in [0, 1, RESULTS_MAX + 1] {
        assert_eq!(trend(many(n), &options()), Err(TrendError::Count(n)));
    }
    for n in [2, RESULTS_MAX] {
        assert_eq!(trend(many(n), &options()).unwrap().results.len(), n);
    }
    let sentence = TrendError::Count(1).to_string();
    assert_eq!(sentence, "a trend has 2 to 100 results, 1 were given");
}

#[test]
fn changes_are_against_the_first_and_the_previous_result() {
    let found = of(vec![run(None, 1.0, 6), run(None, 2.0, 6), run(None, 3.0, 6)]);
    assert_eq!(found.lines.len(), 2, "median and p99; ping-pong has no throughput");
    for line in &found.lines {
        let ratios: Vec<_> = line
            .points
            .iter()
            .map(|point| (point.ratio_to_first, point.ratio_to_previous))
            .collect();
        assert_eq!(ratios, [(None, None), (Some(2.0), Some(2.0)), (Some(3.0), Some(1.5))]);
        assert!(line.points.iter().all(|point| point.interval.is_some() && point.rounds == 6));
    }
    assert_eq!(found.lines[0].first_and_last(), [(0, 2, 3.0)]);
}

#[test]
fn a_series_that_a_result_lacks_is_not_measured() {
    let mut other = run(None, 1.0, 6);
    other.series[0] = stream("netns", "tcp-spin", &steady(10.0, 6));
    let found = of(vec![run(None, 1.0, 6), other, run(None, 1.5, 6)]);
    let median = &found.lines[0];
    assert!(!median.points[1].is_measured && median.points[1].value.is_none());
    let third = &median.points[2];
    assert_eq!((third.ratio_to_first, third.ratio_to_previous), (Some(1.5), Some(1.5)));
    let throughput = found.lines.iter().find(|line| line.metric == Metric::Throughput).unwrap();
    let measured: Vec<bool> = throughput.points.iter().map(|point| point.is_measured).collect();
    assert_eq!(measured, [false, true, false]);
    assert_eq!(throughput.first_and_last(), []);
}

#[test]
fn what_is_not_like_for_like_and_what_changed_is_marked() {
    let mut other = run(None, 1.0, 6);
    other.series[0].comparability.firmware = Some("full".to_string());
    let with_kernel = |mut run: RunResult, kernel: &str| {
        let facts = run.facts.entry(EndpointId::new("netns", Side::Client)).or_default();
        facts.host.kernel = kernel.to_string();
        run
    };
    let found = of(vec![
        with_kernel(run(None, 1.0, 6), "6.1"),
        with_kernel(run(None, 1.0, 6), "6.1"),
        with_kernel(other, "6.18"),
    ]);
    let unlike: Vec<usize> =
        found.lines[0].points.iter().map(|point| point.differences.len()).collect();
    assert_eq!(unlike, [0, 0, 1]);
    assert_eq!(found.lines[0].points[2].differences[0].field, "firmware");
    let changes: Vec<usize> = found.results.iter().map(|result| result.changes.len()).collect();
    assert_eq!(changes, [0, 0, 1]);
    assert_eq!(found.results[2].changes[0].field, "client host.kernel");
}

#[test]
fn a_part_is_followed_alone_and_nothing_is_an_error() {
    let mut both = run(None, 1.0, 6);
    both.series.push(pingpong("bridge", "udp-spin", 64, &steady(4000.0, 6)));
    let named = || vec![("a".to_string(), both.clone()), ("b".to_string(), both.clone())];
    let only = |on: &str| TrendOptions { on: Selector::new(on), ..options() };
    let found = trend(named(), &only("bridge/*")).unwrap();
    assert!(found.lines.iter().all(|line| line.series.environment == "bridge"));
    let error = trend(named(), &only("moon/*")).unwrap_err();
    assert_eq!(
        error.to_string(),
        "nothing in the results matches `moon/*` with median, p99, throughput; \
         they have bridge/udp-spin, netns/tcp-spin"
    );
}

/// A run of a host that began on this day.
fn on(host: &str, day: u32, factor: f64) -> (String, RunResult) {
    let mut run = run(Some(&format!("2026-01-{day:02}T00:00:00Z")), factor, 6);
    let facts = run.facts.entry(EndpointId::new("netns", Side::Client)).or_default();
    facts.host.name = host.to_string();
    (format!("{host}-{day}"), run)
}

#[test]
fn a_step_fails_and_is_not_accepted() {
    let factors = [1.0, 1.01, 0.99, 1.0, 2.0, 1.0, 2.0];
    let runs = factors.iter().zip(1..).map(|(&factor, day)| on("a", day, factor)).collect();
    let found = trend(runs, &options()).unwrap();
    let outcomes: Vec<Outcome> = found.gates.iter().map(|one| one.gate.outcome).collect();
    use Outcome::{Fail, Pass};
    assert_eq!(outcomes, [Pass, Pass, Pass, Fail, Pass, Fail]);
    assert_eq!(found.gates[5].gate.baselines.len(), 5, "without the run that failed");
    assert_eq!(found.outcome(), Fail);
}

#[test]
fn machines_are_series_of_their_own() {
    let runs = vec![on("a", 1, 1.0), on("b", 2, 3.0), on("a", 3, 1.0), on("b", 4, 3.0)];
    let found = trend(runs, &options()).unwrap();
    assert_eq!(names(&found), ["a-1", "a-3", "b-2", "b-4"]);
    assert!(found.has_machines());
    let ratios: Vec<_> = found.lines[0].points.iter().map(|one| one.ratio_to_previous).collect();
    assert_eq!(ratios, [None, Some(1.0), None, Some(1.0)]);
    assert_eq!(found.lines[0].first_and_last(), [(0, 1, 1.0), (2, 3, 1.0)]);
    let gated: Vec<usize> = found.last_gates().map(|one| one.result).collect();
    assert_eq!(gated, [1, 3]);
    assert_eq!(found.outcome(), Outcome::Pass);
    let once = trend(vec![on("a", 1, 1.0), on("b", 2, 1.0)], &options()).unwrap();
    assert_eq!(once.outcome(), Outcome::Inconclusive, "no machine has a result before");
}
