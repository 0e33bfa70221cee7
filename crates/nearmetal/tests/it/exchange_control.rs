//! What an operator directs while load is driven, by the built binary: nothing is lost by it, and
//! the recording proves that.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::exchange::{endless, short, signal_node, wait_for_seconds};
use crate::support::{Run, Running, run, signal, wait_for};

const INSTRUMENTS: &str = "[[instrument]]\nnumber = 1000\nsymbol = \"ACME\"\ntick = \"0.01\"\n\
                           lot = \"1\"\n";

const FIRMS: &str = "[[firm]]\nnumber = 7\nname = \"ACME Capital\"\nsessions = [\"9001-9010\"]\n";

/// Asks the network of a run.
fn ask(out: &Path, words: &[&str]) -> Run {
    run(&[&["exchange"], words, &["--folder", out.to_str().unwrap()]].concat())
}

/// What a direction did.
fn directed(out: &Path, words: &[&str]) -> Value {
    let done = ask(out, &[words, &["--format", "json"]].concat());
    assert_eq!(done.code, 0, "{words:?}: {}{}", done.stdout, done.stderr);
    serde_json::from_str(&done.stdout).unwrap()
}

/// Over all cells.
fn sum(document: &Value, key: &str) -> u64 {
    let cells = document["cells"].as_array().unwrap().iter();
    cells.map(|cell| cell[key].as_u64().unwrap()).sum()
}

#[test]
fn a_day_with_halts_an_auction_and_a_dead_leader_loses_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let running = endless(&out, "2-2-2-2", "memory-quorum");
    let halted = directed(&out, &["halt", "--all"]);
    assert!(sum(&halted, "changed") > 0, "{halted}");
    assert_eq!(sum(&halted, "changed"), sum(&halted, "instruments"), "{halted}");
    // Without an instrument master, others are halted when they were traded.
    let instruments = wait_for("a halt of all that are traded", || {
        let again = directed(&out, &["halt", "--all"]);
        (sum(&again, "changed") == 0).then(|| sum(&again, "instruments"))
    });
    wait_for_seconds(&out, 1);
    let refused = ask(&out, &["auction", "3"]);
    assert_eq!(refused.code, 5, "{}{}", refused.stdout, refused.stderr);
    assert!(refused.stderr.contains("is halted, and allows that when"), "{}", refused.stderr);
    let resumed = directed(&out, &["resume", "--all"]);
    assert!(sum(&resumed, "changed") >= instruments, "{resumed}");
    assert_eq!(sum(&directed(&out, &["auction", "3", "4"]), "changed"), 2);
    // The leader of one of the cells dies, and the auction goes on under another one.
    let status = ask(&out, &["status", "--format", "json"]);
    let status: Value = serde_json::from_str(&status.stdout).unwrap();
    let leader = status["cells"][0]["leader"].as_u64().unwrap();
    signal_node(&running, ("mediator", leader), "KILL");
    assert_eq!(sum(&directed(&out, &["auction", "--end", "3", "4"]), "changed"), 2);
    assert_eq!(sum(&directed(&out, &["auction", "--end", "3", "4"]), "changed"), 0);
    directed(&out, &["end-of-day", "--all"]);
    wait_for_seconds(&out, 1);
    signal("INT", running.pid());
    let ended = running.finish();
    assert_eq!(ended.code, 130, "{}{}", ended.stdout, ended.stderr);
    let verified = run(&["exchange", "verify", out.to_str().unwrap()]);
    assert_eq!(verified.code, 0, "{}{}", verified.stdout, verified.stderr);
}

#[test]
fn a_stopped_firm_trades_no_more_until_it_is_restored_and_wrong_names_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let file = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_string()
    };
    let (instruments, firms) = (file("instruments.toml", INSTRUMENTS), file("firms.toml", FIRMS));
    let names = ["--instruments", &instruments, "--firms", &firms];
    let more = ["--nodes", "1-1-2-1", "--seconds", "600", "--rate", "300"];
    let running = Running::start(&short(&out, &[&more[..], &names].concat()));
    wait_for("the network", || (ask(&out, &["status"]).code == 0).then_some(()));
    // The load's orders come to rest.
    let killed = wait_for("live orders", || {
        let killed = directed(&out, &["kill-firm", "the load"]);
        let was_any = killed["orders"].as_u64() > Some(0);
        if !was_any {
            directed(&out, &["restore-firm", "the load"]);
        }
        was_any.then_some(killed)
    });
    assert_eq!(killed["was_so"], false, "{killed}");
    let again = directed(&out, &["kill-firm", "the load"]);
    assert_eq!((&again["was_so"], &again["orders"]), (&true.into(), &0.into()), "{again}");
    let none = directed(&out, &["mass-cancel", "--firm", "the load"]);
    assert_eq!(none["orders"], 0, "none came meanwhile");
    let restored = directed(&out, &["restore-firm", "the load"]);
    assert_eq!(restored["was_so"], false, "{restored}");
    wait_for("orders again", || {
        let cancelled = directed(&out, &["mass-cancel", "--firm", "the load"]);
        (cancelled["orders"].as_u64() > Some(0)).then_some(())
    });
    for (words, why) in [
        (&["halt", "NONE"][..], "NONE is not listed"),
        (
            &["kill-firm", "Nobody"],
            "there is no firm Nobody: the network has ACME Capital, the load",
        ),
        (&["mass-cancel", "--session", "77000"], "session 77000 belongs to no firm of the network"),
        (&["mass-cancel", "--session", "9001"], "session 9001 has sent no request there"),
        (&["resume", "mediator:0", "ACME"], "resume mediator 0 by a command of its own"),
        (&["halt"], "required"),
    ] {
        let refused = ask(&out, words);
        assert_eq!(refused.code, 2, "{words:?}: {}{}", refused.stdout, refused.stderr);
        assert!(refused.stderr.contains(why), "{words:?}: {}", refused.stderr);
    }
    // What nobody has traded is halted as well.
    assert_eq!(sum(&directed(&out, &["halt", "ACME"]), "changed"), 1);
    signal("INT", running.pid());
    assert_eq!(running.finish().code, 130);
}

/// The time of day in UTC, so many seconds from now.
fn time_of_day(in_s: u64) -> String {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let at_s = (now.as_secs() + in_s) % 86_400;
    format!("{:02}:{:02}:{:02}", at_s / 3_600, at_s / 60 % 60, at_s % 60)
}

#[test]
fn a_schedule_opens_and_closes_a_network_at_its_times() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let running = endless(&out, "1-1-2-1", "none");
    let file = folder.path().join("schedule.toml");
    // Not over midnight: the times of a day rise.
    let (mut open, mut close) = (time_of_day(1), time_of_day(2));
    if open > close {
        std::thread::sleep(std::time::Duration::from_secs(3));
        (open, close) = (time_of_day(1), time_of_day(2));
    }
    let times = format!("pre_open = \"{open}\"\nclose = \"{close}\"\n");
    fs::write(&file, format!("zone = \"+00:00\"\n[[group]]\nname = \"all\"\n{times}")).unwrap();
    let file = file.to_str().unwrap();
    let first = ask(&out, &["schedule", file, "--seconds", "6"]);
    assert_eq!(first.code, 0, "{}{}", first.stdout, first.stderr);
    assert!(first.stdout.contains("close of all: done"), "{}", first.stdout);
    assert!(first.stdout.contains("pre_open of all: done"), "{}", first.stdout);
    // It is closed, but for what was traded since; whoever goes on begins nothing again.
    let halted = directed(&out, &["halt", "--all"]);
    assert!(2 * sum(&halted, "changed") < sum(&halted, "instruments"), "{halted}");
    let again = ask(&out, &["schedule", file, "--seconds", "1"]);
    assert_eq!((again.code, &again.stdout[..]), (0, ""), "{}", again.stderr);
    directed(&out, &["resume", "--all"]);
    fs::write(file, "zone = \"CET\"\n").unwrap();
    let wrong = ask(&out, &["schedule", file, "--seconds", "1"]);
    assert_eq!((wrong.code, wrong.stderr.contains("zone is `CET`")), (2, true), "{}", wrong.stderr);
    signal("INT", running.pid());
    assert_eq!(running.finish().code, 130);
}
