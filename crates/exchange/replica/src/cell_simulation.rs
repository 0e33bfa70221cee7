//! A group of three replicas on four nodes of a simulated network, with simulated disks and in
//! simulated time. Faults come by a seed, and now and then one replica replaces another. Whatever
//! happens: replicas deliver the same batches in one order, each once, and nothing that was
//! delivered is lost.
//!
//! What depends on the seed only: delays, faults, elections, salts, and so on, which is every
//! random number of this crate and of openraft. Tokio has random numbers of its own. They decide
//! the order in which several tasks that wait for one value are woken, and the branch of a
//! `select!` if two are ready. They change the order of events within a millisecond, and with it
//! what follows. They depend on the seed as well if tokio is built with `RUSTFLAGS="--cfg
//! tokio_unstable"`, as `cargo xtask ci` does; then a trial is repeated exactly by its number.
//!
//! `NM_TRIALS` changes the number of trials, `NM_TRIAL` repeats one of them and shows its events.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use nm_codec::Random;
use nm_sys::poll::Waker;
use tokio::runtime::Runtime;
use tokio::sync::oneshot;

use crate::address::Address;
use crate::channel::RaftLog;
use crate::content_format::ContentFormat;
use crate::env::Env;
use crate::group::{Group, Member, Settings};
use crate::journal;
use crate::lifecycle;
use crate::log::{Log, LogEvent};
use crate::open_replicas::{Joined, OpenReplicas};
use crate::replicas;
use crate::simulated_disk::{Disk, Faults, Lie};
use crate::simulated_machine::SimulatedMachine;
use crate::simulated_network::Network;

const NODES: usize = 4;

/// How many of them have a replica at first.
const VOTERS: usize = 3;

/// The one that may not lead.
const FOLLOWER: usize = 2;

/// Time with faults, and time in which the group must work again after the last of them, ms.
const FAULTS_MS: u64 = 1_500;
const RECOVERY_MS: u64 = 30_000;

/// Longest time that a fault lasts, ms.
const FAULT_MS_MAX: u64 = 300;

const TICK: Duration = Duration::from_millis(1);

thread_local! {
    static PANICS: Cell<u32> = const { Cell::new(0) };
}

/// A machine with a replica.
struct Node {
    env: Env,
    runtime: Option<Runtime>,
    stop: Option<oneshot::Sender<()>>,
    log: Option<RaftLog>,
    /// Where the log of a replica comes from that joins.
    joined: Option<Receiver<Joined>>,
    /// Whether it has the files of a replica.
    has_files: bool,
    disk: Disk,
    applied: Vec<u64>,
    /// When it starts, if it is down.
    starts_ms: u64,
    /// Until when it stands still, and for how long it has.
    stands_until_ms: u64,
    stood_ms: u64,
    /// Until when its disk has faults.
    faulty_until_ms: u64,
    /// Why it does not start.
    refused: Option<String>,
}

struct Simulation {
    seed: u64,
    network: Network,
    random: Random,
    waker: Waker,
    nodes: Vec<Node>,
    now_ms: u64,
    heals_ms: u64,
    proposed: u64,
    acknowledged: Vec<u64>,
    /// The nodes that have the group's replicas.
    voters: Vec<usize>,
    /// Whether a file was damaged, or a disk lied: that happens to one disk, once.
    has_rotted: bool,
    faults: BTreeMap<&'static str, u64>,
    /// Depends on everything that happened.
    trace: u64,
    is_shown: bool,
}

fn folder() -> PathBuf {
    PathBuf::from("/replica")
}

fn address(node: usize) -> Address {
    Address::Unix(format!("/node-{node}").into())
}

fn settings(seed: u64) -> Settings {
    Settings {
        heartbeat_ms: 10,
        election_ms: (30, 60),
        notifies_at_once: seed.is_multiple_of(2),
        snapshot_bytes: 4 << 10,
        // Without a window in which a lie of a disk is not noticed.
        watermark_ms: if (seed / 2).is_multiple_of(2) { 500 } else { 0 },
        journal: journal::Settings { file_bytes: 4 << 10 },
        keep_all: false,
        cluster: 7,
        key: None,
        content: ContentFormat::default(),
    }
}

impl Simulation {
    fn new(seed: u64, is_shown: bool) -> Simulation {
        let network = Network::new(seed ^ 0xbeef);
        PANICS.set(0);
        let machine = |number: usize| {
            let own_seed = seed * NODES as u64 + number as u64;
            let disk = Disk::new(own_seed, Faults::default());
            let place = (network.clone(), number);
            (SimulatedMachine::new(own_seed ^ 0xfeed, disk.clone(), place), disk)
        };
        let node = |(number, (env, disk)): (usize, (Arc<SimulatedMachine>, Disk))| Node {
            env,
            runtime: None,
            stop: None,
            log: None,
            joined: None,
            has_files: number < VOTERS,
            disk,
            applied: vec![],
            starts_ms: 0,
            stands_until_ms: 0,
            stood_ms: 0,
            faulty_until_ms: 0,
            refused: None,
        };
        let mut random = Random::new(seed);
        network.set_delay(1 + random.below(4));
        Simulation {
            seed,
            random,
            waker: Waker::new().unwrap(),
            nodes: (0..NODES).map(machine).enumerate().map(node).collect(),
            network,
            now_ms: 0,
            heals_ms: 0,
            proposed: 0,
            acknowledged: vec![],
            voters: (0..VOTERS).collect(),
            has_rotted: false,
            faults: BTreeMap::new(),
            trace: 0,
            is_shown,
        }
    }

    fn note(&mut self, node: usize, what: &dyn std::fmt::Debug) {
        let text = format!("{} ms, {node}: {what:?}", self.now_ms);
        if self.is_shown {
            println!("{text}");
        }
        let sum = nm_codec::crc32c_append(self.trace as u32, text.as_bytes());
        self.trace = u64::from(sum);
    }

    fn start(&mut self, node: usize) {
        let member = |own: usize| Member { address: address(own), may_lead: own != FOLLOWER };
        let group = Group {
            id: 1,
            name: "group-1".to_string(),
            members: (0..NODES).map(member).collect(),
            voters: VOTERS,
            own: node,
            folder: Some(folder()),
            settings: settings(self.seed),
        };
        let mut builder = tokio::runtime::Builder::new_current_thread();
        #[cfg(tokio_unstable)]
        builder.rng_seed(tokio::runtime::RngSeed::from_bytes(&self.random.number().to_le_bytes()));
        let runtime = builder.enable_time().start_paused(true).build().unwrap();
        let (hosted, others) = match self.nodes[node].has_files {
            true => (Some(group), vec![]),
            false => (None, vec![group]),
        };
        let env = self.nodes[node].env.clone();
        let open = |group| lifecycle::open(&env, group, false, self.waker.clone());
        let (opened, listener) = {
            let _in_runtime = runtime.enter();
            (hosted.map(open).transpose(), env.listen(&address(node)).unwrap())
        };
        let this = &mut self.nodes[node];
        this.applied.clear();
        match opened {
            Ok(opened) => {
                let (stop, stopped) = oneshot::channel();
                let (opened, log) = opened.unzip();
                let (sender, joined) = channel();
                let open = Arc::new(OpenReplicas::new(
                    env,
                    others,
                    (7, None, ContentFormat::default().digest()),
                    sender,
                    self.waker.clone(),
                ));
                let opened = opened.into_iter().collect();
                runtime.spawn(replicas::serve(listener, opened, open, stopped));
                (this.stop, this.log, this.refused) = (Some(stop), log, None);
                (this.runtime, this.joined) = (Some(runtime), Some(joined));
                self.note(node, &"starts");
            }
            Err(error) => {
                this.refused = Some(error.to_string());
                this.starts_ms = self.now_ms + 50;
                drop(runtime);
                self.note(node, &("cannot start", error.to_string()));
                self.lose_power_if_off(node);
            }
        }
    }

    /// Ends a process at once, and starts it again later.
    fn kill(&mut self, node: usize, pause_ms: u64) {
        let disk = self.nodes[node].disk.clone();
        disk.switch(false);
        let this = &mut self.nodes[node];
        (this.log, this.stop) = (None, None);
        drop(this.runtime.take());
        this.starts_ms = self.now_ms + 1 + pause_ms;
        disk.switch(true);
        self.note(node, &"is killed");
    }

    fn lose_power(&mut self, node: usize, pause_ms: u64) {
        let is_silent = self.random.chance(500);
        self.network.set_silent(node, is_silent);
        self.kill(node, pause_ms);
        self.network.set_silent(node, false);
        self.nodes[node].disk.lose_power();
    }

    fn lose_power_if_off(&mut self, node: usize) {
        if self.nodes[node].disk.is_off() {
            let pause_ms = self.random.below(FAULT_MS_MAX);
            self.count("power lost in a write");
            self.lose_power(node, pause_ms);
        }
    }

    fn count(&mut self, fault: &'static str) {
        self.note(NODES, &fault);
        *self.faults.entry(fault).or_default() += 1;
    }

    /// A bit of a file changes while its machine is down. Not in what was synced last, as long as
    /// it may be taken for a torn write.
    fn rot(&mut self, node: usize) {
        let env = &self.nodes[node].env;
        let is_covered = journal::testing::is_covered(env, &folder());
        let newest = journal::testing::paths(env, &folder()).pop();
        let rotten = self.nodes[node].disk.rot(|path: &Path| {
            path.extension().is_none_or(|end| end != "tmp")
                && (is_covered || Some(path) != newest.as_deref())
        });
        if let Some(path) = rotten {
            self.has_rotted = true;
            self.count("bit rot");
            self.note(node, &path);
        }
    }

    fn inject(&mut self) {
        let node = self.random.below(NODES as u64) as usize;
        let other = (node + 1 + self.random.below(NODES as u64 - 1) as usize) % NODES;
        let last_ms = self.random.below(FAULT_MS_MAX);
        let until_ms = self.now_ms + last_ms;
        match self.random.below(15) {
            0 | 1 => {
                self.count("kill");
                self.kill(node, last_ms);
            }
            2 => {
                self.count("power loss of one");
                self.lose_power(node, last_ms);
            }
            3 => {
                self.count("power loss of all");
                for node in 0..NODES {
                    let pause_ms = self.random.below(FAULT_MS_MAX);
                    self.lose_power(node, pause_ms);
                }
            }
            4 => {
                self.count("link cut in one direction");
                self.network.set_cut(node, other, true);
                self.heals_ms = until_ms;
            }
            5 => {
                self.count("partition");
                for other in 0..NODES {
                    self.network.set_cut(node, other, true);
                    self.network.set_cut(other, node, true);
                }
                self.heals_ms = until_ms;
            }
            6 => {
                self.count("connections reset");
                self.network.reset(node);
            }
            7 => {
                self.count("clock jump");
                self.nodes[node].stands_until_ms = until_ms;
            }
            8 | 9 => {
                self.count("failing disk");
                let faults = Faults { write: 50, sync: 300, ..Faults::default() };
                self.nodes[node].disk.set_faults(faults);
                self.nodes[node].faulty_until_ms = until_ms;
            }
            10 => {
                let operations = self.random.below(30);
                self.nodes[node].disk.fail_after(operations);
            }
            12 | 13 => self.replace(),
            _ if self.has_rotted => {}
            14 if settings(self.seed).watermark_ms == 0 => {
                self.has_rotted = true;
                self.count("lying disk");
                let lie = [Lie::Lost, Lie::Torn, Lie::Misdirected][self.random.below(3) as usize];
                let writes = self.random.below(20);
                self.nodes[node].disk.lie_after(lie, writes);
            }
            _ => {
                self.lose_power(node, last_ms);
                self.rot(node);
            }
        }
    }

    /// Asks a leader to replace one replica by another.
    fn replace(&mut self) {
        let from = self.voters[self.random.below(self.voters.len() as u64) as usize];
        let to = (0..NODES).find(|node| !self.voters.contains(node));
        let leads = |node: &&mut Node| node.log.as_ref().is_some_and(|it| it.can_propose());
        if let (Some(to), Some(node)) = (to, self.nodes.iter_mut().find(leads))
            && let Some(log) = &mut node.log
        {
            log.replace(from, to);
            self.count("replacement asked for");
        }
    }

    /// A millisecond passes.
    fn tick(&mut self, may_inject: bool) {
        self.now_ms += 1;
        self.network.advance();
        if self.now_ms == self.heals_ms {
            self.network.heal();
        }
        if may_inject && self.random.chance(6) {
            self.inject();
        }
        for node in 0..NODES {
            let this = &mut self.nodes[node];
            if this.faulty_until_ms == self.now_ms {
                this.disk.set_faults(Faults::default());
            }
            if this.runtime.is_none() && this.starts_ms <= self.now_ms {
                self.start(node);
            }
            self.run(node);
            self.take_events(node);
            self.lose_power_if_off(node);
        }
        assert_eq!(PANICS.get(), 0, "seed {}: a task panicked", self.seed);
    }

    fn run(&mut self, node: usize) {
        let this = &mut self.nodes[node];
        let Some(runtime) = &this.runtime else { return };
        if this.stands_until_ms > self.now_ms {
            this.stood_ms += 1;
            return;
        }
        // All timers of that time expire at once.
        let jump = TICK * std::mem::take(&mut this.stood_ms) as u32;
        runtime.block_on(async {
            if !jump.is_zero() {
                tokio::time::advance(jump).await;
            }
            tokio::time::sleep(TICK).await;
        });
    }

    fn take_events(&mut self, node: usize) {
        let this = &mut self.nodes[node];
        if let Some(log) = this.joined.as_ref().and_then(|joined| joined.try_recv().ok()?.ok()) {
            this.applied.clear();
            (this.log, this.has_files) = (Some(log), true);
        }
        let (mut stopped, mut is_removed) = (None, false);
        while let Some(event) = self.nodes[node].log.as_mut().and_then(Log::next_event) {
            match event {
                LogEvent::Committed { batch, .. } => {
                    let id = u64::from_le_bytes(*batch.first_chunk().unwrap());
                    self.deliver(node, id);
                }
                LogEvent::TakeSnapshot { number } => {
                    let this = &mut self.nodes[node];
                    let ids = this.applied.iter().flat_map(|id| id.to_le_bytes()).collect();
                    if let Some(log) = &mut this.log {
                        log.finish_snapshot(number, ids);
                    }
                }
                LogEvent::LoadSnapshot { state, .. } => {
                    let ids = state.chunks(8).map(|id| u64::from_le_bytes(id.try_into().unwrap()));
                    let ids: Vec<u64> = ids.collect();
                    assert!(self.acknowledged.starts_with(&ids), "seed {}: a snapshot", self.seed);
                    self.note(node, &("loads", ids.len()));
                    self.nodes[node].applied = ids;
                }
                LogEvent::LeadershipGained { term } => self.note(node, &("leads", term)),
                LogEvent::LeadershipLost => self.note(node, &"leads no more"),
                LogEvent::Degraded(why)
                | LogEvent::HandOverFailed(why)
                | LogEvent::ReplaceFailed(why)
                | LogEvent::Warning(why) => self.note(node, &why),
                LogEvent::Voters(voters) => self.set_voters(node, voters),
                LogEvent::Removed => is_removed = true,
                LogEvent::CaughtUp => self.note(node, &"is caught up"),
                LogEvent::Stopped(error) => stopped = Some(error.to_string()),
            }
        }
        if is_removed {
            self.count("replica removed");
            self.nodes[node].log = None;
        }
        if let Some(error) = stopped {
            self.note(node, &("stops", error));
            let pause_ms = self.random.below(100);
            self.kill(node, pause_ms);
        }
        let proposes = self.random.chance(300);
        let Some(log) = self.nodes[node].log.as_mut().filter(|log| proposes && log.can_propose())
        else {
            return;
        };
        self.proposed += 1;
        let mut batch = self.proposed.to_le_bytes().to_vec();
        batch.resize(8 + self.random.below(200) as usize, 1);
        log.propose(batch).unwrap();
    }

    /// A node learns who the voters are; a node that is behind learns it later than others.
    fn set_voters(&mut self, node: usize, voters: Vec<usize>) {
        self.note(node, &("voters", &voters));
        let applied = |node: &Node| node.applied.len();
        let is_newest = self.nodes.iter().all(|it| applied(it) <= applied(&self.nodes[node]));
        if is_newest && self.voters != voters {
            self.voters = voters;
            self.count("replica replaced");
        }
    }

    fn deliver(&mut self, node: usize, id: u64) {
        self.note(node, &("delivers", id));
        let (seed, place) = (self.seed, self.nodes[node].applied.len());
        self.nodes[node].applied.push(id);
        if place == self.acknowledged.len() {
            assert!(!self.acknowledged.contains(&id), "seed {seed}: batch {id} comes twice");
            self.acknowledged.push(id);
        }
        let known = self.acknowledged[place];
        assert_eq!(known, id, "seed {seed}: node {node} delivers another batch at {place}");
    }

    /// Everything works again, and everybody gets everything.
    fn recover(&mut self) {
        self.network.heal();
        self.heals_ms = 0;
        for node in &mut self.nodes {
            node.disk.set_faults(Faults::default());
            node.disk.cancel_failure();
            node.stands_until_ms = 0;
        }
        let (goal, until_ms) = (self.acknowledged.len() + 3, self.now_ms + RECOVERY_MS);
        loop {
            self.tick(false);
            let is_done = |node: &usize| {
                let node = &self.nodes[*node];
                node.refused.is_some() || node.applied.len() == self.acknowledged.len()
            };
            if self.acknowledged.len() >= goal && self.voters.iter().all(is_done) {
                return;
            }
            let lengths: Vec<usize> = self.nodes.iter().map(|node| node.applied.len()).collect();
            assert!(
                self.now_ms < until_ms,
                "seed {}: {lengths:?} of {} are delivered, and no more: {:?}",
                self.seed,
                self.acknowledged.len(),
                self.faults
            );
        }
    }

    fn end(mut self) -> Outcome {
        for node in 0..NODES {
            self.kill(node, 0);
            let refused = self.nodes[node].refused.is_some();
            if refused {
                *self.faults.entry("refused to start").or_default() += 1;
            }
        }
        self.network.end();
        Outcome { delivered: self.acknowledged.len(), faults: self.faults, trace: self.trace }
    }
}

/// What happened in a trial.
#[derive(Debug, PartialEq, Eq)]
struct Outcome {
    delivered: usize,
    faults: BTreeMap<&'static str, u64>,
    trace: u64,
}

fn trial(seed: u64, is_shown: bool) -> Outcome {
    let mut simulation = Simulation::new(seed, is_shown);
    // A group of which several replicas lose their state before it works waits to be made again.
    while simulation.acknowledged.is_empty() {
        simulation.tick(false);
        assert!(simulation.now_ms < RECOVERY_MS, "seed {seed}: the group does not begin");
    }
    for _ in 0..FAULTS_MS {
        simulation.tick(true);
    }
    simulation.recover();
    simulation.end()
}

/// Panics of tasks are caught by the runtime: they are counted.
fn count_panics() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            PANICS.set(PANICS.get() + 1);
            before(info);
        }));
    });
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

#[test]
fn no_fault_loses_doubles_or_reorders_a_batch() {
    count_panics();
    if let Some(seed) = number("NM_TRIAL") {
        println!("{:?}", trial(seed, true));
        return;
    }
    let trials = number("NM_TRIALS").unwrap_or(40);
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get) as u64;
    let share = |thread: u64| -> Vec<Outcome> {
        (thread..trials).step_by(threads as usize).map(|seed| trial(seed, false)).collect()
    };
    let outcomes: Vec<Outcome> = std::thread::scope(|scope| {
        let running: Vec<_> =
            (0..threads).map(|thread| scope.spawn(move || share(thread))).collect();
        running.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    let mut faults = BTreeMap::new();
    for (kind, count) in outcomes.iter().flat_map(|outcome| &outcome.faults) {
        *faults.entry(*kind).or_insert(0) += count;
    }
    let delivered: usize = outcomes.iter().map(|outcome| outcome.delivered).sum();
    println!(
        "{trials} trials, {delivered} batches, none lost, doubled or out of order; {faults:?}"
    );
}

/// As exactly as tokio allows: see above.
#[test]
fn a_seed_repeats_its_trial() {
    count_panics();
    for seed in 0..5 {
        let (first, again) = (trial(seed, false), trial(seed, false));
        if cfg!(tokio_unstable) {
            assert_eq!(first, again, "seed {seed}");
        }
    }
}
