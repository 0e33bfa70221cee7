//! A step of `nearmetal tune` as a factor: applied for one trial by way of the journal, and undone
//! after it. If nearmetal is killed meanwhile, `nearmetal tune undo` puts back what was there.

use std::fmt::Display;
use std::path::Path;
use std::sync::atomic::AtomicBool;

use jiff::Timestamp;
use nm_model::plan::EnvironmentKind;
use nm_model::{FactorEvidence, FactorKind, Trial};
use nm_settings::setting::{Scope, SettingId};
use nm_tune::apply::Outcome;
use nm_tune::journal::{FileLog, Folder, Lock};
use nm_tune::machine::{HostMachine, Machine};
use nm_tune::plan::{Planned, PlannedStep, Selection, changes, plan};
use nm_tune::record::{Begin, FORMAT, RunId};
use nm_tune::run::{ChangeState, Run};
use nm_tune::undo::Choices;

use crate::progress::ProgressDisplay;

/// Why a step cannot be applied for a trial, as a clause.
#[derive(Debug, thiserror::Error)]
pub enum TunedStepError {
    /// The user has not allowed it.
    #[error("{0} changes settings of this machine; allow it with --change-machine")]
    NotAllowed(String),
    /// It changes another network namespace than that of the ends.
    #[error("{0} changes the network namespace of nearmetal, and the ends are in others")]
    OtherNamespace(SettingId),
    /// There is nothing that it could change.
    #[error("{0} changes nothing here: its settings are as it wants them")]
    NothingToDo(SettingId),
    /// It cannot be made here, or the journal cannot be written.
    #[error("{0}")]
    Other(String),
}

/// A step that is applied. Dropping it undoes it.
pub struct TunedStep<'d> {
    display: &'d dyn ProgressDisplay,
    machine: Box<dyn Machine>,
    log: FileLog,
    run: Run,
    /// What became of each change.
    outcomes: Vec<FactorEvidence>,
    is_in_force: bool,
    /// Whether undoing was tried; what is left open then is for the user.
    was_undone: bool,
    _lock: Lock,
}

/// A step that was undone.
pub struct UndoneStep {
    pub is_in_force: Option<bool>,
    pub evidence: Vec<FactorEvidence>,
    /// Why something could not be put back.
    pub left_open: Vec<String>,
}

impl<'d> TunedStep<'d> {
    /// Applies the step of a trial's factor; none if the trial has no such factor. `display` warns
    /// of what cannot be put back after a trial that failed.
    pub fn of_trial(
        trial: &Trial,
        is_allowed: bool,
        display: &'d dyn ProgressDisplay,
    ) -> Result<Option<TunedStep<'d>>, TunedStepError> {
        let Some(factor) = trial.factor.as_ref().filter(|f| f.kind == FactorKind::TuneStep) else {
            return Ok(None);
        };
        let name = factor.step.clone().unwrap_or_default();
        if !is_allowed {
            return Err(TunedStepError::NotAllowed(name));
        }
        let other = |error: &dyn Display| TunedStepError::Other(error.to_string());
        let step: SettingId = name.parse().map_err(|error| other(&error))?;
        let is_of_namespace = nm_settings::setting(step).scope == Scope::Namespace;
        if is_of_namespace && trial.environment != EnvironmentKind::Loopback {
            return Err(TunedStepError::OtherNamespace(step));
        }
        let machine = HostMachine::live().map_err(|error| other(&error))?;
        let folder = Path::new(nm_tune::journal::FOLDER);
        let begin = new_run(&machine, "/")?;
        TunedStep::begin(step, Box::new(machine), folder, begin, display).map(Some)
    }

    /// Applies a step on `machine` with a journal in `folder`.
    fn begin(
        step: SettingId,
        machine: Box<dyn Machine>,
        folder: &Path,
        begin: Begin,
        display: &'d dyn ProgressDisplay,
    ) -> Result<TunedStep<'d>, TunedStepError> {
        let other = |text: String| TunedStepError::Other(format!("{step}: {text}"));
        let selection = Selection { only: vec![step], ..Selection::default() };
        let steps = plan(&selection, &*machine).map_err(|error| other(error.to_string()))?;
        match steps.first().map(|PlannedStep { planned, .. }| planned) {
            Some(Planned::Changes(_)) => {}
            Some(Planned::NotAvailable(reason)) => return Err(other(reason.clone())),
            _ => return Err(TunedStepError::NothingToDo(step)),
        }
        let folder = Folder::open(folder).map_err(|error| other(error.to_string()))?;
        let lock = folder.lock().map_err(|error| other(error.to_string()))?;
        let runs = folder.runs().map_err(|error| other(error.to_string()))?;
        if let Some(open) = runs.iter().find(|run| run.status().is_unfinished()) {
            let id = &open.begin.run;
            return Err(other(format!("run {id} is unfinished; `nearmetal tune undo {id}` first")));
        }
        let log = folder.begin(&begin, &lock).map_err(|error| other(error.to_string()))?;
        let run = Run::begun(begin);
        let (outcomes, is_in_force, was_undone) = (vec![], false, false);
        // From here on everything that was written is undone, whatever happens.
        let mut tuned = TunedStep {
            display,
            machine,
            log,
            run,
            outcomes,
            is_in_force,
            was_undone,
            _lock: lock,
        };
        let (machine, changes) = (&mut *tuned.machine, changes(&steps));
        let never = AtomicBool::new(false);
        let applied = nm_tune::apply(machine, &mut tuned.log, &mut tuned.run, &changes, &never);
        let applied = applied.map_err(|error| other(error.to_string()))?;
        for (_, target, outcome) in applied.outcomes {
            let (is_applied, text) = match outcome {
                Outcome::Applied { old, new } => (true, format!("{old} -> {new}")),
                Outcome::Rounded { old, read, .. } => (true, format!("{old} -> {read}")),
                Outcome::Unchanged => (true, "as wanted before".to_string()),
                Outcome::Refused(reason) => (false, format!("not changed: {reason}")),
                Outcome::ChangedSince { current, .. } => (false, format!("changed to {current}")),
            };
            tuned.is_in_force = is_applied && (tuned.is_in_force || tuned.outcomes.is_empty());
            tuned.outcomes.push(FactorEvidence::new(target.to_string(), text));
        }
        Ok(tuned)
    }

    /// Reads every setting again, and undoes the step.
    pub fn finish(mut self) -> UndoneStep {
        let is_in_force = self.is_in_force && self.is_unchanged();
        let left_open = self.undo();
        let evidence = std::mem::take(&mut self.outcomes);
        UndoneStep { is_in_force: Some(is_in_force), evidence, left_open }
    }

    /// Whether each setting is still what the step made of it.
    fn is_unchanged(&self) -> bool {
        self.run.changes.iter().all(|change| match change.state.read_back() {
            Some(applied) => {
                let now = self.machine.read(&change.intent.target);
                now.is_ok_and(|now| now == *applied)
            }
            None => matches!(change.state, ChangeState::Failed(_)),
        })
    }

    fn undo(&mut self) -> Vec<String> {
        self.was_undone = true;
        let choices = Choices { goes_on: true, ..Choices::default() };
        let (machine, never) = (&mut *self.machine, AtomicBool::new(false));
        match nm_tune::undo(machine, &mut self.log, &mut self.run, &choices, &never) {
            Ok(undone) => undone.left_open,
            Err(error) => vec![error.to_string()],
        }
    }
}

/// The first record of a journal.
fn new_run(machine: &dyn Machine, root: &str) -> Result<Begin, TunedStepError> {
    let other = |error: &dyn Display| TunedStepError::Other(error.to_string());
    let started = Timestamp::now();
    let random = u32::from_ne_bytes(nm_sys::random::bytes().map_err(|error| other(&error))?);
    let id = format!("{}-{random:08x}", started.strftime("%Y%m%dT%H%M%SZ"));
    Ok(Begin {
        format: FORMAT,
        run: id.parse::<RunId>().map_err(|error| other(&error))?,
        started: started.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
        version: env!("CARGO_PKG_VERSION").to_string(),
        root: root.to_string(),
        origin: machine.origin().map_err(|error| other(&error))?,
        confirm_within_s: None,
        name: None,
    })
}

impl Drop for TunedStep<'_> {
    fn drop(&mut self) {
        let is_open = self.run.changes.iter().any(|change| change.state.is_open());
        if is_open && !self.was_undone {
            for sentence in self.undo() {
                self.display.warning(&sentence);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::progress::NoDisplay;
    use std::fs;

    const SETTING: &str = "proc/sys/kernel/numa_balancing";

    /// A machine with one setting, and a folder for journals.
    fn recorded() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("proc/sys/kernel/random/boot_id", "4711\n");
        write(SETTING, "1\n");
        folder
    }

    fn begin(root: &Path) -> Result<TunedStep<'static>, TunedStepError> {
        let machine = HostMachine::recorded(root);
        let first = new_run(&machine, &root.to_string_lossy()).unwrap();
        TunedStep::begin(
            SettingId::NumaBalance,
            Box::new(machine),
            &root.join("state"),
            first,
            &NoDisplay,
        )
    }

    #[test]
    fn a_step_is_in_force_until_it_is_finished() {
        let folder = recorded();
        let setting = || fs::read_to_string(folder.path().join(SETTING)).unwrap();
        let tuned = begin(folder.path()).unwrap();
        assert_eq!(setting().trim(), "0");
        let ended = tuned.finish();
        assert_eq!((ended.is_in_force, ended.left_open), (Some(true), vec![]));
        assert!(ended.evidence[0].value.contains("-> 0"), "{:?}", ended.evidence);
        assert_eq!(setting(), "1\n");
    }

    #[test]
    fn a_trial_that_fails_undoes_its_step_and_a_change_of_others_is_left() {
        let folder = recorded();
        let path = folder.path().join(SETTING);
        drop(begin(folder.path()).unwrap());
        assert_eq!(fs::read_to_string(&path).unwrap(), "1\n");
        let tuned = begin(folder.path()).unwrap();
        fs::write(&path, "7\n").unwrap();
        let ended = tuned.finish();
        assert_eq!(ended.is_in_force, Some(false));
        assert!(ended.left_open[0].contains("somebody else has changed it"));
        assert_eq!(fs::read_to_string(&path).unwrap(), "7\n");
        let error = begin(folder.path()).err().unwrap().to_string();
        assert!(error.contains("is unfinished; `nearmetal tune undo "), "{error}");
    }

    #[test]
    fn a_step_without_anything_to_do_is_not_available() {
        let folder = recorded();
        fs::write(folder.path().join(SETTING), "0\n").unwrap();
        let error = begin(folder.path()).err().unwrap().to_string();
        assert!(error.starts_with("numa.balance changes nothing here"), "{error}");
    }
}
