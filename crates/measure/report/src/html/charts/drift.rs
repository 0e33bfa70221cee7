//! Drift: every round in the order in which they ran, and the slices of time inside each.

use nm_model::metric::Metric;
use nm_model::result::{Round, RoundData, Series, Slice};

use crate::svg::{Axis, Chart, Mark, Scale, Tick};
use crate::table::{Column, Table};
use crate::units;
use crate::view;

use super::family::{Family, Panel, Subject, legend, of_size, panels, sizes_of_interest};
use super::figure::{Figure, size_text, time_axis};
use super::limits::{Limit, limit_text, limits_of, shared_limits};

const P99: Metric = Metric::Percentile(99.0);

/// Share of the room of a round that its slices take up, around its number.
const SLICES_WIDTH: f64 = 0.7;

/// The slices of a round.
fn slices(round: &Round) -> &[Slice] {
    match &round.data {
        RoundData::Latency(data) => &data.slices,
        RoundData::Throughput(_) => &[],
    }
}

/// The number of a round, counted from 1, as a position.
fn position(round: &Round) -> f64 {
    f64::from(round.round) + 1.0
}

pub(super) fn figures(family: &Family<'_>) -> Vec<(String, Figure)> {
    let Some(size) = sizes_of_interest(family).into_iter().next() else { return vec![] };
    let all: Vec<&Series> = family.subjects.iter().filter_map(|s| of_size(s, size)).collect();
    // One scale for all charts, so that they can be compared.
    let mut values: Vec<f64> = vec![];
    for series in &all {
        values.extend(view::round_values(series, Metric::Median));
        values.extend(view::round_values(series, P99));
        values.extend(series.rounds.iter().flat_map(slices).map(|slice| slice.median_ns));
        values.extend(limits(family, series).into_iter().map(|limit| limit.value));
    }
    let last = all.iter().flat_map(|s| &s.rounds).map(position).fold(1.0, f64::max);
    panels(family)
        .into_iter()
        .filter_map(|panel| {
            let shown = |s: &&Subject<'_>| of_size(s, size).is_some_and(has_median);
            let subjects: Vec<_> = panel.subjects.iter().copied().filter(shown).collect();
            let figure = drift_figure(family, &panel, size, &subjects, (&values, last));
            (!subjects.is_empty()).then(|| (panel.environment.to_string(), figure))
        })
        .collect()
}

fn has_median(series: &Series) -> bool {
    !view::round_values(series, Metric::Median).is_empty()
}

/// The limits of the figures that are drawn.
fn limits(family: &Family<'_>, series: &Series) -> Vec<Limit> {
    let mut limits = limits_of(family.verdicts, series);
    limits.retain(|limit| [Metric::Median, P99].contains(&limit.metric));
    limits
}

fn drift_figure(
    family: &Family<'_>,
    panel: &Panel<'_, '_>,
    size: Option<u32>,
    subjects: &[&Subject<'_>],
    (values, last): (&[f64], f64),
) -> Figure {
    let title =
        format!("{}{}{}: {} by round", family.probe, size_text(size), panel.name, family.measure);
    let rows: Vec<(&Subject<'_>, &Series)> =
        subjects.iter().filter_map(|s| Some((*s, of_size(s, size)?))).collect();
    let mut marks: Vec<Mark> = rows.iter().flat_map(|(s, series)| marks(s, series)).collect();
    let of_series: Vec<_> = rows.iter().map(|(_, series)| limits(family, series)).collect();
    marks.extend(shared_limits(&of_series).into_iter().map(|(limit, n)| Mark::Level {
        x: (0.5, last + 0.5),
        y: limit.value,
        text: limit_text(&limit, n, of_series.len()),
    }));
    Figure {
        chart: Chart {
            id: String::new(),
            description: format!(
                "Median and 99th percentile of every round of {}; the table below holds them all.",
                units::plural(rows.len(), "series", "series")
            ),
            x: round_axis(last),
            y: time_axis(family.measure, values),
            plot_height: 260.0,
            marks,
            legend: legend(subjects.iter().copied()),
            key: "filled mark: median of a round · open mark: p99 of a round · thin line: medians \
                  of its slices of time"
                .into(),
            title: title.clone(),
        },
        table: drift_table(title, &rows),
    }
}

/// An axis of rounds from 1 to `last`.
fn round_axis(last: f64) -> Axis {
    // A file may claim any number of rounds; more ticks than these could not be read.
    const TICKS_MAX: f64 = 100.0;
    let step = (last / TICKS_MAX).ceil().max(1.0);
    let at = |index: u32| 1.0 + f64::from(index) * step;
    let ticks = (0..TICKS_MAX as u32).map(at).take_while(|at| *at <= last);
    Axis {
        label: "round".to_string(),
        scale: Scale::Linear,
        low: 0.5,
        high: last + 0.5,
        ticks: ticks.map(|at| Tick { at, label: units::plain(at) }).collect(),
    }
}

fn marks(subject: &Subject<'_>, series: &Series) -> Vec<Mark> {
    let look = subject.look;
    let points = |metric| -> Vec<(f64, f64)> {
        let point = |round: &Round| Some((position(round), round.value(metric)?));
        series.rounds.iter().filter_map(point).filter(|(_, value)| value.is_finite()).collect()
    };
    let mut marks: Vec<Mark> =
        series.rounds.iter().filter_map(slice_line).map(|line| Mark::Dotted(look, line)).collect();
    marks.push(Mark::Line(look, points(Metric::Median)));
    marks.push(Mark::Points(look, points(Metric::Median)));
    marks.push(Mark::Open(look, points(P99)));
    marks
}

/// The medians of the slices of a round, spread around its number by their time.
fn slice_line(round: &Round) -> Option<Vec<(f64, f64)>> {
    let slices = slices(round);
    let (first, last) = (slices.first()?.start_ms, slices.last()?.start_ms);
    let share = |slice: &Slice| match last > first {
        true => (slice.start_ms - first) / (last - first) - 0.5,
        false => 0.0,
    };
    let point = |slice: &Slice| (position(round) + SLICES_WIDTH * share(slice), slice.median_ns);
    Some(slices.iter().map(point).collect())
}

fn drift_table(title: String, rows: &[(&Subject<'_>, &Series)]) -> Table {
    let unit = view::unit_of(rows.iter().map(|(_, series)| *series));
    let lines: Vec<(&str, &Round)> = rows
        .iter()
        .flat_map(|(subject, series)| series.rounds.iter().map(|r| (subject.label.as_str(), r)))
        .collect();
    let texts = |text: fn(&Round) -> String| -> Vec<String> {
        lines.iter().map(|(_, round)| text(round)).collect()
    };
    let figures = |value: &dyn Fn(&Round) -> Option<f64>| -> Vec<String> {
        unit.column(&lines.iter().map(|(_, round)| value(round)).collect::<Vec<_>>())
    };
    let medians =
        |round: &Round| -> Vec<f64> { slices(round).iter().map(|slice| slice.median_ns).collect() };
    let columns = vec![
        (Column::text("series"), lines.iter().map(|(label, _)| label.to_string()).collect()),
        (Column::figure("round"), texts(|round| units::plain(position(round)))),
        (Column::figure("start, s"), texts(|round| format!("{:.1}", round.started_s))),
        (Column::figure("median"), figures(&|round| round.value(Metric::Median))),
        (Column::figure("p99"), figures(&|round| round.value(P99))),
        (Column::figure("max"), figures(&|round| round.value(Metric::Max))),
        (Column::figure("slices"), texts(|round| slices(round).len().to_string())),
        (Column::figure("first slice"), figures(&|round| medians(round).first().copied())),
        (Column::figure("last slice"), figures(&|round| medians(round).last().copied())),
        (
            Column::figure("lowest slice"),
            figures(&|round| medians(round).into_iter().reduce(f64::min)),
        ),
        (
            Column::figure("highest slice"),
            figures(&|round| medians(round).into_iter().reduce(f64::max)),
        ),
    ];
    let caption = format!("{title}, {} (slices: their medians)", unit.name());
    Table::of_columns(caption, columns)
}
