//! States that replicas wrote down while they ran: a line for each in the file `hashes.jsonl`
//! beside a replica's journal, such as `{"index":9,"hash":"00000000000000ff"}`.
//!
//! A replica writes one when it ends as it was asked to, and one for each snapshot that it takes.
//! The hash of a large state takes a while, so that of a snapshot is computed beside the data loop.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;

use nm_codec::fnv1a;
use nm_model::agent::{Failure, FailureKind};
use serde::{Deserialize, Serialize};

/// Name of the file.
const NAME: &str = "hashes.jsonl";

/// One state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    /// Index of the last batch in it.
    index: u64,
    /// Hash of all of it, 16 hexadecimal digits.
    hash: String,
}

/// Writes down the states of one replica.
#[derive(Debug)]
pub struct StateHashes {
    path: PathBuf,
    file: Arc<File>,
    /// The hash of a snapshot, in the making.
    making: Option<JoinHandle<Result<(), Failure>>>,
}

impl StateHashes {
    /// Goes on with the file in a replica's folder, which is made if it is missing.
    ///
    /// # Errors
    /// If the file cannot be made.
    pub fn open(folder: &Path) -> Result<StateHashes, Failure> {
        let path = folder.join(NAME);
        let opened = std::fs::create_dir_all(folder)
            .and_then(|()| OpenOptions::new().create(true).append(true).open(&path));
        let file = Arc::new(opened.map_err(|error| unwritten(&path, &error))?);
        Ok(StateHashes { path, file, making: None })
    }

    /// Notes the state after a batch by its hash.
    ///
    /// # Errors
    /// If the disk does not take it.
    pub fn record(&mut self, index: u64, hash: u64) -> Result<(), Failure> {
        write(&self.file, &self.path, index, hash)
    }

    /// Notes the state after a batch, a whole saved cell, and does not wait until it is done.
    ///
    /// # Errors
    /// If the one before was not taken by the disk.
    pub fn record_snapshot(&mut self, index: u64, state: &[u8]) -> Result<(), Failure> {
        self.settle()?;
        let (file, path, state) = (Arc::clone(&self.file), self.path.clone(), state.to_vec());
        let make = move || write(&file, &path, index, fnv1a(&state));
        let made = std::thread::Builder::new().name("hash".to_string()).spawn(make);
        self.making = Some(made.map_err(|error| unwritten(&self.path, &error))?);
        Ok(())
    }

    /// Waits for what is in the making.
    ///
    /// # Errors
    /// If the disk did not take it.
    pub fn settle(&mut self) -> Result<(), Failure> {
        let Some(making) = self.making.take() else { return Ok(()) };
        making.join().unwrap_or_else(|_| {
            Err(Failure::new(FailureKind::System, "hashing a snapshot broke down"))
        })
    }
}

fn write(mut file: &File, path: &Path, index: u64, hash: u64) -> Result<(), Failure> {
    let line = Line { index, hash: format!("{hash:016x}") };
    let written = serde_json::to_string(&line)
        .map_err(std::io::Error::from)
        .and_then(|line| file.write_all(format!("{line}\n").as_bytes()));
    written.map_err(|error| unwritten(path, &error))
}

fn unwritten(path: &Path, error: &std::io::Error) -> Failure {
    Failure::new(FailureKind::System, format!("{} cannot be written: {error}", path.display()))
}

/// The states that the replica of a folder wrote down: index and hash of each. None if it wrote no
/// file.
///
/// # Errors
/// If the file cannot be read, or is none.
pub fn read(folder: &Path) -> Result<Vec<(u64, u64)>, Failure> {
    let path = folder.join(NAME);
    let unreadable = |why: String| {
        Failure::new(FailureKind::System, format!("{} cannot be read: {why}", path.display()))
    };
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(vec![]),
        Err(error) => return Err(unreadable(error.to_string())),
    };
    let state = |line: &str| {
        let line: Line =
            serde_json::from_str(line).map_err(|error| unreadable(error.to_string()))?;
        let hash = u64::from_str_radix(&line.hash, 16);
        Ok((line.index, hash.map_err(|error| unreadable(error.to_string()))?))
    };
    text.lines().map(state).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_come_back_from_their_file_and_another_start_adds_to_it() {
        let folder = tempfile::tempdir().unwrap();
        let own = folder.path().join("cell-0");
        assert_eq!(read(&own), Ok(vec![]));
        let mut hashes = StateHashes::open(&own).unwrap();
        hashes.record(3, 0xff).unwrap();
        hashes.record_snapshot(5, b"a state").unwrap();
        hashes.settle().unwrap();
        let mut again = StateHashes::open(&own).unwrap();
        again.record(9, u64::MAX).unwrap();
        assert_eq!(read(&own), Ok(vec![(3, 0xff), (5, fnv1a(b"a state")), (9, u64::MAX)]));
        std::fs::write(own.join(NAME), "{\"index\":1,\"hash\":\"x\"}\n").unwrap();
        assert!(read(&own).unwrap_err().message.contains("hashes.jsonl cannot be read"));
    }
}
