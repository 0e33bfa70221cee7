//! The log of a group at one replica: all entries that may still be asked for in memory, and in the
//! journal too if the group has a folder; and what was promised, in a file beside it.
//!
//! ```text
//! promises   two slots of 4096 bytes, written in turn, so that a crash leaves one of them whole:
//!            0 number of the write u64   8 length u32   12 crc32c of number and content u32
//!            16 content
//! ```

use std::collections::VecDeque;
use std::fmt::Debug;
use std::fs::{self, File};
use std::io::{self, Write};
use std::ops::{Bound, RangeBounds};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nm_model::agent::{Failure, FailureKind};
use nm_sys::clock::Moment;
use openraft::storage::{LogFlushed, RaftLogStorage};
use openraft::{
    AnyError, CommittedLeaderId, Entry, LogId, LogState, OptionalSend, RaftLogReader, StorageError,
    StorageIOError, Vote,
};

use super::bytes::{self, Coded};
use super::raft::{NodeId, Teller, Types};
use super::{Settings, Shared, Told};
use crate::codec::{Fields, Meaningless};
use crate::journal::{self, Journal};

/// Most bytes of entries that go in one message to another replica, if it is more than one.
const MESSAGE_BYTES: usize = 1 << 20;

/// What a replica may not forget, besides the entries.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Promises {
    /// The replicas' starts that the group began with, in the order of its members (see
    /// [`super::birth`]).
    pub certificate: Vec<u64>,
    /// The last vote.
    pub vote: Option<Vote<NodeId>>,
    /// What the log must reach before this replica may lead, or vote for one who has less.
    pub floor: Option<LogId<NodeId>>,
    /// The last entry that was forgotten because a snapshot has it.
    pub purged: Option<LogId<NodeId>>,
}

impl Coded for Promises {
    fn put(&self, out: &mut Vec<u8>) {
        self.certificate.put(out);
        self.vote.put(out);
        self.floor.put(out);
        self.purged.put(out);
    }

    fn read(from: &mut Fields<'_>) -> Result<Promises, Meaningless> {
        let (certificate, vote) = (Vec::read(from)?, Option::read(from)?);
        Ok(Promises { certificate, vote, floor: Option::read(from)?, purged: Option::read(from)? })
    }
}

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
    /// Why the disk is not used any more.
    failed: Option<Failure>,
}

#[derive(Debug)]
struct Disk {
    folder: PathBuf,
    journal: Journal,
    keep_all: bool,
    slots: Option<Slots>,
    /// Time for a sync after which others will want another leader; who is told of a longer one;
    /// and when that was last.
    slow: Duration,
    teller: Arc<Teller>,
    told: Option<Moment>,
}

impl Disk {
    fn sync(&mut self) -> Result<(), Failure> {
        let since = Moment::now();
        self.journal.sync()?;
        let took = since.elapsed();
        let is_news = self.told.is_none_or(|told| told.elapsed() > SLOW_AGAIN);
        if took > self.slow && is_news {
            self.told = Some(Moment::now());
            self.teller.tell(Told::Waits(format!(
                "the disk of {} took {} ms for a sync: no leader stays in office with such a disk",
                self.folder.display(),
                took.as_millis()
            )));
        }
        Ok(())
    }
}

/// How often a slow disk is spoken of.
const SLOW_AGAIN: Duration = Duration::from_secs(5);

/// The file of [`Promises`].
#[derive(Debug)]
struct Slots {
    file: File,
    number: u64,
}

const SLOT_BYTES: u64 = 4096;

impl Slots {
    /// The file and the content of the slot that was written last; none if there is no file.
    fn open(path: &Path) -> Result<Option<(Slots, Vec<u8>)>, Failure> {
        let opened = File::options().read(true).write(true).open(path);
        let unreadable = |error: io::Error| failure(path, "cannot be read", &error.to_string());
        let file = match opened {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(unreadable(error)),
        };
        let bytes = fs::read(path).map_err(unreadable)?;
        let slots = bytes.chunks(SLOT_BYTES as usize).filter_map(Slots::content);
        let last = slots.max_by_key(|(number, _)| *number);
        let (number, content) =
            last.ok_or_else(|| failure(path, "is damaged", "no checksum of it is right"))?;
        Ok(Some((Slots { file, number }, content.to_vec())))
    }

    fn content(slot: &[u8]) -> Option<(u64, &[u8])> {
        let mut fields = Fields(slot);
        let number = fields.u64().ok()?;
        let (length, checksum) = (fields.u32().ok()?, fields.u32().ok()?);
        let content = fields.bytes(length as usize).ok()?;
        (number > 0 && checksum == Slots::checksum(number, content)).then_some((number, content))
    }

    fn checksum(number: u64, content: &[u8]) -> u32 {
        crc32c::crc32c_append(crc32c::crc32c(&number.to_le_bytes()), content)
    }

    /// A file whose first slot has this content.
    fn create(path: &Path, content: &[u8]) -> io::Result<Slots> {
        let temporary = path.with_extension("tmp");
        let file = File::create(&temporary)?;
        file.set_len(2 * SLOT_BYTES)?;
        let mut slots = Slots { file, number: 0 };
        slots.write(content)?;
        slots.file.sync_all()?;
        fs::rename(&temporary, path)?;
        journal::sync_folder(path.parent().unwrap_or(Path::new("/")))?;
        Ok(slots)
    }

    fn write(&mut self, content: &[u8]) -> io::Result<()> {
        let number = self.number + 1;
        let mut slot = number.to_le_bytes().to_vec();
        slot.extend_from_slice(&(content.len() as u32).to_le_bytes());
        slot.extend_from_slice(&Slots::checksum(number, content).to_le_bytes());
        slot.extend_from_slice(content);
        slot.resize(SLOT_BYTES as usize, 0);
        self.file.write_all_at(&slot, number % 2 * SLOT_BYTES)?;
        self.file.sync_data()?;
        self.number = number;
        Ok(())
    }
}

/// The log.
#[derive(Debug, Clone)]
pub struct Store(Arc<Mutex<Inner>>);

/// Name of the file of [`Promises`].
const PROMISES: &str = "promises";

impl Store {
    /// The log in a folder, or an empty one in memory; and whether it was there before.
    ///
    /// # Errors
    /// If the folder cannot be used or what it holds is damaged.
    pub fn open(
        folder: Option<&Path>,
        settings: &Settings,
        teller: Arc<Teller>,
    ) -> Result<(Store, bool), Failure> {
        let Some(folder) = folder else {
            let inner = Inner {
                promises: Promises::default(),
                entries: VecDeque::new(),
                disk: None,
                failed: None,
            };
            return Ok((Store(Arc::new(Mutex::new(inner))), false));
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
        let disk = Disk {
            folder: folder.into(),
            journal,
            keep_all: settings.keep_all,
            slots: known.map(|(slots, _)| slots),
            slow: Duration::from_millis(settings.election_ms.1),
            teller,
            told: None,
        };
        let inner = Inner { promises, entries, disk: Some(disk), failed: None };
        Ok((Store(Arc::new(Mutex::new(inner))), is_known))
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What was promised.
    pub fn promises(&self) -> Promises {
        self.inner().promises.clone()
    }

    /// Promises something else; the disk has it when this returns.
    ///
    /// # Errors
    /// If the disk does not take it.
    pub fn promise(&self, change: impl FnOnce(&mut Promises)) -> Result<(), Failure> {
        let mut inner = self.inner();
        change(&mut inner.promises);
        inner.save()
    }

    /// The last entry.
    pub fn last(&self) -> Option<LogId<NodeId>> {
        self.inner().last()
    }

    /// Whether the log has all that it must have for its replica to lead.
    pub fn is_whole(&self) -> bool {
        let inner = self.inner();
        inner.last() >= inner.promises.floor
    }

    /// Why the disk is not used any more.
    pub fn failed(&self) -> Option<Failure> {
        self.inner().failed.clone()
    }
}

impl Inner {
    fn last(&self) -> Option<LogId<NodeId>> {
        self.entries.back().map_or(self.promises.purged, |entry| Some(entry.log_id))
    }

    fn save(&mut self) -> Result<(), Failure> {
        let Some(disk) = &mut self.disk else { return Ok(()) };
        let (path, content) = (disk.folder.join(PROMISES), self.promises.bytes());
        let written = match &mut disk.slots {
            Some(slots) => slots.write(&content),
            None => Slots::create(&path, &content).map(|slots| disk.slots = Some(slots)),
        };
        written.map_err(|error| {
            let failure = failure(&path, "cannot be written", &error.to_string());
            let failure = journal::hinted(failure, &error);
            self.failed.get_or_insert(failure.clone());
            failure
        })
    }

    fn append(&mut self, entries: impl IntoIterator<Item = Entry<Types>>) -> Result<(), Failure> {
        for entry in entries {
            if let Some(disk) = &mut self.disk {
                let (kind, content) = bytes::content(&entry);
                let term = epoch_of(&entry.log_id.leader_id);
                disk.journal.append(entry.log_id.index + 1, term, kind, &content)?;
            }
            self.entries.push_back(entry);
        }
        self.disk.as_mut().map_or(Ok(()), Disk::sync)
    }

    fn truncate(&mut self, from: u64) -> Result<(), Failure> {
        while self.entries.back().is_some_and(|last| last.log_id.index >= from) {
            self.entries.pop_back();
        }
        self.disk.as_mut().map_or(Ok(()), |disk| disk.journal.truncate(from + 1))
    }

    fn purge(&mut self, upto: LogId<NodeId>) -> Result<(), Failure> {
        while self.entries.front().is_some_and(|first| first.log_id.index <= upto.index) {
            self.entries.pop_front();
        }
        self.promises.purged = self.promises.purged.max(Some(upto));
        self.save()?;
        let Some(disk) = &mut self.disk else { return Ok(()) };
        match disk.journal.next() {
            Some(next) if next <= upto.index + 1 => disk.journal.restart(upto.index + 1),
            _ if disk.keep_all => Ok(()),
            _ => disk.journal.purge(upto.index + 1),
        }
    }

    /// Remembers a failure, and says it as openraft wants it.
    fn failed(&mut self, failure: &Failure) -> StorageError<NodeId> {
        self.failed.get_or_insert(failure.clone());
        StorageIOError::write_logs(AnyError::new(failure)).into()
    }
}

fn failure(path: &Path, what: &str, why: &str) -> Failure {
    let message = format!("the replica's folder {} {what}: {why}", path.display());
    Failure::new(FailureKind::System, message)
}

/// Writes a file with a checksum: a crash leaves the old one or the new one.
///
/// # Errors
/// If the disk does not take it.
pub fn write_whole(path: &Path, content: &[u8]) -> Result<(), Failure> {
    let write = || -> io::Result<()> {
        let temporary = path.with_extension("tmp");
        let mut file = File::create(&temporary)?;
        file.write_all(&crc32c::crc32c(content).to_le_bytes())?;
        file.write_all(content)?;
        file.sync_all()?;
        fs::rename(&temporary, path)?;
        journal::sync_folder(path.parent().unwrap_or(Path::new("/")))
    };
    let unwritten = |error: &io::Error| failure(path, "cannot be written", &error.to_string());
    write().map_err(|error| journal::hinted(unwritten(&error), &error))
}

/// The content of such a file; none if there is no file.
///
/// # Errors
/// If it cannot be read or is damaged.
pub fn read_whole(path: &Path) -> Result<Option<Vec<u8>>, Failure> {
    let mut bytes = match fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failure(path, "cannot be read", &error.to_string())),
    };
    let checksum = bytes.first_chunk().map(|bytes| u32::from_le_bytes(*bytes));
    if checksum.is_none_or(|checksum| checksum != crc32c::crc32c(&bytes[4..])) {
        return Err(failure(path, "is damaged", "its checksum is wrong"));
    }
    bytes.drain(..4);
    Ok(Some(bytes))
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
        let mut inner = self.inner();
        inner.promises.vote = Some(*vote);
        inner.save().map_err(|failure| inner.failed(&failure))
    }

    async fn read_vote(&mut self) -> Result<Option<Vote<NodeId>>, StorageError<NodeId>> {
        Ok(self.inner().promises.vote)
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
        inner.append(entries).map_err(|failure| inner.failed(&failure))?;
        drop(inner);
        callback.log_io_completed(Ok(()));
        Ok(())
    }

    async fn truncate(&mut self, from: LogId<NodeId>) -> Result<(), StorageError<NodeId>> {
        let mut inner = self.inner();
        inner.truncate(from.index).map_err(|failure| inner.failed(&failure))
    }

    async fn purge(&mut self, upto: LogId<NodeId>) -> Result<(), StorageError<NodeId>> {
        let mut inner = self.inner();
        inner.purge(upto).map_err(|failure| inner.failed(&failure))
    }
}
