//! Faults of the exchange's network: disks that are slow or full, links that are cut, cells whose
//! nodes all die. Each has its defined behaviour and its sentence, and loses nothing.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use Role::{Mediator, Processor, Router};
use nm_exchange::network::{Durability, Network, NodeId, ReplicaAddress, Role};
use nm_run::hosts::Placement;
use nm_run::supervise::{RestartReason, Supervisor};
use nm_sys::clock::Moment;

use crate::exchange_net::{Load, Net, Wire};
use crate::support::{BINARY, PATIENCE, Run, finish, signal, wait_for};

/// Stands before the C library's `fdatasync`, and takes its time while the file is there that
/// `SLOW_DISK` names.
const SLOW_DISK: &str = r#"
use std::ffi::{c_int, c_long};
use std::time::Duration;
unsafe extern "C" { fn syscall(number: c_long, ...) -> c_long; }
#[unsafe(no_mangle)]
pub extern "C" fn fdatasync(fd: c_int) -> c_int {
    if std::env::var_os("SLOW_DISK").is_some_and(|path| std::path::Path::new(&path).exists()) {
        std::thread::sleep(Duration::from_millis(300));
    }
    unsafe { syscall(FDATASYNC, fd) as c_int }
}
#[cfg(target_arch = "x86_64")]
const FDATASYNC: c_long = 75;
#[cfg(target_arch = "aarch64")]
const FDATASYNC: c_long = 83;
"#;

fn slow_disk_library(folder: &Path) -> PathBuf {
    let (source, library) = (folder.join("slow_disk.rs"), folder.join("libslow_disk.so"));
    fs::write(&source, SLOW_DISK).unwrap();
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let mut command = Command::new(rustc);
    command.args(["--edition", "2024", "--crate-type", "cdylib", "-o"]).arg(&library).arg(&source);
    let compiled = finish(&mut command);
    assert_eq!(compiled.code, 0, "{}", compiled.stderr);
    library
}

/// A network whose disks can be made slow, one by one.
struct Slow {
    net: Net,
    library: PathBuf,
}

impl Slow {
    fn new() -> Slow {
        let net = Net::new("1-1-2-1", Durability::DiskQuorum);
        let library = slow_disk_library(net.path());
        Slow { net, library }
    }

    fn start(&mut self) {
        let (library, folder) = (self.library.clone(), self.net.path().to_path_buf());
        self.net.start_all(|node, mut command| {
            command.env("LD_PRELOAD", &library);
            command.env("SLOW_DISK", flag(&folder, node));
            command
        });
    }

    fn slow_down(&self, node: NodeId, is_slow: bool) {
        let flag = flag(self.net.path(), node);
        if is_slow { fs::write(flag, "").unwrap() } else { fs::remove_file(flag).unwrap() }
    }
}

fn flag(folder: &Path, node: NodeId) -> PathBuf {
    folder.join(format!("slow-{}", node.file_name()))
}

const SLOW_SENTENCE: &str = "ms for a sync";

#[test]
fn a_slow_disk_is_named_and_its_cells_go_on() {
    let mut slow = Slow::new();
    slow.start();
    let mut load = Load::new(&slow.net, 4, 300);
    load.all_answered("before", 100);
    // A disk of a leader, then one of a replica that never leads.
    for node in [Mediator.node(0), Processor.node(0)] {
        slow.slow_down(node, true);
        load.all_answered("with one slow disk", 200);
        slow.net.wait_for_output(node, SLOW_SENTENCE, 1);
        slow.slow_down(node, false);
        load.all_answered("afterwards", 100);
    }
    slow.net.prove(load);
}

#[test]
fn slow_disks_everywhere_delay_and_lose_nothing() {
    let mut slow = Slow::new();
    slow.start();
    let mut load = Load::new(&slow.net, 4, 300);
    load.all_answered("before", 100);
    let all = [Mediator.node(0), Mediator.node(1), Processor.node(0)];
    all.iter().for_each(|node| slow.slow_down(*node, true));
    // How much is answered meanwhile is not promised: a cell may change its leader all the time.
    load.send(100, 0.5);
    let is_named = |node: &NodeId| slow.net.output(*node).contains(SLOW_SENTENCE);
    wait_for("a slow disk to be named", || all.iter().any(is_named).then_some(()));
    all.iter().for_each(|node| slow.slow_down(*node, false));
    load.all_answered("afterwards", 100);
    slow.net.prove(load);
}

/// A file system of its own below one folder, seen only by those that this process lets in. It goes
/// with the process, which ends when the test does.
struct Disk(Child);

impl Disk {
    fn new(folder: &Path) -> Disk {
        fs::create_dir_all(folder).unwrap();
        let mount = format!("mount -t tmpfs -o size=1g tmpfs '{}' && cat", folder.display());
        let mut command = Command::new("unshare");
        if !nm_sys::namespace::privileged() {
            command.arg("--map-root-user");
        }
        command.args(["--mount", "--propagation", "private", "sh", "-c", &mount]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let disk = Disk(command.spawn().unwrap());
        wait_for("a file system", || {
            let mounts = fs::read_to_string(format!("/proc/{}/mounts", disk.0.id())).ok()?;
            mounts.contains(folder.to_str().unwrap()).then_some(())
        });
        disk
    }

    /// The command, run by somebody who sees the disk.
    fn within(&self, command: &Command) -> Command {
        let mut within = Command::new("nsenter");
        within.arg("--target").arg(self.0.id().to_string()).arg("--mount");
        if !nm_sys::namespace::privileged() {
            within.args(["--user", "--preserve-credentials"]);
        }
        within.arg("--").arg(command.get_program()).args(command.get_args());
        within
    }

    /// Gives it so many bytes, what is on it at least.
    fn resize(&self, folder: &Path, bytes: u64) -> bool {
        let mut command = Command::new("mount");
        command.arg("-o").arg(format!("remount,size={bytes}")).arg(folder);
        finish(&mut self.within(&command)).code == 0
    }

    /// Leaves no room on it.
    fn fill(&self, folder: &Path) {
        let ballast = format!("/proc/{}/root{}/ballast", self.0.id(), folder.display());
        self.resize(folder, 1 << 20);
        let mut bytes = 8 << 20;
        while bytes < 1 << 30 && !self.resize(folder, bytes) {
            bytes += 1 << 20;
        }
        // What is left up to the next page is taken as well.
        let mut rest = fs::File::create(ballast).unwrap();
        while std::io::Write::write_all(&mut rest, &[1; 4096]).is_ok() {}
    }

    fn make_room(&self, folder: &Path) {
        assert!(self.resize(folder, 1 << 30));
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What nodes say is kept where a run's other logs are.
#[test]
fn run_keeps_logs_of_its_nodes() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let words =
        "exchange run --nodes 1-1-1-1 --rate 300 --seconds 1 --rounds 1 --kill router:0@0.3";
    let mut words: Vec<&str> = words.split(' ').collect();
    words.extend(["--out", out.to_str().unwrap()]);
    let run = crate::support::run(&words);
    assert_eq!(run.code, 3, "{}{}", run.stdout, run.stderr);
    let output = fs::read_to_string(out.join("round-1/nodes/gateway-0.log")).unwrap();
    assert!(output.starts_with("the link with router 0 is closed: "), "{output}");
    assert_eq!(output.lines().count(), 1, "{output}");
}

fn verify_within(disk: &Disk, net: &Net) -> Run {
    let mut command = Command::new(BINARY);
    command.args(["exchange", "verify"]).arg(net.path());
    finish(&mut disk.within(&command))
}

#[test]
fn node_with_full_disk_ends_and_recovers_when_there_is_space() {
    let mut net = Net::new("1-1-2-1", Durability::DiskQuorum);
    let victim = Mediator.node(0);
    let folder = net.data(victim);
    let disk = Disk::new(&folder);
    net.start_all(|node, command| match node == victim {
        true => disk.within(&command),
        false => command,
    });
    let mut load = Load::new(&net, 2, 80_000);
    load.all_answered("before", 50);
    disk.fill(&folder);
    // Its snapshot, or the next file of its journal, has no room; the others go on.
    load.all_answered("with a full disk", 1600);
    let code = net.wait_end(victim);
    let output = net.output(victim);
    assert_eq!(code, Some(4), "{output}");
    let last = output.lines().last().unwrap();
    assert!(last.contains("No space left on device"), "{last}");
    assert!(last.contains(folder.to_str().unwrap()), "{last}");
    assert!(last.contains("make room on that disk and start the node again"), "{last}");
    load.all_answered("without it", 50);

    disk.make_room(&folder);
    let ready = output.matches("\"ready\"").count();
    net.start(victim, |command| disk.within(&command));
    net.wait_for_output(victim, "\"ready\"", ready + 1);
    load.all_answered("with all of them again", 50);
    // It has caught up: with one other it is a majority, and it leads again.
    net.kill(Mediator.node(1));
    load.all_answered("when it is needed", 50);
    net.start(Mediator.node(1), |command| command);
    load.all_answered("at the end", 50);
    load.finish(&mut net);
    // One doubt: nodes that nobody supervises leave no manifest.
    let verified = verify_within(&disk, &net);
    assert_eq!(verified.code, 3, "{}{}", verified.stdout, verified.stderr);
    assert!(verified.stdout.contains("nothing wrong was found"), "{}", verified.stdout);
}

/// A node that cannot start, as on a full disk, is tried again and again with longer pauses, and
/// the others have their peace.
#[test]
fn a_node_that_cannot_start_is_tried_again_with_pauses() {
    let net = Net::new("1-1-1-1", Durability::None);
    let (program, broken) = (net.path().join("nearmetal"), net.path().join("broken"));
    let script = format!(
        "#!/bin/sh\n\
         [ \"$4\" = processor ] && [ -e '{}' ] && echo 'nearmetal: no room' >&2 && exit 4\n\
         exec '{BINARY}' \"$@\"\n",
        broken.display()
    );
    fs::write(&program, script).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let (folder, here) = (net.path().join("run"), Placement::default());
    let mut nodes = Supervisor::start(&net.network, &program, &[], &folder, &here).unwrap();
    fs::write(&broken, "").unwrap();
    nodes.kill(Processor.node(0), Duration::ZERO);
    let begun = Moment::now();
    while nodes.restarts().len() < 6 {
        assert!(begun.elapsed() < PATIENCE, "{:?}", nodes.restarts());
        nodes.restart_dead_nodes(Duration::from_millis(5)).unwrap();
    }
    // At once, then 0.1, 0.2, 0.4 s, and then 0.8 s that have not passed yet.
    assert!(begun.elapsed() >= Duration::from_millis(700), "{:?}", nodes.restarts());
    let output = fs::read_to_string(folder.join("nodes/processor-0.log")).unwrap();
    assert!(output.lines().any(|line| line == "nearmetal: no room"), "{output}");
    fs::remove_file(&broken).unwrap();
    let is_ready = |nodes: &Supervisor| nodes.restarts().last().unwrap().ready_ns.is_some();
    while !is_ready(&nodes) {
        assert!(begun.elapsed() < PATIENCE, "{:?}", nodes.restarts());
        nodes.restart_dead_nodes(Duration::from_millis(5)).unwrap();
    }
    assert_eq!(nodes.stop().ends.len(), 4);
}

/// A node that is restarted for maintenance and does not end is killed after a while.
#[test]
fn a_node_that_does_not_end_for_maintenance_is_killed() {
    let net = Net::new("1-1-1-1", Durability::None);
    let (program, here) = (PathBuf::from(BINARY), Placement::default());
    let mut nodes =
        Supervisor::start(&net.network, &program, &[], &net.path().join("run"), &here).unwrap();
    let is_it = |(node, _): &(NodeId, u32)| node.class == Router;
    let (_, before) = nodes.pids().into_iter().find(is_it).unwrap();
    signal("STOP", before);
    nodes.restart(Router.node(0), None);
    let begun = Moment::now();
    assert!(!nodes.is_ready(Router.node(0)));
    while !nodes.is_ready(Router.node(0)) {
        assert!(begun.elapsed() < PATIENCE, "{:?}", nodes.restarts());
        nodes.restart_dead_nodes(Duration::from_millis(5)).unwrap();
    }
    let (_, after) = nodes.pids().into_iter().find(is_it).unwrap();
    assert_ne!(before, after);
    let [restart] = nodes.restarts() else { panic!("{:?}", nodes.restarts()) };
    assert_eq!(restart.reason, RestartReason::Maintenance);
    assert_eq!(nodes.stop().ends.len(), 4);
}

/// Mediator 0 reaches the other replicas of its cell, and they it, by wires that can be cut.
struct Cut {
    net: Net,
    /// From mediator 0 to another replica, and from another one to it.
    out: Vec<Wire>,
    back: Vec<Wire>,
    /// Between the others.
    others: Vec<Wire>,
}

impl Cut {
    fn new(durability: Durability) -> Cut {
        let net = Net::new("1-1-2-1", durability);
        let folder = net.path().to_path_buf();
        let all = [Mediator.node(0), Mediator.node(1), Processor.node(0)];
        let (mut out, mut back, mut others) = (vec![], vec![], vec![]);
        for from in all {
            let mut seen = net.network.clone();
            for to in all.into_iter().filter(|to| *to != from) {
                let address = folder.join(format!("{}-{}", from.file_name(), to.file_name()));
                let wire = Wire::new(
                    address.clone(),
                    folder.join(format!("{}-replication", to.file_name())),
                );
                *replication(&mut seen, to) = Some(ReplicaAddress::Unix(address));
                match (from.index, to.index, from.class, to.class) {
                    (0, _, Mediator, _) => out.push(wire),
                    (_, 0, _, Mediator) => back.push(wire),
                    _ => others.push(wire),
                }
            }
            let file = folder.join(format!("network-{}.toml", from.file_name()));
            fs::write(file, seen.to_toml().unwrap()).unwrap();
        }
        Cut { net, out, back, others }
    }

    /// Whether mediator 0 can send to the others, and receive from them.
    fn pass(&self, can_send: bool, can_receive: bool) {
        self.out.iter().for_each(|wire| wire.pass(can_send, can_receive));
        self.back.iter().for_each(|wire| wire.pass(can_receive, can_send));
    }
}

fn replication(network: &mut Network, node: NodeId) -> &mut Option<ReplicaAddress> {
    &mut network.classes[node.class].nodes[node.position()].replication
}

/// The leader of the only cell that is asked is cut off. Another one leads as long as that lasts;
/// afterwards the old leader follows, and can be relied on.
fn cut_off(durability: Durability, can_send: bool, can_receive: bool) {
    let mut cut = Cut::new(durability);
    cut.net.start_all(|_, command| command);
    let mut load = Load::new(&cut.net, 1, 300);
    load.all_answered("before", 100);
    cut.pass(can_send, can_receive);
    load.all_answered("with the leader cut off", 200);
    cut.pass(true, true);
    load.all_answered("afterwards", 200);
    // Without the one that led meanwhile, the old leader must have all that it missed.
    let ready = cut.net.output(Mediator.node(1)).matches("\"ready\"").count();
    cut.net.kill(Mediator.node(1));
    load.all_answered("with the old leader", 100);
    cut.net.start(Mediator.node(1), |command| command);
    cut.net.wait_for_output(Mediator.node(1), "\"ready\"", ready + 1);
    load.all_answered("at the end", 100);
    cut.net.prove(load);
}

#[test]
fn a_leader_that_is_cut_off_is_replaced_and_follows_afterwards() {
    cut_off(Durability::DiskQuorum, false, false);
}

#[test]
fn leader_that_cannot_receive_is_replaced() {
    cut_off(Durability::MemoryQuorum, true, false);
}

#[test]
fn leader_that_cannot_send_is_replaced() {
    cut_off(Durability::MemoryQuorum, false, true);
}

#[test]
fn without_a_majority_nothing_is_acknowledged() {
    let mut cut = Cut::new(Durability::DiskQuorum);
    cut.net.start_all(|_, command| command);
    let mut load = Load::new(&cut.net, 4, 300);
    load.all_answered("before", 100);
    cut.pass(false, false);
    cut.others.iter().for_each(|wire| wire.pass(false, false));
    let round = load.send(100, 0.5);
    assert_eq!((round.answered, round.sent), (0, 100), "each replica is alone");
    cut.pass(true, true);
    cut.others.iter().for_each(|wire| wire.pass(true, true));
    load.all_answered("afterwards", 100);
    cut.net.prove(load);
}

#[test]
fn a_cell_goes_on_from_its_snapshot_and_journal_when_all_of_its_nodes_were_killed() {
    let mut net = Net::new("1-1-2-1", Durability::DiskQuorum);
    net.start_all(|_, command| command);
    let mut load = Load::new(&net, 2, 80_000);
    let all = [Mediator.node(0), Mediator.node(1), Processor.node(0)];
    let snapshots =
        |net: &Net| all.iter().all(|node| net.data(*node).join("cell-0/snapshot").exists());
    for _ in 0..20 {
        if snapshots(&net) {
            break;
        }
        load.all_answered("before", 200);
    }
    // 32 MiB of batches make a snapshot, which is written beside them.
    wait_for("a snapshot of each replica", || snapshots(&net).then_some(()));
    // Something for the journal behind it.
    load.all_answered("after the snapshot", 60);
    let ready: Vec<usize> =
        all.iter().map(|node| net.output(*node).matches("\"ready\"").count()).collect();
    all.iter().for_each(|node| net.kill(*node));
    all.iter().for_each(|node| net.start(*node, |command| command));
    for (node, ready) in all.iter().zip(ready) {
        net.wait_for_output(*node, "\"ready\"", ready + 1);
    }
    load.all_answered("from what is on disk", 100);
    net.prove(load);
}
