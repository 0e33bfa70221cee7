//! A backup is made from the files of replicas that run, and checked.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use nm_exchange::network::{CONTROL, Durability, Network, NodeId, group_name};
use nm_exchange::node::groups;
use nm_replica::journal::{Journal, Settings};
use nm_replica::saved;
use nm_verify::recording::{Comparison, Recording};

use crate::description::{Description, GroupDescription};
use crate::error::BackupError;
use crate::group_copy::GroupCopy;

/// Bytes of a journal file in a backup.
const FILE_BYTES: u64 = 8 << 20;

/// Bytes that a record takes beside its content, and a file beside its records, at most.
const OVERHEAD_BYTES: u64 = 64;

/// How often a group is read again: its replica purges what a snapshot has, also while it is read.
const ATTEMPTS: u32 = 5;

/// Time between two attempts.
const PAUSE: Duration = Duration::from_millis(200);

/// Name of the network's file in a backup.
pub const NETWORK: &str = "network.toml";

/// The groups of a network that are on disks.
///
/// # Errors
/// If none is.
pub fn groups_on_disk(network: &Network) -> Result<Vec<u16>, BackupError> {
    match network.durability {
        Durability::DiskQuorum => {
            Ok(network.cells().chain(network.has_control().then_some(CONTROL)).collect())
        }
        other => Err(BackupError::NotOnDisk(other)),
    }
}

/// The replicas of a group whose folders are on this host.
pub fn replicas_here(network: &Network, data: &Path, group: u16) -> Vec<(NodeId, PathBuf)> {
    let places = network.replica_places(group).into_iter();
    let folder = |node: NodeId| (node, data.join(node.file_name()).join(group_name(group)));
    places.map(folder).filter(|(_, folder)| folder.is_dir()).collect()
}

/// Makes a folder that does not exist, and removes it again if it is not finished.
///
/// # Errors
/// If there is one, or what fills it fails.
pub fn in_new_folder<T>(
    folder: &Path,
    fill: impl FnOnce() -> Result<T, BackupError>,
) -> Result<T, BackupError> {
    match fs::create_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            return Err(BackupError::Exists(folder.into()));
        }
        made => made.map_err(|error| BackupError::file(folder, "written", error))?,
    }
    fill().inspect_err(|_| {
        let _ = fs::remove_dir_all(folder);
    })
}

/// Copies each group of a network from the replicas below a folder of this host, while they run.
///
/// # Errors
/// If a group has no replica here, a file is damaged, or the disk does not take the copy.
pub fn backup(network: &Network, data: &Path, out: &Path) -> Result<Description, BackupError> {
    let groups = groups_on_disk(network)?;
    in_new_folder(out, || {
        let copied = groups.into_iter().map(|group| {
            let folder = out.join(group_name(group));
            fs::create_dir(&folder)
                .map_err(|error| BackupError::file(&folder, "written", error))?;
            copy_group(network, data, group, &folder)
        });
        let copied = copied.collect::<Result<Vec<_>, _>>()?;
        let file = out.join(NETWORK);
        fs::write(&file, network.to_toml()?)
            .map_err(|error| BackupError::file(&file, "written", error))?;
        let description = Description::new(groups::content().program, network.cluster, copied);
        description.write(out)?;
        Recording::open(out)?.seal()?;
        // What is read back is what was meant.
        check(out)
    })
}

fn copy_group(
    network: &Network,
    data: &Path,
    group: u16,
    to: &Path,
) -> Result<GroupDescription, BackupError> {
    let replicas = replicas_here(network, data, group);
    let known = |folder: &Path| {
        let snapshot = saved::snapshot(folder).ok().flatten().map_or(0, |it| it.index);
        saved::committed(folder).max(snapshot)
    };
    let newest = replicas.iter().max_by_key(|(_, folder)| known(folder));
    let (node, from) = newest
        .ok_or_else(|| BackupError::NoReplica { group: group_name(group), data: data.into() })?;
    saved::copy_format(from, to, &groups::content())?;
    let mut attempt = 1;
    let copy = loop {
        // Before the journal: what is committed then is in it, or was purged.
        match GroupCopy::read(from, group, Some(saved::committed(from))) {
            Ok(copy) => break copy,
            Err(error) if attempt == ATTEMPTS => return Err(error),
            Err(_) => thread::sleep(PAUSE),
        }
        attempt += 1;
    };
    let (timeline, state) = copy.replay(network)?;
    write(&copy, to)?;
    Ok(GroupDescription {
        group,
        name: copy.name(),
        node: node.to_string(),
        first: copy.first(),
        position: copy.last(),
        term: copy.term(),
        time_ns: timeline.time_ns(copy.last()),
        state_hash: state.hash(),
    })
}

/// Writes a group's copy to a folder, durably.
fn write(copy: &GroupCopy, to: &Path) -> Result<(), BackupError> {
    if let Some(snapshot) = &copy.snapshot {
        saved::write_snapshot(to, snapshot)?;
    }
    let sizes = || copy.records.iter().map(|record| record.bytes.len() as u64 + OVERHEAD_BYTES);
    let largest = sizes().max().unwrap_or(0) + OVERHEAD_BYTES;
    let all = sizes().sum::<u64>() + OVERHEAD_BYTES;
    let file_bytes = all.min(FILE_BYTES).max(largest);
    let (mut journal, _) = Journal::open(to, Settings { file_bytes }, 1)?;
    for record in &copy.records {
        journal.append(record.index, record.term, record.kind, &record.bytes)?;
    }
    Ok(journal.close()?)
}

/// Checks a backup: each file is as it was written, and each group leads to the state that was
/// noted.
///
/// # Errors
/// If that is not so.
pub fn check(folder: &Path) -> Result<Description, BackupError> {
    let (network, description) = open(folder)?;
    for noted in &description.groups {
        let copy = read_group(folder, noted)?;
        let (_, state) = copy.replay(&network)?;
        let found = state.hash();
        if found != noted.state_hash || copy.last() != noted.position {
            let (group, noted) = (noted.name.clone(), noted.state_hash.clone());
            return Err(BackupError::OtherState { group, found, noted });
        }
    }
    Ok(description)
}

/// The network and the description of a backup whose files are as they were written.
///
/// # Errors
/// If they are not.
pub fn open(folder: &Path) -> Result<(Network, Description), BackupError> {
    let recording = Recording::open(folder)?;
    match recording.compare()? {
        Comparison::NoManifest => return Err(BackupError::NotFinished(folder.into())),
        Comparison::Differences(differences) => {
            if let Some(first) = differences.into_iter().next() {
                return Err(BackupError::Damaged(first));
            }
        }
    }
    let network = Network::read_unresolved(&folder.join(NETWORK))?;
    Ok((network, Description::read(folder)?))
}

/// The copy of a group.
///
/// # Errors
/// If it cannot be read, or is of another format.
pub fn read_group(folder: &Path, noted: &GroupDescription) -> Result<GroupCopy, BackupError> {
    let own = folder.join(group_name(noted.group));
    saved::check_format(&own, &groups::content())?;
    GroupCopy::read(&own, noted.group, None)
}
