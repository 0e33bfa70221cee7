//! `nearmetal exchange ramp`: a scripted day of load on one network.

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use jiff::Timestamp;
use nm_campaign::concurrent::ConcurrentRuns;
use nm_campaign::{Destination, RunName};
use nm_model::{Failure, FailureKind};
use nm_operate::policy_runner::Settings;
use nm_report::folder::ResultFolder;
use nm_report::units;
use nm_run::day::seconds_file::SECONDS;
use nm_run::day::{
    self, DayResult, DaySetup, NoOperator, Operator, PolicyOperator, RollingRestart, Script,
};
use rustix::fs::Access;

use crate::campaign::interrupt;
use crate::campaign::show::Show;
use crate::cli::exchange::RampArgs;
use crate::cli::format::Format;
use crate::commands::exchange::{policy, ramp_text, setup};
use crate::exit::{Exit, Stop};
use crate::output;

/// The result in the folder of a day.
const DAY: &str = "day.json";

/// The script in the folder of a day.
const SCRIPT: &str = "day.toml";

/// The folder of the network and its recording.
const RECORDING: &str = "round-1";

pub fn run(args: &RampArgs) -> Result<Exit> {
    let script = script(args)?;
    let mut operator = operator(args)?;
    let show = Show::of(&args.network.show)?;
    let first = &script.phases[0];
    // The load follows the script; the rate of the setup is that of the warm-up.
    let mut base = setup::from_args(&args.network, first.rate_per_s, 1.0)?;
    base.record = args.record;
    let network = nm_lab::exchange::stack_name(&base);
    let interrupted = interrupt::flag()?;
    let folder = folder(args, &network)?;
    base.folder = folder.path().join(RECORDING);
    let mut concurrent = ConcurrentRuns::announce();
    warn_of_concurrent_runs(&mut concurrent);
    if !show.is_quiet {
        let phases = units::plural(script.phases.len(), "phase", "phases");
        let length = units::duration(f64::from(script.seconds()));
        let name = &script.name;
        output::message(&format!(
            "exchange {network}, `{name}`: {phases}, {length}; Ctrl-C keeps what is done"
        ));
    }
    let seconds_file = folder.path().join(SECONDS);
    folder.write(SCRIPT, &script.to_toml())?;
    let outside_max_s = args.outside_max;
    let setup = DaySetup { base, script, outside_max_s, network, seconds_file };
    let mut progress = |phase: &_| {
        if !show.is_quiet {
            output::message(&ramp_text::phase_line(phase));
        }
    };
    let result = day::run(&setup, operator.as_mut(), &mut progress, &interrupted)?;
    warn_of_concurrent_runs(&mut concurrent);
    folder.write(DAY, &(serde_json::to_string_pretty(&result)? + "\n"))?;
    match show.format {
        Format::Json => output::json_file(&result)?,
        Format::Text => {
            let folder = folder.path().display().to_string();
            output::text(&ramp_text::text(&result, show.extent, &output::style(), &folder))?;
        }
    }
    Ok(exit(&result))
}

/// Who changes the network during the day.
fn operator(args: &RampArgs) -> Result<Box<dyn Operator>> {
    if args.rolling_restart.is_some() {
        let program = args.program.as_deref().map(usable).transpose()?;
        return Ok(Box::new(RollingRestart::new(args.phase_seconds, program)));
    }
    if args.program.is_some() {
        return Err(Stop::usage("--program needs --rolling-restart"));
    }
    let Some(path) = &args.policies else { return Ok(Box::new(NoOperator)) };
    let settings = match path.as_os_str() == "-" {
        true => Settings::default(),
        false => policy::read(path)?,
    };
    let every = Duration::from_millis(args.policies_every_ms);
    Ok(Box::new(PolicyOperator::new(settings, every)?))
}

/// The program that nodes are restarted with, by its absolute path: it must be there before
/// anything is stopped.
fn usable(program: &Path) -> Result<PathBuf> {
    let refuse = |why: &dyn Display| {
        Stop::usage(format!("--program: {} cannot be started: {why}", program.display()))
    };
    let path = program.canonicalize().map_err(|error| refuse(&error))?;
    rustix::fs::access(&path, Access::EXEC_OK).map_err(|error| refuse(&error))?;
    if path.is_dir() {
        return Err(refuse(&"it is a folder"));
    }
    Ok(path)
}

fn exit(result: &DayResult) -> Exit {
    result.outcome.map_or(Exit::Interrupted, Exit::from)
}

/// The script of the arguments, which fits the network.
fn script(args: &RampArgs) -> Result<Script> {
    let checked = |script: Script, option: &str| {
        let is_valid = script.check_values();
        is_valid.map_err(|error| Stop::usage(format!("{option}: {error}"))).map(|()| script)
    };
    let script = match (&args.script, args.step, args.rolling_restart) {
        (Some(path), ..) => {
            let read = Script::read(path).and_then(|script| {
                script.check_network(args.network.nodes)?;
                Ok(script)
            });
            read.map_err(|error| Stop::usage(format!("{}: {error}", path.display())))?
        }
        (None, Some(step), _) => {
            checked(Script::step(step.low_per_s, step.high_per_s, args.phase_seconds), "--step")?
        }
        (None, None, Some(rate_per_s)) => {
            checked(Script::restart(rate_per_s, args.phase_seconds), "--rolling-restart")?
        }
        (None, None, None) => {
            return Err(Stop::usage("give --script, --step or --rolling-restart"));
        }
    };
    Ok(script)
}

/// The folder of the day, in which there is no other one.
fn folder(args: &RampArgs, network: &str) -> Result<ResultFolder> {
    let name = RunName::WithTime(format!("exchange-ramp-{network}")).at(Timestamp::now());
    let destination = Destination::folder_or_new(args.network.out.as_deref());
    let folder = destination.folder(&name)?;
    let folder = folder.ok_or_else(|| Stop::usage("a day needs a folder; give --out"))?;
    for file in [SCRIPT, SECONDS, DAY] {
        if folder.path().join(file).exists() {
            let path = folder.path().display();
            let message = format!("{path} already holds {file} of another day");
            return Err(Failure::new(FailureKind::Conflict, message)
                .hint("name another folder with --out, or move that one away")
                .into());
        }
    }
    Ok(folder)
}

fn warn_of_concurrent_runs(concurrent: &mut ConcurrentRuns) {
    for other in concurrent.new_runs() {
        output::message(&output::warning(&format!(
            "another nearmetal measures on this machine: {other}; the figures of both suffer, so \
             repeat this day when the other has ended"
        )));
    }
}
