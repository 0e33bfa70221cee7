//! nearmetal: the command line. Parses, runs one command, and turns what came of it into an exit
//! code.

#![forbid(unsafe_code)]

mod campaign;
mod cli;
mod commands;
mod document;
mod exit;
mod output;
mod plans;

use std::process::ExitCode;

use clap::error::ErrorKind;

use crate::exit::Exit;

#[cfg(test)]
#[global_allocator]
static ALLOCATOR: nm_test_support::CountingAllocator = nm_test_support::CountingAllocator;

fn main() -> ExitCode {
    if nm_lab::guest::is_init() {
        nm_lab::guest::run();
    }
    nm_sys::signal::fail_writes_beyond_file_size_limit();
    let cli = match cli::groups::parse() {
        Ok(cli) => cli,
        Err(error) => {
            let asked = matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
            let printed = error.print();
            if !asked {
                return Exit::Usage.into();
            }
            return done(output::written(printed).map(|()| Exit::Pass));
        }
    };
    done(commands::run(cli.command))
}

/// The exit code of a command, after its error is shown.
fn done(result: anyhow::Result<Exit>) -> ExitCode {
    match result {
        Ok(exit) => exit.into(),
        Err(error) => {
            output::message(&format!("nearmetal: {error:#}"));
            exit::of_error(&error).into()
        }
    }
}
