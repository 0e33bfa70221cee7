//! `nearmetal tune`: settings of this machine, changed by steps and put back from a journal.

pub mod ab;
mod apply;
mod confirm;
mod emit;
mod experiment;
pub mod plan;
mod session;
pub mod status;
mod undo;

use anyhow::Result;

pub use session::check_named;

use crate::cli::tune::TuneCommand;
use crate::exit::Exit;

pub fn run(command: &TuneCommand) -> Result<Exit> {
    match command {
        TuneCommand::Plan(args) => plan::run(args),
        TuneCommand::Apply(args) => apply::run(args),
        TuneCommand::Undo(args) => undo::run(args),
        TuneCommand::Confirm(args) => confirm::run(args),
        TuneCommand::Ab(args) => ab::run(args),
        TuneCommand::Emit(args) => emit::run(args),
        TuneCommand::Status(args) => status::run(args),
        TuneCommand::UndoAtDeadline(args) => confirm::undo_at_deadline(args),
    }
}
