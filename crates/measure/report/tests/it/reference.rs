//! The published runs: every figure of every table is in the loaded result.

use nm_model::SettingValue;
use nm_model::metric::Metric;
use nm_model::probe::Case;
use nm_model::result::{RoundData, RunResult, Series, Source};
use nm_report::reference::{list, load, names};
use proptest::prelude::*;

/// The numbers of a series in the units of the tables: ns, ms, Gb/s, Mb/s, /s, counts, bytes.
fn figures(series: &Series) -> Vec<f64> {
    let mut found = vec![];
    match series.key.case {
        Case::Message { size_bytes } | Case::Paced { size_bytes, .. } => {
            found.push(f64::from(size_bytes));
        }
        Case::Request { rate_per_s, .. } => found.extend(rate_per_s),
        Case::Flows { .. } | Case::Layout { .. } | Case::Total => {}
    }
    for round in &series.rounds {
        match &round.data {
            RoundData::Latency(data) => {
                let single = [data.mean_ns, data.min_ns, data.max_ns, data.stddev_ns, data.es10_ns];
                let percentiles = data.percentiles.iter().map(|p| p.value_ns);
                for ns in single.into_iter().chain(percentiles).flatten() {
                    found.extend([ns, ns / 1e3, ns / 1e6]);
                }
                found.extend(data.count.map(|count| count as f64));
                found.extend(data.rate_per_s);
            }
            RoundData::Throughput(data) => {
                found.push(data.total_gbps);
                found.extend(data.flows.iter().map(|flow| flow.gbps * 1e3));
                found.extend(data.flows.iter().map(|flow| f64::from(flow.index / 2 + 1)));
            }
        }
    }
    found
}

/// Whether `text`, a field of a table, is in the result: as a number of a series, or as a word
/// of a setting, a key or a note.
fn contains_field(result: &RunResult, text: &str) -> bool {
    let is_word = |hay: &str| hay.split([' ', ',']).any(|word| word == text) || hay.contains(text);
    let in_series = |series: &Series| {
        let number = text.parse::<f64>().ok();
        let near =
            |value: &f64| number.is_some_and(|n| (n - value).abs() <= 1e-9 * n.abs().max(1.0));
        figures(series).iter().any(near)
            || series.settings.iter().any(|setting| bare(&setting.value) == plain(text))
            || series.key.to_string().contains(text)
    };
    let mut notes = result.notes.iter();
    result.series.iter().any(in_series) || notes.any(|(name, note)| is_word(note) || name == text)
}

/// A setting's value without its unit, as a published table has it.
fn bare(value: &SettingValue) -> String {
    let text = value.to_string();
    let units = [" Gb/s", " Mb/s", " %"];
    let bare = units.iter().find_map(|unit| text.strip_suffix(unit)).unwrap_or(&text);
    plain(bare)
}

/// A number without needless zeros; any other text as it is.
fn plain(text: &str) -> String {
    text.parse::<f64>().map_or_else(|_| text.to_string(), |number| number.to_string())
}

fn setting(series: &Series, name: &str) -> String {
    bare(series.settings.get(&name.into()).unwrap())
}

fn csv(name: &str) -> String {
    let path = format!("{}/../../../reference/{name}.csv", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(path).unwrap()
}

/// Fields of the tables, quotes being only around a last field.
fn fields(csv: &str) -> Vec<Vec<String>> {
    let split = |line: &str| -> Vec<String> {
        let (plain, quoted) = line.split_once(",\"").unwrap_or((line, ""));
        let mut fields: Vec<String> = plain.split(',').map(str::to_string).collect();
        if !quoted.is_empty() {
            fields.push(quoted.trim_end_matches('"').to_string());
        }
        fields
    };
    csv.lines().map(split).collect()
}

#[test]
fn every_table_is_loaded_and_every_figure_is_found_in_it() {
    let mut checked = 0;
    for name in names() {
        let result = load(name).unwrap();
        assert_eq!(result.name, name);
        assert!(matches!(result.source, Source::Reference { .. }));
        for line in &fields(&csv(name))[1..] {
            for field in line.iter().filter(|field| !field.is_empty()) {
                let known = match field.as_str() {
                    // Words that the loaded form writes differently.
                    "A->B" | "B->A" | "nuttcp" | "netperf TCP_STREAM" | "loopback" => true,
                    other => contains_field(&result, other),
                };
                assert!(known, "{name}: {field} of {line:?}");
                checked += 1;
            }
        }
    }
    // Six ping-pong tables of 17 x 8, and the other tables.
    assert!(checked > 6 * 17 * 8 + 250, "{checked}");
}

#[test]
fn each_ping_pong_figure_is_the_right_metric() {
    for listed in list().filter(|listed| listed.study == "deftech-2019") {
        let result = load(listed.name).unwrap();
        let lines = fields(&csv(listed.name));
        assert_eq!(lines[0], ["size", "mean", "min", "median", "max", "p99", "stddev", "iter"]);
        assert_eq!(result.series.len(), lines.len() - 1);
        for (series, line) in result.series.iter().zip(&lines[1..]) {
            assert_eq!(series.key.stack, "onload+tcp-spin");
            let value = |metric| series.rounds[0].value(metric).unwrap();
            let p99 = Metric::Percentile(99.0);
            let metrics =
                [Metric::Mean, Metric::Min, Metric::Median, Metric::Max, p99, Metric::Stddev];
            assert_eq!(series.key.case.size_bytes().unwrap().to_string(), line[0]);
            for (metric, field) in metrics.into_iter().zip(&line[1..7]) {
                assert_eq!(value(metric).to_string(), *field, "{} {metric}", series.key);
                assert!(series.estimate(metric).is_some_and(|e| e.interval.is_none()));
            }
            // Half round trips in batches of 1000: iterations x 2 x mean is 3 s, or the cap.
            let RoundData::Latency(data) = &series.rounds[0].data else { panic!("latency") };
            let (count, mean) = (data.count.unwrap() as f64, data.mean_ns.unwrap());
            let spent_s = count * 2.0 * mean / 1e9;
            let batch_s = 1000.0 * 2.0 * mean / 1e9;
            assert!(
                count == 1e6 || (spent_s - 3.0).abs() <= batch_s + 0.03,
                "{}: {spent_s} s",
                series.key
            );
        }
    }
}

#[test]
fn inferred_facts_are_doubts_and_known_facts_are_compared() {
    let run = load("deftech-e5-vm-pf").unwrap();
    assert!(run.doubts.iter().any(|doubt| doubt.detail.starts_with("firmware")));
    let key = &run.series[0].comparability;
    assert_eq!(key.firmware.as_deref(), Some("full-feature"));
    assert_eq!((key.link.as_deref(), key.bypass.as_deref()), (Some("25 Gb/s"), Some("onload")));
    assert_eq!(setting(&run.series[0], "firmware"), "full-feature, switch-mode=pfiov pf-count=4");
    assert_eq!(run.notes["vcpus"], "4");
    assert_eq!(run.notes["recorded_header.onload_env.EF_POLL_USEC"], "100000");
    // `not stated` is unknown, and unknown agrees with nothing that is known.
    let unstated = load("deftech-hft-bm-sfc9250").unwrap();
    assert_eq!(unstated.series[0].comparability.firmware, None);
}

/// The figure of a series by the text that its table has.
#[track_caller]
fn has(series: &Series, metric: Metric, field: &str, unit: f64) {
    let found = series.rounds[0].value(metric).unwrap() / unit;
    let published: f64 = field.parse().unwrap();
    assert!((found - published).abs() < 1e-9 * published, "{} {metric}: {found}", series.key);
}

#[test]
fn each_line_of_the_other_tables_is_its_own_series() {
    let run = load("monterey-throughput").unwrap();
    for (series, line) in run.series.iter().zip(&fields(&csv("monterey-throughput"))[1..]) {
        let [tool, pattern, low, high, total, per_guest, sd] = &line[..] else {
            panic!("{line:?}")
        };
        assert!(series.key.to_string().contains(pattern.as_str()));
        has(series, Metric::Throughput, total, 1.0);
        let mut published = vec![("tool", tool), ("expected_min_gbps", low)];
        published.extend([("expected_max_gbps", high), ("sd_percent", sd)]);
        published.extend((!per_guest.is_empty()).then_some(("per_vm_gbps", per_guest)));
        for (name, value) in published {
            assert_eq!(setting(series, name), plain(value), "{}", series.key);
        }
    }
    assert_eq!(run.series.len(), 8);

    let run = load("monterey-ezbrokerage-latency").unwrap();
    for (series, line) in run.series.iter().zip(&fields(&csv("monterey-ezbrokerage-latency"))[1..])
    {
        assert_eq!(series.key.statistic, nm_model::result::Statistic::RoundTrip);
        assert_eq!((&setting(series, "nodes"), &series.key.stack), (&line[0], &line[1]));
        let p = Metric::Percentile;
        has(series, Metric::Rate, &line[2], 1.0);
        let metrics = [Metric::Mean, p(90.0), Metric::Es10, p(99.0)];
        for (metric, field) in metrics.into_iter().zip(&line[3..]) {
            has(series, metric, field, 1e6);
        }
    }
    assert_eq!(run.series.len(), 8);

    let run = load("monterey-intrahost-throughput").unwrap();
    for (series, line) in run.series.iter().zip(&fields(&csv("monterey-intrahost-throughput"))[1..])
    {
        assert_eq!(setting(series, "pattern"), line[0]);
        has(series, Metric::Throughput, &line[1], 1.0);
    }
    assert_eq!(run.series.len(), 4);

    let run = load("prose-figures").unwrap();
    let lines = &fields(&csv("prose-figures"))[1..];
    for line in lines {
        let [id, study, value, unit, meaning] = &line[..] else { panic!("{line:?}") };
        assert_eq!(run.notes[id], format!("{value} {unit}: {meaning} ({study})"));
        let Some(series) = run.series.iter().find(|series| series.key.stack == *id) else {
            continue;
        };
        match unit.as_str() {
            "us" => has(series, Metric::Mean, value, 1e3),
            "ms" => has(series, Metric::Mean, value, 1e6),
            _ => has(series, Metric::Throughput, value, 1.0),
        }
    }
    assert_eq!((lines.len(), run.series.len()), (34, 17));

    let run = load("monterey-ezbrokerage-scaling").unwrap();
    assert_eq!(run.series.len(), 4);
    for line in &fields(&csv("monterey-ezbrokerage-scaling"))[1..] {
        let note = &run.notes[&format!("{} at {}/s", line[1], line[2])];
        assert!(note.ends_with(&format!("result {}", line[3])), "{note}");
    }
    let run = load("monterey-compute-bc-pi").unwrap();
    assert_eq!(run.series.len(), 5);
    for line in &fields(&csv("monterey-compute-bc-pi"))[1..] {
        let note = &run.notes[&format!("row {}", line[0])];
        let end = format!("user_mean_s {}, real_max_s {}", line[4], line[5]);
        assert!(note.ends_with(&end), "{note}");
    }
}

#[test]
fn flows_one_by_one_add_up_to_the_published_totals() {
    let run = load("xenserver5-netperf-stream").unwrap();
    let totals: Vec<f64> = run
        .series
        .iter()
        .map(|series| match &series.rounds[0].data {
            RoundData::Throughput(data) => {
                let of = |side| -> f64 {
                    let flows = data.flows.iter().filter(|flow| flow.sender == side);
                    flows.map(|flow| (flow.gbps * 1e3).round()).sum()
                };
                let (there, back) = (of(nm_model::Side::Client), of(nm_model::Side::Server));
                assert_eq!(setting(series, "client_to_server_mbps"), there.to_string());
                assert_eq!(setting(series, "server_to_client_mbps"), back.to_string());
                assert_eq!(data.flows.len(), 8);
                data.total_gbps
            }
            RoundData::Latency(_) => panic!("throughput"),
        })
        .collect();
    assert_eq!(totals, [8.454, 18.503]);
}

#[test]
fn an_unknown_name_suggests_the_nearest() {
    let error = load("deftech-e5-vm-pv").unwrap_err();
    assert_eq!(
        error.to_string(),
        "unknown reference run `deftech-e5-vm-pv`, did you mean `deftech-e5-vm-pf`?"
    );
}

#[test]
fn series_are_unique_and_survive_json() {
    for name in names() {
        let result = load(name).unwrap();
        for (at, series) in result.series.iter().enumerate() {
            assert!(result.series[at + 1..].iter().all(|other| other.key != series.key), "{name}");
        }
        let json = serde_json::to_string(&result).unwrap();
        assert_eq!(serde_json::from_str::<RunResult>(&json).unwrap(), result, "{name}");
    }
}

proptest! {
    #[test]
    fn any_name_is_loaded_or_refused_without_a_panic(name in "\\PC{0,30}") {
        let _ = load(&name);
    }
}
