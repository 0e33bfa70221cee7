//! A comparison described in words: how it was decided, and what limits it.

use nm_model::Metric;
use nm_model::verdict::Interval;

use crate::compare::{Evidence, ROUNDS_MIN, RoundsComparison};
use crate::unit::{four_digits, with_unit};

impl RoundsComparison {
    /// How the comparison of `metric` was decided and what limits it, as a clause.
    pub fn note(&self, metric: Metric) -> String {
        let [a, b] = self.rounds;
        let rounds = format!("{a} rounds of A and {b} of B");
        let margin = match self.differs_within_margin {
            true => "; a difference is shown, smaller than the margin",
            false => "",
        };
        match self.evidence {
            Evidence::TooFewRounds => {
                format!("{rounds}: no claim below {ROUNDS_MIN} rounds a side")
            }
            Evidence::AllEqual => format!("{rounds}: all values are equal"),
            Evidence::Zeros { p_value } => {
                format!("{rounds}: Mann-Whitney {}; values of zero have no ratio", p_text(p_value))
            }
            Evidence::OneMode { p_value } => {
                format!("{rounds}: Mann-Whitney {}{margin}", p_text(p_value))
            }
            Evidence::SeveralModes { p_within, p_shares } => format!(
                "{rounds} are in {} modes ({}): {} ({}), the modes' shares differ with {}{margin}",
                self.modes.len(),
                self.modes_text(metric),
                within_text(self.within_mode_ratio, self.within_mode_interval),
                p_text(p_within),
                p_text(p_shares),
            ),
        }
    }

    fn modes_text(&self, metric: Metric) -> String {
        let modes = self.modes.iter().map(|mode| {
            let median = with_unit(metric, mode.median);
            format!("about {median}: {} of A, {} of B", mode.rounds_a, mode.rounds_b)
        });
        modes.collect::<Vec<_>>().join("; ")
    }
}

fn p_text(p_value: f64) -> String {
    if p_value >= 0.001 { format!("p = {p_value:.3}") } else { format!("p = {p_value:.2e}") }
}

fn within_text(ratio: Option<f64>, interval: Option<Interval>) -> String {
    match (ratio.map(four_digits), interval) {
        (Some(ratio), Some(interval)) => format!(
            "within a mode B is {ratio} times A, 95 % interval {} to {}",
            four_digits(interval.low),
            four_digits(interval.high)
        ),
        (Some(ratio), None) => {
            format!("within a mode B is {ratio} times A, with too few rounds for an interval")
        }
        (None, _) => "A and B have no mode in common".to_string(),
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
        let note = compare(&a, &b, 0.05, 1).note(Metric::Median);
        let modes = "10 rounds of A and 10 of B are in 2 modes (about 4.08 us: 6 of A, 6 of B; \
                     about 6.13 us: 4 of A, 4 of B): within a mode B is 1.05 times A, \
                     95 % interval ";
        assert!(note.starts_with(modes), "{note}");
        let apart = compare(&a[..5], &a.map(|value| value * 4.0), 0.05, 1).note(Metric::Median);
        assert!(apart.contains("A and B have no mode in common"), "{apart}");
    }
}
