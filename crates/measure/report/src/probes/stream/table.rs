//! The table of a group of flows.

use nm_model::Metric;
use nm_model::result::{Flow, Series};
use nm_stats::describe::{cv_percent, mean, stddev};

use crate::columns::Columns;
use crate::table::{Column, Table};
use crate::units::{self, NOT_AVAILABLE, Precision};
use crate::view::{
    Detail, Group, Notes, round_values, settings_text, sum, typical_throughput, value,
};

/// Throughput over rounds, CPU time, and the flows of the middle round.
pub(crate) fn throughput_table(group: &Group<'_>, notes: &Notes, detail: Detail) -> Table {
    let rounds = |series: &Series| round_values(series, Metric::Throughput);
    let precision = Precision::of(group.series.iter().flat_map(|s| rounds(s)), 4, 3);
    let mut table = Columns::of(group, notes, detail);
    let caption = format!("{}, Gb/s (1e9 bit/s)", group.title());
    table.add_figures(Column::figure("median"), precision, |series| {
        value(series, Metric::Throughput)
    });
    if detail != Detail::Main {
        table.add_figures(Column::figure("mean").leaves(4), precision, |series| {
            mean(&rounds(series))
        });
    }
    let deviation = Column::figure("± SD");
    let deviation = if detail == Detail::Main { deviation } else { deviation.leaves(1) };
    table.add_figures(deviation, precision, |series| stddev(&rounds(series)));
    if detail == Detail::Main {
        return table.with_rounds_and_doubts(caption);
    }
    let cvs = group.series.iter().map(|series| cv_percent(&rounds(series)));
    table.add(Column::figure("CV %"), units::column(&cvs.collect::<Vec<_>>(), 2, 1));
    table.add_figures(Column::figure("min").leaves(6), precision, |series| {
        rounds(series).into_iter().reduce(f64::min)
    });
    table.add_figures(Column::figure("max").leaves(7), precision, |series| {
        rounds(series).into_iter().reduce(f64::max)
    });
    table.add_texts(Column::figure("rounds"), |series| series.rounds.len().to_string());
    table.add_texts(Column::figure("retransmits").optional().leaves(5), |series| {
        let round = typical_throughput(series).filter(|round| !round.flows.is_empty());
        let counted = round.and_then(|round| sum(round.flows.iter().map(|f| f.retransmits)));
        counted.map_or_else(|| NOT_AVAILABLE.to_string(), units::count)
    });
    let cpu = Precision { decimals: 2 };
    table.add_figures(Column::figure("CPU client").optional().leaves(2), cpu, |s| {
        typical_throughput(s)?.client_cpu
    });
    table.add_figures(Column::figure("CPU server").optional().leaves(3), cpu, |s| {
        typical_throughput(s)?.server_cpu
    });
    if detail == Detail::Full {
        table.add_texts(Column::text("flows of the middle round"), |series| {
            let flows = typical_throughput(series).into_iter().flat_map(|round| &round.flows);
            let text = |flow: &Flow| format!("{} from {}", precision.text(flow.gbps), flow.sender);
            flows.map(text).collect::<Vec<_>>().join(", ")
        });
        table.add_texts(Column::text("settings"), settings_text);
    }
    table.table(caption)
}
