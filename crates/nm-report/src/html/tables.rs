//! All figures as folded tables: stacks × environments at one size, then one table for each
//! environment, probe and statistic.

use maud::{Markup, html};
use nm_model::RunResult;

use super::page::folded;
use super::region::region;
use crate::matrix::Matrix;
use crate::table::Table;
use crate::units;
use crate::view::{self, Detail, Notes};

/// Every series of the result.
pub fn figures(result: &RunResult, notes: &Notes) -> Markup {
    html! {
        p.reading { "Numbers in brackets lead to the doubts above." }
        @if let Some(matrix) = Matrix::of(result) {
            (folded(&format!("By stack and environment: {}", matrix.caption()),
                &region(&matrix.table(notes))))
        }
        @for group in view::groups(result) {
            @let heading =
                format!("{}: {} series", group.title(), group.series.len());
            (folded(&heading, &html! {
                (region(&view::group_table(&group, notes, Detail::Main)))
                @let every = format!("Every figure: {}", group.title());
                (folded(&every, &region(&view::group_table(&group, notes, Detail::Full))))
            }))
        }
    }
}

/// Round trips and rates beside the published ones, CPU time, hops and faults.
pub fn exchange(tables: &[Table]) -> Markup {
    html! {
        p.reading {
            "A round trip goes from the client through gateway, router, mediator and transaction \
             processor and back; it counts from when the schedule wanted the request to leave. \
             The published study ran on twelve hosts without durability."
        }
        @for table in tables {
            @let heading =
                format!("{}: {}", table.caption, units::plural(table.rows.len(), "row", "rows"));
            (folded(&heading, &region(table)))
        }
    }
}
