//! What may count for a quorum: which replicas have an entry where the group keeps its entries.
//!
//! openraft is told that a replica's own log has an entry as soon as it is in memory, and goes on:
//! the leader sends the entry to the others while its own disk is at it, and no disk holds up
//! heartbeats, votes or what is committed. The promise is kept at the two places where somebody is
//! told that a replica has something:
//!
//! - **A follower answers** an append only after its disk has all that it took until then
//!   ([`Acks::own`]). So what a leader hears of others is what their disks have.
//! - **A leader hands an answer to openraft** only when its own disk, or enough of the others,
//!   have the entry, too ([`Acks::counted`]).
//!
//! Why that is enough. openraft commits an entry of the leader's term when the leader, whom it
//! believes at once, and enough others to make a quorum have it; so it needs at least one answer of
//! another replica (a group of one has no others: there openraft waits for the disk). Take the
//! answer that made it commit. Either the leader's own disk had the entry when that answer was
//! handed on; then the quorum that openraft counts is one of disks. Or a quorum of the others had
//! it. Either way the disks of a quorum have the entry before anybody is told, and any later leader
//! is elected by a replica that has it.
//!
//! What a crash takes from the memory of a leader was counted by nobody: the leader gave no answer
//! for itself, and with every start it must be elected in a new term, so that no entry ever gets
//! the name of one that was lost. What it takes from a follower was not answered. Votes, cuts and
//! entries go to the disk in the order in which openraft asks for them (see [`super::disk`]), and a
//! vote is not given before the disk has it. How a replica stands (see [`super::birth`]) is told by
//! what its disk has. Being too careful is harmless: with entries in memory only, a replica votes
//! for fewer candidates; if it is elected with them, they are committed with its first own entry,
//! behind which its disk has them all.

use openraft::{LogId, Vote};
use tokio::sync::watch;

use super::raft::NodeId;

/// Who has what, at one replica.
#[derive(Debug)]
pub struct Acks {
    state: watch::Sender<State>,
    members: usize,
}

#[derive(Debug, Default)]
struct State {
    /// Number of the last write that the own disk has.
    synced: u64,
    /// Whether the own disk is not used any more.
    is_failed: bool,
    /// The leader's vote under which the others answered, and what each of them has.
    vote: Vote<NodeId>,
    others: Vec<(NodeId, LogId<NodeId>)>,
}

/// The own disk is not used any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiskFailed;

impl Acks {
    /// For a group of so many members. `synced` is the number of the last write so far.
    pub fn new(members: usize, synced: u64) -> Acks {
        let state = State { synced, ..State::default() };
        Acks { state: watch::Sender::new(state), members }
    }

    /// The own disk has everything up to this write.
    pub fn synced(&self, write: u64) {
        self.state.send_modify(|state| state.synced = write);
    }

    /// The own disk is not used any more.
    pub fn fail(&self) {
        self.state.send_modify(|state| state.is_failed = true);
    }

    /// Another replica has everything up to `last`; it answered so to the leader with this vote.
    pub fn note(&self, vote: Vote<NodeId>, other: NodeId, last: LogId<NodeId>) {
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

    /// What another replica has is not known any more: perhaps it was started again.
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
    pub async fn own(&self, write: u64) -> Result<(), DiskFailed> {
        self.until(|state| state.synced >= write).await
    }

    /// Waits until `last` may be counted at the leader with this vote, whose own write it was: when
    /// its disk, or a quorum of the others, has it.
    ///
    /// # Errors
    /// If the own disk is not used any more.
    pub async fn counted(
        &self,
        write: u64,
        vote: Vote<NodeId>,
        last: LogId<NodeId>,
    ) -> Result<(), DiskFailed> {
        let quorum = self.members / 2 + 1;
        self.until(|state| {
            let have = state.others.iter().filter(|(_, known)| *known >= last).count();
            state.synced >= write || state.vote == vote && have >= quorum
        })
        .await
    }

    /// Waits until the own disk is not used any more.
    pub async fn failed(&self) {
        let _ = self.state.subscribe().wait_for(|state| state.is_failed).await;
    }

    async fn until(&self, is_so: impl Fn(&State) -> bool) -> Result<(), DiskFailed> {
        // The common case takes no receiver.
        if !self.state.borrow().is_failed && is_so(&self.state.borrow()) {
            return Ok(());
        }
        let mut changes = self.state.subscribe();
        let state = changes.wait_for(|state| state.is_failed || is_so(state)).await;
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
    fn an_entry_counts_with_the_own_disk_or_a_quorum_of_others() {
        let vote = Vote::new_committed(3, 1);
        let at = |index: u64| LogId::new(CommittedLeaderId::new(3, 1), index);
        let acks = Acks::new(3, 10);
        assert_eq!(is_done(acks.counted(10, vote, at(7))), Some(true));
        assert_eq!(is_done(acks.counted(11, vote, at(8))), None);
        acks.note(vote, 2, at(8));
        assert_eq!(is_done(acks.counted(11, vote, at(8))), None, "one other and no own disk");
        acks.note(vote, 3, at(9));
        assert_eq!(is_done(acks.counted(11, vote, at(8))), Some(true), "two others are a quorum");
        assert_eq!(is_done(acks.counted(12, vote, at(9))), None);
        // Replica 2 was started again, perhaps without a memory.
        acks.forget(2);
        assert_eq!(is_done(acks.counted(11, vote, at(8))), None);
        // Answers to an earlier leader do not count for a later one.
        acks.note(vote, 2, at(8));
        let later = Vote::new_committed(4, 1);
        acks.note(later, 2, at(8));
        assert_eq!(is_done(acks.counted(11, later, at(8))), None);
        acks.synced(11);
        assert_eq!(is_done(acks.counted(11, later, at(8))), Some(true));
        assert_eq!(is_done(acks.own(11)), Some(true));
        acks.fail();
        assert_eq!(is_done(acks.own(11)), Some(false));
        assert_eq!(is_done(acks.counted(11, later, at(8))), Some(false));
    }
}
