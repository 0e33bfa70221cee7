//! Trials between agents. Environments are started when the first trial needs them and kept for the
//! others; one that fails repeatedly is given up.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use nm_lab::environment::{self, Environment, Setup};
use nm_lab::factor::{self, InForce};
use nm_lab::resolve;
use nm_lab::trial::{self, Measured};
use nm_model::environment::Distance;
use nm_model::plan::EnvironmentKind;
use nm_model::{
    AttachedSpec, ExchangeSpec, Failure, FailureKind, GuestSpec, HostsSpec, Launcher, NotAvailable,
    ProbeSpec, RowId, Side, StackPair, Trial,
};

use crate::exchange_round;
use crate::trial::{Completed, TrialContext, TrialResult};
use crate::tuned_step::TunedStep;

/// Failures in a row after which an environment is given up.
const FAILURES_MAX: u32 = 3;

/// Trials with the same key share agents: agents under a launcher are others than those without.
type AgentsKey = (EnvironmentKind, Option<Launcher>, Option<Launcher>);

/// Why an environment cannot be used.
struct Unavailable {
    reason: String,
    /// Whether it was started before.
    has_failed: bool,
}

/// Running environments, and how often each has failed in a row.
#[derive(Default)]
pub struct EnvironmentPool {
    use_ipv6: bool,
    /// The virtual machines of the plan.
    guests: GuestSpec,
    /// The hosts of the plan.
    hosts: Option<HostsSpec>,
    /// The attached guests of the plan.
    attached: Option<AttachedSpec>,
    /// Whether factors may change settings of the machine.
    may_change_machine: bool,
    running: BTreeMap<AgentsKey, Environment>,
    failures: BTreeMap<AgentsKey, u32>,
    /// Environments that have been started.
    has_run: BTreeSet<AgentsKey>,
    /// Environments that cannot be started, and those that were given up.
    unavailable: BTreeMap<AgentsKey, Unavailable>,
}

impl EnvironmentPool {
    /// A pool whose agents reach each other by IPv6 or IPv4.
    pub fn new(use_ipv6: bool) -> EnvironmentPool {
        EnvironmentPool { use_ipv6, ..EnvironmentPool::default() }
    }

    /// The pool with or without the right to change settings of the machine for a trial.
    pub fn changing_machine(self, may_change_machine: bool) -> EnvironmentPool {
        EnvironmentPool { may_change_machine, ..self }
    }

    /// The pool with virtual machines as `guests` says.
    pub fn with_guests(self, guests: Option<&GuestSpec>) -> EnvironmentPool {
        EnvironmentPool { guests: guests.cloned().unwrap_or_default(), ..self }
    }

    /// The pool with the hosts of the environment `ssh`.
    pub fn with_hosts(self, hosts: Option<&HostsSpec>) -> EnvironmentPool {
        EnvironmentPool { hosts: hosts.cloned(), ..self }
    }

    /// The pool with the guests of the environment `vm-attached`.
    pub fn with_attached(self, attached: Option<&AttachedSpec>) -> EnvironmentPool {
        EnvironmentPool { attached: attached.cloned(), ..self }
    }

    /// Runs one trial of a plan.
    pub fn run(&mut self, trial: &Trial, context: &TrialContext<'_>) -> TrialResult {
        if let ProbeSpec::Exchange(spec) = &trial.probe {
            return run_exchange(trial, spec, context);
        }
        let stacks = match stacks_of(trial) {
            Ok(stacks) => stacks,
            Err(reason) => return not_available(trial, &Unavailable { reason, has_failed: false }),
        };
        let key = (trial.environment, stacks.client.launcher, stacks.server.launcher);
        if let Some(reason) = self.unavailable.get(&key) {
            return not_available(trial, reason);
        }
        let (guests, hosts) = (self.guests.clone(), self.hosts.clone());
        let interrupted = Some(Arc::clone(context.interrupted));
        let attached = self.attached.clone();
        let mut setup = Setup { guests, hosts, attached, interrupted, ..Setup::new(&stacks) };
        if let Some(folder) = context.folder {
            setup = setup.log_folder(folder);
        }
        self.pause_others(key);
        let environment = match self.running.entry(key) {
            Entry::Occupied(running) => {
                let environment = running.into_mut();
                environment.resume();
                environment
            }
            Entry::Vacant(vacant) => match start(trial, setup, self.use_ipv6) {
                Ok(environment) => {
                    self.has_run.insert(key);
                    record_guests(&environment, context);
                    vacant.insert(environment)
                }
                Err(failure) if failure.kind == FailureKind::Cancelled => {
                    return TrialResult::Failed { measured: vec![], case: None, failure };
                }
                Err(failure) => {
                    let has_failed = self.has_run.contains(&key);
                    if has_failed && trial.environment.distance() == Distance::Hosts {
                        // A host that was cut off may be back at the next trial.
                        self.count_failure(key, &failure);
                        return TrialResult::Failed { measured: vec![], case: None, failure };
                    }
                    let reason = Unavailable { reason: failure.to_string(), has_failed };
                    let result = not_available(trial, &reason);
                    self.unavailable.insert(key, reason);
                    return result;
                }
            },
        };
        match run_between(environment, trial, &stacks, context, self.may_change_machine) {
            Ok(completed) => {
                self.failures.remove(&key);
                TrialResult::Completed(completed)
            }
            Err(Ended::NotAvailable(reason)) => {
                not_available(trial, &Unavailable { reason, has_failed: false })
            }
            Err(Ended::Failed(ended)) => {
                self.count_failure(key, &ended.failure);
                let trial::Interrupted { completed, case, failure } = *ended;
                let measured = named_by_row(completed.measured, trial);
                TrialResult::Failed { measured, case, failure }
            }
        }
    }

    /// Guests take CPU time even while they wait.
    fn pause_others(&mut self, key: AgentsKey) {
        for (_, environment) in self.running.iter_mut().filter(|(other, _)| **other != key) {
            environment.pause();
        }
    }

    /// Stops the agents of a failed trial, and gives the environment up if it failed too often.
    fn count_failure(&mut self, key: AgentsKey, failure: &Failure) {
        self.running.remove(&key);
        let failures = self.failures.entry(key).or_default();
        *failures += 1;
        if *failures >= FAILURES_MAX {
            let reason = format!("failed {failures} times in a row: {failure}");
            self.unavailable.insert(key, Unavailable { reason, has_failed: true });
        }
    }
}

/// Records what guests are and run on as soon as they are ready.
fn record_guests(environment: &Environment, context: &TrialContext<'_>) {
    let Some(guests) = &environment.guests else { return };
    context.guests(guests.record());
    for side in [Side::Client, Side::Server] {
        context.facts(environment.kind.name(), side, environment.pair.facts(side));
    }
    // Whatever the trial gives is written after it, and a failure is reported then.
    let _ = context.save();
}

/// Why a trial has no result.
enum Ended {
    /// Its factor cannot be switched on.
    NotAvailable(String),
    Failed(Box<trial::Interrupted>),
}

/// The stacks of a trial, with its factor.
fn stacks_of(trial: &Trial) -> Result<StackPair, String> {
    let Trial { environment, stack, probe, factor: Some(factor), .. } = trial else {
        return Ok(trial.stack);
    };
    if let Some(reason) = factor::unavailable_reason(factor, *environment, stack) {
        return Err(reason.to_string());
    }
    let stacks = factor.kind.stacks(stack).unwrap_or(*stack);
    match resolve::unavailable_reason(*environment, &stacks, probe.kind()) {
        Some(reason) => Err(reason.to_string()),
        None => Ok(stacks),
    }
}

/// Runs a trial between two agents, with its factor in force until it has ended.
fn run_between(
    environment: &mut Environment,
    trial: &Trial,
    stacks: &StackPair,
    context: &TrialContext<'_>,
    may_change_machine: bool,
) -> Result<Completed, Ended> {
    let tuned = TunedStep::of_trial(trial, may_change_machine, context.display)
        .map_err(|reason| Ended::NotAvailable(reason.to_string()))?;
    let pair = &mut environment.pair;
    let in_force = match &trial.factor {
        None => None,
        Some(factor) => {
            let begun = InForce::begin(factor, &trial.stack, pair, context.options);
            Some(begun.map_err(|reason| Ended::NotAvailable(reason.to_string()))?)
        }
    };
    let of_factor = in_force.as_ref().map(|factor| factor.options(context.options));
    let options = of_factor.as_ref().unwrap_or(context.options);
    let mut show = |now| context.estimate(now);
    let (probe, round, interrupted) = (&trial.probe, trial.round, context.interrupted);
    let outcome = trial::run(pair, stacks, probe, round, options, &mut show, interrupted);
    let first_result = match &outcome {
        Ok(outcome) => outcome.first_result,
        Err(interrupted) => interrupted.completed.first_result,
    };
    if let (Some(guests), Some(at)) = (&mut environment.guests, first_result) {
        guests.note_result(at);
        context.guests(guests.record());
    }
    let trial::Outcome { measured, skipped, .. } = outcome.map_err(Ended::Failed)?;
    let mut shown = in_force.map(|factor| factor.finish(row_of(trial), pair, &measured));
    let mut incidents = vec![];
    if let (Some(tuned), Some(shown)) = (tuned, &mut shown) {
        let ended = tuned.finish();
        (shown.check.is_in_force, shown.check.evidence) = (ended.is_in_force, ended.evidence);
        incidents.extend(ended.left_open);
    }
    let facts = [Side::Client, Side::Server].map(|side| (side, pair.facts(side).clone())).to_vec();
    let measured = named_by_row(measured, trial);
    Ok(Completed { measured, facts, skipped, shown, incidents })
}

/// The row of a trial, with its case if it has one only: a plan may have several such trials that
/// differ in nothing else.
fn row_of(trial: &Trial) -> RowId {
    let row = RowId::of_trial(trial);
    match trial.probe.cases()[..] {
        [case] => row.with_case(Some(case)),
        _ => row,
    }
}

/// Gives the series the stack of their row, which a factor may have changed for the trial.
fn named_by_row(mut measured: Vec<Measured>, trial: &Trial) -> Vec<Measured> {
    if trial.factor.is_some() {
        let name = trial.probe.stack_name(&trial.stack);
        measured.iter_mut().for_each(|one| one.key.stack.clone_from(&name));
    }
    measured
}

fn not_available(trial: &Trial, unavailable: &Unavailable) -> TrialResult {
    TrialResult::NotAvailable(NotAvailable {
        environment: trial.environment,
        stack: trial.stack,
        probe: trial.probe.kind(),
        reason: unavailable.reason.clone(),
        has_failed: unavailable.has_failed,
    })
}

fn start(trial: &Trial, setup: Setup, use_ipv6: bool) -> Result<Environment, Failure> {
    let mut environment = environment::start(trial.environment, &setup)?;
    environment.use_ipv6(use_ipv6)?;
    Ok(environment)
}

fn run_exchange(trial: &Trial, spec: &ExchangeSpec, context: &TrialContext<'_>) -> TrialResult {
    let failed = |failure| {
        let case = trial.probe.cases().first().copied();
        TrialResult::Failed { measured: vec![], case, failure }
    };
    let Some(folder) = context.folder else {
        let message = "an exchange needs a result folder for the logs of its nodes";
        return failed(Failure::new(FailureKind::BadRequest, message));
    };
    let all = folder.join("exchange");
    let folder = all.join(format!("round-{}", trial.round + 1));
    let seed = context.options.seed.wrapping_add(u64::from(trial.round));
    let result = match nm_lab::exchange::setup(spec, &trial.stack, seed, &folder) {
        Ok(setup) => exchange_round::run(&setup, trial.round, context),
        Err(failure) => failed(failure),
    };
    // It is removed only if it is empty: the logs of failed nodes are kept.
    let _ = std::fs::remove_dir(&all);
    result
}
