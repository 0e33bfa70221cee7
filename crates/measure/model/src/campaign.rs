//! A plan resolved on this machine: the ordered, interleaved trials, and what is not available.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::coverage::PlanPart;
use crate::environment::EnvironmentKind;
use crate::factor::Factor;
use crate::plan::{Plan, PlanRow};
use crate::probe::{ProbeKind, ProbeSpec};
use crate::stack::StackPair;

/// The trials of a plan that this machine can run, in the order in which they run.
#[derive(Debug, Clone, PartialEq)]
pub struct Campaign {
    /// The plan it came from, whole.
    pub plan: Plan,
    /// The part of the plan that it has, if that is not all.
    pub part: Option<PlanPart>,
    /// Trials in order: round by round, every second round backwards (A B B A).
    pub trials: Vec<Trial>,
    /// Rows of the plan that cannot run here, with the reason.
    pub not_available: Vec<NotAvailable>,
}

/// One probe over one stack in one environment, one round.
#[derive(Debug, Clone, PartialEq)]
pub struct Trial {
    /// Environment.
    pub environment: EnvironmentKind,
    /// Stacks of both ends.
    pub stack: StackPair,
    /// Probe with its parameters.
    pub probe: ProbeSpec,
    /// Round, counted from 0.
    pub round: u32,
    /// The factor that it is measured with, if it is.
    pub factor: Option<Factor>,
}

/// A row of the plan that cannot run on this machine or with this version.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct NotAvailable {
    /// Environment.
    pub environment: EnvironmentKind,
    /// Stacks of both ends.
    pub stack: StackPair,
    /// Probe.
    pub probe: ProbeKind,
    /// Why it cannot run and what it needs, as a clause that follows `not available: `.
    pub reason: String,
    /// Whether it was given up because trials in its environment had failed.
    #[serde(default, skip_serializing_if = "is_false")]
    pub has_failed: bool,
}

// Serde passes a reference.
#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_false(value: &bool) -> bool {
    !value
}

impl Campaign {
    /// A campaign of a plan whose trials are run in another way.
    pub fn without_rows(plan: Plan) -> Campaign {
        Campaign { plan, part: None, trials: vec![], not_available: vec![] }
    }

    /// Orders the rows of `plan` for which `unavailable` returns none. A row is one
    /// environment, stack and probe block; rows are interleaved by rounds, odd rounds in reverse
    /// order, so that slow changes of the machine affect all rows alike. Trials with factors
    /// follow the one without, so in odd rounds they come before it.
    pub fn resolve(
        plan: Plan,
        unavailable: impl FnMut(EnvironmentKind, &StackPair, ProbeKind) -> Option<String>,
    ) -> Campaign {
        Campaign::resolve_part(plan, None, unavailable)
    }

    /// The same with the rows of a part only.
    pub fn resolve_part(
        plan: Plan,
        part: Option<PlanPart>,
        mut unavailable: impl FnMut(EnvironmentKind, &StackPair, ProbeKind) -> Option<String>,
    ) -> Campaign {
        let mut rows = vec![];
        let mut not_available = vec![];
        let is_of_part =
            |row: &PlanRow<'_>| part.as_ref().is_none_or(|part| row.is_taken_by(&part.only));
        for row in plan.rows().into_iter().filter(is_of_part) {
            let (environment, stack, probe) = (row.environment, row.stacks, row.probe().kind());
            match unavailable(environment, &stack, probe) {
                Some(reason) => not_available.push(NotAvailable {
                    environment,
                    stack,
                    probe,
                    reason,
                    has_failed: false,
                }),
                None => {
                    let of_row = plan.factors.iter().filter(|factor| factor.covers_row(&row));
                    let levels = [None].into_iter().chain(of_row.map(Some));
                    rows.extend(levels.map(|factor| Trial {
                        environment,
                        stack,
                        probe: row.probe().clone(),
                        round: 0,
                        factor: factor.cloned(),
                    }));
                }
            }
        }
        let mut trials = Vec::with_capacity(rows.len() * plan.rounds as usize);
        for round in 0..plan.rounds {
            let mut order: Vec<_> = rows.iter().collect();
            if round % 2 == 1 {
                order.reverse();
            }
            trials.extend(order.into_iter().map(|trial| Trial { round, ..trial.clone() }));
        }
        Campaign { plan, part, trials, not_available }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_are_interleaved_abba_and_missing_rows_keep_their_reason() {
        let plan = Plan::parse(
            "name='x'\nrounds=2\n[[trials]]\nenvironments=['loopback','ssh']\n\
             stacks=['tcp-spin','udp-spin']\nprobe='pingpong'",
        )
        .unwrap();
        let campaign = Campaign::resolve(plan, |environment, _, _| {
            (environment == EnvironmentKind::Ssh).then(|| "no hypervisor".to_string())
        });
        let order: Vec<String> = campaign.trials.iter().map(|t| t.stack.to_string()).collect();
        assert_eq!(order, ["tcp-spin", "udp-spin", "udp-spin", "tcp-spin"]);
        assert_eq!(campaign.not_available.len(), 2);
        assert_eq!(campaign.not_available[0].reason, "no hypervisor");
    }

    #[test]
    fn factors_are_measured_beside_their_row_in_alternating_order() {
        let plan = Plan::parse(
            "name='x'\nrounds=2\n[[trials]]\nenvironments=['loopback']\n\
             stacks=['tcp-spin','tcp-blocking']\nprobe='pingpong'\nmax_ms=1000\nwarmup_ms=0\n\
             sizes=[64]\n[[factors]]\nname='held'\nkind='idle-states-held'\n\
             on='*/tcp-blocking'\n[[factors]]\nname='polled'\nkind='busy-poll'",
        )
        .unwrap();
        assert_eq!(plan.duration_s(), 2.0 * (1.0 + 3.0));
        let campaign = Campaign::resolve(plan, |_, _, _| None);
        let name = |trial: &Trial| trial.factor.as_ref().map_or("", |f| &f.name).to_string();
        let order: Vec<String> =
            campaign.trials.iter().map(|t| format!("{} {}", t.stack, name(t))).collect();
        let mut expected =
            vec!["tcp-spin ", "tcp-blocking ", "tcp-blocking held", "tcp-blocking polled"];
        let backwards: Vec<&str> = expected.iter().rev().copied().collect();
        expected.extend(backwards);
        assert_eq!(order, expected);
    }
}
