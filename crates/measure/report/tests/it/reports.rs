//! Golden files of every report format, and what must hold for any content.

use nm_model::result::{RoundData, RunState, Source, Statistic};
use nm_model::{Outcome, RunResult};
use nm_report::group_table::group_table;
use nm_report::probes::pingpong::sfnt;
use nm_report::style::Style;
use nm_report::terminal::Extent;
use nm_report::{csv, hlog, html, junit, markdown, openmetrics, summary, terminal, view};
use proptest::prelude::*;

use crate::fixture::{self, LARGE, SMALL};
use crate::golden::check;

const PLAIN: Style = Style { colour: false, width: 100 };

#[test]
fn golden_terminal() {
    let run = fixture::result(SMALL);
    check("tests/golden/terminal.txt", &terminal::summary(&run, &PLAIN, Some("out/report.html")));
    let narrow = Style { colour: true, width: 60 };
    check("tests/golden/terminal-narrow-colour.txt", &terminal::summary(&run, &narrow, None));
}

#[test]
fn golden_html() {
    let references = [fixture::reference(), fixture::round_trip_reference()];
    check("tests/golden/report.html", &html::report(&fixture::result(SMALL), &references));
}

#[test]
fn golden_markdown() {
    check("tests/golden/report.md", &markdown::report(&fixture::result(SMALL)));
    check("tests/golden/summary.md", &summary::report(&fixture::result(SMALL)));
}

#[test]
fn golden_tables() {
    let run = fixture::result(SMALL);
    check("tests/golden/series.csv", &csv::long(&run));
    check("tests/golden/sweep.csv", &csv::sweep(&sfnt::sweeps(&run)[0]));
    check("tests/golden/sfnt.txt", &sfnt::text(&run, 99.0));
}

#[test]
fn golden_machine_formats() {
    let run = fixture::result(SMALL);
    check("tests/golden/junit.xml", &junit::report(&run));
    check("tests/golden/metrics.prom", &openmetrics::text(&run));
    check("tests/golden/series.hlog", &hlog::log(&run, &run.series[0]).unwrap());
}

#[test]
fn colour_adds_nothing_but_colour() {
    let run = fixture::result(SMALL);
    let plain = terminal::summary(&run, &PLAIN, Some("x"));
    let mut colour = terminal::summary(&run, &Style { colour: true, width: 100 }, Some("x"));
    assert!(colour.contains("\x1b["));
    for code in ["0", "1", "2", "31", "32", "33"] {
        colour = colour.replace(&format!("\x1b[{code}m"), "");
    }
    assert_eq!(colour, plain);
}

#[test]
fn the_verdict_stands_last_beside_the_report_and_in_words() {
    let mut run = fixture::result(SMALL);
    let last = |run: &RunResult| {
        let text = terminal::summary(run, &PLAIN, None);
        text.rsplit("\n\n").next().unwrap().replace("\n  ", " ").trim().to_string()
    };
    let failed = "FAIL: throughput 9.10 Gb/s on loopback/tcp-blocking \
                  (at least 10 Gb/s required).\n\
                  1 of 3 targets is not met. 1 more could not be decided.\n";
    assert!(last(&run).starts_with(failed), "{}", last(&run));
    let text = terminal::summary(&run, &PLAIN, Some("out/report.html"));
    assert!(text.ends_with("kernel 6.0.0-made-up, KVM\nreport: out/report.html\n"), "{text}");
    let outcomes: Vec<&str> = text
        .split("\ntargets\n")
        .nth(1)
        .and_then(|rest| rest.split("\n\n").next())
        .unwrap()
        .lines()
        .filter_map(|line| {
            line.strip_prefix("  ")?.split(' ').next().filter(|word| !word.is_empty())
        })
        .collect();
    assert_eq!(outcomes, ["pass", "inconclusive", "fail"], "what decides stands last");
    run.verdicts.truncate(1);
    run.failures.clear();
    run.outcome = Outcome::Pass;
    let passed = "PASS: The target is met; nearest to its limit: median 3.36 µs on \
                  loopback/tcp-spin at 1 KiB (limit 6 µs).\n";
    assert!(last(&run).starts_with(passed), "{}", last(&run));
    run.state = RunState::Interrupted;
    assert!(last(&run).contains("\nThe run was interrupted; completed trials are kept.\n"));
    run.verdicts.clear();
    run.comparisons.clear();
    run.outcome = Outcome::Inconclusive;
    assert!(last(&run).starts_with("NOT JUDGED: No target was judged yet."));
    let plan = run.plan.as_mut().unwrap();
    plan.targets.clear();
    plan.comparisons.clear();
    assert!(last(&run).starts_with("NOT JUDGED: The plan has no targets and no comparisons."));
    run.source = Source::Imported { tool: "sockperf".into() };
    assert!(last(&run).starts_with("NOT JUDGED: Figures read from the output of sockperf."));
}

#[test]
fn shorter_extents_hold_the_targets_or_the_verdict_alone() {
    let run = fixture::result(SMALL);
    let at = |extent| terminal::extract(&run, extent, &PLAIN, Some("out/report.html"));
    let verdict = at(Extent::Verdict);
    assert!(
        verdict.starts_with("FAIL: throughput 9.10 Gb/s on loopback/tcp-blocking"),
        "{verdict}"
    );
    assert!(verdict.ends_with("\nreport: out/report.html\n"), "{verdict}");
    let targets = at(Extent::Targets);
    assert!(targets.ends_with(&verdict), "{targets}");
    for verdict in &run.verdicts {
        assert!(targets.contains(&verdict.target), "{targets}");
    }
    assert!(!targets.contains("\ndoubts\n") && !targets.contains("rounds  "), "{targets}");
    assert!(at(Extent::Everything).contains("doubts that weigh most\n  "));
    assert!(at(Extent::Everything).ends_with(&targets));
}

#[test]
fn lines_fit_the_terminal() {
    let run = fixture::result(SMALL);
    for width in [60, 72, 80, 100, 140] {
        let text = terminal::summary(&run, &Style { colour: false, width }, Some("out"));
        let long = text.lines().find(|line| line.chars().count() > width);
        assert_eq!(long, None, "at {width} columns");
    }
}

#[test]
fn an_empty_result_has_all_reports() {
    let mut run = fixture::result(SMALL);
    run.series.clear();
    run.verdicts.clear();
    run.facts.clear();
    run.plan = None;
    run.comparisons.clear();
    run.doubts.clear();
    let page = html::report(&run, &[]);
    assert!(page.contains("NOT JUDGED") && !page.contains("<svg"));
    assert!(openmetrics::text(&run).ends_with("# EOF\n"));
    assert!(markdown::report(&run).starts_with("# NOT JUDGED"));
}

#[test]
fn half_round_trips_and_round_trips_are_never_drawn_together() {
    let run = fixture::result(SMALL);
    let references = [fixture::reference(), fixture::round_trip_reference()];
    let page = html::report(&run, &references);
    let charts: Vec<&str> = page.split("<figure>").skip(1).collect();
    let half: Vec<_> =
        charts.iter().filter(|c| c.contains("pingpong") && c.contains("by percentile")).collect();
    assert!(!half.is_empty());
    for chart in half {
        let chart = chart.split("</figure>").next().unwrap();
        assert!(chart.contains("reference made-up-reference"));
        assert!(!chart.contains("made-up-full-round-trips"));
        assert!(chart.contains("half round trip, median of rounds, logarithmic"));
    }
}

#[test]
fn a_percentile_without_enough_samples_is_not_available() {
    let run = fixture::result(SMALL);
    // 3,000 samples a round: three lie beyond p99.9, which is too few.
    let series = &run.series[0];
    assert_eq!(view::value(series, nm_model::Metric::Percentile(99.9)), None);
    let group = &view::groups(&run)[0];
    let table = group_table(group, &view::Notes::collect(&run), view::Detail::Full);
    let at = table.columns.iter().position(|c| c.title == "p99.9").unwrap();
    assert!(table.rows.iter().all(|row| row.cells[at] == "n/a"));
    assert!(!csv::long(&run).contains(",p99.9,"));
    assert!(!openmetrics::text(&run).contains("quantile=\"0.999\""));
}

#[test]
fn the_report_is_one_file_without_external_resources() {
    let run = fixture::result(SMALL);
    let page = html::report(&run, &[fixture::reference()]);
    let page = page.replace("http://www.w3.org/2000/svg", "");
    for banned in
        ["http:", "https:", "src=", "@import", "url(", "<link", "<iframe", "<img", "onload="]
    {
        assert!(!page.contains(banned), "{banned}");
    }
    assert_eq!(page.matches("<script").count(), 1);
    assert!(page.contains("default-src &#39;none&#39;") || page.contains("default-src 'none'"));
}

#[test]
fn the_result_in_the_page_reads_back() {
    let run = fixture::result(SMALL);
    let page = html::report(&run, &[]);
    let back: RunResult = serde_json::from_str(html::embedded(&page).unwrap()).unwrap();
    assert_eq!(back, run);
}

#[test]
fn a_large_run_stays_below_a_megabyte() {
    let run = fixture::result(LARGE);
    assert!(run.series.len() >= 50);
    let page = html::report(&run, &[fixture::reference()]);
    assert!(page.len() < 1_000_000, "{} bytes", page.len());
    let back: RunResult = serde_json::from_str(html::embedded(&page).unwrap()).unwrap();
    assert_eq!(back.series.len(), run.series.len());
    assert_eq!(back.verdicts, run.verdicts);
    assert!(page.contains("holds a copy of the result without histograms"));
}

#[test]
fn equal_input_gives_equal_bytes() {
    let references = [fixture::reference()];
    let files = || nm_report::folder::report_files(&fixture::result(SMALL), &references);
    assert_eq!(files(), files());
}

/// Every text of a page, attribute values aside, with the markup taken out.
fn has_element(page: &str, name: &str) -> bool {
    page.contains(&format!("<{name}"))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn all_text_is_escaped_in_the_page(noise in "[<>\"'&;/!\\-a-z\u{0}-\u{1f}]{0,24}") {
        for attack in [
            format!("</title></script><b x=\"{noise}"),
            format!("\"><b onclick='{noise}'>"),
            format!("<!--<script>{noise}"),
            noise.clone(),
        ] {
            let run = fixture::hostile(&attack);
            let page = html::report(&run, &[]);
            prop_assert!(!has_element(&page, "b x") && !has_element(&page, "b onclick"));
            prop_assert!(!page.contains("<!--"));
            prop_assert_eq!(page.matches("<script").count(), 1);
            prop_assert_eq!(page.matches("</script").count(), 1);
            let back: RunResult = serde_json::from_str(html::embedded(&page).unwrap()).unwrap();
            prop_assert_eq!(back, run);
        }
    }

    #[test]
    fn no_control_characters_reach_the_terminal(noise in "\\PC{0,20}") {
        let run = fixture::hostile(&format!("\u{1b}[2J\r\u{7}{noise}\u{202e}"));
        let text = terminal::summary(&run, &PLAIN, None);
        prop_assert!(!text.chars().any(|c| c.is_control() && c != '\n'));
        let turns = '\u{202e}';
        prop_assert!(!text.contains(turns));
    }

    #[test]
    fn damaged_figures_never_make_a_report_panic(
        value in any::<f64>(), count in any::<u64>(), text in "\\PC{0,9}", keep in 0usize..3,
    ) {
        let mut run = fixture::hostile(&text);
        for series in &mut run.series {
            series.rounds.truncate(keep);
            for round in &mut series.rounds {
                round.started_s = value;
                match &mut round.data {
                    RoundData::Latency(data) => {
                        data.max_ns = Some(value);
                        data.min_ns = Some(-value);
                        data.lost = count / 4;
                        data.count = Some(count / 4);
                        data.histogram = Some(text.clone());
                        data.percentiles.truncate(keep);
                        data.percentiles.iter_mut().for_each(|p| p.value_ns = Some(value));
                        data.slices.iter_mut().for_each(|s| s.start_ms = value);
                    }
                    RoundData::Throughput(data) => {
                        data.total_gbps = value;
                        data.flows.truncate(keep);
                    }
                }
            }
        }
        let files = nm_report::folder::report_files(&run, &[run.clone()]);
        prop_assert!(files.len() >= 5);
        prop_assert!(!terminal::summary(&run, &PLAIN, None).is_empty());
    }
}

#[test]
fn groups_hold_one_statistic_each() {
    let run = fixture::result(SMALL);
    let groups = view::groups(&run);
    let n_series: usize = groups.iter().map(|g| g.series.len()).sum();
    assert_eq!(n_series, run.series.len());
    assert!(groups.iter().any(|g| g.statistic == Statistic::RoundTripFromIntended));
    for group in groups {
        assert!(group.series.iter().all(|s| s.key.statistic == group.statistic));
    }
}

#[test]
fn every_published_run_has_all_reports() {
    for name in nm_report::reference::names() {
        let run = nm_report::reference::load(name).unwrap();
        let page = html::report(&run, &[]);
        let back: RunResult = serde_json::from_str(html::embedded(&page).unwrap()).unwrap();
        assert_eq!(back, run, "{name}");
        assert!(page.contains("NOT JUDGED"), "{name}");
        let has_latency = run.series.iter().any(|s| {
            s.key.statistic != Statistic::Throughput
                && view::value(s, nm_model::Metric::Median).is_some()
        });
        assert!(!has_latency || page.contains("<svg"), "{name}");
        assert!(nm_report::folder::report_files(&run, &[]).len() >= 5);
        let text = terminal::summary(&run, &PLAIN, None);
        assert!(text.lines().any(|line| line.starts_with("NOT JUDGED: ")), "{name}");
    }
}
