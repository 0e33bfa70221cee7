//! How a replica that starts without state finds out whether its group is new or it lost its state.
//!
//! Raft relies on the memory of its members: a replica that voted, or took an entry that was then
//! committed, and restarts without knowing it, can help to elect a leader that lacks the entry.
//! That happens with every restart of a replica that has only memory, and with a lost disk. So:
//!
//! - **Bootstrap.** Each start without state has a random number. When the first member sees that
//!   all others have no state either, it writes down the numbers of all: the group's *bootstrap
//!   ids*. A replica whose number is among them is new, has not voted, and takes part.
//! - **Recovery.** Any other replica has lost its state. It asks all others for theirs. Whatever it
//!   acknowledged, it acknowledged to one of them or together with one of them; so it takes the
//!   highest vote of all as its own, and remembers the highest last entry of all as the *required
//!   log id*: until its log has that entry it does not campaign, and it never votes for a candidate
//!   whose log lacks it. (This is the recovery of Viewstamped Replication Revisited, Liskov and
//!   Cowling 2012, section 4.3; here all others must answer, because the groups are small.)
//! - Two replicas of three that lose their state at once cannot know what is missing. They wait,
//!   and report it, rather than lose what was acknowledged.

use std::time::Duration;

use openraft::Vote;
use tokio::time::timeout;

use crate::connection::Peer;
use crate::group::Group;
use crate::hard_state::HardState;
use crate::message::{ReplicaStatus, StatusRequest};
use crate::types::NodeId;

/// The hard state of a replica that starts without one, from the statuses of all others (`None`
/// where one did not answer); or why it has to wait.
fn decide(
    own: usize,
    start: u64,
    others: &[Option<ReplicaStatus>],
) -> Result<HardState, &'static str> {
    let lists_own_start = |status: &ReplicaStatus| match status {
        ReplicaStatus::Active { bootstrap_ids, .. } if bootstrap_ids.get(own) == Some(&start) => {
            Some(bootstrap_ids.clone())
        }
        _ => None,
    };
    if let Some(bootstrap_ids) = others.iter().flatten().find_map(lists_own_start) {
        return Ok(HardState { bootstrap_ids, ..HardState::default() });
    }
    if others.iter().any(Option::is_none) {
        return Err("it has no state of the group, and not all other replicas answer");
    }
    let empty: Vec<u64> = others
        .iter()
        .flatten()
        .filter_map(|status| match status {
            ReplicaStatus::Empty(start) => Some(*start),
            ReplicaStatus::Active { .. } => None,
        })
        .collect();
    if empty.len() == others.len() {
        if own != 0 {
            return Err("the group is new, and its first member has not bootstrapped it yet");
        }
        let bootstrap_ids = std::iter::once(start).chain(empty).collect();
        return Ok(HardState { bootstrap_ids, ..HardState::default() });
    }
    if !empty.is_empty() {
        return Err("more than one replica of the group has lost its state at once: acknowledged \
                    requests may be lost, and no replica can tell which; the group does not work");
    }
    Ok(recover(own, others))
}

/// The hard state of a replica that lost its own, from those of all others.
fn recover(own: usize, others: &[Option<ReplicaStatus>]) -> HardState {
    let mut state = HardState::default();
    for status in others.iter().flatten() {
        if let ReplicaStatus::Active { bootstrap_ids, vote, last } = status {
            state.bootstrap_ids.clone_from(bootstrap_ids);
            state.vote = highest(state.vote, *vote);
            state.required_log_id = state.required_log_id.max(*last);
        }
    }
    // If it was the leader itself, it does not go on leading: it was a candidate at most.
    let own_id = own as NodeId + 1;
    if let Some(vote) = state.vote.as_mut().filter(|vote| vote.leader_id.node_id == own_id) {
        vote.committed = false;
    }
    state
}

fn highest(a: Option<Vote<NodeId>>, b: Option<Vote<NodeId>>) -> Option<Vote<NodeId>> {
    a.into_iter().chain(b).max_by_key(|vote| (vote.leader_id, vote.committed))
}

/// Time limit of an answer, and time between two rounds of requests.
const ANSWER_LIMIT: Duration = Duration::from_millis(500);
const RETRY_INTERVAL: Duration = Duration::from_millis(25);

/// Rounds of requests between two reports that the replica waits.
const ROUNDS_PER_REPORT: u32 = 60;

/// Asks the other replicas until the hard state of this one is known. `report` is called with the
/// reason if it takes long.
pub async fn find_hard_state(
    group: &Group,
    start: u64,
    report: impl Fn(&'static str),
) -> HardState {
    let own_id = group.own as u8 + 1;
    let others = group.members.iter().enumerate().filter(|(position, _)| *position != group.own);
    let peer = |address| Peer::new(address, (own_id, group.id), group.settings.key);
    let mut others: Vec<Peer> = others.map(|(_, member)| peer(member.address.clone())).collect();
    let mut rounds = 0;
    loop {
        let mut statuses = vec![];
        for peer in &mut others {
            let answer = timeout(ANSWER_LIMIT, peer.request(&StatusRequest)).await;
            statuses.push(answer.ok().and_then(Result::ok));
        }
        match decide(group.own, start, &statuses) {
            Ok(state) => return state,
            Err(why) => {
                rounds += 1;
                if rounds % ROUNDS_PER_REPORT == 0 {
                    report(why);
                }
            }
        }
        tokio::time::sleep(RETRY_INTERVAL).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use openraft::{CommittedLeaderId, LogId};

    fn active(bootstrap_ids: &[u64], vote: Vote<NodeId>, index: u64) -> Option<ReplicaStatus> {
        let last = Some(LogId::new(CommittedLeaderId::new(vote.leader_id.term, 1), index));
        let bootstrap_ids = bootstrap_ids.to_vec();
        Some(ReplicaStatus::Active { bootstrap_ids, vote: Some(vote), last })
    }

    fn empty(start: u64) -> Option<ReplicaStatus> {
        Some(ReplicaStatus::Empty(start))
    }

    #[test]
    fn the_first_member_bootstraps_a_group_whose_members_all_have_no_state() {
        let first = decide(0, 7, &[empty(8), empty(9)]).unwrap();
        assert_eq!(first, HardState { bootstrap_ids: vec![7, 8, 9], ..HardState::default() });
        assert!(decide(0, 7, &[empty(8), None]).is_err());
        assert!(decide(1, 8, &[empty(7), empty(9)]).is_err());
        let known = active(&[7, 8, 9], Vote::new(0, 0), 0);
        assert_eq!(decide(1, 8, &[known, None]).unwrap(), first);
        let single = decide(0, 5, &[]).unwrap();
        assert_eq!(single.bootstrap_ids, [5]);
    }

    #[test]
    fn recovery_takes_the_highest_vote_and_last_entry_of_all_others() {
        let ids = [7, 8, 9];
        let (leader, other) = (Vote::new_committed(4, 2), Vote::new(4, 1));
        let state = decide(0, 99, &[active(&ids, leader, 10), active(&ids, other, 12)]).unwrap();
        assert_eq!((state.vote, state.required_log_id.unwrap().index), (Some(leader), 12));
        // It led itself: it does not go on leading.
        let own = Vote::new_committed(5, 1);
        let state = decide(0, 99, &[active(&ids, own, 3), active(&ids, other, 3)]).unwrap();
        assert_eq!(state.vote, Some(Vote::new(5, 1)));
        // All others must answer, and have their state.
        assert!(decide(0, 99, &[active(&ids, leader, 10), None]).is_err());
        let two_lost = decide(0, 99, &[active(&ids, leader, 10), empty(98)]);
        assert!(two_lost.unwrap_err().contains("more than one"));
    }
}
