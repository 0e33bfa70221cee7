//! Answers the requests of other replicas.

use std::io;
use std::sync::Arc;

use nm_codec::DecodeError;
use openraft::Snapshot;
use openraft::error::{Fatal, RaftError};
use openraft::raft::{AppendEntriesRequest, AppendEntriesResponse, VoteRequest, VoteResponse};
use thiserror::Error;

use crate::acks::DiskFailed;
use crate::connection::{Connection, Frame};
use crate::encode::Encode;
use crate::error::ReplicaError;
use crate::group_replica::{Engine, GroupReplica, Stage};
use crate::log::LogEvent;
use crate::message::{AnyRequest, AppendAnswer, FrameKind, InstallSnapshot};
use crate::open_replicas::OpenReplicas;
use crate::types::{NodeId, Types, generation_of};

/// Why a replica does not answer; the other one learns only that it does not.
#[derive(Debug, Error)]
enum RequestError {
    #[error("the request cannot be decoded")]
    Decode(#[from] DecodeError),
    #[error("the replica does not take part in its group yet")]
    NotActive,
    #[error("openraft has stopped")]
    Raft(#[from] RaftError<NodeId>),
    #[error("openraft has stopped")]
    Fatal(#[from] Fatal<NodeId>),
    #[error(transparent)]
    Disk(#[from] DiskFailed),
    #[error("the request is of another generation of the group")]
    OtherGeneration,
}

/// Answers all requests of a connection, until it ends; why it does.
pub async fn serve_connection(mut connection: Connection, node: Arc<OpenReplicas>) -> io::Error {
    // If a leader uses the connection: its group, and its number.
    let mut leader = None;
    let end = loop {
        let frame = match connection.receive().await {
            Ok(frame) => frame,
            Err(error) => break error,
        };
        let Frame { kind, from, group, .. } = frame;
        let replica = match kind {
            FrameKind::Join => node.join(group),
            _ => node.find(group),
        };
        let answer = match &replica {
            Some(replica) => replica.answer(&frame).await.ok(),
            None => None,
        };
        if matches!(kind, FrameKind::Append | FrameKind::Commit) {
            leader = replica.map(|replica| (replica, from));
        }
        if kind == FrameKind::Commit {
            continue;
        }
        let kind = if answer.is_some() { FrameKind::Answer } else { FrameKind::Unavailable };
        let encode = |out: &mut Vec<u8>| out.extend(answer.unwrap_or_default());
        if let Err(error) = connection.send((kind, 0, group), encode, &[]).await {
            break error;
        }
    };
    if let Some((replica, from)) = leader
        && let Stage::Active(engine) = replica.stage()
    {
        engine.record_loss(from);
    }
    end
}

impl GroupReplica {
    /// The body of the answer to another replica.
    async fn answer(&self, frame: &Frame<'_>) -> Result<Vec<u8>, RequestError> {
        let request = AnyRequest::decode(frame.kind, frame.body)?;
        let engine = match (self.stage(), &request) {
            (_, AnyRequest::Status) => return Ok(self.status().to_bytes()),
            (_, AnyRequest::Join) => return Ok(true.to_bytes()),
            (Stage::Active(engine), _) => engine,
            (Stage::Empty(_), _) => return Err(RequestError::NotActive),
        };
        if !self.is_of_own_generation(&request) {
            return Err(RequestError::OtherGeneration);
        }
        match request {
            AnyRequest::Append(request) => {
                let response = self.append(&engine, frame.from, request).await?;
                // An acknowledged entry must be durable: see `acks`.
                self.store.acks().wait_own(self.store.last_write()).await?;
                Ok(AppendAnswer { response, wall_ns: self.env.wall_ns() }.to_bytes())
            }
            AnyRequest::Commit(request) => {
                self.append(&engine, frame.from, request).await?;
                Ok(vec![])
            }
            AnyRequest::Vote(request) => Ok(self.vote(&engine, request).await?.to_bytes()),
            AnyRequest::InstallSnapshot(InstallSnapshot { vote, meta, state }) => {
                self.store.set_snapshot_membership(&meta.last_membership);
                let snapshot = Snapshot { meta, snapshot: Box::new(state) };
                engine.record_contact(frame.from);
                let installed = engine.raft.install_full_snapshot(vote, snapshot).await?;
                Ok(installed.vote.to_bytes())
            }
            AnyRequest::Campaign => {
                let may_campaign = self.may_campaign(&engine, frame.from);
                if may_campaign {
                    engine.raft.trigger().elect().await?;
                }
                Ok(may_campaign.to_bytes())
            }
            AnyRequest::CheckMembership => {
                engine.membership_doubted.notify_one();
                Ok(true.to_bytes())
            }
            AnyRequest::Status | AnyRequest::Join => unreachable!("answered above"),
        }
    }

    /// Whether a request comes from the same generation of the group. A group that was made anew
    /// from copies of its files has later terms: one with files of before must neither follow it
    /// nor lead it, and stops.
    fn is_of_own_generation(&self, request: &AnyRequest) -> bool {
        let vote = match request {
            AnyRequest::Append(request) | AnyRequest::Commit(request) => request.vote,
            AnyRequest::Vote(request) => request.vote,
            AnyRequest::InstallSnapshot(request) => request.vote,
            _ => return true,
        };
        let own = generation_of(self.store.vote().unwrap_or_default().leader_id.term);
        let other = generation_of(vote.leader_id.term);
        if other > own {
            let group = self.group.name.clone();
            let folder = self.group.folder.clone().unwrap_or_default();
            let error = ReplicaError::OtherGeneration { group, folder, own, other };
            self.events.send(LogEvent::Stopped(error));
        }
        other == own
    }

    async fn append(
        &self,
        engine: &Engine,
        from: u8,
        request: AppendEntriesRequest<Types>,
    ) -> Result<AppendEntriesResponse<NodeId>, RequestError> {
        if request.vote >= self.store.vote().unwrap_or_default() {
            engine.record_contact(from);
        } else {
            engine.record_refusal(from);
        }
        Ok(engine.raft.append_entries(request).await?)
    }

    /// Whether another replica may ask this one to start an election now: there is no contact with
    /// a leader, or the leader itself asks.
    fn may_campaign(&self, engine: &Engine, asked_by: u8) -> bool {
        (self.is_lease_expired(engine) || engine.leader() == asked_by) && self.store.is_caught_up()
    }

    /// Votes as Raft does, but for no candidate that lacks the required entry. A replica that may
    /// not lead, and has more entries than the candidate, starts an election itself: nobody else
    /// could win one.
    async fn vote(
        &self,
        engine: &Engine,
        request: VoteRequest<NodeId>,
    ) -> Result<VoteResponse<NodeId>, RequestError> {
        let state = self.store.hard_state();
        if request.last_log_id < state.required_log_id {
            let vote = state.vote.unwrap_or_default();
            // Not the required entry, which it may not have: a candidate that lacks it would leave
            // the next election to others, though it may be the only one that can win.
            return Ok(VoteResponse::new(vote, self.store.last(), false));
        }
        self.wait_for_lost_lease(engine).await;
        let last = request.last_log_id;
        let answer = engine.raft.vote(request).await?;
        let is_ahead =
            !answer.vote_granted && self.store.last() > last && self.store.is_caught_up();
        if is_ahead && !self.may_lead() && self.is_lease_expired(engine) {
            engine.raft.trigger().elect().await?;
        }
        Ok(answer)
    }
}
