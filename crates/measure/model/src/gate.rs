//! A gate: a run against the accepted runs of its machine.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::baseline::{FigureKey, MachineIdentity};
use crate::doubt::DoubtKind;
use crate::verdict::{Interval, Outcome, Relation};

/// What a gate found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Gate {
    /// The run that was tested.
    pub run: AcceptedRun,
    /// Its machine.
    pub machine: MachineIdentity,
    /// The accepted runs that it was tested against, oldest first.
    pub baselines: Vec<AcceptedRun>,
    /// Ratio that counts as equal, %.
    pub margin_percent: f64,
    /// Standard deviation between runs that is assumed beside what the accepted runs show, %.
    pub run_deviation_percent: f64,
    /// Whether the user stated it.
    pub is_stated: bool,
    /// The primary figures.
    pub figures: Vec<GateFigure>,
    /// Doubts about the run and its primary series.
    pub doubts: Vec<DoubtKind>,
    /// Fail if a figure is worse, pass if none is by more than the gate can find.
    pub outcome: Outcome,
    /// Sentences, the deciding one first.
    pub reasons: Vec<String>,
}

/// A run by its name and start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct AcceptedRun {
    /// Name.
    pub name: String,
    /// Start, RFC 3339 in UTC, if known.
    pub started: Option<String>,
}

/// One primary figure of a gate.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct GateFigure {
    /// What it is of.
    pub key: FigureKey,
    /// Accepted runs that have it like for like.
    pub n_baselines: u32,
    /// Geometric mean of their medians over rounds, in the metric's unit.
    pub baseline: Option<f64>,
    /// Median over rounds of the run, in the metric's unit.
    pub value: Option<f64>,
    /// The run divided by its baselines.
    pub ratio: Option<f64>,
    /// One-sided bounds of the ratio, corrected for the number of figures.
    pub bounds: Option<Interval>,
    /// Standard deviation between runs that was learned or assumed, %.
    pub run_deviation_percent: f64,
    /// Smallest slowdown that one run finds in 95 of 100, %.
    pub finds_percent: f64,
    /// Smallest slowdown that one of two runs finds in 95 of 100, %.
    pub finds_by_two_percent: f64,
    /// Whether a side has fewer than five rounds, so that the scatter of its rounds is assumed.
    pub has_few_rounds: bool,
    /// How the run stands to its baselines.
    pub relation: Relation,
}
