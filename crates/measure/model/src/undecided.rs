//! Why a run that missed targets, or lost trials, decides nothing. The judge sets it once; every
//! report and the exit code follow it.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::row::RowId;

/// Why the outcome of a run is open although targets were missed or trials were run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Undecided {
    /// Figures missed their targets while other programs took more CPU time than the plan allows.
    /// The user can end those programs, so the failure is not the machine's.
    OtherPrograms {
        /// Targets that were missed.
        n_missed: u32,
        /// CPU time of programs outside the run, % of one CPU.
        percent: f64,
        /// The limit, % of one CPU.
        limit_percent: f64,
    },
    /// A trial failed, and targets have no figure for it.
    Lost {
        /// What failed first; absent if only the reason is known.
        row: Option<RowId>,
        /// Why, as one sentence.
        reason: String,
        /// Rounds of the plan.
        n_rounds: u32,
        /// Targets without a decision.
        n_undecided: u32,
        /// Targets in all.
        n_targets: u32,
    },
    /// The user ended the run before the targets could be decided.
    Interrupted {
        /// Targets without a decision.
        n_undecided: u32,
        /// Targets in all.
        n_targets: u32,
    },
}

impl Undecided {
    /// Whether figures missed targets, which does not count here.
    pub fn is_disturbed(&self) -> bool {
        matches!(self, Undecided::OtherPrograms { .. })
    }
}

/// `Nothing decided: the agent on host bob ended in round 2 of 5`.
impl fmt::Display for Undecided {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Undecided::OtherPrograms { percent, limit_percent, .. } => write!(
                f,
                "programs outside the run used {percent:.0} % of a CPU (limit {limit_percent} %)"
            ),
            Undecided::Lost { row, reason, n_rounds, n_undecided, n_targets } => {
                // What to do stands after the cause.
                let cause = reason.split("; ").next().unwrap_or(reason).trim_end_matches('.');
                write!(f, "{}: {cause}", share(*n_undecided, *n_targets))?;
                match row.as_ref().and_then(|row| row.round) {
                    Some(round) => write!(f, " in round {} of {n_rounds}", u64::from(round) + 1),
                    None => Ok(()),
                }
            }
            Undecided::Interrupted { n_undecided, n_targets } => {
                write!(f, "{}: the run was interrupted", share(*n_undecided, *n_targets))
            }
        }
    }
}

fn share(n_undecided: u32, n_targets: u32) -> String {
    match n_undecided >= n_targets {
        true => "Nothing decided".to_string(),
        false => format!("{n_undecided} of {n_targets} targets not decided"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::probe::ProbeKind;

    #[test]
    fn the_cause_stands_with_its_round_and_without_its_hint() {
        let row = RowId {
            environment: "ssh".into(),
            stack: "tcp-spin".into(),
            probe: ProbeKind::Pingpong,
            case: None,
            round: Some(1),
            factor: None,
        };
        let lost = |n_undecided| Undecided::Lost {
            row: Some(row.clone()),
            reason: "host bob was lost; look whether it runs".into(),
            n_rounds: 5,
            n_undecided,
            n_targets: 3,
        };
        assert_eq!(lost(3).to_string(), "Nothing decided: host bob was lost in round 2 of 5");
        assert!(lost(1).to_string().starts_with("1 of 3 targets not decided: host bob"));
        let text = serde_json::to_string(&lost(3)).unwrap();
        assert_eq!(serde_json::from_str::<Undecided>(&text).unwrap(), lost(3));
    }
}
