//! Applies changes: each is in the journal, on the disk, before it is written to the machine.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::journal::{JournalError, Log};
use crate::machine::{AccessError, Machine};
use crate::plan::StepChange;
use crate::record::{Companion, Intent, Record};
use crate::run::{ChangeState, Run};
use nm_settings::SettingId;
use nm_settings::target::Target;
use nm_settings::value::Value;

/// Why a run cannot go on. Its journal is unfinished then, and can be undone.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// The journal cannot be written, so nothing is changed either.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The machine.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// A refused write has changed the setting all the same.
    #[error("{target} was {old} and is {current}, although writing it failed: {reason}")]
    HalfWritten {
        /// The setting.
        target: Target,
        /// Its value before.
        old: Value,
        /// Its value now.
        current: Value,
        /// Why the write failed.
        reason: String,
    },
    /// The kernel has not finished a write, and may still do it.
    #[error("{target} was {old} and may become {new} yet: {reason}")]
    Unknown {
        /// The setting.
        target: Box<Target>,
        /// Its value before.
        old: Value,
        /// What is being written.
        new: Value,
        /// Why.
        reason: String,
    },
    /// A journal that does not follow from itself: a fault of this program.
    #[error("the journal of run {0} contradicts itself")]
    Inconsistent(crate::record::RunId),
}

/// What became of one change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// It was written and read back as written.
    Applied {
        /// The value before.
        old: Value,
        /// The value now.
        new: Value,
    },
    /// It was written, and the kernel or driver made another value of it.
    Rounded {
        /// The value before.
        old: Value,
        /// What was written.
        wanted: Value,
        /// The value now.
        read: Value,
    },
    /// It was so already.
    Unchanged,
    /// The kernel refused it, and it is what it was.
    Refused(String),
    /// It was written, and something else has changed it before the end of the run.
    ChangedSince {
        /// What was read back.
        applied: Value,
        /// The value now.
        current: Value,
    },
}

/// What [`apply`] did.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Applied {
    /// The changes, in their order.
    pub outcomes: Vec<(SettingId, Target, Outcome)>,
    /// It was ended by the user; the journal is unfinished.
    pub is_interrupted: bool,
}

/// Applies `changes`, which are all of the run, and appends to the journal of `run`, whose state is
/// brought up to date.
///
/// # Errors
/// If the journal or the machine fails; what was done until then is in the journal.
pub fn apply(
    machine: &mut dyn Machine,
    log: &mut dyn Log,
    run: &mut Run,
    changes: &[StepChange],
    interrupted: &AtomicBool,
) -> Result<Applied, ApplyError> {
    let applied = apply_some(machine, log, run, changes, interrupted)?;
    if !applied.is_interrupted {
        record(log, run, &Record::Complete)?;
    }
    Ok(applied)
}

/// Appends a record to a journal, and brings the state of its run up to date.
///
/// # Errors
/// If it cannot be written, or does not follow from those before.
pub fn record(log: &mut dyn Log, run: &mut Run, record: &Record) -> Result<(), ApplyError> {
    log.append(record)?;
    match run.add(record) {
        Some(()) => Ok(()),
        None => Err(ApplyError::Inconsistent(run.begin.run.clone())),
    }
}

/// Applies `changes`, after which others may follow: the run stays unfinished.
///
/// # Errors
/// Those of [`apply`].
pub fn apply_some(
    machine: &mut dyn Machine,
    log: &mut dyn Log,
    run: &mut Run,
    changes: &[StepChange],
    interrupted: &AtomicBool,
) -> Result<Applied, ApplyError> {
    let mut applied = Applied::default();
    let first_seq = run.next_seq();
    let mut session = Session { machine, log, run };
    for StepChange { step, change } in changes {
        if interrupted.load(Ordering::Relaxed) {
            return Ok(Applied { is_interrupted: true, ..applied });
        }
        let old = session.machine.read(&change.target)?;
        let outcome = match change.wanted.resolve(&old) {
            None => Outcome::Refused(format!("{old} cannot be changed to what is wanted")),
            Some(new) if new == old => Outcome::Unchanged,
            Some(new) => session.write(*step, &change.target, old, new)?,
        };
        applied.outcomes.push((*step, change.target.clone(), outcome));
    }
    session.verify(first_seq, &mut applied)?;
    Ok(applied)
}

struct Session<'a> {
    machine: &'a mut dyn Machine,
    log: &'a mut dyn Log,
    run: &'a mut Run,
}

impl Session<'_> {
    fn append(&mut self, record: Record) -> Result<(), ApplyError> {
        crate::apply::record(self.log, self.run, &record)
    }

    fn write(
        &mut self,
        step: SettingId,
        target: &Target,
        old: Value,
        new: Value,
    ) -> Result<Outcome, ApplyError> {
        let seq = self.run.next_seq();
        let companions = companions(self.machine, target);
        let intent = Intent {
            seq,
            step,
            target: target.clone(),
            old: old.clone(),
            new: new.clone(),
            origin: self.machine.origin()?,
            device: target.link().and_then(|link| self.machine.device(link)),
            companions: companions.clone(),
        };
        self.append(Record::Intent(intent))?;
        let written = self.machine.write(target, &new);
        if let Err(error) = &written
            && let Some(writer) = error.writer()
        {
            let reason = error.to_string();
            self.append(Record::Unknown { seq, writer, reason: reason.clone() })?;
            return Err(ApplyError::Unknown { target: Box::new(target.clone()), old, new, reason });
        }
        restore_companions(self.machine, &companions)?;
        let read = self.machine.read(target)?;
        match written {
            Err(error) if read == old => {
                let reason = error.to_string();
                self.append(Record::Failed { seq, reason: reason.clone() })?;
                Ok(Outcome::Refused(reason))
            }
            Err(error) => Err(ApplyError::HalfWritten {
                target: target.clone(),
                old,
                current: read,
                reason: error.to_string(),
            }),
            Ok(()) if read == old => {
                let reason = "the kernel took the value and did not change it".to_string();
                self.append(Record::Failed { seq, reason: reason.clone() })?;
                Ok(Outcome::Refused(reason))
            }
            Ok(()) => {
                self.append(Record::Applied { seq, read: read.clone() })?;
                Ok(match read == new {
                    true => Outcome::Applied { old, new },
                    false => Outcome::Rounded { old, wanted: new, read },
                })
            }
        }
    }

    /// Reads every setting of this run again: a later change may have reset an earlier one, and
    /// another program may manage the same setting.
    fn verify(&mut self, first_seq: u64, applied: &mut Applied) -> Result<(), ApplyError> {
        let changes: Vec<_> = self.run.changes.clone();
        let of_this = changes.iter().filter(|change| change.intent.seq >= first_seq);
        for change in of_this {
            let ChangeState::Applied(read) = &change.state else { continue };
            let (seq, target) = (change.intent.seq, &change.intent.target);
            let is_last = !changes
                .iter()
                .any(|later| later.intent.seq > seq && later.intent.target == *target);
            let current = if is_last { self.machine.read(target)? } else { read.clone() };
            if current == *read {
                self.append(Record::Verified { seq })?;
                continue;
            }
            let outcome = Outcome::ChangedSince { applied: read.clone(), current };
            applied.outcomes.push((change.intent.step, target.clone(), outcome));
        }
        Ok(())
    }
}

/// Settings of the same link that writing `target` may reset, as far as the driver has them.
pub(crate) fn companions(machine: &dyn Machine, target: &Target) -> Vec<Companion> {
    let read = |target: Target| {
        let value = machine.read(&target).ok()?;
        Some(Companion { target, value })
    };
    target.companions().into_iter().filter_map(read).collect()
}

/// Writes those settings that differ from what they were.
pub(crate) fn restore_companions(
    machine: &mut dyn Machine,
    companions: &[Companion],
) -> Result<(), AccessError> {
    for Companion { target, value } in companions {
        if machine.read(target)? != *value {
            machine.write(target, value)?;
        }
    }
    Ok(())
}
