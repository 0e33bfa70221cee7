//! The exchange over several hosts, with a program in place of ssh that runs each command on this
//! machine. It shows what a run leaves, and hosts that cannot be used.

use std::fs;
use std::net::Ipv4Addr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use tar::EntryType;

use crate::exchange::short;
use crate::support::{BINARY, Run, Running, command, finish, processes, run, signal, wait_for};

/// What ssh is replaced by. Destinations name what goes wrong.
const SSH: &str = r#"#!/bin/sh
for word; do destination=$script; script=$word; done
case $destination in
    keyless) echo "root@keyless: Permission denied (publickey)." >&2; exit 255 ;;
    away) echo "ssh: connect to host away port 22: No route to host" >&2; exit 255 ;;
    quiet) exec sleep 1000 ;;
    old) echo '{"report":"ready","version":"0.0.1","folder":"/nowhere"}'; exec cat ;;
    hostile) case $script in tar*) exec cat "$0.tar" ;; esac ;;
    older) echo "error: unrecognized subcommand 'host'" >&2; exit 2 ;;
esac
# Not in its place: as with ssh, the command outlives it.
sh -c "$script"
"#;

/// A place for runs with such an ssh.
struct Place {
    folder: tempfile::TempDir,
    /// An address of this machine that no other test uses.
    address: Ipv4Addr,
}

impl Place {
    fn new(number: u8) -> Place {
        let folder = tempfile::tempdir().unwrap();
        let ssh = folder.path().join("ssh");
        fs::write(&ssh, SSH).unwrap();
        fs::set_permissions(&ssh, fs::Permissions::from_mode(0o755)).unwrap();
        // Ports are the same in every run.
        let [_, _, high, low] = std::process::id().to_be_bytes();
        Place { folder, address: Ipv4Addr::new(127, number, high, low) }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A run on one host, with these words more.
    fn command(&self, host: &str, out: &Path, more: &[&str]) -> Command {
        fs::write(self.path("hosts"), host).unwrap();
        let (hosts, data) = (self.path("hosts"), self.path("data"));
        let mut words = vec!["--hosts", hosts.to_str().unwrap()];
        words.extend(["--host-data", data.to_str().unwrap()]);
        words.extend(more);
        let mut command = command(&short(out, &words));
        self.with_path(&mut command);
        command
    }

    /// The command, which finds our ssh.
    fn with_path<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        let path = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{}:{path}", self.folder.path().display()))
    }

    /// The line of a host that works.
    fn host(&self, destination: &str) -> String {
        format!("{destination} {} all {BINARY}\n", self.address)
    }

    /// What runs have left on the host: folders, and processes of nodes and agents.
    fn left(&self) -> Vec<String> {
        let entries = fs::read_dir(self.path("data")).into_iter().flatten().flatten();
        let folders = entries.map(|entry| entry.path().display().to_string());
        let data = self.path("data").display().to_string();
        let is_ours = |words: &[String]| {
            words.iter().any(|word| word == "exchange")
                && words.iter().any(|word| word.contains(&data))
        };
        let found = processes().into_iter().filter(|it| it.state != 'Z' && is_ours(&it.words));
        folders.chain(found.map(|process| process.words.join(" "))).collect()
    }
}

const DURABLE: [&str; 4] = ["--nodes", "1-1-2-1", "--durability", "disk-quorum"];

fn proven(out: &Path) -> Run {
    let verified = run(&["exchange", "verify", out.to_str().unwrap(), "--format", "json"]);
    assert_eq!(verified.code, 0, "{}{}", verified.stdout, verified.stderr);
    verified
}

#[test]
fn each_round_on_hosts_has_a_folder_of_its_own_which_goes_with_it() {
    let place = Place::new(101);
    let out = place.path("out");
    let more = [&DURABLE[..], &["--rounds", "2", "--record"]].concat();
    let recorded = finish(&mut place.command(&place.host("here"), &out, &more));
    assert_eq!(recorded.code, 3, "{}{}", recorded.stdout, recorded.stderr);
    // A round that had recovered the journals of another one would have requests of no client.
    let found: Value = serde_json::from_str(&proven(&out).stdout).unwrap();
    let found = &found["rounds"];
    for round in [0, 1] {
        assert_eq!(found[round]["verdict"], "proven", "{found}");
        let journal = out.join(format!("round-{}/data/mediator-0/cell-0", round + 1));
        assert!(fs::read_dir(journal).unwrap().count() > 0);
    }
    assert_eq!(place.left(), Vec::<String>::new());
    // Logs without a warning are not kept.
    for log in fs::read_dir(out.join("round-1/nodes")).into_iter().flatten().flatten() {
        assert!(log.metadata().unwrap().len() > 0, "{} is empty", log.path().display());
    }
}

#[test]
fn a_node_that_is_killed_on_a_host_is_started_again_there_and_loses_nothing() {
    let place = Place::new(102);
    let out = place.path("out");
    let kill = ["--kill", "mediator:0@0.5", "--seconds", "2", "--record"];
    let more = [&DURABLE[..], &kill].concat();
    let recorded = finish(&mut place.command(&place.host("here"), &out, &more));
    assert_eq!(recorded.code, 3, "{}{}", recorded.stdout, recorded.stderr);
    let result = crate::exchange::round(&out);
    assert_eq!(result["exchange"]["faults"][0]["node"], "mediator 0", "{result}");
    proven(&out);
    assert_eq!(place.left(), Vec::<String>::new());
}

/// Entries that only root's `tar` would make: a file with setuid, a device, and a file elsewhere.
fn hostile_archive(elsewhere: &Path) -> Vec<u8> {
    let mut archive = tar::Builder::new(vec![]);
    let elsewhere = format!("../../../../../../../../{}", elsewhere.display());
    for (kind, name, content) in [
        (EntryType::Directory, "mediator-0/", ""),
        (EntryType::Regular, "mediator-0/setuid", "x"),
        (EntryType::Char, "mediator-0/device", ""),
        (EntryType::Regular, &elsewhere, "x"),
    ] {
        let mut header = tar::Header::new_gnu();
        header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
        header.set_entry_type(kind);
        header.set_mode(0o4755);
        header.set_size(content.len() as u64);
        header.set_device_major(1).unwrap();
        header.set_device_minor(3).unwrap();
        header.set_cksum();
        archive.append(&header, content.as_bytes()).unwrap();
    }
    archive.into_inner().unwrap()
}

#[test]
fn a_hosts_archive_with_anything_but_journals_is_refused() {
    let place = Place::new(108);
    let (out, elsewhere) = (place.path("out"), place.path("elsewhere"));
    fs::write(place.path("ssh.tar"), hostile_archive(&elsewhere)).unwrap();
    let more = [&DURABLE[..], &["--record"]].concat();
    let run = finish(&mut place.command(&place.host("hostile"), &out, &more));
    let why = "the journals of host hostile were not copied: it sent \"mediator-0/device\", \
               which is neither a regular file nor a plain folder";
    assert!(format!("{}{}", run.stdout, run.stderr).contains(why), "{}{}", run.stdout, run.stderr);
    assert_eq!(fs::read_dir(out.join("round-1/data")).unwrap().count(), 0);
    assert!(!elsewhere.exists());
    assert_eq!(place.left(), Vec::<String>::new());
}

/// A run that goes on until it is ended, when its network is up.
fn running(place: &Place) -> Running {
    let out = place.path("out");
    let more = [&DURABLE[..], &["--seconds", "600"]].concat();
    let mut running = Running(place.command(&place.host("here"), &out, &more).spawn().unwrap());
    let folder = out.to_str().unwrap();
    wait_for("the network", || {
        if let Some(status) = running.0.try_wait().unwrap() {
            panic!("the run ended with {status}");
        }
        let status = run(&["exchange", "status", "--folder", folder]);
        (status.code == 0).then_some(())
    });
    assert!(place.left().len() >= 6, "a folder, an agent, five nodes: {:?}", place.left());
    running
}

#[test]
fn ctrl_c_and_kill_leave_nothing_on_a_host() {
    let place = Place::new(103);
    let interrupted = running(&place);
    signal("INT", interrupted.pid());
    let ended = interrupted.finish();
    assert_eq!(ended.code, 130, "{}{}", ended.stdout, ended.stderr);
    assert_eq!(place.left(), Vec::<String>::new(), "it waits for its agents");
    let _ = fs::remove_dir_all(place.path("out"));
    let killed = running(&place);
    signal("KILL", killed.pid());
    wait_for("the end of agent and nodes", || place.left().is_empty().then_some(()));
}

#[test]
fn a_host_that_cannot_be_used_is_named_in_one_sentence() {
    let place = Place::new(104);
    let refused = |host: &str, program: &str, sentence: &str| {
        let out = place.path("refused");
        // The second host is not the one that is named.
        let hosts = format!("{host} 127.0.0.1 all {program}\n{}", place.host("here"));
        let run = finish(&mut place.command(&hosts, &out, &[]));
        assert_eq!(run.code, 4, "{host}: {}{}", run.stdout, run.stderr);
        assert_eq!(run.errors().len(), 1, "{host}: {}", run.stderr);
        assert!(run.errors()[0].contains(sentence), "{host}: {}", run.stderr);
        assert_eq!(place.left(), Vec::<String>::new(), "{host}");
        let _ = fs::remove_dir_all(&out);
    };
    refused(
        "keyless",
        BINARY,
        "host keyless cannot be reached: ssh says: root@keyless: Permission",
    );
    refused(
        "away",
        BINARY,
        "host away cannot be reached: ssh says: ssh: connect to host away port",
    );
    refused("here", "/no/such/nearmetal", "host here has no nearmetal at /no/such/nearmetal");
    refused("here", "/etc/hostname", "host here has no nearmetal at /etc/hostname");
    refused("old", BINARY, "host old has another version of nearmetal at");
    refused("older", BINARY, "host older has another version of nearmetal at");
    refused("here", "/bin/false", "the agent on host here ended: nothing");
    refused("quiet", BINARY, "host quiet did not answer for 30 s");
    fs::remove_dir(place.path("data")).unwrap();
    fs::write(place.path("data"), "").unwrap();
    let not_a_folder = finish(&mut place.command(&place.host("here"), &place.path("x"), &[]));
    assert_eq!(not_a_folder.code, 4, "{}", not_a_folder.stderr);
    let sentence = "data is a file or a symbolic link; name a folder itself";
    assert!(not_a_folder.stderr.contains(sentence), "{}", not_a_folder.stderr);
}

#[test]
fn search_ramp_and_torture_run_on_hosts() {
    let place = Place::new(106);
    fs::write(place.path("hosts"), place.host("here")).unwrap();
    let (hosts, data) = (place.path("hosts"), place.path("data"));
    let on_hosts = |words: &str, out: &str| {
        let mut command = command(&words.split(' ').collect::<Vec<_>>());
        command.arg("--hosts").arg(&hosts).arg("--host-data").arg(&data);
        command.arg("--out").arg(place.path(out));
        let run = finish(place.with_path(&mut command));
        assert_eq!(place.left(), Vec::<String>::new(), "{words}");
        run
    };
    let network = "--nodes 1-1-2-1 --durability memory-quorum";
    let search =
        format!("exchange search --from 2500 --to 2500 --rounds 1 --seconds 0.5 {network}");
    let searched = on_hosts(&search, "searched");
    assert!([0, 1].contains(&searched.code), "{}{}", searched.stdout, searched.stderr);
    assert!(searched.stdout.contains("ssh/1-1-2-1"), "{}", searched.stdout);
    let ramp = format!("exchange ramp --step 50:100 --phase-seconds 1 --record {network}");
    let day = on_hosts(&ramp, "day");
    assert!([0, 1, 3].contains(&day.code), "{}{}", day.stdout, day.stderr);
    proven(&place.path("day"));
    let torture = "exchange torture --trials 1 --rate 100 --seconds 1 --durability disk-quorum \
                   --role mediator";
    let tortured = on_hosts(torture, "tortured");
    assert_eq!(tortured.code, 0, "{}{}", tortured.stdout, tortured.stderr);
    assert!(tortured.stdout.contains("nothing lost, doubled or reordered"), "{}", tortured.stdout);
    let nothing = on_hosts("exchange run --transport shm", "shared");
    assert_eq!(nothing.code, 2, "{}{}", nothing.stdout, nothing.stderr);
    assert!(nothing.stderr.contains("do not reach other hosts; use --transport tcp"));
}

#[test]
fn a_host_that_is_lost_ends_a_run_without_replicas_and_is_named() {
    let place = Place::new(105);
    let more = ["--seconds", "600"];
    let out = place.path("out");
    let running = Running(place.command(&place.host("here"), &out, &more).spawn().unwrap());
    let agent = wait_for("the agent with its nodes", || {
        let all = processes();
        let is = |words: &[String], verb: &str| {
            words.get(1..3) == Some(&["exchange".into(), verb.into()][..])
        };
        let data = place.path("data").display().to_string();
        let ours = |words: &[String]| words.iter().any(|word| word.contains(&data));
        let agent = all.iter().find(|it| is(&it.words, "host") && ours(&it.words))?.pid;
        let nodes = all.iter().filter(|it| it.parent == agent && is(&it.words, "node")).count();
        (nodes == 4).then_some(agent)
    });
    signal("KILL", agent);
    let ended = running.finish();
    assert_eq!(ended.code, 4, "{}{}", ended.stdout, ended.stderr);
    assert!(ended.stderr.contains("the agent on host here ended"), "{}", ended.stderr);
    // The folder of a killed agent is removed by the next one.
    let again = finish(&mut place.command(&place.host("here"), &place.path("again"), &[]));
    assert_eq!(again.code, 3, "{}{}", again.stdout, again.stderr);
    assert_eq!(place.left(), Vec::<String>::new());
}
