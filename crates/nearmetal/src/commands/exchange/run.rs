//! `nearmetal exchange run`: rounds of one network at one rate, judged by the limit.

use std::path::Path;
use std::sync::Arc;

use anyhow::Result;
use nm_campaign::exchange_round;
use nm_campaign::schedule::Schedule;
use nm_exchange::firms::Firms;
use nm_exchange::master::Master;
use nm_load::Stall;
use nm_load::flow::{self, Flow};
use nm_model::ProbeSpec;
use nm_model::plan::EnvironmentKind;
use nm_report::units;
use nm_run::round::Setup;

use crate::campaign::finished::FinishedRun;
use crate::campaign::show::Show;
use crate::cli::exchange::RunArgs;
use crate::commands::exchange::setup;
use crate::exit::{Exit, Stop};

pub fn run(args: &RunArgs) -> Result<Exit> {
    let setup = complete_setup(args)?;
    let mut moving = setup.clone();
    moving.spec.moves_per_minute = args.moves_per_minute;
    moving.check()?;
    if args.moves_compare && moving.spec.moves_per_minute == 0.0 {
        return Err(Stop::usage(
            "--moves-compare without moves: say how many, such as \
                                --moves-per-minute 1000",
        ));
    }
    let setups = if args.moves_compare { vec![setup, moving] } else { vec![moving] };
    let plan = setup::plan(&setups[0], setups.get(1), args.rounds, Some(args.network.limit))?;
    let mut runner = setup::begin(&args.network, &setups[0], plan, args.raw)?;
    let trials = args.rounds as usize * setups.len();
    let what = format!("exchange, {}", units::plural(args.rounds as usize, "round", "rounds"));
    let probe = ProbeSpec::Exchange(setups[0].spec.clone());
    let schedule = Schedule::of_rounds(&probe, EnvironmentKind::Loopback, trials as u32);
    runner.show_progress(&what, schedule);
    for trial in 0..trials {
        let round = (trial / setups.len()) as u32;
        // In every second round the other one is first, so that both come as early.
        let setup = &setups[(trial + round as usize) % setups.len()];
        let row = exchange_round::row(setup, round);
        let label = format!("round {}/{}  {}", round + 1, args.rounds, row.stack);
        let goes_on = runner.trial(&label, &row, |context| {
            let folder = context.folder.unwrap_or(Path::new(""));
            let mut setup = setup::of_round(setup, folder, round);
            if args.moves_compare && setup.spec.moves_per_minute > 0.0 {
                setup.folder.set_file_name(format!("round-{}-moves", round + 1));
            }
            setup.record_flow = args.record_flow.clone().filter(|_| trial == 0);
            exchange_round::run(&setup, round, context)
        })?;
        if !goes_on {
            break;
        }
    }
    let run = FinishedRun::of(runner, Show::of(&args.network.show)?)?;
    run.show()?;
    Ok(run.exit())
}

/// The setup with all options of `exchange run`.
fn complete_setup(args: &RunArgs) -> Result<Setup> {
    let flow = args.replay_flow.as_deref().map(read_flow).transpose()?;
    let rate_per_s = flow.as_ref().map_or(args.rate, Flow::rate_per_s);
    let mut setup = setup::from_args(&args.network, rate_per_s, args.seconds)?;
    setup.replay_flow = flow.map(Arc::new);
    setup.arrivals = args.arrivals;
    setup.kills = args.kill.clone();
    setup.record = args.record;
    setup.firms = args.firms.as_deref().map(read_firms).transpose()?.map(Arc::new);
    setup.master = args.instruments.as_deref().map(read_master).transpose()?.map(Arc::new);
    setup.stall = args.stall.map(|for_ms| Stall { at_s: setup.spec.seconds / 2.0, for_ms });
    setup.check()?;
    if let Some(path) = &args.record_flow {
        // A bad path fails before anything runs.
        flow::Recorder::create(path).map_err(|failure| Stop::usage(failure.to_string()))?;
    }
    Ok(setup)
}

/// Reads the file of what may be traded.
fn read_master(path: &Path) -> Result<Master> {
    Master::read(path).map_err(|error| Stop::usage(error.to_string()))
}

/// Reads the file of firms.
fn read_firms(path: &Path) -> Result<Firms> {
    Firms::read(path).map_err(|error| Stop::usage(error.to_string()))
}

/// Reads a recorded flow.
fn read_flow(path: &Path) -> Result<Flow> {
    Flow::read(path).map_err(|failure| Stop::usage(failure.to_string()))
}
