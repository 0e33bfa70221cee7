//! A trend: the figures of several results in the order of their start.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::doubt::DoubtKind;
use crate::metric::Metric;
use crate::result::{RunState, SeriesKey};
use crate::stack::Difference;
use crate::verdict::{Comparison, Interval};

/// Several results, series by series.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Trend {
    /// The results in the order of their start; those without a known start come first, as given.
    pub results: Vec<TrendResult>,
    /// One entry for each series and figure, in order of first appearance.
    pub lines: Vec<TrendLine>,
    /// Sentences about series that have no entry in a result because its guests were emulated.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refused: Vec<String>,
    /// The last result against the first; only if figures were named that decide.
    pub last_against_first: Option<Comparison>,
}

/// One of the results of a trend.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TrendResult {
    /// Name as the user gave it, such as the folder.
    pub name: String,
    /// Start, RFC 3339 in UTC, if known.
    pub started: Option<String>,
    /// Name of the plan, if there was one.
    pub plan: Option<String>,
    /// Whether the run is complete.
    pub state: RunState,
    /// Facts in which its machines differ from those of the result before it.
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
    /// Divided by the figure of the first result that has one; absent for that result.
    pub ratio_to_first: Option<f64>,
    /// Divided by the figure of the last result before it that has one.
    pub ratio_to_previous: Option<f64>,
    /// Properties that are not like for like with the first result that has the series.
    pub differences: Vec<Difference>,
    /// Reasons to distrust the figure.
    pub doubts: Vec<DoubtKind>,
}

impl TrendLine {
    /// The figures of the first and of the last result that have one, and their ratio; nothing if
    /// fewer than two have one.
    pub fn first_and_last(&self) -> Option<(&TrendPoint, &TrendPoint, f64)> {
        let first = self.points.iter().find(|point| point.value.is_some())?;
        let last = self.points.iter().rfind(|point| point.ratio_to_first.is_some())?;
        Some((first, last, last.ratio_to_first?))
    }
}
