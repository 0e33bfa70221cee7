//! What a selection of steps means on this machine: current and new value of each setting, or why a
//! step cannot be made.

use serde::Serialize;

use crate::machine::{AccessError, Machine};
use nm_settings::catalogue::SETTINGS;
use nm_settings::setting::{Risk, Setting, SettingId};
use nm_settings::target::Target;
use nm_settings::value::Value;

pub use crate::expand::{CHANGES_MAX, Choice, WantedChange, expand};
pub use nm_settings::wanted::Wanted;

/// Which steps are meant.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Selection {
    /// Only these; all of the profile if empty.
    pub only: Vec<SettingId>,
    /// Security-relevant steps that are allowed.
    pub allow: Vec<SettingId>,
    /// CPUs and link of the application.
    pub choice: Choice,
}

/// Two steps were named that must not be in one run.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0} and {1} exclude each other: apply one, then the other in a run of its own")]
pub struct ConflictingSteps(SettingId, SettingId);

/// A setting as it is and as a step wants it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PlannedChange {
    /// The setting.
    pub target: Target,
    /// Its value now.
    pub current: Value,
    /// Its value after the step; the same if there is nothing to do.
    pub new: Value,
    /// How the new value follows from the current one.
    #[serde(skip)]
    pub wanted: Wanted,
}

/// What a step means here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Planned {
    /// It changes something.
    Changes(Vec<PlannedChange>),
    /// All its settings are as it wants them.
    NothingToDo(Vec<PlannedChange>),
    /// It cannot be made; why, as a clause.
    NotAvailable(String),
}

/// A step of a plan.
#[derive(Debug, Clone)]
pub struct PlannedStep {
    /// The step.
    pub step: &'static Setting,
    /// What it means here.
    pub planned: Planned,
}

/// A change with its step, for [`crate::apply()`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StepChange {
    /// The step.
    pub step: SettingId,
    /// What it wants.
    pub change: WantedChange,
}

/// The plan of a selection. Nothing is written.
///
/// # Errors
/// If steps were named that exclude each other.
pub fn plan(
    selection: &Selection,
    machine: &dyn Machine,
) -> Result<Vec<PlannedStep>, ConflictingSteps> {
    let mut steps: Vec<PlannedStep> = vec![];
    for step in SETTINGS.iter().filter(|step| is_selected(step.id, &selection.only)) {
        let in_the_way = steps.iter().find(|earlier| {
            matches!(earlier.planned, Planned::Changes(_))
                && (step.conflicts.contains(&earlier.step.id)
                    || earlier.step.conflicts.contains(&step.id))
        });
        let planned = match in_the_way.map(|earlier| earlier.step.id) {
            Some(earlier) if !selection.only.is_empty() => {
                return Err(ConflictingSteps(earlier, step.id));
            }
            Some(earlier) => {
                Planned::NotAvailable(format!("{earlier} of this plan excludes it; apply it later"))
            }
            None => planned(step, selection, machine),
        };
        steps.push(PlannedStep { step, planned });
    }
    Ok(steps)
}

fn is_selected(id: SettingId, only: &[SettingId]) -> bool {
    only.is_empty() || only.contains(&id)
}

fn planned(step: &Setting, selection: &Selection, machine: &dyn Machine) -> Planned {
    let wanted = match expand(step, &selection.choice, machine) {
        Ok(wanted) => wanted,
        Err(reason) => return Planned::NotAvailable(reason),
    };
    let mut changes = vec![];
    for WantedChange { target, wanted } in wanted {
        let current = match machine.read(&target) {
            Ok(current) => current,
            Err(error) => return Planned::NotAvailable(reason(&target, &error)),
        };
        let Some(new) = wanted.resolve(&current) else {
            return Planned::NotAvailable(format!(
                "{target} is {current}, which cannot be changed"
            ));
        };
        changes.push(PlannedChange { target, current, new, wanted });
    }
    let is_needed = changes.iter().any(|change| change.current != change.new);
    match (is_needed, step.risk, selection.allow.contains(&step.id)) {
        (false, _, _) => Planned::NothingToDo(changes),
        (true, Risk::Security, false) => {
            let id = step.id;
            Planned::NotAvailable(format!("it weakens the machine; allow it with --allow {id}"))
        }
        (true, ..) => Planned::Changes(changes),
    }
}

/// Why a setting cannot be read.
fn reason(target: &Target, error: &AccessError) -> String {
    match error {
        AccessError::NoDrivers | AccessError::OtherSysfs => error.to_string(),
        _ if error.is_absent() => format!("{target} does not exist here"),
        _ => error.to_string(),
    }
}

/// The changes of a plan that have something to do, in their order.
pub fn changes(steps: &[PlannedStep]) -> Vec<StepChange> {
    let mut all = vec![];
    for PlannedStep { step, planned } in steps {
        let Planned::Changes(changes) = planned else { continue };
        for PlannedChange { target, wanted, .. } in changes {
            let change = WantedChange { target: target.clone(), wanted: wanted.clone() };
            all.push(StepChange { step: step.id, change });
        }
    }
    all
}
