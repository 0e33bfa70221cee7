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
        (others(audit))
        @if !audit.left_out.is_empty() {
            ul { @for one in &audit.left_out { li { "Left out: " (one) } } }
        }
    }
}

/// The first titles of a list that is folded; a line holds no more.
fn titles(findings: &[&Finding]) -> String {
    const TITLES_MAX: usize = 4;
    let titles: Vec<&str> = findings.iter().map(|finding| finding.title.as_str()).collect();
    match titles.len().checked_sub(TITLES_MAX) {
        None | Some(0) => titles.join(", "),
        Some(more) => format!("{} and {more} more", titles[..TITLES_MAX].join(", ")),
    }
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

/// What is unknown, passed or not applicable, folded.
fn others(audit: &Audit) -> Markup {
    let lists = [
        (FindingStatus::Unknown, "unknown (the evidence is missing; never a pass)"),
        (FindingStatus::Pass, "passed"),
        (FindingStatus::NotApplicable, "not applicable"),
    ];
    let lists: Vec<(&str, Vec<&Finding>)> = lists
        .into_iter()
        .map(|(status, title)| (title, audit.of(status).collect::<Vec<_>>()))
        .filter(|(_, findings)| !findings.is_empty())
        .collect();
    let counts: Vec<String> =
        lists.iter().map(|(title, findings)| format!("{} {title}", findings.len())).collect();
    html! {
        @if !lists.is_empty() {
            details {
                summary { (counts.join(", ")) }
                @for (title, findings) in &lists {
                    h3 { (findings.len()) " " (title) }
                    ul { @for finding in findings {
                        li { code { (finding.id) } ": " (finding.summary) }
                    } }
                }
            }
        }
    }
}
