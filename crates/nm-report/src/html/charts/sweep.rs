//! Size sweeps: median by message size, with a band and the maxima.

use nm_model::metric::Metric;
use nm_model::result::Series;

use crate::svg::{Axis, Chart, Mark, Scale, Tick};
use crate::table::Table;
use crate::units;
use crate::view;

use super::family::{Family, Subject, panels};
use super::figure::{Figure, count_text, legend, time_axis, tone};

pub(super) fn figures(family: &Family<'_>) -> Vec<Figure> {
    let has_sweep =
        |s: &Subject<'_>| s.series.iter().filter(|s| s.key.case.size_bytes().is_some()).count() > 1;
    if !family.subjects.iter().any(has_sweep) {
        return vec![];
    }
    let panels = panels(family);
    let metrics = [Metric::Min, Metric::Median, Metric::Percentile(99.0), Metric::Max];
    let values: Vec<f64> = family
        .subjects
        .iter()
        .chain(&family.references)
        .flat_map(|s| &s.series)
        .flat_map(|s| metrics.map(|metric| view::value(s, metric)))
        .flatten()
        .collect();
    let mut figures = vec![];
    for (name, subjects) in panels {
        let subjects: Vec<_> =
            subjects.into_iter().chain(&family.references).filter(|s| has_sweep(s)).collect();
        if subjects.iter().any(|s| !s.look.is_faint) {
            let title = format!("{}{name}: {} by message size", family.probe, family.measure);
            figures.push(sweep_figure(title, family.measure, &subjects, &values));
        }
    }
    figures
}

fn sweep_figure(title: String, measure: &str, subjects: &[&Subject<'_>], values: &[f64]) -> Figure {
    let mut marks = vec![];
    let mut sizes: Vec<u32> = vec![];
    for subject in subjects.iter().rev() {
        let points = |metric: Metric| -> Vec<(f64, f64)> {
            let point = |s: &&Series| {
                let size = s.key.case.size_bytes()?.max(1);
                Some((f64::from(size).log2(), view::value(s, metric)?))
            };
            subject.series.iter().filter_map(point).collect()
        };
        sizes.extend(subject.series.iter().filter_map(|s| s.key.case.size_bytes()));
        let median = points(Metric::Median);
        if !subject.look.is_faint {
            let band = subject.series.iter().filter_map(|s| {
                let x = f64::from(s.key.case.size_bytes()?.max(1)).log2();
                Some((x, view::value(s, Metric::Min)?, view::value(s, Metric::Percentile(99.0))?))
            });
            marks.insert(0, Mark::Band(subject.look, band.collect()));
            marks.push(Mark::Strokes(subject.look, points(Metric::Max)));
        }
        marks.push(Mark::Line(subject.look, median.clone()));
        marks.push(Mark::Points(subject.look, median));
    }
    sizes.sort_unstable();
    sizes.dedup();
    let position = |size: u32| f64::from(size.max(1)).log2();
    let (low, high) = (sizes.first().copied().unwrap_or(1), sizes.last().copied().unwrap_or(2));
    let margin = ((position(high) - position(low)) * 0.02).max(0.05);
    let x = Axis {
        label: "message size, each step a factor of two".to_string(),
        scale: Scale::Linear,
        low: position(low) - margin,
        high: position(high) + margin,
        ticks: sizes
            .iter()
            .map(|&size| Tick { at: position(size), label: units::bytes(u64::from(size)) })
            .collect(),
    };
    Figure {
        chart: Chart {
            id: String::new(),
            description: format!(
                "{} of {} at {} sizes from {} to {}; the table below holds every value.",
                measure,
                units::plural(subjects.len(), "series", "series"),
                sizes.len(),
                units::bytes(u64::from(low)),
                units::bytes(u64::from(high)),
            ),
            title: title.clone(),
            x,
            y: time_axis(measure, values),
            plot_height: 320.0,
            marks,
            legend: legend(subjects),
            key: "line: median · band: minimum to p99 · stroke: maximum".to_string(),
        },
        table: sweep_table(title, subjects),
    }
}

fn sweep_table(title: String, subjects: &[&Subject<'_>]) -> Table {
    let unit = view::unit_of(subjects.iter().flat_map(|s| s.series.iter().copied()));
    let titles = ["series", "#size", "#n", "#min", "#median", "#p99", "#max"];
    let mut table = Table::new(format!("{title}, {}", unit.name()), &titles);
    for subject in subjects {
        for series in &subject.series {
            let figure = |metric| unit.cell(view::value(series, metric));
            table.push(
                tone(subject.look),
                vec![
                    subject.label.clone(),
                    view::case_text(&series.key.case),
                    count_text(series),
                    figure(Metric::Min),
                    figure(Metric::Median),
                    figure(Metric::Percentile(99.0)),
                    figure(Metric::Max),
                ],
            );
        }
    }
    table
}
