//! Environments: start, connectivity, end, and what remains after processes were killed.

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use nm_lab::environment::{self, Environment, Setup};
use nm_lab::launcher;
use nm_model::plan::EnvironmentKind;
use nm_model::{FailureKind, GuestSpec, Launcher};

use crate::agents::kill;
use crate::harness::Test;
use crate::machine;

pub const TESTS: &[Test] = &[
    ("environments::loopback_starts_and_is_removed", || starts_and_is_removed("loopback")),
    ("environments::netns_starts_and_is_removed", || starts_and_is_removed("netns")),
    ("environments::bridge_starts_and_is_removed", || starts_and_is_removed("bridge")),
    ("environments::ordinary_user_starts_netns", || ordinary_user("netns")),
    ("environments::ordinary_user_starts_bridge", || ordinary_user("bridge")),
    ("environments::killed_agent_is_reported", agent_killed),
    ("environments::nothing_remains_of_a_killed_controller", controller_killed),
    ("environments::stopped_agent_ends_with_its_controller", stopped_agent),
    ("environments::unavailable_environment_has_a_reason", unavailable),
];

/// Starts an environment; none if the kernel forbids it, which must then be reported with a remedy.
pub fn start(kind: &str) -> Option<Environment> {
    match environment::start(kind.parse().unwrap(), &Setup::default()) {
        Ok(environment) => Some(environment),
        Err(failure) => {
            assert_eq!(failure.kind, FailureKind::Permission, "{failure}");
            assert!(failure.hint.is_some(), "{failure}");
            None
        }
    }
}

fn starts_and_is_removed(kind: &str) {
    let before = machine::now();
    let Some(mut environment) = start(kind) else { return };
    let client = environment.pair.client.describe().unwrap();
    let server = environment.pair.server.describe().unwrap();
    assert_eq!(client.host.boot_id, server.host.boot_id);
    let up = |facts: &nm_model::Facts, name: &str| {
        facts.links.iter().any(|link| link.name == name && link.up)
    };
    assert!(up(&client, "lo") && up(&server, "lo"));
    if kind != "loopback" {
        assert!(up(&client, "nm-client") && up(&server, "nm-server"));
        assert_eq!((client.links.len(), server.links.len()), (2, 2), "no other links are seen");
    }
    let during = machine::now();
    assert!(during.processes.len() >= before.processes.len() + 2);
    assert_eq!(during.links, before.links, "no link in this namespace");
    assert_eq!(during.named, before.named, "no name of a namespace");
    let made = during.namespaces.difference(&before.namespaces).count();
    assert!(
        made >= match kind {
            "loopback" => 0,
            "netns" => 2,
            _ => 3,
        },
        "{made} namespaces"
    );
    environment.close();
    machine::assert_removed(&before, &during);
    environment.close();
}

fn ordinary_user(kind: &str) {
    if !rustix::process::geteuid().is_root() {
        // All other tests of this file run as an ordinary user already.
        assert!(start(kind).is_none_or(|environment| environment.kind.name() == kind));
        return;
    }
    // The program must be in a folder that any user may read.
    let program = std::env::temp_dir().join(format!("nm-lab-it-{}", std::process::id()));
    std::fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    let before = machine::now();
    let output = Command::new(&program)
        .args(["ordinary-user", kind])
        .current_dir("/")
        .uid(65534)
        .gid(65534)
        .output()
        .unwrap();
    std::fs::remove_file(&program).unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    match text.trim() {
        "started lo,nm-client lo,nm-server" => {}
        refused => {
            assert!(refused.starts_with("refused ") && refused.contains("run as root"), "{refused}")
        }
    }
    machine::assert_removed(&before, &machine::now());
}

fn agent_killed() {
    let Some(mut environment) = start("netns") else { return };
    kill(environment.pair.server.pid());
    let failure = environment.pair.server.describe().unwrap_err();
    assert_eq!(failure.to_string(), "agent `server` of netns ended by signal 9");
    assert_eq!(failure.kind, FailureKind::Peer);
}

/// A controller in a process of its own, with the ids of its agents.
fn controller(kind: &str) -> (std::process::Child, Vec<u32>) {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["controller", kind])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    (child, line.split_whitespace().map(|pid| pid.parse().unwrap()).collect())
}

fn controller_killed() {
    for kind in ["loopback", "netns", "bridge"] {
        if start(kind).is_none() {
            continue;
        }
        let before = machine::now();
        let (mut child, agents) = controller(kind);
        assert_eq!(agents.len(), 2);
        let during = machine::now();
        assert!(agents.iter().all(|pid| during.processes.contains(&pid.to_string())), "{kind}");
        child.kill().unwrap();
        child.wait().unwrap();
        machine::assert_removed(&before, &during);
    }
}

fn stopped_agent() {
    let before = machine::now();
    let (mut child, agents) = controller("loopback");
    let during = machine::now();
    for pid in agents {
        let pid = rustix::process::Pid::from_raw(pid.cast_signed()).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
    }
    std::thread::sleep(Duration::from_millis(50));
    child.kill().unwrap();
    child.wait().unwrap();
    machine::assert_removed(&before, &during);
}

fn unavailable() {
    let failure = environment::start(EnvironmentKind::Ssh, &Setup::default()).err().unwrap();
    assert_eq!(failure.kind, FailureKind::BadRequest);
    assert!(failure.to_string().contains("ssh has no hosts; write [hosts]"), "{failure}");
    let guests = GuestSpec { kernel: Some("/of/no/kernel".to_string()), ..GuestSpec::default() };
    let setup = Setup { guests, ..Setup::default() };
    let failure = environment::start(EnvironmentKind::VmSwitch, &setup).err().unwrap();
    assert_eq!(failure.kind, FailureKind::NotAvailable);
    assert!(failure.message.starts_with("vm-vswitch: "), "{failure}");
    let missing =
        Launcher::ALL.iter().find(|launcher| launcher::unavailable_reason(**launcher).is_some());
    let missing = missing.expect("a machine without one of the vendors' accelerators");
    let setup = Setup { client_launcher: Some(*missing), ..Setup::default() };
    let failure = environment::start(EnvironmentKind::Loopback, &setup).err().unwrap();
    assert_eq!(failure.kind, FailureKind::NotAvailable);
}
