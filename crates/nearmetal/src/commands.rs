//! The commands, one file each.

mod accel;
mod compare;
mod doctor;
mod exchange;
mod import;
mod pingpong;
mod qualify;
mod reference;
mod rr;
mod standalone;
mod stream;

use std::io::{stdin, stdout};

use anyhow::Result;
use clap::CommandFactory;
use nm_model::words::UnknownWord;

use crate::cli::standalone::ServerCommand;
use crate::cli::{Cli, Command, ReportArgs, SchemaOf};
use crate::exit::{Exit, Stop};
use crate::{output, plans};

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
        Command::Accel(args) => accel::run(&args),
        Command::Compare(args) => compare::run(&args),
        Command::Report(args) => report(&args),
        Command::Import(args) => import::run(&args),
        Command::Reference(command) => reference::run(&command),
        Command::Doctor(args) => doctor::run(args.format),
        Command::Plans { name } => list_plans(name.as_deref()),
        Command::Schema { of } => schema(of),
        Command::Completions { shell } => completions(shell),
        Command::Man { command } => man(command.as_deref()),
        Command::Exchange(command) => exchange::run(&command),
        Command::Agent => {
            nm_lab::agent::serve(stdin(), stdout())?;
            Ok(Exit::Pass)
        }
        Command::LabWire { arguments } => {
            nm_lab::link_setup::run(&arguments)?;
            Ok(Exit::Pass)
        }
        Command::LabHold { folder } => {
            nm_lab::environment::hold(folder.as_deref());
            Ok(Exit::Pass)
        }
    }
}

fn report(args: &ReportArgs) -> Result<Exit> {
    let result = nm_report::folder::rebuild(&args.folder)?;
    let report = args.folder.join(nm_report::folder::REPORT);
    let shown = report.display().to_string();
    output::data(&nm_report::terminal::summary(&result, &output::style(), Some(&shown)))?;
    Ok(Exit::Pass)
}

fn list_plans(name: Option<&str>) -> Result<Exit> {
    match name {
        Some(name) => output::data(plans::text(name)?)?,
        None => {
            for (name, _) in plans::built_in() {
                let plan = plans::load(name)?;
                output::data(&format!("{name:<18} {}\n", plan.summary))?;
            }
        }
    }
    Ok(Exit::Pass)
}

fn schema(of: SchemaOf) -> Result<Exit> {
    let schema = match of {
        SchemaOf::Result => nm_report::schema::result(),
        SchemaOf::Plan => nm_report::schema::plan(),
    };
    output::data(&nm_report::schema::text(&schema))?;
    Ok(Exit::Pass)
}

fn completions(shell: clap_complete::Shell) -> Result<Exit> {
    let mut text = vec![];
    clap_complete::generate(shell, &mut Cli::command(), "nearmetal", &mut text);
    output::data(&String::from_utf8_lossy(&text))?;
    Ok(Exit::Pass)
}

fn man(command: Option<&str>) -> Result<Exit> {
    let mut cli = Cli::command();
    cli.build();
    let wanted = match command {
        None => cli,
        Some(name) => {
            let names: Vec<&str> =
                cli.get_subcommands().filter(|c| !c.is_hide_set()).map(|c| c.get_name()).collect();
            let unknown = UnknownWord::new("command", name, &names).to_string();
            cli.find_subcommand(name).cloned().ok_or_else(|| Stop::usage(unknown))?
        }
    };
    let mut text = vec![];
    clap_mangen::Man::new(wanted).render(&mut text)?;
    output::data(&String::from_utf8_lossy(&text))?;
    Ok(Exit::Pass)
}
