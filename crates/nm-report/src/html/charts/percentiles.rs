//! Percentile plots: how slow the slowest are, from the histograms of all rounds.

use nm_model::result::Series;

use crate::distribution::{Distribution, Point, nines};
use crate::svg::{Axis, Chart, Mark, Scale, Tick};
use crate::table::Table;
use crate::units;
use crate::view;

use super::family::{Family, Subject, of_size, panels, sizes_of_interest};
use super::figure::{Figure, count_text, legend, size_text, time_axis, tone};

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

struct Curve<'s, 'a> {
    subject: &'s Subject<'a>,
    series: &'a Series,
    distribution: Distribution,
}

pub(super) fn figures(families: &[Family<'_>]) -> Vec<Figure> {
    let mut figures = vec![];
    for family in families {
        for size in sizes_of_interest(family) {
            let mut drawn: Vec<(String, Vec<Curve<'_, '_>>)> = vec![];
            for (name, subjects) in panels(family) {
                let curves = subjects.into_iter().chain(&family.references).filter_map(|subject| {
                    let series = of_size(subject, size)?;
                    Some(Curve { subject, series, distribution: Distribution::of(series) })
                });
                let curves: Vec<_> = curves.filter(|c| !c.distribution.curve.is_empty()).collect();
                if curves.iter().any(|c| !c.subject.look.is_faint) {
                    drawn.push((name, curves));
                }
            }
            // One scale for all charts of a size, so that they can be compared.
            let all = drawn.iter().flat_map(|(_, curves)| curves);
            let values: Vec<f64> = all
                .clone()
                .flat_map(|c| c.distribution.curve.iter().copied().chain(c.distribution.end()))
                .map(|p| p.value_ns)
                .collect();
            let end = all.filter_map(|c| c.distribution.end().map(|p| p.nines)).fold(2.0, f64::max);
            let title = format!("{}{}", family.probe, size_text(size));
            for (name, curves) in &drawn {
                let title = format!("{title}{name}: {} by percentile", family.measure);
                figures.push(percentile_figure(title, family.measure, curves, &values, end));
            }
        }
    }
    figures
}

fn percentile_figure(
    title: String,
    measure: &str,
    curves: &[Curve<'_, '_>],
    values: &[f64],
    end: f64,
) -> Figure {
    let mut marks = vec![];
    let position = |p: &Point| (p.nines, p.value_ns);
    // References first, so that they are drawn behind.
    for curve in curves.iter().rev() {
        let (look, distribution) = (curve.subject.look, &curve.distribution);
        marks.push(Mark::Line(look, distribution.curve.iter().map(position).collect()));
        if let (Some(last), Some(end)) = (distribution.curve.last(), distribution.end()) {
            marks.push(Mark::Dotted(look, vec![position(last), position(&end)]));
            marks.push(Mark::Open(look, vec![position(&end)]));
        }
        let is_labelled =
            |p: &&Point| AXIS_PERCENTILES.iter().any(|(q, _)| (nines(*q) - p.nines).abs() < 0.03);
        let dots = distribution.curve.iter().filter(is_labelled).map(position).collect();
        marks.push(Mark::Points(look, dots));
    }
    let ticks = AXIS_PERCENTILES
        .iter()
        .map(|(q, label)| Tick { at: nines(*q), label: label.to_string() })
        .filter(|tick| tick.at <= end)
        .collect();
    let x = Axis {
        label: "percentile, each step a tenth of the samples".to_string(),
        scale: Scale::Linear,
        low: 0.0,
        high: end,
        ticks,
    };
    let subjects: Vec<&Subject<'_>> = curves.iter().map(|c| c.subject).collect();
    Figure {
        chart: Chart {
            id: String::new(),
            description: percentile_description(measure, curves),
            title: title.clone(),
            x,
            y: time_axis(measure, values),
            plot_height: 300.0,
            marks,
            legend: legend(&subjects),
            key: "line: as far as ten samples lie beyond · open mark: maximum".to_string(),
        },
        table: percentile_table(title, curves),
    }
}

fn percentile_description(measure: &str, curves: &[Curve<'_, '_>]) -> String {
    let sentences: Vec<String> = curves
        .iter()
        .map(|c| {
            let text = |p: f64| {
                units::or_not_available(c.distribution.percentile(c.series, p), units::latency)
            };
            let max = units::or_not_available(c.distribution.max_ns, units::latency);
            format!(
                "{}: median {}, p99 {}, maximum {max}.",
                c.subject.label,
                text(50.0),
                text(99.0)
            )
        })
        .collect();
    format!("Percentiles of the {measure}. {}", sentences.join(" "))
}

fn percentile_table(title: String, curves: &[Curve<'_, '_>]) -> Table {
    const PERCENTILES: [f64; 6] = [50.0, 90.0, 99.0, 99.9, 99.99, 99.999];
    let unit = view::unit_of(curves.iter().map(|c| c.series));
    let titles = [
        "series",
        "#n",
        "#min",
        "#p50",
        "#p90",
        "#p99",
        "#p99.9",
        "#p99.99",
        "#p99.999",
        "#max",
        "made from",
    ];
    let mut table = Table::new(format!("{title}, {}", unit.name()), &titles);
    for curve in curves {
        let mut cells = vec![
            curve.subject.label.clone(),
            count_text(curve.series),
            unit.cell(curve.distribution.min_ns),
        ];
        cells
            .extend(PERCENTILES.map(|p| unit.cell(curve.distribution.percentile(curve.series, p))));
        cells.push(unit.cell(curve.distribution.max_ns));
        cells.push(match curve.distribution.is_complete {
            true => "all samples of all rounds".to_string(),
            false => "medians of the rounds' percentiles".to_string(),
        });
        table.push(tone(curve.subject.look), cells);
    }
    table
}
