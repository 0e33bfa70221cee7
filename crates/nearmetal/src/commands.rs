//! The commands, one file each.

mod accel;
mod agent;
mod audit;
mod baseline;
mod bmc;
mod certificate;
mod compare;
mod compute;
mod compute_pairs;
mod controller;
mod cpus;
mod doctor;
mod dry_run;
mod exchange;
mod fail_on;
mod firmware;
mod fleet;
mod generate;
mod import;
mod jitter;
mod lab;
mod list_plans;
mod machine;
mod man;
mod pingpong;
mod qualify;
mod reference;
mod report;
mod result_source;
mod rr;
mod schema;
mod standalone;
mod stream;
mod targets;
mod trend;
mod tune;
mod watch;

use anyhow::Result;
use clap::CommandFactory;

use crate::cli::compute::ComputeCommand;
use crate::cli::standalone::ServerCommand;
use crate::cli::{Cli, Command};
use crate::exit::Exit;
use crate::output;

/// Runs one command.
pub fn run(command: Command) -> Result<Exit> {
    match command {
        Command::Qualify(args) => qualify::run(&args),
        Command::Pingpong(args) => match args.server {
            Some(ServerCommand::Server(server)) => standalone::serve(&server),
            None => pingpong::run(&args.client),
        },
        Command::Stream(args) => match args.server {
            Some(ServerCommand::Server(server)) => standalone::serve(&server),
            None => stream::run(&args.client),
        },
        Command::Rr(args) => match args.server {
            Some(ServerCommand::Server(server)) => standalone::serve(&server),
            None => rr::run(&args.client),
        },
        Command::Jitter(args) => jitter::run(&args),
        Command::Compute(args) => match args.command {
            Some(ComputeCommand::Pairs(pairs)) => compute_pairs::run(&pairs),
            None => compute::run(&args.run),
        },
        Command::Accel(args) => accel::run(&args),
        Command::Audit(args) => audit::run(&args),
        Command::Compare(args) => compare::run(&args),
        Command::Baseline(command) => baseline::run(&command),
        Command::Certify(args) => certificate::certify(&args),
        Command::VerifyCertificate(args) => certificate::verify(&args),
        Command::Fleet(command) => fleet::run(&command),
        Command::Trend(args) => trend::run(&args),
        Command::Watch(args) => watch::run(&args),
        Command::Report(args) => report::run(&args),
        Command::Import(args) => import::run(&args),
        Command::Reference(command) => reference::run(&command),
        Command::Generate(command) => generate::run(&command),
        Command::Firmware(command) => firmware::run(&command),
        Command::Tune(command) => tune::run(&command),
        Command::Lab(command) => lab::run(&command),
        Command::Doctor(args) => doctor::run(args.format),
        Command::Plans { name, format } => list_plans::run(name.as_deref(), format.format),
        Command::Schema { of } => schema::run(of.as_deref()),
        Command::Completions { shell } => completions(shell),
        Command::Man { command, out } => man::run(&command, out.as_deref()),
        Command::Exchange(command) => exchange::run(&command),
        Command::Agent(args) => agent::run(&args),
        Command::Controller(args) => controller::run(&args),
        Command::LabWire { arguments } => {
            nm_lab::link_setup::run(&arguments)?;
            Ok(Exit::Pass)
        }
        Command::LabHold { folder } => {
            nm_lab::environment::hold(folder.as_deref())?;
            Ok(Exit::Pass)
        }
    }
}

fn completions(shell: clap_complete::Shell) -> Result<Exit> {
    let mut text = vec![];
    clap_complete::generate(shell, &mut Cli::command(), "nearmetal", &mut text);
    output::data(&String::from_utf8_lossy(&text))?;
    Ok(Exit::Pass)
}
