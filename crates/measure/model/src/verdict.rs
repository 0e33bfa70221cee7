//! Verdicts: three values, each with its reason. Missing evidence is never a pass.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::comparison::{Detection, Ranges, SignificanceTest};
use crate::metric::Metric;
use crate::named_enum::named_enum;
use crate::stack::Difference;
use crate::target::Target;

named_enum!(
    /// Outcome of a verdict.
    Outcome, "outcome", {
        /// The evidence shows that the target is met.
        Pass = "pass",
        /// The evidence shows that it is not.
        Fail = "fail",
        /// The evidence shows neither.
        Inconclusive = "inconclusive",
    }
);

impl Outcome {
    /// Outcome of all: fail if one fails, else inconclusive if one is, else pass. None is
    /// inconclusive.
    pub fn all(outcomes: impl IntoIterator<Item = Outcome>) -> Outcome {
        let mut seen_any = false;
        let mut result = Outcome::Pass;
        for outcome in outcomes {
            seen_any = true;
            result = match (result, outcome) {
                (Outcome::Fail, _) | (_, Outcome::Fail) => Outcome::Fail,
                (Outcome::Inconclusive, _) | (_, Outcome::Inconclusive) => Outcome::Inconclusive,
                _ => Outcome::Pass,
            };
        }
        if seen_any { result } else { Outcome::Inconclusive }
    }

    /// Outcome if one pass is enough: pass if one passes, else inconclusive if one is, else fail.
    /// None is inconclusive.
    pub fn any(outcomes: impl IntoIterator<Item = Outcome>) -> Outcome {
        let mut seen_any = false;
        let mut result = Outcome::Fail;
        for outcome in outcomes {
            seen_any = true;
            result = match (result, outcome) {
                (Outcome::Pass, _) | (_, Outcome::Pass) => Outcome::Pass,
                (Outcome::Inconclusive, _) | (_, Outcome::Inconclusive) => Outcome::Inconclusive,
                _ => Outcome::Fail,
            };
        }
        if seen_any { result } else { Outcome::Inconclusive }
    }
}

/// The verdict of one target.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Verdict {
    /// The target as the plan writes it, with the series it applies to.
    pub target: String,
    /// What the target requires of a figure.
    #[serde(default)]
    pub require: Option<Target>,
    /// The outcome.
    pub outcome: Outcome,
    /// Why, as one sentence.
    pub reason: String,
    /// Whether the target is met, but between hosts it is not shown to be: only stacks that need
    /// both ends on one host meet it.
    #[serde(default)]
    pub is_same_host_only: bool,
    /// Whether it is of a limit of the machine, not of a figure.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_of_machine: bool,
    /// Why the plan has this target: its source, in words.
    #[serde(default)]
    pub why: String,
    /// The series that decides, as its evidence names it: of those with the outcome of the target
    /// the one nearest to the limit or furthest beyond it; where one series is enough, the one that
    /// the reason names.
    #[serde(default)]
    pub decisive: Option<String>,
    /// Each series that was judged.
    pub evidence: Vec<Evidence>,
}

/// One series under one target.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Evidence {
    /// The series, as `environment/stack probe case`.
    pub series: String,
    /// The outcome.
    pub outcome: Outcome,
    /// The figure, in the metric's unit.
    pub value: Option<f64>,
    /// Its interval.
    pub interval: Option<Interval>,
    /// Why, as a clause.
    pub reason: String,
}

/// An interval with its level of confidence.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Interval {
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
    /// Confidence, such as 0.95.
    pub level: f64,
}

impl Interval {
    /// Whether `value` lies inside, ends included.
    pub fn contains(&self, value: f64) -> bool {
        self.low <= value && value <= self.high
    }
}

named_enum!(
    /// Relation of B to A in one figure.
    Relation, "relation", {
        /// B is better, beyond the margin.
        Better = "better",
        /// B is worse, beyond the margin.
        Worse = "worse",
        /// The interval of the ratio lies inside the margin: equivalent.
        Equivalent = "equivalent",
        /// A difference is shown, but its size may lie inside the margin.
        Differs = "differs",
        /// Neither a difference nor equivalence is shown.
        Unclear = "unclear",
    }
);

/// Comparison of two results or of two parts of one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Comparison {
    /// Name of the first, the one compared against.
    pub a: String,
    /// Name of the second.
    pub b: String,
    /// Margin inside which a ratio counts as equal, %.
    pub margin_percent: f64,
    /// Properties that are not like for like; empty if they are.
    pub differences: Vec<Difference>,
    /// Facts in which the machines differ; they do not affect the outcome.
    pub facts: Vec<Difference>,
    /// One row for each figure of each case that both sides have.
    pub rows: Vec<ComparisonRow>,
    /// One row for each figure over all cases together.
    pub overall: Vec<ComparisonRow>,
    /// Sentences about cases that only one side has.
    pub unmatched: Vec<String>,
    /// Sentences about cases that are not compared because the guests of a side were emulated.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refused: Vec<String>,
    /// What the pair can find in its primary figures; absent if nothing was decided on them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detection: Option<Detection>,
    /// Whether the sides differ by design, so that the comparison states what a step costs, and
    /// decides nothing.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_cost: bool,
    /// The outcome: pass if B is as good as A, fail if worse in a primary figure. A known cost
    /// passes.
    pub outcome: Outcome,
    /// Why, as sentences, most important first.
    pub reasons: Vec<String>,
}

/// B against A in one figure.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ComparisonRow {
    /// The case, as text (`64 B`), or the range of cases (`1..1024 B`).
    pub case: String,
    /// The figure.
    pub metric: Metric,
    /// Value of A, in the metric's unit; median over cases if there are several.
    pub a: Option<f64>,
    /// Value of B.
    pub b: Option<f64>,
    /// B divided by A.
    pub ratio: Option<f64>,
    /// Interval of the ratio over rounds; absent where either side has fewer than five.
    pub interval: Option<Interval>,
    /// Probability of so large a difference by chance, corrected for the number of rows judged.
    pub p_value: Option<f64>,
    /// The test that the probability is of.
    #[serde(default)]
    pub test: Option<SignificanceTest>,
    /// Relation of B to A.
    pub relation: Relation,
    /// Whether the figure decides the outcome.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_primary: bool,
    /// Bounds of the ratio with the deviation between runs, of a primary figure. Each end holds
    /// with 95 %, over all primary figures at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bounds: Option<Interval>,
    /// Number of cases that the row is over; 0 if it was not recorded.
    #[serde(default)]
    pub n_cases: u32,
    /// Whether the ranges of both sides do not overlap, in any case of the row. Only where rounds
    /// are too few for a test over them, and the ranges are known.
    #[serde(default)]
    pub ranges_apart: Option<bool>,
    /// These ranges, if the row is of a single case.
    #[serde(default)]
    pub ranges: Option<Ranges>,
    /// Method and limitations, as a clause.
    pub basis: String,
}

impl ComparisonRow {
    /// Whether the rounds of a side are too few for a test over rounds.
    pub fn has_too_few_rounds(&self) -> bool {
        let is_recorded = self.n_cases > 0;
        is_recorded && !self.test.is_some_and(SignificanceTest::is_over_rounds)
    }

    /// The case as part of a sentence: `over 1..1024 B`, `for 64 B`.
    pub fn place(&self) -> String {
        match self.n_cases > 1 {
            true => self.case.clone(),
            false => format!("for {}", self.case),
        }
    }

    /// What was found, in words: `worse`, `as good`,
    /// `too few rounds to claim; the ranges do not overlap`.
    pub fn finding(&self) -> &'static str {
        match (self.relation, self.has_too_few_rounds(), self.ranges_apart) {
            (Relation::Unclear, true, Some(true)) => {
                "too few rounds to claim; the ranges do not overlap"
            }
            (Relation::Unclear, true, Some(false)) => "too few rounds to claim; the ranges overlap",
            (Relation::Unclear, true, None) => "too few rounds to claim",
            (Relation::Equivalent, true, _) => "close",
            (Relation::Equivalent, false, _) => "as good",
            (Relation::Unclear, false, _) => "unclear",
            (Relation::Differs, ..) => "different",
            (Relation::Worse, ..) => "worse",
            (Relation::Better, ..) => "better",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_outcomes_are_inconclusive() {
        assert_eq!(Outcome::all([]), Outcome::Inconclusive);
        assert_eq!(Outcome::any([]), Outcome::Inconclusive);
    }

    #[test]
    fn one_failure_decides_all_and_one_pass_decides_any() {
        use Outcome::{Fail, Inconclusive, Pass};
        assert_eq!(Outcome::all([Pass, Inconclusive, Fail]), Fail);
        assert_eq!(Outcome::all([Pass, Inconclusive]), Inconclusive);
        assert_eq!(Outcome::any([Fail, Inconclusive]), Inconclusive);
        assert_eq!(Outcome::any([Fail, Pass]), Pass);
    }
}
