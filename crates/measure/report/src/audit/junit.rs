//! An audit as JUnit XML: a case for each check. What is unknown or not applicable is skipped, with
//! the reason. Failures below the limit are skipped as well, so that the document fails where the
//! command does.

use nm_model::finding::{Audit, Finding};
use nm_model::{FindingStatus, Severity};

use super::evidence_line;
use crate::junit::{CaseOutcome, TestCase, document as xml_document};

/// The XML document; failures of at least `fail_at` fail.
pub fn document(audit: &Audit, fail_at: Severity) -> String {
    let case = |finding: &Finding| {
        let group = finding.id.split('.').next().unwrap_or_default();
        TestCase::new(group, &finding.id, outcome(finding, fail_at))
    };
    let mut cases: Vec<TestCase> = audit.findings.iter().map(case).collect();
    cases.sort_by(|a, b| a.name.cmp(&b.name));
    xml_document(&format!("audit of {}", audit.machine.name), &[], None, cases)
}

fn outcome(finding: &Finding, fail_at: Severity) -> CaseOutcome {
    match finding.status {
        FindingStatus::Pass => CaseOutcome::Passed,
        FindingStatus::Unknown => CaseOutcome::Skipped(format!("unknown: {}", finding.summary)),
        FindingStatus::NotApplicable => {
            CaseOutcome::Skipped(format!("not applicable: {}", finding.summary))
        }
        FindingStatus::Fail => {
            let evidence: Vec<String> = finding.evidence.iter().map(evidence_line).collect();
            let text = format!(
                "{}: {}; evidence: {}; fix: {}",
                finding.severity,
                finding.summary,
                evidence.join(" | "),
                finding.fix
            );
            match finding.severity >= fail_at {
                true => CaseOutcome::Failed(text),
                false => CaseOutcome::Skipped(format!("below --fail-at {fail_at}: {text}")),
            }
        }
    }
}
