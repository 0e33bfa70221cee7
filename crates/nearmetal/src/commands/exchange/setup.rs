//! From the arguments of `exchange run`, `search` and `ramp` to the setup and the plan of a run.

use std::path::Path;

use anyhow::Result;
use nm_campaign::{Destination, OnFailure, RunName, Runner};
use nm_lab::trial::Options;
use nm_model::plan::{PlanComparison, PlanTarget, Scope, TrialBlock};
use nm_model::{Campaign, ExchangeSpec, Plan, ProbeKind, ProbeSpec, Selector, Side, StackPair};
use nm_run::hosts;
use nm_run::round::Setup;
use nm_run::sla::Sla;

use crate::campaign;
use crate::campaign::show::Show;
use crate::cli::exchange::{HostsArgs, NetworkArgs};
use crate::exit::Stop;

/// Ratio of a round with moves to one without that still counts as equal, %.
const MOVES_MARGIN_PERCENT: f64 = 20.0;

/// Begins a run of `plan`.
pub fn begin(args: &NetworkArgs, setup: &Setup, plan: Plan, raw_samples: bool) -> Result<Runner> {
    let name = RunName::WithTime(format!("exchange-{}", nm_lab::exchange::stack_name(setup)));
    let destination = Destination::folder_or_new(args.out.as_deref());
    let options = Options { raw_samples, ..Options::new(args.seed) };
    let show = Show::of(&args.show)?;
    let mut runner = campaign::begin(name, &destination, options, OnFailure::Abort, show)?;
    let environment = nm_lab::exchange::environment(setup);
    runner.recorder.facts(environment.name(), Side::Client, nm_host::facts());
    runner.recorder.plan(&Campaign::resolve(plan, |_, _, _| None));
    Ok(runner)
}

/// The setup that the arguments describe, for rounds of `seconds`.
pub fn from_args(args: &NetworkArgs, rate_per_s: f64, seconds: f64) -> Result<Setup> {
    if !(args.limit > 0.0 && args.limit <= 60_000.0) {
        let limit = args.limit;
        return Err(Stop::usage(format!(
            "--limit {limit} is not possible: above 0 and at most 60000 ms"
        )));
    }
    let spec = ExchangeSpec {
        nodes: args.nodes,
        rate_per_s,
        seconds,
        warmup_ms: args.warmup,
        durability: args.durability,
        mix: args.mix,
        moves_per_minute: 0.0,
    };
    let seed = args.seed;
    let stacks = StackPair::same(args.transport.stack());
    let mut setup = nm_lab::exchange::setup(&spec, &stacks, seed, Path::new(""))?;
    setup.sla = Sla::of_ms(args.limit);
    place(&mut setup, &args.hosts)?;
    setup.spare_mediators = args.spares;
    setup.authenticate = args.authenticate;
    setup.check()?;
    Ok(setup)
}

/// Has the nodes run where the arguments say.
pub fn place(setup: &mut Setup, args: &HostsArgs) -> Result<()> {
    if let Some(path) = &args.hosts {
        setup.hosts = hosts::read(path).map_err(|error| Stop::usage(error.to_string()))?;
    }
    setup.host_data = args.host_data.clone();
    Ok(())
}

/// The setup of one round, which has its own folder and seed.
pub fn of_round(setup: &Setup, path: &Path, round: u32) -> Setup {
    let seed = setup.seed.wrapping_add(u64::from(round));
    let folder = path.join(format!("round-{}", round + 1));
    Setup { seed, folder, ..setup.clone() }
}

/// The run as a plan of a row, with targets for the limit if there is one. A second row, `other`,
/// is compared against the first.
pub fn plan(
    setup: &Setup,
    other: Option<&Setup>,
    rounds: u32,
    limit_ms: Option<f64>,
) -> Result<Plan> {
    let environment = nm_lab::exchange::environment(setup);
    let block = |setup: &Setup| TrialBlock {
        environments: vec![environment],
        stacks: vec![StackPair::same(nm_lab::exchange::stack(setup))],
        optional: false,
        primary: false,
        probe: ProbeSpec::Exchange(setup.spec.clone()),
    };
    let row =
        |setup: &Setup| format!("{}/{}", environment.name(), nm_lab::exchange::stack_name(setup));
    let comparison = |other: &Setup| PlanComparison {
        a: row(setup),
        b: row(other),
        margin_percent: MOVES_MARGIN_PERCENT,
    };
    let target = |require: String, why: &str| -> Result<PlanTarget> {
        let refused = |error: nm_model::target::TargetError| Stop::usage(error.to_string());
        Ok(PlanTarget {
            require: require.parse().map_err(refused)?,
            on: Selector::any(),
            probe: Some(ProbeKind::Exchange),
            classes: vec![],
            scope: Scope::Every,
            why: why.to_string(),
        })
    };
    let targets = match limit_ms {
        None => vec![],
        Some(limit_ms) => vec![
            target(format!("es10 < {limit_ms}ms"), "the mean of the slowest 10 % counts")?,
            target(format!("p99 < {limit_ms}ms"), "monterey-2010 guaranteed both below 10 ms")?,
            target("loss <= 0".to_string(), "every request has an answer")?,
        ],
    };
    Ok(Plan {
        name: "exchange".to_string(),
        summary: "a distributed exchange under load, judged by its round trips".to_string(),
        rounds,
        seed: setup.seed,
        references: vec![nm_report::probes::exchange::LATENCY.to_string()],
        trials: std::iter::once(setup).chain(other).map(block).collect(),
        targets,
        comparisons: other.map(comparison).into_iter().collect(),
        machine: None,
        guests: None,
        hosts: None,
        attached: None,
        factors: vec![],
        subplans: vec![],
    })
}
