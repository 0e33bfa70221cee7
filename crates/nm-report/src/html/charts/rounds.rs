//! Rounds as dots, so that modes and outlying rounds are seen.

use nm_model::metric::Metric;
use nm_model::result::{RoundData, Series};

use crate::style::Tone;
use crate::svg::{Axis, Chart, LegendEntry, Look, Mark, Swatch};
use crate::table::Table;
use crate::units::{self, NOT_AVAILABLE};
use crate::view;

use super::family::{Family, Subject, of_size, sizes_of_interest};
use super::figure::{Figure, ROWS_MAX, number, size_text, spread, time_axis};

pub(super) fn figures(family: &Family<'_>) -> Vec<Figure> {
    let mut figures = vec![];
    for size in sizes_of_interest(family) {
        let rows: Vec<(&Subject<'_>, &Series)> = family
            .subjects
            .iter()
            .filter_map(|subject| Some((subject, of_size(subject, size)?)))
            .filter(|(_, series)| !view::round_values(series, Metric::Median).is_empty())
            .collect();
        let n_charts = rows.len().div_ceil(ROWS_MAX);
        for (index, part) in rows.chunks(ROWS_MAX).enumerate() {
            let title = format!(
                "{}{}{}: {} of every round",
                family.probe,
                size_text(size),
                number(index, n_charts),
                family.measure
            );
            figures.push(round_figure(title, family.measure, part));
        }
    }
    figures
}

fn round_figure(title: String, measure: &str, rows: &[(&Subject<'_>, &Series)]) -> Figure {
    let p99 = Metric::Percentile(99.0);
    let mut marks = vec![];
    let mut all = vec![];
    for (index, (_, series)) in rows.iter().enumerate() {
        let row = -(index as f64);
        let dots = |metric| -> Vec<(f64, f64)> {
            let values = view::round_values(series, metric);
            values.iter().enumerate().map(|(i, v)| (*v, row + spread(i, values.len()))).collect()
        };
        let (medians, tails) = (dots(Metric::Median), dots(p99));
        all.extend(medians.iter().chain(&tails).map(|(value, _)| *value));
        if let Some(interval) = series.estimate(Metric::Median).and_then(|e| e.interval) {
            marks.push(Mark::Interval(Look::of(0), row, (interval.low, interval.high)));
        }
        marks.push(Mark::Points(Look::of(0), medians));
        marks.push(Mark::Open(Look::of(1), tails));
    }
    let names: Vec<String> = rows.iter().map(|(subject, _)| subject.label.clone()).collect();
    let key =
        "round on round from top to bottom in each row · bracket: 95 % interval of the median";
    Figure {
        chart: Chart {
            id: String::new(),
            description: format!(
                "Median and 99th percentile of every round of {}; the table below holds them all.",
                units::plural(rows.len(), "series", "series")
            ),
            x: time_axis(measure, &all),
            y: Axis::rows("", &names),
            plot_height: 30.0 * rows.len() as f64 + 14.0,
            marks,
            legend: vec![
                LegendEntry {
                    swatch: Swatch::Filled,
                    look: Look::of(0),
                    label: "median".to_string(),
                },
                LegendEntry { swatch: Swatch::Open, look: Look::of(1), label: "p99".to_string() },
            ],
            key: key.to_string(),
            title: title.clone(),
        },
        table: round_table(title, rows),
    }
}

fn round_table(title: String, rows: &[(&Subject<'_>, &Series)]) -> Table {
    let unit = view::unit_of(rows.iter().map(|(_, series)| *series));
    let titles = [
        "series",
        "#round",
        "#start, s",
        "#n",
        "#min",
        "#median",
        "#p99",
        "#max",
        "doubts of the round",
    ];
    let mut table = Table::new(format!("{title}, {}", unit.name()), &titles);
    for (subject, series) in rows {
        for round in &series.rounds {
            let figure = |metric| unit.cell(round.value(metric));
            let count = match &round.data {
                RoundData::Latency(data) => data.count,
                RoundData::Throughput(_) => None,
            };
            let doubts: Vec<&str> = round.doubts.iter().map(|d| d.kind.title()).collect();
            table.push(
                Tone::Plain,
                vec![
                    subject.label.clone(),
                    round.round.to_string(),
                    format!("{:.1}", round.started_s),
                    count.map_or_else(|| NOT_AVAILABLE.to_string(), units::count),
                    figure(Metric::Min),
                    figure(Metric::Median),
                    figure(Metric::Percentile(99.0)),
                    figure(Metric::Max),
                    doubts.join(", "),
                ],
            );
        }
    }
    table
}
