//! `nearmetal jitter`, and the same probe in a plan.

use std::fs;

use serde_json::Value;

use crate::support::{json, root, run};

/// The rounds of the only series.
fn rounds(result: &Value) -> &Vec<Value> {
    let series = result["series"].as_array().unwrap();
    assert_eq!(series.len(), 1);
    assert_eq!(series[0]["key"]["statistic"], "interruption");
    series[0]["rounds"].as_array().unwrap()
}

/// Checks that the causes of each CPU add up to what it lost, to the nanosecond.
fn check_balance(round: &Value) {
    let cpus = round["data"]["jitter"]["cpus"].as_array().unwrap();
    assert!(!cpus.is_empty());
    for cpu in cpus {
        let balance = &cpu["balance"];
        let parts = ["run_delay_ns", "interrupts_ns", "steal_ns", "unexplained_ns"];
        let parts: Vec<i64> = parts.iter().filter_map(|part| balance[part].as_i64()).collect();
        assert!(parts.iter().all(|ns| *ns >= 0), "{balance}");
        let sum: i64 = parts.iter().sum();
        assert_eq!(Some(sum), cpu["lost_ns"].as_i64(), "{cpu}");
        assert!(cpu["gaps"].as_u64().unwrap() > 0, "{cpu}");
    }
}

#[test]
fn a_table_for_each_cpu_and_a_folder_with_reports() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let cpu = nm_sys::cpu::allowed().last().unwrap().to_string();
    let words = ["jitter", "--seconds", "0.5", "--cpus", &cpu, "--out", out.to_str().unwrap()];
    let found = run(&words);
    assert_eq!(found.code, 0, "{}{}", found.stdout, found.stderr);
    for word in ["gaps /s", "lost", "preempted", "interrupts", "below the OS", "lengths in"] {
        assert!(found.stdout.contains(word), "{word}: {}", found.stdout);
    }
    let result = json(&out.join("result.json"));
    let schema = json(&root().join("schema/result.json"));
    let validator = jsonschema::validator_for(&schema).unwrap();
    let errors: Vec<String> = validator.iter_errors(&result).map(|e| e.to_string()).collect();
    assert_eq!(errors, Vec::<String>::new());
    let round = &rounds(&result)[0];
    check_balance(round);
    let jitter = &round["data"]["jitter"];
    assert_eq!(jitter["cpus"][0]["cpu"].to_string(), cpu);
    assert_eq!(jitter["cpus"][0]["slices"].as_array().unwrap().len(), 5);
    let page = fs::read_to_string(out.join("report.html")).unwrap();
    // The map is followed by its table.
    let map = page.find("id=\"jitter-1\"").expect("a heat map");
    assert!(page[map..].contains("class=\"heat lost"), "something is shaded");
    assert!(page[map..].contains("Table: Lost time of host"));
    assert!(fs::read_to_string(out.join("report.md")).unwrap().contains("## Jitter"));
    let metrics = fs::read_to_string(out.join("metrics.prom")).unwrap();
    assert!(metrics.contains("nearmetal_jitter_lost_ratio{"), "{metrics}");
    let csv = fs::read_to_string(out.join("series.csv")).unwrap();
    assert!(csv.contains(&format!("cpu {cpu} lost")), "{csv}");
    let again = run(&["import", out.join("series.csv").to_str().unwrap()]);
    assert_eq!(again.code, 0, "{}", again.stderr);
}

#[test]
fn json_goes_to_stdout_and_a_target_is_judged() {
    let words = ["jitter", "--seconds", "0.1", "--threshold", "1000", "--format", "json"];
    let found = run(&[&words[..], &["--target", "time-lost < 100%"]].concat());
    assert_eq!(found.code, 0, "{}{}", found.stdout, found.stderr);
    let result: Value = serde_json::from_str(&found.stdout).unwrap();
    assert_eq!(rounds(&result).len(), 5);
    rounds(&result).iter().for_each(check_balance);
    let jitter = &rounds(&result)[0]["data"]["jitter"];
    assert_eq!(jitter["threshold_ns"], 1000);
    assert_eq!(jitter["cpus"].as_array().unwrap().len(), nm_sys::cpu::allowed().len());
    assert_eq!(result["verdicts"][0]["outcome"], "pass");
}

#[test]
fn wrong_arguments_are_named() {
    for (words, what) in [
        (["--seconds", "0"], "seconds is 0"),
        (["--seconds", "1e9"], "seconds is 1000000000"),
        (["--threshold", "0"], "from 1 to 1000000000"),
        (["--threshold", "1000000001"], "from 1 to 1000000000"),
        (["--rounds", "1001"], "from 1 to 1000"),
        (["--cpus", "0-1024"], "list of CPUs"),
        (["--cpus", "x"], "list of CPUs"),
        (["--target", "loss <= 0"], "jitter gives no loss"),
        (["--seconds", "1e-9"], "0.05 to 3600"),
        (["--threshold", "50000001"], "1 to 50000000"),
    ] {
        let found = run(&[&["jitter"], &words[..]].concat());
        assert_eq!(found.code, 2, "{words:?}: {}", found.stderr);
        assert!(found.stderr.contains(what), "{words:?}: {}", found.stderr);
    }
}

#[test]
fn cpus_that_are_not_there_are_refused_before_anything_is_made() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let words = ["jitter", "--cpus", "1000", "--out", out.to_str().unwrap()];
    let absent = run(&words);
    assert_eq!((absent.code, absent.stdout.as_str()), (2, ""), "{}", absent.stderr);
    let why = "nearmetal: --cpus: CPU 1000 is not online; the machine has CPUs 0";
    assert!(absent.stderr.starts_with(why), "{}", absent.stderr);
    assert_eq!(absent.stderr.lines().count(), 1, "{}", absent.stderr);
    assert!(!out.exists());
}

#[test]
fn a_plan_may_have_jitter() {
    let folder = tempfile::tempdir().unwrap();
    let plan = folder.path().join("plan.toml");
    let text = "name = \"quiet\"\nrounds = 5\n\n[[trials]]\nenvironments = [\"loopback\"]\n\
        probe = \"jitter\"\nseconds = 0.1\n\n\
        [[targets]]\nrequire = \"time-lost < 100%\"\nwhy = \"always met\"\n";
    fs::write(&plan, text).unwrap();
    let out = folder.path().join("out");
    let words = ["qualify", "--plan", plan.to_str().unwrap(), "--out", out.to_str().unwrap()];
    let found = run(&words);
    assert_eq!(found.code, 0, "{}{}", found.stdout, found.stderr);
    let result = json(&out.join("result.json"));
    assert_eq!(rounds(&result).len(), 5);
    rounds(&result).iter().for_each(check_balance);
    let page = fs::read_to_string(out.join("report.html")).unwrap();
    assert!(page.contains("Lost time of loopback"), "the heat map");
    // The report is made again from the result, the same bytes.
    let again = run(&["report", out.to_str().unwrap(), "--quiet"]);
    assert_eq!(again.code, 0, "{}", again.stderr);
    assert_eq!(fs::read_to_string(out.join("report.html")).unwrap(), page);
}

#[test]
fn the_table_of_culprits_is_in_every_format() {
    let folder = tempfile::tempdir().unwrap();
    let cpu = nm_sys::cpu::allowed().last().unwrap().to_string();
    for (more, method) in [(&[][..], "events"), (&["--no-trace"][..], "estimated from counters")] {
        let out = folder.path().join(format!("out{}", more.len()));
        let out_text = out.to_str().unwrap();
        let words = ["jitter", "--seconds", "0.5", "--rounds", "1", "--cpus", &cpu];
        let found = run(&[&words[..], &["--out", out_text], more].concat());
        assert_eq!(found.code, 0, "{}{}", found.stdout, found.stderr);
        let result = json(&out.join("result.json"));
        let jitter = &rounds(&result)[0]["data"]["jitter"];
        let naming = if more.is_empty() { "traced" } else { "counted" };
        assert_eq!(jitter["naming"], naming, "root, and a kernel with tracefs");
        let culprits = jitter["cpus"][0]["culprits"].as_array().unwrap();
        let name = culprits[0]["name"].as_str().unwrap();
        let named: u64 = culprits.iter().filter_map(|one| one["lost_ns"].as_u64()).sum();
        assert!(named <= jitter["cpus"][0]["lost_ns"].as_u64().unwrap());
        let read = |file: &str| fs::read_to_string(out.join(file)).unwrap();
        for text in [&found.stdout, &read("report.html"), &read("report.md")] {
            assert!(text.contains("What took the CPU of host") && text.contains(method), "{text}");
            assert!(text.contains("unexplained"), "{text}");
        }
        assert!(read("report.md").replace('\\', "").contains(name), "{name}");
        // Who does not ask for a trace lacks nothing: the caption says how names were found.
        assert!(!read("result.json").contains("the kernel is not traced"));
    }
}

/// The traces that programs left in the kernel, and where it is mounted.
fn traces() -> (usize, Vec<String>) {
    let points = nm_sys::tracepoints::Tracepoints::open().expect("root, and a kernel with tracefs");
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let of_traces = mounts.lines().filter(|line| line.contains("tracefs"));
    (points.instances().unwrap(), of_traces.map(str::to_string).collect())
}

#[test]
fn nothing_is_left_of_a_trace_after_kill() {
    let before = traces();
    let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_nearmetal"))
        .args(["jitter", "--seconds", "60"])
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let folder = format!("/proc/{}/fd", child.id());
    let is_traced = || {
        let links = fs::read_dir(&folder).into_iter().flatten().flatten();
        links
            .filter_map(|link| fs::read_link(link.path()).ok())
            .any(|to| to.to_string_lossy().contains("[perf_event]"))
    };
    while !is_traced() {
        assert!(child.try_wait().unwrap().is_none(), "the run ended before it traced");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(traces(), before);
}
