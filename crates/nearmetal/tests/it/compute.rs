//! `compute`: layouts, `bc`, plans, comparison with the published figures, pairs.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use nm_test_support::skip::can_run;
use serde_json::Value;

use crate::support::{command, run};

fn json(words: &[&str]) -> Value {
    let mut args = vec!["compute", "--format", "json"];
    args.extend(words);
    let run = run(&args);
    assert_eq!(run.code, 0, "{}", run.stderr);
    serde_json::from_str(&run.stdout).unwrap()
}

/// The only round of a layout.
fn round<'a>(result: &'a Value, layout: &str) -> &'a Value {
    let series = result["series"].as_array().unwrap();
    let one = series.iter().find(|one| one["key"]["case"]["layout"] == layout).unwrap();
    &one["rounds"][0]["data"]
}

fn threads(round: &Value, field: &str) -> Vec<f64> {
    let threads = round["compute"]["threads"].as_array().unwrap().iter();
    threads.map(|thread| thread[field].as_f64().unwrap()).collect()
}

/// Share of its real time that a thread waited for its CPU.
fn waited(round: &Value) -> f64 {
    let (real, delay) = (threads(round, "real_ns"), threads(round, "run_delay_ns"));
    delay.iter().sum::<f64>() / real.iter().sum::<f64>()
}

#[test]
fn two_cores_do_twice_the_work_of_one_and_two_threads_on_one_core_do_not() {
    let layouts = ["--workload", "alu", "--repeats", "1", "--layout", "1x1,1x2,2x1"];
    let mut seen = vec![];
    for _ in 0..6 {
        let result = json(&layouts);
        if result["notes"].to_string().contains("needs 2 cores, and 1 may be used") {
            return;
        }
        let [solo, cores, one_core] = ["1x1", "1x2", "2x1"].map(|layout| round(&result, layout));
        let cpus = threads(cores, "cpu");
        assert_ne!(cpus[0], cpus[1]);
        let cpus = threads(one_core, "cpu");
        if cpus[0] == cpus[1] {
            // Both take turns: together they cannot end sooner than one after the other.
            let longest = threads(one_core, "real_ns").into_iter().fold(0.0, f64::max);
            let work: f64 = threads(one_core, "user_ns").iter().sum();
            assert!(longest > 0.8 * work, "{one_core}");
        }
        let rate = |round: &Value| round["rate_per_s"].as_f64().unwrap();
        let ratios = (rate(cores) / rate(solo), rate(one_core) / rate(solo));
        // Two hardware threads of one core may gain up to a half.
        if (1.6..2.4).contains(&ratios.0) && (0.75..1.6).contains(&ratios.1) {
            return;
        }
        // On a machine with other work a layout gets less than its share.
        if waited(solo) < 0.05 && waited(cores) < 0.05 {
            seen.push(ratios);
        }
    }
    assert!(seen.is_empty(), "1x2 and 2x1 beside 1x1 without a disturbance: {seen:?}");
}

#[test]
fn bc_is_used_if_it_is_installed_and_not_compared_with_another_one() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("result");
    let out = out.to_str().unwrap();
    let result =
        run(&["compute", "--workload", "bc", "--layout", "1x1", "--repeats", "1", "--out", out]);
    if !can_run(!result.stderr.contains("bc is not installed"), "bc is not installed") {
        return;
    }
    assert_eq!(result.code, 0, "{}", result.stderr);
    assert!(result.stdout.contains("published, 2010"), "{}", result.stdout);
    let page = fs::read_to_string(format!("{out}/report.html")).unwrap();
    for part in ["work per core", "id=\"compute\"", "scale=2000", "hyperthread was 66 to 69 %"] {
        assert!(page.contains(part), "{part}");
    }
    let compared = run(&["compare", out, "reference:monterey-compute-bc-pi"]);
    assert!(compared.stdout.contains("workload implementation"), "{}", compared.stdout);
}

/// A folder with a program `bc` that prints `text` whatever it is asked.
fn fake_bc(folder: &Path, text: &str) {
    let path = folder.join("bc");
    fs::write(&path, format!("#!/bin/sh\necho 'bc 1.0 (Gavin)'\necho '{text}'\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn a_bc_that_is_missing_or_wrong_gives_no_figure() {
    let folder = tempfile::tempdir().unwrap();
    let with_path = || {
        let mut command =
            command(&["compute", "--workload", "bc", "--layout", "1x1", "--repeats", "1"]);
        let output = command.env("PATH", folder.path()).output().unwrap();
        (output.status.code().unwrap(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (code, stderr) = with_path();
    assert!(code != 0 && stderr.contains("not available: bc is not installed"), "{stderr}");
    fake_bc(folder.path(), "3.15");
    let (code, stderr) = with_path();
    assert!(code != 0 && stderr.contains("gave a wrong result"), "{stderr}");
}

#[test]
fn impossible_requests_are_refused_with_the_reason() {
    for (words, reason) in [
        (vec!["--layout", "1x250"], "needs 250 cores"),
        (vec!["--cpus", "1000"], "CPU 1000 is not online; the machine has CPUs 0"),
        (vec!["pairs", "--cpus", "0,1000"], "CPU 1000 is not online; the machine has CPUs 0"),
        (vec!["--cpus", "x"], "not a list of CPUs"),
        (vec!["--layout", "3y4"], "layout"),
        (vec!["--repeats", "0"], "repeats"),
        (vec!["--repeats", "1001"], "from 1 to 1000"),
        (vec!["pairs", "--cpus", "0"], "a pair needs two CPUs"),
        (vec!["pairs", "--repeats", "4"], "from 5 to 1000"),
        (vec!["pairs", "--repeats", "1001"], "from 5 to 1000"),
    ] {
        let mut args = vec!["compute"];
        args.extend(&words);
        let run = run(&args);
        assert!(run.code != 0 && run.stderr.contains(reason), "{words:?}: {}", run.stderr);
    }
}

/// A job takes what it takes, so no time is promised.
#[test]
fn the_time_of_jobs_is_an_estimate() {
    let run = run(&["compute", "--workload", "alu", "--layout", "2x1", "--repeats", "1"]);
    assert_eq!(run.code, 0, "{}", run.stderr);
    assert!(run.stderr.contains("compute, 1 round: about "), "{}", run.stderr);
    assert!(!run.stderr.contains("at most"), "{}", run.stderr);
}

#[test]
fn a_plan_with_the_probe_is_measured_judged_and_reported() {
    let folder = tempfile::tempdir().unwrap();
    let (plan, out) = (folder.path().join("plan.toml"), folder.path().join("result"));
    let text = "name = 'work'\nrounds = 5\n[[trials]]\nenvironments = ['loopback']\n\
                probe = 'compute'\nworkloads = ['alu']\nlayouts = ['1x1']\nrepeats = 1\n\
                [[targets]]\nrequire = 'median < 100s'\nprobe = 'compute'\n";
    fs::write(&plan, text).unwrap();
    let (plan, out) = (plan.to_str().unwrap(), out.to_str().unwrap());
    let run = run(&["qualify", "--plan", plan, "--out", out]);
    assert_eq!(run.code, 0, "{}\n{}", run.stdout, run.stderr);
    assert!(run.stdout.contains("Compute: jobs in layouts"), "{}", run.stdout);
    let markdown = fs::read_to_string(format!("{out}/report.md")).unwrap();
    assert!(markdown.contains("## Compute"), "{markdown}");
}

#[test]
fn pairs_of_cpus_are_tried() {
    let run = run(&["compute", "pairs", "--repeats", "5", "--format", "json"]);
    if run.stderr.contains("a pair needs two CPUs") {
        return;
    }
    assert_eq!(run.code, 0, "{}", run.stderr);
    let pairs: Value = serde_json::from_str(&run.stdout).unwrap();
    let first = &pairs["pairs"][0];
    let findings = ["one core", "two cores", "unclear"];
    assert!(findings.contains(&first["finding"].as_str().unwrap()), "{first}");
    assert!(first["ratios"].as_array().unwrap().len() <= 5);
}
