//! Formats that other programs read: they must be valid by the reader's rules.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use nm_model::result::Statistic;
use nm_report::probes::pingpong::sfnt;
use nm_report::{csv, html, junit, openmetrics, sarif, schema, summary};
use proptest::prelude::*;
use quick_xml::Reader;
use quick_xml::events::Event;

use crate::fixture::{self, SMALL};
use crate::golden;

/// Names of all elements, after checking that the text is well-formed.
fn elements(xml: &str) -> Result<Vec<String>, String> {
    let mut reader = Reader::from_str(xml);
    reader.config_mut().check_end_names = true;
    let mut names = vec![];
    loop {
        match reader.read_event().map_err(|e| e.to_string())? {
            Event::Start(start) | Event::Empty(start) => {
                for attribute in start.attributes() {
                    attribute.map_err(|e| e.to_string())?;
                }
                names.push(start.name().as_ref().to_string());
            }
            Event::Eof => return Ok(names),
            _ => {}
        }
    }
}

/// The lines of the probes of the machine in a table of all figures.
#[test]
fn jitter_and_compute_have_lines_with_units_in_the_table_of_figures() {
    let run = nm_report::folder::load(&golden::path("tests/data/quick.json")).unwrap();
    let text = csv::long(&run);
    // One round shows every figure.
    let is_first = |line: &&str| line.contains(",0,") || line.contains(",all,");
    let of = |probe: &str| {
        let lines = text.lines().filter(|line| line.split(',').nth(2) == Some(probe));
        lines.filter(is_first).map(|line| format!("{line}\n")).collect::<String>()
    };
    let lines = [csv::LONG_HEADING, "\n", &of("jitter"), &of("compute")].concat();
    golden::check("tests/golden/machine.csv", &lines);
    let columns = csv::LONG_HEADING.split(',').count();
    for line in lines.lines() {
        assert_eq!(line.split(',').count(), columns, "{line}");
    }
}

/// Jenkins and Surefire read the same document; Surefire's schema is the stricter one.
#[test]
fn junit_is_valid_by_the_schemas_of_jenkins_and_surefire() {
    let text = junit::report(&fixture::result(SMALL));
    for schema in ["jenkins-junit.xsd", "surefire-test-report.xsd"] {
        assert_eq!(validate(&text, schema), Ok(()));
        assert!(validate(&text.replace("<failure ", "<failed "), schema).is_err());
        assert!(validate(&text.replacen("<testcase ", "<testcase nam", 1), schema).is_err());
    }
    let odd_time = text.replacen("time=\"112.400\"", "time=\"112.4 s\"", 1);
    assert_ne!(odd_time, text);
    assert!(validate(&odd_time, "surefire-test-report.xsd").is_err());
}

fn validate(xml: &str, schema: &str) -> Result<(), String> {
    let mut child = Command::new("xmllint")
        .args(["--nonet", "--noout", "--schema"])
        .args([golden::path(&format!("tests/schemas/{schema}")), PathBuf::from("-")])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("xmllint is missing: `cargo xtask setup` installs libxml2-utils");
    child.stdin.take().unwrap().write_all(xml.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    match output.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
    }
}

#[test]
fn junit_has_a_timed_case_for_each_target() {
    let mut run = fixture::result(SMALL);
    let again = run.verdicts[0].clone();
    run.verdicts.push(again);
    let text = junit::report(&run);
    let cases: Vec<&str> = text.lines().filter(|line| line.contains("<testcase ")).collect();
    let targets: Vec<&&str> =
        cases.iter().filter(|line| line.contains("classname=\"target\"")).collect();
    assert_eq!(targets.len(), run.verdicts.len());
    assert!(targets.last().unwrap().contains(" (2)\" time=\""), "{targets:?}");
    assert!(!targets[0].contains("time=\"0.000\""), "{targets:?}");
    let evidence: usize = run.verdicts.iter().map(|verdict| verdict.evidence.len()).sum();
    let lines = ["pass: ", "fail: ", "inconclusive: "].map(|word| text.matches(word).count());
    assert!(lines.iter().sum::<usize>() >= evidence, "{text}");
}

/// Every CI service takes a comment or a note of 64 KB.
#[test]
fn the_summary_stays_below_64_kb_however_large_the_result_is() {
    let small = summary::report(&fixture::result(SMALL));
    assert!(small.starts_with("## FAIL: ") && small.contains("| outcome | target | why |"));
    assert!(!small.contains(" more in `report.html`"), "{small}");
    let mut large = fixture::result(fixture::LARGE);
    let (verdict, failure) = (large.verdicts[0].clone(), large.failures[0].clone());
    large.verdicts.extend((0..2_000).map(|_| verdict.clone()));
    large.failures.extend((0..2_000).map(|_| failure.clone()));
    let hostile = "<&|`\u{1F980}".repeat(100_000);
    for text in ["many", &hostile] {
        large.label = Some(text.to_string());
        large.verdicts.iter_mut().step_by(2).for_each(|one| one.target = text.to_string());
        let page = summary::report(&large);
        assert!(page.len() <= summary::BYTES_MAX, "{}", page.len());
        assert!(page.contains(" more in `report.html`"));
        assert_eq!(page.matches("<details>").count(), page.matches("</details>").count());
        assert!(page.trim_end().ends_with("made by nearmetal 0.0.0-made-up."), "{page}");
    }
}

/// The schema of the standard's authors.
#[test]
fn sarif_is_valid_by_the_official_schema() {
    let text = std::fs::read_to_string(golden::path("tests/schemas/sarif-2.1.0.json")).unwrap();
    let mut schema: serde_json::Value = serde_json::from_str(&text).unwrap();
    // Both patterns have a bracket too many, which only some regular expressions take.
    for part in ["run", "toolComponent"] {
        let language = &mut schema["definitions"][part]["properties"]["language"];
        language.as_object_mut().unwrap().remove("pattern");
    }
    let validator = jsonschema::validator_for(&schema).unwrap();
    let run = fixture::result(SMALL);
    let document = sarif::report(&run, "1.2.3");
    let faults = |document| -> Vec<String> {
        validator.iter_errors(document).map(|fault| fault.to_string()).collect()
    };
    assert_eq!(faults(&document), Vec::<String>::new());
    let results = document["runs"][0]["results"].as_array().unwrap();
    let missed = run.verdicts.iter().filter(|one| one.outcome != nm_model::Outcome::Pass);
    assert_eq!(results.len(), missed.count());
    for result in results {
        let place = &result["locations"][0]["logicalLocations"][0]["fullyQualifiedName"];
        assert!(place.as_str().unwrap().contains('/'), "{result}");
        let subject = &result["partialFingerprints"]["nearmetalSubject/v1"];
        assert!(subject.as_str().unwrap().starts_with("target "), "{result}");
    }
    let mut wrong = document.clone();
    wrong["runs"][0]["results"][0]["level"] = "fatal".into();
    assert!(!faults(&wrong).is_empty());
    let odd = sarif::report(&fixture::hostile("<\u{1}&"), "0");
    assert_eq!(faults(&odd), Vec::<String>::new());
}

#[test]
fn junit_fails_where_the_verdict_fails_and_skips_what_is_open() {
    let run = fixture::result(SMALL);
    let text = junit::report(&run);
    let names = elements(&text).unwrap();
    let n_of = |name: &str| names.iter().filter(|n| *n == name).count();
    // A target, and the comparison.
    assert_eq!(n_of("failure"), 2);
    // The open target, and the row that is not available.
    assert_eq!(n_of("skipped"), 2);
    assert_eq!(n_of("error"), 1);
    assert!(text.contains("not available: this version has no virtual machines"));
    assert!(text.contains(&format!("tests=\"{}\"", n_of("testcase"))));
}

#[test]
fn junit_does_not_fail_for_a_series_that_was_not_needed() {
    let mut run = fixture::result(SMALL);
    run.verdicts.truncate(1);
    run.verdicts[0].evidence[0].outcome = nm_model::Outcome::Fail;
    run.comparisons.clear();
    assert!(!elements(&junit::report(&run)).unwrap().contains(&"failure".to_string()));
}

#[test]
fn every_chart_is_well_formed_xml() {
    let page = html::report(&fixture::result(SMALL), &[fixture::reference()]);
    let charts: Vec<&str> = page.split("<svg").skip(1).collect();
    assert!(charts.len() >= 8);
    for chart in charts {
        let svg = format!("<svg{}</svg>", chart.split("</svg>").next().unwrap());
        let names = elements(&svg).unwrap();
        assert_eq!(&names[..3], ["svg", "title", "desc"]);
    }
}

#[test]
fn results_are_valid_against_the_schema() {
    let schema = schema::result();
    let validator = jsonschema::validator_for(&schema).unwrap();
    for run in [fixture::result(SMALL), fixture::reference(), fixture::hostile("<x>")] {
        let json = serde_json::to_value(&run).unwrap();
        let errors: Vec<String> = validator.iter_errors(&json).map(|e| e.to_string()).collect();
        assert_eq!(errors, Vec::<String>::new());
    }
    let mut damaged = serde_json::to_value(fixture::reference()).unwrap();
    damaged["series"] = serde_json::json!("none");
    assert!(!validator.is_valid(&damaged));
}

#[test]
fn plans_are_valid_against_the_schema() {
    let validator = jsonschema::validator_for(&schema::plan()).unwrap();
    let plan = serde_json::to_value(fixture::result(SMALL).plan.unwrap()).unwrap();
    let errors: Vec<String> = validator.iter_errors(&plan).map(|e| e.to_string()).collect();
    assert_eq!(errors, Vec::<String>::new());
    assert!(!validator.is_valid(&serde_json::json!({"name": "x"})));
}

#[test]
fn committed_schemas_are_those_of_the_types() {
    golden::check("../../../schema/result.json", &schema::text(&schema::result()));
    golden::check("../../../schema/plan.json", &schema::text(&schema::plan()));
    golden::check("../../../schema/baseline.json", &schema::text(&schema::baseline()));
}

/// Words of `text` that begin with `nearmetal_`.
fn metric_names(text: &str) -> BTreeSet<&str> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("nearmetal_")).collect()
}

#[test]
fn the_dashboard_shows_every_exported_metric_and_no_other() {
    let load = |path: &str| -> serde_json::Value {
        serde_json::from_str(&std::fs::read_to_string(golden::path(path)).unwrap()).unwrap()
    };
    let dashboard = load("../../../dashboards/nearmetal.json");
    let schema = load("tests/schemas/grafana-dashboard.json");
    let validator = jsonschema::validator_for(&schema).unwrap();
    let faults: Vec<String> = validator.iter_errors(&dashboard).map(|e| e.to_string()).collect();
    assert_eq!(faults, Vec::<String>::new());
    let mut wrong = dashboard.clone();
    wrong["panels"][0]["gridPos"]["w"] = 25.into();
    assert!(!validator.is_valid(&wrong));

    let run = nm_report::folder::load(&golden::path("tests/data/quick.json")).unwrap();
    let text = openmetrics::text(&run);
    let families = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
    let exported: BTreeSet<&str> = families.map(|line| line.split(' ').next().unwrap()).collect();
    let panels = dashboard["panels"].as_array().unwrap();
    let targets = || panels.iter().flat_map(|panel| panel["targets"].as_array().unwrap());
    let queries: Vec<&str> = targets().map(|one| one["expr"].as_str().unwrap()).collect();
    assert_eq!(metric_names(&queries.join(" ")), exported);
    let variables = dashboard["templating"].to_string();
    assert!(metric_names(&variables).is_subset(&exported), "{variables}");
    // Each label of a legend is one of the metric that it stands for.
    for target in targets() {
        let query = target["expr"].as_str().unwrap();
        let name = *metric_names(query).first().unwrap();
        let sample = text.lines().find(|line| line.starts_with(&format!("{name}{{"))).unwrap();
        for part in target["legendFormat"].as_str().unwrap().split("{{").skip(1) {
            let label = part.split("}}").next().unwrap();
            assert!(sample.contains(&format!("{label}=\"")), "{label} of {sample}");
        }
    }
}

#[test]
fn metrics_are_valid_openmetrics() {
    let run = fixture::result(SMALL);
    let text = openmetrics::text(&run);
    assert!(nm_test_support::openmetrics::check(&text).unwrap() > run.series.len());
    for statistic in [Statistic::HalfRoundTrip, Statistic::RoundTripFromIntended] {
        assert!(text.contains(&format!("statistic=\"{statistic}\"")));
    }
    assert!(nm_test_support::openmetrics::check("x 1\n# EOF\n").is_err());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn any_text_leaves_machine_formats_valid(
        text in "[\\PC\n\t\"\\\\<>&\u{0}\u{1b}\u{fffe}]{0,24}",
    ) {
        let run = fixture::hostile(&text);
        let xml = junit::report(&run);
        prop_assert!(elements(&xml).is_ok());
        let is_banned = |c: char| (c.is_control() && c != '\n') || c == '\u{fffe}';
        prop_assert!(!xml.chars().any(is_banned));
        prop_assert!(nm_test_support::openmetrics::check(&openmetrics::text(&run)).is_ok());
        // Each record of the long table has ten cells.
        for record in records(&csv::long(&run)) {
            prop_assert_eq!(record.len(), 10);
        }
        let text = sfnt::text(&run, 99.0);
        prop_assert!(text.lines().all(|l| l.is_empty() || l.starts_with(['#', '\t'])));
    }
}

/// Reads comma-separated text by RFC 4180.
fn records(text: &str) -> Vec<Vec<String>> {
    let (mut records, mut record, mut cell, mut quoted) = (vec![], vec![], String::new(), false);
    let mut letters = text.chars().peekable();
    while let Some(letter) = letters.next() {
        match (quoted, letter) {
            (true, '"') if letters.peek() == Some(&'"') => cell.push(letters.next().unwrap()),
            (_, '"') => quoted = !quoted,
            (false, ',') => record.push(std::mem::take(&mut cell)),
            (false, '\n') => {
                record.push(std::mem::take(&mut cell));
                records.push(std::mem::take(&mut record));
            }
            (_, letter) => cell.push(letter),
        }
    }
    records
}

#[test]
fn sweeps_have_the_columns_of_the_published_runs() {
    let run = fixture::result(SMALL);
    let sweep = &sfnt::sweeps(&run)[0];
    let published = golden::path("../../../reference/deftech-hft-bm-sfc9220.csv");
    let published = std::fs::read_to_string(published).unwrap();
    let ours = csv::sweep(sweep);
    assert_eq!(ours.lines().next(), published.lines().next());
    let row = ours.lines().nth(1).unwrap();
    assert!(row.split(',').all(|cell| cell.parse::<u64>().is_ok()), "{row}");
    let text = sfnt::text(&run, 99.0);
    assert!(text.contains("#\tsize\tmean\tmin\tmedian\tmax\t%ile\tstddev\titer\n\t1\t"));
}
