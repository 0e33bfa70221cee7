//! Virtual machines: what they were and ran on, and their figures side by side.

use maud::{Markup, html};
use nm_model::RunResult;

use super::charts::{Figure, environments};
use super::page::folded;
use super::region::region;
use crate::guests;
use crate::units;

/// The section.
pub fn section(result: &RunResult, references: &[RunResult]) -> Markup {
    let records = guests::full_table(result);
    let findings = guests::findings_table(result);
    let steps = environments::steps(result);
    let beside = environments::figures(result, references);
    let pairs = guests::pairs_table(result);
    html! {
        p.reading { (guests::READING) }
        @if !records.rows.is_empty() { (region(&records)) }
        @if !findings.rows.is_empty() { (region(&findings)) }
        @if let Some(passed) = guests::passed_text(result) { p { (passed) } }
        @if let Some(figure) = &steps { (figure.draw()) }
        @if !beside.is_empty() {
            h3 { "Environments side by side" }
            p.reading {
                "One line an environment, all of the same stack; published runs are drawn faintly."
            }
            @for Group { heading, figures } in &groups(beside) {
                (folded(&format!("{heading}: {}", units::plural(figures.len(), "chart", "charts")),
                    &html! { @for figure in figures { (figure.draw()) } }))
            }
        }
        @if !pairs.rows.is_empty() { (folded(&pairs.caption, &region(&pairs))) }
    }
}

/// Charts of one stack.
struct Group {
    heading: String,
    figures: Vec<Figure>,
}

fn groups(all: Vec<(String, Figure)>) -> Vec<Group> {
    let mut groups: Vec<Group> = vec![];
    for (heading, figure) in all {
        match groups.iter_mut().find(|group| group.heading == heading) {
            Some(group) => group.figures.push(figure),
            None => groups.push(Group { heading, figures: vec![figure] }),
        }
    }
    groups
}
