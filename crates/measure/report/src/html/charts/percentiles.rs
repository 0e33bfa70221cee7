//! Percentile plots: how slow the slowest are, as the median and the range of the rounds.

use nm_model::result::Series;
use nm_model::{Metric, RunResult};

use crate::best;
use crate::distribution::{Distribution, Point, nines};
use crate::svg::{Axis, Chart, LegendEntry, Mark, Scale, Tick};
use crate::table::{Column, Table};
use crate::units;
use crate::view;

use super::family::{
    Family, Panel, Subject, families, legend, of_size, panels, references_beside, sizes_of_interest,
};
use super::figure::{Figure, count_text, figures_column, size_text, time_axis, tone};
use super::limits::{limit_text, limits_of, shared_limits};

const AXIS_PERCENTILES: [(f64, &str); 9] = [
    (0.0, "0 %"),
    (50.0, "50 %"),
    (90.0, "90 %"),
    (99.0, "99 %"),
    (99.9, "99.9 %"),
    (99.99, "99.99 %"),
    (99.999, "99.999 %"),
    (99.9999, "99.9999 %"),
    (99.99999, "99.99999 %"),
];

/// Half of the length of a limit on the axis, in nines.
const LIMIT_HALF_LENGTH: f64 = 0.3;

struct Curve<'s, 'a> {
    subject: &'s Subject<'a>,
    series: &'a Series,
    distribution: Distribution,
}

/// A limit at its percentile.
struct LimitMark {
    nines: f64,
    value_ns: f64,
    text: String,
}

/// The charts of one size, which share their axes so that they can be compared.
struct Scales<'f> {
    measure: &'f str,
    values: Vec<f64>,
    end: f64,
}

pub(super) fn figures(family: &Family<'_>) -> Vec<(String, Figure)> {
    let mut figures = vec![];
    for size in sizes_of_interest(family) {
        let mut drawn: Vec<(Panel<'_, '_>, Vec<Curve<'_, '_>>)> = vec![];
        for panel in panels(family) {
            let curves = curves(&panel, size);
            if curves.iter().any(|c| !c.subject.look.is_faint) {
                drawn.push((panel, curves));
            }
        }
        let scales = scales(family, drawn.iter().flat_map(|(_, curves)| curves));
        for (panel, curves) in &drawn {
            let title = title(family, panel, size);
            let figure = percentile_figure(title, &scales, curves, &limit_marks(family, curves));
            figures.push((panel.environment.to_string(), figure));
        }
    }
    figures
}

/// The charts of one panel alone, one for each size of interest.
pub(super) fn of_panel(family: &Family<'_>, panel: &Panel<'_, '_>) -> Vec<Figure> {
    let mut figures = vec![];
    for size in sizes_of_interest(family) {
        let curves = curves(panel, size);
        if curves.iter().any(|c| !c.subject.look.is_faint) {
            let scales = scales(family, &curves);
            let limits = limit_marks(family, &curves);
            figures.push(percentile_figure(title(family, panel, size), &scales, &curves, &limits));
        }
    }
    figures
}

/// The chart of the best stacks of a result, with the published runs beside it.
pub fn of_best(result: &RunResult, references: &[RunResult]) -> Option<Figure> {
    let best = best::stacks(result);
    let first = best.first()?;
    let families = families(result, references);
    let has_first = |family: &&Family<'_>| {
        family.subjects.iter().flat_map(|one| &one.series).any(|one| std::ptr::eq(*one, *first))
    };
    let family = families.iter().find(has_first)?;
    let of_series = |series: &&Series| {
        let has = |one: &&Subject<'_>| one.series.iter().any(|of| std::ptr::eq(*of, *series));
        family.subjects.iter().find(has)
    };
    let subjects: Vec<&Subject<'_>> = best.iter().filter_map(of_series).collect();
    let references = references_beside(family, &subjects);
    let name = format!(" · {}", first.key.environment);
    let environment = first.key.environment.as_str();
    let panel = Panel { environment, name, subjects, references };
    let size = first.key.case.size_bytes();
    let curves = curves(&panel, size);
    let scales = scales(family, &curves);
    let limits = limit_marks(family, &curves);
    let title = format!("Best stacks: {}", title(family, &panel, size));
    Some(percentile_figure(title, &scales, &curves, &limits))
}

fn curves<'f, 'a>(panel: &Panel<'f, 'a>, size: Option<u32>) -> Vec<Curve<'f, 'a>> {
    let curves = panel.all().filter_map(|subject| {
        let series = of_size(subject, size)?;
        Some(Curve { subject, series, distribution: Distribution::of(series) })
    });
    curves.filter(|c| !c.distribution.curve.is_empty()).collect()
}

fn title(family: &Family<'_>, panel: &Panel<'_, '_>, size: Option<u32>) -> String {
    let (size, measure) = (size_text(size), family.measure);
    format!("{}{size}{}: {measure} by percentile", family.probe, panel.name)
}

fn scales<'s, 'a: 's>(
    family: &Family<'a>,
    curves: impl IntoIterator<Item = &'s Curve<'s, 'a>>,
) -> Scales<'static> {
    let (mut values, mut end) = (vec![], 2.0f64);
    for curve in curves {
        let distribution = &curve.distribution;
        let last = distribution.end();
        end = last.map_or(end, |last| end.max(last.nines));
        values.extend(distribution.curve.iter().chain(&distribution.figures).map(|p| p.value_ns));
        values.extend(last.map(|last| last.value_ns));
        values.extend(distribution.range.iter().flat_map(|r| [r.low_ns, r.high_ns]));
        let limits = limits_of(family.verdicts, curve.series);
        values.extend(limits.iter().filter(|l| place(l.metric).is_some()).map(|l| l.value));
    }
    Scales { measure: family.measure, values, end }
}

/// The place of a figure on the axis; none for what is no percentile.
fn place(metric: Metric) -> Option<f64> {
    match metric {
        Metric::Median => Some(nines(50.0)),
        Metric::Percentile(p) if p < 100.0 => Some(nines(p)),
        _ => None,
    }
}

fn limit_marks(family: &Family<'_>, curves: &[Curve<'_, '_>]) -> Vec<LimitMark> {
    let own = curves.iter().filter(|c| !c.subject.look.is_faint);
    let of_series: Vec<_> = own.map(|c| limits_of(family.verdicts, c.series)).collect();
    shared_limits(&of_series)
        .into_iter()
        .filter_map(|(limit, n)| {
            Some(LimitMark {
                nines: place(limit.metric)?,
                value_ns: limit.value,
                text: limit_text(&limit, n, of_series.len()),
            })
        })
        .collect()
}

fn percentile_figure(
    title: String,
    scales: &Scales<'_>,
    curves: &[Curve<'_, '_>],
    limits: &[LimitMark],
) -> Figure {
    let ticks = AXIS_PERCENTILES
        .iter()
        .map(|(q, label)| Tick { at: nines(*q), label: label.to_string() })
        .filter(|tick| tick.at <= scales.end)
        .collect();
    let x = Axis {
        label: "percentile, each step a tenth of the samples".to_string(),
        scale: Scale::Linear,
        low: 0.0,
        high: scales.end,
        ticks,
    };
    Figure {
        chart: Chart {
            id: String::new(),
            description: percentile_description(scales.measure, curves),
            title: title.clone(),
            x,
            y: time_axis(&format!("{}, median of rounds", scales.measure), &scales.values),
            plot_height: 300.0,
            marks: marks(curves, limits),
            legend: curve_legend(curves),
            key: "line and filled mark: median of the rounds · band: lowest to highest round · \
                  open mark: maximum of all rounds"
                .to_string(),
        },
        table: percentile_table(title, curves),
    }
}

fn marks(curves: &[Curve<'_, '_>], limits: &[LimitMark]) -> Vec<Mark> {
    let position = |p: &Point| (p.nines, p.value_ns);
    let mut marks = vec![];
    for curve in curves.iter().filter(|c| !c.subject.look.is_faint) {
        let range = &curve.distribution.range;
        let band = range.iter().map(|r| (r.nines, r.low_ns, r.high_ns)).collect();
        marks.push(Mark::Band(curve.subject.look, band));
    }
    // References first, so that they are drawn behind.
    for curve in curves.iter().rev() {
        let (look, distribution) = (curve.subject.look, &curve.distribution);
        marks.push(Mark::Line(look, distribution.curve.iter().map(position).collect()));
        if let (Some(last), Some(end)) = (distribution.curve.last(), distribution.end()) {
            marks.push(Mark::Dotted(look, vec![position(last), position(&end)]));
            marks.push(Mark::Open(look, vec![position(&end)]));
        }
        marks.push(Mark::Points(look, distribution.figures.iter().map(position).collect()));
    }
    marks.extend(limits.iter().map(|limit| Mark::Level {
        x: ((limit.nines - LIMIT_HALF_LENGTH).max(0.0), limit.nines + LIMIT_HALF_LENGTH),
        y: limit.value_ns,
        text: limit.text.clone(),
    }));
    marks
}

/// The legend; a reference is named with its case.
fn curve_legend(curves: &[Curve<'_, '_>]) -> Vec<LegendEntry> {
    let mut entries = legend(curves.iter().map(|curve| curve.subject));
    for (entry, curve) in entries.iter_mut().zip(curves) {
        entry.label = curve_label(curve);
    }
    entries
}

fn curve_label(curve: &Curve<'_, '_>) -> String {
    let size = curve.series.key.case.size_bytes().filter(|_| curve.subject.look.is_faint);
    format!("{}{}", curve.subject.label, size.map_or(String::new(), |s| size_text(Some(s))))
}

fn percentile_description(measure: &str, curves: &[Curve<'_, '_>]) -> String {
    let sentences: Vec<String> = curves
        .iter()
        .map(|c| {
            let text =
                |metric| units::or_not_available(view::value(c.series, metric), units::latency);
            format!(
                "{}: median {}, p99 {}, maximum {}.",
                curve_label(c),
                text(Metric::Median),
                text(Metric::Percentile(99.0)),
                text(Metric::Max),
            )
        })
        .collect();
    format!("Percentiles of the {measure}, each the median of the rounds. {}", sentences.join(" "))
}

fn percentile_table(title: String, curves: &[Curve<'_, '_>]) -> Table {
    let all: Vec<&Series> = curves.iter().map(|c| c.series).collect();
    let unit = view::unit_of(all.iter().copied());
    let figures = |metric| figures_column(unit, &all, metric);
    let percentile = |p| figures(Metric::Percentile(p));
    let made_from = |curve: &Curve<'_, '_>| match curve.distribution.is_complete {
        true => "histograms of the rounds".to_string(),
        false => "percentiles of the rounds".to_string(),
    };
    let columns = vec![
        (Column::text("series"), curves.iter().map(curve_label).collect()),
        (Column::figure("n"), all.iter().map(|series| count_text(series)).collect()),
        (Column::figure("min"), figures(Metric::Min)),
        (Column::figure("median"), figures(Metric::Median)),
        (Column::figure("p90"), percentile(90.0)),
        (Column::figure("p99"), percentile(99.0)),
        (Column::figure("p99.9"), percentile(99.9)),
        (Column::figure("p99.99"), percentile(99.99)),
        (Column::figure("p99.999"), percentile(99.999)),
        (Column::figure("max"), figures(Metric::Max)),
        (Column::text("curve made from"), curves.iter().map(made_from).collect()),
    ];
    Table::of_columns(format!("{title}, {}", unit.name()), columns)
        .with_tones(curves.iter().map(|curve| tone(curve.subject.look)))
}
