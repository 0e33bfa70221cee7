//! `nearmetal tune status`: the runs and where each stands.

use std::collections::BTreeSet;
use std::fmt::Write;

use anyhow::Result;
use nm_report::units;
use nm_tune::record::Decision;
use nm_tune::run::Run;
use schemars::JsonSchema;
use serde::Serialize;

use super::session;
use crate::cli::format::Format;
use crate::cli::tune::StatusArgs;
use crate::document::Document;
use crate::exit::Exit;
use crate::output;

/// The runs.
#[derive(Debug, Serialize, JsonSchema)]
pub struct RunsDocument<'a> {
    runs: Vec<RunDocument<'a>>,
}

/// A run of `tune apply` or `tune ab`.
#[derive(Debug, Serialize, JsonSchema)]
struct RunDocument<'a> {
    run: String,
    /// Start, RFC 3339 in UTC.
    started: &'a str,
    /// The name that its user gave it.
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
    /// The folder below which files were changed: `/`, or a recorded tree.
    root: String,
    /// Where it stands, in words.
    status: String,
    steps: Vec<&'static str>,
    /// All changes, also those that were undone.
    changes: usize,
    /// Changes that are in force.
    open_changes: usize,
    confirm_within_s: Option<u64>,
    decisions: &'a [Decision],
    notes: &'a [String],
}

impl Document for RunsDocument<'_> {
    const NAME: &'static str = "tune-runs";
}

pub fn run(args: &StatusArgs) -> Result<Exit> {
    let folder = session::existing(&args.state)?;
    let runs = match &folder {
        Some(folder) => folder.runs().map_err(session::journal_error)?,
        None => vec![],
    };
    match args.format.format {
        Format::Text => output::text(&text(&runs))?,
        Format::Json => output::json(&RunsDocument { runs: runs.iter().map(document).collect() })?,
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
        let named = run.begin.name.as_ref().map(|name| format!(" [{name}]")).unwrap_or_default();
        let _ = writeln!(text, "{id}{named}  {status}: {changes} ({steps})");
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

fn document(run: &Run) -> RunDocument<'_> {
    RunDocument {
        run: run.begin.run.to_string(),
        started: &run.begin.started,
        name: run.begin.name.as_ref().map(|name| name.as_str()),
        root: run.begin.root.clone(),
        status: run.status().text().to_string(),
        steps: names(run),
        changes: run.changes.len(),
        open_changes: open(run),
        confirm_within_s: run.begin.confirm_within_s,
        decisions: &run.decisions,
        notes: &run.notes,
    }
}
