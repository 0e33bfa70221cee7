//! The section of the exchange: round trips and rates beside the published ones, CPU time, hops and
//! faults.

use maud::{Markup, html};
use nm_model::RunResult;

use crate::html::page::{folded, reading};
use crate::html::region::region;
use crate::probes::exchange;

/// The section of a result with figures of the exchange; none otherwise.
pub fn section(result: &RunResult) -> Option<Markup> {
    let tables = exchange::tables(result);
    if tables.is_empty() {
        return None;
    }
    Some(html! {
        (reading(
            "A round trip goes from the client through gateway, router, mediator and transaction \
             processor and back; it counts from when the schedule wanted the request to leave. \
             The published study ran on twelve hosts without durability."
        ))
        @for table in &tables { (folded(&table.caption, &region(table))) }
    })
}
