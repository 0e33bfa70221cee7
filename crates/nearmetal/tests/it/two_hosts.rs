//! Plans between two hosts that ssh reaches. The hosts of these tests share one machine.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::hosts::{Hosts, address, key};
use crate::support::{BINARY, Run, Running, facts, finish, json, run, signal, wait_for};

/// A plan of short trials, with `hosts` as its table.
fn plan(folder: &Path, hosts: &str, trials: &str) -> PathBuf {
    let path = folder.join("between.toml");
    let text = format!("name = \"between\"\n{hosts}\n{trials}");
    fs::write(&path, text).unwrap();
    path
}

/// Both hosts, with this program installed.
fn installed() -> String {
    format!(
        "[hosts]\nclient = {{ ssh = \"h1\", program = \"{BINARY}\" }}\n\
         server = {{ ssh = \"h2\", address = \"{}\", program = \"{BINARY}\" }}\n",
        address(2)
    )
}

/// One ping-pong over TCP for at most `ms`.
fn pingpong(ms: u32) -> String {
    format!(
        "[[trials]]\nenvironments = [\"ssh\"]\nstacks = [\"tcp-blocking\"]\nprobe = \"pingpong\"\n\
         sizes = [64]\nmax_ms = {ms}\nwarmup_ms = 2\nmin_iterations = 20\ntimeout_ms = 10000\n"
    )
}

const ALL_PROBES: &str = r#"
[[trials]]
environments = ["ssh"]
stacks = ["tcp-blocking", "udp-blocking", "shm-spin", "unix-spin", "xdp-spin", "accel+tcp-blocking"]
probe = "pingpong"
sizes = [64]
max_ms = 50
warmup_ms = 2
min_iterations = 20
timeout_ms = 10000

[[trials]]
environments = ["ssh"]
stacks = ["tcp-blocking"]
probe = "stream"
patterns = ["2-bi-2"]
seconds = 0.2
omit_ms = 20

[[trials]]
environments = ["ssh"]
stacks = ["tcp-blocking"]
probe = "rr"
sizes = ["64"]
rate_per_s = 500
seconds = 0.2
warmup_ms = 10
deadline_ms = 10000

[[trials]]
environments = ["ssh"]
probe = "jitter"
seconds = 0.1

[[trials]]
environments = ["ssh"]
stacks = ["tcp-epoll"]
probe = "exchange"
nodes = "1-1-1-1"

[[targets]]
require = "median < 10s"
probe = "pingpong"
"#;

/// Words of a run of a plan.
fn words<'a>(plan: &'a Path, out: &'a Path, more: &[&'a str]) -> Vec<&'a str> {
    let mut words = vec!["qualify", "--plan", plan.to_str().unwrap()];
    words.extend(["--out", out.to_str().unwrap()]);
    words.extend(more);
    words
}

/// All that a run wrote, without the breaks of its lines.
fn words_of(run: &Run) -> String {
    let all = format!("{} {}", run.stdout, run.stderr);
    all.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The agents on a host.
fn agents(hosts: &Hosts, number: usize) -> Vec<u32> {
    let is_agent = |words: &[String]| words.iter().any(|word| word == "--silence-limit");
    let all = hosts.host(number).processes().into_iter();
    all.filter(|it| it.state != 'Z' && is_agent(&it.words)).map(|it| it.pid).collect()
}

fn has_thread(pid: u32, name: &str) -> bool {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let mut names = threads.filter_map(|one| fs::read_to_string(one.path().join("comm")).ok());
    names.any(|one| one.trim() == name)
}

/// What runs have left on the two hosts: files in their temporary folders, and agents.
fn left(hosts: &Hosts) -> Vec<String> {
    let mut left = vec![];
    for number in [1, 2] {
        let entries = fs::read_dir(hosts.path(&format!("tmp{number}"))).unwrap().flatten();
        left.extend(entries.map(|entry| entry.path().display().to_string()));
        left.extend(agents(hosts, number).iter().map(|pid| format!("agent {pid} on {number}")));
    }
    left
}

#[test]
fn a_plan_measures_between_two_hosts() {
    let hosts = Hosts::new(2);
    let (plan, out) = (plan(&hosts.path(""), &installed(), ALL_PROBES), hosts.path("out"));
    let ended = finish(&mut hosts.nearmetal(&words(&plan, &out, &["--rounds", "5"])));
    assert!([0, 3].contains(&ended.code), "{} {}{}", ended.code, ended.stdout, ended.stderr);
    let result = json(&out.join("result.json"));
    let all = result["series"].as_array().unwrap();
    for (stack, probe) in [
        ("tcp-blocking", "pingpong"),
        ("udp-blocking", "pingpong"),
        ("tcp-blocking", "stream"),
        ("tcp-blocking", "rr"),
        ("cpu-spin", "jitter"),
    ] {
        let is_it = |one: &&Value| {
            let key = &one["key"];
            key["environment"] == "ssh" && key["stack"] == stack && key["probe"] == probe
        };
        let series = all.iter().find(is_it).unwrap_or_else(|| panic!("{stack} {probe}: {all:?}"));
        assert_eq!(series["rounds"].as_array().unwrap().len(), 5, "{stack} {probe}");
        if probe == "jitter" {
            continue;
        }
        let between = &series["comparability"];
        let layer = between["layer"].as_str().unwrap_or_default();
        assert!(layer.starts_with("one host, "), "{between}");
        assert_eq!(between["link"], "virtual", "{between}");
    }
    for (stack, reason) in [
        ("shm-spin", "two processes of one host"),
        ("unix-spin", "a Unix socket"),
        ("xdp-spin", "an interface that the host uses itself"),
        ("accel+tcp-blocking", "two programs of one host"),
        ("tcp-epoll", "nearmetal exchange run --hosts"),
    ] {
        let unavailable = result["not_available"].as_array().unwrap();
        let found = unavailable.iter().find(|row| row["stack"] == stack).unwrap();
        assert!(found["reason"].as_str().unwrap().contains(reason), "{found}");
    }
    for side in ["client", "server"] {
        let links = facts(&result, "ssh", side)["links"].as_array().unwrap().clone();
        assert!(links.iter().any(|link| link["name"] == "lan0"), "{side}: {links:?}");
    }
    assert_eq!(result["plan"]["hosts"]["server"]["ssh"], "h2");
    // That of the machine where the command was started says nothing about these ends.
    assert_eq!(result["audits"].as_array().map_or(0, Vec::len), 0, "{}", result["audits"]);
    assert_eq!(result["verdicts"].as_array().unwrap().len(), 1, "{}", ended.stdout);
    assert_eq!(left(&hosts), Vec::<String>::new());
}

#[test]
fn a_copied_program_leaves_nothing_on_the_hosts() {
    let hosts = Hosts::new(2);
    let out = hosts.path("out");
    let only = ["--only", "pingpong,tcp-blocking", "--rounds", "1", "--server", "h2"];
    let named = ["qualify", "--plan", "two-hosts", "--out", out.to_str().unwrap()];
    // The client is on the machine where the command is started.
    let ended = finish(&mut hosts.nearmetal(&[&named[..], &only].concat()));
    assert!([1, 3].contains(&ended.code), "{}{}", ended.stdout, ended.stderr);
    let result = json(&out.join("result.json"));
    assert_eq!(result["failures"].as_array().unwrap().len(), 0, "{result}");
    assert!(!result["series"].as_array().unwrap().is_empty(), "{}", ended.stderr);
    assert_eq!(left(&hosts), Vec::<String>::new());

    let plan = plan(&hosts.path(""), "", &pingpong(10_000));
    let both = ["--server", "h2=10.77.0.2", "--client", "h1"];
    for (name, code) in [("INT", Some(130)), ("KILL", None)] {
        let out = hosts.path(name);
        let mut running = Running(hosts.nearmetal(&words(&plan, &out, &both)).spawn().unwrap());
        wait_for("agents on both hosts", || {
            assert!(running.0.try_wait().unwrap().is_none(), "the run has ended");
            let has_both = [1, 2].iter().all(|&number| !agents(&hosts, number).is_empty());
            has_both.then_some(())
        });
        signal(name, running.pid());
        let ended = running.finish();
        match code {
            Some(code) => assert_eq!(ended.code, code, "{}{}", ended.stdout, ended.stderr),
            None => assert_eq!(ended.code, -1),
        }
        wait_for("the end of all on both hosts", || left(&hosts).is_empty().then_some(()));
    }
}

#[test]
fn a_host_that_is_cut_off_ends_its_agent_and_the_rest_of_the_plan_goes_on() {
    let hosts = Hosts::new(2);
    let elsewhere = "[[trials]]\nenvironments = [\"loopback\"]\nstacks = [\"tcp-blocking\"]\n\
        probe = \"pingpong\"\nsizes = [64]\nmax_ms = 50\nwarmup_ms = 2\nmin_iterations = 20\n\
        timeout_ms = 10000\n";
    let trials = pingpong(60_000) + elsewhere;
    let (plan, out) = (plan(&hosts.path(""), &installed(), &trials), hosts.path("out"));
    let more = ["--rounds", "4", "--format", "json"];
    let mut running = Running(hosts.nearmetal(&words(&plan, &out, &more)).spawn().unwrap());
    wait_for("a trial on host 2", || {
        assert!(running.0.try_wait().unwrap().is_none(), "the run has ended");
        agents(&hosts, 2).iter().any(|pid| has_thread(*pid, "ponger")).then_some(())
    });
    hosts.set_link(2, "down");
    let ended = running.finish();
    let result = json(&out.join("result.json"));
    let all = result["failures"].as_array().unwrap();
    assert!(!all.is_empty(), "{} {}", ended.code, ended.stderr);
    let names_host = |one: &Value| one["reason"].as_str().unwrap().contains("h2");
    assert!(all.iter().any(names_host), "{all:?}");
    let given_up = result["not_available"].as_array().unwrap();
    assert!(!given_up.is_empty(), "{all:?}");
    let reason = given_up[0]["reason"].as_str().unwrap();
    assert!(reason.starts_with("failed 3 times in a row: "), "{reason}");
    // What does not need the host was measured in every round.
    let is_here = |one: &&Value| one["key"]["environment"] == "loopback";
    let here = result["series"].as_array().unwrap().iter().find(is_here).unwrap().clone();
    assert_eq!(here["rounds"].as_array().unwrap().len(), 4, "{here}");
    wait_for("the end of the agent that was cut off", || left(&hosts).is_empty().then_some(()));
}

#[test]
fn an_agent_that_is_killed_on_its_host_is_named_and_started_again() {
    let hosts = Hosts::new(2);
    let (plan, out) = (plan(&hosts.path(""), &installed(), &pingpong(2_000)), hosts.path("out"));
    let more = ["--rounds", "2"];
    let mut running = Running(hosts.nearmetal(&words(&plan, &out, &more)).spawn().unwrap());
    let killed = wait_for("a trial on host 2", || {
        assert!(running.0.try_wait().unwrap().is_none(), "the run has ended");
        agents(&hosts, 2).into_iter().find(|pid| has_thread(*pid, "ponger"))
    });
    signal("KILL", killed);
    let ended = running.finish();
    let result = json(&out.join("result.json"));
    let failures = result["failures"].as_array().unwrap();
    let reason = failures[0]["reason"].as_str().unwrap();
    assert!(reason.starts_with("the agent on host h2 ended: a signal"), "{reason}");
    assert_eq!(failures.len(), 1, "{failures:?} {}", ended.stderr);
    let series = &result["series"].as_array().unwrap()[0];
    assert_eq!(series["rounds"].as_array().unwrap().len(), 1, "{series}");
    assert_eq!(left(&hosts), Vec::<String>::new());
}

#[test]
fn hosts_that_cannot_be_used_are_refused_in_one_sentence() {
    let hosts = Hosts::new(2);
    let refused_for = |trials: &str, table: &str, more: &[&str], code: i32, sentence: &str| {
        let plan = plan(&hosts.path(""), table, trials);
        let out = hosts.path("refused");
        let more = [&["--rounds", "1"], more].concat();
        let ended = finish(&mut hosts.nearmetal(&words(&plan, &out, &more)));
        let all = words_of(&ended);
        assert_eq!(ended.code, code, "{sentence}: {all}");
        assert!(all.contains(sentence), "{sentence}: {all}");
        assert_eq!(left(&hosts), Vec::<String>::new(), "{sentence}");
        let _ = fs::remove_dir_all(out);
    };
    let refused = |table: &str, more: &[&str], code: i32, sentence: &str| {
        refused_for(&pingpong(50), table, more, code, sentence);
    };
    let program = |name: &str, script: &str| {
        let path = hosts.path(name);
        fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        format!("[hosts.server]\nssh = \"h2\"\nprogram = \"{}\"\n", path.display())
    };
    refused("", &[], 2, "has the row ssh/tcp-blocking, which runs on two hosts, and no [hosts]");
    refused("", &["--client", "h1"], 2, "--client needs --server");
    let absent = "[hosts.server]\nssh = \"h2\"\nprogram = \"/no/nearmetal\"\n";
    refused(absent, &[], 4, "host h2 has no nearmetal at /no/nearmetal: install version");
    let protocol = nm_model::agent::PROTOCOL_VERSION;
    let hello = format!(
        r#"echo '{{"answer":"hello","protocol":{protocol},"version":"0.0.1","pid":1}}'; cat"#
    );
    refused(&program("older", &hello), &[], 4, "older (0.0.1): install version");
    let words = "echo \"error: unexpected argument '--silence-limit'\" >&2; exit 2";
    refused(&program("oldest", words), &[], 4, "host h2 has another version of nearmetal at");
    let onload = pingpong(50).replace("tcp-blocking", "onload+tcp-blocking");
    let sentence = "host h2 has no program onload; install it there, or choose another stack";
    refused_for(&onload, &installed(), &[], 4, sentence);
    let elsewhere = ["--server", "h2=10.77.0.99"];
    refused("", &elsewhere, 4, "no link of host h2 has the address 10.77.0.99; write one");
    hosts.host(2).shell("ip addr add 198.51.100.2/32 dev lo");
    let apart = ["--server", "h2=198.51.100.2", "--client", "h1=10.77.0.1"];
    let sentence = "host h1 at 10.77.0.1 cannot reach host h2 at 198.51.100.2: ";
    refused("", &apart, 4, sentence);
    // From here on the sessions of this host execute nothing in their temporary folder.
    let mounted = hosts.ssh(2, "mount -t tmpfs -o noexec none $TMPDIR");
    assert_eq!(mounted.code, 0, "{mounted:?}");
    let sentence = "host h2 executes no program in its temporary folder";
    refused("", &["--server", "h2"], 4, sentence);
    hosts.set_link(2, "down");
    let sentence = "host h2 cannot be reached: ssh says: ssh: connect to host 10.77.0.2 port 22:";
    refused("", &["--server", "h2"], 4, sentence);
    fs::write(hosts.path("known"), "").unwrap();
    let sentence = "Host key verification failed.; its key is not known here, or has changed";
    refused("", &["--server", "h1"], 4, sentence);
}

#[test]
fn a_host_that_lets_no_key_in_is_refused() {
    let hosts = Hosts::new(1);
    let plan = plan(&hosts.path(""), "", &pingpong(50));
    // A key that no host lets in.
    fs::remove_file(hosts.path("user")).unwrap();
    key(&hosts.path("user"));
    fs::write(hosts.path("user.pub"), "").unwrap();
    let out = hosts.path("refused");
    let ended = finish(&mut hosts.nearmetal(&words(&plan, &out, &["--server", "h1"])));
    let all = words_of(&ended);
    assert_eq!(ended.code, 4, "{all}");
    assert!(all.contains("have it accept your key, for example by `ssh-copy-id h1`"), "{all}");
}

/// Through IPv6, by the program that is installed, on the path that is named.
#[test]
fn the_measured_path_may_be_another_one_than_that_of_ssh() {
    let hosts = Hosts::new(2);
    for number in [1, 2] {
        hosts.host(number).shell(&format!("ip addr add fd77::{number}/64 dev lan0 nodad"));
    }
    let (plan, out) = (plan(&hosts.path(""), &installed(), &pingpong(50)), hosts.path("out"));
    let ends = ["--client", "h1=fd77::1", "--server", "h2=fd77::2", "--rounds", "1"];
    let ended = finish(&mut hosts.nearmetal(&words(&plan, &out, &ends)));
    let result = json(&out.join("result.json"));
    assert_eq!(result["failures"].as_array().unwrap().len(), 0, "{}", words_of(&ended));
    assert_eq!(result["series"].as_array().unwrap().len(), 1, "{}", words_of(&ended));
    assert_eq!(result["plan"]["hosts"]["server"]["address"], "fd77::2");
    let other = [&ends[..2], &["--server", "h2=10.77.0.2"]].concat();
    let out = hosts.path("other");
    let refused = finish(&mut hosts.nearmetal(&words(&plan, &out, &other)));
    assert_eq!(refused.code, 2, "{}", words_of(&refused));
    assert!(words_of(&refused).contains("of different families"), "{}", words_of(&refused));
}

#[test]
fn a_dry_run_of_two_hosts_starts_nothing_and_lists_the_rows() {
    let words = ["qualify", "--plan", "two-hosts", "--dry-run"];
    let without = run(&words);
    assert_eq!(without.code, 0, "{without:?}");
    assert!(without.stdout.contains("not named; a run needs --server, or [hosts]"), "{without:?}");
    let refused = run(&words[..3]);
    assert_eq!(refused.code, 2, "{refused:?}");
    assert!(refused.stderr.contains("name them by `--server DEST[=ADDRESS]`"), "{refused:?}");
    let listed = run(&[&words[..], &["--server", "h.invalid"]].concat());
    assert_eq!(listed.code, 0, "{listed:?}");
    for row in [
        "hosts of ssh: this machine to h.invalid",
        "ssh/tcp-spin pingpong",
        "ssh/tcp-blocking stream",
        "ssh/tcp-spin rr",
    ] {
        assert!(listed.stdout.contains(row), "{row}: {}", listed.stdout);
    }
    let other = run(&["qualify", "--plan", "quick", "--dry-run", "--server", "h"]);
    assert_eq!(other.code, 2, "{other:?}");
    assert!(other.stderr.contains("plan quick has none; plan two-hosts has some"), "{other:?}");
    let option = run(&[&words[..], &["--server=-oX"]].concat());
    assert_eq!(option.code, 2, "{option:?}");
    assert!(option.stderr.contains("`-oX` is no destination for ssh"), "{option:?}");
}

#[test]
fn an_agent_ends_when_its_controller_is_silent() {
    let mut agent = Command::new(BINARY);
    agent.args(["agent", "--silence-limit", "1"]);
    agent.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped());
    agent.stderr(std::process::Stdio::piped());
    let mut agent = Running(agent.spawn().unwrap());
    let input = agent.0.stdin.take();
    let ended: Run = agent.finish();
    assert_eq!(ended.code, 4, "{ended:?}");
    assert!(ended.stderr.contains("the controller was silent for 1 s"), "{ended:?}");
    drop(input);
}
