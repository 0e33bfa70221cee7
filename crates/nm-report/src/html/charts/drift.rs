//! Drift: slices of every round over the time of the run.

use nm_model::result::{RoundData, Series, Slice};

use crate::style::Tone;
use crate::svg::{Axis, Chart, Mark};
use crate::table::Table;
use crate::units;
use crate::view;

use super::family::{Family, Subject, of_size, panels, sizes_of_interest};
use super::figure::{Figure, legend, size_text, time_axis};

/// The slices of every round of a series: start of the round in s, slices.
fn slices(series: &Series) -> impl Iterator<Item = (u32, f64, &[Slice])> {
    series.rounds.iter().filter_map(|round| match &round.data {
        RoundData::Latency(data) if !data.slices.is_empty() => {
            Some((round.round, round.started_s, data.slices.as_slice()))
        }
        _ => None,
    })
}

pub(super) fn figures(family: &Family<'_>) -> Vec<Figure> {
    let Some(size) = sizes_of_interest(family).into_iter().next() else { return vec![] };
    let of_panel = |subjects: Vec<&Subject<'_>>| -> bool {
        subjects.iter().any(|s| of_size(s, size).is_some_and(|s| slices(s).next().is_some()))
    };
    let values: Vec<f64> = family
        .subjects
        .iter()
        .filter_map(|s| of_size(s, size))
        .flat_map(slices)
        .flat_map(|(_, _, slices)| slices)
        .flat_map(|s| [s.median_ns, s.p99_ns])
        .collect();
    let end = family
        .subjects
        .iter()
        .filter_map(|s| of_size(s, size))
        .flat_map(slices)
        .filter_map(|(_, start, slices)| Some(start + slices.last()?.start_ms / 1e3))
        .fold(0.0, f64::max);
    panels(family)
        .into_iter()
        .filter(|(_, subjects)| of_panel(subjects.clone()))
        .map(|(name, subjects)| {
            let title =
                format!("{}{}{name}: {} over time", family.probe, size_text(size), family.measure);
            drift_figure(title, family.measure, &subjects, size, &values, end)
        })
        .collect()
}

fn drift_figure(
    title: String,
    measure: &str,
    subjects: &[&Subject<'_>],
    size: Option<u32>,
    values: &[f64],
    end: f64,
) -> Figure {
    let mut marks = vec![];
    for subject in subjects {
        let Some(series) = of_size(subject, size) else { continue };
        let (mut medians, mut tails) = (vec![], vec![]);
        for (_, start, slices) in slices(series) {
            let points = |value: fn(&Slice) -> f64| -> Vec<(f64, f64)> {
                slices.iter().map(|s| (start + s.start_ms / 1e3, value(s))).collect()
            };
            medians.push(points(|s| s.median_ns));
            tails.push(points(|s| s.p99_ns));
        }
        // The first slice carries the shape, so that short rounds are seen too.
        let firsts = |lines: &[Vec<(f64, f64)>]| lines.iter().map(|l| l[0]).collect::<Vec<_>>();
        marks.push(Mark::Points(subject.look, firsts(&medians)));
        marks.push(Mark::Open(subject.look, firsts(&tails)));
        marks.extend(medians.into_iter().map(|line| Mark::Line(subject.look, line)));
        marks.extend(tails.into_iter().map(|line| Mark::Dotted(subject.look, line)));
    }
    Figure {
        chart: Chart {
            id: String::new(),
            description: format!(
                "Median and 99th percentile of slices of time, over {}; the table below sums each \
                 round up.",
                units::duration(end)
            ),
            x: Axis::linear("time since the start of the run, s", 0.0, end, 10, units::plain),
            y: time_axis(measure, values),
            plot_height: 260.0,
            marks,
            legend: legend(subjects),
            key: "line and filled mark: median of a slice · dotted and open mark: p99 of a slice"
                .into(),
            title: title.clone(),
        },
        table: drift_table(title, subjects, size),
    }
}

fn drift_table(title: String, subjects: &[&Subject<'_>], size: Option<u32>) -> Table {
    let series: Vec<&Series> = subjects.iter().filter_map(|s| of_size(s, size)).collect();
    let unit = view::unit_of(series);
    let titles = [
        "series",
        "#round",
        "#start, s",
        "#slices",
        "#first median",
        "#last median",
        "#lowest median",
        "#highest median",
        "#highest p99",
        "#max",
    ];
    let mut table = Table::new(format!("{title}, {}", unit.name()), &titles);
    for subject in subjects {
        let Some(series) = of_size(subject, size) else { continue };
        for (round, start, slices) in slices(series) {
            let median = |s: &Slice| s.median_ns;
            let most = |value: fn(&Slice) -> f64| slices.iter().map(value).reduce(f64::max);
            table.push(
                Tone::Plain,
                vec![
                    subject.label.clone(),
                    round.to_string(),
                    format!("{start:.1}"),
                    slices.len().to_string(),
                    unit.cell(slices.first().map(median)),
                    unit.cell(slices.last().map(median)),
                    unit.cell(slices.iter().map(median).reduce(f64::min)),
                    unit.cell(most(median)),
                    unit.cell(most(|s| s.p99_ns)),
                    unit.cell(most(|s| s.max_ns)),
                ],
            );
        }
    }
    table
}
