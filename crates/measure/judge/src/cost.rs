//! What a step costs: two parts that differ by design, such as blocking against spinning.
//!
//! A cost is stated with its interval and decides nothing.

use nm_model::metric::Metric;
use nm_model::verdict::ComparisonRow;

use crate::options::Setup;
use crate::rows::Draft;
use crate::wording::{figure, ratio};

/// Figures whose cost is stated.
const METRICS: [Metric; 3] = [Metric::Median, Metric::Percentile(99.0), Metric::Throughput];

/// The costs over all cases as sentences, medians first.
pub(crate) fn sentences(overall: &[Draft], setup: &Setup) -> Vec<String> {
    let of_metric = |metric: Metric| overall.iter().filter(move |one| one.row.metric == metric);
    METRICS
        .into_iter()
        .flat_map(of_metric)
        .filter_map(|draft| sentence(&draft.row, setup.names()))
        .collect()
}

/// `netns/tcp-blocking takes 38 us more than netns/tcp-spin, 9.1 times as long (8.6 to 9.6):
/// median over 64..1024 B`.
fn sentence(row: &ComparisonRow, [a, b]: [&str; 2]) -> Option<String> {
    let (value_a, value_b, factor) = (row.a?, row.b?, row.ratio?);
    let change = figure(row.metric, (value_b - value_a).abs());
    let (verb, as_much) = match row.metric {
        Metric::Throughput => ("carries", "as much"),
        _ => ("takes", "as long"),
    };
    let than = if value_b >= value_a { "more" } else { "less" };
    let short = |value: f64| ratio(value).trim_start_matches('x').to_string();
    let interval = match row.interval {
        Some(ends) => format!("{} to {}", short(ends.low), short(ends.high)),
        None => "too few rounds for an interval".to_string(),
    };
    let (metric, place) = (row.metric, row.place());
    Some(format!(
        "{b} {verb} {change} {than} than {a}, {} times {as_much} ({interval}): {metric} {place}",
        short(factor)
    ))
}
