//! A scripted day of load. It shows what is run and recorded, who may change the network meanwhile,
//! and what is left of a day that was ended. Rates are low, as any number of other tests may run.
//! Whether a second is within the limit depends on the machine and is not asserted.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use nm_exchange::network::Role;
use nm_model::exchange::{Durability, ExchangeSpec};
use nm_model::{Failure, FailureKind, Mode, Protocol, Stack, StackPair};
use nm_run::day::{
    self, DayEvent, DayResult, DaySetup, EventKind, NoOperator, OperatorView, Phase, Script,
};
use nm_run::round::Setup;
use serde_json::Value;

use crate::support::{BINARY, Run, Running, json, processes, run, signal, wait_for, wait_gone};

const SCRIPT: &str = r#"
name = "small"
sessions = 16
instruments = 8

[[phases]]
name = "open"
seconds = 2
rate_per_s = 100
auction_seconds = 1

[[phases]]
name = "rush"
seconds = 3
rate_per_s = 100
to_rate_per_s = 300
arrivals = "bursts"
hot = [{ instruments = [3], share = 0.9 }]
gateway_shares = [0.9, 0.1]
faults = [{ node = "mediator:1", at_s = 1 }]

[[phases]]
name = "calm"
seconds = 1
rate_per_s = 50
"#;

/// Writes a script, and returns the arguments to run it.
fn args(folder: &Path, script: &str, more: &[&str]) -> Vec<String> {
    let file = folder.join("script.toml");
    fs::write(&file, script).unwrap();
    let fixed = ["exchange", "ramp", "--nodes", "2-1-2-1", "--warmup", "100", "--script"];
    let file = file.to_str().unwrap();
    fixed.iter().chain([&file]).chain(more).map(|word| word.to_string()).collect()
}

fn ramp(folder: &Path, script: &str, more: &[&str]) -> Run {
    let args = args(folder, script, more);
    run(&args.iter().map(String::as_str).collect::<Vec<_>>())
}

fn numbers(values: &Value, key: &str) -> Vec<u64> {
    values.as_array().unwrap().iter().map(|value| value[key].as_u64().unwrap()).collect()
}

#[test]
fn a_day_runs_its_phases_and_its_fault_and_can_be_verified() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let out_text = out.to_str().unwrap();
    let more = ["--durability", "memory-quorum", "--record", "--out", out_text];
    let found = ramp(folder.path(), SCRIPT, &more);
    let day = json(&out.join("day.json"));
    let expected = match day["outcome"].as_str().unwrap() {
        "pass" => (0, "PASS: "),
        "fail" => (1, "FAIL: "),
        _ => (3, "INCONCLUSIVE: "),
    };
    assert_eq!(found.code, expected.0, "{}{}", found.stdout, found.stderr);
    assert!(found.stdout.contains(expected.1), "{}", found.stdout);
    let phases = &day["phases"];
    assert_eq!(numbers(phases, "judged_s"), [2, 3, 1]);
    assert_eq!(numbers(phases, "lost"), [0, 0, 0], "{}{}", found.stdout, found.stderr);
    for (phase, (expected, dispersion)) in phases.as_array().unwrap().iter().zip([
        // With the commands of the operator: eight begin the auction, eight end it.
        (216.0, 1.0),
        (600.0, 11.2),
        (50.0, 1.0),
    ]) {
        let off = (phase["sent"].as_f64().unwrap() - expected).abs();
        assert!(off < 5.0 * f64::sqrt(dispersion * expected), "{phase}");
        assert!(found.stdout.contains(phase["name"].as_str().unwrap()), "{}", found.stdout);
    }
    let kinds: Vec<&str> =
        day["events"].as_array().unwrap().iter().map(|it| it["kind"].as_str().unwrap()).collect();
    for kind in ["auction", "ramp", "hot-set", "gateway-shift", "fault", "rate"] {
        assert!(kinds.contains(&kind), "{kinds:?}");
    }
    let is_fault = |event: &&Value| event["kind"] == "fault";
    let fault = day["events"].as_array().unwrap().iter().find(is_fault).unwrap();
    assert_eq!(fault["detail"], "mediator 1 was killed");
    assert!(fault["at_s"].as_f64().unwrap() >= 3.0, "{fault}");
    let seconds = fs::read_to_string(out.join("seconds.csv")).unwrap();
    let names: Vec<&str> =
        seconds.lines().skip(1).map(|line| line.split(',').nth(1).unwrap()).collect();
    assert_eq!(names, ["open", "open", "rush", "rush", "rush", "calm"]);
    let verified = run(&["exchange", "verify", out_text]);
    assert_eq!(verified.code, 0, "{}{}", verified.stdout, verified.stderr);
    // The folder has this day, and stays as it is.
    let again = ramp(folder.path(), SCRIPT, &["--out", out_text]);
    assert_eq!(again.code, 5, "{}{}", again.stdout, again.stderr);
    assert!(again.stderr.contains("of another day; name another folder"), "{}", again.stderr);
    assert_eq!(json(&out.join("day.json")), day);
}

#[test]
fn the_stream_of_a_day_depends_on_script_and_seed_only() {
    let folder = tempfile::tempdir().unwrap();
    let hash = |name: &str, seed: &str, nodes: &str| {
        let out = folder.path().join(name);
        let more = ["--seed", seed, "--nodes", nodes, "--warmup", "0", "--format", "json"];
        let step = ["exchange", "ramp", "--step", "100:200", "--phase-seconds", "1", "--out"];
        let found = run(&[&step[..], &[out.to_str().unwrap()], &more].concat());
        let day: Value = serde_json::from_str(&found.stdout).unwrap();
        assert_eq!(day, json(&out.join("day.json")));
        assert!(!out.join("round-1").exists(), "nothing was to be recorded");
        day["stream_hash"].as_str().unwrap().to_string()
    };
    let first = hash("a", "3", "1-1-1-1");
    assert_eq!(hash("b", "3", "2-1-1-1"), first);
    assert_ne!(hash("c", "4", "1-1-1-1"), first);
}

/// Policies that have two active mediators from 200 requests a second on, and decide at once.
const POLICIES: &str = r#"
[policies.resizer]
lower_per_s = 50.0
upper_per_s = 200.0
up_delay_ms = 0
cooldown_ms = 0

[policies.balancer]
excess_min_per_s = 10.0
delay_ms = 0
"#;

/// The load is five times as high in the middle: the policies activate spares, and move instruments
/// to them while they are traded.
#[test]
fn policies_activate_spares_and_move_instruments_during_a_day() {
    let folder = tempfile::tempdir().unwrap();
    let (out, policies) = (folder.path().join("out"), folder.path().join("policies.toml"));
    fs::write(&policies, POLICIES).unwrap();
    let found = run(&[
        &["exchange", "ramp", "--step", "100:500", "--phase-seconds", "8"][..],
        &["--nodes", "1-1-3-1", "--spares", "2", "--warmup", "100", "--record"],
        &["--policies", policies.to_str().unwrap(), "--policies-every-ms", "250"],
        &["--out", out.to_str().unwrap()],
    ]
    .concat());
    assert!([0, 1, 3].contains(&found.code), "{}{}", found.stdout, found.stderr);
    let day = json(&out.join("day.json"));
    let phases = day["phases"].as_array().unwrap();
    assert!(phases.iter().all(|phase| phase["lost"] == 0), "{}{}", found.stdout, found.stderr);
    let of_kind = |kind: &'static str| {
        let events = day["events"].as_array().unwrap().iter();
        let of_it = events.filter(move |event| event["kind"] == kind);
        of_it.map(|event| event["detail"].as_str().unwrap().to_string()).collect::<Vec<_>>()
    };
    let (decisions, moves) = (of_kind("decision"), of_kind("move"));
    let activates = |detail: &String| {
        detail.starts_with("activate cell ") && detail.contains(" requests/s, more than 200.0 each")
    };
    assert!(decisions.iter().any(activates), "{decisions:?}");
    assert!(moves.iter().any(|it| it.starts_with("move instrument ")), "{moves:?}");
    let verified = run(&["exchange", "verify", out.to_str().unwrap()]);
    assert_eq!(verified.code, 0, "{}{}", verified.stdout, verified.stderr);
    assert!(verified.stdout.contains("moves to another cell "), "{}", verified.stdout);
}

fn nodes_of(pid: u32) -> Vec<u32> {
    let is_node =
        |words: &[String]| words.get(1..3).is_some_and(|words| words == ["exchange", "node"]);
    let all = processes().into_iter().filter(|p| p.parent == pid && is_node(&p.words));
    all.map(|p| p.pid).collect()
}

/// A day of ten minutes with policies, its nodes, and its folder, once some of its seconds were
/// judged.
fn long_day(folder: &Path) -> (Running, Vec<u32>, PathBuf) {
    let out = folder.join("out");
    let step = ["exchange", "ramp", "--step", "100:200", "--phase-seconds", "200"];
    let more = ["--nodes", "1-1-1-1", "--policies", "-", "--out", out.to_str().unwrap()];
    let running = Running::start(&[&step[..], &more].concat());
    wait_for("two seconds of the day", || {
        let seconds = fs::read_to_string(out.join("seconds.csv")).ok()?;
        (seconds.lines().count() > 2).then_some(())
    });
    let nodes = nodes_of(running.pid());
    assert_eq!(nodes.len(), 4);
    (running, nodes, out)
}

/// Each node is restarted once, mediators after they were drained, and gateways if there is another
/// one; nothing is lost. A busy machine needs half a minute for all of them.
fn restart_node_by_node(durability: &str, nodes: &str) {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let out_text = out.to_str().unwrap();
    let load = ["exchange", "ramp", "--rolling-restart", "100", "--phase-seconds", "20"];
    let network = ["--nodes", nodes, "--warmup", "100", "--durability", durability];
    let ran = run(&[&load[..], &network, &["--record", "--out", out_text]].concat());
    let day = json(&out.join("day.json"));
    let events = day["events"].as_array().unwrap();
    let maintenance: Vec<String> = events
        .iter()
        .filter(|event| event["kind"] == "maintenance")
        .map(|event| event["detail"].as_str().unwrap().to_string())
        .collect();
    let restarted = |node: &str| format!("{node} was restarted");
    for node in ["gateway 0", "router 0", "router 1", "mediator 0", "mediator 1", "processor 0"] {
        let count = maintenance.iter().filter(|it| **it == restarted(node)).count();
        assert_eq!(count, 1, "{durability}: {node}: {maintenance:?} {}", day["reasons"]);
    }
    for node in ["gateway 0", "gateway 1", "mediator 0", "mediator 1"] {
        let drained = format!("{node} was drained: ");
        let at = maintenance.iter().position(|it| it.starts_with(&drained));
        let restarted = maintenance.iter().position(|it| *it == restarted(node));
        let is_drained = node.starts_with("mediator") || nodes.starts_with('2');
        assert_eq!(at.is_some(), is_drained, "{node}: {maintenance:?}");
        assert!(at.is_none() || at < restarted, "{node}: {maintenance:?}");
    }
    let lost: u64 = numbers(&day["phases"], "lost").iter().sum();
    assert_eq!(lost, 0, "{durability}: {}", day["reasons"]);
    assert!([0, 1, 3].contains(&ran.code), "{}{}", ran.stdout, ran.stderr);
    let verified = run(&["exchange", "verify", out_text]);
    assert_eq!(verified.code, 0, "{}{}", verified.stdout, verified.stderr);
}

#[test]
fn a_network_without_replicas_is_restarted_node_by_node_and_loses_nothing() {
    restart_node_by_node("none", "1-2-2-1");
}

#[test]
fn a_replicated_network_is_restarted_node_by_node_and_loses_nothing() {
    restart_node_by_node("disk-quorum", "2-2-2-1");
}

#[test]
fn ctrl_c_keeps_what_was_run_and_ends_the_nodes() {
    let folder = tempfile::tempdir().unwrap();
    let (running, nodes, out) = long_day(folder.path());
    signal("INT", running.pid());
    let ended = running.finish();
    assert_eq!(ended.code, 130, "{}{}", ended.stdout, ended.stderr);
    assert!(ended.stdout.contains("INTERRUPTED: "), "{}", ended.stdout);
    wait_gone(&nodes);
    let day = json(&out.join("day.json"));
    assert_eq!((&day["is_complete"], &day["outcome"]), (&false.into(), &Value::Null));
    let lines = fs::read_to_string(out.join("seconds.csv")).unwrap().lines().count() as u64;
    assert_eq!(numbers(&day["phases"], "judged_s"), [lines - 1]);
    assert!(day["events"].as_array().unwrap().is_empty(), "{}", day["events"]);
}

#[test]
fn nodes_end_with_a_killed_day() {
    let folder = tempfile::tempdir().unwrap();
    let (running, nodes, out) = long_day(folder.path());
    signal("KILL", running.pid());
    running.finish();
    wait_gone(&nodes);
    assert!(fs::read_to_string(out.join("seconds.csv")).unwrap().ends_with('\n'));
    assert!(!out.join("day.json").exists());
}

#[test]
fn a_bad_script_is_reported_in_one_sentence_that_names_its_line() {
    for (from, to, why) in [
        ("rate_per_s = 50", "rates = 50", "line 25: unknown field `rates`"),
        ("rate_per_s = 50", "rate_per_s = 0", "line 25: phase `calm`: rate_per_s is 0, must be 1"),
        (
            "seconds = 1\nrate_per_s = 50",
            "seconds = 90000\nrate_per_s = 50",
            "line 24: phase `calm`",
        ),
        (
            "mediator:1",
            "mediator:2",
            "line 20: phase `rush`: node is mediator:2, must be a node of",
        ),
        ("[0.9, 0.1]", "[1.0]", "line 19: phase `rush`: gateway_shares is 1 shares, must be 2"),
        ("instruments = [3]", "instruments = [8]", "line 18: phase `rush`: hot is instrument 8"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("out");
        assert!(SCRIPT.contains(from), "{from}");
        let script = SCRIPT.replacen(from, to, 1);
        let found = ramp(folder.path(), &script, &["--out", out.to_str().unwrap()]);
        assert_eq!(found.code, 2, "{to}: {}{}", found.stdout, found.stderr);
        let errors = found.errors();
        assert_eq!(errors.len(), 1, "{to}: {errors:?}");
        assert!(errors[0].contains(&format!("script.toml: {why}")), "{to}: {errors:?}");
        assert!(!out.exists(), "{to}");
    }
    for (args, why) in [
        (&["--step", "5"][..], "write LOW:HIGH"),
        (&["--step", "0:5"], "--step: phase `before`: rate_per_s is 0"),
        (&["--step", "1:5", "--phase-seconds", "50000"], "seconds is 50000 after 50000"),
        (
            &["--rolling-restart", "5", "--program", "/no/new"],
            "--program: /no/new cannot be started",
        ),
        (&["--rolling-restart", "5", "--program", "/"], "--program: / cannot be started"),
        (&["--rolling-restart", "5", "--program", "/etc/passwd"], "Permission denied"),
        (&["--step", "1:5", "--program", "/bin/true"], "--program needs --rolling-restart"),
        (&["--script", "/no/script"], "/no/script: it cannot be read"),
        (&[], "--script"),
    ] {
        let found = run(&[&["exchange", "ramp"][..], args].concat());
        assert_eq!(found.code, 2, "{args:?}: {}{}", found.stdout, found.stderr);
        assert!(found.stderr.contains(why), "{args:?}: {}", found.stderr);
    }
}

/// A day of `seconds` on a network without recording.
fn day_setup(folder: &Path, seconds: u32) -> DaySetup {
    let stack = Stack::new(Protocol::Unix, Mode::Epoll);
    let spec = ExchangeSpec {
        nodes: "1-1-2-1".parse().unwrap(),
        durability: Durability::MemoryQuorum,
        warmup_ms: 50,
        ..ExchangeSpec::default()
    };
    let stacks = StackPair { client: stack, server: stack };
    let folder = folder.join("day");
    fs::create_dir(&folder).unwrap();
    let base = nm_lab::exchange::setup(&spec, &stacks, 5, &folder.join("round-1")).unwrap();
    let mut script = Script::step(100.0, 100.0, 1);
    script.phases = vec![Phase::steady("only", seconds, 100.0)];
    DaySetup {
        base: Setup { program: BINARY.into(), ..base },
        script,
        outside_max_s: seconds,
        network: "1-1-2-1".to_string(),
        seconds_file: folder.join("seconds.csv"),
    }
}

fn run_day(
    setup: &DaySetup,
    mut act: impl FnMut(OperatorView<'_>) -> Result<Vec<DayEvent>, Failure>,
) -> Result<DayResult, Failure> {
    day::run(setup, &mut act, &mut |_| (), &AtomicBool::new(false))
}

#[test]
fn an_operator_changes_the_network_and_its_events_are_judged() {
    let folder = tempfile::tempdir().unwrap();
    let setup = day_setup(folder.path(), 5);
    let (mut calls, mut killed, mut seen) = (0, 0, None);
    let result = run_day(&setup, |view| {
        calls += 1;
        assert!(view.now_ns >= view.start_ns);
        assert_eq!(view.network.nodes(Role::Mediator).len(), 2);
        seen = view.last_second.map(|second| second.second).or(seen);
        if seen.is_none() || killed > 0 {
            return Ok(vec![]);
        }
        killed += 1;
        view.supervisor.kill(Role::Mediator.node(0), std::time::Duration::ZERO);
        let detail = "kill mediator 0, because the test says so";
        let decision = DayEvent::at(view.now_ns, EventKind::Decision, detail);
        Ok(vec![decision.until(view.now_ns + 1_000_000)])
    });
    let result = result.unwrap();
    assert!(calls > 1 && killed == 1, "{calls} calls");
    let of_kind = |kind| result.events.iter().filter(move |event| event.kind == kind);
    let [decision] = of_kind(EventKind::Decision).collect::<Vec<_>>()[..] else {
        panic!("{:?}", result.events)
    };
    assert_eq!(decision.detail, "kill mediator 0, because the test says so");
    assert!(decision.at_s >= 1.0 && decision.until_s > decision.at_s, "{decision:?}");
    assert!(decision.before.seconds > 0 && decision.during.seconds > 0, "{decision:?}");
    assert_eq!(of_kind(EventKind::Fault).count(), 1, "{:?}", result.events);
    let [phase] = &result.phases[..] else { panic!("{:?}", result.phases) };
    assert_eq!((phase.judged_s, phase.lost), (5, 0));
    assert!(!setup.base.folder.join("data").exists(), "nothing was to be recorded");
}

#[test]
fn an_operator_that_fails_ends_the_day() {
    let folder = tempfile::tempdir().unwrap();
    let setup = day_setup(folder.path(), 300);
    let failed = run_day(&setup, |_| Err(Failure::new(FailureKind::Peer, "no node to move to")));
    assert_eq!(failed.unwrap_err().message, "no node to move to");
    assert!(setup.seconds_file.exists());
    // The same folder again, and one that does not exist.
    let again = day::run(&setup, &mut NoOperator, &mut |_| (), &AtomicBool::new(false));
    assert_eq!(again.unwrap_err().kind, FailureKind::Conflict);
    let nowhere = DaySetup { seconds_file: "/no/folder/seconds.csv".into(), ..setup };
    let failed = day::run(&nowhere, &mut NoOperator, &mut |_| (), &AtomicBool::new(false));
    assert!(failed.unwrap_err().message.contains("/no/folder/seconds.csv cannot be written"));
}
