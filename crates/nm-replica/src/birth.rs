//! How a replica finds out, before it takes part, whether it is new or has lost its memory.
//!
//! Raft trusts what its members remember: a replica that voted, or took an entry that was then
//! committed, and comes back without knowing it, can help a leader into office that lacks the
//! entry. That happens with every restart of a replica that has only memory, and with a lost disk.
//! So:
//!
//! - Each start without a memory has a random number. The first member, when it sees that all the
//!   others have no memory either, writes down the numbers of all: the **certificate** of the
//!   group's birth. Whoever's number is in it is new, has promised nothing, and takes part.
//! - Everybody else **lost a memory**. It asks all the others what they know. What it had promised
//!   was promised to one of them, or together with one of them; so it takes the highest vote that
//!   any of them has as its own, and remembers the highest last entry that any of them has as a
//!   **floor**: until its log is there it does not stand for election, and it never votes for one
//!   whose log is not there. (The same idea is the recovery of Viewstamped Replication Revisited,
//!   Liskov and Cowling 2012, section 4.3; here all others must answer, because the groups are
//!   small.)
//! - Two replicas of three that lose their memory at once cannot know what is missing. They wait,
//!   and say so, rather than lose what was acknowledged.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::time::Duration;

use nm_codec::{Fields, Meaningless};
use openraft::{LogId, Vote};
use tokio::time::timeout;

use super::Group;
use super::bytes::Coded;
use super::network::{Kind, Peer};
use super::promises::Promises;
use super::raft::NodeId;

/// How a replica stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// It has no memory; the number of its start.
    Blank(u64),
    /// It takes part.
    Live {
        /// The starts that the group began with.
        certificate: Vec<u64>,
        /// Its vote.
        vote: Option<Vote<NodeId>>,
        /// The last entry that it has, or must have.
        last: Option<LogId<NodeId>>,
    },
}

impl Coded for Standing {
    fn put(&self, out: &mut Vec<u8>) {
        match self {
            Standing::Blank(start) => {
                out.push(0);
                start.put(out);
            }
            Standing::Live { certificate, vote, last } => {
                out.push(1);
                certificate.put(out);
                vote.put(out);
                last.put(out);
            }
        }
    }

    fn read(from: &mut Fields<'_>) -> Result<Standing, Meaningless> {
        Ok(match from.u8()? {
            0 => Standing::Blank(from.u64()?),
            1 => Standing::Live {
                certificate: Vec::read(from)?,
                vote: Option::read(from)?,
                last: Option::read(from)?,
            },
            _ => return Err(Meaningless),
        })
    }
}

/// A number for a start.
pub fn start_number() -> u64 {
    // The standard library's hasher is seeded by the system's randomness.
    RandomState::new().build_hasher().finish()
}

/// What a replica without a memory, whose start has this number, makes of how all the others stand
/// (none where one did not answer): what it promises, or why it waits.
pub fn decide(
    own: usize,
    start: u64,
    others: &[Option<Standing>],
) -> Result<Promises, &'static str> {
    let me = own as NodeId + 1;
    let lists_me = |standing: &Standing| match standing {
        Standing::Live { certificate, .. } if certificate.get(own) == Some(&start) => {
            Some(certificate.clone())
        }
        _ => None,
    };
    if let Some(certificate) = others.iter().flatten().find_map(lists_me) {
        return Ok(Promises { certificate, ..Promises::default() });
    }
    if others.iter().any(Option::is_none) {
        return Err("it has no memory of the group, and not all of the others answer");
    }
    let blank: Vec<u64> = others
        .iter()
        .flatten()
        .filter_map(|standing| match standing {
            Standing::Blank(start) => Some(*start),
            Standing::Live { .. } => None,
        })
        .collect();
    if blank.len() == others.len() {
        if own != 0 {
            return Err("the group begins, and its first member has not written down who is in it");
        }
        let certificate = std::iter::once(start).chain(blank).collect();
        return Ok(Promises { certificate, ..Promises::default() });
    }
    if !blank.is_empty() {
        return Err("more than one replica of the group has lost its memory at once: what was \
                    acknowledged may be gone, and nobody can tell; the cell stands still");
    }
    let mut promises = Promises::default();
    for standing in others.iter().flatten() {
        if let Standing::Live { certificate, vote, last } = standing {
            promises.certificate.clone_from(certificate);
            promises.vote = higher(promises.vote, *vote);
            promises.floor = promises.floor.max(*last);
        }
    }
    // In its own name it begins anew: as one who wanted to lead, not as one who does.
    if let Some(vote) = promises.vote.as_mut().filter(|vote| vote.leader_id.node_id == me) {
        vote.committed = false;
    }
    Ok(promises)
}

fn higher(a: Option<Vote<NodeId>>, b: Option<Vote<NodeId>>) -> Option<Vote<NodeId>> {
    let key = |vote: &Vote<NodeId>| (vote.leader_id, vote.committed);
    a.into_iter().chain(b).max_by_key(key)
}

/// Time for an answer, and between two questions.
const LIMIT: Duration = Duration::from_millis(500);
const AGAIN: Duration = Duration::from_millis(25);

/// Questions before it is said that the replica waits.
const PATIENCE: u32 = 60;

/// Asks the others until it is clear what this replica has promised. `waits` is told why it takes
/// long.
pub async fn born(group: &Group, start: u64, waits: impl Fn(&'static str)) -> Promises {
    let me = group.own as u8 + 1;
    let others = group.members.iter().enumerate().filter(|(position, _)| *position != group.own);
    let mut others: Vec<Peer> =
        others.map(|(_, member)| Peer::new(member.address.clone(), me, group.id)).collect();
    let mut count = 0;
    loop {
        let mut standings = vec![];
        for peer in &mut others {
            let answer = timeout(LIMIT, peer.ask::<Standing>(Kind::Ask, |_| (), &[])).await;
            standings.push(answer.ok().and_then(Result::ok));
        }
        match decide(group.own, start, &standings) {
            Ok(promises) => return promises,
            Err(why) => {
                count += 1;
                if count % PATIENCE == 0 {
                    waits(why);
                }
            }
        }
        tokio::time::sleep(AGAIN).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use openraft::CommittedLeaderId;

    fn live(certificate: &[u64], vote: Vote<NodeId>, index: u64) -> Option<Standing> {
        let last = Some(LogId::new(CommittedLeaderId::new(vote.leader_id.term, 1), index));
        Some(Standing::Live { certificate: certificate.to_vec(), vote: Some(vote), last })
    }

    fn blank(start: u64) -> Option<Standing> {
        Some(Standing::Blank(start))
    }

    #[test]
    fn a_group_begins_when_all_are_without_memory_and_the_first_says_so() {
        let first = decide(0, 7, &[blank(8), blank(9)]).unwrap();
        assert_eq!(first, Promises { certificate: vec![7, 8, 9], ..Promises::default() });
        assert!(decide(0, 7, &[blank(8), None]).is_err());
        assert!(decide(1, 8, &[blank(7), blank(9)]).is_err());
        let known = live(&[7, 8, 9], Vote::new(0, 0), 0);
        assert_eq!(decide(1, 8, &[known, None]).unwrap(), first);
        let alone = decide(0, 5, &[]).unwrap();
        assert_eq!(alone.certificate, [5]);
    }

    #[test]
    fn who_lost_its_memory_takes_the_highest_vote_and_floor_of_all_others() {
        let births = [7, 8, 9];
        let (leader, other) = (Vote::new_committed(4, 2), Vote::new(4, 1));
        let promises =
            decide(0, 99, &[live(&births, leader, 10), live(&births, other, 12)]).unwrap();
        assert_eq!((promises.vote, promises.floor.unwrap().index), (Some(leader), 12));
        // It led itself: it does not go on as if it still did.
        let own = Vote::new_committed(5, 1);
        let promises = decide(0, 99, &[live(&births, own, 3), live(&births, other, 3)]).unwrap();
        assert_eq!(promises.vote, Some(Vote::new(5, 1)));
        // All others must answer, and remember.
        assert!(decide(0, 99, &[live(&births, leader, 10), None]).is_err());
        let two_lost = decide(0, 99, &[live(&births, leader, 10), blank(98)]);
        assert!(two_lost.unwrap_err().contains("more than one"));
    }

    #[test]
    fn standings_come_back() {
        for standing in [blank(3), live(&[1, 2], Vote::new_committed(4, 2), 10)] {
            let standing = standing.unwrap();
            assert_eq!(Standing::whole(&standing.bytes()), Ok(standing));
        }
        assert_ne!(start_number(), start_number());
    }
}
