//! The disk of a replica: its journal and its hard state, written by a thread of their own.
//!
//! Writes are done in the order in which openraft wants them. All entries that were queued while
//! the disk was busy are synced at once. Nobody waits for a disk who need not: see [`crate::acks`].

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use openraft::LogId;
use openraft::storage::LogFlushed;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, timeout};

use crate::acks::Acks;
use crate::channel::EventSender;
use crate::committed::{CommittedFile, CommittedIndex};
use crate::env::Env;
use crate::error::ReplicaError;
use crate::group::Shared;
use crate::hard_state::{HARD_STATE, MARKS};
use crate::journal::{Journal, RecordKind};
use crate::log::LogEvent;
use crate::slot_file::SlotFile;
use crate::types::{NodeId, Types};

/// Bytes of entries that may wait for a disk that makes no progress.
const WAITING_BYTES_MAX: usize = 256 << 20;

/// Minimum time between two reports of a slow disk.
const SLOW_REPORT_INTERVAL: Duration = Duration::from_secs(5);

/// Time without work after which the journal's watermark is advanced, as it is at an orderly end.
/// What was synced in that time before a crash is not below the watermark, unless something was
/// written after it.
const WATERMARK_IDLE: Duration = Duration::from_millis(200);

/// Minimum time between two writes of what is committed while there is work.
const COMMITTED_INTERVAL: Duration = Duration::from_millis(100);

/// An entry as a record of the journal.
#[derive(Debug)]
pub struct EntryRecord {
    pub index: u64,
    pub term: u64,
    pub kind: RecordKind,
    pub content: Shared,
}

/// What the disk is to do.
pub enum Task {
    /// Append entries; the callback is called when the disk has them.
    Append(Vec<EntryRecord>, Option<LogFlushed<Types>>),
    /// Remove the entries from this index on.
    Truncate(u64),
    /// The entries up to this index are not needed any more.
    Purge(u64),
    /// Replace the hard state; the result is sent when the disk has it.
    SaveHardState(Vec<u8>, Option<oneshot::Sender<Result<(), ReplicaError>>>),
}

/// A task, its number, and the log's last entry when it is done.
type QueuedTask = (Task, u64, Option<LogId<NodeId>>);

/// What the disk has.
#[derive(Debug, Default)]
struct Status {
    last: Option<LogId<NodeId>>,
    /// Why it is not used any more.
    failed: Option<ReplicaError>,
}

impl Status {
    fn lock(status: &Mutex<Status>) -> MutexGuard<'_, Status> {
        status.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Queues tasks for the disk thread, which ends when this is dropped.
#[derive(Debug)]
pub struct Disk {
    tasks: Option<UnboundedSender<QueuedTask>>,
    /// Number of the last task that was queued.
    count: u64,
    thread: Option<JoinHandle<()>>,
    waiting_bytes: Arc<AtomicUsize>,
    status: Arc<Mutex<Status>>,
    folder: PathBuf,
}

/// How the disk of a replica is used.
#[derive(Debug, Clone, Copy)]
pub struct DiskSettings {
    /// Whether the journal keeps what was purged.
    pub keep_all: bool,
    /// Time of a sync above which the disk is reported to be slow.
    pub slow: Duration,
    /// Time after which the journal's watermark is advanced although there always is work; zero
    /// for before each acknowledgement.
    pub watermark: Duration,
}

impl Disk {
    /// Starts the thread for a journal that is open, and whose last entry is `last`.
    ///
    /// # Errors
    /// If there can be no thread.
    pub fn start(
        env: &Env,
        folder: &Path,
        (journal, hard_state): (Journal, Option<SlotFile>),
        last: Option<LogId<NodeId>>,
        settings: DiskSettings,
        (acks, events, committed): (Arc<Acks>, Arc<EventSender>, CommittedIndex),
    ) -> Result<Disk, ReplicaError> {
        let (tasks, queue) = unbounded_channel();
        let waiting_bytes = Arc::new(AtomicUsize::new(0));
        let status = Arc::new(Mutex::new(Status { last, failed: None }));
        let worker = Worker {
            env: env.clone(),
            folder: folder.into(),
            journal,
            hard_state,
            settings,
            acks,
            events,
            reported_slow: None,
            watermark_at: Instant::now(),
            committed: CommittedFile::new(committed),
            committed_at: Instant::now(),
            waiting_bytes: Arc::clone(&waiting_bytes),
            status: Arc::clone(&status),
            done: 0,
        };
        let (tasks, folder) = (Some(tasks), folder.into());
        let mut disk = Disk { tasks, count: 0, thread: None, waiting_bytes, status, folder };
        if !env.has_threads() {
            tokio::spawn(worker.run(queue));
            return Ok(disk);
        }
        let failed = |error| ReplicaError::Thread(Arc::new(error));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
        let runtime = runtime.map_err(failed)?;
        let thread = std::thread::Builder::new().name("disk".to_string());
        let thread = thread.spawn(move || runtime.block_on(worker.run(queue)));
        disk.thread = Some(thread.map_err(failed)?);
        Ok(disk)
    }

    /// Queues a task after which the log's last entry is `last`.
    ///
    /// # Errors
    /// If the disk is not used any more, or too much waits for it.
    pub fn queue(&mut self, task: Task, last: Option<LogId<NodeId>>) -> Result<(), ReplicaError> {
        if let Some(error) = self.failed() {
            return Err(error);
        }
        let waiting = self.waiting_bytes.fetch_add(task.bytes(), Ordering::Relaxed);
        if waiting > WAITING_BYTES_MAX {
            let folder = self.folder.clone();
            let error = ReplicaError::DiskStuck { folder, waiting_mb: waiting >> 20 };
            Status::lock(&self.status).failed = Some(error.clone());
            return Err(error);
        }
        self.count += 1;
        if let Some(tasks) = &self.tasks {
            // If the thread has ended, the status says why.
            let _ = tasks.send((task, self.count, last));
        }
        Ok(())
    }

    /// Number of the last task that was queued.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The last entry that the disk has.
    pub fn last(&self) -> Option<LogId<NodeId>> {
        Status::lock(&self.status).last
    }

    /// Why the disk is not used any more.
    pub fn failed(&self) -> Option<ReplicaError> {
        Status::lock(&self.status).failed.clone()
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        drop(self.tasks.take());
        // The folder may be used by another replica as soon as this one is gone.
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Task {
    fn bytes(&self) -> usize {
        match self {
            Task::Append(records, _) => records.iter().map(|record| record.content.len()).sum(),
            Task::Truncate(_) | Task::Purge(_) | Task::SaveHardState(..) => 0,
        }
    }
}

/// The state of the disk thread.
struct Worker {
    env: Env,
    folder: PathBuf,
    journal: Journal,
    hard_state: Option<SlotFile>,
    settings: DiskSettings,
    acks: Arc<Acks>,
    events: Arc<EventSender>,
    /// When the disk was last reported to be slow.
    reported_slow: Option<Instant>,
    /// When the watermark was advanced, or there was nothing to advance.
    watermark_at: Instant,
    committed: CommittedFile,
    /// When what is committed was last written.
    committed_at: Instant,
    waiting_bytes: Arc<AtomicUsize>,
    status: Arc<Mutex<Status>>,
    /// Number of the last task that was done.
    done: u64,
}

/// Tasks that are done with one sync.
struct Round {
    flushed: Vec<LogFlushed<Types>>,
    /// The log's last entry behind them.
    last: Option<LogId<NodeId>>,
    result: Result<(), ReplicaError>,
}

impl Worker {
    async fn run(mut self, mut queue: UnboundedReceiver<QueuedTask>) {
        while let Some(first) = self.next_task(&mut queue).await {
            let mut round = self.write(first, &mut queue);
            let time = self.env.sync_time();
            if !time.is_zero() {
                round.result = round.result.and_then(|()| Ok(self.journal.flush()?));
                sleep(time).await;
            }
            let is_used = self.finish(round);
            let is_late = self.watermark_at.elapsed() > self.settings.watermark;
            if !is_used || is_late && !self.advance_watermark() {
                return;
            }
            if self.committed_at.elapsed() > COMMITTED_INTERVAL {
                self.write_committed();
            }
        }
        self.write_committed();
        if self.journal.is_watermark_due() {
            self.advance_watermark();
        }
    }

    /// The next task; `None` if there will be none. Advances the watermark meanwhile.
    async fn next_task(&mut self, queue: &mut UnboundedReceiver<QueuedTask>) -> Option<QueuedTask> {
        while self.journal.is_watermark_due() || self.awaits_commit() {
            match timeout(WATERMARK_IDLE, queue.recv()).await {
                Ok(task) => return task,
                Err(_) => self.write_committed(),
            }
            if self.journal.is_watermark_due() && !self.advance_watermark() {
                return None;
            }
        }
        let task = queue.recv().await;
        self.watermark_at = Instant::now();
        task
    }

    /// Whether the journal has records that the file does not say to be committed.
    fn awaits_commit(&self) -> bool {
        self.journal.span().is_some_and(|(_, last)| self.committed.written() < last)
    }

    fn write_committed(&mut self) {
        self.committed_at = Instant::now();
        self.committed.write(&self.env, &self.folder);
    }

    /// Advances the watermark; whether the disk is still used.
    fn advance_watermark(&mut self) -> bool {
        self.watermark_at = Instant::now();
        match self.journal.advance_watermark() {
            Ok(()) => true,
            Err(error) => {
                self.fail(error.into());
                false
            }
        }
    }

    /// Writes what a task and all others in the queue want.
    fn write(&mut self, first: QueuedTask, queue: &mut UnboundedReceiver<QueuedTask>) -> Round {
        let mut round = Round { flushed: vec![], last: None, result: Ok(()) };
        let queued = std::iter::from_fn(|| queue.try_recv().ok());
        for (task, number, last) in std::iter::once(first).chain(queued) {
            assert!(
                number == self.done + 1,
                "tasks are done in the order in which they were queued"
            );
            let bytes = task.bytes();
            if round.result.is_ok() {
                round.result = self.perform(task, &mut round.flushed);
            }
            self.waiting_bytes.fetch_sub(bytes, Ordering::Relaxed);
            (self.done, round.last) = (number, last);
        }
        round
    }

    /// Waits for the disk and reports what it has; whether it is still used.
    fn finish(&mut self, round: Round) -> bool {
        if let Err(error) = round.result.and_then(|()| self.sync()) {
            self.fail(error);
            return false;
        }
        let is_first = self.settings.watermark.is_zero() && self.journal.is_watermark_due();
        if is_first && !self.advance_watermark() {
            return false;
        }
        Status::lock(&self.status).last = round.last;
        for callback in round.flushed {
            LogFlushed::log_io_completed(callback, Ok(()));
        }
        self.acks.set_synced(self.done);
        true
    }

    fn fail(&self, error: ReplicaError) {
        Status::lock(&self.status).failed = Some(error);
        self.acks.set_failed();
    }

    fn perform(
        &mut self,
        task: Task,
        flushed: &mut Vec<LogFlushed<Types>>,
    ) -> Result<(), ReplicaError> {
        match task {
            Task::Append(records, callback) => {
                for EntryRecord { index, term, kind, content } in records {
                    self.journal.append(index, term, kind, &content)?;
                }
                flushed.extend(callback);
                Ok(())
            }
            Task::Truncate(from) => Ok(self.journal.truncate(from)?),
            Task::Purge(upto) => {
                if self.journal.next().is_some_and(|next| next <= upto) {
                    self.journal.restart(upto)?;
                } else if !self.settings.keep_all {
                    self.journal.purge(upto)?;
                }
                Ok(())
            }
            Task::SaveHardState(state, saved) => {
                // It may depend on entries that were queued before it.
                let result = self.sync().and_then(|()| self.save_hard_state(&state));
                if let Some(saved) = saved {
                    let _ = saved.send(result.clone());
                }
                result
            }
        }
    }

    fn save_hard_state(&mut self, state: &[u8]) -> Result<(), ReplicaError> {
        let path = self.folder.join(HARD_STATE);
        let written = match &mut self.hard_state {
            Some(file) => file.write(state),
            None => SlotFile::create(&self.env, &path, MARKS.now, state)
                .map(|file| self.hard_state = Some(file)),
        };
        written.map_err(|error| ReplicaError::file(&path, "cannot be written", error))
    }

    fn sync(&mut self) -> Result<(), ReplicaError> {
        let since = Instant::now();
        self.journal.sync()?;
        let took = since.elapsed();
        let is_due = self.reported_slow.is_none_or(|at| at.elapsed() > SLOW_REPORT_INTERVAL);
        if took > self.settings.slow && is_due {
            self.reported_slow = Some(Instant::now());
            self.events.send(LogEvent::Degraded(format!(
                "the disk of {} took {} ms for a sync: the others go on without it, and nothing is \
                 lost, but two such disks delay every request",
                self.folder.display(),
                took.as_millis()
            )));
        }
        Ok(())
    }
}
