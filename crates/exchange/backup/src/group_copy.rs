//! The copy of a group: a state, and the records behind it.

use std::path::Path;

use nm_exchange::network::{Network, group_name};
use nm_replica::journal::{Reader, Record};
use nm_replica::saved;

use crate::error::BackupError;
use crate::group_state::{GroupState, Step};

/// A group's snapshot and records, in memory.
#[derive(Debug)]
pub struct GroupCopy {
    /// The group.
    pub group: u16,
    /// The snapshot, if there is one.
    pub snapshot: Option<saved::Snapshot>,
    /// The records behind it, without a gap.
    pub records: Vec<Record>,
}

/// What happened in a group, by position.
#[derive(Debug)]
pub struct Timeline {
    /// The group.
    pub group: u16,
    /// Position of the state with which it begins, and of its last record.
    pub span: (u64, u64),
    /// Time of each position with a batch, ns since 1970; that of the first state first.
    pub times_ns: Vec<(u64, u64)>,
    /// What happened to ownerships.
    pub steps: Vec<(u64, Step)>,
}

impl GroupCopy {
    /// The group in a folder, up to a record if one is given.
    ///
    /// # Errors
    /// If a file is damaged, or a record is missing.
    pub fn read(folder: &Path, group: u16, upto: Option<u64>) -> Result<GroupCopy, BackupError> {
        let snapshot = saved::snapshot(folder)?;
        let first = snapshot.as_ref().map_or(0, |snapshot| snapshot.index);
        let upto = upto.unwrap_or(u64::MAX);
        let mut reader = Reader::open_from(folder, first + 1)?;
        let mut records: Vec<Record> = vec![];
        while let Some(record) = reader.next_record()? {
            if record.index <= first {
                continue;
            }
            if record.index > upto {
                break;
            }
            let next = first + 1 + records.len() as u64;
            if record.index != next {
                return Err(BackupError::Gap { folder: folder.into(), index: next });
            }
            records.push(record);
        }
        Ok(GroupCopy { group, snapshot, records })
    }

    /// Position of the state with which it begins; 0 if that is the beginning of the group.
    pub fn first(&self) -> u64 {
        self.snapshot.as_ref().map_or(0, |snapshot| snapshot.index)
    }

    /// Position of its last record, or of the state with which it begins.
    pub fn last(&self) -> u64 {
        self.records.last().map_or(self.first(), |record| record.index)
    }

    /// Term of the last record.
    pub fn term(&self) -> u64 {
        let of_snapshot = self.snapshot.as_ref().map_or(0, |snapshot| snapshot.term);
        self.records.last().map_or(of_snapshot, |record| record.term)
    }

    /// Whose it is, for sentences.
    pub fn name(&self) -> String {
        group_name(self.group)
    }

    fn begin(&self, network: &Network) -> Result<GroupState, BackupError> {
        match &self.snapshot {
            Some(snapshot) => GroupState::load(self.group, &snapshot.state),
            None => Ok(GroupState::new(network, self.group)),
        }
    }

    /// The state at a position.
    ///
    /// # Errors
    /// If a record cannot be decoded.
    pub fn state_at(&self, network: &Network, position: u64) -> Result<GroupState, BackupError> {
        let mut state = self.begin(network)?;
        for record in self.records.iter().take_while(|record| record.index <= position) {
            state.apply(self.group, record)?;
        }
        Ok(state)
    }

    /// What happened, and the state at the end.
    ///
    /// # Errors
    /// If a record cannot be decoded.
    pub fn replay(&self, network: &Network) -> Result<(Timeline, GroupState), BackupError> {
        let mut state = self.begin(network)?;
        let first = self.first();
        let mut steps: Vec<_> = state.steps().into_iter().map(|step| (first, step)).collect();
        let mut times_ns = vec![(first, state.time_ns())];
        for record in &self.records {
            let applied = state.apply(self.group, record)?;
            let latest = times_ns.last().map_or(0, |(_, time_ns)| *time_ns);
            // The time of a cell does not go back.
            times_ns.extend(applied.time_ns.map(|time_ns| (record.index, time_ns.max(latest))));
            steps.extend(applied.steps.into_iter().map(|step| (record.index, step)));
        }
        let span = (first, self.last());
        Ok((Timeline { group: self.group, span, times_ns, steps }, state))
    }
}

impl Timeline {
    /// The last position whose time is not later than this one; none if the copy begins later.
    pub fn position_at(&self, time_ns: u64) -> Option<u64> {
        let later = self.times_ns.partition_point(|(_, at_ns)| *at_ns <= time_ns);
        match self.times_ns.get(later) {
            // What has no batch belongs to the batch before it.
            Some((position, _)) if later > 0 => Some(position - 1),
            Some(_) => None,
            None => Some(self.span.1),
        }
    }

    /// The time of a position: of the last batch that is not behind it.
    pub fn time_ns(&self, position: u64) -> u64 {
        let behind = self.times_ns.partition_point(|(at, _)| *at <= position);
        behind.checked_sub(1).map_or(0, |at| self.times_ns[at].1)
    }
}
