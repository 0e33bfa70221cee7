//! The file of a session: what must survive the door.
//!
//! It is a line of JSON for each step, with its checksum before it, and is only appended to. The
//! records of a step are in one line, so a step is there as a complete or not at all. The last line
//! may be torn, if the door or its machine ended while it was written: nobody knows of that step.
//! What a door that was killed has written is there, because it is the kernel's. A machine that
//! loses its power may lose the last seconds.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use nm_codec::crc32c;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Version of the format.
const FORMAT: u32 = 1;

/// Most bytes of a file that is read.
const BYTES_MAX: u64 = 16 << 30;

/// Whose file it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    /// CompID of the door.
    pub venue: String,
    /// CompID of the client.
    pub client: String,
    /// Session of the exchange.
    pub session: u32,
}

#[derive(Debug, Serialize, Deserialize)]
struct Header {
    format: u32,
    #[serde(flatten)]
    owner: Owner,
}

/// Why a store cannot be used.
#[derive(Debug, Error)]
pub enum StoreError {
    /// The file cannot be read or written.
    #[error("the store {} cannot be {action}: {source}", path.display())]
    Io {
        /// Which file.
        path: PathBuf,
        /// What was attempted.
        action: &'static str,
        /// Why.
        source: io::Error,
    },
    /// A line is not what was written.
    #[error("the store {} is damaged in line {line}: put back a copy, or move it away and let both \
        sides begin again with ResetSeqNumFlag", path.display())]
    Damaged {
        /// Which file.
        path: PathBuf,
        /// Which line, from 1 on.
        line: usize,
    },
    /// It is of another version.
    #[error("the store {} has format {found}, and this program reads {FORMAT}", path.display())]
    Format {
        /// Which file.
        path: PathBuf,
        /// Its version.
        found: u32,
    },
    /// It is of another session.
    #[error("the store {} belongs to client {} of {}: give this session another number, or move \
        the store away", path.display(), owner.client, owner.venue)]
    Owner {
        /// Which file.
        path: PathBuf,
        /// Whose it is.
        owner: Owner,
    },
}

/// The open file of a session.
#[derive(Debug)]
pub struct Store {
    path: PathBuf,
    owner: Owner,
    file: File,
    bytes: u64,
}

impl Store {
    /// Opens the file of a session of a protocol in a folder, or makes it; and the records in it.
    ///
    /// # Errors
    /// If it cannot be read, or is not the file of this session.
    #[expect(clippy::disallowed_methods, reason = "before there are clients")]
    pub fn open<R: DeserializeOwned>(
        folder: &Path,
        owner: &Owner,
        protocol: &str,
    ) -> Result<(Store, Vec<R>), StoreError> {
        let path = folder.join(format!("session-{}.{protocol}", owner.session));
        let io = |action| {
            move |path: &Path, source| StoreError::Io { path: path.into(), action, source }
        };
        let options = File::options().read(true).append(true).create(true).clone();
        let file = options.open(&path).map_err(|error| io("opened")(&path, error))?;
        let length = file.metadata().map_err(|error| io("read")(&path, error))?.len();
        if length > BYTES_MAX {
            let error = io::Error::other(format!("it has more than {BYTES_MAX} bytes"));
            return Err(io("read")(&path, error));
        }
        let text = fs::read(&path).map_err(|error| io("read")(&path, error))?;
        let (records, complete) = read(&path, &text, owner)?;
        file.set_len(complete).map_err(|error| io("written")(&path, error))?;
        let mut store = Store { path, owner: owner.clone(), file, bytes: complete };
        if complete == 0 {
            let header = store.header();
            store.write(&header)?;
        }
        Ok((store, records))
    }

    /// Bytes of the file.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    fn header(&self) -> Vec<u8> {
        line(&Header { format: FORMAT, owner: self.owner.clone() })
    }

    fn failed(&self, action: &'static str, source: io::Error) -> StoreError {
        StoreError::Io { path: self.path.clone(), action, source }
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), StoreError> {
        self.file.write_all(bytes).map_err(|error| self.failed("written", error))?;
        self.bytes += bytes.len() as u64;
        Ok(())
    }

    /// Appends the records of a step.
    ///
    /// # Errors
    /// If they cannot be written; then nobody may learn of the step.
    pub fn append<R: Serialize>(&mut self, records: &[R]) -> Result<(), StoreError> {
        self.write(&line(&records))
    }

    /// Replaces the file by one with these records.
    ///
    /// # Errors
    /// If it cannot be written; then the file is as it was.
    #[expect(
        clippy::disallowed_methods,
        reason = "nothing is sent to a client before the store has it"
    )]
    pub fn rewrite<R: Serialize>(
        &mut self,
        records: impl Iterator<Item = R>,
    ) -> Result<(), StoreError> {
        let new = self.path.with_extension("new");
        let mut bytes = self.header();
        records.for_each(|record| bytes.extend(line(&[record])));
        let written = File::create(&new).and_then(|mut file| {
            file.write_all(&bytes)?;
            file.sync_all()
        });
        written
            .and_then(|()| fs::rename(&new, &self.path))
            .map_err(|error| self.failed("written", error))?;
        let opened = File::options().append(true).open(&self.path);
        self.file = opened.map_err(|error| self.failed("opened", error))?;
        self.bytes = bytes.len() as u64;
        Ok(())
    }
}

/// A line: checksum, and JSON.
fn line(value: &impl Serialize) -> Vec<u8> {
    let json = match serde_json::to_string(value) {
        Ok(json) => json,
        Err(error) => unreachable!("records have only text and numbers: {error}"),
    };
    format!("{:08x} {json}\n", crc32c(json.as_bytes())).into_bytes()
}

/// The value of a line.
fn value<T: DeserializeOwned>(line: &[u8]) -> Option<T> {
    let (sum, json) = line.split_at_checked(9)?;
    let sum = std::str::from_utf8(&sum[..8]).ok()?;
    let is_right = u32::from_str_radix(sum, 16).ok()? == crc32c(json);
    is_right.then(|| serde_json::from_slice(json).ok()).flatten()
}

/// The records of a file, and how many of its bytes are complete lines.
fn read<R: DeserializeOwned>(
    path: &Path,
    text: &[u8],
    owner: &Owner,
) -> Result<(Vec<R>, u64), StoreError> {
    let (mut records, mut complete) = (vec![], 0);
    for (at, bytes) in text.split_inclusive(|byte| *byte == b'\n').enumerate() {
        let is_last = complete + bytes.len() == text.len();
        let Some(content) = bytes.strip_suffix(b"\n") else { break };
        let damaged = || StoreError::Damaged { path: path.into(), line: at + 1 };
        if at == 0 {
            let header: Header = match value(content) {
                Some(header) => header,
                None if is_last => break,
                None => return Err(damaged()),
            };
            if header.format != FORMAT {
                return Err(StoreError::Format { path: path.into(), found: header.format });
            }
            if header.owner != *owner {
                return Err(StoreError::Owner { path: path.into(), owner: header.owner });
            }
        } else {
            match value::<Vec<R>>(content) {
                Some(step) => records.extend(step),
                // A power loss may have written its end and not its begin.
                None if is_last => break,
                None => return Err(damaged()),
            }
        }
        complete += bytes.len();
    }
    Ok((records, complete as u64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fix::record::Record;

    fn owner(client: &str) -> Owner {
        Owner { venue: "V".to_string(), client: client.to_string(), session: 7 }
    }

    fn numbers(records: &[Record]) -> Vec<u64> {
        let number = |record: &Record| match record {
            Record::Numbered(number) => *number,
            other => panic!("{other:?}"),
        };
        records.iter().map(number).collect()
    }

    fn opened(folder: &Path) -> (Store, Vec<u64>) {
        let (store, records) = Store::open(folder, &owner("C"), "fix").unwrap();
        (store, numbers(&records))
    }

    #[test]
    fn a_step_is_there_completely_or_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let (mut store, none) = opened(folder.path());
        assert!(none.is_empty());
        store.append(&[Record::Numbered(1)]).unwrap();
        store.append(&[Record::Numbered(2), Record::Numbered(3)]).unwrap();
        let path = folder.path().join("session-7.fix");
        let complete = fs::read(&path).unwrap();
        let begin_of_last =
            complete.len() - line(&[Record::Numbered(2), Record::Numbered(3)]).len();
        for length in begin_of_last..=complete.len() {
            fs::write(&path, &complete[..length]).unwrap();
            let (mut store, read) = opened(folder.path());
            let is_complete = length == complete.len();
            assert_eq!(read, if is_complete { vec![1, 2, 3] } else { vec![1] }, "{length} bytes");
            store.append(&[Record::Numbered(4)]).unwrap();
            assert_eq!(opened(folder.path()).1.last(), Some(&4), "it goes on behind a torn line");
        }
    }

    #[test]
    fn a_damaged_line_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let (mut store, _) = opened(folder.path());
        (1..=3).for_each(|number| store.append(&[Record::Numbered(number)]).unwrap());
        let path = folder.path().join("session-7.fix");
        let mut bytes = fs::read(&path).unwrap();
        let second = bytes.iter().position(|byte| *byte == b'\n').unwrap() + 12;
        bytes[second] ^= 1;
        fs::write(&path, &bytes).unwrap();
        let refused = Store::open::<Record>(folder.path(), &owner("C"), "fix").unwrap_err();
        assert!(matches!(refused, StoreError::Damaged { line: 2, .. }), "{refused}");
    }

    #[test]
    fn the_store_of_another_client_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        opened(folder.path());
        let refused = Store::open::<Record>(folder.path(), &owner("D"), "fix").unwrap_err();
        assert!(refused.to_string().contains("belongs to client C of V"), "{refused}");
    }

    #[test]
    fn a_rewritten_store_has_only_what_it_was_given() {
        let folder = tempfile::tempdir().unwrap();
        let (mut store, _) = opened(folder.path());
        (1..=100).for_each(|number| store.append(&[Record::Numbered(number)]).unwrap());
        let before = store.bytes();
        store.rewrite([Record::Numbered(100)].into_iter()).unwrap();
        assert!(store.bytes() < before / 10, "{}", store.bytes());
        store.append(&[Record::Numbered(101)]).unwrap();
        assert_eq!(opened(folder.path()).1, [100, 101]);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing else is left");
    }
}
