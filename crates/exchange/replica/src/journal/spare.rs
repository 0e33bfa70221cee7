//! The next file of a journal, made before it is needed.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use super::format;
use crate::env::Env;
use crate::storage::File;

/// Name of the next file.
const SPARE: &str = "spare.tmp";

/// Zeros that are written and synced at a time while there are records to write, bytes.
const PIECE_BYTES: u64 = 256 << 10;

/// The next file of a journal.
#[derive(Debug)]
pub struct Spare {
    env: Env,
    folder: PathBuf,
    /// Size of each file of the journal.
    file_bytes: u64,
    state: State,
}

#[derive(Debug)]
enum State {
    /// There is none.
    None,
    /// It is being filled with zeros, a piece for each message, and at once when the sender is
    /// gone.
    Filling {
        thread: JoinHandle<io::Result<()>>,
        pace: Sender<()>,
        /// Pieces that were asked for.
        pieces: u64,
    },
    /// A file that was purged, with its old content.
    Used,
}

impl Spare {
    /// No file yet, for a journal in a folder.
    pub fn new(env: Env, folder: &Path, file_bytes: u64) -> Spare {
        Spare { env, folder: folder.into(), file_bytes, state: State::None }
    }

    fn path(&self) -> PathBuf {
        self.folder.join(SPARE)
    }

    /// Makes the next file as soon as half of the last one is used, as fast as its other half is
    /// used, so that the disk is free for the records. `used` is how much of the last file is used;
    /// `None` if there is no file yet.
    pub fn prepare(&mut self, used: Option<u64>) {
        let half = self.file_bytes / 2;
        if used.is_some_and(|used| used < half) {
            return;
        }
        if matches!(self.state, State::None) {
            self.state = self.start_filling(used.is_some());
        }
        if let (Some(used), State::Filling { pace, pieces, .. }) = (used, &mut self.state) {
            let wanted = (used - half) * 2 / PIECE_BYTES + 1;
            while *pieces < wanted && pace.send(()).is_ok() {
                *pieces += 1;
            }
        }
    }

    fn start_filling(&self, is_paced: bool) -> State {
        if !self.env.has_threads() {
            return State::None;
        }
        let (env, path, bytes) = (self.env.clone(), self.path(), self.file_bytes);
        let (pace, receiver) = channel();
        // Nobody waits for the disk before the first record.
        let receiver = is_paced.then_some(receiver);
        let thread = std::thread::Builder::new()
            .name("journal-spare".to_string())
            .spawn(move || create_zeros(&env, &path, bytes, receiver));
        match thread {
            Ok(thread) => State::Filling { thread, pace, pieces: 0 },
            // Without a thread it is made when it is needed.
            Err(_) => State::None,
        }
    }

    /// Keeps a file that was purged as the next one, if there is none yet and it has the right
    /// size; removes it otherwise.
    ///
    /// # Errors
    /// The system's error.
    pub fn keep(&mut self, path: &Path) -> io::Result<()> {
        let is_wanted = matches!(self.state, State::None);
        if !is_wanted || self.env.size(path)? != self.file_bytes {
            return self.env.remove(path);
        }
        // Its header must not change under its old name, whatever a crash leaves of the two.
        self.env.rename_durably(path, &self.path())?;
        self.state = State::Used;
        Ok(())
    }

    /// Gives the next file its name and its header; also returns its salt.
    ///
    /// # Errors
    /// The system's error.
    pub fn take(&mut self, to: &Path, first: u64) -> io::Result<(Box<dyn File>, u32)> {
        let path = self.path();
        let mut salt = 0;
        match std::mem::replace(&mut self.state, State::None) {
            State::Used => {
                salt = self.env.random() as u32 | 1;
            }
            State::Filling { thread, pace, .. } => {
                drop(pace);
                thread.join().unwrap_or_else(|_| Err(io::Error::other("its thread panicked")))?;
            }
            State::None => create_zeros(&self.env, &path, self.file_bytes, None)?,
        }
        let file = self.env.open(&path)?;
        file.write_all_at(&format::header(first, salt), 0)?;
        file.sync_data()?;
        self.env.rename_durably(&path, to)?;
        Ok((file, salt))
    }
}

impl Drop for Spare {
    fn drop(&mut self) {
        if let State::Filling { thread, pace, .. } = std::mem::replace(&mut self.state, State::None)
        {
            drop(pace);
            let _ = thread.join();
        }
        let _ = self.env.remove(&self.path());
    }
}

/// A durable file of zeros: a piece for each message, the rest when the sender is gone.
fn create_zeros(env: &Env, path: &Path, bytes: u64, pace: Option<Receiver<()>>) -> io::Result<()> {
    let file = env.create(path)?;
    let mut at = 0;
    while at < bytes && pace.as_ref().is_some_and(|pace| pace.recv().is_ok()) {
        let end = bytes.min(at + PIECE_BYTES);
        fill(&*file, at, end)?;
        file.sync_data()?;
        at = end;
    }
    fill(&*file, at, bytes)?;
    file.sync_all()
}

/// Writes zeros from `at` to `end`.
///
/// # Errors
/// The system's error.
pub fn fill(file: &dyn File, mut at: u64, end: u64) -> io::Result<()> {
    let chunk = vec![0; PIECE_BYTES as usize];
    while at < end {
        let count = (end - at).min(chunk.len() as u64);
        file.write_all_at(&chunk[..count as usize], at)?;
        at += count;
    }
    Ok(())
}
