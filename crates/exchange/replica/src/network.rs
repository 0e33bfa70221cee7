//! openraft's network: sends what openraft has for the other replicas of a group.

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use openraft::error::{Fatal, RPCError, RaftError, ReplicationClosed, StreamingError, Unreachable};
use openraft::network::{Backoff, RPCOption, RaftNetwork, RaftNetworkFactory};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, VoteRequest, VoteResponse,
};
use openraft::{EmptyNode, LogId, OptionalSend, Snapshot, Vote};
use tokio::time::Instant;

use crate::clocks::Clocks;
use crate::connection::Peer;
use crate::env::Env;
use crate::group::Group;
use crate::log_store::LogStore;
use crate::message::{AppendAnswer, CommitNotice, InstallSnapshot, JoinRequest};
use crate::types::{NodeId, Types};

/// Time limit for sending a snapshot, and time between two attempts to reach a replica.
const SNAPSHOT_LIMIT: Duration = Duration::from_secs(60);
const RETRY_INTERVAL: Duration = Duration::from_millis(20);

/// Makes [`Replicator`]s for openraft.
pub struct Peers {
    /// The surroundings.
    pub env: Env,
    /// The group.
    pub group: Group,
    /// Time after a message during which no follower is sent a commit alone.
    pub commit_pause: Duration,
    /// This replica's log.
    pub store: LogStore,
    /// The wall clocks of the others.
    pub clocks: Arc<Clocks>,
}

impl RaftNetworkFactory<Types> for Peers {
    type Network = Replicator;

    async fn new_client(&mut self, target: NodeId, _: &EmptyNode) -> Replicator {
        let position = usize::try_from(target).unwrap_or(0).saturating_sub(1);
        let env = self.env.clone();
        let peer = Peer::new(env.clone(), &self.group, position);
        let (store, clocks) = (self.store.clone(), Arc::clone(&self.clocks));
        let (commit_pause, sent) = (self.commit_pause, Instant::now());
        let committed = None;
        Replicator { env, peer, target, position, commit_pause, sent, store, clocks, committed }
    }
}

/// Sends what openraft has for another replica.
pub struct Replicator {
    env: Env,
    peer: Peer,
    target: NodeId,
    /// Position of the other replica in the group.
    position: usize,
    commit_pause: Duration,
    /// When it was last sent something.
    sent: Instant,
    store: LogStore,
    clocks: Arc<Clocks>,
    /// The last entry that the other replica knows to be committed.
    committed: Option<LogId<NodeId>>,
}

impl Replicator {
    async fn append(
        &mut self,
        request: AppendEntriesRequest<Types>,
    ) -> io::Result<AppendEntriesResponse<NodeId>> {
        if !self.peer.is_connected() {
            // It may have been restarted without its state.
            self.committed = None;
            self.store.acks().forget(self.target);
            self.clocks.forget(self.position);
            // A node whose replica is new, or has lost its memory, does not know of it.
            if !self.peer.request(&JoinRequest).await? {
                return Err(io::Error::other("it has no replica of the group"));
            }
        }
        let leader_commit = request.leader_commit;
        if leader_commit > self.committed && request.entries.is_empty() {
            if self.sent.elapsed() < self.commit_pause {
                return Ok(AppendEntriesResponse::Success);
            }
            self.sent = Instant::now();
            // A loss is noticed by the next request; openraft learns nothing from an answer.
            self.peer.notify(&CommitNotice(request)).await?;
            self.committed = leader_commit;
            return Ok(AppendEntriesResponse::Success);
        }
        self.sent = Instant::now();
        // The entries were queued for the own disk before openraft sent them.
        let write = self.store.last_write();
        let AppendAnswer { response: answer, wall_ns } = self.peer.request(&request).await?;
        self.clocks.record(self.position, wall_ns, self.env.monotonic_ns());
        self.committed = self.committed.max(leader_commit);
        let last = match &answer {
            AppendEntriesResponse::Success => request.entries.last().map(|entry| entry.log_id),
            AppendEntriesResponse::PartialSuccess(last) => *last,
            AppendEntriesResponse::Conflict | AppendEntriesResponse::HigherVote(_) => None,
        };
        if let Some(last) = last {
            let acks = self.store.acks();
            acks.record(request.vote, self.target, last);
            acks.wait_durable(write, request.vote, last).await.map_err(io::Error::other)?;
        }
        Ok(answer)
    }
}

type RpcFailure = RPCError<NodeId, EmptyNode, RaftError<NodeId>>;

impl RaftNetwork<Types> for Replicator {
    async fn append_entries(
        &mut self,
        request: AppendEntriesRequest<Types>,
        _: RPCOption,
    ) -> Result<AppendEntriesResponse<NodeId>, RpcFailure> {
        Ok(self.append(request).await.map_err(|error| Unreachable::new(&error))?)
    }

    async fn vote(
        &mut self,
        request: VoteRequest<NodeId>,
        _: RPCOption,
    ) -> Result<VoteResponse<NodeId>, RpcFailure> {
        let answer = self.peer.request(&request).await;
        Ok(answer.map_err(|error| Unreachable::new(&error))?)
    }

    async fn full_snapshot(
        &mut self,
        vote: Vote<NodeId>,
        snapshot: Snapshot<Types>,
        cancel: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        _: RPCOption,
    ) -> Result<SnapshotResponse<NodeId>, StreamingError<Types, Fatal<NodeId>>> {
        let install = InstallSnapshot { vote, meta: snapshot.meta, state: *snapshot.snapshot };
        tokio::select! {
            biased;
            closed = cancel => Err(closed.into()),
            answer = tokio::time::timeout(SNAPSHOT_LIMIT, self.peer.request(&install)) => {
                let late = |_| io::Error::from(io::ErrorKind::TimedOut);
                match answer.map_err(late).and_then(|answer| answer) {
                    Ok(vote) => Ok(SnapshotResponse::new(vote)),
                    Err(error) => Err(Unreachable::new(&error).into()),
                }
            }
        }
    }

    fn backoff(&self) -> Backoff {
        Backoff::new(std::iter::repeat(RETRY_INTERVAL))
    }
}
