//! Why a replica stopped or cannot start.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nm_codec::DecodeError;
use thiserror::Error;

use crate::address::Address;
use crate::journal::{JournalError, disk_full_hint};

/// Why a replica stopped or cannot start. Errors of the system are shared, so that one can be
/// reported more than once.
#[derive(Debug, Clone, Error)]
pub enum ReplicaError {
    /// Its address cannot be used.
    #[error("the replicas cannot listen at {address}")]
    Listen {
        /// Where it was to listen.
        address: Address,
        /// Why.
        source: Arc<io::Error>,
    },
    /// There is no thread or no async runtime for it.
    #[error("replication cannot start")]
    Thread(#[source] Arc<io::Error>),
    /// A group is too large.
    #[error("{group} has {count} replicas; {max} are possible", max = crate::group::MEMBERS_MAX)]
    TooManyMembers {
        /// Name of the group.
        group: String,
        /// Its replicas.
        count: usize,
    },
    /// openraft refused to start.
    #[error("the replica of {group} cannot start: {reason}")]
    Start {
        /// Name of the group.
        group: String,
        /// Why, in openraft's words.
        reason: String,
    },
    /// openraft stopped.
    #[error("the replica of {group} stopped: {reason}")]
    Stopped {
        /// Name of the group.
        group: String,
        /// Why, in openraft's words.
        reason: String,
    },
    /// The journal failed.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// A file or folder of the replica failed.
    #[error("the replica's {} {fault}", path.display())]
    File {
        /// The file or folder.
        path: PathBuf,
        /// What could not be done with it, such as "cannot be written".
        fault: &'static str,
        /// Why.
        source: Arc<io::Error>,
    },
    /// A file does not have the checksum that was written with it.
    #[error("the replica's file {} is damaged: its checksum is wrong", .0.display())]
    Checksum(PathBuf),
    /// A file has the right checksum and cannot be decoded, as that of another version.
    #[error("the replica's file {} cannot be decoded", path.display())]
    Decode {
        /// The file.
        path: PathBuf,
        /// Which field is wrong.
        source: DecodeError,
    },
    /// A folder was written in a format that this program does not have.
    #[error(
        "the replica's folder {} was written by nearmetal {program}, and this is nearmetal {own}: \
         {why}",
        folder.display()
    )]
    OtherContent {
        /// The replica's folder.
        folder: PathBuf,
        /// The program that wrote it.
        program: String,
        /// This one.
        own: &'static str,
        /// What it cannot read.
        why: String,
    },
    /// What it promised cannot be known.
    #[error(
        "the hard state of the replica in {} cannot be trusted, because {why}: the replica does \
         not vote, and has to be replaced",
        folder.display()
    )]
    Untrusted {
        /// The replica's folder.
        folder: PathBuf,
        /// What is wrong.
        why: &'static str,
    },
    /// The group was made anew from copies of its files, without what this replica has.
    #[error(
        "{group} was restored or recovered without the replica in {}: its files are of generation \
         {own}, and the group is of generation {other}",
        folder.display()
    )]
    OtherGeneration {
        /// Name of the group.
        group: String,
        /// The replica's folder.
        folder: PathBuf,
        /// The generation of its files.
        own: u64,
        /// That of the others.
        other: u64,
    },
    /// There is a journal, but no hard state.
    #[error(
        "the replica's folder {} is damaged: it has a journal, but no hard state",
        .0.display()
    )]
    HardStateMissing(PathBuf),
    /// The journal was purged, and there is no snapshot of what was purged.
    #[error(
        "the replica's snapshot {} is missing or too old: the journal lacks what it should contain",
        .0.display()
    )]
    SnapshotMissing(PathBuf),
    /// A disk does not make progress.
    #[error(
        "the replica's disk at {} makes no progress: {waiting_mb} MB wait for it",
        folder.display()
    )]
    DiskStuck {
        /// The replica's folder.
        folder: PathBuf,
        /// MB of entries that wait.
        waiting_mb: usize,
    },
    /// The replica's disk thread has ended.
    #[error("the thread of a replica's disk ended")]
    DiskThreadEnded,
    /// The replica ended while a snapshot was written.
    #[error("the replica ended while it wrote a snapshot")]
    SnapshotInterrupted,
}

impl ReplicaError {
    /// Something could not be done with a file or folder.
    pub fn file(path: &Path, fault: &'static str, error: io::Error) -> ReplicaError {
        ReplicaError::File { path: path.into(), fault, source: Arc::new(error) }
    }

    /// What to do about it, if that is known.
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            ReplicaError::Journal(error) => error.hint(),
            ReplicaError::File { source, .. } => disk_full_hint(source),
            ReplicaError::Checksum(_)
            | ReplicaError::Untrusted { .. }
            | ReplicaError::HardStateMissing(_)
            | ReplicaError::SnapshotMissing(_) => Some(
                "restore the folder, or remove it: a replica without one is filled by the others",
            ),
            ReplicaError::OtherContent { .. } => {
                Some("start it with the version that wrote it, or a newer one")
            }
            ReplicaError::OtherGeneration { .. } => Some(
                "move its folder away and start it again: a replica without one is filled by the \
                 others",
            ),
            ReplicaError::DiskStuck { .. } => {
                Some("see what else uses that disk, then start the node again")
            }
            _ => None,
        }
    }
}
