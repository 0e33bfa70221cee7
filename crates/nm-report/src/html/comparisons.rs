//! What the plan compared.

use maud::{Markup, html};
use nm_model::verdict::Comparison;

use super::badge::badge;
use super::page::folded;
use super::region::{class, region};
use crate::comparison::table;
use crate::style::Tone;
use crate::table::Table;
use crate::units;

/// All comparisons, one after another.
pub fn comparisons(all: &[Comparison]) -> Markup {
    html! { ul.cards { @for comparison in all { (compared(comparison)) } } }
}

/// One comparison: outcome, first reason, where it is not like for like; the rest folded.
fn compared(comparison: &Comparison) -> Markup {
    let table = table(comparison);
    let mut facts = Table::new("Facts in which the machines differ", &["fact", "A", "B"]);
    for row in &comparison.facts {
        facts.push(Tone::Plain, vec![row.field.clone(), row.a.clone(), row.b.clone()]);
    }
    let mut differences = Table::new("Not like for like", &["field", "A", "B"]);
    for row in &comparison.differences {
        differences.push(Tone::Differs, vec![row.field.clone(), row.a.clone(), row.b.clone()]);
    }
    let fields: Vec<&str> = comparison.differences.iter().map(|row| row.field.as_str()).collect();
    let (first, more) = comparison.reasons.split_at(comparison.reasons.len().min(1));
    html! {
        li class=(format!("card {}", class(comparison.outcome.into()).unwrap_or_default())) {
            p.head { (badge(comparison.outcome)) " "
                b { (comparison.b) } " (B) against " b { (comparison.a) } " (A)" }
            @for reason in first { p { (reason) } }
            @if fields.is_empty() {
                p.reading { "Like for like: statistic, protocol, way of waiting, bypass, link and \
                     firmware agree as far as both sides state them." }
            } @else {
                p.reading { b { "Not like for like" } " in " (fields.join(", "))
                    ": a ratio shows these differences too." }
            }
            (folded(
                &format!("More: reasons, {}, facts, cases",
                    units::plural(table.rows.len(), "row of figures", "rows of figures")),
                &html! {
                    @if !more.is_empty() { ul { @for reason in more { li { (reason) } } } }
                    @for table in [&differences, &table, &facts] {
                        @if !table.rows.is_empty() { (region(table)) }
                    }
                    @if !comparison.unmatched.is_empty() {
                        p { "Cases that only one side has:" }
                        ul { @for line in &comparison.unmatched { li { (line) } } }
                    }
                },
            ))
        }
    }
}
