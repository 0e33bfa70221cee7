//! Disasters: a network begins again from a backup of it, or from what is left of it.

use std::fs;
use std::path::Path;
use std::thread::{sleep, spawn};
use std::time::Duration;

use nm_exchange::network::{Durability, NodeId, Role};
use nm_verify::recording::Recording;
use serde_json::Value;

use crate::exchange_net::{Load, Net};
use crate::support::{Run, run};

/// Requests while something happens.
const COUNT: u32 = 400;

fn exchange(words: &[&str], paths: &[(&str, &Path)]) -> Run {
    let mut all = vec!["exchange"];
    all.extend(words);
    for (option, path) in paths {
        all.extend((!option.is_empty()).then_some(*option));
        all.push(path.to_str().unwrap());
    }
    run(&all)
}

fn start(net: &mut Net) {
    net.start_all(|_, command| command);
}

/// Kills all nodes as the loss of all hosts does.
fn kill_all(net: &mut Net) {
    let all: Vec<NodeId> = net.network.all().map(|(id, _)| id).collect();
    all.into_iter().for_each(|node| net.kill(node));
}

/// The network's data are others from now on; those of before are in another folder.
fn replace_data(net: &Net, new: &Path) {
    let data = net.path().join("data");
    fs::rename(&data, net.path().join("lost")).unwrap();
    fs::rename(new, data).unwrap();
    fs::remove_dir_all(net.path().join("nodes")).unwrap();
    fs::create_dir(net.path().join("nodes")).unwrap();
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap().map(Result::unwrap) {
        let to = to.join(entry.file_name());
        match entry.file_type().unwrap().is_dir() {
            true => copy(&entry.path(), &to),
            false => drop(fs::copy(entry.path(), to).unwrap()),
        }
    }
}

/// The first and the last position of cell 0 in a backup.
fn positions(backup: &Path) -> (u64, u64) {
    let text = fs::read(backup.join("backup.json")).unwrap();
    let found: Value = serde_json::from_slice(&text).unwrap();
    let cell = &found["groups"][0];
    (cell["first"].as_u64().unwrap(), cell["position"].as_u64().unwrap())
}

#[test]
fn a_backup_under_load_is_restored_at_a_position_and_clients_trade_on() {
    let mut net = Net::new("1-1-2-1", Durability::DiskQuorum);
    let file = net.path().join("network.toml");
    start(&mut net);
    let mut load = Load::new(&net, 4, 64);
    load.all_answered("before the backup", COUNT);
    let sending = spawn(move || {
        load.all_answered("while it is copied", COUNT);
        load
    });
    let backup = net.path().join("backup");
    let made = exchange(&["backup"], &[("--network", &file), ("--out", &backup)]);
    assert_eq!(made.code, 0, "{}", made.stderr);
    load = sending.join().unwrap();
    load.all_answered("after the backup", COUNT);
    let again = exchange(&["backup"], &[("--network", &file), ("--out", &backup)]);
    assert_eq!(again.code, 5, "{}", again.stderr);
    kill_all(&mut net);

    let checked = exchange(&["backup", "check"], &[("", &backup)]);
    assert_eq!(checked.code, 0, "{}", checked.stderr);
    let (_, last) = positions(&backup);
    let (new, at) = (net.path().join("new"), format!("0:{}", last - 3));
    let behind = format!("0:{}", last + 1);
    let refused = exchange(&["restore", "--at", &behind], &[("", &backup), ("--data", &new)]);
    assert_eq!((refused.code, new.exists()), (2, false), "{}", refused.stderr);
    let damaged = net.path().join("damaged");
    copy(&backup, &damaged);
    let journal = fs::read_dir(damaged.join("cell-0")).unwrap().map(|it| it.unwrap().path());
    let journal = journal.into_iter().find(|it| it.extension().is_some_and(|it| it == "journal"));
    let (journal, name) = (journal.as_ref().unwrap(), journal.as_ref().unwrap().file_name());
    let mut bytes = fs::read(journal).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(journal, bytes).unwrap();
    let refused = exchange(&["restore"], &[("", &damaged), ("--data", &new)]);
    let names_it = refused.stderr.contains(name.unwrap().to_str().unwrap());
    assert_eq!((refused.code, names_it, new.exists()), (2, true, false), "{}", refused.stderr);

    let restored = exchange(&["restore", "--at", &at], &[("", &backup), ("--data", &new)]);
    assert_eq!(restored.code, 0, "{}", restored.stderr);
    let lost = format!("lost: positions {} to {last}", last - 2);
    assert!(restored.stdout.contains(&lost), "{}", restored.stdout);
    replace_data(&net, &new);
    start(&mut net);
    load.all_answered("after the disaster", COUNT);
    // One that comes back with its files of before takes no part.
    let processor = Role::Processor.node(0);
    net.kill(processor);
    fs::remove_dir_all(net.data(processor)).unwrap();
    copy(&net.path().join("lost/processor-0"), &net.data(processor));
    net.start(processor, |command| command);
    assert_ne!(net.wait_end(processor), Some(0));
    let said = net.output(processor);
    assert!(said.contains("was restored or recovered without the replica"), "{said}");
}

#[test]
fn a_network_recovers_from_the_files_that_are_left_and_is_verified() {
    let mut net = Net::new("1-1-2-1", Durability::DiskQuorum);
    let file = net.path().join("network.toml");
    start(&mut net);
    let mut load = Load::new(&net, 4, 64);
    load.all_answered("before", COUNT);
    // What is executed is on its way to the third replica of a cell as well.
    sleep(Duration::from_secs(1));
    kill_all(&mut net);
    // Of each cell, and of control, the replica at mediator 0 is left.
    for lost in ["mediator-1", "processor-0"] {
        let elsewhere = net.path().join(format!("lost-{lost}"));
        fs::rename(net.path().join("data").join(lost), elsewhere).unwrap();
    }
    let new = net.path().join("new");
    let stated = exchange(&["recover"], &[("--network", &file), ("--data", &new)]);
    assert_eq!((stated.code, new.exists()), (2, false), "{}", stated.stderr);
    for part in ["1 of 3 replicas are here, no majority", "--accept-loss"] {
        assert!(stated.stderr.contains(part), "{}", stated.stderr);
    }
    let words = ["recover", "--accept-loss"];
    let recovered = exchange(&words, &[("--network", &file), ("--data", &new)]);
    assert_eq!(recovered.code, 0, "{}", recovered.stderr);
    replace_data(&net, &new);
    start(&mut net);
    load.all_answered("after", COUNT);
    load.finish(&mut net);
    for left in ["lost", "lost-mediator-1", "lost-processor-0"] {
        fs::remove_dir_all(net.path().join(left)).unwrap();
    }
    Recording::open(net.path()).unwrap().seal().unwrap();
    let verified = net.verify();
    assert_eq!(verified.code, 0, "{}{}", verified.stdout, verified.stderr);
}
