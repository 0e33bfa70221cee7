//! `apply --confirm-within` and `tune confirm`: a process of its own session undoes the run at its
//! deadline. It outlives the shell and the connection that the run may have cut. Where systemd
//! runs, it outlives the service or login whose control group is ended.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::thread::sleep;
use std::time::Duration;

use anyhow::Result;
use nm_sys::clock::Deadline;
use nm_sys::process::own_session;
use nm_tune::journal::{Folder, JournalError, Lock, Log};
use nm_tune::record::{Record, RunId};
use nm_tune::run::{Run, Status};
use nm_tune::undo::Choices;

use super::session;
use crate::cli::tune::{ConfirmArgs, DeadlineArgs, PlaceArgs};
use crate::exit::{Exit, Stop};
use crate::output;

/// What the watching process writes when its time runs.
const READY: &str = "ready";

/// How often it looks whether the run was confirmed or undone, and whether the journals are free.
const STEP: Duration = Duration::from_millis(200);

/// Exists where systemd is the machine's first process, by sd_booted(3).
const SYSTEMD: &str = "/run/systemd/system";

/// Starts the process that undoes run `id`, and waits until its time runs.
pub fn start_watch(id: &RunId, seconds: u64, place: &PlaceArgs) -> Result<()> {
    if Path::new(SYSTEMD).is_dir() {
        let scope = format!("--unit=nearmetal-undo-{id}");
        let in_scope = ["systemd-run", "--scope", "--quiet", "--collect", &scope, "--"];
        if watches(&in_scope, id, seconds, place)? {
            return Ok(());
        }
        output::message(&output::warning(
            "systemd-run makes no scope for the process that would undo the run: it ends, and the \
             run stays, if this service or login session is ended with all its processes",
        ));
    }
    match watches(&[], id, seconds, place)? {
        true => Ok(()),
        false => {
            Err(Stop::with(Exit::Environment, "cannot start the process that would undo the run"))
        }
    }
}

/// Starts it by the words of `by`, and returns whether its time runs.
fn watches(by: &[&str], id: &RunId, seconds: u64, place: &PlaceArgs) -> Result<bool> {
    let program = std::env::current_exe()?;
    let mut command = match by {
        [] => Command::new(program),
        [first, rest @ ..] => {
            let mut command = Command::new(first);
            command.args(rest).arg(program);
            command
        }
    };
    command.args(["tune", "undo-at-deadline", id.as_str(), &seconds.to_string(), "--state"]);
    // It works in the root folder, so that it keeps no other one busy.
    command.arg(place.state.canonicalize()?).current_dir("/");
    if place.root.root.is_some() {
        command.args(["--root", &session::root_text(place.root.root.as_deref())?]);
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    own_session(&mut command);
    let Ok(mut child) = command.spawn() else { return Ok(false) };
    let Some(output) = child.stdout.take() else { return Ok(false) };
    let mut line = String::new();
    BufReader::new(output).read_line(&mut line)?;
    Ok(line.trim() == READY)
}

/// `tune undo-at-deadline`: undoes a run at its deadline, unless it is confirmed or undone before.
pub fn undo_at_deadline(args: &DeadlineArgs) -> Result<Exit> {
    let deadline = Deadline::after(Duration::from_secs(args.seconds));
    let no_such_run = || Stop::usage("no such run");
    let folder = session::existing(&args.place.state)?.ok_or_else(no_such_run)?;
    let find = || session::find(&folder, Some(&args.run), |_| true);
    let is_settled = |run: &Run| run.is_confirmed || run.is_undo_begun;
    let first = find()?.ok_or_else(no_such_run)?;
    session::check_root(&first, args.place.root.root.as_deref())?;
    output::data(&format!("{READY}\n"))?;
    while !deadline.passed() {
        sleep(deadline.remaining().min(STEP));
        // A journal that cannot be read now is no reason to leave the machine as it is.
        if find().is_ok_and(|run| run.as_ref().is_some_and(is_settled)) {
            return Ok(Exit::Pass);
        }
    }
    let lock = wait_for_lock(&folder)?;
    // Only now can nobody confirm it any more.
    let Some(mut run) = find()?.filter(|run| !is_settled(run)) else { return Ok(Exit::Pass) };
    let mut machine = session::machine(args.place.root.root.as_deref())?;
    let mut log = folder.resume(&args.run, &lock).map_err(session::journal_error)?;
    let mut note =
        |text: String| log.append(&Record::Note { text }).map_err(session::journal_error);
    note(format!("not confirmed within {} s: undone", args.seconds))?;
    let mut log = folder.resume(&args.run, &lock).map_err(session::journal_error)?;
    let choices = Choices { goes_on: true, ..Choices::default() };
    let never = AtomicBool::new(false);
    let undone = nm_tune::undo(&mut machine, &mut log, &mut run, &choices, &never);
    let left = match undone {
        Ok(undone) => undone.left_open,
        Err(error) => vec![error.to_string()],
    };
    for text in &left {
        log.append(&Record::Note { text: text.clone() }).map_err(session::journal_error)?;
    }
    Ok(if left.is_empty() { Exit::Pass } else { Exit::Conflict })
}

/// The lock, as soon as the run itself, or whoever has it, has ended.
fn wait_for_lock(folder: &Folder) -> Result<Lock> {
    loop {
        match folder.lock() {
            Err(JournalError::Busy(_)) => sleep(STEP),
            result => return result.map_err(session::journal_error),
        }
    }
}

/// `tune confirm`.
pub fn run(args: &ConfirmArgs) -> Result<Exit> {
    let awaits = |run: &Run| run.status() == Status::AwaitsConfirmation;
    let place = session::open_existing(&args.place)?;
    let run = match &place {
        Some((folder, _)) => session::find(folder, args.run.as_ref(), awaits)?,
        None => session::none(args.run.as_ref())?,
    };
    let (Some((folder, lock)), Some(run)) = (place, run) else {
        return Err(Stop::with(Exit::Conflict, "no run awaits confirmation"));
    };
    let id = &run.begin.run;
    if !awaits(&run) {
        let status = run.status().text();
        let message = format!("run {id} does not await confirmation: it is {status}");
        return Err(Stop::with(Exit::Conflict, message));
    }
    let mut log = folder.resume(id, &lock).map_err(session::journal_error)?;
    log.append(&Record::Confirmed).map_err(session::journal_error)?;
    let undo = args.place.command("undo", id);
    output::message(&format!("run {id} is kept; undo it with: {undo}"));
    Ok(Exit::Pass)
}
