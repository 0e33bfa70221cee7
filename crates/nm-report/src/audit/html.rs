//! An audit in HTML: a section of the report, and a page of its own.

use maud::{Markup, html};
use nm_model::finding::{Audit, Finding};
use nm_model::{FindingStatus, RunResult, Severity};

use super::threatened::threatened;
use super::{by_severity, evidence_line, machine_line, meaning, remarks};

/// The content of the section: findings by severity beside the figures that they threaten. In the
/// report of a result only the critical ones are unfolded; the page must stay short.
pub fn section(audit: &Audit, result: Option<&RunResult>) -> Markup {
    html! {
        p { (machine_line(audit)) }
        p.reading { (audit.counts()) }
        @for (severity, findings) in by_severity(audit) {
            @if result.is_some() && severity != Severity::Critical {
                details {
                    summary { (severity) " (" (findings.len()) "): " (titles(&findings)) }
                    p.reading { (severity) ": " (meaning(severity)) }
                    (failed(&findings, severity, result))
                }
            } @else {
                h3 { (severity) ": " (meaning(severity)) }
                (failed(&findings, severity, result))
            }
        }
        (unknown(audit))
        (names(audit, FindingStatus::Pass, "Passed"))
        (names(audit, FindingStatus::NotApplicable, "Not applicable"))
        @if !audit.left_out.is_empty() {
            ul { @for one in &audit.left_out { li { "Left out: " (one) } } }
        }
    }
}

fn titles(findings: &[&Finding]) -> String {
    let titles: Vec<&str> = findings.iter().map(|finding| finding.title.as_str()).collect();
    titles.join(", ")
}

fn tone(severity: Severity) -> &'static str {
    match severity {
        Severity::Critical | Severity::High => "bad",
        Severity::Medium => "unsure",
        Severity::Low | Severity::Info => "",
    }
}

fn failed(findings: &[&Finding], severity: Severity, result: Option<&RunResult>) -> Markup {
    html! {
        ul.cards {
            @for finding in findings {
                li id=(anchor(finding)) class=(format!("card {}", tone(severity))) {
                    p.head { b { (finding.title) } ": " (finding.summary) }
                    p { "Threatens: " (threatened(finding, result).join("; ")) "." }
                    p { "Fix: " code { (finding.fix) } }
                    details {
                        summary { (finding.id) ": evidence, reason, sources" }
                        (details_of(finding))
                    }
                }
            }
        }
    }
}

fn anchor(finding: &Finding) -> String {
    format!("finding-{}", finding.id)
}

fn details_of(finding: &Finding) -> Markup {
    html! {
        dl.notes {
            @for one in &finding.evidence {
                div { dt { "evidence" } dd { code { (evidence_line(one)) } } }
            }
            @for (label, text) in remarks(finding) {
                div { dt { (label) } dd { (text) } }
            }
        }
    }
}

fn unknown(audit: &Audit) -> Markup {
    let all: Vec<&Finding> = audit.of(FindingStatus::Unknown).collect();
    html! {
        @if !all.is_empty() {
            details {
                summary { "Unknown: " (all.len()) " (the evidence is missing; never a pass)" }
                ul { @for finding in all {
                    li { code { (finding.id) } ": " (finding.summary) }
                } }
            }
        }
    }
}

fn names(audit: &Audit, status: FindingStatus, title: &str) -> Markup {
    let all: Vec<&Finding> = audit.of(status).collect();
    html! {
        @if !all.is_empty() {
            details {
                summary { (title) ": " (all.len()) }
                ul { @for finding in all {
                    li { code { (finding.id) } ": " (finding.summary) }
                } }
            }
        }
    }
}
