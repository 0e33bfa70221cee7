//! `nearmetal tune apply`: journal, write, read back.

use anyhow::Result;
use nm_tune::apply::{Applied, Outcome};
use nm_tune::plan::changes;
use nm_tune::record::Begin;
use nm_tune::run::Run;

use super::{confirm, session};
use crate::campaign::interrupt;
use crate::cli::tune::ApplyArgs;
use crate::exit::{Exit, Stop};
use crate::output;

pub fn run(args: &ApplyArgs) -> Result<Exit> {
    let mut machine = session::machine(args.place.root.root.as_deref())?;
    let (folder, lock) = session::open(&args.place)?;
    session::check_finished(&folder, &lock, &mut machine, &args.place)?;
    let selection = session::selection(&args.selection);
    let steps = session::steps(&selection, &machine)?;
    session::check_available(&selection, &steps)?;
    let changes = changes(&steps);
    if changes.is_empty() {
        let message = "nothing to change; `nearmetal tune plan` says why for each step";
        output::message(message);
        return Ok(Exit::Pass);
    }
    let interrupted = interrupt::flag()?;
    let begin = Begin {
        name: args.run_name.clone(),
        ..session::begin(&args.place, &machine, args.confirm_within)?
    };
    let mut log = folder.begin(&begin, &lock).map_err(session::journal_error)?;
    let id = begin.run.clone();
    if let Some(seconds) = args.confirm_within {
        confirm::start_watch(&id, seconds, &args.place)?;
    }
    let mut run = Run::begun(begin);
    let undo = args.place.command("undo", &id);
    let applied = nm_tune::apply(&mut machine, &mut log, &mut run, &changes, &interrupted)
        .map_err(|error| session::apply_error(error, &undo))?;
    for line in lines(&applied) {
        output::text(&(line + "\n"))?;
    }
    output::message(&format!("undo it with: {undo}"));
    if let Some(seconds) = args.confirm_within {
        output::message(&format!(
            "it is undone in {seconds} s, unless you keep it with: {}",
            args.place.command("confirm", &id)
        ));
    }
    match exit(&applied) {
        Exit::Interrupted => {
            let count = applied.outcomes.len();
            let message = format!("interrupted after {count} of {} changes", changes.len());
            Err(Stop::with(Exit::Interrupted, message))
        }
        exit => Ok(exit),
    }
}

fn lines(applied: &Applied) -> Vec<String> {
    let line = |(step, target, outcome): &(_, _, Outcome)| {
        let what = match outcome {
            Outcome::Applied { old, new } => format!("{old} -> {new}"),
            Outcome::Rounded { old, wanted, read } => {
                format!("{old} -> {read}, rounded from {wanted}")
            }
            Outcome::Unchanged => "as wanted".to_string(),
            Outcome::Refused(reason) => format!("not changed: {reason}"),
            Outcome::ChangedSince { applied, current } => {
                format!("{current}, although {applied} was written: something else manages it")
            }
        };
        format!("{step:<20} {target}: {what}")
    };
    applied.outcomes.iter().map(line).collect()
}

fn exit(applied: &Applied) -> Exit {
    let any =
        |wanted: fn(&Outcome) -> bool| applied.outcomes.iter().any(|(.., outcome)| wanted(outcome));
    match () {
        () if applied.is_interrupted => Exit::Interrupted,
        () if any(|outcome| matches!(outcome, Outcome::ChangedSince { .. })) => Exit::Conflict,
        () if any(|outcome| matches!(outcome, Outcome::Refused(_))) => Exit::Environment,
        () => Exit::Pass,
    }
}
