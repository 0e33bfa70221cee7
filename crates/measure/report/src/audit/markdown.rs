//! An audit as Markdown, for a merge request or a job summary.

use nm_model::finding::{Audit, Finding};
use nm_model::{FindingStatus, RunResult};

use super::threatened::threatened;
use super::{by_severity, evidence_line, machine_line, meaning, remarks};
use crate::style::Tone;
use crate::table::{Column, Table, markdown_text};

/// A document of its own.
pub fn document(audit: &Audit) -> String {
    format!("# Audit\n\n{}", section(audit, None))
}

/// The sections of a result's audits; empty without any.
pub fn of_result(result: &RunResult) -> String {
    let sections = result.audits.iter().map(|audit| section(audit, Some(result)));
    let all: String = sections.collect();
    if all.is_empty() { all } else { format!("\n## Audit of the machine\n\n{all}") }
}

/// Findings by severity; beside the figures of `result` that they threaten, if there is one.
fn section(audit: &Audit, result: Option<&RunResult>) -> String {
    let mut text = format!("{}\n\n{}\n", markdown_text(&machine_line(audit)), audit.counts());
    for (severity, findings) in by_severity(audit) {
        text += &format!("\n### {severity}: {}\n\n", meaning(severity));
        text += &table(&findings, result).to_markdown();
        for finding in findings {
            text += &details(finding);
        }
    }
    let unknown: Vec<&Finding> = audit.of(FindingStatus::Unknown).collect();
    if !unknown.is_empty() {
        let mut table = Table::new("", ["unknown", "what is missing"].map(Column::text));
        for finding in unknown {
            table.push(Tone::Plain, vec![finding.id.clone(), finding.summary.clone()]);
        }
        text += &format!("\n{}", table.to_markdown());
    }
    for (status, title) in
        [(FindingStatus::Pass, "Passed"), (FindingStatus::NotApplicable, "Not applicable")]
    {
        let names: Vec<&str> = audit.of(status).map(|finding| finding.id.as_str()).collect();
        if !names.is_empty() {
            text += &format!("\n{title}: {}.\n", markdown_text(&names.join(", ")));
        }
    }
    for one in &audit.left_out {
        text += &format!("\nLeft out: {}\n", markdown_text(one));
    }
    text
}

fn table(findings: &[&Finding], result: Option<&RunResult>) -> Table {
    let titles = ["finding", "what was found", "threatens", "fix"].map(Column::text);
    let mut table = Table::new("", titles);
    for finding in findings {
        table.push(
            Tone::Plain,
            vec![
                finding.id.clone(),
                finding.summary.clone(),
                threatened(finding, result).join("; "),
                finding.fix.to_string(),
            ],
        );
    }
    table
}

fn details(finding: &Finding) -> String {
    let evidence = finding.evidence.iter().map(|one| ("evidence", evidence_line(one)));
    let lines = evidence
        .chain(remarks(finding))
        .map(|(label, text)| format!("- {label}: {}\n", markdown_text(&text)));
    format!(
        "\n<details><summary>{}: {}</summary>\n\n{}\n</details>\n",
        markdown_text(&finding.id),
        markdown_text(&finding.title),
        lines.collect::<String>()
    )
}
