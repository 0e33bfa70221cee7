//! A network begins again from what is left of it, after the loss of most replicas of a cell.
//!
//! The replica that is left has every record that it acknowledged, whether it knew it to be
//! committed or not. All of them count from now on: clients may have the replies. The lost replicas
//! may have had more between them, which this one never got. Nothing shows whether there was any.

use std::path::Path;

use nm_exchange::network::{Network, NodeId, group_name};
use nm_exchange::node::groups;
use nm_replica::saved;

use crate::copy::{groups_on_disk, replicas_here};
use crate::error::BackupError;
use crate::group_copy::GroupCopy;
use crate::restore::{Restored, To, begin};

/// The replica of a group that is the truth from now on.
#[derive(Debug)]
pub struct Survivor {
    /// Whose it is.
    pub node: NodeId,
    /// How many replicas of the group are here, and how many it began with.
    pub replicas: (usize, usize),
    /// Up to where it knew its records to be committed.
    pub committed: u64,
    copy: GroupCopy,
}

impl Survivor {
    /// Name of its group.
    pub fn name(&self) -> String {
        self.copy.name()
    }

    /// Position of its last record.
    pub fn last(&self) -> u64 {
        self.copy.last()
    }

    /// Whether a majority of the replicas is here: if none was ever replaced, nothing is missing.
    pub fn is_complete(&self) -> bool {
        let (here, all) = self.replicas;
        here > all / 2
    }
}

/// The replica of each group below a folder that has most: the one that would win an election.
///
/// # Errors
/// If a group has none, or none that can be read.
pub fn survivors(network: &Network, data: &Path) -> Result<Vec<Survivor>, BackupError> {
    groups_on_disk(network)?.into_iter().map(|group| survivor(network, data, group)).collect()
}

fn survivor(network: &Network, data: &Path, group: u16) -> Result<Survivor, BackupError> {
    let (mut best, mut failed, mut readable): (Option<Survivor>, _, _) = (None, None, 0);
    for (node, folder) in replicas_here(network, data, group) {
        let format = saved::check_format(&folder, &groups::content());
        // Its hard state must be readable: without it, the folder is not one that has voted.
        let usable = format.and_then(|()| saved::vote(&folder)).map_err(BackupError::from);
        let copy = match usable.and_then(|_| GroupCopy::read(&folder, group, None)) {
            Ok(copy) => copy,
            Err(error) => {
                failed = Some(error);
                continue;
            }
        };
        readable += 1;
        let committed = saved::committed(&folder).max(copy.first()).min(copy.last());
        let newest = best.as_ref().map(|best| (best.copy.term(), best.last()));
        if newest < Some((copy.term(), copy.last())) {
            let replicas = (0, network.replicas(group).len());
            best = Some(Survivor { node, replicas, committed, copy });
        }
    }
    match (best, failed) {
        (Some(mut best), _) => {
            best.replicas.0 = readable;
            Ok(best)
        }
        (None, Some(error)) => Err(error),
        (None, None) => Err(BackupError::NoReplica { group: group_name(group), data: data.into() }),
    }
}

/// Makes the folders of all replicas of a network from its survivors, below a folder that does not
/// exist.
///
/// # Errors
/// If a record cannot be used, or the disk does not take the folders.
pub fn recover(
    network: &Network,
    survivors: Vec<Survivor>,
    to: &Path,
) -> Result<Restored, BackupError> {
    let copies: Vec<GroupCopy> = survivors.into_iter().map(|survivor| survivor.copy).collect();
    begin(network, &copies, To::End, to)
}
