//! `nearmetal fleet`: pairs of many hosts, each measured by this program as a child.

mod agents;
mod children;
mod folder;
mod hunt;
mod input;

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::thread::sleep;

use anyhow::Result;
use nm_fleet::pairs::{self, Pair};
use nm_fleet::result::{FleetRequest, FleetResult, Measured, Trial, result};
use nm_fleet::schedule::Schedule;
use nm_model::result::RunState;
use nm_report::document::Document;
use nm_report::{fleet, units};
use nm_sys::clock::Moment;
use schemars::JsonSchema;
use serde::Serialize;

pub use self::agents::AgentsDocument;
use self::children::{Children, LINES_EVERY, NAP};
use self::folder::{FleetFolder, PlanWord};
use crate::campaign::interrupt;
use crate::cli::fleet::{FleetCommand, FleetRunArgs};
use crate::cli::format::Format;
use crate::exit::{Exit, Stop};
use crate::output;

pub fn run(command: &FleetCommand) -> Result<Exit> {
    let args = match command {
        FleetCommand::Run(args) => args,
        FleetCommand::Hunt(args) => return hunt::run(args),
        FleetCommand::Agents(args) => return agents::run(args),
    };
    match &args.resume {
        Some(resume) => {
            let folder = FleetFolder::open(resume)?;
            let mut request = folder.request()?;
            if request.pairs == hunt::HUNT {
                let shown = folder.shown();
                let message = format!("{shown} holds a hunt, which cannot be resumed; begin anew");
                return Err(Stop::usage(message));
            }
            request.parallel = args.parallel;
            measure(args, &folder, &request)
        }
        None => {
            let request = input::request(args)?;
            if args.dry_run {
                return dry_run(args, &request, None);
            }
            let folder = FleetFolder::create(args.out.as_deref(), &request)?;
            measure(args, &folder, &request)
        }
    }
}

fn rounds(request: &FleetRequest) -> Result<Vec<Vec<Pair>>> {
    let pairs = request.pairs.parse().map_err(|fault: nm_fleet::PairsError| {
        Stop::usage(format!("the folder's request is damaged: {fault}"))
    })?;
    pairs::rounds(request.hosts.len(), pairs, request.both_ways, request.seed)
        .map_err(|fault| Stop::usage(fault.to_string()))
}

/// What a dry run of a fleet shows.
#[derive(Debug, Serialize, JsonSchema)]
pub struct FleetListing<'a> {
    /// What would be done.
    request: &'a FleetRequest,
    /// What the run takes, s.
    about_s: f64,
    /// Trials that have a result of an earlier run.
    n_measured: usize,
    /// The rounds: names of the client and of the server of each trial.
    rounds: Vec<Vec<[&'a str; 2]>>,
}

impl Document for FleetListing<'_> {
    const NAME: &'static str = "fleet-dry-run";
}

fn dry_run(
    args: &FleetRunArgs,
    request: &FleetRequest,
    folder: Option<&FleetFolder>,
) -> Result<Exit> {
    let rounds = rounds(request)?;
    let trial_s = input::trial_s(&request.plan_word(folder), request)?;
    let known = folder.map(|folder| folder.all_measured(request, &rounds)).unwrap_or_default();
    let is_measured = |pair| known.contains_key(&pair);
    let schedule = Schedule::new(request.hosts.len(), &rounds, request.parallel, is_measured);
    let progress = schedule.progress(trial_s);
    let named = |pair: &Pair| pair.ends().map(|end| request.hosts[end].name.as_str());
    let listing = FleetListing {
        request,
        about_s: progress.left_s,
        n_measured: progress.n_ended,
        rounds: rounds.iter().map(|round| round.iter().map(named).collect()).collect(),
    };
    if args.format.format == Format::Json {
        output::json(&listing)?;
        return Ok(Exit::Pass);
    }
    let mut text = format!("{}\n", promise(request, &schedule, trial_s));
    for (number, round) in (1..).zip(&listing.rounds) {
        let pairs: Vec<String> = round.iter().map(|[a, b]| format!("{a} → {b}")).collect();
        text += &format!("round {number}: {}\n", pairs.join(", "));
    }
    output::data(&text)?;
    Ok(Exit::Pass)
}

/// `fleet of 16 hosts, plan two-hosts: 120 trials, at most 8 at once, about 17 min`.
fn promise(request: &FleetRequest, schedule: &Schedule, trial_s: f64) -> String {
    let progress = schedule.progress(trial_s);
    let n_left = progress.n_all - progress.n_ended;
    let done = match progress.n_ended {
        0 => String::new(),
        n => format!(" ({n} are done)"),
    };
    format!(
        "fleet of {}, plan {}: {}{done}, at most {} at once, about {}",
        units::plural(request.hosts.len(), "host", "hosts"),
        request.plan,
        units::plural(n_left, "trial", "trials"),
        request.parallel,
        units::duration(progress.left_s.round())
    )
}

fn measure(args: &FleetRunArgs, folder: &FleetFolder, request: &FleetRequest) -> Result<Exit> {
    if args.dry_run {
        return dry_run(args, request, Some(folder));
    }
    let rounds = rounds(request)?;
    let plan = request.plan_word(Some(folder));
    let trial_s = input::trial_s(&plan, request)?;
    let known = folder.all_measured(request, &rounds);
    let is_measured = |pair| known.contains_key(&pair);
    let mut schedule = Schedule::new(request.hosts.len(), &rounds, request.parallel, is_measured);
    let promise = promise(request, &schedule, trial_s);
    output::message(&format!("{promise}; Ctrl-C keeps what is done, and --resume goes on"));
    let mut children = Children::new(folder, request, trial_s, known);
    let state = run_trials(&mut schedule, &mut children, trial_s)?;
    let found = collected(&schedule, &children.measured, request, state);
    folder.write(&found)?;
    match args.format.format {
        Format::Json => output::json(&found)?,
        Format::Text => output::data(&fleet::text(&found, &output::style(), &folder.shown()))?,
    }
    match (found.state, found.n_measured()) {
        (RunState::Complete, 0) => {
            let message = format!(
                "nothing could be measured; the reasons are in {}/{}",
                folder.shown(),
                fleet::FLEET_PAGE
            );
            Err(Stop::with(Exit::Environment, message))
        }
        (RunState::Complete, _) => Ok(found.outcome.into()),
        _ => Ok(Exit::Interrupted),
    }
}

/// Starts trials and takes their ends, until all are done or the user ends the run.
fn run_trials(
    schedule: &mut Schedule,
    children: &mut Children<'_>,
    trial_s: f64,
) -> Result<RunState> {
    let interrupted = interrupt::flag()?;
    let started = Moment::now();
    let now_s = || started.elapsed().as_secs_f64();
    let mut last_line = Moment::now();
    while !schedule.is_done() {
        if interrupted.load(Ordering::Relaxed) {
            children.end();
            return Ok(RunState::Interrupted);
        }
        for trial in schedule.next(now_s()) {
            if let Some(ended) = children.start(trial)? {
                schedule.ended(trial.id, ended, now_s());
            }
        }
        sleep(NAP);
        for (trial, ended) in children.ended() {
            schedule.ended(trial.id, ended, now_s());
        }
        if last_line.elapsed() >= LINES_EVERY {
            last_line = Moment::now();
            let at = schedule.progress(trial_s);
            output::message(&format!(
                "{} of {} trials, {} set aside, about {} left",
                at.n_ended,
                at.n_all,
                units::plural(at.n_aside, "host", "hosts"),
                units::duration(at.left_s.round())
            ));
        }
    }
    Ok(RunState::Complete)
}

/// The result of what was measured.
fn collected(
    schedule: &Schedule,
    known: &BTreeMap<Pair, Measured>,
    request: &FleetRequest,
    state: RunState,
) -> FleetResult {
    let trials: Vec<Trial> =
        schedule.fates().map(|(pair, fate)| (pair, fate, known.get(&pair).cloned())).collect();
    let aside = schedule.set_aside_hosts();
    let aside: Vec<(usize, String)> = aside.map(|(host, why)| (host, why.to_string())).collect();
    result(request, nm_ssh::VERSION, state, &trials, &aside)
}
