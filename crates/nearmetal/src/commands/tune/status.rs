//! `nearmetal tune status`: the runs and where each stands.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::Path;

use anyhow::Result;
use jiff::Timestamp;
use nm_report::units;
use nm_tune::machine::Machine;
use nm_tune::record::Decision;
use nm_tune::run::{Run, Status};
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
    /// Journals that cannot be read, as sentences.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    unreadable: Vec<String>,
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
    /// Changes of the run that nothing has undone.
    open_changes: usize,
    /// Those of them whose value is there now.
    in_force: usize,
    confirm_within_s: Option<u64>,
    decisions: &'a [Decision],
    notes: Vec<&'a str>,
}

impl Document for RunsDocument<'_> {
    const NAME: &'static str = "tune-runs";
}

pub fn run(args: &StatusArgs) -> Result<Exit> {
    let folder = session::existing(&args.state)?;
    let (runs, errors) = match &folder {
        Some(folder) => folder.readable_runs().map_err(session::journal_error)?,
        None => (vec![], vec![]),
    };
    let unreadable: Vec<String> = errors.iter().map(ToString::to_string).collect();
    let now: Vec<Now> = runs.iter().map(Now::of).collect();
    match args.format.format {
        Format::Text => output::text(&text(&runs, &now, &unreadable))?,
        Format::Json => {
            let runs = runs.iter().zip(&now).map(|(run, now)| document(run, now)).collect();
            output::json(&RunsDocument { runs, unreadable: unreadable.clone() })?;
        }
    }
    Ok(if unreadable.is_empty() { Exit::Pass } else { Exit::Usage })
}

/// What is left of a run on the machine, and what its user should know.
struct Now {
    in_force: usize,
    notes: Vec<String>,
}

impl Now {
    /// Reads the settings. Whatever the journal says, a restart has reset those of an earlier boot.
    fn of(run: &Run) -> Now {
        let (mut in_force, mut reset, mut changed) = (0, 0, 0);
        let root = Path::new(&run.begin.root);
        let machine = session::machine((run.begin.root != "/").then_some(root)).ok();
        let boot = machine.as_ref().and_then(|machine| machine.origin().ok());
        for change in run.changes.iter().filter(|change| change.state.is_open()) {
            let is_of_this_boot =
                boot.as_ref().is_some_and(|now| now.boot_id == change.intent.origin.boot_id);
            let value = machine.as_ref().and_then(|one| one.read(&change.intent.target).ok());
            let written = change.state.read_back().unwrap_or(&change.intent.new);
            match (is_of_this_boot, value) {
                (false, _) => reset += 1,
                (true, Some(value)) if value == *written => in_force += 1,
                (true, Some(value)) if value == change.intent.old => reset += 1,
                (true, Some(_)) => changed += 1,
                // It cannot be read: the journal is all that is known.
                (true, None) => in_force += 1,
            }
        }
        let mut notes = vec![];
        let plural = |n| units::plural(n, "change", "changes");
        if reset > 0 {
            notes.push(format!(
                "{} no longer in force: a restart of the machine, or somebody, has reset them",
                plural(reset)
            ));
        }
        if changed > 0 {
            notes.push(format!("{} have a value that somebody else has written", plural(changed)));
        }
        if let Some(seconds) = overdue_s(run) {
            notes.push(format!(
                "its time to be confirmed ended {seconds} s ago and nothing has undone it: the \
                 process that should have is gone; `nearmetal tune undo {}` does",
                run.begin.run
            ));
        }
        Now { in_force, notes }
    }
}

/// How long ago the run should have been undone, s; absent if it is not overdue. The process that
/// does so begins to count after the run began, and may wait for others.
fn overdue_s(run: &Run) -> Option<i64> {
    const GRACE_S: i64 = 10;
    let limit = i64::try_from(run.begin.confirm_within_s?).ok()?;
    let awaits = matches!(run.status(), Status::AwaitsConfirmation | Status::Interrupted);
    let started: Timestamp = run.begin.started.parse().ok()?;
    let seconds = Timestamp::now().as_second() - started.as_second() - limit;
    (awaits && seconds > GRACE_S).then_some(seconds)
}

fn text(runs: &[Run], now: &[Now], unreadable: &[String]) -> String {
    let mut text = String::new();
    if runs.is_empty() && unreadable.is_empty() {
        return "no runs\n".to_string();
    }
    for (run, now) in runs.iter().zip(now) {
        let (id, status) = (&run.begin.run, run.status().text());
        let steps = names(run).join(", ");
        let changes = units::plural(now.in_force, "change", "changes");
        let named = run.begin.name.as_ref().map(|name| format!(" [{name}]")).unwrap_or_default();
        let _ = writeln!(text, "{id}{named}  {status}: {changes} in force ({steps})");
        for decision in &run.decisions {
            let what = if decision.kept { "kept" } else { "not kept" };
            let _ = writeln!(text, "  {}: {what}: {}", decision.step, decision.reason);
        }
        for note in run.notes.iter().chain(&now.notes) {
            let _ = writeln!(text, "  {note}");
        }
    }
    for reason in unreadable {
        let _ = writeln!(text, "{reason}");
    }
    text
}

/// Changes that nothing has undone.
fn open(run: &Run) -> usize {
    run.changes.iter().filter(|change| change.state.is_open()).count()
}

fn names(run: &Run) -> Vec<&'static str> {
    let names: BTreeSet<&str> = run.changes.iter().map(|one| one.intent.step.name()).collect();
    names.into_iter().collect()
}

fn document<'a>(run: &'a Run, now: &'a Now) -> RunDocument<'a> {
    RunDocument {
        run: run.begin.run.to_string(),
        started: &run.begin.started,
        name: run.begin.name.as_ref().map(|name| name.as_str()),
        root: run.begin.root.clone(),
        status: run.status().text().to_string(),
        steps: names(run),
        changes: run.changes.len(),
        open_changes: open(run),
        in_force: now.in_force,
        confirm_within_s: run.begin.confirm_within_s,
        decisions: &run.decisions,
        notes: run.notes.iter().chain(&now.notes).map(String::as_str).collect(),
    }
}
