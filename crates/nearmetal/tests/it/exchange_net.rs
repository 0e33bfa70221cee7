//! A network of the exchange whose nodes a test starts one by one, each with what is to be wrong
//! with it. It has the load, wires between nodes that can be cut, and the proof of what came of it.
//!
//! Nodes listen on Unix sockets in a folder that goes with the test. They end when the test does:
//! their input is gone then, and guards kill them.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, sleep};
use std::time::Duration;

use nm_exchange::network::{Durability, Network, Node, NodeId, ReplicaAddress, Role};
use nm_load::{Arrivals, Generator, Pace, Round, Settings, Sizes};
use nm_verify::recording::Recording;

use crate::support::{BINARY, Run, run, wait_for};

/// Longest wait for replies, s: nothing takes so long unless it hangs.
const DRAIN_S: f64 = 60.0;

/// Rate of the load: what a crowded machine carries, also with replicas on disk.
const RATE_PER_S: f64 = 400.0;

/// A running node; killed when it goes.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The network, its folder, and its nodes as they run.
pub struct Net {
    pub network: Network,
    nodes: BTreeMap<NodeId, Running>,
    folder: tempfile::TempDir,
}

impl Net {
    /// A network of this size, none of whose nodes runs yet.
    pub fn new(counts: &str, durability: Durability) -> Net {
        let folder = tempfile::tempdir().unwrap();
        let mut network = Network::new(counts.parse().unwrap(), |node| {
            let name = node.file_name();
            let address = format!("unix:{}/{name}", folder.path().display());
            Node {
                address: address.parse().unwrap(),
                replication: Some(ReplicaAddress::Unix(
                    folder.path().join(format!("{name}-replication")),
                )),
            }
        });
        network.durability = durability;
        network.data = Some(folder.path().join("data"));
        network.record = true;
        fs::create_dir(folder.path().join("nodes")).unwrap();
        fs::write(folder.path().join("network.toml"), network.to_toml().unwrap()).unwrap();
        Net { network, nodes: BTreeMap::new(), folder }
    }

    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// The folder of a node's journals.
    pub fn data(&self, node: NodeId) -> PathBuf {
        self.network.folder(node).unwrap()
    }

    /// What a node has written so far, on both of its outputs, in all of its starts.
    pub fn output(&self, node: NodeId) -> String {
        fs::read_to_string(self.log(node)).unwrap_or_default()
    }

    fn log(&self, node: NodeId) -> PathBuf {
        self.path().join("nodes").join(format!("{}.log", node.file_name()))
    }

    /// Starts a node. `with` changes how: its environment, or a program that starts it.
    pub fn start(&mut self, node: NodeId, with: impl FnOnce(Command) -> Command) {
        let mut command = Command::new(BINARY);
        let own = self.path().join(format!("network-{}.toml", node.file_name()));
        let file = if own.exists() { own } else { self.path().join("network.toml") };
        command.args(["exchange", "node", "--role", node.class.name()]);
        command.args(["--index", &node.index.to_string()]);
        command.arg("--network").arg(file);
        let mut command = with(command);
        let log = File::options().create(true).append(true).open(self.log(node)).unwrap();
        command.stdin(Stdio::piped()).stdout(log.try_clone().unwrap()).stderr(log);
        self.nodes.insert(node, Running(command.spawn().unwrap()));
    }

    /// The process of a node.
    pub fn pid(&self, node: NodeId) -> u32 {
        self.nodes[&node].0.id()
    }

    /// Starts all nodes and waits until all links are up.
    pub fn start_all(&mut self, with: impl Fn(NodeId, Command) -> Command) {
        let all: Vec<_> = self.network.all().map(|(id, _)| id).collect();
        for node in &all {
            self.start(*node, |command| with(*node, command));
        }
        for node in all {
            self.wait_for_output(node, "\"event\":\"ready\"", 1);
        }
    }

    /// Waits until a node has written something so many times.
    pub fn wait_for_output(&self, node: NodeId, what: &str, times: usize) {
        wait_for(&format!("{node} to say {what}"), || {
            (self.output(node).matches(what).count() >= times).then_some(())
        });
    }

    /// Kills a node as `kill -9` does.
    pub fn kill(&mut self, node: NodeId) {
        drop(self.nodes.remove(&node).unwrap());
    }

    /// Waits until a node has ended by itself; its exit code.
    pub fn wait_end(&mut self, node: NodeId) -> Option<i32> {
        let mut node = self.nodes.remove(&node).unwrap();
        let status = wait_for("a node to end", || node.0.try_wait().unwrap());
        status.code()
    }

    /// Ends all nodes as a supervisor does.
    pub fn stop(&mut self) {
        for node in self.nodes.values_mut() {
            drop(node.0.stdin.take());
        }
        for (_, mut node) in std::mem::take(&mut self.nodes) {
            wait_for("a node to end", || node.0.try_wait().unwrap());
        }
    }

    /// `exchange verify` of the folder.
    pub fn verify(&self) -> Run {
        run(&["exchange", "verify", self.path().to_str().unwrap()])
    }

    /// Ends the load and all nodes: everything was answered in the end, and the proof finds nothing
    /// wrong.
    pub fn prove(&mut self, load: Load) {
        load.finish(self);
        Recording::open(self.path()).unwrap().seal().unwrap();
        let verified = self.verify();
        assert_eq!(verified.code, 0, "{}{}", verified.stdout, verified.stderr);
    }
}

/// The load on a network.
pub struct Load(Generator);

impl Load {
    /// Sessions on so many instruments, with messages of so many bytes.
    pub fn new(net: &Net, instruments: u32, bytes: u32) -> Load {
        Load::at(net, net.network.nodes(Role::Gateway).len(), instruments, bytes)
    }

    /// The same at the first so many gateways only.
    pub fn at(net: &Net, gateways: usize, instruments: u32, bytes: u32) -> Load {
        let sizes = Sizes::new(bytes, bytes, bytes).unwrap();
        let settings = Settings { sessions: 16, instruments, sizes, ..Settings::default() };
        let all = net.network.nodes(Role::Gateway);
        let gateways: Vec<_> = all[..gateways].iter().map(|node| node.address.clone()).collect();
        let log = net.path().join("client-0.log");
        let limit = Duration::from_secs(10);
        Load(Generator::connect(&settings, None, &gateways, Some(&log), limit).unwrap())
    }

    /// Sends so many requests, and all of them are answered.
    pub fn all_answered(&mut self, what: &str, count: u32) -> Round {
        let round = self.send(count, DRAIN_S);
        assert_eq!(round.sent, u64::from(count), "{what}");
        assert_eq!(round.lost, 0, "{what}: requests without reply");
        round
    }

    /// Sends so many requests, and waits for replies no longer than `drain_s`.
    pub fn send(&mut self, count: u32, drain_s: f64) -> Round {
        self.send_at(RATE_PER_S, count, drain_s)
    }

    /// The same, so many a second.
    pub fn send_at(&mut self, rate_per_s: f64, count: u32, drain_s: f64) -> Round {
        let seconds = f64::from(count) / rate_per_s;
        let pace = Pace { rate_per_s, seconds, drain_s, arrivals: Arrivals::Even, stall: None };
        self.0.round(&pace, &AtomicBool::new(false)).unwrap()
    }

    /// Ends the load and all nodes; everything was answered in the end.
    pub fn finish(self, net: &mut Net) {
        let left = self.0.end(Duration::from_secs_f64(DRAIN_S)).unwrap();
        assert_eq!(left, 0, "requests without reply");
        net.stop();
    }
}

/// A wire from one node to another's listening socket, either direction of which can be cut.
///
/// A cut behaves as lost packets do under TCP: what is on the way stays on the way, no connection
/// breaks, and none is made, for that takes both directions. What was held comes after the cut.
pub struct Wire {
    address: PathBuf,
    there: Arc<AtomicBool>,
    back: Arc<AtomicBool>,
    is_over: Arc<AtomicBool>,
}

impl Wire {
    /// A wire that connects whoever connects to `address` with `target`.
    pub fn new(address: PathBuf, target: PathBuf) -> Wire {
        let listener = UnixListener::bind(&address).unwrap();
        let passes = || Arc::new(AtomicBool::new(true));
        let (there, back, is_over) = (passes(), passes(), Arc::new(AtomicBool::new(false)));
        let flags = [&there, &back, &is_over].map(Arc::clone);
        thread::spawn(move || {
            for near in listener.incoming() {
                let (Ok(near), false) = (near, flags[2].load(Ordering::Acquire)) else { return };
                let (flags, target) = (flags.clone(), target.clone());
                thread::spawn(move || connect(near, &target, &flags));
            }
        });
        Wire { address, there, back, is_over }
    }

    /// Whether bytes pass from whoever connects, and back to it.
    pub fn pass(&self, there: bool, back: bool) {
        self.there.store(there, Ordering::Release);
        self.back.store(back, Ordering::Release);
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Release);
        let _ = UnixStream::connect(&self.address);
    }
}

/// Waits while any of the directions is cut; false when the wire is gone.
fn waits_for(passes: &[&AtomicBool], is_over: &AtomicBool) -> bool {
    while !passes.iter().all(|passes| passes.load(Ordering::Acquire)) {
        if is_over.load(Ordering::Acquire) {
            return false;
        }
        sleep(Duration::from_millis(2));
    }
    !is_over.load(Ordering::Acquire)
}

fn connect(near: UnixStream, target: &Path, [there, back, is_over]: &[Arc<AtomicBool>; 3]) {
    if !waits_for(&[there, back], is_over) {
        return;
    }
    let Ok(far) = UnixStream::connect(target) else { return };
    thread::scope(|scope| {
        for (from, to, passes) in [(&near, &far, there), (&far, &near, back)] {
            scope.spawn(move || copy(from, to, passes, is_over));
        }
    });
}

fn copy(mut from: &UnixStream, mut to: &UnixStream, passes: &AtomicBool, is_over: &AtomicBool) {
    let mut bytes = vec![0; 64 << 10];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        if !waits_for(&[passes], is_over) || to.write_all(&bytes[..count]).is_err() {
            break;
        }
    }
    // The end of a connection is a packet like any other.
    waits_for(&[passes], is_over);
    let _ = (from.shutdown(Shutdown::Both), to.shutdown(Shutdown::Both));
}
