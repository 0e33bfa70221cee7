//! A run of a probe that measures this machine alone, without a server.

use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;

use anyhow::Result;
use nm_campaign::schedule::Schedule;
use nm_campaign::trial::{Completed, TrialContext, TrialResult};
use nm_campaign::{Destination, OnFailure, RunName};
use nm_lab::agent::Handle;
use nm_lab::pair::Pair;
use nm_lab::trial::{self, Options};
use nm_model::plan::EnvironmentKind;
use nm_model::{Campaign, Failure, FailureKind, ProbeSpec, RowId, Side, Stack, StackPair, Target};
use nm_report::units;

use crate::campaign;
use crate::campaign::finished::FinishedRun;
use crate::campaign::show::Show;
use crate::cli::format::ShowArgs;
use crate::commands::targets;
use crate::exit::Stop;

/// Name of this machine as an environment of series.
const ENVIRONMENT: &str = "host";

/// What all such runs have in common.
pub struct MachineRun<'a> {
    /// Targets of the command line.
    pub targets: &'a [Target],
    /// The result folder, if one is wanted.
    pub out: Option<&'a Path>,
    /// How the result is shown.
    pub show: &'a ShowArgs,
    /// Rounds.
    pub rounds: u32,
}

impl MachineRun<'_> {
    /// Measures `probe` in rounds, and judges the targets.
    ///
    /// # Errors
    /// Usage, for targets that the probe cannot meet; the first failure.
    pub fn measure(&self, probe: &ProbeSpec) -> Result<FinishedRun> {
        let show = Show::of(self.show)?;
        let stacks = StackPair::same(Stack::CPU);
        let (kind, rounds) = (probe.kind(), self.rounds);
        let plan = targets::plan(self.targets, probe, &stacks, rounds)
            .map_err(|fault| Stop::usage(fault.to_string()))?;
        let destination = self.out.map_or(Destination::Memory, Destination::Folder);
        let name = RunName::Fixed(format!("{kind} of this machine"));
        let mut runner =
            campaign::begin(name, &destination, Options::new(1), OnFailure::Abort, show)?;
        if let Some(plan) = plan {
            runner.recorder.plan(&Campaign::without_rows(plan));
        }
        // The server has nothing to do.
        let agents = (Handle::local("the client")?, Handle::local("the server")?);
        let own = IpAddr::from(Ipv4Addr::LOCALHOST);
        let mut pair = Pair::over_network(ENVIRONMENT, agents, (own, own))?;
        runner.recorder.facts(ENVIRONMENT, Side::Client, pair.facts(Side::Client).clone());
        let what = format!("{kind}, {}", units::plural(rounds as usize, "round", "rounds"));
        let schedule = Schedule::of_rounds(probe, EnvironmentKind::Loopback, rounds);
        runner.show_progress(&what, schedule);
        for round in 0..rounds {
            let label = format!("round {}/{rounds}  {kind}", round + 1);
            let row = RowId {
                environment: ENVIRONMENT.to_string(),
                stack: stacks.to_string(),
                probe: kind,
                case: None,
                round: Some(round),
                factor: None,
            };
            let goes_on = runner
                .trial(&label, &row, |context| run_round(&mut pair, probe, round, context))?;
            if !goes_on {
                break;
            }
        }
        pair.close();
        FinishedRun::of(runner, show)
    }
}

fn run_round(
    pair: &mut Pair,
    probe: &ProbeSpec,
    round: u32,
    context: &TrialContext<'_>,
) -> TrialResult {
    let stacks = StackPair::same(Stack::CPU);
    let mut show = |now| context.estimate(now);
    let (options, interrupted) = (context.options, context.interrupted);
    match trial::run(pair, &stacks, probe, round, options, &mut show, interrupted) {
        Ok(trial::Outcome { measured, skipped, .. }) if measured.is_empty() => {
            // Without any figure there is nothing to show.
            let reasons = skipped.iter().map(|(case, why)| format!("{case}: not available: {why}"));
            let message = reasons.collect::<Vec<_>>().join("; ");
            let failure = Failure::new(FailureKind::NotAvailable, message);
            TrialResult::Failed { measured, case: None, failure }
        }
        Ok(trial::Outcome { measured, skipped, .. }) => {
            for (case, reason) in skipped.iter().filter(|_| round == 0) {
                context.message(&format!("{case}: not available: {reason}"));
            }
            TrialResult::Completed(Completed { measured, skipped, ..Completed::default() })
        }
        Err(ended) => {
            let trial::Interrupted { completed, case, failure } = *ended;
            TrialResult::Failed { measured: completed.measured, case, failure }
        }
    }
}
