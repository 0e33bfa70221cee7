//! `nearmetal lab`: the laboratory of virtual machines.

mod image;
mod run;
mod run_plan;

use anyhow::Result;

use crate::cli::lab::LabCommand;
use crate::exit::Exit;

/// Runs one command.
pub fn run(command: &LabCommand) -> Result<Exit> {
    match command {
        LabCommand::Run(args) => run::run(args),
        LabCommand::Image(args) => image::run(args),
    }
}
