//! The table of a group: flows in the table of the stream probe, all else as latencies.

use nm_model::SettingKind;
use nm_model::metric::{Metric, PERCENTILES};
use nm_model::result::{RoundData, Series, Statistic};
use nm_model::verdict::Interval;

use crate::columns::Columns;
use crate::probes::stream;
use crate::table::{Column, Table};
use crate::units::{self, LatencyUnit, NOT_AVAILABLE};
use crate::view::{Detail, Group, Notes, lost, samples, unit_of, value};

/// The table of a group.
pub fn group_table(group: &Group<'_>, notes: &Notes, detail: Detail) -> Table {
    match group.statistic {
        Statistic::Throughput => stream::table::throughput_table(group, notes, detail),
        _ => latency_table(group, notes, detail),
    }
}

fn latency_table(group: &Group<'_>, notes: &Notes, detail: Detail) -> Table {
    let unit = unit_of(group.series.iter().copied());
    let mut table = Columns::of(group, notes, detail);
    for metric in latency_metrics(detail, &group.series) {
        let values: Vec<_> = group.series.iter().map(|series| value(series, metric)).collect();
        table.add(column_of(metric), unit.column(&values));
    }
    if detail == Detail::Main {
        return table.with_rounds_and_doubts(format!("{}, {}", group.title(), unit.name()));
    }
    let rates: Vec<_> = group.series.iter().map(|series| value(series, Metric::Rate)).collect();
    table.add_texts(Column::figure("n").leaves(2), |series| {
        samples(series).map_or_else(|| NOT_AVAILABLE.to_string(), units::count)
    });
    table.add_texts(Column::figure("lost").optional(), |series| units::count(lost(series)));
    table.add(Column::figure("rate /s").optional().leaves(3), units::column(&rates, 4, 1));
    table.add_texts(Column::figure("rounds").leaves(5), |series| series.rounds.len().to_string());
    let limit = Column::figure(SettingKind::CacheLineLimit.name()).optional().leaves(1);
    table.add_texts(limit, |series| {
        let limit = series.settings.get(&SettingKind::CacheLineLimit);
        limit.map_or_else(|| NOT_AVAILABLE.to_string(), ToString::to_string)
    });
    if detail == Detail::Full {
        let medians: Vec<_> = group.series.iter().map(|s| s.estimate(Metric::Median)).collect();
        let intervals: Vec<_> = medians.iter().map(|median| (*median)?.interval).collect();
        let cvs: Vec<_> = medians.iter().map(|median| (*median)?.cv_percent).collect();
        table.add(Column::figure("95 % of median"), interval_cells(unit, &intervals));
        table.add(Column::figure("CV %"), units::column(&cvs, 2, 1));
    }
    table.table(format!("{}, {}", group.title(), unit.name()))
}

fn column_of(metric: Metric) -> Column {
    let column = Column::figure(metric.to_string());
    match metric {
        Metric::Min => column.leaves(4),
        Metric::Max => column.leaves(6),
        _ => column,
    }
}

/// The figures of a table of latencies, with the percentiles that the user asked for beside the
/// usual ones.
fn latency_metrics(detail: Detail, series: &[&Series]) -> Vec<Metric> {
    let mut metrics = match detail {
        Detail::Main => return vec![Metric::Median, Metric::Percentile(99.0)],
        Detail::Brief => vec![Metric::Min, Metric::Median, Metric::Percentile(99.0), Metric::Max],
        Detail::Full => vec![
            Metric::Min,
            Metric::Median,
            Metric::Mean,
            Metric::Percentile(90.0),
            Metric::Percentile(99.0),
            Metric::Percentile(99.9),
            Metric::Percentile(99.99),
            Metric::Max,
            Metric::Es10,
            Metric::Stddev,
        ],
    };
    let max = metrics.iter().position(|metric| *metric == Metric::Max).unwrap_or(metrics.len());
    metrics.splice(max..max, unusual_percentiles(series).into_iter().map(Metric::Percentile));
    metrics
}

/// The percentiles of the series that are not recorded unless they are asked for, rising.
fn unusual_percentiles(series: &[&Series]) -> Vec<f64> {
    let rounds = series.iter().flat_map(|series| &series.rounds);
    let mut found: Vec<f64> = rounds
        .flat_map(|round| match &round.data {
            RoundData::Latency(data) => data.percentiles.as_slice(),
            RoundData::Throughput(_) => &[],
        })
        .map(|value| value.percentile)
        .filter(|percentile| !PERCENTILES.contains(percentile))
        .collect();
    found.sort_by(f64::total_cmp);
    found.dedup();
    found
}

/// Cells `LOW to HIGH` with equal precision.
fn interval_cells(unit: LatencyUnit, intervals: &[Option<Interval>]) -> Vec<String> {
    let low = intervals.iter().map(|interval| interval.map(|ends| ends.low));
    let high = intervals.iter().map(|interval| interval.map(|ends| ends.high));
    let ends = unit.column(&low.chain(high).collect::<Vec<_>>());
    let (low, high) = ends.split_at(intervals.len());
    let text = |((interval, low), high): ((&Option<Interval>, &String), &String)| match interval {
        Some(_) => format!("{low} to {high}"),
        None => NOT_AVAILABLE.to_string(),
    };
    intervals.iter().zip(low).zip(high).map(text).collect()
}
