//! Pairs of guests as scripts: shells take them, and what one script makes another one removes.

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use nm_generate::{PairNetwork, PairRequest, place_pair, qemu_pair, read};

use crate::host::{Host, server};
use crate::libvirt_pair::{networks, request};

fn files(host: &Host, request: &PairRequest) -> Vec<(String, String)> {
    request.check().unwrap();
    qemu_pair::files(&place_pair(&read(host.record().path()), request), request)
}

fn script(files: &[(String, String)], name: &str) -> String {
    files.iter().find(|(one, _)| one == name).unwrap().1.clone()
}

#[test]
fn a_shell_takes_every_script() {
    for network in networks() {
        for host in [Host { pages: (512, 512), ..server() }, Host { cores: 2, ..server() }] {
            for (name, text) in files(&host, &request(network.clone())) {
                let mut shell = Command::new("sh").arg("-n").stdin(Stdio::piped()).spawn().unwrap();
                shell.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
                assert!(shell.wait().unwrap().success(), "{name} of {network:?}: {text}");
            }
        }
    }
}

#[test]
fn what_connects_the_guests_is_removed_again() {
    for network in networks() {
        let files = files(&server(), &request(network.clone()));
        let (made, removed) = (script(&files, "connect.sh"), script(&files, "disconnect.sh"));
        for link in ["nm-bridge", "nm-port0", "nm-port1"] {
            assert_eq!(made.contains(link), removed.contains(&format!("ip link delete {link}")));
        }
        let is_memory_removed = removed.contains("rm -f '/srv/pair/shared-memory'");
        assert_eq!(made.contains("truncate "), is_memory_removed, "{network:?}");
        assert!(removed.contains("rm -f '/srv/pair'/*.ctl '/srv/pair'/*.net"), "{removed}");
        assert_eq!(made.contains("echo 2 > "), removed.contains("echo 0 > "), "{network:?}");
        let is_bound = made.matches("> /sys/bus/pci/drivers_probe").count();
        let is_given_back = removed.matches("> /sys/bus/pci/drivers_probe").count();
        let expected = if matches!(network, PairNetwork::Functions { .. }) { 0 } else { is_bound };
        assert_eq!(is_given_back, expected, "functions go with their device");
    }
}

#[test]
fn virtual_cpus_are_pinned_by_the_names_of_their_threads_where_there_are_cores() {
    let pinned = script(&files(&server(), &request(PairNetwork::Wire)), "client.sh");
    assert!(pinned.contains("'CPU 0/'*) cpus=") && pinned.contains("'CPU 1/'*) cpus="), "{pinned}");
    assert!(pinned.contains("kvm-hint-dedicated=on"), "{pinned}");
    let few = Host { cores: 2, ..server() };
    let loose = script(&files(&few, &request(PairNetwork::Wire)), "client.sh");
    assert!(!loose.contains("taskset") && loose.contains("too few cores"), "{loose}");
    assert!(!loose.contains("kvm-hint-dedicated"), "{loose}");
}

/// A script whose guest is a program that sleeps: a signal to the script ends both.
#[test]
fn signal_to_a_script_ends_its_guest() {
    let folder = tempfile::tempdir().unwrap();
    let program = folder.path().join("qemu-system-x86_64");
    std::fs::write(&program, "#!/bin/sh\necho $$ > \"$0.pid\"\nexec sleep 1000\n").unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    let text =
        script(&files(&Host { cores: 2, ..server() }, &request(PairNetwork::Wire)), "client.sh");
    let path = format!("{}:{}", folder.path().display(), std::env::var("PATH").unwrap());
    let mut shell = Command::new("sh").arg("-c").arg(text).env("PATH", path).spawn().unwrap();
    let file = folder.path().join("qemu-system-x86_64.pid");
    let wait = |what: &str, is_done: &dyn Fn() -> bool| {
        let limit = nm_sys::clock::Deadline::after(Duration::from_secs(60));
        while !is_done() {
            assert!(!limit.passed(), "{what}");
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    wait("the guest starts", &|| std::fs::read_to_string(&file).is_ok_and(|it| it.ends_with('\n')));
    let guest: u32 = std::fs::read_to_string(&file).unwrap().trim().parse().unwrap();
    let status = Command::new("kill").args(["-TERM", &shell.id().to_string()]).status().unwrap();
    assert!(status.success());
    shell.wait().unwrap();
    wait("the guest has ended", &|| nm_sys::process::is_dead(guest));
}

#[test]
fn every_option_is_explained() {
    for network in networks() {
        let text = script(&files(&server(), &request(network)), "server.sh");
        let command = text.split("qemu-system-x86_64 \\\n").nth(1).unwrap();
        let command = command.split(" &\n").next().unwrap();
        for words in command.split(" \\\n") {
            assert!(text.contains(&format!(": {}\n", words.trim())), "{words}: {text}");
        }
    }
}
