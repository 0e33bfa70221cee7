//! Hashes of a replica's state while it ran: a line for each in the file `hashes.jsonl` beside its
//! journal, such as `{"index":9,"hash":"00000000000000ff"}`.
//!
//! A replica writes one when it is stopped, and one for each snapshot. The hash of a large state
//! takes a while, so that of a snapshot is computed in a thread of its own.

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

/// One state of a replica.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct HashLine {
    /// Index of the last batch in it.
    index: u64,
    /// Hash of all of it, 16 hexadecimal digits.
    hash: String,
}

/// Records the state hashes of one replica.
#[derive(Debug)]
pub struct StateHashes {
    path: PathBuf,
    file: Arc<File>,
    /// Computes the hash of a snapshot.
    hasher: Option<JoinHandle<Result<(), Failure>>>,
}

impl StateHashes {
    /// Appends to the file in a replica's folder, which is created if it is missing.
    ///
    /// # Errors
    /// If the file cannot be created.
    #[expect(
        clippy::disallowed_methods,
        reason = "a record is kept in runs that are recorded only"
    )]
    pub fn open(folder: &Path) -> Result<StateHashes, Failure> {
        let path = folder.join(NAME);
        let opened = std::fs::create_dir_all(folder)
            .and_then(|()| OpenOptions::new().create(true).append(true).open(&path));
        let file = Arc::new(opened.map_err(|error| write_failure(&path, &error))?);
        Ok(StateHashes { path, file, hasher: None })
    }

    /// Records the hash of the state after a batch.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn record(&mut self, index: u64, hash: u64) -> Result<(), Failure> {
        write(&self.file, &self.path, index, hash)
    }

    /// Computes and records the hash of a saved cell, without waiting for it.
    ///
    /// # Errors
    /// If the one before could not be written.
    pub fn record_snapshot(&mut self, index: u64, state: &[u8]) -> Result<(), Failure> {
        self.finish()?;
        let (file, path, state) = (Arc::clone(&self.file), self.path.clone(), state.to_vec());
        let hash = move || write(&file, &path, index, fnv1a(&state));
        let spawned = std::thread::Builder::new().name("hash".to_string()).spawn(hash);
        self.hasher = Some(spawned.map_err(|error| write_failure(&self.path, &error))?);
        Ok(())
    }

    /// Waits until the hash of the last snapshot is written.
    ///
    /// # Errors
    /// If it could not be.
    #[expect(
        clippy::disallowed_methods,
        reason = "a record is kept in runs that are recorded only"
    )]
    pub fn finish(&mut self) -> Result<(), Failure> {
        let Some(hasher) = self.hasher.take() else { return Ok(()) };
        hasher.join().unwrap_or_else(|_| {
            Err(Failure::new(FailureKind::System, "the thread that hashes a snapshot panicked"))
        })
    }
}

fn write(mut file: &File, path: &Path, index: u64, hash: u64) -> Result<(), Failure> {
    let line = HashLine { index, hash: format!("{hash:016x}") };
    let written = serde_json::to_string(&line)
        .map_err(std::io::Error::from)
        .and_then(|line| file.write_all(format!("{line}\n").as_bytes()));
    written.map_err(|error| write_failure(path, &error))
}

fn write_failure(path: &Path, error: &std::io::Error) -> Failure {
    Failure::new(FailureKind::System, format!("{} cannot be written: {error}", path.display()))
}

/// The state hashes that the replica of a folder recorded, with their indices; none if it has no
/// file.
///
/// # Errors
/// If the file cannot be read, or has another content.
#[expect(clippy::disallowed_methods, reason = "for programs that are no nodes")]
pub fn read(folder: &Path) -> Result<Vec<(u64, u64)>, Failure> {
    let path = folder.join(NAME);
    let read_failure = |reason: String| {
        Failure::new(FailureKind::System, format!("{} cannot be read: {reason}", path.display()))
    };
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(vec![]),
        Err(error) => return Err(read_failure(error.to_string())),
    };
    let mut states = vec![];
    for (number, line) in text.lines().enumerate() {
        let state = state(line).map_err(|why| read_failure(format!("line {}: {why}", number + 1)));
        states.push(state?);
    }
    if !text.is_empty() && !text.ends_with('\n') {
        let number = states.len();
        return Err(read_failure(format!("line {number}: it is cut")));
    }
    Ok(states)
}

/// The state of a line, or what is wrong with it.
fn state(line: &str) -> Result<(u64, u64), String> {
    let HashLine { index, hash } = serde_json::from_str(line).map_err(|error| error.to_string())?;
    let is_hash = hash.len() == 16 && hash.bytes().all(|byte| byte.is_ascii_hexdigit());
    match u64::from_str_radix(&hash, 16) {
        Ok(hash) if is_hash => Ok((index, hash)),
        _ => Err(format!("`{hash}` is not a hash of 16 hexadecimal digits")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_read_back_and_a_restart_appends() {
        let folder = tempfile::tempdir().unwrap();
        let own = folder.path().join("cell-0");
        assert_eq!(read(&own), Ok(vec![]));
        let mut hashes = StateHashes::open(&own).unwrap();
        hashes.record(3, 0xff).unwrap();
        hashes.record_snapshot(5, b"a state").unwrap();
        hashes.finish().unwrap();
        let mut again = StateHashes::open(&own).unwrap();
        again.record(9, u64::MAX).unwrap();
        assert_eq!(read(&own), Ok(vec![(3, 0xff), (5, fnv1a(b"a state")), (9, u64::MAX)]));
        // A line that cannot be read is named, also the last one that a killed process left.
        let good = std::fs::read_to_string(own.join(NAME)).unwrap();
        for (end, why) in [
            ("{\"index\":1,\"hash\":\"x\"}\n", "line 4: `x` is not a hash"),
            ("{\"index\":1,\"hash\":\"+00000000000000f\"}\n", "line 4: `+00000000000000f`"),
            ("\n", "line 4: EOF"),
            ("{\"index\":1,\"ha", "line 4: EOF"),
            ("{\"index\":1,\"hash\":\"000000000000000f\"}", "line 4: it is cut"),
        ] {
            std::fs::write(own.join(NAME), format!("{good}{end}")).unwrap();
            let message = read(&own).unwrap_err().message;
            let expected = format!("hashes.jsonl cannot be read: {why}");
            assert!(message.contains(&expected), "{message}");
        }
    }
}
