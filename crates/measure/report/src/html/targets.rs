//! The targets in one compact table, those that are not met first.

use maud::{Markup, html};
use nm_model::verdict::Verdict;
use nm_model::{Outcome, RunResult};

use super::badge::badge;
use super::page::{folded, folded_on_screen};
use super::region::{class, doubt_links, region};
use crate::decisive::{self, Decisive, limit_text};
use crate::headline::not_judged;
use crate::units::{self, NOT_AVAILABLE};
use crate::view::{self, Notes};

/// Right end of the margin bar: this many times the limit.
const BAR_LIMITS: f64 = 1.5;

/// What was not judged; the targets, those that are met folded where others are not; the evidence
/// of every target, folded.
pub fn targets(result: &RunResult, notes: &Notes) -> Markup {
    let verdicts = ordered(&result.verdicts);
    // What is met decides nothing where something else is not.
    let (open, met) = verdicts.split_at(verdicts.partition_point(|v| v.outcome != Outcome::Pass));
    let caption = "Each target with the series that decides it";
    html! {
        @if !result.not_judged.is_empty() {
            h3 { "Not judged" }
            ul { @for sentence in not_judged(result) { li { (sentence) } } }
        }
        @if open.is_empty() {
            @if !met.is_empty() { (table(result, met, caption, notes)) }
        } @else {
            (table(result, open, caption, notes))
            @if !met.is_empty() {
                @let n_met = units::plural(met.len(), "target is met", "targets are met");
                (folded_on_screen(&n_met, &table(result, met, "Targets that are met", notes)))
            }
        }
        @if !verdicts.is_empty() {
            (folded("Evidence: every series behind each target", &html! {
                @for verdict in &verdicts { (evidence(verdict)) }
            }))
        }
    }
}

fn table(result: &RunResult, verdicts: &[&Verdict], caption: &str, notes: &Notes) -> Markup {
    html! {
        div.scroll.sideways tabindex="0" role="region" aria-label=(caption) {
            table.prose.targets {
                caption { (caption) }
                thead { tr {
                    th scope="col" { "status" }
                    th scope="col" { "target" }
                    th scope="col" { "why" }
                    th.n scope="col" { "measured" }
                    th.n scope="col" { "limit" }
                    th scope="col" { "used of the limit" }
                    th scope="col" { "doubts" }
                } }
                tbody { @for verdict in verdicts { (row(result, verdict, notes)) } }
            }
        }
    }
}

/// Fail, inconclusive, pass; in the order of the plan otherwise.
fn ordered(verdicts: &[Verdict]) -> Vec<&Verdict> {
    let mut ordered: Vec<&Verdict> = verdicts.iter().collect();
    ordered.sort_by_key(|verdict| match verdict.outcome {
        Outcome::Fail => 0,
        Outcome::Inconclusive => 1,
        Outcome::Pass => 2,
    });
    ordered
}

fn row(result: &RunResult, verdict: &Verdict, notes: &Notes) -> Markup {
    let decisive = decisive::of_verdict(result, verdict);
    let limit = verdict.require.as_ref().map_or_else(|| NOT_AVAILABLE.to_string(), limit_text);
    let marks = decisive
        .and_then(|decisive| decisive.series)
        .map_or_else(String::new, |series| notes.marks(&series.doubts));
    html! {
        tr class=[class(verdict.outcome.into())] {
            th scope="row" { (badge(verdict.outcome)) }
            td { code { (verdict.target) } }
            td { (verdict.reason) }
            td.n { (decisive.map_or_else(|| NOT_AVAILABLE.to_string(), |d| d.value_text())) }
            td.n { (limit) }
            td { (margin(decisive.as_ref(), verdict.outcome)) }
            td { (doubt_links(&marks)) }
        }
    }
}

/// How much of the limit is used, as a bar with the limit as an upright line.
fn margin(decisive: Option<&Decisive<'_>>, outcome: Outcome) -> Markup {
    let Some(used) = decisive.and_then(Decisive::use_of_limit) else {
        return html! { "–" };
    };
    let width = (used / BAR_LIMITS * 100.0).clamp(1.0, 100.0);
    let class = format!("margin {}", class(outcome.into()).unwrap_or_default());
    html! {
        span class=(class) aria-hidden="true" {
            span style=(format!("width:{width:.1}%")) {}
        }
        " " (used_text(used))
    }
}

/// `88 %`, or `2.96 times` where it is far beyond the limit.
fn used_text(used: f64) -> String {
    match used {
        used if used >= 1.5 => format!("{} times", units::significant(used, 3)),
        used if used >= 0.01 => format!("{} %", units::significant(used * 100.0, 3)),
        _ => "< 1 %".to_string(),
    }
}

/// The source of a target, its reason and every series under it.
fn evidence(verdict: &Verdict) -> Markup {
    let table = view::evidence_table(verdict);
    html! {
        h3 { (badge(verdict.outcome)) " " code { (verdict.target) } }
        p { (verdict.reason) }
        @if !verdict.why.is_empty() { p.reading { "Source of the target: " (verdict.why) } }
        @if !table.rows.is_empty() { (region(&table)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_of_a_limit_read_well() {
        assert_eq!(used_text(0.8881), "88.8 %");
        assert_eq!(used_text(2.96), "2.96 times");
        assert_eq!(used_text(0.0004), "< 1 %");
    }
}
