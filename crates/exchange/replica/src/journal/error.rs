//! Why a journal cannot be used.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nm_codec::DecodeError;
use thiserror::Error;

/// Why a journal cannot be used. Errors of the system are shared, so that one can be reported more
/// than once.
#[derive(Debug, Clone, Error)]
pub enum JournalError {
    /// Its folder or a file failed.
    #[error("the journal in {} {fault}", path.display())]
    File {
        /// The folder or file.
        path: PathBuf,
        /// What could not be done with it, such as "cannot be written".
        fault: &'static str,
        /// Why.
        source: Arc<io::Error>,
    },
    /// A record before the end is missing or damaged.
    #[error(
        "the journal file {} is damaged: record {index}, at byte {offset}, {damage}, and it was \
         acknowledged",
        path.display()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Index of the record.
        index: u64,
        /// Where it is in the file.
        offset: u64,
        /// What is wrong with it.
        damage: Damage,
    },
    /// A record has the right checksum and cannot be decoded, as that of another version.
    #[error("record {index} of the journal file {} cannot be decoded", path.display())]
    Decode {
        /// The file.
        path: PathBuf,
        /// Index of the record.
        index: u64,
        /// Which field is wrong.
        source: DecodeError,
    },
    /// A record was appended out of order.
    #[error("record {index} was appended to a journal where record {next} is next")]
    OutOfOrder {
        /// Its index.
        index: u64,
        /// The index that it must have.
        next: u64,
    },
    /// A record is larger than a file.
    #[error("a record of {bytes} bytes does not fit a journal file, which has {room} bytes for it")]
    TooLarge {
        /// Its size.
        bytes: u64,
        /// The size that fits.
        room: u64,
    },
}

/// What is wrong with a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Damage {
    /// The file that had it is missing.
    #[error("is missing")]
    Missing,
    /// It cannot be read.
    #[error("cannot be read")]
    NotReadable,
    /// It cannot be read, and is not at the end of the journal.
    #[error("cannot be read, although a later file was begun")]
    NotReadableBeforeEnd,
    /// It cannot be read, and the journal's watermark says that the disk had it.
    #[error("cannot be read, although the disk had it")]
    BelowWatermark,
}

impl JournalError {
    /// Something could not be done with a folder or file.
    pub(super) fn file(path: &Path, fault: &'static str, error: io::Error) -> JournalError {
        JournalError::File { path: path.into(), fault, source: Arc::new(error) }
    }

    /// What to do about it, if that is known.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            JournalError::File { source, .. } => disk_full_hint(source),
            JournalError::Damaged { .. } => Some(
                "restore the file, or remove the replica's folder: a replica without one is \
                 filled by the others",
            ),
            JournalError::Decode { .. }
            | JournalError::OutOfOrder { .. }
            | JournalError::TooLarge { .. } => None,
        }
    }
}

/// What to do if a disk is full.
pub(crate) fn disk_full_hint(error: &io::Error) -> Option<&'static str> {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            Some("make room on that disk and start the node again")
        }
        _ => None,
    }
}
