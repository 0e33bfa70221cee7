//! The log of a group at one replica: all entries that may still be asked for, in memory; and on a
//! [`Disk`] too if the group has a folder.

use std::collections::VecDeque;
use std::fmt::Debug;
use std::fs;
use std::ops::{Bound, RangeBounds};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nm_model::agent::{Failure, FailureKind};
use openraft::storage::{LogFlushed, RaftLogStorage};
use openraft::{
    AnyError, CommittedLeaderId, Entry, LogId, LogState, OptionalSend, RaftLogReader, StorageError,
    StorageIOError, Vote,
};
use tokio::sync::oneshot;

use crate::journal::Journal;

use super::acks::Acks;
use super::bytes::{self, Coded};
use super::disk::{Disk, Line, Task, Use};
use super::promises::{PROMISES, Promises, Slots, failure};
use super::raft::{NodeId, Teller, Types};
use super::{Settings, Shared};

/// Most bytes of entries that go in one message to another replica, if it is more than one.
const MESSAGE_BYTES: usize = 1 << 20;

/// Term as others than openraft see it: rises with each change of leader.
pub fn epoch_of(leader: &CommittedLeaderId<NodeId>) -> u64 {
    leader.term << 4 | leader.node_id
}

fn leader_of(epoch: u64) -> CommittedLeaderId<NodeId> {
    CommittedLeaderId::new(epoch >> 4, epoch & 15)
}

#[derive(Debug)]
struct Inner {
    promises: Promises,
    entries: VecDeque<Entry<Types>>,
    disk: Option<Disk>,
    /// Whether this replica is its whole group.
    is_alone: bool,
}

/// The log.
#[derive(Debug, Clone)]
pub struct Store {
    inner: Arc<Mutex<Inner>>,
    acks: Arc<Acks>,
}

impl Store {
    /// The log in a folder, or an empty one in memory, of one of so many members; and whether it
    /// was there before.
    ///
    /// # Errors
    /// If the folder cannot be used or what it holds is damaged.
    pub fn open(
        folder: Option<&Path>,
        members: usize,
        settings: &Settings,
        teller: Arc<Teller>,
    ) -> Result<(Store, bool), Failure> {
        let is_alone = members == 1;
        let Some(folder) = folder else {
            let (promises, entries) = (Promises::default(), VecDeque::new());
            let inner = Inner { promises, entries, disk: None, is_alone };
            // What is in memory is where it is to be.
            let acks = Arc::new(Acks::new(members, u64::MAX));
            return Ok((Store { inner: Arc::new(Mutex::new(inner)), acks }, false));
        };
        fs::create_dir_all(folder)
            .map_err(|error| failure(folder, "cannot be made", &error.to_string()))?;
        let known = Slots::open(&folder.join(PROMISES))?;
        let damaged = |what: &str| failure(folder, "is damaged", what);
        let mut promises = Promises::default();
        if let Some((_, bytes)) = &known {
            promises = Promises::whole(bytes).map_err(|_| damaged("what was promised is lost"))?;
            // Whoever led must be elected anew, so that each start leads in an epoch of its own.
            if let Some(vote) = &mut promises.vote {
                vote.committed = false;
            }
        }
        let from = promises.purged.map_or(0, |purged| purged.index + 1) + 1;
        let (mut journal, found) = Journal::open(folder, settings.journal, from)?;
        let is_behind = journal.next().is_some_and(|next| next < from);
        if is_behind {
            // A snapshot was installed, and the crash came before the journal began anew.
            journal.restart(from - 1)?;
        }
        let mut entries = VecDeque::new();
        for record in found.records {
            let log_id = LogId::new(leader_of(record.term), record.index - 1);
            let entry = bytes::entry(log_id, record.kind, Shared(record.bytes.into()))
                .map_err(|_| damaged("a record of its journal has no meaning"))?;
            entries.push_back(entry);
        }
        if known.is_none() && !entries.is_empty() {
            return Err(damaged("it has a journal, but what was promised is lost"));
        }
        let is_known = known.is_some();
        let mut inner = Inner { promises, entries, disk: None, is_alone };
        let slow = Duration::from_millis(settings.election_ms.1);
        let usage = Use { keep_all: settings.keep_all, slow };
        let acks = Arc::new(Acks::new(members, 0));
        let files = (journal, known.map(|(slots, _)| slots));
        let disk = Disk::start(folder, files, inner.last(), usage, (Arc::clone(&acks), teller))?;
        inner.disk = Some(disk);
        Ok((Store { inner: Arc::new(Mutex::new(inner)), acks }, is_known))
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What was promised.
    pub fn promises(&self) -> Promises {
        self.inner().promises.clone()
    }

    /// The last vote.
    pub fn vote(&self) -> Option<Vote<NodeId>> {
        self.inner().promises.vote
    }

    /// Promises something else; the disk has it when this returns.
    ///
    /// # Errors
    /// If the disk does not take it.
    pub async fn promise(&self, change: impl FnOnce(&mut Promises)) -> Result<(), Failure> {
        let saved = {
            let mut inner = self.inner();
            change(&mut inner.promises);
            let (save, saved) = oneshot::channel();
            let task = Task::Save(inner.promises.bytes(), Some(save));
            if !inner.order(task)? {
                return Ok(());
            }
            saved
        };
        saved.await.unwrap_or_else(|_| Err(self.failed().unwrap_or_else(ended)))
    }

    /// The last entry.
    pub fn last(&self) -> Option<LogId<NodeId>> {
        self.inner().last()
    }

    /// The last entry that would be there after a crash.
    pub fn kept(&self) -> Option<LogId<NodeId>> {
        let inner = self.inner();
        inner.disk.as_ref().map_or_else(|| inner.last(), Disk::last)
    }

    /// Who has what.
    pub fn acks(&self) -> &Acks {
        &self.acks
    }

    /// Number of the last write, for [`Acks`].
    pub fn write(&self) -> u64 {
        self.inner().disk.as_ref().map_or(0, Disk::count)
    }

    /// Whether the log has all that it must have for its replica to lead.
    pub fn is_whole(&self) -> bool {
        let inner = self.inner();
        inner.last() >= inner.promises.floor
    }

    /// Why the disk is not used any more.
    pub fn failed(&self) -> Option<Failure> {
        self.inner().disk.as_ref().and_then(Disk::failed)
    }
}

fn ended() -> Failure {
    Failure::new(FailureKind::System, "the thread of a replica's disk ended")
}

/// A failure as openraft wants it.
fn unwritten(failure: Failure) -> StorageError<NodeId> {
    StorageIOError::write_logs(AnyError::new(&failure)).into()
}

impl Inner {
    fn last(&self) -> Option<LogId<NodeId>> {
        self.entries.back().map_or(self.promises.purged, |entry| Some(entry.log_id))
    }

    /// Orders something for the disk; whether there is one.
    fn order(&mut self, task: Task) -> Result<bool, Failure> {
        let last = self.last();
        match &mut self.disk {
            Some(disk) => disk.order(task, last).map(|()| true),
            None => Ok(false),
        }
    }

    fn append(
        &mut self,
        entries: impl IntoIterator<Item = Entry<Types>>,
        callback: LogFlushed<Types>,
    ) -> Result<(), Failure> {
        let first = self.entries.len();
        self.entries.extend(entries);
        // See `acks` for why openraft need not wait for the disk.
        let callback = if self.is_alone && self.disk.is_some() {
            Some(callback)
        } else {
            callback.log_io_completed(Ok(()));
            None
        };
        if self.disk.is_none() {
            return Ok(());
        }
        let lines = self.entries.range(first..).map(|entry| {
            let (kind, content) = bytes::content(entry);
            let (index, term) = (entry.log_id.index + 1, epoch_of(&entry.log_id.leader_id));
            Line { index, term, kind, content }
        });
        let task = Task::Append(lines.collect(), callback);
        self.order(task).map(|_| ())
    }

    fn truncate(&mut self, from: u64) -> Result<(), Failure> {
        while self.entries.back().is_some_and(|last| last.log_id.index >= from) {
            self.entries.pop_back();
        }
        self.order(Task::Truncate(from + 1)).map(|_| ())
    }

    fn purge(&mut self, upto: LogId<NodeId>) -> Result<(), Failure> {
        while self.entries.front().is_some_and(|first| first.log_id.index <= upto.index) {
            self.entries.pop_front();
        }
        self.promises.purged = self.promises.purged.max(Some(upto));
        self.order(Task::Save(self.promises.bytes(), None))?;
        self.order(Task::Purge(upto.index + 1)).map(|_| ())
    }
}

impl RaftLogReader<Types> for Store {
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
        let mut left = MESSAGE_BYTES;
        let fitting = entries.iter().take_while(|entry| {
            let size = bytes::content(entry).1.len() + 64;
            let fits = left >= size;
            left = left.saturating_sub(size);
            fits
        });
        let count = fitting.count().max(1);
        entries.truncate(count);
        Ok(entries)
    }
}

impl RaftLogStorage<Types> for Store {
    type LogReader = Store;

    async fn get_log_state(&mut self) -> Result<LogState<Types>, StorageError<NodeId>> {
        let inner = self.inner();
        let (last_purged_log_id, last_log_id) = (inner.promises.purged, inner.last());
        Ok(LogState { last_purged_log_id, last_log_id })
    }

    async fn get_log_reader(&mut self) -> Store {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote<NodeId>) -> Result<(), StorageError<NodeId>> {
        self.promise(|promises| promises.vote = Some(*vote)).await.map_err(unwritten)
    }

    async fn read_vote(&mut self) -> Result<Option<Vote<NodeId>>, StorageError<NodeId>> {
        Ok(self.vote())
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
        self.inner().append(entries, callback).map_err(unwritten)
    }

    async fn truncate(&mut self, from: LogId<NodeId>) -> Result<(), StorageError<NodeId>> {
        self.inner().truncate(from.index).map_err(unwritten)
    }

    async fn purge(&mut self, upto: LogId<NodeId>) -> Result<(), StorageError<NodeId>> {
        self.inner().purge(upto).map_err(unwritten)
    }
}
