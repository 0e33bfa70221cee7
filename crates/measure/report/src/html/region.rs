//! Tables as HTML.

use maud::{Markup, html};

use super::words::explained;
use crate::style::Tone;
use crate::table::{Column, Table};

/// Most columns of a table that fits a telephone.
const COLUMNS_NARROW_MAX: usize = 2;

/// Most columns of a table whose cells need no narrow padding on a wide page.
const COLUMNS_MAX: usize = 10;

/// A table in a region that can be reached by keyboard. On a narrow screen a table of many columns
/// scrolls sideways, and says so.
pub fn region(table: &Table) -> Markup {
    let is_sideways = table.columns.len() > COLUMNS_NARROW_MAX;
    let is_wide = table.columns.len() > COLUMNS_MAX;
    html! {
        div.scroll.sideways[is_sideways].wide-table[is_wide] tabindex="0" role="region"
            aria-label=(table.caption) {
            table {
                caption { (explained(&table.caption)) }
                thead { tr {
                    @for column in &table.columns {
                        th scope="col" class=[column.is_figure().then_some("n")] {
                            (explained(&column.title))
                        }
                    }
                } }
                tbody {
                    @for row in &table.rows {
                        tr class=[class(row.tone)] {
                            @for (cell, column) in row.cells.iter().zip(&table.columns).take(1) {
                                th scope="row" class=[column.is_figure().then_some("n")] { (cell) }
                            }
                            @for (cell, column) in row.cells.iter().zip(&table.columns).skip(1) {
                                td class=[column.is_figure().then_some("n")] {
                                    (content(cell, column))
                                }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn content(cell: &str, column: &Column) -> Markup {
    if column.has_doubts {
        doubt_links(cell)
    } else {
        html! { (cell) }
    }
}

/// Numbers of doubts such as `[1,3]`, each a link to its doubt; other text as it is.
pub fn doubt_links(marks: &str) -> Markup {
    let numbers: Option<Vec<usize>> = marks
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'))
        .and_then(|numbers| numbers.split(',').map(|number| number.parse().ok()).collect());
    let Some(numbers) = numbers else { return html! { (marks) } };
    html! {
        "["
        @for (index, number) in numbers.iter().enumerate() {
            @if index > 0 { "," }
            a href=(format!("#doubt-{number}")) { (number) }
        }
        "]"
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_doubts_are_links_and_other_text_stays() {
        assert_eq!(
            doubt_links("[1,12]").into_string(),
            "[<a href=\"#doubt-1\">1</a>,<a href=\"#doubt-12\">12</a>]"
        );
        assert_eq!(doubt_links("[x]").into_string(), "[x]");
        assert_eq!(doubt_links("").into_string(), "");
    }
}
