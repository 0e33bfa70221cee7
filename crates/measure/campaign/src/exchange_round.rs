//! One round of the exchange as a trial. It has a network of its own and needs no agents.

use nm_lab::exchange;
use nm_model::{Failure, ProbeKind, ProbeSpec, RowId, Side};
use nm_run::round::Setup;

use crate::trial::{Completed, TrialContext, TrialResult};

/// The row of a round.
pub fn row(setup: &Setup, round: u32) -> RowId {
    RowId {
        environment: exchange::environment(setup).name().to_string(),
        stack: exchange::stack_name(setup),
        probe: ProbeKind::Exchange,
        case: ProbeSpec::Exchange(setup.spec.clone()).cases().first().copied(),
        round: Some(round),
        factor: None,
    }
}

/// Runs a round.
pub fn run(setup: &Setup, round: u32, context: &TrialContext<'_>) -> TrialResult {
    match exchange::run(setup, round, context.options, context.interrupted) {
        Ok((measured, incidents)) => TrialResult::Completed(Completed {
            measured: vec![measured],
            facts: vec![(Side::Client, nm_host::facts())],
            incidents,
            ..Completed::default()
        }),
        Err(failure) => failed(setup, failure),
    }
}

fn failed(setup: &Setup, failure: Failure) -> TrialResult {
    TrialResult::Failed { measured: vec![], case: row(setup, 0).case, failure }
}
