//! One trial: every case of a probe between two agents, merged into rounds of series.

pub(crate) mod accelerated;
mod case;
pub(crate) mod merge;
pub(crate) mod types;

use std::sync::atomic::AtomicBool;

use nm_model::capability::{case_obstacle, hosts_obstacle};
use nm_model::{Failure, FailureKind, ProbeKind, ProbeSpec, StackPair};
use nm_sys::process::Signal;

use nm_sys::clock::Moment;
pub use types::{Interrupted, Measured, Options, Outcome, Progress};

use crate::pair::Pair;
use case::CaseRun;

/// Runs every case of `probe` over `stacks` between the agents of `pair`.
///
/// `cancel` is checked at least every 100 ms: both ends then cancel their tasks, and the failure is
/// of kind cancelled. After any failure the agents that still run are ready for the next trial.
///
/// # Errors
/// The first failure, with the cases completed before it.
pub fn run(
    pair: &mut Pair,
    stacks: &StackPair,
    probe: &ProbeSpec,
    round: u32,
    options: &Options,
    progress: &mut dyn FnMut(Progress),
    cancel: &AtomicBool,
) -> Result<Outcome, Box<Interrupted>> {
    let mut outcome = Outcome::default();
    if let Some(reason) = hosts_obstacle(stacks, pair.is_on_one_host()) {
        let failure = Failure::new(FailureKind::NotAvailable, reason.to_string());
        return Err(Box::new(Interrupted { completed: outcome, case: None, failure }));
    }
    // A stopped guest takes no CPU time from the one that is measured.
    let is_divided = probe.kind() == ProbeKind::Stream;
    pair.signal_beside(if is_divided { Signal::CONT } else { Signal::STOP });
    let in_use = &pair.stacks_in_use(stacks);
    let cases = probe.cases();
    for (index, &case) in cases.iter().enumerate() {
        let undivided = || case::share(&case, pair.count_for(&case)).err();
        let obstacle = case_obstacle(stacks, &case).map(|reason| reason.to_string());
        if let Some(reason) = obstacle.or_else(undivided) {
            outcome.skipped.push((case, reason));
            continue;
        }
        let mut show = |statistic, value| {
            progress(Progress { case, index, cases: cases.len(), statistic, value });
        };
        let run = CaseRun { stacks, in_use, probe, case, round, options, cancel };
        match case::run(pair, &run, &mut show) {
            Ok(measured) => {
                outcome.first_result.get_or_insert_with(Moment::now);
                outcome.measured.extend(measured);
            }
            // What the machine cannot do in one case says nothing about the others.
            Err(failure)
                if failure.kind == FailureKind::NotAvailable && !probe.kind().uses_network() =>
            {
                outcome.skipped.push((case, failure.to_string()));
            }
            Err(failure) => {
                let case = Some(case);
                return Err(Box::new(Interrupted { completed: outcome, case, failure }));
            }
        }
    }
    Ok(outcome)
}
