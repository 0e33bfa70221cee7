//! How far the figures can be trusted: doubts with their extent, cause and remedy.

use maud::{Markup, html};
use nm_model::RunResult;

use super::page::folded;
use crate::units;
use crate::view::{Note, Notes};
use crate::weight::{self, FIRST_MAX, Weighed};

/// Occurrences of a doubt that are listed; a page must stay small.
const LISTED_MAX: usize = 200;

/// The doubts that weigh most, each in one line with a link to its row.
pub fn heaviest(result: &RunResult, notes: &Notes) -> Markup {
    let weighed = weight::weighed(result, notes);
    let n_more = weighed.len().saturating_sub(FIRST_MAX);
    html! {
        h3 { "How far to trust this" }
        @if weighed.is_empty() {
            p.reading { "No reason was found to doubt the figures." }
        } @else {
            ul.doubts {
                @for doubt in weighed.iter().take(FIRST_MAX) {
                    li {
                        a href=(anchor(doubt.number)) { (doubt.note.kind.title()) } ": "
                        (doubt.extent()) "; " (doubt.note.kind.remedy()) "."
                    }
                }
            }
            @if n_more > 0 {
                p.reading {
                    a href="#doubts" { (units::plural(n_more, "more doubt", "more doubts")) }
                }
            }
        }
    }
}

fn anchor(number: usize) -> String {
    format!("#doubt-{number}")
}

/// All doubts, heaviest first; beyond the first ones folded.
pub fn doubts(result: &RunResult, notes: &Notes) -> Markup {
    let weighed = weight::weighed(result, notes);
    let (first, more) = weighed.split_at(weighed.len().min(FIRST_MAX));
    html! {
        (table("Reasons to distrust a figure, those that weigh most first", first))
        @if !more.is_empty() {
            (folded(&units::plural(more.len(), "more doubt", "more doubts"),
                &table("Doubts that weigh less", more)))
        }
        (folded("Where each doubt was found", &html! {
            @for (index, note) in notes.notes.iter().enumerate() {
                (occurrences(index + 1, note))
            }
        }))
    }
}

fn table(caption: &str, doubts: &[Weighed<'_>]) -> Markup {
    html! {
        div.scroll.sideways tabindex="0" role="region" aria-label=(caption) {
            table.prose {
                caption { (caption) }
                thead { tr {
                    @for title in ["doubt", "extent", "cause", "remedy"] {
                        th scope="col" { (title) }
                    }
                } }
                tbody { @for doubt in doubts { (row(doubt)) } }
            }
        }
    }
}

fn row(doubt: &Weighed<'_>) -> Markup {
    let kind = doubt.note.kind;
    html! {
        tr id=(format!("doubt-{}", doubt.number)) {
            th scope="row" { "[" (doubt.number) "] " b { (kind.title()) } }
            td { (doubt.extent()) }
            td { (kind.cause()) }
            td { (kind.remedy()) }
        }
    }
}

fn occurrences(number: usize, note: &Note) -> Markup {
    let n_more = note.occurrences.len().saturating_sub(LISTED_MAX);
    html! {
        h3 { "[" (number) "] " (note.kind.title()) }
        ul {
            @for (series, detail) in note.occurrences.iter().take(LISTED_MAX) {
                li { @if let Some(series) = series { b { (series) } ": " } (detail) }
            }
            @if n_more > 0 { li { (n_more) " more, in result.json" } }
        }
    }
}
