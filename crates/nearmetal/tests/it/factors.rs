//! Factors of a plan, from the file to the report.

use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::Command;

use nm_test_support::skip::can_run;
use serde_json::Value;

use crate::support::{BINARY, Running, accelerator, finish, run, signal, so_far, wait_for};

/// A plan of two short rounds over loopback with these factors.
fn plan(folder: &Path, factors: &str) -> String {
    let path = folder.join("factors.toml");
    let text = format!(
        "name = \"factors\"\nrounds = 2\n[[trials]]\nenvironments = [\"loopback\"]\n\
         stacks = [\"tcp-blocking\"]\nprobe = \"pingpong\"\nsizes = [64]\nmax_ms = 100\n\
         min_iterations = 20\nwarmup_ms = 2\ntimeout_ms = 10000\nthink_time_us = 100\n{factors}"
    );
    fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_string()
}

fn factor(name: &str, kind: &str) -> String {
    format!("[[factors]]\nname = \"{name}\"\nkind = \"{kind}\"\n")
}

#[test]
fn factors_are_measured_beside_their_row_shown_and_reported() {
    accelerator();
    let folder = tempfile::tempdir().unwrap();
    let factors = [
        factor("free", "unpinned"),
        factor("beside", "busy-neighbour"),
        factor("polled", "busy-poll"),
        factor("memory", "accelerator"),
        factor("huge", "tune-step") + "step = \"mem.thp\"\n",
    ];
    let (plan, out) = (plan(folder.path(), &factors.concat()), folder.path().join("out"));
    let out_text = out.to_str().unwrap();
    let dry = run(&["qualify", "--plan", &plan, "--dry-run"]);
    assert!(dry.stdout.contains("64 B, think time 100 us  with beside"), "{}", dry.stdout);
    let head = dry.stdout.lines().next().unwrap();
    assert!(head.starts_with("factors: 2 rounds, about ") && head.ends_with(" with factors"));
    let added = "factor beside (a busy neighbour): 1 row twice in each round, 2 trials and about ";
    assert!(dry.stdout.contains(added), "{}", dry.stdout);
    let run = run(&["qualify", "--plan", &plan, "--out", out_text]);
    assert!([0, 3].contains(&run.code), "{} {}", run.code, run.stderr);
    let text = fs::read_to_string(out.join("result.json")).unwrap();
    let result: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(result["failures"].as_array().unwrap().len(), 0, "{}", result["failures"]);
    assert_eq!(result["series"].as_array().unwrap().len(), 1, "only the row without a factor");
    assert_eq!(result["series"][0]["key"]["case"]["think_time_us"], 100);

    let by_name = |name: &str| {
        let all = result["factors"].as_array().unwrap();
        all.iter().find(|one| one["factor"]["name"] == name).unwrap_or_else(|| panic!("{name}"))
    };
    for name in ["free", "beside", "memory"] {
        let of = by_name(name);
        assert_eq!(of["series"][0]["key"], result["series"][0]["key"], "{name}");
        assert_eq!(of["series"][0]["rounds"].as_array().unwrap().len(), 2, "{name}");
        let checks = of["checks"].as_array().unwrap();
        assert_eq!(checks.len(), 2, "{name}");
        assert_ne!(checks[0]["evidence"].as_array().unwrap().len(), 0, "{name}");
        assert!(of["effects"][0]["figure"]["ratio"].as_f64().unwrap() > 0.0, "{name}");
    }
    for at in [0, 1] {
        assert_eq!(by_name("free")["checks"][at]["is_in_force"], true);
    }
    // To receivers that sleep between messages the kernel carries the bytes, which the proof says.
    let proof = &by_name("memory")["checks"][0];
    assert!(proof["is_in_force"].is_boolean(), "{proof}");
    assert_eq!(proof["evidence"][0]["source"], "ledgers of the connections");
    let bypass = &by_name("memory")["series"][0]["comparability"]["bypass"];
    assert_ne!(bypass, &result["series"][0]["comparability"]["bypass"]);
    let reason = by_name("polled")["not_available"][0]["reason"].as_str().unwrap();
    assert!(reason.starts_with("loopback has no device"), "{reason}");
    assert_eq!(by_name("polled")["not_available"].as_array().unwrap().len(), 1, "once");

    let refused = by_name("huge")["not_available"][0]["reason"].as_str().unwrap();
    assert!(refused.contains("allow it with --change-machine"), "{refused}");

    assert!(run.stdout.contains("Factors: with the factor (on) against"), "{}", run.stdout);
    assert!(run.stdout.contains("not available: loopback has no device"), "{}", run.stdout);
    let html = fs::read_to_string(out.join("report.html")).unwrap();
    assert!(html.contains("id=\"factors\"") && html.contains("on ÷ off, logarithmic"));
    let markdown = fs::read_to_string(out.join("report.md")).unwrap();
    assert!(markdown.contains("## Factors") && markdown.contains("busy thread on CPU"));
}

#[test]
fn ctrl_c_ends_a_trial_with_its_factor_and_keeps_the_rounds() {
    let folder = tempfile::tempdir().unwrap();
    let plan = plan(folder.path(), &factor("beside", "busy-neighbour"));
    let text = fs::read_to_string(&plan).unwrap().replace("rounds = 2", "rounds = 200");
    fs::write(&plan, text).unwrap();
    let out = folder.path().join("out");
    let running = Running::start(&["qualify", "--plan", &plan, "--out", out.to_str().unwrap()]);
    let checks = || {
        let result = so_far(&out)?;
        result["factors"][0]["checks"].as_array().map(Vec::len)
    };
    wait_for("the first trials with the factor", || checks().filter(|n| *n >= 2));
    signal("INT", running.pid());
    let run = running.finish();
    assert_eq!(run.code, 130, "{}{}", run.stdout, run.stderr);
    assert!(checks().unwrap() >= 2);
    assert!(out.join("report.html").is_file());
}

/// A plan whose trials last some seconds, so that one can be killed in it.
fn long_plan(folder: &Path, factors: &str) -> String {
    let path = plan(folder, factors);
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text.replace("max_ms = 100\n", "max_ms = 5000\n")).unwrap();
    path
}

const LATENCY_DEVICE: &str = "/dev/cpu_dma_latency";

/// The exit latency that the kernel keeps to, of all programs that hold it, us.
fn latency_limit_us() -> i32 {
    let mut bytes = [0; 4];
    fs::File::open(LATENCY_DEVICE).unwrap().read_exact(&mut bytes).unwrap();
    i32::from_ne_bytes(bytes)
}

fn holds_latency(pid: u32) -> bool {
    let Ok(open) = fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
    let mut targets = open.flatten().filter_map(|entry| fs::read_link(entry.path()).ok());
    targets.any(|target| target == Path::new(LATENCY_DEVICE))
}

#[test]
fn idle_states_are_free_again_when_nearmetal_is_killed_in_a_trial() {
    let device = fs::OpenOptions::new().write(true).open(LATENCY_DEVICE);
    if !can_run(device.is_ok(), "it takes root, and a kernel with /dev/cpu_dma_latency") {
        return;
    }
    drop(device);
    let folder = tempfile::tempdir().unwrap();
    let plan = long_plan(folder.path(), &factor("held", "idle-states-held"));
    let out = folder.path().join("out");
    let running = Running::start(&["qualify", "--plan", &plan, "--out", out.to_str().unwrap()]);
    let pid = running.pid();
    wait_for("a trial with idle states held", || holds_latency(pid).then_some(()));
    assert_eq!(latency_limit_us(), 0);
    signal("KILL", pid);
    assert_eq!(running.finish().code, -1, "killed");
    // Other programs may hold it for a while, but ours does not.
    wait_for("idle states free again", || (latency_limit_us() != 0).then_some(()));
}

#[test]
fn a_step_in_force_when_nearmetal_is_killed_is_put_back_by_undo() {
    if !can_run(nm_sys::namespace::privileged(), "it takes root to make namespaces") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let step = factor("paced", "tune-step") + "step = \"net.idle_cwnd\"\n";
    let plan = long_plan(folder.path(), &step);
    // The journal of a real machine, but not this one's.
    let script = r#"
        mount -t tmpfs none /var/lib
        ip link set lo up
        setting() { cat /proc/sys/net/ipv4/tcp_slow_start_after_idle; }
        setting
        "$NEARMETAL" qualify --plan "$PLAN" --out "$OUT" --change-machine >"$OUT.log" 2>&1 &
        run=$!
        waited=0
        until [ "$(setting)" = 0 ]; do
            sleep 0.05; waited=$((waited + 1)); [ $waited -lt 2400 ]
        done
        kill -KILL $run
        wait $run || echo "ended $?"
        setting
        "$NEARMETAL" tune undo >/dev/null
        setting
        "$NEARMETAL" tune status
    "#;
    let mut unshare = Command::new("unshare");
    unshare.args(["--net", "--mount", "--propagation", "private", "sh", "-ec", script]);
    unshare.env("NEARMETAL", BINARY).env("PLAN", &plan).env("OUT", folder.path().join("out"));
    let run = finish(&mut unshare);
    let log = fs::read_to_string(folder.path().join("out.log")).unwrap_or_default();
    assert_eq!(run.code, 0, "{run:?}\n{log}");
    assert!(run.stdout.starts_with("1\nended 137\n0\n1\n"), "{run:?}\n{log}");
    assert!(!run.stdout.contains("unfinished"), "{run:?}");
}
