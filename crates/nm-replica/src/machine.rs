//! What openraft takes for the state machine: it hands committed batches to the data loop, and
//! keeps the last snapshot.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use nm_codec::Fields;
use nm_model::agent::{Failure, FailureKind};
use openraft::storage::RaftStateMachine;
use openraft::{
    AnyError, EmptyNode, Entry, EntryPayload, LogId, OptionalSend, RaftSnapshotBuilder, Snapshot,
    SnapshotMeta, StorageError, StorageIOError, StoredMembership,
};
use tokio::sync::{Notify, oneshot};

use super::bytes::Coded;
use super::promises::{read_whole, write_whole};
use super::raft::{NodeId, Teller, Types};
use super::store::epoch_of;
use super::{LogEvent, Shared};

/// Name of the file in a group's folder.
const SNAPSHOT: &str = "snapshot";

type Meta = SnapshotMeta<NodeId, EmptyNode>;

fn read_snapshot(path: &Path) -> Result<Option<(Meta, Vec<u8>)>, Failure> {
    let Some(bytes) = read_whole(path)? else { return Ok(None) };
    let mut fields = Fields(&bytes);
    let meta = SnapshotMeta::read(&mut fields).map_err(|_| {
        let message = format!("the snapshot {} is of another version", path.display());
        Failure::new(FailureKind::System, message)
    })?;
    Ok(Some((meta, fields.0.to_vec())))
}

/// The state in a group's folder, with the index of the last record of the journal that it stands
/// for; none if there was no snapshot. For those who look at a replica that does not run.
///
/// # Errors
/// If it cannot be read.
pub fn saved_snapshot(folder: &Path) -> Result<Option<(u64, Vec<u8>)>, Failure> {
    let snapshot = read_snapshot(&folder.join(SNAPSHOT))?;
    Ok(snapshot.map(|(meta, state)| (meta.last_log_id.map_or(0, |last| last.index + 1), state)))
}

/// The last snapshot, and the one that the data loop is asked for.
#[derive(Debug)]
struct Snapshots {
    teller: Arc<Teller>,
    path: Option<PathBuf>,
    last: Option<(SnapshotMeta<NodeId, EmptyNode>, Shared)>,
    number: u64,
    wanted: Option<oneshot::Sender<Vec<u8>>>,
}

impl Snapshots {
    fn keep(
        &mut self,
        meta: &SnapshotMeta<NodeId, EmptyNode>,
        state: &Shared,
    ) -> Result<(), Failure> {
        if self.last.as_ref().is_some_and(|(last, _)| last.last_log_id > meta.last_log_id) {
            return Ok(());
        }
        if let Some(path) = &self.path {
            let mut bytes = meta.bytes();
            bytes.extend_from_slice(state);
            // What is told first is why the replica stops: the engine says it in its own words.
            write_whole(path, &bytes)
                .inspect_err(|failure| self.teller.tell(LogEvent::Stopped(failure.clone())))?;
        }
        self.last = Some((meta.clone(), state.clone()));
        Ok(())
    }

    fn last(&self) -> Option<Snapshot<Types>> {
        let (meta, state) = self.last.as_ref()?;
        Some(Snapshot { meta: meta.clone(), snapshot: Box::new(state.clone()) })
    }
}

/// The state machine.
#[derive(Debug)]
pub struct Machine {
    teller: Arc<Teller>,
    snapshots: Arc<Mutex<Snapshots>>,
    applied: Option<LogId<NodeId>>,
    members: StoredMembership<NodeId, EmptyNode>,
    /// Bytes of batches since the last snapshot, how many make another, and who is told then.
    fresh_bytes: u64,
    snapshot_bytes: u64,
    due: Arc<Notify>,
}

/// Takes snapshots from the data loop.
#[derive(Debug, Clone)]
pub struct Handover(Arc<Mutex<Snapshots>>);

impl Handover {
    /// The state that was wanted by a number.
    pub fn give(&self, number: u64, state: Vec<u8>) {
        let mut snapshots = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if number == snapshots.number
            && let Some(wanted) = snapshots.wanted.take()
        {
            let _ = wanted.send(state);
        }
    }
}

impl Machine {
    /// A state machine that begins with the snapshot in the group's folder, if there is one: the
    /// data loop is told of it.
    ///
    /// # Errors
    /// If the snapshot is damaged.
    pub fn open(
        folder: Option<&Path>,
        teller: Arc<Teller>,
        snapshot_bytes: u64,
        due: Arc<Notify>,
    ) -> Result<(Machine, Handover), Failure> {
        let path = folder.map(|folder| folder.join(SNAPSHOT));
        let last = path.as_deref().map(read_snapshot).transpose()?.flatten();
        let last = last.map(|(meta, state)| (meta, Shared(state.into())));
        let (mut applied, mut members) = (None, StoredMembership::default());
        if let Some((meta, state)) = &last {
            applied = meta.last_log_id;
            members = meta.last_membership.clone();
            let index = applied.map_or(0, |applied| applied.index + 1);
            teller.tell(LogEvent::LoadSnapshot { index, state: state.clone() });
        }
        let own = Arc::clone(&teller);
        let snapshots = Snapshots { teller: own, path, last, number: 0, wanted: None };
        let snapshots = Arc::new(Mutex::new(snapshots));
        let handover = Handover(Arc::clone(&snapshots));
        let fresh_bytes = 0;
        let machine =
            Machine { teller, snapshots, applied, members, fresh_bytes, snapshot_bytes, due };
        Ok((machine, handover))
    }
}

/// Waits for the data loop's copy of the state at one entry.
#[derive(Debug)]
pub struct Builder {
    snapshots: Arc<Mutex<Snapshots>>,
    applied: Option<LogId<NodeId>>,
    members: StoredMembership<NodeId, EmptyNode>,
    copy: Option<oneshot::Receiver<Vec<u8>>>,
}

impl RaftSnapshotBuilder<Types> for Builder {
    async fn build_snapshot(&mut self) -> Result<Snapshot<Types>, StorageError<NodeId>> {
        let copied = match self.copy.take() {
            Some(copy) => copy.await.ok(),
            None => None,
        };
        if let Some(state) = copied {
            let snapshot_id = self.applied.map_or_else(String::new, |applied| applied.to_string());
            let meta = SnapshotMeta {
                last_log_id: self.applied,
                last_membership: self.members.clone(),
                snapshot_id,
            };
            let snapshots = Arc::clone(&self.snapshots);
            // Its disk holds up nobody else.
            let kept = tokio::task::spawn_blocking(move || {
                let mut snapshots = snapshots.lock().unwrap_or_else(PoisonError::into_inner);
                snapshots.keep(&meta, &Shared(state.into()))
            });
            let ended = |_| Err(Failure::new(FailureKind::System, "the replica ended"));
            kept.await.unwrap_or_else(ended).map_err(|failure| unkept(&failure))?;
        }
        let snapshots = self.snapshots.lock().unwrap_or_else(PoisonError::into_inner);
        // A snapshot that came from the leader meanwhile is the newer one.
        snapshots.last().ok_or_else(|| {
            let error = AnyError::error("the data loop has ended");
            StorageError::from(StorageIOError::read_state_machine(error))
        })
    }
}

fn unkept(failure: &Failure) -> StorageError<NodeId> {
    StorageIOError::write_snapshot(None, AnyError::new(failure)).into()
}

impl RaftStateMachine<Types> for Machine {
    type SnapshotBuilder = Builder;

    async fn applied_state(
        &mut self,
    ) -> Result<(Option<LogId<NodeId>>, StoredMembership<NodeId, EmptyNode>), StorageError<NodeId>>
    {
        Ok((self.applied, self.members.clone()))
    }

    async fn apply<I>(&mut self, entries: I) -> Result<Vec<()>, StorageError<NodeId>>
    where
        I: IntoIterator<Item = Entry<Types>> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let mut answers = vec![];
        let mut told = vec![];
        for entry in entries {
            let log_id = entry.log_id;
            self.applied = Some(log_id);
            answers.push(());
            match entry.payload {
                EntryPayload::Blank => {}
                EntryPayload::Membership(members) => {
                    self.members = StoredMembership::new(Some(log_id), members);
                }
                EntryPayload::Normal(batch) => {
                    self.fresh_bytes += batch.len() as u64;
                    let (index, term) = (log_id.index + 1, epoch_of(&log_id.leader_id));
                    told.push(LogEvent::Committed { index, term, batch });
                }
            }
        }
        self.teller.applied(told, self.applied);
        if self.fresh_bytes >= self.snapshot_bytes {
            self.fresh_bytes = 0;
            self.due.notify_one();
        }
        Ok(answers)
    }

    async fn get_snapshot_builder(&mut self) -> Builder {
        let (give, copy) = oneshot::channel();
        let mut snapshots = self.snapshots.lock().unwrap_or_else(PoisonError::into_inner);
        snapshots.number += 1;
        snapshots.wanted = Some(give);
        self.teller.tell(LogEvent::TakeSnapshot { number: snapshots.number });
        Builder {
            snapshots: Arc::clone(&self.snapshots),
            applied: self.applied,
            members: self.members.clone(),
            copy: Some(copy),
        }
    }

    async fn begin_receiving_snapshot(&mut self) -> Result<Box<Shared>, StorageError<NodeId>> {
        Ok(Box::default())
    }

    async fn install_snapshot(
        &mut self,
        meta: &SnapshotMeta<NodeId, EmptyNode>,
        snapshot: Box<Shared>,
    ) -> Result<(), StorageError<NodeId>> {
        let mut snapshots = self.snapshots.lock().unwrap_or_else(PoisonError::into_inner);
        snapshots.keep(meta, &snapshot).map_err(|failure| unkept(&failure))?;
        snapshots.wanted = None;
        self.applied = meta.last_log_id;
        self.members = meta.last_membership.clone();
        self.fresh_bytes = 0;
        let index = self.applied.map_or(0, |applied| applied.index + 1);
        self.teller.tell(LogEvent::LoadSnapshot { index, state: *snapshot });
        Ok(())
    }

    async fn get_current_snapshot(
        &mut self,
    ) -> Result<Option<Snapshot<Types>>, StorageError<NodeId>> {
        Ok(self.snapshots.lock().unwrap_or_else(PoisonError::into_inner).last())
    }
}
