//! What replicas say to each other, and what they keep, as bytes: little-endian, hand-written.

use std::collections::{BTreeMap, BTreeSet};

use nm_codec::{Fields, Meaningless};
use openraft::raft::{AppendEntriesRequest, AppendEntriesResponse, VoteRequest, VoteResponse};
use openraft::{
    CommittedLeaderId, EmptyNode, Entry, EntryPayload, LogId, Membership, SnapshotMeta,
    StoredMembership, Vote,
};

use super::Shared;
use super::raft::{NodeId, Types};
use crate::journal::RecordKind;

/// A value that can be written and read back.
pub trait Coded: Sized {
    fn put(&self, out: &mut Vec<u8>);
    fn read(from: &mut Fields<'_>) -> Result<Self, Meaningless>;

    fn bytes(&self) -> Vec<u8> {
        let mut out = vec![];
        self.put(&mut out);
        out
    }

    /// The value whose bytes are exactly these.
    fn whole(bytes: &[u8]) -> Result<Self, Meaningless> {
        let mut fields = Fields(bytes);
        let value = Self::read(&mut fields)?;
        if fields.0.is_empty() { Ok(value) } else { Err(Meaningless) }
    }
}

impl Coded for u64 {
    fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.to_le_bytes());
    }

    fn read(from: &mut Fields<'_>) -> Result<u64, Meaningless> {
        from.u64()
    }
}

impl Coded for bool {
    fn put(&self, out: &mut Vec<u8>) {
        out.push(u8::from(*self));
    }

    fn read(from: &mut Fields<'_>) -> Result<bool, Meaningless> {
        match from.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Meaningless),
        }
    }
}

impl Coded for Shared {
    fn put(&self, out: &mut Vec<u8>) {
        (self.len() as u64).put(out);
        out.extend_from_slice(self);
    }

    fn read(from: &mut Fields<'_>) -> Result<Shared, Meaningless> {
        let length = usize::try_from(from.u64()?).map_err(|_| Meaningless)?;
        Ok(Shared(from.bytes(length)?.to_vec().into()))
    }
}

impl<T: Coded> Coded for Option<T> {
    fn put(&self, out: &mut Vec<u8>) {
        self.is_some().put(out);
        if let Some(value) = self {
            value.put(out);
        }
    }

    fn read(from: &mut Fields<'_>) -> Result<Option<T>, Meaningless> {
        if bool::read(from)? { T::read(from).map(Some) } else { Ok(None) }
    }
}

impl<T: Coded> Coded for Vec<T> {
    fn put(&self, out: &mut Vec<u8>) {
        (self.len() as u64).put(out);
        for value in self {
            value.put(out);
        }
    }

    fn read(from: &mut Fields<'_>) -> Result<Vec<T>, Meaningless> {
        // Every value has at least a byte, so that a wrong count ends at the end of the bytes.
        (0..from.u64()?).map(|_| T::read(from)).collect()
    }
}

impl Coded for LogId<NodeId> {
    fn put(&self, out: &mut Vec<u8>) {
        for number in [self.leader_id.term, self.leader_id.node_id, self.index] {
            number.put(out);
        }
    }

    fn read(from: &mut Fields<'_>) -> Result<LogId<NodeId>, Meaningless> {
        let leader = CommittedLeaderId::new(from.u64()?, from.u64()?);
        Ok(LogId::new(leader, from.u64()?))
    }
}

impl Coded for Vote<NodeId> {
    fn put(&self, out: &mut Vec<u8>) {
        self.leader_id.term.put(out);
        self.leader_id.node_id.put(out);
        self.committed.put(out);
    }

    fn read(from: &mut Fields<'_>) -> Result<Vote<NodeId>, Meaningless> {
        let mut vote = Vote::new(from.u64()?, from.u64()?);
        vote.committed = bool::read(from)?;
        Ok(vote)
    }
}

impl Coded for Membership<NodeId, EmptyNode> {
    fn put(&self, out: &mut Vec<u8>) {
        let configs = self.get_joint_config();
        (configs.len() as u64).put(out);
        for config in configs {
            config.iter().copied().collect::<Vec<NodeId>>().put(out);
        }
        self.nodes().map(|(id, _)| *id).collect::<Vec<NodeId>>().put(out);
    }

    fn read(from: &mut Fields<'_>) -> Result<Membership<NodeId, EmptyNode>, Meaningless> {
        let configs: Result<Vec<BTreeSet<NodeId>>, Meaningless> =
            (0..from.u64()?).map(|_| Ok(Vec::read(from)?.into_iter().collect())).collect();
        let nodes: BTreeMap<NodeId, EmptyNode> =
            Vec::read(from)?.into_iter().map(|id| (id, EmptyNode::new())).collect();
        Ok(Membership::new(configs?, nodes))
    }
}

impl Coded for SnapshotMeta<NodeId, EmptyNode> {
    fn put(&self, out: &mut Vec<u8>) {
        self.last_log_id.put(out);
        self.last_membership.log_id().put(out);
        self.last_membership.membership().put(out);
        Shared(self.snapshot_id.clone().into_bytes().into()).put(out);
    }

    fn read(from: &mut Fields<'_>) -> Result<SnapshotMeta<NodeId, EmptyNode>, Meaningless> {
        let last_log_id = Option::read(from)?;
        let last_membership = StoredMembership::new(Option::read(from)?, Membership::read(from)?);
        let id = Shared::read(from)?.to_vec();
        let snapshot_id = String::from_utf8(id).map_err(|_| Meaningless)?;
        Ok(SnapshotMeta { last_log_id, last_membership, snapshot_id })
    }
}

/// An entry's content as it goes into the journal, after its kind.
pub fn content(entry: &Entry<Types>) -> (RecordKind, Shared) {
    match &entry.payload {
        EntryPayload::Blank => (RecordKind::Blank, Shared::default()),
        EntryPayload::Normal(batch) => (RecordKind::Batch, batch.clone()),
        EntryPayload::Membership(members) => (RecordKind::Members, Shared(members.bytes().into())),
    }
}

/// The entry with this kind and content.
///
/// # Errors
/// If it is none.
pub fn entry(
    log_id: LogId<NodeId>,
    kind: RecordKind,
    content: Shared,
) -> Result<Entry<Types>, Meaningless> {
    let payload = match kind {
        RecordKind::Blank => EntryPayload::Blank,
        RecordKind::Batch => EntryPayload::Normal(content),
        RecordKind::Members => EntryPayload::Membership(Membership::whole(&content)?),
        RecordKind::Missed => return Err(Meaningless),
    };
    Ok(Entry { log_id, payload })
}

impl Coded for Entry<Types> {
    fn put(&self, out: &mut Vec<u8>) {
        let (kind, content) = content(self);
        self.log_id.put(out);
        out.push(kind.code());
        content.put(out);
    }

    fn read(from: &mut Fields<'_>) -> Result<Entry<Types>, Meaningless> {
        let log_id = LogId::read(from)?;
        let kind = RecordKind::from_code("kind", from.u8()?)?;
        entry(log_id, kind, Shared::read(from)?)
    }
}

impl Coded for AppendEntriesRequest<Types> {
    fn put(&self, out: &mut Vec<u8>) {
        self.vote.put(out);
        self.prev_log_id.put(out);
        self.leader_commit.put(out);
        self.entries.put(out);
    }

    fn read(from: &mut Fields<'_>) -> Result<AppendEntriesRequest<Types>, Meaningless> {
        let (vote, prev_log_id) = (Vote::read(from)?, Option::read(from)?);
        let (leader_commit, entries) = (Option::read(from)?, Vec::read(from)?);
        Ok(AppendEntriesRequest { vote, prev_log_id, entries, leader_commit })
    }
}

impl Coded for AppendEntriesResponse<NodeId> {
    fn put(&self, out: &mut Vec<u8>) {
        match self {
            AppendEntriesResponse::Success => out.push(0),
            AppendEntriesResponse::PartialSuccess(matching) => {
                out.push(1);
                matching.put(out);
            }
            AppendEntriesResponse::Conflict => out.push(2),
            AppendEntriesResponse::HigherVote(vote) => {
                out.push(3);
                vote.put(out);
            }
        }
    }

    fn read(from: &mut Fields<'_>) -> Result<AppendEntriesResponse<NodeId>, Meaningless> {
        Ok(match from.u8()? {
            0 => AppendEntriesResponse::Success,
            1 => AppendEntriesResponse::PartialSuccess(Option::read(from)?),
            2 => AppendEntriesResponse::Conflict,
            3 => AppendEntriesResponse::HigherVote(Vote::read(from)?),
            _ => return Err(Meaningless),
        })
    }
}

impl Coded for VoteRequest<NodeId> {
    fn put(&self, out: &mut Vec<u8>) {
        self.vote.put(out);
        self.last_log_id.put(out);
    }

    fn read(from: &mut Fields<'_>) -> Result<VoteRequest<NodeId>, Meaningless> {
        Ok(VoteRequest { vote: Vote::read(from)?, last_log_id: Option::read(from)? })
    }
}

impl Coded for VoteResponse<NodeId> {
    fn put(&self, out: &mut Vec<u8>) {
        self.vote.put(out);
        self.vote_granted.put(out);
        self.last_log_id.put(out);
    }

    fn read(from: &mut Fields<'_>) -> Result<VoteResponse<NodeId>, Meaningless> {
        let (vote, vote_granted) = (Vote::read(from)?, bool::read(from)?);
        Ok(VoteResponse { vote, vote_granted, last_log_id: Option::read(from)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn log_id(term: u64, node: u64, index: u64) -> LogId<NodeId> {
        LogId::new(CommittedLeaderId::new(term, node), index)
    }

    #[test]
    fn messages_come_back() {
        let members = Membership::new(vec![BTreeSet::from([1, 2, 3])], ());
        let entries = vec![
            Entry { log_id: log_id(0, 0, 0), payload: EntryPayload::Membership(members.clone()) },
            Entry { log_id: log_id(3, 2, 1), payload: EntryPayload::Blank },
            Entry {
                log_id: log_id(3, 2, 2),
                payload: EntryPayload::Normal(Shared(vec![1, 2, 3].into())),
            },
        ];
        let append = AppendEntriesRequest::<Types> {
            vote: Vote::new_committed(3, 2),
            prev_log_id: Some(log_id(2, 1, 7)),
            leader_commit: None,
            entries: entries.clone(),
        };
        let back = AppendEntriesRequest::<Types>::whole(&append.bytes()).unwrap();
        assert_eq!((back.vote, back.prev_log_id), (append.vote, append.prev_log_id));
        assert_eq!((back.leader_commit, back.entries), (None, entries));
        let meta = SnapshotMeta {
            last_log_id: Some(log_id(3, 2, 9)),
            last_membership: StoredMembership::new(Some(log_id(0, 0, 0)), members),
            snapshot_id: "3-2-9".to_string(),
        };
        assert_eq!(SnapshotMeta::whole(&meta.bytes()), Ok(meta));
        for answer in [
            AppendEntriesResponse::Success,
            AppendEntriesResponse::PartialSuccess(Some(log_id(1, 1, 1))),
            AppendEntriesResponse::Conflict,
            AppendEntriesResponse::HigherVote(Vote::new(5, 3)),
        ] {
            assert_eq!(AppendEntriesResponse::whole(&answer.bytes()), Ok(answer));
        }
        let asked = VoteRequest { vote: Vote::new(1, 2), last_log_id: Some(log_id(1, 2, 3)) };
        assert_eq!(VoteRequest::whole(&asked.bytes()), Ok(asked));
        let answer = VoteResponse { vote: Vote::new(1, 2), vote_granted: true, last_log_id: None };
        assert_eq!(VoteResponse::whole(&answer.bytes()), Ok(answer));
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_message_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = AppendEntriesRequest::<Types>::whole(&bytes);
            let _ = AppendEntriesResponse::whole(&bytes);
            let _ = VoteRequest::whole(&bytes);
            let _ = VoteResponse::whole(&bytes);
            let _ = SnapshotMeta::whole(&bytes);
            let _ = Vec::<Entry<Types>>::whole(&bytes);
        }
    }
}
