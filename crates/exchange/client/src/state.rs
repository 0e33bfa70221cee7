//! The file that keeps a session's state: a line for each change, rewritten when it is opened.
//!
//! A change is written before the frames that follow from it are sent, so the state survives
//! `kill -9`. It is not forced to the disk: after a power failure it may be older than the
//! exchange, which the session finds out.

use std::fs::{self, File, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::change::Change;
use crate::session::Session;

/// First line of the file, before the number of the session.
const MAGIC: &str = "nearmetal-client-state 1 session";

/// Why a state cannot be used.
#[derive(Debug, Error)]
pub enum StateError {
    /// It cannot be read or written.
    #[error("the state in {}: {source}", .path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// Another process uses it.
    #[error("another client uses the state in {}", .0.display())]
    Locked(PathBuf),
    /// It is of another session.
    #[error("{} is not the state of session {session}: it begins with `{found}`", .path.display())]
    Other {
        /// The file.
        path: PathBuf,
        /// The session that is meant.
        session: u32,
        /// Its first line.
        found: String,
    },
    /// A line of it is wrong.
    #[error("line {line} of {} is no change of a session", .path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// Which, from 1 on.
        line: usize,
    },
}

/// The open file of a state.
#[derive(Debug)]
pub struct StateFile {
    path: PathBuf,
    file: File,
    /// Keeps others away while this one is open.
    _lock: File,
}

impl StateFile {
    /// Opens the state of a session and restores the session; a new one if there is no file.
    ///
    /// # Errors
    /// If the file cannot be used.
    pub fn open(path: &Path, number: u32) -> Result<(StateFile, Session), StateError> {
        let io = |source| StateError::Io { path: path.into(), source };
        let lock = File::options().create(true).append(true).open(beside(path, ".lock"));
        let lock = lock.map_err(io)?;
        lock.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock => StateError::Locked(path.into()),
            TryLockError::Error(error) => io(error),
        })?;
        let text = match fs::read_to_string(path) {
            Ok(text) => Some(text),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(io(error)),
        };
        let session = match text {
            Some(text) => restore(&text, path, number)?,
            None => Session::new(number),
        };
        let new = beside(path, ".new");
        let mut lines = format!("{MAGIC} {number}\n");
        session.snapshot().iter().for_each(|change| lines.push_str(&format!("{change}\n")));
        fs::write(&new, lines).and_then(|()| fs::rename(&new, path)).map_err(io)?;
        let file = File::options().append(true).open(path).map_err(io)?;
        Ok((StateFile { path: path.into(), file, _lock: lock }, session))
    }

    /// Appends changes.
    ///
    /// # Errors
    /// If they cannot be written; then nothing that follows from them may be sent.
    pub fn append(&mut self, changes: &[Change]) -> Result<(), StateError> {
        let lines: String = changes.iter().map(|change| format!("{change}\n")).collect();
        let written = self.file.write_all(lines.as_bytes());
        written.map_err(|source| StateError::Io { path: self.path.clone(), source })
    }
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// A process that was killed may have written a part of its last line: that one does not count.
fn restore(text: &str, path: &Path, number: u32) -> Result<Session, StateError> {
    let complete = text.rfind('\n').map_or("", |end| &text[..end]);
    let mut lines = complete.split('\n');
    let first = lines.next().unwrap_or_default();
    if first != format!("{MAGIC} {number}") {
        let found = first.chars().take(80).collect();
        return Err(StateError::Other { path: path.into(), session: number, found });
    }
    let mut session = Session::new(number);
    for (at, line) in lines.enumerate() {
        let change = line.parse::<Change>();
        let change = change.map_err(|_| StateError::Line { path: path.into(), line: at + 2 })?;
        session.restore(change);
    }
    Ok(session)
}
