//! The page of a watched machine: changes, figures over time with events on the axis, events.

use maud::{Markup, html};
use nm_model::metric::Quantity;
use nm_model::watch::{WatchLine, WatchReport};

use super::page::{Page, folded, reading, section};
use super::region::region;
use crate::svg::{Axis, Chart, Look, Mark, Tick};
use crate::units;
use crate::watch;

/// Most points of a chart; of more, those that follow each other become their median.
const POINTS_MAX: usize = 800;

/// Most events that a chart marks, the last ones.
const MARKED_MAX: usize = 40;

const DAY_S: i64 = 86_400;

/// The page of `found`.
pub fn page(found: &WatchReport) -> String {
    let title = watch::title(found);
    let page = Page {
        title: format!("Watch: {title} · nearmetal"),
        kind: "a machine that is watched".to_string(),
        heading: &title,
        first: "changes",
        footer: html! { p { "Made by nearmetal." } },
    };
    let sections = html! {
        (section("changes", "Changes of level", &list(&watch::changes(found), "None.")))
        (section("figures", "Figures", &html! {
            p { "Watching costs " (watch::cost(found)) "." }
            (region(&watch::table(found)))
        }))
        (section("charts", "Over time", &charts(found)))
        (section("events", "Events", &folded("All events", &list(&watch::events(found), "None."))))
        (section("reading", "How to read it", &reading(
            "A level changes if the last 4 to 40 trials differ from those before by more than the \
             noise of the series explains: by chance less than once in 30 days, all figures \
             together. The slowdown of a figure shows within five trials in 95 of 100 cases; a \
             smaller one takes more trials. The last column is the share of one CPU that the \
             watcher takes between trials. Where a series jumps between two levels that each stay \
             for a while, each jump is a change.",
        )))
    };
    page.with(&sections, &html! {})
}

fn list(lines: &[String], none: &str) -> Markup {
    html! {
        @if lines.is_empty() {
            p { (none) }
        } @else {
            ul { @for line in lines { li { (line) } } }
        }
    }
}

fn charts(found: &WatchReport) -> Markup {
    let drawn = found.lines.iter().enumerate().filter(|(_, line)| line.points.len() > 1);
    let charts: Vec<Chart> = drawn.map(|(at, line)| chart(found, line, at)).collect();
    html! {
        @if charts.is_empty() {
            p { "Two trials are needed." }
        }
        @for chart in &charts {
            figure {
                figcaption { (chart.title) }
                div.scroll.plot.sideways tabindex="0" role="region"
                    aria-label=(format!("Chart: {}", chart.title)) { (chart.draw()) }
            }
        }
    }
}

/// Times and values, at most [`POINTS_MAX`].
fn thinned(points: &[(i64, f64)]) -> Vec<(f64, f64)> {
    let one = |part: &[(i64, f64)]| {
        let mut values: Vec<f64> = part.iter().map(|(_, value)| *value).collect();
        values.sort_unstable_by(f64::total_cmp);
        (part[part.len() / 2].0 as f64, values[values.len() / 2])
    };
    points.chunks(points.len().div_ceil(POINTS_MAX).max(1)).map(one).collect()
}

fn chart(found: &WatchReport, line: &WatchLine, at: usize) -> Chart {
    let points = thinned(&line.points);
    let values: Vec<f64> = points.iter().map(|(_, value)| *value).collect();
    let metric = line.figure.metric;
    let label = |value: f64| match metric.quantity() {
        Quantity::Latency => units::latency_tick(value),
        _ => units::plain(value),
    };
    let y = Axis::log(&metric.to_string(), &values, label);
    let (first, last) = (line.points[0].0, line.points[line.points.len() - 1].0);
    let mut marks = vec![Mark::Line(Look::of(0), points)];
    let changes = found.changes.iter().filter(|change| change.figure == line.figure);
    let changes =
        changes.map(|change| (change.since_s, if change.is_worse() { "worse" } else { "better" }));
    let n_before = found.events.len().saturating_sub(MARKED_MAX);
    let events = found.events.iter().skip(n_before).map(|event| (event.at_s, "event"));
    let mut marked: Vec<(i64, &str)> = events.chain(changes).collect();
    marked.retain(|(at_s, _)| (first..=last).contains(at_s));
    marked.sort_unstable();
    marked.dedup();
    marks.extend(marked.iter().map(|(at_s, text)| Mark::Limit {
        x: *at_s as f64,
        y: (y.low, y.high),
        text: text.to_string(),
    }));
    let level = units::figure(metric, line.level);
    Chart {
        id: format!("watch-{}", at + 1),
        title: line.figure.to_string(),
        description: format!(
            "{} trials from {} to {}; level now {level}.",
            line.points.len(),
            watch::time(first),
            watch::time(last)
        ),
        x: time_axis(first, last),
        y,
        plot_height: 240.0,
        marks,
        legend: vec![],
        key: "upright line: a change of level, or an event of the list".to_string(),
    }
}

/// An axis of times, with a date at each tick.
fn time_axis(first: i64, last: i64) -> Axis {
    let span = (last - first).max(1);
    let steps = [60, 600, 3600, 6 * 3600, DAY_S, 7 * DAY_S, 30 * DAY_S, 365 * DAY_S];
    let step = steps.into_iter().find(|step| span / step <= 8).unwrap_or(span / 8);
    let from = first.div_euclid(step) * step + step;
    let label = |at_s: i64| {
        let time = watch::time(at_s);
        let part = if step < DAY_S { time.get(5..16) } else { time.get(..10) };
        part.unwrap_or(&time).replace('T', " ")
    };
    let ticks = (0..=9).map(|n| from + n * step).filter(|at_s| *at_s <= last);
    let mut axis = Axis::linear("time, UTC", 0.0, 1.0, 1, |_| String::new());
    (axis.low, axis.high) = (first as f64, (first + span) as f64);
    axis.ticks = ticks.map(|at_s| Tick { at: at_s as f64, label: label(at_s) }).collect();
    axis
}
