//! Reports of a trend and of a comparison, made of the made-up result.

use nm_judge::{CompareOptions, GateOptions, Selector, TrendOptions, compare};
use nm_model::metric::Metric;
use nm_model::result::{RoundData, RunResult};
use nm_model::trend::Trend;
use nm_report::output_folder::{OutputError, comparison_files, trend_files, write_new};
use nm_report::style::Style;
use nm_report::{comparison, html, trend};

use crate::fixture::{self, SMALL};
use crate::golden::check;

const PLAIN: Style = Style { colour: false, width: 120 };

/// The made-up result with all latencies multiplied.
fn slower(factor: f64) -> RunResult {
    let mut run = fixture::result(SMALL);
    run.series.truncate(3);
    for series in &mut run.series {
        series.estimates.clear();
        for round in &mut series.rounds {
            let RoundData::Latency(data) = &mut round.data else { continue };
            data.percentiles.iter_mut().for_each(|p| p.value_ns = p.value_ns.map(|v| v * factor));
        }
        nm_stats::rounds::estimate(series);
    }
    run
}

fn three() -> Trend {
    let mut second = slower(1.1);
    second.started = Some("2026-02-02T03:04:05Z".into());
    second.series.remove(1);
    let mut third = slower(2.0);
    third.started = Some("2026-03-02T03:04:05Z".into());
    third.series[0].comparability.firmware = Some("full".into());
    let named = [("before", slower(1.0)), ("between", second), ("after", third)];
    let options = TrendOptions {
        metrics: vec![Metric::Median, Metric::Percentile(99.0)],
        on: Selector::any(),
        tested: vec![Metric::Median, Metric::Percentile(99.0), Metric::Throughput],
        gate: GateOptions::default(),
    };
    nm_judge::trend(named.map(|(name, run)| (name.to_string(), run)).to_vec(), &options).unwrap()
}

#[test]
fn golden_trend() {
    let found = three();
    check("tests/golden/trend.txt", &trend::text(&found, &PLAIN));
    check("tests/golden/trend.md", &trend::markdown(&found));
    let json = trend_files(&found).into_iter().find(|(name, _)| *name == "trend.json").unwrap().1;
    assert_eq!(serde_json::from_str::<Trend>(&json).unwrap(), found);
}

#[test]
fn a_trend_names_what_is_missing_and_what_is_not_like_for_like() {
    let found = three();
    let text = trend::text(&found, &PLAIN);
    assert!(text.contains("not measured"), "{text}");
    assert!(text.contains("2 times slower") && text.contains("82 % slower"), "{text}");
    assert!(text.contains("≠ not like for like with the first"), "{text}");
    let page = trend::markdown(&found);
    assert!(page.contains("not like for like: firmware is full, was unknown"), "{page}");
    assert!(page.contains("10 % slower") && page.contains("intervals do not overlap"), "{page}");
}

#[test]
fn a_terminal_shows_the_first_and_the_last_of_many_results() {
    let mut found = three();
    let middle = found.results[1].clone();
    found.results.splice(1..1, std::iter::repeat_n(middle, 7));
    for line in &mut found.lines {
        let point = line.points[1].clone();
        line.points.splice(1..1, std::iter::repeat_n(point, 7));
    }
    let text = trend::text(&found, &PLAIN);
    assert!(text.contains("(1)") && text.contains("(10)") && !text.contains("(5)"), "{text}");
    assert!(text.contains("6 results between the first and the last ones"), "{text}");
}

#[test]
fn the_pages_have_charts_tables_and_no_script() {
    let found = three();
    let pages = [html::trend(&found), html::comparison(&before_and_after())];
    for page in &pages {
        assert!(!page.contains("<script") && page.contains("default-src"), "{page}");
        assert!(!page.contains("NaN"), "{page}");
    }
    let [trend, comparison] = pages;
    assert_eq!(trend.matches("<svg").count(), 2, "median and p99 of one environment and probe");
    assert!(trend.contains("not measured") && trend.contains("2 times slower"));
    assert!(trend.contains("Each result against those before it"));
    assert!(comparison.contains("<h2 id=\"verdict-h\">FAIL</h2>"));
    assert!(comparison.contains("after against before") && comparison.contains("shares of modes"));
}

#[test]
fn texts_of_others_are_escaped_in_the_pages() {
    let attack = "</title><b onclick=x>#";
    let mut found = three();
    found.results.iter_mut().for_each(|result| result.name = attack.to_string());
    found.lines.iter_mut().for_each(|line| line.series.stack = attack.to_string());
    let mut compared = before_and_after();
    (compared.a, compared.b) = (attack.to_string(), attack.to_string());
    compared.reasons.push(attack.to_string());
    for page in [html::trend(&found), html::comparison(&compared)] {
        assert!(!page.contains("<b onclick"), "{page}");
    }
    assert!(!trend::markdown(&found).contains("<b onclick"));
    assert!(!comparison::markdown(&compared).contains("<b onclick"));
    let hostile = "\u{1b}[2J\u{202e}";
    found.results.iter_mut().for_each(|result| result.name = hostile.to_string());
    compared.b = hostile.to_string();
    for text in [trend::text(&found, &PLAIN), comparison::text(&compared, &PLAIN)] {
        assert!(!text.contains('\u{1b}') && !text.contains('\u{202e}'), "{text}");
    }
}

fn before_and_after() -> nm_model::verdict::Comparison {
    let options = CompareOptions {
        name_a: Some("before".to_string()),
        name_b: Some("after".to_string()),
        ..Default::default()
    };
    compare(&slower(1.0), &slower(2.0), &options)
}

#[test]
fn golden_comparison() {
    let found = before_and_after();
    check("tests/golden/comparison.txt", &comparison::text(&found, &PLAIN));
    check("tests/golden/comparison.md", &comparison::markdown(&found));
}

#[test]
fn reports_never_overwrite_what_another_run_has_written() {
    let folder = std::env::temp_dir().join(format!("nearmetal-reports-{}", std::process::id()));
    let files = comparison_files(&before_and_after());
    write_new(&folder, &files).unwrap();
    let before = std::fs::read(folder.join("comparison.md")).unwrap();
    let again = write_new(&folder, &files).unwrap_err();
    assert!(matches!(&again, OutputError::Taken { file, .. } if file == "comparison.json"));
    assert!(again.to_string().contains("name another folder with --out"), "{again}");
    let other = write_new(&folder, &[("trend.json", String::new())]).unwrap_err();
    assert!(matches!(other, OutputError::Taken { .. }));
    assert!(!folder.join("trend.json").exists());
    assert_eq!(std::fs::read(folder.join("comparison.md")).unwrap(), before);
    std::fs::remove_dir_all(&folder).unwrap();
}
