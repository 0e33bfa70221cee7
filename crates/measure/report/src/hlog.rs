//! The histograms of a series as an HdrHistogram log, which existing tools merge and plot.

use nm_model::result::{LatencyRound, RoundData, RunResult, Series};
use nm_stats::histogram::HistogramLog;

use crate::distribution::histogram_of;
use crate::view;

/// The log of `series`, one line a round; nothing if no round has a histogram.
pub fn log(result: &RunResult, series: &Series) -> Option<String> {
    let base: Option<jiff::Timestamp> = result.started.as_ref().and_then(|s| s.parse().ok());
    let comment = format!(
        "{}\n{}\n{}, ns",
        one_line(&view::source_text(&result.source)),
        one_line(&view::marked(series, series.key.to_string())),
        series.key.statistic.label()
    );
    let mut log = HistogramLog::new(&comment, base.map(|t| t.as_millisecond() as f64 / 1e3));
    let mut is_empty = true;
    for round in &series.rounds {
        let RoundData::Latency(data) = &round.data else { continue };
        let Some(histogram) = histogram_of(data) else { continue };
        let tag = format!("round-{}", round.round);
        is_empty &= log.add(&tag, round.started_s, length_s(data), &histogram).is_err();
    }
    (!is_empty).then(|| log.finish())
}

fn one_line(text: &str) -> String {
    text.replace(['\n', '\r'], " ")
}

/// The length of a round as its slices tell it, s; 0 if it has none.
fn length_s(data: &LatencyRound) -> f64 {
    match data.slices.as_slice() {
        [first, second, .., last] => (last.start_ms + second.start_ms - first.start_ms) / 1e3,
        [first, second] => (2.0 * second.start_ms - first.start_ms) / 1e3,
        _ => 0.0,
    }
}
