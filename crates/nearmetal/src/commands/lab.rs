//! `nearmetal lab`: the laboratory of virtual machines.

mod export;
mod image;
mod plan;
mod run;
mod run_plan;
mod undo;

use anyhow::Result;

pub use self::image::ImageDocument;

use crate::cli::lab::LabCommand;
use crate::exit::Exit;

/// Runs one command.
pub fn run(command: &LabCommand) -> Result<Exit> {
    match command {
        LabCommand::Plan(args) => plan::run(args),
        LabCommand::Run(args) => run::run(args),
        LabCommand::Image(args) => image::run(args),
        LabCommand::Export(args) => export::run(args),
        LabCommand::Undo(args) => undo::run(args),
    }
}
