//! One replica, from its opening to its end.

use std::sync::Arc;
use std::time::Duration;

use nm_sys::poll::Waker;
use openraft::{Config, ServerState, SnapshotPolicy};
use tokio::sync::Notify;
use tokio::sync::mpsc::UnboundedReceiver;

use crate::bootstrap;
use crate::channel::{LogCommand, RaftLog, connect};
use crate::election;
use crate::env::Env;
use crate::error::ReplicaError;
use crate::group::{Group, MEMBERS_MAX, Settings, Shared};
use crate::group_replica::{Engine, GroupReplica, Stage};
use crate::log_store::LogStore;
use crate::membership;
use crate::network::Peers;
use crate::runtime;
use crate::state_machine::{SnapshotReceiver, StateMachine};
use crate::types::{Raft, term_of};

/// Entries that are kept behind a snapshot, for replicas that lag a little.
const ENTRIES_KEPT: u64 = 64;

/// Maximum number of entries in one message.
const MESSAGE_ENTRIES_MAX: u64 = 64;

/// A replica, whether it has state, and its commands.
pub type Opened = (Arc<GroupReplica>, bool, UnboundedReceiver<LogCommand>);

/// Opens the replica of a group, and the data loop's end of it. `joins`: because a leader asks for
/// it.
///
/// # Errors
/// If the group is too large, or its folder cannot be used or is damaged.
pub fn open(
    env: &Env,
    group: Group,
    joins: bool,
    waker: Waker,
) -> Result<(Opened, RaftLog), ReplicaError> {
    let (count, voters) = (group.members.len(), group.voters);
    if count > MEMBERS_MAX {
        return Err(ReplicaError::TooManyMembers { group: group.name, count });
    }
    assert!(group.own < count && voters <= count, "a replica is a member of its group");
    let (events, commands, log) =
        connect(group.id, (group.own, count), group.members[group.own].may_lead, waker);
    let events = Arc::new(events);
    let folder = group.folder.as_deref();
    let events_of_disk = Arc::clone(&events);
    let (store, is_known) = LogStore::open(env, folder, voters, &group.settings, events_of_disk)?;
    let replica = GroupReplica::new(env.clone(), group, events, (store, joins));
    Ok(((Arc::new(replica), is_known, commands), log))
}

/// Runs a replica until it is outside of its group, or closed.
///
/// # Errors
/// If it fails before.
pub async fn run((replica, is_known, commands): Opened) -> Result<(), ReplicaError> {
    let replica = &replica;
    if !is_known && let Stage::Empty(start) = replica.stage() {
        let found = tokio::select! {
            biased;
            () = replica.wait_closed() => None,
            state = bootstrap::find_hard_state(replica, start) => state,
        };
        let Some(state) = found else { return Ok(()) };
        replica.store.save(|none| *none = state).await?;
    }
    let snapshot_due = Arc::new(Notify::new());
    let (engine, snapshots) = start_engine(replica, &snapshot_due).await?;
    replica.activate(Arc::clone(&engine));
    let tasks = [
        tokio::spawn(election::initialize(Arc::clone(replica), Arc::clone(&engine))),
        tokio::spawn(election::campaign(Arc::clone(replica), Arc::clone(&engine))),
        tokio::spawn(election::listen_after_standstill(Arc::clone(replica), Arc::clone(&engine))),
        tokio::spawn(election::hand_over(Arc::clone(replica), Arc::clone(&engine))),
        tokio::spawn(membership::finish_change(Arc::clone(replica), Arc::clone(&engine))),
        tokio::spawn(trigger_snapshots(Arc::clone(&engine), snapshot_due)),
    ];
    let is_outside = tokio::select! {
        biased;
        () = handle_commands(replica, &engine, &snapshots, commands) => false,
        () = membership::wait_outside(replica, &engine) => true,
        () = replica.wait_closed() => true,
    };
    tasks.iter().for_each(tokio::task::JoinHandle::abort);
    if is_outside {
        let _ = engine.raft.shutdown().await;
        return Ok(());
    }
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
                LogCommand::Replace { from, to } => {
                    let (replica, engine) = (Arc::clone(replica), Arc::clone(engine));
                    drop(tokio::spawn(async move {
                        membership::replace(&replica, &engine, (from, to)).await;
                    }));
                }
            },
        }
    }
}

async fn start_engine(
    replica: &GroupReplica,
    snapshot_due: &Arc<Notify>,
) -> Result<(Arc<Engine>, SnapshotReceiver), ReplicaError> {
    let GroupReplica { env, group, events, store, .. } = replica;
    runtime::seed(env.random());
    let failed = |reason: String| ReplicaError::Start { group: group.name.clone(), reason };
    let config = config(replica).validate().map_err(|error| failed(error.to_string()))?;
    let (machine, snapshots) = StateMachine::open(
        env,
        group.folder.as_deref(),
        Arc::clone(events),
        group.settings.snapshot_bytes,
        Arc::clone(snapshot_due),
    )?;
    store.set_snapshot_membership(machine.membership());
    let (store_of_peers, clocks) = (store.clone(), Arc::clone(&events.clocks));
    // A heartbeat that comes as early as this after a commit is left out, and the next one is not.
    let commit_pause = match group.settings.notifies_at_once {
        true => Duration::ZERO,
        false => Duration::from_millis(group.settings.heartbeat_ms / 2),
    };
    let peers = Peers {
        env: env.clone(),
        group: group.clone(),
        commit_pause,
        store: store_of_peers,
        clocks,
    };
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
