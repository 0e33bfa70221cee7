//! What a replica may not forget, and the files that a crash leaves whole.
//!
//! ```text
//! promises   two slots of 4096 bytes, written in turn, so that a crash leaves one of them whole:
//!            0 number of the write u64   8 length u32   12 crc32c of number and content u32
//!            16 content
//! ```

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;

use nm_codec::{Fields, Meaningless};
use nm_model::agent::{Failure, FailureKind};
use openraft::{LogId, Vote};

use crate::journal;

use super::bytes::Coded;
use super::raft::NodeId;

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

/// The file of [`Promises`].
#[derive(Debug)]
pub struct Slots {
    file: File,
    number: u64,
}

const SLOT_BYTES: u64 = 4096;

impl Slots {
    /// The file and the content of the slot that was written last; none if there is no file.
    ///
    /// # Errors
    /// If it cannot be read or is damaged.
    pub fn open(path: &Path) -> Result<Option<(Slots, Vec<u8>)>, Failure> {
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
        nm_codec::crc32c_append(nm_codec::crc32c(&number.to_le_bytes()), content)
    }

    /// A file whose first slot has this content; the disk has it when this returns.
    ///
    /// # Errors
    /// What the system says.
    pub fn create(path: &Path, content: &[u8]) -> io::Result<Slots> {
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

    /// Replaces the content; the disk has it when this returns.
    ///
    /// # Errors
    /// What the system says.
    pub fn write(&mut self, content: &[u8]) -> io::Result<()> {
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

/// Name of the file of [`Promises`].
pub const PROMISES: &str = "promises";

/// What is wrong with something in a replica's folder.
pub fn failure(path: &Path, what: &str, why: &str) -> Failure {
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
        file.write_all(&nm_codec::crc32c(content).to_le_bytes())?;
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
    if checksum.is_none_or(|checksum| checksum != nm_codec::crc32c(&bytes[4..])) {
        return Err(failure(path, "is damaged", "its checksum is wrong"));
    }
    bytes.drain(..4);
    Ok(Some(bytes))
}
