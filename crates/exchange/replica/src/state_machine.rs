//! openraft's state machine: it delivers committed batches to the data loop and keeps the last
//! snapshot.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use nm_codec::Reader;
use openraft::storage::RaftStateMachine;
use openraft::{
    AnyError, EmptyNode, Entry, EntryPayload, LogId, Membership, OptionalSend, RaftSnapshotBuilder,
    Snapshot, SnapshotMeta, StorageError, StorageIOError, StoredMembership,
};
use tokio::sync::{Notify, oneshot};

use crate::channel::EventSender;
use crate::encode::Encode;
use crate::env::{Env, Machine};
use crate::error::ReplicaError;
use crate::files::{read_checked, write_atomically};
use crate::group::Shared;
use crate::log::LogEvent;
use crate::types::{NodeId, Types, term_of};

/// Name of the file in a group's folder.
pub const SNAPSHOT: &str = "snapshot";

/// What a snapshot says of itself.
pub type Meta = SnapshotMeta<NodeId, EmptyNode>;

/// The snapshot in a file; none if there is none.
///
/// # Errors
/// If it cannot be read or is damaged.
pub fn read_snapshot(env: &Env, path: &Path) -> Result<Option<(Meta, Vec<u8>)>, ReplicaError> {
    let Some(bytes) = read_checked(env, path)? else { return Ok(None) };
    let mut reader = Reader::new(&bytes);
    let meta = SnapshotMeta::decode(&mut reader, "snapshot")
        .map_err(|source| ReplicaError::Decode { path: path.into(), source })?;
    Ok(Some((meta, reader.rest().to_vec())))
}

/// The last entry that a snapshot contains; `None` if there is no snapshot, or it is empty.
///
/// # Errors
/// If it cannot be read or is damaged.
pub fn last_in_snapshot(env: &Env, path: &Path) -> Result<Option<LogId<NodeId>>, ReplicaError> {
    Ok(read_snapshot(env, path)?.and_then(|(meta, _)| meta.last_log_id))
}

/// The snapshot in a group's folder: the index of the last record of the journal that it contains,
/// and the state; `None` if there is no snapshot. For those who read the folder of a replica that
/// does not run.
///
/// # Errors
/// If it cannot be read.
pub fn saved_snapshot(folder: &Path) -> Result<Option<(u64, Vec<u8>)>, ReplicaError> {
    let snapshot = read_snapshot(&Machine::env(), &folder.join(SNAPSHOT))?;
    Ok(snapshot.map(|(meta, state)| (event_index(meta.last_log_id), state)))
}

/// The index of an entry as it is seen outside of openraft, from 1 on; 0 for none.
fn event_index(log_id: Option<LogId<NodeId>>) -> u64 {
    log_id.map_or(0, |log_id| log_id.index + 1)
}

/// The last snapshot, and the one that the data loop is to take.
#[derive(Debug)]
struct Snapshots {
    env: Env,
    events: Arc<EventSender>,
    path: Option<PathBuf>,
    last: Option<(Meta, Shared)>,
    number: u64,
    wanted: Option<oneshot::Sender<Vec<u8>>>,
}

impl Snapshots {
    fn keep(&mut self, meta: &Meta, state: &Shared) -> Result<(), ReplicaError> {
        if self.last.as_ref().is_some_and(|(last, _)| last.last_log_id > meta.last_log_id) {
            return Ok(());
        }
        if let Some(path) = &self.path {
            let mut bytes = meta.to_bytes();
            bytes.extend_from_slice(state);
            // Reported here, because openraft stops with a message of its own.
            write_atomically(&self.env, path, &bytes)
                .inspect_err(|error| self.events.send(LogEvent::Stopped(error.clone())))?;
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
pub struct StateMachine {
    events: Arc<EventSender>,
    snapshots: Arc<Mutex<Snapshots>>,
    applied: Option<LogId<NodeId>>,
    members: StoredMembership<NodeId, EmptyNode>,
    /// Bytes of batches since the last snapshot, the number of bytes after which the next one is
    /// due, and who is notified then.
    fresh_bytes: u64,
    snapshot_bytes: u64,
    due: Arc<Notify>,
}

/// Takes over snapshots from the data loop.
#[derive(Debug, Clone)]
pub struct SnapshotReceiver(Arc<Mutex<Snapshots>>);

impl SnapshotReceiver {
    /// Takes over the state for the snapshot of this number, if it is still wanted.
    pub fn finish(&self, number: u64, state: Vec<u8>) {
        let mut snapshots = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if number == snapshots.number
            && let Some(wanted) = snapshots.wanted.take()
        {
            let _ = wanted.send(state);
        }
    }
}

impl StateMachine {
    /// A state machine that begins with the snapshot in the group's folder, if there is one, which
    /// is sent to the data loop.
    ///
    /// # Errors
    /// If the snapshot is damaged.
    pub fn open(
        env: &Env,
        folder: Option<&Path>,
        events: Arc<EventSender>,
        snapshot_bytes: u64,
        due: Arc<Notify>,
    ) -> Result<(StateMachine, SnapshotReceiver), ReplicaError> {
        let path = folder.map(|folder| folder.join(SNAPSHOT));
        let last = path.as_deref().map(|path| read_snapshot(env, path)).transpose()?.flatten();
        let last = last.map(|(meta, state)| (meta, Shared(state.into())));
        let (mut applied, mut members) = (None, StoredMembership::default());
        if let Some((meta, state)) = &last {
            applied = meta.last_log_id;
            members = meta.last_membership.clone();
            let index = event_index(applied);
            events.send(LogEvent::LoadSnapshot { index, state: state.clone() });
        }
        let own = Arc::clone(&events);
        let (env, number, wanted) = (env.clone(), 0, None);
        let snapshots = Snapshots { env, events: own, path, last, number, wanted };
        let snapshots = Arc::new(Mutex::new(snapshots));
        let receiver = SnapshotReceiver(Arc::clone(&snapshots));
        voters_event(members.membership()).into_iter().for_each(|event| events.send(event));
        let fresh_bytes = 0;
        let machine =
            StateMachine { events, snapshots, applied, members, fresh_bytes, snapshot_bytes, due };
        Ok((machine, receiver))
    }
}

/// The voters of a membership, if it has one set of them.
fn voters_event(membership: &Membership<NodeId, EmptyNode>) -> Option<LogEvent> {
    match membership.get_joint_config().as_slice() {
        [voters] => {
            let voters = voters.iter().map(|id| *id as usize - 1).collect();
            Some(LogEvent::Voters(voters))
        }
        _ => None,
    }
}

impl StateMachine {
    /// The membership of the last entry that was applied.
    pub fn membership(&self) -> &StoredMembership<NodeId, EmptyNode> {
        &self.members
    }
}

/// Builds a snapshot from the data loop's copy of the state at one entry.
#[derive(Debug)]
pub struct SnapshotBuilder {
    has_threads: bool,
    snapshots: Arc<Mutex<Snapshots>>,
    applied: Option<LogId<NodeId>>,
    members: StoredMembership<NodeId, EmptyNode>,
    copy: Option<oneshot::Receiver<Vec<u8>>>,
}

impl RaftSnapshotBuilder<Types> for SnapshotBuilder {
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
            let has_threads = self.has_threads;
            let keep = move || {
                let mut snapshots = snapshots.lock().unwrap_or_else(PoisonError::into_inner);
                snapshots.keep(&meta, &Shared(state.into()))
            };
            let kept = if has_threads {
                // A slow disk delays nothing else.
                let kept = tokio::task::spawn_blocking(keep).await;
                kept.unwrap_or(Err(ReplicaError::SnapshotInterrupted))
            } else {
                keep()
            };
            kept.map_err(|error| write_error(&error))?;
        }
        let snapshots = self.snapshots.lock().unwrap_or_else(PoisonError::into_inner);
        // A snapshot that the leader installed meanwhile is newer.
        snapshots.last().ok_or_else(|| {
            let error = AnyError::error("the data loop has ended");
            StorageError::from(StorageIOError::read_state_machine(error))
        })
    }
}

fn write_error(error: &ReplicaError) -> StorageError<NodeId> {
    StorageIOError::write_snapshot(None, AnyError::new(error)).into()
}

impl RaftStateMachine<Types> for StateMachine {
    type SnapshotBuilder = SnapshotBuilder;

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
        let mut events = vec![];
        for entry in entries {
            let log_id = entry.log_id;
            assert!(self.applied < Some(log_id), "entries are applied once and in order");
            self.applied = Some(log_id);
            answers.push(());
            match entry.payload {
                EntryPayload::Blank => {}
                EntryPayload::Membership(members) => {
                    events.extend(voters_event(&members));
                    self.members = StoredMembership::new(Some(log_id), members);
                }
                EntryPayload::Normal(batch) => {
                    self.fresh_bytes += batch.len() as u64;
                    let (index, term) = (log_id.index + 1, term_of(&log_id.leader_id));
                    events.push(LogEvent::Committed { index, term, batch });
                }
            }
        }
        self.events.send_applied(events, self.applied);
        if self.fresh_bytes >= self.snapshot_bytes {
            self.fresh_bytes = 0;
            self.due.notify_one();
        }
        Ok(answers)
    }

    async fn get_snapshot_builder(&mut self) -> SnapshotBuilder {
        let (finish, copy) = oneshot::channel();
        let mut snapshots = self.snapshots.lock().unwrap_or_else(PoisonError::into_inner);
        snapshots.number += 1;
        snapshots.wanted = Some(finish);
        self.events.send(LogEvent::TakeSnapshot { number: snapshots.number });
        SnapshotBuilder {
            has_threads: snapshots.env.has_threads(),
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
        meta: &Meta,
        snapshot: Box<Shared>,
    ) -> Result<(), StorageError<NodeId>> {
        let mut snapshots = self.snapshots.lock().unwrap_or_else(PoisonError::into_inner);
        snapshots.keep(meta, &snapshot).map_err(|error| write_error(&error))?;
        snapshots.wanted = None;
        self.applied = meta.last_log_id;
        self.members = meta.last_membership.clone();
        self.fresh_bytes = 0;
        let index = event_index(self.applied);
        self.events.send(LogEvent::LoadSnapshot { index, state: *snapshot });
        let voters = voters_event(self.members.membership());
        voters.into_iter().for_each(|event| self.events.send(event));
        Ok(())
    }

    async fn get_current_snapshot(
        &mut self,
    ) -> Result<Option<Snapshot<Types>>, StorageError<NodeId>> {
        Ok(self.snapshots.lock().unwrap_or_else(PoisonError::into_inner).last())
    }
}
