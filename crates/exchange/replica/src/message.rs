//! What replicas ask each other: the kinds of frames, each with its body and its answer.

use nm_codec::{DecodeError, Reader};
use openraft::raft::{AppendEntriesRequest, AppendEntriesResponse, VoteRequest, VoteResponse};
use openraft::{EmptyNode, LogId, SnapshotMeta, StoredMembership, Vote};

use crate::encode::Encode;
use crate::group::Shared;
use crate::types::{NodeId, Types};

/// What a frame is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FrameKind {
    /// Appends entries to the log of a follower. Body: [`AppendEntriesRequest`].
    Append,
    /// Asks for a vote. Body: [`VoteRequest`].
    Vote,
    /// Installs a snapshot. Body: [`InstallSnapshot`].
    InstallSnapshot,
    /// Asks for the [`ReplicaStatus`]. Body: [`StatusRequest`].
    Status,
    /// Asks a replica to start an election unless it has contact with a leader. Body:
    /// [`CampaignRequest`].
    Campaign,
    /// An answer. Body: that of the request's [`Request::Answer`].
    Answer,
    /// The replica cannot answer now. No body.
    Unavailable,
    /// Tells a follower what is committed; there is no answer. Body: [`CommitNotice`].
    Commit,
    /// Asks a node to have a replica of the group. Body: [`JoinRequest`].
    Join,
    /// Asks a replica to find out whether it is still part of the group. Body:
    /// [`CheckMembershipRequest`].
    CheckMembership,
}

nm_codec::codes!(FrameKind {
    Append = 1,
    Vote = 2,
    InstallSnapshot = 3,
    Status = 4,
    Campaign = 5,
    Answer = 6,
    Unavailable = 7,
    Commit = 8,
    Join = 9,
    CheckMembership = 10,
});

/// A request to another replica.
pub trait Request: Encode {
    /// Kind of its frame.
    const KIND: FrameKind;

    /// Body of the answer.
    type Answer: Encode;

    /// The last part of the body, which is long and is not copied.
    fn attachment(&self) -> &[u8] {
        &[]
    }
}

impl Request for AppendEntriesRequest<Types> {
    const KIND: FrameKind = FrameKind::Append;
    type Answer = AppendAnswer;
}

/// The answer to an append.
#[derive(Debug, PartialEq, Eq)]
pub struct AppendAnswer {
    /// What openraft has to say.
    pub response: AppendEntriesResponse<NodeId>,
    /// What the wall clock of the replica shows, ns since 1970.
    pub wall_ns: u64,
}

impl Encode for AppendAnswer {
    fn encode(&self, out: &mut Vec<u8>) {
        self.response.encode(out);
        self.wall_ns.encode(out);
    }

    fn decode(from: &mut Reader<'_>, _: &'static str) -> Result<AppendAnswer, DecodeError> {
        let response = AppendEntriesResponse::decode(from, "append answer")?;
        Ok(AppendAnswer { response, wall_ns: from.u64("wall clock")? })
    }
}

impl Request for VoteRequest<NodeId> {
    const KIND: FrameKind = FrameKind::Vote;
    type Answer = VoteResponse<NodeId>;
}

/// Tells a follower what is committed.
#[derive(Debug)]
pub struct CommitNotice(pub AppendEntriesRequest<Types>);

impl Encode for CommitNotice {
    fn encode(&self, out: &mut Vec<u8>) {
        self.0.encode(out);
    }

    fn decode(from: &mut Reader<'_>, field: &'static str) -> Result<CommitNotice, DecodeError> {
        AppendEntriesRequest::decode(from, field).map(CommitNotice)
    }
}

impl Request for CommitNotice {
    const KIND: FrameKind = FrameKind::Commit;
    type Answer = ();
}

/// Installs a snapshot.
#[derive(Debug, PartialEq, Eq)]
pub struct InstallSnapshot {
    /// The leader's vote.
    pub vote: Vote<NodeId>,
    /// What the snapshot contains.
    pub meta: SnapshotMeta<NodeId, EmptyNode>,
    /// The state, up to the end of the body.
    pub state: Shared,
}

impl Encode for InstallSnapshot {
    /// Appends all but the state, which is the attachment.
    fn encode(&self, out: &mut Vec<u8>) {
        self.vote.encode(out);
        self.meta.encode(out);
    }

    fn decode(from: &mut Reader<'_>, _: &'static str) -> Result<InstallSnapshot, DecodeError> {
        let vote = Vote::decode(from, "vote")?;
        let meta = SnapshotMeta::decode(from, "snapshot")?;
        let state = from.bytes("state", from.rest().len())?;
        Ok(InstallSnapshot { vote, meta, state: Shared(state.to_vec().into()) })
    }
}

impl Request for InstallSnapshot {
    const KIND: FrameKind = FrameKind::InstallSnapshot;
    type Answer = Vote<NodeId>;

    fn attachment(&self) -> &[u8] {
        &self.state
    }
}

/// Asks for the status of a replica.
#[derive(Debug, PartialEq, Eq)]
pub struct StatusRequest;

impl Encode for StatusRequest {
    fn encode(&self, _: &mut Vec<u8>) {}

    fn decode(_: &mut Reader<'_>, _: &'static str) -> Result<StatusRequest, DecodeError> {
        Ok(StatusRequest)
    }
}

impl Request for StatusRequest {
    const KIND: FrameKind = FrameKind::Status;
    type Answer = ReplicaStatus;
}

/// Asks a replica to start an election; the answer is whether it does.
#[derive(Debug, PartialEq, Eq)]
pub struct CampaignRequest;

impl Encode for CampaignRequest {
    fn encode(&self, _: &mut Vec<u8>) {}

    fn decode(_: &mut Reader<'_>, _: &'static str) -> Result<CampaignRequest, DecodeError> {
        Ok(CampaignRequest)
    }
}

impl Request for CampaignRequest {
    const KIND: FrameKind = FrameKind::Campaign;
    type Answer = bool;
}

/// Asks a node to have a replica of the group, of which others may make a voter; the answer is
/// whether it has one.
#[derive(Debug, PartialEq, Eq)]
pub struct JoinRequest;

impl Encode for JoinRequest {
    fn encode(&self, _: &mut Vec<u8>) {}

    fn decode(_: &mut Reader<'_>, _: &'static str) -> Result<JoinRequest, DecodeError> {
        Ok(JoinRequest)
    }
}

impl Request for JoinRequest {
    const KIND: FrameKind = FrameKind::Join;
    type Answer = bool;
}

/// Asks a replica to find out whether it is still part of the group; the answer is whether it does.
#[derive(Debug, PartialEq, Eq)]
pub struct CheckMembershipRequest;

impl Encode for CheckMembershipRequest {
    fn encode(&self, _: &mut Vec<u8>) {}

    fn decode(_: &mut Reader<'_>, _: &'static str) -> Result<Self, DecodeError> {
        Ok(CheckMembershipRequest)
    }
}

impl Request for CheckMembershipRequest {
    const KIND: FrameKind = FrameKind::CheckMembership;
    type Answer = bool;
}

/// What a replica knows of its group, for one that does not know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ReplicaStatus {
    /// It has no state yet; the random number of its start.
    Empty(u64),
    /// It takes part in the group.
    Active {
        /// The starts that the group was bootstrapped with, in the order of its members.
        bootstrap_ids: Vec<u64>,
        /// Its vote.
        vote: Option<Vote<NodeId>>,
        /// The last entry that it has, or must have.
        last: Option<LogId<NodeId>>,
        /// The newest membership in its log.
        membership: StoredMembership<NodeId, EmptyNode>,
    },
}

/// Codes of [`ReplicaStatus`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StatusCode {
    Empty,
    Active,
}

nm_codec::codes!(StatusCode { Empty = 0, Active = 1 });

impl Encode for ReplicaStatus {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            ReplicaStatus::Empty(start) => {
                out.push(StatusCode::Empty.code());
                start.encode(out);
            }
            ReplicaStatus::Active { bootstrap_ids, vote, last, membership } => {
                out.push(StatusCode::Active.code());
                bootstrap_ids.encode(out);
                vote.encode(out);
                last.encode(out);
                membership.encode(out);
            }
        }
    }

    fn decode(from: &mut Reader<'_>, field: &'static str) -> Result<ReplicaStatus, DecodeError> {
        Ok(match StatusCode::from_code(field, from.u8(field)?)? {
            StatusCode::Empty => ReplicaStatus::Empty(from.u64("start")?),
            StatusCode::Active => ReplicaStatus::Active {
                bootstrap_ids: Vec::decode(from, "bootstrap ids")?,
                vote: Option::decode(from, "vote")?,
                last: Option::decode(from, "last entry")?,
                membership: StoredMembership::decode(from, "membership")?,
            },
        })
    }
}

/// A request that arrived.
#[derive(Debug)]
pub enum AnyRequest {
    /// See [`FrameKind::Append`].
    Append(AppendEntriesRequest<Types>),
    /// See [`FrameKind::Commit`].
    Commit(AppendEntriesRequest<Types>),
    /// See [`FrameKind::Vote`].
    Vote(VoteRequest<NodeId>),
    /// See [`FrameKind::InstallSnapshot`].
    InstallSnapshot(InstallSnapshot),
    /// See [`FrameKind::Status`].
    Status,
    /// See [`FrameKind::Campaign`].
    Campaign,
    /// See [`FrameKind::Join`].
    Join,
    /// See [`FrameKind::CheckMembership`].
    CheckMembership,
}

impl AnyRequest {
    /// The request in a frame of this kind.
    ///
    /// # Errors
    /// If the body is not that of the kind, or the kind is not that of a request.
    pub fn decode(kind: FrameKind, body: &[u8]) -> Result<AnyRequest, DecodeError> {
        const FIELD: &str = "request";
        Ok(match kind {
            FrameKind::Append => AnyRequest::Append(Encode::from_bytes(body, FIELD)?),
            FrameKind::Commit => AnyRequest::Commit(CommitNotice::from_bytes(body, FIELD)?.0),
            FrameKind::Vote => AnyRequest::Vote(Encode::from_bytes(body, FIELD)?),
            FrameKind::InstallSnapshot => {
                AnyRequest::InstallSnapshot(Encode::from_bytes(body, FIELD)?)
            }
            FrameKind::Status => {
                StatusRequest::from_bytes(body, FIELD)?;
                AnyRequest::Status
            }
            FrameKind::Campaign => {
                CampaignRequest::from_bytes(body, FIELD)?;
                AnyRequest::Campaign
            }
            FrameKind::Join => {
                JoinRequest::from_bytes(body, FIELD)?;
                AnyRequest::Join
            }
            FrameKind::CheckMembership => {
                CheckMembershipRequest::from_bytes(body, FIELD)?;
                AnyRequest::CheckMembership
            }
            FrameKind::Answer | FrameKind::Unavailable => {
                return Err(DecodeError::invalid("kind", "is not that of a request"));
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::encode::strategies;
    use proptest::prelude::*;

    fn body<R: Request>(request: &R) -> Vec<u8> {
        [request.to_bytes().as_slice(), request.attachment()].concat()
    }

    #[test]
    fn frame_kinds_round_trip() {
        for kind in FrameKind::ALL {
            assert_eq!(FrameKind::from_code("kind", kind.code()), Ok(*kind));
        }
    }

    proptest! {
        #[test]
        fn snapshots_round_trip(
            vote in strategies::vote(), meta in strategies::snapshot_meta(),
            state in prop::collection::vec(any::<u8>(), 0..100),
        ) {
            let request = InstallSnapshot { vote, meta, state: Shared(state.into()) };
            let bytes = body(&request);
            match AnyRequest::decode(FrameKind::InstallSnapshot, &bytes) {
                Ok(AnyRequest::InstallSnapshot(back)) => prop_assert_eq!(back, request),
                other => prop_assert!(false, "{other:?}"),
            }
        }

        #[test]
        fn every_request_is_decoded_by_its_kind(
            append in strategies::append_request(), vote in strategies::vote_request(),
        ) {
            let is = |kind: FrameKind, bytes: &[u8]| AnyRequest::decode(kind, bytes).unwrap();
            prop_assert!(matches!(
                is(FrameKind::Append, &body(&append)),
                AnyRequest::Append(back) if back.entries == append.entries
            ));
            let notice = CommitNotice(append.clone());
            prop_assert!(matches!(
                is(FrameKind::Commit, &body(&notice)),
                AnyRequest::Commit(back) if back.leader_commit == append.leader_commit
            ));
            prop_assert!(matches!(
                is(FrameKind::Vote, &body(&vote)),
                AnyRequest::Vote(back) if back == vote
            ));
            prop_assert!(matches!(
                is(FrameKind::Status, &body(&StatusRequest)),
                AnyRequest::Status
            ));
            prop_assert!(matches!(
                is(FrameKind::Campaign, &body(&CampaignRequest)),
                AnyRequest::Campaign
            ));
            prop_assert!(matches!(is(FrameKind::Join, &body(&JoinRequest)), AnyRequest::Join));
            prop_assert!(matches!(
                is(FrameKind::CheckMembership, &body(&CheckMembershipRequest)),
                AnyRequest::CheckMembership
            ));
            prop_assert!(AnyRequest::decode(FrameKind::Answer, &[]).is_err());
            prop_assert!(AnyRequest::decode(FrameKind::Campaign, &[1]).is_err());
        }

        #[test]
        fn append_answers_round_trip(
            response in strategies::append_response(), wall_ns in any::<u64>(),
        ) {
            let answer = AppendAnswer { response, wall_ns };
            prop_assert_eq!(AppendAnswer::from_bytes(&answer.to_bytes(), "answer"), Ok(answer));
        }

        #[test]
        fn statuses_round_trip(
            start in any::<u64>(), bootstrap_ids in prop::collection::vec(any::<u64>(), 0..5),
            vote in prop::option::of(strategies::vote()),
            last in prop::option::of(strategies::log_id()),
            meta in strategies::snapshot_meta(),
        ) {
            let membership = meta.last_membership;
            for status in [
                ReplicaStatus::Empty(start),
                ReplicaStatus::Active { bootstrap_ids, vote, last, membership },
            ] {
                prop_assert_eq!(ReplicaStatus::from_bytes(&status.to_bytes(), "s"), Ok(status));
            }
        }
    }
}
