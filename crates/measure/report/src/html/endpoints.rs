//! The endpoints: facts in which they differ first, the others folded.

use maud::{Markup, html};
use nm_model::RunResult;

use super::page::folded;
use super::region::region;
use crate::facts::{self, FactRow};
use crate::units;

/// Whether there is anything to show.
pub fn has_any(result: &RunResult) -> bool {
    !result.facts.is_empty()
        || !result.notes.is_empty()
        || !facts::placements(&result.series).rows.is_empty()
}

/// Facts, links, where the hot threads ran, and what else is known of the run.
pub fn endpoints(result: &RunResult) -> Markup {
    let links = facts::links(result);
    let placements = facts::placements(&result.series);
    html! {
        @if !result.facts.is_empty() { (facts_of(result)) }
        @if !links.rows.is_empty() { (folded("Network links", &region(&links))) }
        @if !placements.rows.is_empty() {
            (folded("Where the hot threads ran", &region(&placements)))
        }
        @if !result.notes.is_empty() {
            dl.notes {
                @for (name, text) in &result.notes { div { dt { (name) } dd { (text) } } }
            }
        }
    }
}

fn facts_of(result: &RunResult) -> Markup {
    let columns = facts::columns(result);
    let (equal, others): (Vec<FactRow>, Vec<FactRow>) =
        facts::rows(result).into_iter().partition(FactRow::is_equal);
    let (partial, differing): (Vec<FactRow>, Vec<FactRow>) =
        others.into_iter().partition(FactRow::is_equal_where_known);
    let all = [facts::Group { name: "all endpoints".to_string(), first: 0 }];
    html! {
        @if differing.is_empty() {
            p { "All facts that the endpoints know are equal." }
        } @else {
            (table("Facts in which the endpoints differ", &columns, &differing))
        }
        @if !partial.is_empty() {
            (folded(
                &format!("{} only some endpoints have",
                    units::plural(partial.len(), "fact that", "facts that")),
                &table("Facts that only some endpoints have", &columns, &partial),
            ))
        }
        @if !equal.is_empty() {
            (folded(
                &format!("{} equal at all endpoints",
                    units::plural(equal.len(), "fact is", "facts are")),
                &table("Facts that are equal at all endpoints", &all, &equal),
            ))
        }
    }
}

/// Facts as rows, groups of equal endpoints as columns.
fn table(caption: &str, columns: &[facts::Group], rows: &[FactRow]) -> Markup {
    html! {
        div.scroll.sideways tabindex="0" role="region" aria-label=(caption) {
            table.facts {
                caption { (caption) }
                thead { tr {
                    th scope="col" { "fact" }
                    @for column in columns { th scope="col" { (column.name) } }
                } }
                tbody { @for row in rows {
                    tr {
                        th scope="row" { (row.name) }
                        @for column in columns { td { (row.values[column.first]) } }
                    }
                } }
            }
        }
    }
}
