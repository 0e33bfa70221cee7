//! The page of one comparison.

use maud::{Markup, html};
use nm_model::verdict::Comparison;

use super::page::{Page, folded, section};
use super::region::{class, region};
use crate::comparison::{self, READING};
use crate::units;
use crate::view::Detail;

/// Most reasons that stand at the head; the others are folded.
const REASONS_MAX: usize = 6;

/// The page of `compared`.
pub fn page(compared: &Comparison) -> String {
    let word = compared.outcome.name().to_uppercase();
    let title = comparison::title(compared);
    let page = Page {
        title: format!("{word}: {title} · nearmetal"),
        kind: "comparison of two results".to_string(),
        heading: &title,
        first: "verdict",
        footer: html! { p { "Made by nearmetal." } },
    };
    let sections = html! {
        (verdict(compared, &word))
        (figures(compared))
        (differing_facts(compared))
        (unmatched(compared))
        (section("reading", "How to read it", &html! {
            ul { @for line in READING { li { (line) } } }
        }))
    };
    page.with(&sections, &html! {})
}

fn verdict(compared: &Comparison, word: &str) -> Markup {
    let tone = class(compared.outcome.into()).unwrap_or_default();
    let (first, more) = compared.reasons.split_at(compared.reasons.len().min(REASONS_MAX));
    let differences = comparison::differences_table(
        "Not like for like: a ratio shows these differences too",
        "field",
        compared,
        &compared.differences,
    );
    html! {
        section id="verdict" class=(format!("verdict alone {tone}")) aria-labelledby="verdict-h"
            tabindex="-1" {
            div.answer {
                h2 id="verdict-h" { (word) }
                ul { @for reason in first { li { (reason) } } }
                @if !more.is_empty() {
                    (folded(&units::plural(more.len(), "more reason", "more reasons"),
                        &html! { ul { @for reason in more { li { (reason) } } } }))
                }
                @if !differences.rows.is_empty() { (region(&differences)) }
            }
        }
    }
}

fn figures(compared: &Comparison) -> Markup {
    let table = comparison::table(compared, Detail::Full);
    html! {
        @if !table.rows.is_empty() { (section("figures", "Figures", &region(&table))) }
    }
}

fn differing_facts(compared: &Comparison) -> Markup {
    let facts = comparison::differences_table("Facts", "fact", compared, &compared.facts);
    let n_facts = units::plural(facts.rows.len(), "fact", "facts");
    html! {
        @if !facts.rows.is_empty() {
            (section("facts", "Facts that differ", &folded(&n_facts, &region(&facts))))
        }
    }
}

fn unmatched(compared: &Comparison) -> Markup {
    html! {
        @if !compared.refused.is_empty() {
            (section("refused", "Not compared", &html! {
                ul { @for line in &compared.refused { li { (line) } } }
            }))
        }
        @if !compared.unmatched.is_empty() {
            (section("unmatched", "Only on one side", &html! {
                ul { @for line in &compared.unmatched { li { (line) } } }
            }))
        }
    }
}
