//! An audit for a terminal: failed findings by severity, then what is unknown, then the names of
//! the checks that passed.

use nm_model::finding::{Audit, Finding};
use nm_model::{FindingStatus, Severity};

use super::{by_severity, evidence_line, machine_line, meaning, remarks};
use crate::style::{Style, Tone, clean, wrap};

/// Pieces of evidence that are shown of each finding.
const EVIDENCE_MAX: usize = 3;

/// The text.
pub fn text(audit: &Audit, style: Style) -> String {
    let mut text = lines(&clean(&machine_line(audit)), 0, style.width);
    text += &format!("{}\n", audit.counts());
    for (severity, findings) in by_severity(audit) {
        let title = capital(&format!("{severity}: {}", meaning(severity)));
        text += &format!("\n{}\n", style.bold(&title));
        findings.iter().for_each(|finding| text += &failed(finding, style));
    }
    text += &unknown(audit, style);
    for (status, title) in
        [(FindingStatus::Pass, "Passed"), (FindingStatus::NotApplicable, "Not applicable")]
    {
        let names: Vec<&str> = audit.of(status).map(|finding| finding.id.as_str()).collect();
        if !names.is_empty() {
            text += &format!("\n{}\n", style.bold(&format!("{title}: {}", names.len())));
            text += &lines(&style.faint(&names.join(", ")), 2, style.width);
        }
    }
    if !audit.left_out.is_empty() {
        text += &format!("\n{}\n", style.bold("Left out of the snapshot"));
        audit.left_out.iter().for_each(|one| text += &lines(&clean(one), 2, style.width));
    }
    text
}

fn failed(finding: &Finding, style: Style) -> String {
    let tone = match finding.severity {
        Severity::Critical | Severity::High => Tone::Bad,
        Severity::Medium => Tone::Unsure,
        Severity::Low | Severity::Info => Tone::Plain,
    };
    let head = style.tone(tone, &format!("✗ {}", finding.id));
    let mut text = format!("  {head}  {}\n", finding.title);
    text += &lines(&clean(&finding.summary), 4, style.width);
    for one in finding.evidence.iter().take(EVIDENCE_MAX) {
        text += &labelled("evidence", &clean(&evidence_line(one)), style);
    }
    let more = finding.evidence.len().saturating_sub(EVIDENCE_MAX);
    if more > 0 {
        text += &labelled("", &format!("and {more} more"), style);
    }
    for (label, remark) in remarks(finding) {
        text += &labelled(label, &clean(&remark), style);
    }
    text
}

fn unknown(audit: &Audit, style: Style) -> String {
    let all: Vec<&Finding> = audit.of(FindingStatus::Unknown).collect();
    if all.is_empty() {
        return String::new();
    }
    let title = format!("Unknown: {} (the evidence is missing; never a pass)", all.len());
    let mut text = format!("\n{}\n", style.bold(&title));
    for finding in all {
        let head = format!("? {}: {}", finding.id, clean(&finding.summary));
        text += &lines(&head, 2, style.width);
    }
    text
}

/// Columns of a label.
const LABEL: usize = 16;

fn labelled(label: &str, text: &str, style: Style) -> String {
    let width = style.width.saturating_sub(4 + LABEL).max(20);
    let mut all = String::new();
    for (at, line) in wrap(text, width).iter().enumerate() {
        let label = if at == 0 { label } else { "" };
        all += &format!("    {}{line}\n", style.faint(&format!("{label:LABEL$}")));
    }
    all
}

/// `text` in lines that begin with `indent` blanks.
fn lines(text: &str, indent: usize, width: usize) -> String {
    let wrapped = wrap(text, width.saturating_sub(indent).max(20));
    wrapped.iter().map(|line| format!("{:indent$}{line}\n", "")).collect()
}

/// The text with a capital at its beginning.
fn capital(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().map(|c| c.to_uppercase().collect::<String>());
    first.unwrap_or_default() + letters.as_str()
}
