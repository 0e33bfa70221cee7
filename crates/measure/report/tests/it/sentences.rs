//! The three sentences of the first screen, on constructed results.

use nm_model::doubt::{Doubt, DoubtKind};
use nm_model::machine::MachineUse;
use nm_model::metric::Metric;
use nm_model::probe::{Case, ProbeKind};
use nm_model::result::{
    Estimate, LatencyRound, PercentileValue, Round, RoundData, RunResult, Series, Source, Statistic,
};
use nm_model::stack::Comparability;
use nm_model::{GuestExecution, Plan, Settings};
use nm_report::first_screen::{Topic, first_screen};
use nm_report::style::Style;
use nm_report::{html, markdown, terminal};
use nm_stats::rounds;

use crate::fixture;

/// How far each of five rounds lies from the median.
const SPREAD: [f64; 5] = [0.98, 0.99, 1.0, 1.01, 1.02];

/// Ping-pong at 64 B whose five rounds lie around `median_us`; p99 is twice and p99.9 four times as
/// long, the maximum a thousand times.
fn pingpong(environment: &str, stack: &str, median_us: f64) -> Series {
    let case = Case::Message { size_bytes: 64 };
    let key = fixture::key(environment, stack, ProbeKind::Pingpong, case, Statistic::HalfRoundTrip);
    let rounds = SPREAD.iter().enumerate().map(|(at, spread)| {
        let ns = median_us * 1e3 * spread;
        let percentile = |percentile, factor| PercentileValue {
            percentile,
            value_ns: Some(ns * factor),
            low_ns: None,
            high_ns: None,
        };
        let data = LatencyRound {
            count: Some(100_000),
            min_ns: Some(ns * 0.9),
            max_ns: Some(ns * 1000.0),
            percentiles: vec![percentile(50.0, 1.0), percentile(99.0, 2.0), percentile(99.9, 4.0)],
            ..LatencyRound::default()
        };
        let (round, started_s) = (at as u32, at as f64);
        let data = RoundData::Latency(data);
        Round { round, started_s, data, placements: vec![], doubts: vec![] }
    });
    let mut series = Series {
        key,
        comparability: Comparability::default(),
        settings: Settings::new(),
        rounds: rounds.collect(),
        estimates: vec![],
        doubts: vec![],
    };
    estimate(&mut series);
    series
}

/// States the figures over rounds, with an interval from five rounds on.
fn estimate(series: &mut Series) {
    let metrics = [Metric::Median, Metric::Percentile(99.0), Metric::Percentile(99.9)];
    let of = |metric: Metric| {
        let value = rounds::figure(&series.rounds, metric)?;
        let interval = (series.rounds.len() >= 5).then_some(nm_model::verdict::Interval {
            low: value * 0.98,
            high: value * 1.02,
            level: 0.95,
        });
        let rounds = series.rounds.len() as u32;
        Some(Estimate { metric, value, interval, cv_percent: None, rounds })
    };
    series.estimates = metrics.into_iter().filter_map(of).collect();
}

fn run(series: Vec<Series>) -> RunResult {
    let source = Source::Measured { version: "0.0.0-made-up".into() };
    RunResult { series, ..RunResult::new("made-up", source) }
}

/// The line about `topic`, empty if there is none.
fn line(run: &RunResult, topic: Topic) -> String {
    let found = first_screen(run).lines.into_iter().find(|line| line.topic == topic);
    found.map_or(String::new(), |line| line.text)
}

#[test]
fn the_best_stack_works_between_hosts_and_has_intervals() {
    let result = run(vec![
        pingpong("loopback", "tcp-spin", 1.5),
        pingpong("netns", "tcp-spin", 2.5),
        pingpong("netns", "udp-spin", 2.0),
        pingpong("netns", "shm-spin", 0.2),
    ]);
    assert_eq!(
        line(&result, Topic::Best),
        "netns/udp-spin: median 2.00 µs (1.96 to 2.04), p99 4.00 µs (3.92 to 4.08); half round \
         trip at 64 B, 95 % intervals over 5 rounds. Within one host: netns/shm-spin 200 ns."
    );
}

#[test]
fn each_step_has_its_cost_and_factor_with_interval() {
    let result = run(vec![
        pingpong("netns", "tcp-spin", 2.0),
        pingpong("netns", "tcp-blocking", 20.0),
        pingpong("netns", "xdp-tcp-spin", 1.0),
        pingpong("netns", "shm-spin", 0.2),
        pingpong("bridge", "tcp-spin", 3.0),
        pingpong("vm-vhost", "tcp-spin", 30.0),
        // Rows without counterpart, or that differ in two things, are in no step.
        pingpong("bridge", "udp-epoll", 9.0),
        pingpong("loopback", "unix-blocking", 9.0),
    ]);
    let cost = line(&result, Topic::Cost);
    for clause in [
        "blocking instead of spinning +18.0 µs, 10 times (9.",
        "the kernel's TCP instead of AF_XDP +1.00 µs, 2.00 times (1.9",
        "the kernel instead of shared memory +1.80 µs, 10 times (9.",
        "a bridge instead of two namespaces +1.00 µs, 1.50 times (1.4",
        "guests (vm-vhost) instead of two namespaces +28.0 µs, 15 times (1",
    ] {
        assert!(cost.contains(clause), "{clause}: {cost}");
    }
    assert_eq!(cost.matches(" instead of ").count(), 5, "{cost}");
    assert!(cost.ends_with("; median at 64 B."), "{cost}");
    assert!(!cost.contains("no difference shown"), "{cost}");
}

#[test]
fn a_step_inside_the_noise_is_no_difference() {
    let result = run(vec![pingpong("netns", "tcp-spin", 2.0), pingpong("bridge", "tcp-spin", 2.0)]);
    let cost = line(&result, Topic::Cost);
    assert!(cost.contains("a bridge instead of two namespaces +0 ns, 1.00 times"), "{cost}");
    assert!(cost.contains("no difference shown"), "{cost}");
}

#[test]
fn one_stack_alone_has_no_cost() {
    let result = run(vec![pingpong("netns", "tcp-spin", 2.0)]);
    assert!(line(&result, Topic::Best).starts_with("netns/tcp-spin: median 2.00 µs"));
    assert_eq!(
        line(&result, Topic::Cost),
        "not known: no two stacks or environments differ in one step only."
    );
    assert_eq!(
        line(&result, Topic::Tail),
        "netns/tcp-spin: p99.9 8.00 µs (7.84 to 8.16), maximum 2.04 ms; cause not known."
    );
}

#[test]
fn emulated_guests_are_never_best_and_in_no_ratio() {
    let emulated = |mut series: Series| {
        series.comparability.execution = Some(GuestExecution::Tcg);
        series
    };
    let guest = emulated(pingpong("vm-vhost", "tcp-spin", 0.5));
    let mut result = run(vec![guest.clone(), pingpong("netns", "tcp-spin", 2.0)]);
    assert!(line(&result, Topic::Best).starts_with("netns/tcp-spin"));
    assert_eq!(
        line(&result, Topic::Cost),
        "not known: no two stacks or environments differ in one step only. vm-vhost was EMULATED \
         and is in no ratio."
    );
    result.series = vec![guest];
    let best = "not known: every round trip was measured in EMULATED guests.";
    assert_eq!(line(&result, Topic::Best), best);
    assert_eq!(line(&result, Topic::Cost) + &line(&result, Topic::Tail), "");
}

#[test]
fn too_few_samples_and_rounds_are_stated() {
    let mut series = pingpong("netns", "tcp-spin", 2.0);
    series.rounds.truncate(3);
    for round in &mut series.rounds {
        let RoundData::Latency(data) = &mut round.data else { unreachable!() };
        data.percentiles.retain(|one| one.percentile < 99.9);
    }
    estimate(&mut series);
    let mut blocking = pingpong("netns", "tcp-blocking", 20.0);
    blocking.rounds.truncate(3);
    estimate(&mut blocking);
    let result = run(vec![series, blocking]);
    let best = line(&result, Topic::Best);
    assert!(best.ends_with("3 rounds, too few for an interval."), "{best}");
    assert!(!best.contains(" to "), "{best}");
    let cost = line(&result, Topic::Cost);
    assert!(cost.contains(" times, too few rounds for an interval;"), "{cost}");
    let tail = line(&result, Topic::Tail);
    let start = "netns/tcp-spin: p99.9 not known (too few samples), maximum 2.00 ms; ";
    assert!(tail.starts_with(start), "{tail}");
}

#[test]
fn the_tail_names_what_was_seen_and_nothing_else() {
    let quiet = pingpong("netns", "tcp-blocking", 20.0);
    let mut best = pingpong("netns", "tcp-spin", 2.0);
    best.doubts = vec![
        Doubt::new(DoubtKind::Preempted, "12 switches"),
        Doubt::new(DoubtKind::Steal, "30 ms"),
        Doubt::new(DoubtKind::ClockCost, "20 ns"),
    ];
    let mut result = run(vec![quiet, best]);
    let tail = line(&result, Topic::Tail);
    assert!(tail.ends_with("likely cause: stolen time, other threads on its CPUs."), "{tail}");
    // The doubts of another stack say nothing about this one, those of the machine do.
    result.series.swap(0, 1);
    result.series[0].doubts.clear();
    result.series[1].doubts = vec![Doubt::new(DoubtKind::Steal, "30 ms")];
    assert!(line(&result, Topic::Tail).ends_with("cause not known."));
    result.machine = Some(MachineUse {
        window_s: 100.0,
        cpus: 2,
        cpus_allowed: 2,
        steal_s: Some(54.0),
        other_work_s: Some(47.0),
        ..MachineUse::default()
    });
    let tail = line(&result, Topic::Tail);
    assert!(tail.ends_with("likely cause: stolen time, other programs."), "{tail}");
}

#[test]
fn only_an_interruption_that_is_long_enough_may_explain_the_maximum() {
    let jitter = |max_us: f64| {
        let mut series = pingpong("loopback", "cpu-spin", max_us / 1000.0);
        series.key.probe = ProbeKind::Jitter;
        series.key.case = Case::Total;
        series.key.statistic = Statistic::Interruption;
        series
    };
    let tail = |environment: &str, max_us: f64| {
        let result = run(vec![pingpong(environment, "tcp-spin", 2.0), jitter(max_us)]);
        line(&result, Topic::Tail)
    };
    let long = tail("netns", 4000.0);
    assert!(long.ends_with("likely cause: interruptions of up to 4.08 ms (jitter)."), "{long}");
    assert!(tail("netns", 500.0).ends_with("cause not known."));
    // The loopback interface of this host says nothing about another host.
    assert!(tail("ssh", 4000.0).ends_with("cause not known."));
}

#[test]
fn a_result_without_round_trips_has_no_sentences_unless_its_plan_wanted_some() {
    let mut jitter = pingpong("loopback", "cpu-spin", 2.0);
    jitter.key.probe = ProbeKind::Jitter;
    jitter.key.case = Case::Total;
    jitter.key.statistic = Statistic::Interruption;
    let mut result = run(vec![jitter]);
    let all = |run: &RunResult| {
        [Topic::Best, Topic::Cost, Topic::Tail].map(|topic| line(run, topic)).concat()
    };
    assert_eq!(all(&result), "");
    let plan = "name='p'\n[[trials]]\nenvironments=['netns']\nstacks=['tcp-spin']\n\
                probe='pingpong'\n";
    result.plan = Some(Plan::parse(plan).unwrap());
    assert_eq!(all(&result), "not known: no round trip was measured.");
}

#[test]
fn terminal_page_and_markdown_have_the_same_sentences() {
    let result =
        run(vec![pingpong("netns", "tcp-spin", 2.0), pingpong("netns", "tcp-blocking", 20.0)]);
    let wide = Style { colour: false, width: 1000 };
    let page = html::report(&result, &[]).replace("</abbr>", "");
    let page = without_abbr(&page);
    let texts = [terminal::summary(&result, &wide, None), markdown::report(&result), page];
    for topic in [Topic::Best, Topic::Cost, Topic::Tail] {
        let sentence = line(&result, topic);
        assert!(sentence.len() > 20, "{topic:?}");
        for text in &texts {
            assert!(text.contains(&sentence), "{sentence}\n{text}");
        }
    }
}

/// `page` without the start of each `<abbr …>`.
fn without_abbr(page: &str) -> String {
    let mut parts = page.split("<abbr ");
    let first = parts.next().unwrap_or_default().to_string();
    first + &parts.map(|part| part.split_once('>').map_or("", |(_, rest)| rest)).collect::<String>()
}
