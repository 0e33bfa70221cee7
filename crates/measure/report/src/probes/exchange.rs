//! Tables that only the exchange has:
//!
//! - its round trips beside the published ones;
//! - the highest rates by size of network, and the fastest transport;
//! - CPU time by class of node, and the latency of each hop;
//! - moves of instruments, and nodes that were killed.

mod carried;
mod figures;
#[cfg(test)]
pub(crate) mod fixture;
pub(crate) mod page;
mod transports;

use nm_model::exchange::{LOAD, Moves};
use nm_model::probe::ProbeKind;
use nm_model::result::{RoundData, Series, Statistic};
use nm_model::{Metric, RunResult};

use crate::probes::section::Section;
use crate::reference;
use crate::style::Tone;
use crate::table::{Column, Table};
use crate::units::{NOT_AVAILABLE, Precision, column};
use crate::view;

use figures::{CLASSES, Names, class_us, cpu_us, median, per_s, rate, rounds};

/// The published run with round trips.
pub const LATENCY: &str = "monterey-ezbrokerage-latency";

/// The published run with the highest rates.
pub const SCALING: &str = "monterey-ezbrokerage-scaling";

/// Source column of the published rows.
const PUBLISHED: &str = "published, 2010";

/// Round trips, the one that names a network first.
pub(crate) const ROUND_TRIPS: &[Statistic] =
    &[Statistic::RoundTripFromIntended, Statistic::RoundTrip];

/// The section of a report.
pub(crate) fn section(result: &RunResult) -> Option<Section> {
    let tables = tables(result);
    let (anchor, title, reading) = ("exchange", "The exchange", None);
    (!tables.is_empty()).then(|| Section { anchor, title, reading, brief: tables.clone(), tables })
}

/// Whether a published network is as large as one that was measured.
pub(crate) fn is_beside(published: &Series, own: &Series) -> bool {
    layout(published) == layout(own)
}

/// The tables of a result that has figures of the exchange; none otherwise.
pub fn tables(result: &RunResult) -> Vec<Table> {
    let own = series(result);
    if own.is_empty() {
        return vec![];
    }
    let (latency, scaling) = (reference::load(LATENCY).ok(), reference::load(SCALING).ok());
    let names = Names::of(&own);
    let tables = [
        latency_table(&own, names, latency.as_ref()),
        throughput_table(result, &own, names, scaling.as_ref()),
        transports::table(result, &own),
        cpu_table(&own, names),
        hop_table(&own, names),
        moves_table(&own, names),
        fault_table(&own, names),
    ];
    tables.into_iter().filter(|table| !table.rows.is_empty()).collect()
}

fn series(result: &RunResult) -> Vec<&Series> {
    result.series.iter().filter(|s| s.key.probe == ProbeKind::Exchange).collect()
}

/// `2-2-2-2` of `2-2-2-2 unix disk-quorum`.
pub(crate) fn layout(series: &Series) -> &str {
    series.key.stack.split(' ').next().unwrap_or_default()
}

/// The series of a published run whose network is as large as one of `own`.
fn published<'a>(own: &[&Series], run: Option<&'a RunResult>) -> Vec<&'a Series> {
    let is_measured =
        |reference: &&Series| own.iter().any(|series| layout(series) == layout(reference));
    run.iter().flat_map(|run| &run.series).filter(is_measured).collect()
}

/// Mean, p90, ES10 and p99 of every network and rate, and the published rows of the same sizes
/// below.
fn latency_table(own: &[&Series], names: Names, run: Option<&RunResult>) -> Table {
    let published = published(own, run);
    let all: Vec<&Series> = own.iter().chain(&published).copied().collect();
    let source = |at: usize| if at < own.len() { "measured" } else { PUBLISHED };
    let ms = |metric| ms_column(all.iter().map(|series| view::value(series, metric)));
    let lost = |at: usize| match at < own.len() {
        true => view::lost(all[at]).to_string(),
        false => NOT_AVAILABLE.to_string(),
    };
    let network = |at: usize| match at < own.len() {
        true => names.of_series(all[at]),
        false => all[at].key.stack.clone(),
    };
    let columns = vec![
        (Column::text("network"), (0..all.len()).map(network).collect()),
        (Column::text("source"), (0..all.len()).map(|at| source(at).to_string()).collect()),
        (Column::figure("rate /s"), all.iter().map(|series| per_s(rate(series))).collect()),
        (Column::figure("mean"), ms(Metric::Mean)),
        (Column::figure("p90"), ms(Metric::Percentile(90.0))),
        (Column::figure("ES10"), ms(Metric::Es10)),
        (Column::figure("p99"), ms(Metric::Percentile(99.0))),
        (Column::figure("lost"), (0..all.len()).map(lost).collect()),
    ];
    let tones = (0..all.len()).map(|at| if at < own.len() { Tone::Plain } else { Tone::Faint });
    Table::of_columns(
        "Exchange: round trips through all four classes, ms (medians of rounds)",
        columns,
    )
    .with_tones(tones)
}

/// Cells in ms of a column of latencies in ns.
fn ms_column(values: impl Iterator<Item = Option<f64>>) -> Vec<String> {
    column(&values.map(|ns| ns.map(|ns| ns / 1e6)).collect::<Vec<_>>(), 3, 3)
}

/// Cells in µs of a column of latencies in ns.
fn us_column(values: impl Iterator<Item = Option<f64>>) -> Vec<String> {
    column(&values.map(|ns| ns.map(|ns| ns / 1e3)).collect::<Vec<_>>(), 3, 3)
}

/// The highest rate at which a network is shown to keep ES10 and p99 under 10 ms.
fn throughput_table(
    result: &RunResult,
    own: &[&Series],
    names: Names,
    run: Option<&RunResult>,
) -> Table {
    let mut table = Table::new(
        "Exchange: highest rate that was tried and carried, with ES10 and p99 under 10 ms and \
         nothing lost",
        [
            Column::text("network"),
            Column::text("source"),
            Column::figure("rate /s"),
            Column::text("other rates").optional(),
        ],
    );
    let mut done: Vec<String> = vec![];
    for series in own {
        let name = names.of_series(series);
        if done.contains(&name) {
            continue;
        }
        let same: Vec<&Series> =
            own.iter().copied().filter(|other| names.of_series(other) == name).collect();
        let (best, others) = carried::cells(result, &same);
        table.push(Tone::Plain, vec![name.clone(), "measured".to_string(), best, others]);
        done.push(name);
    }
    for reference in published(own, run) {
        let rate = per_s(rate(reference));
        let cells = vec![reference.key.stack.clone(), PUBLISHED.into(), rate, String::new()];
        table.push(Tone::Faint, cells);
    }
    table.drop_empty();
    table
}

/// CPU time by class.
fn cpu_table(own: &[&Series], names: Names) -> Table {
    let has_cpu = |series: &&&Series| CLASSES.iter().any(|c| class_us(series, c).is_some());
    let known: Vec<&Series> = own.iter().filter(has_cpu).copied().collect();
    let class = |class: &str| {
        let values: Vec<_> = known.iter().map(|series| class_us(series, class)).collect();
        column(&values, 3, 2)
    };
    let sums: Vec<_> = known.iter().map(|series| cpu_us(series)).collect();
    let mut columns = vec![
        (Column::text("network"), known.iter().map(|series| names.of_series(series)).collect()),
        (Column::figure("rate /s"), known.iter().map(|series| per_s(rate(series))).collect()),
    ];
    let titles = [
        Column::figure("gateway"),
        Column::figure("router"),
        Column::figure("mediator"),
        Column::figure("processor"),
    ];
    columns.extend(titles.into_iter().zip(CLASSES.map(class)));
    columns.push((Column::figure("sum"), column(&sums, 3, 2)));
    columns.push((Column::figure("load"), class(LOAD)));
    let shares = known.iter().map(|series| {
        let shares = rounds(series).iter().filter_map(|round| round.broadcast_share).collect();
        median(shares).map(|share| share * 100.0)
    });
    let shares: Vec<_> = shares.collect();
    if shares.iter().any(Option::is_some) {
        columns.push((Column::figure("broadcasts %"), column(&shares, 3, 1)));
    }
    Table::of_columns(
        "Exchange: CPU time for one transaction, µs, all nodes of a class together (median of \
         rounds; their start and warm-up included)",
        columns,
    )
}

/// Mean, median and p99 of each hop.
fn hop_table(own: &[&Series], names: Names) -> Table {
    let mut rows: Vec<(&Series, String)> = vec![];
    for &series in own {
        let rounds = rounds(series);
        let hops = rounds.first().map_or(&[][..], |round| &round.hops);
        rows.extend(hops.iter().map(|hop| (series, hop.name.clone())));
    }
    let figures = |value: fn(&nm_model::exchange::Hop) -> f64| {
        us_column(rows.iter().map(|(series, name)| {
            let rounds = rounds(series);
            let all = rounds.iter().flat_map(|round| &round.hops).filter(|hop| hop.name == *name);
            median(all.map(value).collect())
        }))
    };
    let columns = vec![
        (Column::text("network"), rows.iter().map(|(series, _)| names.of_series(series)).collect()),
        (Column::figure("rate /s"), rows.iter().map(|(series, _)| per_s(rate(series))).collect()),
        (Column::text("hop"), rows.iter().map(|(_, name)| name.clone()).collect()),
        (Column::figure("mean"), figures(|hop| hop.mean_ns)),
        (Column::figure("median"), figures(|hop| hop.median_ns)),
        (Column::figure("p99"), figures(|hop| hop.p99_ns)),
    ];
    Table::of_columns(
        "Exchange: where the time goes, µs (median of rounds; a hop's p99 values do not add up)",
        columns,
    )
}

/// Moves of instruments, how long they took, and how long instruments paused.
fn moves_table(own: &[&Series], names: Names) -> Table {
    let moves_of = |series: &Series| -> Vec<Moves> {
        rounds(series).iter().filter_map(|round| round.moves.clone()).collect()
    };
    let rows: Vec<(&Series, Vec<Moves>)> = own
        .iter()
        .map(|series| (*series, moves_of(series)))
        .filter(|row| !row.1.is_empty())
        .collect();
    let count = |value: fn(&Moves) -> u64| -> Vec<String> {
        rows.iter().map(|(_, all)| all.iter().map(value).sum::<u64>().to_string()).collect()
    };
    let middle = |value: fn(&Moves) -> Option<f64>| {
        ms_column(rows.iter().map(|(_, all)| median(all.iter().filter_map(value).collect())))
    };
    let longest = |value: fn(&Moves) -> Option<f64>| {
        ms_column(rows.iter().map(|(_, all)| all.iter().filter_map(value).max_by(f64::total_cmp)))
    };
    let columns = vec![
        (Column::text("network"), rows.iter().map(|(series, _)| names.of_series(series)).collect()),
        (Column::figure("rate /s"), rows.iter().map(|(series, _)| per_s(rate(series))).collect()),
        (Column::figure("due"), count(|moves| moves.due)),
        (Column::figure("done"), count(|moves| moves.done)),
        (Column::figure("refused"), count(|moves| moves.refused)),
        (Column::figure("took"), middle(|moves| moves.took.median_ns)),
        (Column::figure("p99"), middle(|moves| moves.took.p99_ns)),
        (Column::figure("longest"), longest(|moves| moves.took.max_ns)),
        (Column::figure("paused"), middle(|moves| moves.pauses.median_ns)),
        (Column::figure("p99 "), middle(|moves| moves.pauses.p99_ns)),
        (Column::figure("longest "), longest(|moves| moves.pauses.max_ns)),
    ];
    Table::of_columns(
        "Exchange: instruments that moved to another cell while they were traded: how long a move \
         took, and for how long no cell executed requests on the instrument, ms (medians of \
         rounds; the longest of all)",
        columns,
    )
}

/// Nodes that were killed, and what it cost clients.
fn fault_table(own: &[&Series], names: Names) -> Table {
    let mut rows = vec![];
    for &series in own {
        for round in &series.rounds {
            let RoundData::Latency(data) = &round.data else { continue };
            let faults = data.exchange.iter().flat_map(|exchange| &exchange.faults);
            rows.extend(faults.map(|fault| (series, round, fault)));
        }
    }
    let figures = |values: Vec<Option<f64>>| -> Vec<String> { column(&values, 3, 2) };
    let seconds = Precision::of(rows.iter().map(|(_, _, fault)| fault.at_s), 3, 2);
    let columns = vec![
        (
            Column::text("network"),
            rows.iter().map(|(series, ..)| names.of_series(series)).collect(),
        ),
        (
            Column::text("round"),
            rows.iter().map(|(_, r, _)| (u64::from(r.round) + 1).to_string()).collect(),
        ),
        (Column::text("node"), rows.iter().map(|(_, _, fault)| fault.node.clone()).collect()),
        (
            Column::figure("at, s"),
            rows.iter().map(|(_, _, fault)| seconds.cell(Some(fault.at_s))).collect(),
        ),
        (
            Column::figure("back inside the limit after, ms"),
            figures(rows.iter().map(|(_, _, fault)| fault.back_ms).collect()),
        ),
        (
            Column::figure("worst, ms"),
            figures(rows.iter().map(|(_, _, fault)| fault.worst_ms).collect()),
        ),
    ];
    Table::of_columns("Exchange: nodes that were killed", columns)
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
        let tables = tables(&result(0.9, 5));
        assert_eq!(tables.len(), 6);
        let own = ["2-2-2-2 unix", "measured", "10000", "0.200", "0.300", "0.600", "0.900", "0"];
        assert_eq!(row(&tables[0], 0), own);
        let published = ["2-2-2-2", PUBLISHED, "10000", "2.320", "4.450", "5.710", "7.170", "n/a"];
        assert_eq!(row(&tables[0], 2), published);
        assert_eq!(tables[0].rows.len(), 3);
        assert_eq!(row(&tables[1], 0), ["2-2-2-2 unix", "measured", "10000"]);
        assert_eq!(row(&tables[1], 1), ["2-2-2-2", PUBLISHED, "10000"]);
        assert_eq!(row(&tables[2], 0)[2..], ["4.00", "3.00", "5.00", "6.00", "18.0", "2.00"]);
        assert_eq!(row(&tables[3], 0)[2..], ["gateway to router", "30.0", "25.0", "90.0"]);
        let moves = ["50", "50", "0", "12.0", "30.0", "44.0", "0.300", "0.700", "0.900"];
        let [network, rate, figures @ ..] = &row(&tables[4], 0)[..] else { panic!("too short") };
        assert_eq!((*network, *rate, figures), ("2-2-2-2 unix", "10000", &moves[..]));
        assert_eq!(row(&tables[5], 0)[1..], ["1", "mediator 1", "2.50", "321", "330"]);
    }

    #[test]
    fn a_rate_above_the_limit_does_not_count() {
        let tables = tables(&result(10.5, 5));
        assert_eq!(row(&tables[1], 0)[2..], ["none", "10000: not carried"]);
    }

    #[test]
    fn networks_of_several_environments_are_named_with_them() {
        let mut run = result(0.9, 5);
        let mut other = result(10.5, 5).series.remove(0);
        other.key.environment = "netns".into();
        run.series.push(other);
        let tables = tables(&run);
        assert_eq!(row(&tables[1], 0)[0..3], ["loopback/2-2-2-2 unix", "measured", "10000"]);
        assert_eq!(row(&tables[1], 1)[0..3], ["netns/2-2-2-2 unix", "measured", "none"]);
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
