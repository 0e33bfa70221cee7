//! The limits that targets set for the series of a chart.

use nm_model::Metric;
use nm_model::result::Series;
use nm_model::verdict::Verdict;

use crate::decisive::requirement_text;

/// A limit that a target sets for one figure of a series.
#[derive(Debug, Clone, PartialEq)]
pub struct Limit {
    pub metric: Metric,
    /// In the metric's unit.
    pub value: f64,
    /// `p99 < 50 µs`.
    pub text: String,
}

/// The limits of the targets that judged this very series. A target may be for some stacks only, so
/// its text alone does not decide.
pub fn limits_of(verdicts: &[Verdict], series: &Series) -> Vec<Limit> {
    let name = series.key.to_string();
    let mut limits: Vec<Limit> = vec![];
    for verdict in verdicts {
        let Some(target) = &verdict.require else { continue };
        let is_judged = verdict.evidence.iter().any(|evidence| evidence.series == name);
        let limit =
            Limit { metric: target.metric, value: target.limit, text: requirement_text(target) };
        if is_judged && target.limit.is_finite() && !limits.contains(&limit) {
            limits.push(limit);
        }
    }
    limits
}

/// The limits of several series, each once, with the number of the series that it is for.
pub fn shared_limits(of_series: &[Vec<Limit>]) -> Vec<(Limit, usize)> {
    let mut shared: Vec<(Limit, usize)> = vec![];
    for limit in of_series.iter().flatten() {
        match shared.iter_mut().find(|(known, _)| known == limit) {
            Some((_, n)) => *n += 1,
            None => shared.push((limit.clone(), 1)),
        }
    }
    shared
}

/// The text of a limit in a chart of `n_all` series, of which it is for `n`.
pub fn limit_text(limit: &Limit, n: usize, n_all: usize) -> String {
    match n == n_all {
        true => limit.text.clone(),
        false => format!("{}, for {n} of {n_all}", limit.text),
    }
}
