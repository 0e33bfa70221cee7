//! Tables that only the exchange has: its round trips beside the published ones, the highest rates
//! by size of network, the fastest transport, CPU time by class of node, the latency of each hop,
//! and nodes that were killed.

mod figures;
#[cfg(test)]
mod fixture;
mod transports;

use nm_model::exchange::LOAD;
use nm_model::probe::ProbeKind;
use nm_model::result::Series;
use nm_model::{Metric, RunResult};

use crate::reference;
use crate::style::Tone;
use crate::table::Table;
use crate::units::{NOT_AVAILABLE, or_not_available, significant};
use crate::view;

use figures::{CLASSES, class_us, cpu_us, median, per_s, rate, rounds};

/// The published run with round trips.
pub const LATENCY: &str = "monterey-ezbrokerage-latency";

/// The published run with the highest rates.
pub const SCALING: &str = "monterey-ezbrokerage-scaling";

/// Source column of the published rows.
const PUBLISHED: &str = "published, 2010";

/// The tables of a result that has figures of the exchange; none otherwise.
pub fn tables(result: &RunResult) -> Vec<Table> {
    let own = series(result);
    if own.is_empty() {
        return vec![];
    }
    let (latency, scaling) = (reference::load(LATENCY).ok(), reference::load(SCALING).ok());
    let tables = [
        latency_table(&own, latency.as_ref()),
        throughput_table(&own, scaling.as_ref()),
        transports::table(result, &own),
        cpu_table(&own),
        hop_table(&own),
        fault_table(&own),
    ];
    tables.into_iter().filter(|table| !table.rows.is_empty()).collect()
}

fn series(result: &RunResult) -> Vec<&Series> {
    result.series.iter().filter(|s| s.key.probe == ProbeKind::Exchange).collect()
}

/// `2-2-2-2` of `2-2-2-2 unix disk-quorum`.
fn layout(series: &Series) -> &str {
    series.key.stack.split(' ').next().unwrap_or_default()
}

/// Mean, p90, ES10 and p99 of every network and rate, each with the published row of its size
/// below.
fn latency_table(own: &[&Series], published: Option<&RunResult>) -> Table {
    let mut table = Table::new(
        "Exchange: round trips through all four classes, ms",
        &["network", "source", "#rate /s", "#mean", "#p90", "#ES10", "#p99", "#lost"],
    );
    let cells = |series: &Series, source: &str| {
        let ms =
            |metric| or_not_available(view::value(series, metric), |ns| significant(ns / 1e6, 3));
        vec![
            series.key.stack.clone(),
            source.to_string(),
            per_s(rate(series)),
            ms(Metric::Mean),
            ms(Metric::Percentile(90.0)),
            ms(Metric::Es10),
            ms(Metric::Percentile(99.0)),
        ]
    };
    for &series in own {
        let mut row = cells(series, "measured");
        row.push(view::lost(series).to_string());
        table.push(Tone::Plain, row);
    }
    for reference in published.iter().flat_map(|run| &run.series) {
        if own.iter().any(|series| layout(series) == layout(reference)) {
            let mut row = cells(reference, PUBLISHED);
            row.push(NOT_AVAILABLE.to_string());
            table.push(Tone::Faint, row);
        }
    }
    table
}

/// The highest rate at which most rounds kept ES10 and p99 under 10 ms, by network.
fn throughput_table(own: &[&Series], published: Option<&RunResult>) -> Table {
    let mut table = Table::new(
        "Exchange: highest rate that was tried and carried with ES10 and p99 under 10 ms",
        &["network", "source", "#rate /s"],
    );
    let mut stacks: Vec<&str> = own.iter().map(|series| series.key.stack.as_str()).collect();
    stacks.dedup();
    for stack in &stacks {
        let carried = own.iter().filter(|series| series.key.stack == *stack && is_carried(series));
        let best = carried.filter_map(|series| rate(series)).reduce(f64::max);
        let best = best.map_or("none".to_string(), |rate| format!("{rate:.0}"));
        table.push(Tone::Plain, vec![stack.to_string(), "measured".to_string(), best]);
    }
    for reference in published.iter().flat_map(|run| &run.series) {
        if own.iter().any(|series| layout(series) == layout(reference)) {
            let cells = vec![reference.key.stack.clone(), PUBLISHED.into(), per_s(rate(reference))];
            table.push(Tone::Faint, cells);
        }
    }
    table
}

fn is_carried(series: &Series) -> bool {
    const LIMIT_NS: f64 = nm_model::exchange::SLA_MS * 1e6;
    let meets_limit = |round: &&nm_model::result::Round| {
        let below = |metric| round.value(metric).is_some_and(|ns| ns < LIMIT_NS);
        below(Metric::Es10)
            && below(Metric::Percentile(99.0))
            && round.value(Metric::Loss).is_none_or(|loss| loss == 0.0)
    };
    2 * series.rounds.iter().filter(meets_limit).count() > series.rounds.len()
}

/// CPU time by class.
fn cpu_table(own: &[&Series]) -> Table {
    let mut table = Table::new(
        "Exchange: CPU time for one transaction, µs, all nodes of a class together (median of \
         rounds; their start and warm-up included)",
        &["network", "#rate /s", "#gateway", "#router", "#mediator", "#processor", "#sum", "#load"],
    );
    for &series in own {
        let classes = CLASSES.map(|class| class_us(series, class));
        if classes.iter().all(Option::is_none) {
            continue;
        }
        let mut cells = vec![series.key.stack.clone(), per_s(rate(series))];
        let figures = classes.into_iter().chain([cpu_us(series), class_us(series, LOAD)]);
        cells.extend(figures.map(|us| or_not_available(us, |us| significant(us, 3))));
        table.push(Tone::Plain, cells);
    }
    table
}

/// Mean, median and p99 of each hop.
fn hop_table(own: &[&Series]) -> Table {
    let mut table = Table::new(
        "Exchange: where the time goes, µs (median of rounds; a hop's p99 values do not add up)",
        &["network", "#rate /s", "hop", "#mean", "#median", "#p99"],
    );
    for &series in own {
        let rounds = rounds(series);
        let names = rounds.first().map_or(&[][..], |round| &round.hops).iter();
        for name in names.map(|hop| &hop.name) {
            let all = || rounds.iter().flat_map(|r| &r.hops).filter(|hop| hop.name == *name);
            let us =
                |values: Vec<f64>| or_not_available(median(values), |ns| significant(ns / 1e3, 3));
            table.push(
                Tone::Plain,
                vec![
                    series.key.stack.clone(),
                    per_s(rate(series)),
                    name.clone(),
                    us(all().map(|hop| hop.mean_ns).collect()),
                    us(all().map(|hop| hop.median_ns).collect()),
                    us(all().map(|hop| hop.p99_ns).collect()),
                ],
            );
        }
    }
    table
}

/// Nodes that were killed, and what it cost clients.
fn fault_table(own: &[&Series]) -> Table {
    let mut table = Table::new(
        "Exchange: nodes that were killed",
        &["network", "round", "node", "#at, s", "#back inside the limit after, ms", "#worst, ms"],
    );
    for &series in own {
        for round in &series.rounds {
            let nm_model::result::RoundData::Latency(data) = &round.data else { continue };
            for fault in data.exchange.iter().flat_map(|exchange| &exchange.faults) {
                let ms = |ms: Option<f64>| or_not_available(ms, |ms| significant(ms, 3));
                table.push(
                    Tone::Plain,
                    vec![
                        series.key.stack.clone(),
                        (round.round + 1).to_string(),
                        fault.node.clone(),
                        significant(fault.at_s, 3),
                        ms(fault.back_ms),
                        ms(fault.worst_ms),
                    ],
                );
            }
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use nm_model::result::Source;

    use super::fixture::result;

    fn row(table: &Table, index: usize) -> Vec<&str> {
        table.rows[index].cells.iter().map(String::as_str).collect()
    }

    #[test]
    fn figures_are_listed_with_published_ones_of_the_same_size() {
        let tables = tables(&result(0.9));
        assert_eq!(tables.len(), 5);
        let own = ["2-2-2-2 unix", "measured", "10000", "0.200", "0.300", "0.600", "0.900", "0"];
        assert_eq!(row(&tables[0], 0), own);
        let published = ["2-2-2-2", PUBLISHED, "10000", "2.32", "4.45", "5.71", "7.17", "n/a"];
        assert_eq!(row(&tables[0], 2), published);
        assert_eq!(tables[0].rows.len(), 3);
        assert_eq!(row(&tables[1], 0), ["2-2-2-2 unix", "measured", "10000"]);
        assert_eq!(row(&tables[1], 1), ["2-2-2-2", PUBLISHED, "10000"]);
        assert_eq!(row(&tables[2], 0)[2..], ["4.00", "3.00", "5.00", "6.00", "18.0", "2.00"]);
        assert_eq!(row(&tables[3], 0)[2..], ["gateway to router", "30.0", "25.0", "90.0"]);
        assert_eq!(row(&tables[4], 0)[1..], ["1", "mediator 1", "2.50", "321", "330"]);
    }

    #[test]
    fn a_rate_above_the_limit_does_not_count() {
        assert_eq!(row(&tables(&result(10.5))[1], 0)[2], "none");
    }

    #[test]
    fn other_results_have_no_such_tables() {
        let other = RunResult::new("x", Source::Measured { version: "0".into() });
        assert!(tables(&other).is_empty());
        // Published runs of the exchange alone are in the plain tables.
        assert_eq!(median(vec![]), None);
        assert_eq!(median(vec![3.0, 1.0, 2.0, 10.0]), Some(2.5));
    }
}
