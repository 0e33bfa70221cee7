//! Flows of both directions as pairs: what one guest sends and receives at a time, and the total.

use nm_model::probe::{Case, Side};
use nm_model::result::{RunResult, Series, Statistic};

use crate::style::Tone;
use crate::table::Table;
use crate::units::{self, Precision};
use crate::view;

/// The flows of the middle round of each series with flows in both directions.
pub fn pairs_table(result: &RunResult) -> Table {
    let titles = ["series", "pair", "#from the client", "#from the server", "#both"];
    let mut table = Table::new("Flows of both directions as pairs and in total, Gb/s", &titles);
    for series in result.series.iter().filter(|series| is_bidirectional(series)) {
        let Some(round) = view::typical_throughput(series) else { continue };
        let of = |side: Side| -> Vec<f64> {
            round.flows.iter().filter(|flow| flow.sender == side).map(|flow| flow.gbps).collect()
        };
        let (client, server) = (of(Side::Client), of(Side::Server));
        let precision = Precision::of(client.iter().chain(&server).copied(), 4, 3);
        let name = format!("{} {}", series.key.path(), view::case_text(&series.key.case));
        let name = view::marked(series, name);
        let mut push = |tone, pair: String, parts: [Option<f64>; 2]| {
            let both = parts.iter().flatten().sum();
            let cell = |value: Option<f64>| units::or_not_available(value, |v| precision.text(v));
            let [client, server] = parts.map(cell);
            table.push(tone, vec![name.clone(), pair, client, server, precision.text(both)]);
        };
        for at in 0..client.len().max(server.len()) {
            let parts = [client.get(at).copied(), server.get(at).copied()];
            push(Tone::Plain, (at + 1).to_string(), parts);
        }
        if !client.is_empty() || !server.is_empty() {
            let sums = [Some(client.iter().sum()), Some(server.iter().sum())];
            push(Tone::Good, "total".to_string(), sums);
        }
    }
    table
}

fn is_bidirectional(series: &Series) -> bool {
    let is_pattern =
        matches!(series.key.case, Case::Flows { pattern, .. } if pattern.bidirectional);
    is_pattern && series.key.statistic == Statistic::Throughput
}
