//! What the plan compared.

use maud::{Markup, html};
use nm_model::verdict::Comparison;

use super::badge::badge;
use super::page::folded;
use super::region::{class, region};
use crate::comparison::{differences_table, table};
use crate::units;
use crate::view::Detail;

/// All comparisons, one after another.
pub fn comparisons(all: &[Comparison]) -> Markup {
    html! { ul.cards { @for comparison in all { (compared(comparison)) } } }
}

/// One comparison: outcome, first reason, where it is not like for like; the rest folded.
pub fn compared(comparison: &Comparison) -> Markup {
    let table = table(comparison, Detail::Full);
    let of_sides = |caption, field, rows| differences_table(caption, field, comparison, rows);
    let facts = of_sides("Facts in which the machines differ", "fact", &comparison.facts);
    let differences = of_sides("Not like for like", "field", &comparison.differences);
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
            } @else if comparison.is_cost {
                p.reading { "The sides differ by design in " (fields.join(", "))
                    ", so this is a cost, not a verdict." }
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
                    @if !comparison.refused.is_empty() {
                        p { "Cases that are not compared:" }
                        ul { @for line in &comparison.refused { li { (line) } } }
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
