//! Targets: what a series must reach, written as `METRIC OP VALUE[UNIT] [at COND]`.
//!
//! Examples: `median_ns < 2000 at size<=1024`, `p99 <= 10ms`, `throughput >= 9.3 Gb/s at
//! pattern=1-uni-1`, `loss <= 0.1%`, `rate >= 100000`.

use std::fmt;
use std::str::FromStr;

use crate::metric::{Metric, Quantity};
use crate::named_enum::text_serde;
use crate::probe::{Case, Pattern, PatternError};
use crate::words::UnknownWord;

/// A parsed target with its text.
#[derive(Debug, Clone, PartialEq)]
pub struct Target {
    /// As it was written.
    pub text: String,
    /// The figure.
    pub metric: Metric,
    /// Comparison of the figure with `limit`.
    pub op: Op,
    /// Limit in the metric's own unit: ns, ratio 0 to 1, Gb/s, or per second.
    pub limit: f64,
    /// Conditions on the message size; all must hold.
    pub sizes: Vec<(Op, f64)>,
    /// The only flow pattern that it covers.
    pub pattern: Option<Pattern>,
}

/// A comparison sign.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// `<`
    Less,
    /// `<=`
    AtMost,
    /// `>`
    More,
    /// `>=`
    AtLeast,
    /// `=`, for sizes only.
    Equal,
}

impl Op {
    /// Whether `value OP limit` holds.
    pub fn holds(self, value: f64, limit: f64) -> bool {
        match self {
            Op::Less => value < limit,
            Op::AtMost => value <= limit,
            Op::More => value > limit,
            Op::AtLeast => value >= limit,
            Op::Equal => value == limit,
        }
    }

    /// Whether it is an upper bound.
    pub fn is_upper_bound(self) -> bool {
        matches!(self, Op::Less | Op::AtMost)
    }

    fn split(text: &str) -> Option<(&str, Op, &str)> {
        let start = text.find(['<', '>', '='])?;
        let (left, rest) = text.split_at(start);
        let signs = [
            ("<=", Op::AtMost),
            (">=", Op::AtLeast),
            ("==", Op::Equal),
            ("<", Op::Less),
            (">", Op::More),
            ("=", Op::Equal),
        ];
        let (sign, op) = signs.into_iter().find(|(sign, _)| rest.starts_with(sign))?;
        Some((left.trim(), op, rest[sign.len()..].trim()))
    }
}

/// Why a target could not be read, as one sentence.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TargetError {
    /// No comparison sign.
    #[error("target `{0}` has no comparison; write for example `median < 2us at size<=1024`")]
    NoComparison(String),
    /// Unknown figure, unit or condition.
    #[error("target `{text}`: {word}")]
    Word {
        /// The target.
        text: String,
        /// The word that is wrong.
        word: UnknownWord,
    },
    /// The pattern of flows is none.
    #[error("target `{text}`: {source}")]
    Pattern {
        /// The target.
        text: String,
        /// What is wrong with it.
        source: PatternError,
    },
    /// The limit is no number.
    #[error("target `{text}`: `{number}` is not a number")]
    Number {
        /// The target.
        text: String,
        /// The text in the place of a number.
        number: String,
    },
}

/// Why a limit decides nothing, as one sentence.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LimitError {
    /// A latency without a unit.
    #[error("target `{0}` has no unit: write ns, us, ms or s behind the number")]
    NoUnit(String),
    /// No measurement could break it.
    #[error("target `{target}` cannot fail: its figure is {range}")]
    CannotFail {
        /// The target.
        target: String,
        /// What the figure can be.
        range: &'static str,
    },
    /// No measurement could meet it.
    #[error("target `{target}` cannot be met: its figure is {range}")]
    CannotBeMet {
        /// The target.
        target: String,
        /// What the figure can be.
        range: &'static str,
    },
}

impl Target {
    /// Checks that the limit can be met and can fail, and that a latency has a unit, behind its
    /// number or in the metric's name. Text is read without this check, as ns: results of earlier
    /// versions have such targets.
    ///
    /// # Errors
    /// If the target decides nothing, or has no unit.
    pub fn check_limit(&self) -> Result<(), LimitError> {
        let requirement = self.text.split(" at ").next().unwrap_or_default();
        let is_bare = Op::split(requirement).is_some_and(|(name, _, limit)| {
            !name.contains('_') && limit.ends_with(|last: char| !last.is_alphabetic())
        });
        let is_latency = self.metric.quantity() == Quantity::Latency;
        if is_latency && is_bare && self.limit != 0.0 {
            return Err(LimitError::NoUnit(self.text.clone()));
        }
        let is_ratio = self.metric.quantity() == Quantity::Ratio;
        let range = if is_ratio { "0 to 100 %" } else { "0 or more" };
        let highest = if is_ratio { 1.0 } else { f64::INFINITY };
        let target = self.text.clone();
        match (self.op.holds(0.0, self.limit), self.op.holds(highest, self.limit)) {
            (true, true) => Err(LimitError::CannotFail { target, range }),
            (false, false) => Err(LimitError::CannotBeMet { target, range }),
            _ => Ok(()),
        }
    }

    /// The conditions as they were written: `size<=1024`.
    pub fn conditions(&self) -> Option<&str> {
        self.text.split_once(" at ").map(|(_, conditions)| conditions.trim())
    }

    /// Whether this target covers `case`.
    pub fn covers(&self, case: &Case) -> bool {
        let size_fits = self.sizes.iter().all(|(op, limit)| {
            case.size_bytes().is_some_and(|size| op.holds(f64::from(size), *limit))
        });
        let pattern_fits = self
            .pattern
            .is_none_or(|wanted| matches!(case, Case::Flows { pattern, .. } if *pattern == wanted));
        size_fits && pattern_fits
    }
}

const LATENCY_UNITS: [(&str, f64); 5] =
    [("ns", 1.0), ("us", 1e3), ("µs", 1e3), ("ms", 1e6), ("s", 1e9)];
const THROUGHPUT_UNITS: [(&str, f64); 6] =
    [("gbps", 1.0), ("mbps", 1e-3), ("kbps", 1e-6), ("gb/s", 1.0), ("mb/s", 1e-3), ("kb/s", 1e-6)];
const RATIO_UNITS: [(&str, f64); 2] = [("%", 0.01), ("percent", 0.01)];
const RATE_UNITS: [(&str, f64); 2] = [("/s", 1.0), ("per_s", 1.0)];

fn units(quantity: Quantity) -> &'static [(&'static str, f64)] {
    match quantity {
        Quantity::Latency => &LATENCY_UNITS,
        Quantity::Throughput => &THROUGHPUT_UNITS,
        Quantity::Ratio => &RATIO_UNITS,
        Quantity::Rate => &RATE_UNITS,
    }
}

fn factor_of(metric: Metric, unit: &str) -> Result<f64, UnknownWord> {
    let units = units(metric.quantity());
    let lower = unit.to_lowercase();
    units.iter().find(|(known, _)| *known == lower).map(|(_, factor)| *factor).ok_or_else(|| {
        let known: Vec<&str> = units.iter().map(|(known, _)| *known).collect();
        UnknownWord::new("unit", unit, &known)
    })
}

impl FromStr for Target {
    type Err = TargetError;

    fn from_str(text: &str) -> Result<Target, TargetError> {
        let target = text.trim();
        let in_word = |word: UnknownWord| TargetError::Word { text: target.to_string(), word };
        let (requirement, conditions) = match target.split_once(" at ") {
            Some((requirement, conditions)) => (requirement, Some(conditions)),
            None => (target, None),
        };
        let (name, op, limit) = Op::split(requirement)
            .filter(|(_, op, _)| *op != Op::Equal)
            .ok_or_else(|| TargetError::NoComparison(target.to_string()))?;

        // The unit follows the name (`median_ns`) or the number (`2us`).
        let (metric, unit_of_name) = match name.rsplit_once('_') {
            Some((metric, unit)) => {
                let metric: Metric = metric.parse().map_err(in_word)?;
                (metric, Some(factor_of(metric, unit).map_err(in_word)?))
            }
            None => (name.parse::<Metric>().map_err(in_word)?, None),
        };
        let digits_end = limit
            .find(|c: char| !(c.is_ascii_digit() || matches!(c, '.' | '_' | '+' | '-')))
            .unwrap_or(limit.len());
        let (digits, unit) = (limit[..digits_end].replace('_', ""), limit[digits_end..].trim());
        let number: f64 = digits.parse().map_err(|_| TargetError::Number {
            text: target.to_string(),
            number: limit.to_string(),
        })?;
        let factor = match unit {
            "" => unit_of_name.unwrap_or(1.0),
            unit => factor_of(metric, unit).map_err(in_word)?,
        };

        let (mut sizes, mut pattern) = (vec![], None);
        for condition in conditions.into_iter().flat_map(|c| c.split(',')) {
            let (name, op, value) = Op::split(condition)
                .ok_or_else(|| TargetError::NoComparison(target.to_string()))?;
            match (name, op) {
                ("size", _) => {
                    let size = value.parse().map_err(|_| TargetError::Number {
                        text: target.to_string(),
                        number: value.to_string(),
                    })?;
                    sizes.push((op, size));
                }
                ("pattern", Op::Equal) => {
                    let in_pattern =
                        |source| TargetError::Pattern { text: target.to_string(), source };
                    pattern = Some(value.parse().map_err(in_pattern)?);
                }
                _ => {
                    let known = ["size", "pattern="];
                    return Err(in_word(UnknownWord::new("condition", name, &known)));
                }
            }
        }
        Ok(Target { text: target.to_string(), metric, op, limit: number * factor, sizes, pattern })
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.text)
    }
}

text_serde!(Target);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn target(text: &str) -> Target {
        text.parse().unwrap()
    }

    #[test]
    fn a_unit_follows_the_name_or_the_number() {
        for text in ["median_ns < 2000", "median < 2us", "median_us < 2", "p50 < 0.002 ms"] {
            let target = target(text);
            assert_eq!(target.metric, Metric::Median, "{text}");
            assert!((target.limit - 2000.0).abs() < 1e-9, "{text}");
            assert_eq!(target.op, Op::Less, "{text}");
        }
        assert_eq!(target("throughput >= 500 Mb/s").limit, 0.5);
        assert_eq!(target("loss <= 0.1%").limit, 0.001);
        assert_eq!(target("p99.9_us <= 10").limit, 10_000.0);
        assert_eq!(target("rate >= 100_000").limit, 100_000.0);
    }

    #[test]
    fn a_latency_needs_a_unit_and_other_figures_need_none() {
        for text in ["p99 < 500", "median <= 1_000. at size<=64"] {
            let error = target(text).check_limit().unwrap_err().to_string();
            let wanted =
                format!("target `{text}` has no unit: write ns, us, ms or s behind the number");
            assert_eq!(error, wanted);
        }
        for text in ["p99_us < 500", "p99 < 500us", "max <= 0", "loss <= 0.1", "throughput >= 3"] {
            assert_eq!(target(text).check_limit(), Ok(()), "{text}");
        }
    }

    #[test]
    fn a_limit_can_be_met_and_can_fail() {
        for (text, wanted) in [
            ("time-lost < 150%", "cannot fail: its figure is 0 to 100 %"),
            ("time-lost <= 1", "cannot fail: its figure is 0 to 100 %"),
            ("loss < 2", "cannot fail: its figure is 0 to 100 %"),
            ("loss >= 0", "cannot fail: its figure is 0 to 100 %"),
            ("rate >= 0", "cannot fail: its figure is 0 or more"),
            ("p99 < -3us", "cannot be met: its figure is 0 or more"),
            ("time-lost > 1", "cannot be met: its figure is 0 to 100 %"),
        ] {
            let error = target(text).check_limit().unwrap_err().to_string();
            assert_eq!(error, format!("target `{text}` {wanted}"));
        }
        for text in ["time-lost < 1", "loss <= 0", "time-lost > 0", "rate > 0", "max > 1s"] {
            assert_eq!(target(text).check_limit(), Ok(()), "{text}");
        }
    }

    #[test]
    fn a_size_condition_limits_the_cases() {
        let target = target("median_ns < 2000 at size>=64, size<=1024");
        let covers = |size_bytes| target.covers(&Case::Message { size_bytes });
        assert_eq!(
            (covers(32), covers(64), covers(1024), covers(2048)),
            (false, true, true, false)
        );
        assert!(!target.covers(&Case::Total));
    }

    #[test]
    fn a_pattern_condition_limits_the_cases() {
        let target = target("throughput >= 6 Gb/s at pattern=2-bi-2");
        let covers = |pattern: &str| {
            target.covers(&Case::Flows { pattern: pattern.parse().unwrap(), write_bytes: 1 })
        };
        assert!(covers("2-bi-2") && !covers("2-uni-2"));
        assert!(!target.covers(&Case::Total));
        let text = "throughput >= 6 at pattern=2-by-2";
        assert!(text.parse::<Target>().unwrap_err().to_string().contains("unknown pattern"));
    }

    #[test]
    fn each_mistake_has_its_own_message() {
        let sentence = |text: &str| text.parse::<Target>().unwrap_err().to_string();
        assert_eq!(
            sentence("medain_ns < 2000"),
            "target `medain_ns < 2000`: unknown metric `medain`, did you mean `median`?"
        );
        assert_eq!(
            sentence("median 2000"),
            "target `median 2000` has no comparison; write for example `median < 2us at size<=1024`"
        );
        assert_eq!(sentence("median < fast"), "target `median < fast`: `fast` is not a number");
        assert_eq!(
            sentence("median < 2 parsec"),
            "target `median < 2 parsec`: unknown unit `parsec`; known are ns, us, µs, ms, s"
        );
        assert_eq!(
            sentence("median < 2us at siz<4"),
            "target `median < 2us at siz<4`: unknown condition `siz`, did you mean `size`?"
        );
    }

    proptest! {
        #[test]
        fn arbitrary_text_never_panics(text in "\\PC{0,60}") {
            let _ = text.parse::<Target>();
        }

        #[test]
        fn parsed_targets_keep_their_text(limit in 1u32..1_000_000, size in 1u32..65536) {
            let text = format!("p99 <= {limit}ns at size<={size}");
            let parsed: Target = text.parse().unwrap();
            prop_assert_eq!(parsed.to_string(), text);
            prop_assert_eq!(parsed.limit, f64::from(limit));
        }
    }
}
