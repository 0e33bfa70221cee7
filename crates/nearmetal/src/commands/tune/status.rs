//! `nearmetal tune status`: the runs and where each stands.

use std::collections::BTreeSet;
use std::fmt::Write;

use anyhow::Result;
use nm_report::units;
use nm_tune::run::Run;
use serde_json::{Value, json};

use super::session;
use crate::cli::format::Format;
use crate::cli::tune::StatusArgs;
use crate::exit::Exit;
use crate::output;

pub fn run(args: &StatusArgs) -> Result<Exit> {
    let folder = session::existing(&args.state)?;
    let runs = match &folder {
        Some(folder) => folder.runs().map_err(session::journal_error)?,
        None => vec![],
    };
    match args.format.format {
        Format::Text => output::data(&text(&runs))?,
        Format::Json => output::json(&runs.iter().map(json).collect::<Vec<_>>())?,
    }
    Ok(Exit::Pass)
}

fn text(runs: &[Run]) -> String {
    let mut text = String::new();
    if runs.is_empty() {
        return "no runs\n".to_string();
    }
    for run in runs {
        let (id, status) = (&run.begin.run, run.status().text());
        let steps = names(run).join(", ");
        let changes = units::plural(open(run), "change", "changes");
        let _ = writeln!(text, "{id}  {status}: {changes} ({steps})");
        for decision in &run.decisions {
            let what = if decision.kept { "kept" } else { "not kept" };
            let _ = writeln!(text, "  {}: {what}: {}", decision.step, decision.reason);
        }
        for note in &run.notes {
            let _ = writeln!(text, "  {note}");
        }
    }
    text
}

/// Changes that are in force.
fn open(run: &Run) -> usize {
    run.changes.iter().filter(|change| change.state.is_open()).count()
}

fn names(run: &Run) -> Vec<&'static str> {
    let names: BTreeSet<&str> = run.changes.iter().map(|one| one.intent.step.name()).collect();
    names.into_iter().collect()
}

fn json(run: &Run) -> Value {
    json!({
        "run": run.begin.run, "started": run.begin.started, "root": run.begin.root,
        "status": run.status().text(), "steps": names(run),
        "changes": run.changes.len(), "open_changes": open(run),
        "confirm_within_s": run.begin.confirm_within_s,
        "decisions": run.decisions, "notes": run.notes,
    })
}
