//! `nearmetal exchange backup`, `restore` and `recover`: copies of a running network, and networks
//! that begin again from them.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::Result;
use jiff::Timestamp;
use nm_backup::{BackupError, Description, Restored, RestoredGroup, Survivor, To};
use nm_exchange::network::Network;

use crate::cli::backup::{BackupArgs, BackupCommand, RecoverArgs, RestoreArgs};
use crate::exit::{Exit, Stop};
use crate::output;

/// Makes a copy, or checks one.
pub fn run(args: &BackupArgs) -> Result<Exit> {
    match (&args.command, &args.network, &args.out) {
        (Some(BackupCommand::Check(check)), ..) => {
            let found = nm_backup::check(&check.folder).map_err(stop)?;
            output::text(&described("can be restored", &check.folder, &found))?;
        }
        (None, Some(file), Some(out)) => {
            let (network, data) = network_on_disk(file)?;
            let made = nm_backup::backup(&network, &data, out).map_err(stop)?;
            output::text(&described("was written and checked", out, &made))?;
        }
        _ => return Err(Stop::usage("give --network and --out")),
    }
    Ok(Exit::Pass)
}

/// Makes data folders from a copy.
pub fn restore(args: &RestoreArgs) -> Result<Exit> {
    let at = args.at.unwrap_or(To::End);
    let restored = nm_backup::restore(&args.folder, at, &args.data).map_err(stop)?;
    let mut text = begun(&args.data, &restored);
    text += "whatever was executed behind the copy is lost as well\n";
    output::text(&(text + &next(&args.data)))?;
    Ok(Exit::Pass)
}

/// Makes data folders from the replicas that are left, if the loss is accepted.
pub fn recover(args: &RecoverArgs) -> Result<Exit> {
    let (network, data) = network_on_disk(&args.network)?;
    let survivors = nm_backup::survivors(&network, &data).map_err(stop)?;
    let statement = stated(&survivors);
    if !args.accept_loss {
        return Err(Stop::usage(format!(
            "{statement}nothing was changed: end all nodes of the network, then repeat this with \
             --accept-loss"
        )));
    }
    output::message(statement.trim_end());
    let restored = nm_backup::recover(&network, survivors, &args.data).map_err(stop)?;
    output::text(&(begun(&args.data, &restored) + &next(&args.data)))?;
    Ok(Exit::Pass)
}

/// A network's file, and the folder of its journals.
fn network_on_disk(file: &Path) -> Result<(Network, PathBuf)> {
    let network = Network::read(file).map_err(|error| Stop::usage(error.to_string()))?;
    match network.data.clone() {
        Some(data) => Ok((network, data)),
        None => Err(stop(BackupError::NotOnDisk(network.durability))),
    }
}

fn stop(error: BackupError) -> anyhow::Error {
    let exit = match &error {
        BackupError::File { what: "written", .. } => Exit::Environment,
        BackupError::Exists(_) => Exit::Conflict,
        _ => Exit::Usage,
    };
    Stop::with(exit, error.to_string())
}

fn time(time_ns: u64) -> String {
    let time = Timestamp::from_nanosecond(i128::from(time_ns)).ok().filter(|_| time_ns > 0);
    time.map_or("no time".to_string(), |time| time.strftime("%Y-%m-%dT%H:%M:%S%.3fZ").to_string())
}

fn described(what: &str, folder: &Path, found: &Description) -> String {
    let mut text = format!("{} {what}\n", folder.display());
    for group in &found.groups {
        let _ = writeln!(
            text,
            "  {:<10}positions {} to {}, {}, from {}, state {}",
            group.name,
            group.first,
            group.position,
            time(group.time_ns),
            group.node,
            group.state_hash
        );
    }
    text
}

fn begun(data: &Path, restored: &Restored) -> String {
    let Restored { groups, generation } = restored;
    let mut text = format!("{} has the data of generation {generation}\n", data.display());
    for RestoredGroup { name, position, time_ns, lost } in groups {
        let _ = write!(text, "  {name:<10}begins at position {position}, {}", time(*time_ns));
        let _ = match lost {
            None => writeln!(text, "; nothing of the copy is lost"),
            Some(lost) => writeln!(
                text,
                "; lost: positions {} to {}, {} to {}",
                lost.positions.0,
                lost.positions.1,
                time(lost.times_ns.0),
                time(lost.times_ns.1)
            ),
        };
    }
    text
}

fn next(data: &Path) -> String {
    format!(
        "next: set `data` in the network's file to {0}, copy each node's folder of {0} to its \
         host, and start all nodes\n",
        data.display()
    )
}

/// What may be lost if each survivor is the truth.
fn stated(survivors: &[Survivor]) -> String {
    let mut text = String::new();
    for survivor in survivors {
        let (here, all) = survivor.replicas;
        let last = survivor.last();
        let _ = write!(
            text,
            "{}: {} has {last} positions, {} of them known to be committed; {here} of {all} \
             replicas are here",
            survivor.name(),
            survivor.node,
            survivor.committed
        );
        let _ = match survivor.is_complete() {
            true => writeln!(
                text,
                ", a majority: unless replicas were replaced, nothing that has a reply is missing"
            ),
            false => writeln!(
                text,
                ", no majority: the others may have executed requests behind position {last}, and \
                 replied to them; these are lost, and nothing shows how many there are"
            ),
        };
    }
    text
}
