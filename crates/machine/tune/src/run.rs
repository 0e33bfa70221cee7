//! The state of a run, from the records of its journal.

use crate::machine::Writer;
use crate::record::{Begin, Companion, Decision, Intent, Record};
use nm_settings::value::Value;

/// How far a change has come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ChangeState {
    /// It may have been written or not.
    Intent,
    /// The kernel had not finished writing it for this process.
    Unknown(Writer),
    /// It was written; this was read back.
    Applied(Value),
    /// The same, and it was still so at the end of the run.
    Verified(Value),
    /// Restoring it was begun. The value that was read back after writing it, if it is known.
    Undoing {
        /// What had been read back.
        read: Option<Value>,
        /// Settings of the same link that must be the same afterwards.
        companions: Vec<Companion>,
    },
    /// It is what it was.
    Undone,
    /// The kernel refused it; it is what it was.
    Failed(String),
    /// Somebody else's value was left.
    KeptTheirs,
    /// A restart of the machine has reset it.
    Gone,
}

impl ChangeState {
    /// Whether the setting may still have a value of the run.
    pub fn is_open(&self) -> bool {
        matches!(
            self,
            ChangeState::Intent
                | ChangeState::Unknown(_)
                | ChangeState::Applied(_)
                | ChangeState::Verified(_)
                | ChangeState::Undoing { .. }
        )
    }

    /// What was read back after the setting was written.
    pub fn read_back(&self) -> Option<&Value> {
        match self {
            ChangeState::Applied(read) | ChangeState::Verified(read) => Some(read),
            ChangeState::Undoing { read, .. } => read.as_ref(),
            _ => None,
        }
    }
}

/// One change of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// What was about to be written.
    pub intent: Intent,
    /// How far it has come.
    pub state: ChangeState,
}

/// Where a run stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// It was ended in the middle: by Ctrl-C, a signal, or a failure.
    Interrupted,
    /// Its changes are in force.
    InForce,
    /// Its changes are in force until its deadline, unless it is confirmed.
    AwaitsConfirmation,
    /// Undoing it was begun and not finished.
    PartlyUndone,
    /// None of its changes is in force.
    Closed,
}

impl Status {
    /// For people.
    pub fn text(self) -> &'static str {
        match self {
            Status::Interrupted => "interrupted",
            Status::InForce => "in force",
            Status::AwaitsConfirmation => "awaits confirmation",
            Status::PartlyUndone => "partly undone",
            Status::Closed => "closed",
        }
    }

    /// Whether another run must not begin before this one is completed or undone.
    pub fn is_unfinished(self) -> bool {
        matches!(self, Status::Interrupted | Status::AwaitsConfirmation | Status::PartlyUndone)
    }
}

/// A run: its first record, and what became of each change.
#[derive(Debug, Clone, PartialEq)]
pub struct Run {
    /// The first record.
    pub begin: Begin,
    /// Its changes, in their order.
    pub changes: Vec<Change>,
    /// Whether all its changes were made.
    pub is_complete: bool,
    /// Whether it was confirmed.
    pub is_confirmed: bool,
    /// Whether undoing it was begun.
    pub is_undo_begun: bool,
    /// What experiments decided.
    pub decisions: Vec<Decision>,
    /// What a reader should know.
    pub notes: Vec<String>,
}

impl Run {
    /// The run of a journal; absent if a record names a change that was not announced.
    pub fn new(begin: Begin, records: &[Record]) -> Option<Run> {
        let mut run = Run::begun(begin);
        for record in records {
            run.add(record)?;
        }
        Some(run)
    }

    /// A run without changes.
    pub fn begun(begin: Begin) -> Run {
        Run {
            begin,
            changes: vec![],
            is_complete: false,
            is_confirmed: false,
            is_undo_begun: false,
            decisions: vec![],
            notes: vec![],
        }
    }

    /// Takes one more record into account; absent if it does not follow from those before.
    pub fn add(&mut self, record: &Record) -> Option<()> {
        match record {
            Record::Begin(_) => return None,
            Record::Intent(intent) => {
                if self.change(intent.seq).is_some() {
                    return None;
                }
                let change = Change { intent: intent.clone(), state: ChangeState::Intent };
                self.changes.push(change);
                self.is_complete = false;
            }
            Record::Applied { seq, read } => {
                self.change(*seq)?.state = ChangeState::Applied(read.clone());
            }
            Record::Verified { seq } => {
                let change = self.change(*seq)?;
                let read = change.state.read_back()?.clone();
                change.state = ChangeState::Verified(read);
            }
            Record::Failed { seq, reason } => {
                self.change(*seq)?.state = ChangeState::Failed(reason.clone());
            }
            Record::Unknown { seq, writer, .. } => {
                self.change(*seq)?.state = ChangeState::Unknown(*writer);
            }
            Record::Undoing { seq, companions } => {
                let change = self.change(*seq)?;
                let read = change.state.read_back().cloned();
                change.state = ChangeState::Undoing { read, companions: companions.clone() };
            }
            Record::Undone { seq, .. } => self.change(*seq)?.state = ChangeState::Undone,
            Record::KeptTheirs { seq } => self.change(*seq)?.state = ChangeState::KeptTheirs,
            Record::Gone { seq } => self.change(*seq)?.state = ChangeState::Gone,
            Record::Complete => self.is_complete = true,
            Record::Confirmed => self.is_confirmed = true,
            Record::UndoBegun => self.is_undo_begun = true,
            Record::Decision(decision) => self.decisions.push(decision.clone()),
            Record::Note { text } => self.notes.push(text.clone()),
        }
        Some(())
    }

    fn change(&mut self, seq: u64) -> Option<&mut Change> {
        self.changes.iter_mut().rev().find(|change| change.intent.seq == seq)
    }

    /// Number of the next change.
    pub fn next_seq(&self) -> u64 {
        self.changes.last().map_or(0, |change| change.intent.seq) + 1
    }

    /// Where it stands.
    pub fn status(&self) -> Status {
        let has_open = self.changes.iter().any(|change| change.state.is_open());
        match (has_open, self.is_undo_begun, self.is_complete) {
            (false, true, _) | (false, _, true) => Status::Closed,
            // Nothing was written yet, or nothing that was written is left.
            (false, false, false) => Status::Closed,
            (true, true, _) => Status::PartlyUndone,
            (true, false, false) => Status::Interrupted,
            (true, false, true) => match (self.begin.confirm_within_s, self.is_confirmed) {
                (Some(_), false) => Status::AwaitsConfirmation,
                _ => Status::InForce,
            },
        }
    }
}
