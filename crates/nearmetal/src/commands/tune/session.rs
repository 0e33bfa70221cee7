//! What the commands of `tune` have in common: the machine, the journals, and their errors.

use std::path::Path;
use std::sync::atomic::AtomicBool;

use anyhow::Result;
use jiff::Timestamp;
use nm_settings::SettingId;
use nm_tune::apply::ApplyError;
use nm_tune::journal::{FOLDER, Folder, JournalError, Lock};
use nm_tune::machine::{HostMachine, Machine, Origin};
use nm_tune::plan::{Choice, Planned, PlannedStep, Selection, plan};
use nm_tune::record::{Begin, FORMAT, RunId};
use nm_tune::run::{Change, Run, Status};
use nm_tune::undo::{Choices, UndoError};

use crate::cli::tune::{PlaceArgs, SelectionArgs};
use crate::commands::cpus::not_online;
use crate::exit::{Exit, Stop};
use crate::output;

/// This machine, or the recorded tree of `--root`.
pub fn machine(root: Option<&Path>) -> Result<HostMachine> {
    match root {
        None => Ok(HostMachine::live()?),
        Some(root) if root.is_dir() => Ok(HostMachine::recorded(root)),
        Some(root) => Err(Stop::usage(format!("--root: there is no folder {}", root.display()))),
    }
}

/// The path of a root as journals have it.
pub fn root_text(root: Option<&Path>) -> Result<String> {
    let root = root.unwrap_or(Path::new("/"));
    let full = root.canonicalize();
    let full = full.map_err(|error| Stop::usage(format!("--root: {}: {error}", root.display())))?;
    Ok(full.to_string_lossy().into_owned())
}

/// The steps that the user chose.
pub fn selection(args: &SelectionArgs) -> Selection {
    Selection {
        only: args.only.clone(),
        allow: args.allow.clone(),
        choice: Choice { cpus: args.cpus.list(), link: args.link.clone() },
    }
}

/// The plan of these steps, for CPUs and a link that there are.
pub fn steps(selection: &Selection, machine: &dyn Machine) -> Result<Vec<PlannedStep>> {
    let online = machine.files().list("/sys/devices/system/cpu/online");
    not_online(&selection.choice.cpus, online.as_deref())?;
    let links = machine.links();
    if let Some(link) = selection.choice.link.as_ref().filter(|link| !links.contains(link)) {
        let known: Vec<&str> = links.iter().map(|link| link.as_str()).collect();
        let known = known.join(", ");
        return Err(Stop::usage(format!("--link: there is no network link `{link}`, but {known}")));
    }
    plan(selection, machine).map_err(|error| Stop::usage(error.to_string()))
}

/// Refuses steps that the user named and that cannot be made here: without them the others may be
/// of no use. Without names, says how many of the profile's are left out.
pub fn check_available(selection: &Selection, steps: &[PlannedStep]) -> Result<()> {
    let missing: Vec<(SettingId, &String)> = steps
        .iter()
        .filter_map(|PlannedStep { step, planned }| match planned {
            Planned::NotAvailable(reason) => Some((step.id, reason)),
            Planned::Changes(_) | Planned::NothingToDo(_) => None,
        })
        .collect();
    match missing.first() {
        None => Ok(()),
        Some((step, reason)) if !selection.only.is_empty() => {
            let message = format!("--only {step}: not available: {reason}; nothing was changed");
            Err(Stop::with(Exit::Environment, message))
        }
        Some(_) => {
            output::message(&format!(
                "{} of {} steps are not available here and left out; `nearmetal tune plan` says \
                 why",
                missing.len(),
                steps.len()
            ));
            Ok(())
        }
    }
}

/// The folder of journals and the right to append to them.
pub fn open(args: &PlaceArgs) -> Result<(Folder, Lock)> {
    let folder = Folder::open(&args.state).map_err(journal_error)?;
    let lock = folder.lock().map_err(journal_error)?;
    Ok((folder, lock))
}

/// The folder of journals of commands that begin no run. Absent only if it is the usual one, in
/// which no run was begun yet: a folder that the user names is meant to have runs.
pub fn existing(state: &Path) -> Result<Option<Folder>> {
    let folder = Folder::existing(state).map_err(journal_error)?;
    check_named(state, folder.is_some(), FOLDER)?;
    Ok(folder)
}

/// Refuses a folder of journals that is not there, unless it is the usual one.
pub fn check_named(state: &Path, is_there: bool, usual: &str) -> Result<()> {
    match is_there || state == Path::new(usual) {
        true => Ok(()),
        false => {
            let state = state.display();
            let message = format!("--state: there is no folder {state}; name the one of the run");
            Err(Stop::usage(message))
        }
    }
}

/// The same with the right to append to its journals.
pub fn open_existing(args: &PlaceArgs) -> Result<Option<(Folder, Lock)>> {
    let Some(folder) = existing(&args.state)? else { return Ok(None) };
    let lock = folder.lock().map_err(journal_error)?;
    Ok(Some((folder, lock)))
}

/// The first record of a new run.
pub fn begin(args: &PlaceArgs, machine: &dyn Machine, confirm: Option<u64>) -> Result<Begin> {
    let started = Timestamp::now();
    let random = u32::from_ne_bytes(nm_sys::random::bytes()?);
    // Ids are sorted by their text, so the time has parts of a second.
    let id = format!("{}-{random:08x}", started.strftime("%Y%m%dT%H%M%S-%6f"));
    Ok(Begin {
        format: FORMAT,
        run: id.parse::<RunId>().map_err(|error| Stop::usage(error.to_string()))?,
        started: started.strftime("%Y-%m-%dT%H:%M:%SZ").to_string(),
        version: env!("CARGO_PKG_VERSION").to_string(),
        root: root_text(args.root.root.as_deref())?,
        origin: origin(machine)?,
        confirm_within_s: confirm,
        name: None,
    })
}

fn origin(machine: &dyn Machine) -> Result<Origin> {
    machine.origin().map_err(|error| Stop::with(Exit::Environment, error.to_string()))
}

/// Refuses to begin while another run is unfinished. Those that a restart of the machine has ended
/// are closed.
pub fn check_finished(
    folder: &Folder,
    lock: &Lock,
    machine: &mut HostMachine,
    args: &PlaceArgs,
) -> Result<()> {
    let (boot_id, root) = (origin(machine)?.boot_id, root_text(args.root.root.as_deref())?);
    for mut run in folder.runs().map_err(journal_error)? {
        let is_earlier = |change: &Change| change.intent.origin.boot_id != boot_id;
        let is_here = run.begin.root == root;
        if is_here && run.status() != Status::Closed && run.changes.iter().all(is_earlier) {
            let mut log = folder.resume(&run.begin.run, lock).map_err(journal_error)?;
            let never = AtomicBool::new(false);
            let choices = Choices::default();
            nm_tune::undo(machine, &mut log, &mut run, &choices, &never).map_err(undo_error)?;
        }
        let (id, status) = (&run.begin.run, run.status());
        if !status.is_unfinished() {
            continue;
        }
        let confirm = match status {
            Status::AwaitsConfirmation => {
                format!("keep it with `{}`, or ", args.command("confirm", id))
            }
            _ => String::new(),
        };
        return Err(Stop::with(
            Exit::Conflict,
            format!(
                "run {id} is unfinished ({}): {confirm}put back what was there with `{}`",
                status.text(),
                args.command("undo", id)
            ),
        ));
    }
    Ok(())
}

/// The run where there are no runs: an error if the user names one.
pub fn none(id: Option<&RunId>) -> Result<Option<Run>> {
    match id {
        Some(id) => Err(journal_error(JournalError::Unknown(id.clone()))),
        None => Ok(None),
    }
}

/// A run by its id, or the latest one that `is_meant` accepts.
pub fn find(
    folder: &Folder,
    id: Option<&RunId>,
    is_meant: impl Fn(&Run) -> bool,
) -> Result<Option<Run>> {
    match id {
        Some(id) => {
            let empty = || Stop::usage(format!("run {id} ended before it changed anything"));
            Ok(Some(folder.run(id).map_err(journal_error)?.ok_or_else(empty)?))
        }
        None => Ok(folder.runs().map_err(journal_error)?.into_iter().rev().find(is_meant)),
    }
}

/// Refuses to treat a run of a recorded tree as one of this machine, and the other way round.
pub fn check_root(run: &Run, root: Option<&Path>) -> Result<()> {
    let here = root_text(root)?;
    match run.begin.root == here {
        true => Ok(()),
        false => Err(Stop::usage(format!(
            "run {} was made with --root {}, and this is {here}; give the same --root",
            run.begin.run, run.begin.root
        ))),
    }
}

/// An error of a journal with its exit code.
pub fn journal_error(error: JournalError) -> anyhow::Error {
    let (exit, hint) = match &error {
        JournalError::Busy(_) => (Exit::Conflict, ""),
        JournalError::System { source, .. }
            if source.kind() == std::io::ErrorKind::PermissionDenied =>
        {
            (Exit::Environment, "; run as root, or name another folder with --state")
        }
        JournalError::System { .. } => (Exit::Environment, ""),
        JournalError::NotPrivate { .. }
        | JournalError::Unknown(_)
        | JournalError::Damaged { .. }
        | JournalError::Foreign(_)
        | JournalError::TooLarge { .. } => (Exit::Usage, ""),
    };
    Stop::with(exit, format!("{error}{hint}"))
}

/// An error of applying, after which the run can be undone.
pub fn apply_error(error: ApplyError, undo: &str) -> anyhow::Error {
    let text = format!("{error}; put back what was there with `{undo}`");
    Stop::with(Exit::Environment, text)
}

/// An error of undoing.
pub fn undo_error(error: UndoError) -> anyhow::Error {
    let exit = if error.is_conflict() { Exit::Conflict } else { Exit::Environment };
    match error {
        UndoError::Journal(error) => journal_error(error),
        other => Stop::with(exit, other.to_string()),
    }
}
