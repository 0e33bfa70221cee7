//! Acknowledgements: which replicas have an entry where the group keeps its entries (on disk if it
//! has folders).
//!
//! openraft is notified that a replica's own log has an entry as soon as it is in memory, and goes
//! on. The leader sends the entry to the others while its own disk writes it, and no disk delays
//! heartbeats, votes or commits. Durability is guaranteed at the two places where a replica
//! acknowledges something:
//!
//! - **A follower answers** an append only after its disk has all that it took until then
//!   ([`Acks::wait_own`]). So an answer of another replica means that its disk has the entries.
//! - **A leader passes an answer to openraft** only when its own disk, or enough of the others,
//!   have the entry, too ([`Acks::wait_durable`]).
//!
//! Why that is enough. openraft commits an entry of the leader's term when the leader, which it
//! counts at once, and enough others to make a quorum have it. So it needs at least one answer of
//! another replica. (A group of one has no others: there openraft waits for the disk.) Take the
//! answer that made it commit. Either the leader's own disk had the entry when that answer was
//! passed on; then the quorum that openraft counts is one of disks. Or a quorum of the others had
//! it. Either way the disks of a quorum have the entry before it is delivered. Any later leader is
//! elected by a replica that has it.
//!
//! Nobody counted what a crash takes from the memory of a leader. The leader gave no answer for
//! itself, and after every start it must be elected in a new term. So no entry ever gets the log id
//! of one that was lost. What a crash takes from a follower was not answered. Votes, truncations
//! and entries go to the disk in the order in which openraft wants them (see [`crate::disk`]). A
//! vote is not given before the disk has it. The status of a replica (see [`crate::bootstrap`]) is
//! that of its disk. Being too careful is harmless. With entries in memory only, a replica votes
//! for fewer candidates. If it is elected with them, they are committed with its first own entry,
//! behind which its disk has them all.

use std::collections::BTreeSet;

use openraft::{LogId, Vote};
use thiserror::Error;
use tokio::sync::watch;

use crate::types::NodeId;

/// The acknowledgements that one replica knows of.
#[derive(Debug)]
pub struct Acks {
    state: watch::Sender<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Number of the last write that the own disk has.
    synced: u64,
    /// Whether the own disk is not used any more.
    is_failed: bool,
    /// The leader's vote under which the others answered, and the last entry that each has.
    vote: Vote<NodeId>,
    others: Vec<(NodeId, LogId<NodeId>)>,
    /// The voters of the newest membership in the log; none while there are two sets of them, or
    /// if they are not known.
    voters: Option<BTreeSet<NodeId>>,
}

/// The own disk is not used any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("the replica's own disk failed")]
pub struct DiskFailed;

impl Acks {
    /// Before the first acknowledgement; the voters are not known. `synced` is the number of the
    /// last write so far.
    pub fn new(synced: u64) -> Acks {
        Acks { state: watch::Sender::new(State { synced, ..State::default() }) }
    }

    /// The voters of the newest membership in the own log. Called before any entry behind that
    /// membership is acknowledged, so that no quorum of other voters is taken for one of these.
    pub fn set_voters(&self, voters: Option<BTreeSet<NodeId>>) {
        self.state.send_modify(|state| state.voters = voters);
    }

    /// The own disk has everything up to this write.
    pub fn set_synced(&self, write: u64) {
        self.state.send_modify(|state| {
            assert!(write >= state.synced, "a disk does not lose what it synced");
            state.synced = write;
        });
    }

    /// The own disk is not used any more.
    pub fn set_failed(&self) {
        self.state.send_modify(|state| state.is_failed = true);
    }

    /// Another replica has everything up to `last`; it answered so to the leader with this vote.
    pub fn record(&self, vote: Vote<NodeId>, other: NodeId, last: LogId<NodeId>) {
        self.state.send_if_modified(|state| {
            if state.vote != vote {
                state.others.clear();
                state.vote = vote;
            }
            match state.others.iter_mut().find(|(id, _)| *id == other) {
                Some((_, known)) if *known >= last => return false,
                Some((_, known)) => *known = last,
                None => state.others.push((other, last)),
            }
            true
        });
    }

    /// Another replica has perhaps been restarted: its acknowledgements do not count any more.
    pub fn forget(&self, other: NodeId) {
        self.state.send_if_modified(|state| {
            state.others.retain(|(id, _)| *id != other);
            false
        });
    }

    /// Waits until the own disk has this write.
    ///
    /// # Errors
    /// If it never will.
    pub async fn wait_own(&self, write: u64) -> Result<(), DiskFailed> {
        self.wait_until(|state| state.synced >= write).await
    }

    /// Waits until an answer for `last` may be counted at the leader with this vote, whose own
    /// write of the entry it was: when its disk, or a quorum of the others, has it.
    ///
    /// # Errors
    /// If the own disk is not used any more.
    pub async fn wait_durable(
        &self,
        write: u64,
        vote: Vote<NodeId>,
        last: LogId<NodeId>,
    ) -> Result<(), DiskFailed> {
        self.wait_until(|state| {
            let has_quorum = state.voters.as_ref().is_some_and(|voters| {
                let have =
                    |(id, known): &&(NodeId, LogId<NodeId>)| *known >= last && voters.contains(id);
                state.others.iter().filter(have).count() > voters.len() / 2
            });
            state.synced >= write || state.vote == vote && has_quorum
        })
        .await
    }

    /// Waits until the own disk is not used any more.
    pub async fn wait_failed(&self) {
        let _ = self.state.subscribe().wait_for(|state| state.is_failed).await;
    }

    async fn wait_until(&self, is_reached: impl Fn(&State) -> bool) -> Result<(), DiskFailed> {
        // The common case needs no receiver.
        if !self.state.borrow().is_failed && is_reached(&self.state.borrow()) {
            return Ok(());
        }
        let mut changes = self.state.subscribe();
        let state = changes.wait_for(|state| state.is_failed || is_reached(state)).await;
        match state {
            Ok(state) if !state.is_failed => Ok(()),
            _ => Err(DiskFailed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use openraft::CommittedLeaderId;
    use std::future::Future;
    use std::task::{Context, Waker};

    fn is_done(future: impl Future<Output = Result<(), DiskFailed>>) -> Option<bool> {
        let polled = std::pin::pin!(future).poll(&mut Context::from_waker(Waker::noop()));
        match polled {
            std::task::Poll::Ready(result) => Some(result.is_ok()),
            std::task::Poll::Pending => None,
        }
    }

    #[test]
    fn entry_is_durable_on_the_own_disk_or_on_a_quorum_of_others() {
        let vote = Vote::new_committed(3, 1);
        let at = |index: u64| LogId::new(CommittedLeaderId::new(3, 1), index);
        let acks = Acks::new(10);
        acks.set_voters(Some(BTreeSet::from([1, 2, 3])));
        assert_eq!(is_done(acks.wait_durable(10, vote, at(7))), Some(true));
        assert_eq!(is_done(acks.wait_durable(11, vote, at(8))), None);
        acks.record(vote, 2, at(8));
        assert_eq!(is_done(acks.wait_durable(11, vote, at(8))), None, "one other and no own disk");
        acks.record(vote, 3, at(9));
        assert_eq!(
            is_done(acks.wait_durable(11, vote, at(8))),
            Some(true),
            "two others are a quorum"
        );
        assert_eq!(is_done(acks.wait_durable(12, vote, at(9))), None);
        // Replica 3 is being replaced: who is a quorum depends on two sets of voters.
        acks.set_voters(None);
        assert_eq!(is_done(acks.wait_durable(11, vote, at(8))), None);
        acks.set_voters(Some(BTreeSet::from([1, 2, 4])));
        assert_eq!(is_done(acks.wait_durable(11, vote, at(8))), None, "3 is no voter");
        acks.set_voters(Some(BTreeSet::from([1, 2, 3])));
        assert_eq!(is_done(acks.wait_durable(11, vote, at(8))), Some(true));
        // Replica 2 was restarted, perhaps without its state.
        acks.forget(2);
        assert_eq!(is_done(acks.wait_durable(11, vote, at(8))), None);
        // Answers to an earlier leader do not count for a later one.
        acks.record(vote, 2, at(8));
        let later = Vote::new_committed(4, 1);
        acks.record(later, 2, at(8));
        assert_eq!(is_done(acks.wait_durable(11, later, at(8))), None);
        acks.set_synced(11);
        assert_eq!(is_done(acks.wait_durable(11, later, at(8))), Some(true));
        assert_eq!(is_done(acks.wait_own(11)), Some(true));
        acks.set_failed();
        assert_eq!(is_done(acks.wait_own(11)), Some(false));
        assert_eq!(is_done(acks.wait_durable(11, later, at(8))), Some(false));
    }
}
