//! `nearmetal tune undo`: puts back what was there before a run.

use anyhow::Result;
use nm_tune::run::{Run, Status};
use nm_tune::undo::{Choices, Outcome, Undone};

use super::session;
use crate::campaign::interrupt;
use crate::cli::tune::UndoArgs;
use crate::exit::{Exit, Stop};
use crate::output;

pub fn run(args: &UndoArgs) -> Result<Exit> {
    if let Some(step) = args.keep_theirs.iter().find(|step| args.force.contains(step)) {
        return Err(Stop::usage(format!("{step} is in --keep-theirs and in --force; choose one")));
    }
    let is_named = |run: &Run| args.run_name.is_none() || run.begin.name == args.run_name;
    let is_open = |run: &Run| run.status() != Status::Closed && is_named(run);
    let place = session::open_existing(&args.place)?;
    let run = match &place {
        Some((folder, _)) => session::find(folder, args.run.as_ref(), is_open)?,
        None => session::none(args.run.as_ref())?,
    };
    let (Some((folder, lock)), Some(mut run)) = (place, run) else {
        let named = args.run_name.as_ref().map(|name| format!(" with the name {name}"));
        output::message(&format!("nothing to undo: no run{} is open", named.unwrap_or_default()));
        return Ok(Exit::Pass);
    };
    let root = args.place.root.root.as_deref();
    session::check_root(&run, root)?;
    let id = run.begin.run.clone();
    if run.status() == Status::Closed {
        output::message(&format!("nothing to undo: run {id} is closed"));
        return Ok(Exit::Pass);
    }
    let mut machine = session::machine(root)?;
    let interrupted = interrupt::flag()?;
    let mut log = folder.resume(&id, &lock).map_err(session::journal_error)?;
    let choices = Choices {
        keep_theirs: args.keep_theirs.clone(),
        force: args.force.clone(),
        goes_on: false,
    };
    let undone = nm_tune::undo(&mut machine, &mut log, &mut run, &choices, &interrupted)
        .map_err(session::undo_error)?;
    for line in lines(&undone) {
        output::text(&(line + "\n"))?;
    }
    match undone.is_interrupted {
        true => {
            let message = format!("interrupted; `{}` goes on", args.place.command("undo", &id));
            Err(Stop::with(Exit::Interrupted, message))
        }
        false => {
            output::message(&format!("run {id} is undone"));
            Ok(Exit::Pass)
        }
    }
}

fn lines(undone: &Undone) -> Vec<String> {
    let line = |(step, target, outcome): &(_, _, Outcome)| {
        let what = match outcome {
            Outcome::Restored(value) => format!("restored to {value}"),
            Outcome::AlreadySo(value) => format!("{value}, as before the run"),
            Outcome::Gone => "reset by a restart of the machine".to_string(),
            Outcome::KeptTheirs => "left as it is".to_string(),
        };
        format!("{step:<20} {target}: {what}")
    };
    undone.outcomes.iter().map(line).collect()
}
