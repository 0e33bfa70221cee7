//! Elections beyond what openraft does by itself. They are the first one of a group, and those of a
//! replica that lost its state or may not lead. The one after the death of a leader is here as
//! well.
//!
//! Starting an election is always safe; whether it succeeds, the voters' leases decide. A lease is
//! the silence of a leader after which a replica votes for another one. It is not needed for
//! safety, only to avoid needless elections. So a replica that may not lead can have a shorter one,
//! and a killed leader is replaced sooner. Its connections end with it, which its followers see at
//! once.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use openraft::{EmptyNode, ServerState};
use tokio::time::{Instant, sleep, timeout};

use crate::bootstrap::OtherNodes;
use crate::connection::Peer;
use crate::group::Member;
use crate::group_replica::{CHECK_INTERVAL, Engine, GroupReplica};
use crate::log::LogEvent;
use crate::message::CampaignRequest;
use crate::types::NodeId;

/// How long a replica lacks required entries before it reports that, again and again.
const REPORT_INTERVAL: Duration = Duration::from_secs(3);

/// For how many leases a leader that steps down looks for another one.
const STEP_DOWN_LEASES: u32 = 4;

/// Longest silence after which such a replica asks another one to campaign.
const PATIENCE_MAX: Duration = Duration::from_secs(5);

/// Writes the members as the group's first entry, as soon as all of them know that the group has
/// begun; which of them does it does not matter. If some could acknowledge entries before all know,
/// and lost their state, the others would begin the group once more, without those entries.
pub async fn initialize(replica: Arc<GroupReplica>, engine: Arc<Engine>) {
    if !replica.may_lead() || replica.group.own >= replica.group.voters {
        return;
    }
    sleep(replica.lease() * replica.group.own as u32 * 2).await;
    let mut others = OtherNodes::new(&replica);
    let mut reported = Instant::now();
    while matches!(engine.raft.is_initialized().await, Ok(false)) && !others.all_begun().await {
        sleep(CHECK_INTERVAL).await;
        if reported.elapsed() > REPORT_INTERVAL {
            reported = Instant::now();
            replica.report_degraded("the group begins when all its replicas answer that they have");
        }
    }
    if matches!(engine.raft.is_initialized().await, Ok(false)) {
        let ids = 1..=replica.group.voters as NodeId;
        let members: BTreeMap<_, _> = ids.map(|id| (id, EmptyNode::new())).collect();
        // It fails only if another member's entry has arrived meanwhile.
        let _ = engine.raft.initialize(members).await;
    }
}

/// Waits until the replica is caught up; from then on, if it may lead, openraft starts elections,
/// and one is started early whenever the leader's connection ends and it stays silent.
pub async fn campaign(replica: Arc<GroupReplica>, engine: Arc<Engine>) {
    catch_up(&replica, &engine).await;
    replica.events.send(LogEvent::CaughtUp);
    if !replica.may_lead() {
        return;
    }
    engine.raft.runtime_config().elect(true);
    loop {
        engine.leader_lost.notified().await;
        let vote = replica.store.vote();
        let enough = replica.leases().1 + CHECK_INTERVAL;
        sleep(enough.saturating_sub(engine.silence())).await;
        // An election of another replica is not disturbed.
        if engine.has_lost_leader() && vote == replica.store.vote() {
            let _ = engine.raft.trigger().elect().await;
        }
    }
}

/// A replica whose node stood still (`SIGSTOP`, a paused machine) has heard nothing of its leader
/// for too long, by its clock. openraft would begin an election before it reads what the leader has
/// sent meanwhile, and has no pre-vote. So no election begins until the leader has had the time
/// to be heard. This task wakes with the timer that openraft's election would come of, and openraft
/// acts one step of the runtime later.
pub async fn listen_after_standstill(replica: Arc<GroupReplica>, engine: Arc<Engine>) {
    let patience = replica.leases().1;
    loop {
        let before = Instant::now();
        sleep(CHECK_INTERVAL).await;
        if before.elapsed() > patience / 2 && replica.may_lead() && replica.store.is_caught_up() {
            engine.raft.runtime_config().elect(false);
            sleep(patience).await;
            engine.raft.runtime_config().elect(true);
        }
    }
}

/// Waits until the log has all required entries. Until then there must be a leader: a replica that
/// may not lead, and has the log, is asked to campaign. More seldom each time: its elections must
/// not keep a replica that has more entries from winning one.
async fn catch_up(replica: &GroupReplica, engine: &Engine) {
    let mut reported = Instant::now();
    let mut patience = replica.leases().0 * 2;
    while !replica.store.is_caught_up() {
        sleep(CHECK_INTERVAL).await;
        if reported.elapsed() > REPORT_INTERVAL {
            reported = Instant::now();
            replica.report_degraded(
                "it lost its state or a part of it, and no leader has sent the entries that it \
                 had; if this does not end, too many replicas were lost at once, and acknowledged \
                 requests with them",
            );
        }
        if engine.silence() > patience {
            // Without its log, it knows only the voters that the group began with.
            let mut voters = engine.voters();
            if voters.is_empty() {
                voters = (1..=replica.group.voters as NodeId).collect();
            }
            for (position, member) in replica.group.members.iter().enumerate() {
                let is_voter = voters.contains(&(position as NodeId + 1));
                if is_voter && !member.may_lead && position != replica.group.own {
                    ask_to_campaign(replica, position).await;
                }
            }
            engine.reset_contact();
            patience = (patience * 2).min(PATIENCE_MAX);
        }
    }
}

/// If a replica that may not lead was elected, it waits until one that may has all entries, and
/// lets that one campaign.
pub async fn hand_over(replica: Arc<GroupReplica>, engine: Arc<Engine>) {
    if replica.may_lead() {
        return;
    }
    let mut changes = engine.raft.server_metrics();
    while changes.changed().await.is_ok() {
        let since = Instant::now();
        while changes.borrow_and_update().state == ServerState::Leader {
            if let Some(successor) = successor(&replica, &engine) {
                // As long as its own election is younger than its lease, it would not vote.
                sleep((replica.lease() + CHECK_INTERVAL).saturating_sub(since.elapsed())).await;
                ask_to_campaign(&replica, successor).await;
                sleep(replica.lease()).await;
            }
            sleep(CHECK_INTERVAL / 4).await;
        }
    }
}

/// Has another replica lead in the place of this one, if there is one that has all entries.
pub async fn step_down(replica: &GroupReplica, engine: &Engine) {
    let until = Instant::now() + replica.leases().0 * STEP_DOWN_LEASES;
    let is_leader = || engine.raft.server_metrics().borrow().state == ServerState::Leader;
    while is_leader() && Instant::now() < until {
        if let Some(successor) = successor(replica, engine) {
            ask_to_campaign(replica, successor).await;
            sleep(replica.lease() / 2).await;
        }
        sleep(CHECK_INTERVAL / 4).await;
    }
    if is_leader() {
        let why = "no other replica has all entries and can lead, so this one goes on leading";
        replica.events.send(LogEvent::HandOverFailed(why.to_string()));
    }
}

/// The position of another member that may lead and has all entries of this leader.
fn successor(replica: &GroupReplica, engine: &Engine) -> Option<usize> {
    let matching = engine.raft.metrics().borrow().replication.clone().unwrap_or_default();
    let voters = engine.voters();
    let is_ready = |position: usize, member: &Member| {
        let last = matching.get(&(position as NodeId + 1)).copied().flatten();
        let is_other = position != replica.group.own;
        let is_voter = voters.contains(&(position as NodeId + 1));
        is_other && is_voter && member.may_lead && last.is_some() && last >= replica.store.last()
    };
    let mut members = replica.group.members.iter().enumerate();
    members.find(|(position, member)| is_ready(*position, member)).map(|(position, _)| position)
}

async fn ask_to_campaign(replica: &GroupReplica, position: usize) {
    let mut peer = Peer::new(replica.env.clone(), &replica.group, position);
    // If it fails, it is tried again.
    let _ = timeout(replica.leases().0, peer.request(&CampaignRequest)).await;
}
