//! The course of a campaign: environments up, trials in order, failures kept to the trial they
//! belong to, everything down again.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use nm_lab::environment::{self, Environment, Setup};
use nm_lab::trial::{self, Options};
use nm_model::plan::EnvironmentKind;
use nm_model::{
    Campaign, Case, ExchangeSpec, Failure, FailureKind, Launcher, NotAvailable, ProbeSpec, RowId,
    Side, StackPair, Trial,
};

use crate::progress::Progress;
use crate::recorder::Recorder;

/// Failures in a row after which an environment is given up.
const FAILURES_MAX: u32 = 3;

/// What trials share agents by: agents under a launcher are others than those without.
type Place = (EnvironmentKind, Option<Launcher>, Option<Launcher>);

/// Environments that run, and how often each has failed in a row.
#[derive(Default)]
struct Places {
    running: BTreeMap<Place, Environment>,
    failures: BTreeMap<Place, u32>,
    given_up: BTreeMap<Place, String>,
}

fn place(environment: EnvironmentKind, stacks: &StackPair) -> Place {
    (environment, stacks.client.launcher, stacks.server.launcher)
}

/// Runs every trial. Answers whether all were tried; if not, the user ended it.
///
/// # Errors
/// Only if the result cannot be kept: what fails in a trial is recorded with it.
pub fn run(
    campaign: &Campaign,
    options: &Options,
    ipv6: bool,
    recorder: &mut Recorder,
    interrupted: &AtomicBool,
) -> anyhow::Result<bool> {
    let log_folder = recorder.path();
    let duration_s = campaign.trials.iter().map(|trial| trial.probe.duration_s()).sum();
    let mut progress = Progress::new(duration_s);
    let mut places = Places::default();
    let mut is_whole = true;
    for trial in &campaign.trials {
        if interrupted.load(Ordering::Relaxed) {
            is_whole = false;
            break;
        }
        progress.begin(trial, campaign.plan.rounds);
        match places.run(trial, options, ipv6, log_folder.as_deref(), &progress, interrupted) {
            Tried::Measured(outcome, facts) => {
                for (side, facts) in facts {
                    recorder.facts(trial.environment.name(), side, facts);
                }
                recorder.skipped(trial, outcome.skipped);
                recorder.add(outcome.measured)?;
            }
            Tried::Exchange(measured, trouble) => {
                recorder.facts(trial.environment.name(), Side::Client, nm_host::facts());
                recorder.add(vec![*measured])?;
                for reason in trouble {
                    let row =
                        RowId::of_trial(trial).with_case(trial.probe.cases().first().copied());
                    progress.message(&format!("{row}: {reason}"));
                    recorder.failed(row, reason)?;
                }
            }
            Tried::Failed(measured, case, failure) => {
                recorder.add(measured)?;
                if failure.kind == FailureKind::Cancelled {
                    is_whole = false;
                    break;
                }
                let row = RowId::of_trial(trial).with_case(case);
                progress.message(&format!("{row}: {failure}"));
                recorder.failed(row, failure.to_string())?;
            }
            Tried::NotAvailable(reason) => recorder.not_available(NotAvailable {
                environment: trial.environment,
                stack: trial.stack,
                probe: trial.probe.kind(),
                reason,
            })?,
        }
        progress.end(trial);
    }
    progress.finish();
    Ok(is_whole)
}

fn start(trial: &Trial, ipv6: bool, log_folder: Option<&Path>) -> Result<Environment, Failure> {
    let mut setup = Setup::new(&trial.stack);
    if let Some(folder) = log_folder {
        setup = setup.log_folder(folder);
    }
    let mut environment = environment::start(trial.environment, &setup)?;
    environment.use_ipv6(ipv6)?;
    Ok(environment)
}

/// One round of the exchange, which has a network of its own and needs no agents.
fn exchange(
    trial: &Trial,
    spec: &ExchangeSpec,
    options: &Options,
    log_folder: Option<&Path>,
    interrupted: &AtomicBool,
) -> Tried {
    let all = log_folder.map_or_else(std::env::temp_dir, |folder| folder.join("exchange"));
    let folder = all.join(format!("round-{}", trial.round + 1));
    let seed = options.seed.wrapping_add(u64::from(trial.round));
    let setup = nm_lab::exchange::setup(spec, &trial.stack, seed, &folder);
    let tried =
        setup.and_then(|setup| nm_lab::exchange::run(&setup, trial.round, options, interrupted));
    if log_folder.is_some() {
        // Stays where a node's log tells something.
        let _ = std::fs::remove_dir(&all);
    }
    match tried {
        Ok((measured, trouble)) => Tried::Exchange(Box::new(measured), trouble),
        Err(failure) => Tried::Failed(vec![], trial.probe.cases().first().copied(), failure),
    }
}

enum Tried {
    Measured(trial::Outcome, Vec<(Side, nm_model::Facts)>),
    /// What was measured before, the case that failed, and why.
    Failed(Vec<trial::Measured>, Option<Case>, Failure),
    /// A round of the exchange, and what else happened.
    Exchange(Box<trial::Measured>, Vec<String>),
    NotAvailable(String),
}

impl Places {
    fn run(
        &mut self,
        trial: &Trial,
        options: &Options,
        ipv6: bool,
        log_folder: Option<&Path>,
        progress: &Progress,
        interrupted: &AtomicBool,
    ) -> Tried {
        if let ProbeSpec::Exchange(spec) = &trial.probe {
            return exchange(trial, spec, options, log_folder, interrupted);
        }
        let place = place(trial.environment, &trial.stack);
        if let Some(reason) = self.given_up.get(&place) {
            return Tried::NotAvailable(reason.clone());
        }
        let environment = match self.running.entry(place) {
            Entry::Occupied(running) => running.into_mut(),
            Entry::Vacant(vacant) => match start(trial, ipv6, log_folder) {
                Ok(environment) => vacant.insert(environment),
                Err(failure) => {
                    self.given_up.insert(place, failure.to_string());
                    return Tried::NotAvailable(failure.to_string());
                }
            },
        };
        let mut show = |now: trial::Progress| progress.estimate(now.statistic, now.value);
        let (stack, probe, round) = (&trial.stack, &trial.probe, trial.round);
        let pair = &mut environment.pair;
        match trial::run(pair, stack, probe, round, options, &mut show, interrupted) {
            Ok(outcome) => {
                let facts =
                    [Side::Client, Side::Server].map(|side| (side, pair.facts(side).clone()));
                self.failures.remove(&place);
                Tried::Measured(outcome, facts.into())
            }
            Err(ended) => {
                // Agents that failed once are not trusted again.
                self.running.remove(&place);
                let failures = self.failures.entry(place).or_default();
                *failures += 1;
                if *failures >= FAILURES_MAX {
                    let reason = format!("failed {failures} times in a row: {}", ended.failure);
                    self.given_up.insert(place, reason);
                }
                Tried::Failed(ended.completed.measured, ended.case, ended.failure)
            }
        }
    }
}
