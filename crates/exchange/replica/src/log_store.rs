//! The log of a group at one replica. It has all entries that may still be needed, in memory, and
//! on a [`Disk`] too if the group has a folder.
//!
//! openraft's indexes begin with 0, those of the journal and of log events with 1.

use std::collections::{BTreeSet, VecDeque};
use std::fmt::Debug;
use std::io;
use std::ops::{Bound, RangeBounds};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use openraft::storage::{LogFlushed, RaftLogStorage};
use openraft::{
    AnyError, EmptyNode, Entry, EntryPayload, LogId, LogState, OptionalSend, RaftLogReader,
    StorageError, StorageIOError, StoredMembership, Vote,
};
use tokio::sync::oneshot;

use crate::acks::Acks;
use crate::channel::EventSender;
use crate::committed::CommittedIndex;
use crate::content_format;
use crate::disk::{Disk, DiskSettings, EntryRecord, Task};
use crate::encode::{Encode, entry_of, record_of};
use crate::env::Env;
use crate::error::ReplicaError;
use crate::group::{Settings, Shared};
use crate::hard_state::{HARD_STATE, HardState, MARKS};
use crate::journal::Found;
use crate::log::LogEvent;
use crate::recovery::{self, Opened};
use crate::slot_file::SlotFile;
use crate::types::{NodeId, Types, leader_of, term_of};

/// Maximum size of the entries in one message to another replica, unless it is a single entry.
const MESSAGE_BYTES_MAX: usize = 1 << 20;

/// Bytes that an entry takes in a message besides its content, at most.
const ENTRY_OVERHEAD_BYTES: usize = 64;

#[derive(Debug)]
struct Inner {
    hard_state: HardState,
    entries: VecDeque<Entry<Types>>,
    disk: Option<Disk>,
    /// Whether this replica is the only one of its group.
    is_single: bool,
    /// The newest membership that is not in `entries` any more.
    purged_membership: StoredMembership<NodeId, EmptyNode>,
}

/// The log.
#[derive(Debug, Clone)]
pub struct LogStore {
    inner: Arc<Mutex<Inner>>,
    acks: Arc<Acks>,
    committed: CommittedIndex,
}

impl LogStore {
    /// The log in a folder, or an empty one in memory, of a group that begins with so many
    /// replicas; and whether it existed before.
    ///
    /// # Errors
    /// If the folder cannot be used or its content is damaged.
    pub fn open(
        env: &Env,
        folder: Option<&Path>,
        voters: usize,
        settings: &Settings,
        events: Arc<EventSender>,
    ) -> Result<(LogStore, bool), ReplicaError> {
        let is_single = voters == 1;
        let purged_membership = StoredMembership::default();
        let Some(folder) = folder else {
            let (hard_state, entries) = (HardState::default(), VecDeque::new());
            // Entries in memory are where they have to be.
            let acks = Arc::new(Acks::new(u64::MAX));
            let inner = Inner { hard_state, entries, disk: None, is_single, purged_membership };
            let (inner, committed) = (Arc::new(Mutex::new(inner)), CommittedIndex::default());
            return Ok((LogStore { inner, acks, committed }, false));
        };
        env.create_folder(folder)
            .map_err(|error| ReplicaError::file(folder, "cannot be created", error))?;
        content_format::admit(env, folder, &settings.content)?;
        let (hard_state, file) = read_hard_state(env, folder)?;
        let is_known = file.is_some();
        let journal = settings.journal;
        let mut opened = Opened { env, folder, journal, is_single, hard_state, file, damage: None };
        let (journal, found) = opened.open()?;
        let Opened { hard_state, file, damage, .. } = opened;
        if let Some(damage) = damage {
            events.send(LogEvent::Degraded(recovery::report(&damage)));
        }
        let entries = read_entries(folder, found)?;
        if !is_known && !entries.is_empty() {
            return Err(ReplicaError::HardStateMissing(folder.into()));
        }
        let mut inner = Inner { hard_state, entries, disk: None, is_single, purged_membership };
        let slow = Duration::from_millis(settings.election_ms.1);
        let watermark = Duration::from_millis(settings.watermark_ms);
        let disk_settings = DiskSettings { keep_all: settings.keep_all, slow, watermark };
        let acks = Arc::new(Acks::new(0));
        let committed = CommittedIndex::default();
        let ends = (Arc::clone(&acks), events, committed.clone());
        inner.disk =
            Some(Disk::start(env, folder, (journal, file), inner.last(), disk_settings, ends)?);
        Ok((LogStore { inner: Arc::new(Mutex::new(inner)), acks, committed }, is_known))
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The hard state.
    pub fn hard_state(&self) -> HardState {
        self.inner().hard_state.clone()
    }

    /// The last vote.
    pub fn vote(&self) -> Option<Vote<NodeId>> {
        self.inner().hard_state.vote
    }

    /// Changes the hard state; it is durable when this returns.
    ///
    /// # Errors
    /// If the disk does not accept it.
    pub async fn save(&self, change: impl FnOnce(&mut HardState)) -> Result<(), ReplicaError> {
        let saved = {
            let mut inner = self.inner();
            let before = inner.hard_state.vote;
            change(&mut inner.hard_state);
            assert!(inner.hard_state.vote >= before, "a vote is never taken back");
            let (save, saved) = oneshot::channel();
            let task = Task::SaveHardState(inner.hard_state.to_bytes(), Some(save));
            if !inner.queue(task)? {
                return Ok(());
            }
            saved
        };
        saved.await.unwrap_or_else(|_| Err(self.failed().unwrap_or(ReplicaError::DiskThreadEnded)))
    }

    /// The last entry.
    pub fn last(&self) -> Option<LogId<NodeId>> {
        self.inner().last()
    }

    /// The last entry that would survive a crash.
    pub fn last_durable(&self) -> Option<LogId<NodeId>> {
        let inner = self.inner();
        inner.disk.as_ref().map_or_else(|| inner.last(), Disk::last)
    }

    /// The acknowledgements.
    pub fn acks(&self) -> &Acks {
        &self.acks
    }

    /// Number of the last write, for [`Acks`].
    pub fn last_write(&self) -> u64 {
        self.inner().disk.as_ref().map_or(0, Disk::count)
    }

    /// Whether the log has all entries that it must have for its replica to lead.
    pub fn is_caught_up(&self) -> bool {
        let inner = self.inner();
        inner.last() >= inner.hard_state.required_log_id
    }

    /// The newest membership in the log, committed or not.
    pub fn membership(&self) -> StoredMembership<NodeId, EmptyNode> {
        self.inner().membership()
    }

    /// A snapshot has this membership.
    pub fn set_snapshot_membership(&self, membership: &StoredMembership<NodeId, EmptyNode>) {
        let mut inner = self.inner();
        if membership.log_id() > inner.purged_membership.log_id() {
            inner.purged_membership = membership.clone();
        }
        self.acks.set_voters(inner.voters());
    }

    /// Why the disk is not used any more.
    pub fn failed(&self) -> Option<ReplicaError> {
        self.inner().disk.as_ref().and_then(Disk::failed)
    }
}

/// The hard state in a folder, and its file if there is one.
///
/// # Errors
/// If it cannot be read, or cannot be trusted.
pub fn read_hard_state(
    env: &Env,
    folder: &Path,
) -> Result<(HardState, Option<SlotFile>), ReplicaError> {
    let path = folder.join(HARD_STATE);
    let (file, bytes) = match SlotFile::open(env, &path, &MARKS) {
        Ok(Some(found)) => found,
        Ok(None) => return Ok((HardState::default(), None)),
        Err(error) if error.kind() == io::ErrorKind::InvalidData => {
            let why = "it is damaged in both of its copies";
            return Err(ReplicaError::Untrusted { folder: folder.into(), why });
        }
        Err(error) => return Err(ReplicaError::file(&path, "cannot be used", error)),
    };
    let mut hard_state = HardState::from_bytes(&bytes, "hard state")
        .map_err(|source| ReplicaError::Decode { path, source })?;
    // A former leader must be elected again, so that each start leads in a term of its own.
    if let Some(vote) = &mut hard_state.vote {
        vote.committed = false;
    }
    Ok((hard_state, Some(file)))
}

/// The entries of a journal's records.
fn read_entries(folder: &Path, found: Found) -> Result<VecDeque<Entry<Types>>, ReplicaError> {
    let entries = found.records.into_iter().map(|record| {
        let log_id = LogId::new(leader_of(record.term), record.index - 1);
        entry_of(log_id, record.kind, Shared(record.bytes.into()))
    });
    let entries: Result<_, _> = entries.collect();
    entries.map_err(|source| ReplicaError::Decode { path: folder.into(), source })
}

/// The membership that an entry is.
fn membership_of(entry: &Entry<Types>) -> Option<StoredMembership<NodeId, EmptyNode>> {
    match &entry.payload {
        EntryPayload::Membership(members) => {
            Some(StoredMembership::new(Some(entry.log_id), members.clone()))
        }
        EntryPayload::Blank | EntryPayload::Normal(_) => None,
    }
}

/// An error as openraft wants it.
fn write_error(error: &ReplicaError) -> StorageError<NodeId> {
    StorageIOError::write_logs(AnyError::new(error)).into()
}

impl Inner {
    fn last(&self) -> Option<LogId<NodeId>> {
        self.entries.back().map_or(self.hard_state.purged, |entry| Some(entry.log_id))
    }

    fn membership(&self) -> StoredMembership<NodeId, EmptyNode> {
        let newest = self.entries.iter().rev().find_map(membership_of);
        newest.unwrap_or_else(|| self.purged_membership.clone())
    }

    /// The voters, if the newest membership has one set of them.
    fn voters(&self) -> Option<BTreeSet<NodeId>> {
        match self.membership().membership().get_joint_config().as_slice() {
            [voters] => Some(voters.clone()),
            _ => None,
        }
    }

    /// Queues a task for the disk; whether there is one.
    fn queue(&mut self, task: Task) -> Result<bool, ReplicaError> {
        let last = self.last();
        match &mut self.disk {
            Some(disk) => disk.queue(task, last).map(|()| true),
            None => Ok(false),
        }
    }

    fn append(
        &mut self,
        entries: impl IntoIterator<Item = Entry<Types>>,
        callback: LogFlushed<Types>,
    ) -> Result<(), ReplicaError> {
        let first = self.entries.len();
        for entry in entries {
            let next = self.last().map_or(0, |last| last.index + 1);
            assert!(entry.log_id.index == next, "entries are appended without a gap");
            self.entries.push_back(entry);
        }
        // See `acks` for why openraft need not wait for the disk.
        let callback = if self.is_single && self.disk.is_some() {
            Some(callback)
        } else {
            callback.log_io_completed(Ok(()));
            None
        };
        if self.disk.is_none() {
            return Ok(());
        }
        let records = self.entries.range(first..).map(|entry| {
            let (kind, content) = record_of(entry);
            let (index, term) = (entry.log_id.index + 1, term_of(&entry.log_id.leader_id));
            EntryRecord { index, term, kind, content }
        });
        let task = Task::Append(records.collect(), callback);
        self.queue(task).map(|_| ())
    }

    /// Whether a membership was among the removed entries.
    fn truncate(&mut self, from: u64) -> Result<bool, ReplicaError> {
        assert!(
            self.hard_state.purged.is_none_or(|purged| purged.index < from),
            "a purged entry was committed, and is never truncated"
        );
        let mut has_membership = false;
        while let Some(last) = self.entries.pop_back_if(|last| last.log_id.index >= from) {
            has_membership |= membership_of(&last).is_some();
        }
        self.queue(Task::Truncate(from + 1)).map(|_| has_membership)
    }

    fn purge(&mut self, upto: LogId<NodeId>) -> Result<(), ReplicaError> {
        while let Some(first) = self.entries.pop_front_if(|it| it.log_id.index <= upto.index) {
            let known =
                membership_of(&first).filter(|it| it.log_id() > self.purged_membership.log_id());
            if let Some(membership) = known {
                self.purged_membership = membership;
            }
        }
        self.hard_state.purged = self.hard_state.purged.max(Some(upto));
        self.queue(Task::SaveHardState(self.hard_state.to_bytes(), None))?;
        self.queue(Task::Purge(upto.index + 1)).map(|_| ())
    }
}

impl RaftLogReader<Types> for LogStore {
    async fn try_get_log_entries<R: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: R,
    ) -> Result<Vec<Entry<Types>>, StorageError<NodeId>> {
        let inner = self.inner();
        let Some(first) = inner.entries.front().map(|entry| entry.log_id.index) else {
            return Ok(vec![]);
        };
        let at = |index: u64| usize::try_from(index.saturating_sub(first)).unwrap_or(usize::MAX);
        let start = match range.start_bound() {
            Bound::Included(index) => at(*index),
            Bound::Excluded(index) => at(index + 1),
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(index) => at(index + 1),
            Bound::Excluded(index) => at(*index),
            Bound::Unbounded => usize::MAX,
        };
        let end = end.min(inner.entries.len());
        Ok(inner.entries.range(start.min(end)..end).cloned().collect())
    }

    async fn limited_get_log_entries(
        &mut self,
        start: u64,
        end: u64,
    ) -> Result<Vec<Entry<Types>>, StorageError<NodeId>> {
        let mut entries = self.try_get_log_entries(start..end).await?;
        let mut left = MESSAGE_BYTES_MAX;
        let fitting = entries.iter().take_while(|entry| {
            let size = record_of(entry).1.len() + ENTRY_OVERHEAD_BYTES;
            let fits = left >= size;
            left = left.saturating_sub(size);
            fits
        });
        let count = fitting.count().max(1);
        entries.truncate(count);
        Ok(entries)
    }
}

impl RaftLogStorage<Types> for LogStore {
    type LogReader = LogStore;

    async fn get_log_state(&mut self) -> Result<LogState<Types>, StorageError<NodeId>> {
        let inner = self.inner();
        let (last_purged_log_id, last_log_id) = (inner.hard_state.purged, inner.last());
        Ok(LogState { last_purged_log_id, last_log_id })
    }

    async fn get_log_reader(&mut self) -> LogStore {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote<NodeId>) -> Result<(), StorageError<NodeId>> {
        self.save(|state| state.vote = Some(*vote)).await.map_err(|error| write_error(&error))
    }

    async fn read_vote(&mut self) -> Result<Option<Vote<NodeId>>, StorageError<NodeId>> {
        Ok(self.vote())
    }

    async fn save_committed(
        &mut self,
        committed: Option<LogId<NodeId>>,
    ) -> Result<(), StorageError<NodeId>> {
        // The disk thread writes it from time to time.
        self.committed.set(committed.map_or(0, |committed| committed.index + 1));
        Ok(())
    }

    async fn append<I>(
        &mut self,
        entries: I,
        callback: LogFlushed<Types>,
    ) -> Result<(), StorageError<NodeId>>
    where
        I: IntoIterator<Item = Entry<Types>> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let mut inner = self.inner();
        let first = inner.entries.len();
        let appended = inner.append(entries, callback);
        // Behind a membership that is not committed another quorum counts already.
        if inner.entries.range(first..).any(|entry| membership_of(entry).is_some()) {
            self.acks.set_voters(inner.voters());
        }
        appended.map_err(|error| write_error(&error))
    }

    async fn truncate(&mut self, from: LogId<NodeId>) -> Result<(), StorageError<NodeId>> {
        let mut inner = self.inner();
        if inner.truncate(from.index).map_err(|error| write_error(&error))? {
            self.acks.set_voters(inner.voters());
        }
        Ok(())
    }

    async fn purge(&mut self, upto: LogId<NodeId>) -> Result<(), StorageError<NodeId>> {
        self.inner().purge(upto).map_err(|error| write_error(&error))
    }
}
