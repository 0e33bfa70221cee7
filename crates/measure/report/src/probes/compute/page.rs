//! The section `Compute`: bars of the work per core, with what is expected, and the table.

use maud::{Markup, html};
use nm_model::RunResult;

use crate::html::charts::bars::{Bar, bars};
use crate::html::charts::figure::Figure;
use crate::html::page::reading;
use crate::html::region::region;
use crate::probes::compute::{self, Line};
use crate::svg::Look;
use crate::units;

/// Most bars of the chart; the table has them all.
const BARS_MAX: usize = 28;

/// The section of a result with figures of the compute probe; none otherwise.
pub fn section(result: &RunResult) -> Option<Markup> {
    let table = compute::table(result)?;
    let lines = compute::lines(result);
    let all: Vec<Bar> = lines.iter().filter_map(bar).take(BARS_MAX).collect();
    let title = "work per core, as a multiple of one thread alone";
    let key = "bar: median over rounds · circles: rounds · area: expected";
    Some(html! {
        (reading(compute::READING))
        @if all.is_empty() {
            p.reading {
                @if lines.iter().any(|line| line.series.is_emulated()) {
                    "Figures of emulated guests are in no ratio. "
                }
                "There is no chart, as no thread was measured alone (layout 1x1) in this run."
            }
            (region(&table))
        } @else {
            (Figure { chart: bars("chart-compute", title, key, &all), table }.draw())
        }
    })
}

fn bar(line: &Line<'_>) -> Option<Bar> {
    let value = line.work_per_core()?;
    let rounds = line.rounds_per_core();
    Some(Bar {
        label: line.label(),
        look: Look::of(0),
        value,
        text: format!("{} (n = {})", units::significant(value, 3), rounds.len()),
        rounds,
        expected: line.expected(),
    })
}
