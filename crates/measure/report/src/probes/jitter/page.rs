//! The section of the jitter probe: for each environment a heat map, followed by its table, and
//! what each CPU lost to what.

use maud::{Markup, html};
use nm_model::RunResult;

use super::heat_map;
use crate::html::page::{folded, reading};
use crate::html::region::region;
use crate::probes::jitter;

/// The section of a result with figures of the jitter probe; none otherwise.
pub fn section(result: &RunResult) -> Option<Markup> {
    let has_tables = jitter::series(result).any(|series| !jitter::tables(series).is_empty());
    has_tables.then(|| markup(result))
}

fn markup(result: &RunResult) -> Markup {
    html! {
        (reading(jitter::READING))
        @for (number, series) in (1..).zip(jitter::series(result)) {
            @if let Some(figure) = heat_map::figure(series, format!("jitter-{number}")) {
                (figure.draw())
            }
            @let tables = jitter::tables(series);
            @let n_first = if jitter::culprits::table(series).is_some() { 2 } else { 1 };
            @if let Some((first, more)) = tables.split_at_checked(n_first) {
                @for table in first { (region(table)) }
                @if !more.is_empty() {
                    (folded("More: causes of lost time, what was counted, delay of a message",
                        &html! { @for table in more { (region(table)) } }))
                }
            }
        }
    }
}
