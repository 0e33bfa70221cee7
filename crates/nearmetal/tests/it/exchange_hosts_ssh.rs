//! The exchange over three hosts, of which two are one millisecond apart.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nm_sys::process::ChildProcess;
use serde_json::Value;

use crate::exchange::short;
use crate::hosts::{Hosts, address, key, ready};
use crate::programs::{need, source};
use crate::support::{BINARY, Run, Running, finish, processes, signal, wait_for};

/// How many hosts there are.
const HOSTS: usize = 3;

/// One site at a time: each has sixteen processes that must not be late.
static SITES: Mutex<()> = Mutex::new(());

/// Three hosts, and the slow wire between two of them.
struct Site {
    _only: MutexGuard<'static, ()>,
    /// What is on the hosts, in memory: a disk that other tests keep busy can be too slow for the
    /// elections of twelve replicas.
    memory: tempfile::TempDir,
    wire: ChildProcess,
    hosts: Hosts,
}

impl Site {
    fn new() -> Site {
        let _only = SITES.lock().unwrap_or_else(PoisonError::into_inner);
        let memory = tempfile::tempdir_in("/dev/shm").unwrap();
        let hosts = Hosts::new(HOSTS);
        let mut wire = Command::new(need("python3", "python3"));
        wire.arg(source("delay_line.py")).arg("0.001").arg(hosts.path("counts"));
        wire.arg(hosts.host(1).pid().to_string()).args(["wire0", &address(2)]);
        wire.arg(hosts.host(2).pid().to_string()).args(["wire0", &address(1)]);
        let wire = ready(wire);
        Site { _only, hosts, memory, wire }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.hosts.path(name)
    }

    /// Folder for what is on the hosts.
    fn data(&self) -> PathBuf {
        self.memory.path().join("data")
    }

    /// A run over the three hosts. The last one has mediators only, so the others can go on
    /// without it.
    fn run(&self, out: &Path, more: &[&str]) -> Running {
        self.start(&short(out, &[&["--nodes", "1-1-3-1", "--rate", "100"], more].concat()))
    }

    /// A load that goes on until it is interrupted, over the three hosts.
    fn endless(&self, out: &Path) -> Running {
        let day = ["exchange", "ramp", "--step", "100:100", "--phase-seconds", "600"];
        let network = ["--nodes", "1-1-3-1", "--warmup", "100", "--out", out.to_str().unwrap()];
        self.start(&[day, network].concat())
    }

    /// A command that starts a network, over the three hosts, and records.
    fn start(&self, command: &[&str]) -> Running {
        let hosts = self.path("hosts");
        let text = format!(
            "h1 {} all {BINARY}\nh2 {} mediator,processor {BINARY}\nh3 {} mediator {BINARY}\n",
            address(1),
            address(2),
            address(3)
        );
        fs::write(&hosts, text).unwrap();
        let data = self.data();
        let mut words = command.to_vec();
        words.extend(["--hosts", hosts.to_str().unwrap(), "--host-data", data.to_str().unwrap()]);
        words.extend(["--durability", "disk-quorum", "--record"]);
        Running(self.hosts.nearmetal(&words).spawn().unwrap())
    }

    /// What `exchange` says of the running network.
    fn ask(&self, verb: &[&str], out: &Path) -> Run {
        let words = [&["exchange"], verb, &["--folder", out.to_str().unwrap()]].concat();
        finish(&mut self.hosts.nearmetal(&words))
    }

    /// Waits until the status has all of these lines.
    fn wait_for_status(&self, out: &Path, running: &mut Running, lines: &[&str]) {
        let mut last = String::new();
        let mut has_all = || {
            if let Some(status) = running.0.try_wait().unwrap() {
                panic!("the run ended with {status} before {lines:?}: {last}");
            }
            last = self.ask(&["status"], out).stdout;
            lines.iter().all(|line| last.contains(line)).then_some(())
        };
        wait_for(&format!("{lines:?}"), &mut has_all);
    }

    /// What `exchange verify` finds in a recording that has no fault.
    fn proven(&self, out: &Path, ended: &Run) -> Value {
        let words =
            ["exchange", "verify", out.to_str().unwrap(), "--format", "json", "--cuts", "3"];
        let verified = finish(&mut self.hosts.nearmetal(&words));
        assert_eq!(verified.code, 0, "{}{}\n{ended:?}", verified.stdout, verified.stderr);
        let found: Value = serde_json::from_str(&verified.stdout).unwrap();
        let round = &found["rounds"][0];
        assert_eq!(round["verdict"], "proven", "{found}");
        round.clone()
    }

    /// Takes host 3 from the network, or gives it back.
    fn set_link(&self, state: &str) {
        self.hosts.set_link(3, state);
    }

    /// What runs have left on the hosts: folders, and processes of nodes and agents.
    fn left(&self) -> Vec<String> {
        let entries = fs::read_dir(self.data()).into_iter().flatten().flatten();
        let folders = entries.map(|entry| entry.path().display().to_string());
        let data = self.data().display().to_string();
        let is_ours = |words: &[String]| {
            words.iter().any(|word| word == "exchange")
                && words.iter().any(|word| word.contains(&data))
        };
        let found = processes().into_iter().filter(|it| it.state != 'Z' && is_ours(&it.words));
        folders.chain(found.map(|process| process.words.join(" "))).collect()
    }

    /// Whether the delay line has ended, which it should not.
    fn wire_ended(&self) -> bool {
        nm_sys::process::is_dead(self.wire.pid())
    }

    /// Ends the delay line; how many packets it passed on.
    fn delayed(&mut self) -> u64 {
        let file = self.path("counts");
        drop(self.wire.take_stdin());
        assert!(self.wire.wait_timeout(Duration::from_secs(60)).is_some());
        fs::read_to_string(file).unwrap().parse().unwrap()
    }
}

const ALL_UP: [&str; 2] = ["6 of 6 nodes are up", "3 of 3 cells have a leader"];

#[test]
fn a_network_over_three_hosts_goes_on_without_one_and_loses_nothing() {
    let mut site = Site::new();
    let out = site.path("out");
    let more = ["--seconds", "45", "--moves-per-minute", "60"];
    let mut running = site.run(&out, &more);
    site.wait_for_status(&out, &mut running, &ALL_UP);
    assert!(site.left().len() >= 3 + 3 + 6, "folders, agents and nodes: {:?}", site.left());
    site.set_link("down");
    // The cell that host 3 led is led by another one; instruments move to it and away from it.
    let without = ["5 of 6 nodes are up", "3 of 3 cells have a leader"];
    site.wait_for_status(&out, &mut running, &without);
    for cell in ["1", "2", "0"] {
        let moved = site.ask(&["move", "5", "--to", cell], &out);
        let status = || site.ask(&["status"], &out);
        assert_eq!(moved.code, 0, "{moved:?}, {:?}, wire: {:?}", status(), site.wire_ended());
        assert!(moved.stdout.contains(&format!("instrument 5 is in cell {cell}")), "{moved:?}");
    }
    assert!(running.0.try_wait().unwrap().is_none(), "all of that was while the load ran");
    site.set_link("up");
    site.wait_for_status(&out, &mut running, &ALL_UP);
    let ended = running.finish();
    let all = format!("{}{}", ended.stdout, ended.stderr);
    // While a cell has no leader its requests are late, which may break the limit.
    assert!([1, 3].contains(&ended.code), "{} {all}", ended.code);
    assert!(!all.contains("did not answer"), "the host was away for a short time: {all}");
    let found = site.proven(&out, &ended);
    assert!(found["moves"].as_u64() >= Some(3), "{found}");
    assert_eq!(found["moves"], found["moved_states"], "{found}");
    assert_eq!(site.left(), Vec::<String>::new());
    assert!(site.delayed() > 100, "hosts 1 and 2 reach each other by the slow wire");
}

/// The load goes on meanwhile. Their journals are copied as those of the others are.
#[test]
fn nodes_that_are_added_start_on_the_host_of_their_address() {
    let site = Site::new();
    let out = site.path("out");
    let mut running = site.endless(&out);
    site.wait_for_status(&out, &mut running, &ALL_UP);
    let [at, replicas, router, processor, gateway] =
        [7900, 7901, 7902, 7903, 7904].map(|port| format!("{}:{port}", address(2)));
    for (verb, line) in [
        (
            &["add", "--address", &at, "--replication", &replicas][..],
            "mediator 3 was added at 10.77.0.2:7900; its cell 3 is spare",
        ),
        (&["add", "router", "--address", &router], "router 1 was added at 10.77.0.2:7902\n"),
        (&["add", "processor", "--address", &processor], "was added at 10.77.0.2:7903\n"),
        (&["add", "gateway", "--address", &gateway], "gateway 1 was added at 10.77.0.2:7904\n"),
        (&["move", "5", "--to", "3"], "instrument 5 is in cell 3"),
    ] {
        let done = site.ask(verb, &out);
        assert!(done.code == 0 && done.stdout.contains(line), "{done:?}");
    }
    let all_up = ["10 of 10 nodes are up", "4 of 4 cells have a leader"];
    site.wait_for_status(&out, &mut running, &all_up);
    let removed = site.ask(&["remove", "router:1"], &out);
    assert!(removed.code == 0 && removed.stdout.contains("router 1 was removed"), "{removed:?}");
    let end = || site.left().iter().all(|it| !it.contains("router --index 1")).then_some(());
    wait_for("the end of the router", end);
    signal("INT", running.pid());
    let ended = running.finish();
    assert_eq!(ended.code, 130, "{ended:?}");
    let found = site.proven(&out, &ended);
    assert!(found["moves"].as_u64() >= Some(1), "{found}");
    assert_eq!(site.left(), Vec::<String>::new());
}

/// Sites are hosts here. The gateway and the router are on host 1, and the way to host 2 is slow.
#[test]
fn latencies_between_sites_are_measured_by_the_links_between_hosts() {
    let site = Site::new();
    let out = site.path("out");
    let mut running = site.run(&out, &["--seconds", "600"]);
    site.wait_for_status(&out, &mut running, &ALL_UP);
    let status = site.ask(&["status", "--format", "json"], &out);
    let status: Value = serde_json::from_str(&status.stdout).unwrap();
    let of_role = |role: &'static str| {
        let nodes = status["nodes"].as_array().unwrap().iter();
        let nodes = nodes.filter(move |node| node["role"] == role);
        nodes.map(|node| host_of(node["address"].as_str().unwrap())).collect::<Vec<u16>>()
    };
    let (gateways, mediators) = (of_role("gateway"), of_role("mediator"));
    assert_eq!((&gateways[..], of_role("router")), (&[1][..], vec![1]));
    let settings = site.path("policies.toml");
    let lines = |measure: bool, seconds: &str| {
        let text = format!(
            "[policies]\nresizer.enabled = false\nbalancer.enabled = false\n\
             placement.gain_min_us = 500.0\n\
             [sites]\ngateways = {gateways:?}\nmediators = {mediators:?}\nmeasure = {measure}\n\
             [[sites.latencies]]\nfrom = 1\nto = 2\nlatency_us = 7.0\n"
        );
        fs::write(&settings, text).unwrap();
        let verb = ["policy", "--dry-run", "--seconds", seconds, "--format", "json"];
        let more = ["--settings", settings.to_str().unwrap()];
        let asked = site.ask(&[&verb[..], &more].concat(), &out);
        assert_eq!(asked.code, 0, "{asked:?}");
        let lines = asked.stdout.lines().map(|line| serde_json::from_str(line).unwrap());
        lines.collect::<Vec<Value>>()
    };
    // A node that answers late measures nothing for this time.
    let measured = wait_for("measured latencies to three sites", || {
        let measured = lines(true, "1")[0]["latencies"].as_array().unwrap().clone();
        let all = measured.iter().filter(|it| it["origin"] == "measured").count();
        (all == HOSTS).then_some(measured)
    });
    let to = |host: u16| {
        let found = measured.iter().find(|it| it["from"] == 1 && it["to"] == host);
        found.unwrap()["latency_us"].as_f64().unwrap()
    };
    // A packet takes a millisecond more in either direction.
    let (own_us, slow_us, other_us) = (to(1), to(2), to(3));
    assert!((1_000.0..100_000.0).contains(&slow_us), "{measured:?}");
    assert!(own_us < slow_us / 2.0 && other_us < slow_us / 2.0, "{measured:?}");
    // So the placement fetches instruments from host 2, and none from host 3.
    let reasons = wait_for("instruments that are closer to their flow", || {
        let decided = lines(true, "3");
        let reasons = decided.iter().map(|it| it["reason"]["closer-to-flow"].clone());
        let reasons: Vec<Value> = reasons.filter(|reason| !reason.is_null()).collect();
        (!reasons.is_empty()).then_some(reasons)
    });
    for reason in &reasons {
        let gain_us = reason["before_us"].as_f64().unwrap() - reason["after_us"].as_f64().unwrap();
        assert_eq!((&reason["from_site"], &reason["to_site"]), (&2.into(), &1.into()), "{reason}");
        assert!(gain_us >= 500.0, "{reason}");
    }
    // By the settings host 2 is so close that nothing moves.
    let by_settings = lines(false, "3");
    let set = serde_json::json!([{"from": 1, "to": 2, "latency_us": 7.0, "origin": "settings"}]);
    assert_eq!((&by_settings[0]["latencies"], by_settings.len()), (&set, 1), "{by_settings:?}");
    signal("INT", running.pid());
    assert_eq!(running.finish().code, 130);
}

/// The number of the host that an address is on.
fn host_of(address: &str) -> u16 {
    let (ip, _) = address.rsplit_once(':').unwrap();
    ip.rsplit_once('.').unwrap().1.parse().unwrap()
}

#[test]
fn a_host_that_stays_away_is_named_and_ends_its_nodes_itself() {
    let site = Site::new();
    let out = site.path("out");
    let mut running = site.run(&out, &["--seconds", "25"]);
    site.wait_for_status(&out, &mut running, &ALL_UP);
    site.set_link("down");
    let ended = running.finish();
    let all = format!("{}{}", ended.stdout, ended.stderr);
    assert!([1, 3].contains(&ended.code), "{} {all}", ended.code);
    assert!(all.contains("host h3 did not answer for"), "{all}");
    wait_for("the end of what is on host 3", || site.left().is_empty().then_some(()));
    let words = ["exchange", "verify", out.to_str().unwrap()];
    let verified = finish(&mut site.hosts.nearmetal(&words));
    assert_eq!(verified.code, 3, "{}{}", verified.stdout, verified.stderr);
    assert!(verified.stdout.contains("there is no journal of mediator"), "{}", verified.stdout);
}

#[test]
fn ctrl_c_and_kill_leave_nothing_on_three_hosts() {
    let site = Site::new();
    for (name, code) in [("INT", Some(130)), ("KILL", None)] {
        let out = site.path(name);
        let mut running = site.run(&out, &["--seconds", "600"]);
        site.wait_for_status(&out, &mut running, &ALL_UP);
        signal(name, running.pid());
        let ended = running.finish();
        match code {
            Some(code) => {
                assert_eq!(ended.code, code, "{}{}", ended.stdout, ended.stderr);
                assert_eq!(site.left(), Vec::<String>::new());
            }
            None => wait_for("the end of all", || site.left().is_empty().then_some(())),
        }
    }
}

#[test]
fn hosts_that_ssh_cannot_use_are_named_within_a_time_limit() {
    let site = Site::new();
    let refused = |sentence: &str| {
        let ended = site.run(&site.path("refused"), &[]).finish();
        assert_eq!(ended.code, 4, "{}{}", ended.stdout, ended.stderr);
        assert_eq!(ended.errors().len(), 1, "{}", ended.stderr);
        assert!(ended.errors()[0].contains(sentence), "{}", ended.stderr);
        assert_eq!(site.left(), Vec::<String>::new());
        let _ = fs::remove_dir_all(site.path("refused"));
    };
    let known = fs::read_to_string(site.path("known")).unwrap();
    // Host 3 shows a key that is not the known one.
    let swapped = known.replace("10.77.0.1 ", "10.77.0.3 ");
    fs::write(site.path("known"), swapped.lines().next().unwrap().to_string() + "\n").unwrap();
    refused("cannot be reached: ssh says: Host key verification failed.");
    fs::write(site.path("known"), known).unwrap();
    site.set_link("down");
    refused("host h3 cannot be reached: ssh says: ssh: connect to host 10.77.0.3 port 22:");
    site.set_link("up");
    // A key that no host lets in.
    fs::remove_file(site.path("user")).unwrap();
    key(&site.path("user"));
    fs::write(site.path("user.pub"), "").unwrap();
    refused("Permission denied (publickey");
}
