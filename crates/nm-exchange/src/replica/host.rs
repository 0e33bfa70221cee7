//! The replication thread of a node: all groups that the node is in, one async runtime, one socket
//! that listens.

use std::collections::BTreeMap;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use nm_model::agent::{Failure, FailureKind};
use nm_sys::poll::Waker;
use openraft::raft::{AppendEntriesRequest, AppendEntriesResponse, VoteRequest, VoteResponse};
use openraft::{Config, EmptyNode, ServerState, Snapshot, SnapshotMeta, SnapshotPolicy, Vote};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::sync::{Notify, oneshot};
use tokio::time::{Instant, sleep};

use super::birth::{self, Standing};
use super::bytes::Coded;
use super::machine::{Handover, Machine};
use super::network::{Connection, Frame, Kind, Listener, Peer, Peers};
use super::raft::{Asked, NodeId, Raft, RaftLog, Teller};
use super::store::{Store, epoch_of};
use super::{Group, MEMBERS_MAX, Member, Settings, Shared, Told};
use crate::codec::{Fields, Meaningless};
use crate::link::Address;
use crate::network::{Durability, Network, Role, group_name};

/// How often is looked whether a replica has what it needs to lead.
const LOOK: Duration = Duration::from_millis(20);

/// How long a replica lacks what it had before it says so.
const PATIENCE: Duration = Duration::from_secs(3);

/// The replication of all cells at a node. Ends when it is dropped, as if the node had been killed:
/// what is promised is on disk, or with the other replicas.
#[derive(Debug)]
pub struct Replicas {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Replicas {
    /// Starts the replicas of a node of a network, and gives the data loop's end of each, in the
    /// order of [`Network::groups_at`]. The waker is woken when something is told.
    ///
    /// # Errors
    /// As [`Replicas::of`]; or if the network file lacks something that replication needs.
    pub fn start(
        network: &Network,
        role: Role,
        index: usize,
        settings: Settings,
        waker: Waker,
    ) -> Result<(Replicas, Vec<RaftLog>), Failure> {
        let wrong = |message: String| Failure::new(FailureKind::BadRequest, message);
        let address = |role: Role, index: usize| -> Result<Address, Failure> {
            let node = network.nodes(role).get(index);
            let text = node.and_then(|node| node.replication.as_ref());
            let text = text.ok_or_else(|| {
                wrong(format!("{role} {index} of the network has no `replication`"))
            })?;
            text.parse().map_err(wrong)
        };
        let folder = match network.durability {
            Durability::DiskQuorum => Some(network.folder(role, index).ok_or_else(|| {
                wrong("disk-quorum needs a `data` folder in the network file".to_string())
            })?),
            _ => None,
        };
        let mut groups = vec![];
        for cell in network.groups_at(role, index) {
            let replicas = network.replicas(cell);
            let members: Result<Vec<Member>, Failure> = replicas
                .iter()
                .map(|(role, index)| {
                    let address = address(*role, *index)?;
                    Ok(Member { address, may_lead: *role == Role::Mediator })
                })
                .collect();
            let own = replicas.iter().position(|replica| *replica == (role, index));
            groups.push(Group {
                cell,
                members: members?,
                own: own.unwrap_or_default(),
                folder: folder.as_ref().map(|folder| folder.join(group_name(cell))),
            });
        }
        let settings = Settings { keep_all: settings.keep_all || network.record, ..settings };
        Replicas::of(&address(role, index)?, groups, settings, waker)
    }

    /// Starts the replicas of these groups, which the others reach at `listen`.
    ///
    /// # Errors
    /// If the address is taken, or a folder cannot be used or is damaged.
    pub fn of(
        listen: &Address,
        groups: Vec<Group>,
        settings: Settings,
        waker: Waker,
    ) -> Result<(Replicas, Vec<RaftLog>), Failure> {
        let system = |what: String| Failure::new(FailureKind::System, what);
        let listener = crate::link::Listener::bind(listen)
            .map_err(|error| system(format!("the replicas cannot listen at {listen}: {error}")))?;
        let (mut seats, mut logs) = (vec![], vec![]);
        for group in groups {
            let settings = settings.of_group(group.cell);
            let (messages, told) = channel();
            let (asked_by, asked) = unbounded_channel();
            let may_lead = group.members.get(group.own).is_some_and(|member| member.may_lead);
            if group.members.len() > MEMBERS_MAX {
                return Err(system(format!("{} has too many replicas", group_name(group.cell))));
            }
            logs.push(RaftLog::new(group.cell, told, asked_by));
            let teller = Arc::new(Teller::new(messages, waker.clone(), may_lead));
            let folder = group.folder.as_deref();
            let (store, is_known) = Store::open(folder, &settings, Arc::clone(&teller))?;
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
struct Seat {
    group: Group,
    settings: Settings,
    teller: Arc<Teller>,
    store: Store,
    stage: Mutex<Stage>,
}

/// Whether a replica takes part yet.
#[derive(Clone)]
enum Stage {
    Blank(u64),
    Live(Arc<Engine>),
}

/// A replica that takes part.
struct Engine {
    raft: Raft,
    /// When a leader was last heard of.
    heard: Mutex<Instant>,
}

type Seated = (Arc<Seat>, bool, UnboundedReceiver<Asked>);

async fn serve(
    listener: crate::link::Listener,
    seats: Vec<Seated>,
    stopped: oneshot::Receiver<()>,
) {
    let all: Vec<Arc<Seat>> = seats.iter().map(|(seat, ..)| Arc::clone(seat)).collect();
    for (seat, is_known, asked) in seats {
        tokio::spawn(async move {
            if let Err(failure) = seat.run(is_known, asked).await {
                seat.teller.tell(Told::Stopped(failure));
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
                all.iter().for_each(|seat| seat.teller.tell(Told::Stopped(failure.clone())));
            }
        }
    }
}

async fn answer_all(mut connection: Connection, seats: Vec<Arc<Seat>>) {
    while let Ok(frame) = connection.receive().await {
        let cell = frame.cell;
        let answer = match seats.iter().find(|seat| seat.group.cell == cell) {
            Some(seat) => seat.answer(&frame).await.ok(),
            None => None,
        };
        let kind = if answer.is_some() { Kind::Answer } else { Kind::Unable };
        let answer = Frame { kind, from: 0, cell, body: answer.unwrap_or_default() };
        if connection.send(&answer, &[]).await.is_err() {
            return;
        }
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

    fn waits(&self, why: &str) {
        self.teller.tell(Told::Waits(why.to_string()));
    }

    fn may_lead(&self) -> bool {
        self.group.members.get(self.group.own).is_some_and(|member| member.may_lead)
    }

    fn lease(&self) -> Duration {
        Duration::from_millis(self.settings.election_ms.1)
    }

    fn stage(&self) -> Stage {
        self.stage.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn standing(&self) -> Standing {
        match self.stage() {
            Stage::Blank(start) => Standing::Blank(start),
            Stage::Live(_) => {
                let promises = self.store.promises();
                let last = self.store.last().max(promises.floor);
                let (certificate, vote) = (promises.certificate, promises.vote);
                Standing::Live { certificate, vote, last }
            }
        }
    }

    /// The answer to another replica.
    async fn answer(&self, frame: &Frame) -> Result<Vec<u8>, Unable> {
        if frame.kind == Kind::Ask {
            return Ok(self.standing().bytes());
        }
        let Stage::Live(engine) = self.stage() else { return Err(Unable) };
        match frame.kind {
            Kind::Append => {
                let request = AppendEntriesRequest::whole(&frame.body)?;
                let answer = engine.raft.append_entries(request).await.map_err(|_| Unable)?;
                if !matches!(answer, AppendEntriesResponse::HigherVote(_)) {
                    engine.hear();
                }
                Ok(answer.bytes())
            }
            Kind::Vote => {
                let request = VoteRequest::whole(&frame.body)?;
                Ok(self.vote(&engine, request).await?.bytes())
            }
            Kind::Install => {
                let mut fields = Fields(&frame.body);
                let (vote, meta) = (Vote::read(&mut fields)?, SnapshotMeta::read(&mut fields)?);
                let snapshot = Box::new(Shared(fields.0.to_vec().into()));
                let snapshot = Snapshot { meta, snapshot };
                let installed = engine.raft.install_full_snapshot(vote, snapshot).await;
                engine.hear();
                Ok(installed.map_err(|_| Unable)?.vote.bytes())
            }
            Kind::Stand => {
                if engine.silence() > self.lease() && self.store.is_whole() {
                    engine.raft.trigger().elect().await.map_err(|_| Unable)?;
                }
                Ok(vec![])
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
        let last = request.last_log_id;
        let answer = engine.raft.vote(request).await.map_err(|_| Unable)?;
        let is_ahead = !answer.vote_granted && self.store.last() > last && self.store.is_whole();
        if is_ahead && !self.may_lead() && engine.silence() > self.lease() {
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
            self.store.promise(|none| *none = promises)?;
        }
        let due = Arc::new(Notify::new());
        let (engine, handover) = self.engine(&due).await?;
        *self.stage.lock().unwrap_or_else(PoisonError::into_inner) =
            Stage::Live(Arc::clone(&engine));
        let tasks = [
            tokio::spawn(Arc::clone(self).begin(Arc::clone(&engine))),
            tokio::spawn(Arc::clone(self).recover(Arc::clone(&engine))),
            tokio::spawn(Arc::clone(self).hand_over(Arc::clone(&engine))),
            tokio::spawn(snapshots(Arc::clone(&engine), due)),
        ];
        let mut metrics = engine.raft.metrics();
        let stopped = loop {
            tokio::select! {
                changed = metrics.changed() => {
                    let now = metrics.borrow_and_update().clone();
                    let leads = now.state == ServerState::Leader;
                    self.teller.elected(leads.then(|| epoch_of(&now.vote.leader_id)));
                    if changed.is_err() || now.running_state.is_err() {
                        break now.running_state;
                    }
                }
                message = asked.recv() => match message {
                    Some(Asked::Propose(batch, epoch)) => self.propose(&engine, batch, epoch).await,
                    Some(Asked::Snapshot(number, state)) => handover.give(number, state),
                    // The data loop has ended; the replica goes on for the others.
                    None => std::future::pending().await,
                },
            }
        };
        tasks.iter().for_each(tokio::task::JoinHandle::abort);
        let cell = group_name(self.group.cell);
        let why = stopped.err().map_or_else(|| "it ended".to_string(), |error| error.to_string());
        Err(self.store.failed().unwrap_or_else(|| {
            Failure::new(FailureKind::System, format!("the replica of {cell} stopped: {why}"))
        }))
    }

    async fn engine(&self, due: &Arc<Notify>) -> Result<(Arc<Engine>, Handover), Failure> {
        let Settings { heartbeat_ms, election_ms, snapshot_bytes, .. } = self.settings;
        let failed = |why: String| {
            let message =
                format!("the replica of {} cannot start: {why}", group_name(self.group.cell));
            Failure::new(FailureKind::System, message)
        };
        let config = Config {
            cluster_name: group_name(self.group.cell),
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
        let peers = Peers { addresses, from, cell: self.group.cell };
        let store = self.store.clone();
        let raft = Raft::new(self.me(), Arc::new(config), peers, store, machine)
            .await
            .map_err(|error| failed(error.to_string()))?;
        Ok((Arc::new(Engine { raft, heard: Mutex::new(Instant::now()) }), handover))
    }

    /// Writes the members down as the group's first entry; which of them does it does not matter.
    async fn begin(self: Arc<Seat>, engine: Arc<Engine>) {
        if !self.may_lead() {
            return;
        }
        sleep(self.lease() * self.group.own as u32 * 2).await;
        if matches!(engine.raft.is_initialized().await, Ok(false)) {
            let ids = (1..=self.group.members.len() as NodeId).map(|id| (id, EmptyNode::new()));
            let members: BTreeMap<NodeId, EmptyNode> = ids.collect();
            // It fails only if another one's entry has come meanwhile.
            let _ = engine.raft.initialize(members).await;
        }
    }

    /// Lets it stand for election as soon as its log is whole. Until then, somebody must lead: one
    /// that may not, and has the log, is asked to stand.
    async fn recover(self: Arc<Seat>, engine: Arc<Engine>) {
        let mut since = Instant::now();
        while !self.store.is_whole() {
            sleep(LOOK).await;
            if since.elapsed() > PATIENCE {
                since = Instant::now();
                self.waits(
                    "it lost its memory, and no leader has brought it what it had; if this does \
                     not end, too many replicas were lost at once, and acknowledged requests with \
                     them",
                );
            }
            if engine.silence() > self.lease() * 2 {
                for (position, member) in self.group.members.iter().enumerate() {
                    if !member.may_lead && position != self.group.own {
                        self.stand(member).await;
                    }
                }
                engine.hear();
            }
        }
        engine.raft.runtime_config().elect(self.may_lead());
    }

    /// If one that may not lead was elected, it waits until one that may has everything, and lets
    /// it stand.
    async fn hand_over(self: Arc<Seat>, engine: Arc<Engine>) {
        if self.may_lead() {
            return;
        }
        let mut metrics = engine.raft.metrics();
        while metrics.changed().await.is_ok() {
            loop {
                let now = metrics.borrow_and_update().clone();
                if now.state != ServerState::Leader {
                    break;
                }
                let matching = now.replication.unwrap_or_default();
                let is_ready = |position: usize, member: &Member| {
                    let last = matching.get(&(position as NodeId + 1)).copied().flatten();
                    member.may_lead && last.is_some() && last >= self.store.last()
                };
                let mut members = self.group.members.iter().enumerate();
                let heir = members.find(|(position, member)| is_ready(*position, member));
                if let Some((_, heir)) = heir {
                    // Nobody is elected as long as the leader is heard.
                    engine.raft.runtime_config().heartbeat(false);
                    sleep(self.lease() + LOOK).await;
                    self.stand(heir).await;
                    sleep(self.lease()).await;
                    engine.raft.runtime_config().heartbeat(true);
                }
                sleep(LOOK).await;
            }
        }
    }

    async fn stand(&self, member: &Member) {
        let me = self.group.own as u8 + 1;
        let mut peer = Peer::new(member.address.clone(), me, self.group.cell);
        let _ = tokio::time::timeout(self.lease(), peer.ask(Kind::Stand, vec![], &[])).await;
    }

    async fn propose(&self, engine: &Engine, batch: Vec<u8>, epoch: u32) {
        match engine.raft.client_write_ff(Shared(batch.into())).await {
            Ok(answer) => {
                let teller = Arc::clone(&self.teller);
                tokio::spawn(async move {
                    if !matches!(answer.await, Ok(Ok(_))) {
                        teller.refused(epoch);
                    }
                });
            }
            Err(_) => self.teller.refused(epoch),
        }
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

impl Engine {
    fn hear(&self) {
        *self.heard.lock().unwrap_or_else(PoisonError::into_inner) = Instant::now();
    }

    /// Time since a leader was heard of.
    fn silence(&self) -> Duration {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner).elapsed()
    }
}
