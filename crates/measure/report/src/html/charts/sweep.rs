//! Size sweeps: median by message size, with a band and the maxima.

use nm_model::metric::Metric;
use nm_model::result::Series;

use crate::probes::case_words;
use crate::svg::{Axis, Chart, Mark, Scale, Tick};
use crate::table::{Column, Table};
use crate::units;
use crate::view;

use super::family::{Family, Panel, Subject, legend, panels};
use super::figure::{Figure, count_text, figures_column, time_axis, tone};
use super::limits::{Limit, limit_text, limits_of};

/// Fewest sizes that make a sweep.
const SIZES_MIN: usize = 3;

/// The figures of the chart.
const METRICS: [Metric; 4] = [Metric::Min, Metric::Median, Metric::Percentile(99.0), Metric::Max];

pub(super) fn figures(family: &Family<'_>) -> Vec<(String, Figure)> {
    let mut figures = vec![];
    let values = values(family);
    for panel in panels(family) {
        let figure = panel_figure(family, &panel, &values);
        figures.extend(figure.map(|figure| (panel.environment.to_string(), figure)));
    }
    figures
}

/// The chart of one panel alone, if it has enough sizes.
pub(super) fn figure(family: &Family<'_>, panel: &Panel<'_, '_>) -> Option<Figure> {
    panel_figure(family, panel, &values(family))
}

fn panel_figure(family: &Family<'_>, panel: &Panel<'_, '_>, values: &[f64]) -> Option<Figure> {
    let subjects: Vec<_> = panel.all().filter(|s| sizes(s).len() >= SIZES_MIN).collect();
    let has_own = subjects.iter().any(|s| !s.look.is_faint);
    has_own.then(|| sweep_figure(family, panel, &subjects, values))
}

/// The sizes of a subject, rising, each once.
fn sizes(subject: &Subject<'_>) -> Vec<u32> {
    let mut sizes: Vec<u32> =
        subject.series.iter().filter_map(|s| s.key.case.size_bytes()).collect();
    sizes.dedup();
    sizes
}

/// Everything that the axis of all sweeps of a family holds.
fn values(family: &Family<'_>) -> Vec<f64> {
    let all = family.subjects.iter().chain(&family.references).flat_map(|s| &s.series);
    let figures = all.clone().flat_map(|s| METRICS.map(|metric| view::value(s, metric))).flatten();
    let limits = all.flat_map(|s| limits_of(family.verdicts, s));
    let limits = limits.filter(|limit| METRICS.contains(&limit.metric)).map(|limit| limit.value);
    figures.chain(limits).collect()
}

/// Place of a size on the axis.
fn position(size_bytes: u32) -> f64 {
    f64::from(size_bytes.max(1)).log2()
}

fn sweep_figure(
    family: &Family<'_>,
    panel: &Panel<'_, '_>,
    subjects: &[&Subject<'_>],
    values: &[f64],
) -> Figure {
    let measure = family.measure;
    let title = format!("{}{}: {measure} by message size", family.probe, panel.name);
    let mut all_sizes: Vec<u32> = subjects.iter().flat_map(|s| sizes(s)).collect();
    all_sizes.sort_unstable();
    all_sizes.dedup();
    let (low, high) =
        (all_sizes.first().copied().unwrap_or(1), all_sizes.last().copied().unwrap_or(2));
    let margin = ((position(high) - position(low)) * 0.02).max(0.05);
    let mut marks: Vec<Mark> = subjects.iter().rev().flat_map(|s| subject_marks(s)).collect();
    // Bands lie behind all lines.
    marks.sort_by_key(|mark| !matches!(mark, Mark::Band(..)));
    marks.extend(limit_marks(family, subjects, margin));
    let ticks = all_sizes
        .iter()
        .map(|&size| Tick { at: position(size), label: units::bytes(u64::from(size)) })
        .collect();
    Figure {
        chart: Chart {
            id: String::new(),
            description: format!(
                "{measure} of {} at {} sizes from {} to {}; the table below holds every value.",
                units::plural(subjects.len(), "series", "series"),
                all_sizes.len(),
                units::bytes(u64::from(low)),
                units::bytes(u64::from(high)),
            ),
            title: title.clone(),
            x: Axis {
                label: "message size, each step a factor of two".to_string(),
                scale: Scale::Linear,
                low: position(low) - margin,
                high: position(high) + margin,
                ticks,
            },
            y: time_axis(measure, values),
            plot_height: 320.0,
            marks,
            legend: legend(subjects.iter().copied()),
            key: "line: median · band: minimum to p99 · stroke: maximum".to_string(),
        },
        table: sweep_table(title, subjects),
    }
}

fn subject_marks(subject: &Subject<'_>) -> Vec<Mark> {
    let points = |metric: Metric| -> Vec<(f64, f64)> {
        let point =
            |s: &&Series| Some((position(s.key.case.size_bytes()?), view::value(s, metric)?));
        subject.series.iter().filter_map(point).collect()
    };
    let median = points(Metric::Median);
    let mut marks = vec![];
    if !subject.look.is_faint {
        let band = subject.series.iter().filter_map(|s| {
            let x = position(s.key.case.size_bytes()?);
            Some((x, view::value(s, Metric::Min)?, view::value(s, Metric::Percentile(99.0))?))
        });
        marks.push(Mark::Band(subject.look, band.collect()));
        marks.push(Mark::Strokes(subject.look, points(Metric::Max)));
    }
    marks.push(Mark::Line(subject.look, median.clone()));
    marks.push(Mark::Points(subject.look, median));
    marks
}

/// A limit with the sizes and the number of subjects that it is for.
struct CoveredLimit {
    limit: Limit,
    sizes: (u32, u32),
    n_subjects: usize,
}

/// Limits over the sizes that they are for.
fn limit_marks(family: &Family<'_>, subjects: &[&Subject<'_>], margin: f64) -> Vec<Mark> {
    let mut covered: Vec<CoveredLimit> = vec![];
    let own: Vec<_> = subjects.iter().filter(|s| !s.look.is_faint).collect();
    for subject in &own {
        let mut seen: Vec<Limit> = vec![];
        for series in &subject.series {
            let Some(size) = series.key.case.size_bytes() else { continue };
            for limit in limits_of(family.verdicts, series) {
                let is_new = !seen.contains(&limit);
                match covered.iter_mut().find(|one| one.limit == limit) {
                    Some(one) => {
                        one.sizes = (one.sizes.0.min(size), one.sizes.1.max(size));
                        one.n_subjects += usize::from(is_new);
                    }
                    None => covered.push(CoveredLimit {
                        limit: limit.clone(),
                        sizes: (size, size),
                        n_subjects: 1,
                    }),
                }
                seen.push(limit);
            }
        }
    }
    let is_drawn = |one: &CoveredLimit| METRICS.contains(&one.limit.metric);
    let mark = |one: CoveredLimit| Mark::Level {
        x: (position(one.sizes.0) - margin, position(one.sizes.1) + margin),
        y: one.limit.value,
        text: limit_text(&one.limit, one.n_subjects, own.len()),
    };
    covered.into_iter().filter(is_drawn).map(mark).collect()
}

fn sweep_table(title: String, subjects: &[&Subject<'_>]) -> Table {
    let rows: Vec<(&Subject<'_>, &Series)> =
        subjects.iter().flat_map(|s| s.series.iter().map(|series| (*s, *series))).collect();
    let all: Vec<&Series> = rows.iter().map(|(_, series)| *series).collect();
    let unit = view::unit_of(all.iter().copied());
    let figures = |metric| figures_column(unit, &all, metric);
    let columns = vec![
        (Column::text("series"), rows.iter().map(|(subject, _)| subject.label.clone()).collect()),
        (
            Column::figure("size"),
            all.iter().map(|series| case_words::text(&series.key.case)).collect(),
        ),
        (Column::figure("n"), all.iter().map(|series| count_text(series)).collect()),
        (Column::figure("min"), figures(Metric::Min)),
        (Column::figure("median"), figures(Metric::Median)),
        (Column::figure("p99"), figures(Metric::Percentile(99.0))),
        (Column::figure("max"), figures(Metric::Max)),
    ];
    Table::of_columns(format!("{title}, {}", unit.name()), columns)
        .with_tones(rows.iter().map(|(subject, _)| tone(subject.look)))
}
