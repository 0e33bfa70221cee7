//! The supervisor. It starts every node of a network, waits until all links are up, restarts nodes
//! that die, and stops all of them at the end.
//!
//! A node is a process of this binary, `nearmetal exchange node`, which exits when its standard
//! input is closed. No node outlives the supervisor: the kernel kills local nodes with it, and an
//! agent on another host ends those there (`hosts::remote`). Standard error of a node, and the
//! problems that it reports, go to `FOLDER/nodes/ROLE-INDEX.log` (`node_logs`).
//!
//! A node that dies is restarted immediately. A node that dies again before it was ready, as with a
//! full disk, is restarted with exponential backoff. So it does not disturb the others. Nodes of a
//! host that is lost are not restarted: their journals are gone with it.

use std::ffi::OsString;
use std::fs;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use nm_exchange::link::Address;
use nm_exchange::network::{AddedNode, Durability, LogLimits, Network, NodeId, Role};
use nm_model::{Failure, FailureKind};
use nm_sys::clock::{Deadline, monotonic_ns};
use nm_sys::process::ChildProcess;
use nm_verify::recording::{DATA, NETWORK};
use serde_json::Value;

use crate::backoff::{self, Backoff};
use crate::bounded_lines::BoundedLines;
use crate::hosts::protocol::{END_LIMIT, Report, Request, SILENCE_LIMIT};
use crate::hosts::remote::{self, Arrival, HostError, Remote};
use crate::hosts::{HostFiles, Placement};
use crate::node_logs::NodeLogs;
use crate::place;

/// How long nodes may take until all links are up.
const START_LIMIT: Duration = Duration::from_secs(30);

/// Restarts of one node after which the run is given up.
const RESTARTS_MAX: u32 = 20;

/// Final report of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeEnd {
    /// Which.
    pub node: NodeId,
    /// Requests that it handled.
    pub requests: u64,
    /// CPU time that it used, µs.
    pub cpu_us: u64,
    /// The whole report.
    pub line: Value,
}

/// How a network ended.
#[derive(Debug)]
pub struct Stopped {
    /// Final reports of nodes.
    pub ends: Vec<NodeEnd>,
    /// What happened to hosts, as sentences; the journals of these hosts may be missing.
    pub incidents: Vec<String>,
}

/// A node that died and was restarted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Restart {
    /// Which.
    pub node: NodeId,
    /// When it was killed or found dead, ns on the monotonic clock.
    pub at_ns: u64,
    /// When all its links were up again, if they are.
    pub ready_ns: Option<u64>,
    /// Why it ended.
    pub reason: RestartReason,
}

/// Why a node ended that was restarted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RestartReason {
    /// It was killed, as the setup says.
    Killed,
    /// It was ended for maintenance.
    Maintenance,
    /// By itself.
    Unknown,
}

/// What nodes of this machine and agents of other hosts report.
enum Message {
    /// A node wrote a line of JSON.
    Line {
        /// Index into `Supervisor::nodes`.
        slot: usize,
        /// Which start of the node wrote it.
        start: u32,
        /// The line; none at the end of its output.
        line: Option<Value>,
    },
    /// A node on another host wrote a line for people.
    Log {
        /// Index into `Supervisor::nodes`.
        slot: usize,
        /// The line.
        text: String,
    },
    /// So many reports of nodes on a host were dropped, because this process did not read them.
    Dropped {
        /// Index into `Supervisor::hosts`.
        host: usize,
        /// How many.
        count: u64,
    },
    /// The connection with a host has ended.
    HostEnded(usize),
}

impl Message {
    /// What has arrived from a host.
    fn of_host(host: usize, arrival: Arrival) -> Option<Message> {
        Some(match arrival {
            Arrival::Ended => Message::HostEnded(host),
            Arrival::Report(Report::Node { slot, start, line }) => {
                Message::Line { slot, start, line: Some(line) }
            }
            Arrival::Report(Report::Ended { slot, start }) => {
                Message::Line { slot, start, line: None }
            }
            Arrival::Report(Report::Log { slot, text }) => Message::Log { slot, text },
            Arrival::Report(Report::Dropped { count }) => Message::Dropped { host, count },
            Arrival::Report(Report::Ready { .. } | Report::Alive) => return None,
        })
    }
}

/// What runs a node.
enum Runner {
    /// A process of this machine, with its input.
    Process(ChildProcess, Option<ChildStdin>),
    /// The agent of this host.
    Host(usize),
}

struct Running {
    id: NodeId,
    /// What it is started with on this machine.
    program: PathBuf,
    runner: Runner,
    /// The host, if it is another one.
    host_name: Option<String>,
    start: u32,
    is_ready: bool,
    has_ended: bool,
    /// When it is killed if it was asked to end and has not, ns on the monotonic clock.
    ends_by_ns: Option<u64>,
    backoff: Backoff,
    end: Option<NodeEnd>,
}

impl Running {
    /// Class, number, and the host if it is another one.
    fn name(&self) -> String {
        match &self.host_name {
            Some(host) => format!("{} on {host}", self.id),
            None => self.id.to_string(),
        }
    }
}

/// The nodes of a network, running.
pub struct Supervisor {
    program: PathBuf,
    environment: Vec<(OsString, OsString)>,
    network_file: PathBuf,
    /// What the network's file says: nodes that are added later as well, so that nodes that are
    /// restarted, and `verify`, know of them from the beginning.
    network: Network,
    /// Whether nodes were added or removed, and the file does not have them yet.
    is_network_changed: bool,
    folder: PathBuf,
    /// Where the logs of nodes and hosts are.
    log_folder: PathBuf,
    logs: NodeLogs,
    nodes: Vec<Running>,
    hosts: Vec<Remote>,
    /// Hosts are asked whether they are there as long as it exists.
    _asking: Option<Sender<()>>,
    /// Whether the network goes on without a host.
    tolerates_loss: bool,
    /// Whether the journals of other hosts are copied at the end.
    is_recorded: bool,
    /// What happened to hosts, as sentences.
    incidents: Vec<String>,
    sender: Sender<Message>,
    messages: Receiver<Message>,
    restarts: Vec<Restart>,
    /// Slots of nodes that are not restarted before a time, ns on the monotonic clock.
    delayed: Vec<(usize, u64)>,
    /// Whether all nodes are being stopped.
    is_stopping: bool,
    /// Whether it serves until it is ended: then nothing that happens to a node is a reason to end,
    /// and nodes that listen on other hosts are not its own.
    is_serving: bool,
}

impl Supervisor {
    /// Starts all nodes of `network`, each on its host if there are hosts, and waits until every
    /// link is up. `program` is nearmetal, which gets the variables of `environment` on this
    /// machine, and `folder` gets the network's file and the logs.
    ///
    /// # Errors
    /// If a host cannot be used, or a node cannot be started or does not become ready, with its
    /// last message.
    pub fn start(
        network: &Network,
        program: &Path,
        environment: &[(OsString, OsString)],
        folder: &Path,
        placement: &Placement,
    ) -> Result<Supervisor, Failure> {
        let mut supervisor = Supervisor::new(network, program, environment, folder)?;
        supervisor.connect(network, placement)?;
        // From the end of the ring to its start, so that most peers already listen.
        let mut all: Vec<NodeId> = network.all().map(|(id, _)| id).collect();
        all.reverse();
        for node in all {
            supervisor.add(node, placement.of(node))?;
        }
        supervisor.wait_ready(START_LIMIT)?;
        Ok(supervisor)
    }

    /// One without nodes, whose network's file is written.
    fn new(
        network: &Network,
        program: &Path,
        environment: &[(OsString, OsString)],
        folder: &Path,
    ) -> Result<Supervisor, Failure> {
        let log_folder = folder.join("nodes");
        let write_failure = |error: std::io::Error| {
            Failure::new(
                FailureKind::System,
                format!("cannot write into {}: {error}", folder.display()),
            )
        };
        fs::create_dir_all(&log_folder).map_err(write_failure)?;
        let logs = NodeLogs::new(&log_folder, network.logs).map_err(write_failure)?;
        let network_file = folder.join(NETWORK);
        write_network(network, &network_file)?;
        let (sender, messages) = channel();
        Ok(Supervisor {
            program: program.to_path_buf(),
            environment: environment.to_vec(),
            network_file,
            network: network.clone(),
            is_network_changed: false,
            folder: folder.to_path_buf(),
            log_folder,
            logs,
            nodes: vec![],
            hosts: vec![],
            _asking: None,
            tolerates_loss: network.durability != Durability::None,
            is_recorded: network.record,
            incidents: vec![],
            sender,
            messages,
            restarts: vec![],
            delayed: vec![],
            is_stopping: false,
            is_serving: false,
        })
    }

    /// Starts these nodes of `network`, which are on this machine, to serve until they are stopped.
    /// Does not wait for their links.
    ///
    /// # Errors
    /// If `folder` cannot be written to.
    pub fn serve(
        network: &Network,
        program: &Path,
        folder: &Path,
        nodes: &[NodeId],
    ) -> Result<Supervisor, Failure> {
        let mut supervisor = Supervisor::new(network, program, &[], folder)?;
        supervisor.is_serving = true;
        // From the end of the ring to its start, so that most peers already listen.
        for node in nodes.iter().rev() {
            supervisor.add(*node, None)?;
        }
        Ok(supervisor)
    }

    /// Connects with the agents of all hosts.
    fn connect(&mut self, network: &Network, placement: &Placement) -> Result<(), Failure> {
        if placement.hosts().is_empty() {
            return Ok(());
        }
        let files = HostFiles::of(network)
            .map_err(|error| Failure::new(FailureKind::BadRequest, error.to_string()))?;
        let (hosts, data) = (placement.hosts(), placement.data());
        let (sender, message) = (&self.sender, Message::of_host);
        let connected = remote::connect(hosts, data, &files, &self.log_folder, sender, message);
        let unusable =
            |error: HostError| Failure::new(FailureKind::NotAvailable, error.to_string());
        self.hosts = connected.map_err(unusable)?;
        let asking = remote::keep_asking(&self.hosts)
            .map_err(|error| Failure::new(FailureKind::System, error.to_string()))?;
        self._asking = Some(asking);
        Ok(())
    }

    /// Starts a node for the first time.
    fn add(&mut self, id: NodeId, host: Option<usize>) -> Result<(), Failure> {
        let slot = self.nodes.len();
        let program = self.program.clone();
        let runner = match host {
            Some(host) => self.spawn_on(host, slot, 0, id),
            None => self.spawn(&program, (slot, 0), id)?,
        };
        self.nodes.push(Running {
            id,
            program,
            runner,
            host_name: host.map(|host| self.hosts[host].name().to_string()),
            start: 0,
            is_ready: false,
            has_ended: false,
            ends_by_ns: None,
            backoff: Backoff::default(),
            end: None,
        });
        Ok(())
    }

    /// Has the agent of a host start a node.
    fn spawn_on(&self, host: usize, slot: usize, start: u32, node: NodeId) -> Runner {
        self.hosts[host].send(&Request::Start { slot, start, node });
        Runner::Host(host)
    }

    /// Starts one node on this machine, and a thread that reads its output.
    fn spawn(
        &self,
        program: &Path,
        (slot, start): (usize, u32),
        node: NodeId,
    ) -> Result<Runner, Failure> {
        let failure = |what: &str, error: &dyn std::fmt::Display| {
            Failure::new(FailureKind::System, format!("cannot {what} {node}: {error}"))
        };
        let mut command = Command::new(program);
        command.args(["exchange", "node", "--role", node.class.name()]);
        command.args(["--index", &node.index.to_string()]);
        command.arg("--network").arg(&self.network_file);
        command.envs(self.environment.iter().cloned());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = ChildProcess::spawn(command).map_err(|error| failure("start", &error))?;
        let stdin = process.take_stdin();
        let outputs = process.take_stdout().zip(process.take_stderr());
        let (stdout, stderr) = outputs.ok_or_else(|| failure("read from", &"it has no output"))?;
        let (sender, logs) = (self.sender.clone(), self.logs.clone());
        let keep_log = thread::Builder::new().name(format!("log {node}"));
        let keep_log = keep_log
            .spawn(move || logs.keep_all(node, stderr))
            .map_err(|error| failure("keep the log of", &error))?;
        let read_output = move || {
            for line in BoundedLines::new(BufReader::new(stdout)) {
                // A line that is not JSON is not a message.
                let Ok(line) = serde_json::from_str(&line) else { continue };
                if sender.send(Message::Line { slot, start, line: Some(line) }).is_err() {
                    return;
                }
            }
            // Whoever hears of the end can ask what it wrote last.
            let _ = keep_log.join();
            let _ = sender.send(Message::Line { slot, start, line: None });
        };
        thread::Builder::new()
            .name(format!("out {node}"))
            .spawn(read_output)
            .map_err(|error| failure("read from", &error))?;
        Ok(Runner::Process(process, stdin))
    }

    /// Waits until all links are up.
    ///
    /// # Errors
    /// If a node dies before, or after `limit`.
    pub fn wait_ready(&mut self, limit: Duration) -> Result<(), Failure> {
        let deadline = Deadline::after(limit);
        while self.nodes.iter().any(|node| !node.is_ready) {
            self.check_hosts()?;
            if let Some(lost) = self.incidents.first() {
                return Err(Failure::new(FailureKind::Peer, lost.clone()));
            }
            if let Some(dead) = self.nodes.iter().find(|node| node.has_ended) {
                return Err(self.died(dead));
            }
            if deadline.passed() {
                let late: Vec<String> =
                    self.nodes.iter().filter(|node| !node.is_ready).map(Running::name).collect();
                return Err(Failure::new(
                    FailureKind::Peer,
                    format!(
                        "not all links came up within {} s: {}",
                        limit.as_secs(),
                        late.join(", ")
                    ),
                ));
            }
            self.receive_messages(deadline.remaining().min(Duration::from_millis(100)));
        }
        Ok(())
    }

    fn died(&self, node: &Running) -> Failure {
        let name = node.name();
        let message = match self.logs.last_message(node.id) {
            Some(message) => {
                format!("{name} ended before all links were up; it printed: {message}")
            }
            None => format!("{name} ended before all links were up; it printed no message"),
        };
        Failure::new(FailureKind::Peer, message)
    }

    /// Handles the messages of nodes; waits at most `wait` for the first one.
    fn receive_messages(&mut self, wait: Duration) {
        let mut next = self.messages.recv_timeout(wait).ok();
        while let Some(message) = next {
            self.handle_message(message);
            next = self.messages.try_recv().ok();
        }
    }

    fn handle_message(&mut self, message: Message) {
        match message {
            Message::Line { slot, start, line } => self.handle_line(slot, start, line),
            Message::Log { slot, text } => {
                let Some(node) = self.nodes.get(slot) else { return };
                self.logs.keep(node.id, text);
            }
            Message::Dropped { host, count } => {
                let host = self.hosts[host].name();
                let incident = format!("{count} reports of nodes on host {host} were dropped");
                self.incidents.push(incident);
            }
            Message::HostEnded(host) if !self.is_stopping => {
                // Else its silence was noticed before.
                if !self.hosts[host].is_lost() {
                    let why = self.hosts[host].ended();
                    self.lose(host, &why);
                }
            }
            Message::HostEnded(_) => {}
        }
    }

    /// Counts a host as lost: its nodes have ended.
    fn lose(&mut self, host: usize, why: &HostError) {
        self.incidents.push(why.to_string());
        for node in &mut self.nodes {
            if matches!(node.runner, Runner::Host(of) if of == host) {
                node.has_ended = true;
            }
        }
    }

    /// Counts hosts as lost that were silent for too long.
    ///
    /// # Errors
    /// If a host is lost without which the network cannot go on.
    fn check_hosts(&mut self) -> Result<(), Failure> {
        for host in 0..self.hosts.len() {
            if let Some(why) = self.hosts[host].give_up_if_silent(SILENCE_LIMIT) {
                self.lose(host, &why);
            }
        }
        match self.incidents.first() {
            Some(lost) if !self.tolerates_loss => {
                Err(Failure::new(FailureKind::Peer, lost.clone()))
            }
            _ => Ok(()),
        }
    }

    fn handle_line(&mut self, slot: usize, start: u32, line: Option<Value>) {
        let Some(node) = self.nodes.get_mut(slot) else { return };
        if start != node.start {
            return;
        }
        let Some(line) = line else {
            node.has_ended = true;
            return;
        };
        match line["event"].as_str() {
            Some("ready") => {
                let now_ns = monotonic_ns();
                node.is_ready = true;
                node.backoff.ready(now_ns);
                let id = node.id;
                let is_of = |restart: &&mut Restart| restart.node == id;
                if let Some(restart) = self.restarts.iter_mut().rev().find(is_of)
                    && restart.ready_ns.is_none()
                {
                    restart.ready_ns = Some(now_ns);
                }
            }
            Some("added-nodes") => self.learn_added(&line),
            Some("end") => {
                node.end = Some(NodeEnd {
                    node: node.id,
                    requests: line["requests"].as_u64().unwrap_or(0),
                    cpu_us: line["cpu_us"].as_u64().unwrap_or(0),
                    line,
                });
            }
            Some("trouble") if !self.is_stopping => {
                let id = node.id;
                self.logs.keep(id, line["message"].as_str().unwrap_or_default().to_string());
            }
            _ => {}
        }
    }

    /// A node knows which others were added to the network and removed from it: the first one that
    /// knows more counts.
    fn learn_added(&mut self, line: &Value) {
        for role in Role::ALL.iter().copied() {
            let field = line[format!("{role}s")].clone();
            let Ok(added) = serde_json::from_value::<Vec<AddedNode>>(field) else { continue };
            let removed = added.iter().filter(|it| it.is_removed).count();
            let (known, known_removed) = self.network.added_counts(role);
            // None is added or removed without the others that were before.
            if added.len() + removed > known + known_removed {
                self.network.set_added(role, &added);
                self.is_network_changed = true;
            }
        }
    }

    /// The host at whose address a node is to listen; none if it is none of the hosts.
    fn host_of(&self, node: NodeId) -> Option<usize> {
        let Address::Tcp(address) = self.network.node(node)?.address else { return None };
        self.hosts.iter().position(|host| host.address() == address.ip())
    }

    /// Starts the nodes that were added, and expects the end of those that were removed. Those that
    /// listen neither here nor on one of the hosts are started by hand.
    fn follow_added(&mut self) -> Result<(), Failure> {
        if !std::mem::take(&mut self.is_network_changed) {
            return Ok(());
        }
        if let Err(failure) = write_network(&self.network, &self.network_file) {
            self.is_network_changed = true;
            return Err(failure);
        }
        let by_ns = monotonic_ns() + END_LIMIT.as_nanos() as u64;
        let added = Role::ALL.iter().copied().flat_map(|role| {
            let all = self.network.founders_of(role)..self.network.nodes(role).len();
            all.map(move |index| role.node(index as u16))
        });
        for id in added.collect::<Vec<_>>() {
            let host = self.host_of(id);
            let is_own = self.is_own(id, host);
            let known = self.nodes.iter_mut().find(|node| node.id == id);
            match (known, self.network.is_removed(id)) {
                (Some(node), true) if node.ends_by_ns.is_none() => node.ends_by_ns = Some(by_ns),
                (None, false) if is_own => self.add(id, host)?,
                _ => {}
            }
        }
        Ok(())
    }

    /// Whether a node that was added, and may listen on a host, is one of those that run here.
    fn is_own(&self, id: NodeId, host: Option<usize>) -> bool {
        let address = self.network.node(id).map(|node| &node.address);
        match self.is_serving {
            true => address.is_some_and(place::is_here),
            false => self.hosts.is_empty() || host.is_some(),
        }
    }

    /// Whether a node that has ended is not started again: it was removed from the network, or it
    /// was added and does not start, for example because its address is in use.
    fn is_given_up(&self, node: &Running) -> bool {
        let is_added = self.network.was_added(node.id);
        let is_hopeless = is_added && node.start >= RESTARTS_MAX && !self.is_serving;
        self.network.is_removed(node.id) || is_hopeless
    }

    /// Kills a node immediately, as `kill -9` does. [`Supervisor::restart_dead_nodes`] restarts it
    /// after `stays_dead`.
    pub fn kill(&mut self, id: NodeId, stays_dead: Duration) {
        let found = self.nodes.iter().position(|node| node.id == id);
        let Some(slot) = found else { return };
        let at_ns = monotonic_ns();
        let node = &mut self.nodes[slot];
        match &mut node.runner {
            Runner::Process(process, stdin) => {
                process.kill();
                *stdin = None;
            }
            Runner::Host(host) => self.hosts[*host].send(&Request::Kill { slot }),
        }
        node.has_ended = true;
        self.note_restart(id, at_ns, RestartReason::Killed);
        self.delayed.push((slot, at_ns + stays_dead.as_nanos() as u64));
    }

    /// Has a node end as at the end of a run. [`Supervisor::restart_dead_nodes`] starts it again
    /// when it has, on this machine with another program, if one is given; after `END_LIMIT` it is
    /// killed.
    pub fn restart(&mut self, id: NodeId, program: Option<&Path>) {
        let found = self.nodes.iter().position(|node| node.id == id);
        let Some(slot) = found else { return };
        let at_ns = monotonic_ns();
        let node = &mut self.nodes[slot];
        if let Some(program) = program {
            node.program = program.to_path_buf();
        }
        match &mut node.runner {
            Runner::Process(_, stdin) => *stdin = None,
            Runner::Host(host) => self.hosts[*host].send(&Request::End { slot }),
        }
        node.is_ready = false;
        node.ends_by_ns = Some(at_ns + END_LIMIT.as_nanos() as u64);
        self.note_restart(id, at_ns, RestartReason::Maintenance);
        self.delayed.push((slot, at_ns));
    }

    /// Whether all links of a node are up, and it can do its work.
    pub fn is_ready(&self, id: NodeId) -> bool {
        let node = self.nodes.iter().find(|node| node.id == id);
        node.is_some_and(|node| node.is_ready && !node.has_ended)
    }

    /// Kills nodes that should have ended by now.
    fn kill_late_nodes(&mut self) {
        let now_ns = monotonic_ns();
        for (slot, node) in self.nodes.iter_mut().enumerate() {
            if node.ends_by_ns.is_some_and(|by_ns| by_ns <= now_ns) && !node.has_ended {
                match &mut node.runner {
                    Runner::Process(process, _) => process.kill(),
                    Runner::Host(host) => self.hosts[*host].send(&Request::Kill { slot }),
                }
                node.ends_by_ns = None;
            }
        }
    }

    /// Restarts nodes that have died; to be called often, waits `wait` at most.
    ///
    /// # Errors
    /// If a node cannot be restarted, or was restarted too often.
    pub fn restart_dead_nodes(&mut self, wait: Duration) -> Result<(), Failure> {
        self.receive_messages(wait);
        self.check_hosts()?;
        self.follow_added()?;
        self.kill_late_nodes();
        let now_ns = monotonic_ns();
        for slot in 0..self.nodes.len() {
            let is_lost = |host: usize| self.hosts[host].is_lost();
            let node = &self.nodes[slot];
            if !node.has_ended || self.is_given_up(node) {
                continue;
            }
            if matches!(node.runner, Runner::Host(host) if is_lost(host)) {
                continue;
            }
            let id = self.nodes[slot].id;
            let delay = self.delayed.iter().position(|(delayed, _)| *delayed == slot);
            match delay {
                Some(at) if self.delayed[at].1 > now_ns => continue,
                Some(at) => {
                    self.delayed.swap_remove(at);
                }
                None => {
                    let pause = self.nodes[slot].backoff.died(now_ns);
                    self.note_restart(id, now_ns, RestartReason::Unknown);
                    if !pause.is_zero() {
                        self.delayed.push((slot, now_ns + pause.as_nanos() as u64));
                        continue;
                    }
                }
            }
            if self.nodes[slot].start >= RESTARTS_MAX && !self.is_serving {
                return Err(self.died(&self.nodes[slot]));
            }
            match self.start_again(slot) {
                Ok(()) => {}
                Err(failure) if self.is_serving => {
                    self.logs.keep(id, failure.to_string());
                    self.delayed.push((slot, now_ns + backoff::LONGEST.as_nanos() as u64));
                }
                Err(failure) => return Err(failure),
            }
        }
        Ok(())
    }

    /// A service runs without end, and its log has them.
    fn note_restart(&mut self, node: NodeId, at_ns: u64, reason: RestartReason) {
        if !self.is_serving {
            self.restarts.push(Restart { node, at_ns, ready_ns: None, reason });
        }
    }

    /// Starts a node that has ended.
    fn start_again(&mut self, slot: usize) -> Result<(), Failure> {
        let (id, start) = (self.nodes[slot].id, self.nodes[slot].start + 1);
        let runner = match &mut self.nodes[slot].runner {
            Runner::Host(host) => {
                let host = *host;
                self.spawn_on(host, slot, start, id)
            }
            Runner::Process(process, _) => {
                process.kill();
                self.spawn(&self.nodes[slot].program, (slot, start), id)?
            }
        };
        let node = &mut self.nodes[slot];
        (node.runner, node.start) = (runner, start);
        (node.is_ready, node.has_ended, node.end) = (false, false, None);
        node.ends_by_ns = None;
        Ok(())
    }

    /// Of each node: whether it can do its work, and how often it was started again.
    pub fn states(&self) -> impl Iterator<Item = (NodeId, bool, u32)> {
        self.nodes.iter().map(|node| (node.id, node.is_ready && !node.has_ended, node.start))
    }

    /// Keeps other sizes of logs from here on, and opens them anew.
    pub fn reopen_logs(&mut self, limits: LogLimits) {
        self.network.logs = limits;
        self.logs.reopen(limits);
    }

    /// The message that a node printed last.
    pub fn why_ended(&self, node: NodeId) -> Option<String> {
        self.logs.last_message(node)
    }

    /// Stops all nodes in the order of a request, so that what is under way comes to its end:
    /// gateways take no more first, and cells keep for each session what it was not sent.
    pub fn stop_in_order(mut self) -> Stopped {
        self.receive_messages(Duration::ZERO);
        self.is_stopping = true;
        for class in [Role::Gateway, Role::Router] {
            for node in self.nodes.iter_mut().filter(|node| node.id.class == class) {
                if let Runner::Process(_, stdin) = &mut node.runner {
                    *stdin = None;
                }
            }
            let deadline = Deadline::after(END_LIMIT);
            let runs = |node: &Running| node.id.class == class && !node.has_ended;
            while self.nodes.iter().any(runs) && !deadline.passed() {
                self.receive_messages(deadline.remaining().min(Duration::from_millis(100)));
            }
        }
        self.stop()
    }

    /// The network with the nodes that were added to it.
    pub fn network(&self) -> &Network {
        &self.network
    }

    /// Restarts so far.
    pub fn restarts(&self) -> &[Restart] {
        &self.restarts
    }

    /// The process id of each node of this machine.
    pub fn pids(&self) -> Vec<(NodeId, u32)> {
        let pid = |node: &Running| match &node.runner {
            Runner::Process(..) if node.has_ended => None,
            Runner::Process(process, _) => Some((node.id, process.pid())),
            Runner::Host(_) => None,
        };
        self.nodes.iter().filter_map(pid).collect()
    }

    /// Stops all nodes. A node that had to be killed has no final report.
    pub fn stop(mut self) -> Stopped {
        // Problems reported so far are logged; links lost from here on are expected.
        self.receive_messages(Duration::ZERO);
        self.is_stopping = true;
        self.hosts.iter().for_each(|host| host.send(&Request::Stop));
        for node in &mut self.nodes {
            if let Runner::Process(_, stdin) = &mut node.runner {
                *stdin = None;
            }
        }
        let deadline = Deadline::after(END_LIMIT);
        while self.nodes.iter().any(|node| !node.has_ended) && !deadline.passed() {
            self.receive_messages(deadline.remaining().min(Duration::from_millis(100)));
        }
        for node in &mut self.nodes {
            if let Runner::Process(process, _) = &mut node.runner {
                // Its output has ended, so it is about to exit; its journals must be complete.
                if node.has_ended {
                    process.wait_timeout(deadline.remaining());
                }
                process.kill();
            }
        }
        self.leave_hosts();
        self.logs.flush();
        // Fails if a log is in it, which is intended.
        let _ = fs::remove_dir(&self.log_folder);
        let mut ends: Vec<NodeEnd> = self.nodes.drain(..).filter_map(|node| node.end).collect();
        ends.sort_by_key(|end| end.node);
        Stopped { ends, incidents: std::mem::take(&mut self.incidents) }
    }

    /// Copies journals from the hosts if they are to be kept, and has the agents end.
    fn leave_hosts(&mut self) {
        for (number, host) in self.hosts.iter_mut().enumerate() {
            // It was asked to stop, and asked whether it is there.
            let silent = host.give_up_if_silent(END_LIMIT);
            self.incidents.extend(silent.map(|why| why.to_string()));
            let is_there =
                |node: &&Running| matches!(node.runner, Runner::Host(host) if host == number);
            let nodes = self.nodes.iter().filter(is_there);
            let nodes: Vec<String> = nodes.map(|node| node.id.file_name()).collect();
            if self.is_recorded
                && let Err(why) = host.copy_journals(&self.folder.join(DATA), &nodes)
            {
                self.incidents.push(why.to_string());
            }
        }
        self.hosts.iter().for_each(Remote::close);
        self.hosts.clear();
    }
}

/// Writes a network's file: whoever reads it meanwhile has the one before, or this one.
fn write_network(network: &Network, file: &Path) -> Result<(), Failure> {
    let failed = |error: std::io::Error| {
        let message = format!("{} cannot be written: {error}", file.display());
        Failure::new(FailureKind::System, message)
    };
    let text = network
        .to_toml()
        .map_err(|error| Failure::new(FailureKind::BadRequest, error.to_string()))?;
    let new = file.with_extension("new");
    fs::write(&new, text).and_then(|()| fs::rename(&new, file)).map_err(failed)
}
