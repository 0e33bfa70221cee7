//! openraft's types as bytes: the bodies of frames between replicas, and what replicas keep.

use std::collections::{BTreeMap, BTreeSet};

use nm_codec::{DecodeError, Put, Reader};
use openraft::raft::{AppendEntriesRequest, AppendEntriesResponse, VoteRequest, VoteResponse};
use openraft::{
    CommittedLeaderId, EmptyNode, Entry, EntryPayload, LogId, Membership, SnapshotMeta,
    StoredMembership, Vote,
};

use crate::group::Shared;
use crate::journal::RecordKind;
use crate::types::{NodeId, Types};

/// A value with a binary form.
pub trait Encode: Sized {
    /// Appends the value.
    fn encode(&self, out: &mut Vec<u8>);

    /// Reads a value; `field` is its name for errors, where it has no fields of its own.
    fn decode(from: &mut Reader<'_>, field: &'static str) -> Result<Self, DecodeError>;

    /// The value alone.
    fn to_bytes(&self) -> Vec<u8> {
        let mut out = vec![];
        self.encode(&mut out);
        out
    }

    /// The value whose bytes are exactly these.
    fn from_bytes(bytes: &[u8], field: &'static str) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(bytes);
        let value = Self::decode(&mut reader, field)?;
        reader.finish(field)?;
        Ok(value)
    }
}

impl Encode for () {
    fn encode(&self, _: &mut Vec<u8>) {}

    fn decode(_: &mut Reader<'_>, _: &'static str) -> Result<(), DecodeError> {
        Ok(())
    }
}

impl Encode for u64 {
    fn encode(&self, out: &mut Vec<u8>) {
        out.put_u64(*self);
    }

    fn decode(from: &mut Reader<'_>, field: &'static str) -> Result<u64, DecodeError> {
        from.u64(field)
    }
}

impl Encode for bool {
    fn encode(&self, out: &mut Vec<u8>) {
        out.put_bool(*self);
    }

    fn decode(from: &mut Reader<'_>, field: &'static str) -> Result<bool, DecodeError> {
        from.bool(field)
    }
}

impl Encode for Shared {
    fn encode(&self, out: &mut Vec<u8>) {
        out.put_u64(self.len() as u64);
        out.put(self);
    }

    fn decode(from: &mut Reader<'_>, field: &'static str) -> Result<Shared, DecodeError> {
        // A length that is too large for memory is longer than the bytes.
        let length = usize::try_from(from.u64(field)?).unwrap_or(usize::MAX);
        Ok(Shared(from.bytes(field, length)?.to_vec().into()))
    }
}

impl<T: Encode> Encode for Option<T> {
    fn encode(&self, out: &mut Vec<u8>) {
        out.put_bool(self.is_some());
        if let Some(value) = self {
            value.encode(out);
        }
    }

    fn decode(from: &mut Reader<'_>, field: &'static str) -> Result<Option<T>, DecodeError> {
        if from.bool(field)? { T::decode(from, field).map(Some) } else { Ok(None) }
    }
}

impl<T: Encode> Encode for Vec<T> {
    fn encode(&self, out: &mut Vec<u8>) {
        out.put_u64(self.len() as u64);
        for value in self {
            value.encode(out);
        }
    }

    fn decode(from: &mut Reader<'_>, field: &'static str) -> Result<Vec<T>, DecodeError> {
        // Every value has at least a byte, so that a wrong count ends at the end of the bytes.
        (0..from.u64(field)?).map(|_| T::decode(from, field)).collect()
    }
}

impl Encode for LogId<NodeId> {
    fn encode(&self, out: &mut Vec<u8>) {
        out.put_u64(self.leader_id.term);
        out.put_u64(self.leader_id.node_id);
        out.put_u64(self.index);
    }

    fn decode(from: &mut Reader<'_>, _: &'static str) -> Result<LogId<NodeId>, DecodeError> {
        let leader = CommittedLeaderId::new(from.u64("entry term")?, from.u64("entry leader")?);
        Ok(LogId::new(leader, from.u64("entry index")?))
    }
}

impl Encode for Vote<NodeId> {
    fn encode(&self, out: &mut Vec<u8>) {
        out.put_u64(self.leader_id.term);
        out.put_u64(self.leader_id.node_id);
        out.put_bool(self.committed);
    }

    fn decode(from: &mut Reader<'_>, _: &'static str) -> Result<Vote<NodeId>, DecodeError> {
        let mut vote = Vote::new(from.u64("vote term")?, from.u64("vote candidate")?);
        vote.committed = from.bool("vote committed")?;
        Ok(vote)
    }
}

impl Encode for Membership<NodeId, EmptyNode> {
    fn encode(&self, out: &mut Vec<u8>) {
        let configs = self.get_joint_config();
        out.put_u64(configs.len() as u64);
        for config in configs {
            config.iter().copied().collect::<Vec<NodeId>>().encode(out);
        }
        self.nodes().map(|(id, _)| *id).collect::<Vec<NodeId>>().encode(out);
    }

    fn decode(
        from: &mut Reader<'_>,
        _: &'static str,
    ) -> Result<Membership<NodeId, EmptyNode>, DecodeError> {
        let configs: Result<Vec<BTreeSet<NodeId>>, DecodeError> = (0..from.u64("voter sets")?)
            .map(|_| Ok(Vec::decode(from, "voters")?.into_iter().collect()))
            .collect();
        let configs = configs?;
        let nodes: BTreeMap<NodeId, EmptyNode> =
            Vec::decode(from, "nodes")?.into_iter().map(|id| (id, EmptyNode::new())).collect();
        Ok(Membership::new(configs, nodes))
    }
}

impl Encode for StoredMembership<NodeId, EmptyNode> {
    fn encode(&self, out: &mut Vec<u8>) {
        self.log_id().encode(out);
        self.membership().encode(out);
    }

    fn decode(
        from: &mut Reader<'_>,
        _: &'static str,
    ) -> Result<StoredMembership<NodeId, EmptyNode>, DecodeError> {
        let log_id = Option::decode(from, "membership entry")?;
        Ok(StoredMembership::new(log_id, Membership::decode(from, "membership")?))
    }
}

impl Encode for SnapshotMeta<NodeId, EmptyNode> {
    fn encode(&self, out: &mut Vec<u8>) {
        self.last_log_id.encode(out);
        self.last_membership.encode(out);
        Shared(self.snapshot_id.clone().into_bytes().into()).encode(out);
    }

    fn decode(
        from: &mut Reader<'_>,
        _: &'static str,
    ) -> Result<SnapshotMeta<NodeId, EmptyNode>, DecodeError> {
        let last_log_id = Option::decode(from, "snapshot last entry")?;
        let last_membership = StoredMembership::decode(from, "membership")?;
        let id = Shared::decode(from, "snapshot id")?.to_vec();
        let snapshot_id = String::from_utf8(id)
            .map_err(|_| DecodeError::invalid("snapshot id", "is not UTF-8"))?;
        Ok(SnapshotMeta { last_log_id, last_membership, snapshot_id })
    }
}

/// The kind and the content of an entry's record in the journal.
pub fn record_of(entry: &Entry<Types>) -> (RecordKind, Shared) {
    match &entry.payload {
        EntryPayload::Blank => (RecordKind::Blank, Shared::default()),
        EntryPayload::Normal(batch) => (RecordKind::Batch, batch.clone()),
        EntryPayload::Membership(members) => {
            (RecordKind::Members, Shared(members.to_bytes().into()))
        }
    }
}

/// The entry of a record with this kind and content, the inverse of [`record_of`].
///
/// # Errors
/// If it is none.
pub fn entry_of(
    log_id: LogId<NodeId>,
    kind: RecordKind,
    content: Shared,
) -> Result<Entry<Types>, DecodeError> {
    let payload = match kind {
        RecordKind::Blank => EntryPayload::Blank,
        RecordKind::Batch => EntryPayload::Normal(content),
        RecordKind::Members => {
            EntryPayload::Membership(Membership::from_bytes(&content, "membership")?)
        }
        RecordKind::Missed => {
            return Err(DecodeError::invalid("entry kind", "stands in recordings only"));
        }
    };
    Ok(Entry { log_id, payload })
}

impl Encode for Entry<Types> {
    fn encode(&self, out: &mut Vec<u8>) {
        let (kind, content) = record_of(self);
        self.log_id.encode(out);
        out.put_u8(kind.code());
        content.encode(out);
    }

    fn decode(from: &mut Reader<'_>, _: &'static str) -> Result<Entry<Types>, DecodeError> {
        let log_id = LogId::decode(from, "entry")?;
        let kind = RecordKind::from_code("entry kind", from.u8("entry kind")?)?;
        entry_of(log_id, kind, Shared::decode(from, "entry content")?)
    }
}

impl Encode for AppendEntriesRequest<Types> {
    fn encode(&self, out: &mut Vec<u8>) {
        self.vote.encode(out);
        self.prev_log_id.encode(out);
        self.leader_commit.encode(out);
        self.entries.encode(out);
    }

    fn decode(
        from: &mut Reader<'_>,
        _: &'static str,
    ) -> Result<AppendEntriesRequest<Types>, DecodeError> {
        Ok(AppendEntriesRequest {
            vote: Vote::decode(from, "vote")?,
            prev_log_id: Option::decode(from, "previous entry")?,
            leader_commit: Option::decode(from, "commit index")?,
            entries: Vec::decode(from, "entries")?,
        })
    }
}

/// Codes of the answers to an append.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AppendAnswer {
    Success,
    PartialSuccess,
    Conflict,
    HigherVote,
}

nm_codec::codes!(AppendAnswer { Success = 0, PartialSuccess = 1, Conflict = 2, HigherVote = 3 });

impl Encode for AppendEntriesResponse<NodeId> {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            AppendEntriesResponse::Success => out.put_u8(AppendAnswer::Success.code()),
            AppendEntriesResponse::PartialSuccess(matching) => {
                out.put_u8(AppendAnswer::PartialSuccess.code());
                matching.encode(out);
            }
            AppendEntriesResponse::Conflict => out.put_u8(AppendAnswer::Conflict.code()),
            AppendEntriesResponse::HigherVote(vote) => {
                out.put_u8(AppendAnswer::HigherVote.code());
                vote.encode(out);
            }
        }
    }

    fn decode(
        from: &mut Reader<'_>,
        _: &'static str,
    ) -> Result<AppendEntriesResponse<NodeId>, DecodeError> {
        const FIELD: &str = "append answer";
        Ok(match AppendAnswer::from_code(FIELD, from.u8(FIELD)?)? {
            AppendAnswer::Success => AppendEntriesResponse::Success,
            AppendAnswer::PartialSuccess => {
                AppendEntriesResponse::PartialSuccess(Option::decode(from, "matching entry")?)
            }
            AppendAnswer::Conflict => AppendEntriesResponse::Conflict,
            AppendAnswer::HigherVote => {
                AppendEntriesResponse::HigherVote(Vote::decode(from, "vote")?)
            }
        })
    }
}

impl Encode for VoteRequest<NodeId> {
    fn encode(&self, out: &mut Vec<u8>) {
        self.vote.encode(out);
        self.last_log_id.encode(out);
    }

    fn decode(from: &mut Reader<'_>, _: &'static str) -> Result<VoteRequest<NodeId>, DecodeError> {
        Ok(VoteRequest {
            vote: Vote::decode(from, "vote")?,
            last_log_id: Option::decode(from, "last entry")?,
        })
    }
}

impl Encode for VoteResponse<NodeId> {
    fn encode(&self, out: &mut Vec<u8>) {
        self.vote.encode(out);
        self.vote_granted.encode(out);
        self.last_log_id.encode(out);
    }

    fn decode(from: &mut Reader<'_>, _: &'static str) -> Result<VoteResponse<NodeId>, DecodeError> {
        Ok(VoteResponse {
            vote: Vote::decode(from, "vote")?,
            vote_granted: from.bool("vote granted")?,
            last_log_id: Option::decode(from, "last entry")?,
        })
    }
}

#[cfg(test)]
pub mod strategies {
    //! Any values, for property tests.

    use proptest::prelude::*;
    use proptest::strategy::LazyJust;

    use super::*;

    pub fn log_id() -> impl Strategy<Value = LogId<NodeId>> {
        let numbers = any::<(u64, u64, u64)>();
        numbers
            .prop_map(|(term, node, index)| LogId::new(CommittedLeaderId::new(term, node), index))
    }

    pub fn vote() -> impl Strategy<Value = Vote<NodeId>> {
        any::<(u64, u64, bool)>().prop_map(|(term, node, committed)| {
            let mut vote = Vote::new(term, node);
            vote.committed = committed;
            vote
        })
    }

    pub fn membership() -> impl Strategy<Value = Membership<NodeId, EmptyNode>> {
        let set = prop::collection::btree_set(any::<u64>(), 1..4);
        prop::collection::vec(set, 1..3).prop_map(|configs| Membership::new(configs, ()))
    }

    fn entry() -> impl Strategy<Value = Entry<Types>> {
        let payload = prop_oneof![
            Just(EntryPayload::Blank),
            prop::collection::vec(any::<u8>(), 0..40)
                .prop_map(|batch| EntryPayload::Normal(Shared(batch.into()))),
            membership().prop_map(EntryPayload::Membership),
        ];
        (log_id(), payload).prop_map(|(log_id, payload)| Entry { log_id, payload })
    }

    pub fn append_request() -> impl Strategy<Value = AppendEntriesRequest<Types>> {
        let ids = (prop::option::of(log_id()), prop::option::of(log_id()));
        (vote(), ids, prop::collection::vec(entry(), 0..5)).prop_map(
            |(vote, (prev_log_id, leader_commit), entries)| AppendEntriesRequest {
                vote,
                prev_log_id,
                leader_commit,
                entries,
            },
        )
    }

    pub fn append_response() -> impl Strategy<Value = AppendEntriesResponse<NodeId>> {
        prop_oneof![
            LazyJust::new(|| AppendEntriesResponse::Success),
            prop::option::of(log_id()).prop_map(AppendEntriesResponse::PartialSuccess),
            LazyJust::new(|| AppendEntriesResponse::Conflict),
            vote().prop_map(AppendEntriesResponse::HigherVote),
        ]
    }

    pub fn vote_request() -> impl Strategy<Value = VoteRequest<NodeId>> {
        (vote(), prop::option::of(log_id()))
            .prop_map(|(vote, last_log_id)| VoteRequest { vote, last_log_id })
    }

    pub fn vote_response() -> impl Strategy<Value = VoteResponse<NodeId>> {
        (vote(), any::<bool>(), prop::option::of(log_id())).prop_map(
            |(vote, vote_granted, last_log_id)| VoteResponse { vote, vote_granted, last_log_id },
        )
    }

    pub fn snapshot_meta() -> impl Strategy<Value = SnapshotMeta<NodeId, EmptyNode>> {
        let ids = (prop::option::of(log_id()), prop::option::of(log_id()));
        (ids, membership(), "[a-z0-9-]{0,20}").prop_map(
            |((last_log_id, membership_log_id), membership, snapshot_id)| SnapshotMeta {
                last_log_id,
                last_membership: StoredMembership::new(membership_log_id, membership),
                snapshot_id,
            },
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn round_trip<T: Encode + PartialEq + std::fmt::Debug>(value: &T) {
        let bytes = value.to_bytes();
        assert_eq!(T::from_bytes(&bytes, "value").as_ref(), Ok(value));
        for cut in 0..bytes.len() {
            assert!(T::from_bytes(&bytes[..cut], "value").is_err(), "cut at {cut}");
        }
    }

    proptest! {
        #[test]
        fn append_requests_round_trip(request in strategies::append_request()) {
            let bytes = request.to_bytes();
            let back = AppendEntriesRequest::<Types>::from_bytes(&bytes, "request").unwrap();
            prop_assert_eq!(back.vote, request.vote);
            prop_assert_eq!(back.prev_log_id, request.prev_log_id);
            prop_assert_eq!(back.leader_commit, request.leader_commit);
            prop_assert_eq!(back.entries, request.entries);
        }

        #[test]
        fn append_responses_round_trip(response in strategies::append_response()) {
            round_trip(&response);
        }

        #[test]
        fn vote_requests_round_trip(request in strategies::vote_request()) {
            round_trip(&request);
        }

        #[test]
        fn vote_responses_round_trip(response in strategies::vote_response()) {
            round_trip(&response);
        }

        #[test]
        fn snapshot_metas_round_trip(meta in strategies::snapshot_meta()) {
            round_trip(&meta);
        }

        #[test]
        fn any_bytes_are_decoded_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = AppendEntriesRequest::<Types>::from_bytes(&bytes, "request");
            let _ = AppendEntriesResponse::from_bytes(&bytes, "response");
            let _ = VoteRequest::from_bytes(&bytes, "request");
            let _ = VoteResponse::from_bytes(&bytes, "response");
            let _ = SnapshotMeta::from_bytes(&bytes, "meta");
            let _ = Vec::<Entry<Types>>::from_bytes(&bytes, "entries");
        }
    }

    #[test]
    fn errors_name_the_field() {
        let bytes = AppendEntriesResponse::HigherVote(Vote::new(5, 3)).to_bytes();
        let error = AppendEntriesResponse::from_bytes(&bytes[..12], "response").unwrap_err();
        assert_eq!(error, DecodeError::truncated("vote candidate"));
        let error = AppendEntriesResponse::from_bytes(&[9], "response").unwrap_err();
        assert_eq!(error, DecodeError::unknown_code("append answer", 9));
    }
}
