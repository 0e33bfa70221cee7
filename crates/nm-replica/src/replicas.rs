//! The replication thread of a node: all groups that the node is in, one async runtime, one socket
//! that listens.

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;

use nm_sys::poll::Waker;
use openraft::{Config, ServerState, SnapshotPolicy};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::{Notify, oneshot};
use tokio::time::sleep;

use crate::address::{Address, BoundSocket};
use crate::bootstrap;
use crate::channel::{LogCommand, RaftLog, connect};
use crate::connection::Listener;
use crate::election;
use crate::error::ReplicaError;
use crate::gate::Gate;
use crate::group::{Group, MEMBERS_MAX, Settings, Shared};
use crate::group_replica::{CHECK_INTERVAL, Engine, GroupReplica, Stage};
use crate::log::LogEvent;
use crate::log_store::LogStore;
use crate::network::Peers;
use crate::random;
use crate::state_machine::{SnapshotReceiver, StateMachine};
use crate::types::{Raft, term_of};

/// Entries that are kept behind a snapshot, for replicas that lag a little.
const ENTRIES_KEPT: u64 = 64;

/// Maximum number of entries in one message.
const MESSAGE_ENTRIES_MAX: u64 = 64;

/// The replication of all groups of a node. Ends when it is dropped, as if the node had been
/// killed: what was acknowledged is on disk, or in the memory of the other replicas.
#[derive(Debug)]
pub struct Replicas {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// A replica, whether it has state, and its commands.
pub type Opened = (Arc<GroupReplica>, bool, UnboundedReceiver<LogCommand>);

impl Replicas {
    /// Starts the replicas of these groups, which the others reach at `listen`, and gives the data
    /// loop's end of each, in the same order. The waker is woken by each event.
    ///
    /// # Errors
    /// If the address is in use, or a folder cannot be used or is damaged.
    pub fn start(
        listen: &Address,
        groups: Vec<Group>,
        waker: Waker,
    ) -> Result<(Replicas, Vec<RaftLog>), ReplicaError> {
        let socket = BoundSocket::bind(listen).map_err(|error| ReplicaError::Listen {
            address: listen.clone(),
            source: Arc::new(error),
        })?;
        let (mut replicas, mut logs) = (vec![], vec![]);
        for group in groups {
            let (opened, log) = open(group, waker.clone())?;
            replicas.push(opened);
            logs.push(log);
        }
        let failed = |error: io::Error| ReplicaError::Thread(Arc::new(error));
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::Builder::new()
            .name("replication".to_string())
            .spawn(move || runtime.block_on(serve(socket, replicas, stopped)))
            .map_err(failed)?;
        Ok((Replicas { stop: Some(stop), thread: Some(thread) }, logs))
    }
}

impl Drop for Replicas {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Opens the replica of a group, and the data loop's end of it.
///
/// # Errors
/// As [`Replicas::start`].
pub fn open(group: Group, waker: Waker) -> Result<(Opened, RaftLog), ReplicaError> {
    let count = group.members.len();
    if count > MEMBERS_MAX {
        return Err(ReplicaError::TooManyMembers { group: group.name, count });
    }
    assert!(group.own < count, "a replica is a member of its group");
    let (events, commands, log) =
        connect(group.id, count, group.members[group.own].may_lead, waker);
    let events = Arc::new(events);
    let folder = group.folder.as_deref();
    let (store, is_known) = LogStore::open(folder, count, &group.settings, Arc::clone(&events))?;
    let replica = GroupReplica::new(group, events, store, random::number());
    Ok(((Arc::new(replica), is_known, commands), log))
}

/// Runs replicas until `stopped`.
pub async fn serve(socket: BoundSocket, opened: Vec<Opened>, stopped: oneshot::Receiver<()>) {
    let all: Vec<Arc<GroupReplica>> = opened.iter().map(|(replica, ..)| replica.clone()).collect();
    for (replica, is_known, commands) in opened {
        tokio::spawn(async move {
            if let Err(error) = run(&replica, is_known, commands).await {
                replica.events.send(LogEvent::Stopped(error));
            }
        });
    }
    tokio::select! {
        biased;
        _ = stopped => {}
        Err(error) = accept(socket, &all) => {
            let error = ReplicaError::Accept(Arc::new(error));
            all.iter().for_each(|replica| replica.events.send(LogEvent::Stopped(error.clone())));
        }
    }
}

async fn accept(socket: BoundSocket, replicas: &[Arc<GroupReplica>]) -> io::Result<()> {
    let listener = Listener::new(socket)?;
    let gate = Gate::new();
    loop {
        match listener.accept().await {
            Ok(connection) => gate.admit(connection, replicas.to_vec()),
            // Too many open files, for instance: it may pass.
            Err(_) => sleep(CHECK_INTERVAL).await,
        }
    }
}

/// Runs a replica until it fails.
async fn run(
    replica: &Arc<GroupReplica>,
    is_known: bool,
    commands: UnboundedReceiver<LogCommand>,
) -> Result<(), ReplicaError> {
    if !is_known && let Stage::Empty(start) = replica.stage() {
        let report = |why: &str| replica.report_degraded(why);
        let state = bootstrap::find_hard_state(&replica.group, start, report).await;
        replica.store.save(|none| *none = state).await?;
    }
    let snapshot_due = Arc::new(Notify::new());
    let (engine, snapshots) = start_engine(replica, &snapshot_due).await?;
    replica.activate(Arc::clone(&engine));
    let tasks = [
        tokio::spawn(election::initialize(Arc::clone(replica), Arc::clone(&engine))),
        tokio::spawn(election::campaign(Arc::clone(replica), Arc::clone(&engine))),
        tokio::spawn(election::hand_over(Arc::clone(replica), Arc::clone(&engine))),
        tokio::spawn(trigger_snapshots(Arc::clone(&engine), snapshot_due)),
    ];
    handle_commands(replica, &engine, &snapshots, commands).await;
    tasks.iter().for_each(tokio::task::JoinHandle::abort);
    let state = engine.raft.metrics().borrow().running_state.clone();
    let reason = state.err().map_or_else(|| "it ended".to_string(), |error| error.to_string());
    let group = replica.group.name.clone();
    Err(replica.store.failed().unwrap_or(ReplicaError::Stopped { group, reason }))
}

/// Carries out the commands of the data loop and reports changes of leadership, until openraft has
/// stopped or the disk fails.
async fn handle_commands(
    replica: &Arc<GroupReplica>,
    engine: &Arc<Engine>,
    snapshots: &SnapshotReceiver,
    mut commands: UnboundedReceiver<LogCommand>,
) {
    let mut changes = engine.raft.server_metrics();
    loop {
        tokio::select! {
            biased;
            changed = changes.changed() => {
                let term = {
                    let now = changes.borrow_and_update();
                    let is_leader = changed.is_ok() && now.state == ServerState::Leader;
                    is_leader.then(|| term_of(&now.vote.leader_id))
                };
                replica.events.set_elected(term);
                if changed.is_err() {
                    return;
                }
            }
            () = replica.store.acks().wait_failed() => {
                let _ = engine.raft.shutdown().await;
                return;
            }
            // Without a data loop, the replica goes on for the others.
            Some(command) = commands.recv() => match command {
                // A replica whose batch is refused leads no more, which is an event of its own.
                LogCommand::Propose(batch) => {
                    drop(engine.raft.client_write_ff(Shared(batch.into())).await);
                }
                LogCommand::FinishSnapshot(number, state) => snapshots.finish(number, state),
                LogCommand::HandOver => {
                    let (replica, engine) = (Arc::clone(replica), Arc::clone(engine));
                    drop(tokio::spawn(async move { election::step_down(&replica, &engine).await }));
                }
            },
        }
    }
}

async fn start_engine(
    replica: &GroupReplica,
    snapshot_due: &Arc<Notify>,
) -> Result<(Arc<Engine>, SnapshotReceiver), ReplicaError> {
    let GroupReplica { group, events, store, .. } = replica;
    let failed = |reason: String| ReplicaError::Start { group: group.name.clone(), reason };
    let config = config(replica).validate().map_err(|error| failed(error.to_string()))?;
    let (machine, snapshots) = StateMachine::open(
        group.folder.as_deref(),
        Arc::clone(events),
        group.settings.snapshot_bytes,
        Arc::clone(snapshot_due),
    )?;
    let addresses = group.members.iter().map(|member| member.address.clone()).collect();
    let from = replica.id() as u8;
    let (store_of_peers, clocks) = (store.clone(), Arc::clone(&events.clocks));
    let (group_id, key) = (group.id, group.settings.key);
    let peers = Peers { addresses, from, group: group_id, key, store: store_of_peers, clocks };
    let raft = Raft::new(replica.id(), Arc::new(config), peers, store.clone(), machine)
        .await
        .map_err(|error| failed(error.to_string()))?;
    Ok((Arc::new(Engine::new(raft)), snapshots))
}

fn config(replica: &GroupReplica) -> Config {
    let Settings { heartbeat_ms, election_ms: (short_ms, long_ms), .. } = replica.group.settings;
    // openraft's lease is the longest election timeout; a replica that may not lead never waits
    // for an election.
    let (election_min_ms, election_max_ms) = match replica.may_lead() {
        true => (short_ms, long_ms),
        false => ((short_ms - 1).max(heartbeat_ms + 1), short_ms.max(heartbeat_ms + 2)),
    };
    Config {
        cluster_name: replica.group.name.clone(),
        heartbeat_interval: heartbeat_ms,
        election_timeout_min: election_min_ms,
        election_timeout_max: election_max_ms,
        snapshot_policy: SnapshotPolicy::Never,
        // A replica that lags gets entries as long as there are any.
        replication_lag_threshold: 1 << 40,
        max_in_snapshot_log_to_keep: ENTRIES_KEPT,
        max_payload_entries: MESSAGE_ENTRIES_MAX,
        enable_elect: replica.may_lead() && replica.store.is_caught_up(),
        ..Config::default()
    }
}

async fn trigger_snapshots(engine: Arc<Engine>, due: Arc<Notify>) {
    loop {
        due.notified().await;
        if engine.raft.trigger().snapshot().await.is_err() {
            return;
        }
    }
}
