//! Comparisons of the published runs, and the plans that name them.

use nm_judge::{CompareOptions, compare};
use nm_model::metric::Metric;
use nm_model::plan::Plan;
use nm_model::verdict::{Comparison, Outcome, Relation};
use nm_report::reference::{load, names};

fn compared(a: &str, b: &str) -> Comparison {
    compare(&load(a).unwrap(), &load(b).unwrap(), &CompareOptions::default())
}

/// Middle ratio over 1..1024 B and relation of a figure.
fn overall(comparison: &Comparison, metric: Metric) -> (f64, Relation) {
    let row = comparison.overall.iter().find(|row| row.metric == metric).unwrap();
    assert_eq!(row.case, "over 1..1024 B");
    assert!(row.basis.starts_with("a single run a side, so no interval over rounds"));
    (row.ratio.unwrap(), row.relation)
}

const P99: Metric = Metric::Percentile(99.0);

#[track_caller]
fn assert_rounds_to(found: f64, published: f64, digits: i32) {
    let scale = 10f64.powi(digits);
    assert_eq!((found * scale).round() / scale, published);
}

#[test]
fn the_e5_guest_is_close_at_the_median_and_clearly_worse_at_the_tail() {
    let found = compared("deftech-e5-bm-ull", "deftech-e5-vm-pf");
    let (median, relation) = overall(&found, Metric::Median);
    assert_rounds_to(median, 1.04, 2);
    assert_eq!(relation, Relation::Equivalent);
    let (p99, relation) = overall(&found, P99);
    assert_rounds_to(p99, 2.47, 2);
    assert_eq!(relation, Relation::Worse);
    let (stddev, relation) = overall(&found, Metric::Stddev);
    assert_rounds_to(stddev, 9.0, 0);
    assert_eq!(relation, Relation::Worse);
    assert_eq!(found.outcome, Outcome::Inconclusive);
    assert_eq!(
        found.reasons[0],
        "not like for like: firmware is ultra-low-latency against full-feature"
    );
    let has_reason = |start: &str| found.reasons.iter().any(|reason| reason.starts_with(start));
    assert!(
        has_reason("median is close: 4.2 % slower (x1.04) over 1..1024 B"),
        "{:?}",
        found.reasons
    );
    assert!(
        has_reason("p99 is clearly worse: 2.5 times slower (x2.47) over 1..1024 B"),
        "{:?}",
        found.reasons
    );
    assert!(has_reason("stddev is clearly worse: 9.1 times more (x9.12)"), "{:?}", found.reasons);
    assert!(has_reason("a side has a single run"), "{:?}", found.reasons);
    assert!(found.facts.iter().any(|fact| fact.field == "guest_cpu"), "{:?}", found.facts);
}

#[test]
fn the_hft_guest_is_close_at_the_median_and_clearly_worse_at_the_tail() {
    let found = compared("deftech-hft-bm-sfc9250", "deftech-hft-vm-pf");
    let (median, relation) = overall(&found, Metric::Median);
    assert_rounds_to(median, 1.06, 2);
    assert_eq!(relation, Relation::Equivalent);
    let (p99, relation) = overall(&found, P99);
    assert_rounds_to(p99, 1.62, 2);
    assert_eq!(relation, Relation::Worse);
    let (stddev, relation) = overall(&found, Metric::Stddev);
    assert_rounds_to(stddev, 6.9, 1);
    assert_eq!(relation, Relation::Worse);
    assert_eq!(found.reasons[0], "not like for like: firmware is unknown against full-feature");
}

#[test]
fn like_for_like_the_e5_guest_is_the_faster_one() {
    let found = compared("deftech-e5-bm-full", "deftech-e5-vm-pf");
    assert_eq!(found.differences, []);
    let (median, relation) = overall(&found, Metric::Median);
    assert_rounds_to(median, 0.88, 2);
    assert_eq!(relation, Relation::Better);
    // Still one run a side: no verdict can rest on it.
    assert_eq!(found.outcome, Outcome::Inconclusive);
}

#[test]
fn a_published_run_is_not_called_different_from_itself() {
    for name in names() {
        let found = compared(name, name);
        assert_eq!(found.outcome, Outcome::Pass, "{name}");
        assert!(found.differences.is_empty() && found.facts.is_empty(), "{name}");
        for row in found.rows.iter().chain(&found.overall) {
            let quiet = matches!(row.relation, Relation::Unclear | Relation::Equivalent);
            assert!(quiet, "{name} {} {}", row.case, row.metric);
        }
    }
}

#[test]
fn acceleration_shows_in_the_published_streams() {
    let run = load("xenserver5-netperf-stream").unwrap();
    let select = |stack: &str| nm_judge::Selector::new(&format!("*/{stack}"));
    let options = CompareOptions {
        a: select("netperf-non-accelerated"),
        b: select("netperf-accelerated"),
        ..Default::default()
    };
    let found = compare(&run, &run, &options);
    assert_rounds_to(found.overall[0].ratio.unwrap(), 2.19, 2);
    assert!(found.is_cost && found.differences[0].field == "kernel bypass");
    assert!(found.reasons[0].contains("2.19 times as much"), "{:?}", found.reasons);
}

const PLANS: [&str; 9] = [
    "quick",
    "full",
    "two-hosts",
    "deftech-hft",
    "vmware-pingpong",
    "xenserver-stream",
    "monterey-network",
    "monterey-exchange",
    "monterey-mobility",
];

fn plan(name: &str) -> Plan {
    let path = format!("{}/../../../plans/{name}.toml", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(path).unwrap();
    Plan::parse_with_runs(&text, &nm_report::reference::for_plans())
        .unwrap_or_else(|error| panic!("{name}.toml, {error}"))
}

#[test]
fn every_plan_is_read_and_names_runs_that_exist() {
    for name in PLANS {
        let plan = plan(name);
        assert_eq!(plan.name, name);
        assert!(!plan.summary.is_empty() && plan.rounds >= Plan::ROUNDS_MIN, "{name}");
        assert!(!plan.references.is_empty() && !plan.targets.is_empty(), "{name}");
        for target in &plan.targets {
            assert!(!target.why.is_empty(), "{name}: {}", target.require);
        }
    }
}

#[test]
fn the_quick_plan_is_quick() {
    let seconds = plan("quick").duration_s();
    assert!(seconds <= 120.0, "{seconds} s");
}

/// The numbers of a sentence, each with the text before and behind it.
fn figures_of(sentence: &str) -> Vec<(&str, &str, &str)> {
    let is_part = |c: char| c.is_ascii_digit() || c == '.';
    let mut found = vec![];
    let mut at = 0;
    while let Some(offset) = sentence[at..].find(|c: char| c.is_ascii_digit()) {
        let start = at + offset;
        let rest = &sentence[start..];
        let length = rest.find(|c| !is_part(c)).unwrap_or(rest.len());
        let number = rest[..length].trim_end_matches('.');
        at = start + length;
        found.push((&sentence[..start], number, &sentence[start + number.len()..]));
    }
    found
}

fn significant_digits(number: &str) -> usize {
    let digits = number.replace('.', "");
    let digits = digits.trim_start_matches('0');
    match number.contains('.') {
        true => digits.len(),
        false => digits.trim_end_matches('0').len(),
    }
}

/// Whether a number with a fraction is a ratio, a percentile or a probability, or has a unit
/// behind it, where need be behind the upper end of its range.
fn has_meaning(before: &str, number: &str, after: &str) -> bool {
    const UNITS: [&str; 9] = [" ns", " us", " ms", " s", " Gb/s", " Mb/s", " /s", " %", " times"];
    let behind = after
        .strip_prefix(" to ")
        .map_or(after, |upper| upper.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.'));
    let is_named = before.ends_with('x') || before.ends_with('p') || before.ends_with("p = ");
    !number.contains('.') || is_named || UNITS.iter().any(|unit| behind.starts_with(unit))
}

#[track_caller]
fn check_figures(sentence: &str) -> usize {
    // `1..1024 B` is a range of sizes.
    let sentence = sentence.replace("..", " to ");
    let figures = figures_of(&sentence);
    for (before, number, after) in &figures {
        let is_size = after.starts_with(" B");
        assert!(is_size || significant_digits(number) <= 4, "{number} in `{sentence}`");
        assert!(has_meaning(before, number, after), "{number} without a unit in `{sentence}`");
    }
    figures.len()
}

#[test]
fn sentences_have_at_most_four_significant_digits_and_units() {
    let mut checked = 0;
    for a in names() {
        for b in names() {
            let found = compared(a, b);
            let rows = found.rows.iter().chain(&found.overall);
            let sentences = found.reasons.iter().chain(rows.map(|row| &row.basis));
            checked += sentences
                .map(|sentence| check_figures(&sentence.replace(a, "A").replace(b, "B")))
                .sum::<usize>();
        }
    }
    assert!(checked > 500, "{checked} figures");
    let mut run = load("deftech-e5-vm-pf").unwrap();
    run.plan = Some(plan("deftech-hft"));
    nm_judge::judge(&mut run, &|name| load(name).ok());
    for verdict in &run.verdicts {
        check_figures(&verdict.reason);
        verdict.evidence.iter().for_each(|evidence| {
            check_figures(&evidence.reason);
        });
    }
    assert!(!run.verdicts.is_empty());
}
