//! What a replica does if a file of its own is damaged.
//!
//! A replica may have acknowledged every entry that it ever had on disk. If it lost some, and did
//! not know, it could help to elect a leader that lacks them too. So before it removes what is
//! damaged, and everything behind it, it writes down the last entry that it had as its *required
//! log id*. Until its log has that entry again it does not lead, and votes for no candidate that
//! lacks it. The leader sends the entries, as to any replica that is behind. The vote is in another
//! file, and is not affected.
//!
//! Where the last entry cannot be known, or there is nobody to send it, the replica refuses to
//! start.

use std::path::Path;

use openraft::LogId;

use crate::encode::Encode;
use crate::env::Env;
use crate::error::ReplicaError;
use crate::hard_state::{HARD_STATE, HardState};
use crate::journal::{self, Damage, Found, Journal, JournalError};
use crate::slot_file::SlotFile;
use crate::state_machine::{SNAPSHOT, last_in_snapshot};
use crate::types::{NodeId, leader_of, term_of};

/// The folder of a replica that starts.
pub struct Opened<'a> {
    pub env: &'a Env,
    pub folder: &'a Path,
    /// How the journal is kept.
    pub journal: journal::Settings,
    /// Whether the replica is the only one of its group.
    pub is_single: bool,
    pub hard_state: HardState,
    /// The file of the hard state, if there is one.
    pub file: Option<SlotFile>,
    /// What was damaged, if the replica can go on all the same.
    pub damage: Option<ReplicaError>,
}

/// For people: what is damaged, and what follows from that.
pub fn report(damage: &ReplicaError) -> String {
    let source = std::error::Error::source(damage).map(|source| format!(": {source}"));
    format!(
        "{damage}{}; the damaged part and what follows it are removed, and requested from the \
         other replicas; until they are here, this replica does not lead, and votes for no \
         replica that lacks them",
        source.unwrap_or_default()
    )
}

impl Opened<'_> {
    /// The journal and its records behind the last purged entry.
    ///
    /// # Errors
    /// If the folder cannot be used, or something is damaged and cannot be repaired.
    pub fn open(&mut self) -> Result<(Journal, Found), ReplicaError> {
        if let Err(error) = self.check_snapshot() {
            self.require_last(&error, None)?;
            let (journal, _) = Journal::open_part(self.env, self.folder, self.journal, (0, 1))?;
            drop(journal);
            self.remove_snapshot()?;
            self.damage = Some(error);
        }
        let from = self.hard_state.purged.map_or(0, |purged| purged.index + 1) + 1;
        let opened = Journal::open_in(self.env, self.folder, self.journal, from);
        let opened = match opened.and_then(|opened| check_front(self.folder, from, opened)) {
            Err(error @ JournalError::Damaged { index, .. }) => {
                let error = ReplicaError::from(error);
                self.require_last(&error, self.hard_state.purged)?;
                self.damage = Some(error);
                Journal::open_part(self.env, self.folder, self.journal, (from, index))
            }
            opened => opened,
        };
        let (mut journal, found) = opened?;
        let vote = self.hard_state.vote.map_or(0, |vote| term_of(&vote.leader_id));
        if found.records.last().is_some_and(|last| last.term > vote) {
            let why = "the journal has entries of a later term";
            return Err(ReplicaError::Untrusted { folder: self.folder.into(), why });
        }
        if journal.next().is_some_and(|next| next < from) {
            // A snapshot was installed, and the crash came before the journal was restarted.
            journal.restart(from - 1)?;
        }
        Ok((journal, found))
    }

    /// Whether the snapshot has what was purged from the journal.
    fn check_snapshot(&self) -> Result<(), ReplicaError> {
        let path = self.folder.join(SNAPSHOT);
        match last_in_snapshot(self.env, &path) {
            Ok(last) if last >= self.hard_state.purged => Ok(()),
            Ok(_) => Err(ReplicaError::SnapshotMissing(path)),
            Err(error) => Err(error),
        }
    }

    /// Writes down the last entry that the replica had, and that `purged` is the last that was
    /// purged.
    fn require_last(
        &mut self,
        error: &ReplicaError,
        purged: Option<LogId<NodeId>>,
    ) -> Result<(), ReplicaError> {
        let (Some(file), false) = (&mut self.file, self.is_single) else {
            return Err(error.clone());
        };
        let is_damage = matches!(
            error,
            ReplicaError::Checksum(_) | ReplicaError::SnapshotMissing(_) | ReplicaError::Journal(_)
        );
        let Some((term, index)) =
            journal::last_record(self.env, self.folder)?.filter(|_| is_damage)
        else {
            return Err(error.clone());
        };
        let last = (index > 0).then(|| LogId::new(leader_of(term), index - 1));
        let state = &mut self.hard_state;
        state.required_log_id = state.required_log_id.max(last).max(state.purged);
        state.purged = purged;
        let path = self.folder.join(HARD_STATE);
        file.write(&state.to_bytes())
            .map_err(|error| ReplicaError::file(&path, "cannot be written", error))
    }

    fn remove_snapshot(&self) -> Result<(), ReplicaError> {
        let path = self.folder.join(SNAPSHOT);
        let removed = match self.env.remove(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
            _ => self.env.sync_folder(self.folder),
        };
        removed.map_err(|error| ReplicaError::file(&path, "cannot be removed", error))
    }
}

/// The journal must not begin behind the first record that is needed.
fn check_front(
    folder: &Path,
    from: u64,
    (journal, found): (Journal, Found),
) -> Result<(Journal, Found), JournalError> {
    if journal.first().is_none_or(|first| first <= from) {
        return Ok((journal, found));
    }
    let (path, damage) = (folder.to_path_buf(), Damage::Missing);
    Err(JournalError::Damaged { path, index: from, offset: 0, damage })
}
