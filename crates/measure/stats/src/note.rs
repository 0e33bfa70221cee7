//! A comparison described in words: how it was decided, and what limits it.

use nm_model::Metric;
use nm_model::comparison::SignificanceTest;
use nm_model::verdict::Interval;

use crate::compare::{Basis, Evidence, ROUNDS_MIN, RoundsComparison};
use crate::unit::{four_digits, with_unit};

impl RoundsComparison {
    /// The test that the p-value is of; absent if there is none.
    pub fn test(&self) -> Option<SignificanceTest> {
        match (self.evidence, self.basis) {
            (Evidence::TooFewRounds, _) => None,
            (Evidence::SeveralModes { .. }, Basis::WithinModes) => {
                Some(SignificanceTest::MannWhitneyWithinModes)
            }
            (Evidence::SeveralModes { .. }, _) => Some(SignificanceTest::ModeShares),
            _ => Some(SignificanceTest::MannWhitney),
        }
    }

    /// What the comparison of `metric` rests on and what limits it, as a clause; `names` are those
    /// of A and B. The p-value and its test are not part of it.
    pub fn note(&self, metric: Metric, names: [&str; 2]) -> String {
        let [a, b] = self.rounds;
        let rounds = format!("{a} rounds of {} and {b} of {}", names[0], names[1]);
        let margin = match self.differs_within_margin {
            true => "; a difference is shown, smaller than the margin",
            false => "",
        };
        match self.evidence {
            Evidence::TooFewRounds => {
                format!("{rounds}: no claim below {ROUNDS_MIN} rounds a side")
            }
            Evidence::AllEqual => format!("{rounds}: all values are equal"),
            Evidence::Zeros { .. } => format!("{rounds}: values of zero have no ratio"),
            Evidence::OneMode { .. } => format!("{rounds}{margin}"),
            Evidence::SeveralModes { .. } => format!(
                "{rounds} are in {} modes ({}): {}{margin}",
                self.modes.len(),
                self.modes_text(metric, names),
                within_text(names, self.within_mode_ratio, self.within_mode_interval),
            ),
        }
    }

    fn modes_text(&self, metric: Metric, [a, b]: [&str; 2]) -> String {
        let modes = self.modes.iter().map(|mode| {
            let median = with_unit(metric, mode.median);
            format!("about {median}: {} of {a}, {} of {b}", mode.rounds_a, mode.rounds_b)
        });
        modes.collect::<Vec<_>>().join("; ")
    }
}

fn within_text([a, b]: [&str; 2], ratio: Option<f64>, interval: Option<Interval>) -> String {
    match (ratio.map(four_digits), interval) {
        (Some(ratio), Some(interval)) => format!(
            "within a mode {b} is {ratio} times {a}, 95 % interval {} to {}",
            four_digits(interval.low),
            four_digits(interval.high)
        ),
        (Some(ratio), None) => {
            format!("within a mode {b} is {ratio} times {a}, with too few rounds for an interval")
        }
        (None, _) => format!("{a} and {b} have no mode in common"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::compare;

    #[test]
    fn each_mode_has_its_unit() {
        let a = [3910.0, 3950.0, 3990.0, 4050.0, 5890.0, 5950.0, 6080.0, 4000.0, 3960.0, 6000.0];
        let b = a.map(|value| value * 1.05);
        let names = ["old", "new"];
        let within = compare(&a, &b, 0.05, 1);
        let note = within.note(Metric::Median, names);
        let modes = "10 rounds of old and 10 of new are in 2 modes (about 4.08 us: 6 of old, \
                     6 of new; about 6.13 us: 4 of old, 4 of new): within a mode new is \
                     1.05 times old, 95 % interval ";
        assert!(note.starts_with(modes), "{note}");
        assert_eq!(within.test(), Some(SignificanceTest::MannWhitneyWithinModes));
        let apart = compare(&a[..5], &a.map(|value| value * 4.0), 0.05, 1);
        let note = apart.note(Metric::Median, names);
        assert!(note.contains("old and new have no mode in common"), "{note}");
        assert_eq!(apart.test(), Some(SignificanceTest::ModeShares));
        assert!(!note.contains("p ="), "the p-value stands once, beside its test: {note}");
    }
}
