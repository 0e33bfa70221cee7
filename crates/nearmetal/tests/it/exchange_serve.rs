//! Nodes that are left running. They are started by a network's file, started again when they die,
//! ended without a lost event, and gone with a supervisor that is killed.

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::{MetadataExt, chown};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::{sleep, spawn};
use std::time::Duration;

use nm_exchange::network::{Durability, Network, Role};
use nm_sys::process::ChildProcess;
use nm_verify::recording::Recording;
use serde_json::Value;

use crate::exchange_net::{Load, Net};
use crate::support::{BINARY, finish, processes, run, signal, wait_for};

/// Requests while something happens.
const COUNT: u32 = 800;

pub fn serve_of(network: &Path) -> Command {
    let mut command = Command::new(BINARY);
    command.args(["exchange", "serve", "--network"]).arg(network);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command
}

/// Serves all nodes of a network, until all links are up.
fn serve(network: &Path) -> ChildProcess {
    let serving = ChildProcess::spawn(serve_of(network)).unwrap();
    wait_until_healthy(network);
    serving
}

pub fn wait_until_healthy(network: &Path) {
    wait_for("a healthy network", || (status(network).0 == 0).then_some(()));
}

fn status(network: &Path) -> (i32, String) {
    let found = run(&["exchange", "status", "--network", network.to_str().unwrap()]);
    (found.code, found.stdout)
}

/// The nodes that a supervisor has started.
pub fn nodes(supervisor: u32) -> Vec<(String, u32)> {
    let is_node = |words: &[String]| words.get(1..3).is_some_and(|it| it == ["exchange", "node"]);
    let all = processes().into_iter().filter(|it| it.parent == supervisor && is_node(&it.words));
    all.map(|it| (format!("{} {}", it.words[4], it.words[6]), it.pid)).collect()
}

pub fn end(mut serving: ChildProcess) {
    let pids: Vec<u32> = nodes(serving.pid()).into_iter().map(|(_, pid)| pid).collect();
    signal("TERM", serving.pid());
    let ended = wait_for("the end", || serving.try_wait());
    assert_eq!(ended.code(), Some(0));
    assert_no_process(&pids);
}

fn assert_no_process(pids: &[u32]) {
    assert!(!pids.is_empty());
    wait_for("the end of all nodes", || {
        let left = processes().into_iter().any(|it| pids.contains(&it.pid));
        (!left).then_some(())
    });
}

/// Every replica ends, twice, while clients send: what they have in the end is what was executed.
#[test]
fn a_network_that_is_ended_and_served_again_loses_no_event() {
    let mut net = Net::new("2-1-2-2", Durability::DiskQuorum);
    let file = net.path().join("network.toml");
    let mut serving = serve(&file);
    let mut load = Load::new(&net, 4, 64);
    load.all_answered("before", COUNT);
    for _ in 0..2 {
        let sending = spawn(move || {
            let round = load.send(COUNT, 60.0);
            (load, round)
        });
        sleep(Duration::from_millis(500));
        end(serving);
        serving = serve(&file);
        let round;
        (load, round) = sending.join().unwrap();
        assert_eq!((round.sent, round.lost), (u64::from(COUNT), 0), "while it was ended");
    }
    load.all_answered("after", COUNT);
    load.finish(&mut net);
    end(serving);
    let left = net.path().join("serve");
    std::fs::remove_dir_all(&left).unwrap();
    Recording::open(net.path()).unwrap().seal().unwrap();
    let verified = net.verify();
    assert_eq!(verified.code, 0, "{}{}", verified.stdout, verified.stderr);
}

#[test]
fn a_node_that_dies_is_started_again_and_none_outlives_its_supervisor() {
    let net = Net::new("1-1-2-1", Durability::MemoryQuorum);
    let file = net.path().join("network.toml");
    let mut serving = serve(&file);
    let second = finish(&mut serve_of(&file));
    assert_eq!(second.code, 5, "one serves from a folder: {second:?}");
    let started = nodes(serving.pid());
    assert_eq!(started.len(), 5, "{started:?}");
    let pid = |name: &str, all: &[(String, u32)]| {
        all.iter().find(|(it, _)| it == name).map(|(_, pid)| *pid)
    };
    let mediator = pid("mediator 1", &started).unwrap();
    signal("KILL", mediator);
    wait_for("another mediator", || {
        pid("mediator 1", &nodes(serving.pid())).filter(|pid| *pid != mediator)
    });
    wait_until_healthy(&file);
    assert!(status(&file).1.contains("start 2"), "{}", status(&file).1);
    let all: Vec<u32> = nodes(serving.pid()).into_iter().map(|(_, pid)| pid).collect();
    serving.kill();
    assert_no_process(&all);
    assert_eq!(status(&file).0, 1, "nothing is left that could trade");
}

/// One process of each host, here by --node: each serves its own nodes, and ends for itself.
#[test]
fn nodes_of_a_network_are_served_by_several() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("network.toml");
    let path = file.to_str().unwrap();
    let port = crate::support::free_port();
    let ports = ["--nodes", "1-1-2-1", "--first-port", &port.to_string()].map(String::from);
    let ports: Vec<&str> = ports.iter().map(String::as_str).collect();
    let made = run(&[&["exchange", "network", "new", path][..], &ports].concat());
    assert_eq!(made.code, 0, "{}{}", made.stdout, made.stderr);
    let again = run(&["exchange", "network", "new", path]);
    assert_ne!(again.code, 0, "a network is not overwritten");
    let checked = run(&["exchange", "network", "check", path]);
    assert_eq!(checked.code, 0, "{}{}", checked.stdout, checked.stderr);
    let all = "5 of them would be served on this host";
    assert!(checked.stdout.contains(all), "{}", checked.stdout);
    let network = Network::read(&file).unwrap();
    let of = |roles: [Role; 2], name: &str| {
        let mut command = serve_of(&file);
        command.arg("--logs").arg(folder.path().join(name));
        for (id, _) in network.all().filter(|(id, _)| roles.contains(&id.class)) {
            command.args(["--node", &format!("{}:{}", id.class, id.index)]);
        }
        ChildProcess::spawn(command).unwrap()
    };
    let doors = of([Role::Gateway, Role::Router], "doors");
    let cells = of([Role::Mediator, Role::Processor], "cells");
    wait_until_healthy(&file);
    assert_eq!((nodes(doors.pid()).len(), nodes(cells.pid()).len()), (2, 3));
    end(cells);
    let (code, text) = status(&file);
    assert!(code == 1 && text.starts_with("not trading"), "{code} {text}");
    assert_eq!(nodes(doors.pid()).len(), 2, "{text}");
    end(doors);
    let unknown = run(&["exchange", "serve", "--network", path, "--node", "router:7"]);
    assert_eq!(unknown.code, 2, "{unknown:?}");
}

/// The service manager hears when all is ready, that it goes on, and that it ends.
#[test]
fn a_service_manager_is_told_what_it_waits_for() {
    let net = Net::new("1-1-1-1", Durability::None);
    let file = net.path().join("network.toml");
    let socket = net.path().join("notify");
    let manager = UnixDatagram::bind(&socket).unwrap();
    manager.set_read_timeout(Some(crate::support::PATIENCE)).unwrap();
    let mut command = serve_of(&file);
    command.env("NOTIFY_SOCKET", &socket);
    let serving = ChildProcess::spawn(command).unwrap();
    let hear = |what: &str| {
        let mut bytes = [0; 100];
        wait_for(what, || {
            let length = manager.recv(&mut bytes).unwrap();
            (bytes[..length] == *what.as_bytes()).then_some(())
        });
    };
    hear("READY=1");
    assert_eq!(status(&file).0, 0);
    hear("WATCHDOG=1");
    hear("WATCHDOG=1");
    end(serving);
    hear("STOPPING=1");
    let unit = run(&["exchange", "serve", "--network", file.to_str().unwrap(), "--unit"]);
    assert_eq!(unit.code, 0, "{unit:?}");
    let reload = "ExecReload=/bin/kill -HUP $MAINPID";
    for line in ["Type=notify", "WatchdogSec=30", "KillMode=mixed", "Restart=always", reload] {
        assert!(unit.stdout.lines().any(|it| it == line), "{line}: {}", unit.stdout);
    }
}

/// What a supervisor's page answers: the status line, and the body.
fn get(port: u16, path: &str, host: &str) -> (String, String) {
    let mut client = TcpStream::connect(("127.0.0.1", port)).unwrap();
    client.set_read_timeout(Some(crate::support::PATIENCE)).unwrap();
    write!(client, "GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n").unwrap();
    let mut answer = String::new();
    client.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.lines().next().unwrap().to_string(), body.to_string())
}

/// What the page is told first.
fn first_event(port: u16, host: &str) -> Value {
    let mut client = TcpStream::connect(("127.0.0.1", port)).unwrap();
    client.write_all(format!("GET /events HTTP/1.1\r\nHost: {host}\r\n\r\n").as_bytes()).unwrap();
    let lines = BufReader::new(client).lines().map(Result::unwrap);
    let mut data = lines.filter_map(|line| line.strip_prefix("data: ").map(str::to_string));
    serde_json::from_str(&data.next().unwrap()).unwrap()
}

/// A link whose latency is known.
fn linked(seen: &Value) -> Option<&Value> {
    let links = |node: &'_ Value| node["links"].get(0).is_some();
    let node = seen["sight"]["nodes"].as_array()?.iter().find(|node| links(node))?;
    node["links"].get(0)
}

/// Every field that the page's script reads is in what it is told.
fn check_fields(document: &str, seen: &Value) {
    let sight = &seen["sight"];
    let parts = [
        ("seen", seen),
        ("sight", sight),
        ("node", &sight["nodes"][0]),
        ("link", linked(seen).unwrap()),
        ("one", &sight["instruments"][0]),
        ("cell", &seen["cells"][0]),
        ("event", &seen["events"][0]),
    ];
    let words: Vec<&str> =
        document.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == '.')).collect();
    for (name, value) in parts {
        let fields: BTreeSet<&str> = words
            .iter()
            .filter_map(|word| word.strip_prefix(name)?.strip_prefix('.')?.split('.').next())
            .collect();
        assert!(!fields.is_empty(), "the script reads nothing of {name}");
        // These are there in some cases only.
        let sometimes = ["failed", "is_gone", "voters"];
        for field in fields.into_iter().filter(|field| !sometimes.contains(field)) {
            assert!(value.get(field).is_some(), "{name}.{field} is not in {value}");
        }
    }
}

/// The live truth by HTTP: what collectors read, and whether the network trades.
#[test]
fn a_supervisor_answers_with_health_and_metrics_of_its_nodes() {
    let net = Net::new("1-1-1-1", Durability::None);
    let file = net.path().join("network.toml");
    let port = crate::support::free_port();
    let mut command = serve_of(&file);
    command.args(["--page", &format!("127.0.0.1:{port}")]);
    let serving = ChildProcess::spawn(command).unwrap();
    wait_until_healthy(&file);
    let host = format!("127.0.0.1:{port}");
    wait_for("a healthy network by HTTP", || {
        (get(port, "/healthz", &host).1 == "healthy\n").then_some(())
    });
    let mut load = Load::new(&net, 2, 8);
    load.all_answered("while it is looked at", COUNT);
    wait_for("rates of two looks", || {
        get(port, "/metrics", &host).1.contains("nearmetal_exchange_request_rate{").then_some(())
    });
    let (status, metrics) = get(port, "/metrics", &host);
    assert_eq!(status, "HTTP/1.1 200 OK");
    assert!(nm_test_support::openmetrics::check(&metrics).unwrap() > 10, "{metrics}");
    for sample in [
        "nearmetal_exchange_trading{state=\"healthy\"} 1.0",
        "nearmetal_exchange_node_up{node=\"mediator 0\",class=\"mediator\"} 1.0",
        "nearmetal_exchange_cell_led{cell=\"0\"} 1.0",
    ] {
        assert!(metrics.lines().any(|line| line == sample), "{sample}: {metrics}");
    }
    let top = run(&["exchange", "top", "--network", file.to_str().unwrap()]);
    assert_eq!(top.code, 0, "{}", top.stderr);
    assert!(top.stdout.starts_with("healthy   0 requests/s executed\n"), "{}", top.stdout);
    let words: Vec<Vec<&str>> =
        top.stdout.lines().map(|line| line.split_whitespace().collect()).collect();
    assert!(words.contains(&vec!["0", "mediator", "0"]), "who leads the cell: {}", top.stdout);
    assert!(words.iter().any(|it| it.starts_with(&["mediator", "0", "up", "0"])), "{}", top.stdout);
    let guide = include_str!("../../../../docs/guides/exchange.md");
    for line in metrics.lines().filter_map(|line| line.strip_prefix("# TYPE ")) {
        let name = line.split(' ').next().unwrap();
        assert!(guide.contains(&format!("`{name}")), "{name} is not in the guide");
    }
    let foreign = get(port, "/metrics", &format!("evil.example:{port}"));
    assert_eq!(foreign.0, "HTTP/1.1 403 Forbidden");
    let document = get(port, "/", &host).1;
    assert!(
        !document.contains("http://") && !document.contains("https://"),
        "nothing from elsewhere"
    );
    let seen = wait_for("latencies of links", || {
        let seen = first_event(port, &host);
        linked(&seen).is_some().then_some(seen)
    });
    check_fields(&document, &seen);
    signal("STOP", nodes(serving.pid()).iter().find(|it| it.0 == "mediator 0").unwrap().1);
    wait_for("that nothing is traded", || {
        (get(port, "/healthz", &host).1 == "not trading\n").then_some(())
    });
    let top = run(&["exchange", "top", "--once", "--network", file.to_str().unwrap()]);
    assert_eq!(top.code, 1, "{}", top.stdout);
    signal("CONT", nodes(serving.pid()).iter().find(|it| it.0 == "mediator 0").unwrap().1);
    end(serving);
}

/// What may change is followed without a restart of a node. What may not, and what is wrong, is
/// said.
#[test]
fn sighup_has_the_file_read_again_and_says_what_changes() {
    let net = Net::new("1-1-1-1", Durability::None);
    let file = net.path().join("network.toml");
    let said = net.path().join("said");
    let mut command = serve_of(&file);
    command.stdout(std::fs::File::create(&said).unwrap());
    command.stderr(std::fs::File::options().append(true).open(&said).unwrap());
    let serving = ChildProcess::spawn(command).unwrap();
    wait_until_healthy(&file);
    let before = nodes(serving.pid());
    let text = std::fs::read_to_string(&file).unwrap();
    let reload = |text: &str, expected: &str| {
        std::fs::write(&file, text).unwrap();
        signal("HUP", serving.pid());
        wait_for(expected, || {
            std::fs::read_to_string(&said).unwrap().contains(expected).then_some(())
        });
    };
    reload(&text, "read again: nothing that may change has changed");
    let logs = format!("{text}\n[logs]\nbytes = 4096\nfiles = 2\n");
    reload(&logs, "read again: a log is 4096 bytes long now, and 2 full ones are kept");
    let fixed = logs.replace("cluster", "#").replace("record = true", "record = false");
    reload(&fixed, "has changed; `record` is ignored until a restart");
    reload("[[gateway", "nothing changes: ");
    std::fs::remove_file(&file).unwrap();
    signal("HUP", serving.pid());
    wait_for("a file that is not there", || {
        let said = std::fs::read_to_string(&said).unwrap();
        said.contains("network.toml cannot be read").then_some(())
    });
    std::fs::write(&file, text).unwrap();
    assert_eq!(nodes(serving.pid()), before, "no node was started again");
    end(serving);
}

/// The value of a field of a process or thread in `/proc`, its words separated by one space.
fn field(status: &Path, name: &str) -> String {
    let text = std::fs::read_to_string(status).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.unwrap().split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Neither the supervisor nor a node keeps a right of root, and what they write is the user's.
#[test]
fn nodes_run_as_the_user_that_is_named_without_any_right_of_root() {
    let is_root = std::fs::metadata("/proc/self").unwrap().uid() == 0;
    if !nm_test_support::skip::can_run(is_root, "only root can serve as another user") {
        return;
    }
    const NOBODY: u32 = 65534;
    let net = Net::new("1-1-1-1", Durability::None);
    let file = net.path().join("network.toml");
    let program = net.path().join("nearmetal");
    crate::support::copy_program(BINARY, &program);
    chown(net.path(), Some(NOBODY), Some(NOBODY)).unwrap();
    let serve_as = |user: &str| {
        let mut command = Command::new(&program);
        command.args(["exchange", "serve", "--user", user, "--network"]).arg(&file);
        command.stdin(Stdio::null());
        command
    };
    let unknown = finish(&mut serve_as("no-such-user"));
    assert_eq!(unknown.code, 2, "{unknown:?}");
    assert!(unknown.stderr.contains("there is no user `no-such-user` in /etc/passwd"));
    assert_eq!(finish(&mut serve_as("root")).code, 2, "root is no user without its rights");
    let serving = ChildProcess::spawn(serve_as("nobody")).unwrap();
    wait_until_healthy(&file);
    let mut pids: Vec<u32> = nodes(serving.pid()).into_iter().map(|(_, pid)| pid).collect();
    assert_eq!(pids.len(), 4);
    pids.push(serving.pid());
    for pid in pids {
        for task in std::fs::read_dir(format!("/proc/{pid}/task")).unwrap() {
            let status = task.unwrap().path().join("status");
            for name in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
                assert_eq!(field(&status, name), "0000000000000000", "{name} of {pid}");
            }
            let all = [NOBODY; 4].map(|it| it.to_string()).join(" ");
            assert_eq!((field(&status, "Uid"), field(&status, "Gid")), (all.clone(), all));
            assert_eq!(field(&status, "Groups"), NOBODY.to_string());
            assert_eq!(field(&status, "NoNewPrivs"), "1");
        }
    }
    for name in ["serve", "serve/network.toml", "serve/lock", "data", "data/mediator-0"] {
        let owner = std::fs::metadata(net.path().join(name)).unwrap();
        assert_eq!((owner.uid(), owner.gid()), (NOBODY, NOBODY), "{name}");
    }
    end(serving);
    chown(net.path().join("data/mediator-0"), Some(0), Some(0)).unwrap();
    let closed = finish(&mut serve_as("nobody"));
    assert_eq!(closed.code, 4, "{closed:?}");
    assert!(closed.stderr.contains("data/mediator-0: give it to that user"), "{}", closed.stderr);
}
