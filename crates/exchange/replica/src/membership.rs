//! Changes of a group's membership: one replica replaces another while the group works.
//!
//! The new replica first gets all entries without a vote (Raft calls it a learner). Then the voters
//! change through openraft's joint consensus. As long as the membership has two sets of voters,
//! every decision needs a majority of each.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use openraft::error::{ClientWriteError, RaftError};
use openraft::{ChangeMembers, EmptyNode};
use thiserror::Error;
use tokio::time::{Instant, sleep};

use crate::bootstrap::OtherNodes;
use crate::group_replica::{CHECK_INTERVAL, Engine, GroupReplica};
use crate::log::LogEvent;
use crate::message::ReplicaStatus;
use crate::types::NodeId;

/// How long a new replica may take to get all entries.
const CATCH_UP_LIMIT: Duration = Duration::from_secs(120);

/// Entries that a new replica may lack when it becomes a voter.
const LAG_MAX: u64 = 16;

/// How long a membership may have two sets of voters before a leader that did not begin the change
/// finishes it.
const JOINT_LIMIT: Duration = Duration::from_secs(1);

/// Silence of the leader after which a replica asks whether it is still part of the group, and time
/// between two such questions.
const OUTSIDE_SILENCE: Duration = Duration::from_secs(1);

/// Why openraft does not change the membership.
type ChangeError = RaftError<NodeId, ClientWriteError<NodeId, EmptyNode>>;

/// Why a replica was not replaced.
#[derive(Debug, Error)]
enum ReplaceError {
    #[error("this replica does not lead any more")]
    NotLeading,
    #[error("another replica is being replaced")]
    Busy,
    #[error("the one to be replaced is no replica of the group")]
    NoVoter,
    #[error("the new one is a replica of the group already")]
    IsVoter,
    #[error("the group knows no node at this position")]
    NoMember,
    #[error("the new replica did not get all entries within {} s", .0.as_secs())]
    TooSlow(Duration),
    #[error("{0}")]
    Raft(String),
}

/// Replaces the replica of one member by one of another, by their positions; reports why if that
/// fails.
pub async fn replace(replica: &GroupReplica, engine: &Engine, (from, to): (usize, usize)) {
    if engine.is_replacing.swap(true, Ordering::Relaxed) {
        return report(replica, &ReplaceError::Busy);
    }
    let (from, to) = (from as NodeId + 1, to as NodeId + 1);
    let result = change_voters(replica, engine, (from, to)).await;
    engine.is_replacing.store(false, Ordering::Relaxed);
    if let Err(error) = result {
        report(replica, &error);
    }
}

fn report(replica: &GroupReplica, error: &ReplaceError) {
    replica.events.send(LogEvent::ReplaceFailed(error.to_string()));
}

async fn change_voters(
    replica: &GroupReplica,
    engine: &Engine,
    (from, to): (NodeId, NodeId),
) -> Result<(), ReplaceError> {
    check(replica, engine, (from, to))?;
    let raft = |error: &dyn std::fmt::Display| ReplaceError::Raft(error.to_string());
    let added = engine.raft.add_learner(to, EmptyNode::new(), false).await;
    added.map_err(|error| raft(&error))?;
    if let Err(error) = catch_up(engine, to).await {
        // The group is as it was before.
        let removed = ChangeMembers::RemoveNodes(BTreeSet::from([to]));
        let _ = engine.raft.change_membership(removed, false).await;
        return Err(error);
    }
    let mut voters = engine.voters();
    voters.remove(&from);
    voters.insert(to);
    set_voters(replica, engine, voters).await.map_err(|error| raft(&error))
}

/// Changes the voters, and lets those that are none any more find out: nobody sends them entries,
/// so they would stand for election.
async fn set_voters(
    replica: &GroupReplica,
    engine: &Engine,
    voters: BTreeSet<NodeId>,
) -> Result<(), ChangeError> {
    let former = engine.voters();
    let change = ChangeMembers::ReplaceAllVoters(voters.clone());
    engine.raft.change_membership(change, false).await?;
    let mut others = OtherNodes::new(replica);
    for gone in former.difference(&voters) {
        others.doubt_membership(*gone).await;
    }
    Ok(())
}

/// Whether a replica can be replaced now.
fn check(
    replica: &GroupReplica,
    engine: &Engine,
    (from, to): (NodeId, NodeId),
) -> Result<(), ReplaceError> {
    if !engine.is_leader() {
        return Err(ReplaceError::NotLeading);
    }
    assert!(from != replica.id(), "a leader hands over before it is replaced");
    let membership = engine.membership();
    let [voters] = membership.get_joint_config().as_slice() else { return Err(ReplaceError::Busy) };
    match () {
        () if to as usize > replica.group.members.len() => Err(ReplaceError::NoMember),
        () if !voters.contains(&from) => Err(ReplaceError::NoVoter),
        () if voters.contains(&to) => Err(ReplaceError::IsVoter),
        () => Ok(()),
    }
}

/// Waits until a new replica has nearly all entries.
async fn catch_up(engine: &Engine, id: NodeId) -> Result<(), ReplaceError> {
    let until = Instant::now() + CATCH_UP_LIMIT;
    loop {
        let is_near = {
            let metrics = engine.raft.metrics();
            let metrics = metrics.borrow();
            let matching = metrics.replication.as_ref().and_then(|all| all.get(&id).copied());
            let matching = matching.flatten().map(|last| last.index);
            matching.is_some_and(|at| at + LAG_MAX >= metrics.last_log_index.unwrap_or_default())
        };
        match () {
            () if is_near => return Ok(()),
            () if !engine.is_leader() => return Err(ReplaceError::NotLeading),
            () if Instant::now() > until => return Err(ReplaceError::TooSlow(CATCH_UP_LIMIT)),
            () => sleep(CHECK_INTERVAL).await,
        }
    }
}

/// Finishes a change of the voters that another leader began.
pub async fn finish_change(replica: Arc<GroupReplica>, engine: Arc<Engine>) {
    let mut since = None;
    loop {
        sleep(JOINT_LIMIT / 4).await;
        let membership = engine.membership();
        let sets = membership.get_joint_config();
        let is_own_to_finish =
            sets.len() > 1 && engine.is_leader() && !engine.is_replacing.load(Ordering::Relaxed);
        let Some(voters) = sets.last().filter(|_| is_own_to_finish) else {
            since = None;
            continue;
        };
        if since.get_or_insert_with(Instant::now).elapsed() < JOINT_LIMIT {
            continue;
        }
        if let Err(error) = set_voters(&replica, &engine, voters.clone()).await {
            let why = format!("a replica that replaces another one is not a voter yet: {error}");
            replica.report_degraded(&why);
        }
    }
}

/// Waits until this replica is no part of its group any more. Nobody sends it entries then, so it
/// asks the others, after some silence or when a leader asks it to, and believes a majority of the
/// voters.
pub async fn wait_outside(replica: &GroupReplica, engine: &Engine) {
    let mut others = OtherNodes::new(replica);
    loop {
        let is_doubted = tokio::select! {
            biased;
            () = engine.membership_doubted.notified() => true,
            () = sleep(OUTSIDE_SILENCE) => false,
        };
        if (!is_doubted && engine.silence() < OUTSIDE_SILENCE) || engine.is_leader() {
            continue;
        }
        let mut statuses = others.statuses().await;
        statuses.insert(replica.id(), replica.status());
        let memberships = statuses.iter().filter_map(|(id, status)| match status {
            ReplicaStatus::Active { membership, .. } => Some((*id, membership)),
            ReplicaStatus::Empty(_) => None,
        });
        // One that lost its state knows no membership.
        let known: Vec<_> = memberships.filter(|(_, it)| it.log_id().is_some()).collect();
        let Some((_, newest)) = known.iter().max_by_key(|(_, it)| *it.log_id()) else { continue };
        let agrees = |id: &NodeId| known.iter().any(|(of, it)| of == id && it == newest);
        let is_agreed = newest
            .membership()
            .get_joint_config()
            .iter()
            .all(|voters| voters.iter().filter(|id| agrees(id)).count() > voters.len() / 2);
        if is_agreed && newest.membership().get_node(&replica.id()).is_none() {
            return;
        }
    }
}
