//! `nearmetal tune plan`: what each step would change here, and why.

use std::fmt::Write;

use anyhow::Result;
use nm_tune::plan::{Planned, PlannedChange, PlannedStep};
use nm_tune::step::{Risk, Scope, UndoClass};
use serde_json::{Value, json};

use super::session;
use crate::cli::format::Format;
use crate::cli::tune::PlanArgs;
use crate::exit::Exit;
use crate::output;

pub fn run(args: &PlanArgs) -> Result<Exit> {
    let machine = session::machine(args.root.root.as_deref())?;
    let steps = session::steps(&session::selection(&args.selection), &machine)?;
    match args.format.format {
        Format::Text => output::data(&text(&steps))?,
        Format::Json => output::json(&steps.iter().map(json).collect::<Vec<_>>())?,
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
        add(format!("  why: {} [{}]", step.why, step.source));
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

fn json(planned: &PlannedStep) -> Value {
    let step = planned.step;
    let (status, changes, reason) = match &planned.planned {
        Planned::Changes(changes) => ("changes", changes.as_slice(), None),
        Planned::NothingToDo(changes) => ("nothing_to_do", changes.as_slice(), None),
        Planned::NotAvailable(reason) => ("not_available", [].as_slice(), Some(reason)),
    };
    let change = |change: &PlannedChange| {
        json!({
            "target": change.target, "setting": change.target.to_string(),
            "current": change.current.to_string(), "new": change.new.to_string(),
        })
    };
    let undo = match step.undo() {
        UndoClass::Live => "live",
        UndoClass::Boot => "boot",
    };
    json!({
        "step": step.id, "scope": step.scope, "risk": step.risk, "undo": undo,
        "why": step.why, "source": step.source, "disputed": step.disputed,
        "conflicts": step.conflicts, "status": status, "reason": reason,
        "changes": changes.iter().map(change).collect::<Vec<_>>(),
    })
}
