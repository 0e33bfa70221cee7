//! The disk of a replica: its journal and its hard state, written by a thread of their own.
//!
//! Writes are done in the order in which openraft wants them. All entries that were queued while
//! the disk was busy are synced at once. Nobody waits for a disk who need not: see [`crate::acks`].

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use nm_sys::clock::Moment;
use openraft::LogId;
use openraft::storage::LogFlushed;
use tokio::sync::oneshot;

use crate::acks::Acks;
use crate::channel::EventSender;
use crate::error::ReplicaError;
use crate::group::Shared;
use crate::hard_state::{HARD_STATE, MARKS};
use crate::journal::{Journal, RecordKind};
use crate::log::LogEvent;
use crate::slot_file::SlotFile;
use crate::storage;
use crate::types::{NodeId, Types};

/// Bytes of entries that may wait for a disk that makes no progress.
const WAITING_BYTES_MAX: usize = 256 << 20;

/// Minimum time between two reports of a slow disk.
const SLOW_REPORT_INTERVAL: Duration = Duration::from_secs(5);

/// Time without work after which the journal's watermark is advanced, as it is at an orderly end.
/// What was synced in that time before a crash is not below the watermark, unless something was
/// written after it.
const WATERMARK_IDLE: Duration = Duration::from_millis(200);

/// Time after which it is advanced although there always is work: else a file that loses all from
/// some place on would be taken for one that was never written further.
const WATERMARK_BUSY: Duration = Duration::from_millis(if cfg!(test) { 500 } else { 5_000 });

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
    tasks: Option<Sender<QueuedTask>>,
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
}

impl Disk {
    /// Starts the thread for a journal that is open, and whose last entry is `last`.
    ///
    /// # Errors
    /// If there can be no thread.
    pub fn start(
        folder: &Path,
        (journal, hard_state): (Journal, Option<SlotFile>),
        last: Option<LogId<NodeId>>,
        settings: DiskSettings,
        (acks, events): (Arc<Acks>, Arc<EventSender>),
    ) -> Result<Disk, ReplicaError> {
        let (tasks, queue) = channel();
        let waiting_bytes = Arc::new(AtomicUsize::new(0));
        let status = Arc::new(Mutex::new(Status { last, failed: None }));
        let mut worker = Worker {
            folder: folder.into(),
            journal,
            hard_state,
            settings,
            acks,
            events,
            reported_slow: None,
            watermark_at: Moment::now(),
            waiting_bytes: Arc::clone(&waiting_bytes),
            status: Arc::clone(&status),
            done: 0,
        };
        let (tasks, folder) = (Some(tasks), folder.into());
        let mut disk = Disk { tasks, count: 0, thread: None, waiting_bytes, status, folder };
        if !storage::has_threads() {
            #[cfg(test)]
            tokio::spawn(worker.run_simulated(queue));
            return Ok(disk);
        }
        let thread = std::thread::Builder::new().name("disk".to_string());
        let thread = thread.spawn(move || worker.run(&queue));
        disk.thread = Some(thread.map_err(|error| ReplicaError::Thread(Arc::new(error)))?);
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
    folder: PathBuf,
    journal: Journal,
    hard_state: Option<SlotFile>,
    settings: DiskSettings,
    acks: Arc<Acks>,
    events: Arc<EventSender>,
    /// When the disk was last reported to be slow.
    reported_slow: Option<Moment>,
    /// When the watermark was advanced, or there was nothing to advance.
    watermark_at: Moment,
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
    fn run(&mut self, queue: &Receiver<QueuedTask>) {
        while let Some(first) = self.next_task(queue) {
            let round = self.write(first, queue);
            let is_used = self.finish(round);
            let is_late = self.watermark_at.elapsed() > WATERMARK_BUSY;
            if !is_used || is_late && !self.advance_watermark() {
                return;
            }
        }
        if self.journal.is_watermark_due() {
            self.advance_watermark();
        }
    }

    /// The next task; `None` if there will be none. Advances the watermark meanwhile.
    fn next_task(&mut self, queue: &Receiver<QueuedTask>) -> Option<QueuedTask> {
        while self.journal.is_watermark_due() {
            match queue.recv_timeout(WATERMARK_IDLE) {
                Ok(task) => return Some(task),
                Err(RecvTimeoutError::Timeout) if self.advance_watermark() => {}
                Err(_) => return None,
            }
        }
        let task = queue.recv().ok();
        self.watermark_at = Moment::now();
        task
    }

    /// Advances the watermark; whether the disk is still used.
    fn advance_watermark(&mut self) -> bool {
        self.watermark_at = Moment::now();
        match self.journal.advance_watermark() {
            Ok(()) => true,
            Err(error) => {
                self.fail(error.into());
                false
            }
        }
    }

    /// Writes what a task and all others in the queue want.
    fn write(&mut self, first: QueuedTask, queue: &Receiver<QueuedTask>) -> Round {
        let mut round = Round { flushed: vec![], last: None, result: Ok(()) };
        for (task, number, last) in std::iter::once(first).chain(queue.try_iter()) {
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

    /// As [`Worker::run`], in the time of a simulation.
    #[cfg(test)]
    async fn run_simulated(mut self, queue: Receiver<QueuedTask>) {
        use std::sync::mpsc::TryRecvError;

        let [mut idle, mut busy] = [Duration::ZERO; 2];
        let tick = Duration::from_millis(1);
        loop {
            match queue.try_recv() {
                Ok(first) => {
                    idle = Duration::ZERO;
                    let mut round = self.write(first, &queue);
                    round.result = round.result.and_then(|()| Ok(self.journal.flush()?));
                    tokio::time::sleep(tick * (crate::random::number() % 4) as u32).await;
                    let is_used = self.finish(round);
                    busy += tick;
                    let is_late = busy > WATERMARK_BUSY;
                    if !is_used || is_late && !self.advance_watermark() {
                        return;
                    }
                    busy = if is_late { Duration::ZERO } else { busy };
                }
                Err(TryRecvError::Empty) => {
                    tokio::time::sleep(tick).await;
                    idle += tick;
                    let is_due = idle >= WATERMARK_IDLE && self.journal.is_watermark_due();
                    if is_due && !self.advance_watermark() {
                        return;
                    }
                }
                Err(TryRecvError::Disconnected) => return,
            }
        }
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
            None => {
                SlotFile::create(&path, MARKS[0], state).map(|file| self.hard_state = Some(file))
            }
        };
        written.map_err(|error| ReplicaError::file(&path, "cannot be written", error))
    }

    fn sync(&mut self) -> Result<(), ReplicaError> {
        let since = Moment::now();
        #[cfg(test)]
        testing::sync(&self.folder)
            .map_err(|error| ReplicaError::file(&self.folder, "cannot be synced", error))?;
        self.journal.sync()?;
        #[cfg(test)]
        testing::set_synced(&self.folder, self.journal.next().unwrap_or(1) - 1);
        let took = since.elapsed();
        let is_due = self.reported_slow.is_none_or(|at| at.elapsed() > SLOW_REPORT_INTERVAL);
        if took > self.settings.slow && is_due {
            self.reported_slow = Some(Moment::now());
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

/// Disks that are slow, hang or crash, for tests, and what they have synced, by folder.
#[cfg(test)]
pub mod testing {
    use std::collections::HashMap;
    use std::io;
    use std::path::{Path, PathBuf};
    use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
    use std::time::Duration;

    /// How a disk syncs.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Behaviour {
        /// With this much more time.
        Slow(Duration),
        /// Not before it behaves differently.
        Hangs,
        /// Never: each sync fails, also one that hangs.
        Crashed,
    }

    #[derive(Debug)]
    struct TestDisk {
        behaviour: Behaviour,
        /// Index of the last entry that was synced.
        synced: u64,
    }

    type Disks = HashMap<PathBuf, TestDisk>;

    static DISKS: Mutex<Option<Disks>> = Mutex::new(None);
    static CHANGED: Condvar = Condvar::new();

    fn disks() -> MutexGuard<'static, Option<Disks>> {
        DISKS.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(folder: &Path, edit: impl FnOnce(&mut TestDisk)) {
        let new = || TestDisk { behaviour: Behaviour::Slow(Duration::ZERO), synced: 0 };
        edit(disks().get_or_insert_default().entry(folder.into()).or_insert_with(new));
        CHANGED.notify_all();
    }

    /// From now on the disk of this folder behaves like this, also in a sync that hangs.
    pub fn set_behaviour(folder: &Path, behaviour: Behaviour) {
        change(folder, |disk| disk.behaviour = behaviour);
    }

    /// Index of the last entry that the disk of this folder has.
    pub fn synced(folder: &Path) -> u64 {
        disks().get_or_insert_default().get(folder).map_or(0, |disk| disk.synced)
    }

    pub fn set_synced(folder: &Path, index: u64) {
        change(folder, |disk| disk.synced = index);
    }

    /// What the disk does before a sync.
    pub fn sync(folder: &Path) -> io::Result<()> {
        let mut disks = disks();
        loop {
            let disk = disks.get_or_insert_default().get(folder);
            match disk.map_or(Behaviour::Slow(Duration::ZERO), |disk| disk.behaviour) {
                Behaviour::Hangs => {
                    disks = CHANGED.wait(disks).unwrap_or_else(PoisonError::into_inner);
                }
                Behaviour::Crashed => return Err(io::Error::other("the machine has crashed")),
                Behaviour::Slow(pause) => {
                    drop(disks);
                    std::thread::sleep(pause);
                    return Ok(());
                }
            }
        }
    }
}
