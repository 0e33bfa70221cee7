//! `nearmetal exchange host`: starts and ends nodes on this host for a run on another one.

use std::io::{BufReader, stdin, stdout};

use anyhow::Result;
use nm_run::hosts::agent;

use crate::cli::exchange::HostArgs;
use crate::exit::{Exit, Stop};
use crate::output;

/// Runs the agent until its input ends.
pub fn run(args: &HostArgs) -> Result<Exit> {
    let program = std::env::current_exe().map_err(|error| {
        Stop::with(Exit::Environment, format!("cannot find this program's own file: {error}"))
    })?;
    let ended = agent::run(&program, &args.data, BufReader::new(stdin()), stdout());
    Ok(output::ended_in_time(ended.map_err(Into::into)))
}
