//! One round of the exchange from start to end. It starts a network, drives load at a rate, kills
//! nodes if the setup lists any, and returns the clients' round trips.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use nm_auth::Secret;
use nm_exchange::firms::{Firm, Firms, FirmsError};
use nm_exchange::master::{Master, MasterError};
use nm_exchange::network::{Durability, Network, NodeId, NodeIdError, Role, UnknownRole};
use nm_load::flow::Flow;
use nm_load::{Arrivals, Gateways, Generator, Pace, Settings, Stall};
use nm_model::exchange::{ClassCpu, ExchangeRound, Fault, LOAD, Moves};
use nm_model::limits::EXCHANGE_STALL_MS_MAX;
use nm_model::link_transport::LinkTransport;
use nm_model::plan::EnvironmentKind;
use nm_model::result::LatencyRound;
use nm_model::{Doubt, DoubtKind, ExchangeSpec, Failure, FailureKind};
use nm_stats::Sample;
use nm_sys::clock::monotonic_ns;
use nm_sys::private_folder::PrivateFolder;
use nm_verify::recording::{DATA, NETWORK, Recording};
use thiserror::Error;

use crate::hosts::{Host, Placement};
use crate::mover::{AimedKill, Mover, Progress};
use crate::place;
use crate::sla::Sla;
use crate::supervise::{NodeEnd, Restart, RestartReason, Stopped, Supervisor};

/// Interval at which the supervisor checks its nodes.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// The firm of the load's sessions, where a network has firms.
const LOAD_FIRM: u32 = u32::MAX;
const LOAD_FIRM_NAME: &str = "the load";

/// How long the load waits for pending replies at the end of a round.
const DRAIN_S: f64 = 3.0;

/// The same where nodes are killed, and on other hosts, which can be cut off: on a machine with
/// other work a node may need many seconds to come back, and a late reply is not a lost one.
pub(crate) const DRAIN_AFTER_KILLS_S: f64 = 30.0;

/// Requests above the limit that are further apart than this have different causes.
pub(crate) const CALM_NS: u64 = 250_000_000;

/// Lateness of the load generator itself, at the 99th percentile, above which a round gets a doubt.
const LATE_NS: f64 = 200_000.0;

/// The client log in a round's folder.
pub(crate) const CLIENT_LOG: &str = "client-0.log";

/// A node to kill, written `mediator:0@2.5`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Kill {
    /// Which.
    pub node: NodeId,
    /// When, s after the start of the measurement.
    pub at_s: f64,
    /// How long it stays dead.
    pub stays_dead: Duration,
}

/// Why a text does not name a node to kill.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum KillError {
    /// It does not have the form of a node and a time.
    #[error("`{0}` is no node and time: write for example mediator:0@2.5")]
    Shape(String),
    /// The class does not exist.
    #[error(transparent)]
    Role(#[from] UnknownRole),
}

impl FromStr for Kill {
    type Err = KillError;

    fn from_str(text: &str) -> Result<Kill, KillError> {
        let shape = || KillError::Shape(text.to_string());
        let (node, at) = text.split_once('@').ok_or_else(shape)?;
        let at_s: f64 = at.parse().map_err(|_| shape())?;
        if !(0.0..=86_400.0).contains(&at_s) {
            return Err(shape());
        }
        let node = node.parse().map_err(|error| match error {
            NodeIdError::Shape => shape(),
            NodeIdError::Role(unknown) => KillError::Role(unknown),
        })?;
        Ok(Kill { node, at_s, stays_dead: Duration::ZERO })
    }
}

/// Setup of a round.
#[derive(Debug, Clone)]
pub struct Setup {
    /// Network and load.
    pub spec: ExchangeSpec,
    /// Transport of the links.
    pub transport: LinkTransport,
    /// Environment variables that load the accelerator into the nodes of this machine; empty
    /// without it. The load generator always uses the kernel's stack.
    pub accelerator: Vec<(OsString, OsString)>,
    /// Seed of the orders and of the schedule.
    pub seed: u64,
    /// Nodes to kill.
    pub kills: Vec<Kill>,
    /// Nodes to kill that take part in moves.
    pub aimed_kills: Vec<AimedKill>,
    /// Whether the files needed for verification are written and kept.
    pub record: bool,
    /// Arrival process of requests.
    pub arrivals: Arrivals,
    /// File to record requests and their times in.
    pub record_flow: Option<PathBuf>,
    /// Recorded requests and times to replay, instead of those of mix, rate and seed.
    pub replay_flow: Option<Arc<Flow>>,
    /// A stall of the load generator, for tests.
    pub stall: Option<Stall>,
    /// Limit for round trips.
    pub sla: Sla,
    /// How many mediators, the last ones, have no instruments at first.
    pub spare_mediators: usize,
    /// What may be traded beside the instruments of the load; anything if there is no master.
    pub master: Option<Arc<Master>>,
    /// Whose sessions may connect beside those of the load; any session if there are no firms.
    pub firms: Option<Arc<Firms>>,
    /// Whether nodes and sessions authenticate by a secret of the round; always with hosts.
    pub authenticate: bool,
    /// Hosts of the nodes; this machine if empty.
    pub hosts: Vec<Host>,
    /// Folder on each of the hosts in which each round has a folder of its own.
    pub host_data: PathBuf,
    /// Path of nearmetal.
    pub program: PathBuf,
    /// Folder for the logs and journals of the round.
    pub folder: PathBuf,
}

impl Setup {
    /// A round of `spec` over TCP on this machine, by the program `program`, in `folder`, without
    /// faults and without a recording.
    pub fn new(spec: ExchangeSpec, program: PathBuf, folder: PathBuf) -> Setup {
        Setup {
            spec,
            transport: LinkTransport::Tcp,
            accelerator: vec![],
            seed: 1,
            kills: vec![],
            aimed_kills: vec![],
            record: false,
            arrivals: Arrivals::default(),
            record_flow: None,
            replay_flow: None,
            stall: None,
            sla: Sla::default(),
            spare_mediators: 0,
            master: None,
            firms: None,
            authenticate: false,
            hosts: vec![],
            host_data: PathBuf::from("/var/tmp/nearmetal-exchange"),
            program,
            folder,
        }
    }

    /// Whether nodes and sessions authenticate: other hosts are reached by networks that may have
    /// strangers.
    pub fn is_authenticated(&self) -> bool {
        self.authenticate || !self.hosts.is_empty()
    }

    /// Whether nodes are killed.
    fn has_kills(&self) -> bool {
        !self.kills.is_empty() || !self.aimed_kills.is_empty()
    }

    /// What may be traded, with the instruments of the load; anything if there is no master.
    ///
    /// # Errors
    /// If the master lists an instrument of the load, or both are too many.
    fn listed(&self) -> Result<Option<Master>, Failure> {
        let Some(master) = &self.master else { return Ok(None) };
        let of_flow = |flow: &Arc<Flow>| flow.instruments();
        let of_settings = || (0..Settings::default().instruments).collect();
        let load: BTreeSet<u32> = self.replay_flow.as_ref().map_or_else(of_settings, of_flow);
        if let Some(one) = master.listings().find(|one| load.contains(&one.instrument)) {
            let message = format!(
                "{} has number {}, which is one of the load: give it another one, such as {}",
                one.symbol,
                one.instrument,
                load.last().map_or(0, |last| last + 1)
            );
            return Err(Failure::new(FailureKind::BadRequest, message));
        }
        let with_load = master.with_unnamed(load.into_iter());
        let bad = |error: MasterError| Failure::new(FailureKind::BadRequest, error.to_string());
        with_load.map(Some).map_err(bad)
    }

    /// Whose sessions may connect, with the firm of the load; any session if there are no firms.
    ///
    /// # Errors
    /// If a firm has a session of the load.
    fn all_firms(&self) -> Result<Option<Firms>, Failure> {
        let Some(firms) = &self.firms else { return Ok(None) };
        let of_flow = |flow: &Arc<Flow>| flow.requests.iter().map(|(_, it)| it.session).max();
        let last = self.replay_flow.as_ref().map_or(Some(Settings::default().sessions), of_flow);
        let sessions = vec![format!("1-{}", last.unwrap_or_default().max(1))];
        let (number, name) = (LOAD_FIRM, LOAD_FIRM_NAME.to_string());
        let load = Firm { number, name, sessions, ..Firm::default() };
        let bad = |error: FirmsError| Failure::new(FailureKind::BadRequest, error.to_string());
        firms.with(load).map(Some).map_err(bad)
    }

    /// Checks that its parts fit together.
    ///
    /// # Errors
    /// What does not fit.
    pub fn check(&self) -> Result<(), Failure> {
        let fail = |message| Err(Failure::new(FailureKind::BadRequest, message));
        if let Err(error) = self.spec.check() {
            return fail(error.to_string());
        }
        let (spares, mediators) = (self.spare_mediators, Role::Mediator.count(self.spec.nodes));
        if spares >= mediators {
            return fail(format!(
                "{spares} mediators cannot be spare: the network has {mediators}, and one must \
                 have instruments"
            ));
        }
        if let Some(Stall { for_ms, .. }) = self.stall
            && !(0.0..=EXCHANGE_STALL_MS_MAX).contains(&for_ms)
        {
            let most = EXCHANGE_STALL_MS_MAX;
            return fail(format!("a stall of {for_ms} ms is not possible: 0 to {most} ms"));
        }
        for kill in &self.kills {
            let Kill { node, at_s, .. } = kill;
            let nodes = self.spec.nodes;
            if node.position() >= node.class.count(nodes) {
                return fail(format!("a network of {nodes} has no {node} to kill"));
            }
            if *at_s >= self.spec.seconds {
                let seconds = self.spec.seconds;
                return fail(format!("{node} cannot be killed at {at_s} s of {seconds} s"));
            }
        }
        let environments = self.transport.environments();
        let is_local =
            !environments.contains(&EnvironmentKind::Ssh) || !self.accelerator.is_empty();
        if is_local && !self.hosts.is_empty() {
            let message = "Unix sockets, shared memory and the accelerator do not reach other \
                           hosts; use --transport tcp";
            return fail(message.to_string());
        }
        self.all_firms()?;
        self.listed().map(drop)
    }
}

/// Result of a round.
#[derive(Debug)]
pub struct Outcome {
    /// Summary of the round trips, with the figures of the exchange.
    pub latency: LatencyRound,
    /// All round trips.
    pub samples: Vec<Sample>,
    /// Doubts about them.
    pub doubts: Vec<Doubt>,
    /// Nodes that died without being killed by the setup, and hosts that were lost, as sentences.
    pub unexpected_restarts: Vec<String>,
}

/// Runs one round in `setup.folder`.
///
/// No process outlives it, even on an error. The folder keeps the recorded files and the logs that
/// are not empty.
///
/// # Errors
/// If the network cannot be started or kept running, or the load generator fails.
pub fn run(setup: &Setup, cancel: &AtomicBool) -> Result<Outcome, Failure> {
    run_with(setup, cancel, |_| ()).map(|(outcome, ())| outcome)
}

/// As [`run`]; before its nodes end, `inspect` is called with their classes, indices and process
/// ids.
///
/// # Errors
/// As [`run`].
pub fn run_with<T>(
    setup: &Setup,
    cancel: &AtomicBool,
    inspect: impl FnOnce(&[(NodeId, u32)]) -> T,
) -> Result<(Outcome, T), Failure> {
    setup.check()?;
    let Started { network, mut supervisor, _sockets } = start(setup)?;
    let credentials = network.credentials().map_err(|error| system(&error))?;

    let log = setup.record.then(|| setup.folder.join(CLIENT_LOG));
    let progress = Progress::default();
    let addresses: Vec<_> =
        network.nodes(Role::Gateway).iter().map(|node| node.address.clone()).collect();
    let (number, known) = (network.cluster, Arc::default());
    let gateways = Gateways { network: number, addresses: &addresses, credentials, known };
    let mover = mover(setup, &network);
    let loaded = thread::scope(|scope| {
        let load = scope.spawn(|| {
            let loaded = drive_load(setup, &gateways, log.as_deref(), &progress);
            progress.is_loaded.store(true, Ordering::Relaxed);
            progress.stop.fetch_or(loaded.is_err(), Ordering::Relaxed);
            loaded
        });
        let moves = mover.as_ref().map(|mover| scope.spawn(|| mover.run(&progress)));
        let is_done =
            || load.is_finished() && moves.as_ref().is_none_or(|moves| moves.is_finished());
        let (kills, mut aimed) = (&setup.kills, AimedKills::new(setup, mover.as_ref()));
        let each = |supervisor: &mut Supervisor, started_ns| {
            aimed.kill_due(supervisor, started_ns);
            gateways.known.update(supervisor.network());
            Ok(())
        };
        let started = &progress.started_ns;
        let supervised = supervise(kills, &mut supervisor, started, cancel, is_done, each);
        progress.stop.fetch_or(supervised.is_err(), Ordering::Relaxed);
        let panicked = |what: &str| Failure::new(FailureKind::System, format!("{what} panicked"));
        let loaded = load.join().unwrap_or_else(|_| Err(panicked("the load generator")));
        let moves = moves.map(|moves| moves.join().map_err(|_| panicked("the mover")));
        // A stopped load fails as well: the error that stopped it takes precedence.
        supervised.and(loaded).and_then(|loaded| Ok((loaded, moves.transpose()?)))
    });
    let inspected = inspect(&supervisor.pids());
    let restarts = supervisor.restarts().to_vec();
    let stopped = supervisor.stop();
    let ((load, load_cpu_us), moves) = loaded?;
    close_folder(setup, &stopped)?;
    let mut outcome = outcome(setup, load, load_cpu_us, moves, &restarts, &stopped.ends);
    outcome.unexpected_restarts.extend(stopped.incidents);
    Ok((outcome, inspected))
}

/// A network whose nodes run, with the folder of its sockets.
pub(crate) struct Started {
    pub network: Network,
    pub supervisor: Supervisor,
    _sockets: PrivateFolder,
}

/// Starts the network of a setup, and waits until all links are up.
pub(crate) fn start(setup: &Setup) -> Result<Started, Failure> {
    let sockets = place::sockets_folder()?;
    let folder = &setup.folder;
    create_folder(folder)?;
    let ExchangeSpec { nodes, durability, .. } = setup.spec;
    let placement = Placement::new(&setup.hosts, nodes, durability, &setup.host_data);
    let network = network(setup, sockets.path(), &placement)?;
    let (program, environment) = (&setup.program, &setup.accelerator);
    let supervisor = Supervisor::start(&network, program, environment, folder, &placement)?;
    Ok(Started { network, supervisor, _sockets: sockets })
}

/// Completes the recording of a run whose nodes have ended, or removes what was not to be kept.
pub(crate) fn close_folder(setup: &Setup, stopped: &Stopped) -> Result<(), Failure> {
    let folder = &setup.folder;
    if !setup.record {
        let _ = fs::remove_dir_all(folder.join(DATA));
        let _ = fs::remove_file(folder.join(NETWORK));
        // Fails if logs are left in it, which is intended.
        let _ = fs::remove_dir(folder);
    } else if stopped.incidents.is_empty() {
        // Without the journals of a host, this folder is not the whole recording.
        Recording::open(folder)?.seal()?;
    }
    Ok(())
}

/// What moves the instruments of the load, if the setup asks for moves.
fn mover<'a>(setup: &Setup, network: &'a Network) -> Option<Mover<'a>> {
    let ExchangeSpec { moves_per_minute, seconds, .. } = setup.spec;
    let of_flow = |flow: &Flow| flow.requests.iter().map(|(_, it)| it.instrument + 1).max();
    let flow = setup.replay_flow.as_deref();
    let instruments = flow.map_or(Some(Settings::default().instruments), of_flow)?;
    let mover = Mover::new(network, instruments, moves_per_minute, seconds, setup.seed);
    (moves_per_minute > 0.0).then_some(mover)
}

/// Whether nodes write journals.
fn writes_journals(setup: &Setup) -> bool {
    setup.record || setup.spec.durability == Durability::DiskQuorum
}

pub(crate) fn system(error: &dyn std::error::Error) -> Failure {
    Failure::new(FailureKind::System, error.to_string())
}

fn create_folder(path: &Path) -> Result<(), Failure> {
    fs::create_dir_all(path).map_err(|error| {
        let message = format!("cannot create the folder {}: {error}", path.display());
        Failure::new(FailureKind::System, message)
    })
}

fn network(setup: &Setup, sockets: &Path, placement: &Placement) -> Result<Network, Failure> {
    let mut network = place::network(setup.spec.nodes, setup.transport, sockets, placement)?;
    network.durability = setup.spec.durability;
    network.record = setup.record;
    network.spare_mediators = setup.spare_mediators;
    network.master = setup.listed()?.map(Arc::new);
    network.firms = setup.all_firms()?.map(Arc::new);
    if setup.is_authenticated() {
        let path = sockets.join("secret");
        Secret::random().and_then(|it| it.create(&path)).map_err(|error| system(&error))?;
        network.secret = Some(path);
    }
    if writes_journals(setup) {
        // Relative to the network's file, so that the folder can be moved; on another host, to its
        // copy in the folder of this round's agent.
        network.data = Some(PathBuf::from(DATA));
    }
    Ok(network)
}

/// Drives the load: a warm-up that does not count, then the measurement, whose start time it stores
/// in `progress`. Returns the round and the CPU time of the load generator, µs.
fn drive_load(
    setup: &Setup,
    gateways: &Gateways<'_>,
    log: Option<&Path>,
    progress: &Progress,
) -> Result<(nm_load::Round, u64), Failure> {
    let settings = Settings {
        seed: setup.seed,
        mix: setup.spec.mix,
        // Timestamps are comparable on one machine only.
        is_stamped: setup.hosts.is_empty(),
        ..Settings::default()
    };
    let flow = setup.replay_flow.as_deref().cloned();
    let mut generator =
        Generator::connect_to(&settings, flow, gateways, log, Duration::from_secs(10))?;
    if let Some(path) = &setup.record_flow {
        generator.record(path)?;
    }
    let has_faults = setup.has_kills() || !setup.hosts.is_empty();
    let drain_s = if has_faults { DRAIN_AFTER_KILLS_S } else { DRAIN_S };
    let pace = |seconds: f64, stall| Pace {
        rate_per_s: setup.spec.rate_per_s,
        arrivals: setup.arrivals,
        seconds,
        drain_s,
        stall,
    };
    let stop = &progress.stop;
    let warmup_s = setup.spec.warmup_ms as f64 / 1e3;
    if warmup_s > 0.0 {
        generator.round(&pace(warmup_s, None), stop)?;
    }
    progress.started_ns.store(monotonic_ns(), Ordering::Release);
    let round = generator.round(&pace(setup.spec.seconds, setup.stall), stop);
    generator.end(Duration::from_secs_f64(drain_s))?;
    let round = round?;
    if let Some(reason) = round.first_refusal {
        let refused = round.refused;
        let message = format!("the exchange refused {refused} requests, the first with {reason}");
        let hint = "let the load ask for less: docs/limits.md lists the limits";
        return Err(Failure::new(FailureKind::Peer, message).hint(hint));
    }
    Ok((round, nm_sys::counters::thread_cpu_ns() / 1_000))
}

/// Restarts dead nodes, kills those of a list at their times, and calls `each` often with the start
/// of the measurement, ns, until the load is done. The start is zero before it.
pub(crate) fn supervise(
    kills: &[Kill],
    supervisor: &mut Supervisor,
    started: &AtomicU64,
    cancel: &AtomicBool,
    is_done: impl Fn() -> bool,
    mut each: impl FnMut(&mut Supervisor, u64) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let mut kills = kills.to_vec();
    kills.sort_by(|a, b| b.at_s.total_cmp(&a.at_s));
    while !is_done() {
        if cancel.load(Ordering::Relaxed) {
            return Err(Failure::new(FailureKind::Cancelled, "cancelled"));
        }
        let mut wait = POLL_INTERVAL;
        let started_ns = started.load(Ordering::Acquire);
        if let Some(next) = kills.last().filter(|_| started_ns > 0) {
            let due_ns = started_ns + (next.at_s * 1e9) as u64;
            let left_ns = due_ns.saturating_sub(monotonic_ns());
            if left_ns == 0 {
                supervisor.kill(next.node, next.stays_dead);
                kills.pop();
                continue;
            }
            wait = wait.min(Duration::from_nanos(left_ns));
        }
        supervisor.restart_dead_nodes(wait)?;
        each(supervisor, started_ns)?;
    }
    Ok(())
}

/// Kills of nodes that take part in moves, at their times.
struct AimedKills<'a> {
    mover: Option<&'a Mover<'a>>,
    /// The next one is the last.
    kills: Vec<AimedKill>,
}

impl<'a> AimedKills<'a> {
    fn new(setup: &Setup, mover: Option<&'a Mover<'a>>) -> AimedKills<'a> {
        let mut kills = setup.aimed_kills.clone();
        kills.sort_by(|a, b| b.at_s.total_cmp(&a.at_s));
        AimedKills { mover, kills }
    }

    fn kill_due(&mut self, supervisor: &mut Supervisor, started_ns: u64) {
        let is_due = |kill: &&AimedKill| {
            started_ns > 0 && monotonic_ns() >= started_ns + (kill.at_s * 1e9) as u64
        };
        if let (Some(next), Some(mover)) = (self.kills.last().filter(is_due), self.mover) {
            if let Some(node) = mover.victim(next) {
                supervisor.kill(node, next.stays_dead);
            }
            self.kills.pop();
        }
    }
}

/// Broadcasts for each answered request, if any was answered. Each comes from all gateways.
fn broadcast_share(setup: &Setup, load: &nm_load::Round) -> Option<f64> {
    let gateways = f64::from(setup.spec.nodes.of_class[0]);
    let answered = load.answered as f64;
    (load.answered > 0).then(|| load.public as f64 / gateways / answered)
}

fn outcome(
    setup: &Setup,
    load: nm_load::Round,
    load_cpu_us: u64,
    moves: Option<Moves>,
    restarts: &[Restart],
    ends: &[NodeEnd],
) -> Outcome {
    let faults = restarts
        .iter()
        .filter(|restart| restart.reason == RestartReason::Killed)
        .map(|restart| fault(setup, &load, restart))
        .collect();
    let lateness_p99_ns = load.lateness.value(nm_model::Metric::Percentile(99.0));
    let lateness_es10_ns = load.lateness.value(nm_model::Metric::Es10);
    let broadcast_share = broadcast_share(setup, &load);
    let mut latency = load.latency;
    let unfinished = moves.as_ref().map_or(0, |moves| moves.due - moves.done - moves.refused);
    let due = moves.as_ref().map_or(0, |moves| moves.due);
    latency.exchange = Some(Box::new(ExchangeRound {
        offered_per_s: load.offered_per_s,
        lateness_p99_ns,
        lateness_es10_ns,
        stream_hash: Some(format!("{:016x}", load.stream_hash)),
        resent: load.resent,
        broadcast_share,
        cpu: cpu_per_class(setup, ends, load_cpu_us),
        hops: load.hops,
        faults,
        moves,
    }));
    let mut doubts = vec![];
    if unfinished > 0 {
        let detail = format!("{unfinished} of {due} moves of instruments had not ended with it");
        doubts.push(Doubt::new(DoubtKind::Behind, detail));
    }
    if let Some(late_ns) = lateness_p99_ns.filter(|ns| *ns > LATE_NS) {
        let detail = format!("the load generator was {:.0} us late at p99", late_ns / 1e3);
        doubts.push(Doubt::new(DoubtKind::Behind, detail));
    }
    if latency.lost > 0 {
        let detail = format!("{} requests were not answered", latency.lost);
        doubts.push(Doubt::new(DoubtKind::Loss, detail));
    }
    let unexpected_restarts = restarts
        .iter()
        .filter(|restart| restart.reason == RestartReason::Unknown)
        .map(|r| format!("{} ended by itself and was restarted", r.node));
    Outcome {
        latency,
        samples: load.samples,
        doubts,
        unexpected_restarts: unexpected_restarts.collect(),
    }
}

fn fault(setup: &Setup, load: &nm_load::Round, restart: &Restart) -> Fault {
    let at_ns = restart.at_ns.saturating_sub(load.start_ns);
    let (back_ns, worst_ns) = setup.sla.recovery_after(&load.samples, at_ns, CALM_NS);
    Fault {
        node: restart.node.to_string(),
        at_s: at_ns as f64 / 1e9,
        back_ms: Some(back_ns as f64 / 1e6),
        worst_ms: Some(worst_ns as f64 / 1e6),
    }
}

/// CPU time per transaction, by class, of classes whose nodes all reported it, and of the load.
fn cpu_per_class(setup: &Setup, ends: &[NodeEnd], load_cpu_us: u64) -> Vec<ClassCpu> {
    let counts = setup.spec.nodes;
    let requests: u64 = of(ends, Role::Gateway).map(|end| end.requests).sum();
    if requests == 0 || setup.has_kills() {
        return vec![];
    }
    let has_all_reports = |role: &Role| of(ends, *role).count() == role.count(counts);
    let class_cpu = |class: String, nodes, cpu_us: u64| {
        let cpu_us_per_txn = cpu_us as f64 / requests as f64;
        ClassCpu { class, nodes, cpu_us_per_txn }
    };
    let class = |role: Role| {
        let cpu_us = of(ends, role).map(|end| end.cpu_us).sum();
        class_cpu(role.to_string(), role.count(counts) as u32, cpu_us)
    };
    let load = class_cpu(LOAD.to_string(), 1, load_cpu_us);
    Role::ALL.iter().copied().filter(has_all_reports).map(class).chain([load]).collect()
}

fn of(ends: &[NodeEnd], role: Role) -> impl Iterator<Item = &NodeEnd> {
    ends.iter().filter(move |end| end.node.class == role)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn setup() -> Setup {
        Setup::new(ExchangeSpec::default(), "/bin/false".into(), "/discarded".into())
    }

    #[test]
    fn kills_are_parsed_and_invalid_ones_refused() {
        let kill: Kill = "mediator:1@2.5".parse().unwrap();
        assert_eq!((kill.node, kill.at_s), (Role::Mediator.node(1), 2.5));
        for bad in ["", "mediator", "mediator:1", "mediator:x@1", "moderator:1@1", "router:0@-1"] {
            assert!(bad.parse::<Kill>().is_err(), "{bad}");
        }
    }

    #[test]
    fn setups_whose_parts_do_not_fit_are_refused() {
        assert!(setup().check().is_ok());
        let refused = |setup: Setup, why: &str| {
            let failure = setup.check().unwrap_err();
            assert_eq!(failure.kind, FailureKind::BadRequest);
            assert!(failure.message.contains(why), "{failure}");
        };
        let kill = |text: &str| Setup { kills: vec![text.parse().unwrap()], ..setup() };
        let listed = |number: u32| {
            let text = format!(
                "[[instrument]]\nnumber = {number}\nsymbol = \"ACME\"\ntick = \"1\"\nlot = \"1\"\n"
            );
            let folder = tempfile::tempdir().unwrap();
            let file = folder.path().join("instruments.toml");
            fs::write(&file, text).unwrap();
            Setup { master: Some(Arc::new(Master::read(&file).unwrap())), ..setup() }
        };
        assert!(listed(64).check().is_ok());
        let firms = |session: u32| {
            let (name, sessions) = ("A".to_string(), vec![session.to_string()]);
            let firms =
                Firms::of(vec![Firm { number: 7, name, sessions, ..Firm::default() }]).unwrap();
            Setup { firms: Some(Arc::new(firms)), ..setup() }
        };
        assert!(firms(257).check().is_ok());
        refused(firms(256), "session 256 belongs to both A and the load");
        refused(listed(63), "ACME has number 63, which is one of the load");
        refused(kill("router:2@1"), "a network of 2-2-2-2 has no router 2");
        refused(kill("router:1@5"), "cannot be killed at 5 s of 5 s");
        let hosts = crate::hosts::parse("a 192.0.2.1").unwrap();
        let preload = ("LD_PRELOAD".into(), "/x.so".into());
        let accelerated = Setup { hosts: hosts.clone(), accelerator: vec![preload], ..setup() };
        refused(accelerated, "do not reach other hosts");
        for transport in [LinkTransport::Unix, LinkTransport::Shm, LinkTransport::Accel] {
            let far = Setup { hosts: hosts.clone(), transport, ..setup() };
            refused(far, "do not reach other hosts");
        }
        let spec = ExchangeSpec { rate_per_s: 0.5, ..ExchangeSpec::default() };
        refused(Setup { spec, ..setup() }, "rate_per_s is 0.5");
    }

    #[test]
    fn a_node_that_exits_at_start_fails_the_round() {
        let folder = place::sockets_folder().unwrap();
        let setup = Setup { folder: folder.path().join("round-1"), ..setup() };
        let failure = run(&setup, &AtomicBool::new(false)).unwrap_err();
        let expected = "ended before all links were up; it printed no message";
        assert!(failure.message.contains(expected), "{failure}");
    }

    #[test]
    fn cpu_time_is_reported_for_complete_classes_only() {
        let end = |role: Role, index, cpu_us| NodeEnd {
            node: role.node(index),
            requests: 50,
            cpu_us,
            line: serde_json::Value::Null,
        };
        let ends =
            [end(Role::Gateway, 0, 100), end(Role::Gateway, 1, 300), end(Role::Router, 0, 100)];
        let reported = cpu_per_class(&setup(), &ends, 50);
        let reported: Vec<_> =
            reported.iter().map(|c| (c.class.as_str(), c.cpu_us_per_txn)).collect();
        assert_eq!(reported, [("gateway", 4.0), ("load", 0.5)]);
    }
}
