//! Identifiers of the parts of a result: a row of the plan, and an endpoint of an environment.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::campaign::Trial;
use crate::probe::{Case, ProbeKind, Side};

/// One row of a plan, or one case and one round of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RowId {
    /// Environment, as in a series' key.
    pub environment: String,
    /// Stack, as in a series' key: for the exchange its layout.
    pub stack: String,
    /// The probe.
    pub probe: ProbeKind,
    /// One case of the row; absent for all cases.
    #[serde(default)]
    pub case: Option<Case>,
    /// One round, counted from 0; absent for all rounds.
    #[serde(default)]
    pub round: Option<u32>,
    /// The factor that it was measured with, by name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub factor: Option<String>,
}

impl RowId {
    /// The row and round of a trial, with the environment and stack of its series' keys.
    pub fn of_trial(trial: &Trial) -> RowId {
        RowId {
            environment: trial.environment.to_string(),
            stack: trial.probe.stack_name(&trial.stack),
            probe: trial.probe.kind(),
            case: None,
            round: Some(trial.round),
            factor: trial.factor.as_ref().map(|factor| factor.name.clone()),
        }
    }

    /// The same row, narrowed to one case.
    #[must_use]
    pub fn with_case(self, case: Option<Case>) -> RowId {
        RowId { case, ..self }
    }
}

/// `round 2 of netns/tcp-spin pingpong 64 B`.
impl fmt::Display for RowId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(round) = self.round {
            write!(f, "round {} of ", u64::from(round) + 1)?;
        }
        write!(f, "{}/{} {}", self.environment, self.stack, self.probe)?;
        if let Some(case) = &self.case {
            write!(f, " {case}")?;
        }
        match &self.factor {
            Some(factor) => write!(f, " with factor {factor}"),
            None => Ok(()),
        }
    }
}

/// One endpoint of an environment.
#[derive(
    Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
pub struct EndpointId {
    /// Name of the environment.
    pub environment: String,
    /// Which of its two endpoints.
    pub side: Side,
}

impl EndpointId {
    /// The endpoint `side` of `environment`.
    pub fn new(environment: impl Into<String>, side: Side) -> EndpointId {
        EndpointId { environment: environment.into(), side }
    }
}

/// `netns client`.
impl fmt::Display for EndpointId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.environment, self.side)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_shown_with_round_stack_probe_and_case() {
        let row = RowId {
            environment: "netns".into(),
            stack: "tcp-spin".into(),
            probe: ProbeKind::Pingpong,
            case: None,
            round: Some(1),
            factor: None,
        };
        assert_eq!(row.to_string(), "round 2 of netns/tcp-spin pingpong");
        let row = RowId { round: None, ..row.with_case(Some(Case::Message { size_bytes: 64 })) };
        assert_eq!(row.to_string(), "netns/tcp-spin pingpong 64 B");
        let row = RowId { factor: Some("held".into()), ..row };
        assert_eq!(row.to_string(), "netns/tcp-spin pingpong 64 B with factor held");
    }
}
