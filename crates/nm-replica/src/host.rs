//! The replication thread of a node: all groups that the node is in, one async runtime, one socket
//! that listens.

use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use nm_codec::{Fields, Meaningless};
use nm_model::agent::{Failure, FailureKind};
use nm_sys::poll::Waker;
use openraft::raft::{AppendEntriesRequest, VoteRequest, VoteResponse};
use openraft::{Config, ServerState, Snapshot, SnapshotMeta, SnapshotPolicy, Vote};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::sync::{Notify, oneshot};
use tokio::time::sleep;

use super::address::{Address, Socket};
use super::birth::{self, Standing};
use super::bytes::Coded;
use super::elect::Heard;
use super::machine::{Handover, Machine};
use super::network::{Connection, Frame, Kind, Listener, Peers};
use super::raft::{Asked, NodeId, Raft, RaftLog, Teller};
use super::store::{Store, epoch_of};
use super::{Group, LogEvent, MEMBERS_MAX, Settings, Shared};

/// How often is looked whether a replica has what it needs to lead.
pub const LOOK: Duration = Duration::from_millis(20);

/// The replication of all cells at a node. Ends when it is dropped, as if the node had been killed:
/// what is promised is on disk, or with the other replicas.
#[derive(Debug)]
pub struct Replicas {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Replicas {
    /// Starts the replicas of these groups, which the others reach at `listen`.
    ///
    /// # Errors
    /// If the address is taken, or a folder cannot be used or is damaged.
    pub fn start(
        listen: &Address,
        groups: Vec<Group>,
        waker: Waker,
    ) -> Result<(Replicas, Vec<RaftLog>), Failure> {
        let system = |what: String| Failure::new(FailureKind::System, what);
        let listener = Socket::bind(listen)
            .map_err(|error| system(format!("the replicas cannot listen at {listen}: {error}")))?;
        let (mut seats, mut logs) = (vec![], vec![]);
        for group in groups {
            let settings = group.settings;
            let (messages, told) = channel();
            let (asked_by, asked) = unbounded_channel();
            let may_lead = group.members.get(group.own).is_some_and(|member| member.may_lead);
            if group.members.len() > MEMBERS_MAX {
                return Err(system(format!("{} has too many replicas", group.name)));
            }
            logs.push(RaftLog::new(group.id, told, asked_by));
            let teller = Arc::new(Teller::new(messages, waker.clone(), may_lead));
            let folder = group.folder.as_deref();
            let members = group.members.len();
            let (store, is_known) = Store::open(folder, members, &settings, Arc::clone(&teller))?;
            let stage = Stage::Blank(birth::start_number());
            let seat = Seat { group, settings, teller, store, stage: Mutex::new(stage) };
            seats.push((Arc::new(seat), is_known, asked));
        }
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| system(format!("replication cannot start: {error}")))?;
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::Builder::new()
            .name("replication".to_string())
            .spawn(move || runtime.block_on(serve(listener, seats, stopped)))
            .map_err(|error| system(format!("replication cannot start: {error}")))?;
        Ok((Replicas { stop: Some(stop), thread: Some(thread) }, logs))
    }
}

impl Drop for Replicas {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A group at this node.
pub struct Seat {
    pub group: Group,
    pub settings: Settings,
    teller: Arc<Teller>,
    pub store: Store,
    stage: Mutex<Stage>,
}

/// Whether a replica takes part yet.
#[derive(Clone)]
enum Stage {
    Blank(u64),
    Live(Arc<Engine>),
}

/// A replica that takes part.
pub struct Engine {
    pub raft: Raft,
    /// When a leader was last heard of.
    pub heard: Mutex<Heard>,
    /// Notified when the leader's connection ends.
    pub lost: Notify,
}

type Seated = (Arc<Seat>, bool, UnboundedReceiver<Asked>);

async fn serve(listener: Socket, seats: Vec<Seated>, stopped: oneshot::Receiver<()>) {
    let all: Vec<Arc<Seat>> = seats.iter().map(|(seat, ..)| Arc::clone(seat)).collect();
    for (seat, is_known, asked) in seats {
        tokio::spawn(async move {
            if let Err(failure) = seat.run(is_known, asked).await {
                seat.teller.tell(LogEvent::Stopped(failure));
            }
        });
    }
    let accept = async {
        let listener = Listener::new(listener)?;
        loop {
            match listener.accept().await {
                Ok(connection) => drop(tokio::spawn(answer_all(connection, all.clone()))),
                // Too many open files, for instance: it may pass.
                Err(_) => sleep(LOOK).await,
            }
        }
    };
    tokio::select! {
        _ = stopped => {}
        failed = accept => {
            let failed: std::io::Result<()> = failed;
            if let Err(error) = failed {
                let message = format!("the replicas cannot listen: {error}");
                let failure = Failure::new(FailureKind::System, message);
                all.iter().for_each(|seat| seat.teller.tell(LogEvent::Stopped(failure.clone())));
            }
        }
    }
}

async fn answer_all(mut connection: Connection, seats: Vec<Arc<Seat>>) {
    // Whose leader's connection it is: the cell's seat, and who leads.
    let mut leads = None;
    while let Ok(frame) = connection.receive().await {
        let Frame { kind, from, cell, .. } = frame;
        let seat = seats.iter().find(|seat| seat.group.id == cell);
        if matches!(kind, Kind::Append | Kind::Commit) {
            leads = seat.map(|seat| (seat, from));
        }
        let answer = match seat {
            Some(seat) => seat.answer(&frame).await.ok(),
            None => None,
        };
        if kind == Kind::Commit {
            continue;
        }
        let kind = if answer.is_some() { Kind::Answer } else { Kind::Unable };
        let put = |out: &mut Vec<u8>| out.extend(answer.unwrap_or_default());
        if connection.send((kind, 0, cell), put, &[]).await.is_err() {
            break;
        }
    }
    if let Some((seat, from)) = leads
        && let Stage::Live(engine) = seat.stage()
    {
        engine.lose(from);
    }
}

/// Why a replica does not answer.
struct Unable;

impl From<Meaningless> for Unable {
    fn from(_: Meaningless) -> Unable {
        Unable
    }
}

impl Seat {
    fn me(&self) -> NodeId {
        self.group.own as NodeId + 1
    }

    pub fn tell(&self, told: LogEvent) {
        self.teller.tell(told);
    }

    pub fn waits(&self, why: &str) {
        self.tell(LogEvent::Degraded(why.to_string()));
    }

    fn stage(&self) -> Stage {
        self.stage.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn standing(&self) -> Standing {
        match self.stage() {
            Stage::Blank(start) => Standing::Blank(start),
            Stage::Live(_) => {
                let promises = self.store.promises();
                let last = self.store.kept().max(promises.floor);
                let (certificate, vote) = (promises.certificate, promises.vote);
                Standing::Live { certificate, vote, last }
            }
        }
    }

    /// The answer to another replica.
    async fn answer(&self, frame: &Frame<'_>) -> Result<Vec<u8>, Unable> {
        if frame.kind == Kind::Ask {
            return Ok(self.standing().bytes());
        }
        let Stage::Live(engine) = self.stage() else { return Err(Unable) };
        match frame.kind {
            Kind::Append | Kind::Commit => {
                let request = AppendEntriesRequest::whole(frame.body)?;
                if request.vote >= self.store.vote().unwrap_or_default() {
                    engine.hear(frame.from);
                }
                let answer = engine.raft.append_entries(request).await.map_err(|_| Unable)?;
                if frame.kind == Kind::Append {
                    // What is answered must be where the group keeps it: see `acks`.
                    let kept = self.store.acks().own(self.store.write()).await;
                    kept.map_err(|_| Unable)?;
                }
                Ok(answer.bytes())
            }
            Kind::Vote => {
                let request = VoteRequest::whole(frame.body)?;
                Ok(self.vote(&engine, request).await?.bytes())
            }
            Kind::Install => {
                let mut fields = Fields(frame.body);
                let (vote, meta) = (Vote::read(&mut fields)?, SnapshotMeta::read(&mut fields)?);
                let snapshot = Box::new(Shared(fields.0.to_vec().into()));
                let snapshot = Snapshot { meta, snapshot };
                engine.hear(frame.from);
                let installed = engine.raft.install_full_snapshot(vote, snapshot).await;
                Ok(installed.map_err(|_| Unable)?.vote.bytes())
            }
            Kind::Stand => {
                let may_stand = self.may_stand(&engine, frame.from);
                if may_stand {
                    engine.raft.trigger().elect().await.map_err(|_| Unable)?;
                }
                Ok(may_stand.bytes())
            }
            Kind::Ask | Kind::Answer | Kind::Unable => Err(Unable),
        }
    }

    /// Votes as Raft does, but for nobody who lacks what this replica has forgotten. One that may
    /// not lead, and has more than the one who asks, stands itself: nobody else could be elected.
    async fn vote(
        &self,
        engine: &Engine,
        request: VoteRequest<NodeId>,
    ) -> Result<VoteResponse<NodeId>, Unable> {
        let promises = self.store.promises();
        if request.last_log_id < promises.floor {
            let vote = promises.vote.unwrap_or_default();
            return Ok(VoteResponse::new(vote, promises.floor, false));
        }
        self.until_free(engine).await;
        let last = request.last_log_id;
        let answer = engine.raft.vote(request).await.map_err(|_| Unable)?;
        let is_ahead = !answer.vote_granted && self.store.last() > last && self.store.is_whole();
        if is_ahead && !self.may_lead() && self.is_free(engine) {
            engine.raft.trigger().elect().await.map_err(|_| Unable)?;
        }
        Ok(answer)
    }

    async fn run(
        self: &Arc<Seat>,
        is_known: bool,
        mut asked: UnboundedReceiver<Asked>,
    ) -> Result<(), Failure> {
        if !is_known && let Stage::Blank(start) = self.stage() {
            let promises = birth::born(&self.group, start, |why| self.waits(why)).await;
            self.store.promise(|none| *none = promises).await?;
        }
        let due = Arc::new(Notify::new());
        let (engine, handover) = self.engine(&due).await?;
        *self.stage.lock().unwrap_or_else(PoisonError::into_inner) =
            Stage::Live(Arc::clone(&engine));
        let tasks = [
            tokio::spawn(Arc::clone(self).begin(Arc::clone(&engine))),
            tokio::spawn(Arc::clone(self).succeed(Arc::clone(&engine))),
            tokio::spawn(Arc::clone(self).hand_over(Arc::clone(&engine))),
            tokio::spawn(snapshots(Arc::clone(&engine), due)),
        ];
        let mut changes = engine.raft.server_metrics();
        loop {
            tokio::select! {
                changed = changes.changed() => {
                    let epoch = {
                        let now = changes.borrow_and_update();
                        let leads = changed.is_ok() && now.state == ServerState::Leader;
                        leads.then(|| epoch_of(&now.vote.leader_id))
                    };
                    self.teller.elected(epoch);
                    if changed.is_err() {
                        break;
                    }
                }
                () = self.store.acks().failed() => {
                    let _ = engine.raft.shutdown().await;
                    break;
                }
                // Without a data loop, the replica goes on for the others.
                Some(message) = asked.recv() => match message {
                    // Whoever is refused does not lead any more, and is told so.
                    Asked::Propose(batch) => {
                        drop(engine.raft.client_write_ff(Shared(batch.into())).await);
                    }
                    Asked::Snapshot(number, state) => handover.give(number, state),
                },
            }
        }
        tasks.iter().for_each(tokio::task::JoinHandle::abort);
        let cell = self.group.name.clone();
        let stopped = engine.raft.metrics().borrow().running_state.clone();
        let why = stopped.err().map_or_else(|| "it ended".to_string(), |error| error.to_string());
        Err(self.store.failed().unwrap_or_else(|| {
            Failure::new(FailureKind::System, format!("the replica of {cell} stopped: {why}"))
        }))
    }

    async fn engine(&self, due: &Arc<Notify>) -> Result<(Arc<Engine>, Handover), Failure> {
        let Settings { heartbeat_ms, snapshot_bytes, .. } = self.settings;
        let (short_ms, long_ms) = self.settings.election_ms;
        // openraft's lease is the longest time before an election; who is not to lead never waits
        // for one.
        let election_ms = match self.may_lead() {
            true => (short_ms, long_ms),
            false => ((short_ms - 1).max(heartbeat_ms + 1), short_ms.max(heartbeat_ms + 2)),
        };
        let failed = |why: String| {
            let message = format!("the replica of {} cannot start: {why}", self.group.name.clone());
            Failure::new(FailureKind::System, message)
        };
        let config = Config {
            cluster_name: self.group.name.clone(),
            heartbeat_interval: heartbeat_ms,
            election_timeout_min: election_ms.0,
            election_timeout_max: election_ms.1,
            snapshot_policy: SnapshotPolicy::Never,
            // Whoever lags gets entries as long as there are any.
            replication_lag_threshold: 1 << 40,
            max_in_snapshot_log_to_keep: 64,
            max_payload_entries: 64,
            enable_elect: self.may_lead() && self.store.is_whole(),
            ..Config::default()
        };
        let config = config.validate().map_err(|error| failed(error.to_string()))?;
        let (machine, handover) = Machine::open(
            self.group.folder.as_deref(),
            Arc::clone(&self.teller),
            snapshot_bytes,
            Arc::clone(due),
        )?;
        let addresses = self.group.members.iter().map(|member| member.address.clone()).collect();
        let from = self.group.own as u8 + 1;
        let store = self.store.clone();
        let peers = Peers { addresses, from, cell: self.group.id, store: store.clone() };
        let raft = Raft::new(self.me(), Arc::new(config), peers, store, machine)
            .await
            .map_err(|error| failed(error.to_string()))?;
        Ok((Arc::new(Engine { raft, heard: Mutex::default(), lost: Notify::new() }), handover))
    }
}

async fn snapshots(engine: Arc<Engine>, due: Arc<Notify>) {
    loop {
        due.notified().await;
        if engine.raft.trigger().snapshot().await.is_err() {
            return;
        }
    }
}
