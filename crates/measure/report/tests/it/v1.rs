//! Results of format version 1, as that version wrote them, still open, compare and report.

use nm_judge::judge;
use nm_judge::{CompareOptions, compare};
use nm_model::row::EndpointId;
use nm_model::setting::{SettingKind, SettingValue};
use nm_model::stack::StackPair;
use nm_model::{ProbeKind, RunResult, Side};
use nm_report::{folder, schema};

const FILES: [(&str, &str); 3] = [
    ("exchange", include_str!("../data/v1/exchange.json")),
    ("failed", include_str!("../data/v1/failed.json")),
    ("exchange-failed", include_str!("../data/v1/exchange-failed.json")),
];

fn load(name: &str) -> RunResult {
    let (_, json) = FILES.iter().find(|(known, _)| *known == name).unwrap();
    folder::parse(json, name).unwrap()
}

fn series<'a>(run: &'a RunResult, stack: &str) -> &'a nm_model::Series {
    run.series.iter().find(|series| series.key.stack == stack).unwrap()
}

#[test]
fn old_files_open_and_are_written_as_the_present_version() {
    let schema = schema::result();
    let validator = jsonschema::validator_for(&schema).unwrap();
    for (name, _) in FILES {
        let run = load(name);
        assert!(!run.series.is_empty() && !run.facts.is_empty(), "{name}");
        let json = serde_json::to_value(&run).unwrap();
        let faults: Vec<String> = validator.iter_errors(&json).map(|e| e.to_string()).collect();
        assert_eq!(faults, Vec::<String>::new(), "{name}");
        assert_eq!(folder::parse(&json.to_string(), name).unwrap(), run, "{name}");
    }
}

#[test]
fn old_files_compare_and_report() {
    for (name, _) in FILES {
        let run = load(name);
        let comparison = compare(&run, &run, &CompareOptions::default());
        assert!(comparison.differences.is_empty() && !comparison.overall.is_empty(), "{name}");
        let files = folder::report_files(&run, &[]);
        let report = &files.iter().find(|(file, _)| file == folder::REPORT).unwrap().1;
        assert!(report.contains(name), "{name}");
    }
}

#[test]
fn old_texts_become_types() {
    let run = load("exchange");
    let exchange = series(&run, "1-1-1-1");
    assert_eq!(exchange.settings.get(&SettingKind::Nodes), Some(&SettingValue::Number(4)));
    let warm_up = exchange.settings.get(&SettingKind::WarmUp);
    assert_eq!(warm_up, Some(&SettingValue::Milliseconds(100.0)));
    let limit = series(&run, "shm-spin").settings.get(&SettingKind::CacheLineLimit);
    assert!(matches!(limit, Some(SettingValue::Nanoseconds(range)) if range.low > 0), "{limit:?}");
    let stream = run.series.iter().find(|one| one.key.probe == ProbeKind::Stream).unwrap();
    let write = stream.settings.get(&SettingKind::WriteSize);
    assert_eq!(write, Some(&SettingValue::Bytes(131_072)));
    assert!(run.facts.contains_key(&EndpointId::new("loopback", Side::Client)));
    assert_eq!(run.verdicts[0].require.as_ref().map(|target| target.limit), Some(10e6));
}

/// Version 1 found a failure by searching its sentence for `netns/tcp-spin`, which
/// `netns/tcp-spin:tcp-blocking` contains.
#[test]
fn a_failure_is_not_taken_for_that_of_a_stack_with_a_longer_name() {
    let mut run = load("failed");
    let row = run.failures[0].row.clone().unwrap();
    assert_eq!(row.to_string(), "round 1 of netns/tcp-spin:tcp-blocking pingpong");
    assert!(row.stack.parse::<StackPair>().is_ok());
    run.series.retain(|series| series.key.stack != "tcp-spin");
    judge(&mut run, &|_| None);
    let reason = |stack: &str| {
        let name = format!("netns/{stack} pingpong 64 B");
        let of_series = run.verdicts[0].evidence.iter().find(|one| one.series == name);
        of_series.unwrap().reason.clone()
    };
    assert_eq!(reason("tcp-spin"), "not measured");
    assert!(reason("tcp-spin:tcp-blocking").ends_with("ended by signal 9"));
}

/// Version 1 recorded failures of the exchange under the stack of its links, `tcp-epoll`, and
/// looked for them under its layout, `1-1-1-1`.
#[test]
fn a_failure_of_the_exchange_keeps_its_reason() {
    let mut run = load("exchange-failed");
    run.series.clear();
    judge(&mut run, &|_| None);
    assert_eq!(
        run.verdicts[0].evidence[0].reason,
        "not measured: round 1 of loopback/1-1-1-1 exchange: processor 0 ended by itself and was \
         started again"
    );
}
