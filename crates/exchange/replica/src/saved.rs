//! The files of a replica, for programs that are no nodes: they are read beside the replica or
//! after its end, and made anew.
//!
//! A replica that runs goes on writing, and purges what it does not need any more. Whoever reads
//! beside it sees each record whole or not at all. Records that are missing were purged: a newer
//! snapshot has them.

use std::fs;
use std::io;
use std::path::Path;

use openraft::{
    CommittedLeaderId, EmptyNode, LogId, Membership, SnapshotMeta, StoredMembership, Vote,
};

use crate::committed;
use crate::content_format::{self, ContentFormat};
use crate::encode::Encode;
use crate::env::Machine;
use crate::error::ReplicaError;
use crate::files::write_atomically;
use crate::hard_state::{HARD_STATE, HardState, MARKS};
use crate::slot_file::{self, SlotFile};
use crate::state_machine::{SNAPSHOT, read_snapshot};
use crate::types::{NodeId, first_term, generation_of, term_of};

/// A snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// Index of the last record of the journal that it includes.
    pub index: u64,
    /// Term of that record.
    pub term: u64,
    /// The state.
    pub state: Vec<u8>,
}

/// The snapshot of a replica; none if it has none.
///
/// # Errors
/// If it cannot be read, or is damaged.
pub fn snapshot(folder: &Path) -> Result<Option<Snapshot>, ReplicaError> {
    let found = read_snapshot(&Machine::env(), &folder.join(SNAPSHOT))?;
    Ok(found.map(|(meta, state)| {
        let (index, term) =
            meta.last_log_id.map_or((0, 0), |last| (last.index + 1, term_of(&last.leader_id)));
        Snapshot { index, term, state }
    }))
}

/// Index of the last record that is known to be committed beside the snapshot; 0 if nothing is
/// known. The replica writes it some times a second.
pub fn committed(folder: &Path) -> u64 {
    committed::read(&Machine::env(), folder)
}

/// The generation of the group whose term of a record this is.
pub fn generation(term: u64) -> u64 {
    generation_of(crate::types::leader_of(term).term)
}

/// The last vote of a replica, as a term of its records; 0 if it has never voted.
///
/// # Errors
/// If it cannot be read, or cannot be trusted.
pub fn vote(folder: &Path) -> Result<u64, ReplicaError> {
    let path = folder.join(HARD_STATE);
    let found =
        slot_file::read(&Machine::env(), &path, &MARKS).map_err(|error| match error.kind() {
            io::ErrorKind::InvalidData => ReplicaError::Untrusted {
                folder: folder.into(),
                why: "it is damaged in both of its copies",
            },
            _ => ReplicaError::file(&path, "cannot be read", error),
        })?;
    let Some(found) = found else { return Ok(0) };
    let state = HardState::from_bytes(&found.content, "hard state")
        .map_err(|source| ReplicaError::Decode { path, source })?;
    Ok(state.vote.map_or(0, |vote| term_of(&vote.leader_id)))
}

/// Writes a snapshot as a file of that name, with its checksum: it is complete or absent.
///
/// # Errors
/// If the disk does not accept it.
pub fn write_snapshot(folder: &Path, snapshot: &Snapshot) -> Result<(), ReplicaError> {
    write(folder, snapshot, 1)
}

fn write(folder: &Path, snapshot: &Snapshot, voters: usize) -> Result<(), ReplicaError> {
    let last = last_of(snapshot);
    let ids = (1..=voters as NodeId).map(|id| (id, EmptyNode::new()));
    let nodes: std::collections::BTreeMap<NodeId, EmptyNode> = ids.collect();
    let voters = nodes.keys().copied().collect();
    let meta = SnapshotMeta {
        last_log_id: last,
        last_membership: StoredMembership::new(last, Membership::new(vec![voters], nodes)),
        snapshot_id: last.map_or_else(String::new, |last| last.to_string()),
    };
    let mut bytes = meta.to_bytes();
    bytes.extend_from_slice(&snapshot.state);
    write_atomically(&Machine::env(), &folder.join(SNAPSHOT), &bytes)
}

/// The last entry of a snapshot.
fn last_of(snapshot: &Snapshot) -> Option<LogId<NodeId>> {
    let index = snapshot.index.checked_sub(1)?;
    Some(LogId::new(crate::types::leader_of(snapshot.term), index))
}

/// Copies what a replica's folder says of the format of its batches and snapshots, and checks that
/// it is one that can be read.
///
/// # Errors
/// If it is not, or the disk does not accept it.
pub fn copy_format(from: &Path, to: &Path, own: &ContentFormat) -> Result<(), ReplicaError> {
    for name in content_format::file_names() {
        match fs::copy(from.join(&name), to.join(&name)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(ReplicaError::file(&to.join(&name), "cannot be written", error));
            }
            _ => {}
        }
    }
    check_format(to, own)
}

/// Checks that the format that a folder names can be read.
///
/// # Errors
/// If it is a newer one, or another one.
pub fn check_format(folder: &Path, own: &ContentFormat) -> Result<(), ReplicaError> {
    content_format::check(&Machine::env(), folder, own)
}

/// Makes the folder of a replica whose group begins with a state, as the next generation: each of
/// its replicas begins with the same. `ids` are random numbers, one for each voter.
///
/// # Errors
/// If the disk does not accept it.
pub fn begin(
    folder: &Path,
    (state, index): (Vec<u8>, u64),
    generation: u8,
    ids: &[u64],
    content: &ContentFormat,
) -> Result<(), ReplicaError> {
    let env = Machine::env();
    let term = first_term(generation);
    env.create_folder(folder)
        .map_err(|error| ReplicaError::file(folder, "cannot be created", error))?;
    let term_of_records = term_of(&CommittedLeaderId::new(term, 0));
    let snapshot = Snapshot { index: index.max(1), term: term_of_records, state };
    write(folder, &snapshot, ids.len())?;
    content_format::admit(&env, folder, content)?;
    let state = HardState {
        bootstrap_ids: ids.to_vec(),
        vote: Some(Vote::new(term, 0)),
        required_log_id: None,
        purged: last_of(&snapshot),
    };
    let path = folder.join(HARD_STATE);
    // Last: without it, the folder is refused.
    SlotFile::create(&env, &path, MARKS.now, &state.to_bytes())
        .map_err(|error| ReplicaError::file(&path, "cannot be written", error))?;
    let synced = env.sync_folder(folder);
    synced.map_err(|error| ReplicaError::file(folder, "cannot be written", error))
}
