//! The page of a trend: the largest changes, the results, a chart for each environment and probe,
//! and all figures.

use maud::{Markup, html};
use nm_model::metric::Quantity;
use nm_model::probe::Case;
use nm_model::trend::{Trend, TrendLine, TrendPoint};

use super::page::{Page, folded, section};
use super::region::region;
use crate::probes::case_words;
use crate::svg::{Axis, Chart, LegendEntry, Look, Mark, Scale, Swatch, Tick};
use crate::trend::{self, READING, TrendGroup};
use crate::units;

/// Size of the messages that charts show, bytes, where there are several.
const CHART_SIZE_BYTES: u32 = 64;

/// Most lines in one chart.
const LINES_MAX: usize = 6;

/// The page of `found`.
pub fn page(found: &Trend) -> String {
    let title = trend::title(found);
    let page = Page {
        title: format!("Trend: {title} · nearmetal"),
        kind: "trend of results".to_string(),
        heading: &title,
        first: "changes",
        footer: html! { p { "Made by nearmetal." } },
    };
    let sections = html! {
        (changes(found))
        @if !found.gates.is_empty() {
            (section(
                "gates",
                "Each result against those before it",
                &region(&trend::gates_table(found)),
            ))
        }
        (section("results", "Results", &region(&trend::results_table(found))))
        (charts(found))
        (figures(found))
        @if !found.refused.is_empty() {
            (section("refused", "Left out", &html! {
                ul { @for line in &found.refused { li { (line) } } }
            }))
        }
        (section("reading", "How to read it", &html! {
            ul { @for line in READING { li { (line) } } }
        }))
    };
    page.with(&sections, &html! {})
}

fn changes(found: &Trend) -> Markup {
    let changes = trend::largest_changes(found);
    section(
        "changes",
        "Largest changes from the first to the last",
        &html! {
            @if changes.is_empty() {
                p { "No figure changed that two results have." }
            } @else {
                ul { @for change in &changes { li { (change) } } }
            }
        },
    )
}

fn figures(found: &Trend) -> Markup {
    section(
        "figures",
        "All figures",
        &html! {
            @for group in trend::groups(found) {
                (folded(&group.title(), &region(&trend::full_table(found, &group))))
            }
        },
    )
}

fn charts(found: &Trend) -> Markup {
    let groups = trend::groups(found);
    let mut charts = vec![];
    for group in &groups {
        for (case, lines) in charted(group) {
            for part in lines.chunks(LINES_MAX) {
                let id = format!("trend-{}", charts.len() + 1);
                charts.push(chart(found, group, &case, part, id));
            }
        }
    }
    html! {
        @if !charts.is_empty() {
            (section("charts", "Over the results", &html! {
                p.reading { "Filled marks with lines; a bar is the 95 % interval over rounds, an \
                    open mark a figure that is not like for like with the first." }
                @for chart in &charts {
                    figure {
                        figcaption { (chart.title) }
                        div.scroll.plot.sideways tabindex="0" role="region"
                            aria-label=(format!("Chart: {}", chart.title)) { (chart.draw()) }
                    }
                }
            }))
        }
    }
}

/// The lines that a chart shows: those of one case of each figure. The tables have all cases.
fn charted<'a>(group: &TrendGroup<'a>) -> Vec<(String, Vec<&'a TrendLine>)> {
    let has_size =
        |line: &&&TrendLine| line.series.case == Case::Message { size_bytes: CHART_SIZE_BYTES };
    let case = group.lines.iter().find(has_size).or_else(|| group.lines.first());
    let Some(case) = case.map(|line| line.series.case) else { return vec![] };
    let mut charts: Vec<(String, Vec<&'a TrendLine>)> = vec![];
    for line in group.lines.iter().filter(|line| line.series.case == case) {
        let title = format!("{}, {}", line.metric, case_words::text(&case));
        match charts.iter_mut().find(|(known, _)| *known == title) {
            Some((_, lines)) => lines.push(line),
            None => charts.push((title, vec![line])),
        }
    }
    charts
}

fn chart(
    found: &Trend,
    group: &TrendGroup<'_>,
    case: &str,
    lines: &[&TrendLine],
    id: String,
) -> Chart {
    let mut marks = vec![];
    let mut values: Vec<f64> = vec![];
    for (at, line) in lines.iter().enumerate() {
        let look = Look::of(at);
        let of = |wanted: fn(&TrendPoint) -> bool| -> Vec<(f64, f64)> {
            let points = line.points.iter().enumerate().filter(|(_, point)| wanted(point));
            points.filter_map(|(at, point)| Some(((at + 1) as f64, point.value?))).collect()
        };
        let known = of(|_| true);
        for (at, point) in line.points.iter().enumerate() {
            let Some(ends) = point.interval else { continue };
            let x = (at + 1) as f64;
            marks.push(Mark::Line(look, vec![(x, ends.low), (x, ends.high)]));
            values.extend([ends.low, ends.high]);
        }
        values.extend(known.iter().map(|(_, value)| *value));
        // A line joins the results of one machine only.
        let machine = |x: f64| found.results.get(x as usize - 1).map(|result| result.machine);
        let of_machines = known.chunk_by(|a, b| machine(a.0) == machine(b.0));
        marks.extend(of_machines.map(|part| Mark::Line(look, part.to_vec())));
        marks.push(Mark::Points(look, of(|point| point.differences.is_empty())));
        marks.push(Mark::Open(look, of(|point| !point.differences.is_empty())));
    }
    let quantity = lines.first().map_or(Quantity::Latency, |line| line.metric.quantity());
    let legend = lines.iter().enumerate().map(|(at, line)| LegendEntry {
        swatch: Swatch::Line,
        look: Look::of(at),
        label: line.series.stack.clone(),
    });
    Chart {
        id,
        title: format!("{}: {case}", group.title()),
        description: description(found, lines),
        x: results_axis(found),
        y: value_axis(quantity, group.statistic.label(), &values),
        plot_height: 240.0,
        marks,
        legend: legend.collect(),
        key: "upright bar: 95 % interval over rounds · open mark: not like for like".to_string(),
    }
}

/// The results by their number.
fn results_axis(found: &Trend) -> Axis {
    let n_results = found.results.len();
    let ticks = (1..=n_results).map(|at| Tick { at: at as f64, label: at.to_string() });
    Axis {
        label: "result, by machine in the order of their start".to_string(),
        scale: Scale::Linear,
        low: 0.5,
        high: n_results as f64 + 0.5,
        ticks: ticks.collect(),
    }
}

fn value_axis(quantity: Quantity, label: &str, values: &[f64]) -> Axis {
    let high = values.iter().copied().fold(0.0, f64::max);
    match quantity {
        Quantity::Latency => {
            Axis::log(&format!("{label}, logarithmic"), values, units::latency_tick)
        }
        Quantity::Throughput => Axis::linear("Gb/s", 0.0, high, 6, units::plain),
        Quantity::Ratio => Axis::linear("share", 0.0, high, 6, units::plain),
        Quantity::Rate => Axis::linear("per second", 0.0, high, 6, units::plain),
    }
}

/// Every line in words: first, last and how it changed.
fn description(found: &Trend, lines: &[&TrendLine]) -> String {
    let sentence = |line: &&TrendLine| {
        let values: Vec<String> = line
            .points
            .iter()
            .enumerate()
            .filter(|(_, point)| point.value.is_some())
            .map(|(at, point)| {
                format!("{} {}", trend::label(found, at), units::figure(line.metric, point.value))
            })
            .collect();
        format!("{} {}: {}.", line.series.stack, line.metric, values.join(", "))
    };
    lines.iter().map(sentence).collect::<Vec<_>>().join(" ")
}
