//! Flows of both directions as pairs, and the total. A pair is the flows of each pair of guests
//! together. Where there is one pair only, it is one flow of each direction at a time.

use nm_model::probe::{Case, Side};
use nm_model::result::{Flow, RunResult, Series, Statistic, ThroughputRound};

use crate::probes::case_words;
use crate::style::Tone;
use crate::table::{Column, Table};
use crate::units::{self, Precision};
use crate::view;

/// The flows of the middle round of each series with flows in both directions.
pub fn pairs_table(result: &RunResult) -> Table {
    let titles = [
        Column::text("series"),
        Column::text("pair"),
        Column::figure("from the client"),
        Column::figure("from the server"),
        Column::figure("both"),
    ];
    let mut table = Table::new("Flows of both directions as pairs and in total, Gb/s", titles);
    for series in result.series.iter().filter(|series| is_shown(series)) {
        let Some(round) = view::typical_throughput(series) else { continue };
        let of = |side: Side| rates(&round.flows, side);
        let (client, server) = (of(Side::Client), of(Side::Server));
        let precision = Precision::of(client.iter().chain(&server).copied(), 4, 3);
        let name = format!("{} {}", series.key.path(), case_words::text(&series.key.case));
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

/// What each pair carries from `side`, Gb/s.
fn rates(flows: &[Flow], side: Side) -> Vec<f64> {
    let mut rates: Vec<(Option<u32>, f64)> = vec![];
    for flow in flows.iter().filter(|flow| flow.sender == side) {
        let known = rates.iter_mut().find(|(pair, _)| pair.is_some() && *pair == flow.pair);
        match known {
            Some((_, gbps)) => *gbps += flow.gbps,
            None => rates.push((flow.pair, flow.gbps)),
        }
    }
    rates.sort_by_key(|(pair, _)| *pair);
    rates.into_iter().map(|(_, gbps)| gbps).collect()
}

fn is_shown(series: &Series) -> bool {
    is_bidirectional(series) || view::typical_throughput(series).is_some_and(has_pairs)
}

fn has_pairs(round: &ThroughputRound) -> bool {
    round.flows.iter().any(|flow| flow.pair.is_some())
}

fn is_bidirectional(series: &Series) -> bool {
    let is_pattern =
        matches!(series.key.case, Case::Flows { pattern, .. } if pattern.bidirectional);
    is_pattern && series.key.statistic == Statistic::Throughput
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flows_of_a_pair_of_guests_are_one_figure() {
        let flow = |index: u32, pair, sender, gbps| Flow {
            index,
            pair,
            sender,
            bytes: 0,
            seconds: 1.0,
            gbps,
            retransmits: None,
        };
        let (client, server) = (Side::Client, Side::Server);
        let of_pairs = [
            flow(0, Some(1), client, 1.0),
            flow(1, Some(1), server, 2.0),
            flow(2, Some(2), client, 4.0),
            flow(3, Some(2), server, 8.0),
            flow(4, Some(1), client, 16.0),
        ];
        assert_eq!(rates(&of_pairs, client), [17.0, 4.0]);
        assert_eq!(rates(&of_pairs, server), [2.0, 8.0]);
        let of_one_pair = [flow(0, None, client, 1.0), flow(2, None, client, 2.0)];
        assert_eq!(rates(&of_one_pair, client), [1.0, 2.0]);
    }
}
