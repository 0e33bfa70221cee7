//! `nearmetal lab undo`: puts back what a killed run has changed.

use anyhow::Result;
use nm_tune::undo::{Choices, Outcome, UndoError, Undone};
use nm_vm::refusal::Refusal;
use nm_vm::sriov::{self, Host};

use crate::campaign::interrupt;
use crate::cli::lab::undo::LabUndoArgs;
use crate::commands::tune::check_named;
use crate::exit::{Exit, Stop};
use crate::output;

pub fn run(args: &LabUndoArgs) -> Result<Exit> {
    if let Some(step) = args.keep_theirs.iter().find(|step| args.force.contains(step)) {
        return Err(Stop::usage(format!("{step} is in --keep-theirs and in --force; choose one")));
    }
    if !args.root.is_dir() {
        return Err(Stop::usage(format!("--root: there is no folder {}", args.root.display())));
    }
    check_named(&args.state, args.state.exists(), sriov::JOURNAL_FOLDER)?;
    let mut host = Host::open(&args.root).map_err(stop)?;
    let interrupted = interrupt::flag()?;
    let choices = Choices {
        keep_theirs: args.keep_theirs.clone(),
        force: args.force.clone(),
        goes_on: false,
    };
    let runs = sriov::undo(&mut host, &args.state, &choices, &interrupted).map_err(stop)?;
    if runs.is_empty() {
        output::message("nothing to undo: no run is open");
    }
    for (id, undone) in runs {
        for line in lines(&undone) {
            output::text(&(line + "\n"))?;
        }
        if undone.is_interrupted {
            let message = "interrupted; `nearmetal lab undo` goes on";
            return Err(Stop::with(Exit::Interrupted, message));
        }
        output::message(&format!("run {id} is undone"));
    }
    Ok(Exit::Pass)
}

/// An error with its exit code: a conflict is one of somebody else's doing.
pub fn stop(refusal: Refusal) -> anyhow::Error {
    let exit = match &refusal {
        refusal if refusal.is_conflict() => Exit::Conflict,
        refusal if refusal.is_usage() => Exit::Usage,
        _ => Exit::Environment,
    };
    match refusal {
        // These come from the journal of another command.
        Refusal::Undo(UndoError::Journal(error)) | Refusal::Journal(error) => {
            Stop::with(exit, error.to_string())
        }
        other => Stop::with(exit, other.to_string()),
    }
}

fn lines(undone: &Undone) -> Vec<String> {
    let line = |(step, target, outcome): &(_, _, Outcome)| {
        let what = match outcome {
            Outcome::Restored(value) if value.to_string().is_empty() => "no driver".to_string(),
            Outcome::Restored(value) => format!("restored to {value}"),
            Outcome::AlreadySo(value) => format!("as before the run: {value}"),
            Outcome::Gone => "gone with a restart or its device".to_string(),
            Outcome::KeptTheirs => "left as it is".to_string(),
        };
        format!("{step:<14} {target}: {what}")
    };
    undone.outcomes.iter().map(line).collect()
}
