//! Tables as HTML.

use maud::{Markup, html};

use crate::style::Tone;
use crate::table::Table;

/// A table in a region that scrolls sideways and can be reached by keyboard.
pub fn region(table: &Table) -> Markup {
    html! {
        div.scroll tabindex="0" role="region" aria-label=(table.caption) {
            table {
                caption { (table.caption) }
                thead { tr {
                    @for column in &table.columns {
                        th scope="col" class=[column.is_figure.then_some("n")] { (column.title) }
                    }
                } }
                tbody {
                    @for row in &table.rows {
                        tr class=[class(row.tone)] {
                            @for (cell, column) in row.cells.iter().zip(&table.columns).take(1) {
                                th scope="row" class=[column.is_figure.then_some("n")] { (cell) }
                            }
                            @for (cell, column) in row.cells.iter().zip(&table.columns).skip(1) {
                                td class=[column.is_figure.then_some("n")] { (cell) }
                            }
                        }
                    }
                }
            }
        }
    }
}

/// The class of the style sheet for a tone.
pub fn class(tone: Tone) -> Option<&'static str> {
    match tone {
        Tone::Plain => None,
        Tone::Good => Some("good"),
        Tone::Bad => Some("bad"),
        Tone::Unsure => Some("unsure"),
        Tone::Faint => Some("faint"),
        Tone::Differs => Some("differs"),
    }
}
