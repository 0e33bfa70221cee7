//! What shows that a factor was in force in a trial.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::row::RowId;

/// What showed in one trial that the factor was in force.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct FactorCheck {
    /// Row, case if the trial has several, and round.
    pub row: RowId,
    /// Whether it was; absent if nothing tells.
    pub is_in_force: Option<bool>,
    /// What was read, in the order of weight.
    pub evidence: Vec<FactorEvidence>,
}

/// Something that was read during a trial with a factor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FactorEvidence {
    /// What was read: a file, a counter.
    pub source: String,
    /// Its value or change, with the unit.
    pub value: String,
}

impl FactorEvidence {
    /// Evidence of `source`.
    pub fn new(source: impl Into<String>, value: impl Into<String>) -> FactorEvidence {
        FactorEvidence { source: source.into(), value: value.into() }
    }
}
