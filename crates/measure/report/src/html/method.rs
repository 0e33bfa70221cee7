//! The end of the report: what was not measured, published runs, and how the figures were made.

use maud::{Markup, html};
use nm_model::RunResult;

use super::page::folded;
use super::region::region;
use crate::style::Tone;
use crate::table::{Column, Table};
use crate::units;
use crate::view;

/// Rows that could not run, and trials that failed.
pub fn missing(result: &RunResult) -> Markup {
    let not_available = view::not_available_table(result);
    html! {
        @if !not_available.rows.is_empty() { (region(&not_available)) }
        @if !result.failures.is_empty() {
            h3 { "Failed trials" }
            ul { @for failure in &result.failures { li { (failure.to_string()) } } }
        }
    }
}

/// Published runs that the charts show.
pub fn published(references: &[RunResult]) -> Markup {
    let mut table = Table::new(
        "Runs drawn faintly beside",
        ["run", "made by", "known of it"].map(Column::text),
    );
    for run in references {
        let known: Vec<String> =
            run.notes.iter().map(|(name, text)| format!("{name}: {text}")).collect();
        table.push(
            Tone::Faint,
            vec![run.name.clone(), view::source_text(&run.source), known.join("; ")],
        );
    }
    let heading = units::plural(references.len(), "published run", "published runs");
    html! {
        (folded(&heading, &html! {
            p.reading {
                "Drawn only beside series of the same probe and the same statistic. They ran on \
                 other machines: they show what to expect and judge nothing."
            }
            (region(&table))
        }))
    }
}

/// How the figures were made.
pub fn method(result: &RunResult) -> Markup {
    folded(
        "How the figures were made",
        &html! {
            ul { @for note in view::method_notes(result) { li { (note) } } }
        },
    )
}
