//! A network begins again from the copies of its groups at a place.

use std::fs;
use std::path::Path;

use nm_exchange::network::{CONTROL, Network, group_name};
use nm_exchange::node::groups;
use nm_replica::saved;
use nm_sys::random;

use crate::consistent;
use crate::copy::{in_new_folder, open, read_group};
use crate::error::BackupError;
use crate::group_copy::{GroupCopy, Timeline};

/// Up to which place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum To {
    /// All that there is.
    End,
    /// A time, ns since 1970.
    Time(u64),
    /// A position of a cell, and the others at the time of that.
    Position {
        /// Which cell.
        cell: u16,
        /// Which of its records is the last one.
        position: u64,
    },
}

/// What was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Restored {
    /// Each group.
    pub groups: Vec<RestoredGroup>,
    /// The generation that begins.
    pub generation: u8,
}

/// A group that begins again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RestoredGroup {
    /// Its name.
    pub name: String,
    /// The last position that it has.
    pub position: u64,
    /// The time of that, ns since 1970; 0 if there is none.
    pub time_ns: u64,
    /// What the copy has behind that.
    pub lost: Option<Lost>,
}

/// What a copy has, and the group does not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lost {
    /// First and last position.
    pub positions: (u64, u64),
    /// Time of the first and the last batch, ns since 1970.
    pub times_ns: (u64, u64),
}

/// Makes the folders of all replicas of a network from a backup, below a folder that does not
/// exist.
///
/// # Errors
/// If the backup is damaged or does not reach the place, or the disk does not take the folders.
pub fn restore(backup: &Path, to: To, data: &Path) -> Result<Restored, BackupError> {
    let (network, description) = open(backup)?;
    let groups = description.groups.iter().map(|noted| read_group(backup, noted));
    let copies: Vec<GroupCopy> = groups.collect::<Result<_, _>>()?;
    begin(&network, &copies, to, data)
}

/// Makes the folders of all replicas from copies of all groups.
///
/// # Errors
/// As [`restore`].
pub fn begin(
    network: &Network,
    copies: &[GroupCopy],
    to: To,
    data: &Path,
) -> Result<Restored, BackupError> {
    let replayed = copies.iter().map(|copy| Ok(copy.replay(network)?.0));
    let timelines: Vec<Timeline> = replayed.collect::<Result<_, BackupError>>()?;
    let mut positions = positions(&timelines, to)?;
    consistent::fit(&timelines, &mut positions)?;
    let generation = next_generation(copies)?;
    in_new_folder(data, || {
        for (copy, position) in copies.iter().zip(&positions) {
            begin_group(network, copy, *position, generation, data)?;
        }
        Ok(())
    })?;
    let groups = timelines.iter().zip(&positions).map(|(timeline, position)| RestoredGroup {
        name: group_name(timeline.group),
        position: *position,
        time_ns: timeline.time_ns(*position),
        lost: lost(timeline, *position),
    });
    Ok(Restored { groups: groups.collect(), generation })
}

/// The position of each group at a place.
fn positions(timelines: &[Timeline], to: To) -> Result<Vec<u64>, BackupError> {
    let time_ns = match to {
        To::End => u64::MAX,
        To::Time(time_ns) => time_ns,
        To::Position { cell, position } => {
            let of_cell = timelines.iter().find(|it| it.group == cell && cell != CONTROL);
            let of_cell = of_cell.ok_or(BackupError::NoCell(cell))?;
            let (first, last) = of_cell.span;
            if position > last {
                return Err(BackupError::BehindCopy { cell, last, position });
            }
            if position < first {
                return Err(BackupError::BeforeCopy { group: group_name(cell), first });
            }
            of_cell.time_ns(position)
        }
    };
    let position_of = |timeline: &Timeline| match to {
        To::Position { cell, position } if timeline.group == cell => Ok(position),
        _ => {
            let before = || BackupError::BeforeCopy {
                group: group_name(timeline.group),
                first: timeline.span.0,
            };
            timeline.position_at(time_ns).ok_or_else(before)
        }
    };
    timelines.iter().map(position_of).collect()
}

fn lost(timeline: &Timeline, position: u64) -> Option<Lost> {
    let last = timeline.span.1;
    let first = (position < last).then_some(position + 1)?;
    let behind = timeline.times_ns.iter().find(|(at, _)| *at > position);
    let begin_ns = behind.map_or(timeline.time_ns(position), |(_, time_ns)| *time_ns);
    Some(Lost { positions: (first, last), times_ns: (begin_ns, timeline.time_ns(last)) })
}

fn next_generation(copies: &[GroupCopy]) -> Result<u8, BackupError> {
    let newest = copies.iter().map(|copy| saved::generation(copy.term())).max().unwrap_or(0);
    u8::try_from(newest + 1).map_err(|_| BackupError::TooManyGenerations(newest))
}

/// Makes the folders of a group's replicas.
fn begin_group(
    network: &Network,
    copy: &GroupCopy,
    position: u64,
    generation: u8,
    data: &Path,
) -> Result<(), BackupError> {
    let mut state = copy.state_at(network, position)?;
    state.begin_again();
    let saved = state.save();
    let replicas = network.replicas(copy.group);
    let id = || random::bytes().map(u64::from_le_bytes);
    let ids = replicas.iter().map(|_| id()).collect::<Result<Vec<u64>, _>>();
    let ids = ids.map_err(|error| BackupError::file(data, "written", error))?;
    for node in replicas {
        let folder = data.join(node.file_name());
        fs::create_dir_all(&folder)
            .map_err(|error| BackupError::file(&folder, "written", error))?;
        let folder = folder.join(group_name(copy.group));
        let content = groups::content();
        saved::begin(&folder, (saved.clone(), position), generation, &ids, &content)?;
    }
    Ok(())
}
