//! Walks a run back. What somebody else has changed since is never overwritten unless the user
//! names the step.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::apply::{companions, restore_companions};
use crate::journal::{JournalError, Log};
use crate::machine::{AccessError, Machine, Origin};
use crate::record::{Companion, Record, RunId};
use crate::run::{Change, ChangeState, Run};
use nm_settings::SettingId;
use nm_settings::target::Target;
use nm_settings::value::Value;

/// What the user chose about settings that somebody else has changed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Choices {
    /// Steps whose settings stay as they are now.
    pub keep_theirs: Vec<SettingId>,
    /// Steps whose settings are restored whatever they are now.
    pub force: Vec<SettingId>,
    /// Settings that cannot be restored stay open, and the others are restored: nobody is there to
    /// decide.
    pub goes_on: bool,
}

/// Why undoing stopped. What was restored before is in the journal.
#[derive(Debug, thiserror::Error)]
pub enum UndoError {
    /// The journal.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The machine.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// Somebody else has changed a setting.
    #[error(
        "{step}: {target} is {current}; it was {old} before the run, which made it {applied}, so \
         somebody else has changed it. Name the step: --keep-theirs {step} leaves it, --force \
         {step} writes {old}"
    )]
    Conflict {
        /// The step.
        step: SettingId,
        /// The setting.
        target: Box<Target>,
        /// Its value before the run.
        old: Value,
        /// What the run made of it.
        applied: Value,
        /// Its value now.
        current: Value,
    },
    /// The change was made in another network namespace.
    #[error(
        "{step}: {target} was changed in the network namespace {there}, and this is {here}; run \
         `nearmetal tune undo` there, or --keep-theirs {step}"
    )]
    OtherNamespace {
        /// The step.
        step: SettingId,
        /// The setting.
        target: Target,
        /// Where it was changed.
        there: String,
        /// Where this process is.
        here: String,
    },
    /// The link is gone, or another one has its name.
    #[error(
        "{step}: the link of {target} (driver {driver}, address {mac}) is not here; bring it back, \
         or --keep-theirs {step}"
    )]
    OtherDevice {
        /// The step.
        step: SettingId,
        /// The setting.
        target: Target,
        /// Driver of the link.
        driver: String,
        /// Its hardware address.
        mac: String,
    },
    /// The setting cannot be read or written.
    #[error("{step}: {source}; put right what is wrong and undo again, or --keep-theirs {step}")]
    Setting {
        /// The step.
        step: SettingId,
        /// Why.
        source: AccessError,
    },
    /// A write that was not finished may still be done.
    #[error(
        "{step}: process {pid} is still writing {target}, which the kernel cannot interrupt; undo \
         again when it has ended, or --keep-theirs {step}"
    )]
    StillWriting {
        /// The step.
        step: SettingId,
        /// The setting.
        target: Target,
        /// The process.
        pid: u32,
    },
    /// The kernel took the old value and made another one of it.
    #[error(
        "{step}: {target} is {current} after {old} was written; --keep-theirs {step} leaves it"
    )]
    NotRestored {
        /// The step.
        step: SettingId,
        /// The setting.
        target: Target,
        /// What was written.
        old: Value,
        /// What it is.
        current: Value,
    },
    /// A journal that does not follow from itself: a fault of this program.
    #[error("the journal of run {0} contradicts itself")]
    Inconsistent(RunId),
}

impl UndoError {
    /// Whether other settings can be restored all the same.
    fn is_of_one_setting(&self) -> bool {
        !matches!(self, UndoError::Journal(_) | UndoError::Access(_) | UndoError::Inconsistent(_))
    }

    /// Whether somebody else's work is in the way.
    pub fn is_conflict(&self) -> bool {
        matches!(
            self,
            UndoError::Conflict { .. }
                | UndoError::StillWriting { .. }
                | UndoError::OtherNamespace { .. }
                | UndoError::OtherDevice { .. }
        )
    }
}

/// What became of one change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The old value was written.
    Restored(Value),
    /// It was the old value already.
    AlreadySo(Value),
    /// A restart has reset it, or its device is gone.
    Gone,
    /// It was left as somebody else has written it.
    KeptTheirs,
}

/// What [`undo`] did.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Undone {
    /// The changes, the last one first.
    pub outcomes: Vec<(SettingId, Target, Outcome)>,
    /// Why others stay open, if undoing went on.
    pub left_open: Vec<String>,
    /// It was ended by the user; undoing again goes on.
    pub is_interrupted: bool,
}

/// Restores what the open changes of `run` have replaced, the last one first.
///
/// # Errors
/// Where it had to stop.
pub fn undo(
    machine: &mut dyn Machine,
    log: &mut dyn Log,
    run: &mut Run,
    choices: &Choices,
    interrupted: &AtomicBool,
) -> Result<Undone, UndoError> {
    undo_from(machine, log, run, choices, interrupted, 0)
}

/// The same for changes from number `first_seq` on, which are those of an experiment's trial.
///
/// # Errors
/// Where it had to stop.
pub fn undo_from(
    machine: &mut dyn Machine,
    log: &mut dyn Log,
    run: &mut Run,
    choices: &Choices,
    interrupted: &AtomicBool,
    first_seq: u64,
) -> Result<Undone, UndoError> {
    let here = machine.origin()?;
    let mut session = Session { machine, log, run, here, choices };
    let mut undone = Undone::default();
    if first_seq == 0 && !session.run.is_undo_begun {
        session.append(Record::UndoBegun)?;
    }
    let is_meant = |change: &&Change| change.state.is_open() && change.intent.seq >= first_seq;
    let open: Vec<Change> = session.run.changes.iter().rev().filter(is_meant).cloned().collect();
    for change in open {
        if interrupted.load(Ordering::Relaxed) {
            return Ok(Undone { is_interrupted: true, ..undone });
        }
        let outcome = match session.restore(&change) {
            Err(error) if choices.goes_on && error.is_of_one_setting() => {
                undone.left_open.push(error.to_string());
                continue;
            }
            result => result?,
        };
        undone.outcomes.push((change.intent.step, change.intent.target, outcome));
    }
    Ok(undone)
}

struct Session<'a> {
    machine: &'a mut dyn Machine,
    log: &'a mut dyn Log,
    run: &'a mut Run,
    here: Origin,
    choices: &'a Choices,
}

impl Session<'_> {
    fn append(&mut self, record: Record) -> Result<(), UndoError> {
        self.log.append(&record)?;
        match self.run.add(&record) {
            Some(()) => Ok(()),
            None => Err(UndoError::Inconsistent(self.run.begin.run.clone())),
        }
    }

    fn restore(&mut self, change: &Change) -> Result<Outcome, UndoError> {
        let (seq, step) = (change.intent.seq, change.intent.step);
        if change.intent.origin.boot_id != self.here.boot_id {
            self.append(Record::Gone { seq })?;
            return Ok(Outcome::Gone);
        }
        if let ChangeState::Unknown(writer) = &change.state
            && self.machine.is_writing(writer)
        {
            let (target, pid) = (change.intent.target.clone(), writer.pid);
            return match self.choices.keep_theirs.contains(&step) {
                true => self.keep_theirs(seq),
                false => Err(UndoError::StillWriting { step, target, pid }),
            };
        }
        let found = self.locate(change).and_then(|target| {
            let current = self.machine.read(&target);
            current.map(|current| (target, current)).map_err(setting(step))
        });
        if let Err(UndoError::Setting { source, .. }) = &found
            && source.is_absent()
            && matches!(change.intent.target, Target::Pci { .. })
        {
            // The device was taken out, or its virtual function was removed: so is its setting.
            self.append(Record::Gone { seq })?;
            return Ok(Outcome::Gone);
        }
        let keeps = self.choices.keep_theirs.contains(&step);
        let (target, current) = match found {
            Err(_) if keeps => return self.keep_theirs(seq),
            found => found?,
        };
        let applied = change.state.read_back().unwrap_or(&change.intent.new);
        let is_ours = current == *applied || current == change.intent.old;
        let is_forced = self.choices.force.contains(&step);
        match is_ours || is_forced {
            true => self.write(change, &target, current, !is_ours),
            false if keeps => self.keep_theirs(seq),
            false => Err(UndoError::Conflict {
                step,
                target: Box::new(target),
                old: change.intent.old.clone(),
                applied: applied.clone(),
                current,
            }),
        }
    }

    fn keep_theirs(&mut self, seq: u64) -> Result<Outcome, UndoError> {
        self.append(Record::KeptTheirs { seq })?;
        Ok(Outcome::KeptTheirs)
    }

    /// The setting, under the name that its link has now.
    fn locate(&self, change: &Change) -> Result<Target, UndoError> {
        let intent = &change.intent;
        let (there, here) = (&intent.origin.network_namespace, &self.here.network_namespace);
        if intent.target.is_of_namespace() && there != here {
            return Err(UndoError::OtherNamespace {
                step: intent.step,
                target: intent.target.clone(),
                there: there.clone(),
                here: here.clone(),
            });
        }
        let (Some(link), Some(device)) = (intent.target.link(), &intent.device) else {
            return Ok(intent.target.clone());
        };
        if self.machine.device(link).as_ref() == Some(device) {
            return Ok(intent.target.clone());
        }
        // An address that several virtual links share identifies none of them.
        let same = |name: &&_| self.machine.device(name).as_ref() == Some(device);
        let links = self.machine.links();
        let mut found = links.iter().filter(same);
        match (found.next(), found.next()) {
            (Some(name), None) => Ok(intent.target.on_link(name)),
            _ => Err(UndoError::OtherDevice {
                step: intent.step,
                target: intent.target.clone(),
                driver: device.driver.clone(),
                mac: device.mac.clone(),
            }),
        }
    }

    fn write(
        &mut self,
        change: &Change,
        target: &Target,
        current: Value,
        is_theirs: bool,
    ) -> Result<Outcome, UndoError> {
        let (seq, step, old) = (change.intent.seq, change.intent.step, &change.intent.old);
        let preserved = self.preserved(change, target);
        if current == *old {
            // Nothing was written, unless the process ended while it restored this very setting.
            let is_under_way = matches!(change.state, ChangeState::Undoing { .. });
            let preserved = if is_under_way { preserved.as_slice() } else { &[] };
            restore_companions(self.machine, preserved).map_err(setting(step))?;
            self.append(Record::Undone { seq, overwritten: None })?;
            return Ok(Outcome::AlreadySo(current));
        }
        self.append(Record::Undoing { seq, companions: preserved.clone() })?;
        let written = self.machine.write(target, old);
        if let Some(writer) = written.as_ref().err().and_then(AccessError::writer) {
            let reason = "restoring it was not finished".to_string();
            self.append(Record::Unknown { seq, writer, reason })?;
        }
        written.map_err(setting(step))?;
        restore_companions(self.machine, &preserved).map_err(setting(step))?;
        let read = self.machine.read(target).map_err(setting(step))?;
        if read != *old {
            let (target, old) = (target.clone(), old.clone());
            return Err(UndoError::NotRestored { step, target, old, current: read });
        }
        self.append(Record::Undone { seq, overwritten: is_theirs.then_some(current) })?;
        Ok(Outcome::Restored(read))
    }

    /// Settings of the same link that must be the same after the write. If a write was under way
    /// when its process ended, the driver may have reset them since, so those that it had noted
    /// count; else what they are now.
    fn preserved(&self, change: &Change, target: &Target) -> Vec<Companion> {
        let noted = match &change.state {
            ChangeState::Intent | ChangeState::Unknown(_) => &change.intent.companions,
            ChangeState::Undoing { companions, .. } => companions,
            _ => return companions(self.machine, target),
        };
        let renamed = |companion: &Companion| Companion {
            target: target
                .link()
                .map_or(companion.target.clone(), |link| companion.target.on_link(link)),
            value: companion.value.clone(),
        };
        noted.iter().map(renamed).collect()
    }
}

fn setting(step: SettingId) -> impl FnOnce(AccessError) -> UndoError {
    move |source| UndoError::Setting { step, source }
}
