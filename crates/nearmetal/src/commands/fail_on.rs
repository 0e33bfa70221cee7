//! `compare --fail-on`: percentiles that no result has are refused, with those that they have.

use nm_model::result::RoundData;
use nm_model::{Metric, RunResult};
use nm_stats::summary::PERCENTILES;

/// A percentile that decides nothing, because no result has it.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("--fail-on {metric} decides nothing: these results have the percentiles {known}")]
pub struct UnknownPercentile {
    metric: Metric,
    known: String,
}

/// Checks the percentiles among `metrics`. Those of every round are accepted also where a round has
/// too few samples for them.
///
/// # Errors
/// The first percentile that none of the results has.
pub fn check(metrics: &[Metric], results: &[&RunResult]) -> Result<(), UnknownPercentile> {
    let mut known = percentiles(results);
    if known.is_empty() {
        known = PERCENTILES.to_vec();
    }
    let is_known =
        |percentile: &f64| known.contains(percentile) || PERCENTILES.contains(percentile);
    for &metric in metrics {
        if let Metric::Percentile(percentile) = metric
            && !is_known(&percentile)
        {
            let known: Vec<String> = known.iter().map(|p| format!("p{p}")).collect();
            return Err(UnknownPercentile { metric, known: known.join(", ") });
        }
    }
    Ok(())
}

/// Percentiles with a value in any round, rising, each once.
fn percentiles(results: &[&RunResult]) -> Vec<f64> {
    let series = results.iter().flat_map(|result| &result.series);
    let mut all: Vec<f64> = series
        .flat_map(|series| &series.rounds)
        .filter_map(|round| match &round.data {
            RoundData::Latency(data) => Some(&data.percentiles),
            RoundData::Throughput(_) => None,
        })
        .flatten()
        .filter(|percentile| percentile.value_ns.is_some())
        .map(|percentile| percentile.percentile)
        .collect();
    all.sort_by(f64::total_cmp);
    all.dedup();
    all
}
