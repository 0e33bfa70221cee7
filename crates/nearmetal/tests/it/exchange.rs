//! The exchange: whole networks of processes on this machine, killed nodes, and what is left of
//! them, which is nothing.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use serde_json::Value;

use crate::support::{
    ProcessInfo, Run, Running, command, finish, json, processes, run, run_in, setting, signal,
    so_far, wait_for, wait_gone,
};

/// A run of one short round of a small network at a low rate, unless `more` says otherwise.
pub fn short<'a>(out: &'a Path, more: &[&'a str]) -> Vec<&'a str> {
    let usual = [
        ("--nodes", "1-1-1-1"),
        ("--rate", "500"),
        ("--seconds", "0.5"),
        ("--warmup", "100"),
        ("--rounds", "1"),
        ("--out", out.to_str().unwrap()),
    ];
    let mut args = vec!["exchange", "run"];
    for (flag, value) in usual {
        if !more.contains(&flag) {
            args.extend([flag, value]);
        }
    }
    args.extend(more);
    args
}

/// What the only round tells.
pub fn round(out: &Path) -> Value {
    let result = json(&out.join("result.json"));
    result["series"][0]["rounds"][0]["data"].clone()
}

fn nodes_of(pid: u32) -> Vec<u32> {
    let is_node =
        |words: &[String]| words.get(1..3).is_some_and(|words| words == ["exchange", "node"]);
    let all = processes().into_iter().filter(|p| p.parent == pid && is_node(&p.words));
    all.map(|p| p.pid).collect()
}

/// Load on such a network that is recorded and goes on until it is ended, once it runs. A busy
/// machine carries it, so that all is answered soon after the end.
pub fn endless(out: &Path, nodes: &str, durability: &str) -> Running {
    let day = ["exchange", "ramp", "--step", "100:100", "--phase-seconds", "600", "--record"];
    let network = ["--nodes", nodes, "--durability", durability, "--warmup", "100"];
    let running = Running::start(&[&day[..], &network, &["--out", out.to_str().unwrap()]].concat());
    wait_for_seconds(out, 1);
    running
}

/// Waits until so many more seconds of such a load were counted.
pub fn wait_for_seconds(out: &Path, more: usize) {
    let seconds = || {
        let text = fs::read_to_string(out.join("seconds.csv")).unwrap_or_default();
        text.lines().count().saturating_sub(1)
    };
    let before = seconds();
    wait_for("seconds of load", || (seconds() >= before + more).then_some(()));
}

/// Ends such a load, of which nothing was lost.
pub fn end_and_verify(running: Running, out: &Path) {
    signal("INT", running.pid());
    let ended = running.finish();
    assert_eq!(ended.code, 130, "{}{}", ended.stdout, ended.stderr);
    let verified = run(&["exchange", "verify", out.to_str().unwrap()]);
    assert_eq!(verified.code, 0, "{}{}", verified.stdout, verified.stderr);
}

/// What `exchange status` says in JSON, if all nodes are up and each cell has a leader.
pub fn all_led(status: &Run) -> Option<Value> {
    let status: Value = serde_json::from_str(&status.stdout).ok()?;
    let all =
        |list: &str, has: fn(&Value) -> bool| status[list].as_array().unwrap().iter().all(has);
    let is_led = all("nodes", |node| node["is_up"] == true)
        && all("cells", |cell| cell["leader"].is_u64())
        && status["control"]["leader"].is_u64();
    is_led.then_some(status)
}

/// Whether a node was started more than once, by this status.
fn was_restarted(status: &Value, role: &str, index: u64) -> bool {
    let mut nodes = status["nodes"].as_array().unwrap().iter();
    let node = nodes.find(|node| node["role"] == role && node["index"] == index).unwrap();
    node["starts"].as_u64() > Some(1)
}

/// Sends a signal to the process of a node.
pub fn signal_node(running: &Running, (role, index): (&str, u64), name: &str) {
    let words = ["--role", role, "--index", &index.to_string()].map(String::from);
    let is_it = |of: &[String]| of.windows(4).any(|four| four == words);
    let node = processes().into_iter().find(|p| p.parent == running.pid() && is_it(&p.words));
    signal(name, node.unwrap().pid);
}

/// Kills a node as `kill -9` does, and waits until it is back and all is led.
pub fn kill_and_wait(running: &Running, (role, index): (&str, u64), ask: &dyn Fn(&[&str]) -> Run) {
    signal_node(running, (role, index), "KILL");
    wait_for("the killed node", || {
        let status = all_led(&ask(&["status", "--format", "json"]))?;
        was_restarted(&status, role, index).then_some(())
    });
}

#[test]
fn a_stall_beyond_its_limit_is_refused() {
    for stall in ["1e9", "nan", "10001"] {
        let run = run(&["exchange", "run", "--rounds", "1", "--stall", stall]);
        assert_eq!(run.code, 2, "{}", run.stderr);
        assert!(run.stderr.contains(" ms is not possible: 0 to 10000 ms"), "{}", run.stderr);
    }
}

#[test]
fn run_starts_a_network_and_reports_round_trips() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let run = run(&short(&out, &[]));
    // One round supports no verdict, and says so.
    assert_eq!(run.code, 3, "{}{}", run.stdout, run.stderr);
    assert!(run.stdout.contains("fewer than 5 rounds"), "{}", run.stdout);
    assert!(run.stdout.contains("gateway to router"), "{}", run.stdout);
    let round = round(&out);
    assert!(round["count"].as_u64().unwrap() > 100, "{round}");
    assert_eq!(round["exchange"]["cpu"].as_array().unwrap().len(), 5);
    assert_eq!(round["exchange"]["hops"].as_array().unwrap().len(), 5);
    assert!(out.join("report.html").exists());
    assert!(!out.join("round-1").exists(), "nothing was to be recorded");
}

#[test]
fn an_authenticated_network_carries_load_and_its_result_records_that() {
    let folder = tempfile::tempdir().unwrap();
    let replicated = ["--authenticate", "--nodes", "1-1-2-1", "--durability", "memory-quorum"];
    let cases: [(&[&str], &str); 2] = [(&replicated, "shared secret"), (&[], "none")];
    for (number, (more, expected)) in cases.into_iter().enumerate() {
        let out = folder.path().join(number.to_string());
        let run = run(&short(&out, more));
        assert_eq!(run.code, 3, "{}{}", run.stdout, run.stderr);
        let result = json(&out.join("result.json"));
        let found = setting(&result["series"][0], "authentication").unwrap();
        assert_eq!(found["value"], expected);
        assert!(round(&out)["count"].as_u64().unwrap() > 100);
    }
}

#[test]
fn secrets_and_keys_are_made_and_nobody_else_may_read_them() {
    let folder = tempfile::tempdir().unwrap();
    let in_folder = |args: &str| {
        let args: Vec<&str> = args.split(' ').collect();
        run_in(folder.path(), &[&["exchange", "secret"], &args[..]].concat())
    };
    let made = in_folder("new secret");
    assert_eq!(made.code, 0, "{}", made.stderr);
    let again = in_folder("new secret");
    assert_eq!(again.code, 5, "{}", again.stdout);
    assert!(again.stderr.contains("secret exists already"), "{}", again.stderr);
    let derived = in_folder("derive --secret secret --sessions 1-3 --operator --out keys");
    assert_eq!(derived.code, 0, "{}", derived.stderr);
    assert!(derived.stdout.contains("keys has 4 keys"), "{}", derived.stdout);
    for name in ["secret", "keys"] {
        let mode = fs::metadata(folder.path().join(name)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
    for wrong in ["--sessions 0-3", "--sessions 3-1", "--sessions x", ""] {
        let args = format!("derive --secret secret {wrong} --out other");
        let refused = in_folder(args.replace("  ", " ").as_str());
        assert_eq!(refused.code, 2, "{wrong}: {}", refused.stdout);
    }
    let address = |number: u16| format!("address = \"0.0.0.0:{number}\"\n");
    let classes = ["gateway", "router", "mediator", "processor"];
    let network: String = classes
        .iter()
        .zip(1..)
        .map(|(class, number)| format!("[[{class}]]\n{}", address(number)))
        .collect();
    let start = |text: String| {
        fs::write(folder.path().join("network.toml"), text).unwrap();
        let args = "exchange node --role router --index 0 --network network.toml";
        run_in(folder.path(), &args.split(' ').collect::<Vec<_>>())
    };
    let refused = start(network.clone());
    assert_ne!(refused.code, 0, "{}", refused.stdout);
    assert!(refused.stderr.contains("nearmetal exchange secret new FILE"), "{}", refused.stderr);
    let mode = fs::Permissions::from_mode(0o644);
    fs::set_permissions(folder.path().join("secret"), mode).unwrap();
    let refused = start(format!("secret = \"secret\"\n{network}"));
    assert_ne!(refused.code, 0, "{}", refused.stdout);
    assert!(refused.stderr.contains("others may read"), "{}", refused.stderr);
}

#[test]
fn published_figures_are_shown_beside_the_same_layout() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let run = run(&short(&out, &["--nodes", "2-2-2-2", "--transport", "unix"]));
    assert_eq!(run.code, 3, "{}{}", run.stdout, run.stderr);
    assert!(run.stdout.contains("2-2-2-2 unix"), "{}", run.stdout);
    assert!(
        run.stdout.contains("published, 2010") && run.stdout.contains("7.17"),
        "{}",
        run.stdout
    );
    let report = fs::read_to_string(out.join("report.html")).unwrap();
    assert!(report.contains("id=\"exchange\"") && report.contains("published, 2010"));
}

#[test]
fn requests_depend_on_the_seed_only() {
    let folder = tempfile::tempdir().unwrap();
    let hash = |name: &str, seed: &str| {
        let out = folder.path().join(name);
        let run = run(&short(&out, &["--seed", seed]));
        assert_eq!(run.code, 3, "{}{}", run.stdout, run.stderr);
        round(&out)["exchange"]["stream_hash"].as_str().unwrap().to_string()
    };
    assert_eq!(hash("a", "7"), hash("b", "7"));
    assert_ne!(hash("c", "7"), hash("d", "8"));
}

#[test]
fn stalled_generator_is_fully_visible_in_es10() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    run(&short(&out, &["--seconds", "1", "--stall", "200"]));
    let round = round(&out);
    // A fifth of the requests waits 0 to 200 ms: the slower half of them is the slowest tenth. More
    // than that may come from the machine, less may not.
    assert!(round["es10_ns"].as_f64().unwrap() > 0.9 * 150e6, "{}", round["es10_ns"]);
}

#[test]
fn killed_nodes_recover_without_violations() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("torture");
    let args = ["exchange", "torture", "--trials", "4", "--seed", "3", "--rate", "300"];
    let more = ["--seconds", "2", "--out", out.to_str().unwrap(), "--format", "json"];
    let run = run(&[&args[..], &more[..]].concat());
    assert_eq!(run.code, 0, "{}{}", run.stdout, run.stderr);
    let all: Value = serde_json::from_str(&run.stdout).unwrap();
    let all = all["trials"].as_array().unwrap();
    assert_eq!(all.len(), 4);
    for trial in all {
        assert!(trial["answered"].as_u64().unwrap() > 100, "{trial}");
        assert!(!trial["back_ms"].as_array().unwrap().is_empty(), "{trial}");
    }
    assert!(!out.exists(), "trials that found nothing leave nothing");
}

#[test]
fn recorded_run_can_be_verified() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let recorded =
        run(&short(&out, &["--record", "--durability", "memory-quorum", "--nodes", "1-1-2-1"]));
    assert_eq!(recorded.code, 3, "{}{}", recorded.stdout, recorded.stderr);
    let verified = run(&["exchange", "verify", out.join("round-1").to_str().unwrap()]);
    assert_eq!(verified.code, 0, "{}{}", verified.stdout, verified.stderr);
}

#[test]
fn status_and_moves_of_a_running_network() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let out_text = out.to_str().unwrap();
    let more = ["--nodes", "1-2-3-1", "--durability", "memory-quorum", "--seconds", "600"];
    let running = Running::start(&short(&out, &[&more[..], &["--rate", "200"]].concat()));
    let asked = ["exchange", "status", "--folder", out_text, "--format", "json"];
    wait_for("the load", || has_epoll_set(running.pid()).then_some(()));
    let status = wait_for("the network", || all_led(&run(&asked)));
    assert_eq!(status["nodes"].as_array().unwrap().len(), 7, "{status}");
    assert!(status["nodes"].as_array().unwrap().iter().all(|node| node["starts"] == 1), "{status}");
    let cells: Vec<_> = status["cells"].as_array().unwrap().iter().map(|c| &c["leader"]).collect();
    assert!(cells.len() == 3 && cells.iter().all(|leader| leader.is_u64()), "{status}");
    assert_eq!(
        (&status["map_epoch"], status["exceptions"].as_array().unwrap().len()),
        (&0.into(), 0)
    );
    let leader = status["control"]["leader"].as_u64().unwrap();

    // An instrument that nobody trades moves, and so do some that are traded.
    let change = |words: &[&str]| run(&[&["exchange"], words, &["--folder", out_text]].concat());
    let moved = change(&["assign", "1000000", "0"]);
    assert_eq!(moved.code, 0, "{}{}", moved.stdout, moved.stderr);
    assert!(moved.stdout.contains("instrument 1000000 is in cell 0, map version 1"), "{moved:?}");
    let traded = change(&["move", "0", "2", "3", "--to", "1", "--format", "json"]);
    assert_eq!(traded.code, 0, "{}{}", traded.stdout, traded.stderr);
    let traded: Value = serde_json::from_str(&traded.stdout).unwrap();
    let versions = traded["moves"].as_array().unwrap().iter().map(|one| &one["map_version"]);
    assert!(versions.clone().count() == 3 && versions.clone().all(Value::is_u64), "{traded}");
    let nowhere = change(&["move", "1000000", "--to", "3"]);
    assert_eq!(nowhere.code, 2, "{}{}", nowhere.stdout, nowhere.stderr);

    // A process that is killed starts again, and another one leads meanwhile.
    let words = ["--role", "mediator", "--index", &leader.to_string()].map(String::from);
    let is_leader = |words_of: &[String]| words_of.windows(4).any(|four| four == words);
    let killed = processes().into_iter().find(|p| p.parent == running.pid() && is_leader(&p.words));
    signal("KILL", killed.unwrap().pid);
    wait_for("the killed node", || {
        let status = all_led(&run(&asked))?;
        was_restarted(&status, "mediator", leader).then_some(())
    });
    let text = run(&["exchange", "status", "--folder", out_text]).stdout;
    assert!(text.contains("7 of 7 nodes are up"), "{text}");
    assert!(text.contains("start 2"), "{text}");
    assert!(text.contains("3 of 3 cells have a leader"), "{text}");
    assert!(text.contains("1000000 in cell 0; 0, 2, 3 in cell 1"), "{text}");
    signal("INT", running.pid());
    assert_eq!(running.finish().code, 130);
    let gone = run(&asked);
    assert_eq!(gone.code, 1, "{}{}", gone.stdout, gone.stderr);
    let shown: Value = serde_json::from_str(&gone.stdout).unwrap();
    assert_eq!(shown["trading"], "not-trading", "{shown}");
    assert!(shown["nodes"].as_array().unwrap().iter().all(|node| node["is_gone"] == true));
    assert!(gone.stderr.contains("is the network running, and with"), "{}", gone.stderr);
    let empty = run(&["exchange", "status", "--folder", folder.path().to_str().unwrap()]);
    assert_eq!(empty.code, 2, "{}{}", empty.stdout, empty.stderr);
    assert!(empty.stderr.contains("the run has ended, or not begun"), "{}", empty.stderr);
}

/// The clients of a gateway go to the other one, which must stay then.
fn check_drained_gateway(ask: &dyn Fn(&[&str]) -> Run) {
    let drained = ask(&["drain", "gateway:1"]);
    assert_eq!(drained.code, 0, "{}{}", drained.stdout, drained.stderr);
    assert!(drained.stdout.contains("gateway 1 can be stopped: its "), "{}", drained.stdout);
    let status = ask(&["status"]).stdout;
    assert_eq!(status.matches("up, drained").count(), 2, "{status}");
    let refused = ask(&["drain", "gateway:0"]);
    assert_eq!(refused.code, 2, "{}{}", refused.stdout, refused.stderr);
    assert!(refused.stderr.contains("no other gateway could take"), "{}", refused.stderr);
    let resumed = ask(&["resume", "gateway:1"]);
    assert_eq!((resumed.code, &resumed.stdout[..]), (0, "gateway 1 works again\n"));
}

/// Without replicas its instruments move away, with them others lead its cells. A gateway's
/// clients go to another one.
#[test]
fn a_drained_mediator_carries_nothing_and_its_end_loses_nothing() {
    for durability in ["none", "memory-quorum"] {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("out");
        let out_text = out.to_str().unwrap();
        let running = endless(&out, "2-2-3-1", durability);
        let ask = |words: &[&str]| run(&[&["exchange"], words, &["--folder", out_text]].concat());
        wait_for("the network", || all_led(&ask(&["status", "--format", "json"])));
        let drained = ask(&["drain", "mediator:0"]);
        assert_eq!(drained.code, 0, "{}{}", drained.stdout, drained.stderr);
        assert!(drained.stdout.contains("mediator 0 can be stopped: "), "{}", drained.stdout);
        // If the others stand still it is elected again, and hands over again.
        let status = wait_for("others that lead", || {
            let status = all_led(&ask(&["status", "--format", "json"]))?;
            let leads = |of: &Value| of["leader"] == 0;
            let leads_cell = status["cells"].as_array().unwrap().iter().any(leads);
            let is_as_wanted = !leads(&status["control"]) && leads_cell == (durability == "none");
            is_as_wanted.then_some(status)
        });
        let is_drained = |status: &Value| -> Vec<bool> {
            let nodes = status["nodes"].as_array().unwrap().iter();
            let mediators = nodes.filter(|node| node["role"] == "mediator");
            mediators.map(|node| node["is_drained"].as_bool().unwrap()).collect()
        };
        assert_eq!(is_drained(&status), [true, false, false]);
        assert!(ask(&["status"]).stdout.contains("up, drained"));
        // Instruments go nowhere else while the only replica of a cell is to carry nothing.
        let moved = ask(&["move", "1", "--to", "0"]);
        let is_refused = moved.stdout.contains("mediator 0 is drained: ");
        assert_eq!((moved.code == 5, is_refused), (durability == "none", durability == "none"));
        for (node, code, why) in [
            ("router:1", 2, "needs no draining"),
            ("processor:0", 2, "is the only one"),
            ("mediator:7", 2, "has no mediator 7"),
            ("mediator", 2, "ROLE:INDEX"),
        ] {
            let refused = ask(&["drain", node]);
            assert_eq!(refused.code, code, "{node}: {}{}", refused.stdout, refused.stderr);
            assert!(refused.stderr.contains(why), "{refused:?}");
        }
        // Cell 0 has replicas at mediators 0 and 1 only.
        let (drained, resumed) = match durability {
            "none" => ((0, "mediator 1 can be stopped: "), "mediator 1 works again"),
            _ => ((2, ""), "mediator 1 was not drained"),
        };
        for (words, code, line) in [
            (["resume", "mediator:1"], 0, "mediator 1 was not drained"),
            (["drain", "mediator:1"], drained.0, drained.1),
            (["resume", "mediator:1"], 0, resumed),
            (["resume", "router:0"], 2, ""),
        ] {
            let done = ask(&words);
            assert_eq!(done.code, code, "{words:?}: {}{}", done.stdout, done.stderr);
            assert!(done.stdout.contains(line), "{words:?}: {}", done.stdout);
        }
        check_drained_gateway(&ask);
        kill_and_wait(&running, ("mediator", 0), &ask);
        wait_for_seconds(&out, 1);
        end_and_verify(running, &out);
    }
}

/// Each kind of replica is replaced under load, the leader's as well; nodes that lost theirs are
/// killed and come back.
#[test]
fn replicas_are_replaced_by_those_of_other_nodes_and_nothing_is_lost() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let out_text = out.to_str().unwrap();
    let running = endless(&out, "1-1-3-2", "disk-quorum");
    let ask = |words: &[&str]| run(&[&["exchange"], words, &["--folder", out_text]].concat());
    wait_for("the network", || all_led(&ask(&["status", "--format", "json"])));
    assert!(
        ask(&["status"]).stdout.contains("replicas at mediator 0, mediator 1, processor 0"),
        "{}",
        ask(&["status"]).stdout
    );
    for (words, why) in [
        (["9", "processor:0", "processor:1"], "there is no cell 9: the network has 3"),
        (["0", "gateway:0", "processor:1"], "gateway 0 can have no replica of cell 0"),
        (["0", "mediator:0", "mediator:7"], "mediator 7 can have no replica of cell 0"),
        (["0", "processor:0", "mediator:2"], "mediator 2 cannot replace processor 0"),
        (["0", "processor:1", "processor:0"], "processor 1 has no replica of cell 0"),
        (["0", "mediator:0", "mediator:1"], "mediator 1 has a replica of cell 0 already"),
    ] {
        let refused = ask(&[&["replace"], &words[..]].concat());
        assert_eq!(refused.code, 2, "{words:?}: {}{}", refused.stdout, refused.stderr);
        assert!(refused.stderr.contains(why), "{words:?}: {}", refused.stderr);
    }
    for (words, voters) in [
        (["0", "processor:0", "processor:1"], "mediator 0, mediator 1, processor 1"),
        (["0", "mediator:1", "mediator:2"], "mediator 0, mediator 2, processor 1"),
        (["0", "mediator:0", "mediator:1"], "mediator 1, mediator 2, processor 1"),
    ] {
        let replaced = ask(&[&["replace"], &words[..]].concat());
        assert_eq!(replaced.code, 0, "{words:?}: {}{}", replaced.stdout, replaced.stderr);
        // The order is that of the nodes that may have one.
        let mut expected: Vec<&str> = voters.split(", ").collect();
        let (_, names) = replaced.stdout.trim_end().split_once("replicas are at ").unwrap();
        let mut found: Vec<&str> = names.split(", ").collect();
        expected.sort_unstable();
        found.sort_unstable();
        assert_eq!(found, expected, "{words:?}");
    }
    for node in [("processor", 0), ("mediator", 0)] {
        kill_and_wait(&running, node, &ask);
    }
    wait_for_seconds(&out, 1);
    end_and_verify(running, &out);
}

/// One mediator has too much to do by these settings, and two are spare.
#[test]
fn policies_activate_spare_mediators_and_move_instruments_to_them() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let out_text = out.to_str().unwrap();
    let more = ["--nodes", "1-1-3-1", "--spares", "2", "--seconds", "600", "--rate", "300"];
    let running = Running::start(&short(&out, &more));
    let settings = folder.path().join("policies.toml");
    let text = "[policies.resizer]\nlower_per_s = 1\nupper_per_s = 40\nup_delay_ms = 0\n";
    fs::write(&settings, text).unwrap();
    let policy = |more: &[&str]| {
        let args = ["exchange", "policy", "--folder", out_text, "--every-ms", "200"];
        run(&[&args[..], &["--settings", settings.to_str().unwrap()], more].concat())
    };
    wait_for("the network", || {
        let status = run(&["exchange", "status", "--folder", out_text]);
        (status.code == 0).then_some(())
    });
    let status = || {
        let status = run(&["exchange", "status", "--folder", out_text, "--format", "json"]);
        serde_json::from_str::<Value>(&status.stdout).unwrap()
    };
    // A dry run reports, and changes nothing.
    wait_for("decisions of a dry run", || {
        let dry = policy(&["--dry-run", "--seconds", "2"]);
        assert_eq!(dry.code, 0, "{}{}", dry.stdout, dry.stderr);
        dry.stdout.contains("would activate cell 1").then_some(())
    });
    assert_eq!(status()["exceptions"].as_array().unwrap().len(), 0);
    wait_for("instruments in both spare cells", || {
        let decided = policy(&["--seconds", "3", "--format", "json"]);
        assert_eq!(decided.code, 0, "{}{}", decided.stdout, decided.stderr);
        for line in decided.stdout.lines() {
            let decision: Value = serde_json::from_str(line).unwrap();
            assert!(!decision["sentence"].as_str().unwrap().is_empty(), "{decision}");
        }
        let exceptions = status()["exceptions"].clone();
        let cells = exceptions.as_array().unwrap().iter().map(|one| one["cell"].as_u64().unwrap());
        let cells: std::collections::BTreeSet<u64> = cells.collect();
        (cells == [1, 2].into()).then_some(())
    });
    // By hand: one of them is emptied, which the policies are not asked about, and filled again.
    let resize = |words: &[&str]| run(&[&["exchange"], words, &["--folder", out_text]].concat());
    let emptied = resize(&["shrink", "--cell", "2"]);
    assert_eq!(emptied.code, 0, "{}{}", emptied.stdout, emptied.stderr);
    assert!(emptied.stdout.contains("cell 2 is emptied"), "{}", emptied.stdout);
    let again = resize(&["shrink", "--cell", "2"]);
    assert_eq!((again.code, again.stderr.contains("has no instruments")), (2, true), "{again:?}");
    let filled = resize(&["grow"]);
    assert_eq!(filled.code, 0, "{}{}", filled.stdout, filled.stderr);
    assert!(filled.stdout.contains("cell 2 is filled"), "{}", filled.stdout);
    let none = resize(&["grow"]);
    assert_eq!((none.code, none.stderr.contains("no cell is spare")), (2, true), "{none:?}");
    fs::write(&settings, "[policies.resizer]\nupper_per_s = -1\n").unwrap();
    let wrong = policy(&["--seconds", "1"]);
    assert_eq!(wrong.code, 2, "{}{}", wrong.stdout, wrong.stderr);
    assert!(wrong.stderr.contains("upper_per_s"), "{}", wrong.stderr);
    signal("INT", running.pid());
    assert_eq!(running.finish().code, 130);
}

#[test]
fn status_of_a_stopped_network_is_that_nothing_is_traded() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("network.toml");
    let node = |class: &str| format!("[[{class}]]\naddress = \"unix:/no/{class}\"\n");
    let nodes: String = ["gateway", "router", "mediator", "processor"].map(node).concat();
    let replicated = nodes.replace("\"\n", "\"\nreplication = \"unix:/no/log\"\n");
    let file_text = file.to_str().unwrap();
    for (durability, nodes) in [("none", &nodes), ("memory-quorum", &replicated)] {
        fs::write(&file, format!("durability = \"{durability}\"\n{nodes}")).unwrap();
        let status = run(&["exchange", "status", "--network", file_text]);
        assert_eq!(status.code, 1, "{}{}", status.stdout, status.stderr);
        assert!(status.stdout.starts_with("not trading: "), "{}", status.stdout);
        assert!(status.stdout.contains("0 of 4 nodes are up"), "{}", status.stdout);
        assert!(status.stdout.contains("0 of 1 cells have a leader"), "{}", status.stdout);
        assert!(status.stderr.contains("is the network running"), "{}", status.stderr);
    }
    let neither = run(&["exchange", "status"]);
    assert_eq!(neither.code, 2, "{}", neither.stderr);
    let no_file = run(&["exchange", "assign", "1", "0", "--network", "/no/file"]);
    assert_eq!(no_file.code, 2, "{}", no_file.stderr);
}

#[test]
fn nodes_end_with_a_killed_supervisor() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let running = Running::start(&short(&out, &["--nodes", "2-1-2-1", "--seconds", "60"]));
    let nodes = wait_for("the nodes", || {
        let nodes = nodes_of(running.pid());
        (nodes.len() == 6).then_some(nodes)
    });
    signal("KILL", running.pid());
    running.finish();
    wait_gone(&nodes);
}

#[test]
fn ctrl_c_ends_a_run_and_its_nodes() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let running = Running::start(&short(&out, &["--seconds", "60"]));
    let nodes = wait_for("the nodes", || {
        let nodes = nodes_of(running.pid());
        (nodes.len() == 4).then_some(nodes)
    });
    signal("INT", running.pid());
    let run = running.finish();
    assert_eq!(run.code, 130, "{}{}", run.stdout, run.stderr);
    wait_gone(&nodes);
    assert_eq!(json(&out.join("result.json"))["state"], "interrupted");
}

#[test]
fn a_round_in_which_a_node_ended_by_itself_has_that_doubt() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let running = Running::start(&short(&out, &["--seconds", "4", "--limit", "5000"]));
    // A node that ends before all links are up fails the round instead. The load waits by epoll,
    // which nothing else in that process does.
    wait_for("the load", || has_epoll_set(running.pid()).then_some(()));
    let is_router =
        |p: &ProcessInfo| p.parent == running.pid() && p.words.iter().any(|word| word == "router");
    signal("KILL", processes().iter().find(|p| is_router(p)).unwrap().pid);
    let run = running.finish();
    assert_eq!(run.code, 3, "{}{}", run.stdout, run.stderr);
    let result = json(&out.join("result.json"));
    let ended = round_doubts(&result, "node-ended");
    assert_eq!(ended, ["router 0 ended by itself and was restarted"], "{result}");
}

/// Whether the process has an epoll set open.
fn has_epoll_set(pid: u32) -> bool {
    let Ok(entries) = fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
    let mut targets = entries.flatten().filter_map(|entry| fs::read_link(entry.path()).ok());
    targets.any(|target| target.to_string_lossy().contains("eventpoll"))
}

/// The details of the first round's doubts of a kind.
fn round_doubts<'a>(result: &'a Value, kind: &str) -> Vec<&'a str> {
    let doubts = result["series"][0]["rounds"][0]["doubts"].as_array().unwrap();
    let of_kind = doubts.iter().filter(|doubt| doubt["kind"] == kind);
    of_kind.map(|doubt| doubt["detail"].as_str().unwrap()).collect()
}

#[test]
fn nodes_run_on_other_hosts_by_ssh() {
    let folder = tempfile::tempdir().unwrap();
    // An ssh that stays here: the last word is the command.
    let ssh = folder.path().join("ssh");
    fs::write(&ssh, "#!/bin/sh\nfor word; do :; done\nexec sh -c \"$word\"\n").unwrap();
    fs::set_permissions(&ssh, fs::Permissions::from_mode(0o755)).unwrap();
    let hosts = folder.path().join("hosts");
    fs::write(&hosts, format!("here 127.0.0.1 {}\n", crate::support::BINARY)).unwrap();
    let temporary = folder.path().join("tmp");
    fs::create_dir(&temporary).unwrap();
    let out = folder.path().join("out");
    let path = format!("{}:{}", folder.path().display(), std::env::var("PATH").unwrap());
    let args = short(&out, &["--hosts", hosts.to_str().unwrap()]);
    let run = finish(command(&args).env("PATH", path).env("TMPDIR", &temporary));
    assert_eq!(run.code, 3, "{}{}", run.stdout, run.stderr);
    let result = json(&out.join("result.json"));
    assert_eq!(result["series"][0]["key"]["environment"], "ssh");
    assert!(round(&out)["count"].as_u64().unwrap() > 100);
    let left: Vec<_> = fs::read_dir(&temporary).unwrap().flatten().map(|e| e.path()).collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn search_reports_its_bracket() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let args = ["exchange", "search", "--nodes", "1-1-1-1", "--from", "3000", "--to", "6000"];
    let more = ["--rounds", "1", "--seconds", "0.4", "--limit", "5000", "--format", "json"];
    let all = [&args[..], &more[..], &["--out", out.to_str().unwrap()]].concat();
    let run = run(&all);
    let found: Value = serde_json::from_str(&run.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}{}", run.stdout, run.stderr));
    assert!(!found["tried"].as_array().unwrap().is_empty(), "{found}");
    let carried = found["carried_per_s"].as_f64();
    assert_eq!(run.code, if carried.is_some() { 0 } else { 1 }, "{found}");
    assert!(out.join("report.html").exists());
}

#[test]
fn a_search_whose_rounds_are_too_short_for_p99_is_refused() {
    let short = ["exchange", "search", "--from", "500", "--seconds", "0.5"];
    let refused = run(&short);
    assert_eq!(refused.code, 2, "{}", refused.stdout);
    let why = "p99 needs 1000 samples; search from 2200 (--from), or measure for 2.2 s (--seconds)";
    assert!(refused.stderr.contains(why), "{}", refused.stderr);
}

#[test]
fn a_search_that_is_interrupted_shows_what_it_has_found() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let line = "exchange search --nodes 1-1-1-1 --from 3000 --seconds 0.4 --limit 5000";
    let out_text = out.to_str().unwrap();
    let words: Vec<&str> = line.split(' ').chain(["--rounds", "99", "--out", out_text]).collect();
    let running = Running::start(&words);
    wait_for("a rate that was tried", || {
        let saved = so_far(&out)?;
        saved["series"][0]["rounds"].as_array().filter(|rounds| !rounds.is_empty()).map(|_| ())
    });
    signal("INT", running.pid());
    let run = running.finish();
    assert_eq!(run.code, 130, "{}{}", run.stdout, run.stderr);
    let last = run.stdout.trim_end().lines().last().unwrap();
    assert!(last.contains("carr") && last.contains("000/s"), "{}", run.stdout);
    assert!(last.ends_with("; the search was interrupted"), "{}", run.stdout);
}

#[test]
fn invalid_value_is_reported_in_one_sentence() {
    for (args, why) in [
        (&["--nodes", "2-2-2"][..], "size of a network"),
        (&["--rate", "0"], "rate_per_s is 0"),
        (&["--seconds=-1"], "seconds is -1, must be above 0 and at most 3600"),
        (&["--durability", "paper"], "unknown durability"),
        (&["--mix", "defualt"], "did you mean `default`"),
        (&["--kill", "router:7@1"], "has no router 7"),
        (&["--kill", "router"], "mediator:0@2.5"),
        (&["--hosts", "/no/such/file"], "cannot be read"),
        (&["--limit", "0"], "--limit 0"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("out");
        let out = out.to_str().unwrap();
        let run = run(&[&["exchange", "run", "--out", out][..], args].concat());
        assert_eq!(run.code, 2, "{args:?}: {}{}", run.stdout, run.stderr);
        assert!(run.stderr.contains(why), "{args:?}: {}", run.stderr);
        assert!(!Path::new(out).exists(), "{args:?}");
    }
}
