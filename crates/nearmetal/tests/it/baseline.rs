//! `baseline save|list|gate` and `qualify --baseline`, as a user runs them.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::support::{Run, json as load, plan_of, root, run_in};

/// A run of five steady rounds that began on this day of January: the first recorded round of each
/// series, its times multiplied.
pub fn result(folder: &Path, name: &str, day: u32, factor: f64) -> PathBuf {
    let mut result = load(&root().join("crates/measure/report/tests/data/quick.json"));
    result["name"] = json!(name);
    result["started"] = json!(format!("2026-01-{day:02}T00:00:00Z"));
    for series in result["series"].as_array_mut().unwrap() {
        series["estimates"] = json!([]);
        let first = series["rounds"][0]["data"].clone();
        for (at, round) in series["rounds"].as_array_mut().unwrap().iter_mut().enumerate() {
            round["data"] = first.clone();
            let data = &mut round["data"];
            let factor = factor * (1.0 + at as f64 * 0.002);
            let scale = |value: &mut Value| {
                if let Some(ns) = value.as_f64() {
                    *value = json!(ns * factor);
                }
            };
            for field in ["mean_ns", "min_ns", "max_ns", "stddev_ns", "es10_ns"] {
                if let Some(value) = data.get_mut(field) {
                    scale(value);
                }
            }
            for one in data["percentiles"].as_array_mut().into_iter().flatten() {
                for field in ["value_ns", "low_ns", "high_ns"] {
                    if let Some(value) = one.get_mut(field) {
                        scale(value);
                    }
                }
            }
        }
    }
    let path = folder.join(format!("{name}.json"));
    fs::write(&path, result.to_string()).unwrap();
    path
}

fn nearmetal(folder: &Path, line: &str) -> Run {
    run_in(folder, &line.split(' ').collect::<Vec<_>>())
}

/// A folder with ten accepted runs in `base`, which differ by up to 2 %.
fn accepted() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for day in 1..=10 {
        let name = format!("run-{day}");
        result(folder.path(), &name, day, 1.0 + f64::from(day * 7 % 5) * 0.005);
        let saved = nearmetal(folder.path(), &format!("baseline save {name}.json --to base"));
        assert_eq!(saved.code, 0, "{}", saved.stderr);
    }
    folder
}

/// The names in a folder, sorted.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn accepted_runs_have_small_files_in_the_order_of_their_start() {
    let folder = accepted();
    let base = folder.path().join("base");
    let names = names(&base);
    assert_eq!(names.len(), 10);
    let schema = load(&root().join("schema/baseline.json"));
    let validator = jsonschema::validator_for(&schema).unwrap();
    for (name, day) in names.iter().zip(1..) {
        assert!(name.starts_with(&format!("202601{day:02}T000000Z-")), "{name}");
        assert!(fs::metadata(base.join(name)).unwrap().len() < 100_000);
        let saved = load(&base.join(name));
        assert!(validator.is_valid(&saved), "{saved}");
    }
    let again = nearmetal(folder.path(), "baseline save run-3.json --to base");
    assert_eq!((again.code, again.stderr.lines().count()), (5, 1), "{}", again.stderr);
    assert!(again.stderr.contains("this run is saved already, as base/20260103T000000Z-"));
    let list = nearmetal(folder.path(), "baseline list base");
    assert_eq!(list.code, 0);
    assert!(list.stdout.starts_with("10 accepted runs"), "{}", list.stdout);
    let list = nearmetal(folder.path(), "baseline list base --format json");
    let list: Value = serde_json::from_str(&list.stdout).unwrap();
    assert_eq!(list["baselines"].as_array().unwrap().len(), 10);
}

#[test]
fn a_gate_passes_what_is_usual_and_fails_what_is_slower() {
    let folder = accepted();
    let itself = nearmetal(folder.path(), "baseline gate run-1.json --baseline run-1-saved.json");
    assert_eq!(itself.code, 2, "{}", itself.stdout);
    nearmetal(folder.path(), "baseline save run-1.json --to run-1-saved.json");
    let itself = nearmetal(folder.path(), "baseline gate run-1.json --baseline run-1-saved.json");
    assert_eq!(itself.code, 0, "{}", itself.stdout);
    for (name, factor, code) in [("usual", 1.01, 0), ("slower", 3.0, 1)] {
        result(folder.path(), name, 20, factor);
        let line = format!("baseline gate {name}.json --baseline base");
        let gate = nearmetal(folder.path(), &line);
        assert_eq!(gate.code, code, "{name}: {}", gate.stdout);
        assert!(gate.stdout.lines().count() <= 30, "{}", gate.stdout);
        assert!(gate.stdout.contains("10 accepted runs"), "{}", gate.stdout);
        assert!(gate.stdout.contains("this gate finds"), "{}", gate.stdout);
        let gate = nearmetal(folder.path(), &format!("{line} --last 3 --format json"));
        let found: Value = serde_json::from_str(&gate.stdout).unwrap();
        assert_eq!(found["baselines"].as_array().unwrap().len(), 3);
        let schema = load(&root().join("schema/gate.json"));
        assert!(jsonschema::validator_for(&schema).unwrap().is_valid(&found), "{found}");
    }
}

#[test]
fn files_that_are_no_baselines_are_named_in_one_sentence() {
    let folder = accepted();
    let base = folder.path().join("base");
    let name = names(&base).pop().unwrap();
    let saved = fs::read_to_string(base.join(&name)).unwrap();
    let cases = [
        (saved[..saved.len() / 2].to_string(), "is no baseline: EOF"),
        ("x".repeat(200_000), "it has more than 100000 bytes"),
        (saved.replacen("\"schema\": 1", "\"schema\": 7", 1), "version 7 of the baseline format"),
        (saved.replacen("\"unit\": \"ns\"", "\"unit\": \"us\"", 1), "is us"),
        (saved.replacen("\"started\": \"2026", "\"started\": \"\\u001b2026", 1), "is no time"),
    ];
    for (text, words) in cases {
        assert_ne!(text, saved);
        fs::write(base.join(&name), text).unwrap();
        for line in ["baseline gate run-1.json --baseline base", "baseline list base"] {
            let run = nearmetal(folder.path(), line);
            assert_eq!((run.code, run.stderr.lines().count()), (2, 1), "{}", run.stderr);
            assert!(run.stderr.contains(words) && run.stderr.contains(&name), "{}", run.stderr);
        }
    }
}

#[test]
fn an_empty_folder_decides_nothing_and_a_missing_one_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    result(folder.path(), "run", 1, 1.0);
    fs::create_dir(folder.path().join("base")).unwrap();
    let gate = nearmetal(folder.path(), "baseline gate run.json --baseline base");
    assert_eq!(gate.code, 3, "{}", gate.stdout);
    assert!(gate.stdout.contains("no accepted run of"), "{}", gate.stdout);
    assert_eq!(nearmetal(folder.path(), "baseline list base").stdout, "no accepted run\n");
    let missing = nearmetal(folder.path(), "baseline gate run.json --baseline nowhere");
    assert_eq!(missing.code, 2);
    assert!(missing.stderr.contains("there is no baseline nowhere"), "{}", missing.stderr);
    let early = nearmetal(folder.path(), "qualify --baseline nowhere --out out");
    assert_eq!(early.code, 2, "before anything is measured");
    assert!(!folder.path().join("out").exists());
}

#[test]
fn of_ten_thousand_files_the_last_thousand_are_read() {
    let folder = tempfile::tempdir().unwrap();
    result(folder.path(), "run", 31, 1.0);
    let base = folder.path().join("base");
    assert_eq!(nearmetal(folder.path(), "baseline save run.json --to base").code, 0);
    let saved = fs::read_to_string(base.join(&names(&base)[0])).unwrap();
    for at in 0..10_000 {
        let second = format!("2026-01-01T{:02}:{:02}:{:02}Z", at / 3600, at / 60 % 60, at % 60);
        let text = saved.replacen("2026-01-31T00:00:00Z", &second, 1);
        fs::write(base.join(format!("20260101T{at:06}.json")), text).unwrap();
    }
    let list = nearmetal(folder.path(), "baseline list base");
    assert!(list.stdout.starts_with("1000 accepted runs; 9001 older ones are not read"));
    let gate = nearmetal(folder.path(), "baseline gate run.json --baseline base");
    assert_eq!(gate.code, 0, "{}", gate.stdout);
    assert!(gate.stdout.contains("10 accepted runs"), "{}", gate.stdout);
}

#[test]
fn another_plan_and_another_machine_are_named() {
    let folder = accepted();
    let path = result(folder.path(), "other", 20, 1.0);
    let mut other = load(&path);
    other["plan"]["name"] = json!("another");
    fs::write(&path, other.to_string()).unwrap();
    let gate = nearmetal(folder.path(), "baseline gate other.json --baseline base");
    let text = gate.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(text.contains("the plan is another ("), "{text}");
    other["label"] = json!("rack 9");
    fs::write(&path, other.to_string()).unwrap();
    let gate = nearmetal(folder.path(), "baseline gate other.json --baseline base");
    assert_eq!(gate.code, 3, "{}", gate.stdout);
    assert!(gate.stdout.contains("no accepted run of rack 9"), "{}", gate.stdout);
    assert!(gate.stdout.contains("label rack 9 against none"), "{}", gate.stdout);
}

#[test]
fn a_qualified_run_carries_its_gate_in_every_form() {
    let folder = tempfile::tempdir().unwrap();
    let plan = plan_of(folder.path(), "['loopback']", "['tcp-spin']", 5, 20);
    let plan = plan.to_str().unwrap();
    let first = nearmetal(folder.path(), &format!("qualify --plan {plan} --out first --quiet"));
    assert!([0, 1, 3].contains(&first.code), "{}", first.stderr);
    assert_eq!(nearmetal(folder.path(), "baseline save first --to base").code, 0);
    let line = format!("qualify --plan {plan} --out second --quiet --baseline base");
    let second = nearmetal(folder.path(), &line);
    assert!(second.stdout.contains("against 1 accepted run of"), "{}", second.stdout);
    let result = load(&folder.path().join("second/result.json"));
    let outcome = result["gate"]["outcome"].as_str().unwrap();
    let codes = ["pass", "fail", "", "inconclusive"];
    let of_gate = codes.iter().position(|code| *code == outcome).unwrap();
    assert!(second.code != 0 || of_gate == 0, "{}: {}", second.code, second.stdout);
    let junit = fs::read_to_string(folder.path().join("second/junit.xml")).unwrap();
    assert!(junit.contains("gate against accepted runs"), "{junit}");
}

#[test]
fn a_full_stdout_is_one_sentence() {
    let folder = accepted();
    let full = fs::File::options().write(true).open("/dev/full").unwrap();
    let mut command = crate::support::command(&["baseline", "list", "base"]);
    let output = command.current_dir(folder.path()).stdout(full).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(String::from_utf8_lossy(&output.stderr).lines().count(), 1);
}
