//! What a comparison compares, and its margin.

use nm_model::metric::Metric;
use nm_model::result::RunResult;

use crate::select::Selector;

/// Two single runs are called close if their median ratio is within this, %.
pub const CLOSE_PERCENT: f64 = 10.0;

/// Parts to compare, and how.
#[derive(Debug, Clone, PartialEq)]
pub struct CompareOptions {
    /// Ratio that still counts as equal, %.
    pub margin_percent: f64,
    /// Standard deviation between runs of one system, %; [`RUN_DEVIATION`] is assumed if absent.
    ///
    /// [`RUN_DEVIATION`]: nm_stats::run_effect::RUN_DEVIATION
    pub run_deviation_percent: Option<f64>,
    /// Whether the rounds of both sides were measured in turn, so that they show how much runs
    /// differ.
    pub is_interleaved: bool,
    /// Whether the sides differ by design: the comparison states a cost and decides nothing.
    pub is_cost: bool,
    /// The figures of primary rows that decide the outcome. Those that a series cannot have are
    /// left out for it.
    pub fail_on: Vec<Metric>,
    /// Name of A in all sentences, such as its folder; that of the result if absent.
    pub name_a: Option<String>,
    /// Name of B.
    pub name_b: Option<String>,
    /// Which series of A.
    pub a: Selector,
    /// Which series of B.
    pub b: Selector,
    /// Seed of the bootstrap.
    pub seed: u64,
}

impl Default for CompareOptions {
    fn default() -> CompareOptions {
        CompareOptions {
            margin_percent: 5.0,
            run_deviation_percent: None,
            is_interleaved: false,
            is_cost: false,
            fail_on: vec![Metric::Median, Metric::Percentile(99.0), Metric::Throughput],
            name_a: None,
            name_b: None,
            a: Selector::any(),
            b: Selector::any(),
            seed: 1,
        }
    }
}

/// The options of a comparison with the names of its two sides.
pub(crate) struct Setup<'a> {
    /// What was asked for.
    pub options: &'a CompareOptions,
    /// Names of A and B, never equal.
    pub names: [String; 2],
}

impl<'a> Setup<'a> {
    /// The names are those of the options, else those of the results with the part that is
    /// compared. Equal names get a letter.
    pub fn new(a: &RunResult, b: &RunResult, options: &'a CompareOptions) -> Setup<'a> {
        let name = |given: &Option<String>, result: &RunResult, selector: &Selector| match given {
            Some(name) => name.clone(),
            None if selector.is_any() => result.name.clone(),
            None => format!("{} {}", result.name, selector.text()),
        };
        let names = [name(&options.name_a, a, &options.a), name(&options.name_b, b, &options.b)];
        let names = match names[0] == names[1] {
            true => [format!("{} (A)", names[0]), format!("{} (B)", names[1])],
            false => names,
        };
        Setup { options, names }
    }

    /// The names as borrowed text.
    pub fn names(&self) -> [&str; 2] {
        [&self.names[0], &self.names[1]]
    }
}
