//! The report as one HTML file that needs nothing else: no script, no font, no network. It opens
//! from a disk or a mail, in light and dark, on paper, with a keyboard or a screen reader.
//!
//! The first screen answers: the outcome, the figure that decides it, the best stack, the cost of
//! each step, the tail. It has the doubts that weigh most, and one picture of the best stacks. The
//! rest is folded. The result itself is in the page as JSON ([`embedded`] reads it back).

mod audit_page;
mod badge;
mod chart_list;
pub(crate) mod charts;
mod comparison_page;
mod comparisons;
mod curves;
mod embed;
mod endpoints;
mod factors;
mod first_screen;
mod fleet_page;
mod guests;
mod method;
mod overview;
pub(crate) mod page;
pub(crate) mod region;
mod tables;
mod targets;
mod trend_page;
mod trust;
mod watch_page;
mod words;

use maud::{Markup, html};
use nm_model::RunResult;

use crate::headline::headline;
use crate::probes;
use crate::svg::Chart;
use crate::title::title;
use crate::view::{self, Notes};

use page::{Entry, Page, contents, section};

pub use audit_page::page as audit;
pub use comparison_page::page as comparison;
pub use embed::embedded;
pub use fleet_page::page as fleet;
pub use trend_page::page as trend;
pub use watch_page::page as watch;

/// The chart of the best stacks; none if no round trip was measured.
pub(crate) fn best_curves(result: &RunResult, references: &[RunResult]) -> Option<Chart> {
    charts::of_best(result, references).map(|figure| figure.chart)
}

/// A section of the report, if it has something to show.
struct Part {
    entry: Entry,
    content: Markup,
}

/// The report of `result`; `references` are drawn faintly beside series of the same statistic.
pub fn report(result: &RunResult, references: &[RunResult]) -> String {
    let notes = Notes::collect(result);
    let parts = parts(result, references, &notes);
    let entries: Vec<&Entry> = parts.iter().map(|part| &part.entry).collect();
    let title = title(result);
    let page = Page {
        title: format!("{}: {title} · nearmetal", headline(result).word),
        kind: format!("qualification report of {}", result.name),
        heading: &title,
        first: first_screen::ANCHOR,
        footer: html! {
            p { "Made by " (view::source_text(&result.source)) ". "
                "Half round trips and round trips are different statistics; each table and axis \
                 says which it shows." }
        },
    };
    let sections = html! {
        (first_screen::first_screen(result, references, &notes))
        (contents(&entries))
        @for part in &parts { (section(part.entry.anchor, part.entry.title, &part.content)) }
    };
    page.with(&sections, &embed::embed(result))
}

/// The sections below the first screen, in order.
fn parts(result: &RunResult, references: &[RunResult], notes: &Notes) -> Vec<Part> {
    let charts = charts::sections(result, references);
    let mut parts = vec![];
    let mut add = |is_there: bool,
                   anchor: &'static str,
                   title: &'static str,
                   content: &dyn Fn() -> Markup| {
        if is_there {
            parts.push(Part { entry: Entry { anchor, title }, content: content() });
        }
    };
    let overview = overview::picture(result, references, notes);
    add(!overview.0.is_empty(), "stacks", "Every stack", &|| overview.clone());
    add(!result.audits.is_empty(), "audit", "Audit of the machine", &|| {
        maud::html! {
            @for audit in &result.audits { (crate::audit::html::section(audit, Some(result))) }
        }
    });
    let has_targets = !result.verdicts.is_empty() || !result.not_judged.is_empty();
    add(has_targets, "targets", "Targets", &|| targets::targets(result, notes));
    add(!result.comparisons.is_empty(), "compared", "Comparisons", &|| {
        comparisons::comparisons(&result.comparisons)
    });
    add(!result.factors.is_empty(), "factors", "Factors", &|| factors::factors(result));
    add(!notes.notes.is_empty(), "doubts", "How far to trust this", &|| {
        trust::doubts(result, notes)
    });
    add(!result.series.is_empty(), "figures", "All figures", &|| tables::figures(result, notes));
    for (section, page) in probes::pages(result) {
        add(true, section.anchor, section.title, &|| page.clone());
    }
    add(crate::guests::has_any(result), "guests", "Virtual machines", &|| {
        guests::section(result, references)
    });
    add(!charts.is_empty(), "charts", "Charts", &|| chart_list::charts(&charts));
    add(endpoints::has_any(result), "endpoints", "Endpoints", &|| endpoints::endpoints(result));
    let is_missing = !result.not_available.is_empty() || !result.failures.is_empty();
    add(is_missing, "missing", "Not measured", &|| method::missing(result));
    add(!references.is_empty(), "references", "Published runs", &|| method::published(references));
    add(true, "method", "Method", &|| method::method(result));
    parts
}
