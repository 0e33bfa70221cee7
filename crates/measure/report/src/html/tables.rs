//! All figures as folded tables: stacks × environments at one size, then for each environment one
//! table for each probe and statistic.

use maud::{Markup, html};
use nm_model::RunResult;

use super::page::{folded, folded_on_screen};
use super::region::region;
use crate::group_table::group_table;
use crate::probes::pingpong::matrix::Matrix;
use crate::units;
use crate::view::{self, Detail, Group, Notes};

/// Every series of the result.
pub fn figures(result: &RunResult, notes: &Notes) -> Markup {
    html! {
        p.reading { "Numbers in brackets lead to the doubts above." }
        @if let Some(matrix) = Matrix::of(result) {
            (folded(&format!("By stack and environment: {}", matrix.caption()),
                &region(&matrix.table(notes))))
        }
        @for (environment, groups) in by_environment(view::groups(result)) {
            @let n_series = groups.iter().map(|group| group.series.len()).sum();
            @let heading = format!(
                "{environment}: {}, {}",
                units::plural(groups.len(), "table", "tables"),
                units::plural(n_series, "series", "series"),
            );
            (folded_on_screen(&heading, &html! {
                @for group in &groups {
                    (region(&group_table(group, notes, Detail::Main)))
                    @let every = format!("Every figure: {}", group.title());
                    (folded(&every, &region(&group_table(group, notes, Detail::Full))))
                }
            }))
        }
    }
}

/// The groups of each environment, in order of first appearance.
fn by_environment(groups: Vec<Group<'_>>) -> Vec<(String, Vec<Group<'_>>)> {
    let mut all: Vec<(String, Vec<Group<'_>>)> = vec![];
    for group in groups {
        match all.iter_mut().find(|(environment, _)| *environment == group.environment) {
            Some((_, known)) => known.push(group),
            None => all.push((group.environment.to_string(), vec![group])),
        }
    }
    all
}
