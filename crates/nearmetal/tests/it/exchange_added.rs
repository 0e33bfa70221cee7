//! Nodes that the network file lacks: added to networks of processes under load, killed, and
//! removed again; the recording proves that nothing was lost.

use std::path::Path;

use serde_json::Value;

use crate::exchange::{
    all_led, end_and_verify, endless, kill_and_wait, signal_node, wait_for_seconds,
};
use crate::support::{Run, Running, json, processes, run, wait_for};

/// The status, once all is up and led and there are so many cells.
fn led(ask: &dyn Fn(&[&str]) -> Run, cells: usize) -> Value {
    wait_for("all that is led", || {
        let status = all_led(&ask(&["status", "--format", "json"]))?;
        (status["cells"].as_array().unwrap().len() == cells).then_some(status)
    })
}

/// Instruments in a cell, by the map.
fn instruments_in(status: &Value, cell: u64) -> usize {
    let exceptions = status["exceptions"].as_array().unwrap();
    exceptions.iter().filter(|one| one["cell"] == cell).count()
}

fn passes(done: &Run, line: &str) {
    assert_eq!(done.code, 0, "{}{}", done.stdout, done.stderr);
    assert!(done.stdout.contains(line), "{}", done.stdout);
}

/// Adds the mediator of this number, and waits until its cell is led: that may take longer than the
/// command waits.
fn add(ask: &dyn Fn(&[&str]) -> Run, mediator: u64) {
    passes(&ask(&["add"]), &format!("mediator {mediator} was added at "));
    wait_for("its cell has a leader", || {
        let status = all_led(&ask(&["status", "--format", "json"]))?;
        let cells = status["cells"].as_array().unwrap();
        cells.iter().any(|it| it["cell"] == mediator).then_some(())
    });
}

/// Whether this machine runs a node of a network in this folder.
fn runs(out: &Path, role: &str, index: usize) -> bool {
    let words = ["--role", role, "--index", &index.to_string()].map(String::from);
    let folder = out.to_str().unwrap();
    let is_it = |of: &[String]| {
        of.windows(4).any(|four| four == words) && of.iter().any(|word| word.starts_with(folder))
    };
    processes().iter().any(|process| is_it(&process.words))
}

/// What is refused, with exit code 2 and the reason.
fn check_refusals(ask: &dyn Fn(&[&str]) -> Run) {
    for (words, why) in [
        (&["remove", "mediator:0"][..], "the network began with it"),
        (&["remove", "mediator:9"], "there is no mediator 9"),
        (&["remove", "router:0"], "the network began with it"),
        (&["remove", "router:2"], "there is no router 2"),
        (&["remove", "gateway:0"], "the network began with it"),
        (&["remove", "gateway:1"], "there is no gateway 1"),
        (&["remove", "processor:0"], "the network began with it"),
        (&["remove", "processor:2"], "there is no processor 2"),
        (&["add", "broker"], "is not a class of nodes"),
        (
            &["add", "router", "--address", "unix:/r", "--replication", "unix:/s"],
            "a router has no replicas",
        ),
        (
            &["add", "processor", "--address", "unix:/p", "--replication", "unix:/q"],
            "a processor that is added has no replicas",
        ),
        (&["move", "1", "--to", "9"], "there is no cell 9"),
        (&["add", "--address", "here"], "is not an address"),
        (&["add", "--replication", "127.0.0.1:9"], "--address"),
        (
            &["add", "--address", "unix:/m", "--replication", "shm:/r"],
            "not an address of a replica",
        ),
        (&["add", "--address", "192.0.2.1:9", "--replication", "192.0.2.1:10"], "has no secret"),
    ] {
        let refused = ask(words);
        assert_eq!(refused.code, 2, "{words:?}: {}{}", refused.stdout, refused.stderr);
        assert!(refused.stderr.contains(why), "{words:?}: {}", refused.stderr);
    }
}

/// Added, filled, killed, drained, emptied and removed: the second one has the next number.
#[test]
fn a_mediator_that_the_file_lacks_is_added_killed_and_removed_under_load() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let out_text = out.to_str().unwrap();
    let running = endless(&out, "1-2-2-2", "disk-quorum");
    let ask = |words: &[&str]| run(&[&["exchange"], words, &["--folder", out_text]].concat());
    led(&ask, 2);
    assert!(ask(&["grow"]).stderr.contains("no cell is spare"));
    check_refusals(&ask);
    add(&ask, 2);
    let status = led(&ask, 3);
    assert_eq!((instruments_in(&status, 2), status["nodes"].as_array().unwrap().len()), (0, 8));
    passes(&ask(&["grow"]), "cell 2 is filled");
    assert!(instruments_in(&led(&ask, 3), 2) > 0);
    // Another one leads its cell, and then it is back; the others restart with it.
    for node in [("mediator", 2), ("mediator", 1), ("processor", 0), ("router", 0)] {
        kill_and_wait(&running, node, &ask);
    }
    passes(&ask(&["drain", "mediator:2"]), "mediator 2 can be stopped");
    passes(&ask(&["resume", "mediator:2"]), "mediator 2 works again");
    wait_for_seconds(&out, 1);
    passes(&ask(&["remove", "mediator:2"]), "mediator 2 was removed: ");
    let status = led(&ask, 2);
    assert_eq!((instruments_in(&status, 2), status["nodes"].as_array().unwrap().len()), (0, 7));
    wait_for("the end of its process", || (!runs(&out, "mediator", 2)).then_some(()));
    // Nobody starts it again, and its number is not given away.
    kill_and_wait(&running, ("mediator", 1), &ask);
    add(&ask, 3);
    // A move may be repeated after the kill, and is waited for.
    let moved = wait_for("the end of an earlier move", || {
        let moved = ask(&["move", "1", "--to", "3"]);
        (!moved.stdout.contains("is on its way")).then_some(moved)
    });
    passes(&moved, "instrument 1 is in cell 3");
    assert_eq!(ask(&["remove", "mediator:2"]).code, 2);
    assert!(!runs(&out, "mediator", 2) && runs(&out, "mediator", 3));
    wait_for_seconds(&out, 1);
    end_and_verify(running, &out);
}

/// With one router at first, the added one has the turn of the second gateway, and of both while
/// the first router is down. The next one has the next number.
#[test]
fn a_router_that_the_file_lacks_is_added_killed_and_removed_under_load() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let out_text = out.to_str().unwrap();
    let running = endless(&out, "2-1-2-2", "disk-quorum");
    let ask = |words: &[&str]| run(&[&["exchange"], words, &["--folder", out_text]].concat());
    with_nodes(&ask, 7);
    let added = ask(&["add", "router"]);
    passes(&added, "router 1 was added at ");
    assert!(added.stderr.contains("router 1 is logged; waiting until it is up"), "{added:?}");
    with_nodes(&ask, 8);
    wait_for_seconds(&out, 1);
    for node in [("router", 0), ("router", 1), ("gateway", 1), ("mediator", 0)] {
        kill_and_wait(&running, node, &ask);
    }
    wait_for_seconds(&out, 1);
    passes(&ask(&["remove", "router:1"]), "router 1 was removed");
    with_nodes(&ask, 7);
    wait_for_end(&out, "router", 1);
    assert_eq!(ask(&["remove", "router:1"]).code, 2);
    let again = ask(&["add", "router", "--format", "json"]);
    assert_eq!(again.code, 0, "{}", again.stderr);
    let again: Value = serde_json::from_str(&again.stdout).unwrap();
    assert_eq!(again["router"], 2);
    with_nodes(&ask, 8);
    assert!(!runs(&out, "router", 1) && runs(&out, "router", 2));
    wait_for_seconds(&out, 1);
    end_and_verify(running, &out);
}

/// The status, once so many nodes are up and all is led.
fn with_nodes(ask: &dyn Fn(&[&str]) -> Run, count: usize) -> Value {
    wait_for("so many nodes, which are up", || {
        let status = all_led(&ask(&["status", "--format", "json"]))?;
        (status["nodes"].as_array().unwrap().len() == count).then_some(status)
    })
}

/// Waits until this machine does not run a node of a network in this folder.
fn wait_for_end(out: &Path, role: &str, index: usize) {
    wait_for("the end of its process", || (!runs(out, role, index)).then_some(()));
}

/// With one processor at first, the added one sends the replies of the second cell, where cells
/// have no replicas, and of both while the first one is down. It is killed while it joins, while it
/// works and while it leaves; the next one has the next number.
fn a_processor_is_added_killed_and_removed(durability: &str) {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let out_text = out.to_str().unwrap();
    let running = endless(&out, "2-2-2-1", durability);
    let ask = |words: &[&str]| run(&[&["exchange"], words, &["--folder", out_text]].concat());
    with_nodes(&ask, 7);
    let added = ask(&["add", "processor"]);
    passes(&added, "processor 1 was added at ");
    signal_node(&running, ("processor", 1), "KILL");
    with_nodes(&ask, 8);
    wait_for_seconds(&out, 1);
    for node in [("processor", 0), ("processor", 1), ("gateway", 1), ("router", 0)] {
        kill_and_wait(&running, node, &ask);
    }
    wait_for_seconds(&out, 1);
    passes(&ask(&["remove", "processor:1"]), "processor 1 was removed");
    with_nodes(&ask, 7);
    wait_for_end(&out, "processor", 1);
    assert_eq!(ask(&["remove", "processor:1"]).code, 2);
    let again = ask(&["add", "processor", "--format", "json"]);
    assert_eq!(again.code, 0, "{}", again.stderr);
    let again: Value = serde_json::from_str(&again.stdout).unwrap();
    assert_eq!(again["processor"], 2);
    with_nodes(&ask, 8);
    wait_for_seconds(&out, 1);
    // It is killed before it has left, and is gone all the same.
    signal_node(&running, ("processor", 2), "STOP");
    passes(&ask(&["remove", "processor:2"]), "processor 2 was removed");
    signal_node(&running, ("processor", 2), "KILL");
    with_nodes(&ask, 7);
    wait_for_end(&out, "processor", 2);
    wait_for_seconds(&out, 1);
    end_and_verify(running, &out);
}

#[test]
fn a_processor_that_the_file_lacks_is_added_killed_and_removed_under_load() {
    a_processor_is_added_killed_and_removed("disk-quorum");
}

#[test]
fn a_processor_is_added_killed_and_removed_without_durability() {
    a_processor_is_added_killed_and_removed("none");
}

/// Sessions of a gateway that is drained go to the added one, and from there to another one when it
/// is killed, and when it is removed.
#[test]
fn a_gateway_that_the_file_lacks_is_added_killed_and_removed_under_load() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let out_text = out.to_str().unwrap();
    let running = endless(&out, "2-2-2-2", "disk-quorum");
    let ask = |words: &[&str]| run(&[&["exchange"], words, &["--folder", out_text]].concat());
    with_nodes(&ask, 8);
    passes(&ask(&["add", "gateway"]), "gateway 2 was added at ");
    with_nodes(&ask, 9);
    kill_and_wait(&running, ("gateway", 2), &ask);
    passes(&ask(&["drain", "gateway:1"]), "sessions are at other gateways");
    wait_for_seconds(&out, 1);
    // It has the sessions of gateway 1, which are at gateway 0 after this.
    kill_and_wait(&running, ("gateway", 2), &ask);
    for node in [("processor", 0), ("router", 1), ("mediator", 0)] {
        kill_and_wait(&running, node, &ask);
    }
    passes(&ask(&["drain", "gateway:0"]), "sessions are at other gateways");
    passes(&ask(&["resume", "gateway:0"]), "gateway 0 works again");
    passes(&ask(&["resume", "gateway:1"]), "gateway 1 works again");
    wait_for_seconds(&out, 1);
    let removed = ask(&["remove", "gateway:2"]);
    passes(&removed, "gateway 2 was removed: its ");
    assert!(removed.stdout.contains("sessions are at other gateways"), "{}", removed.stdout);
    with_nodes(&ask, 8);
    wait_for_end(&out, "gateway", 2);
    assert_eq!(ask(&["remove", "gateway:2"]).code, 2);
    let again = ask(&["add", "gateway", "--format", "json"]);
    assert_eq!(again.code, 0, "{}", again.stderr);
    let again: Value = serde_json::from_str(&again.stdout).unwrap();
    assert_eq!(again["gateway"], 3);
    with_nodes(&ask, 9);
    assert!(!runs(&out, "gateway", 2) && runs(&out, "gateway", 3));
    wait_for_seconds(&out, 1);
    end_and_verify(running, &out);
}

/// It came before the restarts began, and is drained and restarted as the others are.
#[test]
fn a_rolling_restart_restarts_a_mediator_that_was_added() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let out_text = out.to_str().unwrap();
    let day = ["exchange", "ramp", "--rolling-restart", "100", "--phase-seconds", "20", "--record"];
    let network = ["--nodes", "1-1-2-1", "--durability", "memory-quorum", "--warmup", "100"];
    let running = Running::start(&[&day[..], &network, &["--out", out_text]].concat());
    let ask = |words: &[&str]| run(&[&["exchange"], words, &["--folder", out_text]].concat());
    led(&ask, 2);
    add(&ask, 2);
    passes(&ask(&["grow"]), "cell 2 is filled");
    let ended = running.finish();
    assert!([0, 1, 3].contains(&ended.code), "{}{}", ended.stdout, ended.stderr);
    let day = json(&out.join("day.json"));
    let events = day["events"].as_array().unwrap().iter();
    let restarts = events.filter(|event| event["detail"] == "mediator 2 was restarted").count();
    assert_eq!(restarts, 1, "{day}");
    passes(&run(&["exchange", "verify", out_text]), "nothing lost");
}

/// Where cells have one replica, its instruments move to it and away again.
#[test]
fn a_mediator_is_added_and_removed_without_durability() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let out_text = out.to_str().unwrap();
    let running = endless(&out, "2-1-1-1", "none");
    let ask = |words: &[&str]| run(&[&["exchange"], words, &["--folder", out_text]].concat());
    led(&ask, 1);
    add(&ask, 1);
    passes(&ask(&["grow", "--cell", "1"]), "cell 1 is filled");
    wait_for_seconds(&out, 1);
    passes(&ask(&["remove", "mediator:1"]), "mediator 1 was removed: ");
    assert_eq!(instruments_in(&led(&ask, 1), 1), 0);
    wait_for_seconds(&out, 1);
    end_and_verify(running, &out);
}
