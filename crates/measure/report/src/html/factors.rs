//! What the factors of the plan did. A forest plot with its table, what limits the findings, and
//! the proof that each factor was in force.

use maud::{Markup, html};
use nm_model::RunResult;
use nm_model::verdict::Relation;

use super::charts::Figure;
use super::page::{folded, reading};
use super::region::region;
use crate::factors::{self, Effect};
use crate::svg::{Axis, Chart, LegendEntry, Look, Mark, Swatch};
use crate::units;

/// Most rows of one chart.
const ROWS_MAX: usize = 28;

/// The section.
pub fn factors(result: &RunResult) -> Markup {
    let effects = factors::effects(result);
    let n_charts = effects.chunks(ROWS_MAX).count();
    let evidence = factors::evidence_table(result);
    html! {
        (reading(factors::READING))
        @for (index, part) in effects.chunks(ROWS_MAX).enumerate() {
            (figure(result, part, index, n_charts).draw())
        }
        @for sentence in factors::limits(result) { p { (sentence) } }
        @if !evidence.rows.is_empty() {
            (folded(&format!("Proof: {}", evidence.caption), &region(&evidence)))
        }
    }
}

/// Ratios as points with their intervals, around the upright line of no effect.
fn figure(result: &RunResult, part: &[Effect<'_>], index: usize, n_charts: usize) -> Figure {
    let number = match n_charts {
        0 | 1 => String::new(),
        n => format!(" ({} of {n})", index + 1),
    };
    let names: Vec<String> = part.iter().map(Effect::label).collect();
    let marks = part.iter().enumerate().flat_map(|(at, one)| marks(one, -(at as f64)));
    let line =
        Mark::Limit { x: 1.0, y: (0.5 - part.len() as f64, 0.5), text: "no effect".to_string() };
    let ends = part.iter().flat_map(|one| {
        let figure = &one.effect.figure;
        let interval = figure.interval.map(|ends| [ends.low, ends.high]);
        figure.ratio.into_iter().chain(interval.into_iter().flatten())
    });
    // No effect is always in the picture, with some room beside it.
    let values: Vec<f64> = ends.chain([0.8, 1.25]).collect();
    let legend = [
        (better(), "better with the factor"),
        (worse(), "worse"),
        (other(), "as good, or unclear"),
    ];
    let entry = |(look, label): (Look, &str)| LegendEntry {
        swatch: Swatch::Filled,
        look,
        label: label.to_string(),
    };
    Figure {
        chart: Chart {
            id: format!("factors-{}", index + 1),
            title: format!("Factors: figure with the factor ÷ figure without it{number}"),
            description: format!(
                "Ratios of {} with intervals; the table below holds every value.",
                units::plural(part.len(), "row", "rows")
            ),
            x: Axis::log("on ÷ off, logarithmic", &values, units::plain),
            y: Axis::rows("", &names),
            plot_height: 30.0 * part.len() as f64 + 14.0,
            marks: [line].into_iter().chain(marks).collect(),
            legend: legend.into_iter().map(entry).collect(),
            key: "point: ratio of the medians over rounds · line: 95 % interval · open: too few \
                  rounds for an interval, or not shown to be in force"
                .to_string(),
        },
        table: factors::table(result),
    }
}

fn marks(one: &Effect<'_>, y: f64) -> Vec<Mark> {
    let figure = &one.effect.figure;
    let Some(ratio) = figure.ratio.filter(|ratio| *ratio > 0.0) else { return vec![] };
    let look = match figure.relation {
        Relation::Better => better(),
        Relation::Worse => worse(),
        _ => other(),
    };
    let is_firm = figure.interval.is_some() && one.effect.doubts.is_empty();
    let point = match is_firm {
        true => Mark::Points(look, vec![(ratio, y)]),
        false => Mark::Open(look, vec![(ratio, y)]),
    };
    let ends = figure.interval.map(|ends| (ends.low.max(ratio / 1e3), ends.high));
    let interval = ends.map(|ends| Mark::Interval(look, y, ends));
    let end = ends.map_or(ratio, |(_, high)| high.max(ratio));
    let text = format!("{} {}", units::significant(ratio, 3), figure.finding());
    interval.into_iter().chain([point, Mark::Label((end, y), text)]).collect()
}

fn better() -> Look {
    Look::of(2)
}

fn worse() -> Look {
    Look::of(1)
}

fn other() -> Look {
    Look::neutral()
}
