//! A chart with its table, and what all charts are made with.

use maud::{Markup, html};
use nm_model::Metric;
use nm_model::result::Series;

use crate::html::region::region;
use crate::style::Tone;
use crate::svg::{Axis, Chart, Look};
use crate::table::Table;
use crate::units::{self, LatencyUnit, NOT_AVAILABLE};
use crate::view;

/// Most rows in one chart of rows.
pub const ROWS_MAX: usize = 28;

/// A chart with its table.
pub struct Figure {
    pub chart: Chart,
    pub table: Table,
}

impl Figure {
    /// The chart, followed by its table.
    pub fn draw(&self) -> Markup {
        html! {
            figure {
                figcaption { (self.chart.title) }
                div.scroll.plot.sideways tabindex="0" role="region"
                    aria-label=(format!("Chart: {}", self.chart.title)) {
                    (self.chart.draw())
                }
                details {
                    summary { "Table: " (self.chart.title) }
                    (region(&self.table))
                }
            }
        }
    }
}

pub fn size_text(size: Option<u32>) -> String {
    size.map_or(String::new(), |size| format!(" {}", units::bytes(u64::from(size))))
}

pub fn time_axis(measure: &str, values: &[f64]) -> Axis {
    Axis::log(&format!("{measure}, logarithmic"), values, units::latency_tick)
}

pub fn tone(look: Look) -> Tone {
    if look.is_faint { Tone::Faint } else { Tone::Plain }
}

pub fn count_text(series: &Series) -> String {
    view::samples(series).map_or_else(|| NOT_AVAILABLE.to_string(), units::count)
}

/// ` (1 of 3)` behind a title, nothing where there is one chart only.
pub fn number(index: usize, n_charts: usize) -> String {
    if n_charts > 1 { format!(" ({} of {n_charts})", index + 1) } else { String::new() }
}

/// Height of dot `index` of `n` above the middle of its row, so that equal values stay apart.
pub fn spread(index: usize, n: usize) -> f64 {
    if n < 2 { 0.0 } else { 0.2 - 0.4 * index as f64 / (n - 1) as f64 }
}

/// A column of a figure over the rounds of each series, as the tables of all figures show it.
pub fn figures_column(unit: LatencyUnit, series: &[&Series], metric: Metric) -> Vec<String> {
    let values: Vec<_> = series.iter().map(|series| view::value(series, metric)).collect();
    unit.column(&values)
}
