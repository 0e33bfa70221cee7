//! Two measurements on one machine: each is named to the other, and a killed one leaves nothing.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::support::{
    BINARY, Running, copy_program, json, run, signal, small_plan, so_far, wait_for, wait_gone,
};

/// A run that takes minutes if nobody ends it, when it has measured something.
fn long_run(folder: &Path) -> Running {
    fs::create_dir_all(folder).unwrap();
    let plan = small_plan(folder, r#"["loopback"]"#, 1000, 80);
    let out = folder.join("out");
    let words = ["qualify", "--plan", plan.to_str().unwrap(), "--out", out.to_str().unwrap()];
    let running = Running::start(&words);
    wait_for("the first trial", || so_far(&out));
    running
}

/// The doubts of a result about other runs.
fn other_runs(out: &Path) -> Vec<String> {
    let result = json(&out.join("result.json"));
    let doubts = result["doubts"].as_array().unwrap().clone();
    let is_wanted = |doubt: &&Value| doubt["kind"] == "concurrent-run";
    let wanted = doubts.iter().filter(is_wanted);
    wanted.map(|doubt| doubt["detail"].as_str().unwrap().to_string()).collect()
}

fn names(details: &[String], pid: u32) -> bool {
    details.iter().any(|detail| detail.starts_with(&format!("process {pid} (")))
}

#[test]
fn runs_of_different_users_name_each_other() {
    let folder = tempfile::tempdir().unwrap();
    let first_folder = folder.path().join("first");
    let first = long_run(&first_folder);
    // An ordinary user, who may not read what root's process has open, with a copy of the binary.
    let plan = small_plan(folder.path(), r#"["loopback"]"#, 2, 20);
    let (binary, out) = (folder.path().join("nearmetal"), folder.path().join("out"));
    copy_program(BINARY, &binary);
    let mut open = Command::new("chmod");
    let open = open.args(["a+rwX"]).arg(folder.path()).arg(&binary).arg(&plan).status().unwrap();
    assert!(open.success());
    let mut command = Command::new("setpriv");
    command
        .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
        .arg(&binary)
        .args(["qualify", "--plan", plan.to_str().unwrap(), "--out"])
        .arg(&out)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let second = Running(command.spawn().unwrap());
    let second_pid = second.pid();
    let second = second.finish();
    assert_eq!(second.code, 3, "two rounds support no verdict: {}", second.stderr);
    let line = |start: &str, part: &str| {
        let is_wanted = |line: &str| line.starts_with(start) && line.contains(part);
        second.stderr.lines().position(is_wanted)
    };
    let process = format!("process {} (", first.pid());
    let warned = line("nearmetal: warning: another nearmetal measures on this machine: ", &process);
    let began = line("", "round 1/2");
    assert!(warned.is_some() && warned < began, "before the first trial: {}", second.stderr);
    let warning = second.stderr.lines().nth(warned.unwrap()).unwrap();
    assert!(warning.contains("qualify --plan ") && warning.contains("), since 20"), "{warning}");
    assert!(names(&other_runs(&out), first.pid()), "{:?}", other_runs(&out));
    assert!(second.stdout.contains("another measurement at the same time"), "{}", second.stdout);

    signal("INT", first.pid());
    let first = first.finish();
    assert!(first.stderr.contains(&format!("process {second_pid} (")), "{}", first.stderr);
    let seen_by_first = other_runs(&first_folder.join("out"));
    assert!(names(&seen_by_first, second_pid), "{seen_by_first:?}");
}

#[test]
fn a_killed_run_is_no_longer_named() {
    let folder = tempfile::tempdir().unwrap();
    let killed = long_run(&folder.path().join("killed"));
    let pid = killed.pid();
    signal("KILL", pid);
    drop(killed);
    wait_gone(&[pid]);
    let plan = small_plan(folder.path(), r#"["loopback"]"#, 1, 5);
    let out = folder.path().join("out");
    let after = run(&["qualify", "--plan", plan.to_str().unwrap(), "--out", out.to_str().unwrap()]);
    assert_eq!(after.code, 3, "{}", after.stderr);
    assert!(!names(&other_runs(&out), pid), "{:?}", other_runs(&out));
    assert!(!after.stderr.contains(&format!("process {pid} (")), "{}", after.stderr);
}
