//! Rounds as dots, so that modes and outlying rounds are seen.

use nm_model::metric::Metric;
use nm_model::result::{Round, RoundData, Series};

use crate::style::Tone;
use crate::svg::{Axis, Chart, LegendEntry, Look, Mark, Swatch};
use crate::table::{Column, Table};
use crate::units::{self, NOT_AVAILABLE};
use crate::view;

use super::family::{Family, Subject, environments, of_size, sizes_of_interest};
use super::figure::{Figure, ROWS_MAX, count_text, number, size_text, spread, time_axis};
use super::limits::{Limit, limits_of};

const P99: Metric = Metric::Percentile(99.0);

/// A series as a row of the chart.
#[derive(Clone, Copy)]
struct Row<'s, 'a> {
    subject: &'s Subject<'a>,
    series: &'a Series,
}

pub(super) fn figures(family: &Family<'_>) -> Vec<(String, Figure)> {
    let mut figures = vec![];
    for size in sizes_of_interest(family) {
        let rows: Vec<Row<'_, '_>> = family
            .subjects
            .iter()
            .filter_map(|subject| Some(Row { subject, series: of_size(subject, size)? }))
            .filter(|row| !view::round_values(row.series, Metric::Median).is_empty())
            .collect();
        // One scale for all charts of a size, so that they can be compared.
        let values: Vec<f64> = rows.iter().flat_map(|row| values(family, row.series)).collect();
        for environment in environments(rows.iter().map(|row| row.subject.environment)) {
            let own: Vec<_> =
                rows.iter().copied().filter(|r| r.subject.environment == environment).collect();
            let n_charts = own.len().div_ceil(ROWS_MAX);
            for (index, part) in own.chunks(ROWS_MAX).enumerate() {
                let title = format!(
                    "{}{} · {environment}{}: {} of every round",
                    family.probe,
                    size_text(size),
                    number(index, n_charts),
                    family.measure
                );
                figures.push((environment.to_string(), round_figure(title, family, part, &values)));
            }
        }
    }
    figures
}

/// Everything that the axis holds.
fn values(family: &Family<'_>, series: &Series) -> Vec<f64> {
    let mut values = view::round_values(series, Metric::Median);
    values.extend(view::round_values(series, P99));
    values.extend(limits(family, series).into_iter().map(|limit| limit.value));
    values
}

/// The limits of the figures that are drawn.
fn limits(family: &Family<'_>, series: &Series) -> Vec<Limit> {
    let mut limits = limits_of(family.verdicts, series);
    limits.retain(|limit| [Metric::Median, P99].contains(&limit.metric));
    limits
}

fn round_figure(
    title: String,
    family: &Family<'_>,
    rows: &[Row<'_, '_>],
    values: &[f64],
) -> Figure {
    let mut marks: Vec<Mark> =
        rows.iter().enumerate().flat_map(|(index, row)| row_marks(row, -(index as f64))).collect();
    marks.extend(limit_marks(family, rows));
    let names: Vec<String> = rows.iter().map(|row| row.subject.label.clone()).collect();
    let entry = |swatch, label: &str| LegendEntry {
        swatch,
        look: Look::neutral(),
        label: label.to_string(),
    };
    Figure {
        chart: Chart {
            id: String::new(),
            description: format!(
                "Median and 99th percentile of every round of {}; the table below holds them all.",
                units::plural(rows.len(), "series", "series")
            ),
            x: time_axis(family.measure, values),
            y: Axis::rows("", &names),
            plot_height: 30.0 * rows.len() as f64 + 14.0,
            marks,
            legend: vec![
                entry(Swatch::Filled, "median of a round"),
                entry(Swatch::Open, "p99 of a round"),
            ],
            key: "round on round from top to bottom in each row · bracket: 95 % interval of the \
                  median"
                .to_string(),
            title: title.clone(),
        },
        table: round_table(title, rows),
    }
}

/// The marks of a row at height `y`.
fn row_marks(row: &Row<'_, '_>, y: f64) -> Vec<Mark> {
    let look = row.subject.look;
    let dots = |metric| -> Vec<(f64, f64)> {
        let values = view::round_values(row.series, metric);
        values.iter().enumerate().map(|(i, v)| (*v, y + spread(i, values.len()))).collect()
    };
    let interval = row.series.estimate(Metric::Median).and_then(|e| e.interval);
    let interval = interval.map(|ends| Mark::Interval(look, y, (ends.low, ends.high)));
    let dots = [Mark::Points(look, dots(Metric::Median)), Mark::Open(look, dots(P99))];
    interval.into_iter().chain(dots).collect()
}

/// Each limit as one line along the rows, one below the other, that it is for.
fn limit_marks(family: &Family<'_>, rows: &[Row<'_, '_>]) -> Vec<Mark> {
    let mut runs: Vec<(Limit, usize, usize)> = vec![];
    for (index, row) in rows.iter().enumerate() {
        for limit in limits(family, row.series) {
            match runs.iter_mut().find(|(known, _, last)| *known == limit && *last + 1 == index) {
                Some((_, _, last)) => *last = index,
                None => runs.push((limit, index, index)),
            }
        }
    }
    let mark = |(limit, first, last): (Limit, usize, usize)| Mark::Limit {
        x: limit.value,
        y: (-(last as f64) - 0.45, 0.45 - first as f64),
        text: limit.text,
    };
    runs.into_iter().map(mark).collect()
}

/// A line of the table: the figures over all rounds, or one round.
struct Line<'s> {
    label: &'s str,
    series: &'s Series,
    round: Option<&'s Round>,
}

impl Line<'_> {
    fn value(&self, metric: Metric) -> Option<f64> {
        match self.round {
            Some(round) => round.value(metric),
            None => view::value(self.series, metric),
        }
    }

    fn count(&self) -> String {
        match self.round.map(|round| &round.data) {
            Some(RoundData::Latency(data)) => {
                data.count.map_or_else(|| NOT_AVAILABLE.to_string(), units::count)
            }
            Some(RoundData::Throughput(_)) => NOT_AVAILABLE.to_string(),
            None => count_text(self.series),
        }
    }

    fn doubts(&self) -> String {
        let doubts = self.round.map_or(&[][..], |round| &round.doubts);
        let titles: Vec<&str> = doubts.iter().map(|doubt| doubt.kind.title()).collect();
        titles.join(", ")
    }
}

fn round_table(title: String, rows: &[Row<'_, '_>]) -> Table {
    let unit = view::unit_of(rows.iter().map(|row| row.series));
    let mut lines: Vec<Line<'_>> = vec![];
    for Row { subject, series } in rows {
        let label = subject.label.as_str();
        lines.push(Line { label, series, round: None });
        lines.extend(series.rounds.iter().map(|round| Line { label, series, round: Some(round) }));
    }
    let figures = |metric| {
        let values: Vec<Option<f64>> = lines.iter().map(|line| line.value(metric)).collect();
        unit.column(&values)
    };
    let texts = |text: &dyn Fn(&Line<'_>) -> String| lines.iter().map(text).collect();
    let of_round = |text: fn(&Round) -> String, otherwise: &'static str| {
        move |line: &Line<'_>| line.round.map_or_else(|| otherwise.to_string(), text)
    };
    let columns = vec![
        (Column::text("series"), texts(&|line| line.label.to_string())),
        (
            Column::figure("round"),
            texts(&of_round(|round| (u64::from(round.round) + 1).to_string(), "all")),
        ),
        (
            Column::figure("start, s"),
            texts(&of_round(|round| format!("{:.1}", round.started_s), "")),
        ),
        (Column::figure("n"), texts(&|line| line.count())),
        (Column::figure("min"), figures(Metric::Min)),
        (Column::figure("median"), figures(Metric::Median)),
        (Column::figure("p99"), figures(P99)),
        (Column::figure("max"), figures(Metric::Max)),
        (Column::text("doubts of the round"), texts(&|line| line.doubts())),
    ];
    let tones = lines.iter().map(|line| match line.round {
        Some(_) => Tone::Faint,
        None => Tone::Plain,
    });
    Table::of_columns(format!("{title}, {}", unit.name()), columns).with_tones(tones)
}
