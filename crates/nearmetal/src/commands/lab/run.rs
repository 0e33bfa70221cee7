//! `nearmetal lab run`: a campaign of a built-in plan over pairs of virtual machines.

use anyhow::Result;
use nm_campaign::environments::EnvironmentPool;
use nm_campaign::{Destination, OnFailure, RunName};
use nm_lab::trial::Options;
use nm_report::units;

use crate::campaign;
use crate::campaign::finished::FinishedRun;
use crate::campaign::show::Show;
use crate::cli::lab::run::LabRunArgs;
use crate::commands::lab::run_plan;
use crate::commands::qualify;
use crate::exit::{Exit, Stop};
use crate::output;

pub fn run(args: &LabRunArgs) -> Result<Exit> {
    let show = Show::of(&args.show)?;
    let campaign = qualify::resolve(run_plan::plan(args)?, None);
    if campaign.trials.is_empty() {
        let reasons: Vec<String> = campaign
            .not_available
            .iter()
            .map(|row| format!("{}/{}: {}", row.environment, row.stack, row.reason))
            .collect();
        let reason = reasons.first().cloned().unwrap_or_default();
        let message = format!("no environment can be made here: {reason}");
        return Err(Stop::with(Exit::Environment, message));
    }
    if !args.show.extent.quiet {
        for reason in run_plan::reasons(&campaign) {
            output::message(&format!("nearmetal: {reason}"));
        }
        let rows = units::plural(campaign.trials.len(), "trial", "trials");
        output::message(&format!("nearmetal: {rows}; guests are started as they are needed"));
    }
    let name = RunName::WithTime(format!("lab-{}", nm_host::facts().host.name));
    let destination = Destination::folder_or_new(args.out.as_deref());
    let options = Options::new(campaign.plan.seed);
    let mut runner = campaign::begin(name, &destination, options, OnFailure::Continue, show)?;
    runner.recorder.plan(&campaign);
    runner.recorder.audit(qualify::audit_of_this_machine());
    let pool = EnvironmentPool::new(false).with_guests(campaign.plan.guests.as_ref());
    qualify::run_trials(&mut runner, &campaign, pool)?;
    let run = FinishedRun::of(runner, show)?;
    run.show()?;
    run.check_measured()?;
    // There are no targets: what counts is whether all was measured.
    Ok(match (run.is_complete(), run.result.failures.is_empty()) {
        (false, _) => run.exit(),
        (true, true) => Exit::Pass,
        (true, false) => Exit::Inconclusive,
    })
}
