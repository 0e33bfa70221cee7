//! `nearmetal exchange run`: rounds of one network at one rate, judged by the limit.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Result;
use jiff::Timestamp;
use nm_exchange_lab::hosts;
use nm_exchange_lab::load::Stall;
use nm_exchange_lab::load::flow::{self, Flow};
use nm_exchange_lab::run::Setup;
use nm_exchange_lab::sla::Sla;
use nm_lab::trial::{Measured, Options};
use nm_model::plan::{EnvironmentKind, PlanTarget, Scope, TrialBlock};
use nm_model::result::RunState;
use nm_model::{
    Campaign, ExchangeSpec, Failure, FailureKind, Launcher, Mode, Plan, ProbeKind, ProbeSpec,
    Protocol, RowId, RunResult, SeriesKey, Side, Stack, StackPair,
};
use nm_report::folder::{ResultFolder, file_name};
use nm_report::terminal;

use crate::cli::exchange::{NetworkArgs, RunArgs, Transport};
use crate::cli::format::Format;
use crate::exit::{Exit, Stop};
use crate::progress::Progress;
use crate::recorder::Recorder;
use crate::{interrupt, output};

/// Where results go unless `--out` says otherwise.
const OUT: &str = "nearmetal-out";

pub fn run(args: &RunArgs) -> Result<Exit> {
    let flow = args.replay_flow.as_deref().map(read_flow).transpose()?;
    let rate_per_s = flow.as_ref().map_or(args.rate, Flow::rate_per_s);
    let mut setup = setup(&args.network, rate_per_s)?;
    setup.replay_flow = flow.map(Arc::new);
    setup.arrivals = args.arrivals;
    setup.kills = args.kill.clone();
    setup.record = args.record;
    setup.stall = args.stall.map(|for_ms| Stall { at_s: setup.spec.seconds / 2.0, for_ms });
    setup.check()?;
    if let Some(path) = &args.record_flow {
        // A bad path is told before anything runs.
        flow::Recorder::create(path).map_err(|failure| Stop::usage(failure.to_string()))?;
    }
    let plan = plan(&setup, args.rounds, Some(args.network.limit))?;
    let run = Run::begin(&args.network, &setup, plan, args.raw)?;
    let mut recorder = run.recorder;
    let mut progress = Progress::new(run.round_s * f64::from(args.rounds));
    let mut state = RunState::Complete;
    for round in 0..args.rounds {
        progress.begin_named(&format!(
            "round {}/{}  {}",
            round + 1,
            args.rounds,
            nm_lab::exchange::stack_name(&setup)
        ));
        let mut setup = of_round(&setup, &run.path, round);
        setup.record_flow = args.record_flow.clone().filter(|_| round == 0);
        match nm_lab::exchange::run(&setup, round, &run.options, &run.interrupted) {
            Ok((measured, trouble)) => {
                let row = row_of(&measured);
                recorder.add(vec![measured])?;
                for reason in trouble {
                    progress.message(&reason);
                    recorder.failed(row.clone(), reason)?;
                }
            }
            Err(failure) if failure.kind == FailureKind::Cancelled => {
                state = RunState::Interrupted;
                break;
            }
            Err(failure) => {
                progress.finish();
                return Err(failure.into());
            }
        }
        progress.advance(run.round_s);
    }
    progress.finish();
    let result = recorder.finish(state, run.options.started.elapsed().as_secs_f64())?;
    show(&result, &run.path, args.network.format.format)
}

/// Reads a recorded flow.
fn read_flow(path: &std::path::Path) -> Result<Flow> {
    Flow::read(path).map_err(|failure| Stop::usage(failure.to_string()))
}

/// The row, case and round of what was measured.
pub fn row_of(measured: &Measured) -> RowId {
    let SeriesKey { environment, stack, probe, case, .. } = measured.key.clone();
    RowId { environment, stack, probe, case: Some(case), round: Some(measured.round.round) }
}

/// A run that has begun: where its result goes, and what all rounds have in common.
pub struct Run {
    /// The result while it grows.
    pub recorder: Recorder,
    /// The result's folder.
    pub path: PathBuf,
    /// For all rounds.
    pub options: Options,
    /// Set by the user.
    pub interrupted: std::sync::Arc<AtomicBool>,
    /// Length of a round, s.
    pub round_s: f64,
}

impl Run {
    /// Makes the folder and an empty result of `plan`.
    pub fn begin(args: &NetworkArgs, setup: &Setup, plan: Plan, raw: bool) -> Result<Run> {
        let interrupted = interrupt::flag()?;
        let at = Timestamp::now();
        let name = file_name(&format!(
            "{}-exchange-{}",
            at.strftime("%Y%m%dT%H%M%SZ"),
            nm_lab::exchange::stack_name(setup)
        ));
        let folder = match &args.out {
            Some(path) => ResultFolder::at(path)?,
            None => ResultFolder::create(OUT.as_ref(), &name)?,
        };
        let path = folder.path().to_path_buf();
        let started = at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let mut recorder = Recorder::new(&name, &started, Some(folder));
        recorder.facts(environment(setup).name(), Side::Client, nm_host::facts());
        recorder.plan(&Campaign::resolve(plan, |_, _, _| None));
        let options = Options { raw_samples: raw, ..Options::new(args.seed) };
        let round_s = ProbeSpec::Exchange(setup.spec.clone()).duration_s();
        Ok(Run { recorder, path, options, interrupted, round_s })
    }

    /// Whether the user has asked for the end.
    pub fn is_interrupted(&self) -> bool {
        self.interrupted.load(Ordering::Relaxed)
    }
}

/// What the flags say, for a round without anything special.
pub fn setup(args: &NetworkArgs, rate_per_s: f64) -> Result<Setup> {
    if !(args.limit > 0.0 && args.limit <= 60_000.0) {
        return Err(Stop::usage(format!("--limit {} is not possible: 0 to 60000 ms", args.limit)));
    }
    let spec = ExchangeSpec {
        nodes: args.nodes,
        rate_per_s,
        seconds: args.seconds,
        warmup_ms: args.warmup,
        durability: args.durability,
        mix: args.mix,
    };
    let seed = args.seed;
    let mut setup = nm_lab::exchange::setup(&spec, &stacks(args), seed, std::path::Path::new(""))?;
    setup.sla = Sla::of_ms(args.limit);
    if let Some(path) = &args.hosts {
        setup.hosts = hosts::read(path).map_err(Stop::usage)?;
    }
    setup.host_data = args.host_data.clone();
    setup.check()?;
    Ok(setup)
}

/// The same with a folder and a seed of the round's own.
pub fn of_round(setup: &Setup, path: &std::path::Path, round: u32) -> Setup {
    let seed = setup.seed.wrapping_add(u64::from(round));
    let folder = path.join(format!("round-{}", round + 1));
    Setup { seed, folder, ..setup.clone() }
}

fn stacks(args: &NetworkArgs) -> StackPair {
    let (protocol, launcher) = match args.transport {
        Transport::Tcp => (Protocol::Tcp, None),
        Transport::Unix => (Protocol::Unix, None),
        Transport::Shm => (Protocol::Shm, None),
        Transport::Accel => (Protocol::Tcp, Some(Launcher::Accel)),
    };
    let stack = Stack { launcher, ..Stack::new(protocol, Mode::Epoll) };
    StackPair { client: stack, server: stack }
}

fn environment(setup: &Setup) -> EnvironmentKind {
    match setup.hosts.is_empty() {
        true => EnvironmentKind::Loopback,
        false => EnvironmentKind::Ssh,
    }
}

/// The run as a plan of one row, with the limit as its targets if there is one.
pub fn plan(setup: &Setup, rounds: u32, limit_ms: Option<f64>) -> Result<Plan> {
    let stack = nm_lab::exchange::stack(setup);
    let target = |require: String, why: &str| -> Result<PlanTarget> {
        let refused = |error: nm_model::target::TargetError| Stop::usage(error.to_string());
        Ok(PlanTarget {
            require: require.parse().map_err(refused)?,
            on: "*".to_string(),
            probe: Some(ProbeKind::Exchange),
            scope: Scope::Every,
            why: why.to_string(),
        })
    };
    let targets = match limit_ms {
        None => vec![],
        Some(limit_ms) => vec![
            target(format!("es10 < {limit_ms}ms"), "the mean of the slowest 10 % counts")?,
            target(format!("p99 < {limit_ms}ms"), "monterey-2010 promised both below 10 ms")?,
            target("loss <= 0".to_string(), "every request has an answer")?,
        ],
    };
    Ok(Plan {
        name: "exchange".to_string(),
        summary: "a distributed exchange under load, judged by its round trips".to_string(),
        rounds,
        seed: setup.seed,
        references: vec![nm_report::exchange::LATENCY.to_string()],
        trials: vec![TrialBlock {
            environments: vec![environment(setup)],
            stacks: vec![StackPair { client: stack, server: stack }],
            probe: ProbeSpec::Exchange(setup.spec.clone()),
        }],
        targets,
        comparisons: vec![],
    })
}

/// Writes the result the way that was asked for, and answers the exit code.
pub fn show(result: &RunResult, path: &std::path::Path, format: Format) -> Result<Exit> {
    let report = path.join(nm_report::folder::REPORT).display().to_string();
    match format {
        Format::Json => output::json(result)?,
        Format::Text => {
            output::data(&terminal::summary(result, &output::style(), Some(&report)))?;
        }
    }
    match result.state {
        RunState::Complete => Ok(result.outcome.into()),
        RunState::Interrupted | RunState::Running => Ok(Exit::Interrupted),
    }
}

/// A failure of kind cancelled.
pub fn cancelled() -> Failure {
    Failure::new(FailureKind::Cancelled, "interrupted")
}
