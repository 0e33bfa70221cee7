//! The disk of a replica: its journal and its promises, on a thread of their own.
//!
//! Whatever is to be on the disk is ordered in the order in which openraft asked for it, and done
//! in that order. All entries that were ordered while the disk was busy are synced at once. Nobody
//! waits for a disk but those who must: see [`super::acks`].

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use nm_model::agent::Failure;
use nm_sys::clock::Moment;
use openraft::LogId;
use openraft::storage::LogFlushed;
use tokio::sync::oneshot;

use crate::journal::{self, Journal, RecordKind};

use super::acks::Acks;
use super::promises::{PROMISES, Slots, failure};
use super::raft::{NodeId, Teller, Types};
use super::{LogEvent, Shared};

/// Bytes of entries that may wait for a disk that stands still.
const WAITING_BYTES_MAX: usize = 256 << 20;

/// How often a slow disk is spoken of.
const SLOW_AGAIN: Duration = Duration::from_secs(5);

/// An entry for the journal.
#[derive(Debug)]
pub struct Line {
    pub index: u64,
    pub term: u64,
    pub kind: RecordKind,
    pub content: Shared,
}

/// What is to be done.
pub enum Task {
    /// Entries are added; who wants to know when the disk has them.
    Append(Vec<Line>, Option<LogFlushed<Types>>),
    /// The entries from this index on are taken away.
    Truncate(u64),
    /// The entries up to this index are not needed any more.
    Purge(u64),
    /// The promises are these from now on; who wants to know when the disk has them.
    Save(Vec<u8>, Option<oneshot::Sender<Result<(), Failure>>>),
}

/// A task, its number, and the log's last entry when it is done.
type Order = (Task, u64, Option<LogId<NodeId>>);

/// What the disk has.
#[derive(Debug, Default)]
struct Status {
    last: Option<LogId<NodeId>>,
    /// Why it is not used any more.
    failed: Option<Failure>,
}

/// The end at which tasks are ordered. The thread ends with it.
#[derive(Debug)]
pub struct Disk {
    orders: Option<Sender<Order>>,
    count: u64,
    thread: Option<JoinHandle<()>>,
    waiting_bytes: Arc<AtomicUsize>,
    status: Arc<Mutex<Status>>,
    folder: PathBuf,
}

/// How the disk of a replica is used.
#[derive(Debug, Clone, Copy)]
pub struct Use {
    /// Whether the journal keeps what was purged.
    pub keep_all: bool,
    /// Time for a sync after which it is said that the disk is slow.
    pub slow: Duration,
}

impl Disk {
    /// Starts the thread for a journal that is open, and whose last entry is `last`.
    ///
    /// # Errors
    /// If there can be no thread.
    pub fn start(
        folder: &Path,
        (journal, slots): (Journal, Option<Slots>),
        last: Option<LogId<NodeId>>,
        usage: Use,
        (acks, teller): (Arc<Acks>, Arc<Teller>),
    ) -> Result<Disk, Failure> {
        let (orders, to_do) = channel();
        let waiting_bytes = Arc::new(AtomicUsize::new(0));
        let status = Arc::new(Mutex::new(Status { last, failed: None }));
        let mut worker = Worker {
            folder: folder.into(),
            journal,
            slots,
            usage,
            acks,
            teller,
            told: None,
            waiting_bytes: Arc::clone(&waiting_bytes),
            status: Arc::clone(&status),
        };
        let thread = std::thread::Builder::new()
            .name("disk".to_string())
            .spawn(move || worker.run(&to_do))
            .map_err(|error| failure(folder, "gets no thread", &error.to_string()))?;
        let (orders, thread, folder) = (Some(orders), Some(thread), folder.into());
        Ok(Disk { orders, count: 0, thread, waiting_bytes, status, folder })
    }

    /// Orders a task after which the log's last entry is `last`.
    ///
    /// # Errors
    /// If the disk is not used any more, or too much waits for it.
    pub fn order(&mut self, task: Task, last: Option<LogId<NodeId>>) -> Result<(), Failure> {
        if let Some(failure) = self.failed() {
            return Err(failure);
        }
        let waiting = self.waiting_bytes.fetch_add(task.bytes(), Ordering::Relaxed);
        if waiting > WAITING_BYTES_MAX {
            let why = format!("{} MB of entries wait for it", waiting >> 20);
            let failure = failure(&self.folder, "is on a disk that stands still", &why)
                .hint("see what else uses that disk, then start the node again");
            let mut status = self.status.lock().unwrap_or_else(PoisonError::into_inner);
            status.failed = Some(failure.clone());
            return Err(failure);
        }
        self.count += 1;
        if let Some(orders) = &self.orders {
            // If the thread has ended, the status says why.
            let _ = orders.send((task, self.count, last));
        }
        Ok(())
    }

    /// Number of the last task that was ordered.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The last entry that the disk has.
    pub fn last(&self) -> Option<LogId<NodeId>> {
        self.status.lock().unwrap_or_else(PoisonError::into_inner).last
    }

    /// Why the disk is not used any more.
    pub fn failed(&self) -> Option<Failure> {
        self.status.lock().unwrap_or_else(PoisonError::into_inner).failed.clone()
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        drop(self.orders.take());
        // The folder may be used by another replica as soon as this one is gone.
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Task {
    fn bytes(&self) -> usize {
        match self {
            Task::Append(lines, _) => lines.iter().map(|line| line.content.len()).sum(),
            _ => 0,
        }
    }
}

/// The thread's own.
struct Worker {
    folder: PathBuf,
    journal: Journal,
    slots: Option<Slots>,
    usage: Use,
    acks: Arc<Acks>,
    teller: Arc<Teller>,
    /// When a slow disk was last spoken of.
    told: Option<Moment>,
    waiting_bytes: Arc<AtomicUsize>,
    status: Arc<Mutex<Status>>,
}

impl Worker {
    fn run(&mut self, orders: &Receiver<Order>) {
        let mut flushed = vec![];
        while let Ok(first) = orders.recv() {
            let mut done = (0, None);
            let mut outcome = Ok(());
            for (task, number, last) in std::iter::once(first).chain(orders.try_iter()) {
                let bytes = task.bytes();
                outcome = outcome.and_then(|()| self.perform(task, &mut flushed));
                self.waiting_bytes.fetch_sub(bytes, Ordering::Relaxed);
                done = (number, last);
            }
            if let Err(failure) = outcome.and_then(|()| self.sync()) {
                return self.fail(failure);
            }
            self.status.lock().unwrap_or_else(PoisonError::into_inner).last = done.1;
            for callback in flushed.drain(..) {
                LogFlushed::log_io_completed(callback, Ok(()));
            }
            self.acks.synced(done.0);
        }
    }

    fn perform(&mut self, task: Task, flushed: &mut Vec<LogFlushed<Types>>) -> Result<(), Failure> {
        match task {
            Task::Append(lines, callback) => {
                for Line { index, term, kind, content } in lines {
                    self.journal.append(index, term, kind, &content)?;
                }
                flushed.extend(callback);
                Ok(())
            }
            Task::Truncate(from) => self.journal.truncate(from),
            Task::Purge(upto) => match self.journal.next() {
                Some(next) if next <= upto => self.journal.restart(upto),
                _ if self.usage.keep_all => Ok(()),
                _ => self.journal.purge(upto),
            },
            Task::Save(promises, saved) => {
                // What is promised now may rest on entries before it.
                let outcome = self.sync().and_then(|()| self.save(&promises));
                if let Some(saved) = saved {
                    let _ = saved.send(outcome.clone());
                }
                outcome
            }
        }
    }

    fn save(&mut self, promises: &[u8]) -> Result<(), Failure> {
        let path = self.folder.join(PROMISES);
        let written = match &mut self.slots {
            Some(slots) => slots.write(promises),
            None => Slots::create(&path, promises).map(|slots| self.slots = Some(slots)),
        };
        written.map_err(|error| {
            let failure = failure(&path, "cannot be written", &error.to_string());
            journal::hinted(failure, &error)
        })
    }

    fn sync(&mut self) -> Result<(), Failure> {
        let since = Moment::now();
        #[cfg(test)]
        testing::pause(&self.folder);
        self.journal.sync()?;
        #[cfg(test)]
        testing::has(&self.folder, self.journal.next().unwrap_or(1) - 1);
        let took = since.elapsed();
        let is_news = self.told.is_none_or(|told| told.elapsed() > SLOW_AGAIN);
        if took > self.usage.slow && is_news {
            self.told = Some(Moment::now());
            self.teller.tell(LogEvent::Degraded(format!(
                "the disk of {} took {} ms for a sync: the others go on without it, and nothing is \
                 lost, but two such disks delay every request",
                self.folder.display(),
                took.as_millis()
            )));
        }
        Ok(())
    }

    fn fail(&self, failure: Failure) {
        self.status.lock().unwrap_or_else(PoisonError::into_inner).failed = Some(failure);
        self.acks.fail();
    }
}

/// Slow disks for tests, and what they have, by folder.
#[cfg(test)]
pub mod testing {
    use std::collections::HashMap;
    use std::path::{Path, PathBuf};
    use std::sync::{Mutex, MutexGuard, PoisonError};
    use std::time::Duration;

    /// Time that each sync takes longer, and index of the last entry that was synced.
    type Disks = HashMap<PathBuf, (Duration, u64)>;

    static DISKS: Mutex<Option<Disks>> = Mutex::new(None);

    fn disks() -> MutexGuard<'static, Option<Disks>> {
        DISKS.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Every sync in this folder takes so much longer from now on.
    pub fn slow(folder: &Path, pause: Duration) {
        disks().get_or_insert_default().entry(folder.into()).or_default().0 = pause;
    }

    /// The last entry that the disk of this folder has.
    pub fn synced(folder: &Path) -> u64 {
        disks().get_or_insert_default().get(folder).map_or(0, |(_, synced)| *synced)
    }

    pub fn pause(folder: &Path) {
        let pause = disks().get_or_insert_default().get(folder).map(|(pause, _)| *pause);
        pause.into_iter().for_each(std::thread::sleep);
    }

    pub fn has(folder: &Path, index: u64) {
        disks().get_or_insert_default().entry(folder.into()).or_default().1 = index;
    }
}
