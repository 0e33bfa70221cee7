//! A trend: the figures of several results, machine by machine, in the order of their start.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::baseline::MachineIdentity;
use crate::doubt::DoubtKind;
use crate::gate::Gate;
use crate::metric::Metric;
use crate::result::{RunState, SeriesKey};
use crate::stack::Difference;
use crate::verdict::{Interval, Outcome};

/// Several results, series by series.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Trend {
    /// The results: those of one machine together, in the order of their start. Those without a
    /// known start come first, as given.
    pub results: Vec<TrendResult>,
    /// One entry for each series and figure, in order of first appearance.
    pub lines: Vec<TrendLine>,
    /// Sentences about series that have no entry in a result because its guests were emulated.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refused: Vec<String>,
    /// Each result against those before it on its machine; none for the first ones.
    pub gates: Vec<TrendGate>,
}

impl Trend {
    /// Whether the results are of several machines.
    pub fn has_machines(&self) -> bool {
        self.results.windows(2).any(|pair| pair[0].machine != pair[1].machine)
    }

    /// The gate of the last result of each machine.
    pub fn last_gates(&self) -> impl Iterator<Item = &TrendGate> {
        self.gates.iter().filter(|gate| {
            let machine = |at: usize| self.results.get(at).map(|result| result.machine);
            machine(gate.result) != machine(gate.result + 1)
        })
    }

    /// Outcome of the last result of each machine: all must pass. Inconclusive if none has another
    /// one before it.
    pub fn outcome(&self) -> Outcome {
        Outcome::all(self.last_gates().map(|one| one.gate.outcome))
    }
}

/// A result against those before it on its machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TrendGate {
    /// Its place among the results, from 0.
    pub result: usize,
    /// What was found. Results that failed are not among its accepted runs.
    pub gate: Gate,
}

/// One of the results of a trend.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TrendResult {
    /// Name as the user gave it, such as the folder.
    pub name: String,
    /// Start, RFC 3339 in UTC, if known.
    pub started: Option<String>,
    /// Which machine, from 0.
    pub machine: usize,
    /// What is known of the machine.
    pub identity: MachineIdentity,
    /// Name of the plan, if there was one.
    pub plan: Option<String>,
    /// Whether the run is complete.
    pub state: RunState,
    /// Facts that changed since the result before it on its machine.
    pub changes: Vec<Difference>,
}

/// One figure of one series in every result.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TrendLine {
    /// The series, as in the first result that has it.
    pub series: SeriesKey,
    /// The figure.
    pub metric: Metric,
    /// One entry for each result, in the same order.
    pub points: Vec<TrendPoint>,
}

/// The figure in one result.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TrendPoint {
    /// Whether the result has the series.
    pub is_measured: bool,
    /// The figure over all rounds, in the metric's unit; absent if it is not known.
    pub value: Option<f64>,
    /// Its interval over rounds; absent below five rounds.
    pub interval: Option<Interval>,
    /// Rounds that have the figure.
    pub rounds: u32,
    /// Divided by the figure of the first result of its machine that has one; absent for that one.
    pub ratio_to_first: Option<f64>,
    /// Divided by the figure of the last result before it on its machine that has one.
    pub ratio_to_previous: Option<f64>,
    /// Properties that are not like for like with the first result of its machine that has the
    /// series.
    pub differences: Vec<Difference>,
    /// Reasons to distrust the figure.
    pub doubts: Vec<DoubtKind>,
}

impl TrendLine {
    /// Places of the first and of the last result of each machine that have the figure, and the
    /// ratio; none for a machine of which fewer than two have it.
    pub fn first_and_last(&self) -> Vec<(usize, usize, f64)> {
        let mut found: Vec<(usize, usize, f64)> = vec![];
        let mut first = None;
        for (at, point) in self.points.iter().enumerate().filter(|(_, one)| one.value.is_some()) {
            match (point.ratio_to_first, first) {
                (Some(ratio), Some(first)) => {
                    found.retain(|(known, ..)| *known != first);
                    found.push((first, at, ratio));
                }
                _ => first = Some(at),
            }
        }
        found
    }
}
