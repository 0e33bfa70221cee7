//! Why a copy cannot be made or used.

use std::io;
use std::path::{Path, PathBuf};

use nm_exchange::network::{Durability, NetworkError};
use nm_replica::ReplicaError;
use nm_replica::journal::JournalError;
use nm_verify::recording::RecordingError;
use thiserror::Error;

/// Why a copy cannot be made or used.
#[derive(Debug, Error)]
pub enum BackupError {
    /// A file or folder failed.
    #[error("{} cannot be {what}: {source}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// `read` or `written`.
        what: &'static str,
        /// Why.
        source: io::Error,
    },
    /// The network's file cannot be used.
    #[error(transparent)]
    Network(#[from] NetworkError),
    /// A folder would be overwritten.
    #[error("{} is there already: name a folder that does not exist", .0.display())]
    Exists(PathBuf),
    /// Nothing is on a disk.
    #[error("the network has durability {0}, which keeps nothing on a disk: disk-quorum does")]
    NotOnDisk(Durability),
    /// A group has no replica on this host.
    #[error(
        "there is no replica of {group} below {}: do this on a host that has one",
        data.display()
    )]
    NoReplica {
        /// The group.
        group: String,
        /// Where replicas were looked for.
        data: PathBuf,
    },
    /// A replica's files cannot be used.
    #[error("{}", sentence(.0))]
    Replica(#[from] ReplicaError),
    /// A journal cannot be used.
    #[error("{}", sentence(.0))]
    Journal(#[from] JournalError),
    /// A journal lacks a record between its snapshot and its end.
    #[error("{} lacks record {index} of the journal behind its snapshot", folder.display())]
    Gap {
        /// The group's folder.
        folder: PathBuf,
        /// Which record.
        index: u64,
    },
    /// A state or a record cannot be decoded.
    #[error("{what} of {group} cannot be used: {why}")]
    Content {
        /// The group.
        group: String,
        /// Which part.
        what: String,
        /// What is wrong.
        why: String,
    },
    /// A folder is no backup, or was not finished.
    #[error(
        "{} has no manifest: it is no backup, or one that was interrupted; make it again",
        .0.display()
    )]
    NotFinished(PathBuf),
    /// The files are not those that were written.
    #[error("the backup was damaged: {0}")]
    Damaged(String),
    /// The manifest or the list of files cannot be read.
    #[error(transparent)]
    Recording(#[from] RecordingError),
    /// The description is none.
    #[error("{} cannot be read: {source}", path.display())]
    Description {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: serde_json::Error,
    },
    /// The description has another format.
    #[error("{} has version {version}, and this nearmetal reads version 1", path.display())]
    Version {
        /// Which file.
        path: PathBuf,
        /// Its version.
        version: u32,
    },
    /// What the files lead to is not what was noted.
    #[error("the files of {group} lead to state {found}, and the backup notes {noted}")]
    OtherState {
        /// The group.
        group: String,
        /// The hash that was found.
        found: String,
        /// The one that was noted.
        noted: String,
    },
    /// A place is before the copy.
    #[error(
        "the copy of {group} begins at position {first}, and it would have to go back before that"
    )]
    BeforeCopy {
        /// The group.
        group: String,
        /// The first position.
        first: u64,
    },
    /// A place is behind the copy.
    #[error("the copy of cell {cell} ends at position {last}, before {position}")]
    BehindCopy {
        /// The cell.
        cell: u16,
        /// The last position.
        last: u64,
        /// What was asked for.
        position: u64,
    },
    /// A cell is not in the copy.
    #[error("the copy has no cell {0}")]
    NoCell(u16),
    /// The group was made anew too often.
    #[error("the network was restored or recovered {0} times, the most that is possible")]
    TooManyGenerations(u64),
}

impl BackupError {
    /// Something could not be done with a file or folder.
    pub(crate) fn file(path: &Path, what: &'static str, source: io::Error) -> BackupError {
        BackupError::File { path: path.into(), what, source }
    }
}

/// An error and why, in one sentence.
fn sentence(error: &dyn std::error::Error) -> String {
    match error.source() {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}
