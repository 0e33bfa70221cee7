//! An audit as a page of its own.

use maud::html;
use nm_model::Severity;
use nm_model::finding::Audit;

use super::page::{Page, section};
use crate::audit::html::section as findings;

/// The page; it needs nothing else.
pub fn page(audit: &Audit) -> String {
    let n_severe = audit.failed(Severity::High).count();
    let heading = match n_severe {
        0 => "No finding of high severity".to_string(),
        1 => "1 finding of high severity".to_string(),
        n => format!("{n} findings of high severity"),
    };
    let page = Page {
        title: format!("audit of {} · nearmetal", audit.machine.name),
        kind: format!("audit of {}", audit.machine.name),
        heading: &heading,
        first: "audit",
        footer: html! { p { "Missing evidence is unknown, never a pass." } },
    };
    page.with(&section("audit", "Findings", &findings(audit, None)), &html! {})
}
