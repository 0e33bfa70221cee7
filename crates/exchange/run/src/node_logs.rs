//! What nodes write, kept in a file for each of them: `FOLDER/ROLE-INDEX.log`.
//!
//! A file that has its size is renamed to `….log.1`, the one before to `….log.2`, and the oldest is
//! removed. One thread writes, so no line falls between two files. Nobody waits for it: a node
//! writes into a pipe that another thread always empties, whatever the disk does. Lines that the
//! disk does not take in time are counted, and the log says how many.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use nm_exchange::network::{LogLimits, NodeId};

use crate::bounded_lines::BoundedLines;

/// Bytes of lines that wait for the disk. Beyond that they are counted and dropped.
pub const WAITING_BYTES_MAX: usize = 8 << 20;

/// Bytes of the last message of a node.
const SAID_BYTES_MAX: usize = 4096;

/// How long the end waits for the disk.
const FLUSH_LIMIT: Duration = Duration::from_secs(5);

/// What the writer is told.
enum Order {
    /// A node wrote a line.
    Line(NodeId, String),
    /// Other limits from here on. All files are opened anew.
    Limits(LogLimits),
    /// Whether all before is written.
    Flush(Sender<()>),
}

/// What a node wrote last.
#[derive(Debug, Default)]
struct Said {
    /// An error of the command.
    error: Option<String>,
    /// Anything.
    line: Option<String>,
    /// Lines that were dropped, of which its log does not tell yet.
    n_dropped: u64,
}

/// What the threads that read share with the one that writes.
#[derive(Debug, Default)]
struct Shared {
    said: Mutex<BTreeMap<NodeId, Said>>,
    waiting_bytes: AtomicUsize,
}

impl Shared {
    fn of<T>(&self, node: NodeId, with: impl FnOnce(&mut Said) -> T) -> T {
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        with(said.entry(node).or_default())
    }
}

/// The logs of the nodes of a supervisor.
#[derive(Debug, Clone)]
pub struct NodeLogs {
    shared: Arc<Shared>,
    orders: Sender<Order>,
}

impl NodeLogs {
    /// Logs in `folder`, which exists.
    ///
    /// # Errors
    /// If there can be no thread.
    pub fn new(folder: &Path, limits: LogLimits) -> io::Result<NodeLogs> {
        let (orders, received) = channel();
        let shared = Arc::<Shared>::default();
        let files = LogFiles::new(folder, limits);
        let writing = Arc::clone(&shared);
        let write = move || write(files, &writing, &received);
        thread::Builder::new().name("logs".to_string()).spawn(write)?;
        Ok(NodeLogs { shared, orders })
    }

    /// Keeps a line. Does not wait.
    pub fn keep(&self, node: NodeId, line: String) {
        let start = || Some(line[..line.floor_char_boundary(SAID_BYTES_MAX)].to_string());
        self.shared.of(node, |said| {
            if line.starts_with("nearmetal: ") {
                said.error = start();
            } else if !line.trim().is_empty() {
                said.line = start();
            }
        });
        let waiting = &self.shared.waiting_bytes;
        let (bytes, n_before) = (line.len(), waiting.fetch_add(line.len(), Ordering::Relaxed));
        let is_kept = n_before + bytes <= WAITING_BYTES_MAX
            && self.orders.send(Order::Line(node, line)).is_ok();
        if !is_kept {
            waiting.fetch_sub(bytes, Ordering::Relaxed);
            self.shared.of(node, |said| said.n_dropped += 1);
        }
    }

    /// Keeps all that a node writes, until it ends.
    pub fn keep_all(&self, node: NodeId, from: impl Read) {
        for line in BoundedLines::new(io::BufReader::new(from)) {
            self.keep(node, line);
        }
    }

    /// The error message that a node wrote last, or else its last line.
    pub fn last_message(&self, node: NodeId) -> Option<String> {
        self.shared.of(node, |said| said.error.clone().or_else(|| said.line.clone()))
    }

    /// Takes other limits, and opens all files anew: somebody may have moved them.
    pub fn reopen(&self, limits: LogLimits) {
        // The writer is there as long as this is.
        let _ = self.orders.send(Order::Limits(limits));
    }

    /// Waits until what was kept so far is written, unless the disk takes too long.
    pub fn flush(&self) {
        let (done, is_done) = channel();
        if self.orders.send(Order::Flush(done)).is_ok() {
            let _ = is_done.recv_timeout(FLUSH_LIMIT);
        }
    }
}

fn write(mut files: LogFiles, shared: &Shared, orders: &Receiver<Order>) {
    for order in orders {
        match order {
            Order::Line(node, line) => {
                let n_dropped = shared.of(node, |said| std::mem::take(&mut said.n_dropped));
                let dropped = (n_dropped > 0).then(|| {
                    format!("{n_dropped} lines were dropped: the disk did not take them in time")
                });
                let lines = dropped.iter().chain([&line]);
                let is_written = lines.map(|line| files.write(node, line)).all(|it| it.is_ok());
                if !is_written {
                    shared.of(node, |said| said.n_dropped += n_dropped + 1);
                }
                shared.waiting_bytes.fetch_sub(line.len(), Ordering::Relaxed);
            }
            Order::Limits(limits) => files = LogFiles::new(&files.folder, limits),
            Order::Flush(done) => {
                // Who has waited too long has gone.
                let _ = done.send(());
            }
        }
    }
}

/// Files that are begun anew when they have their size.
struct LogFiles {
    folder: PathBuf,
    limits: LogLimits,
    open: BTreeMap<NodeId, (File, u64)>,
}

impl LogFiles {
    fn new(folder: &Path, limits: LogLimits) -> LogFiles {
        LogFiles { folder: folder.to_path_buf(), limits, open: BTreeMap::new() }
    }

    fn path(&self, node: NodeId) -> PathBuf {
        self.folder.join(format!("{}.log", node.file_name()))
    }

    /// The file that was full so many files ago.
    fn full(&self, node: NodeId, number: u32) -> PathBuf {
        self.folder.join(format!("{}.log.{number}", node.file_name()))
    }

    fn write(&mut self, node: NodeId, line: &str) -> io::Result<()> {
        let bytes = line.len() as u64 + 1;
        let (mut file, mut length) = self.take(node)?;
        if length > 0 && length + bytes > self.limits.bytes {
            self.rotate(node)?;
            (file, length) = self.take(node)?;
        }
        file.write_all(format!("{line}\n").as_bytes())?;
        self.open.insert(node, (file, length + bytes));
        Ok(())
    }

    /// The open file, with its length. After an error it is opened anew.
    fn take(&mut self, node: NodeId) -> io::Result<(File, u64)> {
        if let Some(open) = self.open.remove(&node) {
            return Ok(open);
        }
        let file = File::options().create(true).append(true).open(self.path(node))?;
        let length = file.metadata()?.len();
        Ok((file, length))
    }

    fn rotate(&self, node: NodeId) -> io::Result<()> {
        for beyond in self.limits.files..=*LogLimits::FILES.end() {
            remove(&self.full(node, beyond))?;
        }
        for number in (1..self.limits.files).rev() {
            rename(&self.full(node, number), &self.full(node, number + 1))?;
        }
        rename(&self.path(node), &self.full(node, 1))
    }
}

fn remove(file: &Path) -> io::Result<()> {
    if_there(fs::remove_file(file))
}

fn rename(from: &Path, to: &Path) -> io::Result<()> {
    if_there(fs::rename(from, to))
}

fn if_there(done: io::Result<()>) -> io::Result<()> {
    match done {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done,
    }
}

#[cfg(test)]
mod tests {
    use nm_exchange::network::Role;

    use super::*;

    fn logs(folder: &Path, bytes: u64, files: u32) -> NodeLogs {
        NodeLogs::new(folder, LogLimits { bytes, files }).unwrap()
    }

    fn text(folder: &Path, name: &str) -> String {
        fs::read_to_string(folder.join(name)).unwrap_or_default()
    }

    /// All lines of a node, from the oldest file.
    fn all_lines(folder: &Path, files: u32) -> Vec<String> {
        let full = (1..=files).rev().map(|number| format!("router-0.log.{number}"));
        let names = full.chain(["router-0.log".to_string()]);
        names
            .flat_map(|name| text(folder, &name).lines().map(str::to_string).collect::<Vec<_>>())
            .collect()
    }

    #[test]
    fn no_line_is_lost_across_rotations_and_the_oldest_files_go() {
        let folder = tempfile::tempdir().unwrap();
        let node = Role::Router.node(0);
        let written: Vec<String> = (0..1000).map(|at| format!("line {at}")).collect();
        let logs = logs(folder.path(), 4096, 3);
        let lines = written.join("\n");
        logs.keep_all(node, lines.as_bytes());
        logs.flush();
        assert_eq!(all_lines(folder.path(), 3), written);
        logs.keep_all(node, lines.as_bytes());
        logs.flush();
        let kept = all_lines(folder.path(), 100);
        assert!(
            written.ends_with(&kept[kept.len() - 1000..]) && kept.len() < 2000,
            "{}",
            kept.len()
        );
        for file in fs::read_dir(folder.path()).unwrap() {
            assert!(file.unwrap().metadata().unwrap().len() <= 4096);
        }
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 4, "one and three full ones");
        logs.reopen(LogLimits { bytes: 4096, files: 1 });
        logs.keep_all(node, lines.as_bytes());
        logs.flush();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2, "fewer from now on");
    }

    #[test]
    fn a_log_that_somebody_moved_is_begun_anew() {
        let folder = tempfile::tempdir().unwrap();
        let (node, limits) = (Role::Router.node(0), LogLimits::default());
        let logs = NodeLogs::new(folder.path(), limits).unwrap();
        logs.keep(node, "before".to_string());
        logs.flush();
        fs::rename(folder.path().join("router-0.log"), folder.path().join("moved")).unwrap();
        logs.keep(node, "meanwhile".to_string());
        logs.reopen(limits);
        logs.keep(node, "after".to_string());
        logs.flush();
        assert_eq!(text(folder.path(), "moved"), "before\nmeanwhile\n");
        assert_eq!(text(folder.path(), "router-0.log"), "after\n");
    }

    /// The disk is a pipe here that nobody reads.
    #[test]
    fn a_disk_that_does_not_write_blocks_no_node_and_what_it_missed_is_counted() {
        let folder = tempfile::tempdir().unwrap();
        let (node, other) = (Role::Router.node(0), Role::Router.node(1));
        let pipe = folder.path().join("router-0.log");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status().unwrap();
        assert!(made.success());
        let logs = NodeLogs::new(folder.path(), LogLimits::default()).unwrap();
        let line = "x".repeat(WAITING_BYTES_MAX / 8);
        (0..20).for_each(|_| logs.keep(node, line.clone()));
        logs.keep(other, "nearmetal: the disk hangs".to_string());
        assert_eq!(logs.last_message(other).unwrap(), "nearmetal: the disk hangs");
        let reading = File::open(&pipe).unwrap();
        let read = thread::spawn(move || {
            BoundedLines::new(io::BufReader::new(reading))
                .take_while(|line| line != "end")
                .filter(|line| line.contains("were dropped"))
                .collect::<Vec<_>>()
        });
        while logs.shared.waiting_bytes.load(Ordering::Relaxed) > 0 {
            thread::yield_now();
        }
        logs.keep(node, "end".to_string());
        let dropped = read.join().unwrap();
        assert_eq!(dropped.len(), 1, "{dropped:?}");
        assert!(dropped[0].starts_with("12 lines were dropped"), "{dropped:?}");
    }
}
