//! `nearmetal qualify`: from a plan to a verdict and a report.

use std::fs;

use crate::support::{facts, json, plan_of, root, run, setting, small_plan};

fn names_of_namespaces() -> Vec<String> {
    let Ok(entries) = fs::read_dir("/run/netns") else { return vec![] };
    let mut names: Vec<String> =
        entries.flatten().map(|e| e.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

#[test]
fn every_environment_gives_a_verdict_and_a_complete_result() {
    let folder = tempfile::tempdir().unwrap();
    let plan = small_plan(folder.path(), r#"["loopback", "netns", "bridge"]"#, 5, 20);
    let out = folder.path().join("out");
    let before = names_of_namespaces();
    let run = run(&["qualify", "--plan", plan.to_str().unwrap(), "--out", out.to_str().unwrap()]);
    assert_eq!(run.code, 0, "{}{}", run.stdout, run.stderr);
    assert!(run.stdout.contains("\nPASS: "), "{}", run.stdout);
    assert_eq!(names_of_namespaces(), before);

    let result = json(&out.join("result.json"));
    let schema = json(&root().join("schema/result.json"));
    let validator = jsonschema::validator_for(&schema).unwrap();
    let errors: Vec<String> = validator.iter_errors(&result).map(|e| e.to_string()).collect();
    assert_eq!(errors, Vec::<String>::new());
    assert_eq!(result["state"], "complete");
    assert_eq!(result["series"].as_array().unwrap().len(), 3 * 2 * 2);
    for series in result["series"].as_array().unwrap() {
        assert_eq!(series["rounds"].as_array().unwrap().len(), 5, "{}", series["key"]);
        for round in series["rounds"].as_array().unwrap() {
            assert!(round["data"]["count"].as_u64().unwrap() >= 20);
            assert!(round["data"]["histogram"].is_string());
            assert_eq!(round["placements"].as_array().unwrap().len(), 2, "both ends");
        }
    }
    for endpoint in ["netns client", "netns server", "bridge client", "loopback server"] {
        let (environment, side) = endpoint.split_once(' ').unwrap();
        let facts = facts(&result, environment, side);
        assert!(facts["cpu"]["online"].as_u64().unwrap() >= 1, "{endpoint}");
        assert!(facts["clock"]["pair_cost_ns"].as_f64().unwrap() > 0.0, "{endpoint}");
        assert!(!facts["links"].as_array().unwrap().is_empty(), "{endpoint}");
    }
    for name in ["report.html", "report.md", "junit.xml", "metrics.prom", "series.csv"] {
        assert!(out.join(name).is_file(), "{name}");
    }
}

#[test]
fn shared_memory_is_shown_with_the_limit_of_the_hardware() {
    let folder = tempfile::tempdir().unwrap();
    let stacks = r#"["shm-spin", "shm-blocking"]"#;
    let plan = plan_of(folder.path(), r#"["loopback", "netns", "bridge"]"#, stacks, 5, 20);
    let out = folder.path().join("out");
    let run = run(&["qualify", "--plan", plan.to_str().unwrap(), "--out", out.to_str().unwrap()]);
    assert_eq!(run.code, 0, "{}{}", run.stdout, run.stderr);
    let result = json(&out.join("result.json"));
    assert_eq!(result["series"].as_array().unwrap().len(), 3 * 2 * 2);
    let mut limits = 0;
    for series in result["series"].as_array().unwrap() {
        assert_eq!(series["rounds"].as_array().unwrap().len(), 5, "{}", series["key"]);
        assert_eq!(series["comparability"]["bypass"], "shm");
        if let Some(limit) = setting(series, "cache-line limit") {
            assert_eq!(limit["unit"], "ns", "{limit}");
            assert!(limit["value"]["low"].as_u64() <= limit["value"]["high"].as_u64(), "{limit}");
            limits += 1;
        }
    }
    let cpus = nm_sys::cpu::allowed().len();
    assert_eq!(limits, if cpus > 1 { 12 } else { 0 });
    assert_eq!(run.stdout.contains("cache-line limit"), cpus > 1, "{}", run.stdout);
}

#[test]
fn the_report_is_rebuilt_byte_for_byte() {
    let folder = tempfile::tempdir().unwrap();
    let plan = small_plan(folder.path(), r#"["loopback"]"#, 5, 5);
    let out = folder.path().join("out");
    let out_text = out.to_str().unwrap();
    let first = run(&["qualify", "--plan", plan.to_str().unwrap(), "--out", out_text]);
    assert_eq!(first.code, 0, "{}", first.stderr);
    let before = fs::read(out.join("report.html")).unwrap();
    fs::write(out.join("report.html"), "lost").unwrap();
    let again = run(&["report", out_text]);
    assert_eq!(again.code, 0, "{}", again.stderr);
    assert!(fs::read(out.join("report.html")).unwrap() == before, "the reports differ");
}

#[test]
fn raw_samples_are_kept_when_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let plan = small_plan(folder.path(), r#"["loopback"]"#, 1, 5);
    let out = folder.path().join("out");
    let words =
        ["qualify", "--raw", "--plan", plan.to_str().unwrap(), "--out", out.to_str().unwrap()];
    assert_eq!(run(&words).code, 3, "one round supports no verdict");
    let path = out.join("samples/loopback-tcp-blocking-pingpong-64_B-half-round-trip-0.dat");
    let samples: Vec<u32> =
        fs::read_to_string(&path).unwrap().lines().map(|line| line.parse().unwrap()).collect();
    let result = json(&out.join("result.json"));
    let series = result["series"].as_array().unwrap();
    let wanted = |s: &&serde_json::Value| {
        s["key"]["stack"] == "tcp-blocking" && s["key"]["case"]["size_bytes"] == 64
    };
    let data = &series.iter().find(wanted).unwrap()["rounds"][0]["data"];
    assert_eq!(samples.len() as u64, data["count"].as_u64().unwrap());
    assert_eq!(f64::from(*samples.iter().min().unwrap()), data["min_ns"].as_f64().unwrap());
}

#[test]
fn dry_run_lists_rows_and_measures_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let plan = folder.path().join("vm.toml");
    let text = "name='vm'\n[[trials]]\nenvironments=['loopback','vm']\nstacks=['tcp-spin']\n\
                probe='pingpong'\n";
    fs::write(&plan, text).unwrap();
    let out = folder.path().join("out");
    let words =
        ["qualify", "--plan", plan.to_str().unwrap(), "--dry-run", "--out", out.to_str().unwrap()];
    let run = run(&words);
    assert_eq!(run.code, 0, "{}", run.stderr);
    assert!(run.stdout.contains("loopback/tcp-spin pingpong"), "{}", run.stdout);
    assert!(run.stdout.contains("vm/tcp-spin pingpong  not available: "), "{}", run.stdout);
    assert!(!out.exists());
}

#[test]
fn rows_that_cannot_run_stay_in_the_report_with_their_reason() {
    let folder = tempfile::tempdir().unwrap();
    let plan = folder.path().join("vm.toml");
    let text = "name='vm'\n[[trials]]\nenvironments=['loopback','vm']\nstacks=['tcp-blocking']\n\
                probe='pingpong'\nsizes=[1]\nmax_ms=5\nmin_iterations=20\nwarmup_ms=1\n\
                [[targets]]\nrequire='median < 1s'\n";
    fs::write(&plan, text).unwrap();
    let out = folder.path().join("out");
    let run = run(&["qualify", "--plan", plan.to_str().unwrap(), "--out", out.to_str().unwrap()]);
    assert_eq!(run.code, 3, "a missing row is no pass: {}{}", run.stdout, run.stderr);
    let result = json(&out.join("result.json"));
    assert_eq!(result["not_available"][0]["environment"], "vm");
    assert!(!result["not_available"][0]["reason"].as_str().unwrap().is_empty());
    let report = fs::read_to_string(out.join("report.html")).unwrap();
    assert!(report.contains("not available"));
}

#[test]
fn only_selects_rows_and_reports_unknown_names() {
    let picked = run(&["qualify", "--dry-run", "--only", "netns,tcp-spin,pingpong"]);
    assert_eq!(picked.code, 0, "{}", picked.stderr);
    assert!(picked.stdout.contains("netns/tcp-spin pingpong"));
    assert!(!picked.stdout.contains("bridge/"), "{}", picked.stdout);
    assert!(!picked.stdout.contains("udp"), "{}", picked.stdout);
    let unknown = run(&["qualify", "--dry-run", "--only", "nets"]);
    assert_eq!(unknown.code, 2);
    assert!(unknown.stderr.contains("`nets`, did you mean `netns`?"), "{}", unknown.stderr);
}

/// As root it measures; else the row stays with its reason.
#[test]
fn tcp_over_af_xdp_is_a_row_like_any_other() {
    let folder = tempfile::tempdir().unwrap();
    let plan = folder.path().join("xdp.toml");
    let text = "name='xdp'\nrounds=1\n[[trials]]\nenvironments=['netns']\n\
                stacks=['xdp-tcp-spin','tcp-spin']\nprobe='pingpong'\nsizes=[64]\nmax_ms=50\n\
                min_iterations=20\nwarmup_ms=1\n";
    fs::write(&plan, text).unwrap();
    let out = folder.path().join("out");
    let (plan, out_text) = (plan.to_str().unwrap(), out.to_str().unwrap());
    let words = ["qualify", "--only", "netns,xdp-tcp-spin", "--plan", plan, "--out", out_text];
    let run = run(&words);
    let result = json(&out.join("result.json"));
    match result["not_available"].as_array().and_then(|rows| rows.first()) {
        Some(row) => assert!(row["reason"].as_str().unwrap().contains("; "), "{row}"),
        None => {
            let [series] = &result["series"].as_array().unwrap()[..] else { panic!("{result}") };
            assert_eq!(series["key"]["stack"], "xdp-tcp-spin", "{}", run.stderr);
            assert_eq!(series["comparability"]["bypass"], "xdp");
            assert!(series["rounds"][0]["data"]["count"].as_u64().unwrap() >= 20);
        }
    }
}

#[test]
fn every_plan_resolves_on_this_machine() {
    for name in
        ["quick", "full", "deftech-hft", "vmware-pingpong", "xenserver-stream", "monterey-network"]
    {
        let run = run(&["qualify", "--plan", name, "--dry-run"]);
        assert_eq!(run.code, 0, "{name}: {}", run.stderr);
    }
}
