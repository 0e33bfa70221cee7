//! Arguments of `nearmetal exchange backup`, `restore` and `recover`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use jiff::Timestamp;
use nm_backup::To;

#[derive(Debug, Args)]
pub struct BackupArgs {
    /// The network's file, the same for all of its nodes.
    #[arg(long, value_name = "FILE", required = true)]
    pub network: Option<PathBuf>,
    /// Folder for the copy, which must not exist.
    #[arg(long, value_name = "DIR", required = true)]
    pub out: Option<PathBuf>,
    #[command(subcommand)]
    pub command: Option<BackupCommand>,
}

#[derive(Debug, Subcommand)]
pub enum BackupCommand {
    /// Check a copy: its files are as they were written, and lead to the states that it notes.
    Check(CheckBackupArgs),
}

#[derive(Debug, Args)]
pub struct CheckBackupArgs {
    /// The copy.
    pub folder: PathBuf,
}

#[derive(Debug, Args)]
pub struct RestoreArgs {
    /// The copy.
    pub folder: PathBuf,
    /// Time such as 2026-03-01T09:30:00Z, or CELL:POSITION of a cell's log, whose time holds for
    /// the others; without this, the end of the copy.
    #[arg(long, value_name = "TIME|CELL:POSITION", value_parser = place)]
    pub at: Option<To>,
    /// Folder for the data of all nodes, which must not exist.
    #[arg(long, value_name = "DIR")]
    pub data: PathBuf,
}

#[derive(Debug, Args)]
pub struct RecoverArgs {
    /// The network's file, the same for all of its nodes.
    #[arg(long, value_name = "FILE")]
    pub network: PathBuf,
    /// Folder for the data of all nodes, which must not exist.
    #[arg(long, value_name = "DIR")]
    pub data: PathBuf,
    /// Act, although requests with replies may be lost.
    #[arg(long)]
    pub accept_loss: bool,
}

/// A text that is no place of a log.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "it is neither a time nor a position; write for example 2026-03-01T09:30:00Z, or 0:1234 for \
     position 1234 of cell 0"
)]
struct NotAPlace;

fn place(text: &str) -> Result<To, NotAPlace> {
    if let Ok(time) = text.parse::<Timestamp>() {
        return u64::try_from(time.as_nanosecond()).map(To::Time).map_err(|_| NotAPlace);
    }
    let (cell, position) = text.split_once(':').ok_or(NotAPlace)?;
    match (cell.parse(), position.parse()) {
        (Ok(cell), Ok(position)) => Ok(To::Position { cell, position }),
        _ => Err(NotAPlace),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_a_time_or_a_position_of_a_cell() {
        assert_eq!(place("1970-01-01T00:00:02Z"), Ok(To::Time(2_000_000_000)));
        assert_eq!(place("3:70"), Ok(To::Position { cell: 3, position: 70 }));
        for wrong in ["", "7", "a:1", "1:", "70000:1", "0:-1", "1960-01-01T00:00:00Z", "12:30:00"] {
            assert_eq!(place(wrong), Err(NotAPlace), "{wrong}");
        }
    }
}
