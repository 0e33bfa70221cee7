//! `nearmetal exchange host`: starts and ends nodes on this host for a run on another one.

use std::io::{BufReader, Write, stdin, stdout};

use anyhow::Result;
use nm_run::hosts::agent;

use crate::cli::exchange::HostArgs;
use crate::exit::{Exit, Stop};

/// Runs the agent until its input ends.
pub fn run(args: &HostArgs) -> Result<Exit> {
    let program = std::env::current_exe().map_err(|error| {
        Stop::with(Exit::Environment, format!("cannot find this program's own file: {error}"))
    })?;
    let mut output: Box<dyn Write> = Box::new(stdout());
    agent::run(&program, &args.data, BufReader::new(stdin()), &mut output)?;
    Ok(Exit::Pass)
}
