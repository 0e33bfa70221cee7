//! `nearmetal tune plan`: what each step would change here, and why.

use std::fmt::Write;

use anyhow::Result;
use nm_model::finding::UndoClass;
use nm_settings::setting::{Risk, Scope, SettingId};
use nm_settings::target::Target;
use nm_tune::plan::{Planned, PlannedChange, PlannedStep};
use schemars::JsonSchema;
use serde::Serialize;

use super::session;
use crate::cli::format::Format;
use crate::cli::tune::PlanArgs;
use crate::document::Document;
use crate::exit::Exit;
use crate::output;

/// What each step would change.
#[derive(Debug, Serialize, JsonSchema)]
pub struct PlanDocument {
    steps: Vec<StepDocument>,
}

/// A step.
#[derive(Debug, Serialize, JsonSchema)]
struct StepDocument {
    #[schemars(with = "String")]
    step: SettingId,
    /// How far it reaches: `namespace` or `machine`.
    #[schemars(with = "String")]
    scope: Scope,
    #[schemars(with = "String")]
    risk: Risk,
    /// `live`, or `boot` if only a reboot undoes it.
    #[schemars(with = "String")]
    undo: UndoClass,
    why: &'static str,
    /// Who says so.
    source: String,
    /// Where sources disagree.
    disputed: Option<&'static str>,
    /// Steps that cannot be in force with it.
    #[schemars(with = "Vec<String>")]
    conflicts: Vec<SettingId>,
    /// `changes`, `nothing_to_do` or `not_available`.
    status: &'static str,
    /// Why it is not available.
    reason: Option<String>,
    changes: Vec<ChangeDocument>,
}

/// A change of one setting.
#[derive(Debug, Serialize, JsonSchema)]
struct ChangeDocument {
    /// The setting as an object with a `kind`, as the journal has it.
    #[schemars(with = "serde_json::Map<String, serde_json::Value>")]
    target: Target,
    /// The setting as text.
    setting: String,
    /// Its value now.
    current: String,
    /// The value that it would get.
    new: String,
}

impl Document for PlanDocument {
    const NAME: &'static str = "tune-plan";
}

pub fn run(args: &PlanArgs) -> Result<Exit> {
    let machine = session::machine(args.root.root.as_deref())?;
    let steps = session::steps(&session::selection(&args.selection), &machine)?;
    match args.format.format {
        Format::Text => output::data(&text(&steps))?,
        Format::Json => output::json(&PlanDocument { steps: steps.iter().map(step).collect() })?,
    }
    Ok(Exit::Pass)
}

fn text(steps: &[PlannedStep]) -> String {
    let mut text = String::new();
    let mut add = |line: String| {
        let _ = writeln!(text, "{line}");
    };
    let of = |wanted: fn(&Planned) -> bool| steps.iter().filter(move |step| wanted(&step.planned));
    for PlannedStep { step, planned } in of(|planned| matches!(planned, Planned::Changes(_))) {
        let Planned::Changes(changes) = planned else { continue };
        add(format!("{}  ({}, {})", step.id, scope(step.scope), risk(step.risk)));
        for PlannedChange { target, current, new, .. } in changes {
            match current == new {
                true => add(format!("  {target}: {current}, as wanted")),
                false => add(format!("  {target}: {current} -> {new}")),
            }
        }
        add(format!("  why: {} [{}]", step.why, step.source_titles()));
        if let Some(disputed) = step.disputed {
            add(format!("  sources disagree: {disputed}"));
        }
        add(String::new());
    }
    let settled: Vec<&str> = of(|planned| matches!(planned, Planned::NothingToDo(_)))
        .map(|step| step.step.id.name())
        .collect();
    if !settled.is_empty() {
        add(format!("nothing to do: {}\n", settled.join(", ")));
    }
    for PlannedStep { step, planned } in steps {
        if let Planned::NotAvailable(reason) = planned {
            add(format!("{:<20} not available: {reason}", step.id));
        }
    }
    text
}

/// How far a step reaches, for people.
fn scope(scope: Scope) -> &'static str {
    match scope {
        Scope::Namespace => "this network namespace",
        Scope::Machine => "the machine",
    }
}

fn risk(risk: Risk) -> &'static str {
    match risk {
        Risk::None => "no risk known",
        Risk::BriefOutage => "the link stops for a moment",
        Risk::Security => "WEAKENS THE MACHINE",
    }
}

fn step(planned: &PlannedStep) -> StepDocument {
    let step = planned.step;
    let (status, changes, reason) = match &planned.planned {
        Planned::Changes(changes) => ("changes", changes.as_slice(), None),
        Planned::NothingToDo(changes) => ("nothing_to_do", changes.as_slice(), None),
        Planned::NotAvailable(reason) => ("not_available", [].as_slice(), Some(reason)),
    };
    let change = |change: &PlannedChange| ChangeDocument {
        target: change.target.clone(),
        setting: change.target.to_string(),
        current: change.current.to_string(),
        new: change.new.to_string(),
    };
    StepDocument {
        step: step.id,
        scope: step.scope,
        risk: step.risk,
        undo: step.undo(),
        why: step.why,
        source: step.source_titles(),
        disputed: step.disputed,
        conflicts: step.conflicts.to_vec(),
        status,
        reason: reason.map(ToString::to_string),
        changes: changes.iter().map(change).collect(),
    }
}
