//! Parts of a comparison: the test behind a p-value, and a ratio in words. Also the ranges of both
//! sides where rounds are too few for a test.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::metric::{Metric, Quantity};
use crate::named_enum::named_enum;

named_enum!(
    /// The significance test that a p-value is of.
    SignificanceTest, "test", {
        /// Mann-Whitney test over the rounds.
        MannWhitney = "mann-whitney",
        /// Mann-Whitney test within the modes of the rounds (stratified).
        MannWhitneyWithinModes = "mann-whitney-within-modes",
        /// Test of how often each mode of the rounds occurs: Fisher's exact test of two modes, the
        /// Mann-Whitney test of the modes' order for more.
        ModeShares = "mode-shares",
        /// Sign test over the cases, of runs that have too few rounds.
        Sign = "sign",
    }
);

impl SignificanceTest {
    /// Name for people.
    pub fn title(self) -> &'static str {
        match self {
            SignificanceTest::MannWhitney => "Mann-Whitney",
            SignificanceTest::MannWhitneyWithinModes => "Mann-Whitney within modes",
            SignificanceTest::ModeShares => "shares of modes",
            SignificanceTest::Sign => "sign test",
        }
    }

    /// Whether the test rests on the rounds of each side.
    pub fn is_over_rounds(self) -> bool {
        self != SignificanceTest::Sign
    }
}

/// What a range spans.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "of", rename_all = "lowercase")]
pub enum RangeOf {
    /// The values of the rounds, from the lowest to the highest.
    Rounds,
    /// The samples of a run, from one figure to another one; of several rounds, from the lowest to
    /// the highest of them.
    Samples {
        /// Figure at the lower end.
        from: Metric,
        /// Figure at the upper end.
        to: Metric,
    },
}

/// `lowest to highest round`, `p5 to p95 of the samples`.
impl fmt::Display for RangeOf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RangeOf::Rounds => f.write_str("lowest to highest round"),
            RangeOf::Samples { from, to } => write!(f, "{from} to {to} of the samples"),
        }
    }
}

/// From and to, in the metric's unit.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ValueRange {
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
}

/// The ranges of both sides of a comparison, where rounds are too few for a test.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Ranges {
    /// What they span.
    pub span: RangeOf,
    /// Range of A.
    pub a: ValueRange,
    /// Range of B.
    pub b: ValueRange,
}

impl Ranges {
    /// Whether they do not overlap.
    pub fn are_apart(&self) -> bool {
        self.a.high < self.b.low || self.b.high < self.a.low
    }
}

/// What a pair of runs can find in its primary figures, and what that rests on.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Detection {
    /// Standard deviation between runs of one system, %; zero for parts of one run.
    pub run_deviation_percent: f64,
    /// Whether that is assumed, because nothing was stated.
    pub is_assumed: bool,
    /// Primary figures that are tested at once.
    pub n_figures: u32,
    /// Smallest slowdown that is found in each of them in 95 of 100 pairs, with at most 5 false
    /// alarms in 100, %.
    pub finds_percent: f64,
    /// Whether a side has fewer than five rounds in one of them, so that the scatter of its rounds
    /// is assumed too.
    #[serde(default)]
    pub has_few_rounds: bool,
}

/// The words for a larger and for a smaller figure.
fn direction_words(metric: Metric) -> (&'static str, &'static str) {
    match metric.quantity() {
        // A larger deviation is not slower, it is only larger.
        Quantity::Latency if metric != Metric::Stddev => ("slower", "faster"),
        _ => ("more", "less"),
    }
}

/// The change of a figure of `metric` by `ratio` (new divided by old) in words: `5 % slower`,
/// `2.4 times slower`, `12 % more`, `equal`. From a factor of two on it is given as a factor:
/// `2.4 times slower` takes 2.4 times as long. Nothing if there is no such ratio.
pub fn change_text(metric: Metric, ratio: f64) -> Option<String> {
    if !ratio.is_finite() || ratio < 0.0 {
        return None;
    }
    if ratio == 1.0 {
        return Some("equal".to_string());
    }
    let (larger, smaller) = direction_words(metric);
    let word = if ratio > 1.0 { larger } else { smaller };
    let factor = if ratio > 1.0 { ratio } else { 1.0 / ratio };
    let percent = (ratio - 1.0).abs() * 100.0;
    Some(match () {
        () if !factor.is_finite() => format!("100 % {word}"),
        () if factor >= 1.995 => format!("{} times {word}", two_digits(factor)),
        () if percent < 0.05 => format!("less than 0.1 % {word}"),
        () => format!("{} % {word}", two_digits(percent)),
    })
}

/// At least two digits, without a zero behind the point: `0.3`, `5`, `5.2`, `47`, `310`.
fn two_digits(value: f64) -> String {
    let text = if value < 9.95 { format!("{value:.1}") } else { format!("{value:.0}") };
    text.strip_suffix(".0").map_or(text.clone(), str::to_string)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ratio_is_a_change_in_words() {
        let latency = |ratio| change_text(Metric::Median, ratio).unwrap();
        assert_eq!(latency(1.05), "5 % slower");
        assert_eq!(latency(0.95), "5 % faster");
        assert_eq!(latency(1.0), "equal");
        assert_eq!(latency(1.0002), "less than 0.1 % slower");
        assert_eq!(latency(1.003), "0.3 % slower");
        assert_eq!(latency(1.47), "47 % slower");
        assert_eq!(latency(2.4), "2.4 times slower");
        assert_eq!(latency(300.0), "300 times slower");
        assert_eq!(latency(0.25), "4 times faster");
        assert_eq!(latency(0.0), "100 % faster");
        assert_eq!(change_text(Metric::Throughput, 1.12).unwrap(), "12 % more");
        assert_eq!(change_text(Metric::Throughput, 0.4).unwrap(), "2.5 times less");
        assert_eq!(change_text(Metric::Rate, 0.9).unwrap(), "10 % less");
        assert_eq!(change_text(Metric::Stddev, 9.0).unwrap(), "9 times more");
        assert_eq!(change_text(Metric::Median, f64::NAN), None);
        assert_eq!(change_text(Metric::Median, f64::INFINITY), None);
    }

    #[test]
    fn ranges_that_touch_are_not_apart() {
        let ranges = |low, high| Ranges {
            span: RangeOf::Rounds,
            a: ValueRange { low: 1.0, high: 2.0 },
            b: ValueRange { low, high },
        };
        assert!(ranges(2.1, 3.0).are_apart() && ranges(0.1, 0.9).are_apart());
        assert!(!ranges(2.0, 3.0).are_apart() && !ranges(0.0, 9.0).are_apart());
    }

    #[test]
    fn ranges_read_back() {
        let span = RangeOf::Samples { from: Metric::Percentile(5.0), to: Metric::Percentile(95.0) };
        assert_eq!(span.to_string(), "p5 to p95 of the samples");
        for span in [span, RangeOf::Rounds] {
            let json = serde_json::to_string(&span).unwrap();
            assert_eq!(serde_json::from_str::<RangeOf>(&json).unwrap(), span);
        }
    }
}
