//! How a replica that starts without state finds out whether its group is new, whether it lost its
//! state, or whether it is to join.
//!
//! Raft relies on the memory of its members. Suppose a replica that voted, or took an entry that
//! was then committed, restarts without knowing it. It can help to elect a leader that lacks the
//! entry. That happens with every restart of a replica that has only memory, and with a lost disk.
//! So:
//!
//! - **Bootstrap.** Each start without state has a random number. When the first member sees that
//!   all others have no state either, it writes down the numbers of all: the group's *bootstrap
//!   ids*. A replica whose number is among them is new, has not voted, and takes part. The first
//!   entry of the group is written when all members know that it has begun, and not before.
//! - **Recovery.** Any other voter has lost its state. It asks all others for theirs. Whatever it
//!   acknowledged, it acknowledged to one of them or together with one of them. So it takes the
//!   highest vote of all as its own, and remembers the highest last entry of all as the *required
//!   log id*. Until its log has that entry it does not campaign, and it never votes for a candidate
//!   whose log lacks it. (This is the recovery of Viewstamped Replication Revisited, Liskov and
//!   Cowling 2012, section 4.3; here all others must answer, because the groups are small.)
//! - Two replicas of three that lose their state at once cannot know what is missing. They wait,
//!   and report it, rather than lose what was acknowledged.
//! - **Joining.** A node that is no voter takes part when a leader asks it to. It may have been a
//!   voter before and have lost its state, so it does the same as in a recovery. What it
//!   acknowledged then does not count any more, so a majority of the voters is enough. It has every
//!   committed entry, so the replica votes for nobody who lacks one.
//!
//! Who the voters are is what the newest membership in the logs of those who answer says. A
//! majority of the old voters commits a change of the voters. So of any such majority at least one
//! knows the next membership, and leads to the newest one.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use openraft::Vote;
use tokio::time::timeout;

use crate::connection::Peer;
use crate::group_replica::GroupReplica;
use crate::hard_state::HardState;
use crate::message::{CheckMembershipRequest, ReplicaStatus, StatusRequest};
use crate::types::NodeId;

/// What the other nodes answered, by their numbers; those that did not are missing.
type Statuses = BTreeMap<NodeId, ReplicaStatus>;

/// Why a replica without state does not take part yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Waiting {
    /// It is no voter, and nobody has asked it to join.
    Outside,
    /// It needs answers; why, for people.
    ForAnswers(&'static str),
}

/// The sets of voters of a group that begins with so many: each has a majority of its own.
fn voter_sets(first_voters: usize, statuses: &Statuses) -> Vec<BTreeSet<NodeId>> {
    let memberships = statuses.values().filter_map(|status| match status {
        ReplicaStatus::Active { membership, .. } => Some(membership),
        ReplicaStatus::Empty(_) => None,
    });
    let newest = memberships.max_by_key(|membership| membership.log_id().as_ref().copied());
    let known = newest.map(|newest| newest.membership().get_joint_config().clone());
    known
        .filter(|sets| !sets.is_empty())
        .unwrap_or_else(|| vec![(1..=first_voters as NodeId).collect()])
}

/// A replica that starts without state.
#[derive(Debug, Clone, Copy)]
struct Starter {
    own: NodeId,
    /// The random number of its start.
    start: u64,
    /// With how many voters its group begins.
    first_voters: usize,
    /// Whether a leader has asked it to join.
    joins: bool,
}

impl Starter {
    /// The hard state to take part with, or why it has to wait.
    fn decide(&self, statuses: &Statuses) -> Result<HardState, Waiting> {
        let lists_own_start = |status: &ReplicaStatus| match status {
            ReplicaStatus::Active { bootstrap_ids, .. } if bootstrap_ids.contains(&self.start) => {
                Some(bootstrap_ids.clone())
            }
            _ => None,
        };
        if let Some(bootstrap_ids) = statuses.values().find_map(lists_own_start) {
            return Ok(HardState { bootstrap_ids, ..HardState::default() });
        }
        let is_active =
            |id: &NodeId| matches!(statuses.get(id), Some(ReplicaStatus::Active { .. }));
        let sets = voter_sets(self.first_voters, statuses);
        if !sets.iter().any(|voters| voters.contains(&self.own)) {
            let has_majority = |voters: &BTreeSet<NodeId>| {
                voters.iter().filter(|id| is_active(id)).count() > voters.len() / 2
            };
            return match (self.joins, sets.iter().all(has_majority)) {
                (false, _) => Err(Waiting::Outside),
                (true, false) => Err(Waiting::ForAnswers(
                    "it is to join the group, and fewer than a majority of its replicas answer",
                )),
                (true, true) => Ok(self.recover(statuses)),
            };
        }
        let others = sets.iter().flatten().filter(|id| **id != self.own);
        let others: BTreeSet<NodeId> = others.copied().collect();
        if !others.iter().all(|id| statuses.contains_key(id)) {
            let why = "it has no state of the group, and not all other replicas answer";
            return Err(Waiting::ForAnswers(why));
        }
        if others.iter().all(is_active) && !others.is_empty() {
            return Ok(self.recover(statuses));
        }
        if others.iter().any(is_active) {
            return Err(Waiting::ForAnswers(
                "more than one replica of the group has lost its state at once: acknowledged \
                 requests may be lost, and no replica can tell which; the group does not work",
            ));
        }
        if self.own != 1 {
            return Err(Waiting::ForAnswers("the first replica of the group has to begin it"));
        }
        let starts = others.iter().filter_map(|id| match statuses.get(id) {
            Some(ReplicaStatus::Empty(start)) => Some(*start),
            _ => None,
        });
        let bootstrap_ids = std::iter::once(self.start).chain(starts).collect();
        Ok(HardState { bootstrap_ids, ..HardState::default() })
    }

    /// The hard state of a replica that lost its own, or joins, from those of the others.
    fn recover(&self, statuses: &Statuses) -> HardState {
        let mut state = HardState::default();
        for status in statuses.values() {
            if let ReplicaStatus::Active { bootstrap_ids, vote, last, .. } = status {
                state.bootstrap_ids.clone_from(bootstrap_ids);
                state.vote = highest(state.vote, *vote);
                state.required_log_id = state.required_log_id.max(*last);
            }
        }
        // If it was the leader itself, it does not go on leading: it was a candidate at most.
        if let Some(vote) = state.vote.as_mut().filter(|vote| vote.leader_id.node_id == self.own) {
            vote.committed = false;
        }
        state
    }
}

fn highest(a: Option<Vote<NodeId>>, b: Option<Vote<NodeId>>) -> Option<Vote<NodeId>> {
    a.into_iter().chain(b).max_by_key(|vote| (vote.leader_id, vote.committed))
}

/// Time limit of an answer, and time between two rounds of requests.
const ANSWER_LIMIT: Duration = Duration::from_millis(500);
const RETRY_INTERVAL: Duration = Duration::from_millis(25);

/// Rounds of requests between two reports that the replica waits.
const ROUNDS_PER_REPORT: u32 = 60;

/// Asks the other nodes until the hard state of this replica is known; none if it is outside of its
/// group. Reports the reason if it takes long.
pub async fn find_hard_state(replica: &GroupReplica, start: u64) -> Option<HardState> {
    let starter = Starter {
        own: replica.id(),
        start,
        first_voters: replica.group.voters,
        joins: replica.joins,
    };
    let (mut peers, mut rounds) = (OtherNodes::new(replica), 0);
    loop {
        match starter.decide(&peers.statuses().await) {
            Ok(state) => return Some(state),
            Err(Waiting::Outside) => return None,
            Err(Waiting::ForAnswers(why)) => {
                rounds += 1;
                if rounds % ROUNDS_PER_REPORT == 0 {
                    replica.report_degraded(why);
                }
            }
        }
        tokio::time::sleep(RETRY_INTERVAL).await;
    }
}

/// The other nodes that may have a replica of a group.
pub struct OtherNodes<'a> {
    replica: &'a GroupReplica,
    by_id: BTreeMap<NodeId, Peer>,
}

impl OtherNodes<'_> {
    /// Those of a replica's group.
    pub fn new(replica: &GroupReplica) -> OtherNodes<'_> {
        OtherNodes { replica, by_id: BTreeMap::new() }
    }

    /// The statuses of those that the group begins with, and of the voters, as far as they answer.
    pub async fn statuses(&mut self) -> Statuses {
        let mut statuses = Statuses::new();
        let mut asked = BTreeSet::from([self.replica.id()]);
        let mut ask: BTreeSet<NodeId> = (1..=self.replica.group.voters as NodeId).collect();
        while let Some(id) = ask.difference(&asked).next().copied() {
            asked.insert(id);
            if let Some(peer) = self.peer(id)
                && let Ok(Ok(status)) = timeout(ANSWER_LIMIT, peer.request(&StatusRequest)).await
            {
                statuses.insert(id, status);
            }
            let sets = voter_sets(self.replica.group.voters, &statuses);
            ask.extend(sets.into_iter().flatten());
        }
        statuses
    }

    /// Whether all others that the group begins with know that it has begun.
    pub async fn all_begun(&mut self) -> bool {
        let (own, statuses) = (self.replica.id(), self.statuses().await);
        let has_begun = |id| matches!(statuses.get(&id), Some(ReplicaStatus::Active { .. }));
        (1..=self.replica.group.voters as NodeId).all(|id| id == own || has_begun(id))
    }

    /// Asks a node to find out whether it is still part of the group, if it answers.
    pub async fn doubt_membership(&mut self, id: NodeId) {
        if let Some(peer) = self.peer(id) {
            let _ = timeout(ANSWER_LIMIT, peer.request(&CheckMembershipRequest)).await;
        }
    }

    fn peer(&mut self, id: NodeId) -> Option<&mut Peer> {
        let group = &self.replica.group;
        let position = usize::try_from(id).ok()?.checked_sub(1)?;
        group.members.get(position)?;
        let new = || Peer::new(self.replica.env.clone(), group, position);
        Some(self.by_id.entry(id).or_insert_with(new))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use openraft::{CommittedLeaderId, LogId, Membership, StoredMembership};

    /// The status of an active replica whose newest membership, of this index, has these voters.
    fn with_voters(
        (bootstrap_ids, vote, index): (&[u64], Vote<NodeId>, u64),
        (membership_index, sets): (u64, &[&[NodeId]]),
    ) -> ReplicaStatus {
        let at = |index| LogId::new(CommittedLeaderId::new(vote.leader_id.term, 1), index);
        let sets = sets.iter().map(|voters| voters.iter().copied().collect()).collect();
        let membership = Membership::new(sets, ());
        ReplicaStatus::Active {
            bootstrap_ids: bootstrap_ids.to_vec(),
            vote: Some(vote),
            last: Some(at(index)),
            membership: StoredMembership::new(Some(at(membership_index)), membership),
        }
    }

    fn active(bootstrap_ids: &[u64], vote: Vote<NodeId>, index: u64) -> ReplicaStatus {
        with_voters((bootstrap_ids, vote, index), (0, &[&[1, 2, 3]]))
    }

    fn empty(start: u64) -> ReplicaStatus {
        ReplicaStatus::Empty(start)
    }

    fn decide(
        own: NodeId,
        start: u64,
        others: &[(NodeId, ReplicaStatus)],
    ) -> Result<HardState, Waiting> {
        let starter = Starter { own, start, first_voters: 3, joins: false };
        starter.decide(&others.iter().cloned().collect())
    }

    #[test]
    fn the_first_member_bootstraps_a_group_whose_members_all_have_no_state() {
        let first = decide(1, 7, &[(2, empty(8)), (3, empty(9))]).unwrap();
        assert_eq!(first, HardState { bootstrap_ids: vec![7, 8, 9], ..HardState::default() });
        assert!(decide(1, 7, &[(2, empty(8))]).is_err());
        assert!(decide(2, 8, &[(1, empty(7)), (3, empty(9))]).is_err());
        let known = active(&[7, 8, 9], Vote::new(0, 0), 0);
        assert_eq!(decide(2, 8, &[(1, known)]).unwrap(), first);
        let alone = Starter { own: 1, start: 5, first_voters: 1, joins: false };
        assert_eq!(alone.decide(&Statuses::new()).unwrap().bootstrap_ids, [5]);
    }

    #[test]
    fn recovery_takes_the_highest_vote_and_last_entry_of_all_others() {
        let ids = [7, 8, 9];
        let (leader, other) = (Vote::new_committed(4, 2), Vote::new(4, 1));
        let others = [(2, active(&ids, leader, 10)), (3, active(&ids, other, 12))];
        let state = decide(1, 99, &others).unwrap();
        assert_eq!((state.vote, state.required_log_id.unwrap().index), (Some(leader), 12));
        // It led itself: it does not go on leading.
        let own = Vote::new_committed(5, 1);
        let others = [(2, active(&ids, own, 3)), (3, active(&ids, other, 3))];
        assert_eq!(decide(1, 99, &others).unwrap().vote, Some(Vote::new(5, 1)));
        // All others must answer, and have their state.
        assert!(decide(1, 99, &[(2, active(&ids, leader, 10))]).is_err());
        let two_lost = decide(1, 99, &[(2, active(&ids, leader, 10)), (3, empty(98))]);
        let Err(Waiting::ForAnswers(why)) = two_lost else { panic!("{two_lost:?}") };
        assert!(why.contains("more than one"));
    }

    #[test]
    fn voters_are_those_of_the_newest_membership() {
        let (ids, vote) = ([7, 8, 9], Vote::new_committed(4, 1));
        let old = with_voters((&ids, vote, 20), (0, &[&[1, 2, 3]]));
        let joint = with_voters((&ids, vote, 22), (21, &[&[1, 2, 3], &[1, 2, 4]]));
        let new = with_voters((&ids, vote, 23), (22, &[&[1, 2, 4]]));
        // While there are two sets, the others of both must answer a replica that is in one.
        let both = [(1, joint.clone()), (2, old.clone())];
        assert!(matches!(decide(4, 99, &both), Err(Waiting::ForAnswers(_))));
        let all = [(1, joint), (2, old.clone()), (3, old.clone())];
        assert_eq!(decide(4, 99, &all).unwrap().required_log_id.unwrap().index, 22);
        // The replaced one need not, and one that was replaced is outside.
        assert!(decide(4, 99, &[(1, new.clone()), (2, old.clone())]).is_ok());
        assert!(matches!(decide(4, 99, &[(1, new.clone())]), Err(Waiting::ForAnswers(_))));
        assert_eq!(decide(3, 99, &[(1, new.clone()), (2, old.clone())]), Err(Waiting::Outside));
        // Who is asked to join needs a majority, and requires all that it has.
        let asked = |others: &[(NodeId, ReplicaStatus)]| {
            let starter = Starter { own: 3, start: 99, first_voters: 3, joins: true };
            starter.decide(&others.iter().cloned().collect())
        };
        assert!(asked(&[(1, new.clone())]).is_err());
        let state = asked(&[(1, new), (2, old)]).unwrap();
        assert_eq!((state.vote, state.required_log_id.unwrap().index), (Some(vote), 23));
    }
}
