//! The picture of the first screen: the distributions of the best stacks, with the limits of
//! targets and the published runs.

use maud::{Markup, html};
use nm_model::RunResult;

use super::charts;
use super::region::region;

/// Width beside the answer on a wide page, and on a telephone, px.
const WIDTHS: [f64; 2] = [620.0, 350.0];

/// Height of the plot area, px.
const PLOT_HEIGHT: f64 = 230.0;

/// The picture with its table; nothing if no round trip was measured.
pub fn picture(result: &RunResult, references: &[RunResult]) -> Markup {
    let Some(mut figure) = charts::of_best(result, references) else { return html! {} };
    let chart = &mut figure.chart;
    chart.plot_height = PLOT_HEIGHT;
    let key = std::mem::take(&mut chart.key);
    chart.id = "curves".to_string();
    let wide = chart.draw_wide(WIDTHS[0]);
    chart.id = "curves-narrow".to_string();
    let narrow = chart.draw_wide(WIDTHS[1]);
    html! {
        figure.first {
            figcaption { (figure.chart.title) }
            div.wide { (wide) }
            div.narrow { (narrow) }
            p.key { (key) " · level line: limit of a target · grey: published run" }
            details {
                summary { "Table: " (figure.chart.title) }
                (region(&figure.table))
            }
        }
    }
}
