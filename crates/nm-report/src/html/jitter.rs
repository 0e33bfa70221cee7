//! The section of the jitter probe: for each environment a heat map, followed by its table, and
//! what each CPU lost to what.

use maud::{Markup, html};
use nm_model::RunResult;

use super::heat_map;
use super::page::folded;
use super::region::region;
use crate::jitter;

/// Whether the section has something to show.
pub fn has_any(result: &RunResult) -> bool {
    jitter::series(result).any(|series| !jitter::tables(series).is_empty())
}

/// The section.
pub fn section(result: &RunResult) -> Markup {
    html! {
        p.reading { (jitter::READING) }
        @for (number, series) in (1..).zip(jitter::series(result)) {
            @if let Some(figure) = heat_map::figure(series, format!("jitter-{number}")) {
                (figure.draw())
            }
            @for (index, table) in jitter::tables(series).iter().enumerate() {
                @if index == 0 { (region(table)) } @else {
                    (folded(&table.caption, &region(table)))
                }
            }
        }
    }
}
